"""What a Temporal server is asked for at once, and what counts when it tells of several things at once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from temporalio.worker import Worker

from support.engines import World, ended
from support.plans import Do, ForEach, block, bundle, plan
from workflows_mcp.engines.temporal import workflow
from workflows_mcp.engines.temporal.blobs import BlobStore
from workflows_mcp.engines.temporal.connection import Address, connect
from workflows_mcp.engines.temporal.engine import TemporalEngine
from workflows_mcp.engines.temporal.worker import Activities
from workflows_mcp.plan import model
from workflows_mcp.values import Value

pytestmark = pytest.mark.rows("S13")


def note() -> model.Do:
    return Do("Note", {"text": "${each.value}"}, defaults={"text": ""})


async def events_of(client: Client, run_id: str) -> list[int]:
    return [it.event_type for it in (await client.get_workflow_handle(run_id).fetch_history()).events]


@pytest.mark.parametrize("bound", ["_STEPS_UNDER_WAY", "_BYTES_UNDER_WAY"])
def test_of_many_items_only_so_many_are_begun_at_once_and_all_are_done(
    tmp_path: Path, temporal_address: Address, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    items: list[Value] = [f"{number} {'x' * 300}" for number in range(12)]
    monkeypatch.setattr(workflow, bound, 3 if bound == "_STEPS_UNDER_WAY" else 1200)

    async def work() -> None:
        world = World(tmp_path, address=temporal_address)
        each = block("each", note(), for_each=ForEach(items))
        async with world.engine("temporal") as engine:
            run_id = await engine.start(bundle(plan(each)), {})
            assert (await engine.wait(run_id, ended, 30)).state.status == "completed"
        assert sorted(world.note.lines) == sorted(map(str, items))
        under_way = most = 0
        for event in await events_of(await connect(temporal_address), run_id):
            under_way += event == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
            under_way -= event == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED
            most = max(most, under_way)
        assert 2 <= most <= 3

    asyncio.run(asyncio.wait_for(work(), 60))


@pytest.mark.slow
def test_items_that_are_more_together_than_the_server_takes_in_one_turn_are_all_done(
    tmp_path: Path, temporal_address: Address
) -> None:
    items: list[Value] = [f"{number} {'x' * 30_000}" for number in range(160)]

    async def work() -> None:
        world = World(tmp_path, address=temporal_address)
        each = block("each", note(), for_each=ForEach(items))
        async with world.engine("temporal") as engine:
            run_id = await engine.start(bundle(plan(each)), {})
            assert (await engine.wait(run_id, ended, 60)).state.status == "completed"
        assert len(world.note.lines) == 160

    asyncio.run(asyncio.wait_for(work(), 90))


@pytest.mark.rows("X7")
def test_a_step_that_ended_in_time_has_ended_in_time_also_where_nobody_heard_of_it_before_its_timeout(
    tmp_path: Path, temporal_address: Address
) -> None:
    """Whoever moves the run on goes away when the step has begun; who comes next hears of its end and of its
    timeout at once."""

    async def work() -> None:
        world = World(tmp_path, address=temporal_address)
        client, store = await connect(temporal_address), BlobStore(tmp_path / "blobs")
        activities = Activities(world.executor(), store, world.find)
        slow = Do("Gate", {"name": "slow"}, timeout=1.0, defaults={"name": ""})
        async with Worker(client, task_queue=temporal_address.task_queue, activities=activities.all()):
            mover = TemporalEngine(temporal_address, world.executor(), world.find, store, steps=False)
            await mover.open()
            run_id = await mover.start(bundle(plan(block("slow", slow))), {})
            while not world.gate.started:
                await asyncio.sleep(0.01)
            await mover.close()
            world.gate.open("slow")
            both = {EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED, EventType.EVENT_TYPE_TIMER_FIRED}
            while not both <= set(await events_of(client, run_id)):
                await asyncio.sleep(0.05)
        async with world.engine("temporal") as engine:
            state = (await engine.wait(run_id, ended, 30)).state
        assert (state.status, state.root.records["slow"].message) == ("completed", None)

    asyncio.run(asyncio.wait_for(work(), 60))


def test_a_task_queue_may_be_called_anything(tmp_path: Path, temporal_address: Address) -> None:
    async def work() -> None:
        address = replace(temporal_address, task_queue=f"it's {temporal_address.task_queue}")
        async with World(tmp_path, address=address).engine("temporal") as engine:
            run_id = await engine.start(
                bundle(plan(block("a", Do("Note", {"text": "x"}, defaults={"text": ""})))), {}
            )
            assert [run.run_id for run in await engine.recent(10)] == [run_id]

    asyncio.run(asyncio.wait_for(work(), 30))
