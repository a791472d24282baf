"""Which events a new run is made of that does some of another one's steps again, over random workflows."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from support.plans import block, bundle, plan
from support.random_graphs import bundles, report
from workflows_mcp.answers.rerun import RerunSelection, failed_steps, replayed_events, steps_with_events
from workflows_mcp.answers.tasks import record_at
from workflows_mcp.engines.forks import replayed
from workflows_mcp.errors import NotExpected
from workflows_mcp.machine.commands import Command, RunStep, SetTimer
from workflows_mcp.machine.events import Answered, Event, Interrupted, Started, StepDone, TimerFired
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.state import TERMINAL
from workflows_mcp.plan.model import Bundle, Do

pytestmark = pytest.mark.rows("X3")


class Driven:
    """A run that is carried out to its end, in an order of chance, and its journal: what it expected."""

    def __init__(self, machine: Machine, order: int, seed: int | None) -> None:
        """`seed`: of how steps go; None: all go well."""
        self.machine = machine
        self.journal: list[Event] = []
        self.performed: list[str] = []
        self._choose = random.Random(order)
        self._seed = seed
        self._pending: list[Event] = []

    def take(self, event: Event) -> None:
        try:
            self.machine.refuse_unexpected(event)
        except NotExpected:
            return
        self.journal.append(event)
        self.perform(self.machine.apply(event))

    def perform(self, commands: Iterable[Command]) -> None:
        for command in commands:
            if isinstance(command, RunStep):
                self.performed.append(command.address)
                good = StepDone(0.0, command.key, {"text": command.inputs["text"]})
                self._pending.append(good if self._seed is None else report(command, 0.0, self._seed))
            elif isinstance(command, SetTimer):
                self._pending.append(TimerFired(0.0, command.key))

    def to_the_end(self) -> Driven:
        for _ in range(1000):
            if self.machine.state.status != "running":
                return self
            frames = self.machine.state.frames.items()
            questions = [address for address, frame in frames if frame.kind == "agent"]
            pick = self._choose.randrange(len(self._pending) + len(questions))
            if pick < len(self._pending):
                self.take(self._pending.pop(pick))
            else:
                self.take(Answered(0.0, questions[pick - len(self._pending)], {"text": "yes"}))
        raise AssertionError("the run did not end")


def driven(pinned: Bundle, order: int, seed: int) -> Driven:
    run = Driven(Machine(pinned), order, seed)
    run.take(Started(0.0, "wf_1", {"flag": True}))
    return run.to_the_end()


def followers(pinned: Bundle, names: set[str]) -> set[str]:
    """These blocks of the workflow itself, and all that come after them."""
    found = set(names)
    nodes = pinned.plans["main"].body.nodes
    for node in nodes:
        if any(nodes[need.node].id in found for need in node.needs):
            found.add(node.id)
    return found


def keeps_the_rest(pinned: Bundle, before: Machine, after: Machine, again: Iterable[str]) -> None:
    """Whatever does not come after these steps is as it was, also other items of the same block."""
    changed = followers(pinned, {address.partition("/")[0] for address in again})
    for name, record in before.state.root.records.items():
        if name not in changed:
            assert after.state.root.records.get(name) == record, name
        elif record.scope is not None and record.scope.each is not None and name in after.state.frames:
            items = {address.split("/")[1] for address in again if address.startswith(f"{name}/")}
            for item, done in record.scope.records.items() if items else ():
                found = record_at(after.state, f"{name}/{item}")
                assert item in items or found == done, f"{name}/{item}"


@settings(max_examples=300, deadline=None)
@given(bundles(), st.integers(0, 1000), st.integers(), st.integers())
def test_what_a_run_failed_by_is_under_way_again_and_all_else_is_as_it_was(
    pinned: Bundle, seed: int, first: int, second: int
) -> None:
    run = driven(pinned, first, seed)
    assume(run.machine.state.status == "failed")
    steps = failed_steps(run.machine)
    journal = RerunSelection(pinned, run.journal, steps)
    again = Driven(
        replayed(pinned, replayed_events(run.journal, journal.changes(journal.ends()))), second, None
    )

    assert again.machine.state.ended_at is None
    assert any(step in again.machine.state.frames for step in steps)
    keeps_the_rest(pinned, run.machine, again.machine, steps)

    done = {address for it in steps for address in _done(again.machine, it)}
    again.perform(again.machine.outstanding(0.0, after_crash=False))
    again.to_the_end()
    assert again.machine.state.status == "completed", "now all goes well"
    assert not done & set(again.performed), "what was done is not done again"


def _done(machine: Machine, address: str) -> list[str]:
    """What had ended by then of an address and what it is in."""
    names = address.split("/")
    around = ["/".join(names[:length]) for length in range(1, len(names) + 1)]
    return [it for it in around if (record := record_at(machine.state, it)) and record.status in TERMINAL]


@settings(max_examples=300, deadline=None)
@given(bundles(), st.integers(0, 1000), st.integers(), st.randoms(use_true_random=False))
def test_a_step_of_any_run_can_be_done_again_with_all_that_comes_after_it(
    pinned: Bundle, seed: int, order: int, chance: random.Random
) -> None:
    run = driven(pinned, order, seed)
    assume(steps_with_events(run.journal))
    chosen = chance.choice(steps_with_events(run.journal))
    step = "/".join(chosen.split("/")[: chance.randint(1, chosen.count("/") + 1)])
    selection = RerunSelection(pinned, run.journal, [step])
    left_out = selection.all_of(step)
    changes = selection.changes(left_out)
    if not left_out:  # the call around it was retried, and then it was skipped
        assert not changes
        return
    again = Driven(replayed(pinned, replayed_events(run.journal, changes)), order, seed)

    assert step in again.machine.state.frames
    record = record_at(again.machine.state, step)
    assert record is not None
    assert record.attempts == 1
    keeps_the_rest(pinned, run.machine, again.machine, [step])

    again.perform(again.machine.outstanding(0.0, after_crash=False))
    again.to_the_end()
    assert again.machine.state.status == run.machine.state.status, "the world has not changed"
    assert again.machine.state.root.records == run.machine.state.root.records


def test_a_step_that_was_cut_off_and_given_up_is_carried_out_again_and_not_asked_about_again() -> None:
    pinned = bundle(plan(block("a", Do("Note", {"text": "a"}), on_interrupt="ask")))
    events: list[Event] = [
        Started(0.0, "wf_1", {}),
        Interrupted(1.0, "a#1"),
        Answered(2.0, "a", {"decision": "fail"}),
    ]
    failed = replayed(pinned, events)
    assert (failed.state.status, failed_steps(failed)) == ("failed", ["a"])
    journal = RerunSelection(pinned, events, ["a"])
    again = replayed(pinned, replayed_events(events, journal.changes(journal.ends())))
    assert [
        command.key for command in again.outstanding(3.0, after_crash=False) if isinstance(command, RunStep)
    ] == ["a#1"]
