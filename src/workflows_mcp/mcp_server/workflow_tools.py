"""Workflows as tools: each is called by its name, with its inputs as typed arguments.

    workflows-mcp serve --workflow-tools 'tag:deploy,release-*'

    arguments = Arguments.of({"properties": {"due date": {"type": "string"}}})
    arguments.parameters["properties"]          # {"due_date": {…, "description": "The input 'due date'"}}
    arguments.to_inputs({"due_date": "today"})  # {"due date": "today"}

The workflows are chosen when the server starts, and the list stays, because clients expect a stable list of
tools. Such a tool does what `start_workflow` does, with the workflow as it is at the time of the call.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, NamedTuple

from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase

from workflows_mcp.errors import InvalidInputs, RequestError
from workflows_mcp.limits import DEFAULT_WAIT
from workflows_mcp.mcp_server.tooling import (
    RUNS_STEPS,
    Content,
    Ctx,
    ServedTool,
    ToolFunction,
    ToolRecord,
    UnparsedArguments,
    explicit_schema,
    service_of,
)
from workflows_mcp.mcp_server.tools.core import STATUS, RunAnswer
from workflows_mcp.mcp_server.toolsets import tool_that_starts
from workflows_mcp.runs import Service, WorkflowSummary

logger = logging.getLogger(__name__)

TAG = "tag:"
MANY = 40
"""Some clients drop further tools."""
_NAME_CHARS = 60
_BUT_BY_NAME = " (built-in workflows are chosen by their exact names only)"
_CHANGED = (
    "The workflow has changed since this server was started, and the tool still shows the old inputs: send "
    "the new inputs all the same, or use {starts}, or ask the user to restart the server."
)


class InputArguments(UnparsedArguments):
    """Passes the arguments on as inputs, which the workflow checks."""

    def validate_arguments(self, arguments_to_validate: dict[str, Any]) -> dict[str, Any]:
        return {"inputs": arguments_to_validate, "wait_seconds": DEFAULT_WAIT}


def workflow_tools(service: Service, selectors: Sequence[str], taken: Collection[str]) -> list[ServedTool]:
    """Make a tool for each selected workflow. `taken`: the names of other tools.

    Raises RequestError if two tools would have the same name.
    """
    tools: dict[str, tuple[str, ServedTool]] = {}
    for summary in _selected(service.list_workflows(), selectors):
        if summary.problems:
            logger.warning(
                "the workflow %s is not served as a tool, because it has problems: validate it", summary.name
            )
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
    """Turn the name of a workflow into one that every client accepts: deploy:web-app → deploy_web_app."""
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
        return False  # tags and patterns select only the user's own workflows
    if selector.startswith(TAG):
        return selector.removeprefix(TAG).strip() in summary.tags
    return selector == "all" or fnmatchcase(summary.name, selector)


def _tool(service: Service, summary: WorkflowSummary, name: str) -> ServedTool:
    declared = service.workflow_info(summary.name)["inputs"]
    arguments = Arguments.of(declared)
    record = ToolRecord(
        function=_start(summary.name, declared, arguments),
        title=summary.name,
        hints=RUNS_STEPS.model_copy(update={"open_world_hint": True}),
        shape=STATUS,
    )
    made = record.make()
    about = summary.description.strip() or f"Runs the workflow {summary.name}."
    text = f"{about} {_HOW}"
    metadata = InputArguments(
        arg_model=ArgModelBase, output_model=RunAnswer, output_schema=made.output_schema
    )
    return made.model_copy(
        update={
            "name": name,
            "description": " ".join(text.split()),
            "parameters": arguments.parameters,
            "fn_metadata": metadata,
            "takes_inputs": True,
        }
    )


_HOW = (
    '(A workflow. On "pending_action": do what `action` says, then submit_result. On "running" or "waiting": '
    "get_workflow_status.)"
)


def _start(workflow: str, declared: dict[str, Any], arguments: Arguments) -> ToolFunction:
    async def start(ctx: Ctx, inputs: dict[str, Any], wait_seconds: float) -> Annotated[Content, RunAnswer]:
        service = service_of(ctx)
        given = arguments.to_inputs(inputs)
        try:
            started = await service.start(workflow=workflow, inputs=given, wait_seconds=wait_seconds)
        except InvalidInputs as error:
            if service.workflow_info(workflow)["inputs"] == declared:
                raise
            changed = _CHANGED.format(starts=tool_that_starts(service.settings.toolsets))
            raise InvalidInputs(error.message, hint=f"{error.hint}\n{changed}") from None
        return started.rendered("step")

    return start


# ---- the inputs of a workflow as the arguments of a tool

_CHARS = 64
_VALID = re.compile(rf"[a-zA-Z0-9_.-]{{1,{_CHARS}}}")
"""The APIs of models reject a whole list of tools for one argument with another name."""
_INVALID_CHARS = re.compile(r"[^a-zA-Z0-9_.-]+")
_NAMELESS = "input"


class Arguments(NamedTuple):
    inputs: dict[str, str]
    """The input behind each argument."""
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

    def to_inputs(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inputs. The workflow checks an unknown argument as an input of that name."""
        given: dict[str, Any] = {}
        for argument, value in sent.items():
            name = self.inputs.get(argument, argument)
            if name in given:
                declared = next(it for it, own in self.inputs.items() if own == name)
                raise InvalidInputs(f"the input '{name}' is given twice", hint=f"give only '{declared}'")
            given[name] = value
        return given


def argument_names(inputs: Iterable[str]) -> dict[str, str]:
    """Map arguments to inputs. A valid name stays as it is."""
    names = list(inputs)
    found = {name: name for name in names if _VALID.fullmatch(name)}
    for name in names:
        if name not in found.values():
            found[_free(_INVALID_CHARS.sub("_", name).strip("_") or _NAMELESS, found)] = name
    order = {name: position for position, name in enumerate(names)}
    return dict(sorted(found.items(), key=lambda item: order[item[1]]))


def _free(wanted: str, taken: Mapping[str, str]) -> str:
    name, number = wanted[:_CHARS], 2
    while name in taken:
        ending = f"_{number}"
        name, number = wanted[: _CHARS - len(ending)] + ending, number + 1
    return name


def _schema(declared: Mapping[str, Any], argument: str, name: str) -> dict[str, Any]:
    schema = explicit_schema(declared)
    if argument == name:
        return schema
    about = str(schema.get("description", "")).strip()
    described = f"{about} (the input '{name}')" if about else f"The input '{name}'"
    return {**schema, "description": described}
