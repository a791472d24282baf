"""Waiting for a run inside of a call: how long at most, and progress for a client that has asked to be told:
steps that are done, of how many, and what is under way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from math import inf
from typing import TYPE_CHECKING

from workflows_mcp.limits import DEFAULT_WAIT
from workflows_mcp.mcp_server.tooling import Ctx

if TYPE_CHECKING:
    from workflows_mcp.service import HowFar

_most = ContextVar("_most", default=inf)


@contextmanager
def waiting_at_most(seconds: float) -> Iterator[None]:
    """Whatever waits for a run inside of this waits no longer."""
    before = _most.set(seconds)
    try:
        yield
    finally:
        _most.reset(before)


def seconds_to_wait(wanted: float = DEFAULT_WAIT) -> float:
    return min(wanted, _most.get())


def progress_told(context: Ctx | None) -> AbstractContextManager[None]:
    """Whatever waits for a run inside of this tells the client of the call."""
    if context is None or (context.request_context.meta or {}).get("progress_token") is None:
        return nullcontext()
    from workflows_mcp.service import told

    last = -1.0
    again = 0

    async def tell(how_far: HowFar) -> None:
        """What is told must grow each time; where nothing more is done, it comes a bit closer to the next."""
        nonlocal last, again
        again = again + 1 if how_far.done <= last else 0
        last = max(how_far.done + again / (again + 1), last + 0.001)
        await context.report_progress(round(last, 3), how_far.total, how_far.doing)

    return told(tell)
