"""The step type `Gate` waits for a decision that only a person can make.

    - id: approve
      type: gate
      message: Release {{ inputs.version }}?
      approvers: [release-managers]
      on_reject: {back_to: implement}

No tool call, task or result of an agent can answer it. A person decides in a form of the client, on the
terminal, or on the page; the decision has the identity of that person. `approvers` are names of groups in the
settings, or of people; without them, any person can decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, field_validator

from workflows_mcp.steps.base import Performer, Question, Step, StepInputs, StepOutputs
from workflows_mcp.steps.prompts import Options
from workflows_mcp.values import Value

APPROVE, REJECT = "approve", "reject"


def _names(given: Any) -> Any:
    return [given] if isinstance(given, str) else [] if given is None else given


class GateInputs(StepInputs):
    message: str = Field(description="What the person has to decide, with everything that is needed for it.")
    approvers: Annotated[list[str], BeforeValidator(_names)] = Field(
        default_factory=list,
        description="Who may decide: groups of the settings, or names of people. Default: any person.",
    )
    choices: Options = Field(
        default_factory=lambda: [APPROVE, REJECT],
        description="The possible decisions; `reject` does not let the run pass.",
    )

    @field_validator("choices")
    @classmethod
    def _are_choices(cls, choices: list[str]) -> list[str]:
        if len(set(choices)) != len(choices) or not choices:
            raise ValueError("needs at least one choice, each of them once")
        return choices


class GateOutputs(StepOutputs):
    decision: str = ""
    approved: bool = False
    comment: str = ""
    by: str = ""
    via: str = ""
    at: str = ""


class Gate(Step):
    """Waits for a decision that only a person can make, and records who made it.

    A person decides in a form of the MCP client, on the terminal, or on the page. Agents cannot answer it.
    """

    name = "Gate"
    aliases: ClassVar[tuple[str, ...]] = ("gate",)
    dialect_names: ClassVar[Mapping[str, str]] = {"graph": "Gate", "stateful": "gate", "reactive": "gate"}
    performer: ClassVar[Performer] = "human"
    Inputs = GateInputs
    Outputs = GateOutputs
    may_fail = True

    def changes_world(self, inputs: dict[str, Value]) -> bool:
        return False

    def ask(self, inputs: GateInputs) -> Question:
        """Return the form for the person who decides."""
        parameters: dict[str, Value] = {"message": inputs.message, "choices": list(inputs.choices)}
        if inputs.approvers:
            parameters["approvers"] = list(inputs.approvers)
        return Question(
            type="gate",
            instructions="Only a person can decide this. Tell the user that the run waits for this decision.",
            parameters=parameters,
            result_schema={
                "type": "object",
                "properties": {
                    "decision": {
                        "type": "string",
                        "enum": list(inputs.choices),
                        "description": "The decision",
                    },
                    "comment": {"type": "string", "description": "Why, or what should change"},
                },
                "required": ["decision"],
                "additionalProperties": False,
            },
            main_field="decision",
            for_user=inputs.message,
        )
