"""Drives one run: feeds events to its machine, commits them, and performs its commands.

    driver.feed(Started(...))               # apply it, and continue as far as possible
    await driver.send(make_event)           # an event from outside; returns when it is committed
    await driver.pause_until_committed()    # the machine, when all that it shows is committed

The driver waits for a commit in three cases: before a step that changes the world starts, before an
interrupted step is repeated, and before anybody outside sees the state. It also pauses while too many batches
are not committed. Everything else continues meanwhile; if the process dies, the part that was not committed
can be repeated without anybody noticing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import weakref
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Protocol

from workflows_mcp.engines.base import FindBundle, MakeEvent
from workflows_mcp.engines.clock import Clock, Timer
from workflows_mcp.engines.executor import TIMEOUT, Executor
from workflows_mcp.engines.values import Batch, LargeValues, encode, join_events
from workflows_mcp.errors import LeaseLost, NotExpected, RequestError, StoreError, WorkflowsError
from workflows_mcp.machine import (
    Chain,
    ClearTimer,
    Command,
    Event,
    Finish,
    Interrupted,
    LoadPlan,
    Machine,
    PlanLoaded,
    ReportInterrupted,
    RunState,
    RunStep,
    SetTimer,
    StepDone,
    StepFailed,
    StopStep,
    TimerFired,
    is_under_way,
    key_of,
)

logger = logging.getLogger(__name__)

_SLICE_SECONDS = 0.01
"""How long a run continues before other tasks get their turn."""
_MAX_UNCOMMITTED = 64
"""How many batches may wait for their commit before the run waits for them."""
_POLL_SECONDS = 1.0
_SNAPSHOT_BYTES = 256 * 1024


class Journal(Protocol):
    """The journal of one run, which a driver writes under the lease of this process."""

    def append(self, batch: Batch, done: Callable[[Exception | None], None]) -> None:
        """Write a batch; call `done` on the event loop after the commit, in order."""

    def in_force(self) -> bool:
        """Whether this process certainly owns the run.

        A process that was suspended does not know: it must `confirm` before it starts a step."""

    def confirm(self, done: Callable[[Exception | None], None]) -> None:
        """Check in the store that this process owns the run; an error if not."""


class Driver:
    """Drives one run in this process, under one lease."""

    def __init__(
        self,
        run_id: str,
        machine: Machine,
        large: LargeValues,
        journal: Journal,
        executor: Executor,
        clock: Clock,
        find_bundle: FindBundle,
        chain: Chain,
    ) -> None:
        self.run_id = run_id
        self.machine = machine
        self.large = large
        self.chain = chain
        """The hashes of the events up to the last one that was given to the journal."""
        self._journal = journal
        self._executor = executor
        own_ref = weakref.ref(self)  # no cycle, so that an ended run is freed at once
        self._runner = executor.runner_for(run_id, machine.state.workspace, lambda: _may_start(own_ref))
        executor.learn_secrets((*machine.bundle.plans.values(), *machine.state.plans.values()))
        self._clock = clock
        self._find_bundle = find_bundle
        self._queue: deque[Event] = deque()
        self._sent: dict[int, asyncio.Future[None]] = {}
        """Futures of events that `send` waits for, by the identity of the event."""
        self._ready: dict[str, RunStep] = {}
        """Steps that can start now."""
        self._awaiting_commit: dict[str, RunStep] = {}
        """Steps that change the world, until the events that led to them are committed."""
        self._unwritten: list[bytes] = []
        self._uncommitted = 0
        self._committed_position = self._first_position = machine.state.events
        """How many events of the run are committed, and how many were when this driver took it over."""
        self._written_bytes = 0
        self._snapshot_bytes = _SNAPSHOT_BYTES
        self._timers: dict[str, Timer] = {}
        self._pumping = False
        self._scheduled = False
        self._cannot_start = False
        """Whether no step can start: there is no room, or the lease must be confirmed first."""
        self._paused_for_commit = False
        """Whether no event is applied until the commits have caught up."""
        self._applying = False
        """Whether an event is being applied in another thread; until then, nobody may read the run."""
        self._accepted = machine.state.events
        """How many events were accepted, including the one that is being applied."""
        self._changed_at = machine.state.changed_at
        self._waiting: list[tuple[float, asyncio.Future[None]]] = []
        """What waits for a change, each with how many events must be committed by then."""
        self.failure: Exception | None = None
        """Why this process may no longer drive the run."""
        self.on_release: Callable[[str], None] | None = None
        """Called when all is committed and there is nothing to do here: with idle, or how the run ended."""
        self.released = ""
        """The status at the release. From then on another driver may use the run and its machine."""

    @property
    def status(self) -> str:
        """running (the server must act), idle (an agent must), or how the run ended."""
        state = self.machine.state
        if self._applying or (state.status == "running" and (self._queue or self._ready)):
            return "running"
        if state.status != "running":
            return state.status
        return "idle" if state.idle else "running"

    # For engines

    def feed(self, event: Event) -> None:
        """Accept an event and continue as far as possible. A driver that was released drops it."""
        if self.failure is None and not self.released:
            self._queue.append(event)
            self._pump()

    async def send(self, make_event: MakeEvent) -> None:
        """Make an event from the current state, which may not be committed, and accept it.

        When this returns, the event is committed. Raises NotExpected if the run does not wait for it when its
        turn comes, and LeaseLost if this process has lost the run: then the caller tries again. Any other
        error is raised after that state is committed, without which the error would be wrong."""
        try:
            await self._accepted_event(make_event(self.machine, self._clock.now()))
        except LeaseLost:
            raise
        except WorkflowsError:
            await self.wait_committed()
            raise
        await self.wait_committed()

    async def _accepted_event(self, event: Event) -> None:
        """Wait until an event from outside is accepted."""
        encode(event)
        if self.released:
            raise LeaseLost(f"the run {self.run_id} was released")
        accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sent[id(event)] = accepted
        self.feed(event)
        if self.failure is not None and not accepted.done():
            raise self.failure
        await accepted

    def under_way(self) -> list[str]:
        """The keys of the steps that have started and not ended."""
        frames = self.machine.state.frames.items()
        return [key_of(address, frame.attempt) for address, frame in frames if frame.on_server]

    async def resume(self, event: Event | None = None, *, after_crash: bool = True) -> None:
        """Resume a run after a restart: perform again what was under way, after applying `event`, if any.

        Processes that interrupted steps left behind must have been killed before. A step that is not needed
        after the event is not repeated. With `after_crash=False`, as for forks, no step was interrupted."""
        commands = self.machine.outstanding(self._clock.now(), after_crash=after_crash)
        if event is not None:
            self.feed(event)
            await self.wait_applied()
        frames = self.machine.state.frames.items()
        wanted = {key_of(address, frame.attempt) for address, frame in frames}
        for command in commands:
            if not isinstance(command, Finish) and command.key in wanted:
                self._perform(command)
        self._ready.update(self._awaiting_commit)
        self._awaiting_commit = {}
        self._pump()
        self._release_if_done()

    async def wait_committed(self) -> None:
        """Wait until all events up to now are committed."""
        await self._wait_committed_up_to(self._accepted + len(self._queue))

    async def wait_applied(self) -> None:
        """Wait until no event is being applied; then the run can be read until the next await."""
        while self._applying and self.failure is None:
            await self.wait_changed(_POLL_SECONDS)

    async def _wait_committed_up_to(self, position: int) -> None:
        if self.failure is None and self._committed_position < position:
            await self._wait(position)
        if self.failure is not None and self._committed_position < position:
            raise self.failure

    async def pause_until_committed(self) -> Machine:
        """Wait until all is committed, and return the run; read it before the next await."""
        try:
            while self._applying or self._committed_position < self._accepted:
                self._paused_for_commit = True
                await self.wait_applied()
                await self._wait_committed_up_to(self._accepted)
        finally:
            self._paused_for_commit = False
            self._schedule()
        if self.failure is not None:
            raise self.failure
        return self.machine

    async def wait_changed(self, seconds: float) -> None:
        """Wait until the run changes, for at most `seconds`."""
        await self._wait(0, seconds)

    async def _wait(self, committed: int, seconds: float | None = None) -> None:
        """Wait until the run changes and has so many committed events, for at most `seconds`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((committed, waiter))
        if seconds is None:
            await waiter
        elif waiter in (await asyncio.wait([waiter], timeout=seconds))[1]:
            self._waiting = [it for it in self._waiting if it[1] is not waiter]

    async def wait_until(self, ready: Callable[[RunState], bool], seconds: float) -> Machine:
        """Wait until `ready` holds, at most `seconds`, and return the committed run.

        If it is released before, the caller must not read it: another driver may use it already."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        state = self.machine.state
        await asyncio.sleep(0)  # a caller that polls must not block the run
        await self.wait_applied()
        while not (self.released or self.failure or ready(state)) and (left := until - loop.time()) > 0:
            await self.wait_changed(left)
            await self.wait_applied()
        if state.status != "running":
            await self.wait_drained()
        return await self.pause_until_committed()

    async def wait_drained(self) -> None:
        """Wait until all stopped steps have ended."""
        await self._runner.wait_drained()

    async def abandon(self, failure: Exception | None = None) -> None:
        """Stop driving and stop the steps; the run stays as it is in the store."""
        self._die(failure or LeaseLost(f"this process does not drive the run {self.run_id} any more"))
        await self._runner.stop_all()

    def release(self, status: str) -> None:
        """End driving; what waits for this driver must look in the store again."""
        self._clear_timers()
        self.released = status
        on_release, self.on_release = self.on_release, None
        if on_release is not None:
            on_release(status)
        self._wake()

    # The loop

    def _pump(self) -> None:
        if self._pumping or self.failure is not None:
            return
        self._pumping = True
        queue = self._queue
        until = time.monotonic() + _SLICE_SECONDS
        try:
            while time.monotonic() < until and not self._paused_for_commit and not self._applying:
                if self._ready and not self._cannot_start:
                    self._start_next()
                elif queue and self._uncommitted < _MAX_UNCOMMITTED:
                    self._accept(queue.popleft())
                else:
                    break
            self._write()
        except Exception as error:
            logger.exception("the run %s cannot continue", self.run_id)
            self._give_up(error)
            return
        finally:
            self._pumping = False
        if self._applying:
            return
        if (self._ready and not self._cannot_start) or (queue and self._uncommitted < _MAX_UNCOMMITTED):
            self._schedule()
        self._wake()

    def _schedule(self) -> None:
        if not self._scheduled and not self._paused_for_commit:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next_slice)

    def _next_slice(self) -> None:
        self._scheduled = False
        self._pump()

    def _accept(self, event: Event) -> None:
        waiting = self._sent.pop(id(event), None)
        try:
            if waiting is not None:
                self.machine.refuse_unexpected(event)
            encoded = self.large.encode(event)
        except (NotExpected, RequestError) as error:
            if waiting is not None and not waiting.done():
                waiting.set_exception(error)
                return
            if not isinstance(event, StepDone):
                raise
            event = StepFailed(event.at, event.key, error.code, f"its outputs are refused: {error}")
            encoded = self.large.encode(event)
        self._accepted += 1
        if not self.machine.sequences:
            self._applied(event, encoded, waiting, self.machine.apply(event))
            return
        self._applying = True
        applying = self._executor.apply_in_thread(self.machine, event)
        applying.add_done_callback(lambda it: self._applied_in_thread(event, encoded, waiting, it))

    def _applied_in_thread(
        self,
        event: Event,
        encoded: bytes,
        waiting: asyncio.Future[None] | None,
        applying: asyncio.Future[list[Command]],
    ) -> None:
        self._applying = False
        if self.failure is not None:
            return
        try:
            self._applied(event, encoded, waiting, applying.result())
        except Exception as error:
            logger.exception("the run %s cannot continue", self.run_id)
            self._give_up(error)
            return
        self._pump()
        self._release_if_done()

    def _applied(
        self, event: Event, encoded: bytes, waiting: asyncio.Future[None] | None, commands: list[Command]
    ) -> None:
        stopped = self.machine.stopped_expressions and self.machine.record_stopped_expressions(event.at)
        if stopped:
            self._unwritten.append(self.large.encode(stopped))
            self._accepted += 1
        self._unwritten.append(encoded)
        self._changed_at = event.at
        if waiting is not None and not waiting.done():
            waiting.set_result(None)
        for command in commands:
            self._perform(command)

    def _perform(self, command: Command) -> None:
        match command:
            case RunStep():
                frame = self.machine.state.frames.get(command.address)
                # an interrupted step may be what killed the process
                was_interrupted = frame is not None and frame.interruptions > 0
                if was_interrupted or self._executor.changes_world(command):
                    self._awaiting_commit[command.key] = command
                else:
                    self._runner.perform(command, self.feed)
            case SetTimer(key=key, due=due):
                self._timers[key] = self._clock.call_at(due, lambda: self._timer_fired(key))
            case ClearTimer(key=key):
                if (timer := self._timers.pop(key, None)) is not None:
                    timer.cancel()
            case StopStep(key=key, reason=reason):
                self._awaiting_commit.pop(key, None)
                self._ready.pop(key, None)
                if not self._runner.stop(key, reason) and reason:
                    self._queue.append(StepFailed(self._clock.now(), key, TIMEOUT, reason))
            case ReportInterrupted(key=key):
                logger.warning("the step %s of the run %s was interrupted", key, self.run_id)
                self._queue.append(Interrupted(self._clock.now(), key))
            case LoadPlan():
                workspace, now = self.machine.state.workspace, self._clock.now()
                found = found_plan(command, self._find_bundle, workspace, now)
                self._executor.learn_secrets(found.plans.values())
                self._queue.append(found)
            case Finish():
                self._clear_timers()

    def _timer_fired(self, key: str) -> None:
        self._timers.pop(key, None)
        self.feed(TimerFired(self._clock.now(), key))

    def _clear_timers(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    # Starting steps

    def _start_next(self) -> None:
        """Start the next step, if there is room for it and this process owns the run."""
        if not self._journal.in_force():
            self._cannot_start = True
            self._journal.confirm(self._confirmed)
            return
        step = next(iter(self._ready.values()))
        if not self._runner.may_start(step, self._unblock):
            self._cannot_start = True
            return
        del self._ready[step.key]
        if is_under_way(self.machine.state, step.key):
            self._runner.perform(step, self.feed)

    async def confirm_ownership(self) -> None:
        """Raises LeaseLost if another process owns the run.

        Called right before a command is started, because this process may have been suspended."""
        if self._journal.in_force():
            return
        answer: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._journal.confirm(lambda error: None if answer.done() else answer.set_result(error))
        error = await answer
        if error is not None:
            self._give_up(error)
            raise error

    def _unblock(self) -> None:
        self._cannot_start = False
        self._schedule()

    def _confirmed(self, error: Exception | None) -> None:
        if error is not None:
            self._give_up(error)
        else:
            self._unblock()

    # Writing

    def _write(self) -> None:
        """Commit the new events; the steps that are held start after the commit."""
        if not self._unwritten:
            return
        count = len(self._unwritten)
        events, hashes = join_events(self._unwritten), self.chain.extend(self._unwritten)
        self._written_bytes += len(events)
        position = self._accepted - 1 if self._applying else self._accepted
        snapshot = None
        if self._written_bytes > self._snapshot_bytes and not self._applying:
            snapshot = self.large.snapshot(self.machine)
            self._written_bytes = 0
            self._snapshot_bytes = max(_SNAPSHOT_BYTES, len(snapshot))
        blobs = self.large.take_new()
        batch = Batch(position - count, events, count, self.status, self._changed_at, snapshot, blobs, hashes)
        steps, self._awaiting_commit, self._unwritten = self._awaiting_commit, {}, []
        self._uncommitted += 1
        self._journal.append(batch, lambda error: self._written(position, steps, error))

    def _written(self, position: int, steps: dict[str, RunStep], error: Exception | None) -> None:
        self._uncommitted -= 1
        if self.failure is not None:
            return
        if error is not None:
            self._give_up(error)
            return
        self._committed_position = position
        self._ready.update(steps)
        if self._ready or self._queue:
            self._pump()
        self._wake()
        self._release_if_done()

    def _release_if_done(self) -> None:
        if self.on_release is None or self.failure is not None:
            return
        if (
            not self._applying
            and self._committed_position == self._accepted
            and (status := self.status) != "running"
        ):
            self.release(status)

    # Ending

    def _give_up(self, error: Exception) -> None:
        if self.failure is None:
            lost = not isinstance(error, StoreError) or isinstance(error, LeaseLost)
            log = (
                logger.debug if lost and self._committed_position == self._first_position else logger.warning
            )
            log("this process does not drive the run %s any more: %s", self.run_id, error)
            self._die(error)
            asyncio.get_running_loop().create_task(self._runner.stop_all())

    def _die(self, failure: Exception) -> None:
        """Stop for good: start, write and accept nothing more."""
        self.failure = self.failure or failure
        self._clear_timers()
        self._awaiting_commit.clear()
        self._ready.clear()
        self._queue.clear()
        for waiting in self._sent.values():
            if not waiting.done():
                waiting.set_exception(self.failure)
        self._sent.clear()
        self._wake()

    def _wake(self) -> None:
        """Wake what waits for a change, or for events that are committed now."""
        if not self._waiting:
            return
        # An event that `wait_committed` waits for may have been refused: then all is committed without it.
        all_committed = not self._queue and self._committed_position == self._accepted
        committed = inf if self.failure is not None or all_committed else self._committed_position
        waiting, self._waiting = self._waiting, [it for it in self._waiting if it[0] > committed]
        for wanted, waiter in waiting:
            if wanted <= committed and not waiter.done():
                waiter.set_result(None)


async def _may_start(driver: weakref.ref[Driver]) -> None:
    found = driver()
    if found is not None:
        await found.confirm_ownership()


# ----------------------------------------------------------------------------------------------------
# Workflows that a call names by an expression


def found_plan(command: LoadPlan, find_bundle: FindBundle, workspace: str, now: float) -> PlanLoaded:
    """Find a workflow, with the workflows that it calls; the event names the error if there is none."""
    name = command.name
    beside = os.path.join(workspace, command.beside) if command.beside else ""
    try:
        bundle = find_bundle(name, beside)
    except WorkflowsError as error:
        return PlanLoaded(now, command.key, name, error=str(error))
    plans = {**bundle.plans, name: bundle.plans[bundle.main]}
    return PlanLoaded(now, command.key, name, plans, bundle.sources)
