"""Toolsets: which tools are served together, each tool once, and what the server says of itself for them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Literal

from mcp.server.mcpserver.tools import Tool

_WHAT = (
    "Runs workflows (YAML) durably: the server does the steps, keeps the state and asks you for what only "
    "you or the user can do.\n"
)
_LONG_VALUES = "Long values are cut; a note there says which call reads on."
INSTRUCTIONS = f"""\
{_WHAT}\
1. list_workflows; get_workflow_info has the inputs.
2. start_workflow.
3. While status is "pending_action": do what action.instructions say (ask the user where only the user can \
decide), then submit_result; it returns the next action. Show `messages` to the user. If you \
cannot, submit {{"is_error": true, "error": "…"}}.
   Type "parallel_tasks" or "foreach": start sub-agents for its tasks as it says; submit nothing.
4. While it is "running" or "waiting": get_workflow_status. Lost the workflow_id? Call it without one.
To write one, read an example: list_workflows(tags=["example"]), get_workflow_info(definition=true); \
check yours with validate_workflow_yaml, save it as .workflows/NAME.yaml.
{_LONG_VALUES}"""
_GRAPH_ALONE = f"""\
{_WHAT}\
1. list_workflows, and get_workflow_info for inputs that you do not know.
2. execute_workflow with inputs.
3. While status is "paused": answer `prompt` (ask the user where only the user can decide) with \
resume_workflow(checkpoint_id, response). If it cannot be answered: {{"is_error": true, "error": "<why>"}}.
4. While status is "running": resume_workflow(checkpoint_id=<workflow_id>) waits on; runs survive restarts.
{_LONG_VALUES}"""
_REACTIVE_ALONE = f"""\
{_WHAT}\
1. workflow_list, and workflow_get_info for inputs that you do not know.
2. workflow_start with inputs.
3. While `step` is not null: do what step.instructions say (ask the user where only the user can decide), \
then workflow_step_complete; the reply carries the next step. Show `messages` to the user.
   Type "parallel_tasks": start sub-agents for its tasks as it says.
