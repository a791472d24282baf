"""Subscribing to resources as clients of either era do, and hearing what they are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp import Client
from mcp.types import LoggingMessageNotification, ResourceUpdatedNotification


class LastSeen:
    """What a client was told without having asked."""

    def __init__(self) -> None:
        self.uris: asyncio.Queue[str] = asyncio.Queue()
        self.logged: list[Any] = []

    async def __call__(self, message: Any) -> None:
        if isinstance(message, ResourceUpdatedNotification):
            self.uris.put_nowait(str(message.params.uri))
        if isinstance(message, LoggingMessageNotification):
            self.logged.append(message.params)


@asynccontextmanager
async def subscribed(client: Client, mode: str, *uris: str) -> AsyncIterator[None]:
    if mode == "legacy":
        for uri in uris:
            await client.subscribe_resource(uri)
        yield
        for uri in uris:
            await client.unsubscribe_resource(uri)
        return
    async with client.listen(resource_subscriptions=list(uris)):
        yield
