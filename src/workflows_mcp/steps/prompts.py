"""The step types `Prompt`, `UserPrompt` and `UserInput` ask a question and return the answer.

    - {id: sure, type: Prompt, inputs: {prompt: "Deploy to production?", confirm: true}}

`Prompt` is for the graph dialect: the agent answers it, or asks the user. With `choices` or `confirm` the
user decides, and the agent only relays the question and the answer. `UserPrompt` (`prompt` in the stateful
dialect) and `UserInput` (`user_input` in the reactive dialect) always ask the user. An answer may use other
words than the schema: "yes" for true, the number of an option.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from workflows_mcp.errors import ExpressionError, StepError, WorkflowsError
from workflows_mcp.expressions import compiled, search
from workflows_mcp.steps.base import (
    Performer,
    Question,
    Step,
    StepInputs,
    StepOutputs,
    StepResult,
    by_one_name,
)
from workflows_mcp.values import Value, kind_and_value, shown, to_text

CHOICES: Mapping[str, str] = {"options": "choices", "enum": "choices"}
"""Other names of the input `choices`."""
COMMENT: Mapping[str, Value] = {
    "comment": {"type": "string", "description": "What else the user said, e.g. why not"}
}
"""An optional field of the result, for a question whose answer leaves no room for words."""
_ASK = "Show the user parameters.{} as it is and wait for the answer: never answer for the user."
_CONFIRM_SCHEMA: Mapping[str, Value] = {"type": "boolean", "description": "Whether the user said yes"}


def options_as_text(options: Any) -> Any:
    """Return the options as texts. Raises ValueError."""
    if options is None:
        return []
    if not isinstance(options, list):
        return options
    for option in options:
        if option is None or isinstance(option, list | dict):
            raise ValueError(f"an option must be text, not {kind_and_value(option)}")
    return [to_text(option) for option in options]


Options = Annotated[list[str], BeforeValidator(options_as_text)]
"""The options of a choice; numbers, true and false are accepted as text."""


def _choice_schema(options: list[str]) -> dict[str, Value]:
    return {"type": "string", "enum": list(options), "description": "What the user chose"}


def _schema_of(field: str, answer: Mapping[str, Value], *, comment: bool) -> dict[str, Value]:
    """Return the schema of a result with one field, and a comment of the user if the field has no words."""
    return {
        "type": "object",
        "properties": {field: dict(answer), **(COMMENT if comment else {})},
        "required": [field],
        "additionalProperties": False,
    }


class _Asks(Step):
    """A step that only asks: an agent performs it, and it changes nothing."""

    performer: ClassVar[Performer] = "agent"

    def changes_world(self, inputs: dict[str, Value]) -> bool:
        return False


class PromptInputs(StepInputs):
    prompt: str = Field(description="The question. Say which answers the workflow accepts.")
    choices: Options = Field(default_factory=list, description="The possible answers, for a choice.")
    confirm: bool = Field(
        False, description="Whether to ask for yes or no; the answer is the output `confirmed`."
    )

    other_names = CHOICES

    @model_validator(mode="after")
    def _one_kind_of_answer(self) -> Self:
        check_options(self.choices)
        if self.choices and self.confirm:
            raise ValueError("'choices' and 'confirm' exclude each other: confirm asks for yes or no")
        return self


class PromptOutputs(StepOutputs):
    response: str = ""
    confirmed: bool = False
    comment: str = ""


class Prompt(_Asks):
    """Pauses until a question is answered.

    The answer is text, in `response`: any text, or one of the `choices`. With `confirm: true` it is yes or
    no, and `confirmed` is true or false. Later blocks can use the answer in their conditions. With `choices`
    or `confirm`, `comment` is what else the user said.
    """

    name = "Prompt"
    dialect_names: ClassVar[Mapping[str, str]] = {"graph": "Prompt"}
    Inputs = PromptInputs
    Outputs = PromptOutputs

    def default_answer(
        self, inputs: Mapping[str, Value], value: Value, *, dynamic: bool = False
    ) -> dict[str, Value]:
        if isinstance(value, dict | list):
            raise ValueError(f"must be text, not {kind_and_value(value)}")
        if inputs.get("confirm") is True:
            decision = as_decision(value)
            if not isinstance(decision, bool) and not dynamic:
                raise ValueError(f"must be yes or no, not {kind_and_value(value)}")
            return {"response": "yes" if decision is True else "no", "confirmed": decision is True}
        return {"response": value if dynamic else to_text(value)}

    def ask(self, inputs: PromptInputs) -> Question:
        field = "response"
        schema: dict[str, Value] = {"type": "string", "description": "The answer, as text"}
        parameters: dict[str, Value] = {"prompt": inputs.prompt}
        instructions = (
            "Answer parameters.prompt in the form that it asks for; if only the user can decide or know it, "
            'ask the user and wait. Submit {"response": "<the answer>"}.'
        )
        if inputs.confirm:
            field, schema = "confirmed", dict(_CONFIRM_SCHEMA)
            instructions = f"{_ASK.format('prompt')} {_HOW['confirm']}"
        elif inputs.choices:
            schema = _choice_schema(inputs.choices)
            parameters["choices"] = list(inputs.choices)
            how = 'Submit {"response": "<the choice, as spelled>"}.'
            instructions = f"{_ASK.format('prompt')} Offer parameters.choices. {how}"
        return Question(
            type="prompt",
            instructions=instructions,
            parameters=parameters,
            result_schema=_schema_of(field, schema, comment=inputs.confirm or bool(inputs.choices)),
            main_field=field,
            for_user=inputs.prompt,
            agent_may_answer=not (inputs.confirm or inputs.choices),
            describes_result=True,
        )

    def normalize_result(self, inputs: PromptInputs, result: Value) -> Value:
        if not isinstance(result, dict):
            return result
        if inputs.confirm:
            if "response" in result and "confirmed" not in result:
                result = {**result, "confirmed": result["response"]}
                del result["response"]
            if "confirmed" in result:
                return {**result, "confirmed": as_decision(result["confirmed"])}
        elif inputs.choices and "response" in result:
            return {**result, "response": as_option(result["response"], inputs.choices)}
        return result

    def parse_result(self, inputs: PromptInputs, result: Any) -> StepResult:
        if inputs.confirm:
            result = {"response": "yes" if result["confirmed"] else "no", **result}
        elif not inputs.choices:
            return StepResult(dict(result))
        return StepResult({"comment": "", **result})


# UserPrompt

PromptType = Literal["info", "confirm", "text", "choice"]
_FIELDS: dict[str, str] = {
    "info": "acknowledged",
    "confirm": "confirmed",
    "text": "input",
    "choice": "selected",
}
"""The field of the result with the answer, by the type of the prompt."""
_DECISIONS = ("confirm", "choice")


class TextRules(BaseModel):
    """The rules for a text."""

    model_config = ConfigDict(extra="forbid")

    pattern: str | None = Field(
        None, description="A regular expression that it must match; ^…$ for the whole text."
    )
    min_length: int | None = Field(None, ge=0, description="The least number of characters.")
    max_length: int | None = Field(None, ge=0, description="The greatest number of characters.")

    @field_validator("pattern")
    @classmethod
    def _is_a_pattern(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            try:
                compiled(pattern)
            except ExpressionError as error:
                raise ValueError(error.message) from None
        return pattern

    @model_validator(mode="after")
    def _can_be_met(self) -> Self:
        if self.min_length is not None and self.max_length is not None and self.min_length > self.max_length:
            raise ValueError(f"min_length {self.min_length} is more than max_length {self.max_length}")
        return self

    def as_schema(self) -> dict[str, Value]:
        named = {"pattern": self.pattern, "minLength": self.min_length, "maxLength": self.max_length}
        return {name: value for name, value in named.items() if value is not None}

    def take(self, text: str) -> bool:
        """Whether the text follows the rules."""
        if len(text) < (self.min_length or 0):
            return False
        if self.max_length is not None and len(text) > self.max_length:
            return False
        try:
            return self.pattern is None or search(self.pattern, text) is not None
        except ExpressionError:  # it takes too long
            return False


class UserPromptInputs(StepInputs):
    other_names = CHOICES
    message: str = Field(description="The text for the user.")
    prompt_type: PromptType = Field(
        description="info (only shown), confirm (yes or no), text (any text) or choice (one of the choices)."
    )
    choices: Options = Field(default_factory=list, description="The options of a choice.")
    validation: TextRules | None = Field(
        None, description="The rules for a text: pattern, min_length, max_length."
    )

    @model_validator(mode="after")
    def _fits_its_type(self) -> Self:
        if self.prompt_type == "choice":
            if not self.choices:
                raise ValueError("a choice needs 'choices', a list of options")
            check_options(self.choices)
        elif self.choices:
            raise ValueError(f"'choices' are for prompt_type: choice, not for {self.prompt_type}")
        if self.validation is not None and self.prompt_type != "text":
            raise ValueError(f"'validation' is for prompt_type: text, not for {self.prompt_type}")
        return self


class UserPromptOutputs(StepOutputs):
    """The outputs; only those for the type of the prompt are set."""

    acknowledged: bool = False
    confirmed: bool = False
    input: str = ""
    selected: str = ""
    comment: str = ""


class UserPrompt(_Asks):
    """Shows the user a message, or asks the user for a decision, a text or a choice.

    The result has one field, by the type of the prompt: `acknowledged` (info), `confirmed` (confirm), `input`
    (text) or `selected` (choice). For confirm and choice it also has `comment`, if the user gave one.
    """

    name = "UserPrompt"
    dialect_names: ClassVar[Mapping[str, str]] = {"stateful": "prompt"}
    Inputs = UserPromptInputs
    Outputs = UserPromptOutputs

    def default_answer(
        self, inputs: Mapping[str, Value], value: Value, *, dynamic: bool = False
    ) -> dict[str, Value]:
        kind = inputs.get("prompt_type")
        if not isinstance(kind, str) or kind not in _FIELDS:
            raise ValueError("needs a prompt_type that is known when the workflow is loaded")
        if dynamic:
            return {_FIELDS[kind]: value}
        try:
            checked = UserPromptInputs.model_validate(inputs)
        except ValidationError:
            return {_FIELDS[kind]: value}  # reported elsewhere, or known only at run time
        answer = _NORMALIZE[kind](value, checked)
        if not _IS_VALID[kind](answer, checked):
            raise ValueError(f"is not a valid answer: {shown(value)}")
        return {_FIELDS[kind]: answer}

    def ask(self, inputs: UserPromptInputs) -> Question:
        field = _FIELDS[inputs.prompt_type]
        parameters: dict[str, Value] = {"message": inputs.message, "type": inputs.prompt_type}
        if inputs.choices:
            parameters["choices"] = list(inputs.choices)
        if inputs.validation is not None:
            parameters["validation"] = inputs.validation.model_dump(exclude_none=True)
        return Question(
            type="prompt",
            instructions=_INSTRUCTIONS[inputs.prompt_type] + (_RULES if inputs.validation else ""),
            parameters=parameters,
            result_schema=_schema_of(
                field, _SCHEMAS[inputs.prompt_type](inputs), comment=inputs.prompt_type in _DECISIONS
            ),
            main_field=field,
            for_user=inputs.message,
            describes_result=True,
        )

    def normalize_result(self, inputs: UserPromptInputs, result: Value) -> Value:
        field = _FIELDS[inputs.prompt_type]
        if inputs.prompt_type == "info" and result == {}:
            return {field: True}
        if not isinstance(result, dict) or field not in result:
            return result
        return {**result, field: _NORMALIZE[inputs.prompt_type](result[field], inputs)}


_HOW = {
    "confirm": 'Submit {"confirmed": true} for yes, false for no, and any "comment".',
    "text": 'Submit {"input": "<what the user said>"}.',
    "choice": 'Offer parameters.choices. Submit {"selected": "<the choice, as spelled>"}.',
}
_INSTRUCTIONS = {
    "info": 'Show the user parameters.message as it is; no answer is needed. Submit {"acknowledged": true}.',
    **{kind: f"{_ASK.format('message')} {how}" for kind, how in _HOW.items()},
}
_RULES = " If it does not fit parameters.validation, ask again."


def _text_schema(rules: TextRules | None) -> dict[str, Value]:
    return {"type": "string", "description": "What the user said", **(rules.as_schema() if rules else {})}


_SCHEMAS: dict[str, Callable[[UserPromptInputs], Mapping[str, Value]]] = {
    "info": lambda _: {"const": True, "description": "The message was shown to the user"},
    "confirm": lambda _: _CONFIRM_SCHEMA,
    "text": lambda inputs: _text_schema(inputs.validation),
    "choice": lambda inputs: _choice_schema(inputs.choices),
}


def _as_acknowledged(value: Value) -> Value:
    """Return true for any answer to a message, except for one that denies that it was shown."""
    return value if value is False or (isinstance(value, str) and value.strip().lower() in _FALSE) else True


def _number_as_text(value: Value) -> Value:
    return to_text(value) if isinstance(value, int | float) else value


def _is_text(value: Value, inputs: UserPromptInputs) -> bool:
    return isinstance(value, str) and (inputs.validation is None or inputs.validation.take(value))


_IS_VALID: dict[str, Callable[[Value, UserPromptInputs], bool]] = {
    "info": lambda value, _: value is True,
    "confirm": lambda value, _: isinstance(value, bool),
    "text": _is_text,
    "choice": lambda value, inputs: value in inputs.choices,
}
_NORMALIZE: dict[str, Callable[[Value, UserPromptInputs], Value]] = {
    "info": lambda value, _: _as_acknowledged(value),
    "confirm": lambda value, _: as_decision(value),
    "text": lambda value, _: _number_as_text(value),
    "choice": lambda value, inputs: as_option(value, inputs.choices),
}


# UserInput

_FIELD = "input"
"""The field of the agent's result with the answer."""
_SPELLINGS = frozenset({"value", "response", "result", "answer", "text"})
"""Other names of that field."""


