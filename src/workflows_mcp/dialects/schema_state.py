"""The part of the JSON Schema of workflow files that is about the state of the reactive dialect."""

from __future__ import annotations

from workflows_mcp.dialects import reactive_state
from workflows_mcp.dialects.reactive_values import CHANGE_KEYS, OPERATIONS
from workflows_mcp.dialects.schema_inputs import Schema

FLAG: Schema = {"type": ["boolean", "null"]}
PATH: Schema = {
    "type": "string",
    "pattern": r"^\s*(?:raw|state)\s*[.\[]",
    "patternErrorMessage": "a path that is written begins with raw. or state.",
}


def change() -> Schema:
    properties: dict[str, Schema] = {
        "path": {"description": "Where, e.g. `raw.results.{{ item }}`.", **PATH},
        "value": {"description": "The new value; without it, the result of the step."},
        "operation": {"description": "How; set if nothing is said.", "enum": [*OPERATIONS, None]},
        "transform": {
            "description": "JavaScript that makes the value of `input`, or a template.",
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
        "description": "Fields of the state and their first values; expressions are resolved at the start.",
        "type": ["object", "null"],
        "properties": {
            "raw": {"description": "Fields that steps write.", **fields},
            "state": {"description": "Further fields that steps write.", **fields},
            "computed": {"description": "Has no effect: these follow from others."},
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
        "description": "What the fields of the state are.",
        "type": ["object", "null"],
        "properties": {
            "raw": {"description": "The types of fields that steps write.", **fields},
            "state": {"description": "The types of further fields.", **fields},
            "computed": {
                "description": "Fields that follow from others.",
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
            "description": "What it comes from, e.g. `raw.files`: the `input` of its transform; or a list.",
            "anyOf": [source, {"type": "array", "minItems": 1, "items": source}, {"type": "null"}],
        },
        "transform": {"description": "JavaScript that makes it of `input`.", **script},
        "on_error": {
            "description": "What it is when its transform fails; null if nothing is said.",
            "enum": [*reactive_state.ON_ERROR, None],
        },
        "fallback": {"description": "What it is then, with on_error: use_fallback."},
        "validate": {"description": "JavaScript: whether `output` is what it should be.", **script},
        "static": {"description": "true: it is its value, always.", **FLAG},
        "value": {"description": "The value of a static field."},
        "type": {"description": "For people.", "enum": [*reactive_state.TYPES, None]},
        "description": {"description": "For people."},
    }
    return {
        "description": "A field that follows from others.",
        "type": "object",
        "properties": {key: properties[key] for key in reactive_state.COMPUTED_KEYS},
        "additionalProperties": False,
        "anyOf": [{"required": ["transform"]}, {"required": ["static", "value"]}],
    }
