"""Engines for tests: every engine under the same hands, with small steps and a clock that can be moved."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from support.steps import Gate, Note, registry_of
from workflows_mcp.engines.base import Engine
from workflows_mcp.engines.clock import Clock, SystemClock
from workflows_mcp.engines.executor import Executor
from workflows_mcp.engines.memory import MemoryEngine
from workflows_mcp.engines.sqlite.engine import SqliteEngine
from workflows_mcp.errors import UnknownWorkflow
from workflows_mcp.limits import Limits
from workflows_mcp.machine.state import RunState
from workflows_mcp.plan.model import Bundle
from workflows_mcp.policy.rules import Policy
from workflows_mcp.steps.base import Step

ENGINES = ("memory", "sqlite")


class World:
    """Steps whose doings a test can see, and the definitions that calls can find at run time."""

    def __init__(self, home: Path, *, clock: Clock | None = None, limits: Limits | None = None) -> None:
        self.home = home
        self.store = home / "runs.db"
        self.clock = clock or SystemClock()
        self.limits = limits or Limits()
        self.note = Note()
        self.gate = Gate()
        self.found: dict[str, Bundle] = {}
        self.more: list[Step] = []

    def executor(self) -> Executor:
        policy = Policy(self.home, limits=self.limits)
        return Executor(
            registry_of(self.note, self.gate, *self.more), policy, self.home / "scratch", self.clock
        )

    def find(self, name: str, _: str) -> Bundle:
        if name not in self.found:
            raise UnknownWorkflow(f"there is no workflow '{name}'")
        return self.found[name]

    @asynccontextmanager
    async def engine(self, kind: str, *, adopt: bool = True) -> AsyncIterator[Engine]:
        engine: Engine
        if kind == "memory":
            engine = MemoryEngine(self.executor(), self.find, clock=self.clock)
        else:
            engine = SqliteEngine(self.store, self.executor(), self.find, clock=self.clock, adopt=adopt)
        await engine.open()
        try:
            yield engine
        finally:
            await engine.close()


def ended(state: RunState) -> bool:
    return state.status != "running"


def asks(state: RunState) -> bool:
    return any(frame.kind == "agent" for frame in state.frames.values())


def status_of(name: str, status: str) -> Callable[[RunState], bool]:
    return lambda state: name in state.root.records and state.root.records[name].status == status