class AnswerRules(TextRules):
    """The rules for an answer, and the message for an answer that breaks them."""

    error_message: str = Field("", description="The message for the user if the answer does not fit.")
    choices: Options = Field(default_factory=list, description="The possible answers.")

    @model_validator(mode="before")
    @classmethod
    def _by_one_name(cls, given: Any) -> Any:
        return by_one_name(given, CHOICES)

    @model_validator(mode="after")
    def _choices_differ(self) -> Self:
        check_options(self.choices)
        return self

    def as_schema(self) -> dict[str, Value]:
        return {**({"enum": list(self.choices)} if self.choices else {}), **super().as_schema()}

    def take(self, text: str) -> bool:
        """Whether the text follows the rules."""
        return super().take(text) if not self.choices or text in self.choices else False


class UserInputInputs(StepInputs):
    prompt: str = Field(description="The question to the user.")
    prompt_type: Literal["text", "choice", "confirm"] = Field(
        "text", description="text (any text), choice (one of the choices) or confirm (true or false)."
    )
    validation: AnswerRules | None = Field(
        None,
        description="The rules for the answer: pattern, min_length, max_length, choices; error_message.",
    )
    choices: Options = Field(default_factory=list, description="The possible answers.")
    default: str | None = Field(None, description="The answer that an empty one stands for.")

    other_names = CHOICES

    @model_validator(mode="after")
    def _fits_its_type(self) -> Self:
        check_options(self.choices)
        if self.choices and self.validation is not None and self.validation.choices:
            raise ValueError("'choices' are in the step and in its validation: give them once")
        if self.choices and self.prompt_type == "confirm":
            raise ValueError("'choices' are for a text or a choice, not for confirm")
        if self.prompt_type == "choice" and not self.allowed:
            raise ValueError("a choice needs 'choices', a list of options")
        if self.prompt_type == "confirm" and self.validation is not None:
            raise ValueError("'validation' is for a text or a choice, not for confirm")
        return self

    @property
    def allowed(self) -> list[str]:
        return self.choices or (self.validation.choices if self.validation is not None else [])

    def normalized(self, given: Value) -> Value:
        """Return the answer in its final form: an option for its number, true for yes, a number as text."""
        if self.prompt_type == "confirm":
            return as_decision(given)
        text = as_option(given, self.allowed) if self.allowed else given
        text = _number_as_text(text)
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


