"""Builds the MCP server: one service, with the toolsets that the settings choose.

    build_server(settings).run("stdio")

The service opens just after the first answer (`lazy`) and recovers the runs of dead processes. When it
closes, it releases its runs for the next process. A cancelled call stops waiting; its run continues.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from math import inf
from typing import TYPE_CHECKING, Any, cast

from mcp.server import MCPServer
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ResourceNotFoundError
from mcp.server.subscriptions import InMemorySubscriptionBus
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    CallToolResult,
    GetPromptResult,
    InputRequiredResult,
    PromptMessage,
    ResourceTemplate,
    TextContent,
)
from pydantic import AnyUrl

from workflows_mcp import __version__
from workflows_mcp.limits import DEFAULT_LIMITS, Limits
from workflows_mcp.mcp_server import resources
from workflows_mcp.mcp_server.completion import complete
from workflows_mcp.mcp_server.elicitation import Elicitation, sealing_of
from workflows_mcp.mcp_server.follow_up import (
    FollowUp,
    is_peek,
    reporting_progress,
    seconds_to_wait,
    waiting_at_most,
)
from workflows_mcp.mcp_server.lazy import LazyService, wait_for_service
from workflows_mcp.mcp_server.notices import Notices
from workflows_mcp.mcp_server.prompts import offered as prompts_of_workflows
from workflows_mcp.mcp_server.prompts import prompts_of, render_workflow
from workflows_mcp.mcp_server.resources import with_links
from workflows_mcp.mcp_server.sdk import (
    ClientLog,
    LazyPrompts,
    LazyTools,
    replace_managers,
    serve_changes,
    serve_lines,
    serve_lists,
)
from workflows_mcp.mcp_server.task_extension import WAIT_SECONDS, Tasks, knows_tasks
from workflows_mcp.mcp_server.tooling import (
    ServedTool,
    answer,
    refuse_bad_arguments,
    shortened,
    without_nulls,
)
from workflows_mcp.mcp_server.toolsets import instructions, tools_of, why_not_served
from workflows_mcp.runs import startup_checks
from workflows_mcp.settings import Settings
from workflows_mcp.values import did_you_mean

if TYPE_CHECKING:
    from mcp.server.mcpserver.tools import Tool

    from workflows_mcp.runs import Service

    ServerOfTheLibrary = MCPServer[Service]
else:
    ServerOfTheLibrary = MCPServer


class WorkflowsServer(ServerOfTheLibrary):
    """The server of the protocol library, with better errors, questions to the user, and tasks.

    Users are asked, and long waits become tasks, between a call that moves a run and its answer.
    """

    def __init__(
        self,
        *arguments: Any,
        tools: LazyTools,
        prompts: LazyPrompts,
        read_only: bool = False,
        limits: Limits = DEFAULT_LIMITS,
        **named: Any,
    ) -> None:
        self._limits = limits
        self._read_only = read_only
        self._served = tools
        self._elicitation = None if read_only else Elicitation()
        tasks = Tasks(
            tools.get_tool, self.fetch_again, stores_notes=not read_only, elicitation=self._elicitation
        )
        super().__init__(*arguments, extensions=[tasks], **named)
        replace_managers(self, tools, prompts)

    async def run_stdio_async(self) -> None:
        await serve_lines(self)

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Service, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        tools = {tool.name: tool for tool in self._served.list_tools()}
        tool = tools.get(name)
        if tool is None:
            hint = why_not_served(name, read_only=self._read_only) or did_you_mean(name, tools, what="tools")
            raise MCPError(INVALID_PARAMS, shortened(f"Unknown tool: {name}; {hint}"))
        given = without_nulls(tool, arguments)
        refuse_bad_arguments(tool, given, self._limits)
        follow_up = tool.follow_up if isinstance(tool, ServedTool) else None
        with reporting_progress(context):
            if follow_up is None or context is None:
                return await super().call_tool(name, given, context)
            becomes_a_task = follow_up.waits and knows_tasks(context.request_context)
            with waiting_at_most(WAIT_SECONDS if becomes_a_task else inf):
                result = await self._move_run(tool, follow_up, given, context)
            return with_links(result) if isinstance(result, CallToolResult) else result

    async def _move_run(
        self, tool: Tool, follow_up: FollowUp, given: dict[str, Any], context: Context[Service, Any]
    ) -> CallToolResult | InputRequiredResult:
        async def fetch(run_id: str) -> CallToolResult:
            style = follow_up.style_in(given)
            return await self.fetch_again(context, follow_up, run_id, seconds_to_wait(), style)

        elicitation = self._elicitation
        if elicitation is not None and (answered := elicitation.answer_in(context)) is not None:
            return await elicitation.take_answer(answered, context, fetch)
        waits = tool.parameters.get("properties", {}).get("wait_seconds")
        if waits is not None and not follow_up.inputs:
            given["wait_seconds"] = seconds_to_wait(float(given.get("wait_seconds", waits["default"])))
        result = await super().call_tool(tool.name, given, context)
        run_id = follow_up.run_of(given, result)
        if elicitation is None or run_id is None or not isinstance(result, CallToolResult):
            return result
        if is_peek(tool, given):
            return result
        return await elicitation.ask(run_id, result, context, fetch)

    async def fetch_again(
        self,
        context: Context[Service, Any],
        follow_up: FollowUp,
        run_id: str,
        wait_seconds: float = 0,
        style: str = "",
    ) -> CallToolResult:
        """Return the run as it stands now, in the shape of the tool that was called."""
        result = await super().call_tool(
            follow_up.tool, follow_up.arguments(run_id, wait_seconds, style), context
        )
        assert isinstance(result, CallToolResult), "a follow-up asks nothing"
        if result.is_error or not follow_up.adds:
            return result
        service = context.request_context.lifespan_context
        more: dict[str, Any] = {"workflow_id": run_id, "success": True}
        if "state" in follow_up.adds:
            more["state"] = await service.step_protocol.read(run_id, (), None)
        if "forked_from" in follow_up.adds and (origin := await service.inspector.origin_of(run_id)):
            more["forked_from"] = origin
        added = {name: more[name] for name in follow_up.adds if name in more}
        return answer({**added, **(result.structured_content or {})})

    async def get_prompt(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        context: Context[Service, Any] | None = None,
    ) -> GetPromptResult | InputRequiredResult:
        prompts = {prompt.name: prompt for prompt in await self.list_prompts()}
        service = context.request_context.lifespan_context if context is not None else None
        offered = {it.name: it for it in prompts_of_workflows(service)} if service is not None else {}
        prompt = prompts.get(name) or offered.get(name)
        if prompt is None:
            hint = did_you_mean(name, [*prompts, *offered], what="prompts")
            raise MCPError(INVALID_PARAMS, f"Unknown prompt: {name}; {hint}")
        known = {argument.name: argument.required for argument in prompt.arguments or ()}
        given = {
            it: value for it, value in (arguments or {}).items() if value != ""
        }  # an empty field of a form
        problems = [f"'{it}' is missing" for it, required in known.items() if required and it not in given]
        for unknown in (it for it in given if it not in known):
            problems.append(f"unknown argument '{unknown}': {did_you_mean(unknown, known, what='it takes')}")
        if problems:
            raise MCPError(INVALID_PARAMS, f"{name}: {'; '.join(problems)}")
        if name not in prompts and service is not None:
            text = TextContent(type="text", text=render_workflow(service, name, given))
            return GetPromptResult(
                description=prompt.description, messages=[PromptMessage(role="user", content=text)]
            )
        return await super().get_prompt(name, given, context)

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        return [*resources.TEMPLATES, *await super().list_resource_templates()]

    async def read_resource(
        self, uri: AnyUrl | str, context: Context[Service, Any] | None = None
    ) -> Iterable[ReadResourceContents] | InputRequiredResult:
        if context is not None and resources.is_ours(str(uri)):
            return [await resources.read(context.request_context.lifespan_context, str(uri))]
        try:
            return await super().read_resource(uri, context)
        except ResourceNotFoundError:
            raise resources.unknown(str(uri)) from None


def build_server(settings: Settings, *, exits_on_signals: bool = True) -> WorkflowsServer:
    notices, log = Notices(InMemorySubscriptionBus()), ClientLog()

    @asynccontextmanager
    async def lifespan(_: MCPServer[Service]) -> AsyncIterator[Service]:
        # Standard output belongs to the protocol; what is printed by accident goes to the log.
        printed_to, sys.stdout = sys.stdout, sys.stderr
        service = LazyService(settings)
        try:
            # Opening the service adds a filter for secrets to the log handlers that exist by then.
            with startup_checks(settings), log.listening():
                if settings.engine != "embedded":
                    await service.ready()  # fails at once if the Temporal server cannot be reached
                service.open_in()
                if exits_on_signals:
                    _exit_on_signals(service)
                try:
                    yield cast("Service", service)
                finally:
                    await service.close()
        finally:
            sys.stdout = printed_to

    own: list[ServedTool] = []
    if settings.workflow_tools and not settings.read_only:
        from workflows_mcp.mcp_server.workflow_tools import workflow_tools
        from workflows_mcp.runs import Service

        taken = {tool.name for tool in tools_of(settings.toolsets, workflow_tools=True)}
        own = workflow_tools(Service.open(settings), settings.workflow_tools, taken)

    read_only = settings.read_only
    server = WorkflowsServer(
        "workflows-mcp",
        title="Workflows",
        version=__version__,
        instructions=instructions(settings.toolsets, read_only=read_only),
        tools=LazyTools(
            lambda: [
                *tools_of(settings.toolsets, read_only=read_only, workflow_tools=bool(own)),
                *own,
            ]
        ),
        prompts=LazyPrompts(lambda: prompts_of(settings.toolsets, read_only=read_only)),
        read_only=read_only,
        limits=settings.limits,
        lifespan=lifespan,
        middleware=[wait_for_service],
        log_level=_log_level(settings),
        subscriptions=notices.bus,
        request_state_security=sealing_of(settings.home),
    )
    serve_changes(server, notices, log)
    serve_lists(server, resources=resources.listed, prompts=prompts_of_workflows, complete=complete)
    return server


def _exit_on_signals(service: LazyService) -> None:
    """Close the service on a signal, and exit.

    The protocol cannot end first: a thread that cannot be interrupted is reading the next message.
    """
    loop = asyncio.get_running_loop()

    async def close_and_exit(number: int) -> None:
        try:
            await service.close()
        finally:
            os._exit(128 + number)

    tasks: set[asyncio.Task[None]] = set()

    def on_signal(number: int) -> None:
        tasks.add(loop.create_task(close_and_exit(number)))

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)


def serve_stdio(settings: Settings) -> None:
    log_to_stderr(settings)
    build_server(settings).run("stdio")


def log_to_stderr(settings: Settings) -> None:
    logging.basicConfig(
        stream=sys.stderr, level=_log_level(settings), format="%(levelname)s %(name)s: %(message)s"
    )


def _log_level(settings: Settings) -> Any:
    level = settings.log_level.upper()
    return level if level in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL") else "WARNING"
