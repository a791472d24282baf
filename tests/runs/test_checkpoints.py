"""Checkpoints are positions in the journal of a run: every question, every end of a wave, any position at all."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import apsw
import pytest

from support.rendered import Service
from workflows_mcp.answers.history import CheckpointId, parse_checkpoint_id
from workflows_mcp.errors import (
    InvalidResult,
    NotExpected,
    RequestError,
    StoreError,
    UnknownRun,
    UnknownWorkflow,
)
from workflows_mcp.limits import Limits
from workflows_mcp.settings.model import Settings

T = TypeVar("T")
Work = Callable[[Service], Awaitable[T]]

DEPLOY = """\
name: deploy
inputs:
  target: {type: string, default: staging}
blocks:
  - id: build
    type: Shell
    inputs: {command: 'echo build >> log'}
  - id: approve
    type: Prompt
    depends_on: [build]
    inputs: {prompt: "Ship to ${inputs.target}? yes or no"}
  - id: ship
    type: Shell
    depends_on: [approve]
    condition: ${blocks.approve.outputs.response} == 'yes'
    inputs: {command: 'echo ship >> log'}
  - id: tell
    type: Shell
    depends_on: [{block: ship, required: false}]
    inputs: {command: 'echo tell >> log'}
outputs:
  shipped: ${blocks.ship.succeeded}
"""

TWO = """\
name: two
blocks:
  - {id: one, type: Prompt, inputs: {prompt: 'First?'}}
  - {id: two, type: Prompt, inputs: {prompt: 'Second?'}}
outputs: {all: '${blocks.one.response} ${blocks.two.response}'}
"""


@pytest.fixture
def serve(settings: Settings) -> Callable[[Work[Any]], Any]:
    """Let something happen at a service; each call is a new one over the same store."""

    def go(work: Work[T], **limits: Any) -> T:
        chosen = dataclasses.replace(settings, limits=Limits(**limits))

        async def session() -> T:
            async with Service.open(chosen) as service:
                return await work(service)

        return asyncio.run(asyncio.wait_for(session(), 30))

    return go


def log_of(workspace: Path) -> list[str]:
    return (workspace / "log").read_text().split()


async def ids(service: Service, **narrowed: Any) -> list[str]:
    return [it["checkpoint_id"] for it in (await service.checkpoints(**narrowed))["checkpoints"]]


@pytest.mark.rows("G15", "G18", "G19")
def test_a_question_is_a_checkpoint_that_is_listed_described_and_answered(serve: Any) -> None:
    async def ask(service: Service) -> str:
        paused = await service.execute(text=DEPLOY, inputs={"target": "moon"})
        run_id = paused["workflow_id"]
        assert paused == {
            "status": "paused",
            "workflow_id": run_id,
            "checkpoint_id": f"pause_{run_id}_2",
            "prompt": "Ship to moon? yes or no",
            "message": f"answer with resume_workflow(checkpoint_id='pause_{run_id}_2', response='…')",
        }
        return str(run_id)

    run_id = serve(ask)

    async def answer(service: Service) -> None:
        listed = (await service.checkpoints())["checkpoints"]
        assert [it["checkpoint_id"] for it in listed] == [f"pause_{run_id}_2", f"chk_{run_id}_2"]
        created = listed[0].pop("created_at")
        assert created.endswith("Z")
        assert listed[0] == {
            "checkpoint_id": f"pause_{run_id}_2",
            "workflow": "deploy",
            "workflow_id": run_id,
            "type": "pause",
            "position": 2,
            "completed_blocks": 1,
            "moved_on": False,
            "paused_block": "approve",
            "prompt": "Ship to moon? yes or no",
        }
        info = await service.checkpoint_info(f"pause_{run_id}_2")
        assert info["inputs"] == {"target": "moon"}
        assert info["completed_blocks"] == ["build"]
        assert info["execution_waves"] == [["build"], ["approve"], ["ship"], ["tell"]]
        assert info["current_wave"] == 1
        assert info["workflow_stack"] == ["deploy"]
        assert f"checkpoint_id='pause_{run_id}_2'" in info["how_to_resume"]
        done = await service.resume(f"pause_{run_id}_2", "yes")
        assert done == {
            "status": "success",
            "workflow_id": run_id,
            "outputs": {"shipped": True},
            "blocks": {},
            "metadata": {},
        }

    serve(answer)


@pytest.mark.rows("G18")
def test_every_wave_that_has_ended_is_a_checkpoint_and_the_latest_comes_first(serve: Any) -> None:
    async def work(service: Service) -> None:
        paused = await service.execute(text=DEPLOY)
        run_id = paused["workflow_id"]
        await service.resume(paused["checkpoint_id"], "no")
        # The answer ended the wave of 'approve' and, because it was no, at once that of 'ship'.
        expected = [f"chk_{run_id}_4", f"chk_{run_id}_3", f"pause_{run_id}_2", f"chk_{run_id}_2"]
        assert await ids(service) == expected
        info = await service.checkpoint_info(f"chk_{run_id}_3")
        assert info["completed_blocks"] == ["build", "approve", "ship"]
        assert info["skipped_blocks"] == ["ship"]
        assert info["current_wave"] == 3
        assert "prompt" not in info
        last = await service.checkpoint_info(f"chk_{run_id}_4")
        assert "current_wave" not in last

    serve(work)


def test_a_wave_counts_only_when_all_before_it_have_ended(serve: Any) -> None:
    text = """\
