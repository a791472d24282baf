"""The inputs of a workflow: given values are checked against what it declares, and made complete.

Text that says the same thing without loss is taken as the value ("42" for an integer, "true" for a
boolean, JSON text for a list or an object), because people type it and models send it. All problems are
reported at once. The same rules check defaults when a file is loaded and literals in calls.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from workflows_mcp.errors import InvalidInputs
from workflows_mcp.plan.model import InputSpec, InputType, Plan
from workflows_mcp.values import Value, from_json_in_run, kind_of, nearest, shown

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

_SCHEMA_TYPES = {
    "string": "string",
    "number": "number",
    "integer": "integer",
    "float": "number",
    "boolean": "boolean",
    "list": "array",
    "object": "object",
}
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


def check_inputs(plan: Plan, given: Mapping[str, Any]) -> dict[str, Value]:
    """All inputs of `plan`: those given, converted where that is lossless, and defaults for the rest.

    Raises InvalidInputs, naming every problem.
    """
    complete: dict[str, Value] = {}
    problems: list[str] = []
    for name, spec in plan.inputs.items():
        value = given.get(name)
        if name not in given or (value is None and not spec.required and spec.type != "any"):
            if spec.required and not spec.has_default:
                problems.append(f"missing input '{name}' ({_described(spec)})")
            else:
                complete[name] = spec.default
            continue
        try:
            complete[name] = converted(value, spec.type)
        except ValueError as error:
            problems.append(f"input '{name}' {error}")
    for name in given:
        if name not in plan.inputs:
            close = nearest(name, plan.inputs)
            problems.append(f"unknown input '{name}'" + (f", did you mean '{close}'?" if close else ""))
    if problems:
        raise InvalidInputs(
            f"the inputs do not fit workflow '{plan.name}': " + "; ".join(problems), hint=takes(plan)
        )
    return complete


def converted(value: Any, kind: InputType) -> Value:
    """`value` as an input of type `kind`; raises ValueError that says what was expected and what came."""
    found = _as_kind(value, kind)
    if found is _NO:
        raise ValueError(f"must be {_SAMPLES[kind]}, not {kind_of(value)} {_shown(value)}")
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


def takes(plan: Plan) -> str:
    """What the workflow takes, as a hint."""
    if not plan.inputs:
        return f"workflow '{plan.name}' takes no inputs"
    listed = ", ".join(f"{name} ({_described(spec)})" for name, spec in plan.inputs.items())
    return f"workflow '{plan.name}' takes: {listed}"


def input_schema(plan: Plan) -> dict[str, Value]:
    """The inputs as JSON Schema."""
    properties: dict[str, Value] = {}
    for name, spec in plan.inputs.items():
        schema: dict[str, Value] = {}
        if spec.type in _SCHEMA_TYPES:
            schema["type"] = _SCHEMA_TYPES[spec.type]
        if spec.description:
            schema["description"] = spec.description
        if spec.has_default:
            schema["default"] = spec.default
        properties[name] = schema
    required = [name for name, spec in plan.inputs.items() if spec.required and not spec.has_default]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


_NO = object()


def _as_kind(value: Any, kind: InputType) -> Any:
    match kind:
        case "any":
            return value
        case "string":
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


def _described(spec: InputSpec) -> str:
    if spec.has_default:
        return f"{spec.type}, default {_shown(spec.default)}"
    return f"{spec.type}, {'required' if spec.required else 'optional'}"


def _shown(value: Any) -> str:
    try:
        return shown(value)
    except (TypeError, ValueError, OverflowError):
        return repr(value)[:60]
