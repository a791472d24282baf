"""Engines for tests: every engine under the same hands, with small steps and a clock that can be moved."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.steps import Gate, Note, registry_of
from workflows_mcp.engines.base import Engine
from workflows_mcp.engines.clock import Clock, SystemClock, VirtualClock
from workflows_mcp.engines.executor import Executor
from workflows_mcp.engines.headless import HeadlessAgents
from workflows_mcp.engines.memory import MemoryEngine
from workflows_mcp.engines.sqlite.engine import SqliteEngine
from workflows_mcp.errors import UnknownWorkflow
from workflows_mcp.limits import Limits
from workflows_mcp.machine.state import RunState
from workflows_mcp.plan.model import Bundle
from workflows_mcp.policy.rules import Policy
from workflows_mcp.settings.agents import AgentCommand
from workflows_mcp.steps.base import Step

if TYPE_CHECKING:
    from workflows_mcp.engines.temporal.connection import Address

ENGINES = ("memory", "sqlite", "temporal")


class World:
    """Steps whose doings a test can see, and the definitions that calls can find at run time."""

    def __init__(
        self,
        home: Path,
        *,
        clock: Clock | None = None,
        limits: Limits | None = None,
        address: Address | None = None,
    ) -> None:
        self.home = home
        self.store = home / "runs.db"
        self.address = address
        self.clock = clock or SystemClock()
        self.limits = limits or Limits()
        self.note = Note()
        self.gate = Gate()
        self.found: dict[str, Bundle] = {}
        self.more: list[Step] = []
        self.agents: dict[str, AgentCommand] = {}

    def executor(self) -> Executor:
        policy = Policy(self.home, limits=self.limits)
        return Executor(
            registry_of(self.note, self.gate, *self.more),
            policy,
            self.home / "scratch",
            self.clock,
            agents=HeadlessAgents(self.agents),
        )

    def find(self, name: str, _: str) -> Bundle:
        if name not in self.found:
            raise UnknownWorkflow(f"there is no workflow '{name}'")
        return self.found[name]

    def _temporal_engine(self) -> Engine:
        from support.virtual_time import EngineInVirtualTime, TemporalClock
        from workflows_mcp.engines.temporal.blobs import BlobStore
        from workflows_mcp.engines.temporal.engine import TemporalEngine

        assert self.address is not None
        parts = (self.address, self.executor(), self.find, BlobStore(self.home / "blobs"))
        if isinstance(self.clock, TemporalClock):
            return EngineInVirtualTime(*parts, clock=self.clock, gate=self.gate)
        return TemporalEngine(*parts)

    @asynccontextmanager
    async def engine(self, kind: str, *, recovers: bool = True) -> AsyncIterator[Engine]:
        engine: Engine
        if kind == "memory":
            engine = MemoryEngine(self.executor(), self.find, clock=self.clock)
        elif kind == "temporal":
            engine = self._temporal_engine()
        else:
            engine = SqliteEngine(self.store, self.executor(), self.find, clock=self.clock, recovers=recovers)
        await engine.open()
        try:
            yield engine
        finally:
            await engine.close()


def address_of(kind: str, request: pytest.FixtureRequest) -> Address | None:
    """Where the server is that an engine of this kind needs, if it needs one."""
    address: Address | None = request.getfixturevalue("temporal_address") if kind == "temporal" else None
    return address


def world_of(
    kind: str, home: Path, request: pytest.FixtureRequest, limits: Limits | None = None
) -> tuple[World, VirtualClock]:
    """For an engine of this kind, under a clock that a test moves."""
    address = address_of(kind, request)
    if address is None:
        clock = VirtualClock()
        return World(home, clock=clock, limits=limits), clock
    from support.virtual_time import TemporalClock

    moved = TemporalClock()
    return World(home, clock=moved, limits=limits, address=address), moved


def ended(state: RunState) -> bool:
    return state.status != "running"


def asks(state: RunState) -> bool:
    return any(frame.kind == "agent" for frame in state.frames.values())


def status_of(name: str, status: str) -> Callable[[RunState], bool]:
    return lambda state: name in state.root.records and state.root.records[name].status == status
