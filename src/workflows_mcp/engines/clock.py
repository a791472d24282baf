"""The clock of an engine: the system's, or a virtual one that tests advance."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch."""

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call back at `when`; needs a running event loop."""


class SystemClock:
    now = staticmethod(time.time)

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(max(0.0, when - time.time()), callback)


class VirtualClock:
    """Stands still until `advance`; timers fire in the order of their times."""

    def __init__(self, start: float = 1_000_000.0) -> None:
        self._now = start
        self._timers: list[tuple[float, int, _VirtualTimer]] = []
        self._count = itertools.count()

    def now(self) -> float:
        return self._now

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        timer = _VirtualTimer(callback)
        heapq.heappush(self._timers, (when, next(self._count), timer))
        return timer

    async def advance(self, seconds: float) -> None:
        """Advance the time; fire the timers that become due, and run other tasks after each."""
        until = self._now + seconds
        await settle()
        while self._timers and self._timers[0][0] <= until:
            when, _, timer = heapq.heappop(self._timers)
            self._now = max(self._now, when)
            timer.fire()
            await settle()
        self._now = until
        await settle()


class _VirtualTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self._callback = None

    def fire(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


async def settle(turns: int = 20) -> None:
    """Run other tasks until they wait for something other than a turn."""
    for _ in range(turns):
        await asyncio.sleep(0)