4. While it is null and status is "running" or "waiting": workflow_get_next_step, which waits.
5. At the end: workflow_complete has the final state. If your context gets full: workflow_checkpoint; \
another conversation goes on with workflow_resume.
{_LONG_VALUES}"""
_ONLY_LOOKING = """\
Knows workflows (YAML) and their runs. This server only looks: it cannot start, answer, resume or cancel \
anything; if that is wanted, say so.
1. {list}, and {info} for what a workflow takes, does and gives.
2. get_workflow_status without an id for the recent runs, with one for where it is and why it waits.
3. get_workflow_state for the values of a run.
"""

Way = Literal["core", "reactive", "graph"]
_NOT_FOR_REACTIVE = (
    "list_workflows",
    "get_workflow_info",
    "start_workflow",
    "submit_result",
    "get_next_step",
)
"""What `reactive` does in its own way. It needs the rest of the core: to read long values, and to watch."""
_NOT_FOR_GRAPH = ("start_workflow", "submit_result", "get_next_step")
"""What `graph` does in its own way. It needs the rest of the core: to find, check, watch, read and cancel."""
_FOR_WORKFLOW_TOOLS = ("submit_result", "get_workflow_status")
"""What goes on with a run that a tool has started which is a workflow."""

_NEEDED_AT_ONCE: dict[Way, tuple[str, ...]] = {
    "core": (
        "list_workflows",
        "get_workflow_info",
        "start_workflow",
        "submit_result",
        "get_workflow_status",
    ),
    "reactive": ("workflow_list", "workflow_get_info", "workflow_start", "workflow_step_complete"),
    "graph": ("list_workflows", "get_workflow_info", "execute_workflow", "resume_workflow"),
}
"""What every run needs from its first step to its last."""
_LOAD_AT_ONCE = {"anthropic/alwaysLoad": True}
"""Claude Code shows its model the names of tools only, and the rest after a search; not so of these."""
_OTHER_WAYS: tuple[Way, ...] = ("reactive", "graph")
_INSTRUCTIONS: dict[Way, str] = {
    "core": INSTRUCTIONS,
    "reactive": _REACTIVE_ALONE,
    "graph": _GRAPH_ALONE,
}
_LOOKING_UP: dict[Way, tuple[str, str]] = {
    "core": ("list_workflows", "get_workflow_info"),
    "reactive": ("workflow_list", "workflow_get_info"),
    "graph": ("list_workflows", "get_workflow_info"),
}
"""The tools that tell which workflows there are."""
_STARTING: dict[Way, str] = {
    "core": "start_workflow",
    "reactive": "workflow_start",
    "graph": "execute_workflow",
}
_BESIDE: dict[Way, str] = {
    "reactive": "workflow_start, workflow_step_complete",
    "graph": "execute_workflow, resume_workflow",
}
"""The tools of a way that is not the first."""

_PACKAGE = {"graph": "compat", "stateful": "compat", "reactive": "compat"}
"""Where the toolsets with the names and shapes of older systems are; the others are in `tools`."""


def tools_of(toolsets: Sequence[str], *, read_only: bool = False, workflow_tools: bool = False) -> list[Tool]:
    """`workflow_tools`: workflows are served as tools beside these."""
    tools = _made("core")
    ways = ways_of(toolsets)
    if "core" not in ways:
        left_out = set(_NOT_FOR_GRAPH if "graph" in ways else _NOT_FOR_REACTIVE)
        left_out -= set(_FOR_WORKFLOW_TOOLS if workflow_tools else ())
        tools = {name: tool for name, tool in tools.items() if name not in left_out}
    for toolset in _MORE:
        if toolset in toolsets:
            tools |= _made(toolset)
    for name in _NEEDED_AT_ONCE[ways[0]]:
        tools[name].meta = dict(_LOAD_AT_ONCE)
    return [tool for tool in tools.values() if not read_only or _only_looks(tool)]


def _only_looks(tool: Tool) -> bool:
    return bool(tool.annotations and tool.annotations.read_only_hint)


_MORE = ("graph", "stateful", "reactive", "memory", "debug")
"""The toolsets that add to the core, or put something in its place."""


def why_not_served(name: str, *, read_only: bool) -> str | None:
    """What to do about a tool that there is, and that this server does not have; None where there is none."""
    for toolset in ("core", *_MORE):
        tool = _made(toolset).get(name)
        if tool is not None and read_only and not _only_looks(tool):
            return f"'{name}' changes runs, and this server only looks (--read-only)"
        if tool is not None:
            return (
                f"'{name}' is in the toolset '{toolset}', which this server is started without (--toolsets)"
            )
    return None


def _made(toolset: str) -> dict[str, Tool]:
    """The tools of one, by name. Its module is loaded for that, and no other."""
    make = getattr(
        import_module(f"workflows_mcp.mcp_server.{_PACKAGE.get(toolset, 'tools')}.{toolset}"),
        f"{toolset}_tools",
    )
    return {tool.name: tool for tool in make()}


def ways_of(toolsets: Sequence[str]) -> tuple[Way, ...]:
    """In which ways workflows can be carried out with these, the one to recommend first."""
    found: list[Way] = []
    if {"core", "stateful"} & set(toolsets) or not {"graph", "reactive"} & set(toolsets):
        found.append("core")
    found += [way for way in _OTHER_WAYS if way in toolsets]
    return tuple(found)


def tool_that_starts(toolsets: Sequence[str]) -> str:
    """The name of the one that starts any workflow, in the way to recommend."""
    return _STARTING[ways_of(toolsets)[0]]


def instructions(toolsets: Sequence[str], *, read_only: bool = False) -> str:
    first, *others = ways_of(toolsets)
    if read_only:
        lists, info = _LOOKING_UP[first]
        return _ONLY_LOOKING.format(list=lists, info=info) + _LONG_VALUES
    text = _INSTRUCTIONS[first]
    if others:
        text += f"\nThe same in other shapes: {'; '.join(_BESIDE[way] for way in others)}. Keep to one."
    return text
