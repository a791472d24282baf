"""What inputs must be beyond their types: every rule, all violations at once, the same in both dialects."""

from __future__ import annotations

from typing import Any

import pytest

from workflows_mcp.dialects import load
from workflows_mcp.errors import DefinitionError, InvalidInputs
from workflows_mcp.plan.inputs import check_inputs, input_schema
from workflows_mcp.plan.model import Plan
from workflows_mcp.steps.registry import default_registry
from workflows_mcp.values import secret_mark, to_json

BODIES = {
    "graph": "blocks: [{id: a, type: Shell, inputs: {command: make}}]",
    "stateful": "steps: [{id: a, type: wait, needs_state: [], duration_seconds: 1}]",
}


def plan_of(dialect: str = "stateful", **inputs: Any) -> Plan:
    """A workflow with these inputs."""
    text = f"name: w\ninputs: {to_json(inputs)}\n{BODIES[dialect]}\n"
    return load(text, file="w.yaml", registry=default_registry()).plan


def violations(kind: str, rules: dict[str, Any], value: Any, dialect: str = "stateful") -> list[str]:
    plan = plan_of(dialect, x={"type": kind, "validation": rules})
    try:
        check_inputs(plan, {"x": value})
    except InvalidInputs as error:
        return error.message.removeprefix("the inputs do not fit workflow 'w': ").split("; ")
    return []


CONFIG = {
    "required_keys": ["host", "port"],
    "properties": {
        "host": {"type": "string", "validation": {"pattern": "^[a-z.]+$"}},
        "port": {"type": "integer", "min": 1, "max": 65535},
        "paths": {"type": "array", "item_type": "string", "max_items": 2},
        "tls": {"type": "object", "properties": {"version": {"type": "string", "enum": ["1.2", "1.3"]}}},
    },
}


@pytest.mark.rows("S1")
@pytest.mark.parametrize("dialect", ["stateful", "graph"])
@pytest.mark.parametrize(
    ("kind", "rules", "value", "expected"),
    [
        ("string", {"pattern": r"^v\d+$"}, "v12", []),
        ("string", {"pattern": r"^v\d+$"}, "12", ["input 'x' must match the pattern ^v\\d+$, not \"12\""]),
        ("string", {"pattern": "b"}, "abc", []),
        ("string", {"min_length": 3}, "ab", ["input 'x' must be at least 3 characters long, not 2"]),
        ("string", {"max_length": 3}, "abcd", ["input 'x' must be at most 3 characters long, not 4"]),
        ("string", {"min_length": 3, "max_length": 3}, "abc", []),
        ("string", {"enum": ["a", "b"]}, "b", []),
        ("string", {"enum": ["a", "b"]}, "c", ["""input 'x' must be one of "a", "b", not "c\""""]),
        ("integer", {"enum": [1, 2]}, 3, ["input 'x' must be one of 1, 2, not 3"]),
        ("number", {"min": 1, "max": 10}, 1, []),
        ("number", {"min": 1, "max": 10}, "10", []),
        ("number", {"min": 1, "max": 10}, 0.5, ["input 'x' must be 1 or more, not 0.5"]),
        ("number", {"min": 1, "max": 10}, 11, ["input 'x' must be 10 or less, not 11"]),
        ("array", {"min_items": 2}, [1], ["input 'x' must have at least 2 items, not 1"]),
        ("array", {"max_items": 2}, [1, 2, 3], ["input 'x' must have at most 2 items, not 3"]),
        ("array", {"item_type": "string"}, ["a", "b"], []),
        (
            "array",
            {"item_type": "integer"},
            ["1", "x", 2.5],
            [
                """input 'x[1]' must be a whole number, e.g. 42, not text "x\"""",
                "input 'x[2]' must be a whole number, e.g. 42, not number 2.5",
            ],
        ),
        ("object", CONFIG, {"host": "example.org", "port": "443", "more": 1}, []),
        (
            "object",
            CONFIG,
            {"host": "EXAMPLE", "paths": ["a", [2], "c"], "tls": {"version": "1.0"}},
            [
                "input 'x' must have the key 'port'",
                """input 'x.host' must match the pattern ^[a-z.]+$, not "EXAMPLE\"""",
                "input 'x.paths' must have at most 2 items, not 3",
                """input 'x.paths[1]' must be text, e.g. "hello", not list [2]""",
                """input 'x.tls.version' must be one of "1.2", "1.3", not "1.0\"""",
            ],
        ),
        (
            "object",
            {"properties": {"a": {"type": "string", "required": True}}},
            {},
            ["input 'x' must have the key 'a'"],
        ),
        ("any", {"min": 1, "min_length": 2}, "a", ["input 'x' must be at least 2 characters long, not 1"]),
        ("any", {"min": 1, "min_length": 2}, 0, ["input 'x' must be 1 or more, not 0"]),
    ],
)
def test_a_rule_is_checked(
    dialect: str, kind: str, rules: dict[str, Any], value: Any, expected: list[str]
) -> None:
    assert violations(kind, rules, value, dialect) == expected


