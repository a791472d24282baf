"""The embedded engine: drives runs in this process, keeps them in one file, shares it with others.

A run that waits for an agent only has no owner: whichever process the answer reaches takes it over and
goes on. A run with work under way is owned; another process reaches it by a letter (`letters`), and takes
it over when its owner is gone. A process that adopts (a server does, a short command does not) looks
every second for runs that nobody drives. A run works in the directory that it was started in, whoever
drives it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import apsw

from workflows_mcp.engines.base import FindBundle, MakeEvent, RunSummary
from workflows_mcp.engines.clock import Clock, SystemClock
from workflows_mcp.engines.collector import collect_rarely
from workflows_mcp.engines.driver import Driver
from workflows_mcp.engines.encoding import encode_event
from workflows_mcp.engines.executor import Executor
from workflows_mcp.engines.ids import new_run_id
from workflows_mcp.engines.sqlite import leases, runs
from workflows_mcp.engines.sqlite.journal import RunJournal
from workflows_mcp.engines.sqlite.letters import Letters
from workflows_mcp.engines.sqlite.owners import this_process
from workflows_mcp.engines.sqlite.store import Store
from workflows_mcp.engines.waiting import wait_until
from workflows_mcp.errors import LeaseLost, RequestError, StoreError, WorkflowsError
from workflows_mcp.machine.events import Event, Started
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.state import RunState
from workflows_mcp.plan.model import Bundle
from workflows_mcp.values import Value, to_json

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.05
"""How often another process's writes are looked for, by whoever waits for them."""
_TURNS_A_SECOND = round(1 / POLL_SECONDS)
_TRIES = 3
"""How often an event is sent again when the run changes hands on the way."""
_KEPT_AT_REST = 64
"""How many runs that wait for an agent stay in memory, so that the answer need not read them again."""


