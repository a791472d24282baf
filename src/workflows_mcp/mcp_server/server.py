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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
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
    Completion,
    CompletionArgument,
    CompletionContext,
    GetPromptResult,
    InputRequiredResult,
    Prompt,
    PromptMessage,
    PromptReference,
    Resource,
    ResourceTemplate,
    ResourceTemplateReference,
    TextContent,
    Tool,
)
from pydantic import AnyUrl

from workflows_mcp import __version__
from workflows_mcp.limits import DEFAULT_WAIT
from workflows_mcp.mcp_server import resources
from workflows_mcp.mcp_server.completion import complete
from workflows_mcp.mcp_server.elicitation import Elicitation, sealing_of
from workflows_mcp.mcp_server.lazy import LazyService, wait_for_service
from workflows_mcp.mcp_server.notices import Notices
from workflows_mcp.mcp_server.prompts import ServedPrompt, prompts_of, prompts_of_workflows
from workflows_mcp.mcp_server.resources import with_links
from workflows_mcp.mcp_server.sdk import ClientLog, serve_changes, serve_lines
from workflows_mcp.mcp_server.skills import SKILL, Skills
from workflows_mcp.mcp_server.task_extension import WAIT_SECONDS, Tasks, knows_tasks
from workflows_mcp.mcp_server.tooling import (
    Content,
    RunShape,
    ServedTool,
    refuse_bad_arguments,
    shortened,
    tool_errors,
    without_nulls,
)
from workflows_mcp.mcp_server.toolsets import instructions, tools_of, toolsets_for_task, why_not_served
from workflows_mcp.runs import startup_checks
from workflows_mcp.settings import Settings
from workflows_mcp.values import did_you_mean

if TYPE_CHECKING:
    from workflows_mcp.mcp_server.hooks import HookServer
    from workflows_mcp.runs import ProgressReport, Service

    ServerOfTheLibrary = MCPServer[Service]
else:
    ServerOfTheLibrary = MCPServer


