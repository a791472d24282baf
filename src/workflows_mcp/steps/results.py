"""Reads the result of a step as an agent gives it: as data, as JSON text, or as a bare value.

understood(asked, "yes")                          # {"confirmed": True}
reported_failure({"is_error": True, "error": "no access"})    # "no access"
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from workflows_mcp.plan import example_result, is_object, properties_of, result_outputs, result_violations
from workflows_mcp.steps.base import Question, Step, StepInputs, StepResult
from workflows_mcp.steps.schema_check import example, fits, violations
from workflows_mcp.values import Value, from_json, to_text

_FAILURE_KEYS = frozenset({"is_error", "isError", "error", "message"})


@dataclass(frozen=True, slots=True)
class Asked:
    """A step that asks the agent, with its inputs and its question."""

    step: Step
    inputs: StepInputs
    question: Question


_REPORTED = ("agent_used", "tokens_used")
"""Fields beside a result that say how it was made; they are not part of it."""


class TypedResult(Step):
    """Takes the result of a step in the form of its `result`, a JSON Schema."""

    name = "typed"
    performer = "agent"

    def __init__(self, step: Step, schema: dict[str, Value]) -> None:
        self._step = step
        self.schema = schema

    def typed(self, question: Question) -> Question:
        """Return a question that asks for this form."""
        what = question.instructions
        for start in (" Submit {", " Submit the actual", "; submit everything"):
            what = what.partition(start)[0]
        how = "Submit one result that fits result_schema."
        return replace(
            question,
            instructions=f"{what.rstrip('.;')}. {how}",
            result_schema=self.schema,
            main_field=None,
            describes_result=False,
        )

    def normalize_result(self, inputs: Any, result: Value) -> Value:
        """Leave out what is reported beside the result, unless the schema asks for it."""
        fields = properties_of(self.schema)
        if isinstance(result, dict) and is_object(self.schema):
            return {key: it for key, it in result.items() if key not in _REPORTED or key in fields}
        return result

    def violations(self, result: Value) -> list[str]:
        return result_violations(result, self.schema)

    def example(self) -> Value:
        return example_result(self.schema)

    def parse_result(self, inputs: Any, result: Any) -> StepResult:
        return StepResult(result_outputs(result, self.schema))


def asked_of(
    step: Step, inputs: StepInputs, question: Question, schema: dict[str, Value] | None = None
) -> Asked:
    """Return a question of a step; the result has the form of `schema`, its `result`, if there is one."""
    if schema is None:
        return Asked(step, inputs, question)
    typed = TypedResult(step, schema)
    return Asked(typed, inputs, typed.typed(question))


def violations_of(asked: Asked, result: Value) -> list[str]:
    """Return what is wrong with a result; the schema of a `result` key can be any JSON Schema."""
    if isinstance(asked.step, TypedResult):
        return asked.step.violations(result)
    return violations(result, asked.question.result_schema)


def example_of(asked: Asked) -> Value:
    """Return a result that shows what fits."""
    if isinstance(asked.step, TypedResult):
        return asked.step.example()
    return example(asked.question.result_schema)


def reported_tokens(result: Any) -> int:
    """Return how many tokens an agent reports to have used; 0 if it does not."""
    given = _read(result) if isinstance(result, str) else result
    tokens = given.get("tokens_used") if isinstance(given, dict) else None
    return tokens if isinstance(tokens, int) and not isinstance(tokens, bool) and tokens > 0 else 0


def reported_failure(result: Any) -> str | None:
    """Return the message of `{"is_error": true, "error": "…"}`, which may answer any action."""
    given = _read(result) if isinstance(result, str) else result
    if not isinstance(given, dict) or not given.keys() <= _FAILURE_KEYS:
        return None
    if given.get("is_error") is not True and given.get("isError") is not True:
        return None
    texts = [text for key in ("error", "message") if isinstance(text := given.get(key), str) and text.strip()]
    return texts[0] if texts else "the agent reported a failure without a reason"


def understood(asked: Asked, result: Any) -> Value:
    """Return the result as its step reads it.

    Text that is a JSON object is read as that object if it names the main field and fits, or if the text
    itself does not fit.
    """
    if isinstance(asked.step, TypedResult):
        parsed = _read(result) if isinstance(result, str) else result
        whole = asked.step.normalize_result(asked.inputs, parsed)
        return result if isinstance(result, str) and not asked.step.violations(result) else whole
    schema, main = asked.question.result_schema, asked.question.main_field
    normalized = asked.step.normalize_result(asked.inputs, _as_object(asked.question, result))
    if isinstance(result, str) and isinstance(parsed := _read(result), dict):
        from_text = asked.step.normalize_result(asked.inputs, _as_object(asked.question, parsed))
        if (main in parsed and fits(from_text, schema)) or not fits(normalized, schema):
            return from_text
    return normalized


def _read(text: str) -> Value:
    try:
        return from_json(text)
    except (ValueError, RecursionError):
        return text


def _as_object(question: Question, result: Any) -> Value:
    """Return the result as the object of the schema; a bare value becomes the main field."""
    main = question.main_field
    if isinstance(result, str):
        parsed = _read(result)
        if main is None:
            return parsed if isinstance(parsed, dict | list) else result  # "1.10" is a text
        if not fits(result, _field(question, main)) and fits(parsed, _field(question, main)):
            return {main: parsed}
        return {main: result}
    if main is None or (isinstance(result, dict) and not _is_bare_object(question, main, result)):
        return result
    if isinstance(result, int | float) and not isinstance(result, bool):
        # "Answer with the number of your choice": a number for a text is the text of the number.
        as_text = to_text(result)
        if not fits(result, _field(question, main)) and fits(as_text, _field(question, main)):
            return {main: as_text}
    return {main: result}


def _field(question: Question, name: str) -> dict[str, Any]:
    field: dict[str, Any] = question.result_schema.get("properties", {}).get(name, {})
    return field


def _is_bare_object(question: Question, main: str, result: dict[str, Value]) -> bool:
    """Whether an object is the main field itself, not the whole result."""
    return main not in result and _field(question, main).get("type") == "object"
