"""A service over each engine, for what makes agents follow the process, under a clock that a test moves.

    async def scenario(office: Office) -> None:
        run = await office.start(GATE)
        await office.decide(run, "approve")
        assert await office.ended(run) == "completed"

After everything that is done, a replay of the journal must give the run as it is. On the engine `crashing`, all
of the run but its journal is then lost, too.
"""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from support.engines import ENGINES, address_of
from support.rendered import Service
from workflows_mcp.answers import question_id, whole_run
from workflows_mcp.engines.base import Engine
from workflows_mcp.engines.clock import Clock, SystemClock, VirtualClock
from workflows_mcp.engines.executor import Executor
from workflows_mcp.engines.memory import MemoryEngine
from workflows_mcp.engines.sqlite.engine import SqliteEngine
from workflows_mcp.library.catalog import Catalog
from workflows_mcp.machine import Event, Identity, Machine, Refused, RunState
from workflows_mcp.policy import secrets_of
from workflows_mcp.policy.rules import policy_of
from workflows_mcp.settings.model import Settings
from workflows_mcp.steps.registry import default_registry

PLACES = ("crashing", *ENGINES)
ADA = Identity("ada", "terminal", human=True)
GRACE = Identity("grace", "form", "a client", human=True)
AGENT = Identity("claude-code", "mcp", "claude-code")
_SECONDS = 20.0