class WorkflowsServer(ServerOfTheLibrary):
    """The server of the protocol library, with better errors, questions to the user, and tasks.

    Its tools and prompts are made when they are first used. Users are asked, and long waits become tasks,
    between a call that moves a run and its answer.
    """

    def __init__(
        self, settings: Settings, service: LazyService, workflows: Sequence[ServedTool], **named: Any
    ) -> None:
        self._settings = settings
        self._service = cast("Service", service)
        self._workflows = workflows
        # a sub-agent has no user who could fill in a form
        self._elicitation = Elicitation() if settings.starts_runs else None
        tasks = Tasks(
            self._tool,
            stores_notes=not settings.read_only,
            elicitation=self._elicitation,
        )
        self._skills = Skills(settings)
        super().__init__(
            "workflows-mcp",
            title="Workflows",
            version=__version__,
            instructions=instructions(settings.toolsets, read_only=settings.read_only, task=settings.task),
            extensions=[tasks, self._skills],
            middleware=[wait_for_service],
            log_level=_log_level(settings),
            request_state_security=sealing_of(settings.home),
            **named,
        )
        self.completion()(self._complete)  # type: ignore[no-untyped-call]

    @cached_property
    def _tools(self) -> dict[str, ServedTool]:
        settings = self._settings
        own = tools_of(
            settings.toolsets,
            read_only=settings.read_only,
            workflow_tools=bool(self._workflows),
            task=settings.task,
        )
        return {tool.name: tool for tool in (*own, *self._workflows)}

    def _tool(self, name: str) -> ServedTool | None:
        return self._tools.get(name)

    @cached_property
    def _prompts(self) -> dict[str, ServedPrompt]:
        settings = self._settings
        prompts = prompts_of(settings.toolsets, read_only=settings.read_only, task=settings.task)
        return {prompt.offered.name: prompt for prompt in prompts}

    async def run_stdio_async(self) -> None:
        await serve_lines(self)

    async def list_tools(self) -> list[Tool]:
        return [*(tool.offered for tool in self._tools.values()), *await super().list_tools()]

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Service, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        tool = self._tools.get(name)
        if tool is None or context is None:
            names = [tool.name for tool in await self.list_tools()]
            if name in names:
                return await super().call_tool(name, arguments, context)
            settings = self._settings
            why = why_not_served(name, read_only=settings.read_only, task=settings.task)
            hint = why or did_you_mean(name, names, what="tools")
            raise MCPError(INVALID_PARAMS, shortened(f"Unknown tool: {name}; {hint}"))
        given = without_nulls(tool, arguments)
        refuse_bad_arguments(tool, given, self._settings.limits)
        with reporting_progress(context), tool_errors(name), _calling(context):
            if tool.shape is None:
                return tool.result(await tool.call(given, context, inf))
            content = await self._move_run(tool, tool.shape, given, context)
            return with_links(tool.result(content)) if isinstance(content, dict) else content

    async def _move_run(
        self, tool: ServedTool, shape: RunShape, given: dict[str, Any], context: Context[Service, Any]
    ) -> Content | InputRequiredResult:
        becomes_task = shape.becomes_task and knows_tasks(context.request_context)
        most_seconds = WAIT_SECONDS if becomes_task else inf

        async def fetch(run_id: str) -> Content:
            seconds = min(DEFAULT_WAIT, most_seconds)
            return await shape.read(self._service, run_id, seconds, tool.style_in(given))

        elicitation = self._elicitation
        if elicitation is not None and (answered := elicitation.answer_in(context)) is not None:
            return await elicitation.take_answer(answered, context, fetch)
        content = await tool.call(given, context, most_seconds)
        run_id = tool.run_of(given, content)
        if elicitation is None or run_id is None or tool.is_peek(given):
            return content
        return await elicitation.ask(run_id, content, context, fetch)

    async def list_prompts(self) -> list[Prompt]:
        # those of the server come first, and take precedence
        every = {**self._prompts, **self._prompts_of_workflows(), **self._prompts}
        return [*(prompt.offered for prompt in every.values()), *await super().list_prompts()]

    def _prompts_of_workflows(self) -> dict[str, ServedPrompt]:
        if not self._settings.starts_runs:
            return {}
        return {prompt.offered.name: prompt for prompt in prompts_of_workflows(self._service)}

    async def get_prompt(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        context: Context[Service, Any] | None = None,
    ) -> GetPromptResult | InputRequiredResult:
        known = {prompt.name: prompt for prompt in await self.list_prompts()}
        if name not in known:
            hint = did_you_mean(name, known, what="prompts")
            raise MCPError(INVALID_PARAMS, f"Unknown prompt: {name}; {hint}")
        required = {argument.name: argument.required for argument in known[name].arguments or ()}
        # an empty field of a form is not given
        given = {argument: value for argument, value in (arguments or {}).items() if value != ""}
        problems = [f"'{it}' is missing" for it, needed in required.items() if needed and it not in given]
        problems += [
            f"unknown argument '{it}': {did_you_mean(it, required, what='it takes')}"
            for it in given
            if it not in required
        ]
        if problems:
            raise MCPError(INVALID_PARAMS, f"{name}: {'; '.join(problems)}")
        prompt = self._prompts.get(name) or self._prompts_of_workflows().get(name)
        if prompt is None:
            return await super().get_prompt(name, given, context)
        text = TextContent(type="text", text=await prompt.render(self._service, given))
        return GetPromptResult(
            description=prompt.offered.description, messages=[PromptMessage(role="user", content=text)]
        )

    async def _complete(
        self,
        ref: PromptReference | ResourceTemplateReference,
        argument: CompletionArgument,
        context: CompletionContext | None,
    ) -> Completion:
        own = [*self._prompts, *(prompt.name for prompt in await super().list_prompts())]
        return await complete(self._service, own, ref, argument, context)

    async def list_resources(self) -> list[Resource]:
        own = [*self._skills.resources_listed(), *await resources.listed(self._service)]
        return [*own, *await super().list_resources()]

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        return [*resources.TEMPLATES, *await super().list_resource_templates()]

    async def read_resource(
        self, uri: AnyUrl | str, context: Context[Service, Any] | None = None
    ) -> Iterable[ReadResourceContents] | InputRequiredResult:
        if str(uri).startswith(SKILL):
            return [self._skills.read(self._service, str(uri))]
        if resources.is_ours(str(uri)):
            return [await resources.read(self._service, str(uri))]
        try:
            return await super().read_resource(uri, context)
        except ResourceNotFoundError:
            raise resources.unknown(str(uri)) from None


