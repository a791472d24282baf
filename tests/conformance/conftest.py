"""Runs a scenario on every engine, under a clock that the scenario moves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.engines import ENGINES, World, world_of
from support.process import PLACES, Office
from workflows_mcp.engines.base import Engine
from workflows_mcp.limits import Limits
from workflows_mcp.steps.base import Step

Scenario = Callable[[World, Engine], Awaitable[None]]
OfficeScenario = Callable[[Office], Awaitable[None]]


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


@pytest.fixture(params=PLACES)
def in_office(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., None]:
    """Runs a scenario with a service over one engine; `settings` are those of the service."""

    def run(scenario: OfficeScenario, *, real_time: bool = False, **settings: Any) -> None:
        office = Office(request.param, tmp_path, request, real_time=real_time, **settings)

        async def go() -> None:
            await office.open()
            try:
                await asyncio.wait_for(scenario(office), 40)
            finally:
                await office.close()

        asyncio.run(go())

    return run
