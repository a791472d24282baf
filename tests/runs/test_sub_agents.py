"""Tasks handed to sub-agents, from YAML to answer, through the service on the embedded engine; several
processes may serve them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from support.clocked import Clocked, clocked_service
from support.rendered import Service
from support.sessions import steps
from workflows_mcp.errors import NotExpected, RequestError
from workflows_mcp.settings.model import Settings

REVIEW = """\
name: review
version: "1.0.0"
initial_state:
  files: [a.py, b.py, c.py]
steps:
  - id: look
    type: foreach
    needs_state: [files]
    items: "{{ state.files }}"
    agent: "@task"
    task: look_at
    output_to: notes
  - id: judge
    type: delegate
    needs_state: [notes]
    instructions: "sum up {{ state.notes | length }} notes"
    output_to: verdict
  - id: finish
    type: return
    needs_state: [notes, verdict]
    value: {notes: "{{ state.notes }}", verdict: "{{ state.verdict.response }}"}
tasks:
  look_at:
    inputs:
      path: {type: string, required: true}
    initial_state: {lines: 0}
    steps:
      - id: read
        type: delegate
        needs_state: []
        instructions: "read {{ inputs.path }}"
        output_to: content
      - id: count
        type: set_state
        needs_state: [content]
        updates: {lines: "{{ state.content.response | length }}"}
      - id: note
        type: delegate
        needs_state: [lines]
        instructions: "{{ state.lines }} characters: a note on them"
        output_to: note
      - id: back
        type: return
        needs_state: [lines, note]
        value: {path: "{{ inputs.path }}", lines: "{{ state.lines }}", note: "{{ state.note.response }}"}
