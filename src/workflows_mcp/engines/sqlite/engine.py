"""The embedded engine: drives runs in this process, keeps them in one file, shares it with others.

A run that waits for an agent only has no owner: whichever process the answer reaches takes it over and
goes on. A run with work under way is owned; another process reaches it by a letter (`mailbox`), and takes
it over when its owner is gone. A process that adopts (a server does, a short command does not) looks
every second for runs that nobody drives, and recovers those that were started in its own workspace with the
same settings; any other is continued only by whoever names it. A run works in the directory that it was
started in, whoever drives it.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import apsw

from workflows_mcp.engines.base import FindBundle, MakeEvent, Pruned, RunSummary
from workflows_mcp.engines.clock import Clock, SystemClock
from workflows_mcp.engines.driver import Driver, send_to, wait_until
from workflows_mcp.engines.executor import Executor
from workflows_mcp.engines.forks import (
    NOTHING_ELSE,
    Fork,
    Instead,
    asked_for,
    batch_of,
    fork_of,
    needs_its_files,
    new_run_id,
)
from workflows_mcp.engines.live_output import LiveOutput
from workflows_mcp.engines.sqlite import leases, retention, runs
from workflows_mcp.engines.sqlite.leases import this_process
from workflows_mcp.engines.sqlite.mailbox import UNSEEN_TURNS, Mailbox
from workflows_mcp.engines.sqlite.retention import PRUNE_SECONDS, Retention
from workflows_mcp.engines.sqlite.runs import KeepsNotes, RunJournal
from workflows_mcp.engines.sqlite.store import Store
from workflows_mcp.engines.values import LargeValues, encode
from workflows_mcp.errors import Damaged, LeaseLost, StoreError, WorkflowsError
from workflows_mcp.limits import Limits
from workflows_mcp.machine import Event, Machine, RunState, Started
from workflows_mcp.plan import Bundle
from workflows_mcp.values import Value

# ----------------------------------------------------------------------------------------------------
# Python's collector of cycles, set for a process that holds runs.
#
# A run is many small objects that live long and hold no cycles. With the thresholds of a script the
# collector walks all of them again and again: a block of a run of ten thousand would cost twice what one
# of a hundred does. With much larger ones it walks rarely, but then so far that whoever waits for an answer
# notices: 200 ms were seen.


def collect_rarely() -> None:
    gc.set_threshold(2_000, 10, 100)


# ----------------------------------------------------------------------------------------------------
# Runs that wait for an agent, kept in memory so that the answer need not read them again.
#
# Another process may have gone on with such a run meanwhile; its epoch tells.


class Resting(NamedTuple):
    machine: Machine
    large: LargeValues
    epoch: int
    """At which the run came to rest."""


class RestingRuns:
    def __init__(self, size: int = 64) -> None:
        self._runs: OrderedDict[str, Resting] = OrderedDict()
        self._size = size

    def keep(self, run_id: str, resting: Resting) -> None:
        self._runs[run_id] = resting
        self._runs.move_to_end(run_id)
        while len(self._runs) > self._size:
            self._runs.popitem(last=False)

    def at(self, run_id: str, epoch: int | None) -> Resting | None:
        """The run, if nobody has touched it since it came to rest: its epoch is still the same."""
        known = self._runs.get(run_id)
        return known if known is not None and known.epoch == epoch else None

    def take(self, run_id: str, epoch: int) -> Resting | None:
        """The run, if it has been claimed from rest just now, which has raised its epoch to this one."""
        known = self._runs.pop(run_id, None)
        return known if known is not None and known.epoch == epoch - 1 else None


# ----------------------------------------------------------------------------------------------------
# Directories of runs that nobody needs any more, swept away when a server starts.


_GOING_ON = ("running", "idle")


def sweep_scratch(store: Store, executor: Executor) -> None:
    """What runs that have ended left behind because their process was killed, what nobody has tried again,
    and what was copied for a fork that was never made."""
    for run_id in executor.scratch_of_runs():
        status = runs.status_of(store, run_id)
        if status == "completed" or (status not in _GOING_ON and executor.scratch_is_old(run_id)):
            executor.clear_scratch(run_id)


# ----------------------------------------------------------------------------------------------------
# Making a fork: the new run is written with all the events that it begins with, at once or not at all, and
# then goes on as any other.


class Forks:
    def __init__(
        self,
        store: Store,
        lease: leases.Lease,
        bundles: runs.BundleCache,
        executor: Executor,
        clock: Clock,
        home: runs.Home,
        *,
        journal: Callable[[str], Awaitable[tuple[Bundle, list[Event], LargeValues]]],
        begin: Callable[[Fork, LargeValues, Awaitable[None]], Awaitable[None]],
    ) -> None:
        """`begin`: lets a fork go on, as soon as it has been written."""
        self._store = store
        self._lease = lease
        self._bundles = bundles
        self._executor = executor
        self._clock = clock
        self._journal = journal
        self._begin = begin
        self._home = home
        self._making: set[asyncio.Task[None]] = set()

    async def make(self, run_id: str, position: int, instead: Instead, request_id: str | None) -> str:
        asked = asked_for(run_id, position, instead)
        request = runs.Request(request_id, asked) if request_id is not None else None
        if request is not None and (known := runs.started_by(self._store, request)) is not None:
            return known
        bundle, events, large = await self._journal(run_id)
        scratch = self._executor.scratch
        fork = fork_of(run_id, bundle, events, position, self._clock.now(), instead=instead, scratch=scratch)
        making = asyncio.create_task(self._make(fork, large, run_id, request))
        self._making.add(making)
        making.add_done_callback(self._making.discard)
        try:
            await asyncio.shield(making)  # whoever has asked may go away: it is made whole all the same
        except apsw.ConstraintError:
            if request is None or (known := runs.started_by(self._store, request)) is None:
                raise
            return known
        return fork.run_id

    async def made(self) -> None:
        """Until none is being made any more."""
        await asyncio.gather(*self._making, return_exceptions=True)

    async def _make(self, fork: Fork, large: LargeValues, run_id: str, request: runs.Request | None) -> None:
        try:
            await asyncio.to_thread(self._executor.copy_scratch, run_id, fork.run_id)
            await self._begin(fork, large, self._written(fork, large, run_id, request))
        except BaseException:
            if runs.status_of(self._store, fork.run_id) is None:
                self._executor.clear_scratch(fork.run_id)
            raise

    async def _written(
        self, fork: Fork, large: LargeValues, origin: str, request: runs.Request | None
    ) -> None:
        now, owner, state = self._clock.now(), self._lease.owner.id, fork.machine.state
        pinned = self._bundles.put(fork.machine.bundle)
        origin = state.forked_from.partition("@")[0]
        run = runs.NewRun(
            fork.run_id, state.workflow, *pinned, request, state.started_at, now, self._home, origin
        )
        batch = batch_of(fork, large, now)

        def write(connection: apsw.Connection) -> None:
            self._lease.renew(connection, now)
            retention.share_blobs(connection, origin, fork.run_id)
            runs.create(connection, run, owner)
            leases.close_batch(connection, fork.run_id, owner, 1, batch, rest=False)

        await self._store.write(write)


logger = logging.getLogger(__name__)


POLL_SECONDS = 0.05

"""How often another process's writes are looked for, by whoever waits for them."""

