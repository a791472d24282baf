"""Steps one after the other: branches, jumps, state, tasks; written down and read back after every event."""

from __future__ import annotations

import msgspec
import pytest

from support.plans import Branch, Call, Do, ForEach, Jump, Node, Plan, Return, SetState, Wait, bundle
from workflows_mcp.machine.commands import Command, RunStep, SetTimer
from workflows_mcp.machine.events import Answered, Event, ExpressionStopped, Started, StepDone, TimerFired
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.state import RunState
from workflows_mcp.plan import model
from workflows_mcp.plan.model import InputSpec, Operation, Steps
from workflows_mcp.values import Value


def step(name: str, do: Operation, **more: Value) -> model.Node:
    return Node(name, do, ("steps", name), **more)


def steps(*nodes: model.Node, name: str = "main", **more: Value) -> model.Plan:
    plan = Plan(name, "stateful", Steps(tuple(nodes)))
    return msgspec.structs.replace(plan, **more)


def note(text: str) -> model.Do:
    return Do("Note", {"text": text})


class Run:
    """A run that is written down and read back after every event, beside one that is not."""

    def __init__(self, main: model.Plan) -> None:
        self._bundle = bundle(main)
        self.machine = Machine(self._bundle)
        self._straight = Machine(self._bundle)
        self.said: list[str] = []
        self.commands: list[Command] = []
        self.send(Started(100.0, "wf_1", {}))

    def send(self, event: Event) -> None:
        self.commands = self.machine.apply(event)
        self.machine = Machine(self._bundle, self.machine.snapshot())
        self._straight.apply(event)
        assert self.machine.state == self._straight.state

    def carry_out(self, ok: bool = True) -> None:
        """Do what is wished for until nothing more is."""
        while runs := [it for it in self.commands if isinstance(it, RunStep)]:
            commands: list[Command] = []
            for run in runs:
                self.said.append(run.inputs["text"])
                self.send(StepDone(101.0, run.key, {"text": run.inputs["text"]}, ok))
                commands += self.commands
            self.commands = commands

    @property
    def state(self) -> RunState:
        return self.machine.state


def test_a_branch_goes_one_way_and_both_meet_again() -> None:
    def run(flag: bool) -> list[str]:
        main = steps(
            step("if", Branch("{{ state.flag }}", otherwise=2)),
            step("then", note("then"), goes_to=3),
            step("else", note("else")),
            step("after", note("after")),
            initial_state={"flag": flag},
        )
        it = Run(main)
        it.carry_out()
        assert it.state.status == "completed"
        return it.said

    assert run(True) == ["then", "after"]
    assert run(False) == ["else", "after"]


@pytest.mark.rows("S15")
def test_a_jump_goes_back_so_many_times_and_then_on_and_every_round_has_keys_of_its_own() -> None:
    main = steps(
        step("again", note("{{ state.n }}"), output_to="last"),
        step("count", SetState({"n": "{{ state.n + 1 }}"})),
        step("jump", Jump(0, 2)),
        step("end", Return("{{ state.n }}")),
        initial_state={"n": 0},
    )
    it = Run(main)
    keys = []
    while runs := [command for command in it.commands if isinstance(command, RunStep)]:
        keys.append(runs[0].key)
        it.send(StepDone(101.0, runs[0].key, {"text": runs[0].inputs["text"]}))
    assert keys == ["again#1", "again#r2.1", "again#r3.1"]
    assert (it.state.status, it.state.result, it.state.root.state["n"]) == ("completed", 3, 3)


@pytest.mark.rows("S4")
def test_updates_of_the_state_all_apply_or_none() -> None:
    good = SetState({"a": "{{ 1 + 1 }}", "b": "{{ a * 10 }}"})
    it = Run(steps(step("set", good), initial_state={"a": 0}))
    assert it.state.root.state == {"a": 2, "b": 20}
    bad = SetState({"a": "{{ 5 }}", "b": "{{ state.nowhere }}"})
    it = Run(steps(step("set", bad), initial_state={"a": 0}))
    assert (it.state.status, it.state.root.state) == ("failed", {"a": 0})
    assert it.state.fault is not None
    assert "nowhere" in it.state.fault.message


@pytest.mark.rows("S2")
def test_a_step_sees_only_the_state_that_it_declares() -> None:
    it = Run(
        steps(
            step("read", note("{{ state.secret }}"), reads=("open",)), initial_state={"secret": 1, "open": 2}
        )
    )
    assert it.state.status == "failed"
    assert it.state.fault is not None
    assert "secret" in it.state.fault.message