"""
ONE_BY_ONE = REVIEW.replace("task: look_at\n", "task: look_at\n    sequential: true\n", 1)
WITHOUT_AGENT = REVIEW.replace('    agent: "@task"\n', "")


def play(directory: Path, scenario: Callable[[Clocked], Awaitable[None]]) -> None:
    async def go() -> None:
        async with clocked_service(directory) as clocked:
            await scenario(clocked)

    asyncio.run(asyncio.wait_for(go(), 30))


@pytest.fixture
def serve(settings: Settings) -> Callable[[Callable[[Service], Awaitable[None]]], None]:
    def go(work: Callable[[Service], Awaitable[None]]) -> None:
        async def session() -> None:
            async with Service.open(settings) as service:
                await work(service)

        asyncio.run(asyncio.wait_for(session(), 30))

    return go


async def sub_agent(service: Service, prompt: str, task: dict[str, Any]) -> dict[str, Any]:
    """Drives a task as the prompt says, and counts its calls."""
    filled = prompt.replace("{workflow_id}", task["workflow_id"]).replace("{input}", str(task["context"]))
    assert f"get_next_step(workflow_id='{task['workflow_id']}')" in filled
    calls = 1
    answer = await service.next_step(task["workflow_id"])
    while answer["status"] == "pending_action":
        action = answer["action"]
        result = {"response": f"done: {action['parameters']['instructions']}"}
        answer = await service.submit(task["workflow_id"], result, step_id=action["step_id"])
        calls += 1
    assert calls == 3  # one to begin with, and one for each step that is asked
    return answer


@pytest.mark.rows("S5", "S6", "S12")
def test_a_delegated_foreach_is_driven_by_sub_agents_and_goes_on_by_itself(serve: Any) -> None:
    async def work(service: Service) -> None:
        answer = await service.start(text=REVIEW)
        action, run_id = answer["action"], answer["workflow_id"]
        assert (action["step_id"], action["type"]) == ("look", "parallel_tasks")
        tasks = action["parameters"]["tasks"]
        waiting = asyncio.create_task(service.status(run_id, wait_seconds=30))
        ends = await asyncio.gather(
            *(sub_agent(service, action["sub_agent_prompt"], task) for task in reversed(tasks))
        )
        assert [end["status"] for end in ends] == ["completed"] * 3
        assert ends[-1]["result"] == {
            "path": "a.py",
            "lines": 15,
            "note": "done: 15 characters: a note on them",
        }
        await waiting
        answer = await service.status(run_id)
        assert answer["action"]["parameters"]["instructions"] == "sum up 3 notes"
        answer = await service.submit(run_id, "good")
        assert answer["status"] == "completed"
        assert [note["path"] for note in answer["result"]["notes"]] == ["a.py", "b.py", "c.py"]
        assert answer["result"]["verdict"] == "good"
        assert sorted(answer["state"]) == ["files", "notes", "verdict"]

    serve(work)


@pytest.mark.rows("S5", "S6")
def test_tasks_in_sequence_are_handed_out_one_after_the_other(serve: Any) -> None:
    async def work(service: Service) -> None:
        answer = await service.start(text=ONE_BY_ONE)
        handed_out = []
        while (action := answer["action"])["type"] == "foreach":
            (task,) = action["parameters"]["tasks"]
            handed_out.append(task["context"])
            await sub_agent(service, action["sub_agent_prompt"], task)
            answer = await service.status(answer["workflow_id"])
        assert handed_out == ["a.py", "b.py", "c.py"]
        assert answer["action"]["step_id"] == "judge"

    serve(work)


@pytest.mark.rows("S5")
def test_without_an_agent_all_steps_come_to_the_main_agent_with_the_ids_of_their_tasks(serve: Any) -> None:
    async def work(service: Service) -> None:
        answer = await service.start(text=WITHOUT_AGENT)
        run_id = answer["workflow_id"]
        seen = []
        while (action := answer["action"])["step_id"] != "judge":
            seen.append(action["step_id"])
            assert action["workflow_id"].startswith(f"{run_id}.look.")
            await service.submit(action["workflow_id"], "x", step_id=action["step_id"])
            answer = await service.status(run_id)
        assert sorted(seen) == sorted(f"look/{n}/{step}" for n in range(3) for step in ("read", "note"))

    serve(work)


def test_a_main_agent_that_waits_is_told_of_what_only_it_can_do(serve: Any) -> None:
    async def work(service: Service) -> None:
        answer = await service.start(text=REVIEW)
        run_id, tasks = answer["workflow_id"], answer["action"]["parameters"]["tasks"]
        for task in tasks:
            await service.next_step(run_id, task_id=task["task_id"])
        answer = await service.status(run_id)
        assert answer["status"] == "waiting"
        assert "action" not in answer
        assert "3 done, at work: 'look.0' since" in answer["why"]
        assert (await service.next_step(run_id))["action"]["step_id"] == "look"
        waiting = asyncio.create_task(service.status(run_id, wait_seconds=30))
        for task in tasks:
            assert not waiting.done()
            await service.submit(task["workflow_id"], "x")
            await service.submit(task["workflow_id"], "y")
        assert (await waiting)["action"]["step_id"] == "judge"

    serve(work)


def test_who_is_at_work_is_known_to_every_process_and_after_a_restart(settings: Settings) -> None:
    now = [time.time() + 1]

    def service_of() -> Service:
        return Service.open(settings, now=lambda: now[0])

    async def work() -> None:
        async with service_of() as first, service_of() as second:
            answer = await first.start(text=REVIEW)
            run_id = answer["workflow_id"]
            await second.next_step(f"{run_id}.look.1")
            tasks = (await first.next_step(run_id))["action"]["parameters"]["tasks"]
            assert [task["status"] for task in tasks] == ["waiting to start", "at work", "waiting to start"]
        now[0] += 301.0
        async with service_of() as third:
            answer = await third.status(run_id)
            assert "silent: 'look.1' since" in answer["why"]
            assert "silent for 5 min 1 s" in answer["action"]["parameters"]["tasks"][1]["status"]
            await third.next_step(f"{run_id}.look.1")  # another one takes over
            assert "at work: 'look.1'" in (await third.status(run_id))["why"]
            late = await third.submit(f"{run_id}.look.1", "late", step_id="read")  # the first one after all
            assert late["action"]["step_id"] == "note"
            with pytest.raises(NotExpected, match="with another result") as refused:
                await third.submit(f"{run_id}.look.1", "mine", step_id="read")
            assert '"step_id":"note"' in refused.value.hint

    asyncio.run(asyncio.wait_for(work(), 30))


def test_a_refused_answer_names_its_own_step_while_tasks_are_under_way(tmp_path: Path) -> None:
    text = REVIEW.replace(
        "steps:\n",
        "steps:\n  - {id: ask, type: delegate, needs_state: [], instructions: Ask, output_to: said}\n",
        1,
    )

    async def scenario(clocked: Clocked) -> None:
        service = clocked.service
        run_id = (await service.start(text=text))["workflow_id"]
        await service.submit(run_id, "one", step_id="ask")
        for step_id, standing in (
            ("ask", "it has been answered already, with another result"),
            ("judge", "it has not started yet"),
        ):
            with pytest.raises(NotExpected) as refused:
                await service.submit(run_id, "two", step_id=step_id)
            said = (
                f"'{step_id}' does not wait for an answer: {standing}. Now the run {run_id} takes no result"
            )
            assert str(refused.value).startswith(f"{said} for 'look': the sub-agents of its tasks submit")

    play(tmp_path, scenario)


def test_a_task_whose_agent_is_gone_is_handed_out_again_and_keeps_what_is_done_in_it(tmp_path: Path) -> None:
    async def scenario(clocked: Clocked) -> None:
        service, clock = clocked.service, clocked.clock
        run_id = (await service.start(text=REVIEW))["workflow_id"]
        for number in range(3):
            await service.next_step(f"{run_id}.look.{number}")
        await clock.advance(60)
        await service.submit(f"{run_id}.look.0", "text", step_id="read")

        waiting = (await service.plain.status(run_id)).rendered("status")
        assert waiting["status"] == "waiting"
        assert "(last called at" in waiting["why"]
        call = f"if its agent is gone: control_workflow(workflow_id='{run_id}.look.0', action='retry')"
        assert call in waiting["next"]
        tasks = (await service.next_step(run_id))["action"]["parameters"]["tasks"]
        assert tasks[0]["started_at"] == tasks[1]["started_at"] == tasks[1]["last_contact"]
        assert tasks[0]["last_contact"] > tasks[0]["started_at"]

        for _ in range(2):  # twice is harmless
            again = (await service.plain.retry(f"{run_id}.look.0")).rendered("step")
            assert (again["workflow_id"], again["status"]) == (run_id, "pending_action")
            action = again["action"]
            assert "{workflow_id}" in action["sub_agent_prompt"]
            assert "for each task that is not at work" in action["instructions"]
            assert [it.get("status") for it in action["parameters"]["tasks"]] == [None, "at work", "at work"]
        later = (await service.plain.status(run_id)).rendered("step")
        assert later["action"] == action, "also whoever looks later"

        another = await service.next_step(f"{run_id}.look.0")  # at the very same time
        assert another["action"]["step_id"] == "note", "what the first agent has done stays done"
        assert (await service.status(run_id))["status"] == "waiting"
        tasks = (await service.next_step(run_id))["action"]["parameters"]["tasks"]
        assert tasks[0]["started_at"] > tasks[1]["started_at"]

    play(tmp_path, scenario)


def test_with_a_task_the_tasks_inside_of_it_are_handed_out_again(tmp_path: Path) -> None:
    text = """
