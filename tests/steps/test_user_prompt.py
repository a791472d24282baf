"""What the user is asked, and which answers are understood; checked as answers of an agent are."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from workflows_mcp.steps.base import Question
from workflows_mcp.steps.prompts import UserPrompt
from workflows_mcp.steps.results import Asked, understood
from workflows_mcp.steps.schema_check import violations
from workflows_mcp.values import Value

pytestmark = pytest.mark.rows("S9")

PROMPT = UserPrompt()
OPTIONS = ["staging", "Production", "3"]


def asked(**inputs: Value) -> Question:
    return PROMPT.ask(PROMPT.Inputs.model_validate({"message": "Well?", **inputs}))


def answer(result: Any, **inputs: Value) -> dict[str, Value] | list[str]:
    """What an answer amounts to, or all that is wrong with it."""
    given = PROMPT.Inputs.model_validate({"message": "Well?", **inputs})
    question = PROMPT.ask(given)
    taken = understood(Asked(PROMPT, given, question), result)
    wrong = violations(taken, question.result_schema)
    return wrong or PROMPT.parse_result(given, taken).outputs


@pytest.mark.parametrize(
    ("prompt_type", "more", "field"),
    [
        ("info", {}, "acknowledged"),
        ("confirm", {}, "confirmed"),
        ("text", {"validation": {"pattern": "^a", "min_length": 1, "max_length": 9}}, "input"),
        ("choice", {"choices": ["a", "b"]}, "selected"),
    ],
)
def test_a_question_has_the_message_as_it_is_and_one_field_for_the_answer(
    prompt_type: str, more: dict[str, Value], field: str
) -> None:
    question = asked(prompt_type=prompt_type, **more)
    assert question.type == "prompt"
    assert question.parameters == {"message": "Well?", "type": prompt_type, **more}
    assert question.main_field == field
    assert question.result_schema["required"] == [field]
    assert f'"{field}"' in question.instructions
    if prompt_type != "info":
        assert "never answer for the user" in question.instructions


def test_the_rules_for_an_answer_are_in_the_schema() -> None:
    rules = {"pattern": "^a", "min_length": 1, "max_length": 9}
    schema = asked(prompt_type="text", validation=rules).result_schema["properties"]["input"]
    assert {key: schema[key] for key in ("type", "pattern", "minLength", "maxLength")} == {
        "type": "string",
        "pattern": "^a",
        "minLength": 1,
        "maxLength": 9,
    }
    schema = asked(prompt_type="choice", options=["a", 2]).result_schema["properties"]["selected"]
    assert schema["enum"] == ["a", "2"]


@pytest.mark.parametrize("result", [{"acknowledged": True}, {}, True, "ok", "seen", None, "true"])
def test_whatever_is_said_to_a_message_acknowledges_it(result: Value) -> None:
    assert answer(result, prompt_type="info") == {"acknowledged": True}


@pytest.mark.parametrize("result", [{"acknowledged": False}, False, "no"])
def test_a_message_that_was_not_shown_is_not_acknowledged(result: Value) -> None:
    assert isinstance(answer(result, prompt_type="info"), list)


@pytest.mark.parametrize(
    ("result", "confirmed"),
    [
        ({"confirmed": True}, True),
        ({"confirmed": False}, False),
        (True, True),
        (False, False),
        ("true", True),
        ("false", False),
        ("yes", True),
        ("No.", False),
        ("Y", True),
        ({"confirmed": "yes"}, True),
        ({"confirmed": "n"}, False),
        ('{"confirmed": false}', False),
    ],
)
def test_yes_and_no_are_understood_in_many_forms(result: Value, confirmed: bool) -> None:
    assert answer(result, prompt_type="confirm") == {"confirmed": confirmed}


@pytest.mark.parametrize("result", ["maybe", 1, {"confirmed": "later"}, None, {}, {"confirm": True}])
def test_what_is_neither_yes_nor_no_is_refused(result: Value) -> None:
    assert isinstance(answer(result, prompt_type="confirm"), list)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("some words", "some words"),
        ({"input": "x"}, "x"),
        (42, "42"),
        ({"input": 4.5}, "4.5"),
        ("true", "true"),
    ],
)
def test_a_text_is_taken_as_it_is(result: Value, text: str) -> None:
    assert answer(result, prompt_type="text") == {"input": text}


def test_a_text_that_does_not_fit_is_refused() -> None:
    rules = {"pattern": "^[a-z]+$", "min_length": 2, "max_length": 4}
    assert answer("abc", prompt_type="text", validation=rules) == {"input": "abc"}
    for wrong in ("a", "abcde", "ABC", ""):
        assert isinstance(answer(wrong, prompt_type="text", validation=rules), list)


@pytest.mark.parametrize(
    ("result", "selected"),
    [
        ("staging", "staging"),
        ({"selected": "Production"}, "Production"),
        ("production", "Production"),
        (" STAGING ", "staging"),
        (1, "staging"),
        ("2", "Production"),
        ("2.", "Production"),
        ("3", "3"),
        (3, "3"),
    ],
)
def test_an_option_is_known_by_its_text_its_number_or_in_other_capitals(result: Value, selected: str) -> None:
    assert answer(result, prompt_type="choice", options=OPTIONS) == {"selected": selected}


@pytest.mark.parametrize("result", ["stagin", 0, 4, "", None, ["staging"]])
def test_what_is_no_option_is_refused(result: Value) -> None:
    wrong = answer(result, prompt_type="choice", options=OPTIONS)
    assert isinstance(wrong, list)


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({}, "prompt_type"),
        ({"prompt_type": "confrim"}, "prompt_type"),
        ({"prompt_type": "choice"}, "a choice needs 'choices'"),
        ({"prompt_type": "choice", "options": ["a", "a"]}, "listed twice"),
        ({"prompt_type": "choice", "options": [{"a": 1}]}, "must be text, not object"),
        ({"prompt_type": "text", "options": ["a"]}, "are for prompt_type: choice"),
        ({"prompt_type": "confirm", "validation": {}}, "is for prompt_type: text"),
        ({"prompt_type": "text", "validation": {"pattern": "("}}, "cannot be read"),
        ({"prompt_type": "text", "validation": {"min_length": 3, "max_length": 2}}, "more than max_length"),
        ({"prompt_type": "text", "validation": {"min": 3}}, "min"),
    ],
)
def test_a_prompt_that_cannot_be_asked_is_refused(inputs: dict[str, Value], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        asked(**inputs)


def test_a_pattern_that_never_ends_holds_up_nobody() -> None:
    wrong = answer("a" * 40 + "!", prompt_type="text", validation={"pattern": "^(a|aa)+$"})
    assert isinstance(wrong, list)
    assert "cannot be checked" in wrong[0]