name: waves
blocks:
  - {id: slow, type: Prompt, inputs: {prompt: 'Slow?'}}
  - {id: quick, type: Shell, inputs: {command: 'true'}}
  - {id: after, type: Shell, depends_on: [quick], inputs: {command: 'true'}}
"""

    async def work(service: Service) -> None:
        paused = await service.execute(text=text)
        run_id = paused["workflow_id"]
        while (await service.state(run_id))["blocks"]["after"]["status"] != "completed":
            await asyncio.sleep(0)
        assert await ids(service) == [f"pause_{run_id}_1"]
        await service.resume(paused["checkpoint_id"], "done")
        assert await ids(service) == [f"chk_{run_id}_4", f"pause_{run_id}_1"]

    serve(work)


@pytest.mark.rows("G18", "G19")
def test_two_questions_at_once_have_a_checkpoint_each_and_each_answers_its_own(serve: Any) -> None:
    async def work(service: Service) -> None:
        paused = await service.execute(text=TWO)
        run_id = paused["workflow_id"]
        assert (paused["checkpoint_id"], paused["prompt"]) == (f"pause_{run_id}_1", "First?")
        second = {"checkpoint_id": f"pause_{run_id}_1.2", "prompt": "Second?"}
        assert paused["more_prompts"] == [second]
        assert "2 prompts are open" in paused["message"]
        with pytest.raises(NotExpected, match=r"asks 2 questions(.|\n)*pause_\w+_1, pause_\w+_1\.2"):
            await service.resume(run_id, "to whom?")
        left = await service.resume(f"pause_{run_id}_1.2", "b")
        assert left["checkpoint_id"] == f"pause_{run_id}_1"
        assert "more_prompts" not in left
        assert await service.resume(f"pause_{run_id}_1.2", "b") == left
        done = await service.resume(f"pause_{run_id}_1", "a")
        assert done["outputs"] == {"all": "a b"}

    serve(work)


def test_a_block_that_asks_for_each_item_has_a_checkpoint_for_each_question(serve: Any) -> None:
    text = """\
name: many
blocks:
  - id: ask
    type: Prompt
    for_each: [ada, bob, cleo]
    max_parallel: 2
    inputs: {prompt: 'How is ${each.value}?'}
