"""The timers of one run, by the key that the run knows them by. Knows nothing of what they are for."""

from __future__ import annotations

from collections.abc import Callable

from workflows_mcp.engines.clock import Clock, Timer


class Timers:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._timers: dict[str, Timer] = {}

    def set(self, key: str, due: float, fired: Callable[[], None]) -> None:
        def fire() -> None:
            self._timers.pop(key, None)
            fired()

        self._timers[key] = self._clock.call_at(due, fire)

    def clear(self, key: str) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def clear_all(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
