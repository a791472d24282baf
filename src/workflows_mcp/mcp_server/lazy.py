"""What a server has ready just after its first answer: the service, the tools and the prompts.

A client starts a server for every session, and its user waits for the first answer (`initialize`). That
needs nothing but a name and instructions, so all else comes after it: the service is opened as soon as the
first answer is out, in a thread as far as it is a matter of loading modules; tools and prompts, whose models
take time to build too, are made when they are first asked for. A request that needs the service waits for
it. Also where no message comes, the service is opened, because the runs of processes that have died are
waiting for it.

The only module that knows how the protocol library keeps its tools and prompts.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mcp.server import MCPServer
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.mcpserver.prompts.manager import PromptManager
from mcp.server.mcpserver.tools.tool_manager import ToolManager
from mcp.shared.exceptions import MCPError
from mcp.types import INTERNAL_ERROR

from workflows_mcp.errors import WorkflowsError
from workflows_mcp.settings import Settings

if TYPE_CHECKING:
    from mcp.server.mcpserver.prompts import Prompt
    from mcp.server.mcpserver.tools import Tool

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
"""Requests that are answered from what the server is made of."""
_AFTER_AN_ANSWER = 0.02
"""Seconds: until the answer has been written, nothing else should want the processor."""
_WITHOUT_A_MESSAGE = 1.0


class LazyService:
    """Stands for the service from the start: what is asked of it is asked of the service, once that is open.

    late = LateService(settings)
    late.open_in(1.0)                 # at the latest
    service = await late.ready()      # now; opened once, however many wait
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._service: Service | None = None
        self._opening: asyncio.Task[Service] | None = None
        self._soon: asyncio.TimerHandle | None = None
        self._answered = False

    def __getattr__(self, name: str) -> Any:
        if self._service is None:
            raise RuntimeError(f"the service is not open yet, and '{name}' is wanted of it")
        return getattr(self._service, name)

    def answered(self) -> None:
        """Something has been answered: after the first time, it is opened at once."""
        if not self._answered:
            self._answered = True
            self.open_in(_AFTER_AN_ANSWER)

    def open_in(self, seconds: float = _WITHOUT_A_MESSAGE) -> None:
        """Open it then, if it is not opened before."""
        if self._soon is not None:
            self._soon.cancel()
        self._soon = asyncio.get_running_loop().call_later(seconds, self._begin)

    async def ready(self) -> Service:
        """The service, open. Raises what kept it from opening, which is the caller's to tell; whoever asks
        next tries again."""
        return await asyncio.shield(self._begin(logged=False))

    async def ready_for_request(self) -> Service:
        """The same for a client, which is not the one to see what is wrong here: that goes to the log too."""
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
                self._opening.add_done_callback(_told)
        return self._opening

    async def _open(self) -> Service:
        service = await asyncio.to_thread(_made, self._settings)
        self._service = await service.__aenter__()
        # What a server has loaded stays: the collector of cycles would take some 65 ms to walk over it.
        if not gc.get_freeze_count():
            gc.freeze()
        return self._service


async def wait_for_service(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """The middleware that lets requests in when there is what they need."""
    late: LazyService = ctx.lifespan_context
    if ctx.method not in _WITHOUT_SERVICE and not ctx.method.startswith("notifications/"):
        try:
            await late.ready_for_request()
        except WorkflowsError as error:
            raise MCPError(INTERNAL_ERROR, str(error)) from error
    try:
        return await call_next(ctx)
    finally:
        late.answered()


def _made(settings: Settings) -> Service:
    from workflows_mcp.runs import Service

    return Service.open(settings, adopt=not settings.read_only)


def _told(opening: asyncio.Task[Service]) -> None:
    if not opening.cancelled() and (error := opening.exception()) is not None:
        logger.error("%s", error, exc_info=None if isinstance(error, WorkflowsError) else error)


class LazyTools(ToolManager):
    """Tools that are made when they are first looked at."""

    def __init__(self, make: Callable[[], Sequence[Tool]]) -> None:
        self.warn_on_duplicate_tools = True
        self._make = make

    @cached_property
    def _tools(self) -> dict[str, Tool]:  # type: ignore[override]
        return {tool.name: tool for tool in self._make()}


class LazyPrompts(PromptManager):
    """Prompts that are made when they are first looked at."""

    def __init__(self, make: Callable[[], Sequence[Prompt]]) -> None:
        self.warn_on_duplicate_prompts = True
        self._make = make

    @cached_property
    def _prompts(self) -> dict[str, Prompt]:  # type: ignore[override]
        return {prompt.name: prompt for prompt in self._make()}


def install_lazy(
    server: MCPServer[Any], *, tools: Callable[[], Sequence[Tool]], prompts: Callable[[], Sequence[Prompt]]
) -> None:
    """Let a server have these tools and prompts, in place of those that it was made with."""
    server._tool_manager = LazyTools(tools)
    server._prompt_manager = LazyPrompts(prompts)
