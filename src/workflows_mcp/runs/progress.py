"""What is new in a run since it was last looked at, step by step: the part of `observing` that remembers.

A step that is carried out again is another one, by its round: `work@2`. What the state holds of a step is its
last round only, so how earlier ones ended is read off the events: a round can end and the next one begin with
one and the same event.

    watch = ProgressTracker()
    watch.look(machine)             # what the state shows
    watch.news(events)              # and what happened on the way there
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from workflows_mcp.answers import Target, blocks_in, progress_of, run_view_of, why
from workflows_mcp.engines import Engine
from workflows_mcp.machine import (
    TERMINAL,
    Event,
    Machine,
    Record,
    RunState,
    Scope,
    StepEnd,
    address_of,
)
from workflows_mcp.plan import Node

ENDED = "ended"

"""The status of an earlier round of which nobody knows any more how it ended."""

_TRIES = re.compile(r"(?:r(\d+)\.)?\d+(?:\.|$)")

"""The round, if it is not the first, and the try, of a step or of a call around it."""

_ROUND = re.compile(r"@\d+(?=/|$)")


@dataclass(frozen=True, slots=True)
class Progress:
    """A step that has started or ended."""

    at: float
    address: str
    status: str
    outcome: str
    message: str | None
    seconds: float | None
    order: tuple[int, ...] = ()
    """Its place among those beside it to which something happened at the same time."""


@dataclass(frozen=True, slots=True)
class _Seen:
    status: str
    since: float | None
    order: tuple[int, ...]


class ProgressTracker:
    """What of a run has been seen."""

    def __init__(self) -> None:
        self.position = 0
        """Of how many events it knows."""
        self._seen: dict[str, _Seen] = {}
        self._now: dict[str, Progress] = {}
        self._since: dict[str, float | None] = {}

    def look(self, machine: Machine) -> bool:
        """Take the run as it is now; whether earlier rounds can have ended meanwhile."""
        self.position = machine.state.events
        self._now, self._since = {}, {}
        for address, order, record in _steps(machine, machine.state.root, None, ""):
            ended = record.completed_at if record.status in TERMINAL else None
            seconds = ended - record.started_at if ended and record.started_at else None
            at = ended or record.started_at or machine.state.changed_at
            self._since[address] = record.started_at
            self._now[address] = Progress(
                at, address, record.status, record.outcome, record.message, seconds, order
            )
        return any("@" in address for address in self._now)

    def news(self, events: Sequence[Event] = ()) -> Iterator[Progress]:
        """What has changed since the last time; `events` are those that have come since."""
        ends = {self._ended_by(event): event for event in events if isinstance(event, StepEnd)}
        for address, event in ends.items():
            seen = self._seen.get(address)
            if address and address not in self._now and (seen is None or seen.status not in TERMINAL):
                yield self._told(_end(address, event, seen))
        for address, seen in list(self._seen.items()):
            if self._is_over(address, seen):
                at = max((event.at for event in events), default=seen.since or 0.0)
                seconds = at - seen.since if seen.since is not None else None
                yield self._told(Progress(at, address, ENDED, "n/a", None, seconds, seen.order))
        for address, step in self._now.items():
            known = self._seen.get(address)
            if known is None or known.status != step.status:
                yield self._told(step)

    def _ended_by(self, event: StepEnd) -> str:
        """The step that has ended with an event; empty where the event does not tell its round."""
        if event.key:
            return _in_rounds(*address_of(event.key))
        open_ones = (it for it, seen in self._seen.items() if self._is_over(it, seen))
        return next((it for it in open_ones if _ROUND.sub("", it) == event.address), "")

    def _is_over(self, address: str, seen: _Seen) -> bool:
        """Whether a step must have ended because there is a later round of it, or of what it is inside of."""
        if address in self._now or seen.status in (*TERMINAL, ENDED):
            return False
        around = address.rpartition("/")[0]
        return seen.status != "pending" or not around or around in self._now

    def _told(self, step: Progress) -> Progress:
        self._seen[step.address] = _Seen(step.status, self._since.get(step.address), step.order)
        return step


def _steps(
    machine: Machine, scope: Scope, around: Node | None, prefix: str
) -> Iterator[tuple[str, tuple[int, ...], Record]]:
    """Every step that a run has reached, and those next to them, with its address and its place."""
    for index, (node, record) in enumerate(blocks_in(machine, scope, around)):
        visits = scope.visits.get(node.id, 1)
        address = f"{prefix}{node.id}@{visits}" if visits > 1 else f"{prefix}{node.id}"
        # A loop is told as a whole, and in it one round after the other.
        loop = node.loops[0] if node.loops else index
        yield address, (loop, visits, index), record
        if record.scope is not None:
            yield from _steps(machine, record.scope, node, f"{address}/")


def _in_rounds(address: str, attempt: str) -> str:
    """The address with the rounds that the attempt is one of; what an attempt leaves out are first ones."""
    names, visits = address.split("/"), _TRIES.findall(attempt)
    visits = [""] * (len(names) - len(visits)) + visits
    return "/".join(f"{name}@{at}" if at else name for name, at in zip(names, visits, strict=True))


def _end(address: str, event: StepEnd, seen: _Seen | None) -> Progress:
    since, order = (seen.since, seen.order) if seen is not None else (None, ())
    seconds = event.at - since if since is not None else None
    return Progress(event.at, address, *event.ended_as, event.message, seconds, order)


# ----------------------------------------------------------------------------------------------------
# Telling how far a run is while somebody waits for it: the part of the service that waits.
#
# Who calls decides whether it is told, and how; whatever waits in between need not know of it:
#
#     with reporting_progress(tell):
#         answer = await service.start(workflow="deploy")     # `tell` hears of it while the run goes on


PAUSE_SECONDS = 0.3

"""At least so long between two times of being told."""

STILL_SECONDS = 5.0

"""After so long without a change it is told that things are as they were: clients give up on what is
silent."""


PRINTED_CHARS = 200

"""How much is told of the last line that a running step has printed."""


@dataclass(frozen=True, slots=True)
class ProgressReport:
    done: int
    total: int
    doing: str
    """What is under way, in a sentence."""


ReportProgress = Callable[[ProgressReport], Awaitable[None]]

_REPORT: ContextVar[ReportProgress | None] = ContextVar("workflows_mcp.tell", default=None)


@contextmanager
def reporting_progress(tell: ReportProgress) -> Iterator[None]:
    """Whoever waits inside of this has it told."""
    before = _REPORT.set(tell)
    try:
        yield
    finally:
        _REPORT.reset(before)


async def wait_with_progress(
    engine: Engine,
    run_id: str,
    ready: Callable[[RunState], bool],
    seconds: float,
    *,
    target: Target | None = None,
    now: Callable[[], float] = time.time,
) -> Machine:
    """As `Engine.wait`. `part`: the task that is waited for, where it is no run."""
    tell = _REPORT.get()
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
        await tell(_how_far(machine, target, now(), engine.live.last_line(run_id)))
        await engine.wait(run_id, ready, min(PAUSE_SECONDS, max(until - loop.time(), 0.0)))


def _beyond(position: int, ready: Callable[[RunState], bool]) -> Callable[[RunState], bool]:
    return lambda state: ready(state) or state.events > position


def _how_far(machine: Machine, target: Target | None, now: float, printed: str) -> ProgressReport:
    view = run_view_of(machine, now=now, target=target)
    scope = view.scope
    count = progress_of(machine, scope, ended=False) if scope is not None else {"done": 0, "total": 1}
    doing = why(view)
    if printed:
        doing = f"{doing}: {printed[:PRINTED_CHARS]}"
    return ProgressReport(int(str(count["done"])), int(str(count["total"])), doing)
