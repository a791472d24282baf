"""Several engines on one store, as several server processes are: messages, leases, and late writes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw
import pytest

from support.engines import World, asks, ended, status_of
from support.old_stores import turn_back
from support.plans import Do, block, bundle, plan
from support.rendered import Service
from workflows_mcp.engines.clock import settle
from workflows_mcp.engines.sqlite import leases, mailbox, store
from workflows_mcp.engines.sqlite.engine import SqliteEngine
from workflows_mcp.engines.sqlite.store import Store, Write, check_store
from workflows_mcp.engines.values import Batch
from workflows_mcp.errors import LeaseLost, NotExpected, StoreError
from workflows_mcp.machine.events import Answered, CancelRequested
from workflows_mcp.plan import model
from workflows_mcp.settings.model import Settings
from workflows_mcp.steps.base import Step, StepContext, StepInputs, StepResult

ASK = Do("Ask", {"prompt": "?"}, by="agent", defaults={"response": ""})


def gate(name: str) -> model.Do:
    return Do("Gate", {"name": name}, defaults={"name": ""})


def note(text: str) -> model.Do:
    return Do("Note", {"text": text}, defaults={"text": ""})


def test_a_run_that_waits_for_an_answer_is_answered_through_any_process(tmp_path: Path) -> None:
    async def go() -> None:
        one, other = World(tmp_path), World(tmp_path)
        main = plan(block("ask", ASK), block("again", ASK, ["ask"]), block("then", note("done"), ["again"]))
        async with one.engine("sqlite") as first, other.engine("sqlite", recovers=False) as second:
            run_id = await first.start(bundle(main), {})
            await first.wait(run_id, asks, 5)
            await second.send(run_id, lambda _, now: Answered(now, "ask", {"response": "yes"}))
            state = (await first.view(run_id)).state
            assert state.root.records["ask"].status == "completed"
            await first.send(run_id, lambda _, now: Answered(now, "again", {"response": "yes"}))
            assert (await second.wait(run_id, ended, 5)).state.status == "completed"
            assert one.note.lines == ["done"]
            assert other.note.lines == []

    asyncio.run(asyncio.wait_for(go(), 20))


@pytest.mark.rows("X3")
def test_a_run_that_another_process_drives_is_cancelled_and_answered_by_message(tmp_path: Path) -> None:
    async def go() -> None:
        one, other = World(tmp_path), World(tmp_path)
        main = plan(block("ask", ASK), block("busy", gate("busy")), block("then", note("then"), ["ask"]))
        async with one.engine("sqlite") as first, other.engine("sqlite", recovers=False) as second:
            run_id = await first.start(bundle(main), {})
            await first.wait(run_id, asks, 5)
            while not one.gate.started:
                await settle()
            await second.send(run_id, lambda _, now: Answered(now, "ask", {"response": "yes"}))
            await first.wait(run_id, status_of("then", "completed"), 5)
            with pytest.raises(NotExpected, match="nothing is asked at 'ask'"):
                await second.send(run_id, lambda _, now: Answered(now, "ask", {"response": "no"}))
            await second.send(run_id, lambda _, now: CancelRequested(now, "from afar"))
            assert (await second.wait(run_id, ended, 5)).state.status == "cancelled"
            assert one.gate.stopped == ["busy"]

    asyncio.run(asyncio.wait_for(go(), 20))


@pytest.mark.rows("X1")
def test_a_closed_engine_leaves_its_runs_to_the_next_which_repeats_only_what_was_cut_off(
    tmp_path: Path,
) -> None:
    async def go() -> None:
        one, other = World(tmp_path), World(tmp_path)
        main = plan(block("a", note("a")), block("b", gate("b"), ["a"]), block("c", note("c"), ["b"]))
        async with one.engine("sqlite") as first:
            run_id = await first.start(bundle(main), {})
            while not one.gate.started:
                await settle()
            await first.view(run_id)
        assert one.note.lines == ["a"]
        assert one.gate.stopped == ["b"]
        other.gate.open("b")
        async with other.engine("sqlite") as second:
            assert (await second.wait(run_id, ended, 5)).state.status == "completed"
        assert other.gate.started == ["b"]
        assert other.note.lines == ["c"]

    asyncio.run(asyncio.wait_for(go(), 20))


def test_cancelling_a_run_that_was_cut_off_does_not_start_its_steps_again(tmp_path: Path) -> None:
    async def go() -> None:
        one, other = World(tmp_path), World(tmp_path)
        async with one.engine("sqlite") as first:
            run_id = await first.start(bundle(plan(block("b", gate("b")), block("c", note("c")))), {})
            while not one.gate.started:
                await settle()
            await first.view(run_id)
        async with other.engine("sqlite", recovers=False) as second:
            await second.send(run_id, lambda _, now: CancelRequested(now))
            assert (await second.view(run_id)).state.status == "cancelled"
            await settle()
        assert other.gate.started == []
        assert other.note.lines == []

    asyncio.run(asyncio.wait_for(go(), 20))


def test_a_command_that_does_not_recover_leaves_other_runs_alone(tmp_path: Path) -> None:
    async def go() -> None:
        one, other = World(tmp_path), World(tmp_path)
        async with one.engine("sqlite") as first:
            run_id = await first.start(bundle(plan(block("b", gate("b")))), {})
            await first.view(run_id)
        async with other.engine("sqlite", recovers=False) as second:
            machine = await second.wait(run_id, ended, 0.05)
            assert machine.state.status == "running"
            assert other.gate.started == []

    asyncio.run(asyncio.wait_for(go(), 20))


def test_a_batch_under_an_old_epoch_is_refused_and_its_driver_stops(tmp_path: Path) -> None:
    async def go() -> None:
        one = World(tmp_path)
        main = plan(block("b", gate("b")), block("c", note("c"), ["b"]))
        async with one.engine("sqlite") as engine:
            assert isinstance(engine, SqliteEngine)
            run_id = await engine.start(bundle(main), {})
            while not one.gate.started:
                await settle()
            await engine.view(run_id)
            thief = apsw.Connection(str(tmp_path / "runs.db"))
            thief.set_busy_timeout(5000)
            thief.execute("INSERT INTO owners VALUES('thief', 1e12, 'elsewhere', 1, 1, 7)")
            thief.execute("UPDATE runs SET owner = 'thief', epoch = epoch + 1")
            before = list(thief.execute("SELECT position, epoch FROM journal"))
            driver = engine._drivers[run_id]
            one.gate.open("b")
            while driver.failure is None:
                await asyncio.sleep(0.001)
            assert isinstance(driver.failure, LeaseLost)
            assert list(thief.execute("SELECT position, epoch FROM journal")) == before
            assert one.note.lines == [], "a step started although its run belongs to another process"
            thief.close()

    asyncio.run(asyncio.wait_for(go(), 20))


def test_a_process_whose_lease_had_run_out_asks_before_it_starts_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a stop and a wake-up: the lease is renewed first, and must not make it trust itself."""

    async def go() -> None:
        one = World(tmp_path)
        async with one.engine("sqlite") as engine:
            assert isinstance(engine, SqliteEngine)
            run_id = await engine.start(
                bundle(plan(block("a", ASK), block("b", note("b"), ["a"]), block("g", gate("g")))), {}
            )
            await engine.wait(run_id, asks, 5)
            while not one.gate.started:
                await settle()
            driver = engine._drivers[run_id]
            monkeypatch.setattr(engine._lease, "_ends", 0.0)
            await engine.store.write(engine._renew)
            thief = apsw.Connection(str(tmp_path / "runs.db"))
            thief.set_busy_timeout(5000)

            def steal_after_writing(batch: Batch, done: Callable[[Exception | None], None]) -> None:
                def stolen(error: Exception | None) -> None:
                    thief.execute("UPDATE runs SET owner = 'thief', epoch = epoch + 1")
                    done(error)

                append(batch, stolen)

            append = driver._journal.append
            monkeypatch.setattr(driver._journal, "append", steal_after_writing)
            driver.feed(Answered(one.clock.now(), "a", {"response": "go"}))
            while driver.failure is None:
                await asyncio.sleep(0.001)
            assert isinstance(driver.failure, LeaseLost)
            assert one.note.lines == []
            thief.close()

    asyncio.run(asyncio.wait_for(go(), 20))


