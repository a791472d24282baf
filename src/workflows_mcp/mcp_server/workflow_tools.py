"""Workflows as tools of their own: each is called by its name, with its inputs as arguments of their types.

Which ones is said when the server starts (`--workflow-tools tag:deploy,release-*`), and stays: clients want a
list of tools that does not change under their hands. What such a tool does is what `start_workflow` does,
with the workflow as it is when it is called.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar, NamedTuple

from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase
from mcp.types import CallToolResult, ToolAnnotations

from workflows_mcp.errors import InvalidInputs, RequestError
from workflows_mcp.mcp_server.follow_up import seconds_to_wait
from workflows_mcp.mcp_server.tooling import (
    AsSent,
    Ctx,
    RunAnswer,
    ToolFunction,
    answer,
    make_tool,
    said_in_full,
    service_of,
)
from workflows_mcp.mcp_server.toolsets import tool_that_starts
from workflows_mcp.runs import Service, WorkflowSummary

# ----------------------------------------------------------------------------------------------------
# The inputs of a workflow as the arguments of a tool: under names that the APIs of models take, and with
# schemas that say all there is to say.
#
#     arguments = Arguments.of({"properties": {"due date": {"type": "string"}}})
#     arguments.parameters["properties"]        # {"due_date": {…, "description": "The input 'due date'"}}
#     arguments.meant({"due_date": "today"})    # {"due date": "today"}


_CHARS = 64

_TAKEN = re.compile(rf"[a-zA-Z0-9_.-]{{1,{_CHARS}}}")

"""What an argument may be called: an API that is sent another name refuses all tools that came with it."""

_OTHERS = re.compile(r"[^a-zA-Z0-9_.-]+")

_NAMELESS = "input"


class Arguments(NamedTuple):
    inputs: dict[str, str]
    """The input that each argument stands for."""
    parameters: dict[str, Any]
    """Their JSON Schema."""

    @classmethod
    def of(cls, declared: Mapping[str, Any]) -> Arguments:
        """`declared`: the JSON Schema of the inputs."""
        schemas: Mapping[str, Any] = declared.get("properties", {})
        inputs = argument_names(schemas)
        arguments = {name: argument for argument, name in inputs.items()}
        parameters = {
            **declared,
            "properties": {
                argument: _schema(schemas[name], argument, name) for argument, name in inputs.items()
            },
            "required": [arguments[name] for name in declared.get("required", ())],
        }
        return cls(inputs, parameters)

    def meant(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs. What is no argument is an input by its own name: the workflow takes it, or not."""
        given: dict[str, Any] = {}
        for argument, value in sent.items():
            name = self.inputs.get(argument, argument)
            if name in given:
                declared = next(it for it, meant in self.inputs.items() if meant == name)
                raise InvalidInputs(f"the input '{name}' is given twice", hint=f"give only '{declared}'")
            given[name] = value
        return given


def argument_names(inputs: Iterable[str]) -> dict[str, str]:
    """The inputs by what their arguments are called. Names that are taken as they are keep to themselves."""
    names = list(inputs)
    found = {name: name for name in names if _TAKEN.fullmatch(name)}
    for name in names:
        if name not in found.values():
            found[_free(_OTHERS.sub("_", name).strip("_") or _NAMELESS, found)] = name
    order = {name: position for position, name in enumerate(names)}
    return dict(sorted(found.items(), key=lambda item: order[item[1]]))


def _free(wanted: str, taken: Mapping[str, str]) -> str:
    name, number = wanted[:_CHARS], 2
    while name in taken:
        ending = f"_{number}"
        name, number = wanted[: _CHARS - len(ending)] + ending, number + 1
    return name


def _schema(declared: Mapping[str, Any], argument: str, name: str) -> dict[str, Any]:
    schema = said_in_full(declared)
    if argument == name:
        return schema
    about = str(schema.get("description", "")).strip()
    said = f"{about} (the input '{name}')" if about else f"The input '{name}'"
    return {**schema, "description": said}


logger = logging.getLogger(__name__)


TAG = "tag:"

MANY = 40

"""Some clients leave out tools beyond so many."""

_NAME_CHARS = 60

_BUT_BY_NAME = " (those that are built in are chosen by their exact names)"

_CHANGED = (
    "The workflow has changed since this server was started, and the tool still shows the old inputs: send "
    "what the workflow takes now all the same, or use {starts}, or let the user restart the server."
)


class Inputs(AsSent):
    """The arguments are the inputs of a workflow, whatever they are called; the workflow checks them."""

    known_by_schema: ClassVar[bool] = False

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
    if tools and len(tools) + len(taken) > MANY:
        logger.warning(
            "there are %d tools, %d of them workflows; many clients show only %d: choose fewer "
            "workflow_tools, or fewer toolsets",
            len(tools) + len(taken),
            len(tools),
            MANY,
        )
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
            logger.warning("workflow_tools: there is no workflow for '%s'%s", selector, _BUT_BY_NAME)
        found |= {it.name: it for it in matching}
    return [it for it in workflows if it.name in found]


def _matches(summary: WorkflowSummary, selector: str) -> bool:
    if summary.name == selector:
        return True
    if summary.is_built_in:
        return False  # a tag or a pattern is about workflows of one's own
    if selector.startswith(TAG):
        return selector.removeprefix(TAG).strip() in summary.tags
    return selector == "all" or fnmatchcase(summary.name, selector)


def _tool(service: Service, summary: WorkflowSummary, name: str) -> Tool:
    declared = service.workflow_info(summary.name)["inputs"]
    arguments = Arguments.of(declared)
    made = make_tool(_start(summary.name, declared, arguments), title=summary.name, hints=_HINTS)
    about = summary.description.strip() or f"Runs the workflow {summary.name}."
    text = f"{about} {_HOW}"
    metadata = Inputs(arg_model=ArgModelBase, output_model=RunAnswer, output_schema=made.output_schema)
    return made.model_copy(
        update={
            "name": name,
            "description": " ".join(text.split()),
            "parameters": arguments.parameters,
            "fn_metadata": metadata,
        }
    )


_HOW = (
    '(A workflow. On "pending_action": do what `action` says, then submit_result. On "running" or "waiting": '
    "get_workflow_status.)"
)

_HINTS = ToolAnnotations(destructive_hint=True, open_world_hint=True)


def _start(workflow: str, declared: dict[str, Any], arguments: Arguments) -> ToolFunction:
    async def start(ctx: Ctx, inputs: dict[str, Any]) -> Annotated[CallToolResult, RunAnswer]:
        service = service_of(ctx)
        given = arguments.meant(inputs)
        try:
            started = await service.start(
                workflow=workflow, inputs=given, wait_seconds=seconds_to_wait(), detail="step"
            )
        except InvalidInputs as error:
            if service.workflow_info(workflow)["inputs"] == declared:
                raise
            changed = _CHANGED.format(starts=tool_that_starts(service.settings.toolsets))
            raise InvalidInputs(error.message, hint=f"{error.hint}\n{changed}") from None
        return answer(started)

    return start
