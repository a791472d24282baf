"""Properties of the interpreter over random workflows: graphs with optional dependencies, conditions,
questions, calls, items, retries, failures and crashes, completed in any order, restarted at any point."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.plans import block, bundle, plan
from support.random_graphs import bundles, report, reports
from workflows_mcp.answers.run_view import run_view_of
from workflows_mcp.answers.why import why
from workflows_mcp.machine.commands import Finish, RunStep, SetTimer
from workflows_mcp.machine.events import Answered, Started, StepDone, StepFailed, TimerFired
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.state import RunState
from workflows_mcp.plan.model import Bundle


def run_to_end(
    pinned: Bundle, seed: int, choose: random.Random, *, restart: bool = False
) -> tuple[Machine, list[str]]:
    """Drive a run with a scripted world that answers in the order that `choose` gives."""
    machine = Machine(pinned)
    commands = machine.apply(Started(0.0, "wf_1", {"flag": True}))
    pending = reports(machine, commands, seed)
    performed = [command.key for command in commands if isinstance(command, RunStep)]
    for _ in range(1000):
        if restart:
            machine = Machine(pinned, machine.snapshot())
        questions = [address for address, frame in machine.state.frames.items() if frame.kind == "agent"]
        if machine.state.status != "running":
            return machine, performed
        assert pending or questions, why(run_view_of(machine, now=0.0, alone=True))
        pick = choose.randrange(len(pending) + len(questions))
        if pick < len(pending):
            event = pending.pop(pick)(0.0)
        else:
            event = Answered(0.0, questions[pick - len(pending)], {"text": "yes"})
        commands = machine.apply(event)
        performed += [command.key for command in commands if isinstance(command, RunStep)]
        assert sum(isinstance(command, Finish) for command in commands) <= 1
        pending += reports(machine, commands, seed)
    raise AssertionError("the run did not end")


def final(machine: Machine) -> RunState:
    """The state without how many events it took: ignored reports count too."""
    return msgspec.structs.replace(machine.state, events=0)


@settings(max_examples=150, deadline=None)
@given(bundles(), st.integers(0, 1000), st.integers(), st.integers())
def test_any_order_of_completions_gives_the_same_final_state(
    pinned: Bundle, seed: int, first: int, second: int
) -> None:
    one, performed_one = run_to_end(pinned, seed, random.Random(first))
    other, performed_other = run_to_end(pinned, seed, random.Random(second))
    assert final(one) == final(other)
    assert sorted(performed_one) == sorted(performed_other)


@settings(max_examples=150, deadline=None)
@given(bundles(), st.integers(0, 1000), st.integers())
def test_writing_the_state_down_and_reading_it_back_after_any_event_changes_nothing(
    pinned: Bundle, seed: int, order: int
) -> None:
    straight, performed = run_to_end(pinned, seed, random.Random(order))
    restarted, performed_again = run_to_end(pinned, seed, random.Random(order), restart=True)
    assert final(straight) == final(restarted)
    assert performed == performed_again


@settings(max_examples=100, deadline=None)
@given(bundles(), st.integers(0, 1000), st.integers())
def test_every_block_runs_at_most_once_and_every_run_ends_or_says_what_it_waits_for(
    pinned: Bundle, seed: int, order: int
) -> None:
    machine, performed = run_to_end(pinned, seed, random.Random(order))
    assert len(performed) == len(set(performed))
    assert machine.state.status in ("completed", "failed")
    assert not machine.state.frames
    records = machine.state.root.records
    assert set(records) == {node.id for node in pinned.plans["main"].body.nodes}
    assert all(record.status in ("completed", "failed", "skipped") for record in records.values())


@settings(max_examples=60, deadline=None)
@given(bundles(), st.integers(0, 1000), st.integers())
def test_what_is_under_way_can_be_named_again_from_the_state_alone(
    pinned: Bundle, seed: int, order: int
) -> None:
    machine = Machine(pinned)
    wished: dict[str, RunStep] = {}
    commands = machine.apply(Started(0.0, "wf_1", {"flag": True}))
    choose = random.Random(order)
    for _ in range(200):
        wished |= {command.key: command for command in commands if isinstance(command, RunStep)}
        again = Machine(pinned, machine.snapshot()).outstanding(0.0, after_crash=False)
        assert {it.key: it for it in again if isinstance(it, RunStep)} == wished
        timers = [it.key for it in again if isinstance(it, SetTimer)]
        questions = [address for address, frame in machine.state.frames.items() if frame.kind == "agent"]
        if timers:
            commands = machine.apply(TimerFired(0.0, choose.choice(timers)))
        elif wished and (not questions or choose.random() < 0.7):
            command = wished.pop(choose.choice(sorted(wished)))
            commands = machine.apply(report(command, 0.0, seed))
        elif questions:
            commands = machine.apply(Answered(0.0, choose.choice(questions), {"text": "yes"}))
        else:
            return


def test_a_chain_of_ten_thousand_blocks_is_flat() -> None:
    blocks = [block(f"b{i}", needs=[f"b{i - 1}"] if i else []) for i in range(10_000)]
    machine = Machine(bundle(plan(*blocks)))
    commands = machine.apply(Started(0.0, "wf_1", {}))
    for i in range(10_000):
        assert [command.key for command in commands if isinstance(command, RunStep)] == [f"b{i}#1"]
        commands = machine.apply(StepDone(0.0, f"b{i}#1", {}))
    assert machine.state.status == "completed"


def test_ten_thousand_blocks_that_are_skipped_at_once_do_not_recurse() -> None:
    blocks = [block("first", condition="false")]
    blocks += [block(f"b{i}", needs=["first" if not i else f"b{i - 1}"]) for i in range(10_000)]
    machine = Machine(bundle(plan(*blocks)))
    machine.apply(Started(0.0, "wf_1", {}))
    assert machine.state.status == "completed"
    assert machine.state.root.records["b9999"].status == "skipped"


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_report_that_comes_twice_or_too_late_changes_nothing(times: int) -> None:
    machine = Machine(bundle(plan(block("a"), block("b", needs=["a"]))))
    machine.apply(Started(0.0, "wf_1", {}))
    machine.apply(StepDone(1.0, "a#1", {"value": 1}))
    for _ in range(times):
        assert machine.apply(StepDone(2.0, "a#1", {"value": 2})) == []
        assert machine.apply(StepFailed(2.0, "nowhere#1", "x", "y")) == []
    assert machine.state.root.records["a"].outputs == {"value": 1}