class UserInput(_Asks):
    """Asks the user for a text, and asks again until the answer is valid.

    The result is the text; for `prompt_type: confirm` it is true or false.
    """

    name = "UserInput"
    dialect_names: ClassVar[Mapping[str, str]] = {"reactive": "user_input"}
    Inputs = UserInputInputs
    Outputs = UserInputOutputs
    result_output = "result"

    def default_answer(
        self, inputs: Mapping[str, Value], value: Value, *, dynamic: bool = False
    ) -> dict[str, Value]:
        try:
            checked = UserInputInputs.model_validate(inputs)
        except ValidationError:
            return {"result": value}  # reported elsewhere, or known only at run time
        answer = value if dynamic else checked.normalized(value)
        if not dynamic and not checked.takes(answer):
            raise ValueError(f"is not a valid answer: {shown(value)}")
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
            describes_result=True,
        )

    def normalize_result(self, inputs: UserInputInputs, result: Value) -> Value:
        if not isinstance(result, dict):
            return result
        if len(result) == 1 and (spelt := next(iter(result))) in _SPELLINGS:
            result = {_FIELD: result[spelt]}
        default = _default(inputs)
        if default is not None and (not result or result.get(_FIELD, 0) in (None, "")):
            return {**result, _FIELD: default}
        return {**result, _FIELD: inputs.normalized(result[_FIELD])} if _FIELD in result else result

    def rejection_message(self, inputs: UserInputInputs, result: Value) -> str:
        """Return the author's message if the answer is invalid, but not if the result has a wrong form."""
        rules = inputs.validation
        is_answer = isinstance(result, dict) and result.keys() == {_FIELD} and isinstance(result[_FIELD], str)
        return rules.error_message if rules is not None and is_answer else ""

    def parse_result(self, inputs: UserInputInputs, result: Any) -> StepResult:
        return StepResult({"result": result[_FIELD]})

    def check_literals(self, inputs: dict[str, Value]) -> list[tuple[str, WorkflowsError, int]]:
        """Check that the default is a valid answer."""
        if inputs.get("default") is None:
            return []
        try:
            given = UserInputInputs.model_validate({"prompt": "", **inputs})
        except ValidationError:
            return []  # reported elsewhere, or known only at run time
        if _default(given) is not None:
            return []
        error = StepError(
            f"the default {shown(given.default)} is not a valid answer",
            hint="change it to one that fits the validation, or remove it",
        )
        return [("default", error, 0)]


