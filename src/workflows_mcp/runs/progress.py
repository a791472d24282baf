"""Progress of a run: steps as they start and end, and reports to a client that waits.

    tracker = ProgressTracker(engine, run_id)
    async for step in tracker.steps():
        print(step.address, step.status)    # completes when the run has ended or needs an answer

    with reporting_progress(report):
        answer = await service.start(workflow="deploy")     # `report` is called while the run continues

Each round of a step in a loop counts as a step: `work@2`. The state has only the last round of a step, so the
end of earlier rounds is read from the events: one event can end a round and start the next.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
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

"""The status of an earlier round whose result is no longer known."""

_TRIES = re.compile(r"(?:r(\d+)\.)?\d+(?:\.|$)")

"""The round, if it is not the first, and the attempt, of a step or of a call around it."""

_ROUND = re.compile(r"@\d+(?=/|$)")

_CHECK_SECONDS = 1.0
"""The longest wait for a change; then the run is read again."""


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
    """Its position among the steps that changed at the same time."""


@dataclass(frozen=True, slots=True)
class _Seen:
    status: str
    since: float | None
    order: tuple[int, ...]


class ProgressTracker:
    """Remembers which steps of a run have been reported."""

    def __init__(self, engine: Engine, run_id: str) -> None:
        self._engine = engine
        self._run_id = run_id
        self.position = 0
        """The number of events that it has seen."""
        self._seen: dict[str, _Seen] = {}
        self._now: dict[str, Progress] = {}
        self._since: dict[str, float | None] = {}

    async def steps(self, until: Callable[[RunState], bool] | None = None) -> AsyncIterator[Progress]:
        """Yield every step as it starts and as it ends, unless it was reported before.

        Stops when `until` holds: by default, when the run has ended or needs an answer.
        """
        is_over = until or needs_attention
        while True:
            before = self.position
            machine = await self._engine.wait(self._run_id, _beyond(before, is_over), _CHECK_SECONDS)
            over = is_over(machine.state)
            events: list[Event] = []
            if self._look(machine):
                _, events = await self._engine.journal(self._run_id, before)
            for step in self._news(events[: self.position - before]):
                yield step
            if over:
                return

    async def skip(self) -> None:
        """Count everything that has happened so far as reported."""
        self._look(await self._engine.view(self._run_id))
        for _ in self._news():
            pass

    def _look(self, machine: Machine) -> bool:
        """Read the current state of the run; return whether earlier rounds may have ended since."""
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

    def _news(self, events: Sequence[Event] = ()) -> Iterator[Progress]:
        """Yield what has changed since the last call; `events` are the events since then."""
        ends = {self._ended_by(event): event for event in events if isinstance(event, StepEnd)}
        for address, event in ends.items():
            seen = self._seen.get(address)
            if address and address not in self._now and (seen is None or seen.status not in TERMINAL):
                yield self._reported(_end(address, event, seen))
        for address, seen in list(self._seen.items()):
            if self._is_over(address, seen):
                at = max((event.at for event in events), default=seen.since or 0.0)
                seconds = at - seen.since if seen.since is not None else None
                yield self._reported(Progress(at, address, ENDED, "n/a", None, seconds, seen.order))
        for address, step in self._now.items():
            known = self._seen.get(address)
            if known is None or known.status != step.status:
                yield self._reported(step)

    def _ended_by(self, event: StepEnd) -> str:
        """Return the step that ended with an event, or an empty string."""
        if event.key:
            return _in_rounds(*address_of(event.key))
        open_ones = (it for it, seen in self._seen.items() if self._is_over(it, seen))
        return next((it for it in open_ones if _ROUND.sub("", it) == event.address), "")

    def _is_over(self, address: str, seen: _Seen) -> bool:
        """Whether a step has ended because a later round of it, or of a step around it, has started."""
        if address in self._now or seen.status in (*TERMINAL, ENDED):
            return False
        around = address.rpartition("/")[0]
        return seen.status != "pending" or not around or around in self._now

    def _reported(self, step: Progress) -> Progress:
        self._seen[step.address] = _Seen(step.status, self._since.get(step.address), step.order)
        return step


def needs_attention(state: RunState) -> bool:
    """Whether the run has ended, is parked, or asks its agent something."""
    return has_stopped(state) or asks(state)


def asks(state: RunState) -> bool:
    return any(frame.kind in ("agent", "gate", "budget") for frame in state.frames.values())


def has_stopped(state: RunState) -> bool:
    """Whether the run has ended, or is parked."""
    return state.status != "running" or state.parked is not None


def _steps(
    machine: Machine, scope: Scope, around: Node | None, prefix: str
) -> Iterator[tuple[str, tuple[int, ...], Record]]:
    """Yield every step that a run has reached, and its neighbours: address, position and record."""
    for index, (node, record) in enumerate(blocks_in(machine, scope, around)):
        visits = scope.visits.get(node.id, 1)
        address = f"{prefix}{node.id}@{visits}" if visits > 1 else f"{prefix}{node.id}"
        # The steps of a loop stay together, in order of their rounds.
        loop = node.loops[0] if node.loops else index
        yield address, (loop, visits, index), record
        if record.scope is not None:
            yield from _steps(machine, record.scope, node, f"{address}/")


def _in_rounds(address: str, attempt: str) -> str:
    """Add the rounds of an attempt to an address: `loop/work` becomes `loop@2/work`."""
    names, visits = address.split("/"), _TRIES.findall(attempt)
    visits = [""] * (len(names) - len(visits)) + visits
    return "/".join(f"{name}@{at}" if at else name for name, at in zip(names, visits, strict=True))


def _end(address: str, event: StepEnd, seen: _Seen | None) -> Progress:
    since, order = (seen.since, seen.order) if seen is not None else (None, ())
    seconds = event.at - since if since is not None else None
    return Progress(event.at, address, *event.ended_as, event.message, seconds, order)


# Reports to a client that waits

PAUSE_SECONDS = 0.3
"""The shortest time between two reports."""
STILL_SECONDS = 5.0
"""The longest time between two reports: clients give up on silent calls."""
PRINTED_CHARS = 200
"""How much of the last printed line of a step is reported."""


@dataclass(frozen=True, slots=True)
class ProgressReport:
    done: int
    total: int
    doing: str
    """What is running, in a sentence."""


ReportProgress = Callable[[ProgressReport], Awaitable[None]]

_REPORT: ContextVar[ReportProgress | None] = ContextVar("workflows_mcp.progress", default=None)


@contextmanager
def reporting_progress(report: ReportProgress) -> Iterator[None]:
    """Report the progress of runs that are waited for inside this context."""
    before = _REPORT.set(report)
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
    """Wait as `Engine.wait` does, and report progress. `target`: the task that is waited for."""
    report = _REPORT.get()
    if report is None:
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
        await report(_how_far(machine, target, now(), engine.live.last_line(run_id)))
        await engine.wait(run_id, ready, min(PAUSE_SECONDS, max(until - loop.time(), 0.0)))


def _beyond(position: int, ready: Callable[[RunState], bool]) -> Callable[[RunState], bool]:
    return lambda state: ready(state) or state.events > position


def _how_far(machine: Machine, target: Target | None, now: float, printed: str) -> ProgressReport:
    view = run_view_of(machine, now=now, target=target)
    count = progress_of(view) or {"done": 0, "total": 1}
    doing = why(view)
    if printed:
        doing = f"{doing}: {printed[:PRINTED_CHARS]}"
    return ProgressReport(int(str(count["done"])), int(str(count["total"])), doing)
