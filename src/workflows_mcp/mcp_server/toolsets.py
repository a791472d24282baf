"""Chooses the tools that are served together, and the instructions that fit them.

    tools_of(["core", "memory"])          # each tool once, in order
    instructions(["graph"])               # how to run a workflow with these

Everything about a tool is in its record, in the module of its toolset. The instructions of the toolsets are
here, because the first answer of the server has them and must not wait for those modules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import cast

from workflows_mcp.mcp_server.tooling import Role, ServedTool, ToolRecord, Toolset, Way

_ADDED = ("graph", "stateful", "reactive", "memory", "debug")
"""The toolsets other than the core, in the order of their tools."""
_COMPATIBLE = ("graph", "stateful", "reactive")
"""The toolsets with the names and shapes of older systems, in the package `compat`."""
TOOLSETS = ("core", *_ADDED)
_OTHER_WAYS: tuple[Way, ...] = ("reactive", "graph")

_WHAT = (
    "Runs workflows (YAML) durably: the server does what it can and keeps the state; the rest is for you or "
    "the user.\n"
)
_LONG_VALUES = "Long values are cut; a note there says which call reads on."
_STEPS: dict[Way, str] = {
    "core": """\
1. list_workflows; get_workflow_info has the inputs.
2. start_workflow.
3. While status is "pending_action": do what action.instructions say (ask the user where only the user can \
decide), then submit_result; it returns the next action. Show `messages` to the user. \
If you cannot, submit {"is_error": true, "error": "…"}.
   Type "parallel_tasks" or "foreach": start sub-agents for its tasks as it says; submit nothing.
4. While "running" or "waiting": get_workflow_status; tell the user `decisions`. Lost the id? Call it \
without one.
To write one, read an example: list_workflows(tags=["example"]), get_workflow_info(definition=true); \
check yours with validate_workflow_yaml, save it as .workflows/NAME.yaml.
""",
    "reactive": """\
1. workflow_list, and workflow_get_info for inputs that you do not know.
2. workflow_start with inputs.
3. While `step` is not null: do what step.instructions say (ask the user where only the user can decide), \
then workflow_step_complete; the reply carries the next step. Show `messages` to the user.
   Type "parallel_tasks": start sub-agents for its tasks as it says.
4. While it is null and status is "running" or "waiting": workflow_get_next_step, which waits.
5. At the end: workflow_complete has the final state. If your context gets full: workflow_checkpoint; \
another conversation continues with workflow_resume.
""",
    "graph": """\
1. list_workflows, and get_workflow_info for inputs that you do not know.
2. execute_workflow with inputs.
3. While status is "paused": answer `prompt` (ask the user where only the user can decide) with \
resume_workflow(checkpoint_id, response). If it cannot be answered: {"is_error": true, "error": "<why>"}.
4. While status is "running": resume_workflow(checkpoint_id=<workflow_id>) waits on; runs survive restarts.
""",
}
INSTRUCTIONS = _WHAT + _STEPS["core"] + _LONG_VALUES
_FOR_TASK: dict[Way, dict[str, str]] = {
    "core": {"next": "get_next_step", "answer": "submit_result", "watch": "get_workflow_status"},
    "reactive": {
        "next": "workflow_get_next_step",
        "answer": "workflow_step_complete",
        "watch": "workflow_get_next_step",
    },
}
_ONE_TASK = """\
Serves one task of a workflow run, and nothing else: workflow_id='{task}'.
1. {next} with that workflow_id: the first step.
2. While a step is pending: do exactly what its instructions say, then {answer} with that workflow_id; the \
reply has the next step. If you cannot, say so with {answer}, as the instructions say.
3. While status is "running" or "waiting": {watch}, which waits.
4. "completed", "failed" or "cancelled": stop. The server has the result.
"""
_READ_ONLY = """\
Knows workflows (YAML) and their runs. This server is read-only: it cannot start, answer, resume or cancel \
anything; if the user wants that, say so.
1. {list}, and {describe} for the inputs, steps and outputs of a workflow.
2. get_workflow_status without an id for the recent runs, with one for where it is and why it waits.
3. get_workflow_state for the values of a run.
"""


def tools_of(
    toolsets: Sequence[str], *, read_only: bool = False, workflow_tools: bool = False, task: str = ""
) -> list[ServedTool]:
    """Return the tools of the core and of these toolsets.

    `workflow_tools`: workflows are tools, too. `task`: the only task that is served.
    """
    ways = ways_of(toolsets)
    records = {
        name: record
        for name, record in toolset("core").records.items()
        if not set(ways) <= set(record.replaced_in) or (workflow_tools and record.answers_workflow_tools)
    }
    for added in _ADDED:
        if added in toolsets:
            records |= toolset(added).records
    return [
        record.make(ways[0])
        for record in records.values()
        if (record.only_reads or not read_only) and (record.serves_task or not task)
    ]


def toolsets_for_task(toolsets: Sequence[str]) -> tuple[str, ...]:
    """Return these toolsets without `graph`, whose tools know only whole runs."""
    return tuple(name for name in toolsets if name != "graph") or ("core",)


def why_not_served(name: str, *, read_only: bool, task: str = "") -> str | None:
    """Explain why an existing tool is not served here; None if no toolset has such a tool."""
    for added in ("core", *_ADDED):
        record = toolset(added).records.get(name)
        if record is not None and task and not record.serves_task:
            return f"this server serves only '{task}' (WORKFLOWS_TASK), and '{name}' is not for that"
        if record is not None and read_only and not record.only_reads:
            return f"'{name}' changes runs, and this server is read-only (--read-only)"
        if record is not None:
            return f"'{name}' is in the toolset '{added}', which is not enabled here (--toolsets)"
    return None


def ways_of(toolsets: Sequence[str]) -> tuple[Way, ...]:
    """The ways to run a workflow with these toolsets, the recommended one first."""
    found: list[Way] = []
    if {"core", "stateful"} & set(toolsets) or not {"graph", "reactive"} & set(toolsets):
        found.append("core")
    found += [way for way in _OTHER_WAYS if way in toolsets]
    return tuple(found)


def tool_that_starts(toolsets: Sequence[str]) -> str:
    """The name of the tool that starts any workflow, in the recommended way."""
    return tool_for("start", ways_of(toolsets)[0])


def tool_for(role: Role, way: Way) -> str:
    """The name of the tool that has a role in the loop of a way."""
    return next(it.name for it in _loop_of(way) if it.role == role)


def instructions(toolsets: Sequence[str], *, read_only: bool = False, task: str = "") -> str:
    """Return what a client shows to its model about this server."""
    first, *others = ways_of(toolsets)
    if task and not read_only:
        return _ONE_TASK.format(task=task, **_FOR_TASK[first]) + _LONG_VALUES
    if read_only:
        names = {"list": tool_for("list", first), "describe": tool_for("describe", first)}
        return _READ_ONLY.format_map(names) + _LONG_VALUES
    text = _WHAT + _STEPS[first] + _LONG_VALUES
    if others:
        pairs = (f"{tool_for('start', way)}, {tool_for('answer', way)}" for way in others)
        text += f"\nIn other shapes: {'; '.join(pairs)}. Keep to one."
    return text


def toolset(name: str) -> Toolset:
    """Load a toolset. This imports its module and no other."""
    package = "compat" if name in _COMPATIBLE else "tools"
    return cast(Toolset, import_module(f"workflows_mcp.mcp_server.{package}.{name}").TOOLSET)


def _loop_of(way: Way) -> Iterator[ToolRecord]:
    for name in dict.fromkeys((way, "core")):
        yield from (it for it in toolset(name).records.values() if way in it.always_load)
