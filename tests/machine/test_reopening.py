"""Steps that are reopened run again, in a fork or in the same run; all else is as it was. Over random workflows."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from support.plans import Do, ForEach, block, bundle, plan
from support.random_graphs import bundles, report
from workflows_mcp.errors import NotExpected
from workflows_mcp.machine.commands import Command, Finish, RunStep, SetTimer
from workflows_mcp.machine.events import Answered, Event, Interrupted, Marked, Started, StepDone, TimerFired
from workflows_mcp.machine.machine import Machine, replayed
from workflows_mcp.machine.reopening import Reopening, failed_steps
from workflows_mcp.machine.state import TERMINAL, record_at
from workflows_mcp.plan.model import Bundle, Node

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
    again = Driven(
        replayed(pinned, [*run.journal, Reopening(pinned, run.journal, steps).event()]), second, None
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
    steps = list(dict.fromkeys(event.address for event in run.journal if event.of_step))
    assume(steps)
    chosen = chance.choice(steps)
    step = "/".join(chosen.split("/")[: chance.randint(1, chosen.count("/") + 1)])
    reopening = Reopening(pinned, run.journal, [step])
    if not reopening.ran:  # the call around it was retried, and then it was skipped
        return
    again = Driven(replayed(pinned, [*run.journal, reopening.event()]), order, seed)

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
    again = replayed(pinned, [*events, Reopening(pinned, events, ["a"]).event()])
    assert [
        command.key for command in again.outstanding(3.0, after_crash=False) if isinstance(command, RunStep)
    ] == ["a#1"]


def started(*blocks: tuple[Node, list[tuple[str, bool]]]) -> tuple[Bundle, Machine, list[Event]]:
    pinned = bundle(plan(*blocks))
    machine, events = Machine(pinned), list[Event]([Started(0.0, "wf_1", {})])
    machine.apply(events[0])
    return pinned, machine, events


def test_a_step_of_a_running_run_is_reopened_and_what_is_under_way_after_it_is_stopped() -> None:
    pinned, machine, events = started(
        block("a", Do("Note", {"text": "a"})),
        block("beside", Do("Note", {"text": "beside"})),
        block("b", Do("Note", {"text": "${blocks.a.text}"}), ["a"]),
    )
    for event in (StepDone(1.0, "a#1", {"text": "first"}), StepDone(1.0, "beside#1", {"text": "done"})):
        events.append(event)
        machine.apply(event)
    assert list(machine.state.frames) == ["b"]
    reopening = Reopening(pinned, events, ["a"])
    events.append(reopening.event(same_run=True))
    commands = machine.apply(events[-1])
    assert [(type(it).__name__, it.key) for it in commands if not isinstance(it, Finish)] == [
        ("StopStep", "b#1"),
        ("RunStep", "a#r2.1"),
    ]
    assert machine.state.root.records["beside"].outputs == {"text": "done"}

    late = [StepDone(3.0, "b#1", {"text": "late"}), StepDone(3.0, "a#1", {"text": "late"})]
    for event in late:
        with pytest.raises(NotExpected):
            machine.refuse_unexpected(event)
    events += [StepDone(4.0, "a#r2.1", {"text": "second"}), StepDone(5.0, "b#r2.1", {"text": "end"})]
    (step,) = [it for it in machine.apply(events[-2]) if isinstance(it, RunStep)]
    assert (step.key, step.inputs) == ("b#r2.1", {"text": "second"})
    machine.apply(events[-1])
    assert machine.state.status == "completed"
    assert replayed(pinned, events).state == machine.state

    # what was reopened before can be reopened again
    again = replayed(pinned, [*events, Reopening(pinned, events, ["b"]).event()])
    assert list(again.state.frames) == ["b"]
    assert again.state.root.records["a"].outputs == {"text": "second"}


def test_a_step_is_not_reopened_in_a_run_that_has_changed_since() -> None:
    pinned, machine, events = started(
        block("a", Do("Note", {"text": "a"})), block("b", Do("Note", {"text": "b"}))
    )
    events.append(StepDone(1.0, "a#1", {"text": "a"}))
    machine.apply(events[-1])
    event = Reopening(pinned, events, ["a"]).event(same_run=True)
    machine.refuse_unexpected(event)
    machine.apply(Marked(2.0))
    with pytest.raises(NotExpected, match="has changed since"):
        machine.refuse_unexpected(event)


def test_a_snapshot_of_a_run_in_which_a_step_was_reopened_is_the_run() -> None:
    pinned, machine, events = started(
        block(
            "each", Do("Note", {"text": "${each.value}"}), for_each=ForEach(["x", "y", "z"], max_parallel=1)
        ),
    )
    for key in ("each/0#1", "each/1#1"):
        events.append(StepDone(1.0, key, {"text": key}))
        machine.apply(events[-1])
    events.append(Reopening(pinned, events, ["each/0"]).event(same_run=True))
    machine.apply(events[-1])
    assert list(machine.state.frames) == ["each", "each/2"], "one item at a time"
    restored = Machine(pinned, machine.snapshot())
    for one in (machine, restored):
        one.apply(StepDone(2.0, "each/2#1", {"text": "z"}))
        assert list(one.state.frames) == ["each", "each/0"]
        one.apply(StepDone(2.0, "each/0#r2.1", {"text": "x"}))
        assert one.state.status == "completed"
