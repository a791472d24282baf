"""Toolsets: which tools are served together, each tool once, and what the server says of itself for them."""

from __future__ import annotations

from collections.abc import Sequence

from mcp.server.mcpserver.tools import Tool

from workflows_mcp.mcp_server.tools.core import core_tools
from workflows_mcp.mcp_server.tools.graph import graph_tools

_WHAT = (
    "Runs workflows (YAML) durably: the server does the steps, keeps the state and asks you for what only "
    "you or the user can do.\n"
)
_LONG_VALUES = "Long values are cut; the note at a cut says which call reads on."
INSTRUCTIONS = f"""\
{_WHAT}\
1. list_workflows, and get_workflow_info for inputs that you do not know.
2. start_workflow with inputs.
3. While status is "pending_action": do what action.instructions say (ask the user where only the user can \
decide), then submit_result; the reply carries the next action.
4. While status is "running" or "waiting": get_workflow_status; runs go on without you and survive restarts.
{_LONG_VALUES}"""
_GRAPH_ALONE = f"""\
{_WHAT}\
1. list_workflows, and get_workflow_info for inputs that you do not know.
2. execute_workflow with inputs.
3. While status is "paused": answer `prompt` (ask the user where only the user can decide) with \
resume_workflow(checkpoint_id, response).
4. While status is "running": resume_workflow(checkpoint_id=<workflow_id>) waits on; runs survive restarts.
{_LONG_VALUES}"""
_GRAPH_BESIDE = """
execute_workflow and resume_workflow do the same in another shape, with checkpoints; keep to either way."""

_SHARED_WITH_GRAPH = (
    "list_workflows",
    "get_workflow_info",
    "validate_workflow_yaml",
    "get_workflow_status",
    "get_workflow_state",
    "control_workflow",
)
"""What `graph` needs of the core when it is served alone: to find, check, watch, read on and cancel."""


def tools_of(toolsets: Sequence[str]) -> list[Tool]:
    core = core_tools()
    if "graph" not in toolsets:
        return core
    if "core" not in toolsets:
        core = [tool for tool in core if tool.name in _SHARED_WITH_GRAPH]
    return [*core, *graph_tools()]


def instructions(toolsets: Sequence[str]) -> str:
    if "graph" not in toolsets:
        return INSTRUCTIONS
    return INSTRUCTIONS + _GRAPH_BESIDE if "core" in toolsets else _GRAPH_ALONE
