"""Recognizes the dialect of a document by its keys; `dialect:` takes precedence.

A document with `blocks` is in the graph dialect. One with `steps` is stateful if it has `initial_state`,
`tasks`, `needs_state` or step types such as `shell`. It is reactive if it has `state_schema`,
`default_state`, `sub_agent_tasks` or step types such as `shell_command`. If it has keys of both, the dialect
with more of them counts.
"""

from __future__ import annotations

from collections.abc import Iterator

from workflows_mcp.dialects.yaml.source import WRAPPER
from workflows_mcp.errors import Problem
from workflows_mcp.values import Value, did_you_mean, kind_of

DIALECTS = ("graph", "stateful", "reactive")
_EXPECTED = (
    "a workflow has a name and a list of blocks or steps, each with an id, a type and the keys of its type"
)

STATEFUL_KEYS = frozenset(["initial_state", "tasks", "state_access"])
STATEFUL_STEP_KEYS = frozenset(["needs_state", "output_to"])
STATEFUL_KEYS_OF = {"foreach": ("task",), "mcp_call": ("tool",)}
"""Keys of this dialect only, in steps of a type that both dialects have."""
STATEFUL_TYPES = frozenset(
    ["condition", "delegate", "goto", "prompt", "return", "set_state", "shell", "workflow"]
)
REACTIVE_KEYS = frozenset(
    [
        "config", "default_state", "error_handling", "imports", "on_high_context_usage", "on_resume",
        "orchestrator_behavior", "state_schema", "sub_agent_tasks",
    ]
)  # fmt: skip
REACTIVE_STEP_KEYS = frozenset(
    [
        "error_state_update", "fallback_value", "on_complete", "retry_count", "retry_delay", "state_update",
        "sub_agent_task",
    ]
)  # fmt: skip
REACTIVE_KEYS_OF = {"foreach": ("body", "steps"), "mcp_call": ("mcp", "method")}
REACTIVE_TYPES = frozenset(
    [
        "agent_shell_command", "apply_hints", "break", "conditional", "continue", "exit", "include_workflow",
        "parallel_foreach", "parallel_tasks", "sequential", "shell_command", "state_update", "user_input",
        "user_message", "while", "while_loop",
    ]
)  # fmt: skip
_KEY_WEIGHT = 10
"""A key of the document counts as much as this many steps."""
_LISTS = ("then", "then_steps", "else", "else_steps", "body", "steps", "on_complete")


def dialect_of(document: Value) -> str | Problem:
    """The name of the dialect, or a problem if the document is not a workflow."""
    if document is None:
        return Problem("empty", "there is no workflow in this file", _EXPECTED)
    if not isinstance(document, dict):
        return Problem("wrong_type", f"a workflow is a mapping, not {kind_of(document)}", _EXPECTED)
    dialect = document.get("dialect")
    if dialect is not None:
        if dialect in DIALECTS:
            return str(dialect)
        hint = did_you_mean(str(dialect), DIALECTS, what="dialects")
        return Problem("dialect", f"there is no dialect '{dialect}'", hint, ("dialect",))
    if "blocks" in document:
        return "graph"
    if "steps" in document:
        return "reactive" if _is_reactive(document) else "stateful"
    if isinstance(document.get(WRAPPER), dict):
        beside = next(key for key in document if key != WRAPPER and not key.startswith("x-"))
        message = f"'{beside}' is next to '{WRAPPER}', not below it"
        hint = f"put it below '{WRAPPER}', or remove the line {WRAPPER}: and the indentation of the rest"
        return Problem("unknown_key", message, hint, (beside,), on_key=True)
    if document.keys() & REACTIVE_KEYS:
        return "reactive"  # its compiler reports the missing keys
    return Problem("missing_key", "there are no 'blocks' and no 'steps'", _EXPECTED)


def _is_reactive(document: dict[str, Value]) -> bool:
    stateful = _KEY_WEIGHT * len(document.keys() & STATEFUL_KEYS)
    reactive = _KEY_WEIGHT * len(document.keys() & REACTIVE_KEYS)
    for step in _steps(document["steps"]):
        kind = step.get("type")
        kind = kind if isinstance(kind, str) else ""
        stateful += kind in STATEFUL_TYPES or bool(step.keys() & STATEFUL_STEP_KEYS)
        stateful += any(key in step for key in STATEFUL_KEYS_OF.get(kind, ()))
        reactive += kind in REACTIVE_TYPES or bool(step.keys() & REACTIVE_STEP_KEYS)
        reactive += any(key in step for key in REACTIVE_KEYS_OF.get(kind, ()))
    return reactive > stateful


def _steps(given: Value) -> Iterator[dict[str, Value]]:
    """The steps, with the steps inside them."""
    for step in given if isinstance(given, list) else ():
        if isinstance(step, dict):
            yield step
            for key in _LISTS:
                yield from _steps(step.get(key))
