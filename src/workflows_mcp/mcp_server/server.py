"""Serves the toolsets over MCP. One service for the life of the server: opening it goes on with what a
dead process left; closing it leaves every run to be taken over. A call that is cancelled stops waiting;
its run goes on."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, CallToolResult, InputRequiredResult

from workflows_mcp import __version__
from workflows_mcp.mcp_server.tooling import refuse_bad_arguments, without_nulls
from workflows_mcp.mcp_server.toolsets import INSTRUCTIONS, instructions, tools_of
from workflows_mcp.service import Service
from workflows_mcp.settings import Settings
from workflows_mcp.values import did_you_mean

__all__ = ["INSTRUCTIONS", "build_server", "serve_stdio"]


class WorkflowsServer(MCPServer[Service]):
    """The server of the protocol library, with refusals that say what was meant."""

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Service, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        tools = {tool.name: tool for tool in self._tool_manager.list_tools()}
        tool = tools.get(name)
        if tool is None:
            hint = did_you_mean(name, tools, what="tools")
            raise MCPError(INVALID_PARAMS, f"Unknown tool: {name}; {hint}")
        given = without_nulls(tool, arguments)
        refuse_bad_arguments(tool, given)
        return await super().call_tool(name, given, context)


def build_server(settings: Settings) -> WorkflowsServer:
    @asynccontextmanager
    async def lifespan(_: MCPServer[Service]) -> AsyncIterator[Service]:
        # Standard output belongs to the protocol, which has taken its descriptor by now: whatever is
        # still printed by accident goes to the log.
        printed_to, sys.stdout = sys.stdout, sys.stderr
        try:
            async with Service.open(settings) as service:
                _end_when_asked(service)
                yield service
        finally:
            sys.stdout = printed_to

    return WorkflowsServer(
        "workflows-mcp",
        title="Workflows",
        version=__version__,
        instructions=instructions(settings.toolsets),
        tools=tools_of(settings.toolsets),
        lifespan=lifespan,
        log_level=_log_level(settings),
    )


def _end_when_asked(service: Service) -> None:
    """On a signal, end what is under way and go. Waiting for the protocol to end would be waiting for the
    client, because its next message is being read by a thread that cannot be interrupted."""
    loop = asyncio.get_running_loop()

    async def end(number: int) -> None:
        try:
            await service.__aexit__(None, None, None)
        finally:
            os._exit(128 + number)

    tasks: set[asyncio.Task[None]] = set()

    def asked(number: int) -> None:
        tasks.add(loop.create_task(end(number)))

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        loop.add_signal_handler(number, asked, number)


def serve_stdio(settings: Settings) -> None:
    logging.basicConfig(
        stream=sys.stderr, level=_log_level(settings), format="%(levelname)s %(name)s: %(message)s"
    )
    build_server(settings).run("stdio")


def _log_level(settings: Settings) -> Any:
    level = settings.log_level.upper()
    return level if level in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL") else "WARNING"