@pytest.mark.parametrize("stolen", [True, False])
def test_a_process_that_was_stopped_just_before_it_starts_a_command_asks_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stolen: bool
) -> None:
    async def go() -> None:
        class Touch(Step):
            """Runs a command after the process has been stopped for longer than its lease."""

            name = "Touch"

            async def run(self, inputs: StepInputs, context: StepContext) -> StepResult:
                assert isinstance(engine, SqliteEngine)
                monkeypatch.setattr(engine._lease, "_ends", 0.0)
                if stolen:
                    thief = apsw.Connection(str(tmp_path / "runs.db"))
                    thief.set_busy_timeout(5000)
                    thief.execute("UPDATE runs SET owner = 'thief', epoch = epoch + 1")
                    thief.close()
                await context.world.run_command(
                    ["touch", str(tmp_path / "touched")], directory=tmp_path, environment={}, key=context.key
                )
                return StepResult({})

        world = World(tmp_path)
        world.more = [Touch()]
        async with world.engine("sqlite", recovers=False) as engine:
            assert isinstance(engine, SqliteEngine)
            run_id = await engine.start(bundle(plan(block("a", Do("Touch")))), {})
            driver = engine._drivers[run_id]
            if stolen:
                while driver.failure is None:
                    await asyncio.sleep(0.001)
                assert isinstance(driver.failure, LeaseLost)
            else:
                assert (await engine.wait(run_id, ended, 5)).state.status == "completed"
        assert (tmp_path / "touched").exists() is not stolen

    asyncio.run(asyncio.wait_for(go(), 20))


