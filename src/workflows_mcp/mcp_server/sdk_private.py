"""The one module that reaches into private parts of the protocol library.

`MCPServer` has no way to serve what clients of the handshake era (up to 2025-11-25) ask for beyond tools,
prompts and reading: `resources/subscribe`, `resources/unsubscribe` and `logging/setLevel`. In the era of
2026-07-28 it claims to tell of every change of its lists, and lets nobody know to which resources a client
listens. Its low-level server can do all of that, but stands behind an underscore, as the connection of a
client does: so what may break with another version of the library breaks here. It holds for every transport,
because all are served by that server. Over stdio it also passes over lines that it cannot read; ours are
answered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from mcp.server import MCPServer
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import ListenHandler, ResourceUpdated, ServerEvent
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    CompleteRequestParams,
    CompleteResult,
    Completion,
    EmptyResult,
    ListPromptsResult,
    ListResourcesResult,
    LoggingLevel,
    PaginatedRequestParams,
    Prompt,
    Resource,
    ServerCapabilities,
    SetLevelRequestParams,
    SubscribeRequestParams,
    SubscriptionFilter,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
    UnsubscribeRequestParams,
)
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

from workflows_mcp.errors import RequestError, WorkflowsError
from workflows_mcp.mcp_server.client_log import ClientLog
from workflows_mcp.mcp_server.notices import Notices
from workflows_mcp.mcp_server.resources import is_ours, unknown
from workflows_mcp.mcp_server.tooling import worded
from workflows_mcp.mcp_server.unreadable import Readable

if TYPE_CHECKING:
    from workflows_mcp.service import Service

    Request = ServerRequestContext[Service, Any]

_KEPT_AS = "workflows_mcp.told"
_MOST_LOGGED = 1000
"""How much of the log waits for a client that does not read; the oldest is lost first."""


async def serve_lines(server: MCPServer[Service]) -> None:
    """Over stdio, until the client closes it."""
    low = server._lowlevel_server
    async with stdio_server() as (incoming, outgoing):
        await low.run(Readable(incoming, outgoing), outgoing, low.create_initialization_options())


def serve_changes(server: MCPServer[Service], notices: Notices, log: ClientLog) -> None:
    """Serve subscriptions in both eras, and the log in the one that has it; say of it what is true."""
    low = server._lowlevel_server
    listen = ListenHandler(notices.bus)

    async def follow(ctx: Request, uri: str) -> Callable[[], None]:
        """Raises WorkflowsError where there is nothing that could change."""
        if not is_ours(uri) and uri not in {str(it.uri) for it in await server.list_resources()}:
            raise RequestError(str(unknown(uri)))
        return await notices.follow(ctx.lifespan_context, uri)

    async def subscribe(ctx: Request, params: SubscribeRequestParams) -> EmptyResult:
        try:
            uri = str(params.uri)
            await _told(ctx, notices, log).subscribe(uri, partial(follow, ctx, uri))
        except WorkflowsError as error:
            raise MCPError(INVALID_PARAMS, worded(error), {"uri": str(params.uri)}) from None
        return EmptyResult()

    async def unsubscribe(ctx: Request, params: UnsubscribeRequestParams) -> EmptyResult:
        _told(ctx, notices, log).unsubscribe(str(params.uri))
        return EmptyResult()

    async def set_level(ctx: Request, params: SetLevelRequestParams) -> EmptyResult:
        told = _told(ctx, notices, log)
        log.want(told.logged, params.level)
        return EmptyResult()

    async def subscriptions(
        ctx: Request, params: SubscriptionsListenRequestParams
    ) -> SubscriptionsListenResult:
        """What cannot be told of is not acknowledged: lists, and runs that are not there."""
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


def serve_lists(
    server: MCPServer[Service],
    *,
    resources: Callable[[Service], Awaitable[list[Resource]]],
    prompts: Callable[[Service], list[Prompt]],
    complete: Callable[[Service, CompleteRequestParams, list[str]], Awaitable[Completion]],
) -> None:
    """List what changes while the server runs beside what was added to it, and complete what is typed: the
    methods of `MCPServer` for that are told nothing of the request, and so nothing of the service."""
    low = server._lowlevel_server

    async def list_resources(ctx: Request, _: PaginatedRequestParams) -> ListResourcesResult:
        changing = await resources(ctx.lifespan_context)
        return ListResourcesResult(resources=[*changing, *await server.list_resources()])

    async def list_prompts(ctx: Request, _: PaginatedRequestParams) -> ListPromptsResult:
        own = await server.list_prompts()
        names = {prompt.name for prompt in own}
        changing = [prompt for prompt in prompts(ctx.lifespan_context) if prompt.name not in names]
        return ListPromptsResult(prompts=[*own, *changing])

    async def completion(ctx: Request, params: CompleteRequestParams) -> CompleteResult:
        own = [prompt.name for prompt in await server.list_prompts()]
        return CompleteResult(completion=await complete(ctx.lifespan_context, params, own))

    low.add_request_handler("resources/list", PaginatedRequestParams, list_resources)
    low.add_request_handler("prompts/list", PaginatedRequestParams, list_prompts)
    low.add_request_handler("completion/complete", CompleteRequestParams, completion)


def _truthful(derived: Callable[..., ServerCapabilities]) -> Callable[..., ServerCapabilities]:
    """Nobody is told that a list has changed, in neither era; the log goes to old clients only."""

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


def _told(ctx: Request, notices: Notices, log: ClientLog) -> _Told:
    connection = ctx.session._connection
    told = connection.state.get(_KEPT_AS)
    if not isinstance(told, _Told):
        told = connection.state[_KEPT_AS] = _Told(connection, notices, log)
        connection.exit_stack.callback(told.close)
    return told


class _Told:
    """What a client of the handshake era is told without having asked, as long as its connection lasts. It is
    sent by a task of its own: a client that does not read holds up nobody else."""

    def __init__(self, connection: Connection, notices: Notices, log: ClientLog) -> None:
        self._connection = connection
        self._log = log
        self._followed: dict[str, Callable[[], None]] = {}
        self._changed: dict[str, None] = {}
        self._logged: deque[tuple[LoggingLevel, str, str]] = deque(maxlen=_MOST_LOGGED)
        self._something = asyncio.Event()
        self._deaf = notices.bus.subscribe(self._hear)
        self._task = asyncio.create_task(self._send(), name="what a client is told")

    async def subscribe(self, uri: str, follow: Callable[[], Awaitable[Callable[[], None]]]) -> None:
        if uri not in self._followed:
            end = await follow()
            self._followed.setdefault(uri, end)
            if self._followed[uri] is not end:  # asked for twice at once
                end()

    def unsubscribe(self, uri: str) -> None:
        end = self._followed.pop(uri, None)
        if end is not None:
            end()

    def logged(self, level: LoggingLevel, text: str, logger: str) -> None:
        self._logged.append((level, text, logger))
        self._something.set()

    def close(self) -> None:
        self._deaf()
        self._log.leave(self.logged)
        for uri in list(self._followed):
            self.unsubscribe(uri)
        self._task.cancel()

    def _hear(self, event: ServerEvent) -> None:
        if isinstance(event, ResourceUpdated) and event.uri in self._followed:
            self._changed[event.uri] = None
            self._something.set()

    async def _send(self) -> None:
        while True:
            await self._something.wait()
            self._something.clear()
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
