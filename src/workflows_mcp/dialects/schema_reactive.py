"""The part of the JSON Schema of workflow files that is about the reactive dialect.

As in the stateful one, each type of step is a branch of its own, chosen by `type`.
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
"""What tells such a workflow from other ones."""
_STEP: Schema = {"$ref": "#/$defs/reactive_step"}
_STEPS: Schema = {"type": "array", "minItems": 1, "items": _STEP}
_NO_STEPS: Schema = {"type": ["array", "null"], "items": _STEP}
_NAME: Schema = {"type": ["string", "null"], "pattern": r"^[A-Za-z$][A-Za-z0-9_$]*$"}
_SUMMARIES = {
    "conditional": "Goes on with `then` if a condition holds, else with `else`.",
    "while": "Carries out its body as long as a condition holds.",
    "foreach": "Carries out its steps for each item of a list, one after the other.",
    "break": "Leaves the innermost loop.",
    "continue": "Goes on with the next round of the innermost loop.",
    "sequential": "Steps that belong together.",
    "parallel_foreach": "Hands out a task for each item of a list, to sub-agents.",
    "include_workflow": "Carries out another workflow.",
    "state_update": "Changes the state: all of its changes or none.",
    "user_message": "Tells the user something.",
    "exit": "Ends the workflow, or the task.",
    "wait": "Lets time pass.",
}


def workflow(about: Mapping[str, Schema]) -> Schema:
    """A reactive workflow; `about` describes the keys that all workflows have."""
    own: dict[str, Schema] = {
        "dialect": {"enum": [DIALECT, None], "description": "Need not be said where the state is declared."},
        "imports": {
            "description": "Files whose workflows, or tasks, it uses.",
            "type": ["array", "string", "null"],
            "items": {"type": "string", "pattern": r"\S"},
        },
        "config": {
            "description": "Values that never change, `{{ config.name }}`.",
            "type": ["object", "null"],
        },
        "default_state": default_state(),
        "state_schema": state_schema(),
        "steps": {"description": "What it does, one step after the other.", **_STEPS},
        "sub_agent_tasks": {
            "description": "What parallel_foreach hands to sub-agents, by name.",
            "type": ["object", "null"],
            "additionalProperties": {"$ref": "#/$defs/reactive_task"},
        },
        "error_handling": _error_handling(),
        "on_resume": {
            "description": "What going on with it after a failure means.",
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
            "description": "What is done when the agent reports that its context is nearly full.",
            "type": ["object", "null"],
            "properties": {"steps": {"description": "Steps for that case.", **_STEPS}},
            "required": ["steps"],
            "additionalProperties": False,
        },
        "orchestrator_behavior": {
            "description": "What the agent is told that carries it out, beside the standard prompt.",
            "type": ["array", "string", "null"],
            "items": {"type": "string", "pattern": r"\S"},
        },
    }
    keys = {**about, **own}
    return {
        "description": "Steps one after the other, and a state in which fields follow from others.",
        "type": "object",
        "properties": {key: keys.get(key, {}) for key in reactive.KEYS},
        "patternProperties": {f"^{EXTENSION}": {"description": "Your own: a place for anchors."}},
        "additionalProperties": False,
        "anyOf": [{"required": ["steps"]}, {"required": ["sub_agent_tasks"]}],
    }


def task(whole: Schema) -> Schema:
    """A task of it, `whole` being the workflow."""
    own: dict[str, Schema] = {
        "inputs": {
            "description": "Values by name, made of expressions; or inputs that are declared.",
            "type": ["object", "null"],
        },
        "error_handling": {
            "description": "What is done when the task has failed.",
            "type": ["object", "null"],
            "properties": {
                "return_on_error": {"description": "Its failure is told to the workflow.", "const": True},
                "cleanup_on_error": {"description": "Steps for that case.", **_NO_STEPS},
            },
            "additionalProperties": False,
        },
    }
    properties = {**whole["properties"], **own}
    return {
        "description": "Steps that a sub-agent carries out for an item.",
        "type": "object",
        "properties": {key: properties[key] for key in reactive.TASK_KEYS},
        "additionalProperties": False,
        "required": ["steps"],
    }


def step(steps: Mapping[str, Step], about: Mapping[str, Schema]) -> Schema:
    """A step; `steps` are the types that are carried out, by what the dialect calls them."""
    keys = {**about, **_step_keys()}
    branches = [_control(kind, keys) for kind in CONTROL]
    branches += [_work(name, kind, keys) for name, kind in steps.items() if name not in CONTROL]
    names = {**_SUMMARIES, **{name: kind.summary for name, kind in steps.items()}}
    return step_of(names, ["type"], branches)


def _error_handling() -> Schema:
    properties: dict[str, Schema] = {
        "on_error": {
            "description": "What becomes of the workflow when a step fails that says nothing of it.",
            "enum": [*reactive_steps.ON_ERROR_KEY, None],
        },
        "max_retries": {
            "description": "How often it is carried out again, with on_error: retry_workflow.",
            **number_or_expression({"type": ["integer", "null"], "minimum": 1}),
        },
        "error_collection": {
            "description": "Whether errors of steps are collected in the state, and where.",
            "type": ["object", "boolean", "null"],
            "properties": {"enabled": FLAG, "state_path": PATH, "include_stack_traces": FLAG},
            "additionalProperties": False,
        },
        "on_failure": {"description": "Steps that are carried out when it has failed.", **_NO_STEPS},
    }
    return {
        "description": "What happens when something fails.",
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
            "description": "What it is called; expressions in it are left out.",
            "type": ["string", "number", "boolean", "null"],
        },
        "type": {},
        "when": {"description": "It is carried out only if this holds.", **condition},
        "state_update": {"description": "What its result changes in the state.", **changes},
        "error_state_update": {
            "description": "What changes when it has failed; `error` says why.",
            **changes,
        },
        "on_error": {"description": "What becomes of its failure.", "enum": [*ON_ERROR, None]},
        "retry_count": {
            "description": "How often it is tried again, with on_error: retry.",
            **number_or_expression({"type": ["integer", "null"], "minimum": 0}),
        },
        "retry_delay": {"description": "Milliseconds before it is tried again.", **delay},
        "fallback_value": {"description": "Its result when it has failed for good."},
        "timeout": {"description": "Milliseconds after which it is ended, and has failed.", **limit},
        "on_timeout": {
            "description": "After a timeout: fail, retry, or continue; of a question, the answer to take.",
        },
        "on_interrupt": {
            "description": "What becomes of it if a crash cuts it off.",
            "enum": [*ON_INTERRUPT, None],
        },
        "run_on": {"description": "Who carries it out.", "enum": [*PERFORMERS, None]},
        OUTPUT_FORMAT: {"description": "What its output is read as.", "enum": [*FORMATS, None]},
        "condition": {"description": "The test, e.g. `{{ has_errors && retries < 5 }}`.", **condition},
        "then": {"description": "The steps if the condition holds.", **_STEPS},
        "else": {"description": "The steps if it does not.", **_NO_STEPS},
        "body": {"description": "The steps that are carried out again and again.", **_STEPS},
        "steps": {"description": "The steps.", **_STEPS},
        "max_iterations": {
            "description": "How often the body is carried out at most.",
            **number_or_expression({"type": ["integer", "null"], "minimum": 1}),
        },
        "on_limit": ON_LIMIT_SCHEMA,
        "items": {"description": "The list, e.g. `{{ files }}`.", **expression_or({"type": "array"})},
        "variable_name": {"description": "What the steps call the item; `item` if nothing is said.", **_NAME},
        "index_name": {"description": "What they call its position; `index` if nothing is said.", **_NAME},
        "sub_agent_task": {"description": "The name of one of the sub_agent_tasks.", "type": "string"},
        "max_parallel": {
            "description": "How many tasks may be under way at once.",
            **number_or_expression({"type": ["integer", "null"], "minimum": 1}),
        },
        "wait_for_all": {"description": "false: the steps behind it go on meanwhile.", **FLAG},
        "sub_agent_prompt_override": {
            "description": "Who sub-agents are, in their prompt; the rules of the server follow it.",
            "type": ["string", "null"],
        },
        "on_sub_agent_error": _on_sub_agent_error(),
        "workflow": {"description": "The name of the workflow.", "type": "string"},
        "inputs": {"description": "What it is given.", "type": ["object", "string", "null"]},
        "on_complete": {"description": "Steps for when it has succeeded; they see its state.", **_NO_STEPS},
        **{key: written[key] for key in CHANGE_KEYS},
        "updates": {
            "description": "Several changes, made together.",
            "type": "array",
            "minItems": 1,
            "items": {"$ref": "#/$defs/change"},
        },
        "message": {"description": "What is said; expressions in it are resolved."},
        "duration_seconds": {
            "description": "How long.",
            **number_or_expression({"type": "number", "minimum": 0}),
        },
    }


def _on_sub_agent_error() -> Schema:
    properties: dict[str, Schema] = {
        "strategy": {
            "description": "What becomes of the others, and of the step, when a task fails.",
            "enum": [*STRATEGIES, None],
        },
        "max_retries": {
            "description": "How often a task that failed is handed out again.",
            **number_or_expression({"type": ["integer", "null"], "minimum": 0}),
        },
        "collect_errors": {"description": "Whether errors are collected in the state.", **FLAG},
        "error_state_path": {"description": "The list that they are added to.", **PATH},
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
    """What a limit in seconds, as the step type has it, is in this dialect."""
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
        "description": "Which tool is called, and what it is given.",
        "type": ["object", "null"],
        "properties": {key: taken[key] for key in MCP_KEYS},
        "additionalProperties": False,
        "required": [MCP_KEYS[0]],
    }
    found = branch(name, {**beside, **taken, MCP: call}, [])
    found["then"]["anyOf"] = [{"required": [MCP_KEYS[0]]}, {"required": [MCP]}]
    return found