def test_a_long_run_is_restored_from_its_snapshot_and_what_came_after(tmp_path: Path) -> None:
    async def go() -> None:
        one, other = World(tmp_path), World(tmp_path)
        blocks = [block(f"b{i}", Do("Echo", {"value": f"{i}-" + "x" * 3000})) for i in range(200)]
        blocks += [block("ask", ASK, [f"b{i}" for i in range(200)])]
        blocks += [block("last", note("${blocks.b199.value}"), ["ask"])]
        async with one.engine("sqlite") as first:
            run_id = await first.start(bundle(plan(*blocks)), {})
            before = (await first.wait(run_id, asks, 5)).state
        connection = apsw.Connection(str(tmp_path / "runs.db"))
        assert list(connection.execute("SELECT count(*) FROM snapshots")) == [(1,)]
        connection.close()
        async with other.engine("sqlite") as second:
            restored = (await second.view(run_id)).state
            assert restored == before
            await second.send(run_id, lambda _, now: Answered(now, "ask", {"response": "go"}))
            assert (await second.wait(run_id, ended, 5)).state.status == "completed"
        assert other.note.lines == ["199-" + "x" * 3000]

    asyncio.run(asyncio.wait_for(go(), 20))


def test_a_store_that_a_newer_version_has_written_is_refused_and_left_alone(tmp_path: Path) -> None:
    async def go() -> None:
        path = tmp_path / "runs.db"
        connection = apsw.Connection(str(path))
        connection.pragma("user_version", store.VERSION + 1)
        connection.close()
        with pytest.raises(StoreError, match="this program knows versions up to"):
            Store(path)

    asyncio.run(asyncio.wait_for(go(), 20))


@pytest.mark.parametrize("version", range(1, store.VERSION))
def test_a_store_of_an_earlier_version_opens_and_its_runs_continue(tmp_path: Path, version: int) -> None:
    async def go() -> None:
        world = World(tmp_path)
        main = plan(
            block("gate", gate("g")), block("ask", ASK, ["gate"]), block("then", note("done"), ["ask"])
        )
        async with world.engine("sqlite") as before:
            running = await before.start(bundle(main), {})
            while not world.gate.started:
                await settle()
            await before.view(running)
            idle = await before.start(
                bundle(plan(block("ask", ASK), block("then", note("done"), ["ask"]))), {}
            )
            await before.wait(idle, asks, 5)
            await before.heartbeat(idle, "task", 7.0)
            await before.delete_checkpoint(idle, 1)
            await before.remember("key", "value")
        turn_back(world.store, version)
        world.gate.open("g")
        async with world.engine("sqlite") as after:
            assert isinstance(after, SqliteEngine)
            assert after.store.read("PRAGMA user_version") == [(store.VERSION,)]
            assert await after.deleted_checkpoints(idle) == ({1} if version >= 2 else set())
            assert await after.last_seen(idle) == ({"task": 7.0} if version >= 3 else {})
            assert await after.recall("key") == ("value" if version >= 4 else None)
            await after.wait(running, asks, 5)
            for run_id in (idle, running):
                await after.send(run_id, lambda _, now: Answered(now, "ask", {"response": "yes"}))
                assert (await after.wait(run_id, ended, 5)).state.status == "completed"

    asyncio.run(asyncio.wait_for(go(), 20))


