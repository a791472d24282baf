"""Generates the JSON Schema (2020-12) of workflow files, for editors and models.

It accepts everything that the loader accepts, and rejects what is visible without the whole file: unknown
keys and types, misspelt and missing inputs, values of the wrong type. The schemas of step types come from
their classes, so it includes every registered type. Each type is a separate branch, selected by `type`, so
that an editor completes and reports only for that type.

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
"""Text, or a value that is used as text, as written."""
_NAME = r"^[^\s!-,./:-@\[-^`{-~]+$"
"""Letters of any script, digits, '_' and '-', in syntax that all implementations of patterns have."""
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
    """The schema of workflows in all dialects, with all step types of `registry`."""
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
    own: Schema = {f"^{EXTENSION}": {"description": "Your own keys, e.g. for anchors."}}
    definitions["blocks_workflow"] = {
        "description": "Blocks that run as soon as their dependencies are done.",
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
            "description": "The whole definition can be below `workflow`.",
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


def _steps(registry: StepRegistry) -> Iterator[Step]:
    return (step for _, step in _named(registry, "graph"))


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


def _document_keys() -> dict[str, Schema]:
    return {
        "name": {
            "type": _WRITTEN,
            "description": "The name to find and call the workflow; the default is the name of the file.",
        },
        "description": {"type": _WRITTEN, "description": "The purpose of the workflow."},
        "version": {"type": _WRITTEN, "description": "For readers of the file."},
        "author": {"description": "For readers of the file."},
        "tags": {
            "description": "Words to filter the list of workflows.",
            "type": ["array", "string", "null"],
            "items": {"type": ["string", "number", "boolean"]},
        },
        "secrets": {
            "description": "required: all secrets must exist at the start, not only when a step needs one.",
            "enum": ["required", None],
        },
        "elicitation": {
            "type": ["boolean", "null"],
            "description": "true: questions to the user go to the user directly, if the client supports "
            "that; otherwise the agent asks.",
        },
        "fail_fast": {
            "type": ["boolean", "null"],
            "description": "true: the first failure that nothing handles ends the workflow at once.",
        },
        "prompt": {
            "type": ["boolean", "null"],
            "description": "Whether clients see a prompt for the workflow, with its inputs as arguments.",
        },
        "dialect": {"enum": ["graph", None], "description": "Optional: `blocks` implies it."},
        "inputs": {
            "description": "The inputs, by name.",
            "type": ["object", "null"],
            "additionalProperties": {"$ref": "#/$defs/input"},
        },
        "blocks": {
            "description": "The blocks. Those that do not depend on each other run at the same time.",
            "type": "array",
            "minItems": 1,
            "items": {"$ref": "#/$defs/block"},
        },
        "outputs": {
            "description": "The outputs, by name: values with references, `${blocks.id.outputs.name}`.",
            "type": ["object", "null"],
        },
    }


def _input() -> Schema:
    types = list(TYPE_NAMES)
    properties: dict[str, Schema] = {
        "type": {"enum": types, "description": "The type of its values."},
        "description": {"type": _WRITTEN, "description": "For the caller of the workflow."},
        "default": {"description": "The value if none is given; an input with a default is optional."},
        "required": {"type": "boolean", "description": "false: it is optional, and null if not given."},
        "aliases": {
            "description": "Other names of the input.",
            "type": ["array", "null"],
            "items": {"type": "string", "minLength": 1},
        },
        "validation": {
            "description": "Rules for a value beyond its type.",
            "type": ["object", "null"],
            "properties": _rules(),
            "additionalProperties": False,
        },
    }
    spellings = {kind: [name for name, it in TYPE_NAMES.items() if it == kind] for kind in _DEFAULTS}
    conditions = [
        _when("type", spellings[kind], {"default": {"type": accepted}})
        for kind, accepted in _DEFAULTS.items()
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
        "pattern": {
            "description": "A regular expression that a text must match.",
            "type": ["string", "null"],
        },
        "min_length": {"description": "The minimum number of characters.", **size},
        "max_length": {"description": "The maximum number of characters.", **size},
        "enum": {"description": "The allowed values.", "type": ["array", "null"], "minItems": 1},
        "min": {"description": "The minimum of a number.", "type": ["number", "null"]},
        "max": {"description": "The maximum of a number.", "type": ["number", "null"]},
        "min_items": {"description": "The minimum number of items.", **size},
        "max_items": {"description": "The maximum number of items.", **size},
        "item_type": {"description": "The type of every item.", "enum": [*TYPE_NAMES, None]},
        "required_keys": {"description": "The keys that an object must have.", **names},
        "properties": {
            "description": "Types and rules for the values of its keys, as for inputs.",
            "type": ["object", "null"],
        },
    }


def _block(steps: list[Step]) -> Schema:
    keys = _block_keys(steps)
    return {
        "description": "A unit of work.",
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
            "description": "The name for references to it; unique in the workflow.",
        },
        "type": {
            "enum": list(names),
            "enumDescriptions": list(names.values()),
            "description": "The step type.",
        },
        "name": {"description": "For readers of the file."},
        "description": {"description": "For readers of the file."},
        "inputs": {"type": ["object", "null"]},  # each type has its own description
        "depends_on": {
            "description": "The blocks that must be done first: ids, or {block: id, required: false}.",
            "type": ["array", "string", "null"],
            "items": {"$ref": "#/$defs/dependency"},
        },
        "condition": {
            "description": "The block runs only if this is true, e.g. `${blocks.test.succeeded}`.",
            "type": ["string", "boolean"],
        },
        "outputs": {"description": "Files that a Shell command writes, by name."},
        "on_failure": {
            "description": "Whether a failure of the block fails the workflow.",
            "enum": ["fail", "continue"],
        },
        "on_interrupt": {
            "description": "What happens if a crash interrupts it.",
            "enum": ["repeat", "ask", "fail"],
        },
        "timeout": {
            "description": "Seconds after which the block is stopped and fails.",
            **number_or_expression({"type": ["number", "null"], "exclusiveMinimum": 0}),
        },
        "on_timeout": {
            "description": "After a timeout: fail, retry or continue; for a question, the answer to use.",
        },
        "retry": {"$ref": "#/$defs/retry"},
        "for_each": {
            "description": "A list or an object: the block runs once for each item, `${each.value}`.",
            **expression_or({"type": ["array", "object"]}),
        },
        "max_parallel": {
            "description": "The maximum number of items that run at the same time.",
            **number_or_expression({"type": ["integer", "null"], "minimum": 1}),
        },
        "for_each_mode": {
            "description": "sequential: one item after the other.",
            "enum": ["parallel", "sequential"],
        },
    }


def _branch(step: Step) -> Schema:
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
        "description": "The id of a block, or {block: id, required: false} to run even if that block failed.",
        "type": ["string", "number", "boolean", "object"],
        "properties": {
            "block": {"type": "string", "description": "The id of the block."},
            "required": {
                "type": "boolean",
                "description": "false: this block also runs if the other one failed or was skipped.",
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
        "attempts": {"description": "All attempts, including the first.", **number_or_expression(attempts)},
        "retries": {
            "description": "Attempts after the first, instead of attempts.",
            **number_or_expression({"type": "integer", "minimum": 0, "maximum": MOST_ATTEMPTS - 1}),
        },
        "delay": {"description": "Seconds before the second attempt.", **seconds},
        "backoff": {
            "description": "How much longer each further pause is: 2 doubles it, 1 keeps it.",
            **number_or_expression({"type": "number", "minimum": 1}),
        },
        "max_delay": {"description": "The longest pause, in seconds.", **seconds},
        "jitter": {
            "description": "The random part of a pause: 0.2 is up to a fifth more or less.",
            **number_or_expression({"type": "number", "minimum": 0, "maximum": 1}),
        },
        "on": {
            "description": "What is retried: kinds of failure, and exit codes of commands.",
            "anyOf": [*kinds["anyOf"], {"type": "null"}, {"type": "array", "items": kinds, "minItems": 1}],
        },
        "within": {
            "description": "Seconds since the first attempt after which nothing is retried.",
            **number_or_expression({"type": ["number", "null"], "minimum": 0}),
        },
    }
    return {
        "description": "When a failure is retried, and how often: a number of attempts, or a mapping.",
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
        "type": {"enum": list(OUTPUT_TYPES), "description": "How the text of the file is parsed."},
        "path": {
            "type": "string",
            "pattern": r"\S",
            "description": "The file, in the working directory or in $SCRATCH.",
        },
        "description": {"description": "For readers of the file."},
        "required": {**flag, "description": "Whether a missing file is an error; true by default."},
        "unsafe": {**flag, "description": "Whether the file may be outside the working directory."},
    }
    return {
        "description": "An output that the command writes to a file.",
        "type": "object",
        "properties": {key: properties.get(key, {}) for key in OUTPUT_KEYS},
        "additionalProperties": False,
        "required": ["path"],
    }