def _default(inputs: UserInputInputs) -> Value:
    """Return the answer that an empty one stands for; None if the default is not a valid answer."""
    answer = inputs.normalized(inputs.default)
    return answer if answer is not None and inputs.takes(answer) else None


def _result_schema(inputs: UserInputInputs) -> dict[str, Value]:
    """Return the schema of the result; with a default, the answer is optional."""
    answer, default = _answer_schema(inputs), _default(inputs)
    if default is None:
        needed: dict[str, Value] = {"properties": {_FIELD: answer}, "required": [_FIELD]}
    else:
        needed = {"properties": {_FIELD: {**answer, "default": default}}}
    return {"type": "object", **needed, "additionalProperties": False}


def _answer_schema(inputs: UserInputInputs) -> dict[str, Value]:
    if inputs.prompt_type == "confirm":
        return dict(_CONFIRM_SCHEMA)
    return _text_schema(inputs.validation) | ({"enum": list(inputs.choices)} if inputs.choices else {})


def _instructions(inputs: UserInputInputs) -> str:
    text = _ASK.format("prompt")
    if inputs.prompt_type == "confirm":
        text += f' Submit {{"{_FIELD}": true}} for yes, {{"{_FIELD}": false}} for no.'
    else:
        text += f" {_HOW['text']}"
    if inputs.choices:
        text += " Offer parameters.choices."
    if inputs.validation is not None:
        text += _RULES
    if _default(inputs) is not None:
        text += " If the user leaves it open, submit parameters.default."
    return text


