"""Checks the inputs of a workflow against their declarations and fills in the defaults.

All problems are reported at once. The same checks are used for defaults when a file is loaded, and for
literals in calls.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from workflows_mcp.errors import ExpressionError, InvalidInputs
from workflows_mcp.expressions import search
from workflows_mcp.plan.model import InputSpec, InputType, Plan
from workflows_mcp.values import SECRET_OPEN, Value, from_json_in_run, kind_and_value, nearest, shown, to_text

# ----------------------------------------------------------------------------------------------------
# Converts a value to one of the types that a definition can declare.
#
# Text that can be converted without loss is accepted ("42" for an integer, "true" for a boolean, JSON text
# for a list or an object), because people type it and models send it. Numbers and booleans are accepted as
# text. The same rules apply to inputs, defaults, literals in calls and numbers in definitions.


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

"""Rejects values that a journal cannot store: numbers of more than 64 bits, objects of Python."""


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
    """`value` as an input of type `kind`; raises ValueError with the expected type and the value."""
    found = _as_kind(value, kind)
    if found is _NO:
        raise ValueError(f"must be {_SAMPLES[kind]}, not {kind_and_value(value, shown_value)}")
    try:
        _journal(found)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"cannot be stored in a run: {error}") from None
    return found


def at_once(value: Any) -> int:
    """The maximum number of items that run at the same time; raises ValueError."""
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
    """A value as an error message shows it, even if it is not JSON."""
    try:
        return shown(value)
    except (TypeError, ValueError, OverflowError):
        return repr(value)[:60]


# ----------------------------------------------------------------------------------------------------
# The rules of `validation`: checks of an input beyond its type, also shown as JSON Schema.
#
#     {"min": 1, "max": 10}    {"pattern": "^v\d+$"}    {"item_type": "string", "max_items": 5}
#     {"required_keys": ["port"], "properties": {"port": {"type": "integer", "rules": {"max": 65535}}}}
#
# The dialects have already checked the rules and brought them into one spelling. All violations of a value
# are found at once, also nested ones.


NUMBERS: tuple[InputType, ...] = ("number", "integer", "float")


class Rule(NamedTuple):
    """The types that a rule applies to (empty: all of them), and its keyword in JSON Schema."""

    kinds: tuple[InputType, ...]
    keyword: str


RULES: Mapping[str, Rule] = {
    "pattern": Rule(("string",), "pattern"),
    "min_length": Rule(("string",), "minLength"),
    "max_length": Rule(("string",), "maxLength"),
    "enum": Rule((), "enum"),
    "min": Rule(NUMBERS, "minimum"),
    "max": Rule(NUMBERS, "maximum"),
    "min_items": Rule(("list",), "minItems"),
    "max_items": Rule(("list",), "maxItems"),
    "item_type": Rule(("list",), "items"),
    "required_keys": Rule(("object",), "required"),
    "properties": Rule(("object",), "properties"),
}


_SCHEMA_TYPES = {
    "string": "string",
    "number": "number",
    "integer": "integer",
    "float": "number",
    "boolean": "boolean",
    "list": "array",
    "object": "object",
}


class Violation(NamedTuple):
    at: str
    """The name of the input, and the path inside it: config.ports[2]"""
    message: str


def fitted(value: Any, kind: InputType, rules: Mapping[str, Value], at: str) -> tuple[Value, list[Violation]]:
    """The value, converted if that loses nothing, and all its violations."""
    try:
        value = converted(value, kind)
    except ValueError as error:
        return value, [Violation(at, str(error))]
    if not rules:
        return value, []
    found = [Violation(at, message) for message in _own(value, rules)]
    if isinstance(value, list) and "item_type" in rules:
        items = [fitted(item, rules["item_type"], {}, f"{at}[{index}]") for index, item in enumerate(value)]
        value = [item for item, _ in items]
        found += [violation for _, inside in items for violation in inside]
    if isinstance(value, dict) and "properties" in rules:
        value = dict(value)
        for key, inner in rules["properties"].items():
            if key in value:
                value[key], inside = fitted(value[key], inner["type"], inner["rules"], f"{at}.{key}")
                found += inside
    return value, found


def schema_of(kind: InputType, rules: Mapping[str, Value]) -> dict[str, Value]:
    """The type and its rules as JSON Schema."""
    schema: dict[str, Value] = {"type": _SCHEMA_TYPES[kind]} if kind in _SCHEMA_TYPES else {}
    for name, wanted in rules.items():
        match name:
            case "item_type":
                wanted = schema_of(wanted, {})  # noqa: PLW2901
            case "properties":
                wanted = {key: _property(inner) for key, inner in wanted.items()}  # noqa: PLW2901
        schema[RULES[name].keyword] = wanted
    return schema


def described(rules: Mapping[str, Value]) -> str:
    """A short list of the rules, for a hint."""
    return ", ".join(
        f"{name} {shown_value(wanted)}" for name, wanted in rules.items() if name != "properties"
    )


def _property(inner: Mapping[str, Value]) -> dict[str, Value]:
    schema = schema_of(inner["type"], inner["rules"])
    return {**schema, "description": inner["description"]} if inner.get("description") else schema


def _own(value: Value, rules: Mapping[str, Value]) -> Iterator[str]:
    """The violations of the value itself, without those of nested values."""
    if isinstance(value, str) and SECRET_OPEN in value:
        return  # it is a secret: only its name is known here
    if "enum" in rules and not any(_same(value, allowed) for allowed in rules["enum"]):
        listed = ", ".join(shown_value(allowed) for allowed in rules["enum"])
        yield f"must be one of {listed}, not {shown_value(value)}"
    if isinstance(value, str):
        yield from _between(len(value), rules, "length", "must be {} characters long, not {}")
        if "pattern" in rules:
            yield from _unmatched(value, rules["pattern"])
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if "min" in rules and value < rules["min"]:
            yield f"must be {shown_value(rules['min'])} or more, not {shown_value(value)}"
        if "max" in rules and value > rules["max"]:
            yield f"must be {shown_value(rules['max'])} or less, not {shown_value(value)}"
    elif isinstance(value, list):
        yield from _between(len(value), rules, "items", "must have {} items, not {}")
    elif isinstance(value, dict):
        missing = [key for key in rules.get("required_keys", ()) if key not in value]
        if missing:
            keys = ", ".join(f"'{key}'" for key in missing)
            yield f"must have the key{'s' if len(missing) > 1 else ''} {keys}"


def _same(value: Value, allowed: Value) -> bool:
    return value == allowed and isinstance(value, bool) == isinstance(allowed, bool)


def _between(size: int, rules: Mapping[str, Value], of: str, message: str) -> Iterator[str]:
    least, most = rules.get(f"min_{of}"), rules.get(f"max_{of}")
    if least is not None and size < least:
        yield message.format(f"at least {least}", size)
    if most is not None and size > most:
        yield message.format(f"at most {most}", size)


def _unmatched(value: str, pattern: str) -> Iterator[str]:
    try:
        found = search(pattern, value)
    except ExpressionError as error:
        yield f"cannot be checked: {error.message}"
        return
    if found is None:
        yield f"must match the pattern {pattern}, not {shown_value(value)}"


def check_inputs(plan: Plan, given: Mapping[str, Any]) -> dict[str, Value]:
    """All inputs of `plan`: the given ones, converted if that loses nothing, and defaults for the rest.

    Raises InvalidInputs with every problem.
    """
    complete: dict[str, Value] = {}
    given, problems = by_own_names(plan, given)
    for name, spec in plan.inputs.items():
        value = given.get(name)
        if name not in given or (value is None and not spec.required and spec.type != "any"):
            if spec.required and not spec.has_default:
                problems.append(f"missing input '{name}' ({_described(spec)})")
            else:
                complete[name] = spec.default
            continue
        complete[name], violations = fitted(value, spec.type, spec.rules, name)
        problems += [f"input '{at}' {message}" for at, message in violations]
    for name in given:
        if name not in plan.inputs:
            missing = [it for it, spec in plan.inputs.items() if it not in given and not spec.has_default]
            close = nearest(name, missing if plan.open_inputs else plan.inputs)
            if plan.open_inputs and close is None:
                field = spec_of(plan, name)
                complete[name] = given[name]
                if field is not None and given[name] is not None:
                    complete[name], violations = fitted(given[name], field.type, field.rules, name)
                    problems += [f"input '{at}' {message}" for at, message in violations]
                continue
            problems.append(f"unknown input '{name}'" + (f", did you mean '{close}'?" if close else ""))
    if problems:
        raise InvalidInputs(
            f"the inputs do not fit workflow '{plan.name}': " + "; ".join(problems), hint=takes(plan)
        )
    return complete


def by_own_names(plan: Plan, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The given inputs with aliases replaced by the names of the inputs, and a problem for each duplicate."""
    own = {alias: name for name, spec in plan.inputs.items() for alias in spec.aliases}
    found: dict[str, Any] = {}
    problems: list[str] = []
    for name, value in given.items():
        own_name = name if name in plan.inputs else own.get(name, name)
        if own_name in found or (own_name != name and own_name in given):
            problems.append(f"'{name}' is an alias of the input '{own_name}', which is also given")
        else:
            found[own_name] = value
    return found, problems