name: nested
initial_state: {}
tasks:
  inner: {inputs: {n: {type: integer}}, steps: [
    {id: ask, type: delegate, needs_state: [], instructions: "{{ inputs.n }}"}]}
  outer: {inputs: {n: {type: integer}}, steps: [
    {id: check, type: foreach, needs_state: [], items: [1, 2], task: inner, agent: "@task", output_to: a}]}
steps:
  - {id: review, type: foreach, needs_state: [], items: [1, 2], task: outer, agent: "@task", output_to: a}
"""

    async def scenario(clocked: Clocked) -> None:
        service = clocked.service
        run_id = (await service.start(text=text))["workflow_id"]
        first = f"{run_id}.review.0"
        for task in (first, f"{run_id}.review.1", f"{first}.check.0", f"{first}.check.1"):
            await service.next_step(task)
        inner = await service.retry(f"{first}.check.1")
        assert inner["workflow_id"] == first, "whose agent starts the one that is gone"
        assert [it["status"] for it in inner["action"]["parameters"]["tasks"]] == [
            "at work",
            "waiting to start",
        ]
        outer = await service.retry(first)
        assert outer["workflow_id"] == run_id
        inner = await service.next_step(first)
        assert {it["status"] for it in inner["action"]["parameters"]["tasks"]} == {"waiting to start"}

    play(tmp_path, scenario)


def test_a_task_without_an_agent_that_could_be_gone_is_not_handed_out_again(serve: Any) -> None:
    async def work(service: Service) -> None:
        run_id = (await service.start(text=WITHOUT_AGENT))["workflow_id"]
        with pytest.raises(RequestError, match="has no agent of its own"):
            await service.retry(f"{run_id}.look.0")
        run_id = (await service.start(text=REVIEW))["workflow_id"]
        await service.submit(f"{run_id}.look.0", "text", step_id="read")
        await service.submit(f"{run_id}.look.0", "text", step_id="note")
        with pytest.raises(RequestError, match="has ended, so no agent is needed") as refused:
            await service.retry(f"{run_id}.look.0")
        assert "action='fork'" in refused.value.hint
        await service.cancel(run_id)
        with pytest.raises(RequestError, match="it is cancelled") as refused:
            await service.retry(f"{run_id}.look.1")
        assert f"control_workflow(workflow_id='{run_id}', action='retry')" in refused.value.hint

    serve(work)


def test_who_submits_a_result_is_at_work_too(serve: Any) -> None:
    async def work(service: Service) -> None:
        run_id = (await service.start(text=REVIEW))["workflow_id"]
        await service.submit(f"{run_id}.look.0", "text", step_id="read")
        await service.status(f"{run_id}.look.1")  # whoever only looks is not at work
        assert "to be started: 'look.1', 'look.2', at work: 'look.0'" in (await service.status(run_id))["why"]

    serve(work)


def test_submitting_twice_and_acknowledging_what_takes_no_result_is_harmless(serve: Any) -> None:
    async def work(service: Service) -> None:
        answer = await service.start(text=REVIEW)
        run_id = answer["workflow_id"]
        task = f"{run_id}.look.0"
        for _ in range(2):
            answer = await service.submit(task, "text", step_id="read")
            assert answer["action"]["step_id"] == "note"
        answer = await service.submit(task, {"acknowledged": True}, step_id="count")
        assert answer["action"]["step_id"] == "note"
        assert (await service.submit(run_id, {}, step_id="look"))["action"]["step_id"] == "look"
        assert (await service.submit(run_id, {}))["action"]["step_id"] == "look"
        with pytest.raises(NotExpected, match="the sub-agents of its tasks submit theirs") as refused:
            await service.submit(run_id, {"results": [1, 2, 3]}, step_id="look")
        assert "get_workflow_status(" in refused.value.hint
        assert "sub_agent_prompt" not in refused.value.hint, "it may be a sub-agent who asks"
        await service.submit(task, "a note", step_id="note")
        answer = await service.submit(task, {"acknowledged": True}, step_id="back")
        assert (answer["status"], answer["result"]["note"]) == ("completed", "a note")

    serve(work)


def test_whatever_takes_the_id_of_a_run_takes_that_of_a_task(serve: Any) -> None:
    async def work(service: Service) -> None:
        run_id = (await service.start(text=REVIEW))["workflow_id"]
        task = f"{run_id}.look.2"
        assert (await service.status(task))["action"]["step_id"] == "read"
        state = await service.state(task)
        assert (state["inputs"], state["state"]) == ({"path": "c.py"}, {"lines": 0})
        assert (await service.state(task, paths=["item"]))["values"] == {"item": "c.py"}
        with pytest.raises(RequestError, match="a task cannot be cancelled alone") as refused:
            await service.cancel(task)
        assert run_id in refused.value.hint
        with pytest.raises(RequestError, match="has no task") as refused:
            await service.next_step(f"{run_id}.lokk.2")
        assert "workflow_id of the task exactly as it was given" in refused.value.hint
        assert task not in str(refused.value), "that may be the task of another agent"
        await service.cancel(run_id)
        assert (await service.status(task))["status"] == "cancelled"

    serve(work)


@pytest.mark.rows("S12")
def test_the_words_of_the_toolset_stateful_say_the_same_flat(serve: Any) -> None:
    async def work(service: Service) -> None:
        run_id = (await service.start(text=REVIEW))["workflow_id"]
        task = f"{run_id}.look.0"
        step = await service.step(task)
        assert (step["step_id"], step["type"], step["instructions"]) == ("read", "delegate", "read a.py")
        step = await service.submit_step(task, "abc", step_id="read")
        assert (step["step_id"], step["instructions"]) == ("note", "3 characters: a note on them")
        step = await service.submit_step(task, "short", step_id="note")
        assert step["status"] == "complete"
        assert step["final_result"] == {"path": "a.py", "lines": 3, "note": "short"}
        assert (await service.step(task))["status"] == "complete"

    serve(work)


def test_the_toolset_graph_asks_what_tasks_ask_like_everything_else(serve: Any) -> None:
    async def work(service: Service) -> None:
        answer = await service.execute(text=REVIEW)
        assert len(answer["more_prompts"]) == 2
        asked = 0
        while answer["status"] == "paused":
            asked += 1
            answer = await service.resume(answer["checkpoint_id"], "zz")
        assert (answer["status"], asked) == ("success", 7)
        assert answer["outputs"]["result"]["verdict"] == "zz"

    serve(work)


AGAIN = """\
name: again
version: "1.0.0"
steps:
  - {id: each, type: foreach, needs_state: [], items: "{{ ['x'] }}", agent: "@task", task: one, output_to: got}
  - {id: back, type: goto, target: each, max_iterations: 1, on_limit: continue}
