"""The embedded engine: drives runs in this process, keeps them in one file, shares it with others.

A run that waits for an agent only has no owner: whichever process the answer reaches claims it and goes
on. A run with work under way is owned; another process reaches it through the `inbox` table, and takes
it over when its owner is gone. A process that adopts (a server does, a short command does not) looks
every second for runs that nobody drives.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import apsw
import msgspec

from workflows_mcp.engines.base import FindBundle, MakeEvent, RunSummary
from workflows_mcp.engines.clock import Clock, SystemClock
from workflows_mcp.engines.collector import collect_rarely
from workflows_mcp.engines.driver import Driver
from workflows_mcp.engines.executor import Executor
from workflows_mcp.engines.ids import new_run_id
from workflows_mcp.engines.sqlite import leases, runs
from workflows_mcp.engines.sqlite.journal import RunJournal
from workflows_mcp.engines.sqlite.owners import this_process
from workflows_mcp.engines.sqlite.store import Store
from workflows_mcp.engines.waiting import wait_until
from workflows_mcp.errors import LeaseLost, NotExpected, StoreError, WorkflowsError
from workflows_mcp.machine.events import Event, Started
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.state import RunState
from workflows_mcp.plan.model import Bundle
from workflows_mcp.values import Value

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.05
"""How often another process's writes are looked for, by whoever waits for them."""
_TURNS_A_SECOND = round(1 / _POLL_SECONDS)
_KEPT_AT_REST = 256
"""How many runs that are at rest stay in memory, so that the next answer need not read them again."""

