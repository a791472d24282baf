"""The engine of tests and dry runs: runs live in memory, under a clock that a test can advance.

It keeps all events, so that a test can kill a run and restore it from any position.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from workflows_mcp.engines.audit import audit_of
from workflows_mcp.engines.base import NO_AGENTS, ChangedDefinition, FindBundle, MakeEvent, Pruned, RunSummary
from workflows_mcp.engines.clock import Clock, SystemClock
from workflows_mcp.engines.driver import Driver
from workflows_mcp.engines.executor import Executor
from workflows_mcp.engines.forks import batch_of, fork_of, new_run_id
from workflows_mcp.engines.values import Batch, LargeValues, check_key, full, packed, split_events, unpacked
from workflows_mcp.errors import UnknownRun
from workflows_mcp.limits import Limits
from workflows_mcp.machine import (
    HASH_BYTES,
    Audit,
    Chain,
    Event,
    Identity,
    Machine,
    RunState,
    Started,
    StoredBatch,
    replayed,
)
from workflows_mcp.plan import Bundle, bundle_key
from workflows_mcp.values import Value


class MemoryJournal:
    def __init__(self, large: LargeValues, blobs: dict[bytes, bytes]) -> None:
        self.batches: list[Batch] = []
        self._large = large
        self._blobs = blobs

    def append(self, batch: Batch, done: Callable[[Exception | None], None]) -> None:
        self.keep(batch)
        asyncio.get_running_loop().call_soon(done, None)

    def keep(self, batch: Batch) -> None:
        self.batches.append(batch)
        self._blobs.update(batch.blobs)

    def in_force(self) -> bool:
        return True

    def confirm(self, done: Callable[[Exception | None], None]) -> None:
        done(None)

    def chain(self, run_id: str, bundle: Bundle) -> Chain:
        """The hash chain of the run after its last batch."""
        if self.batches:
            return Chain(self.batches[-1].hashes[-HASH_BYTES:])
        return Chain.begin(run_id, bundle_key(bundle))

    def events(self) -> list[Event]:
        return [event for batch in self.batches for event in self._large.decode_events(batch.events)]


class MemoryEngine:
    def __init__(self, executor: Executor, find_bundle: FindBundle, *, clock: Clock | None = None) -> None:
        self._executor = executor
        self.live = executor.live
        executor.memory = self
        self._find_bundle = find_bundle
        self._clock = clock or SystemClock()
        self._drivers: dict[str, Driver] = {}
        self._requests: dict[str, str] = {}
        self._forked_at: dict[str, float] = {}
        self._deleted_checkpoints: dict[str, set[int]] = {}
        self._last_seen: dict[str, dict[str, float]] = {}
        self._blobs: dict[bytes, bytes] = {}
        self._memory: dict[str, bytes] = {}
        self.journals: dict[str, MemoryJournal] = {}

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        for driver in self._drivers.values():
            await driver.abandon()
        self._drivers.clear()
        self._executor.close()

    async def start(
        self,
        bundle: Bundle,
        inputs: dict[str, Value],
        *,
        request_id: str | None = None,
        agents: Mapping[str, str] = NO_AGENTS,
        by: Identity | None = None,
    ) -> str:
        if request_id is not None and request_id in self._requests:
            return self._requests[request_id]
        run_id = new_run_id()
        if request_id is not None:
            self._requests[request_id] = run_id
        driver = self._drive(run_id, Machine(bundle))
        workspace = str(self._executor.policy.workspace)
        limits = self._executor.limits.of_a_run
        started = Started(self._clock.now(), run_id, inputs, workspace, limits, agents=dict(agents), by=by)
        driver.feed(started)
        return run_id

    def _drive(self, run_id: str, machine: Machine) -> Driver:
        large = LargeValues(run_id, self._executor.limits.inline_bytes, self._blobs.get)
        journal = self.journals.setdefault(run_id, MemoryJournal(large, self._blobs))
        chain = journal.chain(run_id, machine.bundle)
        driver = Driver(
            run_id, machine, large, journal, self._executor, self._clock, self._find_bundle, chain
        )
        self._drivers[run_id] = driver
        return driver

    async def crash_and_resume(self, run_id: str) -> None:
        """Simulate a kill and a restart: lose all but the journal, and resume from it."""
        driver = self._drivers.pop(run_id)
        bundle = driver.machine.bundle
        await driver.abandon()
        machine = replayed(bundle, self.journals[run_id].events())
        await self._drive(run_id, Machine(bundle, machine.snapshot())).resume()

    async def send(self, run_id: str, make_event: MakeEvent) -> None:
        driver = self._driver(run_id)
        await driver.wait_applied()
        await driver.send(make_event)

    async def ensure_driven(self, run_id: str) -> None:
        self._driver(run_id)

    async def is_driven_here(self, run_id: str) -> bool:
        self._driver(run_id)
        return True

    async def view(self, run_id: str) -> Machine:
        return await self._driver(run_id).pause_until_committed()

    async def wait(self, run_id: str, ready: Callable[[RunState], bool], seconds: float) -> Machine:
        return await self._driver(run_id).wait_until(ready, seconds)

    async def prune(self, limits: Limits, *, dry_run: bool = False) -> Pruned:
        return Pruned(())  # the process ends before any of its runs is old

    async def recent(self, limit: int, workflow: str | None = None) -> list[RunSummary]:
        listed = [
            self._summary(driver)
            for driver in self._drivers.values()
            if workflow is None or driver.machine.state.workflow == workflow
        ]
        listed.sort(key=lambda run: run.changed_at, reverse=True)
        return listed[:limit]

    async def unfinished(self) -> list[RunSummary]:
        return [run for run in await self.recent(len(self._drivers)) if run.status in ("running", "idle")]

    def _summary(self, driver: Driver) -> RunSummary:
        state = driver.machine.state
        changed_at = max(state.changed_at, self._forked_at.get(state.run_id, 0.0))
        origin = state.forked_from.partition("@")[0]
        return RunSummary(
            state.run_id, state.workflow, driver.status, state.started_at, changed_at, origin, state.workspace
        )

    async def journal(self, run_id: str, after: int = 0) -> tuple[Bundle, list[Event]]:
        machine = await self._driver(run_id).pause_until_committed()
        return machine.bundle, self.journals[run_id].events()[after:]

    async def fork(
        self,
        run_id: str,
        position: int,
        then: Sequence[Event] = (),
        *,
        changed: ChangedDefinition | None = None,
        request_id: str | None = None,
    ) -> str:
        if request_id is not None and request_id in self._requests:
            return self._requests[request_id]
        bundle, events = changed or await self.journal(run_id)
        scratch = self._executor.scratch
        fork = fork_of(run_id, bundle, events, position, self._clock.now(), then=then, scratch=scratch)
        if request_id is not None:
            self._requests[request_id] = fork.run_id
        await asyncio.to_thread(self._executor.copy_scratch, run_id, fork.run_id)
        driver = self._drive(fork.run_id, fork.machine)
        now = self._forked_at[fork.run_id] = self._clock.now()
        self.journals[fork.run_id].keep(batch_of(fork, driver.large, now, driver.chain))
        await driver.resume(after_crash=False)
        return fork.run_id

    async def audit(self, run_id: str) -> Audit:
        bundle = (await self._driver(run_id).pause_until_committed()).bundle
        batches = [
            StoredBatch(it.position, split_events(it.events), it.hashes)
            for it in self.journals[run_id].batches
        ]
        return audit_of(run_id, bundle, bundle_key(bundle), batches, self._blobs.get)

    async def proof(self, run_id: str) -> str:
        machine = await self._driver(run_id).pause_until_committed()
        if machine.state.status == "running":
            return ""
        return self.journals[run_id].chain(run_id, machine.bundle).head.hex()

    async def run_of_request(self, request_id: str) -> str | None:
        return self._requests.get(request_id)

    async def delete_checkpoint(self, run_id: str, position: int) -> None:
        self._driver(run_id)
        self._deleted_checkpoints.setdefault(run_id, set()).add(position)

    async def deleted_checkpoints(self, run_id: str) -> set[int]:
        self._driver(run_id)
        return set(self._deleted_checkpoints.get(run_id, ()))

    async def heartbeat(self, run_id: str, task: str, at: float) -> None:
        self._driver(run_id)
        self._last_seen.setdefault(run_id, {})[task] = at

    async def last_seen(self, run_id: str) -> dict[str, float]:
        return dict(self._last_seen.get(run_id, {}))

    async def why_not_driven(self, run_id: str) -> str:
        return ""

    async def remember(self, key: str, value: Value) -> None:
        body, limits = packed(key, value, self._executor.limits), self._executor.limits
        if value is None:
            self._memory.pop(key, None)
            return
        if key not in self._memory and len(self._memory) >= limits.memory_keys:
            raise full(limits)
        self._memory[key] = body

    async def recall(self, key: str) -> Value:
        check_key(key)
        return unpacked(self._memory[key]) if key in self._memory else None

    async def remembered(self, prefix: str = "") -> list[str]:
        return sorted(key for key in self._memory if key.startswith(prefix))

    def _driver(self, run_id: str) -> Driver:
        driver = self._drivers.get(run_id)
        if driver is None:
            raise UnknownRun(f"there is no run '{run_id}'")
        return driver
