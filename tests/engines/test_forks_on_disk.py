"""Forks and forgotten checkpoints in a store: whole or not there, whoever made them and whatever happens."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import apsw
import msgspec
import pytest

from support.engines import World, asks, ended
from support.plans import Do, block, bundle, plan
from workflows_mcp.engines.clock import VirtualClock, settle
from workflows_mcp.engines.sqlite import store
from workflows_mcp.engines.sqlite.engine import SqliteEngine
from workflows_mcp.engines.sqlite.runs import RunJournal
from workflows_mcp.errors import RequestError
from workflows_mcp.machine.events import Answered, CancelRequested, Event, Marked
from workflows_mcp.machine.machine import Machine

ASK = Do("Ask", {"prompt": "?"}, by="agent", defaults={"response": ""})
MAIN = plan(
    block("a", Do("Note", {"text": "a"})),
    block("g", Do("Gate", {"name": "g"}, defaults={"name": ""}), ["a"]),
    block("ask", ASK, ["g"]),
    block("last", Do("Note", {"text": "last ${blocks.ask.response}"}), ["ask"]),
)


def test_a_fork_and_what_was_forgotten_outlive_the_process_that_made_them(tmp_path: Path) -> None:
    async def go() -> None:
        one, other = World(tmp_path), World(tmp_path)
        async with one.engine("sqlite") as first:
            old = await first.start(bundle(MAIN), {})
            while not one.gate.started:
                await settle()
            position = (await first.view(old)).state.events
            new = await first.fork(old, position)
            await first.delete_checkpoint(old, position)
        other.gate.open("g")
        async with other.engine("sqlite") as second:
            for run_id in (old, new):
                await second.wait(run_id, asks, 5)
                await second.send(run_id, lambda _, now: Answered(now, "ask", {"response": "x"}))
                assert (await second.wait(run_id, ended, 5)).state.status == "completed"
            assert (await second.view(new)).state.forked_from == f"{old}@{position}"
            assert await second.deleted_checkpoints(old) == {position}
        assert one.note.lines == ["a"]
        assert other.note.lines == ["last x", "last x"]

    asyncio.run(asyncio.wait_for(go(), 20))


def test_a_run_that_another_process_drives_can_be_forked(tmp_path: Path) -> None:
    async def go() -> None:
        one, other = World(tmp_path), World(tmp_path)
        other.gate.open("g")
        async with one.engine("sqlite") as first, other.engine("sqlite", recovers=False) as second:
            old = await first.start(bundle(MAIN), {})
            while not one.gate.started:
                await settle()
            position = (await first.view(old)).state.events
            new = await second.fork(old, position)
            await second.wait(new, asks, 5)
            assert (one.gate.started, other.gate.started) == (["g"], ["g"])
            assert (await first.view(old)).state.events == position
            await first.send(new, lambda _, now: Answered(now, "ask", {"response": "x"}))
            assert (await second.wait(new, ended, 5)).state.status == "completed"

    asyncio.run(asyncio.wait_for(go(), 20))


def test_a_fork_that_cannot_be_written_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        world = World(tmp_path)
        world.gate.open("g")
        async with world.engine("sqlite") as engine:
            assert isinstance(engine, SqliteEngine)
            old = await engine.start(bundle(MAIN), {})
            await engine.wait(old, asks, 5)
            files = tmp_path / "scratch" / old
            files.mkdir(parents=True)
            (files / "x").write_text("x")

            def full(*_: object, **__: object) -> None:
                raise apsw.FullError("the disk is full")

            with monkeypatch.context() as patch:
                patch.setattr(RunJournal, "write_state", full)
                with pytest.raises(Exception, match="the disk is full"):
                    await engine.fork(old, 1)
            assert [run.run_id for run in await engine.recent(10)] == [old]
            assert engine.store.read("SELECT DISTINCT run FROM journal") == [(old,)]
            assert [path.name for path in (tmp_path / "scratch").iterdir()] == [old]

    asyncio.run(asyncio.wait_for(go(), 20))


def test_a_fork_is_made_whole_although_nobody_waits_for_it_any_more(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        world.gate.open("g")
        async with world.engine("sqlite") as engine:
            old = await engine.start(bundle(MAIN), {})
            position = (await engine.wait(old, asks, 5)).state.events
            files = tmp_path / "scratch" / old
            files.mkdir(parents=True)
            (files / "x").write_text("x")
            forking = asyncio.create_task(engine.fork(old, position))
            await asyncio.sleep(0)
            forking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await forking
            while len(listed := await engine.recent(10)) < 2:
                await asyncio.sleep(0.001)
            new = next(run.run_id for run in listed if run.run_id != old)
            assert (await engine.wait(new, asks, 5)).state.forked_from == f"{old}@{position}"
            assert (tmp_path / "scratch" / new / "x").read_text() == "x"

    asyncio.run(asyncio.wait_for(go(), 20))


VERSION_1 = """
CREATE TABLE bundles(key TEXT PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE runs(
  id TEXT PRIMARY KEY, workflow TEXT NOT NULL, bundle TEXT NOT NULL REFERENCES bundles(key),
  request_id TEXT UNIQUE, request_digest TEXT, status TEXT NOT NULL, started_at REAL NOT NULL,
  changed_at REAL NOT NULL, owner TEXT, epoch INTEGER NOT NULL);
CREATE INDEX runs_by_change ON runs(changed_at);
CREATE INDEX runs_to_drive ON runs(owner) WHERE status = 'running';
CREATE TABLE journal(
  run TEXT NOT NULL, position INTEGER NOT NULL, epoch INTEGER NOT NULL, events BLOB NOT NULL,
  PRIMARY KEY(run, position)) WITHOUT ROWID;
CREATE TABLE snapshots(run TEXT PRIMARY KEY, position INTEGER NOT NULL, body BLOB NOT NULL);
CREATE TABLE owners(
  id TEXT PRIMARY KEY, expires_at REAL NOT NULL,
  machine TEXT NOT NULL, pid INTEGER NOT NULL, born REAL NOT NULL);
CREATE TABLE inbox(id INTEGER PRIMARY KEY, run TEXT NOT NULL, event BLOB NOT NULL, answer TEXT);
"""


def as_version_1(store: Path, target: Path) -> None:
    """The same runs in a store as the first version of the program has made it."""
    connection = apsw.Connection(str(target))
    connection.pragma("journal_mode", "wal")
    connection.execute(VERSION_1)
    connection.execute("ATTACH ? AS newer", (str(store),))
    for table in ("bundles", "runs", "journal", "snapshots"):
        columns = ", ".join(str(row[1]) for row in connection.execute(f"PRAGMA main.table_info({table})"))
        connection.execute(f"INSERT INTO {table} SELECT {columns} FROM newer.{table}")
    connection.pragma("user_version", 1)
    connection.close()


def test_runs_in_flight_in_a_store_of_the_first_version_go_on_in_the_present_one(tmp_path: Path) -> None:
    async def go() -> None:
        one, other = World(tmp_path), World(tmp_path)
        other.store = tmp_path / "old.db"
        long = plan(
            *(block(f"b{i}", Do("Echo", {"value": f"{i}-" + "x" * 3000})) for i in range(200)),
            block("ask", ASK, [f"b{i}" for i in range(200)]),
            block("last", Do("Note", {"text": "${blocks.b199.value}"}), ["ask"]),
        )
        async with one.engine("sqlite") as first:
            waiting = await first.start(bundle(long), {})
            before = (await first.wait(waiting, asks, 5)).state
            working = await first.start(bundle(MAIN), {})
            while not one.gate.started:
                await settle()
            await first.view(working)
        as_version_1(one.store, other.store)
        other.gate.open("g")
        async with other.engine("sqlite") as second:
            assert isinstance(second, SqliteEngine)
            assert second.store.read("PRAGMA user_version") == [(store.VERSION,)]
            assert (await second.view(waiting)).state == before
            forked = await second.fork(waiting, before.events)
            await second.delete_checkpoint(waiting, 1)
            assert await second.deleted_checkpoints(waiting) == {1}
            await second.wait(working, asks, 5)
            for run_id in (waiting, forked, working):
                await second.send(run_id, lambda _, now: Answered(now, "ask", {"response": "x"}))
                assert (await second.wait(run_id, ended, 5)).state.status == "completed"
            assert other.note.lines == ["199-" + "x" * 3000] * 2 + ["last x"]
        async with other.engine("sqlite") as third:
            assert len(await third.recent(10)) == 3, "a store is brought to the present version once"

    asyncio.run(asyncio.wait_for(go(), 20))


def answers(_: Machine, now: float) -> Event:
    return Answered(now, "ask", {"response": "yes"})


def cancels(_: Machine, now: float) -> Event:
    return CancelRequested(now)


@pytest.mark.rows("X3")
def test_the_files_of_a_run_that_may_be_tried_again_are_kept_for_a_day(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        world.gate.open("g")
        async with world.engine("sqlite") as engine:
            runs = {}
            for name in ("completed", "cancelled", "cancelled with a secret", "cancelled without files"):
                pinned = bundle(msgspec.structs.replace(MAIN, secrets=("TOKEN",) if "secret" in name else ()))
                runs[name] = run_id = await engine.start(pinned, {})
                await engine.wait(run_id, asks, 5)
                (tmp_path / "scratch" / run_id).mkdir(parents=True)
                if "without" not in name:
                    (tmp_path / "scratch" / run_id / "x").write_text("x")
                await engine.send(run_id, answers if name == "completed" else cancels)
                await engine.wait(run_id, ended, 5)
        kept = [tmp_path / "scratch" / runs["cancelled"]]
        assert list((tmp_path / "scratch").iterdir()) == kept
        async with world.engine("sqlite"):
            assert list((tmp_path / "scratch").iterdir()) == kept
        async with World(tmp_path, clock=VirtualClock(time.time() + 86_500)).engine("sqlite"):
            assert list((tmp_path / "scratch").iterdir()) == []

    asyncio.run(asyncio.wait_for(go(), 20))


@pytest.mark.rows("X3")
def test_a_request_that_made_another_fork_is_refused(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        world.gate.open("g")
        async with world.engine("sqlite") as engine:
            old = await engine.start(bundle(MAIN), {})
            position = (await engine.wait(old, asks, 5)).state.events
            then = [Marked(0.0, "here")]
            made = await engine.fork(old, position, then, request_id="one")
            assert await engine.fork(old, position, list(then), request_id="one") == made
            with pytest.raises(RequestError, match="has started something else"):
                await engine.fork(old, position, request_id="one")

    asyncio.run(asyncio.wait_for(go(), 20))


@pytest.mark.rows("X3")
def test_files_that_are_copied_for_a_run_are_never_put_over_those_that_it_has(tmp_path: Path) -> None:
    executor = World(tmp_path).executor()
    scratch = tmp_path / "scratch"
    (scratch / "old").mkdir(parents=True)
    (scratch / "old" / "x").write_text("x")
    executor.copy_scratch("old", "new")
    (scratch / "new" / "own").write_text("of the run itself")
    executor.copy_scratch("old", "new")
    assert sorted(path.name for path in (scratch / "new").iterdir()) == ["own", "x"]
    assert sorted(path.name for path in scratch.iterdir()) == ["new", "old"]