def test_a_failed_step_ends_the_sequence_unless_it_says_otherwise() -> None:
    it = Run(steps(step("a", note("a")), step("b", note("b"))))
    it.carry_out(ok=False)
    assert (it.said, it.state.status) == (["a"], "failed")
    it = Run(steps(step("a", note("a"), on_failure="continue"), step("b", note("b"), on_failure="continue")))
    it.carry_out(ok=False)
    assert (it.said, it.state.status) == (["a", "b"], "completed")


def test_what_is_skipped_leaves_its_field_absent() -> None:
    main = steps(
        step("a", note("a"), condition="{{ false }}", output_to="x"),
        step("b", Return("{{ state.x is defined }}")),
    )
    assert Run(main).state.result is False


def test_waiting_is_a_timer_and_gives_how_long_it_was() -> None:
    it = Run(steps(step("w", Wait(30), output_to="waited"), step("r", Return("{{ state.waited }}"))))
    assert [command for command in it.commands if isinstance(command, SetTimer)] == [SetTimer("w#1", 130.0)]
    it.send(TimerFired(130.0, "w#1"))
    assert it.state.result == {"resumed": True, "duration": 30.0}


@pytest.mark.rows("S5")
def test_tasks_see_their_item_alone_and_give_what_they_return_in_order() -> None:
    task = steps(
        step("do", note("{{ inputs.name }} {{ index }} of {{ total }}"), output_to="got"),
        step("back", Return({"name": "{{ item }}", "said": "{{ state.got.text }}"})),
        name="main#task",
        inputs={"name": InputSpec("string")},
    )
    main = steps(
        step(
            "each",
            Call("main#task", of_item=True),
            for_each=ForEach("{{ state.names }}", max_parallel=2),
            output_to="results",
        ),
        step("end", Return("{{ state.results }}")),
        initial_state={"names": ["p", "q", "r"]},
        tasks=(task,),
    )
    it = Run(main)
    it.carry_out()
    assert it.said == ["p 0 of 3", "q 1 of 3", "r 2 of 3"]
    assert it.state.result == [
        {"name": name, "said": f"{name} {number} of 3"} for number, name in enumerate("pqr")
    ]


@pytest.mark.rows("S5")
def test_a_task_that_fails_leaves_its_error_in_its_place_and_the_step_fails_when_all_have_ended() -> None:
    task = steps(
        step("do", SetState({"x": "{{ 10 / item }}"})), step("back", Return("{{ item }}")), name="main#task"
    )
    each = Call("main#task", of_item=True)

    def run(on_failure: str | None) -> Run:
        node = step("each", each, for_each=ForEach([1, 0, 2]), output_to="r", on_failure=on_failure)
        return Run(steps(node, step("end", Return("{{ state.r }}")), tasks=(task,)))

    failed = run(None)
    assert failed.state.status == "failed"
    assert failed.state.fault is not None
    assert "1 of 3 items failed: '1'" in failed.state.fault.message
    went_on = run("continue")
    assert went_on.state.result[0::2] == [1, 2]
    assert "division" in went_on.state.result[1]["error"]


@pytest.mark.rows("S14")
def test_an_expression_that_was_stopped_is_not_tried_again_by_whoever_reads_the_run() -> None:
    main = steps(step("a", Do("Ask", {"prompt": "?"}, by="agent")), step("b", SetState({"x": "{{ 1 }}"})))
    machine = Machine(bundle(main))
    machine.apply(Started(1.0, "wf_1", {}))
    program = machine.program_named("main")
    fault = machine.fault(machine.locate("a")[0], 1, "too_slow", "it took too long")
    machine.apply(ExpressionStopped(2.0, {"b#1": fault}))
    machine.apply(Answered(2.0, "a", {}))
    assert program is machine.program_named("main")
    assert (machine.state.status, machine.state.root.records["b"].message) == ("failed", "it took too long")
    assert machine.state.events == 3


def test_ten_thousand_rounds_are_flat() -> None:
    main = steps(
        step("count", SetState({"n": "{{ state.n + 1 }}"})),
        step("jump", Jump(0, 5000)),
        initial_state={"n": 0},
    )
    machine = Machine(bundle(main))
    machine.apply(Started(1.0, "wf_1", {}))
    assert (machine.state.status, machine.state.root.state) == ("completed", {"n": 5001})
