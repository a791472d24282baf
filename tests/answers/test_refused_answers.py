"""What a person is told whose answer does not fit: short, and without a word that only agents understand."""

from __future__ import annotations

from typing import Any

import pytest

from support.questions import AskedRun
from workflows_mcp.answers.results import refusal_for_person
from workflows_mcp.errors import InvalidResult
from workflows_mcp.steps.prompts import Prompt, UserInput
from workflows_mcp.values import Value


def form(**field: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"response": field},
        "required": ["response"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("given", "field", "said"),
    [
        ({}, {"type": "string"}, "Please enter text."),
        ({"response": None}, {"type": "string"}, "Please enter text."),
        ({"response": ["x"]}, {"type": "string"}, "Please enter text."),
        ({"response": ""}, {"type": "string", "minLength": 1}, "Please enter text."),
        ({"response": "maybe"}, {"type": "boolean"}, "Please answer yes or no."),
        ({"response": "x"}, {"type": "integer"}, "Please enter a whole number."),
        ({"response": "x"}, {"type": "number"}, "Please enter a number."),
        ({"response": 0}, {"type": "number", "minimum": 1}, "Please enter a number of at least 1."),
        ({"response": 7}, {"type": "integer", "maximum": 5}, "Please enter a whole number of at most 5."),
        ({"response": 7}, {"type": "number", "minimum": 1, "maximum": 5}, "Please enter a number of 1 to 5."),
        ({"response": "c"}, {"type": "string", "enum": ["a", "b"]}, "Choose one of: a, b."),
        ({}, {"type": "string", "enum": ["a", "b"]}, "Choose one of: a, b."),
        (
            {"response": "ab"},
            {"type": "string", "minLength": 3},
            "Please enter text of at least 3 characters; yours has 2.",
        ),
        (
            {"response": "abcdef"},
            {"type": "string", "minLength": 3, "maxLength": 5},
            "Please enter text of 3 to 5 characters; yours has 6.",
        ),
        (
            {"response": "A1"},
            {"type": "string", "minLength": 1, "pattern": "^[a-z]+$"},
            "Please enter text that fits the pattern ^[a-z]+$",
        ),
    ],
)
def test_a_person_is_told_what_is_wanted_in_one_sentence(given: Value, field: Any, said: str) -> None:
    assert refusal_for_person(given, form(**field)) == said


@pytest.mark.parametrize("given", [{"response": "x", "more": 1}, {"response": "x", "other": None}])
def test_what_no_form_asks_for_is_not_named_to_a_person(given: Value) -> None:
    said = refusal_for_person(given, form(type="string"))
    assert said == "That answer cannot be used. Please fill in the form again."


def test_of_several_fields_each_wrong_one_is_named() -> None:
    schema = {
        "properties": {
            "name": {"type": "string", "title": "Your name"},
            "age": {"type": "integer"},
            "note": {"type": "string"},
        },
        "required": ["name", "age"],
    }
    assert refusal_for_person({"age": "old", "note": "x"}, schema).splitlines() == [
        "Your name: Please enter text.",
        "age: Please enter a whole number.",
    ]


def test_many_options_are_cut() -> None:
    said = refusal_for_person({}, form(enum=[str(number) for number in range(100)]))
    assert said.startswith("Choose one of: 0, 1, ")
    assert said.endswith(", 19, …")


def refused(run: AskedRun, result: Value) -> InvalidResult:
    with pytest.raises(InvalidResult) as error:
        run.submit(result)
    return error.value


def test_a_refused_result_says_so_to_the_agent_and_to_the_user_each_in_its_words() -> None:
    error = refused(AskedRun(Prompt(), {"prompt": "Well?"}), {"response": None})
    assert error.message == "the result does not fit what 'ask' asks for: 'response' must be text, not null"
    assert error.for_user == "Please enter text."


def test_the_words_of_the_author_reach_the_user_as_they_are() -> None:
    rules = {"pattern": "^[a-z]+$", "error_message": "Small letters, please"}
    error = refused(AskedRun(UserInput(), {"prompt": "Well?", "validation": rules}), "A")
    assert error.for_user == "Small letters, please"
    assert error.message == "the answer to 'ask' is refused: Small letters, please"