outputs: {all: '${blocks.ask.outputs.results}'}
"""

    async def work(service: Service) -> None:
        paused = await service.execute(text=text)
        run_id = paused["workflow_id"]
        assert paused["prompt"] == "How is ada?"
        assert [it["prompt"] for it in paused["more_prompts"]] == ["How is bob?"]
        paused = await service.resume(paused["more_prompts"][0]["checkpoint_id"], "B")
        assert paused["more_prompts"] == [
            {"checkpoint_id": f"pause_{run_id}_2", "prompt": "How is cleo?"},
        ]
        await service.resume(f"pause_{run_id}_2", "C")
        done = await service.resume(f"pause_{run_id}_1", "A")
        assert [item["response"] for item in done["outputs"]["all"]] == ["A", "B", "C"]
        info = await service.checkpoint_info(f"pause_{run_id}_2")
        assert info["paused_block"].startswith("ask")
        assert info["answered_with"] == {"response": "C"}

    serve(work)


@pytest.mark.rows("G18")
def test_the_same_response_again_is_harmless_and_another_one_makes_a_fork(
    serve: Any, workspace: Path
) -> None:
    async def work(service: Service) -> None:
        paused = await service.execute(text=DEPLOY)
        first, question = paused["workflow_id"], paused["checkpoint_id"]
        done = await service.resume(question, "yes")
        assert await service.resume(question, "yes") == done
        assert log_of(workspace) == ["build", "ship", "tell"]

        other = await service.resume(question, "no")
        assert other["status"] == "success"
        assert other["outputs"] == {"shipped": False}
        assert other["forked_from"] == first
        assert other["workflow_id"] != first
        assert f"a fork of {first} from {question}" in other["message"]
        assert log_of(workspace) == ["build", "ship", "tell", "tell"]

        again = await asyncio.gather(*(service.resume(question, "no") for _ in range(3)))
        assert again == [other] * 3
        assert log_of(workspace) == ["build", "ship", "tell", "tell"]
        assert len(await service.recent()) == 2
        assert (await service.status(first))["outputs"] == {"shipped": True}

    serve(work)


@pytest.mark.rows("G18")
def test_a_run_that_has_moved_on_is_gone_on_from_an_automatic_checkpoint_as_a_new_run(
    serve: Any, workspace: Path
) -> None:
    flaky = """\
name: flaky
blocks:
  - {id: build, type: Shell, inputs: {command: 'echo build >> log'}}
  - {id: ship, type: Shell, depends_on: [build], inputs: {command: 'echo ship >> log; test -e network'}}
