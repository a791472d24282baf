"""Tasks of a run: their ids, what is asked of whom, and who is taken to be at work."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from support.plans import Branch, Jump, Return, SetState, Wait, expr
from support.stateful import ask, bundle_of, foreach, research, sequence, step
from support.steps import registry_of
from workflows_mcp.answers.actions import actions_of
from workflows_mcp.answers.answer import answer_about
from workflows_mcp.answers.results import already_answered, check_result, is_harmless
from workflows_mcp.answers.run_view import RunView, run_view_of, target_of
from workflows_mcp.answers.state import snapshot_of, state_of
from workflows_mcp.answers.tasks import joined, run_of
from workflows_mcp.errors import InvalidResult, NotExpected, RequestError
from workflows_mcp.limits import Limits
from workflows_mcp.machine.events import Answered, CancelRequested, Started, TimerFired
from workflows_mcp.machine.machine import Machine
from workflows_mcp.mcp_server.compat.stateful import as_step
from workflows_mcp.plan.model import Plan

REGISTRY = registry_of()
LIMITS = Limits()
START = 1000.0


def run_of_plan(plan: Plan) -> Machine:
    machine = Machine(bundle_of(plan))
    limits: dict[str, int | float] = {"pending_actions": 1000, "parallel_children": 1000}
    machine.apply(Started(START, "wf_1", {}, limits=limits))
    return machine


def answered(machine: Machine, address: str, response: str = "yes", *, at: float = START + 1) -> None:
    machine.refuse_unexpected(event := Answered(at, address, {"response": response}))
    machine.apply(event)


def look(
    machine: Machine,
    workflow_id: str = "wf_1",
    *,
    at: float = START + 10,
    last_seen: dict[str, float] | None = None,
) -> RunView:
    target = target_of(machine, workflow_id)
    return run_view_of(machine, now=at, target=target, last_seen=last_seen or {}, limits=LIMITS)


def answer(machine: Machine, workflow_id: str = "wf_1", **how: Any) -> dict[str, Any]:
    at_work = how.pop("at_work", False)
    situation = look(machine, workflow_id, **how)
    found = answer_about(situation, REGISTRY, LIMITS, place=lambda fault: None, at_work=at_work)
    return found.rendered()


def state_in(view: RunView, **asked: Any) -> dict[str, Any]:
    return state_of(view, snapshot_of(view), REGISTRY, LIMITS, **asked)


def submit(
    machine: Machine, workflow_id: str, result: Any, step_id: str | None = None, at: float = 1002.0
) -> str:
    """The address of the step that was answered."""
    target = target_of(machine, workflow_id)
    address, step_result = check_result(
        run_view_of(machine, now=at, target=target), REGISTRY, step_id, result
    )
    machine.apply(Answered(at, address, step_result.outputs))
    return address


# Ids


def test_a_task_is_known_by_its_run_its_step_and_its_item() -> None:
    machine = run_of_plan(research())
    task = target_of(machine, "wf_1.each.1")
    assert (task.run_id, task.address) == ("wf_1", "each/1")
    assert run_of("wf_1.each.1") == run_of("wf_1") == "wf_1"
    assert target_of(machine, "wf_1").is_run


def test_a_task_can_be_named_as_seen_from_its_run() -> None:
    assert joined("wf_1", "each.1") == joined("wf_1", "wf_1.each.1") == "wf_1.each.1"
    assert joined("wf_1.each.1", "more.0") == "wf_1.each.1.more.0"
    assert joined("wf_1", None) == joined("wf_1", "wf_1") == "wf_1"


@pytest.mark.parametrize(
    "wrong", ["wf_1.each", "wf_1.each.2", "wf_1.eahc.0", "wf_1.each.0.read", "wf_1.each@2.0"]
)
def test_an_unknown_task_is_refused_without_naming_the_tasks_of_other_agents(wrong: str) -> None:
    machine = run_of_plan(research())
    with pytest.raises(RequestError, match="no task") as refused:
        target_of(machine, wrong)
    assert refused.value.code == "unknown_task"
    assert refused.value.hint == "use the workflow_id of the task exactly as it was given"


def test_a_run_without_tasks_says_so() -> None:
    machine = run_of_plan(sequence("plain", ask("one")))
    with pytest.raises(RequestError) as refused:
        target_of(machine, "wf_1.each.0")
    assert refused.value.hint == "it has no tasks now"


# What the agent of the run is handed


@pytest.mark.rows("S6")
def test_a_delegated_step_is_one_action_with_its_tasks_and_one_prompt_for_all_of_them() -> None:
    said = answer(run_of_plan(research()))
    action = said["action"]
    assert said["status"] == "pending_action"
    assert "more_actions" not in said
    assert (action["step_id"], action["type"]) == ("each", "parallel_tasks")
    assert "result_schema" not in action
    assert action["parameters"] == {
        "agent": "@task",
        "task": "look_up",
        "tasks": [
            {
                "task_id": f"each.{index}",
                "workflow_id": f"wf_1.each.{index}",
                "context": topic,
                "status": "waiting to start",
            }
            for index, topic in enumerate(["ants", "bees"])
        ],
    }
    prompt = action["sub_agent_prompt"]
    assert prompt.startswith("You do one task of a workflow.\n\n<workflow-server-rules>")
    assert "Task: look_up" in prompt
    assert "{workflow_id}" in prompt
    assert "{input}" in prompt
    assert "wf_1" not in prompt
    assert said["next"].startswith("when the sub-agents have ended: get_workflow_status(workflow_id='wf_1')")
    assert said["why"] == ("waiting for the tasks of 'each': 0 of 2 done, to be started: 'each.0', 'each.1'")


def test_an_agent_of_a_kind_is_named_in_the_instructions() -> None:
    said = answer(run_of_plan(research(agent="@bug-hunter")))
    assert "of the kind @bug-hunter" in said["action"]["instructions"]
    assert said["action"]["parameters"]["agent"] == "@bug-hunter"


@pytest.mark.rows("S5")
def test_tasks_one_at_a_time_are_handed_out_as_others_end() -> None:
    machine = run_of_plan(research(at_once=1))
    said = answer(machine)
    assert said["action"]["type"] == "foreach"
    assert [task["task_id"] for task in said["action"]["parameters"]["tasks"]] == ["each.0"]
    assert said["progress"]["loop"] == "0 of 2 items of 'each' done"
    answered(machine, "each/0/read")
    answered(machine, "each/0/judge")
    said = answer(machine)
    assert [task["task_id"] for task in said["action"]["parameters"]["tasks"]] == ["each.1"]
    assert said["progress"]["loop"] == "1 of 2 items of 'each' done"


def test_a_task_whose_turn_has_not_come_says_so() -> None:
    said = answer(run_of_plan(research(at_once=1)), "wf_1.each.1")
    assert (said["status"], said["why"]) == (
        "waiting",
        "waiting for its turn: it comes when other tasks have ended",
    )


def test_when_all_tasks_are_done_the_run_goes_on_by_itself_with_what_they_returned() -> None:
    machine = run_of_plan(research())
    for address in ("each/1/read", "each/1/judge", "each/0/read", "each/0/judge"):
        answered(machine, address, at=1003.0)
    assert answer(machine)["action"]["step_id"] == "review"
    answered(machine, "review", at=1004.0)
    said = answer(machine)
    assert said["status"] == "completed"
    assert said["result"] == [
        {"topic": "ants", "found": "yes!"},
        {"topic": "bees", "found": "yes!"},
    ]
    assert said["state"]["review"] == "yes"
    assert said["state"]["each"] == said["result"]
    assert said["progress"] == {"done": 3, "total": 3}
    assert "outputs" not in said
    assert "why" not in said


def test_nothing_is_submitted_for_the_tasks_by_whoever_starts_their_agents() -> None:
    machine = run_of_plan(research())
    for step_id in (None, "each"):
        with pytest.raises(NotExpected, match="sub-agents of its tasks submit theirs") as refused:
            submit(machine, "wf_1", {"results": []}, step_id)
        assert "get_workflow_status(workflow_id='wf_1')" in refused.value.hint
        run = target_of(machine, "wf_1")
        assert is_harmless(run_view_of(machine, target=run), step_id, {})
        assert is_harmless(run_view_of(machine, target=run), step_id, {"acknowledged": True})
        assert not is_harmless(run_view_of(machine, target=run), step_id, {"results": []})


def test_a_client_without_sub_agents_is_asked_all_of_it() -> None:
    machine = run_of_plan(research())
    alone = run_view_of(machine, now=1001.0, alone=True)
    said = answer_about(alone, REGISTRY, LIMITS, place=lambda fault: None)
    assert [it.step_id for it in said.actions] == ["each/0/read", "each/1/read"]
    assert submit(machine, "wf_1", "mine", "each/0/read") == "each/0/read"


# What the agent of a task is handed


@pytest.mark.rows("S6", "S12")
def test_a_task_looks_like_a_run_to_its_agent() -> None:
    machine = run_of_plan(research())
    said = answer(machine, "wf_1.each.0")
    assert said["workflow_id"] == "wf_1.each.0"
    assert said["workflow"] == "research#look_up"
    assert said["action"]["step_id"] == "read"
    assert "more_actions" not in said
    assert said["action"]["parameters"] == {"prompt": "what of ants?"}
    assert said["progress"] == {"done": 0, "total": 4}
    assert said["why"] == "waiting for your answer to 'read' since 00:16:40Z"
    assert submit(machine, "wf_1.each.0", "many legs", "read") == "each/0/read"
    said = answer(machine, "wf_1.each.0")
    assert said["action"]["step_id"] == "judge"
    assert said["progress"] == {"done": 2, "total": 4}
    assert submit(machine, "wf_1.each.0", "yes") == "each/0/judge"
    said = answer(machine, "wf_1.each.0")
    assert said == {
        "workflow_id": "wf_1.each.0",
        "workflow": "research#look_up",
        "status": "completed",
        "progress": {"done": 4, "total": 4},
        "result": {"topic": "ants", "found": "many legs!"},
        "next": "nothing: reply with the status",
    }


def test_steps_of_a_task_can_be_named_from_the_run_as_well() -> None:
    machine = run_of_plan(research())
    assert submit(machine, "wf_1.each.1", "here", "each/1/read") == "each/1/read"
    assert submit(machine, "wf_1", "there", "each/1/judge") == "each/1/judge"


def test_the_agent_of_a_task_cannot_answer_for_another_one() -> None:
    machine = run_of_plan(research())
    with pytest.raises(NotExpected, match="the task has no such step"):
        submit(machine, "wf_1.each.0", "x", "each/1/read")
    with pytest.raises(InvalidResult, match="what 'read' asks for"):
        submit(machine, "wf_1.each.0", {"wrong": 1}, "read")


def test_an_answer_that_comes_twice_is_harmless_and_another_one_is_refused_with_what_is_asked() -> None:
    machine = run_of_plan(research())
    submit(machine, "wf_1.each.0", "first", "read")
    task = target_of(machine, "wf_1.each.0")
    assert already_answered(run_view_of(machine, target=task), REGISTRY, "read", "first")
    assert not already_answered(run_view_of(machine, target=task), REGISTRY, "read", "second")
    assert not already_answered(
        run_view_of(machine, target=task), REGISTRY, None, "first"
    )  # something else is asked now
    with pytest.raises(NotExpected, match="answered already, with another result") as refused:
        submit(machine, "wf_1.each.0", "second", "read")
    assert refused.value.hint == "pending now: 'judge'"


def test_the_last_answer_of_the_main_agent_is_its_own_also_while_sub_agents_answer() -> None:
    task = research().tasks[0]
    steps = (ask("start"), foreach("each", "research#look_up", ["ants"]))
    machine = run_of_plan(sequence("research", *steps, tasks=(task,)))
    run = target_of(machine, "wf_1")
    submit(machine, "wf_1", "go", at=1001.0)
    assert already_answered(run_view_of(machine, target=run), REGISTRY, None, "go")
    submit(machine, "wf_1.each.0", "sub", at=1002.0)
    assert already_answered(run_view_of(machine, target=run), REGISTRY, None, "go")
    assert not already_answered(run_view_of(machine, target=run), REGISTRY, None, "sub")


def test_after_the_end_of_a_task_its_last_answer_may_come_again() -> None:
    machine = run_of_plan(research())
    submit(machine, "wf_1.each.0", "a", "read")
    submit(machine, "wf_1.each.0", "b", "judge")
    task = target_of(machine, "wf_1.each.0")
    assert already_answered(run_view_of(machine, target=task), REGISTRY, None, "b")
    assert not already_answered(run_view_of(machine, target=task), REGISTRY, None, "a")
    with pytest.raises(NotExpected, match=r"the task wf_1\.each\.0 has ended: it is completed"):
        submit(machine, "wf_1.each.0", "c", "judge")


@pytest.mark.parametrize("step_id", ["keep", "back"])
def test_acknowledging_a_step_that_the_server_has_carried_out_is_harmless(step_id: str) -> None:
    machine = run_of_plan(research())
    task = target_of(machine, "wf_1.each.0")
    assert not is_harmless(
        run_view_of(machine, target=task), step_id, {"acknowledged": True}
    )  # it has not been come to
    submit(machine, "wf_1.each.0", "a", "read")
    submit(machine, "wf_1.each.0", "b", "judge")
    for acknowledgement in ({"acknowledged": True}, {}, True, None, "ok"):
        assert is_harmless(run_view_of(machine, target=task), step_id, acknowledgement)
    assert not is_harmless(run_view_of(machine, target=task), step_id, {"stdout": "work"})
    assert not is_harmless(run_view_of(machine, target=task), "read", {})


def test_state_of_a_task_is_its_own() -> None:
    machine = run_of_plan(research())
    submit(machine, "wf_1.each.0", "legs", "read")
    state = state_in(look(machine, "wf_1.each.0"))
    assert (state["workflow_id"], state["status"]) == ("wf_1.each.0", "pending_action")
    assert state["inputs"] == {"topic": "ants"}
    assert state["state"] == {"seen": "legs!", "read": "legs"}
    assert list(state["blocks"]) == ["read", "keep", "judge", "back"]
    assert "result" not in state
    paths = ["state.seen", "item", "actions.judge.parameters.prompt", "metadata.workflow_id"]
    values = state_in(look(machine, "wf_1.each.0"), paths=paths)["values"]
    assert list(values.values()) == ["legs!", "ants", "is 'legs!' right?", "wf_1.each.0"]


def test_a_failed_task_says_why_and_where_and_so_does_the_run() -> None:
    broken = sequence("w#t", ask("one"), step("two", SetState({"x": "{{ state.nothing }}"})))
    machine = run_of_plan(sequence("w", foreach("each", "w#t", [1, 2]), tasks=(broken,)))
    answered(machine, "each/0/one")
    said = answer(machine, "wf_1.each.0")
    assert (said["status"], said["error"]["block"]) == ("failed", "two")
    assert "nothing" in said["error"]["message"]
    assert answer(machine)["progress"]["loop"] == "0 of 2 items of 'each' done, 1 failed"
    answered(machine, "each/1/one")
    said = answer(machine)
    assert said["status"] == "failed"
    assert said["error"]["block"] == "each/0/two"
    assert "state" not in said
    assert "result" not in said


def test_a_cancelled_run_takes_its_tasks_with_it() -> None:
    machine = run_of_plan(research(at_once=1))
    machine.apply(CancelRequested(1005.0, "enough"))
    for task in ("wf_1.each.0", "wf_1.each.1"):
        assert answer(machine, task)["status"] == "cancelled"
    with pytest.raises(NotExpected, match="it is cancelled"):
        submit(machine, "wf_1.each.0", "late", "read")


def test_a_question_that_was_open_when_its_run_was_cancelled_is_not_done() -> None:
    machine = run_of_plan(sequence("asking", ask("one"), ask("two"), ask("three")))
    answered(machine, "one")
    machine.apply(CancelRequested(1005.0))
    assert answer(machine)["progress"] == {"done": 1, "total": 3}


# Who is at work


def test_a_task_is_at_work_once_its_agent_was_heard_of() -> None:
    machine = run_of_plan(research())
    said = answer(machine, last_seen={"wf_1.each.0": 1005.0})
    first, second = said["action"]["parameters"]["tasks"]
    assert (first["status"], second["status"]) == ("at work", "waiting to start")
    assert first["started_at"] == first["last_contact"] == "1970-01-01T00:16:45.000Z"
    assert "last_contact" not in second
    assert "for each task that is not at work" in said["action"]["instructions"]
    assert "to be started: 'each.1', at work: 'each.0' since 00:16:45Z" in said["why"]


def test_while_all_are_at_work_nothing_is_asked_of_whoever_started_them() -> None:
    machine = run_of_plan(research())
    last_seen = {"wf_1.each.0": 1005.0, "wf_1.each.1": 1006.0}
    said = answer(machine, last_seen=last_seen)
    assert said["status"] == "waiting"
    assert "action" not in said
    assert "0 of 2 done, at work: 'each.0' since 00:16:45Z, 'each.1' since 00:16:46Z" in said["why"]
    again = answer(machine, last_seen=last_seen, at_work=True)["action"]
    assert again["step_id"] == "each"
    assert len(again["parameters"]["tasks"]) == 2


def test_an_agent_that_is_silent_beyond_its_lease_may_be_replaced() -> None:
    machine = run_of_plan(research())
    last_seen = {"wf_1.each.0": 1005.0, "wf_1.each.1": 1306.0}
    assert "action" not in answer(machine, last_seen=last_seen, at=1305.0)
    said = answer(machine, last_seen=last_seen, at=1306.0)
    assert said["status"] == "pending_action"
    assert said["action"]["parameters"]["tasks"][0]["status"] == (
        "silent for 5 min 1 s: if its agent is gone, start another with the same prompt"
    )
    assert "sub_agent_prompt" in said["action"]
    assert (
        "silent: 'each.0' since 00:16:45Z; if its agent is gone, start another with the same prompt, which is "
        "in the action" in said["why"]
    )


def test_a_late_answer_is_taken_as_long_as_the_question_is_open() -> None:
    machine = run_of_plan(research())
    assert submit(machine, "wf_1.each.0", "late", "read", at=5000.0) == "each/0/read"


def test_a_lease_runs_from_the_question_and_not_from_what_was_done_before_it() -> None:
    waits = sequence("w#t", step("pause", Wait(600)), ask("one"))
    machine = run_of_plan(sequence("w", foreach("each", "w#t", [1]), tasks=(waits,)))
    machine.apply(TimerFired(1600.0, "each/0/pause#1"))
    last_seen = {"wf_1.each.0": 1001.0}
    assert answer(machine, last_seen=last_seen, at=1899.0)["status"] == "waiting"
    assert answer(machine, last_seen=last_seen, at=1901.0)["status"] == "pending_action"


def test_a_step_that_may_take_longer_than_a_lease_may_take_as_long() -> None:
    slow = ask("one")
    slow = msgspec.structs.replace(slow, do=msgspec.structs.replace(slow.do, inputs={"timeout": expr(1000)}))
    machine = run_of_plan(sequence("w", foreach("each", "w#t", [1]), tasks=(sequence("w#t", slow),)))
    last_seen = {"wf_1.each.0": 1001.0}
    assert answer(machine, last_seen=last_seen, at=1900.0)["status"] == "waiting"


def test_a_task_of_which_nothing_is_asked_needs_nobody_yet() -> None:
    waits = sequence("w#t", step("pause", Wait(60, "for the dust to settle")), ask("one"))
    machine = run_of_plan(sequence("w", foreach("each", "w#t", [1]), tasks=(waits,)))
    said = answer(machine)
    assert said["status"] == "waiting"
    assert "action" not in said
    assert "on the server: 'each.0'" in said["why"]
    assert "waiting until 00:17:40Z (another 50 s) at 'each/0/pause': for the dust to settle" in said["why"]


# Tasks of tasks, and tasks without agents


def nested(inner: str, outer: str = "@task") -> Machine:
    small = sequence(
        "w#small", ask("ask", "{{ inputs.n }}"), step("end", Return("{{ state.ask }}")), inputs={}
    )
    small = msgspec.structs.replace(small, inputs={"n": research().tasks[0].inputs["topic"]})
    large = sequence("w#large", foreach("inner", "w#small", ["x", "y"], agent=inner), ask("sum"))
    return run_of_plan(sequence("w", foreach("outer", "w#large", [1, 2], agent=outer), tasks=(large, small)))


def test_the_tasks_of_a_task_are_started_by_its_own_agent() -> None:
    machine = nested("@task")
    assert answer(machine)["action"]["step_id"] == "outer"
    said = answer(machine, "wf_1.outer.1")
    assert said["action"]["step_id"] == "inner"
    assert [it["workflow_id"] for it in said["action"]["parameters"]["tasks"]] == [
        "wf_1.outer.1.inner.0",
        "wf_1.outer.1.inner.1",
    ]
    assert [it["task_id"] for it in said["action"]["parameters"]["tasks"]] == ["inner.0", "inner.1"]
    assert answer(machine, "wf_1.outer.1.inner.0")["action"]["step_id"] == "ask"
    last_seen = {"wf_1.outer.1": 1001.0, "wf_1.outer.0": 1001.0, "wf_1.outer.1.inner.0": 1002.0}
    assert (
        answer(machine, "wf_1.outer.1", last_seen=last_seen)["status"] == "pending_action"
    )  # inner.1 is to start
    last_seen["wf_1.outer.1.inner.1"] = 1003.0
    assert answer(machine, "wf_1.outer.1", last_seen=last_seen)["status"] == "waiting"
    assert answer(machine, last_seen=last_seen)["status"] == "waiting"
    submit(machine, "wf_1.outer.1.inner.1", "b")
    submit(machine, "wf_1.outer.1.inner.0", "a")
    said = answer(machine, "wf_1.outer.1", last_seen=last_seen)
    assert said["action"]["step_id"] == "sum"


def test_without_agents_all_is_asked_of_the_agent_around_with_the_ids_of_the_tasks() -> None:
    machine = run_of_plan(research(agent=""))
    said = answer(machine)
    actions = [said["action"], *said["more_actions"]]
    assert [(it["step_id"], it["workflow_id"], it["task"]) for it in actions] == [
        ("each/0/read", "wf_1.each.0", "look_up"),
        ("each/1/read", "wf_1.each.1", "look_up"),
    ]
    assert submit(machine, "wf_1.each.1", "b", "each/1/read") == "each/1/read"
    assert submit(machine, "wf_1.each.0", "a", "read") == "each/0/read"
    assert submit(machine, "wf_1", "c", "each/0/judge") == "each/0/judge"


def test_tasks_without_agents_inside_of_a_task_are_asked_of_its_agent() -> None:
    machine = nested("")
    said = answer(machine, "wf_1.outer.0")
    actions = [said["action"], *said["more_actions"]]
    assert [(it["step_id"], it["workflow_id"]) for it in actions] == [
        ("inner/0/ask", "wf_1.outer.0.inner.0"),
        ("inner/1/ask", "wf_1.outer.0.inner.1"),
    ]


def test_many_actions_are_bounded_by_the_size_of_an_answer() -> None:
    machine = run_of_plan(research(agent="", items=[f"topic {n}" for n in range(300)]))
    said = answer(machine)
    shown = 1 + len(said["more_actions"])
    assert shown < 300
    assert len(msgspec.json.encode(said)) < LIMITS.answer_chars
    assert said["why"].endswith(f"; {300 - shown} more actions are shown when these have been answered")


def test_many_tasks_are_bounded_too_and_can_be_read_on() -> None:
    machine = run_of_plan(research(items=[f"topic {n} {'x' * 50}" for n in range(1000)]))
    said = answer(machine)
    assert len(msgspec.json.encode(said)) < LIMITS.answer_chars
    tasks = said["action"]["parameters"]["tasks"]
    assert "cut: 1000 items in all" in tasks[-1]
    path, offset = "actions.each.parameters.tasks", len(tasks) - 1
    assert f'paths=["{path}"], offset={offset}' in tasks[-1]
    read = state_in(look(machine), paths=[path], offset=offset, limit=5)["values"][path]
    assert read[0]["task_id"] == f"each.{offset}"


# Rounds


def again() -> Machine:
    """Its step `each` is come to twice."""
    task = sequence("w#t", ask("one"), step("end", Return("{{ state.one }}")))
    steps = (
        foreach("each", "w#t", [1]),
        step("more", Jump(0, 1)),
        step("end", Return("{{ state.each }}")),
    )
    return run_of_plan(sequence("w", *steps, tasks=(task,)))


def test_a_task_of_a_later_round_has_another_id_and_the_earlier_one_is_over() -> None:
    machine = again()
    submit(machine, "wf_1.each.0", "first")
    assert answer(machine)["action"]["parameters"]["tasks"][0]["workflow_id"] == "wf_1.each@2.0"
    with pytest.raises(RequestError, match="is over") as refused:
        target_of(machine, "wf_1.each.0")
    assert refused.value.code == "task_over"
    assert "wf_1.each@2.0" not in refused.value.hint, "that is for whoever begins that round"
    assert answer(machine)["progress"] == {
        "done": 2,
        "total": 3,
        "loop": "0 of 1 items of 'each' done",
    }
    submit(machine, "wf_1.each@2.0", "second")
    said = answer(machine)
    assert said["result"] == ["second"]
    assert said["progress"] == {"done": 3, "total": 3}, "a step that is repeated counts once"


def test_a_step_that_asks_again_says_so() -> None:
    machine = run_of_plan(sequence("w", ask("one"), step("more", Jump(0, 2)), ask("two")))
    assert answer(machine)["action"]["step_id"] in ("one", "two")
    submit(machine, "wf_1", "a")
    submit(machine, "wf_1", "b")
    assert answer(machine)["action"]["step_id"] == "one@3"
    submit(machine, "wf_1", "c")
    assert answer(machine)["action"]["step_id"] in ("one", "two")


def test_the_state_beside_a_result_is_cut_earlier_and_can_be_read() -> None:
    steps = (ask("one"), step("end", Return("{{ state.one | length }}")))
    machine = run_of_plan(sequence("w", *steps))
    submit(machine, "wf_1", "x" * 3000)
    said = answer(machine)
    assert said["result"] == 3000
    assert 'paths=["state.one"], offset=500' in said["state"]["one"]
    machine = run_of_plan(sequence("w", steps[0]))
    submit(machine, "wf_1", "x" * 3000)
    said = answer(machine)
    assert said["result"] is None
    assert said["state"]["one"] == "x" * 3000


# Waiting and silent steps


@pytest.mark.rows("S8")
def test_a_wait_needs_no_result_and_says_how_long() -> None:
    machine = run_of_plan(sequence("w", step("pause", Wait(30, "for DNS")), ask("next")))
    said = answer(machine)
    assert said["status"] == "waiting"
    assert "action" not in said
    assert said["why"] == "waiting until 00:17:10Z (another 20 s) at 'pause': for DNS"
    with pytest.raises(NotExpected, match=r"waits until 00:17:10Z \(another 20 s\)"):
        submit(machine, "wf_1", {"value": 1}, "pause", at=1010.0)
    run = target_of(machine, "wf_1")
    assert is_harmless(run_view_of(machine, target=run), "pause", {})
    assert is_harmless(run_view_of(machine, target=run), None, {})
    machine.apply(TimerFired(1030.0, "pause#1"))
    assert answer(machine)["action"]["step_id"] == "next"
    assert is_harmless(run_view_of(machine, target=run), "pause", {"resumed": True, "duration": 30})
    assert not is_harmless(run_view_of(machine, target=run), None, {})


def test_an_acknowledgement_that_could_be_meant_for_a_question_is_none() -> None:
    steps = (step("fork", Branch("{{ item == 1 }}", 2)), step("pause", Wait(30), goes_to=3), ask("one"))
    task = sequence("w#t", *steps)
    machine = run_of_plan(sequence("w", foreach("each", "w#t", [1, 2], agent=""), tasks=(task,)))
    assert answer(machine)["action"]["step_id"] == "each/1/one"
    assert not is_harmless(run_view_of(machine, target=target_of(machine, "wf_1")), None, {})
    assert is_harmless(run_view_of(machine, target=target_of(machine, "wf_1.each.0")), None, {})


def test_progress_of_a_sequence_knows_the_longest_way_left_and_is_exact_at_the_end() -> None:
    steps = (
        ask("first"),
        step("fork", Branch("{{ state.first == 'long' }}", 4)),
        ask("a"),
        ask("b", goes_to=5),
        ask("c"),
        step("end", Return(1)),
    )
    machine = run_of_plan(sequence("w", *steps))
    assert answer(machine)["progress"] == {"done": 0, "total": 5}
    submit(machine, "wf_1", "short")
    assert answer(machine)["progress"] == {"done": 2, "total": 4}
    submit(machine, "wf_1", "x")
    assert answer(machine)["progress"] == {"done": 4, "total": 4}


# The words of the toolset `stateful`


def flat(machine: Machine, workflow_id: str = "wf_1", **how: Any) -> dict[str, Any]:
    view = look(machine, workflow_id, **how)
    return as_step(answer_about(view, REGISTRY, LIMITS, place=lambda fault: None, at_work=True))


@pytest.mark.rows("S12")
def test_a_step_has_its_parameters_beside_its_id_until_it_is_complete() -> None:
    machine = run_of_plan(research())
    said = flat(machine, "wf_1.each.0")
    assert list(said)[:3] == ["step_id", "type", "prompt"]
    assert (said["step_id"], said["type"], said["prompt"]) == ("read", "prompt", "what of ants?")
    assert said["action"]["step_id"] == "read"
    assert "parameters" not in said["action"]
    assert said["status"] == "pending_action"
    submit(machine, "wf_1.each.0", "a")
    submit(machine, "wf_1.each.0", "b")
    said = flat(machine, "wf_1.each.0")
    assert (said["status"], said["final_result"]) == ("complete", {"topic": "ants", "found": "a!"})
    assert "result" not in said


def test_a_wait_is_a_step_that_requires_no_action() -> None:
    machine = run_of_plan(sequence("w", step("pause", Wait(30, "for DNS")), ask("next")))
    said = flat(machine)
    assert {key: said[key] for key in ("step_id", "type", "duration", "message")} == {
        "step_id": "pause",
        "type": "wait",
        "duration": 30,
        "message": "for DNS",
    }
    assert "duration_seconds" not in said
    assert said["requires_action"] is False
    assert said["seconds_left"] == 20.0


def test_actions_of_a_situation_are_the_oldest_first() -> None:
    machine = run_of_plan(research(agent=""))
    submit(machine, "wf_1", "x", "each/0/read", at=1005.0)
    actions = actions_of(look(machine), REGISTRY)
    assert [it.step_id for it in actions] == ["each/1/read", "each/0/judge"]
