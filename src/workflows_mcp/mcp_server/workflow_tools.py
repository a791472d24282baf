"""Workflows as tools of their own: each is called by its name, with its inputs as arguments of their types.

Which ones is said when the server starts (`--workflow-tools tag:deploy,release-*`), and stays: clients want a
list of tools that does not change under their hands. What such a tool does is what `start_workflow` does.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any

from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase
from mcp.types import CallToolResult, ToolAnnotations

from workflows_mcp.errors import RequestError
from workflows_mcp.mcp_server.answers import RunAnswer
from workflows_mcp.mcp_server.tooling import (
    AsSent,
    Ctx,
    ToolFunction,
    answer,
    as_structure,
    make_tool,
    service_of,
)
from workflows_mcp.mcp_server.waiting import seconds_to_wait
from workflows_mcp.service import Service, WorkflowSummary

logger = logging.getLogger(__name__)

TAG = "tag:"
MANY = 40
"""Some clients leave out tools beyond so many."""
_NAME_CHARS = 60
_STRUCTURES = ("array", "object")


class Inputs(AsSent):
    """The arguments are the inputs of a workflow, whatever they are called; the workflow checks them."""

    def validate_arguments(self, arguments_to_validate: dict[str, Any]) -> dict[str, Any]:
        return {"inputs": arguments_to_validate}


def workflow_tools(service: Service, selectors: Sequence[str], taken: Collection[str]) -> list[Tool]:
    """A tool for each workflow that is selected. `taken`: names that other tools have. Raises RequestError
    where two would have the same name."""
    tools: dict[str, tuple[str, Tool]] = {}
    for summary in _selected(service.list_workflows(), selectors):
        if summary.problems:
            logger.warning("the workflow %s is no tool, because it has problems: validate it", summary.name)
            continue
        name = tool_name(summary.name)
        other = tools[name][0] if name in tools else None
        if other is not None or name in taken:
            what = f"the workflow '{other}'" if other else "one of the server's own"
            raise RequestError(
                f"the workflow '{summary.name}' cannot be the tool '{name}': that is the name of {what}",
                hint="leave one of them out of workflow_tools, or rename it",
            )
        tools[name] = summary.name, _tool(service, summary, name)
    if len(tools) > MANY:
        logger.warning("%d workflows are tools of their own; many clients show only 40", len(tools))
    return [tool for _, tool in tools.values()]


def tool_name(workflow: str) -> str:
    """The name of a workflow as one that every client takes: deploy:web-app → deploy_web_app"""
    name = re.sub(r"[^a-z0-9]+", "_", workflow.lower()).strip("_")[:_NAME_CHARS].rstrip("_")
    return name if name[:1].isalpha() else f"workflow_{name}".rstrip("_")


def _selected(listed: Iterable[WorkflowSummary], selectors: Sequence[str]) -> list[WorkflowSummary]:
    workflows = list(listed)
    found: dict[str, WorkflowSummary] = {}
    for selector in selectors:
        matching = [it for it in workflows if _matches(it, selector)]
        if not matching:
            logger.warning("workflow_tools: there is no workflow for '%s'", selector)
        found |= {it.name: it for it in matching}
    return [it for it in workflows if it.name in found]


def _matches(summary: WorkflowSummary, selector: str) -> bool:
    if selector.startswith(TAG):
        return selector.removeprefix(TAG).strip() in summary.tags
    return selector == "all" or fnmatchcase(summary.name, selector)


def _tool(service: Service, summary: WorkflowSummary, name: str) -> Tool:
    parameters = service.workflow_info(summary.name)["inputs"]
    structures = [
        key for key, it in parameters.get("properties", {}).items() if it.get("type") in _STRUCTURES
    ]
    made = make_tool(_start(summary.name, structures), title=summary.name, hints=_HINTS)
    about = summary.description.strip() or f"Runs the workflow {summary.name}."
    text = f"{about} {_HOW}"
    metadata = Inputs(arg_model=ArgModelBase, output_model=RunAnswer, output_schema=made.output_schema)
    return made.model_copy(
        update={
            "name": name,
            "description": " ".join(text.split()),
            "parameters": parameters,
            "fn_metadata": metadata,
        }
    )


_HOW = (
    '(A workflow. On "pending_action": do what `action` says, then submit_result. On "running" or "waiting": '
    "get_workflow_status.)"
)
_HINTS = ToolAnnotations(destructive_hint=True, open_world_hint=True)


def _start(workflow: str, structures: Collection[str]) -> ToolFunction:
    async def start(ctx: Ctx, inputs: dict[str, Any]) -> Annotated[CallToolResult, RunAnswer]:
        given = {key: as_structure(value) if key in structures else value for key, value in inputs.items()}
        started = await service_of(ctx).start(workflow=workflow, inputs=given, wait_seconds=seconds_to_wait())
        return answer(started)

    return start
