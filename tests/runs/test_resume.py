"""Runs that are gone on with in another conversation: those that failed as their `on_resume` says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from support.rendered import Service
from workflows_mcp.settings.model import Settings

Work = Callable[[Service], Awaitable[None]]


@pytest.fixture
def serve(settings: Settings) -> Callable[[Work], None]:
    def go(work: Work) -> None:
        async def session() -> None:
            async with Service.open(settings) as service:
                await work(service)

        asyncio.run(asyncio.wait_for(session(), 30))

    return go


@pytest.fixture
def define(workspace: Path) -> Callable[[str, str], None]:
    def write(name: str, text: str) -> None:
        (workspace / ".workflows" / f"{name}.yaml").write_text(text)

    return write


FLOW = """
name: flow
inputs: {who: {type: string, default: Ada}}
default_state: {raw: {runs: 0, errors: []}}
error_handling:
  error_collection: {enabled: true, state_path: raw.errors}
ON_RESUME
steps:
  - {id: ask, type: user_input, prompt: Name?, state_update: {path: raw.name}}
  - id: count
    type: shell_command
    command: "echo x >> counted; wc -l < counted"
    output_format: json
    state_update: {path: raw.runs}
  - id: build
    type: shell_command
    command: "test -f ready && printf built"
    state_update: {path: raw.built}
  - {id: confirm, type: user_input, prompt: Fine?, state_update: {path: raw.fine}}
"""


async def failed_run(service: Service) -> str:
    started = await service.step_protocol.start("flow", {"who": "Grace"}, 10)
    run_id: str = started["workflow_id"]
    done = await service.step_protocol.complete_step(run_id, "ask", result="Lin", wait_seconds=10)
    assert (done["step"], done["status"]) == (None, "failed")
    assert done["error"]["block"] == "build"
    return run_id


@pytest.mark.rows("R18", "R22", "R19")
def test_a_failed_run_goes_on_from_the_step_that_failed(serve: Any, define: Any, workspace: Path) -> None:
    define("flow", FLOW.replace("ON_RESUME", ""))

    async def work(service: Service) -> None:
        run_id = await failed_run(service)
        (workspace / "ready").write_text("")
        resumed = await service.step_protocol.resume(run_id, 10)
        assert resumed["resumed_from"] == run_id != resumed["workflow_id"]
        assert resumed["step"]["id"] == "confirm"
        state = resumed["state"]
        assert (state["who"], state["name"], state["runs"]) == ("Grace", "Lin", 1)
        assert state["built"] == "built"
        again = await service.step_protocol.resume(run_id, 10)
        assert again["workflow_id"] == resumed["workflow_id"]
        assert (workspace / "counted").read_text() == "x\n"
        old = await service.step_protocol.complete(run_id, "failed")
        assert old["success"] is True

    serve(work)


@pytest.mark.rows("R18")
def test_resuming_a_run_that_failed_twice_goes_on_from_its_second_failure(
    serve: Any, define: Any, workspace: Path
) -> None:
    define("flow", FLOW.replace("ON_RESUME", ""))

    async def work(service: Service) -> None:
        run_id = await failed_run(service)
        second = await service.step_protocol.resume(run_id, 10)
        while second["status"] == "running":
            second = await service.step_protocol.resume(run_id, 10)
        assert second["status"] == "failed"
        (workspace / "ready").write_text("")
        third = await service.step_protocol.resume(run_id, 10)
        assert third["workflow_id"] not in (run_id, second["workflow_id"])
        assert third["step"]["id"] == "confirm"

    serve(work)


@pytest.mark.rows("R18")
def test_the_errors_of_a_failed_run_can_be_left_behind(serve: Any, define: Any, workspace: Path) -> None:
    # the step before it failed as well, and was put up with: that error is part of what is gone on from
    text = FLOW.replace("ON_RESUME", "on_resume: {reset_error_counts: true}").replace(
        "  - id: count\n",
        "  - {id: pre, type: shell_command, command: 'false', on_error: continue}\n  - id: count\n",
    )
    define("flow", text)

    async def work(service: Service) -> None:
        run_id = await failed_run(service)
        assert len((await service.step_protocol.read(run_id, (), None))["errors"]) == 2
        (workspace / "ready").write_text("")
        resumed = await service.step_protocol.resume(run_id, 10)
        assert resumed["step"]["id"] == "confirm"
        assert (await service.step_protocol.read(resumed["workflow_id"], (), None))["errors"] == []
        events = (await service.inspector.journal(resumed["workflow_id"]))["events"]
        kinds = [event["event"] for event in events]
        assert kinds.index("updated") < kinds.index("forked"), "before the new run takes its first step"
        await service.step_protocol.resume(run_id, 10)  # nothing more is forgotten by asking again
        assert (await service.step_protocol.read(run_id, ("errors[0].step",), None)) == {
            "errors[0].step": "pre"
        }

    serve(work)


@pytest.mark.rows("R18")
def test_a_failed_run_can_begin_again_from_the_start(serve: Any, define: Any) -> None:
    define("flow", FLOW.replace("ON_RESUME", "on_resume: {skip_completed_steps: false}"))

    async def work(service: Service) -> None:
        run_id = await failed_run(service)
        resumed = await service.step_protocol.resume(run_id, 10)
        assert resumed["resumed_from"] == run_id != resumed["workflow_id"]
        assert resumed["step"]["id"] == "ask"
        assert resumed["state"] == {"who": "Grace", "runs": 0, "errors": []}
        assert (await service.step_protocol.resume(run_id, 10))["workflow_id"] == resumed["workflow_id"]

    serve(work)


@pytest.mark.rows("R18")
def test_a_failed_run_can_stay_failed(serve: Any, define: Any) -> None:
    define("flow", FLOW.replace("ON_RESUME", "on_resume: {retry_failed_steps: false}"))

    async def work(service: Service) -> None:
        run_id = await failed_run(service)
        resumed = await service.step_protocol.resume(run_id, 10)
        assert (resumed["workflow_id"], resumed["step"], resumed["status"]) == (run_id, None, "failed")
        assert "resumed_from" not in resumed
        assert resumed["error"]["block"] == "build"

    serve(work)


@pytest.mark.rows("R18")
def test_steps_for_the_case_of_failure_are_not_what_is_gone_on_from(
    serve: Any, define: Any, workspace: Path
) -> None:
    define(
        "flow",
        FLOW.replace("ON_RESUME", "").replace(
            "error_handling:\n",
            "error_handling:\n  on_failure: [{id: sorry, type: user_message, message: 'Sorry'}]\n",
        ),
    )

    async def work(service: Service) -> None:
        run_id = await failed_run(service)
        (workspace / "ready").write_text("")
        resumed = await service.step_protocol.resume(run_id, 10)
        assert (resumed["step"]["id"], resumed["messages"]) == ("confirm", [])

    serve(work)


@pytest.mark.rows("R18", "R16")
def test_where_tasks_failed_it_goes_back_to_before_the_first_of_them(serve: Any, define: Any) -> None:
    define(
        "flow",
        """
