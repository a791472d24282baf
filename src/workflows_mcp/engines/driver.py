"""Drives one run: feeds events to its machine, has them written down, and performs what it wishes.

The disk is waited for in two places only: before a step that changes the world starts, and before
anybody outside is told (`flushed`). Everything else goes on meanwhile; what was not yet on disk when the
process died can be repeated unnoticed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import weakref
from collections import deque
from collections.abc import Callable

from workflows_mcp.engines.base import FindBundle, MakeEvent
from workflows_mcp.engines.clock import Clock, Timer
from workflows_mcp.engines.executor import TIMEOUT, Executor
from workflows_mcp.engines.forks import Batch, Journal
from workflows_mcp.engines.values import LargeValues, encode, join_events
from workflows_mcp.errors import LeaseLost, NotExpected, RequestError, StoreError, WorkflowsError
from workflows_mcp.machine import (
    ClearTimer,
    Command,
    Event,
    Finish,
    Interrupted,
    LoadPlan,
    Machine,
    PlanLoaded,
    RunState,
    RunStep,
    SetTimer,
    StepDone,
    StepFailed,
    StopStep,
    TellInterrupted,
    TimerFired,
    key_of,
)

# ----------------------------------------------------------------------------------------------------
# The timers of one run, by the key that the run knows them by. Knows nothing of what they are for.


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


# ----------------------------------------------------------------------------------------------------
# Who waits for a run to change, and for its events to be safe on disk. Knows nothing of either.


class Waiters:
    def __init__(self) -> None:
        self._for_change: list[asyncio.Future[None]] = []
        self._for_disk: list[tuple[int, asyncio.Future[None]]] = []

    async def change(self, seconds: float) -> None:
        """Until something happens, at most so many seconds."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._for_change.append(waiter)
        await asyncio.wait([waiter], timeout=seconds)
        if not waiter.done():
            waiter.cancel()
            self._for_change = [other for other in self._for_change if other is not waiter]

    async def safe(self, position: int) -> None:
        """Until so many events are safe."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._for_disk.append((position, waiter))
        await waiter

    def wake(self) -> None:
        """Something has happened."""
        waiting, self._for_change = self._for_change, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def wake_up_to(self, position: int | None) -> None:
        """So many events are safe; None: nothing more is to be waited for."""
        if not self._for_disk:
            return
        waiting, self._for_disk = self._for_disk, []
        for wanted, waiter in waiting:
            if position is not None and wanted > position:
                self._for_disk.append((wanted, waiter))
            elif not waiter.done():
                waiter.set_result(None)


# ----------------------------------------------------------------------------------------------------
# Finding the workflow that a call names by an expression, while the run is under way.


def found_plan(command: LoadPlan, find_bundle: FindBundle, workspace: str, now: float) -> PlanLoaded:
    """What was found: the workflow with all that it calls, or why there is none."""
    name = command.name
    beside = os.path.join(workspace, command.beside) if command.beside else ""
    try:
        bundle = find_bundle(name, beside)
    except WorkflowsError as error:
        return PlanLoaded(now, command.key, name, error=str(error))
    plans = {**bundle.plans, name: bundle.plans[bundle.main]}
    return PlanLoaded(now, command.key, name, plans, bundle.sources)


logger = logging.getLogger(__name__)


_SLICE_SECONDS = 0.01

"""How long a run may go on without letting the rest of the process have a turn."""

_MAX_UNSYNCED = 64

"""How many batches may be on their way to the disk before a run waits for it."""

_LOOK_AGAIN_SECONDS = 1.0

_SNAPSHOT_BYTES = 256 * 1024


class Driver:
    def __init__(
        self,
        run_id: str,
        machine: Machine,
        large: LargeValues,
        journal: Journal,
        executor: Executor,
        clock: Clock,
        find_bundle: FindBundle,
    ) -> None:
        self.run_id = run_id
        self.machine = machine
        self.large = large
        self._journal = journal
        self._executor = executor
        itself = weakref.ref(self)  # without a cycle, so that a run that has ended is freed at once
        self._runner = executor.runner_for(run_id, machine.state.workspace, lambda: _may_start(itself))
        executor.learn_secrets((*machine.bundle.plans.values(), *machine.state.plans.values()))
        self._clock = clock
        self._find_bundle = find_bundle
        self._queue: deque[Event] = deque()
        self._sent: dict[int, asyncio.Future[None]] = {}
        """Events that somebody waits to see accepted, by identity."""
        self._ready: dict[str, RunStep] = {}
        """Steps that may start now."""
        self._held: dict[str, RunStep] = {}
        """Steps that change the world, until the disk has what led to them."""
        self._unwritten: list[bytes] = []
        self._unsynced = 0
        self._safe_position = self._begun_at = machine.state.events
        """How many events of the run are safe on disk, and how many were when it was taken over."""
        self._written_bytes = 0
        self._snapshot_bytes = _SNAPSHOT_BYTES
        self._timers = Timers(clock)
        self._pumping = False
        self._scheduled = False
        self._blocked = False
        """Whether starting steps has to wait: for room, or to find out if the run is still ours."""
        self._on_hold = False
        self._applying = False
        """Whether an event is being applied in another thread; until it is, nobody may look at the run."""
        self._taken = machine.state.events
        """How many events of the run have been taken in, the one that is being applied included."""
        self._changed_at = machine.state.changed_at
        self._waiters = Waiters()
        self.failure: Exception | None = None
        """Why this process may not drive the run any more."""
        self.on_release: Callable[[str], None] | None = None
        """Told when all is on disk and there is nothing to do here: idle, or how the run ended."""
        self.released = ""
        """What was told. From then on the run, and its machine too, may be in the hands of another driver."""

    @property
    def status(self) -> str:
        """Who has to do something next: the server (running), an agent (idle), or nobody (how it ended)."""
        state = self.machine.state
        if self._applying or (state.status == "running" and (self._queue or self._ready)):
            return "running"
        if state.status != "running":
            return state.status
        return "idle" if state.idle else "running"

    # What an engine calls

    def feed(self, event: Event) -> None:
        """Take in an event and go on as far as possible."""
        if self.failure is None:
            self._queue.append(event)
            self._pump()

    async def send(self, event: Event) -> None:
        """Take in an event from outside; once this returns, it is safe on disk. Raises NotExpected if the run
        does not wait for it (any more) when its turn comes, LeaseLost if it is not driven here (any more)."""
        encode(event)
        if self.released:
            raise LeaseLost(f"the run {self.run_id} has come to rest")
        accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sent[id(event)] = accepted
        self.feed(event)
        if self.failure is not None and not accepted.done():
            raise self.failure
        await accepted
        await self.flushed()

    def under_way(self) -> list[str]:
        """The steps that were started and have not ended, as far as the state knows."""
        frames = self.machine.state.frames.items()
        return [key_of(address, frame.attempt) for address, frame in frames if frame.kind == "step"]

    async def resume(self, event: Event | None = None, *, cut_off: bool = True) -> None:
        """Go on after a restart, with what has happened meanwhile. What is left of the steps under way must
        have been ended before; a step that the event makes needless is not repeated. Of a fork nothing was
        cut off."""
        commands = self.machine.outstanding(self._clock.now(), cut_off=cut_off)
        if event is not None:
            self.feed(event)
            await self.idle_apply()
        frames = self.machine.state.frames.items()
        wanted = {key_of(address, frame.attempt) for address, frame in frames}
        for command in commands:
            if not isinstance(command, Finish) and command.key in wanted:
                self._perform(command)
        self._ready.update(self._held)
        self._held = {}
        self._pump()
        self._release_if_done()

    async def flushed(self) -> None:
        """Wait until all that has happened up to now is safe on disk."""
        await self._safe(self._taken + len(self._queue))

    async def idle_apply(self) -> None:
        """Wait until nothing is being applied: then the run may be looked at, before anything else gets a
        turn."""
        while self._applying and self.failure is None:
            await self.changed(_LOOK_AGAIN_SECONDS)

    async def _safe(self, position: int) -> None:
        if self.failure is None and self._safe_position < position:
            await self._waiters.safe(position)
        if self.failure is not None and self._safe_position < position:
            raise self.failure

    async def committed(self) -> Machine:
        """The run as it is on disk: nothing that it shows can still be lost. To be read before anything
        else gets a turn."""
        try:
            while self._applying or self._safe_position < self._taken:
                self._on_hold = True  # nothing more is taken in until the disk has caught up
                await self.idle_apply()
                await self._safe(self._taken)
        finally:
            self._on_hold = False
            self._schedule()
        if self.failure is not None:
            raise self.failure
        return self.machine

    async def changed(self, seconds: float) -> None:
        """Wait until something happens, at most so many seconds."""
        await self._waiters.change(seconds)

    async def drained(self) -> None:
        """Wait until nothing that was stopped is still ending."""
        await self._runner.drained()

    async def abandon(self, failure: Exception | None = None) -> None:
        """Stop driving: end what is under way here; the run itself stays as it is on disk."""
        self._die(failure or LeaseLost(f"the run {self.run_id} is not driven here any more"))
        await self._runner.stop_all()

    def release(self, status: str) -> None:
        """Let go of the run; whoever waits for it here has to look elsewhere."""
        self._timers.clear_all()
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
            while time.monotonic() < until and not self._on_hold and not self._applying:
                if self._ready and not self._blocked:
                    self._start_next()
                elif queue and self._unsynced < _MAX_UNSYNCED:
                    self._take(queue.popleft())
                else:
                    break
            self._write()
        except Exception as error:
            logger.exception("the run %s cannot go on", self.run_id)
            self._give_up(error)
            return
        finally:
            self._pumping = False
        if self._applying:
            return
        if (self._ready and not self._blocked) or (queue and self._unsynced < _MAX_UNSYNCED):
            self._schedule()
        self._wake()

    def _schedule(self) -> None:
        if not self._scheduled and not self._on_hold:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next_slice)

    def _next_slice(self) -> None:
        self._scheduled = False
        self._pump()

    def _take(self, event: Event) -> None:
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
        self._taken += 1
        if not self.machine.sequences:
            self._applied(event, encoded, waiting, self.machine.apply(event))
            return
        self._applying = True
        applying = self._executor.apply_elsewhere(self.machine, event)
        applying.add_done_callback(lambda it: self._applied_elsewhere(event, encoded, waiting, it))

    def _applied_elsewhere(
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
            logger.exception("the run %s cannot go on", self.run_id)
            self._give_up(error)
            return
        self._pump()
        self._release_if_done()

    def _applied(
        self, event: Event, encoded: bytes, waiting: asyncio.Future[None] | None, commands: list[Command]
    ) -> None:
        stopped = self.machine.note_stopped(event.at)
        if stopped is not None:
            self._unwritten.append(self.large.encode(stopped))
            self._taken += 1
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
                cut_off = frame is not None and frame.interruptions > 0  # it may end this process, too
                if cut_off or self._executor.changes_world(command):
                    self._held[command.key] = command
                else:
                    self._runner.perform(command, self.feed)
            case SetTimer(key=key, due=due):
                self._timers.set(key, due, lambda: self.feed(TimerFired(self._clock.now(), key)))
            case ClearTimer(key=key):
                self._timers.clear(key)
            case StopStep(key=key, reason=reason):
                self._held.pop(key, None)
                self._ready.pop(key, None)
                if not self._runner.stop(key, reason) and reason:
                    self._queue.append(StepFailed(self._clock.now(), key, TIMEOUT, reason))
            case TellInterrupted(key=key):
                logger.warning("the step %s of the run %s was cut off", key, self.run_id)
                self._queue.append(Interrupted(self._clock.now(), key))
            case LoadPlan():
                workspace, now = self.machine.state.workspace, self._clock.now()
                found = found_plan(command, self._find_bundle, workspace, now)
                self._executor.learn_secrets(found.plans.values())
                self._queue.append(found)
            case Finish():
                self._timers.clear_all()

    # Starting steps

    def _start_next(self) -> None:
        """Start the next step that may start, if there is room for it and the run is still ours."""
        if not self._executor.has_room():
            self._blocked = True
            self._executor.when_there_is_room(self._unblock)
        elif not self._journal.in_force():
            self._blocked = True
            self._journal.confirm(self._confirmed)
        else:
            step = next(iter(self._ready.values()))
            if self._runner.when_ended(step.address, self._unblock):
                self._blocked = True  # what is left of an earlier try goes first
                return
            del self._ready[step.key]
            frame = self.machine.state.frames.get(step.address)
            if frame is not None and key_of(step.address, frame.attempt) == step.key:
                self._runner.perform(step, self.feed)

    async def confirm_ownership(self) -> None:
        """LeaseLost where the run is not ours any more: asked right before a command is started, because this
        process may have been stopped since it looked."""
        if self._journal.in_force():
            return
        answer: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._journal.confirm(lambda error: None if answer.done() else answer.set_result(error))
        error = await answer
        if error is not None:
            self._give_up(error)
            raise error

    def _unblock(self) -> None:
        self._blocked = False
        self._schedule()

    def _confirmed(self, error: Exception | None) -> None:
        if error is not None:
            self._give_up(error)
        else:
            self._unblock()

    # Writing

    def _write(self) -> None:
        """Send what has happened to the disk; what may only start afterwards starts when it is there."""
        if not self._unwritten:
            return
        count = len(self._unwritten)
        events = join_events(self._unwritten)
        self._written_bytes += len(events)
        position = self._taken - 1 if self._applying else self._taken
        snapshot = None
        if self._written_bytes > self._snapshot_bytes and not self._applying:
            snapshot = self.large.snapshot(self.machine)
            self._written_bytes = 0
            self._snapshot_bytes = max(_SNAPSHOT_BYTES, len(snapshot))
        blobs = self.large.take_new()
        batch = Batch(position - count, events, count, self.status, self._changed_at, snapshot, blobs)
        steps, self._held, self._unwritten = self._held, {}, []
        self._unsynced += 1
        self._journal.append(batch, lambda error: self._written(position, steps, error))

    def _written(self, position: int, steps: dict[str, RunStep], error: Exception | None) -> None:
        self._unsynced -= 1
        if self.failure is not None:
            return
        if error is not None:
            self._give_up(error)
            return
        self._safe_position = position
        self._ready.update(steps)
        if self._ready or self._queue:
            self._pump()
        self._wake()
        self._release_if_done()

    def _release_if_done(self) -> None:
        if self.on_release is None or self.failure is not None:
            return
        if not self._applying and self._safe_position == self._taken and (status := self.status) != "running":
            self.release(status)

    # Ending

    def _give_up(self, error: Exception) -> None:
        if self.failure is None:
            lost = not isinstance(error, StoreError) or isinstance(error, LeaseLost)
            log = logger.debug if lost and self._safe_position == self._begun_at else logger.warning
            log("the run %s is not driven here any more: %s", self.run_id, error)
            self._die(error)
            asyncio.get_running_loop().create_task(self._runner.stop_all())

    def _die(self, failure: Exception) -> None:
        """From here on nothing is started, written or taken in."""
        self.failure = self.failure or failure
        self._timers.clear_all()
        self._held.clear()
        self._ready.clear()
        self._queue.clear()
        for waiting in self._sent.values():
            if not waiting.done():
                waiting.set_exception(self.failure)
        self._sent.clear()
        self._wake()

    def _wake(self) -> None:
        self._waiters.wake()
        # What was waited for may have been refused when its turn came: then nothing more is to be waited for.
        all_safe = not self._queue and self._safe_position == self._taken
        over = self.failure is not None or all_safe
        self._waiters.wake_up_to(None if over else self._safe_position)


async def _may_start(driver: weakref.ref[Driver]) -> None:
    found = driver()
    if found is not None:
        await found.confirm_ownership()


# ----------------------------------------------------------------------------------------------------
# Waiting for a run that is driven in this process.


async def wait_until(driver: Driver, ready: Callable[[RunState], bool], seconds: float) -> Machine:
    """The run as soon as `ready` holds, or after `seconds`; what it shows is safe on disk. Where it comes to
    rest before, it is not to be looked at here: another driver may have it already."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    state = driver.machine.state
    await asyncio.sleep(0)  # whoever looks again and again must not keep the run from going on
    await driver.idle_apply()
    while not (driver.released or driver.failure or ready(state)) and (left := until - loop.time()) > 0:
        await driver.changed(left)
        await driver.idle_apply()
    if state.status != "running":
        await driver.drained()
    return await driver.committed()


# ----------------------------------------------------------------------------------------------------
# Sending an event from outside to the driver of a run, which knows more than is on disk yet.


async def send_to(driver: Driver, make_event: MakeEvent, now: float) -> None:
    """Raises LeaseLost where the run is not driven there (any more), and then nothing has been decided. Any
    other refusal counts only when that is safe on disk which the event is refused for: another process may
    have been quicker, and then it never happened."""
    try:
        await driver.send(make_event(driver.machine, now))
    except LeaseLost:
        raise
    except WorkflowsError:
        await driver.flushed()
        raise
