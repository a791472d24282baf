"""One question at a time: whoever asks what is being asked already shares the answer to the next question.

The server takes few questions about a run at a time, and refuses whoever has more of them; of a hundred
agents that want to know the same at once, one need ask. An answer that was under way when somebody came may
be older than they may be told, so they wait for the one after it, and all who came meanwhile share that one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from workflows_mcp.errors import WorkflowsError

T = TypeVar("T")


class Together(Generic[T]):
    def __init__(self) -> None:
        self._asking: dict[str, asyncio.Task[T]] = {}
        self._next: dict[str, asyncio.Task[T]] = {}
        """Those that begin when the one before them has ended; more may still come to them."""

    async def ask(self, key: str, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer to a question that begins after this call. Whoever goes away leaves it to the others."""
        task = self._next.get(key)
        if task is None:
            before = self._asking.get(key)
            task = asyncio.create_task(self._asked(key, ask, before))
            task.add_done_callback(_seen)
            if before is None:
                self._asking[key] = task
            else:
                self._next[key] = task
        return await asyncio.shield(task)

    async def _asked(self, key: str, ask: Callable[[], Awaitable[T]], before: asyncio.Task[T] | None) -> T:
        if before is not None:
            await asyncio.wait([before])
            self._asking[key] = self._next.pop(key)
        try:
            if before is not None and (error := _unanswered(before)) is not None:
                raise error
            return await ask()
        finally:
            if key not in self._next:
                self._asking.pop(key, None)

    async def close(self) -> None:
        tasks = [*self._asking.values(), *self._next.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _unanswered(before: asyncio.Task[T]) -> WorkflowsError | None:
    """That nobody has answered, after all the time that there is, holds for those who came meanwhile, too."""
    error = None if before.cancelled() else before.exception()
    return error if isinstance(error, WorkflowsError) and error.code == "no_worker" else None


def _seen(task: asyncio.Task[T]) -> None:
    if not task.cancelled():
        task.exception()  # those who wanted to know may all have gone away
