"""Generates the JSON Schema of the stateful dialect.

Each step type is a separate branch, selected by `type`. The inputs of a step type are keys of the step, in
the same mapping as the keys of every step.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from pydantic import BeforeValidator, PlainValidator, ValidationError, WrapValidator
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.fields import FieldInfo

from workflows_mcp.dialects import reactive_state, stateful
from workflows_mcp.dialects.document_keys import EXTENSION
from workflows_mcp.dialects.reactive_steps import CHANGE_KEYS, OPERATIONS
from workflows_mcp.dialects.stateful_steps import CONTROL, DEFAULTS, DIALECT, REQUIRED, keys_beside, own_keys
from workflows_mcp.dialects.steps import LEFT_OUT, ON_FAILURE, ON_INTERRUPT, ON_LIMIT, PERFORMERS
from workflows_mcp.settings import STATE_ACCESS
from workflows_mcp.steps import Step, StepInputs

# ----------------------------------------------------------------------------------------------------
# The JSON Schema of the inputs of a step type, as they are written in YAML.
#
# A file can have more than the schema of the model allows: expressions for any value, texts without quotes
# that look like numbers, and numbers as text. The schema must accept all that the loader accepts, so types
# that only custom validators of the model accept are found with sample values.
#
#     timeout: float = Field(gt=0)      {"anyOf": [{"type": "number", "exclusiveMinimum": 0},
#                                                  {"$ref": "#/$defs/number_text"}]}


Schema = dict[str, Any]


_EXPRESSION = r"\$\{|\{\{|\{%"

"""The start of an expression, in any dialect."""

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

"""Shared definitions: text whose value only the run knows, and text that is a number or a flag."""

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

"""Validators that accept no more than the type of their field."""


def expression_or(schema: Schema, text: Schema = EXPRESSION) -> Schema:
    """Accepts what `schema` accepts, or an expression, or the same value as text."""
    about, taken = annotations_apart(schema)
    return {**about, "anyOf": [taken, text]}


def annotations_apart(schema: Schema) -> tuple[Schema, Schema]:
    """Splits a schema into its annotations for readers, and its rules."""
    about = {key: value for key, value in schema.items() if key in _ANNOTATIONS}
    return about, {key: value for key, value in schema.items() if key not in _ANNOTATIONS}


def number_or_expression(schema: Schema) -> Schema:
    return expression_or(schema, _NUMBER_TEXT)


def inputs_schema(step: Step, reference: str) -> tuple[Schema, dict[str, Schema]]:
    """The schema of `inputs`, and the definitions that it refers to.

    `reference` is a text with {model}.
    """
    model = step.Inputs
    try:
        given = model.model_json_schema(ref_template=reference)
    except PydanticInvalidForJsonSchema:  # a type that JSON Schema does not have
        given = {}
    properties: Schema = {}
    required: list[str] = []
    choices: list[Schema] = []
    for name, field in model.model_fields.items():
        alias = field.alias or name
        schema = _input(model, name, field, given.get("properties", {}).get(alias, {}))
        properties[alias] = schema
        if alias != name:
            # Both spellings are accepted; editors do not suggest one that only has '_' for '-'.
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
    if given.get("default", 0) in (None, ""):  # it has no meaning, and editors would insert it
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
    """Whether a validator gets the value before it is checked, so it can have any type."""
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
    """The types in the schema of the model, and those with a sample that it accepts."""
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
        return False  # its validators do not expect the value; the run reports it
    return True


def _lenient(schema: Schema) -> Schema:
    """The schema for values in a file: it also accepts expressions."""
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
            # A number or a boolean is used as written.
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
    """The options, with nested `anyOf` options merged into the list."""
    flat: list[Schema] = []
    for option in options:
        for inner in option["anyOf"] if option.keys() == {"anyOf"} else [option]:
            if inner not in flat:
                flat.append(inner)
    return flat


IS_STATEFUL: Schema = {
    "anyOf": [
        {"properties": {"dialect": {"const": DIALECT}}, "required": ["dialect"]},
        {
            "required": ["steps"],
            "not": {
                "anyOf": [
                    {"required": ["blocks"]},
                    {"properties": {"dialect": {"const": "graph"}}, "required": ["dialect"]},
                ]
            },
        },
    ]
}

"""Tells a workflow of steps from one of blocks."""

_FIELD = r"^[^\s!-,./:-@\[-^`{-~0-9_-][^\s!-,./:-@\[-^`{-~]*$"

_STEPS: Schema = {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/step"}}

ON_LIMIT_SCHEMA: Schema = {
    "description": "What happens when max_iterations is reached: the step fails, or the next steps run.",
    "enum": [*ON_LIMIT, None],
}

_SUMMARIES = {
    "condition": "Runs the steps of `then` if a test holds, otherwise those of `else`.",
    "set_state": "Sets fields of the state: all of them or none.",
    "foreach": "Runs a task for each item of a list.",
    "return": "Ends the workflow, or the task, with a value.",
    "goto": "Continues with another step, up to a number of times.",
    "wait": "Waits for a number of seconds.",
    "workflow": "Calls another workflow.",
}


def steps_workflow(about: Mapping[str, Schema]) -> Schema:
    """A workflow of steps; `about` has the keys that it shares with a workflow of blocks."""
    own: dict[str, Schema] = {
        "dialect": {"enum": [DIALECT, None], "description": "Optional if there is state."},
        "initial_state": {
            "description": "The fields of the state and their initial values, used as written.",
            "type": ["object", "null"],
        },
        "state_access": {
            "description": "warn: reading a field without declaring it is only a warning.",
            "enum": [*STATE_ACCESS, None],
        },
        "steps": {"description": "The steps, which run one after the other.", **_STEPS},
        "tasks": {
            "description": "The tasks that foreach runs for items, by name.",
            "type": ["object", "null"],
            "additionalProperties": {"$ref": "#/$defs/task"},
        },
    }
    keys = {**about, **own}
    return {
        "description": "Steps one after the other, with a state.",
        "type": "object",
        "properties": {key: keys.get(key, {}) for key in stateful.KEYS},
        "patternProperties": {f"^{EXTENSION}": {"description": "Your own keys, e.g. for anchors."}},
        "additionalProperties": False,
        "required": ["steps"],
    }


def task(workflow: Schema) -> Schema:
    properties = workflow["properties"]
    return {
        "description": "Steps that run for an item, with their own inputs and state.",
        "type": "object",
        "properties": {key: properties[key] for key in stateful.TASK_KEYS},
        "additionalProperties": False,
        "required": ["steps"],
    }


def step(steps: Mapping[str, Step], about: Mapping[str, Schema]) -> Schema:
    """A step; `steps` are the registered types, by their names in the dialect.

    `about` has the keys that steps share with blocks.
    """
    keys = {**about, **_step_keys()}
    names = {**_SUMMARIES, **{name: kind.summary for name, kind in steps.items()}}
    branches = [_control(kind, keys) for kind in CONTROL]
    for name, kind in steps.items():
        if name not in CONTROL:
            inputs, required = inputs_of(kind)
            for key, value in DEFAULTS.get(kind.name, {}).items():
                inputs[key] = {**inputs[key], "default": value}
            beside = {key: keys.get(key, {}) for key in keys_beside(kind)}
            branches.append(branch(name, {**beside, **inputs}, required))
    return step_of(names, ["id", "type"], branches)


def step_of(names: Mapping[str, str], required: list[str], branches: list[Schema]) -> Schema:
    """A step of one of the types in `names`, which has their summaries; each has a branch."""
    return {
        "description": "A unit of work.",
        "type": "object",
        "properties": {
            "type": {
                "enum": list(names),
                "enumDescriptions": list(names.values()),
                "description": "The step type.",
            }
        },
        "required": required,
        "allOf": branches,
    }


def _step_keys() -> dict[str, Schema]:
    text: Schema = {"type": "string"}
    field: Schema = {
        "pattern": _FIELD,
        "patternErrorMessage": "a field is a name that starts with a letter",
    }
    return {
        "type": {},
        "needs_state": {
            "description": 'The fields of the state that it can read; ["*"]: all.',
            "type": "array",
            "items": text,
        },
        "output_to": {
            "description": "The field of the state that stores its result.",
            "type": ["string", "null"],
            **field,
        },
        "error_to": {
            "description": "The field of the state that stores its error: message, code and step.",
            "type": ["string", "null"],
            **field,
        },
        "when": {"description": "It runs only if this holds.", "type": ["string", "boolean"]},
        "on_error": {
            "description": "Whether the workflow continues after a failure of this step.",
            "enum": list(ON_FAILURE),
        },
        "run_on": {"description": "Who runs it.", "enum": [*PERFORMERS, None]},
        "on_interrupt": {
            "description": "What happens if a crash interrupts it.",
            "enum": list(ON_INTERRUPT),
        },
        "if": {"description": "The test, e.g. `{{ state.score > 90 }}`.", "type": ["string", "boolean"]},
        "then": {"description": "The steps if the test holds.", **_STEPS},
        "else": {
            "description": "The steps if it does not.",
            "type": ["array", "null"],
            "items": {"$ref": "#/$defs/step"},
        },
        "updates": {
            "description": "Fields of the state and their new values, in order.",
            "type": "object",
            "minProperties": 1,
            "propertyNames": field,
        },
        "items": {
            "description": "The list, e.g. `{{ state.files }}`.",
            **expression_or({"type": "array"}),
        },
        "task": {"description": "The name of one of the tasks.", **text},
        "agent": {
            "description": "The kind of sub-agent that runs it: @task, or @name.",
            "type": ["string", "null"],
            "pattern": "^@[a-z0-9-]+$",
        },
        "sequential": {"description": "true: one item after the other.", "type": "boolean"},
        "value": {"description": "The result; templates in it are resolved."},
        "target": {
            "description": "The id of a step of the same list, or of one around it.",
            "type": ["string", "number", "boolean"],
        },
        "max_iterations": {
            "description": "The maximum number of jumps.",
            **number_or_expression({"type": "integer", "minimum": 1}),
        },
        "on_limit": ON_LIMIT_SCHEMA,
        "duration_seconds": {
            "description": "The number of seconds.",
            **number_or_expression({"type": "number", "minimum": 0}),
        },
        "message": {"description": "The text to show while it waits."},
        "workflow": {"description": "The name of the workflow.", **text},
        "inputs": {"description": "The inputs of the workflow.", "type": ["object", "string", "null"]},
    }


def _control(kind: str, keys: Mapping[str, Schema]) -> Schema:
    properties = {key: keys.get(key, {}) for key in own_keys(kind)}
    return branch(kind, properties, list(REQUIRED.get(kind, ())))


def inputs_of(kind: Step) -> tuple[dict[str, Schema], list[str]]:
    """The inputs of a registered step type, and the names of the required ones."""
    inputs, _ = inputs_schema(kind, f"#/$defs/{kind.name}.{{model}}")
    without = {spelt.replace("_", "-") for spelt in LEFT_OUT.get(kind.name, ())}
    given = {key: it for key, it in inputs["properties"].items() if key.replace("_", "-") not in without}
    return {key: _or_nothing(schema) for key, schema in given.items()}, inputs.get("required", [])


def _or_nothing(schema: Schema) -> Schema:
    """Accepts null too, which is the same as no value."""
    about, taken = annotations_apart(schema)
    return {**about, "anyOf": [taken, {"type": "null"}]} if taken else schema


def branch(kind: str, properties: dict[str, Schema], required: list[str]) -> Schema:
    """The branch for steps of one type."""
    then: Schema = {"properties": properties, "additionalProperties": False}
    if required:
        then["required"] = required
    return {"if": {"properties": {"type": {"const": kind}}, "required": ["type"]}, "then": then}


# ----------------------------------------------------------------------------------------------------
# The JSON Schema of the state of the reactive dialect.


FLAG: Schema = {"type": ["boolean", "null"]}

PATH: Schema = {
    "type": "string",
    "pattern": r"^\s*(?:raw|state)\s*[.\[]",
    "patternErrorMessage": "a path to write starts with raw. or state.",
}


def change() -> Schema:
    properties: dict[str, Schema] = {
        "path": {"description": "The place, e.g. `raw.results.{{ item }}`.", **PATH},
        "value": {"description": "The new value; without it, the result of the step."},
        "operation": {
            "description": "How the value is written; the default is set.",
            "enum": [*OPERATIONS, None],
        },
        "transform": {
            "description": "JavaScript that computes the value from `input`, or a template.",
            "type": ["string", "null"],
        },
    }
    return {
        "description": "A new value at a place in the state.",
        "type": "object",
        "properties": {key: properties[key] for key in CHANGE_KEYS},
        "additionalProperties": False,
        "required": ["path"],
    }


def default_state() -> Schema:
    fields: Schema = {"type": ["object", "null"]}
    return {
        "description": "Fields of the state and their initial values; expressions are resolved at the start.",
        "type": ["object", "null"],
        "properties": {
            "raw": {"description": "Fields that steps write.", **fields},
            "state": {"description": "Further fields that steps write.", **fields},
            "computed": {"description": "Has no effect: these fields are computed from others."},
        },
        "additionalProperties": False,
    }


def state_schema() -> Schema:
    kinds: Schema = {"enum": [*reactive_state.TYPES, None]}
    fields: Schema = {
        "type": ["object", "null"],
        "additionalProperties": {
            "anyOf": [
                kinds,
                {
                    "type": "object",
                    "properties": {"type": kinds, "description": {}},
                    "additionalProperties": False,
                },
            ]
        },
    }
    return {
        "description": "The types of the fields of the state, and its computed fields.",
        "type": ["object", "null"],
        "properties": {
            "raw": {"description": "The types of fields that steps write.", **fields},
            "state": {"description": "The types of further fields.", **fields},
            "computed": {
                "description": "Fields that are computed from others.",
                "type": ["object", "null"],
                "additionalProperties": {"$ref": "#/$defs/computed"},
            },
        },
        "additionalProperties": False,
    }


def computed() -> Schema:
    source: Schema = {"type": "string", "pattern": r"^(?:raw|state|computed|inputs|config)(?:\.[^.\s]+)+$"}
    script: Schema = {"type": ["string", "number", "boolean", "null"]}
    properties: dict[str, Schema] = {
        "from": {
            "description": "Its source, e.g. `raw.files`, which is the `input` of its transform; or a list.",
            "anyOf": [source, {"type": "array", "minItems": 1, "items": source}, {"type": "null"}],
        },
        "transform": {"description": "JavaScript that computes it from `input`.", **script},
        "on_error": {
            "description": "Its value when its transform fails; the default is null.",
            "enum": [*reactive_state.ON_ERROR, None],
        },
        "fallback": {"description": "Its value then, with on_error: use_fallback."},
        "validate": {"description": "JavaScript that is true if `output` is valid.", **script},
        "static": {"description": "true: it always has its `value`.", **FLAG},
        "value": {"description": "The value of a static field."},
        "type": {"description": "For readers of the file.", "enum": [*reactive_state.TYPES, None]},
        "description": {"description": "For readers of the file."},
    }
    return {
        "description": "A field that is computed from others.",
        "type": "object",
        "properties": {key: properties[key] for key in reactive_state.COMPUTED_KEYS},
        "additionalProperties": False,
        "anyOf": [{"required": ["transform"]}, {"required": ["static", "value"]}],
    }