# Choices, and answers in free words

_TRUE = frozenset(
    {"yes", "y", "yep", "yeah", "true", "ok", "okay", "sure", "confirm", "confirmed", "approve", "approved"}
    | {"agreed", "lgtm", "go ahead", "do it", "ship it", "looks good", "sounds good"}
)
_FALSE = frozenset(
    {"no", "n", "nope", "nah", "false", "cancel", "reject", "rejected", "deny", "denied", "stop", "abort"}
    | {"not yet", "not now", "don't", "do not"}
)
_NEGATIONS = frozenset({"not", "don't", "dont", "never", "wait"})
_HEDGES = frozenset({"but", "if", "unless", "except", "maybe", "perhaps", "however", "only", "until"})
"""Words that make an answer neither yes nor no: the user is asked again."""
_WORDS_OF_A_DECISION = 15


def check_options(options: list[str]) -> None:
    """Raises ValueError if two options are the same."""
    if len(set(options)) < len(options):
        twice = next(option for option in options if options.count(option) > 1)
        raise ValueError(f"the option {shown(twice)} is listed twice")


def as_decision(value: Value) -> Value:
    """Turn words for yes or no ("Yes, go ahead") into true or false; return anything else unchanged."""
    if not isinstance(value, str):
        return value
    words = re.findall(r"[^\W_]+(?:'[^\W_]+)?", value.lower().replace("’", "'"))
    if not words or len(words) > _WORDS_OF_A_DECISION or _HEDGES & set(words):
        return value
    begins = " ".join(words[:2])
    if words[0] in _FALSE or begins in _FALSE:
        return value if _TRUE & set(words[1:]) else False
    if words[0] in _TRUE or begins in _TRUE:
        return value if _FALSE & set(words[1:]) or _NEGATIONS & set(words) else True
    return value


def as_option(value: Value, options: list[str]) -> Value:
    """Return the option for its number, or for other capitals; return anything else unchanged."""
    text = to_text(value) if isinstance(value, int | float) else value
    if not isinstance(text, str) or text in options:
        return text
    alike = [option for option in options if option.strip().lower() == text.strip().lower()]
    if len(alike) == 1:
        return alike[0]
    number = text.strip().rstrip(".)")
    if number.isascii() and number.isdigit() and 1 <= int(number) <= len(options):
        return options[int(number) - 1]
    return text
