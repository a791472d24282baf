"""Tasks of a reactive workflow that fail, and a step that cannot hand them out: what is put up with and what is not,
and what is cleaned up; with a crash after every event the same."""

from __future__ import annotations

import pytest
from msgspec import structs

from support.reactive import documents, survives
from workflows_mcp.limits import Limits
from workflows_mcp.machine.commands import Command, RunStep, SetTimer
from workflows_mcp.machine.events import Answered, Event, Started, StepDone, StepFailed, TimerFired
from workflows_mcp.machine.machine import Machine, replayed
from workflows_mcp.plan.model import Bundle
from workflows_mcp.values import Value

pytestmark = pytest.mark.rows("R15", "R16", "X1")

BROKEN = """
name: broken
default_state: {raw: {o: {}, text: "", out: none}}
steps:
  - {id: each, type: parallel_foreach, items: "{{ %s }}", sub_agent_task: t, on_sub_agent_error: continue, wait_for_all: %s, state_update: {path: %s}, error_state_update: {path: raw.why, value: "{{ error.message }}"}}
  - {id: end, type: Note, text: end}
sub_agent_tasks:
  t: {steps: [{id: ask, type: Ask, prompt: "{{ item }}"}]}
error_handling: {%s}
"""


@pytest.mark.parametrize("waits", ["true", "false"])
@pytest.mark.parametrize(
    ("items", "why"),
    [
        ("o.files.list", "undefined"),
        ("null ?? null", "not null"),
        ("'a' + ' b'", "not text"),
        ("[1, 2, 3]", "the limit is 2"),
    ],
)
def test_tasks_that_may_fail_must_be_handed_out_all_the_same(items: str, why: str, waits: str) -> None:
    bundle = documents(BROKEN % (items, waits, "raw.out", ""))
    story = survives(bundle, limits=Limits(parallel_children=2))
    assert (story.state.status, story.said, story.raw["out"]) == ("failed", [], "none")
    assert story.state.fault is not None
    assert why in story.state.fault.message
    assert why in story.raw["why"]


def test_a_result_of_tasks_that_cannot_be_taken_fails_the_step_although_they_may_fail() -> None:
    story = survives(documents(BROKEN % ("[1]", "true", "raw.text.x", "")))
    assert (story.state.status, story.said) == ("failed", [])


@pytest.mark.parametrize("items", ["o.files.list", "null ?? null"])
def test_a_workflow_that_goes_on_after_failures_goes_on_after_tasks_that_cannot_be_handed_out(
    items: str,
) -> None:
    story = survives(documents(BROKEN % (items, "true", "raw.out", "on_error: continue")))
    assert (story.state.status, story.said) == ("completed", ["end"])


def test_a_workflow_that_is_tried_again_is_so_when_tasks_cannot_be_handed_out() -> None:
    story = survives(documents(BROKEN % ("null ?? null", "true", "raw.out", "on_error: retry_workflow")))
    assert (story.state.status, story.state.root.tries) == ("failed", 2)


# What is cleaned up

ENDED = """
name: ended
default_state: {raw: {log: [], out: []}}
steps:
  - {id: each, type: parallel_foreach, items: [{id: a}, {id: b}, {id: c}], sub_agent_task: t, %s, state_update: {path: raw.out}}
  - {id: end, type: Note, text: "{{ log.join() }}"}
sub_agent_tasks:
  t:
    steps:
      - id: loop
        type: while
        condition: "true"
        body: [{id: ask, type: Ask, prompt: "{{ task_id }} {{ loop.iteration }}"}]
    error_handling:
      cleanup_on_error:
        - {type: state_update, path: raw.log, operation: append, value: "{{ task_id }} {{ error.type }} {{ error.message }} {{ typeof loop }}"}
        %s
"""
AT_ONCE = "max_parallel: 2, timeout: 500, on_sub_agent_error: "
UNDO = '- {id: undo, type: Note, text: "undo {{ task_id }}"}'


class Run:
    """A run whose events are told one by one."""

    def __init__(self, text: str) -> None:
        self.bundle = documents(text)
        self.events: list[Event] = []
        self.machine = Machine(self.bundle)
        self.tell(Started(0.0, "wf_1", {}, limits=Limits().of_a_run))

    def tell(self, event: Event) -> list[Command]:
        """It is the same whether the run has gone on in one process or has come back after each event."""
        self.events.append(event)
        before = self.machine.snapshot()
        commands = self.machine.apply(event)
        back = Machine(self.bundle, before)
        assert back.apply(event) == commands
        assert back.state == self.machine.state == replayed(self.bundle, self.events).state
        return commands

    @property
    def log(self) -> list[str]:
        found: list[str] = self.machine.state.root.state["raw"]["log"]
        return found

    def under_way(self) -> set[str]:
        return set(self.machine.state.frames)


def said(commands: list[Command]) -> list[Value]:
    return [it.inputs["text"] for it in commands if isinstance(it, RunStep)]


