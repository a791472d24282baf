"""Calls tools of other MCP servers. A server is started when it is first needed, kept while it is used and
for a while after, and ended with us; one that has died is started again.

    tools = ToolServers(servers_of(settings.mcp_servers), trusts=settings.trusts)
    result = await tools.call("github.create_issue", {"title": "…"}, workspace=workspace)
    await tools.close()

A call whose server dies is repeated only if that can do no harm: the call did not get there, or the tool says
that repeating it does nothing. Must not know steps or runs.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from workflows_mcp.errors import Forbidden, StepError, WorkflowsError
from workflows_mcp.policy.mcp_connection import Connection, Gone
from workflows_mcp.policy.mcp_results import ToolResult
from workflows_mcp.policy.mcp_servers import FILE_NAME, McpServer, servers_in
from workflows_mcp.policy.rules import Denial
from workflows_mcp.values import Value, did_you_mean, nearest

if TYPE_CHECKING:
    from mcp.types import Tool

logger = logging.getLogger(__name__)

IDLE_SECONDS = 300.0
"""How long a server that nobody uses is kept."""
CLOSE_SECONDS = 8.0
_CLAUDE = "mcp__"

Denied = Callable[[str], Denial | None]
"""Why a capability may not be used; None where it may."""


def _nothing_denied(_: str) -> Denial | None:
    return None


class ToolServers:
    def __init__(
        self,
        servers: Mapping[str, McpServer] | None = None,
        *,
        trusts: Callable[[Path], bool],
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        """`trusts`: whether the servers in the file of a directory count."""
        self._servers = dict(servers or {})
        self._trusts = trusts
        self._idle_seconds = idle_seconds
        self._connections: dict[tuple[Path, str], Connection] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def servers(self, workspace: Path) -> dict[str, McpServer]:
        """All that can be used by runs in `workspace`; those of the settings go before those of its file."""
        found = servers_in(workspace)
        return {**(found if found and self._trusts(workspace) else {}), **self._servers}

    def _untrusted(self, workspace: Path) -> str:
        """Why the servers of its file are not there; empty where that is not why."""
        if not servers_in(workspace) or self._trusts(workspace):
            return ""
        place = shlex.quote(str(workspace))
        return f"{FILE_NAME} describes some, which count once you trust it: workflows-mcp trust {place}"

    async def call(
        self,
        tool: str,
        arguments: dict[str, Value],
        *,
        workspace: Path,
        denied: Denied = _nothing_denied,
    ) -> ToolResult:
        """Call `server.tool`, or the one tool of that name that there is. Raises StepError where it cannot be
        called; a tool that was called and failed says so in its result."""
        server, name = await self._resolved(tool, workspace, denied)
        _refuse_denied(server, denied)
        connection = await self._connected(server, workspace)
        try:
            return await _called(connection, name, arguments)
        except Gone as gone:
            if not (gone.undelivered or _is_harmless(connection.tools.get(name))):
                raise StepError(
                    f"the MCP server '{server.name}' ended while it carried out '{name}'{gone.said}",
                    hint="nobody knows whether it was done: look, before you run it again",
                ) from None
        logger.warning("the MCP server '%s' has ended, and is started again", server.name)
        self._drop(connection)
        connection = await self._connected(server, workspace)
        try:
            return await _called(connection, name, arguments)
        except Gone as gone:
            raise StepError(f"the MCP server '{server.name}' ended again at '{name}'{gone.said}") from None

    async def close(self) -> None:
        for connection in list(self._connections.values()):
            self._drop(connection)
        if self._closing:
            await asyncio.wait(self._closing, timeout=CLOSE_SECONDS)

    # Which server, which tool

    async def _resolved(self, tool: str, workspace: Path, denied: Denied) -> tuple[McpServer, str]:
        servers = self.servers(workspace)
        if not servers:
            raise StepError(
                f"the tool '{tool}' cannot be called: no MCP server is known",
                hint=self._untrusted(workspace)
                or f"describe one in workflows.toml ([mcp_servers.name]) or in {FILE_NAME}, or have the "
                "agent call the tool (run_on: agent)",
            )
        named = tool.removeprefix(_CLAUDE).replace("__", ".", 1) if tool.startswith(_CLAUDE) else tool
        for name in sorted(servers, key=len, reverse=True):
            if named.startswith(f"{name}.") and len(named) > len(name) + 1:
                return servers[name], named[len(name) + 1 :]
        usable = {name: server for name, server in servers.items() if denied(server.needs) is None}
        if not usable:
            _refuse_denied(next(iter(servers.values())), denied)
        if len(servers) == 1 and "." not in named:
            return next(iter(usable.values())), named
        return await self._searched(named, usable, workspace)

    async def _searched(
        self, tool: str, servers: Mapping[str, McpServer], workspace: Path
    ) -> tuple[McpServer, str]:
        """The one server that has a tool of this name."""
        prefix = tool.partition(".")[0] if "." in tool else ""
        close = nearest(prefix, servers) if prefix else None
        if close is not None:
            raise StepError(f"there is no MCP server '{prefix}'", hint=did_you_mean(prefix, servers))
        found = await asyncio.gather(
            *(self._connected(server, workspace) for server in servers.values()), return_exceptions=True
        )
        connections = [it for it in found if isinstance(it, Connection)]
        having = [it for it in connections if tool in it.tools]
        if len(having) == 1:
            return having[0].server, tool
        if having:
            names = " and ".join(f"{it.server.name}.{tool}" for it in having)
            raise StepError(f"several MCP servers have a tool '{tool}'", hint=f"say which one: {names}")
        for error in found:
            if isinstance(error, BaseException) and not isinstance(error, WorkflowsError):
                raise error
        failed = [str(error) for error in found if isinstance(error, WorkflowsError)]
        every = [f"{it.server.name}.{name}" for it in connections for name in it.tools]
        what = f"there is no MCP server '{prefix}'" if prefix else f"no MCP server has a tool '{tool}'"
        raise StepError("; ".join((what, *failed)), hint=did_you_mean(tool, every, what="tools are"))

    # Connections

    async def _connected(self, server: McpServer, workspace: Path) -> Connection:
        key = (workspace, server.name)
        connection = self._connections.get(key)
        if connection is not None and (connection.ended or connection.server != server):
            self._drop(connection)
            connection = None
        if connection is None:
            connection = Connection(server, workspace, self._idle_seconds, self._drop)
            self._connections[key] = connection
        try:
            await connection.ready()
        except WorkflowsError:
            self._drop(connection)
            raise
        return connection

    def _drop(self, connection: Connection) -> None:
        key = (connection.workspace, connection.server.name)
        if self._connections.get(key) is connection:
            del self._connections[key]
        closing = connection.stop()
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


def _refuse_denied(server: McpServer, denied: Denied) -> None:
    denial = denied(server.needs)
    if denial is not None:
        raise Forbidden(
            f"the MCP server '{server.name}' may not be used: {denial}",
            hint=denial.remedy,
        )


async def _called(connection: Connection, tool: str, arguments: dict[str, Value]) -> ToolResult:
    if not await connection.has(tool):
        hint = did_you_mean(tool, connection.tools, what=f"tools of '{connection.server.name}'")
        raise StepError(f"the MCP server '{connection.server.name}' has no tool '{tool}'", hint=hint)
    return await connection.call(tool, arguments)


def _is_harmless(tool: Tool | None) -> bool:
    """Whether the tool says that calling it twice does no more than calling it once."""
    hints = tool.annotations if tool is not None else None
    return hints is not None and (hints.read_only_hint is True or hints.idempotent_hint is True)
