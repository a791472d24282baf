"""Checks of results in the machine: expressions that take too long, in checks and in their messages."""

from __future__ import annotations

import textwrap

import pytest

from workflows_mcp.dialects import load
from workflows_mcp.machine import Answered, Event, Machine, RunStep, Started, StateUpdated, StepDone
from workflows_mcp.plan import Bundle
from workflows_mcp.steps.registry import default_registry

pytestmark = pytest.mark.rows("P2")
ENDLESS = "(() => { while (true) {} })()"


def bundle_of_text(text: str) -> Bundle:
    plan = load(text, file="it.yaml", registry=default_registry()).plan
    return Bundle(plan.name, {plan.name: plan})


class Recorded:
    """A run, and its journal as an engine would store it."""

    def __init__(self, pinned: Bundle) -> None:
        self.pinned = pinned
        self.machine = Machine(pinned)
        self.journal: list[Event] = []

    def take(self, event: Event) -> list[RunStep]:
        commands = self.machine.apply(event)
        if (stopped := self.machine.record_stopped_expressions(event.at)) is not None:
            self.journal.append(stopped)
        self.journal.append(event)
        return [it for it in commands if isinstance(it, RunStep)]

    def replayed(self) -> Machine:
        again = Machine(self.pinned)
        for event in self.journal:
            again.apply(event)
        return again


def recorded(verify: str) -> Recorded:
    text = f"""
    name: it
    default_state: {{raw: {{place: null}}}}
    steps:
      - {{id: ask, type: delegate, instructions: "go?", verify: {verify}}}
    """
    run = Recorded(bundle_of_text(textwrap.dedent(text)))
    run.take(Started(0.0, "wf_1", {}, limits={"expression_seconds": 0.2}))
    return run


@pytest.mark.parametrize(
    "verify",
    [
        f'["{ENDLESS}"]',
        f'[{{test: "false", message: "{{{{ {ENDLESS} }}}}"}}]',
        f'[{{command: "test {{{{ {ENDLESS} }}}}"}}, {{command: "true"}}]',
        f'[{{command: "false", message: "{{{{ {ENDLESS} }}}}"}}, {{command: "true"}}]',
    ],
    ids=["check", "message of a check", "command", "message of a command"],
)
def test_an_endless_expression_fails_its_check_alone_and_a_replay_gives_the_same(verify: str) -> None:
    run = recorded(verify)
    steps = run.take(Answered(1.0, "ask", {"response": "x"}))
    while steps:
        (step,) = steps
        ok = step.inputs["command"] == "true"
        steps = run.take(StepDone(2.0, step.key, {"exit_code": 0 if ok else 1}, ok=ok))
        assert run.replayed().state == run.machine.state
    record = run.machine.state.root.records["ask"]
    assert record.rejections == 1
    assert [it.passed for it in record.checks] == [False, True][: len(record.checks)]
    assert len(record.feedback) == 1
    assert run.machine.state.frames["ask"].kind == "agent"
    assert run.replayed().state == run.machine.state


def test_a_check_is_repeated_as_it_was_also_if_the_state_has_changed_meanwhile() -> None:
    run = recorded('[{command: "test -e {{ place.name }}", env: {N: "{{ place.name }}"}}]')
    run.take(StateUpdated(1.0, [(["raw", "place"], "set", {"name": "a"})]))
    (step,) = run.take(Answered(1.0, "ask", {"response": "x"}))
    run.take(StateUpdated(2.0, [(["raw", "place"], "set", None)]))
    restored = Machine(run.pinned, run.machine.snapshot())
    steps = [it for it in restored.outstanding(2.0, after_crash=False) if isinstance(it, RunStep)]
    assert steps == [step]
