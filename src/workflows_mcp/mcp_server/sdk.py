"""Uses private parts of the protocol library; no other module does (tested).

    server = MCPServer(…)
    serve_changes(server, notices, log)         # subscriptions, and the log
    await serve_lines(server)                   # stdio; unreadable lines are answered

`MCPServer` cannot serve three requests of clients of the handshake era (up to 2025-11-25):
`resources/subscribe`, `resources/unsubscribe` and `logging/setLevel`. In the era of 2026-07-28 it claims to
report every change of its lists, and does not expose which resources a client listens to. Its low-level
server can do all of that, but is private, as the connection of a client is. A new version of the library
breaks this module, and no other. All transports are served by the low-level server, so all of this holds for
each of them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Self

from mcp.server import MCPServer
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import ListenHandler, ResourceUpdated, ServerEvent
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp.types import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    EmptyResult,
    ErrorData,
    JSONRPCError,
    JSONRPCRequest,
    LoggingLevel,
    ServerCapabilities,
    SetLevelRequestParams,
    SubscribeRequestParams,
    SubscriptionFilter,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
    UnsubscribeRequestParams,
)
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from workflows_mcp.errors import RequestError, WorkflowsError
from workflows_mcp.mcp_server.notices import Notices
from workflows_mcp.mcp_server.resources import is_ours, unknown
from workflows_mcp.mcp_server.tooling import render_error
from workflows_mcp.values import is_whole

if TYPE_CHECKING:
    from workflows_mcp.runs import Service

    Request = ServerRequestContext[Service, Any]


async def serve_lines(server: MCPServer[Service]) -> None:
    """Serve over stdio until the client closes it."""
    low = server._lowlevel_server
    async with stdio_server() as (incoming, outgoing):
        await low.run(Readable(incoming, outgoing), outgoing, low.create_initialization_options())


def serve_changes(server: MCPServer[Service], notices: Notices, log: ClientLog) -> None:
    """Serve subscriptions in both eras, the log in the era that has it, and declare just that."""
    low = server._lowlevel_server
    listen = ListenHandler(notices.bus)

    async def follow(ctx: Request, uri: str) -> Callable[[], None]:
        """Raises WorkflowsError if no such resource exists."""
        if not is_ours(uri) and uri not in {str(it.uri) for it in await server.list_resources()}:
            raise RequestError(str(unknown(uri)))
        return await notices.follow(ctx.lifespan_context, uri)

    async def subscribe(ctx: Request, params: SubscribeRequestParams) -> EmptyResult:
        try:
            uri = str(params.uri)
            await _push(ctx, notices, log).subscribe(uri, partial(follow, ctx, uri))
        except WorkflowsError as error:
            raise MCPError(INVALID_PARAMS, render_error(error), {"uri": str(params.uri)}) from None
        return EmptyResult()

    async def unsubscribe(ctx: Request, params: UnsubscribeRequestParams) -> EmptyResult:
        _push(ctx, notices, log).unsubscribe(str(params.uri))
        return EmptyResult()

    async def set_level(ctx: Request, params: SetLevelRequestParams) -> EmptyResult:
        push = _push(ctx, notices, log)
        log.want(push.logged, params.level)
        return EmptyResult()

    async def subscriptions(
        ctx: Request, params: SubscriptionsListenRequestParams
    ) -> SubscriptionsListenResult:
        """Lists never change and unknown runs cannot; neither is acknowledged."""
        honored: list[str] = []
        with ExitStack() as followed:
            for uri in dict.fromkeys(params.notifications.resource_subscriptions or ()):
                try:
                    followed.callback(await follow(ctx, uri))
                except WorkflowsError:
                    continue
                honored.append(uri)
            wanted = SubscriptionFilter(resource_subscriptions=honored or None)
            return await listen(ctx, params.model_copy(update={"notifications": wanted}))

    low.add_request_handler("resources/subscribe", SubscribeRequestParams, subscribe)
    low.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, unsubscribe)
    low.add_request_handler("logging/setLevel", SetLevelRequestParams, set_level)
    low.add_request_handler("subscriptions/listen", SubscriptionsListenRequestParams, subscriptions)
    low.get_capabilities = _truthful(low.get_capabilities)  # type: ignore[method-assign]


def _truthful(derived: Callable[..., ServerCapabilities]) -> Callable[..., ServerCapabilities]:
    """Declare that `list_changed` is never sent, and that only older clients get the log."""

    def capabilities(
        *positional: Any, protocol_version: str | None = None, **named: Any
    ) -> ServerCapabilities:
        found = derived(*positional, protocol_version=protocol_version, **named)
        for lists in (found.tools, found.prompts, found.resources):
            if lists is not None:
                lists.list_changed = False
        if protocol_version in MODERN_PROTOCOL_VERSIONS:
            found.logging = None
        return found

    return capabilities


# ---- notifications

_STATE_KEY = "workflows_mcp.push"
_LOG_LINES = 1000
"""How many log lines wait for a client that does not read; the oldest are dropped first."""


def _push(ctx: Request, notices: Notices, log: ClientLog) -> _Push:
    connection = ctx.session._connection
    push = connection.state.get(_STATE_KEY)
    if not isinstance(push, _Push):
        push = connection.state[_STATE_KEY] = _Push(connection, notices, log)
        connection.exit_stack.callback(push.close)
    return push


class _Push:
    """Sends changes and log lines to a client of the handshake era, as long as its connection lasts.

    A task of its own sends them, so a client that does not read delays no other.
    """

    def __init__(self, connection: Connection, notices: Notices, log: ClientLog) -> None:
        self._connection = connection
        self._log = log
        self._followed: dict[str, Callable[[], None]] = {}
        self._changed: dict[str, None] = {}
        self._logged: deque[tuple[LoggingLevel, str, str]] = deque(maxlen=_LOG_LINES)
        self._pending = asyncio.Event()
        self._stop_listening = notices.bus.subscribe(self._note_change)
        self._task = asyncio.create_task(self._send(), name="push to a client")

    async def subscribe(self, uri: str, follow: Callable[[], Awaitable[Callable[[], None]]]) -> None:
        if uri not in self._followed:
            end = await follow()
            self._followed.setdefault(uri, end)
            if self._followed[uri] is not end:  # subscribed twice at the same time
                end()

    def unsubscribe(self, uri: str) -> None:
        end = self._followed.pop(uri, None)
        if end is not None:
            end()

    def logged(self, level: LoggingLevel, text: str, logger: str) -> None:
        self._logged.append((level, text, logger))
        self._pending.set()

    def close(self) -> None:
        self._stop_listening()
        self._log.leave(self.logged)
        for uri in list(self._followed):
            self.unsubscribe(uri)
        self._task.cancel()

    def _note_change(self, event: ServerEvent) -> None:
        if isinstance(event, ResourceUpdated) and event.uri in self._followed:
            self._changed[event.uri] = None
            self._pending.set()

    async def _send(self) -> None:
        while True:
            await self._pending.wait()
            self._pending.clear()
            while (sending := self._next()) is not None:
                await sending

    def _next(self) -> Awaitable[None] | None:
        if self._changed:
            uri = next(iter(self._changed))
            del self._changed[uri]
            return self._connection.send_resource_updated(uri)
        if self._logged:
            level, text, logger = self._logged.popleft()
            params = {"level": level, "data": text, "logger": logger}
            return self._connection.notify("notifications/message", params)
        return None


# ---- the log

Send = Callable[[LoggingLevel, str, str], None]

"""Takes the level, the text and the name of the logger; never waits."""


_LOGGER = "workflows_mcp"

_NUMBERS: dict[LoggingLevel, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "notice": logging.INFO + 5,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "alert": logging.CRITICAL + 5,
    "emergency": logging.CRITICAL + 10,
}


class ClientLog(logging.Handler):
    """Sends what the server logs to the clients of the handshake era that have set a level.

    Later clients have no such request; for them the log goes to stderr only.
    """

    def __init__(self) -> None:
        super().__init__()
        self._wanted: dict[Send, tuple[int, asyncio.AbstractEventLoop]] = {}

    @contextmanager
    def listening(self) -> Iterator[None]:
        logger = logging.getLogger(_LOGGER)
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)

    def want(self, send: Send, level: LoggingLevel) -> None:
        """Send this level and above from now on."""
        self._wanted[send] = (_NUMBERS[level], asyncio.get_running_loop())

    def leave(self, send: Send) -> None:
        self._wanted.pop(send, None)

    def emit(self, record: logging.LogRecord) -> None:
        for send, (least, loop) in list(self._wanted.items()):
            if record.levelno >= least and not loop.is_closed():
                # any thread may log
                loop.call_soon_threadsafe(send, _level_of(record), record.getMessage(), record.name)


def _level_of(record: logging.LogRecord) -> LoggingLevel:
    return max(
        (level for level, number in _NUMBERS.items() if number <= record.levelno),
        key=_NUMBERS.__getitem__,
        default="debug",
    )


# ---- lines that are not messages
#
# Over stdio the protocol library ignores them, and the client waits until its time runs out. Here they get
#
#     {"jsonrpc": "2.0", "id": 7, "error": {"code": -32700, "message": "the line is no JSON: …"}}
#
# with the id of the line, if one can be found.

_SHOWN = 200

_HALF = "it holds half of a character (a lone surrogate, such as one part of an emoji): send the text whole"


_TOO_MUCH = "it is nested too deeply, or holds a number that is too long"

_NEAR = 400

_SHORT = r'\s*"(?:jsonrpc|method)"\s*:\s*"[^"\\]{0,100}"\s*'

_ID = r'\s*"id"\s*:\s*(?P<id>-?(?:0|[1-9][0-9]{0,17})|"[^"\\]{0,100}")\s*'

_AT_THE_START = re.compile(rf"\s*\{{(?:{_SHORT},)*{_ID}[,}}]")

_AT_THE_END = re.compile(rf",{_ID}(?:,{_SHORT})*\}}\s*\Z")


Item = SessionMessage | Exception


class Incoming(Protocol):
    """Yields a message, or the error of a line that is not a message."""

    last_context: Context | None

    async def receive(self) -> Item: ...
    async def __anext__(self) -> Item: ...
    async def aclose(self) -> None: ...


class Outgoing(Protocol):
    async def send(self, item: SessionMessage, /) -> None: ...


class Readable:
    """Yields the messages of a client, and answers lines that are not messages."""

    def __init__(self, incoming: Incoming, outgoing: Outgoing) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    @property
    def last_context(self) -> Context | None:
        return self._incoming.last_context

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        return await self._message(self._incoming.__anext__)

    async def receive(self) -> Item:
        return await self._message(self._incoming.receive)

    async def _message(self, received: Callable[[], Awaitable[Item]]) -> Item:
        while True:
            item = await received()
            if not isinstance(item, ValidationError):
                return item
            refusal = refusal_of(item)
            if refusal is not None:
                await self._outgoing.send(SessionMessage(refusal))

    async def aclose(self) -> None:
        await self._incoming.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def refusal_of(error: ValidationError) -> JSONRPCError | None:
    """Return the answer to an unreadable line; None if no client waits for one."""
    found = error.errors(include_url=False)
    line = next((it["input"] for it in found if it["type"] == "json_invalid"), None)
    if isinstance(line, str | bytes):
        return _no_json(line)
    # It is JSON, but no kind of message: each kind reports what is missing for it.
    message = next((it["input"] for it in found if len(it["loc"]) == 1 or it["type"] == "missing"), None)
    if isinstance(message, dict):
        if "id" not in message and isinstance(message.get("method"), str):
            return None  # a notification has no answer
        as_request = [it for it in found if it["loc"][:1] == (JSONRPCRequest.__name__,)]
        wrong = "; ".join(f"{'.'.join(map(str, it['loc'][1:]))}: {it['msg']}" for it in as_request)
        return _error(_id_in(message), INVALID_REQUEST, f"the line is no message of JSON-RPC 2.0: {wrong}")
    what = "a batch, and messages are sent one by one" if isinstance(message, list) else "no object"
    return _error(None, INVALID_REQUEST, f"the line is no message of JSON-RPC 2.0: it is {what}")


def _no_json(line: str | bytes) -> JSONRPCError | None:
    if not line.strip():
        return None
    try:
        message = json.loads(line.strip())  # less strict than the protocol library
    except RecursionError:
        return _error(_id_near_an_end(line), PARSE_ERROR, f"the line cannot be read: {_TOO_MUCH}")
    except ValueError as error:
        return _error(_id_near_an_end(line), PARSE_ERROR, f"the line is no JSON: {error}")
    why = f"is no JSON: {_HALF}" if not is_whole(message) else f"cannot be read: {_TOO_MUCH}"
    return _error(_id_in(message), PARSE_ERROR, f"the line {why}")


def _id_near_an_end(line: str | bytes) -> int | str | None:
    """Find the id of an unreadable request, before or after its long fields."""
    text = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
    found = _AT_THE_START.match(text) or _AT_THE_END.search(text[-_NEAR:])
    if found is None or '"method"' not in text:
        return None
    request_id = json.loads(found["id"])
    return request_id if is_whole(request_id) else None


def _id_in(message: Any) -> int | str | None:
    found = message.get("id") if isinstance(message, dict) and "method" in message else None
    is_valid = isinstance(found, int | str) and not isinstance(found, bool) and is_whole(found)
    return found if is_valid else None


def _error(message_id: int | str | None, code: int, text: str) -> JSONRPCError:
    short = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
    return JSONRPCError(jsonrpc="2.0", id=message_id, error=ErrorData(code=code, message=short))
