"""Hints that the agent applies to a file: what it is asked, and what it says of it."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from support.questions import AskedRun
from workflows_mcp.errors import InvalidResult
from workflows_mcp.steps.apply_hints import ApplyHints
from workflows_mcp.steps.base import StepResult
from workflows_mcp.values import Value

pytestmark = pytest.mark.rows("R14")
STEP = ApplyHints()
HINTS: list[Value] = [{"line": 15, "hint": "add type", "severity": "error"}, "no any"]


def run(hints: Value = HINTS) -> AskedRun:
    return AskedRun(STEP, {"file": "src/index.ts", "hints": hints})


def test_the_agent_gets_the_file_and_the_hints_as_they_are() -> None:
    action = run().action
    assert action["type"] == "apply_hints"
    assert action["parameters"] == {"file": "src/index.ts", "hints": HINTS}
    for said in ("Change the file parameters.file", "change nothing else", '"applied_count"'):
        assert said in action["instructions"]


@pytest.mark.parametrize(
    ("hints", "taken"),
    [
        (None, []),
        ([], []),
        ("", []),
        ({"line": 1}, [{"line": 1}]),
        ("use const", ["use const"]),
        ('["a", "b"]', ["a", "b"]),
        ('{"line": 1}', [{"line": 1}]),
        ("3", ["3"]),
    ],
)
def test_one_hint_is_a_list_of_one(hints: Value, taken: list[Value]) -> None:
    assert run(hints).action["parameters"]["hints"] == taken


@pytest.mark.parametrize(
    ("result", "value"),
    [
        ({"applied_count": 2}, {"applied_count": 2}),
        (2, {"applied_count": 2}),
        (0, {"applied_count": 0}),
        (2.0, {"applied_count": 2}),
        ("2", {"applied_count": 2}),
        ('{"applied_count": 2}', {"applied_count": 2}),
        ({"applied_count": 1, "skipped": ["no any"]}, {"applied_count": 1, "skipped": ["no any"]}),
    ],
)
def test_the_result_is_the_object_with_the_number(result: Value, value: Value) -> None:
    assert run().submit(result) == StepResult({"result": value})


def test_a_file_that_could_not_be_changed_fails_the_step() -> None:
    taken = run().submit({"is_error": True, "error": "read-only"})
    assert (taken.ok, taken.message) == (False, "the hints could not be applied to src/index.ts: read-only")
    assert taken.outputs["result"]["applied_count"] == 0


@pytest.mark.parametrize("result", [{}, None, -1, 1.5, "two", True, [2], {"applied_count": "many"}])
def test_what_says_no_number_is_refused_and_nothing_changes(result: Value) -> None:
    asked = run()
    with pytest.raises(InvalidResult, match="applied_count"):
        asked.submit(result)
    assert asked.submit(1).ok


@pytest.mark.parametrize("inputs", [{}, {"file": "x"}, {"file": "", "hints": []}, {"file": "x", "hints": 3}])
def test_what_is_no_file_with_hints_is_refused(inputs: dict[str, Value]) -> None:
    with pytest.raises(ValidationError):
        STEP.Inputs.model_validate(inputs)
