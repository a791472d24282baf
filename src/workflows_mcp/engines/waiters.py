"""Who waits for a run to change, and for its events to be safe on disk. Knows nothing of either."""

from __future__ import annotations

import asyncio


class Waiters:
    def __init__(self) -> None:
        self._for_change: list[asyncio.Future[None]] = []
        self._for_disk: list[tuple[int, asyncio.Future[None]]] = []

    async def change(self, seconds: float) -> None:
        """Until something happens, at most so many seconds."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._for_change.append(waiter)
        await asyncio.wait([waiter], timeout=seconds)
        if not waiter.done():
            waiter.cancel()
            self._for_change = [other for other in self._for_change if other is not waiter]

    async def safe(self, position: int) -> None:
        """Until so many events are safe."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._for_disk.append((position, waiter))
        await waiter

    def wake(self) -> None:
        """Something has happened."""
        waiting, self._for_change = self._for_change, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def wake_up_to(self, position: int | None) -> None:
        """So many events are safe; None: nothing more is to be waited for."""
        if not self._for_disk:
            return
        waiting, self._for_disk = self._for_disk, []
        for wanted, waiter in waiting:
            if position is not None and wanted > position:
                self._for_disk.append((wanted, waiter))
            elif not waiter.done():
                waiter.set_result(None)