name: flow
default_state: {raw: {results: {}}}
steps:
  - {id: work, type: parallel_foreach, items: [{id: a}, {id: b}, {id: c}], sub_agent_task: one}
sub_agent_tasks:
  one:
    steps: [{id: do, type: mcp_call, method: do, state_update: {path: "raw.results.{{ task_id }}"}}]
""",
    )

    async def work(service: Service) -> None:
        stepping = service.step_protocol
        run_id = (await stepping.start("flow", None, 10))["workflow_id"]

        async def do(run: str, task: str, **how: Any) -> None:
            await stepping.next_step(run, task, 0)
            await stepping.complete_step(run, "do", task_id=task, **how)

        await do(run_id, "a", result=1)
        await do(run_id, "b", status="failed", error="b broke")
        await do(run_id, "c", status="failed", error="c broke")
        assert (await stepping.next_step(run_id, None, 0))["status"] == "failed"
        resumed = await stepping.resume(run_id, 10)
        new = resumed["workflow_id"]
        assert resumed["state"] == {"results": {"a": 1}}
        assert [task["task_id"] for task in resumed["step"]["definition"]["tasks"]] == ["b", "c"]
        for task in ("b", "c"):
            await do(new, task, result=2)
        assert (await stepping.complete(new, "success"))["final_state"] == {
            "results": {"a": 1, "b": 2, "c": 2}
        }

    serve(work)


@pytest.mark.rows("R18")
def test_a_run_that_could_not_even_begin_begins_again(serve: Any, define: Any) -> None:
    define(
        "flow",
        """
name: flow
inputs: {size: {type: integer, default: 1}}
default_state: {raw: {first: "{{ null.x }}"}}
steps: [{type: user_message, message: hello}]
""",
    )

    async def work(service: Service) -> None:
        started = await service.step_protocol.start("flow", None, 10)
        assert (started["status"], started["step"], started["state"]) == ("failed", None, {})
        resumed = await service.step_protocol.resume(started["workflow_id"], 10)
        assert resumed["status"] == "failed"
        assert resumed["resumed_from"] == started["workflow_id"]

    serve(work)


@pytest.mark.rows("R22")
def test_a_checkpoint_is_one_of_those_that_the_other_tools_know(
    serve: Any, define: Any, workspace: Path
) -> None:
    define("flow", FLOW.replace("ON_RESUME", ""))

    async def work(service: Service) -> None:
        (workspace / "ready").write_text("")
        run_id = (await service.step_protocol.start("flow", None, 10))["workflow_id"]
        made = await service.step_protocol.checkpoint(run_id, "before the name", None)
        listed = (await service.checkpoints(run_id=run_id))["checkpoints"]
        [found] = [it for it in listed if it["checkpoint_id"] == made["checkpoint_id"]]
        assert found["reason"] == "before the name"
        await service.step_protocol.complete_step(run_id, "ask", result="Lin", wait_seconds=10)
        forked = await service.resume(made["checkpoint_id"])
        assert (forked["status"], forked["forked_from"], forked["prompt"]) == ("paused", run_id, "Name?")

    serve(work)


def test_a_retry_and_a_resume_of_one_failed_run_give_the_same_run(
    serve: Any, define: Any, workspace: Path
) -> None:
    define("flow", FLOW.replace("ON_RESUME", ""))

    async def work(service: Service) -> None:
        run_id = await failed_run(service)
        (workspace / "ready").touch()
        resumed = await service.step_protocol.resume(run_id, 10)
        retried = await service.retry(run_id, wait_seconds=10)
        assert retried["workflow_id"] == resumed["workflow_id"] != run_id
        assert f"was continued before, as {resumed['workflow_id']}" in retried["messages"][0]
        assert len(await service.recent()) == 2
        again = await service.step_protocol.resume(run_id, 0)
        assert again["workflow_id"] == resumed["workflow_id"]

    serve(work)