tasks:
  one:
    inputs: {what: {type: string, required: true}}
    steps:
      - {id: do, type: delegate, needs_state: [], instructions: "do {{ inputs.what }}", output_to: done}
"""


def test_the_agent_of_a_task_whose_step_is_come_to_again_is_told_that_it_is_done(serve: Any) -> None:
    async def work(service: Service) -> None:
        run_id = (await service.start(text=AGAIN))["workflow_id"]
        task = f"{run_id}.each.0"
        answer = await service.submit(task, "first", step_id="do")
        assert answer["status"] == "completed"
        assert (await service.next_step(task))["status"] == "completed"
        assert (await service.step(task))["status"] == "complete"
        late = await service.submit(task, "late", step_id="do")
        assert (late["status"], "is over" in late["why"]) == ("completed", True)
        tasks = (await service.status(run_id))["action"]["parameters"]["tasks"]
        assert [it["workflow_id"] for it in tasks] == [f"{run_id}.each@2.0"]
        await service.submit(tasks[0]["workflow_id"], "second")
        assert (await service.status(run_id))["status"] == "completed"

    serve(work)


def test_a_crash_loses_nothing_that_a_sub_agent_has_submitted(settings: Settings, workspace: Path) -> None:
    async def begin() -> str:
        async with Service.open(settings) as service:
            run_id: str = (await service.start(text=REVIEW))["workflow_id"]
            await service.submit(f"{run_id}.look.1", "kept", step_id="read")
            return run_id

    async def go_on(run_id: str) -> None:
        async with Service.open(settings) as service:
            answer = await service.next_step(f"{run_id}.look.1")
            assert answer["action"]["parameters"]["instructions"] == "4 characters: a note on them"
            assert (await service.next_step(f"{run_id}.look.0"))["action"]["step_id"] == "read"

    asyncio.run(go_on(asyncio.run(begin())))


def test_an_agent_that_carries_out_tasks_itself_hears_what_is_next_in_the_run(serve: Any) -> None:
    text = """
