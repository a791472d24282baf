from __future__ import annotations

from typing import Any

import pytest

from workflows_mcp.steps.schema_check import example, fits, violations

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "description": "full name"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "role": {"enum": ["owner", "guest"]},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
        "code": {"type": "string", "pattern": "^[a-z]+$"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def test_a_value_that_fits_has_no_violations() -> None:
    value = {"name": "Ada", "age": 36, "role": "owner", "tags": ["a"], "code": "x", "note": None}
    assert violations(value, PERSON) == []


def test_all_violations_are_named_at_once() -> None:
    wrong = violations(
        {"age": 200, "role": "gest", "tags": [1, "b", "c"], "code": "A1", "extra": 1, "note": 5}, PERSON
    )
    text = "\n".join(wrong)
    assert "'name' is missing (full name)" in text
    assert "'age' must be 150 or less, not 200" in text
    assert '\'role\' must be one of "owner", "guest", not "gest"; did you mean "guest"?' in text
    assert "'tags' must have at most 2 items, it has 3" in text
    assert "'tags[0]' must be text, not integer 1" in text
    assert "'code' must match the pattern ^[a-z]+$" in text
    assert "'extra' is not known here" in text
    assert "'note' must be text or null, not integer 5" in text
    assert len(wrong) == 8


@pytest.mark.parametrize("schema", [{"type": "string"}, {"anyOf": [{"type": "string"}]}])
def test_null_in_place_of_something_is_said_once(schema: dict[str, Any]) -> None:
    assert violations({"a": None}, {"properties": {"a": schema}}) == ["'a' must be text, not null"]


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        (True, {"type": "integer"}),
        (1, {"type": "boolean"}),
        (1, {"const": True}),
        (1.5, {"type": "integer"}),
        ("", {"type": "string", "minLength": 1}),
        ("abcd", {"maxLength": 3}),
        ([], {"type": "array", "minItems": 1}),
        (-1, {"type": "number", "minimum": 0}),
        ({"a": 1}, {"type": "object", "additionalProperties": {"type": "string"}}),
        ("x", {"type": ["integer", "null"]}),
    ],
)
def test_what_does_not_fit_is_refused(value: Any, schema: dict[str, Any]) -> None:
    assert len(violations(value, schema)) == 1


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        (2.0, {"type": "integer"}),
        (2, {"type": "number"}),
        (None, {"type": ["integer", "null"]}),
        ({"anything": 1}, {"type": "object"}),
        ("free", {}),
    ],
)
def test_what_fits_is_taken(value: Any, schema: dict[str, Any]) -> None:
    assert fits(value, schema)


def test_the_example_of_a_schema_fits_it() -> None:
    assert fits(example(PERSON), PERSON)
    assert example(PERSON) == {"name": "…", "age": 0}
