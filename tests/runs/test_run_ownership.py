"""Which process continues a run: never one that its starter did not mean."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from pathlib import Path
from typing import Any

import pytest

from support.rendered import Service
from workflows_mcp.errors import NotExpected
from workflows_mcp.limits import Limits
from workflows_mcp.settings.model import Settings

SLOW = """
name: slow
blocks:
  - {id: work, type: Shell, inputs: {command: "test -e begun && exit 0; touch begun; sleep 60"}}
"""
ASKS = "name: asks\nblocks:\n  - {id: ask, type: Prompt, inputs: {prompt: 'Release?'}}\n"


def settings_in(tmp_path: Path, name: str, **more: Any) -> Settings:
    workspace = tmp_path / name
    workspace.mkdir(exist_ok=True)
    return Settings(workspace=workspace, home=tmp_path / "home", **more)


async def cut_off(settings: Settings, text: str = SLOW) -> str:
    """The id of a run whose process has ended while its step was under way."""
    async with Service.open(settings) as service:
        run_id = str((await service.start(text=text, wait_seconds=0))["workflow_id"])
        while not (settings.workspace / "begun").exists():
            await asyncio.sleep(0.01)
        return run_id


@pytest.mark.rows("X1")
@pytest.mark.parametrize("other", ["another workspace", "other settings"])
def test_a_run_that_was_cut_off_is_recovered_only_in_its_workspace_with_its_settings(
    tmp_path: Path, other: str, caplog: pytest.LogCaptureFixture
) -> None:
    own = settings_in(tmp_path, "own")
    stranger = settings_in(tmp_path, "elsewhere")
    if other == "other settings":
        stranger = dataclasses.replace(own, denied_capabilities=frozenset({"network"}))

    async def go() -> None:
        run_id = await cut_off(own)
        with caplog.at_level(logging.WARNING):
            async with Service.open(stranger) as service:
                said = await service.status(run_id)
                assert said["status"] == "running"
                assert f"it was started in {own.workspace}" in said["why"]
                assert f"workflows-mcp resume {run_id}" in said["why"]
                [listed] = await service.recent()
                assert (listed["status"], "was started in" in str(listed["why"])) == ("running", True)
        told = [it.getMessage() for it in caplog.records if "is not continued here" in it.getMessage()]
        assert len(told) == 1
        assert run_id in told[0]
        async with Service.open(own) as service:
            assert (await service.status(run_id, wait_seconds=20))["status"] == "completed"

    asyncio.run(asyncio.wait_for(go(), 60))


def test_whoever_resumes_a_run_by_its_id_continues_it_from_anywhere(tmp_path: Path) -> None:
    own, elsewhere = settings_in(tmp_path, "own"), settings_in(tmp_path, "elsewhere")

    async def go() -> None:
        run_id = await cut_off(own)
        async with Service.open(elsewhere, recovers=False) as service:
            assert (await service.resume_run(run_id, wait_seconds=20))["status"] == "completed"

    asyncio.run(asyncio.wait_for(go(), 60))


def test_whoever_resumes_a_run_that_was_parked_in_a_step_continues_it_from_anywhere(tmp_path: Path) -> None:
    own, elsewhere = settings_in(tmp_path, "own"), settings_in(tmp_path, "elsewhere")

    async def go() -> None:
        async with Service.open(own) as service:
            run_id = str((await service.start(text=SLOW, wait_seconds=0))["workflow_id"])
            while not (own.workspace / "begun").exists():
                await asyncio.sleep(0.01)
            assert await service.park(run_id)
        async with Service.open(elsewhere, recovers=False) as service:
            assert (await service.resume_run(run_id, wait_seconds=20))["status"] == "completed"

    asyncio.run(asyncio.wait_for(go(), 60))


BOTH = SLOW + "  - {id: ask, type: Prompt, inputs: {prompt: 'Release?'}}\n"


@pytest.mark.rows("X1")
def test_an_answer_from_another_workspace_does_not_repeat_a_step_that_was_cut_off(tmp_path: Path) -> None:
    own, elsewhere = settings_in(tmp_path, "own"), settings_in(tmp_path, "elsewhere")

    async def go() -> None:
        run_id = await cut_off(own, BOTH)
        async with Service.open(elsewhere) as service:
            with pytest.raises(NotExpected) as refused:
                await service.submit(run_id, {"response": "yes"}, step_id="ask")
            assert f"it was started in {own.workspace}" in str(refused.value)
            assert f"workflows-mcp resume {run_id}" in str(refused.value.hint)
            assert not (elsewhere.workspace / "begun").exists()
        async with Service.open(own) as service:
            await service.submit(run_id, {"response": "yes"}, step_id="ask")
            assert (await service.status(run_id, wait_seconds=20))["status"] == "completed"
        assert not (elsewhere.workspace / "begun").exists()

    asyncio.run(asyncio.wait_for(go(), 60))


def test_a_run_that_was_cut_off_can_be_cancelled_from_another_workspace(tmp_path: Path) -> None:
    own, elsewhere = settings_in(tmp_path, "own"), settings_in(tmp_path, "elsewhere")

    async def go() -> None:
        run_id = await cut_off(own)
        async with Service.open(elsewhere) as service:
            assert (await service.cancel(run_id))["status"] == "cancelled"
        assert not (elsewhere.workspace / "begun").exists()

    asyncio.run(asyncio.wait_for(go(), 60))


def test_a_parked_run_is_not_continued_by_a_server_nor_by_an_answer_until_it_is_resumed(
    tmp_path: Path,
) -> None:
    own = settings_in(tmp_path, "own")

    async def go() -> None:
        async with Service.open(own) as service:
            run_id = (await service.start(text=ASKS, wait_seconds=5))["workflow_id"]
            assert await service.park(run_id)
        async with Service.open(own) as service:
            said = await service.status(run_id)
            assert (said["status"], "action" in said) == ("waiting", False)
            assert said["why"].startswith("parked by the user at ")
            assert said["next"].startswith(
                f"control_workflow(workflow_id='{said['workflow_id']}', action='resume')"
            )
            with pytest.raises(NotExpected, match="is parked") as refused:
                await service.submit(run_id, {"response": "yes"}, step_id="ask")
            assert f"workflows-mcp resume {run_id}" in refused.value.hint
            assert (await service.resume_run(run_id))["status"] == "pending_action"
            assert (await service.submit(run_id, {"response": "yes"}))["status"] == "completed"

    asyncio.run(asyncio.wait_for(go(), 30))


def test_a_parked_run_asks_nothing_in_the_words_of_the_toolset_graph_either(tmp_path: Path) -> None:
    text = """