def spec_of(plan: Plan, name: str) -> InputSpec | None:
    """The declaration of an input; an undeclared one gets the type of the state field that it sets."""
    spec = plan.inputs.get(name)
    if spec is None and plan.open_inputs and name in plan.raw_types and plan.semantics >= 3:
        return InputSpec(field_type(plan, name), required=False)
    return spec


def field_type(plan: Plan, name: str) -> InputType:
    """The declared type of a field of `raw`."""
    return TYPE_NAMES.get(plan.raw_types.get(name, "any"), "any")


def takes(plan: Plan) -> str:
    """The inputs of the workflow, as a hint."""
    if not plan.inputs:
        return f"workflow '{plan.name}' takes no inputs"
    listed = ", ".join(f"{name} ({_described(spec)})" for name, spec in plan.inputs.items())
    return f"workflow '{plan.name}' takes: {listed}"


def input_schema(plan: Plan) -> dict[str, Value]:
    """The inputs as JSON Schema."""
    properties: dict[str, Value] = {}
    for name, spec in plan.inputs.items():
        schema = schema_of(spec.type, spec.rules)
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


def _described(spec: InputSpec) -> str:
    parts = [spec.type, described(spec.rules)]
    if spec.has_default:
        parts.append(f"default {shown_value(spec.default)}")
    else:
        parts.append("required" if spec.required else "optional")
    return ", ".join(part for part in parts if part)
