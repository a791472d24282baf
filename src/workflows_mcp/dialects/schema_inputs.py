"""The inputs of a step type as JSON Schema: what its model takes, written down in YAML.

A block may say more than the model's own schema: an expression stands for any value, text is written without
quotes as a number, a number as text. All that the loader takes must be taken here too; what the model lets
through only by code of its own is found by trying.

    timeout: float = Field(gt=0)      {"anyOf": [{"type": "number", "exclusiveMinimum": 0},
                                                 {"$ref": "#/$defs/number_text"}]}
"""

from __future__ import annotations

import inspect
from typing import Any

from pydantic import BeforeValidator, PlainValidator, ValidationError, WrapValidator
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.fields import FieldInfo

from workflows_mcp.steps.base import Step, StepInputs

Schema = dict[str, Any]

_EXPRESSION = r"\$\{|\{\{|\{%"
"""What opens an expression, in one dialect or another."""
_NUMBER = r"^\s*[-+]?(?:[0-9._][0-9._eE+-]*|[iI][nN][fF][a-zA-Z]*|[nN][aA][nN])\s*$"
_TRUE = r"[tT](?:[rR][uU][eE])?|[yY](?:[eE][sS])?|[oO][nN]|1"
_FALSE = r"[fF](?:[aA][lL][sS][eE])?|[nN][oO]?|[oO][fF][fF]|0"
DEFINITIONS: dict[str, Schema] = {
    "expression": {
        "type": "string",
        "pattern": _EXPRESSION,
        "patternErrorMessage": "text is taken here only as expression: ${inputs.name} or {{ inputs.name }}",
    },
    "number_text": {
        "type": ["string", "boolean"],
        "pattern": f"{_EXPRESSION}|{_NUMBER}",
        "patternErrorMessage": "a number, or an expression such as ${inputs.name} or {{ inputs.name }}",
    },
    "flag": {
        "anyOf": [
            {"type": "boolean"},
            {
                "type": "string",
                "pattern": f"{_EXPRESSION}|^(?:{_TRUE}|{_FALSE})$",
                "patternErrorMessage": "true or false, or an expression: ${inputs.name} or {{ inputs.name }}",
            },
            {"type": "integer", "minimum": 0, "maximum": 1},
        ]
    },
}
"""What is said many times: text whose value is known only when the block runs, or that says a number."""
EXPRESSION: Schema = {"$ref": "#/$defs/expression"}
_NUMBER_TEXT: Schema = {"$ref": "#/$defs/number_text"}
_FLAG: Schema = {"$ref": "#/$defs/flag"}
_ANNOTATIONS = ("description", "default", "examples", "deprecated")
_OPTIONS = ("anyOf", "allOf", "prefixItems")
_SAMPLES: dict[str, tuple[Any, ...]] = {
    "null": (None,),
    "boolean": (True, False),
    "integer": (1, 7, 755),
    "number": (1.5,),
    "string": ("", "1", "text"),
    "array": ([], ["text"]),
    "object": ({}, {"key": "text"}),
}
_BEFORE = frozenset({"before", "plain", "wrap"})
_NARROWING = frozenset({"_known_shell"})
"""Validators that take no more than the type of their field says."""


def expression_or(schema: Schema, text: Schema = EXPRESSION) -> Schema:
    """Either what `schema` takes, or text with an expression, or text that says the same."""
    about, taken = annotations_apart(schema)
    return {**about, "anyOf": [taken, text]}


def annotations_apart(schema: Schema) -> tuple[Schema, Schema]:
    """What a schema says of a value for people, and what it takes."""
    about = {key: value for key, value in schema.items() if key in _ANNOTATIONS}
    return about, {key: value for key, value in schema.items() if key not in _ANNOTATIONS}


def number_or_expression(schema: Schema) -> Schema:
    return expression_or(schema, _NUMBER_TEXT)


def inputs_schema(step: Step, reference: str) -> tuple[Schema, dict[str, Schema]]:
    """The schema of `inputs`, and the definitions that it refers to by `reference`, a text with {model}."""
    model = step.Inputs
    try:
        given = model.model_json_schema(ref_template=reference)
    except PydanticInvalidForJsonSchema:  # a type that JSON Schema cannot say
        given = {}
    properties: Schema = {}
    required: list[str] = []
    choices: list[Schema] = []
    for name, field in model.model_fields.items():
        alias = field.alias or name
        schema = _input(model, name, field, given.get("properties", {}).get(alias, {}))
        properties[alias] = schema
        if alias != name:
            # Both spellings are taken; one that only swaps '_' for '-' need not be offered.
            same = alias.replace("-", "_") == name
            properties[name] = {**schema, "doNotSuggest": True} if same else schema
        if field.is_required() and alias == name:
            required.append(name)
        elif field.is_required():
            choices.append({"if": {"required": [name]}, "else": {"required": [alias]}})
    for other, name in model.other_names.items():
        properties[other] = {**properties[name], "doNotSuggest": True}
    whole: Schema = {
        "type": "object" if required or choices else ["object", "null"],
        "description": _described(step),
        "properties": properties,
        "additionalProperties": False,
    }
    if required:
        whole["required"] = required
    if choices:
        whole["allOf"] = choices
    return whole, {name: _lenient(schema) for name, schema in given.get("$defs", {}).items()}


