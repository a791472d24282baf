"""The part of the JSON Schema of workflow files that is about steps: the stateful dialect.

Each type of step is a branch of its own, chosen by `type`. The keys of a step that is carried out are the
inputs of its type, and stand in the same mapping as what every step has.
"""

from __future__ import annotations

from collections.abc import Mapping

from workflows_mcp.dialects import stateful
from workflows_mcp.dialects.document_keys import EXTENSION
from workflows_mcp.dialects.schema_inputs import (
    Schema,
    annotations_apart,
    expression_or,
    inputs_schema,
    number_or_expression,
)
from workflows_mcp.dialects.stateful_control import CONTROL, REQUIRED, own_keys
from workflows_mcp.dialects.stateful_steps import DEFAULTS, DIALECT, keys_beside
from workflows_mcp.dialects.step_keys import ON_FAILURE, ON_INTERRUPT, ON_LIMIT
from workflows_mcp.dialects.step_types import HANDS, LEFT_OUT
from workflows_mcp.settings import STATE_ACCESS
from workflows_mcp.steps.base import Step

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
"""What tells a workflow of steps from one of blocks."""
_FIELD = r"^[^\s!-,./:-@\[-^`{-~0-9_-][^\s!-,./:-@\[-^`{-~]*$"
_STEPS: Schema = {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/step"}}
ON_LIMIT_SCHEMA: Schema = {
    "description": "What happens when max_iterations is reached: it fails, or the next steps follow.",
    "enum": [*ON_LIMIT, None],
}
_SUMMARIES = {
    "condition": "Goes on with `then` if a test holds, else with `else`.",
    "set_state": "Gives fields of the state new values: all of them or none.",
    "foreach": "Carries out a task for each item of a list.",
    "return": "Ends the workflow, or the task, with a value.",
    "goto": "Goes on with another step, at most so many times.",
    "wait": "Lets time pass.",
    "workflow": "Calls another workflow.",
}


def steps_workflow(about: Mapping[str, Schema]) -> Schema:
    """A workflow of steps; `about` describes the keys that it shares with a workflow of blocks."""
    own: dict[str, Schema] = {
        "dialect": {"enum": [DIALECT, None], "description": "Need not be said where there is state."},
        "initial_state": {
            "description": "The fields of the state and their first values, taken as they are written.",
            "type": ["object", "null"],
        },
        "state_access": {
            "description": "warn: a step may read what it does not declare, with a warning.",
            "enum": [*STATE_ACCESS, None],
        },
        "steps": {"description": "What it does, one step after the other.", **_STEPS},
        "tasks": {
            "description": "What foreach carries out for items, by name.",
            "type": ["object", "null"],
            "additionalProperties": {"$ref": "#/$defs/task"},
        },
    }
    keys = {**about, **own}
    return {
        "description": "Steps one after the other, with a state.",
        "type": "object",
        "properties": {key: keys.get(key, {}) for key in stateful.KEYS},
        "patternProperties": {f"^{EXTENSION}": {"description": "Your own: a place for anchors."}},
        "additionalProperties": False,
        "required": ["steps"],
    }


def task(workflow: Schema) -> Schema:
    properties = workflow["properties"]
    return {
        "description": "Steps that are carried out for an item, with inputs and a state of their own.",
        "type": "object",
        "properties": {key: properties[key] for key in stateful.TASK_KEYS},
        "additionalProperties": False,
        "required": ["steps"],
    }


def step(steps: Mapping[str, Step], about: Mapping[str, Schema]) -> Schema:
    """A step; `steps` are the types that are carried out, by what the dialect calls them, and `about`
    describes the keys that steps share with blocks."""
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
    """A step of one of the types, which are summed up by name; each has a branch."""
    return {
        "description": "One thing that the workflow does.",
        "type": "object",
        "properties": {
            "type": {
                "enum": list(names),
                "enumDescriptions": list(names.values()),
                "description": "What kind of step it is.",
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
            "description": 'The fields of the state that it may see; ["*"]: all.',
            "type": "array",
            "items": text,
        },
        "output_to": {
            "description": "The field of the state that its result goes to.",
            "type": ["string", "null"],
            **field,
        },
        "error_to": {
            "description": "The field of the state that says why it failed: message, code and step.",
            "type": ["string", "null"],
            **field,
        },
        "when": {"description": "It runs only if this holds.", "type": ["string", "boolean"]},
        "on_error": {
            "description": "Whether it goes on after this step has failed.",
            "enum": list(ON_FAILURE),
        },
        "run_on": {"description": "Who carries it out.", "enum": [*HANDS, None]},
        "on_interrupt": {
            "description": "What becomes of it if a crash cuts it off.",
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
            "description": "The kind of sub-agent that carries it out: @task, or @name.",
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
            "description": "How often it may jump.",
            **number_or_expression({"type": "integer", "minimum": 1}),
        },
        "on_limit": ON_LIMIT_SCHEMA,
        "duration_seconds": {
            "description": "How long.",
            **number_or_expression({"type": "number", "minimum": 0}),
        },
        "message": {"description": "What is shown meanwhile."},
        "workflow": {"description": "The name of the workflow.", **text},
        "inputs": {"description": "All that it sees of its caller.", "type": ["object", "string", "null"]},
    }


def _control(kind: str, keys: Mapping[str, Schema]) -> Schema:
    properties = {key: keys.get(key, {}) for key in own_keys(kind)}
    return branch(kind, properties, list(REQUIRED.get(kind, ())))


def inputs_of(kind: Step) -> tuple[dict[str, Schema], list[str]]:
    """What a step of a type that is carried out takes for its type, and which of it must be given."""
    inputs, _ = inputs_schema(kind, f"#/$defs/{kind.name}.{{model}}")
    without = {spelt.replace("_", "-") for spelt in LEFT_OUT.get(kind.name, ())}
    given = {key: it for key, it in inputs["properties"].items() if key.replace("_", "-") not in without}
    return {key: _or_nothing(schema) for key, schema in given.items()}, inputs.get("required", [])


def _or_nothing(schema: Schema) -> Schema:
    """null is the same as nothing."""
    about, taken = annotations_apart(schema)
    return {**about, "anyOf": [taken, {"type": "null"}]} if taken else schema


def branch(kind: str, properties: dict[str, Schema], required: list[str]) -> Schema:
    """What holds for steps of one type."""
    then: Schema = {"properties": properties, "additionalProperties": False}
    if required:
        then["required"] = required
    return {"if": {"properties": {"type": {"const": kind}}, "required": ["type"]}, "then": then}
