"""The step type `Prompt`: a question that the agent answers, or puts to whoever can.

With `choices` or `confirm` it is a decision of the user: the agent only carries it there and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from workflows_mcp.steps.base import Hands, Question, Step, StepInputs, StepOutputs, StepResult
from workflows_mcp.steps.user_prompt import (
    CHOICES,
    check_options,
    decision_meant,
    option_meant,
    options_as_text,
)
from workflows_mcp.values import Value, kind_and_value, to_text

_ASK = "Show the user parameters.prompt as it is and wait for the answer: never answer for the user."


class PromptInputs(StepInputs):
    prompt: str = Field(description="What is asked. Say which answers the workflow understands.")
    choices: list[str] = Field(default_factory=list, description="The answers there are, if it is a choice.")
    confirm: bool = Field(False, description="Whether it is a yes or no; the output `confirmed` has which.")

    other_names = CHOICES

    @field_validator("choices", mode="before")
    @classmethod
    def _choices_as_text(cls, choices: Any) -> Any:
        return options_as_text(choices)

    @model_validator(mode="after")
    def _one_kind_of_answer(self) -> Self:
        check_options(self.choices)
        if self.choices and self.confirm:
            raise ValueError("'choices' and 'confirm' exclude each other: confirm asks for yes or no")
        return self


class PromptOutputs(StepOutputs):
    response: str = ""
    confirmed: bool = False


class Prompt(Step):
    """Pauses until a question has been answered.

    The answer is text, in `response`: any text, or one of the `choices`. With `confirm: true` it is yes or
    no, and `confirmed` is true or false. Conditions of later blocks decide what follows from it.
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
        if inputs.get("confirm") is True:
            meant = decision_meant(value)
            if not isinstance(meant, bool) and not dynamic:
                raise ValueError(f"must be yes or no, not {kind_and_value(value)}")
            return {"response": "yes" if meant is True else "no", "confirmed": meant is True}
        return {"response": value if dynamic else to_text(value)}

    def ask(self, inputs: PromptInputs) -> Question:
        field = "response"
        schema: dict[str, Value] = {"type": "string", "description": "The answer, as text"}
        parameters: dict[str, Value] = {"prompt": inputs.prompt}
        instructions = (
            "Answer parameters.prompt, in the form that it asks for; if it is for the user to decide, or "
            'only the user knows, ask the user and wait. Submit {"response": "<the answer>"}.'
        )
        if inputs.confirm:
            field, schema = "confirmed", {"type": "boolean", "description": "Whether the user said yes"}
            instructions = f'{_ASK} Submit {{"confirmed": true}} for yes, {{"confirmed": false}} for no.'
        elif inputs.choices:
            schema = {"type": "string", "enum": list(inputs.choices), "description": "What the user chose"}
            parameters["choices"] = list(inputs.choices)
            instructions = (
                f'{_ASK} Offer parameters.choices. Submit {{"response": "<the choice, as it is spelt>"}}.'
            )
        return Question(
            type="prompt",
            instructions=instructions,
            parameters=parameters,
            result_schema={
                "type": "object",
                "properties": {field: schema},
                "required": [field],
                "additionalProperties": False,
            },
            main_field=field,
            for_user=inputs.prompt,
            says_result=True,
        )

    def understood(self, inputs: PromptInputs, result: Value) -> Value:
        if not isinstance(result, dict):
            return result
        if inputs.confirm:
            if result.keys() == {"response"}:
                result = {"confirmed": result["response"]}
            if "confirmed" in result:
                return {**result, "confirmed": decision_meant(result["confirmed"])}
        elif inputs.choices and "response" in result:
            return {**result, "response": option_meant(result["response"], inputs.choices)}
        return result

    def answered(self, inputs: PromptInputs, result: Any) -> StepResult:
        if not inputs.confirm:
            return StepResult(dict(result))
        confirmed = result["confirmed"]
        return StepResult({"response": "yes" if confirmed else "no", "confirmed": confirmed})
