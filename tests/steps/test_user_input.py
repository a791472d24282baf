"""What the user is asked for, which answers are understood, and how others are refused."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from support.questions import AskedRun
from workflows_mcp.errors import InvalidResult
from workflows_mcp.steps.base import StepResult
from workflows_mcp.steps.prompts import UserInput
from workflows_mcp.values import Value

pytestmark = pytest.mark.rows("R12")
STEP = UserInput()
ENVIRONMENTS = {"pattern": "^(dev|staging|prod)$", "error_message": "Please enter: dev, staging, or prod"}
CHOICES = {"choices": ["dev", "Staging", "3"]}


def asked(**inputs: Value) -> AskedRun:
    return AskedRun(STEP, {"prompt": "Where to?", **inputs})


def answer(result: Value, **inputs: Value) -> Value:
    taken = asked(**inputs).submit(result)
    assert taken == StepResult({"result": taken.outputs["result"]})
    return taken.outputs["result"]


def test_the_user_is_asked_and_nobody_else() -> None:
    action = asked(validation=ENVIRONMENTS).action
    assert action["type"] == "user_input"
    assert action["parameters"] == {"prompt": "Where to?", "validation": ENVIRONMENTS}
    for said in ("never answer for the user", "ask again", '"input"'):
        assert said in action["instructions"]
    assert asked().action["parameters"] == {"prompt": "Where to?"}
    assert "validation" not in asked().action["instructions"]


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("prod", "prod"),
        ({"input": "prod"}, "prod"),
        ({"value": "prod"}, "prod"),
        ({"response": "prod"}, "prod"),
        ({"result": "prod"}, "prod"),
        ('{"input": "prod"}', "prod"),
        (" prod\n", "prod"),
    ],
)
def test_a_text_is_the_answer_whatever_it_is_called(result: Value, text: str) -> None:
    assert answer(result, validation=ENVIRONMENTS) == text


@pytest.mark.parametrize(
    ("result", "text"), [("", ""), (" as it is \n", " as it is \n"), (42, "42"), (True, "true"), ("1.10", "1.10")]
)  # fmt: skip
def test_without_validation_any_text_is_taken_as_it_is(result: Value, text: str) -> None:
    assert answer(result) == text


def test_an_answer_that_does_not_fit_is_refused_in_the_words_of_the_author_and_asked_for_again() -> None:
    run = asked(validation=ENVIRONMENTS)
    before = run.action
    with pytest.raises(InvalidResult) as refused:
        run.submit("qa")
    assert refused.value.message == "the answer to 'ask' is refused: Please enter: dev, staging, or prod"
    assert "'input' must match the pattern ^(dev|staging|prod)$" in refused.value.hint
    assert "Nothing has changed" in refused.value.hint
    assert run.action == before
    assert run.machine.state.root.records["ask"].outputs == {}
    assert run.submit("dev").outputs == {"result": "dev"}


@pytest.mark.parametrize("result", [{"inputt": "dev"}, None, {}, ["dev"], {"input": "dev", "note": "x"}])
def test_a_result_of_another_form_is_refused_for_its_form(result: Value) -> None:
    with pytest.raises(InvalidResult, match="the result does not fit what 'ask' asks for"):
        answer(result, validation=ENVIRONMENTS)


@pytest.mark.parametrize(
    ("rules", "fits", "others"),
    [
        ({"min_length": 2}, "ab", ["a", ""]),
        ({"max_length": 2}, "ab", ["abc"]),
        ({"pattern": "^[a-z]+$"}, "ab", ["AB", ""]),
        ({"options": ["a", "b"]}, "a", ["c", ""]),
        ({"choices": [1, 2]}, "1", ["3"]),
    ],
)
def test_every_rule_counts(rules: dict[str, Value], fits: str, others: list[str]) -> None:
    assert answer(fits, validation=rules) == fits
    for other in others:
        with pytest.raises(InvalidResult, match="'input'"):
            answer(other, validation=rules)


@pytest.mark.parametrize(
    ("result", "text"), [("dev", "dev"), (1, "dev"), ("2.", "Staging"), ("STAGING ", "Staging"), (3, "3")]
)
def test_a_choice_is_known_by_its_text_its_number_or_in_other_capitals(result: Value, text: str) -> None:
    assert answer(result, prompt_type="choice", validation=CHOICES) == text
    assert answer(result, validation=CHOICES) == text


@pytest.mark.parametrize(("result", "value"), [(True, True), ("no", False), ({"input": "yes"}, True)])
def test_a_confirmation_is_true_or_false(result: Value, value: bool) -> None:
    assert answer(result, prompt_type="confirm") is value
    with pytest.raises(InvalidResult):
        answer("perhaps", prompt_type="confirm")


@pytest.mark.parametrize("result", ["", None, {}, {"input": ""}, {"value": None}])
def test_an_empty_answer_stands_for_the_default(result: Value) -> None:
    assert answer(result, default="dev", validation=ENVIRONMENTS) == "dev"
    assert answer(result, default="no", prompt_type="confirm") is False
    assert answer("prod", default="dev", validation=ENVIRONMENTS) == "prod"


def test_a_default_is_offered_unless_it_came_out_as_something_that_does_not_fit() -> None:
    action = asked(default="dev", validation=ENVIRONMENTS).action
    assert action["parameters"]["default"] == "dev"
    assert "parameters.default" in action["instructions"]
    run = asked(default="feature", validation=ENVIRONMENTS)
    assert "default" not in run.action["parameters"]
    with pytest.raises(InvalidResult, match="Please enter"):
        run.submit("")


@pytest.mark.parametrize(
    ("inputs", "answer"),
    [
        ({"default": "dev"}, "dev"),
        ({"default": "dev", "validation": ENVIRONMENTS}, "dev"),
        ({"default": "2", "validation": CHOICES}, "Staging"),
        ({"default": "no", "prompt_type": "confirm"}, False),
    ],
)
def test_a_form_shows_the_default_and_can_be_sent_without_an_answer(
    inputs: dict[str, Value], answer: Value
) -> None:
    run = asked(**inputs)
    schema = run.action["result_schema"]
    assert schema["properties"]["input"]["default"] == answer
    assert "required" not in schema
    assert schema["additionalProperties"] is False
    assert run.submit({}).outputs == {"result": answer}


@pytest.mark.parametrize("inputs", [{}, {"default": "feature", "validation": ENVIRONMENTS}])
def test_without_a_default_that_fits_an_answer_is_required(inputs: dict[str, Value]) -> None:
    schema = asked(**inputs).action["result_schema"]
    assert schema["required"] == ["input"]
    assert "default" not in schema["properties"]["input"]


@pytest.mark.parametrize(
    ("inputs", "wrong"),
    [
        ({"default": "qa", "validation": ENVIRONMENTS}, True),
        ({"default": "maybe", "prompt_type": "confirm"}, True),
        ({"default": "dev", "validation": ENVIRONMENTS}, False),
        ({"default": "2", "validation": CHOICES}, False),
        ({"default": "qa"}, False),
        ({"default": None, "validation": ENVIRONMENTS}, False),
        ({"default": "qa", "validation": {"pattern": "("}}, False),
    ],
)
def test_a_default_that_is_never_an_answer_is_found_before_anything_runs(
    inputs: dict[str, Value], wrong: bool
) -> None:
    found = STEP.check_literals(inputs)
    assert [name for name, _, _ in found] == (["default"] if wrong else [])
    assert all("is not a valid answer" in error.message for _, error, _ in found)


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"validation": {"pattern": "("}}, "cannot be read"),
        ({"validation": {"patern": "x"}}, "patern"),
        ({"validation": {"min_length": 3, "max_length": 2}}, "more than max_length"),
        ({"validation": {"choices": ["a"], "options": ["b"]}}, "give one of them"),
        ({"validation": {"choices": ["a", "a"]}}, "listed twice"),
        ({"validation": {"choices": [{"a": 1}]}}, "must be text, not object"),
        ({"prompt_type": "choice"}, "needs 'choices'"),
        ({"prompt_type": "confirm", "validation": {}}, "not for confirm"),
        ({"prompt_type": "number"}, "prompt_type"),
    ],
)
def test_what_cannot_be_asked_is_refused(inputs: dict[str, Value], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        STEP.Inputs.model_validate({"prompt": "Well?", **inputs})


def test_a_pattern_that_never_ends_holds_up_nobody() -> None:
    with pytest.raises(InvalidResult, match="cannot be checked"):
        answer("a" * 40 + "!", validation={"pattern": "^(a|aa)+$"})
