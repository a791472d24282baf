"""A run that rests in a process goes on there with the very commit that holds the answer, unless another process
was quicker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from support.engines import World, asks, ended
from support.plans import Do, block, bundle, plan
from workflows_mcp.engines.sqlite import leases
from workflows_mcp.engines.sqlite.engine import SqliteEngine
from workflows_mcp.engines.sqlite.runs import RunJournal
from workflows_mcp.engines.sqlite.store import Write
from workflows_mcp.errors import LeaseLost, NotExpected, StoreError
from workflows_mcp.machine.events import Answered
from workflows_mcp.machine.machine import Machine

ASK = Do("Ask", {"prompt": "?"}, by="agent", defaults={"response": ""})
THEN = Do("Note", {"text": "then"}, defaults={"text": ""})
QUESTIONS = bundle(plan(block("ask", ASK), block("again", ASK, ["ask"]), block("then", THEN, ["again"])))


def answered(
    address: str, before: Callable[[], None] = lambda: None, *, text: str = "yes"
) -> Callable[[Machine, float], Answered]:
    def make(_: Machine, now: float) -> Answered:
        before()
        return Answered(now, address, {"response": text})

    return make


def test_an_answer_to_a_run_that_rests_here_is_one_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.engine("sqlite") as engine:
            assert isinstance(engine, SqliteEngine)
            run_id = await engine.start(QUESTIONS, {})
            await engine.wait(run_id, asks, 5)
            groups = []
            commit = engine.store._commit

            def counted(group: list[Write], *, wait: bool) -> list[tuple[Any, Exception | None]] | None:
                groups.append(group)
                return commit(group, wait=wait)

            monkeypatch.setattr(engine.store, "_commit", counted)
            await engine.send(run_id, answered("ask"))
            assert (await engine.view(run_id)).state.root.records["ask"].status == "completed"
            assert len(groups) == 1

    asyncio.run(asyncio.wait_for(go(), 20))


@pytest.mark.rows("X1")
@pytest.mark.parametrize("keeps_it", [False, True], ids=["has let go again", "is gone"])
def test_an_answer_is_taken_in_once_although_another_process_was_quicker_to_take_the_run(
    tmp_path: Path, keeps_it: bool
) -> None:
    """Between the look at the run and the first write: the row says then that the run is another one's."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.engine("sqlite") as engine:
            run_id = await engine.start(QUESTIONS, {})
            before = (await engine.wait(run_id, asks, 5)).state.events
            turns: list[bool] = []

            def be_quicker() -> None:
                if turns:
                    return
                turns.append(True)
                with apsw.Connection(str(world.store)) as connection:
                    assert leases.claim(connection, run_id, "another", world.clock.now()) is not None
                    if not keeps_it:
                        leases.release(connection, run_id, "another", "idle")

            await engine.send(run_id, answered("ask", be_quicker))
            state = (await engine.view(run_id)).state
            assert state.root.records["ask"].status == "completed"
            assert state.events == before + 1 == 2
            with pytest.raises(NotExpected, match="nothing is asked at 'ask'"):
                await engine.send(run_id, answered("ask"))
            await engine.send(run_id, answered("again"))
            assert (await engine.wait(run_id, ended, 5)).state.status == "completed"
            assert world.note.lines == ["then"]
        async with World(tmp_path).engine("sqlite") as again:
            assert (await again.view(run_id)).state.events == 4  # started, twice answered, and the note

    asyncio.run(asyncio.wait_for(go(), 20))


@pytest.mark.rows("X1")
def test_of_two_answers_that_two_processes_take_at_the_same_moment_one_is_refused(tmp_path: Path) -> None:
    async def go() -> None:
        async def elsewhere() -> None:
            async with World(tmp_path).engine("sqlite", recovers=False) as other:
                await other.send(run_id, answered("ask", text="first"))

        def be_quicker() -> None:
            if not quicker.ident:
                quicker.start()
                quicker.join()

        quicker = threading.Thread(target=lambda: asyncio.run(elsewhere()))
        async with World(tmp_path).engine("sqlite") as engine:
            run_id = await engine.start(QUESTIONS, {})
            await engine.wait(run_id, asks, 5)
            with pytest.raises(NotExpected, match="nothing is asked at 'ask'"):
                await engine.send(run_id, answered("ask", be_quicker, text="second"))
            state = (await engine.view(run_id)).state
            assert state.root.records["ask"].outputs == {"response": "first"}
            await engine.send(run_id, answered("again"))
            assert (await engine.wait(run_id, ended, 5)).state.status == "completed"

    asyncio.run(asyncio.wait_for(go(), 20))


@pytest.mark.rows("X1")
def test_an_answer_that_could_not_be_written_is_not_taken_in_and_can_be_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.engine("sqlite") as engine:
            run_id = await engine.start(QUESTIONS, {})
            before = (await engine.wait(run_id, asks, 5)).state.events

            def full(*_: object) -> None:
                raise apsw.FullError("the disk is full")

            with monkeypatch.context() as broken:
                broken.setattr(RunJournal, "write_events", full)
                with pytest.raises(StoreError, match="the disk is full"):
                    await engine.send(run_id, answered("ask"))
            assert (await engine.view(run_id)).state.events == before
            await engine.send(run_id, answered("ask"))
            assert (await engine.view(run_id)).state.events == before + 1

    asyncio.run(asyncio.wait_for(go(), 20))


@pytest.mark.parametrize("left_at_rest", [False, True], ids=["is at work on it", "has left it at rest"])
def test_a_run_that_another_process_has_had_since_cannot_be_claimed_from_the_rest_before(
    tmp_path: Path, left_at_rest: bool
) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.engine("sqlite") as engine:
            run_id = await engine.start(QUESTIONS, {})
            await engine.wait(run_id, asks, 5)
            with apsw.Connection(str(world.store)) as connection:
                row = f"SELECT owner, epoch, status FROM runs WHERE id = '{run_id}'"
                epoch = leases.claim(connection, run_id, "another", world.clock.now())
                assert epoch is not None
                if left_at_rest:
                    leases.release(connection, run_id, "another", "idle")
                before = connection.execute(row).fetchall()
                with pytest.raises(LeaseLost):
                    leases.claim_idle(connection, run_id, "late", epoch)
                assert connection.execute(row).fetchall() == before

    asyncio.run(asyncio.wait_for(go(), 20))
