"""Runs a scenario on every engine, under a clock that the scenario moves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from support.engines import ENGINES, World, world_of
from workflows_mcp.engines.base import Engine
from workflows_mcp.limits import Limits
from workflows_mcp.steps.base import Step

Scenario = Callable[[World, Engine], Awaitable[None]]


@pytest.fixture(params=ENGINES)
def on_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., None]:
    """Runs a scenario on one engine."""

    def run(scenario: Scenario, *, limits: Limits | None = None, steps: Sequence[Step] = ()) -> None:
        world, _ = world_of(request.param, tmp_path, request, limits)
        world.more.extend(steps)

        async def go() -> None:
            async with world.engine(request.param) as engine:
                await asyncio.wait_for(scenario(world, engine), 20)

        asyncio.run(go())

    return run