outputs: {said: '${blocks.ship.outputs.stdout}'}
"""

    async def work(service: Service) -> None:
        failed = await service.execute(text=flaky)
        run_id = failed["workflow_id"]
        assert failed["status"] == "failure"
        assert "block 'ship' failed" in failed["error"]
        (workspace / "network").touch()
        reported = await service.resume(f"chk_{run_id}_3")
        assert reported == failed
        done = await service.resume(f"chk_{run_id}_2")
        assert (done["status"], done["forked_from"]) == ("success", run_id)
        assert log_of(workspace) == ["build", "ship", "ship"]
        assert (await service.status(run_id))["status"] == "failed"

    serve(work)


def test_every_position_can_be_named(serve: Any, workspace: Path) -> None:
    async def work(service: Service) -> None:
        paused = await service.execute(text=DEPLOY)
        run_id = paused["workflow_id"]
        assert (await service.checkpoint_info(f"chk_{run_id}_1"))["completed_blocks"] == []
        again = await service.resume(f"chk_{run_id}_1")
        assert again["status"] == "paused"
        assert again["forked_from"] == run_id
        assert log_of(workspace) == ["build", "build"]
        for position in (0, 3, 99):
            with pytest.raises(RequestError, match="was not found or has expired"):
                await service.resume(f"chk_{run_id}_{position}")

    serve(work)


def test_a_checkpoint_of_a_run_that_has_not_moved_on_tells_where_the_run_is(serve: Any) -> None:
    async def work(service: Service) -> None:
        paused = await service.execute(text=DEPLOY)
        assert await service.resume(f"chk_{paused['workflow_id']}_2") == paused
        assert await service.resume(paused["workflow_id"]) == paused
        assert len(await service.recent()) == 1
        with pytest.raises(RequestError, match="asks nothing, so it takes no response"):
            await service.resume(f"chk_{paused['workflow_id']}_2", "yes")
        with pytest.raises(RequestError, match=r"needs a response(.|\n)*it asks: Ship to staging\?"):
            await service.resume(paused["checkpoint_id"])
        done = await service.resume(paused["workflow_id"], "yes")
        assert done["status"] == "success"
        with pytest.raises(NotExpected, match="asks nothing now"):
            await service.resume(paused["workflow_id"], "yes")

    serve(work)


def test_what_a_checkpoint_shows_does_not_change_when_the_run_goes_on(serve: Any) -> None:
    async def work(service: Service) -> None:
        paused = await service.execute(text=DEPLOY)
        question = paused["checkpoint_id"]
        before = await service.checkpoint_info(question)
        await service.resume(question, "yes")
        after = await service.checkpoint_info(question)
        assert after["moved_on"] is True
        assert after["answered_with"] == {"response": "yes"}
        same = before.keys() - {"moved_on", "how_to_resume"}
        assert {key: after[key] for key in same} == {key: before[key] for key in same}

    serve(work)


def test_a_service_that_has_watched_a_run_and_one_that_reads_it_afresh_list_the_same(serve: Any) -> None:
    async def watch(service: Service) -> list[dict[str, Any]]:
        paused = await service.execute(text=TWO)
        await service.checkpoints()
        await service.resume(paused["checkpoint_id"], "a")
        await service.resume(paused["more_prompts"][0]["checkpoint_id"], "b")
        await service.resume(paused["checkpoint_id"], "other")
        return list((await service.checkpoints())["checkpoints"])

    async def read(service: Service) -> list[dict[str, Any]]:
        return list((await service.checkpoints())["checkpoints"])

    seen = serve(watch)
    assert serve(read) == seen
    assert len(seen) == 5


def test_a_fork_lists_its_own_checkpoints_and_not_those_of_the_run_that_it_comes_from(serve: Any) -> None:
    async def work(service: Service) -> None:
        paused = await service.execute(text=DEPLOY)
        await service.resume(paused["checkpoint_id"], "yes")
        chk = f"chk_{paused['workflow_id']}_3"
        fork = (await service.resume(chk))["workflow_id"]
        assert await ids(service, run_id=fork) == [f"chk_{fork}_6", f"chk_{fork}_5"]
        assert (await service.checkpoint_info(f"pause_{fork}_2"))["answered_with"] == {"response": "yes"}

    serve(work)


def test_a_retried_run_has_checkpoints_of_its_own_also_after_it_has_moved_on(
    serve: Any, workspace: Path
) -> None:
    text = """
name: again
blocks:
  - {id: a, type: Shell, inputs: {command: 'echo a >> log; test -f ready'}}
  - {id: b, type: Shell, depends_on: [a], inputs: {command: 'echo b >> log'}}
  - {id: c, type: Shell, depends_on: [b], inputs: {command: 'echo c >> log'}}
