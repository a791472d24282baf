"""Notices that a resource has changed, for whoever has subscribed to it.

A run is followed only while somebody has subscribed to it or to a part of it (`run://wf_7f3a/graph`), once
for all of them, and told of at most so often: a notice says that it is worth looking again, not what has
happened. Which client hears of it, and how, is known to `sdk_private`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote

from mcp.server.subscriptions import ResourceUpdated, SubscriptionBus

from workflows_mcp.errors import WorkflowsError
from workflows_mcp.mcp_server.resources import RUN

if TYPE_CHECKING:
    from workflows_mcp.service import Service

logger = logging.getLogger(__name__)
PAUSE_SECONDS = 0.3
"""At least so long between two notices of one run."""


@dataclass(slots=True)
class _Followed:
    """A run that somebody wants to hear of."""

    task: asyncio.Task[None]
    uris: Counter[str] = field(default_factory=Counter)


def run_in(uri: str) -> str | None:
    """The id of the run, or of its task, that a resource belongs to."""
    return unquote(uri[len(RUN) :].partition("/")[0].partition("?")[0]) if uri.startswith(RUN) else None


class Notices:
    def __init__(self, bus: SubscriptionBus, *, pause_seconds: float = PAUSE_SECONDS) -> None:
        self.bus = bus
        self._pause = pause_seconds
        self._followed: dict[tuple[Service, str], _Followed] = {}

    async def follow(self, service: Service, uri: str) -> Callable[[], None]:
        """Have notices of a resource published from now on, until what this gives is called. Raises
        WorkflowsError where there is no such run; of what is no run nothing is known here."""
        workflow_id = run_in(uri)
        if workflow_id is None:
            return lambda: None
        position = await service.observing.position(workflow_id)
        key = (service, service.observing.run_of(workflow_id))
        followed = self._followed.get(key)
        if followed is None:
            task = asyncio.create_task(self._publish(*key, position), name=f"notices of {key[1]}")
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

    async def _publish(self, service: Service, run_id: str, position: int | None) -> None:
        try:
            while position is not None:
                position = await service.observing.moved(run_id, position)
                if position is None:
                    return
                for uri in list(self._followed[service, run_id].uris):
                    await self.bus.publish(ResourceUpdated(uri))
                await asyncio.sleep(self._pause)
        except WorkflowsError as error:
            logger.warning("no more notices of the run %s: %s", run_id, error)