def _described(step: Step) -> str:
    text = inspect.getdoc(type(step)) or ""
    outputs = ", ".join(f"`{name}`" for name in step.Outputs.model_fields)
    return f"{text}\n\nOutputs: {outputs}." if outputs else text


def _input(model: type[StepInputs], name: str, field: FieldInfo, given: Schema) -> Schema:
    if given.get("default", 0) in (None, ""):  # says nothing, and an editor would write it down
        given = {key: value for key, value in given.items() if key != "default"}
    if not _is_prepared(model, name, field):
        return _lenient(given)
    kept = {key: given[key] for key in _ANNOTATIONS if key in given}
    kinds = _kinds_taken(model, name, field, given)
    if len(kinds) == len(_SAMPLES):
        return kept
    schema = {**kept, "type": sorted(kinds) if len(kinds) > 1 else kinds.pop()}
    return schema if "string" in kinds else expression_or(schema)


def _is_prepared(model: type[StepInputs], name: str, field: FieldInfo) -> bool:
    """Whether code of the step type sees the value before it is checked, so that it may be of any type."""
    decorators = model.__pydantic_decorators__
    own = (it for called, it in decorators.model_validators.items() if called not in vars(StepInputs))
    if any(found.info.mode in _BEFORE for found in own):
        return True
    for found in decorators.field_validators.values():
        if found.cls_var_name in _NARROWING:
            continue
        if found.info.mode in _BEFORE and (name in found.info.fields or "*" in found.info.fields):
            return True
    return any(isinstance(it, BeforeValidator | PlainValidator | WrapValidator) for it in field.metadata)


def _kinds_taken(model: type[StepInputs], name: str, field: FieldInfo, given: Schema) -> set[str]:
    """The types that the model's own schema names, and those of which it takes a sample."""
    options = given.get("anyOf", [given])
    kinds = {option["type"] for option in options if isinstance(option.get("type"), str)}
    return kinds | {
        kind for kind, samples in _SAMPLES.items() if any(_is_taken(model, name, field, it) for it in samples)
    }


def _is_taken(model: type[StepInputs], name: str, field: FieldInfo, value: Any) -> bool:
    try:
        model.model_validate({name: value})
    except ValidationError as invalid:
        own = {name, field.alias or name}
        return not any(error["loc"][:1] and error["loc"][0] in own for error in invalid.errors())
    except Exception:
        return False  # its own code does not expect it; running it says so
    return True


def _lenient(schema: Schema) -> Schema:
    """The same for what stands in a file: an expression may stand wherever another type is wanted."""
    schema = {key: value for key, value in schema.items() if key not in ("title", "discriminator")}
    if "oneOf" in schema:  # an expression fits several of them
        schema["anyOf"] = [*schema.pop("oneOf"), *schema.get("anyOf", ())]
    for key in ("properties", "patternProperties"):
        if key in schema:
            schema[key] = {name: _lenient(inner) for name, inner in schema[key].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            schema[key] = _lenient(schema[key])
    for key in _OPTIONS:
        if key in schema:
            schema[key] = _flattened(_lenient(option) for option in schema[key])
    if "enum" in schema or "const" in schema:
        return expression_or(schema)
    match schema.get("type"):
        case "string":
            # A number or a truth value is taken as it is written.
            checked = {**schema, "type": ["string", "number", "boolean"]}
            return checked if schema.keys() <= {"type", *_ANNOTATIONS} else expression_or(checked)
        case "number" | "integer":
            return number_or_expression(schema)
        case "boolean":
            return {**{key: schema[key] for key in _ANNOTATIONS if key in schema}, **_FLAG}
        case "array" | "object":
            return expression_or(schema)
    return schema


def _flattened(options: Any) -> list[Schema]:
    """The options, with those of options that are nothing but options."""
    flat: list[Schema] = []
    for option in options:
        for inner in option["anyOf"] if option.keys() == {"anyOf"} else [option]:
            if inner not in flat:
                flat.append(inner)
    return flat
