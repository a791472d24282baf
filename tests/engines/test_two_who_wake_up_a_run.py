"""Two processes that share a store and are handed something for the same run at the same moment: while a third one
is writing, both believe that the run is theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from support.rendered import Service
from workflows_mcp.errors import WorkflowsError
from workflows_mcp.settings.model import Settings

pytestmark = pytest.mark.rows("X1")

THREE = """
name: three
blocks:
  - {id: q1, type: Prompt, inputs: {prompt: a}}
  - {id: q2, type: Prompt, inputs: {prompt: b}}
  - {id: q3, type: Prompt, inputs: {prompt: c}}
"""
ROUNDS = """
name: rounds
default_state: {raw: {i: 0, answers: []}}
steps:
  - id: loop
    type: while
    condition: "{{ i < 3 }}"
    body:
      - {id: more, type: state_update, path: raw.i, operation: increment}
      - {id: q, type: user_input, prompt: "{{ i }}?", state_update: {path: raw.answers, operation: append}}
"""
TIMES = 10


@contextmanager
def somebody_writes(settings: Settings) -> Iterator[None]:
    lock = apsw.Connection(str(settings.home / "runs.db"))
    lock.set_busy_timeout(5000)
    lock.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        lock.execute("COMMIT")
        lock.close()


async def submitted(service: Service, run_id: str, answer: str, step_id: str) -> Any:
    try:
        return await service.submit(run_id, answer, step_id=step_id, wait_seconds=0)
    except WorkflowsError as error:
        return error


def test_answers_that_two_processes_take_in_at_once_are_all_kept(tmp_path: Path) -> None:
    async def go() -> None:
        settings = Settings(workspace=tmp_path, home=tmp_path / "home")
        async with Service.open(settings) as one, Service.open(settings) as other:
            for _ in range(TIMES):
                run = (await one.start(text=THREE))["workflow_id"]
                with somebody_writes(settings):
                    handed_in = []
                    for service, step in ((other, "q3"), (one, "q1"), (one, "q2")):
                        handed_in.append(asyncio.create_task(submitted(service, run, step, step)))
                        await asyncio.sleep(0.01)
                    await asyncio.sleep(0.02)
                answers = await asyncio.gather(*handed_in)
                assert [type(answer) for answer in answers] == [dict] * 3, answers
                for service in (one, other):
                    assert (await service.status(run, wait_seconds=5))["status"] == "completed"
                _, events = await one._engine.journal(run)
                assert sorted(it.address for it in events if it.address) == ["q1", "q2", "q3"]

    asyncio.run(asyncio.wait_for(go(), 60))


@pytest.mark.rows("R13")
def test_an_answer_that_two_processes_take_in_at_once_is_not_taken_for_one_to_the_next_round(
    tmp_path: Path,
) -> None:
    async def go() -> None:
        settings = Settings(workspace=tmp_path, home=tmp_path / "home")
        async with Service.open(settings) as one, Service.open(settings) as other:
            for _ in range(TIMES):
                run = (await one.start(text=ROUNDS))["workflow_id"]
                with somebody_writes(settings):
                    handed_in = [
                        asyncio.create_task(submitted(service, run, "one", "q")) for service in (one, other)
                    ]
                    await asyncio.sleep(0.05)
                answers = await asyncio.gather(*handed_in)
                assert [type(answer) for answer in answers] == [dict] * 2, answers
                assert await one.step_protocol.read(run, ("answers",), None) == {"answers": ["one"]}
                assert (await other.status(run, wait_seconds=5))["action"]["step_id"] == "q@2"

    asyncio.run(asyncio.wait_for(go(), 60))


def test_a_run_that_has_ended_by_its_journal_is_not_taken_over_for_ever(tmp_path: Path) -> None:
    async def go() -> None:
        settings = Settings(workspace=tmp_path, home=tmp_path / "home")
        async with Service.open(settings) as service:
            run = (await service.start(text=THREE))["workflow_id"]
            for step in ("q1", "q2", "q3"):
                await service.submit(run, "yes", step_id=step)
        store = apsw.Connection(str(settings.home / "runs.db"))
        store.execute("UPDATE runs SET status = 'running', owner = NULL")
        async with Service.open(settings) as service:
            assert (await service.status(run))["status"] == "completed"
            assert [it["status"] for it in await service.recent()] == ["completed"]
        assert list(store.execute("SELECT status, owner FROM runs")) == [("completed", None)]

    asyncio.run(asyncio.wait_for(go(), 60))
