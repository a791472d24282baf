"""The hash chain of a run continues whichever process drives it, and over what earlier versions have left."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from support.engines import World, asks, ended
from support.old_stores import turn_back
from support.plans import Do, block, bundle, plan
from workflows_mcp.engines.clock import settle
from workflows_mcp.engines.sqlite.engine import SqliteEngine
from workflows_mcp.errors import LeaseLost
from workflows_mcp.limits import Limits
from workflows_mcp.machine.events import Answered, Marked
from workflows_mcp.plan import model

pytestmark = pytest.mark.rows("P7")
ASK = Do("Ask", {"prompt": "?"}, by="agent", defaults={"response": ""})


def note(text: str, **more: object) -> model.Do:
    return Do("Note", {"text": text, **more}, defaults={"text": ""})


def gate(name: str) -> model.Do:
    return Do("Gate", {"name": name}, defaults={"name": ""})


TWO = plan(block("one", ASK), block("work", note("x"), ["one"]), block("two", ASK, ["work"]))


async def say(engine: SqliteEngine, run_id: str, address: str) -> None:
    await engine.send(run_id, lambda _, now: Answered(now, address, {"response": "yes"}))


def test_processes_that_take_turns_continue_one_chain(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.engine("sqlite") as one, world.engine("sqlite") as two:
            assert isinstance(one, SqliteEngine)
            assert isinstance(two, SqliteEngine)
            run_id = await one.start(bundle(TWO), {})
            await one.wait(run_id, asks, 5)
            await say(two, run_id, "one")
            await two.wait(run_id, lambda state: "two" in state.frames, 5)
            await one.send(run_id, lambda _, now: Marked(now, "here"))
            await say(two, run_id, "two")
            await one.wait(run_id, ended, 5)
            audit = await one.audit(run_id)
            assert audit.mismatches == []
            assert audit.head == await two.proof(run_id)

    asyncio.run(asyncio.wait_for(go(), 20))


def test_an_owner_that_has_stalled_adds_nothing_to_the_chain(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.engine("sqlite") as stalled, world.engine("sqlite") as other:
            assert isinstance(stalled, SqliteEngine)
            assert isinstance(other, SqliteEngine)
            run_id = await stalled.start(bundle(plan(block("g", gate("g")))), {})
            while not world.gate.started:
                await settle()
            await stalled.view(run_id)
            driver = stalled._drivers[run_id]
            await other.store.write(
                lambda it: it.execute(
                    "UPDATE runs SET owner = NULL, epoch = epoch + 1 WHERE id = ?", (run_id,)
                )
            )
            with pytest.raises(LeaseLost):
                await driver.send(lambda _, now: Marked(now, "too late"))
            await other.ensure_driven(run_id)
            await other.send(run_id, lambda _, now: Marked(now, "in time"))
            world.gate.open("g")
            await other.wait(run_id, ended, 5)
            audit = await other.audit(run_id)
            assert audit.mismatches == []
            assert [it.reason for it in audit.events if isinstance(it, Marked)] == ["in time"]

    asyncio.run(asyncio.wait_for(go(), 20))


@pytest.mark.parametrize("version", [1, 6, 7])
def test_the_chain_begins_where_an_earlier_version_has_stopped(tmp_path: Path, version: int) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.engine("sqlite") as before:
            run_id = await before.start(bundle(TWO), {})
            done = (await before.wait(run_id, asks, 5)).state.events
        turn_back(world.store, version)
        async with world.engine("sqlite") as after:
            assert isinstance(after, SqliteEngine)
            audit = await after.audit(run_id)
            assert (audit.head, audit.mismatches) == ("", [])
            await say(after, run_id, "one")
            await after.wait(run_id, lambda state: "two" in state.frames, 5)
            await say(after, run_id, "two")
            await after.wait(run_id, ended, 5)
            audit = await after.audit(run_id)
            assert (audit.first, audit.mismatches) == (done + 1, [])
            assert audit.head == await after.proof(run_id)

    asyncio.run(asyncio.wait_for(go(), 20))


def test_a_snapshot_of_a_long_run_is_what_its_events_lead_to(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path, limits=Limits(inline_bytes=1_000_000))
        blocks = [block(f"b{n}", note("x" * 40_000), [f"b{n - 1}"] if n else []) for n in range(10)]
        async with world.engine("sqlite") as engine:
            run_id = await engine.start(bundle(plan(*blocks, block("ask", ASK, ["b9"]))), {})
            await engine.wait(run_id, asks, 10)
            audit = await engine.audit(run_id)
            assert audit.snapshot is not None
            assert 0 < audit.position < len(audit.events)

    asyncio.run(asyncio.wait_for(go(), 20))
