"""Old runs are deleted, beside running work, without touching what anybody still needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.engines import World, asks, ended
from support.old_stores import turn_back
from support.plans import Do, block, bundle, plan
from workflows_mcp.engines.clock import VirtualClock
from workflows_mcp.engines.sqlite import retention
from workflows_mcp.engines.sqlite.engine import SqliteEngine
from workflows_mcp.errors import UnknownRun
from workflows_mcp.limits import DEFAULT_LIMITS
from workflows_mcp.machine.events import Answered, CancelRequested
from workflows_mcp.plan.model import Bundle, InputSpec

DAY = 86_400.0
ASK = Do("Ask", {"prompt": "?"}, by="agent", defaults={"response": ""})
TABLES = ("journal", "snapshots", "heartbeats", "deleted_checkpoints", "blob_runs", "pruned", "mailbox")


def asking(name: str = "asking") -> Bundle:
    text = Do("Echo", {"value": "${inputs.text}"}, defaults={"value": None})
    blocks = (block("echo", text), block("ask", ASK, ["echo"]))
    return bundle(plan(*blocks, name=name, inputs={"text": InputSpec("string", default="", required=False)}))


async def run(
    engine: SqliteEngine, text: str = "", *, ending: str | None = "completed", name: str = "asking"
) -> str:
    run_id = await engine.start(asking(name), {"text": text})
    await engine.wait(run_id, asks, 20)
    if ending == "completed":
        await engine.send(run_id, lambda _, now: Answered(now, "ask", {"response": "yes"}))
    elif ending == "cancelled":
        await engine.send(run_id, lambda _, now: CancelRequested(now, ""))
    if ending is not None:
        await engine.wait(run_id, ended, 20)
    return run_id


Test = Callable[[SqliteEngine, VirtualClock, World], Coroutine[Any, Any, None]]


def under_a_virtual_clock(tmp_path: Path, test: Test, *, server: bool = False) -> None:
    async def go() -> None:
        clock = VirtualClock()
        it = World(tmp_path, clock=clock)
        async with it.engine("sqlite", recovers=server) as engine:
            assert isinstance(engine, SqliteEngine)
            await test(engine, clock, it)

    asyncio.run(asyncio.wait_for(go(), 60))


def rows(engine: SqliteEngine, run_id: str) -> dict[str, int]:
    found = {
        table: engine.store.read(f"SELECT count(*) FROM {table} WHERE run = ?", (run_id,))[0][0]
        for table in TABLES
    }
    return {table: count for table, count in found.items() if count}


def blobs(engine: SqliteEngine) -> int:
    return int(engine.store.read("SELECT count(*) FROM blobs")[0][0])


@pytest.mark.rows("O1")
def test_ended_runs_are_deleted_by_age_and_unfinished_ones_never(tmp_path: Path) -> None:
    async def test(engine: SqliteEngine, clock: VirtualClock, world: World) -> None:
        old = []
        for ending in ("completed", "cancelled"):
            old.append(await run(engine, "x" * 100_000, ending=ending))
            await clock.advance(1)
        waiting = await run(engine, "y" * 100_000, ending=None)
        for run_id in old:
            (world.home / "scratch" / run_id).mkdir(parents=True, exist_ok=True)
        await clock.advance(29 * DAY)
        assert (await engine.prune(DEFAULT_LIMITS)).runs == ()
        young = await run(engine)
        await clock.advance(2 * DAY)

        would = await engine.prune(DEFAULT_LIMITS, dry_run=True)
        assert [it.run_id for it in would.runs] == old
        assert len(await engine.recent(10)) == 4
        did = await engine.prune(DEFAULT_LIMITS)
        assert [it.run_id for it in did.runs] == old
        assert {it.run_id for it in await engine.recent(10)} == {waiting, young}
        for run_id in old:
            assert rows(engine, run_id) == {}
            assert not (world.home / "scratch" / run_id).exists()
            with pytest.raises(UnknownRun):
                await engine.view(run_id)
        assert blobs(engine) == 1  # that of the run that waits

        await clock.advance(1000 * DAY)
        await engine.prune(DEFAULT_LIMITS)
        assert [it.run_id for it in await engine.recent(10)] == [waiting]
        await engine.send(waiting, lambda _, now: Answered(now, "ask", {"response": "at last"}))
        machine = await engine.wait(waiting, ended, 20)
        assert machine.state.status == "completed"
        assert machine.state.root.records["echo"].outputs["value"] == "y" * 100_000

    under_a_virtual_clock(tmp_path, test)


@pytest.mark.rows("O1")
def test_the_oldest_ended_runs_go_first_where_there_are_too_many(tmp_path: Path) -> None:
    async def test(engine: SqliteEngine, clock: VirtualClock, world: World) -> None:
        made = []
        for number in range(5):
            made.append(await run(engine, name=f"flow{number}"))
            await clock.advance(10)
        pruned = await engine.prune(replace(DEFAULT_LIMITS, max_ended_runs=2))
        assert [it.run_id for it in pruned.runs] == made[:3]
        assert [it.run_id for it in await engine.recent(10)] == [made[4], made[3]]
        assert engine.store.read("SELECT count(*) FROM bundles") == [(2,)]

    under_a_virtual_clock(tmp_path, test)


@pytest.mark.rows("O1")
def test_the_store_shrinks_to_its_limit_and_gives_the_space_back(tmp_path: Path) -> None:
    megabyte = 1_000_000

    async def test(engine: SqliteEngine, clock: VirtualClock, world: World) -> None:
        made = []
        for number in range(12):
            made.append(await run(engine, str(number) * megabyte))
            await clock.advance(10)
        engine.store.read("PRAGMA wal_checkpoint(TRUNCATE)")
        before = world.store.stat().st_size
        assert before > 12 * megabyte
        pruned = await engine.prune(replace(DEFAULT_LIMITS, store_bytes=5 * megabyte))
        assert [it.run_id for it in pruned.runs] == made[: len(pruned.runs)]
        assert 7 <= len(pruned.runs) < 12
        assert all(it.size >= megabyte for it in pruned.runs)
        engine.store.read("PRAGMA wal_checkpoint(TRUNCATE)")
        after = world.store.stat().st_size
        assert pruned.returned == before - after
        assert after < 5 * megabyte + 5 * megabyte  # the limit, and the pages that a new store begins with
        for run_id in made[len(pruned.runs) :]:
            text = (await engine.view(run_id)).state.root.records["echo"].outputs["value"]
            assert isinstance(text, str)
            assert len(text) >= megabyte

    under_a_virtual_clock(tmp_path, test)


def test_a_fork_keeps_the_large_values_of_a_run_that_is_deleted(tmp_path: Path) -> None:
    async def test(engine: SqliteEngine, clock: VirtualClock, world: World) -> None:
        old = await run(engine, "z" * 200_000, ending=None)
        position = (await engine.view(old)).state.events
        await engine.send(old, lambda _, now: CancelRequested(now, ""))
        await engine.wait(old, ended, 20)
        fork = await engine.fork(old, position)
        await clock.advance(31 * DAY)
        assert [it.run_id for it in (await engine.prune(DEFAULT_LIMITS)).runs] == [old]
        async with World(tmp_path, clock=clock).engine("sqlite", recovers=False) as other:
            machine = await other.view(fork)
        assert machine.state.root.records["echo"].outputs["value"] == "z" * 200_000
        with pytest.raises(UnknownRun):
            await engine.fork(old, position)

    under_a_virtual_clock(tmp_path, test)


def test_a_pruning_that_was_cut_off_is_finished_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(engine: SqliteEngine, clock: VirtualClock, world: World) -> None:
        old = await run(engine, "x" * 100_000)
        await clock.advance(31 * DAY)

        with monkeypatch.context() as patched:
            patched.setattr(retention, "_remove_rest", cut_off)
            with pytest.raises(CutOff):
                await engine.prune(DEFAULT_LIMITS)
        assert rows(engine, old)["journal"] > 0
        assert await engine.recent(10) == []
        await engine.prune(DEFAULT_LIMITS)
        assert rows(engine, old) == {}
        assert blobs(engine) == 0

    under_a_virtual_clock(tmp_path, test)


class CutOff(Exception):
    pass


def cut_off(*_: Any) -> bool:
    raise CutOff


def test_large_values_of_runs_of_an_older_version_are_found_before_any_is_deleted(tmp_path: Path) -> None:
    """A store of version 4 does not say which runs need a blob: two runs share one, the older is deleted."""

    async def make(engine: SqliteEngine, clock: VirtualClock, world: World) -> None:
        await run(engine, "same" * 50_000)
        await clock.advance(40 * DAY)
        await run(engine, "same" * 50_000)

    under_a_virtual_clock(tmp_path, make)
    turn_back(tmp_path / "runs.db", 4)

    async def prune(engine: SqliteEngine, clock: VirtualClock, world: World) -> None:
        await clock.advance(45 * DAY)
        assert len((await engine.prune(DEFAULT_LIMITS)).runs) == 1
        (kept,) = await engine.recent(10)
        assert blobs(engine) == 1
        machine = await engine.view(kept.run_id)
        assert machine.state.root.records["echo"].outputs["value"] == "same" * 50_000

    under_a_virtual_clock(tmp_path, prune)


def test_of_servers_that_share_a_store_one_prunes_every_hour(tmp_path: Path) -> None:
    async def test(engine: SqliteEngine, clock: VirtualClock, world: World) -> None:
        async with World(tmp_path, clock=clock).engine("sqlite", recovers=False) as second:
            assert isinstance(second, SqliteEngine)
            keepers = [retention.Retention(it.store, lambda _: None) for it in (engine, second)]
            assert [await it.is_due(clock.now()) for it in keepers] == [True, False]
            await clock.advance(3601)
            assert [await it.is_due(clock.now()) for it in reversed(keepers)] == [True, False]

    under_a_virtual_clock(tmp_path, test)


def test_a_server_deletes_old_runs_by_itself(tmp_path: Path) -> None:
    async def test(engine: SqliteEngine, clock: VirtualClock, world: World) -> None:
        old = await run(engine)
        await clock.advance(31 * DAY)
        while await engine.recent(1):
            await asyncio.sleep(0.05)
        with pytest.raises(UnknownRun):
            await engine.view(old)

    under_a_virtual_clock(tmp_path, test, server=True)