@pytest.mark.rows("S1")
def test_all_violations_of_all_inputs_are_named_at_once() -> None:
    plan = plan_of(
        a={"type": "string", "required": True, "validation": {"pattern": "^a", "min_length": 3}},
        b={"type": "number", "validation": {"max": 1}},
        c={"type": "boolean", "required": True},
    )
    with pytest.raises(InvalidInputs) as caught:
        check_inputs(plan, {"a": "b", "b": 2, "d": 1})
    assert caught.value.message == (
        "the inputs do not fit workflow 'w': input 'a' must be at least 3 characters long, not 1; "
        "input 'a' must match the pattern ^a, not \"b\"; input 'b' must be 1 or less, not 2; "
        "missing input 'c' (boolean, required); unknown input 'd'"
    )
    assert 'a (string, pattern "^a", min_length 3, required)' in caught.value.hint


@pytest.mark.rows("S1")
def test_items_and_properties_are_converted_like_inputs_themselves() -> None:
    plan = plan_of(
        x={"type": "object", "validation": CONFIG},
        y={"type": "array", "validation": {"item_type": "integer"}},
    )
    given = {"x": '{"host": "a", "port": "80"}', "y": ["1", 2]}
    assert check_inputs(plan, given) == {"x": {"host": "a", "port": 80}, "y": [1, 2]}


@pytest.mark.rows("S1")
def test_what_is_not_given_need_not_fit() -> None:
    plan = plan_of(a={"type": "string", "validation": {"min_length": 3}}, b={"type": "number", "default": 2})
    assert check_inputs(plan, {}) == {"a": None, "b": 2}
    assert check_inputs(plan, {"a": None}) == {"a": None, "b": 2}


def test_the_mark_of_a_secret_is_not_looked_into() -> None:
    plan = plan_of(
        token={"type": "string", "validation": {"pattern": "^ghp", "max_length": 3, "enum": ["ghp"]}}
    )
    assert check_inputs(plan, {"token": secret_mark("TOKEN")}) == {"token": secret_mark("TOKEN")}


def test_a_pattern_that_would_take_for_ever_is_a_refusal_and_not_a_hang() -> None:
    [message] = violations("string", {"pattern": "^(a|aa)+$"}, "a" * 60 + "b")
    assert message.startswith("input 'x' cannot be checked: the pattern")


@pytest.mark.rows("S1")
def test_the_rules_are_in_the_schema_of_the_inputs() -> None:
    plan = plan_of(
        a={
            "type": "string",
            "validation": {"pattern": "^a", "min_length": 1, "max_length": 9, "enum": ["a"]},
        },
        b={"type": "integer", "default": 2, "validation": {"min": 1, "max": 3}},
        c={"type": "array", "validation": {"item_type": "number", "min_items": 1, "max_items": 2}},
        d={
            "type": "object",
            "validation": {
                "required_keys": ["k"],
                "properties": {"k": {"type": "string", "description": "A key", "max_length": 3}},
            },
        },
    )
    assert input_schema(plan)["properties"] == {
        "a": {"type": "string", "pattern": "^a", "minLength": 1, "maxLength": 9, "enum": ["a"]},
        "b": {"type": "integer", "minimum": 1, "maximum": 3, "default": 2},
        "c": {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 2},
        "d": {
            "type": "object",
            "required": ["k"],
            "properties": {"k": {"type": "string", "maxLength": 3, "description": "A key"}},
        },
    }


def test_a_default_fits_the_rules() -> None:
    with pytest.raises(DefinitionError) as caught:
        plan_of(x={"type": "object", "default": {"host": "A", "port": 0}, "validation": CONFIG})
    assert [problem.message for problem in caught.value.problems] == [
        "the default of input 'x', in host, must match the pattern ^[a-z.]+$, not \"A\"",
        "the default of input 'x', in port, must be 1 or more, not 0",
    ]
