"""The embedded engine: drives runs in this process and stores them in one SQLite file.

    async with engine:
        run_id = await engine.start(bundle, inputs)
        machine = await engine.wait(run_id, lambda state: state.idle, 10.0)

Several processes share the file. A running run is owned by the process that drives it; other processes send
it messages (`mailbox`). A run that waits only for agents has no owner: the process that gets the answer takes
it over. A run keeps the workspace that it was started in, whatever process drives it.

In this module: the engine, its cache of released runs, and the removal of old scratch directories.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import apsw

from workflows_mcp.engines.base import NO_AGENTS, ChangedDefinition, FindBundle, MakeEvent, Pruned
from workflows_mcp.engines.clock import Clock, SystemClock
from workflows_mcp.engines.driver import Driver
from workflows_mcp.engines.executor import Executor
from workflows_mcp.engines.forks import (
    Fork,
    batch_of,
    fork_of,
    needs_scratch,
    new_run_id,
    request_digest,
)
from workflows_mcp.engines.sqlite import leases, runs
from workflows_mcp.engines.sqlite.leases import this_process
from workflows_mcp.engines.sqlite.mailbox import UNANSWERED_TURNS, Mailbox
from workflows_mcp.engines.sqlite.retention import PRUNE_SECONDS, Retention
from workflows_mcp.engines.sqlite.runs import RunJournal, StoredRuns
from workflows_mcp.engines.sqlite.store import Store
from workflows_mcp.engines.values import LargeValues, encode
from workflows_mcp.errors import Damaged, LeaseLost, NotExpected, StoreError, WorkflowsError
from workflows_mcp.limits import Limits
from workflows_mcp.machine import Audit, Chain, Event, Identity, Machine, RunState, Started, how_to_resume
from workflows_mcp.plan import Bundle
from workflows_mcp.values import Value

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.05
"""How often an engine looks for writes of other processes."""
_TURNS_A_SECOND = round(1 / POLL_SECONDS)
_PRUNE_AFTER_SECONDS = 10.0
"""How long after its start a server first deletes old runs."""
_SEND_TRIES = 3
"""How often an event is sent again if the run changes its owner meanwhile."""


class SqliteEngine(StoredRuns):
    """The engine; see `base.Engine` for what its public methods promise."""

    def __init__(
        self,
        path: Path,
        executor: Executor,
        find_bundle: FindBundle,
        *,
        clock: Clock | None = None,
        recovers: bool = True,
        synchronous: str = "FULL",
        settings: str = "",
    ) -> None:
        """`recovers`: recover the runs of dead processes, as servers do and short commands do not.
        `settings`: a fingerprint of the settings that decide what steps may do, and where."""
        self._path = path
        self._executor = executor
        self.live = executor.live
        executor.memory = self
        self._find_bundle = find_bundle
        self._clock = clock or SystemClock()
        self._recovers = recovers
        self._synchronous = synchronous
        self._workspace_key = runs.WorkspaceKey(str(executor.policy.workspace), settings)
        self._reported: set[str] = set()
        """Runs that are not recovered here, and for which that was logged."""
        self._lease = leases.Lease(this_process())
        self._owner = self._lease.owner.id
        self._drivers: dict[str, Driver] = {}
        """The drivers of the runs that this process drives."""
        self._released_runs = ReleasedRuns()
        self._draining: dict[str, asyncio.Task[None]] = {}
        """Ended and parked runs, until all of their steps have stopped."""
        self._locks: dict[str, asyncio.Lock] = {}
        self._broken: set[str] = set()
        """Runs that this process failed to read or drive; it does not try again."""
        self._bundles = runs.BundleCache()
        self._maintaining: asyncio.Task[None] | None = None
        self._pruning: asyncio.Task[None] | None = None
        self._prune_at = self._clock.now() + _PRUNE_AFTER_SECONDS
        self._seen_version = -1
        self._making_forks: set[asyncio.Task[None]] = set()
        self.store: Store
        self.mailbox: Mailbox

    async def open(self) -> None:
        tune_garbage_collector()
        self.store = Store(self._path, synchronous=self._synchronous)
        self.mailbox = Mailbox(self.store)
        self._retention = Retention(self.store, self._executor.clear_scratch)
        if self._recovers:
            sweep_scratch(self.store, self._executor)
        await self._recover()
        self._maintaining = asyncio.create_task(self._maintain())

    async def close(self) -> None:
        for task in (self._maintaining, self._pruning):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        await asyncio.gather(*self._making_forks, return_exceptions=True)
        await asyncio.gather(*(driver.abandon() for driver in self._drivers.values()))
        await asyncio.gather(*self._draining.values())
        self._drivers.clear()
        self.store.set_lease_renewal(0, None)
        try:
            await self.store.write(lambda connection: leases.leave(connection, self._owner))
        finally:
            await self.store.close()
            self._executor.close()

    # Runs

    async def start(
        self,
        bundle: Bundle,
        inputs: dict[str, Value],
        *,
        request_id: str | None = None,
        agents: Mapping[str, str] = NO_AGENTS,
        by: Identity | None = None,
    ) -> str:
        request = runs.Request.of(request_id, bundle, inputs) if request_id is not None else None
        if request is not None and (known := runs.started_by(self.store, request)) is not None:
            return known
        run_id, now, workspace = new_run_id(), self._clock.now(), str(self._executor.policy.workspace)
        limits = self._executor.limits.of_a_run
        started = Started(now, run_id, inputs, workspace, limits, agents=dict(agents), by=by)
        encode(started)
        machine = Machine(bundle)
        large = runs.large_values(self.store, run_id, self._executor.limits)
        key, body = self._bundles.put(bundle)
        driver, journal = self._new_driver(run_id, machine, large, Chain.begin(run_id, key), epoch=1)
        journal.created = runs.NewRun(run_id, bundle.main, key, body, request, now, now, self._workspace_key)
        self._drive(driver)
        driver.feed(started)
        if request is not None:
            try:
                await driver.wait_committed()
            except apsw.ConstraintError:
                if (known := runs.started_by(self.store, request)) is None:
                    raise
                return known
        return run_id

    async def send(self, run_id: str, make_event: MakeEvent) -> None:
        left = _SEND_TRIES
        while True:
            driver = self._live(run_id)
            try:
                if driver is None:
                    if await self._send_to_undriven_here(run_id, make_event):
                        return
                    continue
                await driver.wait_applied()
                if self._live(run_id) is driver:  # it may have been released meanwhile
                    await driver.send(make_event)
                    return
            except LeaseLost:
                left -= 1
                if not left:
                    raise

    async def _send_to_undriven_here(self, run_id: str, make_event: MakeEvent) -> bool:
        """Take over a run that is not driven here, with the event, or send the event to its owner.

        Returns False if this process has taken the run over meanwhile."""
        async with self._locks.setdefault(run_id, asyncio.Lock()):
            if self._live(run_id) is not None:
                return False
            if (draining := self._draining.get(run_id)) is not None:
                await asyncio.wait([draining])
            row = runs.row_of(self.store, run_id)
            released = self._released_runs.at(run_id, row.epoch) if row is not None else None
            machine = released.machine if released is not None else self._read(run_id)
            event = make_event(machine, self._clock.now())
            encode(event)
            machine.refuse_unexpected(event)
            driver: Driver | None
            if released is not None and machine.state.status == "running":
                driver = self._reacquire(run_id, released)
            elif (driver := await self._acquire(run_id, event)) is not None:
                try:
                    event = make_event(driver.machine, self._clock.now())
                    driver.machine.refuse_unexpected(event)
                except WorkflowsError:
                    await self.start_driving(driver)
                    raise
            if driver is not None:
                await self.start_driving(driver, event)
                await driver.wait_committed()
                return True
        await self._send_elsewhere(run_id, event)
        return True

    async def ensure_driven(self, run_id: str) -> None:
        if self._live(run_id) is None and self._read(run_id).state.status == "running":
            row = runs.row_of(self.store, run_id)
            if row is not None and (row.workspace, row.settings) != self._workspace_key:
                await self.store.write(lambda connection: runs.move(connection, run_id, self._workspace_key))
            await self._drive_if_undriven(run_id)
            await self.mailbox.deliver(self._live)

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
                    machine = await driver.wait_until(ready, until - loop.time())
                except LeaseLost:
                    if self._live(run_id) is driver:
                        raise
                    continue  # another process drives it now: poll the store
                if driver.released != "idle":
                    return machine
                continue  # an answer that came meanwhile may have made another driver
            if (draining := self._draining.get(run_id)) is not None:
                await asyncio.wait([draining])
            position = runs.position_of(self.store, run_id)
            if position != seen or loop.time() >= until:
                seen = position
                released = self._released_runs.at(run_id, position[0])
                machine = released.machine if released is not None else self._read(run_id)
                if ready(machine.state) or loop.time() >= until:
                    return machine
            await asyncio.sleep(min(POLL_SECONDS, max(0.0, until - loop.time())))

    async def prune(self, limits: Limits, *, dry_run: bool = False) -> Pruned:
        return await self._retention.prune(limits, self._clock.now(), dry_run=dry_run)

    async def journal(self, run_id: str, after: int = 0) -> tuple[Bundle, list[Event]]:
        return (await self._journal(run_id, after))[:2]

    async def _journal(self, run_id: str, after: int = 0) -> tuple[Bundle, list[Event], LargeValues]:
        driver = self._live(run_id)
        if driver is not None:
            with suppress(LeaseLost):  # another process drives it now: read what that one has written
                await driver.pause_until_committed()
        return runs.journal(self.store, self._bundles, run_id, self._executor.limits, after)

    async def audit(self, run_id: str) -> Audit:
        driver = self._live(run_id)
        if driver is not None:
            with suppress(LeaseLost):
                await driver.pause_until_committed()
        return runs.audit(self.store, run_id)

    async def fork(
        self,
        run_id: str,
        position: int,
        then: Sequence[Event] = (),
        *,
        changed: ChangedDefinition | None = None,
        request_id: str | None = None,
    ) -> str:
        digest = request_digest(run_id, position, then, changed)
        request = runs.Request(request_id, digest) if request_id is not None else None
        if request is not None and (known := runs.started_by(self.store, request)) is not None:
            return known
        pinned, events, large = await self._journal(run_id)
        bundle, copied = changed or (pinned, events)
        scratch, now = self._executor.scratch, self._clock.now()
        fork = fork_of(run_id, bundle, copied, position, now, then=then, scratch=scratch)
        making = asyncio.create_task(self._make_fork(fork, large, run_id, request))
        self._making_forks.add(making)
        making.add_done_callback(self._making_forks.discard)
        try:
            await asyncio.shield(making)  # the fork is completed even if the caller is cancelled
        except apsw.ConstraintError:
            if request is None or (known := runs.started_by(self.store, request)) is None:
                raise
            return known
        return fork.run_id

    async def _make_fork(
        self, fork: Fork, large: LargeValues, origin: str, request: runs.Request | None
    ) -> None:
        """Write a fork with all of its first events in one transaction, and then drive it."""
        try:
            await asyncio.to_thread(self._executor.copy_scratch, origin, fork.run_id)
            async with self._locks.setdefault(fork.run_id, asyncio.Lock()):
                now, state = self._clock.now(), fork.machine.state
                key, body = self._bundles.put(fork.machine.bundle)
                chain = Chain.begin(fork.run_id, key)
                driver, journal = self._new_driver(fork.run_id, fork.machine, large, chain, epoch=1)
                journal.created = runs.NewRun(
                    fork.run_id, state.workflow, key, body, request,
                    state.started_at, now, self._workspace_key, origin,
                )  # fmt: skip
                await journal.write(batch_of(fork, large, now, chain))
                await self.start_driving(driver, after_crash=False)
        except BaseException:
            if runs.row_of(self.store, fork.run_id) is None:
                self._executor.clear_scratch(fork.run_id)
            raise

    def _read(self, run_id: str) -> Machine:
        return runs.read(self.store, self._bundles, run_id, self._executor.limits)[0]

    # Drivers of runs

    def _live(self, run_id: str) -> Driver | None:
        """The driver of a run, if this process drives it."""
        driver = self._drivers.get(run_id)
        return driver if driver is not None and driver.failure is None else None

    def _new_driver(
        self, run_id: str, machine: Machine, large: LargeValues, chain: Chain, *, epoch: int
    ) -> tuple[Driver, RunJournal]:
        journal = RunJournal(self.store, self._lease, self._clock, run_id, epoch)
        driver = Driver(
            run_id, machine, large, journal, self._executor, self._clock, self._find_bundle, chain
        )
        driver.on_release = lambda status: self._on_release(run_id, driver, epoch, status)
        return driver, journal

    def _drive(self, driver: Driver) -> None:
        self._drivers[driver.run_id] = driver
        self.store.set_lease_renewal(leases.RENEW_SECONDS, self._renew)

    def _on_release(self, run_id: str, driver: Driver, epoch: int, status: str) -> None:
        """Keep a released run in the cache; clean up after it if it has ended."""
        if self._drivers.get(run_id) is driver:
            del self._drivers[run_id]
        self._released_runs.keep(run_id, ReleasedRun(driver.machine, driver.large, driver.chain, epoch))
        if status != "idle":
            self._locks.pop(run_id, None)
        if status != "idle" or driver.machine.state.parked is not None:
            self._draining[run_id] = asyncio.get_running_loop().create_task(self._drain(driver))
        if not self._drivers:
            self.store.set_lease_renewal(0, None)

    async def _drain(self, driver: Driver) -> None:
        """Wait for the steps of an ended or parked run to stop; release the files of one that has ended."""
        try:
            await driver.wait_drained()
            if driver.released != "idle":
                self._executor.release_scratch(driver.run_id, keep=needs_scratch(driver.machine))
        finally:
            self._draining.pop(driver.run_id, None)

    def _renew(self, connection: apsw.Connection) -> None:
        self._lease.renew(connection, self._clock.now())

    # How a crash is recovered
    #
    # 1. The lease of the dead process expires, or `_evict_dead_owners` deletes it: its runs are orphans.
    # 2. `_recover`, once a second in every server, lists the orphans. It skips runs that were started in
    #    another directory or with other settings, and those that this process failed to drive before.
    # 3. `_acquire` claims a run, which increments its epoch: if the old owner is alive after all, the store
    #    refuses its writes. Then it reads the state: the latest snapshot, and the events after it.
    # 4. `start_driving` kills the processes that interrupted steps left behind, and resumes the run.
    # 5. `Machine.outstanding` returns what was under way at the crash: timers are set again, and each
    #    interrupted step is repeated, failed or asked about, as its `on_interrupt` says.

    async def _recover(self) -> None:
        """Take over the running runs of this workspace key that no live process drives."""
        if not self._recovers:
            return
        await self._evict_dead_owners()
        rows = self.store.read(leases.ORPHANS, (self._owner, self._clock.now()))
        for run_id in [str(row[0]) for row in rows]:
            if self._live(run_id) is not None or run_id in self._broken:
                continue
            if why := runs.why_not_recovered_here(self.store, run_id, self._workspace_key):
                self._report_not_recovered(run_id, why)
            else:
                await self._recover_one(run_id)

    async def _recover_one(self, run_id: str) -> None:
        failed = self._drivers.get(run_id)
        if failed is not None and not isinstance(failed.failure, WorkflowsError | apsw.Error):
            self._broken.add(run_id)  # driving it failed with a bug before, and would fail again
            return
        try:
            if await self._drive_if_undriven(run_id):
                logger.info("recovered the run %s", run_id)
        except Damaged as error:
            self._broken.add(run_id)
            logger.error("a damaged run is not recovered: %s", error)
        except (StoreError, apsw.Error):
            logger.warning("cannot take over the run %s yet", run_id, exc_info=True)
        except Exception:
            self._broken.add(run_id)
            logger.exception("cannot read the run %s; it is left as it is", run_id)

    async def _drive_if_undriven(self, run_id: str) -> bool:
        """Claim and continue a run that no live process drives; return whether that was possible."""
        async with self._locks.setdefault(run_id, asyncio.Lock()):
            driver = await self._acquire(run_id) if self._live(run_id) is None else None
            if driver is not None:
                await self.start_driving(driver)
        return driver is not None

    async def _acquire(self, run_id: str, event: Event | None = None) -> Driver | None:
        """Claim a run that no live process drives, and read it. None if it cannot be claimed.

        It continues with `start_driving`. The caller holds the lock of the run. Raises NotExpected if the run
        was interrupted in the middle of its work in another workspace, unless `event` cancels it."""
        await self._evict_dead_owners()
        before = self._drivers.pop(run_id, None)
        if before is not None:
            await before.abandon()

        def claim(connection: apsw.Connection) -> int | None:
            self._renew(connection)
            return leases.claim(connection, run_id, self._owner, self._clock.now())

        epoch = await self.store.write(claim)
        if epoch is None:
            return None
        released = self._released_runs.take(run_id, epoch)
        if released is not None:
            machine, large, chain = released.machine, released.large, released.chain
        else:
            chain = runs.chain_of(self.store, run_id)
            machine, large = runs.read(self.store, self._bundles, run_id, self._executor.limits)
        if (status := machine.state.status) != "running":
            await self.store.write(lambda it: leases.release(it, run_id, self._owner, status))
            return None
        if not (machine.state.waits_for_agents or (event is not None and event.cancels)):
            why = runs.why_not_recovered_here(self.store, run_id, self._workspace_key)
            if why:
                await self.store.write(lambda it: leases.release(it, run_id, self._owner, "running"))
                raise NotExpected(
                    f"the run {run_id} was interrupted in the middle of its work, and is not continued"
                    f" here: {why}",
                    hint=f"start a server there, or continue it here first: {how_to_resume(run_id)}",
                )
        return self._new_driver(run_id, machine, large, chain, epoch=epoch)[0]

    async def start_driving(
        self, driver: Driver, event: Event | None = None, *, after_crash: bool = True
    ) -> None:
        """Kill what interrupted steps left running, then resume the run."""
        if after_crash:
            await self._executor.end_leftovers(driver.run_id, driver.under_way())
        self._drive(driver)
        if event is None and driver.status == "idle":
            await self._release(driver)
        else:
            await driver.resume(event, after_crash=after_crash)

    async def _evict_dead_owners(self) -> None:
        """Delete the leases of processes of this machine that are known to be dead."""
        dead = leases.dead_owners(self.store, self._lease.owner, self._clock.now())
        if dead:
            await self.store.write(lambda connection: leases.evict(connection, dead))

    def _report_not_recovered(self, run_id: str, why: str) -> None:
        """Log once that a run of another workspace, or of other settings, is not recovered here."""
        if run_id not in self._reported:
            self._reported.add(run_id)
            logger.warning(
                "the run %s was interrupted and is not continued here: %s. Start a server there, or run:"
                " workflows-mcp resume %s", run_id, why, run_id,
            )  # fmt: skip

    # Idle runs

    def _reacquire(self, run_id: str, released: ReleasedRun) -> Driver:
        """Continue a run that was released here and has not been taken over since.

        The first batch claims the run, so that an answer costs one commit. If another process is quicker,
        the store refuses that batch. The caller holds the lock of the run."""
        epoch = released.epoch + 1
        self._released_runs.take(run_id, epoch)
        machine, large, chain = released.machine, released.large, released.chain
        driver, journal = self._new_driver(run_id, machine, large, chain, epoch=epoch)
        journal.claims = True
        return driver

    async def _release(self, driver: Driver) -> None:
        """Release an idle run that this process claimed, unless the mailbox has an event for it."""
        run_id, events = driver.run_id, driver.machine.state.events
        await self.mailbox.deliver(self._live)
        if driver.status != "idle" or driver.machine.state.events != events:
            return  # it continues, and is released when it is idle again
        self._drivers.pop(run_id, None)  # from here on it gets no events
        if not await self.store.write(lambda it: leases.release(it, run_id, self._owner, "idle")):
            raise leases.lost(run_id)
        driver.release("idle")

    # Other processes

    async def _send_elsewhere(self, run_id: str, event: Event) -> None:
        """Send an event to the process that drives the run, and wait for the answer."""
        message = await self.mailbox.send(run_id, event)
        try:
            turn = free = 0
            while not self.mailbox.answered(message):
                row = runs.row_of(self.store, run_id)
                turn, free = turn + 1, free + 1 if row is not None and row.owner is None else 0
                if turn % _TURNS_A_SECOND == 0 or free == UNANSWERED_TURNS:
                    await self._drive_if_undriven(run_id)  # its owner may have died, or released it
                    await self.mailbox.deliver(self._live)
                    if not self.mailbox.answered(message):
                        self._read(run_id).refuse_unexpected(event)
                await asyncio.sleep(POLL_SECONDS)
        finally:
            await self.mailbox.delete(message)

    # Maintenance, once in a while

    async def _maintain(self) -> None:
        """Deliver messages of other processes, recover orphans and prune old runs."""
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
                logger.exception("the maintenance of the store of runs failed")

    def _drop_lost(self) -> None:
        """Drop the drivers of runs that another process has taken over."""
        for run_id, driver in list(self._drivers.items()):
            if isinstance(driver.failure, LeaseLost):
                del self._drivers[run_id]
        if not self._drivers:
            self.store.set_lease_renewal(0, None)

    def _prune_if_due(self) -> None:
        """Prune old runs; only servers do."""
        if self._recovers and self._clock.now() >= self._prune_at:
            self._prune_at = self._clock.now() + PRUNE_SECONDS
            self._pruning = asyncio.create_task(self._prune_in_turn())

    async def _prune_in_turn(self) -> None:
        try:
            if await self._retention.is_due(self._clock.now()):
                pruned = await self.prune(self._executor.limits)
                if pruned.runs:
                    logger.info("deleted %d old runs", len(pruned.runs))
        except Exception:
            logger.exception("cannot delete old runs")


# ----------------------------------------------------------------------------------------------------
# A cache of released runs, so that an answer, or the status after the end, need not read the run again


class ReleasedRun(NamedTuple):
    machine: Machine
    large: LargeValues
    chain: Chain
    epoch: int
    """The epoch at which the run was released. Another one means that a process has taken it over."""


class ReleasedRuns:
    """The idle runs that were released last, and the last one that ended, whose status is asked for next."""

    def __init__(self, size: int = 64) -> None:
        self._runs: OrderedDict[str, ReleasedRun] = OrderedDict()
        self._size = size
        self._ended = ""

    def keep(self, run_id: str, released: ReleasedRun) -> None:
        if released.machine.state.status != "running":
            self._runs.pop(self._ended, None)
            self._ended = run_id
        self._runs[run_id] = released
        self._runs.move_to_end(run_id)
        while len(self._runs) > self._size:
            self._runs.popitem(last=False)

    def at(self, run_id: str, epoch: int) -> ReleasedRun | None:
        """The run, if no process has taken it over since: its epoch is still the same."""
        known = self._runs.get(run_id)
        return known if known is not None and known.epoch == epoch else None

    def take(self, run_id: str, epoch: int) -> ReleasedRun | None:
        """Remove and return the run, if claiming it has just incremented its epoch to this one."""
        known = self._runs.pop(run_id, None)
        return known if known is not None and known.epoch == epoch - 1 else None


# ----------------------------------------------------------------------------------------------------
# Scratch directories that no run needs, removed when a server starts


_UNFINISHED = ("running", "idle")


def sweep_scratch(store: Store, executor: Executor) -> None:
    """Remove the scratch directories of ended runs, and of forks that were never created.

    Those of failed and cancelled runs are kept for a day, for a retry."""
    for run_id in executor.scratch_of_runs():
        row = runs.row_of(store, run_id)
        status = row.status if row is not None else None
        if status == "completed" or (status not in _UNFINISHED and executor.scratch_is_old(run_id)):
            executor.clear_scratch(run_id)


def tune_garbage_collector() -> None:
    """Let the collector of cycles run less often: runs are many small objects without cycles.

    With the default thresholds a block in a run of ten thousand blocks costs twice as much as in one of a
    hundred. With much larger thresholds single collections took 200 ms, which users notice."""
    gc.set_threshold(2_000, 10, 100)
