"""Which dialect a document is written in, by what only that dialect has; `dialect:` settles it.

`blocks` are the graph dialect. `steps` are of two kinds: with `initial_state`, `tasks`, `needs_state` or step
types such as `shell` they are the stateful dialect; those with `state_schema`, `default_state` or
`shell_command` are not read here.
"""

from __future__ import annotations

from collections.abc import Iterator

from workflows_mcp.errors import Problem
from workflows_mcp.values import Value, did_you_mean, kind_of

DIALECTS = ("graph", "stateful")
_EXPECTED = (
    "a workflow has a name and a list of blocks or of steps, each with id, type and what the type takes"
)

_STATEFUL_KEYS = frozenset(["initial_state", "tasks", "state_access"])
_STATEFUL_STEP_KEYS = frozenset(["needs_state", "output_to", "updates"])
_STATEFUL_TYPES = frozenset(["condition", "delegate", "goto", "prompt", "return", "set_state", "shell"])
_OTHER_KEYS = frozenset(["state_schema", "default_state", "sub_agent_tasks", "computed", "config"])
_OTHER_TYPES = frozenset(
    [
        "agent_shell_command", "agent_task", "apply_hints", "break", "conditional", "continue", "exit",
        "include_workflow", "parallel_foreach", "parallel_tasks", "shell_command", "state_update",
        "user_input", "user_message", "while",
    ]
)  # fmt: skip


def dialect_of(document: Value) -> str | Problem:
    """The name of the dialect, or why this is no workflow that is read here."""
    if document is None:
        return Problem("empty", "there is no workflow in this file", _EXPECTED)
    if not isinstance(document, dict):
        return Problem("wrong_type", f"a workflow is a mapping, not {kind_of(document)}", _EXPECTED)
    said = document.get("dialect")
    if said is not None:
        if said in DIALECTS:
            return str(said)
        hint = did_you_mean(str(said), DIALECTS, what="this version reads")
        return Problem("dialect", f"the dialect '{said}' is not read here", hint, ("dialect",))
    if "blocks" in document:
        return "graph"
    if "steps" not in document:
        return Problem("missing_key", "there are no 'blocks' and no 'steps'", _EXPECTED)
    if _is_stateful(document):
        return "stateful"
    return Problem(
        "dialect",
        "workflows made of such 'steps' are not read by this version",
        "it reads workflows made of 'blocks', and of steps that have a state; dialect: stateful says so",
        ("steps",),
        on_key=True,
    )


def _is_stateful(document: dict[str, Value]) -> bool:
    keys = {*document, *(key for step in _steps(document["steps"]) for key in step)}
    types = {step["type"] for step in _steps(document["steps"]) if isinstance(step.get("type"), str)}
    if keys & _STATEFUL_KEYS or keys & _STATEFUL_STEP_KEYS or types & _STATEFUL_TYPES:
        return True
    return not (keys & _OTHER_KEYS or types & _OTHER_TYPES)


def _steps(given: Value) -> Iterator[dict[str, Value]]:
    """The steps, with those inside of them."""
    for step in given if isinstance(given, list) else ():
        if isinstance(step, dict):
            yield step
            for key in ("then", "else"):
                yield from _steps(step.get(key))