name: two
blocks:
  - {id: first, type: Prompt, inputs: {prompt: "One?"}}
  - {id: second, type: Prompt, depends_on: [first], inputs: {prompt: "Two?"}}
"""

    async def go() -> None:
        async with Service.open(settings_in(tmp_path, "own")) as service:
            asked = await service.execute(text=text)
            assert (asked["status"], asked["prompt"]) == ("paused", "One?")
            answer = await service.resume(asked["checkpoint_id"], "yes")
            assert (answer["status"], answer["prompt"]) == ("paused", "Two?")
            assert await service.park(asked["workflow_id"])
            parked = await service.resume(asked["checkpoint_id"], "yes")  # the same call, repeated
            assert (parked["status"], "prompt" in parked) == ("running", False)
            assert parked["message"].startswith("parked by the user at ")
            assert f"workflows-mcp resume {asked['workflow_id']}" in parked["message"]
            again = await service.resume(asked["workflow_id"])
            assert (again["status"], again["prompt"]) == ("paused", "Two?")

    asyncio.run(asyncio.wait_for(go(), 30))


def test_a_parked_run_can_be_cancelled(tmp_path: Path) -> None:
    async def go() -> None:
        async with Service.open(settings_in(tmp_path, "own")) as service:
            run_id = (await service.start(text=ASKS, wait_seconds=5))["workflow_id"]
            assert await service.park(run_id)
            assert (await service.cancel(run_id))["status"] == "cancelled"
            assert not await service.park(run_id)

    asyncio.run(asyncio.wait_for(go(), 30))


def test_a_step_that_was_cut_off_twice_is_asked_about_and_not_repeated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    deadly = (
        "name: deadly\nblocks:\n  - {id: work, type: Shell, inputs: {command: 'echo x >> begun; sleep 60'}}\n"
    )
    own = settings_in(tmp_path, "own", limits=Limits(step_interruptions=2))

    async def go() -> None:
        run_id = await cut_off(own, deadly)
        for times in (1, 2):
            with caplog.at_level(logging.WARNING):
                async with Service.open(own) as service:
                    if times == 1:
                        while (own.workspace / "begun").read_text() != "x\nx\n":
                            await asyncio.sleep(0.01)
                        continue
                    said = await service.status(run_id, wait_seconds=20)
                    assert said["status"] == "pending_action"
                    assert said["action"]["step_id"] == "work"
                    await service.submit(run_id, {"decision": "fail"}, step_id="work")
                    assert (await service.status(run_id))["status"] == "failed"
        assert (own.workspace / "begun").read_text() == "x\nx\n"
        assert any(run_id in it.getMessage() and "work#1" in it.getMessage() for it in caplog.records)

    asyncio.run(asyncio.wait_for(go(), 60))


def test_the_list_has_every_run_that_has_not_ended_first_with_its_question_and_its_status(
    tmp_path: Path,
) -> None:
    done = "name: done\nblocks:\n  - {id: a, type: Shell, inputs: {command: 'true'}}\n"
    waits = "name: waits\nsteps:\n  - {id: w, type: wait, needs_state: [], duration_seconds: 3600}\ninitial_state: {}\n"

    async def go() -> None:
        async with Service.open(settings_in(tmp_path, "own")) as service:
            asked = (await service.start(text=ASKS, wait_seconds=5))["workflow_id"]
            waiting = (await service.start(text=waits, wait_seconds=0))["workflow_id"]
            for _ in range(3):
                assert (await service.start(text=done, wait_seconds=10))["status"] == "completed"
            found = await service.runs(limit=2)
            assert {it["workflow_id"] for it in found["runs"][:2]} == {asked, waiting}
            assert len(found["runs"]) == 4
            assert found["more"] is True
            for listed in found["runs"][:2]:
                said = await service.status(str(listed["workflow_id"]))
                assert listed["status"] == said["status"]
            [entry] = [it for it in found["runs"] if it["workflow_id"] == asked]
            assert entry["question"] == "Release?"
            assert entry["next"] == f"get_next_step(workflow_id='{asked}')"
            command = "steps: [{id: c, type: shell, command: ls, needs_state: []}]\ninitial_state: {}\n"
            run = (await service.start(text=f"name: c\n{command}", wait_seconds=5))["workflow_id"]
            [entry] = [it for it in (await service.runs(limit=0))["runs"] if it["workflow_id"] == run]
            assert "question" not in entry  # it names parameters that the list does not have
            assert entry["next"] == f"get_next_step(workflow_id='{run}')"

    asyncio.run(asyncio.wait_for(go(), 60))


@pytest.mark.parametrize("keep", [False, True])
def test_a_fork_supersedes_a_run_that_waits_unless_it_is_kept(tmp_path: Path, keep: bool) -> None:
    gate = """
name: gate
blocks:
  - {id: plan, type: Shell, inputs: {command: "echo plan"}}
  - {id: approve, type: Prompt, depends_on: [plan], inputs: {prompt: "Go?"}}
"""

    async def go() -> None:
        async with Service.open(settings_in(tmp_path, "own")) as service:
            old = (await service.start(text=gate, wait_seconds=10))["workflow_id"]
            new = (await service.fork(old, "plan", keep=keep, wait_seconds=10))["workflow_id"]
            if keep:
                assert (await service.submit(old, "yes", step_id="approve"))["status"] == "completed"
            else:
                with pytest.raises(NotExpected, match=f"superseded by {new}") as refused:
                    await service.submit(old, "yes", step_id="approve")
                assert new in refused.value.hint
                listed = {it["workflow_id"]: it for it in await service.recent()}
                assert (listed[old]["continued_as"], listed[new]["forked_from"]) == (new, old)
            assert (await service.submit(new, "yes", step_id="approve"))["status"] == "completed"

    asyncio.run(asyncio.wait_for(go(), 60))
