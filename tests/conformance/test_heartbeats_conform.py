"""What every engine must remember of agents: when they were last at work on the tasks of a run, beside its
history and not in it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.engines import World, asks
from support.stateful import bundle_of, research
from workflows_mcp.engines.base import Engine
from workflows_mcp.errors import UnknownRun

OnEngine = Callable[..., None]


def test_the_last_time_counts_and_the_run_is_left_as_it_is(on_engine: OnEngine) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        run_id = await engine.start(bundle_of(research()), {})
        other = await engine.start(bundle_of(research()), {})
        before = (await engine.wait(run_id, asks, 10)).state.events
        assert await engine.last_seen(run_id) == {}
        await engine.heartbeat(run_id, f"{run_id}.each.0", 5.0)
        await engine.heartbeat(run_id, f"{run_id}.each.1", 6.0)
        await engine.heartbeat(run_id, f"{run_id}.each.0", 7.0)
        assert await engine.last_seen(run_id) == {f"{run_id}.each.0": 7.0, f"{run_id}.each.1": 6.0}
        assert await engine.last_seen(other) == {}
        assert (await engine.view(run_id)).state.events == before
        fork = await engine.fork(run_id, before)
        assert await engine.last_seen(fork) == {}

    on_engine(scenario)


def test_nobody_is_heard_of_in_a_run_that_does_not_exist(on_engine: OnEngine) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        with pytest.raises(UnknownRun):
            await engine.heartbeat("wf_none", "wf_none.each.0", 1.0)

    on_engine(scenario)