class SqliteEngine:
    def __init__(
        self,
        path: Path,
        executor: Executor,
        find_bundle: FindBundle,
        *,
        clock: Clock | None = None,
        adopt: bool = True,
        synchronous: str = "FULL",
    ) -> None:
        self._path = path
        self._executor = executor
        self._find_bundle = find_bundle
        self._clock = clock or SystemClock()
        self._adopts = adopt
        self._synchronous = synchronous
        self._lease = leases.Lease(this_process())
        self._owner = self._lease.owner.id
        self._drivers: dict[str, Driver] = {}
        """The runs that are under way here."""
        self._at_rest: OrderedDict[str, tuple[Machine, int]] = OrderedDict()
        """Runs that came to rest here and wait for an agent, with the epoch at which they did."""
        self._ending: dict[str, asyncio.Task[None]] = {}
        """Runs that have ended, until all that they started has ended too."""
        self._taking: dict[str, asyncio.Lock] = {}
        self._broken: set[str] = set()
        """Runs that this process cannot go on with; another version may."""
        self._bundles = runs.BundleCache()
        self._keeping: asyncio.Task[None] | None = None
        self._seen_version = -1
        self.store: Store
        self.letters: Letters

    async def open(self) -> None:
        collect_rarely()
        self.store = Store(self._path, synchronous=self._synchronous)
        self.letters = Letters(self.store)
        if self._adopts:
            self._sweep_scratch()
        await self._adopt()
        self._keeping = asyncio.create_task(self._keep())

    async def close(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeping
        await asyncio.gather(*(driver.abandon() for driver in self._drivers.values()))
        await asyncio.gather(*self._ending.values())
        self._drivers.clear()
        self.store.beat(0, None)
        try:
            await self.store.write(lambda connection: leases.retire(connection, self._owner))
        finally:
            await self.store.close()

    # Runs

    async def start(self, bundle: Bundle, inputs: dict[str, Value], *, request_id: str | None = None) -> str:
        request = runs.Request(request_id, _digest(bundle, inputs)) if request_id is not None else None
        if request is not None and (known := self._started_by(request)) is not None:
            return known
        run_id, now, workspace = new_run_id(), self._clock.now(), str(self._executor.policy.workspace)
        started = Started(now, run_id, inputs, workspace)
        encode_event(started)
        machine = Machine(bundle, call_depth=self._executor.limits.call_depth)
        driver, journal = self._new_driver(run_id, machine, epoch=1)
        key, body = self._bundles.put(bundle)
        journal.created = runs.NewRun(run_id, bundle.main, key, body, request, now)
        self._drivers[run_id] = driver
        driver.begin(started, run_id, workspace)
        if request is not None:
            try:
                await driver.synced()
            except apsw.ConstraintError:
                known = self._started_by(request)
                if known is None:
                    raise
                return known
        return run_id

    async def send(self, run_id: str, make_event: MakeEvent) -> None:
        for left in reversed(range(_TRIES)):
            driver = self._live(run_id)
            try:
                if driver is not None:
                    await driver.send(make_event(driver.machine, self._clock.now()))
                    return
                if await self._send_at_rest(run_id, make_event):
                    return
            except LeaseLost:
                if not left:
                    raise

    async def _send_at_rest(self, run_id: str, make_event: MakeEvent) -> bool:
        """Send an event to a run that is not under way here: take it over with the event, or post it.
        False when it has meanwhile been taken over here."""
        async with self._taking.setdefault(run_id, asyncio.Lock()):
            if self._live(run_id) is not None:
                return False
            machine = self._resting(run_id) or self._read(run_id)
            event = make_event(machine, self._clock.now())
            encode_event(event)
            machine.refuse_unexpected(event)
            driver = await self._take(run_id)
            if driver is not None:
                try:
                    event = make_event(driver.machine, self._clock.now())
                    driver.machine.refuse_unexpected(event)
                except WorkflowsError:
                    await self._go_on([driver])
                    raise
                await self._go_on([driver], event)
                await driver.synced()
                return True
        await self._send_elsewhere(run_id, event)
        return True

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
                    return await wait_until(driver, ready, until - loop.time())
                except LeaseLost:
                    if self._live(run_id) is driver:
                        raise
                    continue  # another process drives it now: watch it there
            if (ending := self._ending.get(run_id)) is not None:
                await asyncio.wait([ending])
            position = runs.position_of(self.store, run_id)
            if position != seen or loop.time() >= until:
                seen = position
                machine = self._resting(run_id) or self._read(run_id)
                if ready(machine.state) or loop.time() >= until:
                    return machine
            await asyncio.sleep(min(POLL_SECONDS, max(0.0, until - loop.time())))

    async def recent(self, limit: int) -> list[RunSummary]:
        rows = self.store.read(
            "SELECT id, workflow, status, started_at, changed_at FROM runs ORDER BY changed_at DESC LIMIT ?",
            (limit,),
        )
        return [RunSummary(*row) for row in rows]

    def _read(self, run_id: str) -> Machine:
        return runs.read(self.store, self._bundles, run_id, self._executor.limits.call_depth)

    def _resting(self, run_id: str) -> Machine | None:
        """A run that came to rest in this process and that nobody has touched since."""
        known = self._at_rest.get(run_id)
        if known is None or leases.epoch_of(self.store, run_id) != known[1]:
            return None
        return known[0]

    def _started_by(self, request: runs.Request) -> str | None:
        known = runs.started_by(self.store, request.id)
        if known is not None and known[1] != request.digest:
            raise RequestError(
                f"the request_id '{request.id}' has started something else: the run {known[0]}",
                hint="use a new request_id for a new run; the same one only to repeat the same call",
            )
        return known[0] if known is not None else None

    # Driving

    def _live(self, run_id: str) -> Driver | None:
        """The driver of a run that is under way in this process."""
        driver = self._drivers.get(run_id)
        return driver if driver is not None and driver.failure is None else None

    def _new_driver(self, run_id: str, machine: Machine, epoch: int) -> tuple[Driver, RunJournal]:
        journal = RunJournal(self.store, self._lease, self._clock, run_id, epoch)
        driver = Driver(machine, journal, self._executor, self._clock, self._find_bundle)
        driver.on_rest = lambda status: self._rest(run_id, driver, epoch, status)
        self.store.beat(leases.RENEW_SECONDS, self._renew)
        return driver, journal

    def _rest(self, run_id: str, driver: Driver, epoch: int, status: str) -> None:
        """A run has nothing to do here: it has ended, or an agent must answer first."""
        if self._drivers.get(run_id) is driver:
            del self._drivers[run_id]
        if status == "idle":
            self._at_rest[run_id] = (driver.machine, epoch)
            self._at_rest.move_to_end(run_id)
            while len(self._at_rest) > _KEPT_AT_REST:
                self._at_rest.popitem(last=False)
        else:
            self._taking.pop(run_id, None)
            self._ending[run_id] = asyncio.get_running_loop().create_task(self._clean_up(driver))
        if not self._drivers:
            self.store.beat(0, None)

    async def _clean_up(self, driver: Driver) -> None:
        try:
            await driver.quiet()
            self._executor.clear_scratch(driver.run_id)
        finally:
            self._ending.pop(driver.run_id, None)

    async def _take(self, run_id: str) -> Driver | None:
        """Become the owner of a run that nobody alive drives; None when it cannot be had. It does not go on
        before `_go_on`. Only under the lock of the run."""
        await self._bury()
        before = self._drivers.pop(run_id, None)
        if before is not None:
            await before.abandon()
        resting = self._resting(run_id)
        epoch_before = self._at_rest.pop(run_id)[1] if resting is not None else None

        def claim(connection: apsw.Connection) -> int | None:
            self._renew(connection)
            return leases.claim(connection, run_id, self._owner, self._clock.now())

        epoch = await self.store.write(claim)
        if epoch is None:
            return None
        machine = resting if resting is not None and epoch_before == epoch - 1 else self._read(run_id)
        return self._new_driver(run_id, machine, epoch)[0]

    async def _go_on(self, drivers: list[Driver], event: Event | None = None) -> None:
        """End what is left of steps that were cut off, then let the runs go on."""
        await self._executor.end_leftovers([(it.run_id, key) for it in drivers for key in it.under_way()])
        for driver in drivers:
            self._drivers[driver.run_id] = driver
            if event is None and driver.status == "idle":
                await self._release(driver)
            else:
                driver.resume(event)

    async def _release(self, driver: Driver) -> None:
        """A run that was taken over, and in which there is nothing to do without an agent."""
        run_id = driver.run_id
        epoch = await self.store.write(lambda connection: leases.release(connection, run_id, self._owner))
        self._rest(run_id, driver, epoch, "idle")

    # Other processes

    async def _send_elsewhere(self, run_id: str, event: Event) -> None:
        """Post an event to the process that drives the run, and wait until it has been taken in."""
        letter = await self.letters.post(run_id, event)
        try:
            turn = 0
            while not self.letters.answered(letter):
                turn += 1
                if turn % _TURNS_A_SECOND == 0:
                    await self._take_over(run_id)  # its owner may have gone meanwhile
                    self._read(run_id).refuse_unexpected(event)
                await asyncio.sleep(POLL_SECONDS)
        finally:
            await self.letters.forget(letter)

    async def _take_over(self, run_id: str) -> None:
        async with self._taking.setdefault(run_id, asyncio.Lock()):
            driver = await self._take(run_id) if self._live(run_id) is None else None
            if driver is not None:
                await self._go_on([driver])
        await self.letters.hand_out(self._live)

    async def _keep(self) -> None:
        """Look for letters from other processes, and for runs that they have left."""
        turn = 0
        while True:
            await asyncio.sleep(POLL_SECONDS)
            turn += 1
            try:
                if self._drivers and (version := self.store.data_version()) != self._seen_version:
                    self._seen_version = version
                    await self.letters.hand_out(self._live)
                if turn % _TURNS_A_SECOND == 0:
                    self._drop_lost()
                    await self._adopt()
            except Exception:
                logger.exception("the store of runs cannot be looked after")

    def _drop_lost(self) -> None:
        """Runs that were taken over by another process are no concern of this one."""
        for run_id, driver in list(self._drivers.items()):
            if isinstance(driver.failure, LeaseLost):
                del self._drivers[run_id]
        if not self._drivers:
            self.store.beat(0, None)

    async def _adopt(self) -> None:
        """Take over every run that somebody should drive and nobody alive does."""
        if not self._adopts:
            return
        await self._bury()
        rows = self.store.read(leases.ORPHANS, (self._owner, self._clock.now()))
        for run_id in [str(row[0]) for row in rows]:
            if self._live(run_id) is None and run_id not in self._broken:
                await self._adopt_one(run_id)

    async def _adopt_one(self, run_id: str) -> None:
        failed = self._drivers.get(run_id)
        if failed is not None and not isinstance(failed.failure, WorkflowsError | apsw.Error):
            self._broken.add(run_id)  # it broke here before: going on would break it again
            return
        try:
            async with self._taking.setdefault(run_id, asyncio.Lock()):
                driver = await self._take(run_id) if self._live(run_id) is None else None
                if driver is not None:
                    logger.info("the run %s goes on here", run_id)
                    await self._go_on([driver])
        except (StoreError, apsw.Error):
            logger.warning("the run %s cannot be taken over yet", run_id, exc_info=True)
        except Exception:
            self._broken.add(run_id)
            logger.exception("the run %s cannot be read; it stays as it is", run_id)

    async def _bury(self) -> None:
        """Processes that have died need not keep their runs until their leases end."""
        gone = leases.gone(self.store, self._lease.owner, self._clock.now())
        if gone:
            await self.store.write(lambda connection: leases.bury(connection, gone))

    def _renew(self, connection: apsw.Connection) -> None:
        self._lease.renew(connection, self._clock.now())

    def _sweep_scratch(self) -> None:
        """What runs that have ended left behind because their process was killed."""
        for run_id in self._executor.scratch_of_runs():
            if runs.has_ended(self.store, run_id):
                self._executor.clear_scratch(run_id)


def _digest(bundle: Bundle, inputs: dict[str, Value]) -> str:
    return hashlib.blake2b(to_json([bundle.main, inputs]).encode(), digest_size=12).hexdigest()
