"""A workflow file as JSON Schema (2020-12), for editors and for models that write workflows; blocks or steps.

It takes everything that the loader takes, and refuses what can be seen without knowing the whole file:
unknown keys and types, misspelt and missing inputs, values of the wrong type. Step types are read off their
classes, so one that somebody adds is in it at once. Each type of block is a branch of its own, chosen by
`type`, so that an editor completes and complains about that type only.

    schema = workflow_schema(default_registry())
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from workflows_mcp.dialects import graph, reactive_steps, schema_parts, schema_reactive, stateful_steps
from workflows_mcp.dialects.document_keys import EXTENSION
from workflows_mcp.dialects.schema_parts import (
    DEFINITIONS,
    EXPRESSION,
    Schema,
    expression_or,
    inputs_schema,
    number_or_expression,
)
from workflows_mcp.dialects.yaml.source import WRAPPER
from workflows_mcp.errors import RequestError
from workflows_mcp.plan import MOST_ATTEMPTS, RETRY_KEYS, RETRY_ON, TYPE_NAMES
from workflows_mcp.steps import KEYS as OUTPUT_KEYS
from workflows_mcp.steps import TYPES as OUTPUT_TYPES
from workflows_mcp.steps import Shell, Step, StepRegistry
from workflows_mcp.values import did_you_mean, shown

logger = logging.getLogger(__name__)

_WRITTEN = ["string", "number", "boolean", "null"]
"""Text, or what is taken as text as it is written."""
_NAME = r"^[^\s!-,./:-@\[-^`{-~]+$"
"""Letters of any script, digits, '_' and '-', in a way that all dialects of patterns understand."""
_DEFAULTS = {
    "string": ["string", "null"],
    "number": ["number", "string", "null"],
    "integer": ["integer", "string", "null"],
    "float": ["number", "string", "null"],
    "boolean": ["boolean", "string", "null"],
    "list": ["array", "string", "null"],
    "object": ["object", "string", "null"],
}
"""The types of a default that can be converted to the type of its input."""


def workflow_schema(registry: StepRegistry) -> dict[str, Any]:
    """The schema of workflows of blocks and of steps, with all step types of `registry`."""
    steps = list(_steps(registry))
    in_steps = dict(_named(registry, stateful_steps.DIALECT))
    in_reactive = dict(_named(registry, reactive_steps.DIALECT))
    definitions: dict[str, Schema] = {
        "block": _block(steps),
        "dependency": _dependency(),
        "input": _input(),
        "retry": _retry(),
        "shell_output": _shell_output(),
        **DEFINITIONS,
    }
    every = [*steps, *in_steps.values(), *in_reactive.values()]
    for step in {kind.name: kind for kind in every}.values():
        whole, models = inputs_schema(step, f"#/$defs/{step.name}.{{model}}")
        if step in steps:
            definitions[f"{step.name}.inputs"] = whole
        definitions |= {f"{step.name}.{name}": schema for name, schema in models.items()}
    keys = _document_keys()
    definitions["steps_workflow"] = schema_parts.steps_workflow(keys)
    definitions["task"] = schema_parts.task(definitions["steps_workflow"])
    definitions["step"] = schema_parts.step(in_steps, _block_keys(steps))
    definitions["reactive_workflow"] = schema_reactive.workflow(keys)
    definitions["reactive_task"] = schema_reactive.task(definitions["reactive_workflow"])
    definitions["reactive_step"] = schema_reactive.step(in_reactive, _block_keys(steps))
    definitions["computed"] = schema_parts.computed()
    definitions["change"] = schema_parts.change()
    own: Schema = {f"^{EXTENSION}": {"description": "Your own: a place for anchors."}}
    definitions["blocks_workflow"] = {
        "description": "Blocks that run as soon as what they depend on is done.",
        "properties": {key: keys.get(key, {}) for key in graph.KEYS},
        "patternProperties": own,
        "additionalProperties": False,
        "required": ["blocks"],
    }
    definitions["workflow"] = {
        "type": "object",
        "if": schema_reactive.IS_REACTIVE,
        "then": {"$ref": "#/$defs/reactive_workflow"},
        "else": {
            "if": schema_parts.IS_STATEFUL,
            "then": {"$ref": "#/$defs/steps_workflow"},
            "else": {"$ref": "#/$defs/blocks_workflow"},
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
            "description": "All of it may stand below `workflow`.",
            "properties": {WRAPPER: {"$ref": "#/$defs/workflow"}},
            "patternProperties": own,
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
"""By dialect: the definition of its workflows, and that of their steps."""


def schema_overview(registry: StepRegistry) -> dict[str, Any]:
    """The dialects with their keys and step types: enough to ask for the part that one needs."""
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
    """The schema of the workflows of a dialect, its step types by name only, or of the steps of one type.
    Raises RequestError."""
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
    """The definitions that these lead to, and these."""
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


def _steps(registry: StepRegistry) -> Iterator[Step]:
    return (step for _, step in _named(registry, "graph"))


def _named(registry: StepRegistry, dialect: str) -> Iterator[tuple[str, Step]]:
    """The step types of a dialect, by what it calls them."""
    for name in registry.names(dialect):
        try:
            step = registry.find(name, dialect)
        except Exception:  # of somebody else's package: the others are still good
            logger.warning("the step type %s cannot be loaded and is not in the schema", name, exc_info=True)
        else:
            if step is not None:
                yield name, step


def _document_keys() -> dict[str, Schema]:
    return {
        "name": {
            "type": _WRITTEN,
            "description": "By which the workflow is found and called; without it, the name of the file.",
        },
        "description": {"type": _WRITTEN, "description": "What it is for."},
        "version": {"type": _WRITTEN, "description": "For people."},
        "author": {"description": "For people."},
        "tags": {
            "description": "Words by which it is listed.",
            "type": ["array", "string", "null"],
            "items": {"type": ["string", "number", "boolean"]},
        },
        "secrets": {
            "description": "required: all secrets must exist when it starts, not only when one is reached.",
            "enum": ["required", None],
        },
        "elicitation": {
            "type": ["boolean", "null"],
            "description": "true: what only the user can answer is asked of the user directly, where the "
            "client can do that; else the agent asks.",
        },
        "fail_fast": {
            "type": ["boolean", "null"],
            "description": "true: the first failure that nobody handles ends all of it at once.",
        },
        "prompt": {
            "type": ["boolean", "null"],
            "description": "Whether it is offered as a prompt of its own, with its inputs as arguments.",
        },
        "dialect": {"enum": ["graph", None], "description": "Need not be said: `blocks` says it."},
        "inputs": {
            "description": "What it takes, by name.",
            "type": ["object", "null"],
            "additionalProperties": {"$ref": "#/$defs/input"},
        },
        "blocks": {
            "description": "What it does. Blocks that do not depend on each other run at the same time.",
            "type": "array",
            "minItems": 1,
            "items": {"$ref": "#/$defs/block"},
        },
        "outputs": {
            "description": "What it gives, by name: values with references, `${blocks.id.outputs.name}`.",
            "type": ["object", "null"],
        },
    }


def _input() -> Schema:
    types = list(TYPE_NAMES)
    properties: dict[str, Schema] = {
        "type": {"enum": types, "description": "What values it takes."},
        "description": {"type": _WRITTEN, "description": "For whoever starts the workflow."},
        "default": {"description": "Taken when nothing is given; what has a default need not be given."},
        "required": {"type": "boolean", "description": "false: may be left out, and is null then."},
        "aliases": {
            "description": "Other names that it may be given by.",
            "type": ["array", "null"],
            "items": {"type": "string", "minLength": 1},
        },
        "validation": {
            "description": "What a value must be beyond its type.",
            "type": ["object", "null"],
            "properties": _rules(),
            "additionalProperties": False,
        },
    }
    spellings = {meant: [name for name, kind in TYPE_NAMES.items() if kind == meant] for meant in _DEFAULTS}
    conditions = [
        _when("type", spellings[meant], {"default": {"type": kinds}}) for meant, kinds in _DEFAULTS.items()
    ]
    return {
        "description": "An input: its type, or a mapping with type, description, default and required.",
        "type": ["object", "string", "null"],
        "properties": properties,
        "additionalProperties": False,
        "if": {"type": "string"},
        "then": {"enum": types},
        "else": {"allOf": conditions},
    }


def _rules() -> dict[str, Schema]:
    size: Schema = {"type": ["integer", "null"], "minimum": 0}
    names: Schema = {"type": ["array", "null"], "items": {"type": "string"}}
    return {
        "pattern": {"description": "A regular expression that a text matches.", "type": ["string", "null"]},
        "min_length": {"description": "The least number of characters.", **size},
        "max_length": {"description": "The greatest number of characters.", **size},
        "enum": {"description": "The values that are allowed.", "type": ["array", "null"], "minItems": 1},
        "min": {"description": "The least number.", "type": ["number", "null"]},
        "max": {"description": "The greatest number.", "type": ["number", "null"]},
        "min_items": {"description": "The least number of items.", **size},
        "max_items": {"description": "The greatest number of items.", **size},
        "item_type": {"description": "The type of every item.", "enum": [*TYPE_NAMES, None]},
        "required_keys": {"description": "The keys that an object has.", **names},
        "properties": {
            "description": "What the values of its keys are: each like an input.",
            "type": ["object", "null"],
        },
    }


def _block(steps: list[Step]) -> Schema:
    keys = _block_keys(steps)
    return {
        "description": "One thing that the workflow does.",
        "type": "object",
        "properties": {key: keys.get(key, {}) for key in graph.BLOCK_KEYS},
        "additionalProperties": False,
        "required": ["id", "type"],
        "dependentRequired": {"max_parallel": ["for_each"], "for_each_mode": ["for_each"]},
        "allOf": [_branch(step) for step in steps],
    }


def _block_keys(steps: list[Step]) -> dict[str, Schema]:
    names = {name: step.summary for step in steps for name in (step.name, *step.aliases)}
    return {
        "id": {
            "type": ["string", "number", "boolean"],
            "pattern": _NAME,
            "patternErrorMessage": "an id holds letters, digits, '_' and '-'",
            "description": "By which others refer to it; unique in the workflow.",
        },
        "type": {
            "enum": list(names),
            "enumDescriptions": list(names.values()),
            "description": "What kind of step it is.",
        },
        "name": {"description": "For people."},
        "description": {"description": "For people."},
        "inputs": {"type": ["object", "null"]},  # each type has its own description
        "depends_on": {
            "description": "The blocks that must be done before: ids, or {block: id, required: false}.",
            "type": ["array", "string", "null"],
            "items": {"$ref": "#/$defs/dependency"},
        },
        "condition": {
            "description": "The block runs only if this gives true, e.g. `${blocks.test.succeeded}`.",
            "type": ["string", "boolean"],
        },
        "outputs": {"description": "Files that a Shell command leaves, by name."},
        "on_failure": {
            "description": "Whether a failure of the block is one of the workflow.",
            "enum": ["fail", "continue"],
        },
        "on_interrupt": {
            "description": "What becomes of it if a crash cuts it off.",
            "enum": ["repeat", "ask", "fail"],
        },
        "timeout": {
            "description": "Seconds after which the block is stopped, and has failed.",
            **number_or_expression({"type": ["number", "null"], "exclusiveMinimum": 0}),
        },
        "on_timeout": {
            "description": "After a timeout: fail, retry, or continue; of a question, the answer to take.",
        },
        "retry": {"$ref": "#/$defs/retry"},
        "for_each": {
            "description": "A list or an object: the block is done once for each item, `${each.value}`.",
            **expression_or({"type": ["array", "object"]}),
        },
        "max_parallel": {
            "description": "How many items may be under way at once.",
            **number_or_expression({"type": ["integer", "null"], "minimum": 1}),
        },
        "for_each_mode": {
            "description": "sequential: one item after the other.",
            "enum": ["parallel", "sequential"],
        },
    }


def _branch(step: Step) -> Schema:
    """What holds for a block of one type."""
    properties: dict[str, Schema] = {"inputs": {"$ref": f"#/$defs/{step.name}.inputs"}}
    if not step.takes_output_specs:
        message = f"a block of type {step.name} declares no outputs of its own"
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
    branch = _when("type", [step.name, *step.aliases], properties)
    if any(field.is_required() for field in step.Inputs.model_fields.values()):
        branch["then"]["required"] = ["inputs"]
    return branch


def _when(key: str, values: list[str], properties: dict[str, Schema]) -> Schema:
    """A branch for mappings in which `key` has one of these values."""
    chosen: Schema = {"const": values[0]} if len(values) == 1 else {"enum": values}
    return {"if": {"properties": {key: chosen}, "required": [key]}, "then": {"properties": properties}}


def _dependency() -> Schema:
    return {
        "description": "The id of a block, or {block: id, required: false} to run even if that one failed.",
        "type": ["string", "number", "boolean", "object"],
        "properties": {
            "block": {"type": "string", "description": "The id of the block."},
            "required": {
                "type": "boolean",
                "description": "false: this block also runs when the other failed or was skipped.",
            },
        },
        "additionalProperties": False,
        "required": ["block"],
    }


def _retry() -> Schema:
    seconds = number_or_expression({"type": "number", "minimum": 0})
    kinds: Schema = {"anyOf": [{"type": "integer"}, {"enum": list(RETRY_ON)}, EXPRESSION]}
    attempts: Schema = {"type": "integer", "minimum": 1, "maximum": MOST_ATTEMPTS}
    properties: dict[str, Schema] = {
        "attempts": {"description": "Tries in all, the first included.", **number_or_expression(attempts)},
        "retries": {
            "description": "Tries after the first, in place of attempts.",
            **number_or_expression({"type": "integer", "minimum": 0, "maximum": MOST_ATTEMPTS - 1}),
        },
        "delay": {"description": "Seconds before the second try.", **seconds},
        "backoff": {
            "description": "How much longer each further pause is: 2 doubles it, 1 keeps it.",
            **number_or_expression({"type": "number", "minimum": 1}),
        },
        "max_delay": {"description": "The longest pause, in seconds.", **seconds},
        "jitter": {
            "description": "How much of a pause is left to chance: 0.2 is up to a fifth more or less.",
            **number_or_expression({"type": "number", "minimum": 0, "maximum": 1}),
        },
        "on": {
            "description": "What is tried again: kinds of failure, and exit codes of commands.",
            "anyOf": [*kinds["anyOf"], {"type": "null"}, {"type": "array", "items": kinds, "minItems": 1}],
        },
        "within": {
            "description": "Seconds since the first try after which there is no further one.",
            **number_or_expression({"type": ["number", "null"], "minimum": 0}),
        },
    }
    return {
        "description": "How often it is tried when it fails: a number of tries, or a mapping.",
        **number_or_expression(
            {
                "type": ["integer", "object", "null"],
                "minimum": 1,
                "maximum": MOST_ATTEMPTS,
                "properties": {key: properties.get(key, {}) for key in RETRY_KEYS},
                "additionalProperties": False,
            }
        ),
    }


def _shell_output() -> Schema:
    flag: Schema = {"type": "boolean"}
    properties: dict[str, Schema] = {
        "type": {"enum": list(OUTPUT_TYPES), "description": "What the text of the file is read as."},
        "path": {
            "type": "string",
            "pattern": r"\S",
            "description": "The file, in the working directory or in $SCRATCH.",
        },
        "description": {"description": "For people."},
        "required": {**flag, "description": "Whether a missing file is an error; true by default."},
        "unsafe": {**flag, "description": "Whether the file may lie outside the working directory."},
    }
    return {
        "description": "An output that the command leaves in a file.",
        "type": "object",
        "properties": {key: properties.get(key, {}) for key in OUTPUT_KEYS},
        "additionalProperties": False,
        "required": ["path"],
    }
