"""The step type `Delegate` (`delegate` in the stateful dialect) gives an agent a task in words.

Without `agent`, the main agent does the task. With `agent`, the main agent gives it to a sub-agent of that
kind, and submits the answer of the sub-agent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field, field_validator

from workflows_mcp.steps.base import Performer, Question, Step, StepInputs, StepOutputs, StepResult
from workflows_mcp.values import Value, shown, to_text

AGENT = re.compile(r"@[a-z0-9-]+")
AGENT_FORM = "write @name, with lower-case letters, digits and hyphens, e.g. @code-reviewer"
GENERIC = "@task"
"""A general sub-agent."""

_ADDED = (
    "You cannot ask the user. If only the user can decide a question, return the question as your result."
)
"""What the prompt of a sub-agent says in addition to the instructions."""


_FOLLOW = 'Follow parameters.instructions. Submit {"response": "<only the answer, complete, as text>"}.'
_AS_AGENT = "You are the agent {}. "


class DelegateInputs(StepInputs):
    instructions: str = Field(description="What to do, with everything that is needed to do it.")
    agent: str | None = Field(
        None, description="The kind of sub-agent that does it, as @name; by default the main agent does it."
    )
    timeout: float = Field(300, gt=0, description="Seconds that it should take at most.")

    @field_validator("agent")
    @classmethod
    def _is_an_agent(cls, agent: str | None) -> str | None:
        if not agent:
            return None
        if AGENT.fullmatch(agent) is None:
            raise ValueError(f"{shown(agent)} is not the name of an agent: {AGENT_FORM}")
        return agent


class DelegateOutputs(StepOutputs):
    response: str = ""
    agent_used: str | None = None
    tokens_used: int | None = None


class Delegate(Step):
    """Gives an agent a task in words, and returns its answer."""

    name = "Delegate"
    dialect_names: ClassVar[Mapping[str, str]] = {
        "graph": "Delegate", "stateful": "delegate", "reactive": "delegate",
    }  # fmt: skip
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
                    "response": {"type": "string", "description": "The complete answer, word for word"},
                    "agent_used": {"type": ["string", "null"], "description": "The agent that answered"},
                    "tokens_used": {"type": ["integer", "null"], "description": "If you know it"},
                },
                "required": ["response"],
                "additionalProperties": False,
            },
            main_field="response",
            describes_result=True,
        )

    def ask_alone(self, inputs: DelegateInputs) -> Question:
        alone = self.ask(inputs.model_copy(update={"agent": None}))
        answer: dict[str, Value] = {"type": "string", "description": "The complete answer"}
        return replace(
            alone,
            instructions=_AS_AGENT.format(inputs.agent) + _FOLLOW if inputs.agent else _FOLLOW,
            result_schema={
                "type": "object",
                "properties": {"response": answer},
                "required": ["response"],
                "additionalProperties": False,
            },
        )

    def credit(self, result: StepResult, agent: str, tokens: int) -> StepResult:
        outputs = {**result.outputs, "agent_used": agent, "tokens_used": tokens or None}
        return replace(result, outputs=outputs, tokens=tokens)

    def normalize_result(self, inputs: DelegateInputs, result: Value) -> Value:
        """Turn a `response` that is data into JSON text."""
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
            "Follow parameters.instructions yourself. Submit "
            '{"response": "<only the answer, complete, as text>"}.'
        )
    whom = "a sub-agent" if agent == GENERIC else f"a sub-agent ({agent}, or a general one)"
    return (
        f"Start {whom}; do it yourself if you cannot. Its prompt: parameters.instructions and "
        f'"{_ADDED}" Submit {{"response": "<its answer, word for word>"}}; add agent_used, tokens_used if '
        "known."
    )