_TURNS_A_SECOND = round(1 / POLL_SECONDS)

_PRUNE_AFTER_SECONDS = 10.0

"""How long a server is up before it looks for old runs to delete."""

_TRIES = 3

"""How often an event is sent again when the run changes hands on the way."""


class SqliteEngine(KeepsNotes):
    def __init__(
        self,
        path: Path,
        executor: Executor,
        find_bundle: FindBundle,
        *,
        clock: Clock | None = None,
        adopt: bool = True,
        synchronous: str = "FULL",
        settings: str = "",
    ) -> None:
        """`settings`: a fingerprint of those that decide what steps may do, and where."""
        self._path = path
        self._executor = executor
        executor.remember_in(self)
        self._find_bundle = find_bundle
        self._clock = clock or SystemClock()
        self._adopts = adopt
        self._synchronous = synchronous
        self._home = runs.Home(str(executor.policy.workspace), settings)
        self._left_alone: set[str] = set()
        """Runs that belong to processes of another home, of which that has been said."""
        self._lease = leases.Lease(this_process())
        self._owner = self._lease.owner.id
        self._drivers: dict[str, Driver] = {}
        """The runs that are under way here."""
        self._at_rest = RestingRuns()
        self._ending: dict[str, asyncio.Task[None]] = {}
        """Runs that have ended, until all that they started has ended too."""
        self._taking: dict[str, asyncio.Lock] = {}
        self._broken: set[str] = set()
        """Runs that this process cannot go on with; another version may."""
        self._bundles = runs.BundleCache()
        self._keeping: asyncio.Task[None] | None = None
        self._pruning: asyncio.Task[None] | None = None
        self._prune_at = self._clock.now() + _PRUNE_AFTER_SECONDS
        self._seen_version = -1
        self._forks: Forks
        self.store: Store
        self.mailbox: Mailbox

    @property
    def live(self) -> LiveOutput:
        return self._executor.live

    async def open(self) -> None:
        collect_rarely()
        self.store = Store(self._path, synchronous=self._synchronous)
        self.mailbox = Mailbox(self.store)
        self._retention = Retention(self.store, self._executor.clear_scratch)
        self._forks = Forks(
            self.store, self._lease, self._bundles, self._executor, self._clock, self._home,
            journal=self._journal, begin=self._begin_fork,
        )  # fmt: skip
        if self._adopts:
            sweep_scratch(self.store, self._executor)
        await self._recover()
        self._keeping = asyncio.create_task(self._keep())

    async def close(self) -> None:
        for task in (self._keeping, self._pruning):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        await self._forks.made()
        await asyncio.gather(*(driver.abandon() for driver in self._drivers.values()))
        await asyncio.gather(*self._ending.values())
        self._drivers.clear()
        self.store.beat(0, None)
        try:
            await self.store.write(lambda connection: leases.leave(connection, self._owner))
        finally:
            await self.store.close()
            self._executor.close()

    # Runs

    async def start(self, bundle: Bundle, inputs: dict[str, Value], *, request_id: str | None = None) -> str:
        request = runs.Request.of(request_id, bundle, inputs) if request_id is not None else None
        if request is not None and (known := runs.started_by(self.store, request)) is not None:
            return known
        run_id, now, workspace = new_run_id(), self._clock.now(), str(self._executor.policy.workspace)
        started = Started(now, run_id, inputs, workspace, self._executor.limits.of_a_run)
        encode(started)
        machine = Machine(bundle)
        large = runs.large_values(self.store, run_id, self._executor.limits)
        driver, journal = self._new_driver(run_id, machine, large, epoch=1)
        key, body = self._bundles.put(bundle)
        journal.created = runs.NewRun(run_id, bundle.main, key, body, request, now, now, self._home)
        self._drive(driver)
        driver.feed(started)
        if request is not None:
            try:
                await driver.flushed()
            except apsw.ConstraintError:
                if (known := runs.started_by(self.store, request)) is None:
                    raise
                return known
        return run_id

    async def send(self, run_id: str, make_event: MakeEvent) -> None:
        left = _TRIES
        while True:
            driver = self._live(run_id)
            try:
                if driver is None:
                    if await self._send_at_rest(run_id, make_event):
                        return
                    continue
                await driver.idle_apply()
                if self._live(run_id) is driver:  # meanwhile it may have come to rest
                    await send_to(driver, make_event, self._clock.now())
                    return
            except LeaseLost:
                left -= 1
                if not left:
                    raise

    async def _send_at_rest(self, run_id: str, make_event: MakeEvent) -> bool:
        """Send an event to a run that is not under way here: take it over with the event, or post it.
        False when it has meanwhile been taken over here."""
        async with self._taking.setdefault(run_id, asyncio.Lock()):
            if self._live(run_id) is not None:
                return False
            if (ending := self._ending.get(run_id)) is not None:
                await asyncio.wait([ending])
            resting = self._resting(run_id)
            machine = resting.machine if resting is not None else self._read(run_id)
            event = make_event(machine, self._clock.now())
            encode(event)
            machine.refuse_unexpected(event)
            driver: Driver | None
            if resting is not None:
                driver = self._reacquire(run_id, resting)
            elif (driver := await self._acquire(run_id)) is not None:
                try:
                    event = make_event(driver.machine, self._clock.now())
                    driver.machine.refuse_unexpected(event)
                except WorkflowsError:
                    await self.start_driving([driver])
                    raise
            if driver is not None:
                await self.start_driving([driver], event)
                await driver.flushed()
                return True
        await self._send_elsewhere(run_id, event)
        return True

    async def ensure_driven(self, run_id: str) -> None:
        if self._live(run_id) is None and self._read(run_id).state.status == "running":
            if runs.home_of(self.store, run_id) != self._home:
                await self.store.write(lambda connection: runs.move(connection, run_id, self._home))
            await self._acquire_and_drive(run_id)

    async def is_driven_here(self, run_id: str) -> bool:
        return self._live(run_id) is not None

    async def view(self, run_id: str) -> Machine:
        return await self.wait(run_id, lambda _: True, 0.0)

    async def wait(self, run_id: str, ready: Callable[[RunState], bool], seconds: float) -> Machine:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        seen: tuple[int, int] | None = None
        while True:
            driver = self._live(run_id)
            if driver is not None:
                try:
                    machine = await wait_until(driver, ready, until - loop.time())
                except LeaseLost:
                    if self._live(run_id) is driver:
                        raise
                    continue  # another process drives it now: watch it there
                if driver.released != "idle":
                    return machine
                continue  # whoever brought an answer meanwhile has made another driver of it
            if (ending := self._ending.get(run_id)) is not None:
                await asyncio.wait([ending])
            position = runs.position_of(self.store, run_id)
            if position != seen or loop.time() >= until:
                seen = position
                resting = self._resting(run_id)
                machine = resting.machine if resting is not None else self._read(run_id)
                if ready(machine.state) or loop.time() >= until:
                    return machine
            await asyncio.sleep(min(POLL_SECONDS, max(0.0, until - loop.time())))

    async def recent(self, limit: int, workflow: str | None = None) -> list[RunSummary]:
        return runs.recent(self.store, limit, workflow)

    async def prune(self, limits: Limits, *, dry_run: bool = False) -> Pruned:
        return await self._retention.prune(limits, self._clock.now(), dry_run=dry_run)

    async def unfinished(self) -> list[RunSummary]:
        return runs.unfinished(self.store)

    async def journal(self, run_id: str, after: int = 0) -> tuple[Bundle, list[Event]]:
        return (await self._journal(run_id, after))[:2]

    async def _journal(self, run_id: str, after: int = 0) -> tuple[Bundle, list[Event], LargeValues]:
        driver = self._live(run_id)
        if driver is not None:
            with suppress(LeaseLost):  # another process drives it now: what that one has written counts
                await driver.committed()
        return runs.journal(self.store, self._bundles, run_id, self._executor.limits, after)

    async def fork(
        self, run_id: str, position: int, *, instead: Instead = NOTHING_ELSE, request_id: str | None = None
    ) -> str:
        return await self._forks.make(run_id, position, instead, request_id)

    async def made_by(self, request_id: str) -> str | None:
        return runs.made_by(self.store, request_id)

    async def _begin_fork(self, fork: Fork, large: LargeValues, written: Awaitable[None]) -> None:
        async with self._taking.setdefault(fork.run_id, asyncio.Lock()):
            await written
            driver, _ = self._new_driver(fork.run_id, fork.machine, large, epoch=1)
            await self.start_driving([driver], cut_off=False)

    def _read(self, run_id: str) -> Machine:
        return runs.read(self.store, self._bundles, run_id, self._executor.limits)[0]

    def _resting(self, run_id: str) -> Resting | None:
        """A run that came to rest in this process and that nobody has touched since."""
        return self._at_rest.at(run_id, leases.epoch_of(self.store, run_id))

    # Driving

    def _live(self, run_id: str) -> Driver | None:
        """The driver of a run that is under way in this process."""
        driver = self._drivers.get(run_id)
        return driver if driver is not None and driver.failure is None else None

    def _new_driver(
        self, run_id: str, machine: Machine, large: LargeValues, epoch: int
    ) -> tuple[Driver, RunJournal]:
        journal = RunJournal(self.store, self._lease, self._clock, run_id, epoch)
        driver = Driver(run_id, machine, large, journal, self._executor, self._clock, self._find_bundle)
        driver.on_rest = lambda status: self._rest(run_id, driver, epoch, status)
        return driver, journal

    def _drive(self, driver: Driver) -> None:
        self._drivers[driver.run_id] = driver
        self.store.beat(leases.RENEW_SECONDS, self._renew)

    def _rest(self, run_id: str, driver: Driver, epoch: int, status: str) -> None:
        """A run has nothing to do here: it has ended, or an agent must answer first."""
        if self._drivers.get(run_id) is driver:
            del self._drivers[run_id]
        if status == "idle":
            self._at_rest.keep(run_id, Resting(driver.machine, driver.large, epoch))
            if driver.machine.state.parked is not None:
                self._ending[run_id] = asyncio.get_running_loop().create_task(self._stop_steps(driver))
        else:
            self._taking.pop(run_id, None)
            self._ending[run_id] = asyncio.get_running_loop().create_task(self._clean_up(driver))
        if not self._drivers:
            self.store.beat(0, None)

    async def _clean_up(self, driver: Driver) -> None:
        try:
            await driver.drained()
            self._executor.leave_scratch(driver.run_id, keep=needs_its_files(driver.machine))
        finally:
            self._ending.pop(driver.run_id, None)

    async def _stop_steps(self, driver: Driver) -> None:
        """Of a run that was parked."""
        try:
            await driver.drained()
        finally:
            self._ending.pop(driver.run_id, None)

    def _reacquire(self, run_id: str, resting: Resting) -> Driver:
        """Go on with a run that came to rest here, and that nobody has touched since: it is claimed with the
        first batch that is written, so that an answer costs one commit. If another process is quicker after
        all, that batch is refused as any other that comes too late. Only under the lock of the run."""
        epoch = resting.epoch + 1
        self._at_rest.take(run_id, epoch)
        driver, journal = self._new_driver(run_id, resting.machine, resting.large, epoch)
        journal.wakes_up = True
        return driver

    async def _acquire(self, run_id: str) -> Driver | None:
        """Become the owner of a run that nobody alive drives; None when it cannot be had. It does not go on
        before `start_driving`. Only under the lock of the run."""
        await self._bury()
        before = self._drivers.pop(run_id, None)
        if before is not None:
            await before.abandon()

        def claim(connection: apsw.Connection) -> int | None:
            self._renew(connection)
            return leases.claim(connection, run_id, self._owner, self._clock.now())

        epoch = await self.store.write(claim)
        if epoch is None:
            return None
        resting = self._at_rest.take(run_id, epoch)
        if resting is not None:
            machine, large = resting.machine, resting.large
        else:
            machine, large = runs.read(self.store, self._bundles, run_id, self._executor.limits)
        if (status := machine.state.status) != "running":
            await self.store.write(lambda it: leases.mark_ended(it, run_id, self._owner, status))
            return None
        return self._new_driver(run_id, machine, large, epoch)[0]

    async def start_driving(
        self, drivers: list[Driver], event: Event | None = None, *, cut_off: bool = True
    ) -> None:
        """End what is left of steps that were cut off, then let the runs go on."""
        if cut_off:
            await self._executor.end_leftovers([(it.run_id, key) for it in drivers for key in it.under_way()])
        for driver in drivers:
            self._drive(driver)
            if event is None and driver.status == "idle":
                await self._release(driver)
            else:
                await driver.resume(event, cut_off=cut_off)

    async def _release(self, driver: Driver) -> None:
        """A run that was taken over, and in which there is nothing to do but what letters say."""
        run_id, events = driver.run_id, driver.machine.state.events
        await self.mailbox.deliver(self._live)
        if driver.status != "idle" or driver.machine.state.events != events:
            return  # it goes on, and comes to rest by itself
        self._drivers.pop(run_id, None)  # nobody hands it anything from here on
        await self.store.write(lambda connection: leases.release(connection, run_id, self._owner))
        driver.release("idle")

    # Other processes

    async def _send_elsewhere(self, run_id: str, event: Event) -> None:
        """Post an event to the process that drives the run, and wait until it has been taken in."""
        message = await self.mailbox.send(run_id, event)
        try:
            turn = free = 0
            while not self.mailbox.answered(message):
                turn, free = turn + 1, (free + 1) * leases.is_free(self.store, run_id)
                if turn % _TURNS_A_SECOND == 0 or free == UNSEEN_TURNS:
                    await self._acquire_and_drive(
                        run_id
                    )  # its owner may have gone meanwhile, or be done with it
                    if not self.mailbox.answered(message):
                        self._read(run_id).refuse_unexpected(event)
                await asyncio.sleep(POLL_SECONDS)
        finally:
            await self.mailbox.forget(message)

    async def _acquire_and_drive(self, run_id: str) -> None:
        async with self._taking.setdefault(run_id, asyncio.Lock()):
            driver = await self._acquire(run_id) if self._live(run_id) is None else None
            if driver is not None:
                await self.start_driving([driver])
        await self.mailbox.deliver(self._live)

    async def _keep(self) -> None:
        """Look for letters from other processes, and for runs that they have left."""
        turn = 0
        while True:
            await asyncio.sleep(POLL_SECONDS)
            turn += 1
            try:
                if self._drivers and (version := self.store.data_version()) != self._seen_version:
                    self._seen_version = version
                    await self.mailbox.deliver(self._live)
                if turn % _TURNS_A_SECOND == 0:
                    self._drop_lost()
                    await self._recover()
                    self._prune_if_due()
            except Exception:
                logger.exception("the store of runs cannot be looked after")

    def _prune_if_due(self) -> None:
        """Servers delete old runs; short commands do not."""
        if self._adopts and self._clock.now() >= self._prune_at:
            self._prune_at = self._clock.now() + PRUNE_SECONDS
            self._pruning = asyncio.create_task(self._prune_in_turn())

    async def _prune_in_turn(self) -> None:
        try:
            if await self._retention.is_due(self._clock.now()):
                pruned = await self.prune(self._executor.limits)
                if pruned.runs:
                    logger.info("deleted %d old runs", len(pruned.runs))
        except Exception:
            logger.exception("old runs could not be deleted")

    def _drop_lost(self) -> None:
        """Runs that were taken over by another process are no concern of this one."""
        for run_id, driver in list(self._drivers.items()):
            if isinstance(driver.failure, LeaseLost):
                del self._drivers[run_id]
        if not self._drivers:
            self.store.beat(0, None)

    async def _recover(self) -> None:
        """Take over every run that somebody should drive and nobody alive does."""
        if not self._adopts:
            return
        await self._bury()
        rows = self.store.read(leases.ORPHANS, (self._owner, self._clock.now()))
        for run_id in [str(row[0]) for row in rows]:
            if self._live(run_id) is not None or run_id in self._broken:
                continue
            if stranger := runs.stranger_to(self.store, run_id, self._home):
                self._leave_alone(run_id, stranger)
            else:
                await self._recover_one(run_id)

    def _leave_alone(self, run_id: str, stranger: str) -> None:
        """Say once that a run is not recovered here."""
        if run_id not in self._left_alone:
            self._left_alone.add(run_id)
            logger.warning(
                "the run %s was cut off and is not continued here: %s. Start a server there, or run:"
                " workflows-mcp resume %s", run_id, stranger, run_id,
            )  # fmt: skip

    async def _recover_one(self, run_id: str) -> None:
        failed = self._drivers.get(run_id)
        if failed is not None and not isinstance(failed.failure, WorkflowsError | apsw.Error):
            self._broken.add(run_id)  # it broke here before: going on would break it again
            return
        try:
            async with self._taking.setdefault(run_id, asyncio.Lock()):
                driver = await self._acquire(run_id) if self._live(run_id) is None else None
                if driver is not None:
                    logger.info("the run %s goes on here", run_id)
                    await self.start_driving([driver])
        except Damaged as error:
            self._broken.add(run_id)
            logger.error("nobody goes on with a run that is damaged: %s", error)
        except (StoreError, apsw.Error):
            logger.warning("the run %s cannot be taken over yet", run_id, exc_info=True)
        except Exception:
            self._broken.add(run_id)
            logger.exception("the run %s cannot be read; it stays as it is", run_id)

    async def _bury(self) -> None:
        """Processes that have died need not keep their runs until their leases end."""
        gone = leases.dead_owners(self.store, self._lease.owner, self._clock.now())
        if gone:
            await self.store.write(lambda connection: leases.evict(connection, gone))

    def _renew(self, connection: apsw.Connection) -> None:
        self._lease.renew(connection, self._clock.now())
