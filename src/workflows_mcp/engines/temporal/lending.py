"""The worker that this process lends to the server: one that fails is replaced by another.

A worker fails when the server refuses it, as when a key has run out; that the server is away for a while, it
bears by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from temporalio.worker import Worker

logger = logging.getLogger(__name__)

_LONGEST_PAUSE_SECONDS = 60.0


class LentWorker:
    def __init__(self, make: Callable[[], Worker]) -> None:
        self._make = make
        self._worker = make()
        self._working = asyncio.create_task(self._work())

    async def _work(self) -> None:
        pause = 1.0
        while True:
            try:
                return await self._worker.run()
            except Exception as error:
                logger.error("the worker has failed; another one begins in %g s: %s", pause, error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
            self._worker = self._make()

    async def close(self) -> None:
        """What it was carrying out is handed back at once. Closing twice is harmless."""
        await self._worker.shutdown()
        self._working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._working
