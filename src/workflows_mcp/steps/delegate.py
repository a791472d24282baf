"""The step type `Delegate` (`delegate` in the stateful dialect): a task in words, for an agent.

Without an agent it is the main agent that does it; with one, the main agent hands it to a sub-agent of that
kind and carries the answer back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, field_validator

from workflows_mcp.steps.base import Performer, Question, Step, StepInputs, StepOutputs, StepResult
from workflows_mcp.values import Value, shown, to_text

AGENT = re.compile(r"@[a-z0-9-]+")
AGENT_FORM = "an agent is written @name, in lower-case letters, digits and hyphens, e.g. @code-reviewer"
GENERIC = "@task"
"""A sub-agent of no special kind."""

_ADDED = "You cannot ask the user: return a question that only the user can decide as your result."
"""What the sub-agent is told beside the instructions."""


class DelegateInputs(StepInputs):
    instructions: str = Field(description="What is to be done, with all that is needed to do it.")
    agent: str | None = Field(
        None, description="Who does it: @name of a kind of sub-agent; without it, the main agent itself."
    )
    timeout: float = Field(300, gt=0, description="Seconds that it should take at most.")

    @field_validator("agent")
    @classmethod
    def _is_an_agent(cls, agent: str | None) -> str | None:
        if not agent:
            return None
        if AGENT.fullmatch(agent) is None:
            raise ValueError(f"{shown(agent)} is no name of an agent: {AGENT_FORM}")
        return agent


class DelegateOutputs(StepOutputs):
    response: str = ""
    agent_used: str | None = None
    tokens_used: int | None = None


class Delegate(Step):
    """Has an agent carry out a task that is given in words, and gives its answer."""

    name = "Delegate"
    dialect_names: ClassVar[Mapping[str, str]] = {"stateful": "delegate"}
    performer: ClassVar[Performer] = "agent"
    Inputs = DelegateInputs
    Outputs = DelegateOutputs
    level = "trusted"
    timeout_input = "timeout"

    def ask(self, inputs: DelegateInputs) -> Question:
        parameters: dict[str, Value] = {"instructions": inputs.instructions}
        if inputs.agent is not None:
            parameters["agent"] = inputs.agent
        if "timeout" in inputs.model_fields_set:
            parameters["timeout"] = inputs.timeout
        return Question(
            type="delegate",
            instructions=_instructions(inputs.agent),
            parameters=parameters,
            result_schema={
                "type": "object",
                "properties": {
                    "response": {"type": "string", "description": "The answer, complete, word for word"},
                    "agent_used": {"type": ["string", "null"], "description": "Who gave it"},
                    "tokens_used": {"type": ["integer", "null"], "description": "If you know it"},
                },
                "required": ["response"],
                "additionalProperties": False,
            },
            main_field="response",
            describes_result=True,
        )

    def normalize_result(self, inputs: DelegateInputs, result: Value) -> Value:
        """An answer that is data is taken as its JSON text. An object that is no result is not an answer."""
        if isinstance(result, dict) and not isinstance(result.get("response", ""), str | None):
            return {**result, "response": to_text(result["response"])}
        return result

    def parse_result(self, inputs: DelegateInputs, result: Any) -> StepResult:
        return StepResult(
            {
                "response": result["response"],
                "agent_used": result.get("agent_used") or inputs.agent,
                "tokens_used": result.get("tokens_used"),
            }
        )


def _instructions(agent: str | None) -> str:
    if agent is None:
        return (
            "Do what parameters.instructions say, yourself. Submit "
            '{"response": "<the whole answer, nothing around it>"}.'
        )
    whom = "a sub-agent" if agent == GENERIC else f"a sub-agent ({agent}, or a general one)"
    return (
        f"Start {whom}, or do it yourself if you have none. Its prompt: parameters.instructions and "
        f'"{_ADDED}" Submit {{"response": "<its answer, word for word>"}}; agent_used, tokens_used if known.'
    )
