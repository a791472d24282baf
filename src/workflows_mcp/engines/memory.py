"""The engine of tests and dry runs: everything in memory, under a clock that a test may move by hand.

It keeps the events that it was given, so a test can kill a run and restore it from any position.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from workflows_mcp.engines.base import FindBundle, MakeEvent, RunSummary
from workflows_mcp.engines.clock import Clock, SystemClock
from workflows_mcp.engines.driver import Batch, Driver
from workflows_mcp.engines.encoding import decode_events
from workflows_mcp.engines.executor import Executor
from workflows_mcp.engines.ids import new_run_id
from workflows_mcp.engines.waiting import wait_until
from workflows_mcp.errors import UnknownRun
from workflows_mcp.machine.events import Event, Started
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.state import RunState
from workflows_mcp.plan.model import Bundle
from workflows_mcp.values import Value


class MemoryJournal:
    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def append(self, batch: Batch, done: Callable[[Exception | None], None]) -> None:
        self.batches.append(batch)
        asyncio.get_running_loop().call_soon(done, None)

    def in_force(self) -> bool:
        return True

    def confirm(self, done: Callable[[Exception | None], None]) -> None:
        done(None)

    def events(self) -> list[Event]:
        return [event for batch in self.batches for event in decode_events(batch.events)]


class MemoryEngine:
    def __init__(self, executor: Executor, find_bundle: FindBundle, *, clock: Clock | None = None) -> None:
        self._executor = executor
        self._find_bundle = find_bundle
        self._clock = clock or SystemClock()
        self._drivers: dict[str, Driver] = {}
        self._requests: dict[str, str] = {}
        self.journals: dict[str, MemoryJournal] = {}

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        for driver in self._drivers.values():
            await driver.abandon()
        self._drivers.clear()

    async def start(self, bundle: Bundle, inputs: dict[str, Value], *, request_id: str | None = None) -> str:
        if request_id is not None and request_id in self._requests:
            return self._requests[request_id]
        run_id = new_run_id()
        if request_id is not None:
            self._requests[request_id] = run_id
        driver = self._drive(run_id, Machine(bundle, call_depth=self._executor.limits.call_depth))
        workspace = str(self._executor.policy.workspace)
        driver.begin(Started(self._clock.now(), run_id, inputs, workspace), run_id, workspace)
        return run_id

    def _drive(self, run_id: str, machine: Machine) -> Driver:
        journal = self.journals.setdefault(run_id, MemoryJournal())
        driver = Driver(machine, journal, self._executor, self._clock, self._find_bundle)
        self._drivers[run_id] = driver
        return driver

    async def crash_and_resume(self, run_id: str) -> None:
        """What a kill and a restart amount to: all but the journal is lost, and the run goes on from it."""
        driver = self._drivers.pop(run_id)
        bundle = driver.machine.bundle
        await driver.abandon()
        machine = Machine(bundle, call_depth=self._executor.limits.call_depth)
        for event in self.journals[run_id].events():
            machine.apply(event)
        self._drive(run_id, Machine(bundle, machine.snapshot())).resume()

    async def send(self, run_id: str, make_event: MakeEvent) -> None:
        driver = self._driver(run_id)
        await driver.send(make_event(driver.machine, self._clock.now()))

    async def view(self, run_id: str) -> Machine:
        return await self._driver(run_id).settled()

    async def wait(self, run_id: str, ready: Callable[[RunState], bool], seconds: float) -> Machine:
        return await wait_until(self._driver(run_id), ready, seconds)

    async def recent(self, limit: int) -> list[RunSummary]:
        states = [(driver.machine.state, driver.status) for driver in self._drivers.values()]
        states.sort(key=lambda item: item[0].changed_at, reverse=True)
        return [
            RunSummary(state.run_id, state.workflow, status, state.started_at, state.changed_at)
            for state, status in states[:limit]
        ]

    def _driver(self, run_id: str) -> Driver:
        driver = self._drivers.get(run_id)
        if driver is None:
            raise UnknownRun(f"there is no run '{run_id}'")
        return driver