def test_a_message_in_a_store_of_the_previous_version_is_delivered(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.engine("sqlite") as before:
            assert isinstance(before, SqliteEngine)
            run_id = await before.start(bundle(plan(block("gate", gate("g")))), {})
            while not world.gate.started:
                await settle()
            await before.view(run_id)
            message = await before.mailbox.send("none", CancelRequested(0.0))
            await before.store.write(
                lambda it: it.execute("UPDATE mailbox SET run = ?", (run_id,)).fetchall()
            )
        turn_back(world.store, 6)
        async with world.engine("sqlite") as after:
            assert isinstance(after, SqliteEngine)
            assert (await after.wait(run_id, ended, 5)).state.status == "cancelled"
            while not after.mailbox.answered(message):
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(go(), 20))


def test_a_process_of_an_earlier_version_beside_a_migrated_store_cannot_renew_its_lease(
    tmp_path: Path,
) -> None:
    """It has the file open since before the migration, so nothing else tells it that tables were renamed."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.engine("sqlite"):
            pass
        turn_back(world.store, 6)
        old = apsw.Connection(str(world.store))
        renew = (
            "INSERT INTO owners VALUES('old', ?, 'elsewhere', 1, 1)"
            " ON CONFLICT(id) DO UPDATE SET expires_at = excluded.expires_at"
        )
        old.execute(renew, (1.0,))
        async with world.engine("sqlite"):
            with pytest.raises(apsw.SQLError, match="has 6 columns but 5 values"):
                old.execute(renew, (2.0,))
        old.close()

    asyncio.run(asyncio.wait_for(go(), 20))


def test_a_store_that_cannot_be_opened_says_what_to_do(tmp_path: Path) -> None:
    async def go() -> None:
        (tmp_path / "runs.db").write_text("this is not a database, it is a text of some length" * 50)
        with pytest.raises(StoreError, match="cannot be used"):
            Store(tmp_path / "runs.db")
        with pytest.raises(StoreError, match="set WORKFLOWS_HOME"):
            Store(tmp_path / "runs.db" / "below a file" / "runs.db")

    asyncio.run(asyncio.wait_for(go(), 20))


def test_one_failing_write_of_a_group_does_not_take_the_others_with_it(tmp_path: Path) -> None:
    async def go() -> None:
        store = Store(tmp_path / "runs.db")

        def good(connection: apsw.Connection) -> str:
            connection.execute("INSERT INTO bundles VALUES('k', 'x')")
            return "good"

        def bad(connection: apsw.Connection) -> str:
            connection.execute("INSERT INTO bundles VALUES('k2', 'x')")
            connection.execute("INSERT INTO bundles VALUES('k', 'x')")
            return "bad"

        results = await asyncio.gather(store.write(good), store.write(bad), return_exceptions=True)
        assert results[0] == "good"
        assert isinstance(results[1], apsw.ConstraintError)
        assert store.read("SELECT key FROM bundles") == [("k",)]
        await store.close()

    asyncio.run(asyncio.wait_for(go(), 20))


def test_the_same_request_to_two_processes_at_once_makes_one_run_and_one_fork(tmp_path: Path) -> None:
    async def go() -> None:
        main = bundle(plan(block("ask", ASK), block("then", note("then"), ["ask"])))
        async with World(tmp_path).engine("sqlite") as one, World(tmp_path).engine("sqlite") as other:
            for number in range(10):
                request = f"r{number}"
                both = await asyncio.gather(
                    *(engine.start(main, {}, request_id=request) for engine in (one, other, one))
                )
                assert len(set(both)) == 1
                forks = await asyncio.gather(
                    *(engine.fork(both[0], 1, request_id=f"f{number}") for engine in (one, other, one))
                )
                assert len(set(forks)) == 1

    asyncio.run(asyncio.wait_for(go(), 30))


def test_the_same_answer_through_two_processes_at_once_is_harmless(tmp_path: Path) -> None:
    settings = Settings(workspace=tmp_path, home=tmp_path / "home")
    asks_twice = """
name: twice
blocks:
  - {id: q0, type: Prompt, inputs: {prompt: "A?"}}
  - {id: q1, type: Prompt, depends_on: [q0], inputs: {prompt: "B?"}}