@pytest.mark.parametrize("order", [None, 1, 2, 3])
def test_a_task_that_times_out_cleans_up_before_the_workflow_hears_of_it(order: int | None) -> None:
    story = survives(documents(ENDED % (AT_ONCE + "continue", "")), seed=order)
    assert story.state.status == "completed"
    redacted = [f"{name} timeout timed out after 0.5 s undefined" for name in "abc"]
    assert sorted(story.raw["log"]) == redacted
    assert sorted(story.said[0].split(",")) == redacted
    assert {(it["status"], it["type"]) for it in story.raw["out"]} == {("failed", "timeout")}


def test_what_a_task_was_doing_when_it_timed_out_ends_and_its_cleanup_is_waited_for() -> None:
    run = Run(ENDED % (AT_ONCE + "continue", UNDO))
    assert run.under_way() == {"each", "each/a", "each/b", "each/a/ask", "each/b/ask"}
    commands = run.tell(TimerFired(0.5, "each/a#1"))
    assert (run.log, said(commands)) == (["a timeout timed out after 0.5 s undefined"], ["undo a"])
    assert [it for it in commands if isinstance(it, SetTimer)] == [SetTimer("each/a#1", 1.0)], "as long again"
    assert run.under_way() == {"each", "each/a", "each/b", "each/a/undo", "each/b/ask"}
    run.tell(Answered(0.6, "each/a/ask", {"response": "late"}))
    assert "each/a/ask" not in run.under_way()
    run.tell(StepDone(0.7, "each/a/undo#1", {}))
    assert run.under_way() == {"each", "each/b", "each/b/ask", "each/c", "each/c/ask"}, "then the next begins"


def test_a_cleanup_that_takes_as_long_as_the_task_was_given_is_ended_too() -> None:
    run = Run(ENDED % (AT_ONCE + "continue", '- {id: tell, type: Ask, prompt: "clean {{ task_id }}"}'))
    run.tell(TimerFired(0.5, "each/a#1"))
    assert "each/a/tell" in run.under_way(), "its agent is handed what is left to do"
    run.tell(TimerFired(1.0, "each/a#1"))
    assert run.under_way() == {"each", "each/b", "each/b/ask", "each/c", "each/c/ask"}
    assert len(run.log) == 1


def test_tasks_that_the_failure_of_another_one_ends_clean_up() -> None:
    run = Run(ENDED % ("max_parallel: 2, on_sub_agent_error: fail_all", UNDO))
    run.tell(Answered(1.0, "each/a/ask", {}, ok=False, message="no"))
    assert run.log == ["a block_failed step 'ask' failed: no undefined"]
    run.tell(StepDone(2.0, "each/a/undo#1", {}))
    assert run.log[1:] == ["b ended ended, because another one failed undefined"]
    assert run.under_way() == {"each", "each/b", "each/b/undo"}, "none begins that had not begun"
    run.tell(StepDone(3.0, "each/b/undo#1", {}))
    assert (run.machine.state.status, run.under_way(), len(run.log)) == ("failed", set(), 2)


def test_a_task_that_cleans_up_when_another_one_fails_goes_on_with_it() -> None:
    run = Run(ENDED % ("on_sub_agent_error: fail_all", UNDO))
    run.tell(Answered(1.0, "each/b/ask", {}, ok=False, message="no"))
    run.tell(Answered(2.0, "each/a/ask", {}, ok=False, message="no"))
    run.tell(StepDone(3.0, "each/a/undo#1", {}))
    assert run.under_way() == {"each", "each/b", "each/b/undo", "each/c", "each/c/undo"}
    run.tell(StepDone(4.0, "each/c/undo#1", {}))
    run.tell(StepFailed(5.0, "each/b/undo#1", "boom", "it broke"))
    assert (run.machine.state.status, sorted(it[:1] for it in run.log)) == ("failed", ["a", "b", "c"])


def test_a_plan_that_was_made_before_tasks_cleaned_up_keeps_its_rules() -> None:
    bundle = documents(ENDED % (AT_ONCE + "continue", ""))
    plan = bundle.plans["ended"]
    old = structs.replace(
        plan, semantics=1, tasks=tuple(structs.replace(it, semantics=1) for it in plan.tasks)
    )
    story = survives(Bundle("ended", {"ended": old}, bundle.sources))
    assert (story.state.status, story.raw["log"]) == ("completed", [])


INCLUDED = """
name: inner
default_state: {raw: {n: 1}}
steps: [{id: ask, type: Ask, prompt: "{{ n }}"}]
error_handling: {on_failure: [{id: undo, type: Note, text: "undo {{ error.type }} {{ n }}"}]}
"""


def test_an_included_workflow_that_times_out_carries_out_its_steps_for_a_failure() -> None:
    main = "name: main\nsteps: [{id: in, type: include_workflow, workflow: inner, timeout: 500}]"
    bundle = documents(main, INCLUDED)
    machine = Machine(bundle)
    machine.apply(Started(0.0, "wf_1", {}, limits=Limits().of_a_run))
    assert said(machine.apply(TimerFired(0.5, "in#1"))) == ["undo timeout 1"]
    machine.apply(StepDone(0.6, "in/undo#1", {}))
    assert machine.state.fault is not None
    assert (machine.state.status, machine.state.fault.code) == ("failed", "timeout")
