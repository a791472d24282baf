"""Why an answer is refused, in the words that somebody is told who has filled in a form.

An agent is told what does not fit which schema, and how to submit it again (`actions.check_result`). A person
has seen the question and the form, knows no steps and no schemas, and needs one sentence.

    refusal_for_person({"input": "x"}, schema)    # "Choose one of: dev, prod."
"""

from __future__ import annotations

from typing import Any

from workflows_mcp.agent.schema_check import fits
from workflows_mcp.values import Value, to_text

_WANTED = {
    "string": "Please give a text.",
    "integer": "Please give a whole number.",
    "number": "Please give a number.",
    "boolean": "Please answer yes or no.",
}
_ONCE_MORE = "That answer cannot be taken. Please fill in the form once more."
_OPTIONS = 20


def refusal_for_person(result: Value, schema: dict[str, Any]) -> str:
    """What is wanted in place of a result that does not fit the schema of its question."""
    given = result if isinstance(result, dict) else {}
    fields: dict[str, Any] = schema.get("properties", {})
    required = schema.get("required", ())
    wanted = {
        name: _wanted(given.get(name), field)
        for name, field in fields.items()
        if (not fits(given[name], field) if name in given else name in required)
    }
    if not wanted:
        return _ONCE_MORE  # what is wrong is nothing that a form asks for
    if len(fields) == 1:
        return next(iter(wanted.values()))
    return "\n".join(f"{fields[name].get('title', name)}: {said}" for name, said in wanted.items())


def _wanted(value: Value, field: dict[str, Any]) -> str:
    if options := field.get("enum"):
        listed = ", ".join(to_text(option) for option in options[:_OPTIONS])
        return f"Choose one of: {listed}{', …' if len(options) > _OPTIONS else '.'}"
    kind = field.get("type")
    if not isinstance(kind, str) or kind not in _WANTED:
        return _ONCE_MORE
    if not fits(value, {"type": kind}) or value == "":
        return _WANTED[kind]
    if isinstance(value, str):
        return _text(value, field)
    least, most = field.get("minimum"), field.get("maximum")
    return f"{_WANTED[kind].rstrip('.')}{_bounds(least, most)}."


def _text(value: str, field: dict[str, Any]) -> str:
    least, most = field.get("minLength"), field.get("maxLength")
    if len(value) < (least or 0) or (most is not None and len(value) > most):
        return f"Please give a text{_bounds(least, most, ' characters')}; that one has {len(value)}."
    return (
        f"Please give a text that fits the pattern {field['pattern']}" if "pattern" in field else _ONCE_MORE
    )


def _bounds(least: float | None, most: float | None, of: str = "") -> str:
    if most is None:
        return f" of at least {least}{of}" if least is not None else ""
    return f" of at most {most}{of}" if least is None else f" of {least} to {most}{of}"
