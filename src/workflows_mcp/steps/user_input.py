"""The step type `UserInput` (`user_input` in the reactive dialect): asks the user for a text, and checks it.

The agent only carries the question there and the answer back. An answer that does not fit the validation is
refused in the author's own words, and the question stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from workflows_mcp.errors import StepError, WorkflowsError
from workflows_mcp.steps.base import (
    Hands,
    Question,
    Step,
    StepInputs,
    StepOutputs,
    StepResult,
    by_one_name,
)
from workflows_mcp.steps.user_prompt import (
    CHOICES,
    TextRules,
    check_options,
    decision_meant,
    option_meant,
    options_as_text,
)
from workflows_mcp.values import Value, shown, to_text

_FIELD = "input"
"""What the answer is called in the result of the agent."""
_SPELLINGS = frozenset({"value", "response", "result", "answer", "text"})
"""What else an answer is called."""
_SCHEMA_NAMES = {"pattern": "pattern", "min_length": "minLength", "max_length": "maxLength"}
_ASK = "Show the user parameters.prompt as it is and wait for the answer: never answer for the user."


class AnswerRules(TextRules):
    """What the answer must be like, and what the user is told when it is not."""

    error_message: str = Field("", description="What the user is told when the answer does not fit.")
    choices: list[str] = Field(default_factory=list, description="The answers there are.")

    @model_validator(mode="before")
    @classmethod
    def _by_one_name(cls, given: Any) -> Any:
        return by_one_name(given, CHOICES)

    @field_validator("choices", mode="before")
    @classmethod
    def _choices_as_text(cls, given: Any) -> Any:
        return options_as_text(given)

    @model_validator(mode="after")
    def _choices_differ(self) -> Self:
        check_options(self.choices)
        return self

    def as_schema(self) -> dict[str, Value]:
        schema: dict[str, Value] = {"enum": list(self.choices)} if self.choices else {}
        named = {spelt: getattr(self, name) for name, spelt in _SCHEMA_NAMES.items()}
        return schema | {name: value for name, value in named.items() if value is not None}

    def take(self, text: str) -> bool:
        """Whether the text is what it must be."""
        return super().take(text) if not self.choices or text in self.choices else False


class UserInputInputs(StepInputs):
    prompt: str = Field(description="What the user is asked.")
    prompt_type: Literal["text", "choice", "confirm"] = Field(
        "text", description="text (any text), choice (one of the choices) or confirm (true or false)."
    )
    validation: AnswerRules | None = Field(
        None,
        description="What the answer must be like: pattern, min_length, max_length, choices; error_message.",
    )
    choices: list[str] = Field(default_factory=list, description="The answers there are.")
    default: str | None = Field(None, description="What an empty answer stands for.")

    other_names = CHOICES

    @field_validator("choices", mode="before")
    @classmethod
    def _choices_as_text(cls, given: Any) -> Any:
        return options_as_text(given)

    @model_validator(mode="after")
    def _fits_its_type(self) -> Self:
        check_options(self.choices)
        if self.choices and self.validation is not None and self.validation.choices:
            raise ValueError("'choices' stand in the step and in its validation: give them once")
        if self.choices and self.prompt_type == "confirm":
            raise ValueError("'choices' are for a text or a choice, not for confirm")
        if self.prompt_type == "choice" and not self.allowed:
            raise ValueError("a choice needs 'choices', a list of what can be chosen")
        if self.prompt_type == "confirm" and self.validation is not None:
            raise ValueError("'validation' is for a text or a choice, not for confirm")
        return self

    @property
    def allowed(self) -> list[str]:
        return self.choices or (self.validation.choices if self.validation is not None else [])

    def meant(self, given: Value) -> Value:
        """An answer as it is meant: an option by its number, yes for true, a number as text."""
        if self.prompt_type == "confirm":
            return decision_meant(given)
        text = option_meant(given, self.allowed) if self.allowed else given
        text = to_text(text) if isinstance(text, int | float) else text
        if isinstance(text, str) and self.validation is not None and self.validation.take(text.strip()):
            return text.strip()
        return text

    def takes(self, answer: Value) -> bool:
        if self.prompt_type == "confirm":
            return isinstance(answer, bool)
        if not isinstance(answer, str) or (self.choices and answer not in self.choices):
            return False
        return self.validation is None or self.validation.take(answer)


class UserInputOutputs(StepOutputs):
    result: Any = None


class UserInput(Step):
    """Asks the user for a text, and asks again as long as it is not what it must be.

    The result is the text; for `prompt_type: confirm` it is true or false.
    """

    name = "UserInput"
    offered: ClassVar[Mapping[str, str]] = {"reactive": "user_input"}
    by: ClassVar[Hands] = "agent"
    Inputs = UserInputInputs
    Outputs = UserInputOutputs
    gives = "result"

    def changes_world(self, inputs: dict[str, Value]) -> bool:
        return False

    def default_answer(
        self, inputs: Mapping[str, Value], value: Value, *, dynamic: bool = False
    ) -> dict[str, Value]:
        try:
            checked = UserInputInputs.model_validate(inputs)
        except ValidationError:
            return {"result": value}  # told already, or known only when it is asked
        answer = value if dynamic else checked.meant(value)
        if not dynamic and not checked.takes(answer):
            raise ValueError(f"is no answer to it: {shown(value)}")
        return {"result": answer}

    def ask(self, inputs: UserInputInputs) -> Question:
        parameters: dict[str, Value] = {"prompt": inputs.prompt}
        if inputs.prompt_type != "text":
            parameters["prompt_type"] = inputs.prompt_type
        if inputs.choices:
            parameters["choices"] = list(inputs.choices)
        if inputs.validation is not None:
            parameters["validation"] = inputs.validation.model_dump(exclude_none=True, exclude_unset=True)
        if _default(inputs) is not None:
            parameters["default"] = inputs.default
        return Question(
            type="user_input",
            instructions=_instructions(inputs),
            parameters=parameters,
            result_schema=_result_schema(inputs),
            main_field=_FIELD,
            for_user=inputs.prompt,
            says_result=True,
        )

    def understood(self, inputs: UserInputInputs, result: Value) -> Value:
        if not isinstance(result, dict):
            return result
        if len(result) == 1 and (spelt := next(iter(result))) in _SPELLINGS:
            result = {_FIELD: result[spelt]}
        default = _default(inputs)
        if default is not None and (not result or result.get(_FIELD, 0) in (None, "")):
            return {**result, _FIELD: default}
        return {**result, _FIELD: inputs.meant(result[_FIELD])} if _FIELD in result else result

    def refused(self, inputs: UserInputInputs, result: Value) -> str:
        """The author's words, where it is the answer that does not fit, and not the form of the result."""
        rules = inputs.validation
        is_answer = isinstance(result, dict) and result.keys() == {_FIELD} and isinstance(result[_FIELD], str)
        return rules.error_message if rules is not None and is_answer else ""

    def answered(self, inputs: UserInputInputs, result: Any) -> StepResult:
        return StepResult({"result": result[_FIELD]})

    def check_literals(self, inputs: dict[str, Value]) -> list[tuple[str, WorkflowsError, int]]:
        """A default that could never be the answer."""
        if inputs.get("default") is None:
            return []
        try:
            given = UserInputInputs.model_validate({"prompt": "", **inputs})
        except ValidationError:
            return []  # told already, or known only when it is asked
        if _default(given) is not None:
            return []
        error = StepError(
            f"the default {shown(given.default)} is no answer that fits",
            hint="give one that the validation takes, or none",
        )
        return [("default", error, 0)]