class Office:
    """A workspace, and a service that works there."""

    def __init__(
        self,
        kind: str,
        home: Path,
        request: pytest.FixtureRequest,
        *,
        real_time: bool = False,
        **settings: Any,
    ) -> None:
        self.kind = kind
        self.workspace = home / "workspace"
        (self.workspace / ".workflows").mkdir(parents=True, exist_ok=True)
        self.settings = Settings(workspace=self.workspace, home=home / "home", **settings)
        self._address = address_of(kind, request)
        self._moved: VirtualClock | None = None
        if not real_time:
            self._moved = self._virtual_clock()
        self._clock: Clock = self._moved or SystemClock()
        self.service: Service
        self.engine: Engine
        self._runs: list[str] = []
        self._open = AsyncExitStack()

    def _virtual_clock(self) -> VirtualClock:
        if self._address is None:
            return VirtualClock()
        from support.virtual_time import TemporalClock

        return TemporalClock()

    async def open(self) -> None:
        registry = default_registry()
        catalog = Catalog.of(self.settings, registry)
        secrets = secrets_of(self.settings)
        executor = Executor(registry, policy_of(self.settings), self.settings.scratch, self._clock, secrets)
        self.engine = self._engine(executor, catalog)
        self.service = Service(self.settings, self.engine, catalog, registry, secrets, now=self._clock.now)
        await self._open.enter_async_context(self.service)

    def _engine(self, executor: Executor, catalog: Catalog) -> Engine:
        if self._address is not None:
            from support.steps import Gate
            from support.virtual_time import EngineInVirtualTime, TemporalClock
            from workflows_mcp.engines.temporal.blobs import BlobStore
            from workflows_mcp.engines.temporal.engine import TemporalEngine

            parts = (self._address, executor, catalog.bundle, BlobStore(self.settings.blobs))
            if isinstance(self._clock, TemporalClock):
                return EngineInVirtualTime(*parts, clock=self._clock, gate=Gate())
            return TemporalEngine(*parts)
        if self.kind == "sqlite":
            return SqliteEngine(self.settings.store, executor, catalog.bundle, clock=self._clock)
        return MemoryEngine(executor, catalog.bundle, clock=self._clock)

    async def close(self) -> None:
        await self._open.aclose()

    async def restart(self) -> None:
        """Restart the server: nothing of a run is kept but what is stored."""
        if isinstance(self.engine, MemoryEngine):
            for run_id in self._runs:
                if (await self.engine.view(run_id)).state.status == "running":
                    await self.engine.crash_and_resume(run_id)
            return
        await self._open.aclose()
        known = getattr(self.engine, "known_runs", None)
        await self.open()
        if known is not None:
            self.engine.known_runs += known  # type: ignore[attr-defined]
        for run_id in self._runs:
            await self.engine.ensure_driven(run_id)

    # What agents and people do

    def define(self, name: str, text: str) -> None:
        (self.workspace / ".workflows" / f"{name}.yaml").write_text(textwrap.dedent(text))

    def write(self, name: str, text: str = "") -> None:
        path = self.workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    async def start(self, text: str, **inputs: Any) -> str:
        answer = await self.service.start(text=textwrap.dedent(text), inputs=inputs, wait_seconds=0)
        run_id: str = answer["workflow_id"]
        await self.follow(run_id)
        return run_id

    async def follow(self, run_id: str) -> str:
        """Look after a run that was made otherwise."""
        self._runs.append(run_id)
        await self.settle(run_id)
        return run_id

    async def submit(self, workflow_id: str, result: Any, step_id: str | None = None) -> dict[str, Any]:
        """Submit a result; returns what the agent sees when all is done that needs no time."""
        try:
            await self.service.submit(workflow_id, result, step_id=step_id, wait_seconds=0)
        finally:
            await self.settle(workflow_id)
        return await self.status(workflow_id)

    async def decide(
        self,
        workflow_id: str,
        choice: str,
        step_id: str | None = None,
        *,
        by: Identity = ADA,
        comment: str = "",
    ) -> None:
        try:
            await self.service.decide(
                workflow_id, choice, by=by, step_id=step_id, comment=comment, wait_seconds=0
            )
        finally:
            await self.settle(workflow_id)

    async def allow(self, run_id: str, of: str = "", by: Identity = ADA, **limits: float) -> str:
        """Raise a budget; without limits, confirm what waits for it. Returns the run that continues."""
        try:
            found = await self.service.raise_budget(run_id, limits, by=by, owner=of)
        finally:
            await self.settle(run_id)
        return await self.follow(found) if found != run_id else run_id

    async def advance(self, seconds: float) -> None:
        """Let time pass."""
        assert self._moved is not None
        await self._moved.advance(seconds)
        for run_id in self._runs:
            await self.settle(run_id)

    # What a test looks at

    async def status(self, workflow_id: str) -> dict[str, Any]:
        return await self.service.status(workflow_id, wait_seconds=0)

    async def state(self, workflow_id: str) -> RunState:
        return (await self.engine.view(workflow_id.partition(".")[0])).state

    async def until(self, workflow_id: str, reached: Callable[[RunState], bool]) -> RunState:
        """Let everything happen that needs no time to pass, until a run has come so far."""
        async with asyncio.timeout(_SECONDS):
            while not reached(state := await self.state(workflow_id)):
                if self._moved is not None:
                    await self._moved.advance(0)
                await asyncio.sleep(0.002)
        return state

    async def settle(self, workflow_id: str) -> RunState:
        """Until only agents, people and time can continue the run; then check its journal."""
        state = await self.until(workflow_id, _is_settled)
        run_id = workflow_id.partition(".")[0]
        await self.check_journal(run_id)
        if self.kind == "crashing" and state.status == "running":
            assert isinstance(self.engine, MemoryEngine)
            machine = await self.engine.view(run_id)
            before = Machine(machine.bundle, machine.snapshot()).state
            await self.engine.crash_and_resume(run_id)
            assert await self.state(run_id) == before
        return state

    async def check_journal(self, run_id: str) -> None:
        """A replay gives the run as it is, also with a snapshot that is read again after every event."""
        bundle, events = await self.engine.journal(run_id)
        machine = await self.engine.view(run_id)
        assert len(events) == machine.state.events
        straight, restored = Machine(bundle), Machine(bundle)
        for event in events:
            commands = straight.apply(event)
            assert restored.apply(event) == commands
            restored = Machine(bundle, restored.snapshot())
            assert restored.state == straight.state
            if straight.state.status == "running":
                assert restored.outstanding(0.0) == straight.outstanding(0.0)
        assert straight.state == machine.state

    async def ended(self, run_id: str) -> str:
        return (await self.until(run_id, lambda state: state.status != "running")).status

    async def under_way(self, workflow_id: str, kind: str) -> list[str]:
        frames = (await self.state(workflow_id)).frames
        return sorted(address for address, frame in frames.items() if frame.kind == kind)

    async def asked(self, workflow_id: str) -> list[str]:
        """The addresses of the questions to agents."""
        return await self.under_way(workflow_id, "agent")

    async def questions(self, run_id: str) -> list[str]:
        """The ids of the questions to agents, those of tasks as seen from the run."""
        state = await self.state(run_id)
        asked = await self.asked(run_id)
        return [question_id(state, whole_run(run_id), address) for address in asked]

    async def gates(self, workflow_id: str) -> list[str]:
        return await self.under_way(workflow_id, "gate")

    async def events(self, run_id: str, *kinds: type[Any]) -> list[Any]:
        found: list[Event] = list((await self.engine.journal(run_id))[1])
        return [event for event in found if isinstance(event, kinds)]

    async def refusals(self, run_id: str) -> list[tuple[str, str]]:
        return [(it.what, it.message) for it in await self.events(run_id, Refused)]

    async def record(self, run_id: str, address: str) -> Any:
        from workflows_mcp.machine import record_at

        found = record_at(await self.state(run_id), address)
        assert found is not None
        return found


def _is_settled(state: RunState) -> bool:
    if state.status != "running":
        return True
    if state.parked is not None:
        return True
    return not any(it.on_server or it.stopping or it.kind == "plan" for it in state.frames.values())
