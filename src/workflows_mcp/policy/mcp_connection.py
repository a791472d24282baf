"""One connection to an MCP server, from its start to its end; `mcp_client` decides when there is one.

The protocol library is imported when it is first needed. What a server prints to its standard error goes into
the log, never to our own output, and the end of it into error messages.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workflows_mcp.errors import StepError
from workflows_mcp.policy.mcp_results import ToolResult, tool_result
from workflows_mcp.policy.mcp_servers import McpServer, current_environment
from workflows_mcp.values import Value

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import Tool

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 30.0
INTERNAL = "WORKFLOWS_"
"""Our own settings: other servers do not get them."""
_PAGES = 100
_TAIL_BYTES = 2000
_AT_ONCE_SECONDS = 0.5
"""How soon a call fails that was never sent, because its server was gone before."""


class Gone(Exception):
    """The connection ended during a call."""

    def __init__(self, said: str, *, undelivered: bool) -> None:
        super().__init__()
        self.said = said
        self.undelivered = undelivered
        """The call is sure not to have reached the server."""


class Connection:
    """All of it happens in one task, as the protocol library wants it; calls come from any."""

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
        self._task = asyncio.get_running_loop().create_task(self._live())
        self._task.add_done_callback(self._log_end)

    @property
    def ended(self) -> bool:
        return self._task.done()

    @property
    def silent(self) -> bool:
        """Nobody holds its standard error open any more: a program that has not closed it has ended."""
        return self._tail.ended

    async def ready(self) -> None:
        """Wait until it can be called. Raises StepError where it cannot be."""
        await asyncio.shield(self._client)

    async def has(self, tool: str) -> bool:
        """Whether there is a tool; asked again where it is not known, for tools come and go. Raises Gone."""
        if tool not in self.tools:
            try:
                self.tools = await self._during(_listed(self._client.result()))
            except Gone as gone:
                raise Gone(gone.said, undelivered=True) from None
        return tool in self.tools

    async def call(self, name: str, arguments: dict[str, Value]) -> ToolResult:
        """Raises Gone where the connection ends, StepError where the server refuses the call."""
        from mcp.shared.exceptions import MCPError
        from pydantic import ValidationError

        try:
            answer = await self._during(self._client.result().call_tool(name, arguments))
        except (MCPError, ValidationError, RuntimeError, ValueError) as error:
            raise StepError(f"the call of '{self.server.name}.{name}' failed: {error}") from None
        content = [
            block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in answer.content
        ]
        return tool_result(answer.structured_content, content, failed=answer.is_error)

    def stop(self) -> asyncio.Task[None]:
        """Have it end; the task is done when it has."""
        self._stop.set()
        if self._timer is not None:
            self._timer.cancel()
        return self._task

    # Inside

    async def _during(self, work: Any) -> Any:
        """Something asked of the server; it ends with the connection."""
        import httpx2
        from mcp.shared.exceptions import MCPError
        from mcp.types import CONNECTION_CLOSED

        loop = asyncio.get_running_loop()
        silent, started = self.silent, loop.time()
        self._in_use(1)
        asked = asyncio.ensure_future(work)
        try:
            await asyncio.wait((asked, self._task), return_when=asyncio.FIRST_COMPLETED)
            if asked.done() and not asked.cancelled():
                try:
                    return asked.result()
                except MCPError as error:
                    if error.code != CONNECTION_CLOSED:
                        raise
        finally:
            if not asked.done():
                asked.cancel()
                with suppress(BaseException):
                    await asked
            self._in_use(-1)
        at_once = loop.time() - started < _AT_ONCE_SECONDS
        await asyncio.wait((self._task,), timeout=0.2)  # to hear why
        cause = self._cause()
        raise Gone(
            f": {cause}" if cause else self._tail.said,
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

    def _in_use(self, change: int) -> None:
        """A server that nobody uses is ended after a while."""
        self._calls += change
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._calls == 0 and not self._stop.is_set():
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._idle_seconds, self._drop, self)

    async def _live(self) -> None:
        try:
            async with self._opened() as client:
                self.tools = await _listed(client)
                self._client.set_result(client)
                self._in_use(0)
                await self._stop.wait()
        except BaseException as error:
            if not self._client.done():
                self._client.set_exception(self._not_reached(error))
                self._client.exception()  # whoever waited may have gone
            elif not self._stop.is_set():
                raise
        finally:
            self._tail.close()

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Client]:
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
                async with _in_time(Client(transport)) as client:
                    yield client
            return
        inherited = {name: value for name, value in environ.items() if not name.startswith(INTERNAL)}
        parameters = StdioServerParameters(
            command=server.command,
            args=list(server.args),
            env={**inherited, **server.env},
            cwd=self.workspace / server.cwd if server.cwd else self.workspace,
        )
        async with _in_time(Client(stdio_client(parameters, errlog=self._tail.file))) as client:
            self._tail.started()
            yield client

    def _not_reached(self, error: BaseException) -> StepError:
        name, cause = self.server.name, _innermost(error)
        if isinstance(cause, StepError):
            return cause
        if isinstance(cause, FileNotFoundError):
            return StepError(
                f"the MCP server '{name}' cannot be started: command not found: {self.server.command}",
                hint="install it, or correct its command where the server is described",
            )
        if isinstance(cause, TimeoutError):
            why = f"it did not answer within {CONNECT_SECONDS:g} seconds"
        else:
            why = str(cause) or type(cause).__name__
        what = "reached" if self.server.url else "started"
        return StepError(f"the MCP server '{name}' cannot be {what}: {why}{self._tail.said}")


@asynccontextmanager
async def _in_time(client: Client) -> AsyncIterator[Client]:
    """A client that has connected in time, or TimeoutError."""
    async with asyncio.timeout(CONNECT_SECONDS) as limit:
        async with client as connected:
            limit.reschedule(None)
            yield connected


async def _listed(client: Client) -> dict[str, Tool]:
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
    """What went wrong, without the wrappings of the task groups that it came through."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class _Tail:
    """What a server prints to its standard error: into the log, the end of it kept for an error message. When
    nobody holds that output open any more, the server has ended."""

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
    def said(self) -> str:
        self._read()
        lines = [line for line in self._kept.decode("utf-8", "replace").splitlines() if line.strip()]
        return f"; it printed last: {lines[-1].strip()[:300]}" if lines else ""

    def started(self) -> None:
        """The server has the pipe now: from here on its end is the end of the server."""
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
