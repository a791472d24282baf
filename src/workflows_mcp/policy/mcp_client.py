"""Calls tools of other MCP servers.

    tools = ToolServers(servers_of(settings.mcp_servers), trusts=settings.trusts)
    result = await tools.call("github.create_issue", {"title": "…"}, workspace=workspace)
    await tools.close()

A server starts on first use, stays for a while after its last call, and ends with this process; one that has
died is restarted. A call is repeated only if this is harmless: it never reached the server, or the tool
declares that repeating it changes nothing.

The value of a call is the structured content, else the data in its JSON text, else the text; images and links
stay as they are. The standard error of a server goes into the log, and its last line into error messages. The
protocol library is imported on first use.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workflows_mcp.errors import Forbidden, StepError, WorkflowsError
from workflows_mcp.policy.mcp_servers import FILE_NAME, McpServer, current_environment, servers_in
from workflows_mcp.policy.rules import Denial
from workflows_mcp.values import Value, did_you_mean, from_json, nearest

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import Tool


logger = logging.getLogger(__name__)

CONNECT_SECONDS = 30.0
IDLE_SECONDS = 300.0
"""How long an unused server stays."""
CLOSE_SECONDS = 8.0
_AT_ONCE_SECONDS = 0.5
"""A call that fails sooner was never sent, because its server had already ended."""

INTERNAL = "WORKFLOWS_"
"""The prefix of our settings, which other servers do not get."""
_PAGES = 100
_TAIL_BYTES = 2000
_CLAUDE = "mcp__"
_ENVELOPE = frozenset(
    {"content", "structuredContent", "structured_content", "isError", "is_error", "_meta", "meta"}
    | {"resultType", "result_type"}
)

Denied = Callable[[str], Denial | None]
"""Returns why a capability is denied; None if it is allowed."""


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
        """`trusts`: whether to use the servers in the file of a directory."""
        self._servers = dict(servers or {})
        self._trusts = trusts
        self._idle_seconds = idle_seconds
        self._connections: dict[tuple[Path, str], Connection] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def servers(self, workspace: Path) -> dict[str, McpServer]:
        """The servers for runs in `workspace`; the settings take precedence over its file."""
        found = servers_in(workspace)
        return {**(found if found and self._trusts(workspace) else {}), **self._servers}

    def _untrusted(self, workspace: Path) -> str:
        """The hint to trust the workspace, if its file has servers; else empty."""
        if not servers_in(workspace) or self._trusts(workspace):
            return ""
        place = shlex.quote(str(workspace))
        return f"to use the servers in {FILE_NAME}, trust its directory: workflows-mcp trust {place}"

    async def call(
        self,
        tool: str,
        arguments: dict[str, Value],
        *,
        workspace: Path,
        denied: Denied = _nothing_denied,
    ) -> ToolResult:
        """Call `server.tool`, or the only tool of that name.

        Raises StepError if it cannot be called. A tool that was called and failed returns a failed result.
        """
        server, name = await self._resolve(tool, workspace, denied)
        _refuse_denied(server, denied)
        connection = await self._connect(server, workspace)
        try:
            return await _call(connection, name, arguments)
        except Gone as gone:
            if not (gone.undelivered or _is_harmless(connection.tools.get(name))):
                raise StepError(
                    f"the MCP server '{server.name}' ended while it ran '{name}'{gone.last_output}",
                    hint="the tool may have completed: check before you run it again",
                ) from None
        logger.warning("the MCP server '%s' has ended, and is restarted", server.name)
        self._drop(connection)
        connection = await self._connect(server, workspace)
        try:
            return await _call(connection, name, arguments)
        except Gone as gone:
            message = f"the MCP server '{server.name}' ended again in '{name}'{gone.last_output}"
            raise StepError(message) from None

    async def close(self) -> None:
        for connection in list(self._connections.values()):
            self._drop(connection)
        if self._closing:
            await asyncio.wait(self._closing, timeout=CLOSE_SECONDS)

    # Which server, which tool

    async def _resolve(self, tool: str, workspace: Path, denied: Denied) -> tuple[McpServer, str]:
        servers = self.servers(workspace)
        if not servers:
            raise StepError(
                f"the tool '{tool}' cannot be called: no MCP server is configured",
                hint=self._untrusted(workspace)
                or f"add one to workflows.toml ([mcp_servers.name]) or {FILE_NAME}, or let the agent call "
                "the tool (run_on: agent)",
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
        return await self._search(named, usable, workspace)

    async def _search(
        self, tool: str, servers: Mapping[str, McpServer], workspace: Path
    ) -> tuple[McpServer, str]:
        """The only server with a tool of this name."""
        prefix = tool.partition(".")[0] if "." in tool else ""
        close = nearest(prefix, servers) if prefix else None
        if close is not None:
            raise StepError(f"there is no MCP server '{prefix}'", hint=did_you_mean(prefix, servers))
        found = await asyncio.gather(
            *(self._connect(server, workspace) for server in servers.values()), return_exceptions=True
        )
        connections = [it for it in found if isinstance(it, Connection)]
        matches = [it for it in connections if tool in it.tools]
        if len(matches) == 1:
            return matches[0].server, tool
        if matches:
            names = " and ".join(f"{it.server.name}.{tool}" for it in matches)
            raise StepError(f"several MCP servers have a tool '{tool}'", hint=f"choose one: {names}")
        for error in found:
            if isinstance(error, BaseException) and not isinstance(error, WorkflowsError):
                raise error
        failed = [str(error) for error in found if isinstance(error, WorkflowsError)]
        known = [f"{it.server.name}.{name}" for it in connections for name in it.tools]
        what = f"there is no MCP server '{prefix}'" if prefix else f"no MCP server has a tool '{tool}'"
        raise StepError("; ".join((what, *failed)), hint=did_you_mean(tool, known, what="tools are"))

    # Connections

    async def _connect(self, server: McpServer, workspace: Path) -> Connection:
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


async def _call(connection: Connection, tool: str, arguments: dict[str, Value]) -> ToolResult:
    if not await connection.has(tool):
        hint = did_you_mean(tool, connection.tools, what=f"tools of '{connection.server.name}'")
        raise StepError(f"the MCP server '{connection.server.name}' has no tool '{tool}'", hint=hint)
    return await connection.call(tool, arguments)


def _is_harmless(tool: Tool | None) -> bool:
    """Whether the tool declares that a second call changes nothing."""
    hints = tool.annotations if tool is not None else None
    return hints is not None and (hints.read_only_hint is True or hints.idempotent_hint is True)


# One connection


class Gone(Exception):
    """The connection ended during a call."""

    def __init__(self, last_output: str, *, undelivered: bool) -> None:
        super().__init__()
        self.last_output = last_output
        self.undelivered = undelivered
        """The call certainly did not reach the server."""


class Connection:
    """A connection. It lives in one task, as the protocol library requires; any task may call it."""

    def __init__(
        self,
        server: McpServer,
        workspace: Path,
        idle_seconds: float,
        drop: Callable[[Connection], None],
    ) -> None:
        self.server = server
        self.workspace = workspace
        self.tools: dict[str, Tool] = {}
        self._idle_seconds = idle_seconds
        self._drop = drop
        self._calls = 0
        self._timer: asyncio.TimerHandle | None = None
        self._tail = _Tail(server.name)
        self._stop = asyncio.Event()
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._log_end)

    @property
    def ended(self) -> bool:
        return self._task.done()

    @property
    def silent(self) -> bool:
        """Whether its standard error is closed: the program has ended, or has closed it."""
        return self._tail.ended

    async def ready(self) -> None:
        """Wait until the server can be called. Raises StepError if it cannot."""
        await asyncio.shield(self._client)

    async def has(self, tool: str) -> bool:
        """Whether the server has the tool; unknown tools are looked up again. Raises Gone."""
        if tool not in self.tools:
            try:
                self.tools = await self._await(_list_tools(self._client.result()))
            except Gone as gone:
                raise Gone(gone.last_output, undelivered=True) from None
        return tool in self.tools

    async def call(self, name: str, arguments: dict[str, Value]) -> ToolResult:
        """Call a tool. Raises Gone if the connection ends, StepError if the server rejects the call."""
        from mcp.shared.exceptions import MCPError
        from pydantic import ValidationError

        try:
            answer = await self._await(self._client.result().call_tool(name, arguments))
        except (MCPError, ValidationError, RuntimeError, ValueError) as error:
            raise StepError(f"the call of '{self.server.name}.{name}' failed: {error}") from None
        content = [
            block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in answer.content
        ]
        return tool_result(answer.structured_content, content, failed=answer.is_error)

    def stop(self) -> asyncio.Task[None]:
        """End the connection; the task is done once it has ended."""
        self._stop.set()
        if self._timer is not None:
            self._timer.cancel()
        return self._task

    # Inside

    async def _await(self, work: Any) -> Any:
        """Await a request to the server; raises Gone when the connection ends first."""
        import httpx2
        from mcp.shared.exceptions import MCPError
        from mcp.types import CONNECTION_CLOSED

        loop = asyncio.get_running_loop()
        silent, started = self.silent, loop.time()
        self._count_call(1)
        request = asyncio.ensure_future(work)
        try:
            await asyncio.wait((request, self._task), return_when=asyncio.FIRST_COMPLETED)
            if request.done() and not request.cancelled():
                try:
                    return request.result()
                except MCPError as error:
                    if error.code != CONNECTION_CLOSED:
                        raise
        finally:
            if not request.done():
                request.cancel()
                with suppress(BaseException):
                    await request
            self._count_call(-1)
        at_once = loop.time() - started < _AT_ONCE_SECONDS
        await asyncio.wait((self._task,), timeout=0.2)  # for the cause
        cause = self._cause()
        raise Gone(
            f": {cause}" if cause else self._tail.last_output,
            undelivered=(silent and at_once) or isinstance(cause, httpx2.ConnectError),
        )

    def _cause(self) -> BaseException | None:
        if not self._task.done() or self._task.cancelled():
            return None
        error = self._task.exception()
        return _innermost(error) if error is not None else None

    def _log_end(self, _: asyncio.Task[None]) -> None:
        if (cause := self._cause()) is not None:
            logger.info("the connection to the MCP server '%s' has ended: %s", self.server.name, cause)

    def _count_call(self, change: int) -> None:
        """Count the open calls, and end the server some time after the last one."""
        self._calls += change
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._calls == 0 and not self._stop.is_set():
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._idle_seconds, self._drop, self)

    async def _run(self) -> None:
        try:
            async with self._open() as client:
                self.tools = await _list_tools(client)
                self._client.set_result(client)
                self._count_call(0)
                await self._stop.wait()
        except BaseException as error:
            if not self._client.done():
                self._client.set_exception(self._unreachable(error))
                self._client.exception()  # marks it as retrieved, if nobody awaits it any more
            elif not self._stop.is_set():
                raise
        finally:
            self._tail.close()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Client]:
        import httpx2
        from mcp import Client, StdioServerParameters
        from mcp.client.stdio import stdio_client
        from mcp.client.streamable_http import streamable_http_client

        environ = current_environment()
        server = self.server.filled(environ)
        if server.url:
            timeout = httpx2.Timeout(CONNECT_SECONDS, read=None)
            async with httpx2.AsyncClient(headers=dict(server.headers), timeout=timeout) as http:
                transport = streamable_http_client(server.url, http_client=http)
                async with _connected_in_time(Client(transport)) as client:
                    yield client
            return
        inherited = {name: value for name, value in environ.items() if not name.startswith(INTERNAL)}
        parameters = StdioServerParameters(
            command=server.command,
            args=list(server.args),
            env={**inherited, **server.env},
            cwd=self.workspace / server.cwd if server.cwd else self.workspace,
        )
        async with _connected_in_time(Client(stdio_client(parameters, errlog=self._tail.file))) as client:
            self._tail.started()
            yield client

    def _unreachable(self, error: BaseException) -> StepError:
        name, cause = self.server.name, _innermost(error)
        if isinstance(cause, StepError):
            return cause
        if isinstance(cause, FileNotFoundError):
            return StepError(
                f"the MCP server '{name}' cannot be started: command not found: {self.server.command}",
                hint="install it, or correct the command in the configuration of the server",
            )
        if isinstance(cause, TimeoutError):
            why = f"it did not answer within {CONNECT_SECONDS:g} seconds"
        else:
            why = str(cause) or type(cause).__name__
        what = "reached" if self.server.url else "started"
        return StepError(f"the MCP server '{name}' cannot be {what}: {why}{self._tail.last_output}")


@asynccontextmanager
async def _connected_in_time(client: Client) -> AsyncIterator[Client]:
    """Connect the client within the time limit, or raise TimeoutError."""
    async with asyncio.timeout(CONNECT_SECONDS) as limit:
        async with client as connected:
            limit.reschedule(None)
            yield connected


async def _list_tools(client: Client) -> dict[str, Tool]:
    tools: dict[str, Tool] = {}
    cursor: str | None = None
    for _ in range(_PAGES):
        page = await client.list_tools(cursor=cursor, cache_mode="bypass")
        tools |= {tool.name: tool for tool in page.tools}
        cursor = page.next_cursor
        if cursor is None:
            break
    return tools


def _innermost(error: BaseException) -> BaseException:
    """The cause of an error, without exception groups around it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class _Tail:
    """Logs the standard error of a server, and keeps its end for error messages.

    When the pipe closes, the server has ended.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._kept = b""
        self._loop = asyncio.get_running_loop()
        self._reading, writing = os.pipe()
        os.set_blocking(self._reading, False)
        self.file = os.fdopen(writing, "w")
        self.ended = False
        self._loop.add_reader(self._reading, self._read)

    @property
    def last_output(self) -> str:
        self._read()
        lines = [line for line in self._kept.decode("utf-8", "replace").splitlines() if line.strip()]
        return f"; it printed last: {lines[-1].strip()[:300]}" if lines else ""

    def started(self) -> None:
        """Close our copy of the pipe: from now on, its end is the end of the server."""
        self.file.close()

    def close(self) -> None:
        self.file.close()
        self._read()
        self._end()

    def _read(self) -> None:
        while self._reading >= 0:
            try:
                data = os.read(self._reading, 65536)
            except BlockingIOError:
                return
            if not data:
                self._end()
                return
            self._kept = (self._kept + data)[-_TAIL_BYTES:]
            logger.debug("%s: %s", self._name, data.decode("utf-8", "replace").rstrip())

    def _end(self) -> None:
        if self._reading >= 0:
            self._loop.remove_reader(self._reading)
            os.close(self._reading)
            self._reading = -1
            self.ended = True


# Results of tools


@dataclass(frozen=True, slots=True)
class ToolResult:
    value: Value
    failed: bool = False
    """The tool was called and reports a failure."""
    message: str = ""
    """The reason of the failure."""


def tool_result(structured: Any, content: list[dict[str, Any]], *, failed: bool = False) -> ToolResult:
    """The result of a call; `content` has the content blocks of the protocol."""
    texts = [block["text"] for block in content if block.get("type") == "text" and "text" in block]
    text = "\n".join(texts)
    value: Value = structured
    if structured is None:
        value = _as_data(text) if len(texts) == len(content) else {"content": content}
    return ToolResult(value, failed, text.strip() or "it gave no reason") if failed else ToolResult(value)


def unpacked(result: Value) -> ToolResult:
    """The result in a forwarded value: a result in the format of the protocol, or its value only."""
    if not isinstance(result, dict):
        return ToolResult(result)
    failed = result.get("is_error") is True or result.get("isError") is True
    content = result.get("content")
    packed = isinstance(content, list) and all(isinstance(it, dict) and "type" in it for it in content)
    if packed and result.keys() <= _ENVELOPE:
        structured = result.get("structuredContent", result.get("structured_content"))
        return tool_result(structured, content or [], failed=failed)
    if not failed:
        return ToolResult(result)
    messages = [text for key in ("error", "message", "text") if isinstance(text := result.get(key), str)]
    return ToolResult(result, failed, next(iter(messages), "") or "it gave no reason")


def _as_data(text: str) -> Value:
    try:
        return from_json(text)
    except ValueError:
        return text
