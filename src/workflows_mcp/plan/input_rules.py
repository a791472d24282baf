"""What an input may be beyond its type: the rules of `validation`, checked and shown as JSON Schema.

    {"min": 1, "max": 10}    {"pattern": "^v\\d+$"}    {"item_type": "string", "max_items": 5}
    {"required_keys": ["port"], "properties": {"port": {"type": "integer", "rules": {"max": 65535}}}}

Rules come here already checked and in one spelling; the dialects read them. All violations of a value are
found at once, also those deep inside of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from workflows_mcp.errors import ExpressionError
from workflows_mcp.expressions.patterns import search
from workflows_mcp.plan.conversion import converted, shown_value
from workflows_mcp.plan.model import InputType
from workflows_mcp.values import SECRET_OPEN, Value

NUMBERS: tuple[InputType, ...] = ("number", "integer", "float")


class Rule(NamedTuple):
    """The types that a rule is for, none meaning all of them; and its keyword in JSON Schema."""

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
    """Which value: the name of the input, and the way inside of it: config.ports[2]"""
    message: str


def fitted(value: Any, kind: InputType, rules: Mapping[str, Value], at: str) -> tuple[Value, list[Violation]]:
    """The value, converted where that is lossless, and all that is wrong with it."""
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
    """The rules in short, for a hint."""
    return ", ".join(
        f"{name} {shown_value(wanted)}" for name, wanted in rules.items() if name != "properties"
    )


def _property(inner: Mapping[str, Value]) -> dict[str, Value]:
    schema = schema_of(inner["type"], inner["rules"])
    return {**schema, "description": inner["description"]} if inner.get("description") else schema


def _own(value: Value, rules: Mapping[str, Value]) -> Iterator[str]:
    """What is wrong with the value itself, not with what is inside of it."""
    if isinstance(value, str) and SECRET_OPEN in value:
        return  # only its name is known here
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