"""

    async def go() -> None:
        async with Service.open(settings) as one, Service.open(settings) as other:
            for _ in range(10):
                run_id = (await one.start(text=asks_twice))["workflow_id"]
                for step in ("q0", "q1"):
                    submits = [
                        it.submit(run_id, "yes", step_id=step) for it in (one, other) for _ in range(3)
                    ]
                    results = await asyncio.gather(*submits, return_exceptions=True)
                    assert [it for it in results if isinstance(it, Exception)] == []
                assert (await other.status(run_id))["status"] == "completed"

    asyncio.run(asyncio.wait_for(go(), 30))


def test_a_message_is_not_refused_by_a_process_that_only_believes_that_it_drives_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wakes the run up with an answer that is not on disk yet, and another one has been quicker."""
    opened = threading.Event()

    async def go() -> None:
        main = bundle(plan(block("ask", ASK), block("then", note("then"), ["ask"])))
        async with World(tmp_path).engine("sqlite") as one, World(tmp_path).engine("sqlite") as other:
            assert isinstance(one, SqliteEngine)
            assert isinstance(other, SqliteEngine)
            run_id = await one.start(main, {})
            await one.wait(run_id, asks, 5)
            commit = one.store._commit

            def held(group: list[Write], *, wait: bool) -> Any:
                return (opened.wait(10) and commit(group, wait=wait)) if wait else None

            monkeypatch.setattr(one.store, "_commit", held)
            late = asyncio.create_task(
                one.send(run_id, lambda _, now: Answered(now, "ask", {"response": "late"}))
            )
            while one._live(run_id) is None:
                await settle()
            now = other._clock.now()
            await other.store.write(other._renew)
            await other.store.write(lambda it: leases.claim(it, run_id, other._owner, now))
            message = await other.mailbox.send(run_id, Answered(now, "ask", {"response": "posted"}))
            delivering = asyncio.create_task(one.mailbox.deliver(one._live))
            await settle()
            opened.set()
            await delivering
            late.cancel()
            await asyncio.gather(late, return_exceptions=True)
            assert not other.mailbox.answered(message), "it waits for the one that drives the run"

    asyncio.run(asyncio.wait_for(go(), 20))


def test_a_run_that_is_taken_over_keeps_its_heartbeat_when_another_one_comes_to_rest_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        asking = bundle(plan(block("ask", ASK)))
        one, other = World(tmp_path), World(tmp_path)
        async with one.engine("sqlite") as first:
            run_id = await first.start(bundle(plan(block("busy", gate("busy")))), {})
            while not one.gate.started:
                await settle()
            await first.view(run_id)
        async with other.engine("sqlite", recovers=False) as engine:
            assert isinstance(engine, SqliteEngine)

            async def while_another_rests(*_: object) -> None:
                await engine.wait(await engine.start(asking, {}), asks, 5)
                await settle()
                assert engine.store._lease_renewal is None

            monkeypatch.setattr(engine._executor, "end_leftovers", while_another_rests)
            await engine.ensure_driven(run_id)
            assert engine._live(run_id) is not None
            assert engine.store._lease_renewal is not None

    asyncio.run(asyncio.wait_for(go(), 20))


def test_a_new_store_can_be_made_by_two_processes_at_once(tmp_path: Path) -> None:
    for number in range(20):
        together = threading.Barrier(2)

        def make(path: Path, together: threading.Barrier = together) -> None:
            together.wait()
            check_store(path)

        with ThreadPoolExecutor(2) as threads:
            for made in [threads.submit(make, tmp_path / str(number) / "runs.db") for _ in range(2)]:
                made.result()


def test_answers_that_no_sender_fetches_do_not_pile_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "_KEPT", 5)

    def answer_all(connection: apsw.Connection) -> None:
        connection.execute("UPDATE mailbox SET answer = ''")

    async def go() -> None:
        async with World(tmp_path).engine("sqlite") as engine:
            assert isinstance(engine, SqliteEngine)
            for _ in range(20):
                await engine.mailbox.send("wf_1", CancelRequested(0.0))
                await engine.store.write(answer_all)
            unanswered = await engine.mailbox.send("wf_1", CancelRequested(0.0))
            for _ in range(20):
                await engine.mailbox.send("wf_1", CancelRequested(0.0))
            kept = [number for (number,) in engine.store.read("SELECT id FROM mailbox WHERE answer = ''")]
            assert kept == []
            assert engine.store.read("SELECT 1 FROM mailbox WHERE id = ?", (unanswered,)) == [(1,)]

    asyncio.run(asyncio.wait_for(go(), 20))