_event = msgspec.msgpack.Encoder()
_decode_event = msgspec.msgpack.Decoder(Event)


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
        self._journals: dict[str, RunJournal] = {}
        self._at_rest: OrderedDict[str, None] = OrderedDict()
        self._bundles = runs.BundleCache()
        self._keeping: asyncio.Task[None] | None = None
        self._seen_version = -1
        self._unreadable: set[str] = set()
        self.store: Store

    async def open(self) -> None:
        collect_rarely()
        self.store = Store(self._path, synchronous=self._synchronous)
        await self._adopt()
        self._keeping = asyncio.create_task(self._keep())

    async def close(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
        for driver in list(self._drivers.values()):
            await driver.abandon()
        self._drivers.clear()
        self.store.beat(0, None)
        await self.store.write(lambda connection: leases.retire(connection, self._owner))
        await self.store.close()

    # Runs

    async def start(self, bundle: Bundle, inputs: dict[str, Value], *, request_id: str | None = None) -> str:
        if request_id is not None and (known := self._run_of_request(request_id)) is not None:
            return known
        run_id, now = new_run_id(), self._clock.now()
        driver = self._drive(run_id, Machine(bundle, call_depth=self._executor.limits.call_depth), epoch=1)
        key, body = self._bundles.put(bundle)
        self._journals[run_id].created = runs.NewRun(run_id, bundle.main, key, body, request_id, now)
        driver.feed(Started(now, run_id, inputs))
        if request_id is not None:
            try:
                await driver.synced()
            except apsw.ConstraintError:
                known = self._run_of_request(request_id)
                if known is None:
                    raise
                return known
        return run_id

    async def send(self, run_id: str, make_event: MakeEvent) -> None:
        driver = self._live(run_id)
        if driver is not None:
            event = make_event(driver.machine, self._clock.now())
            driver.machine.refuse_unexpected(event)
            driver.feed(event)
        else:
            driver = await self._send_at_rest(run_id, make_event)
        if driver is not None:
            await driver.synced()

    async def _send_at_rest(self, run_id: str, make_event: MakeEvent) -> Driver | None:
        """Send an event to a run that is not under way here: take it over with the event, or post it."""
        machine = self._at_rest_here(run_id) or self._read(run_id)
        event = make_event(machine, self._clock.now())
        machine.refuse_unexpected(event)
        driver = await self._take(run_id)
        if driver is None:
            await self._send_elsewhere(run_id, event)
            return None
        await self._executor.end_leftovers([(run_id, key) for key in driver.under_way()])
        try:
            event = make_event(driver.machine, self._clock.now())
            driver.machine.refuse_unexpected(event)
        except WorkflowsError:
            driver.resume()
            await self._give_back(run_id, driver)
            raise
        driver.resume(event)
        return driver

    async def view(self, run_id: str) -> Machine:
        return await self.wait(run_id, lambda _: True, 0.0)

    async def wait(self, run_id: str, ready: Callable[[RunState], bool], seconds: float) -> Machine:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while True:
            driver = self._live(run_id)
            if driver is not None:
                try:
                    return await wait_until(driver, ready, until - loop.time())
                except LeaseLost:
                    continue  # another process drives it now: watch it there
            machine = self._at_rest_here(run_id) or self._read(run_id)
            if ready(machine.state) or loop.time() >= until:
                return machine
            await asyncio.sleep(min(_POLL_SECONDS, max(0.0, until - loop.time())))

    async def recent(self, limit: int) -> list[RunSummary]:
        rows = self.store.read(
            "SELECT id, workflow, status, started_at, changed_at FROM runs ORDER BY changed_at DESC LIMIT ?",
            (limit,),
        )
        return [RunSummary(*row) for row in rows]

    # Driving

    def _live(self, run_id: str) -> Driver | None:
        """The driver of a run that is under way in this process."""
        driver = self._drivers.get(run_id)
        alive = driver is not None and driver.failure is None and run_id not in self._at_rest
        return driver if alive else None

    def _at_rest_here(self, run_id: str) -> Machine | None:
        """A run that came to rest in this process and that nobody has touched since."""
        if run_id not in self._at_rest:
            return None
        if leases.epoch_of(self.store, run_id) != self._journals[run_id].epoch:
            return None
        return self._drivers[run_id].machine

    def _drive(self, run_id: str, machine: Machine, epoch: int) -> Driver:
        journal = RunJournal(self.store, self._lease, self._clock, run_id, epoch)
        driver = Driver(machine, journal, self._executor, self._clock, self._find_bundle)
        driver.on_rest = lambda status: self._rest(run_id, status)
        self._journals[run_id] = journal
        self._drivers[run_id] = driver
        self._at_rest.pop(run_id, None)
        self.store.beat(leases.RENEW_SECONDS, self._renew)
        return driver

    def _rest(self, run_id: str, status: str) -> None:
        """A run has nothing to do here: it has ended, or an agent must answer first."""
        if status != "idle":
            asyncio.get_running_loop().create_task(self._clean_up(run_id))
        self._at_rest[run_id] = None
        self._at_rest.move_to_end(run_id)
        while len(self._at_rest) > _KEPT_AT_REST:
            oldest, _ = self._at_rest.popitem(last=False)
            del self._drivers[oldest], self._journals[oldest]
        if len(self._drivers) == len(self._at_rest):
            self.store.beat(0, None)

    async def _clean_up(self, run_id: str) -> None:
        await self._executor.quiet(run_id)
        self._executor.clear_scratch(run_id)

    async def _claim(self, run_id: str) -> Driver | None:
        """Take over a run that nobody alive drives, and go on with it; None when it cannot be had."""
        taken = await self._take(run_id)
        if taken is None:
            return None
        await self._executor.end_leftovers([(run_id, key) for key in taken.under_way()])
        taken.resume()
        return taken

    async def _take(self, run_id: str) -> Driver | None:
        await self._bury()
        here = self._at_rest_here(run_id)
        before = self._journals[run_id].epoch if here is not None else None

        def claim(connection: apsw.Connection) -> int | None:
            self._renew(connection)
            return leases.claim(connection, run_id, self._owner, self._clock.now())

        epoch = await self.store.write(claim)
        if epoch is None:
            return None
        machine = here if here is not None and before == epoch - 1 else self._read(run_id)
        return self._drive(run_id, machine, epoch)

    async def _give_back(self, run_id: str, driver: Driver) -> None:
        """A run that was claimed for an event that it does not take: leave it as it was found."""
        if driver.status == "idle" and self._live(run_id) is driver:
            epoch = self._journals[run_id].epoch
            await self.store.write(lambda connection: leases.release(connection, run_id, epoch))
            self._rest(run_id, "idle")

    def _read(self, run_id: str) -> Machine:
        return runs.read(self.store, self._bundles, run_id, self._executor.limits.call_depth)

    def _run_of_request(self, request_id: str) -> str | None:
        rows = self.store.read("SELECT id FROM runs WHERE request_id = ?", (request_id,))
        return str(rows[0][0]) if rows else None

    # Other processes

    async def _send_elsewhere(self, run_id: str, event: Event) -> None:
        """Put an event into the inbox of the process that drives the run, and wait until it has it."""
        body = _event.encode(event)
        row = await self.store.write(lambda connection: runs.post(connection, run_id, body))
        turn = 0
        while True:
            answer = self.store.read("SELECT answer FROM inbox WHERE id = ?", (row,))[0][0]
            if answer is not None:
                await self.store.write(lambda connection: runs.forget(connection, row))
                if answer:
                    raise NotExpected(answer)
                return
            turn += 1
            if turn % _TURNS_A_SECOND == 0:
                await self._claim(run_id)  # its owner may have gone meanwhile
                await self._take_inbox()
            await asyncio.sleep(_POLL_SECONDS)

    async def _take_inbox(self) -> None:
        """Hand events that other processes have posted to the runs that are driven here."""
        for row, run_id, body in self.store.read("SELECT id, run, event FROM inbox WHERE answer IS NULL"):
            driver = self._live(run_id)
            if driver is None:
                continue
            event = _decode_event.decode(body)
            answer = ""
            try:
                driver.machine.refuse_unexpected(event)
                driver.feed(event)
                await driver.synced()
            except NotExpected as error:
                answer = str(error)
            except StoreError:
                continue
            await self._reply(row, answer)

    async def _reply(self, row: int, answer: str) -> None:
        await self.store.write(lambda connection: runs.reply(connection, row, answer))

    async def _keep(self) -> None:
        """Look for letters from other processes, and for runs that they have left."""
        turn = 0
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            turn += 1
            try:
                if len(self._drivers) > len(self._at_rest):
                    version = self.store.data_version()
                    if version != self._seen_version:
                        self._seen_version = version
                        await self._take_inbox()
                if turn % _TURNS_A_SECOND == 0:
                    await self._adopt()
            except (StoreError, apsw.Error):
                logger.exception("the store of runs cannot be looked after")

    async def _adopt(self) -> None:
        """Take over every run that somebody should drive and nobody alive does."""
        if not self._adopts:
            return
        await self._bury()
        rows = self.store.read(leases.ORPHANS, (self._owner, self._clock.now()))
        orphans = [str(row[0]) for row in rows]
        drivers = [driver for run_id in orphans if (driver := await self._adopted(run_id)) is not None]
        await self._executor.end_leftovers([(it.run_id, key) for it in drivers for key in it.under_way()])
        for driver in drivers:
            logger.info("the run %s goes on here", driver.run_id)
            driver.resume()

    async def _adopted(self, run_id: str) -> Driver | None:
        if self._live(run_id) is not None or run_id in self._unreadable:
            return None
        try:
            return await self._take(run_id)
        except Exception:
            self._unreadable.add(run_id)
            logger.exception("the run %s cannot be read; it stays as it is", run_id)
            return None

    async def _bury(self) -> None:
        """Processes that have died need not keep their runs until their leases end."""
        gone = leases.gone(self.store, self._lease.owner, self._clock.now())
        if gone:
            await self.store.write(lambda connection: leases.bury(connection, gone))

    def _renew(self, connection: apsw.Connection) -> None:
        self._lease.renew(connection, self._clock.now())
