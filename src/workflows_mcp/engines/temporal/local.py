"""Who in this process wants to know of a run that a worker of this process has just moved on, or ended.

Nothing depends on it: whoever waits looks again after a while in any case, and what a run that has ended left
behind is found later as well.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from weakref import WeakSet


class LocalListeners:
    """Told of changes, from whichever thread; `on_end` is called in the thread that has them."""

    def __init__(self, on_end: Callable[[str, bool], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_end = on_end
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        with _lock:
            _ears.add(self)

    def close(self) -> None:
        with _lock:
            _ears.discard(self)

    async def change(self, run_id: str, seconds: float) -> None:
        """Until something is told of the run, at most so many seconds."""
        waiter = self._loop.create_future()
        self._waiting.setdefault(run_id, set()).add(waiter)
        try:
            await asyncio.wait([waiter], timeout=seconds)
        finally:
            waiter.cancel()
            waiting = self._waiting.get(run_id, set())
            waiting.discard(waiter)
            if not waiting:
                self._waiting.pop(run_id, None)

    def tell(self, run_id: str) -> None:
        if run_id in self._waiting and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake, run_id)

    def tell_ended(self, run_id: str, keep: bool) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._on_end, run_id, keep)

    def _wake(self, run_id: str) -> None:
        for waiter in list(self._waiting.get(run_id, ())):
            if not waiter.done():
                waiter.set_result(None)


_lock = threading.Lock()
_ears: WeakSet[LocalListeners] = WeakSet()


def tell_here(run_id: str) -> None:
    """Something has happened in a run."""
    for ears in _listening():
        ears.tell(run_id)


def tell_ended(run_id: str, *, keep: bool) -> None:
    """A run is over, and nothing of it is under way any more. `keep`: its files may still be needed."""
    for ears in _listening():
        ears.tell_ended(run_id, keep)


def _listening() -> list[LocalListeners]:
    with _lock:
        return list(_ears)
