"""Toolsets: which tools are served together, each tool once, and what the server says of itself for them."""

from __future__ import annotations

from collections.abc import Sequence

from mcp.server.mcpserver.tools import Tool

from workflows_mcp.mcp_server.tools.core import core_tools
from workflows_mcp.mcp_server.tools.graph import graph_tools
from workflows_mcp.mcp_server.tools.memory import memory_tools
from workflows_mcp.mcp_server.tools.stateful import stateful_tools

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
   Type "parallel_tasks" or "foreach": start sub-agents for its tasks as it says; submit nothing for it.
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

_NOT_FOR_GRAPH = ("start_workflow", "submit_result", "get_next_step")
"""What `graph` does in its own way. It needs the rest of the core: to find, check, watch, read and cancel."""


def tools_of(toolsets: Sequence[str]) -> list[Tool]:
    tools = {tool.name: tool for tool in core_tools()}
    if "graph" in toolsets:
        if not {"core", "stateful"} & set(toolsets):
            tools = {name: tool for name, tool in tools.items() if name not in _NOT_FOR_GRAPH}
        tools |= {tool.name: tool for tool in graph_tools()}
    if "stateful" in toolsets:
        tools |= {tool.name: tool for tool in stateful_tools()}
    if "memory" in toolsets:
        tools |= {tool.name: tool for tool in memory_tools()}
    return list(tools.values())


def instructions(toolsets: Sequence[str]) -> str:
    if "graph" not in toolsets:
        return INSTRUCTIONS
    return INSTRUCTIONS + _GRAPH_BESIDE if {"core", "stateful"} & set(toolsets) else _GRAPH_ALONE
