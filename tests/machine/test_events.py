"""Every event class says what readers of a journal need, and the machine knows what it does."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from workflows_mcp.machine import (
    Answered,
    CancelRequested,
    Event,
    Started,
    StateUpdated,
    StepDone,
    StepEnd,
    StepFailed,
    TimerFired,
)
from workflows_mcp.machine.events import SlotFreed
from workflows_mcp.machine.machine import APPLY, EXPECTED

EVENTS: tuple[type[Any], ...] = get_args(Event)


@pytest.mark.parametrize("event", EVENTS, ids=lambda it: it.__name__)
def test_the_machine_knows_what_every_event_does_and_when_it_is_expected(event: type[Any]) -> None:
    assert event.precedes_next or event in APPLY
    assert event.never_refused or event in EXPECTED
    assert event.__struct_fields__[0] == "at"
    assert event.ends_step == (event in get_args(StepEnd))


@pytest.mark.parametrize(
    ("event", "address", "of_step"),
    [
        (StepDone(0.0, "ci/test#2", {}), "ci/test", True),
        (TimerFired(0.0, "build/2#r2.1"), "build/2", True),
        (Answered(0.0, "ask", {}), "ask", True),
        (SlotFreed(0.0, "build/2"), "build/2", True),
        (StateUpdated(0.0, [], "tasks/a"), "tasks/a", False),
        (StateUpdated(0.0, []), "", False),
        (Started(0.0, "wf_1", {}), "", False),
        (CancelRequested(0.0), "", False),
    ],
)
def test_an_event_knows_its_address(event: Event, address: str, of_step: bool) -> None:
    assert (event.address, event.of_step) == (address, of_step)


def test_events_are_stored_with_the_fields_that_they_always_had() -> None:
    encoded = msgspec.json.encode(
        [
            StepDone(1.0, "a#1", {"x": 1}),
            StepFailed(2.0, "a#2", "timeout", "too long"),
            Answered(3.0, "ask", {}, token="t"),
            StateUpdated(4.0, [(["raw", "n"], "set", 1)]),
            SlotFreed(5.0, "each/0"),
        ]
    )
    assert msgspec.json.decode(encoded) == [
        {"type": "done", "at": 1.0, "key": "a#1", "outputs": {"x": 1}},
        {"type": "failed", "at": 2.0, "key": "a#2", "code": "timeout", "message": "too long"},
        {"type": "answered", "at": 3.0, "address": "ask", "outputs": {}, "token": "t"},
        {"type": "updated", "at": 4.0, "changes": [[["raw", "n"], "set", 1]]},
        {"type": "made_room", "at": 5.0, "address": "each/0"},
    ]
    assert msgspec.json.decode(encoded, type=list[Event])[0] == StepDone(1.0, "a#1", {"x": 1})


def test_outputs_are_changed_only_where_a_step_produced_them() -> None:
    def double(outputs: Any) -> Any:
        return {name: value * 2 for name, value in outputs.items()}

    assert StepDone(0.0, "a#1", {"x": 1}).map_outputs(double) == StepDone(0.0, "a#1", {"x": 2})
    same = StepDone(0.0, "a#1", {"x": 1})
    assert same.map_outputs(lambda outputs: outputs) is same
    answered = Answered(0.0, "ask", {"x": 1})
    assert answered.map_outputs(double) is answered