"""

    async def work(service: Service) -> None:
        old = (await service.start(text=text))["workflow_id"]
        (workspace / "ready").touch()
        new = (await service.retry(old))["workflow_id"]
        listed = await ids(service, run_id=new)
        assert len(listed) == 3, "the end of each wave"
        assert (await service.checkpoint_info(listed[1]))["completed_blocks"] == ["a", "b"]
        assert (await service.resume(listed[1]))["workflow_id"] != new
        assert log_of(workspace) == ["a", "a", "b", "c", "c"]

    serve(work)


@pytest.mark.rows("G18")
def test_a_deleted_checkpoint_is_gone_for_good_and_its_run_is_left_as_it_is(serve: Any) -> None:
    async def delete(service: Service) -> tuple[str, str]:
        paused = await service.execute(text=DEPLOY)
        run_id, question = paused["workflow_id"], paused["checkpoint_id"]
        said = await service.delete_checkpoint(question)
        assert said["deleted"] is True
        assert f"the run {run_id} is unchanged" in said["message"]
        assert f"control_workflow(workflow_id='{run_id}', action='cancel')" in said["message"]
        assert await service.delete_checkpoint(question) == said
        return run_id, question

    run_id, question = serve(delete)

    async def look(service: Service) -> None:
        assert await ids(service) == [f"chk_{run_id}_2"]
        with pytest.raises(RequestError, match=rf"was deleted(.|\n)*has: chk_{run_id}_2"):
            await service.resume(question, "yes")
        with pytest.raises(RequestError, match="was deleted"):
            await service.checkpoint_info(question)
        waits = await service.resume(run_id)
        assert waits["status"] == "paused"
        assert "checkpoint_id" not in waits
        assert "was deleted" in waits["message"]
        done = await service.submit(run_id, "yes")
        assert done["status"] == "completed"

    serve(look)


def test_of_several_checkpoints_at_one_position_only_the_deleted_one_is_gone(serve: Any) -> None:
    async def work(service: Service) -> None:
        paused = await service.execute(text=TWO)
        run_id = paused["workflow_id"]
        await service.delete_checkpoint(f"pause_{run_id}_1")
        left = await service.resume(run_id)
        assert left["checkpoint_id"] == f"pause_{run_id}_1.2"
        assert "deleted" in left["message"]
        deploy = await service.execute(text=DEPLOY)
        await service.delete_checkpoint(f"chk_{deploy['workflow_id']}_2")
        assert (await service.resume(deploy["checkpoint_id"], "yes"))["status"] == "success"

    serve(work)


@pytest.mark.rows("G18")
def test_checkpoints_expire_but_a_question_that_is_still_asked_never_does(serve: Any) -> None:
    async def start(service: Service) -> tuple[dict[str, Any], dict[str, Any]]:
        ended = await service.execute(text=DEPLOY)
        await service.resume(ended["checkpoint_id"], "yes")
        return ended, await service.execute(text=DEPLOY)

    ended, waits = serve(start)

    async def later(service: Service) -> None:
        assert await ids(service) == [waits["checkpoint_id"]]
        with pytest.raises(RequestError, match="not found or has expired") as refused:
            await service.resume(ended["checkpoint_id"], "no")
        assert refused.value.code == "unknown_checkpoint"
        assert "WORKFLOWS_LIMIT_CHECKPOINT_DAYS" in refused.value.hint
        with pytest.raises(RequestError, match="expired"):
            await service.resume(f"chk_{waits['workflow_id']}_2")
        assert (await service.resume(waits["checkpoint_id"], "yes"))["status"] == "success"

    serve(later, checkpoint_days=1e-9)


def test_an_unknown_checkpoint_is_refused_with_what_there_is(serve: Any, workspace: Path) -> None:
    (workspace / ".workflows" / "idle.yaml").write_text(TWO.replace("name: two", "name: idle"))

    async def work(service: Service) -> None:
        paused = await service.execute(text=DEPLOY)
        run_id = paused["workflow_id"]
        for wrong in (f"pause_{run_id}_1", f"pause_{run_id}_2.2", f"pause_{run_id}_7"):
            with pytest.raises(RequestError, match="was not found or has expired") as refused:
                await service.resume(wrong, "yes")
            assert refused.value.code == "unknown_checkpoint"
            assert refused.value.hint == f"the run {run_id} has: pause_{run_id}_2, chk_{run_id}_2"
        for wrong in (
            "pause_wf_nothing_2",
            "nonsense",
            "",
            "chk_",
            f"chk_{run_id}_2.2",
            f"pause_{run_id}_2.0",
        ):
            with pytest.raises(RequestError) as refused:
                await service.checkpoint_info(wrong)
            assert refused.value.code == "unknown_checkpoint"
            assert "list_checkpoints" in refused.value.hint
            with pytest.raises(RequestError):
                await service.resume(wrong, "yes")
        with pytest.raises(UnknownRun):
            await service.checkpoints(run_id="wf_nothing")
        with pytest.raises(UnknownWorkflow):
            await service.checkpoints(workflow="no-such-workflow")
        assert await service.checkpoints(workflow="idle") == {"checkpoints": []}
        assert len((await service.checkpoints(workflow="deploy"))["checkpoints"]) == 2

    serve(work)


def test_a_response_that_does_not_fit_changes_nothing_and_forks_nothing(serve: Any) -> None:
    async def work(service: Service) -> None:
        paused = await service.execute(text=DEPLOY)
        with pytest.raises(InvalidResult, match="'response' is missing"):
            await service.resume(paused["checkpoint_id"], {"answer": "yes"})
        await service.resume(paused["checkpoint_id"], "yes")
        with pytest.raises(InvalidResult, match="'response' is missing"):
            await service.resume(paused["checkpoint_id"], {"answer": "yes"})
        assert len(await service.recent()) == 1

    serve(work)


def test_the_question_of_a_run_that_was_cancelled_can_still_be_answered_in_a_new_run(serve: Any) -> None:
    async def work(service: Service) -> None:
        paused = await service.execute(text=DEPLOY)
        run_id = paused["workflow_id"]
        await service.cancel(run_id, reason="not now")
        ended = await service.resume(run_id)
        assert (ended["status"], ended["error"]) == ("failure", "cancelled: not now")
        assert await ids(service) == [f"pause_{run_id}_2", f"chk_{run_id}_2"]
        done = await service.resume(paused["checkpoint_id"], "yes")
        assert (done["status"], done["forked_from"]) == ("success", run_id)
        assert (await service.status(run_id))["status"] == "cancelled"

    serve(work)


def test_the_list_is_cut_and_says_so(serve: Any) -> None:
    async def work(service: Service) -> None:
        questions = [(await service.execute(text=DEPLOY))["checkpoint_id"] for _ in range(4)]
        listed = await service.checkpoints(limit=3)
        assert listed["more"] is True
        newest, older = questions[3], questions[2]
        assert [it["checkpoint_id"] for it in listed["checkpoints"]] == [
            newest,
            newest.replace("pause", "chk"),
            older,
        ]
        assert "more" not in await service.checkpoints(limit=8)
        of_one = await service.checkpoints(run_id=newest.removeprefix("pause_").rpartition("_")[0], limit=1)
        assert of_one["more"] is True

    serve(work)


def test_a_run_that_changed_last_comes_first_even_if_it_was_started_first(serve: Any) -> None:
    async def work(service: Service) -> None:
        old = await service.execute(text=DEPLOY)
        new = await service.execute(text=DEPLOY)
        await service.resume(old["checkpoint_id"], "yes")
        found = await ids(service)
        assert found[:2] == [f"chk_{old['workflow_id']}_{n}" for n in (5, 4)]
        assert found[3] == new["checkpoint_id"]

    serve(work)


def test_a_run_that_cannot_be_read_does_not_hide_the_checkpoints_of_others(
    serve: Any, settings: Settings
) -> None:
    async def start(service: Service) -> list[str]:
        return [(await service.execute(text=DEPLOY))["workflow_id"] for _ in range(2)]

    broken, whole = serve(start)
    connection = apsw.Connection(str(settings.store))
    connection.execute("DELETE FROM journal WHERE run = ? AND position = 0", (broken,))
    connection.close()

    async def look(service: Service) -> None:
        assert await ids(service) == [f"pause_{whole}_2", f"chk_{whole}_2"]
        with pytest.raises(StoreError, match=broken):
            await service.checkpoint_info(f"pause_{broken}_2")

    serve(look)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("chk_wf_1_12", CheckpointId("wf_1", 12)),
        ("pause_wf_1_12", CheckpointId("wf_1", 12, 1)),
        ("pause_wf_1_12.3", CheckpointId("wf_1", 12, 3)),
        ("pause_wf_1.child_2_7", CheckpointId("wf_1.child_2", 7, 1)),
        (" chk_wf_1_12 ", CheckpointId("wf_1", 12)),
        ("chk_wf_1_12.3", None),
        ("pause_wf_1_12.0", None),
        ("chk_wf_1_-1", None),
        ("wf_1", None),
        ("", None),
    ],
)
def test_ids_are_read_as_they_are_written(text: str, expected: CheckpointId | None) -> None:
    assert parse_checkpoint_id(text) == expected
    if expected is not None:
        assert str(expected) == text.strip()
        assert parse_checkpoint_id(str(expected)) == expected


def test_no_two_checkpoints_of_a_run_have_the_same_mark() -> None:
    marks = {CheckpointId("wf_1", position, number).mark for position in range(50) for number in range(50)}
    assert len(marks) == 2500
