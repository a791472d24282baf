"""Notifies clients that subscribe to a run or a definition when it changes.

    stop = await notices.follow(service, "run://wf_7f3a/graph")
    …                                   # ResourceUpdated is published at most every 0.3 s
    stop()

A run or a definition is followed once for all its subscribers, and only while there are some. A notice says
that the resource should be read again, not what has changed. `sdk` sends it to the clients.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from mcp.server.subscriptions import ResourceUpdated, SubscriptionBus

from workflows_mcp.errors import WorkflowsError
from workflows_mcp.mcp_server.resources import RUN, WORKFLOW, check_part, run_in, workflow_in

if TYPE_CHECKING:
    from workflows_mcp.runs import Service

logger = logging.getLogger(__name__)
PAUSE_SECONDS = 0.3
"""The shortest time between two notices of one resource."""

Moved = Callable[[Any], Awaitable[Any]]
"""Waits for a change after a position, and returns the new position; None if there will be no change."""


@dataclass(slots=True)
class _Followed:
    """A run or a definition with subscribers."""

    task: asyncio.Task[None]
    uris: Counter[str] = field(default_factory=Counter)


class Notices:
    def __init__(self, bus: SubscriptionBus, *, pause_seconds: float = PAUSE_SECONDS) -> None:
        self.bus = bus
        self._pause = pause_seconds
        self._followed: dict[tuple[Service, str], _Followed] = {}

    async def follow(self, service: Service, uri: str) -> Callable[[], None]:
        """Publish notices of a resource until the returned function is called.

        Raises WorkflowsError for an unknown run or workflow. Other resources never change.
        """
        inspector = service.inspector
        position: Any
        moved: Moved
        if (workflow_id := run_in(uri)) is not None:
            check_part(uri)
            run_id = inspector.run_of(workflow_id)
            what, moved = RUN + run_id, partial(inspector.moved, run_id)
            position = await inspector.position(workflow_id)
        elif uri.startswith(WORKFLOW):
            name = workflow_in(service, uri)
            what, moved = WORKFLOW + name, partial(inspector.rewritten, name)
            position = inspector.stamp_of(name)
        else:
            return lambda: None
        key = (service, what)
        followed = self._followed.get(key)
        if followed is None:
            task = asyncio.create_task(self._publish(key, position, moved), name=f"notices of {what}")
            followed = self._followed[key] = _Followed(task)
        followed.uris[uri] += 1
        ended = False

        def end() -> None:
            nonlocal ended
            if not ended:
                ended = True
                self._leave(key, uri)

        return end

    def _leave(self, key: tuple[Service, str], uri: str) -> None:
        followed = self._followed[key]
        followed.uris[uri] -= 1
        if followed.uris[uri] == 0:
            del followed.uris[uri]
        if not followed.uris:
            followed.task.cancel()
            del self._followed[key]

    async def _publish(self, key: tuple[Service, str], position: Any, moved: Moved) -> None:
        try:
            while (position := await moved(position)) is not None:
                for uri in list(self._followed[key].uris):
                    await self.bus.publish(ResourceUpdated(uri))
                await asyncio.sleep(self._pause)
        except WorkflowsError as error:
            logger.warning("no more notices of %s: %s", key[1], error)
