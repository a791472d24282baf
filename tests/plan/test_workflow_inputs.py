"""Values for the inputs of a workflow: completed, converted where nothing is lost, or all refused."""

from __future__ import annotations

import pytest

from support.plans import Plan
from workflows_mcp.errors import InvalidInputs
from workflows_mcp.plan import model
from workflows_mcp.plan.inputs import check_inputs, converted, input_schema
from workflows_mcp.plan.model import Graph, InputSpec, InputType
from workflows_mcp.values import Value


def plan(**inputs: InputSpec) -> model.Plan:
    return Plan("deploy", "graph", Graph(()), inputs)


def optional(kind: InputType, default: Value) -> InputSpec:
    return InputSpec(kind, required=False, default=default, has_default=True)


@pytest.mark.rows("G17")
@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        ("string", "42", "42"),
        ("string", 42, "42"),
        ("string", 1.5, "1.5"),
        ("string", True, "true"),
        ("integer", 42, 42),
        ("integer", "42", 42),
        ("integer", "-7", -7),
        ("integer", 42.0, 42),
        ("number", "3.5", 3.5),
        ("number", "42", 42),
        ("number", 42, 42),
        ("float", 5, 5.0),
        ("float", "1e3", 1000.0),
        ("boolean", "true", True),
        ("boolean", "False", False),
        ("boolean", False, False),
        ("list", '[1, "a"]', [1, "a"]),
        ("list", [], []),
        ("object", '{"a": {"b": null}}', {"a": {"b": None}}),
        ("any", None, None),
        ("any", "42", "42"),
    ],
)
def test_text_that_says_the_same_is_taken_as_the_value(kind: InputType, given: Value, value: Value) -> None:
    found = check_inputs(plan(x=InputSpec(kind)), {"x": given})["x"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.rows("G17")
@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("string", None),
        ("string", [42]),
        ("integer", "4.5"),
        ("integer", 4.5),
        ("integer", True),
        ("integer", "042"),
        ("integer", "1_000"),
        ("integer", ""),
        ("integer", "9" * 30),
        ("integer", 2**70),
        ("number", "nan"),
        ("number", float("inf")),
        ("number", "1,5"),
        ("float", False),
        ("boolean", 1),
        ("boolean", "yes"),
        ("list", "a, b"),
        ("list", {"a": 1}),
        ("list", '{"a": 1}'),
        ("object", "[1]"),
        ("object", "{broken"),
        ("any", {"x": object()}),
        ("object", {"deep": [2**70]}),
    ],
)
def test_anything_else_is_refused_with_what_was_expected(kind: InputType, given: object) -> None:
    with pytest.raises(InvalidInputs, match=r"input 'x' (must be|cannot be stored)"):
        check_inputs(plan(x=InputSpec(kind)), {"x": given})


@pytest.mark.rows("G17")
def test_what_is_not_given_takes_its_default() -> None:
    spec = plan(
        a=optional("integer", 3),
        b=InputSpec("string", required=False),
        c=optional("list", [1]),
        d=InputSpec(),
    )
    assert check_inputs(spec, {"d": 0}) == {"a": 3, "b": None, "c": [1], "d": 0}


def test_null_for_an_optional_input_means_that_it_is_not_given() -> None:
    assert check_inputs(plan(a=optional("integer", 3)), {"a": None}) == {"a": 3}


@pytest.mark.rows("G17", "G24")
def test_all_problems_are_named_at_once_with_what_the_workflow_takes() -> None:
    spec = plan(name=InputSpec("string"), count=InputSpec("integer"), dry_run=optional("boolean", False))
    with pytest.raises(InvalidInputs) as caught:
        check_inputs(spec, {"count": "many", "dryrun": True, "zzz": 1})
    message = caught.value.message
    assert "workflow 'deploy'" in message
    assert "missing input 'name' (string, required)" in message
    assert "input 'count' must be a whole number, e.g. 42, not text \"many\"" in message
    assert "unknown input 'dryrun', did you mean 'dry_run'?" in message
    assert "unknown input 'zzz'" in message
    hint = "takes: name (string, required), count (integer, required), dry_run (boolean, default false)"
    assert hint in caught.value.hint


def test_a_workflow_without_inputs_says_so() -> None:
    with pytest.raises(InvalidInputs, match="takes no inputs"):
        check_inputs(plan(), {"x": 1})
    assert check_inputs(plan(), {}) == {}


def test_a_value_that_json_cannot_hold_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="cannot be stored in a run"):
        converted({1: object()}, "object")


@pytest.mark.rows("G17")
def test_the_inputs_are_described_as_json_schema() -> None:
    spec = plan(
        name=InputSpec("string", "Who"), n=optional("float", 1.5), files=InputSpec("list"), x=InputSpec("any")
    )
    assert input_schema(spec) == {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "Who"},
            "n": {"type": "number", "default": 1.5},
            "files": {"type": "array"},
            "x": {},
        },
        "required": ["name", "files", "x"],
        "additionalProperties": False,
    }
