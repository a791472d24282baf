"""Opens the service just after the first answer of the server.

    service = LazyService(settings)
    service.open_in(1.0)              # open it in a second at the latest
    await service.ready()             # open it now; it is opened once, however many wait

A client starts a server for every session, and its user waits for the first answer (`initialize`). That
answer needs only a name and instructions. The service opens after it, and loads its modules in a thread. A
request that needs the service waits for it. If no message comes, the service is opened all the same, because
the runs of dead processes wait for it.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.types import INTERNAL_ERROR

from workflows_mcp.errors import WorkflowsError
from workflows_mcp.settings import Settings

if TYPE_CHECKING:
    from workflows_mcp.runs import Service

logger = logging.getLogger(__name__)

_WITHOUT_SERVICE = frozenset(
    (
        "initialize",
        "server/discover",
        "ping",
        "logging/setLevel",
        "tools/list",
        "resources/templates/list",
    )
)
"""Requests that need no service."""
_AFTER_ANSWER = 0.02
"""Seconds that the answer has the processor for itself."""
_WITHOUT_MESSAGE = 1.0


class LazyService:
    """Stands for the service from the start, and passes everything on to it once it is open."""

    def __init__(self, settings: Settings, before: Callable[[], Awaitable[None]] | None = None) -> None:
        """`before` is what else can wait for the first answer; it runs before the service opens."""
        self._settings = settings
        self._before = before
        self._service: Service | None = None
        self._opening: asyncio.Task[Service] | None = None
        self._soon: asyncio.TimerHandle | None = None
        self._answered = False

    def __getattr__(self, name: str) -> Any:
        if self._service is None:
            raise RuntimeError(f"the service is not open yet, so it has no '{name}'")
        return getattr(self._service, name)

    def answered(self) -> None:
        """Open the service after the first answer of the server."""
        if not self._answered:
            self._answered = True
            self.open_in(_AFTER_ANSWER)

    def open_in(self, seconds: float = _WITHOUT_MESSAGE) -> None:
        """Open the service after `seconds`, unless it is open by then."""
        if self._soon is not None:
            self._soon.cancel()
        self._soon = asyncio.get_running_loop().call_later(seconds, self._begin)

    async def ready(self) -> Service:
        """Return the open service. Raises what keeps it from opening; the next call tries again."""
        return await asyncio.shield(self._begin(logged=False))

    async def ready_for_request(self) -> Service:
        """As `ready`, but log an error too: the user of a client may not see the answer."""
        return await asyncio.shield(self._begin())

    async def close(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if self._service is not None:
            await self._service.__aexit__(None, None, None)

    def _begin(self, *, logged: bool = True) -> asyncio.Task[Service]:
        if self._opening is None or (self._opening.done() and self._service is None):
            self._opening = asyncio.get_running_loop().create_task(self._open())
            if logged:
                self._opening.add_done_callback(_log_error)
        return self._opening

    async def _open(self) -> Service:
        if self._before is not None:
            await self._before()
            self._before = None
        service = await asyncio.to_thread(_open_service, self._settings)
        self._service = await service.__aenter__()
        # Loaded modules stay; without this the garbage collector takes some 65 ms to walk over them.
        if not gc.get_freeze_count():
            gc.freeze()
        return self._service


async def wait_for_service(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Middleware: hold a request back until the service that it needs is open."""
    service: LazyService = ctx.lifespan_context
    if ctx.method not in _WITHOUT_SERVICE and not ctx.method.startswith("notifications/"):
        try:
            await service.ready_for_request()
        except WorkflowsError as error:
            raise MCPError(INTERNAL_ERROR, str(error)) from error
    try:
        return await call_next(ctx)
    finally:
        service.answered()


def _open_service(settings: Settings) -> Service:
    """Open the service. A server for one task or only for reading leaves the runs of others alone."""
    from workflows_mcp.runs import Service, TaskService

    if settings.task:
        return cast("Service", TaskService(Service.open(settings, recovers=False), settings.task))
    return Service.open(settings, recovers=not settings.read_only)


def _log_error(opening: asyncio.Task[Service]) -> None:
    if not opening.cancelled() and (error := opening.exception()) is not None:
        logger.error("%s", error, exc_info=None if isinstance(error, WorkflowsError) else error)