name: own
version: "1"
steps:
  - {id: each, type: foreach, needs_state: [], items: [1, 2], task: one, output_to: out}
  - {id: end, type: return, needs_state: [out], value: "{{ state.out }}"}
tasks:
  one:
    inputs: {n: number}
    steps:
      - {id: do, type: delegate, needs_state: [], instructions: "{{ inputs.n }}", output_to: said}
      - {id: back, type: return, needs_state: [said], value: "{{ state.said.response }}"}
"""

    async def work(service: Service) -> None:
        answer = await service.start(text=text)
        calls = 1
        while answer["status"] == "pending_action":
            action = answer["action"]
            answer = await service.submit(action["workflow_id"], "done", step_id=action["step_id"])
            calls += 1
        assert (answer["result"], calls) == (["done", "done"], 3)  # one call a step

    serve(work)


NESTED = steps(
    "{id: each, type: foreach, agent: '@task', needs_state: [], items: [1, 2], task: outer, output_to: all}",
    rest="""tasks:
  outer:
    inputs: {n: number}
    steps:
      - {id: inner, type: foreach, needs_state: [], items: [7], task: leaf, output_to: got}
      - {id: back, type: return, needs_state: [got], value: "{{ state.got }}"}
  leaf:
    inputs: {n: number}
    steps:
      - {id: do, type: delegate, needs_state: [], instructions: "{{ inputs.n }}", output_to: said}
      - {id: back, type: return, needs_state: [said], value: "{{ state.said.response }}"}
""",
)


@pytest.mark.rows("S12")
def test_the_ids_of_a_nested_action_are_taken_together(serve: Any) -> None:
    async def work(service: Service) -> None:
        run_id = (await service.start(text=NESTED))["workflow_id"]
        for number in (0, 1):
            action = (await service.next_step(f"{run_id}.each.{number}"))["action"]
            assert action["workflow_id"] == f"{run_id}.each.{number}.inner.0"
            await service.submit(action["workflow_id"], "done", step_id=action["step_id"])
        answer = await service.status(run_id)
        assert (answer["status"], answer["state"]["all"]) == ("completed", [["done"], ["done"]])

    serve(work)


@pytest.mark.rows("S12")
def test_a_sub_agent_that_names_the_run_is_not_told_to_start_sub_agents(serve: Any) -> None:
    async def work(service: Service) -> None:
        run_id = (await service.start(text=REVIEW))["workflow_id"]
        with pytest.raises(NotExpected) as refused:
            await service.submit(run_id, "a note", step_id="note")
        said = f"{refused.value.message} {refused.value.hint}"
        assert "the workflow_id of that task, as its prompt says" in said
        assert "Start exactly one sub-agent" not in said
        with pytest.raises(NotExpected) as refused:
            await service.step_protocol.complete_step(run_id, "note", result="a note")
        assert "Start exactly one sub-agent" not in f"{refused.value.message} {refused.value.hint}"

    serve(work)