def _default(inputs: UserInputInputs) -> Value:
    """What an empty answer stands for; nothing where the default itself is no answer."""
    answer = inputs.meant(inputs.default)
    return answer if answer is not None and inputs.takes(answer) else None


def _result_schema(inputs: UserInputInputs) -> dict[str, Value]:
    """Where there is a default, a form shows it and can be sent as it is, or empty."""
    answer, default = _answer_schema(inputs), _default(inputs)
    if default is None:
        needed: dict[str, Value] = {"properties": {_FIELD: answer}, "required": [_FIELD]}
    else:
        needed = {"properties": {_FIELD: {**answer, "default": default}}}
    return {"type": "object", **needed, "additionalProperties": False}


def _answer_schema(inputs: UserInputInputs) -> dict[str, Value]:
    if inputs.prompt_type == "confirm":
        return {"type": "boolean", "description": "Whether the user said yes"}
    rules = inputs.validation.as_schema() if inputs.validation is not None else {}
    if inputs.choices:
        rules["enum"] = list(inputs.choices)
    return {"type": "string", "description": "What the user said", **rules}


def _instructions(inputs: UserInputInputs) -> str:
    if inputs.prompt_type == "confirm":
        said = f'{_ASK} Submit {{"{_FIELD}": true}} for yes, {{"{_FIELD}": false}} for no.'
    else:
        said = f'{_ASK} Submit {{"{_FIELD}": "<what the user said>"}}.'
    if inputs.choices:
        said += " Offer parameters.choices."
    if inputs.validation is not None:
        said += " If it does not fit parameters.validation, ask again."
    if _default(inputs) is not None:
        said += " If the user leaves it open, submit parameters.default."
    return said
