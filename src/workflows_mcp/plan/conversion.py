"""A value as one of the types that a definition can ask for.

Text that says the same thing without loss is taken as the value ("42" for an integer, "true" for a boolean,
JSON text for a list or an object), because people type it and models send it. A number or a truth value is
taken as text where text is wanted. The same rules serve inputs,
defaults, literals in calls and numbers in definitions.
"""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from workflows_mcp.plan.model import InputType
from workflows_mcp.values import Value, from_json_in_run, kind_and_value, shown, to_text

TYPE_NAMES: dict[str, InputType] = {
    "string": "string",
    "str": "string",
    "number": "number",
    "integer": "integer",
    "int": "integer",
    "float": "float",
    "boolean": "boolean",
    "bool": "boolean",
    "list": "list",
    "array": "list",
    "dict": "object",
    "object": "object",
    "any": "any",
}
"""Every spelling of an input type that a definition may use."""

_journal = msgspec.msgpack.Encoder().encode
"""A value that cannot be written down cannot be kept: numbers of more than 64 bits, objects of Python."""

_WHOLE_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)")
_DECIMAL_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_SAMPLES = {
    "string": 'text, e.g. "hello"',
    "number": "a number, e.g. 42 or 3.5",
    "integer": "a whole number, e.g. 42",
    "float": "a number, e.g. 3.5",
    "boolean": "true or false",
    "list": "a list, e.g. [1, 2]",
    "object": 'an object, e.g. {"key": "value"}',
    "any": "any value",
}


def converted(value: Any, kind: InputType) -> Value:
    """`value` as an input of type `kind`; raises ValueError that says what was expected and what came."""
    found = _as_kind(value, kind)
    if found is _NO:
        raise ValueError(f"must be {_SAMPLES[kind]}, not {kind_and_value(value, shown_value)}")
    try:
        _journal(found)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"cannot be kept in a run: {error}") from None
    return found


def at_once(value: Any) -> int:
    """How many items may be under way at once; raises ValueError."""
    number: int = converted(value, "integer")
    if number < 1:
        raise ValueError(f"must be 1 or more, not {number}")
    return number


_NO = object()


def _as_kind(value: Any, kind: InputType) -> Any:
    match kind:
        case "any":
            return value
        case "string":
            if isinstance(value, bool | int | float):
                return to_text(value)
            return value if isinstance(value, str) else _NO
        case "boolean":
            if isinstance(value, str):
                return {"true": True, "false": False}.get(value.strip().lower(), _NO)
            return value if isinstance(value, bool) else _NO
        case "list" | "object":
            return _as_container(value, list if kind == "list" else dict)
        case _:
            return _as_number(value, kind)


def _as_number(value: Any, kind: InputType) -> Any:
    if isinstance(value, str):
        text = value.strip()
        if _WHOLE_NUMBER.fullmatch(text) and len(text) <= 20:
            value = int(text)
        elif kind != "integer" and _DECIMAL_NUMBER.fullmatch(text):
            value = float(text)
        else:
            return _NO
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return _NO
    if kind == "integer":
        return int(value) if value == int(value) else _NO
    if kind == "float":
        return float(value)
    return value


def _as_container(value: Any, container: type) -> Any:
    if isinstance(value, str):
        try:
            value = from_json_in_run(value)
        except ValueError:
            return _NO
    return value if isinstance(value, container) else _NO


def shown_value(value: Any) -> str:
    """A value as an error message shows it, also one that is no JSON."""
    try:
        return shown(value)
    except (TypeError, ValueError, OverflowError):
        return repr(value)[:60]
