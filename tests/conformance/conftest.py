"""Runs a scenario on every engine, under a clock that the scenario moves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from support.engines import ENGINES, World
from workflows_mcp.engines.base import Engine
from workflows_mcp.engines.clock import VirtualClock
from workflows_mcp.limits import Limits

Scenario = Callable[[World, Engine], Awaitable[None]]


@pytest.fixture(params=ENGINES)
def on_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., None]:
    """Runs a scenario on one engine."""

    def run(scenario: Scenario, *, limits: Limits | None = None) -> None:
        async def go() -> None:
            world = World(tmp_path, clock=VirtualClock(), limits=limits)
            async with world.engine(request.param) as engine:
                await asyncio.wait_for(scenario(world, engine), 20)

        asyncio.run(go())

    return run
