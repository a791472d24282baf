"""Telling how far a run is while somebody waits for it: the part of the service that waits.

Who calls decides whether it is told, and how; whatever waits in between need not know of it:

    with told(tell):
        answer = await service.start(workflow="deploy")     # `tell` hears of it while the run goes on
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from workflows_mcp.agent.parts import Part
from workflows_mcp.agent.progress import progress_of
from workflows_mcp.agent.situation import situation_of
from workflows_mcp.agent.waiting import why
from workflows_mcp.engines.base import Engine
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.state import RunState

PAUSE_SECONDS = 0.3
"""At least so long between two times of being told."""
STILL_SECONDS = 5.0
"""After so long without a change it is told that things are as they were: clients give up on what is
silent."""

PRINTED_CHARS = 200
"""How much is told of the last line that a running step has printed."""


@dataclass(frozen=True, slots=True)
class HowFar:
    done: int
    total: int
    doing: str
    """What is under way, in a sentence."""


Tell = Callable[[HowFar], Awaitable[None]]
_TELL: ContextVar[Tell | None] = ContextVar("workflows_mcp.tell", default=None)


@contextmanager
def told(tell: Tell) -> Iterator[None]:
    """Whoever waits inside of this has it told."""
    before = _TELL.set(tell)
    try:
        yield
    finally:
        _TELL.reset(before)


async def wait_telling(
    engine: Engine,
    run_id: str,
    ready: Callable[[RunState], bool],
    seconds: float,
    *,
    part: Part | None = None,
    now: Callable[[], float] = time.time,
) -> Machine:
    """As `Engine.wait`. `part`: the task that is waited for, where it is no run."""
    tell = _TELL.get()
    if tell is None:
        return await engine.wait(run_id, ready, seconds)
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    position = -1
    while True:
        left = max(until - loop.time(), 0.0)
        machine = await engine.wait(run_id, _beyond(position, ready), min(left, STILL_SECONDS))
        if loop.time() >= until or ready(machine.state):
            return machine
        position = machine.state.events
        await tell(_how_far(machine, part, now(), engine.live.last_line(run_id)))
        await engine.wait(run_id, ready, min(PAUSE_SECONDS, max(until - loop.time(), 0.0)))


def _beyond(position: int, ready: Callable[[RunState], bool]) -> Callable[[RunState], bool]:
    return lambda state: ready(state) or state.events > position


def _how_far(machine: Machine, part: Part | None, now: float, printed: str) -> HowFar:
    situation = situation_of(machine, now=now, part=part)
    scope = situation.scope
    count = progress_of(machine, scope, ended=False) if scope is not None else {"done": 0, "total": 1}
    doing = why(situation)
    if printed:
        doing = f"{doing}: {printed[:PRINTED_CHARS]}"
    return HowFar(int(str(count["done"])), int(str(count["total"])), doing)
