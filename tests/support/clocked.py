"""A service over the engine in memory, under a clock that a test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.rendered import Service
from workflows_mcp.engines.clock import VirtualClock
from workflows_mcp.engines.executor import Executor
from workflows_mcp.engines.memory import MemoryEngine
from workflows_mcp.library.catalog import Catalog
from workflows_mcp.machine.state import RunState
from workflows_mcp.policy.rules import policy_of
from workflows_mcp.settings.model import Settings
from workflows_mcp.steps.registry import default_registry


@dataclass(frozen=True)
class Clocked:
    service: Service
    clock: VirtualClock
    engine: MemoryEngine

    async def until(self, run_id: str, reached: Callable[[RunState], bool]) -> RunState:
        """Let everything happen that needs no time to pass, until the run has come so far. Expressions are
        evaluated in threads, so that a turn of the loop is not enough."""
        while not reached(state := (await self.engine.view(run_id)).state):
            await self.clock.advance(0)
            await asyncio.sleep(0.001)
        return state

    async def ended(self, run_id: str) -> dict[str, Any]:
        """How the run ended."""
        await self.until(run_id, lambda state: state.status != "running")
        return await self.service.status(run_id)


@asynccontextmanager
async def clocked_service(directory: Path) -> AsyncIterator[Clocked]:
    workspace = directory / "workspace"
    (workspace / ".workflows").mkdir(parents=True, exist_ok=True)
    settings = Settings(workspace=workspace, home=directory / "home")
    registry, clock = default_registry(), VirtualClock()
    catalog = Catalog.of(settings, registry)
    executor = Executor(registry, policy_of(settings), settings.scratch, clock)
    engine = MemoryEngine(executor, catalog.bundle, clock=clock)
    async with Service(settings, engine, catalog, registry, now=clock.now) as service:
        yield Clocked(service, clock, engine)
