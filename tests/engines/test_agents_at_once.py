"""Several agents answer, and wait for, one run at the same time in one process: an event of a run that is made of steps
is applied in a thread, and between two of them the run comes to rest and changes hands."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from support.engines import World, ended
from support.reactive import documents
from workflows_mcp.engines.base import Engine
from workflows_mcp.engines.clock import settle
from workflows_mcp.engines.executor import Executor
from workflows_mcp.engines.sqlite.engine import SqliteEngine
from workflows_mcp.machine.commands import Command
from workflows_mcp.machine.events import Answered, Event
from workflows_mcp.machine.machine import Machine

TASKS = documents("""
name: tasks
default_state: {raw: {answers: {}}}
steps:
  - {id: all, type: parallel_foreach, items: [0, 1, 2], sub_agent_task: one}
sub_agent_tasks:
  one:
    steps:
      - {id: ask, type: Ask, prompt: "?", state_update: {path: "raw.answers.t{{ index }}", value: "{{ response }}"}}
      - {id: again, type: Ask, prompt: "again?"}
""")


class Threads:
    """In place of the threads: an event is applied when the test says so."""

    def __init__(self) -> None:
        self._waiting: list[tuple[asyncio.Future[list[Command]], Machine, Event]] = []
        self.held = False

    def apply(self, machine: Machine, event: Event) -> asyncio.Future[list[Command]]:
        applied: asyncio.Future[list[Command]] = asyncio.get_running_loop().create_future()
        self._waiting.append((applied, machine, event))
        if not self.held:
            self.go_on()
        return applied

    def go_on(self) -> None:
        for applied, machine, event in self._waiting:
            applied.set_result(machine.apply(event))
        self._waiting = []

    async def busy(self) -> None:
        while not self._waiting:
            await asyncio.sleep(0)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    threads = Threads()
    monkeypatch.setattr(Executor, "apply_in_thread", threads.apply)
    return threads


def answering(engine: Engine, run_id: str, address: str) -> asyncio.Task[None]:
    return asyncio.create_task(
        engine.send(run_id, lambda _, now: Answered(now, address, {"response": address}))
    )


async def asked(engine: Engine, run_id: str) -> list[str]:
    frames = (await engine.view(run_id)).state.frames.items()
    return sorted(address for address, frame in frames if frame.kind == "agent")


@pytest.mark.rows("R16")
def test_an_answer_that_waits_while_another_is_taken_in_is_kept_beside_one_that_comes_then(
    tmp_path: Path, threads: Threads
) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.engine("sqlite") as engine:
            run_id = await engine.start(TASKS, {})
            assert await asked(engine, run_id) == ["all/0/ask", "all/1/ask", "all/2/ask"]
            await settle()
            threads.held = True
            first = answering(engine, run_id, "all/0/ask")
            await threads.busy()
            second = answering(engine, run_id, "all/1/ask")
            await settle()
            threads.go_on()
            await first  # now the run comes to rest, and the second answer has its turn
            await threads.busy()
            third = answering(engine, run_id, "all/2/ask")
            await settle()
            threads.held = False
            threads.go_on()
            await asyncio.gather(second, third)
            known = (await engine.view(run_id)).state
        async with world.engine("sqlite") as engine:
            read = (await engine.view(run_id)).state
            assert read.root.state["raw"] == {
                "answers": {f"t{number}": f"all/{number}/ask" for number in range(3)}
            }
            assert (read.events, read.root.state) == (known.events, known.root.state)
            assert await asked(engine, run_id) == ["all/0/again", "all/1/again", "all/2/again"]

    asyncio.run(asyncio.wait_for(go(), 20))


@pytest.mark.rows("R16")
def test_whoever_waits_for_a_run_hears_of_its_end_although_it_came_to_rest_meanwhile(
    tmp_path: Path, threads: Threads
) -> None:
    async def go() -> None:
        async with World(tmp_path).engine("sqlite") as engine:
            run_id = await engine.start(TASKS, {})
            assert len(await asked(engine, run_id)) == 3
            await settle()
            threads.held = True
            first = answering(engine, run_id, "all/0/ask")
            await threads.busy()
            waiting = asyncio.create_task(engine.wait(run_id, ended, 60))
            await settle()
            threads.held = False
            threads.go_on()
            await first
            while addresses := await asked(engine, run_id):
                await answering(engine, run_id, addresses[0])
            assert (await waiting).state.status == "completed"

    asyncio.run(asyncio.wait_for(go(), 20))


def test_an_answer_is_taken_in_however_often_the_run_changes_hands_before(
    tmp_path: Path, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        async with World(tmp_path).engine("sqlite") as engine:
            assert isinstance(engine, SqliteEngine)
            run_id = await engine.start(TASKS, {})
            assert len(await asked(engine, run_id)) == 3
            await settle()
            turns = iter([False] * 10)
            send_to_idle = engine._send_to_undriven_here
            monkeypatch.setattr(
                engine,
                "_send_to_undriven_here",
                lambda *given: (
                    asyncio.sleep(0, False) if next(turns, None) is False else send_to_idle(*given)
                ),
            )
            await answering(engine, run_id, "all/0/ask")
            assert "all/0/again" in await asked(engine, run_id)

    asyncio.run(asyncio.wait_for(go(), 20))
