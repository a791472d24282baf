"""Reads the result of a step as an agent gives it: as data, as JSON text, or as a bare value.

understood(asked, "yes")                          # {"confirmed": True}
reported_failure({"is_error": True, "error": "no access"})    # "no access"
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workflows_mcp.steps.base import Question, Step, StepInputs
from workflows_mcp.steps.schema_check import fits
from workflows_mcp.values import Value, from_json, to_text

_FAILURE_KEYS = frozenset({"is_error", "isError", "error", "message"})


@dataclass(frozen=True, slots=True)
class Asked:
    """A step that asks the agent, with its inputs and its question."""

    step: Step
    inputs: StepInputs
    question: Question


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
    except ValueError:
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
