"""Notifies the engines of this process when a worker of this process has continued or ended a run.

    await listeners.change(run_id, 0.5)     # until `notify_changed`, at most half a second
    notify_changed(run_id)                  # from any thread

This only saves time: without a notification an engine polls, and removes the files of ended runs later.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from weakref import WeakSet


class LocalListeners:
    """The waiting tasks of one engine; `on_end` is called in the thread of its event loop."""

    def __init__(self, on_end: Callable[[str, bool], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_end = on_end
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        with _lock:
            _engines.add(self)

    def close(self) -> None:
        with _lock:
            _engines.discard(self)

    async def change(self, run_id: str, seconds: float) -> None:
        """Wait until the run changes, for at most `seconds`."""
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

    def changed(self, run_id: str) -> None:
        if run_id in self._waiting and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake, run_id)

    def ended(self, run_id: str, keep: bool) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._on_end, run_id, keep)

    def _wake(self, run_id: str) -> None:
        for waiter in list(self._waiting.get(run_id, ())):
            if not waiter.done():
                waiter.set_result(None)


_lock = threading.Lock()
_engines: WeakSet[LocalListeners] = WeakSet()


def notify_changed(run_id: str) -> None:
    """Wake all who wait for a change of the run."""
    for listeners in _all():
        listeners.changed(run_id)


def notify_ended(run_id: str, *, keep: bool) -> None:
    """Report that a run and all of its steps have ended. `keep`: its files may be needed for a retry."""
    for listeners in _all():
        listeners.ended(run_id, keep)


def _all() -> list[LocalListeners]:
    with _lock:
        return list(_engines)
