"""The step type `Prompt`: a question that the agent answers, or puts to whoever can."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from workflows_mcp.steps.base import Hands, Question, Step, StepInputs, StepOutputs
from workflows_mcp.values import Value, kind_and_value, to_text

RESULT_SCHEMA: dict[str, Value] = {
    "type": "object",
    "properties": {"response": {"type": "string", "description": "The answer, as text"}},
    "required": ["response"],
    "additionalProperties": False,
}


class PromptInputs(StepInputs):
    prompt: str = Field(description="What is asked. Say which answers the workflow understands.")


class PromptOutputs(StepOutputs):
    response: str = ""


class Prompt(Step):
    """Pauses until the agent has answered a question.

    The answer is text, in `response`. Conditions of later blocks decide what follows from it.
    """

    name = "Prompt"
    offered: ClassVar[Mapping[str, str]] = {"graph": "Prompt"}
    by: ClassVar[Hands] = "agent"
    Inputs = PromptInputs
    Outputs = PromptOutputs

    def changes_world(self, inputs: dict[str, Value]) -> bool:
        return False

    def default_answer(
        self, inputs: Mapping[str, Value], value: Value, *, dynamic: bool = False
    ) -> dict[str, Value]:
        if isinstance(value, dict | list):
            raise ValueError(f"must be text, not {kind_and_value(value)}")
        return {"response": value if dynamic else to_text(value)}

    def ask(self, inputs: PromptInputs) -> Question:
        return Question(
            type="prompt",
            instructions=(
                "Answer the prompt in the parameters. If it asks for a decision, or for something that only "
                "the user knows, put it to the user and wait for the answer; otherwise answer it yourself. "
                'Keep to the form that the prompt asks for. Then submit {"response": "<the answer>"}.'
            ),
            parameters={"prompt": inputs.prompt},
            result_schema=RESULT_SCHEMA,
            main_field="response",
            for_user=inputs.prompt,
        )
