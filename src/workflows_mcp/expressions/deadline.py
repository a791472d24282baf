"""Stops Python code that runs too long, in the thread that runs it.

    call_within(5.0, render, template)      # raises TookTooLong after five seconds

One watchdog thread, started on first use, raises an exception inside a call that is past its deadline. This
stops loops; a single long call into C code runs to its end first.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from math import inf
from time import monotonic, sleep, thread_time
from typing import Generic, ParamSpec, TypeVar

SEND_AGAIN_SECONDS = 0.1

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Kept = TypeVar("Kept")


class TookTooLong(Exception):
    """A call was stopped at its deadline."""


class _Stop(BaseException):
    """Raised inside the call; not an Exception, so that the call cannot catch it by accident."""


def call_within(
    seconds: float,
    function: Callable[Arguments, Result],
    *arguments: Arguments.args,
    **named: Arguments.kwargs,
) -> Result:
    number = _watchdog.number()  # before the watch starts, so that it is known after any interruption
    try:
        try:
            try:
                _watchdog.watch(number, seconds)
                return function(*arguments, **named)
            finally:
                _watchdog.release(number)
        except _Stop:
            _watchdog.release(number)  # again, if it was interrupted
    except _Stop:
        _watchdog.release_surely(number)  # and again, if that was, by the exception being sent once more
    raise TookTooLong(f"it took longer than {seconds:g} seconds")


class _Watchdog:
    """Watches calls in a thread, and interrupts those past their deadline.

    The exception can reach a call at any instruction, also while that call is entering or leaving here, so a
    watched thread never takes a lock: it would die holding it. Both sides only use single operations on
    dicts and sets, which cannot be interrupted. The exception can also get lost (in a `__del__`, or in a
    callback of the garbage collector), so it is sent again until the call is over.
    """

    def __init__(self) -> None:
        self._watched: dict[int, tuple[float, int]] = {}
        self._being_sent: set[int] = set()
        self._sent: set[int] = set()
        self._wakes_at = inf
        self._sleep = threading.Lock()  # held while there is nothing new; released to wake the thread
        self._sleep.acquire()
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None

    def number(self) -> int:
        return next(self._numbers)

    def watch(self, number: int, seconds: float) -> None:
        deadline = monotonic() + seconds
        self._watched[number] = (deadline, threading.get_ident())
        # Mostly the thread sleeps until an earlier deadline than this one, and need not be woken.
        if deadline < self._wakes_at:
            self._wakes_at = deadline
            self._wake()

    def release(self, number: int) -> None:
        """Stop watching a call: no exception reaches the calling thread any more. Harmless to repeat."""
        while self._watched.pop(number, None) is None:
            if number not in self._being_sent and number not in self._watched:
                break
            sleep(0)
        if number in self._sent:
            self._sent.discard(number)
            _raise_in_thread(threading.get_ident(), None)

    def release_surely(self, number: int) -> None:
        while True:
            try:
                return self.release(number)
            except _Stop:
                continue

    def _wake(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, daemon=True, name="expression-watchdog")
            self._thread.start()
        with suppress(RuntimeError):  # it has been woken already
            self._sleep.release()

    def _run(self) -> None:
        while True:
            self._wakes_at = (
                inf  # before the scan: a call added after the scan sees this and wakes the thread
            )
            now = monotonic()
            earliest = inf
            for number, (deadline, _) in list(self._watched.items()):
                if deadline <= now:
                    self._stop(number, now + SEND_AGAIN_SECONDS)
                    deadline = now + SEND_AGAIN_SECONDS  # noqa: PLW2901
                earliest = min(earliest, deadline)
            self._wakes_at = min(earliest, self._wakes_at)
            self._sleep.acquire(timeout=-1 if earliest == inf else max(0.0, earliest - now))

    def _stop(self, number: int, next_try: float) -> None:
        """Interrupt a call. It is not watched meanwhile, so that it waits in `release` until this is done."""
        self._being_sent.add(number)
        watched = self._watched.pop(number, None)
        if watched is not None:
            _raise_in_thread(watched[1], _Stop)
            self._sent.add(number)
            self._watched[number] = (next_try, watched[1])
        self._being_sent.discard(number)


def _raise_in_thread(thread: int, exception: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), None if exception is None else ctypes.py_object(exception)
    )


_watchdog = _Watchdog()


def processor_seconds() -> float:
    """The processor time of the calling thread."""
    return thread_time()


class PerThread(threading.local, Generic[Kept]):
    """A value per thread."""

    value: Kept | None = None
