"""Reads and applies the `result` of a step: a JSON Schema of what its agent submits.

    schema_problems({"type": "objct"})                        # [(("type",), "…is not valid…")]
    violations({"files": 1}, {"properties": {"files": …}})    # ["'files': 1 is not of type \"array\""]
    outputs_of({"type": "object", "properties": {"n": {"type": "array"}}})     # {"n": []}

A schema is complete in itself: a reference to another document is refused. Patterns cannot take long.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from workflows_mcp.plan.model import Path
from workflows_mcp.values import Value, shown, to_json

WHOLE = "result"
"""The output with the result of a step whose result is not an object."""
_MOST = 8
_TEXT = 400
_CACHED = 64
_DEFAULTS: Mapping[str, Value] = {"array": [], "string": "", "boolean": False, "object": {}}
_VALIDATORS: OrderedDict[str, Any] = OrderedDict()


def schema_problems(schema: Mapping[str, Value]) -> list[tuple[Path, str]]:
    """Why a mapping is no JSON Schema: paths in it, and messages."""
    from jsonschema_rs import ValidationError

    if path := _outside(schema, ()):
        return [(path, "a schema cannot refer to another document: it would have to be fetched")]
    try:
        _validator(schema)
    except (ValidationError, ValueError) as error:
        path = tuple(getattr(error, "instance_path", ()))
        return [(path, _cut(str(getattr(error, "message", error))))]
    return []


def _outside(schema: Value, path: Path) -> Path:
    """The path of a reference to another document; empty if there is none."""
    if isinstance(schema, dict):
        for name in ("$ref", "$dynamicRef"):
            target = schema.get(name)
            if isinstance(target, str) and not target.startswith("#"):
                return (*path, name)
        for key, value in schema.items():
            if found := _outside(value, (*path, key)):
                return found
    elif isinstance(schema, list):
        for index, value in enumerate(schema):
            if found := _outside(value, (*path, index)):
                return found
    return ()


def _validator(schema: Mapping[str, Value]) -> Any:
    import jsonschema_rs

    key = to_json(dict(schema))
    found = _VALIDATORS.get(key)
    if found is None:
        pattern_options = jsonschema_rs.RegexOptions()  # linear in the length of the text
        found = jsonschema_rs.validator_for(dict(schema), pattern_options=pattern_options, offline=True)
        _VALIDATORS[key] = found
        if len(_VALIDATORS) > _CACHED:
            _VALIDATORS.popitem(last=False)
    return found


def violations(value: Value, schema: Mapping[str, Value]) -> list[str]:
    """What is wrong with a value, each with its place in it."""
    found: list[str] = []
    for error in _validator(schema).iter_errors(value):
        place = ".".join(map(str, error.instance_path))
        found.append(f"'{place}': {_cut(error.message)}" if place else _cut(error.message))
        if len(found) > _MOST:
            return [*found[:_MOST], "…"]
    return found


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT else f"{text[: _TEXT // 2]} … {text[-_TEXT // 2 :]}"


def is_object(schema: Mapping[str, Value]) -> bool:
    """Whether every result is an object, whose fields are the outputs of the step."""
    return schema.get("type") == "object" or ("type" not in schema and "properties" in schema)


def properties_of(schema: Mapping[str, Value]) -> dict[str, Value]:
    """The declared fields of a result, and their schemas."""
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def is_open(schema: Mapping[str, Value]) -> bool:
    """Whether a result can have fields that the schema does not name."""
    others = any(name in schema for name in ("patternProperties", "$ref", "allOf", "anyOf", "oneOf"))
    return others or not properties_of(schema) or isinstance(schema.get("additionalProperties"), dict)


def outputs_of(schema: Mapping[str, Value]) -> dict[str, Value]:
    """The names of the outputs of a step, and their values if it does not run."""
    if not is_object(schema):
        return {WHOLE: None}
    return {name: default_of(field) for name, field in properties_of(schema).items()}


def default_of(schema: Value) -> Value:
    """An empty value of the type of a schema; null if the type is open."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    return _DEFAULTS.get(kind) if isinstance(kind, str) else None


def result_outputs(value: Value, schema: Mapping[str, Value]) -> dict[str, Value]:
    """The outputs of a step from its result, which fits the schema."""
    if is_object(schema) and isinstance(value, dict):
        return {**outputs_of(schema), **value}
    return {WHOLE: value}


def example(schema: Value) -> Value:
    """A value that shows what a schema wants, for a hint; it may not fit every rule."""
    if not isinstance(schema, dict):
        return None
    for name in ("default", "const"):
        if name in schema:
            return schema[name]
    for name in ("examples", "enum", "anyOf", "oneOf"):
        options = schema.get(name)
        if isinstance(options, list) and options:
            return options[0] if name in ("examples", "enum") else example(options[0])
    if is_object(schema):
        fields = properties_of(schema)
        wanted = schema.get("required")
        names = wanted if isinstance(wanted, list) and wanted else list(fields)
        return {str(name): example(fields.get(str(name), {})) for name in names}
    kind = schema.get("type")
    if kind == "array":
        return [example(schema["items"])] if isinstance(schema.get("items"), dict) else []
    examples: Mapping[Any, Value] = {
        "string": "…",
        "integer": 1,
        "number": 1.5,
        "boolean": True,
        "null": None,
    }
    return examples.get(kind[0] if isinstance(kind, list) and kind else kind)


def described(schema: Mapping[str, Value]) -> str:
    """The fields of a result in a few words."""
    if is_object(schema):
        return ", ".join(properties_of(schema)) or "an object"
    return shown(schema.get("type", "any value"))
