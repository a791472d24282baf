"""Generates the JSON Schema (2020-12) of workflow files, for editors and models.

It accepts everything that the loader accepts, and rejects what is visible without the whole file: unknown
keys and types, misspelt and missing inputs, values of the wrong type. The schemas of step types come from
their classes, so it includes every registered type. Each type is a separate branch, selected by `type`, so
that an editor completes and reports only for that type.

    schema = workflow_schema(default_registry())
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import BeforeValidator, PlainValidator, ValidationError, WrapValidator
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.fields import FieldInfo

from workflows_mcp.dialects import graph, reactive, reactive_state, reactive_steps, stateful
from workflows_mcp.dialects.document import input_declaration
from workflows_mcp.dialects.keys import (
    ANNOTATIONS,
    DEFINITIONS,
    NUMBER_TEXT,
    OWN_KEYS,
    RETRY,
    TIME_TEXT,
    Key,
    Keys,
    Kind,
    Schema,
    expression_or,
    flag,
    keys,
    note,
    number_or_expression,
    object_schema,
)
from workflows_mcp.dialects.recognition import (
    REACTIVE_KEYS,
    REACTIVE_KEYS_OF,
    REACTIVE_STEP_KEYS,
    REACTIVE_TYPES,
    STATEFUL_KEYS,
)
from workflows_mcp.dialects.steps import LEFT_OUT, Dialect
from workflows_mcp.dialects.yaml.source import WRAPPER
from workflows_mcp.errors import RequestError
from workflows_mcp.plan import MOST_ATTEMPTS
from workflows_mcp.steps import TYPES as OUTPUT_TYPES
from workflows_mcp.steps import Shell, Step, StepInputs, StepRegistry
from workflows_mcp.values import did_you_mean, shown

logger = logging.getLogger(__name__)


def workflow_schema(registry: StepRegistry) -> dict[str, Any]:
    """The schema of workflows in all dialects, with all step types of `registry`."""
    types = {name: dict(_named(registry, name)) for name in _PARTS}
    about_retry = "When a failure is retried, and how often: a number of attempts, or a mapping."
    attempts = {"type": ["integer", "object", "null"], "minimum": 1, "maximum": MOST_ATTEMPTS}
    about_dependency = "The id of a block, or {block: id, required: false} to run even if that block failed."
    stateful_task, reactive_task = object_schema(stateful.TASK), object_schema(reactive.TASK)
    definitions: dict[str, Schema] = {
        "block": _block(types["graph"]),
        "dependency": {
            **object_schema(graph.DEPENDENCY, about_dependency),
            "type": ["string", "number", "boolean", "object"],
        },
        "input": input_declaration(),
        "retry": number_or_expression({**object_schema(RETRY, about_retry), **attempts}),
        "shell_output": object_schema(_SHELL_OUTPUT, "An output that the command writes to a file."),
        **DEFINITIONS,
    }
    every = {kind.name: kind for kinds in types.values() for kind in kinds.values()}
    for name, step in every.items():
        whole, models = inputs_schema(step, f"#/$defs/{name}.{{model}}")
        if step in types["graph"].values():
            definitions[f"{name}.inputs"] = whole
        definitions |= {f"{name}.{model}": schema for model, schema in models.items()}
    definitions |= {
        "steps_workflow": _workflow(
            stateful.WORKFLOW, "Steps one after the other, with a state.", required=["steps"]
        ),
        "task": {
            **stateful_task,
            "description": "Steps that run for an item, with their own inputs and state.",
            "required": ["steps"],
        },
        "step": _step(stateful.STATEFUL, types["stateful"], ["id", "type"]),
        "reactive_workflow": _workflow(
            reactive.WORKFLOW,
            "Steps one after the other, and a state with computed fields.",
            anyOf=[{"required": ["steps"]}, {"required": ["sub_agent_tasks"]}],
        ),
        "reactive_task": {
            **reactive_task,
            "description": "Steps that a sub-agent runs for an item.",
            "required": ["steps"],
        },
        "reactive_step": _step(reactive_steps.REACTIVE, types["reactive"], ["type"]),
        "computed": object_schema(
            reactive_state.COMPUTED,
            "A field that is computed from others.",
            anyOf=[{"required": ["transform"]}, {"required": ["static", "value"]}],
        ),
        "change": object_schema(reactive_steps.CHANGE, "A new value at a place in the state."),
        "blocks_workflow": _workflow(
            graph.WORKFLOW, "Blocks that run as soon as their dependencies are done.", required=["blocks"]
        ),
        "workflow": {
            "type": "object",
            "if": IS_REACTIVE,
            "then": {"$ref": "#/$defs/reactive_workflow"},
            "else": {
                "if": IS_STATEFUL,
                "then": {"$ref": "#/$defs/steps_workflow"},
                "else": {"$ref": "#/$defs/blocks_workflow"},
            },
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "workflow",
        "type": "object",
        "if": {
            "properties": {WRAPPER: {"type": "object"}},
            "required": [WRAPPER],
            "not": {"anyOf": [{"required": ["blocks"]}, {"required": ["steps"]}]},
        },
        "then": {
            "description": "The whole definition can be below `workflow`.",
            "properties": {WRAPPER: {"$ref": "#/$defs/workflow"}},
            "patternProperties": OWN_KEYS,
            "additionalProperties": False,
        },
        "else": {"$ref": "#/$defs/workflow"},
        "$defs": definitions,
    }


_PARTS = {
    "graph": ("blocks_workflow", "block"),
    "reactive": ("reactive_workflow", "reactive_step"),
    "stateful": ("steps_workflow", "step"),
}
"""For each dialect: the definitions of its workflows and of their steps."""


def schema_overview(registry: StepRegistry) -> dict[str, Any]:
    """The keys and step types of each dialect, to select a part of the schema."""
    definitions = workflow_schema(registry)["$defs"]
    dialects = {}
    for dialect, (workflow, step) in _PARTS.items():
        types = definitions[step]["properties"]["type"]
        dialects[dialect] = {
            "description": definitions[workflow].get("description", ""),
            "keys": list(definitions[workflow]["properties"]),
            "step_types": dict(zip(types["enum"], types["enumDescriptions"], strict=True)),
        }
    return {"dialects": dialects}


def schema_part(registry: StepRegistry, dialect: str | None, step_type: str | None) -> dict[str, Any]:
    """The schema of a dialect, with step types by name only, or of one step type.

    Raises RequestError.
    """
    if dialect is not None and dialect not in _PARTS:
        raise RequestError(f"there is no dialect {shown(dialect)}", hint=did_you_mean(dialect, _PARTS))
    whole = workflow_schema(registry)
    definitions = dict(whole["$defs"])
    chosen = [dialect] if dialect is not None else list(_PARTS)
    known = {name: definitions[_PARTS[name][1]]["properties"]["type"]["enum"] for name in chosen}
    if step_type is not None:
        chosen = [name for name in chosen if step_type in known[name]]
        if not chosen:
            where = f" of the dialect {dialect}" if dialect is not None else ""
            hint = did_you_mean(step_type, {it for types in known.values() for it in types}, limit=40)
            raise RequestError(f"there is no step type {shown(step_type)}{where}", hint=hint)
    for _, step in _PARTS.values():
        branches = [it for it in definitions[step]["allOf"] if _is_branch_of(it, step_type)]
        definitions[step] = {**definitions[step], "allOf": branches}
        if not branches:
            del definitions[step]["allOf"]
    roots = [_PARTS[name][0 if step_type is None else 1] for name in chosen]
    return {
        "$schema": whole["$schema"],
        "type": "object",
        "anyOf": [{"$ref": f"#/$defs/{root}"} for root in roots],
        "$defs": _reachable(definitions, roots),
    }


def _is_branch_of(branch: Schema, step_type: str | None) -> bool:
    names = branch["if"]["properties"]["type"]
    return step_type is not None and step_type in (names.get("const"), *names.get("enum", ()))


def _reachable(definitions: dict[str, Schema], roots: list[str]) -> dict[str, Schema]:
    """The definitions of the roots, and all that they refer to."""
    found: dict[str, Schema] = {}
    waiting: list[Any] = [{"$ref": f"#/$defs/{root}"} for root in roots]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            name = str(part.get("$ref", "")).removeprefix("#/$defs/")
            if name in definitions and name not in found:
                found[name] = definitions[name]
                waiting.append(definitions[name])
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
    return {name: definitions[name] for name in definitions if name in found}


def _named(registry: StepRegistry, dialect: str) -> Iterator[tuple[str, Step]]:
    """The step types of a dialect, by their names in it."""
    for name in registry.names(dialect):
        try:
            step = registry.find(name, dialect)
        except Exception:  # it is from another package: keep the other types
            logger.warning("the step type %s cannot be loaded and is not in the schema", name, exc_info=True)
        else:
            if step is not None:
                yield name, step


def _workflow(table: Keys, description: str, **more: Any) -> Schema:
    return object_schema(table, description, extensions=True, **more)


# ----------------------------------------------------------------------------------------------------
# Blocks and steps: each type is a branch.


_output_type = Kind("type", {"enum": list(OUTPUT_TYPES)}, null=False)
_file = Kind("path", {"type": "string", "pattern": r"\S"})
_SHELL_OUTPUT = keys(
    Key("type", _output_type, "How the text of the file is parsed."),
    Key("path", _file, "The file, in the working directory or in $SCRATCH.", required="path: …"),
    Key("description", note, "For readers of the file."),
    Key("required", flag(null=False), "Whether a missing file is an error.", "true"),
    Key("unsafe", flag(null=False), "Whether the file may be outside the working directory.", "false"),
)


def _block(types: Mapping[str, Step]) -> Schema:
    schema = object_schema(graph.BLOCK, "A unit of work.")
    spellings = {name: step.summary for step in types.values() for name in (step.name, *step.aliases)}
    schema["properties"]["type"] = _type(spellings)
    return {
        **schema,
        "required": ["id", "type"],
        "dependentRequired": {"max_parallel": ["for_each"], "for_each_mode": ["for_each"]},
        "allOf": [_block_branch(step) for step in types.values()],
    }


def _type(summaries: Mapping[str, str]) -> Schema:
    descriptions = list(summaries.values())
    return {"enum": list(summaries), "enumDescriptions": descriptions, "description": "The step type."}


def _block_branch(step: Step) -> Schema:
    """The branch for blocks of one type."""
    properties: dict[str, Schema] = {"inputs": {"$ref": f"#/$defs/{step.name}.inputs"}}
    if not step.takes_output_specs:
        message = f"a block of type {step.name} cannot declare outputs"
        properties["outputs"] = {"type": "null", "errorMessage": message}
    elif isinstance(step, Shell):
        taken = list(step.Outputs.model_fields)
        properties["outputs"] = {
            "type": ["object", "null"],
            "propertyNames": {"not": {"enum": taken}, "errorMessage": "every Shell block has that output"},
            "additionalProperties": {"$ref": "#/$defs/shell_output"},
        }
    else:
        properties["outputs"] = {"type": ["object", "null"]}
    needs_inputs = any(field.is_required() for field in step.Inputs.model_fields.values())
    return _branch([step.name, *step.aliases], {"properties": properties}, ["inputs"] if needs_inputs else [])


def _branch(names: list[str], then: Schema, required: list[str]) -> Schema:
    """The branch for steps of a type, which has these names."""
    chosen: Schema = {"const": names[0]} if len(names) == 1 else {"enum": names}
    then = {**then, "required": required} if required else then
    return {"if": {"properties": {"type": chosen}, "required": ["type"]}, "then": then}


def _step(dialect: Dialect, types: Mapping[str, Step], required: list[str]) -> Schema:
    """A step of one of the control types of a dialect, or of the registered types."""
    control = dialect.control
    branches = [_control_branch(kind, dialect) for kind in control]
    branches += [_work_branch(name, step, dialect) for name, step in types.items() if name not in control]
    summaries = {kind: it.summary for kind, it in control.items()}
    summaries |= {name: step.summary for name, step in types.items()}
    return {
        "description": "A unit of work.",
        "type": "object",
        "properties": {"type": _type(summaries)},
        "required": required,
        "allOf": branches,
    }


def _step_branch(name: str, properties: Schema, required: list[str], either: Iterable[str] = ()) -> Schema:
    """The branch for steps of a type with these properties; it needs one of `either`."""
    then: Schema = {"properties": {**properties, "type": {}}, "additionalProperties": False}
    if either:
        then["anyOf"] = [
            {"properties": {key: {"not": {"type": "null"}}}, "required": [key]} for key in either
        ]
    return _branch([name], then, required)


def _control_branch(kind: str, dialect: Dialect) -> Schema:
    control = dialect.control[kind]
    either = control.either
    for key in control.keys.values():
        either = (key.name, key.same) if key.same else either
    required = [name for name, key in control.keys.items() if key.is_required]
    return _step_branch(kind, {name: key.schema for name, key in control.keys.items()}, required, either)


def _work_branch(name: str, step: Step, dialect: Dialect) -> Schema:
    whole, _ = inputs_schema(step, f"#/$defs/{step.name}.{{model}}")
    without = {spelt.replace("_", "-") for spelt in LEFT_OUT.get(step.name, ())}
    inputs = {key: it for key, it in whole["properties"].items() if key.replace("_", "-") not in without}
    beside = {key: it.schema for key, it in dialect.beside(step).items()}
    for key, value in dialect.defaults.get(step.name, {}).items():
        inputs[key] = {**inputs[key], "default": value}
    inputs = {key: _nullable(it) for key, it in inputs.items()}
    within = step.timeout_input
    if dialect.name == "reactive" and within is not None and step.name in reactive_steps.TIMED:
        default = step.Inputs.model_fields[within].get_default()
        in_milliseconds = {"default": round(default * 1000)} if default else {}
        inputs[within] = {**beside["timeout"], **in_milliseconds}
    renamed = dialect.renamed.get(step.name, {})
    if not renamed:
        return _step_branch(name, {**beside, **inputs}, whole.get("required", []))
    spelt = {}
    for own, other in renamed.items():
        alias = step.Inputs.model_fields[own].alias or own
        spelt[other] = inputs.get(own, inputs.get(alias))
        inputs = {key: it for key, it in inputs.items() if key not in (own, alias)}
    call: Schema = {
        "description": "The tool to call, and its parameters.",
        "type": ["object", "null"],
        "properties": spelt,
        "additionalProperties": False,
        "required": [reactive_steps.CALL[0]],
    }
    properties = {**beside, **inputs, **spelt, reactive_steps.MCP: call}
    return _step_branch(name, properties, [], (reactive_steps.CALL[0], reactive_steps.MCP))


def _nullable(schema: Schema) -> Schema:
    """Accepts null too, which is the same as no value."""
    about = {key: value for key, value in schema.items() if key in ANNOTATIONS}
    taken = {key: value for key, value in schema.items() if key not in ANNOTATIONS}
    return {**about, "anyOf": [taken, {"type": "null"}]} if taken else schema


# ----------------------------------------------------------------------------------------------------
# How the schema tells the dialects apart.


IS_REACTIVE: Schema = {
    "anyOf": [
        {"properties": {"dialect": {"const": "reactive"}}, "required": ["dialect"]},
        {
            "not": {
                "anyOf": [
                    {"required": ["blocks"]},
                    {"properties": {"dialect": {"type": "string"}}, "required": ["dialect"]},
                    *({"required": [key]} for key in sorted(STATEFUL_KEYS)),
                ]
            },
            "anyOf": [
                *({"required": [key]} for key in sorted(REACTIVE_KEYS)),
                {
                    "required": ["steps"],
                    "properties": {
                        "steps": {
                            "type": "array",
                            "contains": {
                                "type": "object",
                                "anyOf": [
                                    {
                                        "properties": {"type": {"enum": sorted(REACTIVE_TYPES)}},
                                        "required": ["type"],
                                    },
                                    *({"required": [key]} for key in sorted(REACTIVE_STEP_KEYS)),
                                    *(
                                        {"properties": {"type": {"const": kind}}, "required": ["type", key]}
                                        for kind, keys in REACTIVE_KEYS_OF.items()
                                        for key in keys
                                    ),
                                ],
                            },
                        }
                    },
                },
            ],
        },
    ]
}
"""Tells a reactive workflow from other ones."""
IS_STATEFUL: Schema = {
    "anyOf": [
        {"properties": {"dialect": {"const": "stateful"}}, "required": ["dialect"]},
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


# ----------------------------------------------------------------------------------------------------
# The JSON Schema of the inputs of a step type, as they are written in YAML.
#
# A file can have more than the schema of the model allows: expressions for any value, texts without quotes
# that look like numbers, and numbers as text. The schema must accept all that the loader accepts, so types
# that only custom validators of the model accept are found with sample values.
#
#     timeout: float = Field(gt=0)      {"anyOf": [{"type": "number", "exclusiveMinimum": 0},
#                                                  {"$ref": "#/$defs/number_text"}]}


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
        if name == step.timeout_input:
            schema = _with_units(schema)
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


def _with_units(schema: Schema) -> Schema:
    """Accepts a time with units, such as 30m, where a number of seconds is accepted."""
    accepted = [TIME_TEXT if it == NUMBER_TEXT else it for it in schema.get("anyOf", ())]
    return {**schema, "anyOf": accepted} if accepted else schema


def _described(step: Step) -> str:
    text = inspect.getdoc(type(step)) or ""
    outputs = ", ".join(f"`{name}`" for name in step.Outputs.model_fields)
    return f"{text}\n\nOutputs: {outputs}." if outputs else text


def _input(model: type[StepInputs], name: str, field: FieldInfo, given: Schema) -> Schema:
    if given.get("default", 0) in (None, ""):  # it has no meaning, and editors would insert it
        given = {key: value for key, value in given.items() if key != "default"}
    if not _is_prepared(model, name, field):
        return _lenient(given)
    kept = {key: given[key] for key in ANNOTATIONS if key in given}
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
    for key in ("anyOf", "allOf", "prefixItems"):
        if key in schema:
            schema[key] = _flattened(_lenient(option) for option in schema[key])
    if "enum" in schema or "const" in schema:
        return expression_or(schema)
    match schema.get("type"):
        case "string":
            # A number or a boolean is used as written.
            checked = {**schema, "type": ["string", "number", "boolean"]}
            return checked if schema.keys() <= {"type", *ANNOTATIONS} else expression_or(checked)
        case "number" | "integer":
            return number_or_expression(schema)
        case "boolean":
            return {**{key: schema[key] for key in ANNOTATIONS if key in schema}, "$ref": "#/$defs/flag"}
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
