"""Drives one run: feeds events to its machine, has them written down, and performs what it wishes.

The disk is waited for in two places only: before a step that changes the world starts, and before
anybody outside is told (`synced`). Everything else goes on meanwhile; what was not yet on disk when the
process died can be repeated unnoticed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from workflows_mcp.engines.base import FindBundle
from workflows_mcp.engines.clock import Clock, Timer
from workflows_mcp.engines.executor import Executor
from workflows_mcp.errors import LeaseLost, WorkflowsError
from workflows_mcp.machine.commands import (
    ClearTimer,
    Command,
    Finish,
    LoadPlan,
    RunStep,
    SetTimer,
    StopStep,
    key_of,
)
from workflows_mcp.machine.events import Event, PlanLoaded, TimerFired
from workflows_mcp.machine.machine import Machine

logger = logging.getLogger(__name__)

_SLICE_SECONDS = 0.01
"""How long a run may go on without letting the rest of the process have a turn."""
_MAX_UNSYNCED = 64
"""How many batches may be on their way to the disk before a run waits for it."""
_SNAPSHOT_BYTES = 256 * 1024

_events = msgspec.msgpack.Encoder()


class Batch(msgspec.Struct, frozen=True):
    """Events of one run, to be written together or not at all."""

    position: int
    """How many events of the run come before these."""
    events: bytes
    count: int
    status: str
    """running, idle (it waits for an agent only), completed, failed or cancelled."""
    at: float
    snapshot: bytes | None = None


class Journal(Protocol):
    """Where the events of one run go."""

    def append(self, batch: Batch, done: Callable[[Exception | None], None]) -> None:
        """Write; call `done` on the event loop when it is safe, in the order of the calls."""

    def in_force(self) -> bool:
        """Whether the run is known to be ours at this moment. A process that was stopped for a while does
        not know, and must ask before it starts what cannot be taken back."""

    def confirm(self, done: Callable[[Exception | None], None]) -> None:
        """Find out whether the run is still ours; an error where it is not."""


class Driver:
    def __init__(
        self,
        machine: Machine,
        journal: Journal,
        executor: Executor,
        clock: Clock,
        find_bundle: FindBundle,
    ) -> None:
        self.machine = machine
        self._journal = journal
        self._executor = executor
        self._clock = clock
        self._find_bundle = find_bundle
        self._inbox: deque[Event] = deque()
        self._ready: deque[RunStep] = deque()
        """Steps that may start now."""
        self._held: list[RunStep] = []
        """Steps that change the world, until the disk has what led to them."""
        self._unwritten: list[Event] = []
        self._unsynced = 0
        self._safe_position = machine.state.events
        """How many events of the run are safe on disk."""
        self._written_bytes = 0
        self._snapshot_bytes = _SNAPSHOT_BYTES
        self._timers: dict[str, Timer] = {}
        self._pumping = False
        self._scheduled = False
        self._asking = False
        """Whether it is being found out if the run is still ours."""
        self._watching: list[asyncio.Future[None]] = []
        self._syncing: list[tuple[int, asyncio.Future[None]]] = []
        self.failure: Exception | None = None
        """Why this process may not drive the run any more."""
        self.on_event: Callable[[Event], None] | None = None
        self.on_rest: Callable[[str], None] | None = None
        """Told when all is on disk and there is nothing to do here: idle, or how the run ended."""

    @property
    def run_id(self) -> str:
        return self.machine.state.run_id

    @property
    def status(self) -> str:
        """Who has to do something next: the server (running), an agent (idle), or nobody (how it ended)."""
        state = self.machine.state
        if state.status != "running":
            return state.status
        if self._inbox or self._ready:
            return "running"
        frames = state.frames.values()
        idle = all(frame.kind in ("agent", "call") and frame.deadline is None for frame in frames)
        return "idle" if idle else "running"

    def feed(self, event: Event) -> None:
        """Take in an event and go on as far as possible."""
        if self.failure is None:
            self._inbox.append(event)
            self._pump()

    def under_way(self) -> list[str]:
        """The steps that were started and have not ended, as far as the state knows."""
        frames = self.machine.state.frames.items()
        return [key_of(address, frame.attempt) for address, frame in frames if frame.kind == "step"]

    def resume(self, event: Event | None = None) -> None:
        """Go on after a restart, with what has happened meanwhile. What is left of the steps under way must
        have been ended before; a step that the event makes needless is not repeated."""
        commands = self.machine.outstanding(self._clock.now())
        if event is not None:
            self.feed(event)
        frames = self.machine.state.frames.items()
        wanted = {key_of(address, frame.attempt) for address, frame in frames}
        for command in commands:
            if not isinstance(command, Finish) and command.key in wanted:
                self._perform(command)
        self._ready.extend(self._held)
        self._held = []
        self._pump()

    async def synced(self) -> None:
        """Wait until all that has happened up to now is safe on disk."""
        position = self.machine.state.events + len(self._inbox)
        if self.failure is None and self._safe_position < position:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._syncing.append((position, waiter))
            await waiter
        if self.failure is not None:
            raise self.failure

    async def changed(self, seconds: float) -> None:
        """Wait until something happens, at most so many seconds."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watching.append(waiter)
        await asyncio.wait([waiter], timeout=seconds)
        if not waiter.done():
            waiter.cancel()

    async def quiet(self) -> None:
        """Wait until nothing that was stopped is still ending."""
        await self._executor.quiet(self.run_id)

    async def abandon(self, failure: Exception | None = None) -> None:
        """Stop driving: end what is under way here; the run itself stays as it is on disk."""
        self.failure = (
            self.failure or failure or LeaseLost(f"the run {self.run_id} is not driven here any more")
        )
        self._clear_timers()
        self._held.clear()
        self._ready.clear()
        self._inbox.clear()
        self._wake()
        await self._executor.stop_run(self.run_id)

    # The loop

    def _pump(self) -> None:
        if self._pumping or self.failure is not None:
            return
        self._pumping = True
        inbox, ready = self._inbox, self._ready
        until = time.monotonic() + _SLICE_SECONDS
        try:
            while time.monotonic() < until:
                if ready and not self._asking:
                    self._start_next()
                elif inbox and self._unsynced < _MAX_UNSYNCED:
                    self._take(inbox.popleft())
                else:
                    break
        except Exception as error:
            logger.exception("the run %s cannot go on", self.run_id)
            self._give_up(error)
            return
        finally:
            self._pumping = False
        more = (ready and not self._asking) or (inbox and self._unsynced < _MAX_UNSYNCED)
        if more and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next_slice)
        self._write()
        self._wake()

    def _take(self, event: Event) -> None:
        commands = self.machine.apply(event)
        self._unwritten.append(event)
        for command in commands:
            self._perform(command)
        if self.on_event is not None:
            self.on_event(event)

    def _next_slice(self) -> None:
        self._scheduled = False
        self._pump()

    def _perform(self, command: Command) -> None:
        match command:
            case RunStep():
                if self._executor.changes_world(command):
                    self._held.append(command)
                else:
                    self._executor.perform(self.run_id, command, self.feed)
            case SetTimer(key=key, due=due):
                self._timers[key] = self._clock.call_at(due, lambda: self._fire(key))
            case ClearTimer(key=key):
                timer = self._timers.pop(key, None)
                if timer is not None:
                    timer.cancel()
            case StopStep(key=key):
                self._held = [held for held in self._held if held.key != key]
                self._executor.stop(self.run_id, key)
            case LoadPlan():
                self._inbox.append(self._load(command))
            case Finish():
                self._clear_timers()

    def _clear_timers(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _fire(self, key: str) -> None:
        self._timers.pop(key, None)
        self.feed(TimerFired(self._clock.now(), key))

    def _load(self, command: LoadPlan) -> PlanLoaded:
        try:
            bundle = self._find_bundle(command.name, command.beside)
        except WorkflowsError as error:
            return PlanLoaded(self._clock.now(), command.key, command.name, error=str(error))
        return PlanLoaded(self._clock.now(), command.key, command.name, bundle.plans, bundle.sources)

    def _write(self) -> None:
        """Send what has happened to the disk; what may only start afterwards starts when it is there."""
        events, steps = self._unwritten, self._held
        if not events:
            return
        self._unwritten, self._held = [], []
        encoded = _events.encode(events)
        state = self.machine.state
        self._written_bytes += len(encoded)
        snapshot = None
        if self._written_bytes > self._snapshot_bytes:
            snapshot = self.machine.snapshot()
            self._written_bytes = 0
            self._snapshot_bytes = max(_SNAPSHOT_BYTES, len(snapshot))
        batch = Batch(
            state.events - len(events), encoded, len(events), self.status, state.changed_at, snapshot
        )
        self._unsynced += 1
        position = state.events
        self._journal.append(batch, lambda error: self._written(position, steps, error))

    def _written(self, position: int, steps: list[RunStep], error: Exception | None) -> None:
        self._unsynced -= 1
        if self.failure is not None:
            return
        if error is not None:
            self._give_up(error)
            return
        self._safe_position = position
        self._ready.extend(steps)
        if self._ready or self._inbox:
            self._pump()
        self._wake()
        if self.on_rest is not None and self._safe_position == self.machine.state.events:
            status = self.status
            if status != "running":
                self.on_rest(status)

    def _give_up(self, error: Exception) -> None:
        if self.failure is not None:
            return
        logger.warning("the run %s is not driven here any more: %s", self.run_id, error)
        self.failure = error
        asyncio.get_running_loop().create_task(self.abandon(error))

    def _start_next(self) -> None:
        if self._journal.in_force():
            self._start(self._ready.popleft())
        else:
            self._asking = True
            self._journal.confirm(self._confirmed)

    def _confirmed(self, error: Exception | None) -> None:
        self._asking = False
        if error is not None:
            self._give_up(error)
        else:
            self._pump()

    def _start(self, step: RunStep) -> None:
        """Start a step, unless it has been stopped meanwhile."""
        frame = self.machine.state.frames.get(step.address)
        if frame is not None and key_of(step.address, frame.attempt) == step.key:
            self._executor.perform(self.run_id, step, self.feed)

    def _wake(self) -> None:
        watching, self._watching = self._watching, []
        for waiter in watching:
            if not waiter.done():
                waiter.set_result(None)
        if not self._syncing:
            return
        lost = self.failure is not None
        pending = self._syncing
        self._syncing = [item for item in pending if item[0] > self._safe_position and not lost]
        for position, waiter in pending:
            if (position <= self._safe_position or lost) and not waiter.done():
                waiter.set_result(None)