def reporting_progress(context: Context[Service, Any]) -> AbstractContextManager[None]:
    """Report the progress of the run that a call waits for, if the client has asked for it.

    A report has the number of steps that are done, their total, and the step under way.
    """
    if (context.request_context.meta or {}).get("progress_token") is None:
        return nullcontext()
    last = -1.0
    repeats = 0

    async def report(how_far: ProgressReport) -> None:
        """Progress must grow with each report; without a further step, it grows by a fraction of a step."""
        nonlocal last, repeats
        repeats = repeats + 1 if how_far.done <= last else 0
        last = max(how_far.done + repeats / (repeats + 1), last + 0.001)
        await context.report_progress(round(last, 3), how_far.total, how_far.doing)

    from workflows_mcp.runs import reporting_progress as report_to

    return report_to(report)


def _calling(context: Context[Service, Any]) -> AbstractContextManager[None]:
    from workflows_mcp.mcp_server.identity import agent_of
    from workflows_mcp.runs import calling_as

    return calling_as(agent_of(context))


def build_server(settings: Settings, *, exits_on_signals: bool = True) -> WorkflowsServer:
    if settings.task:
        settings = replace(settings, toolsets=toolsets_for_task(settings.toolsets))
    notices, log = Notices(InMemorySubscriptionBus()), ClientLog()
    hooks: list[HookServer] = []

    async def listen() -> None:
        from workflows_mcp.mcp_server.hooks import HookServer

        hooks.append(HookServer(settings, service))
        await hooks[0].open()

    service = LazyService(settings, listen)

    @asynccontextmanager
    async def lifespan(_: MCPServer[Service]) -> AsyncIterator[Service]:
        # Standard output belongs to the protocol; what is printed by accident goes to the log.
        printed_to, sys.stdout = sys.stdout, sys.stderr
        try:
            # Opening the service adds a filter for secrets to the log handlers that exist by then.
            with startup_checks(settings), log.listening():
                if settings.engine != "embedded":
                    await service.ready()  # fails at once if the Temporal server cannot be reached
                service.open_in()

                async def close() -> None:
                    for it in hooks:
                        await it.close()
                    await service.close()

                if exits_on_signals:
                    _exit_on_signals(close)
                try:
                    yield cast("Service", service)
                finally:
                    await close()
        finally:
            sys.stdout = printed_to

    workflows: list[ServedTool] = []
    if settings.workflow_tools and settings.starts_runs:
        from workflows_mcp.mcp_server.workflow_tools import workflow_tools
        from workflows_mcp.runs import Service

        taken = {tool.name for tool in tools_of(settings.toolsets, workflow_tools=True)}
        workflows = workflow_tools(Service.open(settings), settings.workflow_tools, taken)

    server = WorkflowsServer(settings, service, workflows, lifespan=lifespan, subscriptions=notices.bus)
    serve_changes(server, notices, log)
    return server


def _exit_on_signals(close: Callable[[], Awaitable[None]]) -> None:
    """Close the server on a signal, and exit.

    The protocol cannot end first: a thread that cannot be interrupted is reading the next message.
    """
    loop = asyncio.get_running_loop()

    async def close_and_exit(number: int) -> None:
        try:
            await close()
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
