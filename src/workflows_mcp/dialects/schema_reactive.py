"""Generates the JSON Schema of the reactive dialect.

As in the stateful dialect, each step type is a separate branch, selected by `type`.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic.fields import FieldInfo

from workflows_mcp.dialects import reactive, reactive_steps
from workflows_mcp.dialects.document_keys import EXTENSION
from workflows_mcp.dialects.reactive_steps import (
    CHANGE_KEYS,
    CONTROL,
    DIALECT,
    MCP,
    MCP_KEYS,
    ON_ERROR,
    OUTPUT_FORMAT,
    RENAMED,
    REQUIRED,
    SAME,
    STRATEGIES,
    TIMED,
    keys_beside,
    own_keys,
)
from workflows_mcp.dialects.recognition import (
    REACTIVE_KEYS,
    REACTIVE_KEYS_OF,
    REACTIVE_STEP_KEYS,
    REACTIVE_TYPES,
    STATEFUL_KEYS,
)
from workflows_mcp.dialects.schema_parts import (
    FLAG,
    ON_LIMIT_SCHEMA,
    PATH,
    Schema,
    branch,
    change,
    default_state,
    expression_or,
    inputs_of,
    number_or_expression,
    state_schema,
    step_of,
)
from workflows_mcp.dialects.steps import ON_FAILURE, ON_INTERRUPT, PERFORMERS
from workflows_mcp.steps import FORMATS, Step

IS_REACTIVE: Schema = {
    "anyOf": [
        {"properties": {"dialect": {"const": DIALECT}}, "required": ["dialect"]},
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
_STEP: Schema = {"$ref": "#/$defs/reactive_step"}
_STEPS: Schema = {"type": "array", "minItems": 1, "items": _STEP}
_NO_STEPS: Schema = {"type": ["array", "null"], "items": _STEP}
_NAME: Schema = {"type": ["string", "null"], "pattern": r"^[A-Za-z$][A-Za-z0-9_$]*$"}
_SUMMARIES = {
    "conditional": "Runs the steps of `then` if a condition holds, otherwise those of `else`.",
    "while": "Repeats its body while a condition holds.",
    "foreach": "Runs its steps for each item of a list, one after the other.",
    "break": "Leaves the innermost loop.",
    "continue": "Starts the next iteration of the innermost loop.",
    "sequential": "Groups steps.",
    "parallel_foreach": "Runs a task for each item of a list, in sub-agents.",
    "include_workflow": "Runs another workflow.",
    "state_update": "Changes the state: all of its changes or none.",
    "user_message": "Shows the user a message.",
    "exit": "Ends the workflow, or the task.",
    "wait": "Waits for a number of seconds.",
}


def workflow(about: Mapping[str, Schema]) -> Schema:
    """A reactive workflow; `about` has the keys of all workflows."""
    own: dict[str, Schema] = {
        "dialect": {"enum": [DIALECT, None], "description": "Optional if the state is declared."},
        "imports": {
            "description": "Files with workflows or tasks that it uses.",
            "type": ["array", "string", "null"],
            "items": {"type": "string", "pattern": r"\S"},
        },
        "config": {
            "description": "Values that never change, `{{ config.name }}`.",
            "type": ["object", "null"],
        },
        "default_state": default_state(),
        "state_schema": state_schema(),
        "steps": {"description": "The steps, which run one after the other.", **_STEPS},
        "sub_agent_tasks": {
            "description": "The tasks that parallel_foreach gives to sub-agents, by name.",
            "type": ["object", "null"],
            "additionalProperties": {"$ref": "#/$defs/reactive_task"},
        },
        "error_handling": _error_handling(),
        "on_resume": {
            "description": "What a resume does after a failure, and what the answer to it contains.",
            "type": ["object", "null"],
            "properties": {
                **{key: {"type": "boolean"} for key in reactive.RESUME_FLAGS},
                **{
                    key: {"type": ["array", "null"], "items": {"type": "string"}}
                    for key in reactive.RESUME_LISTS
                },
            },
            "additionalProperties": False,
        },
        "on_high_context_usage": {
            "description": "What happens when the agent reports that its context is nearly full.",
            "type": ["object", "null"],
            "properties": {"steps": {"description": "The steps to run.", **_STEPS}},
            "required": ["steps"],
            "additionalProperties": False,
        },
        "orchestrator_behavior": {
            "description": "Instructions for the agent that runs it, in addition to the standard prompt.",
            "type": ["array", "string", "null"],
            "items": {"type": "string", "pattern": r"\S"},
        },
    }
    keys = {**about, **own}
    return {
        "description": "Steps one after the other, and a state with computed fields.",
        "type": "object",
        "properties": {key: keys.get(key, {}) for key in reactive.KEYS},
        "patternProperties": {f"^{EXTENSION}": {"description": "Your own keys, e.g. for anchors."}},
        "additionalProperties": False,
        "anyOf": [{"required": ["steps"]}, {"required": ["sub_agent_tasks"]}],
    }


def task(whole: Schema) -> Schema:
    """A task; `whole` is the schema of the workflow."""
    own: dict[str, Schema] = {
        "inputs": {
            "description": "Values with expressions, by name; or declarations of inputs.",
            "type": ["object", "null"],
        },
        "error_handling": {
            "description": "What happens after a failure of the task.",
            "type": ["object", "null"],
            "properties": {
                "return_on_error": {"description": "The workflow gets its error, always.", "const": True},
                "cleanup_on_error": {"description": "The steps to run.", **_NO_STEPS},
            },
            "additionalProperties": False,
        },
    }
    properties = {**whole["properties"], **own}
    return {
        "description": "Steps that a sub-agent runs for an item.",
        "type": "object",
        "properties": {key: properties[key] for key in reactive.TASK_KEYS},
        "additionalProperties": False,
        "required": ["steps"],
    }


def step(steps: Mapping[str, Step], about: Mapping[str, Schema]) -> Schema:
    """A step; `steps` are the registered types, by their names in the dialect."""
    keys = {**about, **_step_keys()}
    branches = [_control(kind, keys) for kind in CONTROL]
    branches += [_work(name, kind, keys) for name, kind in steps.items() if name not in CONTROL]
    names = {**_SUMMARIES, **{name: kind.summary for name, kind in steps.items()}}
    return step_of(names, ["type"], branches)


def _error_handling() -> Schema:
    properties: dict[str, Schema] = {
        "on_error": {
            "description": "What happens when a step without `on_error` fails.",
            "enum": [*reactive_steps.ON_ERROR_KEY, None],
        },
        "max_retries": {
            "description": "How often it is retried, with on_error: retry_workflow.",
            **number_or_expression({"type": ["integer", "null"], "minimum": 1}),
        },
        "error_collection": {
            "description": "Whether errors of steps are collected in the state, and where.",
            "type": ["object", "boolean", "null"],
            "properties": {"enabled": FLAG, "state_path": PATH, "include_stack_traces": FLAG},
            "additionalProperties": False,
        },
        "on_failure": {"description": "The steps to run after a failure.", **_NO_STEPS},
    }
    return {
        "description": "What happens after a failure.",
        "type": ["object", "null"],
        "properties": {key: properties[key] for key in reactive_steps.KEYS},
        "additionalProperties": False,
    }


def _step_keys() -> dict[str, Schema]:
    delay = number_or_expression({"type": ["number", "null"], "minimum": 0})
    limit = number_or_expression({"type": ["number", "null"], "minimum": 1})
    changes: Schema = {
        "anyOf": [
            {"$ref": "#/$defs/change"},
            {"type": "array", "items": {"$ref": "#/$defs/change"}},
            {"type": "null"},
        ]
    }
    condition: Schema = {"type": ["string", "boolean"]}
    written = change()["properties"]
    return {
        "id": {
            "description": "Its name in the run, without the expressions in it.",
            "type": ["string", "number", "boolean", "null"],
        },
        "type": {},
        "when": {"description": "It runs only if this holds.", **condition},
        "state_update": {"description": "What its result changes in the state.", **changes},
        "error_state_update": {
            "description": "What a failure changes in the state; `error` has the reason.",
            **changes,
        },
        "on_error": {"description": "What happens when it fails.", "enum": [*ON_ERROR, None]},
        "retry_count": {
            "description": "How often it is retried, with on_error: retry.",
            **number_or_expression({"type": ["integer", "null"], "minimum": 0}),
        },
        "retry_delay": {"description": "Milliseconds before a retry.", **delay},
        "fallback_value": {"description": "Its result after its last attempt has failed."},
        "timeout": {"description": "Milliseconds after which it is stopped and fails.", **limit},
        "on_timeout": {
            "description": "After a timeout: fail, retry or continue; for a question, the answer to use.",
        },
        "on_interrupt": {
            "description": "What happens if a crash interrupts it.",
            "enum": [*ON_INTERRUPT, None],
        },
        "run_on": {"description": "Who runs it.", "enum": [*PERFORMERS, None]},
        OUTPUT_FORMAT: {"description": "How its output is parsed.", "enum": [*FORMATS, None]},
        "condition": {"description": "The test, e.g. `{{ has_errors && retries < 5 }}`.", **condition},
        "then": {"description": "The steps if the condition holds.", **_STEPS},
        "else": {"description": "The steps if it does not.", **_NO_STEPS},
        "body": {"description": "The steps to repeat.", **_STEPS},
        "steps": {"description": "The steps.", **_STEPS},
        "max_iterations": {
            "description": "The maximum number of iterations.",
            **number_or_expression({"type": ["integer", "null"], "minimum": 1}),
        },
        "on_limit": ON_LIMIT_SCHEMA,
        "items": {"description": "The list, e.g. `{{ files }}`.", **expression_or({"type": "array"})},
        "variable_name": {"description": "The variable for the item; the default is `item`.", **_NAME},
        "index_name": {"description": "The variable for its position; the default is `index`.", **_NAME},
        "sub_agent_task": {"description": "The name of one of the sub_agent_tasks.", "type": "string"},
        "max_parallel": {
            "description": "The maximum number of tasks that run at the same time.",
            **number_or_expression({"type": ["integer", "null"], "minimum": 1}),
        },
        "wait_for_all": {"description": "false: the next steps run while the tasks are running.", **FLAG},
        "sub_agent_prompt_override": {
            "description": "The start of the prompt for sub-agents; the rules of the server follow it.",
            "type": ["string", "null"],
        },
        "on_sub_agent_error": _on_sub_agent_error(),
        "workflow": {"description": "The name of the workflow.", "type": "string"},
        "inputs": {"description": "Its inputs.", "type": ["object", "string", "null"]},
        "on_complete": {"description": "Steps to run after a success; they see its state.", **_NO_STEPS},
        **{key: written[key] for key in CHANGE_KEYS},
        "updates": {
            "description": "Several changes: all of them or none.",
            "type": "array",
            "minItems": 1,
            "items": {"$ref": "#/$defs/change"},
        },
        "message": {"description": "The text; expressions in it are resolved."},
        "duration_seconds": {
            "description": "The number of seconds.",
            **number_or_expression({"type": "number", "minimum": 0}),
        },
    }


def _on_sub_agent_error() -> Schema:
    properties: dict[str, Schema] = {
        "strategy": {
            "description": "What happens to the other tasks and the step when a task fails.",
            "enum": [*STRATEGIES, None],
        },
        "max_retries": {
            "description": "How often a failed task is retried.",
            **number_or_expression({"type": ["integer", "null"], "minimum": 0}),
        },
        "collect_errors": {"description": "Whether the state collects their errors.", **FLAG},
        "error_state_path": {"description": "The list for the errors.", **PATH},
    }
    return {
        "description": "What happens when a task fails.",
        "type": ["object", "string", "null"],
        "properties": {key: properties[key] for key in reactive_steps.ERROR_KEYS},
        "additionalProperties": False,
    }


def _control(kind: str, keys: Mapping[str, Schema]) -> Schema:
    properties = {key: keys.get(key, {}) for key in own_keys(kind)}
    if "on_error" in properties and "retry_count" not in properties:
        properties["on_error"] = {**properties["on_error"], "enum": [*ON_FAILURE]}
    required = list(REQUIRED.get(kind, ()))
    either = [key for key in required if key in SAME and SAME[key] in properties]
    found = branch(kind, properties, [key for key in required if key not in either])
    alternatives = [(key, SAME[key]) for key in either]
    if kind == "state_update":
        alternatives.append(("path", "updates"))
    for both in alternatives:
        for key in both:
            properties[key] = {"anyOf": [properties[key], {"type": "null"}]}
        given: list[Schema] = [
            {"properties": {key: {"not": {"type": "null"}}}, "required": [key]} for key in both
        ]
        found["then"]["anyOf"] = given
    return found


def _milliseconds(seconds: FieldInfo, keys: Mapping[str, Schema]) -> Schema:
    """The schema of a timeout in milliseconds, with the default of the step type."""
    default = seconds.get_default()
    return {**keys["timeout"], "default": round(default * 1000)} if default else keys["timeout"]


def _work(name: str, kind: Step, keys: Mapping[str, Schema]) -> Schema:
    inputs, required = inputs_of(kind)
    beside = {key: keys.get(key, {}) for key in keys_beside(kind)}
    if kind.name in TIMED and kind.timeout_input is not None:
        inputs[kind.timeout_input] = _milliseconds(kind.Inputs.model_fields[kind.timeout_input], keys)
    renamed = RENAMED.get(kind.name, {})
    if not renamed:
        return branch(name, {**beside, **inputs}, required)
    aliases = {kind.Inputs.model_fields[own].alias or own for own in renamed}
    taken = {key: it for key, it in inputs.items() if key not in renamed and key not in aliases}
    for own, spelt in renamed.items():
        taken[spelt] = inputs[own] if own in inputs else inputs[kind.Inputs.model_fields[own].alias or own]
    call: Schema = {
        "description": "The tool to call, and its parameters.",
        "type": ["object", "null"],
        "properties": {key: taken[key] for key in MCP_KEYS},
        "additionalProperties": False,
        "required": [MCP_KEYS[0]],
    }
    found = branch(name, {**beside, **taken, MCP: call}, [])
    found["then"]["anyOf"] = [{"required": [MCP_KEYS[0]]}, {"required": [MCP]}]
    return found
