"""Checks a value against the part of JSON Schema that actions use, and reports all violations at once.

violations({"confirmed": "maybe"}, schema)   # ["'confirmed' must be true or false, not text \"maybe\""]
example(schema)                              # {"confirmed": True}
"""

from __future__ import annotations

from typing import Any

from workflows_mcp.errors import ExpressionError
from workflows_mcp.expressions import search
from workflows_mcp.values import Value, did_you_mean, kind_and_value, nearest, shown

_WORDS = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}

_EXAMPLES: dict[str, Value] = {
    "string": "…",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "array": [],
    "object": {},
    "null": None,
}


def fits(value: Value, schema: dict[str, Any]) -> bool:
    return not violations(value, schema)


def violations(value: Value, schema: dict[str, Any], name: str = "the result") -> list[str]:
    """List what is wrong with a value, the outermost first; empty if it fits."""
    called = name if name == "the result" else f"'{name}'"
    if "anyOf" in schema:
        return _any_of(value, schema["anyOf"], name, called)
    kinds = _kinds(schema)
    if kinds and not any(_is_kind(value, kind) for kind in kinds):
        wanted = " or ".join(_WORDS[kind] for kind in kinds)
        return [f"{called} must be {wanted}, not {kind_and_value(value)}"]
    if "const" in schema and not _same(value, schema["const"]):
        return [f"{called} must be {shown(schema['const'])}, not {shown(value)}"]
    if "enum" in schema and not any(_same(value, option) for option in schema["enum"]):
        options = ", ".join(shown(option) for option in schema["enum"])
        texts = [option for option in schema["enum"] if isinstance(option, str)]
        close = nearest(value, texts) if isinstance(value, str) else None
        suggestion = f"; did you mean {shown(close)}?" if close else ""
        return [f"{called} must be one of {options}, not {shown(value)}{suggestion}"]
    if isinstance(value, dict):
        return _object(value, schema, name)
    if isinstance(value, list):
        return _list(value, schema, name, called)
    if isinstance(value, str):
        return _string(value, schema, called)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _number(value, schema, called)
    return []


def example(schema: dict[str, Any]) -> Value:
    """Return a simple value that fits a schema, for the hint of an error."""
    if "default" in schema:
        return schema["default"]
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    if schema.get("anyOf"):
        return example(schema["anyOf"][0])
    kinds = _kinds(schema)
    kind = kinds[0] if kinds else "string"
    if kind == "object":
        properties = schema.get("properties", {})
        wanted = schema.get("required") or list(properties)[:1]
        return {name: example(properties.get(name, {})) for name in wanted}
    if kind == "array":
        return [example(schema["items"])] if schema.get("items") else []
    if kind in ("integer", "number"):
        return schema.get("minimum", _EXAMPLES[kind])
    return _EXAMPLES[kind]


def _object(value: dict[str, Value], schema: dict[str, Any], name: str) -> list[str]:
    inside = "" if name == "the result" else f"{name}."
    properties: dict[str, Any] = schema.get("properties", {})
    found: list[str] = []
    for key in schema.get("required", ()):
        if key not in value:
            description = properties.get(key, {}).get("description", "")
            found.append(f"'{inside}{key}' is missing" + (f" ({description})" if description else ""))
    extra = schema.get("additionalProperties", True)
    for key, item in value.items():
        if key in properties:
            found += violations(item, properties[key], f"{inside}{key}")
        elif extra is False:
            found.append(f"'{inside}{key}' is not known here: {did_you_mean(key, properties)}")
        elif isinstance(extra, dict):
            found += violations(item, extra, f"{inside}{key}")
    return found


def _list(value: list[Value], schema: dict[str, Any], name: str, called: str) -> list[str]:
    found: list[str] = []
    if len(value) < schema.get("minItems", 0):
        found.append(f"{called} must have at least {schema['minItems']} items, it has {len(value)}")
    if "maxItems" in schema and len(value) > schema["maxItems"]:
        found.append(f"{called} must have at most {schema['maxItems']} items, it has {len(value)}")
    if "items" in schema:
        inside = "" if name == "the result" else name
        for index, item in enumerate(value):
            found += violations(item, schema["items"], f"{inside}[{index}]")
    return found


def _string(value: str, schema: dict[str, Any], called: str) -> list[str]:
    found: list[str] = []
    if len(value) < schema.get("minLength", 0):
        wanted = schema["minLength"]
        found.append(f"{called} must not be empty" if wanted == 1 else f"{called} needs {wanted} characters")
    if "maxLength" in schema and len(value) > schema["maxLength"]:
        found.append(f"{called} may have {schema['maxLength']} characters, it has {len(value)}")
    if "pattern" in schema and (problem := _unmatched(schema["pattern"], value)):
        found.append(f"{called} must match the pattern {schema['pattern']}, {problem}")
    return found


def _unmatched(pattern: str, value: str) -> str:
    """Return why a text does not match a pattern, or an empty string. Matching has a time limit."""
    try:
        return "" if search(pattern, value) is not None else f"{shown(value)} does not"
    except ExpressionError as error:
        return f"and cannot be checked: {error.message}"


def _number(value: float, schema: dict[str, Any], called: str) -> list[str]:
    found: list[str] = []
    if "minimum" in schema and value < schema["minimum"]:
        found.append(f"{called} must be {schema['minimum']} or more, not {value}")
    if "maximum" in schema and value > schema["maximum"]:
        found.append(f"{called} must be {schema['maximum']} or less, not {value}")
    return found


def _any_of(value: Value, options: list[dict[str, Any]], name: str, called: str) -> list[str]:
    tried = [violations(value, option, name) for option in options]
    if any(not found for found in tried):
        return []
    # An option of the right kind explains better than one of another kind.
    same_kind = [
        found
        for found, option in zip(tried, options, strict=True)
        if any(_is_kind(value, kind) for kind in _kinds(option))
    ]
    if same_kind:
        return same_kind[0]
    wanted = " or ".join(_WORDS[kind] for option in options for kind in _kinds(option))
    return [f"{called} must be {wanted}, not {kind_and_value(value)}"]


def _kinds(schema: dict[str, Any]) -> list[str]:
    kind = schema.get("type", [])
    return [kind] if isinstance(kind, str) else list(kind)


def _is_kind(value: Value, kind: str) -> bool:
    match kind:
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            return whole and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
    return value is None


def _same(value: Value, other: Value) -> bool:
    """Whether two values are equal in JSON, where true is not 1."""
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)
