"""How a task is worded for an agent, and which answers are understood."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from workflows_mcp.steps.base import Question
from workflows_mcp.steps.delegate import Delegate
from workflows_mcp.steps.results import Asked, understood
from workflows_mcp.steps.schema_check import violations
from workflows_mcp.values import Value

pytestmark = pytest.mark.rows("S7")

DELEGATE = Delegate()


def asked(**inputs: Value) -> Question:
    return DELEGATE.ask(DELEGATE.Inputs.model_validate({"instructions": "Sum it up.", **inputs}))


def answer(result: Value, **inputs: Value) -> dict[str, Value] | list[str]:
    """What an answer amounts to, or all that is wrong with it."""
    given = DELEGATE.Inputs.model_validate({"instructions": "Sum it up.", **inputs})
    question = DELEGATE.ask(given)
    normalized = understood(Asked(DELEGATE, given, question), result)
    return violations(normalized, question.result_schema) or DELEGATE.parse_result(given, normalized).outputs


@pytest.mark.parametrize("agent", [{}, {"agent": None}, {"agent": ""}])
def test_without_an_agent_whoever_is_asked_does_it(agent: dict[str, Value]) -> None:
    question = asked(**agent)
    assert question.type == "delegate"
    assert question.parameters == {"instructions": "Sum it up."}
    assert "yourself" in question.instructions
    assert "sub-agent" not in question.instructions


def test_with_an_agent_a_sub_agent_of_that_kind_gets_the_instructions() -> None:
    question = asked(agent="@code-reviewer", timeout=60)
    assert question.parameters == {"instructions": "Sum it up.", "agent": "@code-reviewer", "timeout": 60}
    for said in (
        "Start a sub-agent (@code-reviewer, or a general one)",
        "parameters.instructions",
        "You cannot ask the user. If only the user can decide a question, return the question",
        '"response"',
    ):
        assert said in question.instructions


def test_a_task_for_anybody_goes_to_any_sub_agent() -> None:
    assert "Start a sub-agent; do it yourself if you cannot" in asked(agent="@task").instructions


@pytest.mark.parametrize("agent", ["reviewer", "@Data_Analyst", "@agent.name", "@", "@a b", 5])
def test_a_name_of_another_form_is_refused(agent: Value) -> None:
    with pytest.raises(ValidationError, match="write @name"):
        asked(agent=agent)


@pytest.mark.parametrize(
    ("result", "response"),
    [
        ("It is fine.", "It is fine."),
        ({"response": "It is fine."}, "It is fine."),
        (["a", "b"], '["a","b"]'),
        ('["a", "b"]', '["a", "b"]'),
        ({"response": ["a", 1]}, '["a",1]'),
        ({"response": {"score": 5}}, '{"score":5}'),
        (7, "7"),
        (True, "true"),
    ],
)
def test_an_answer_is_text_and_data_its_json(result: Value, response: str) -> None:
    assert answer(result) == {"response": response, "agent_used": None, "tokens_used": None}


@pytest.mark.parametrize("result", [{"score": 5}, {"respons": "misspelt"}, {}])
def test_an_object_without_a_response_is_refused(result: Value) -> None:
    assert "'response'" in str(answer(result))
    assert isinstance(answer(result), list)


def test_who_has_answered_is_known_if_it_is_told_or_was_asked_for() -> None:
    assert answer("x", agent="@a") == {"response": "x", "agent_used": "@a", "tokens_used": None}
    told = {"response": "x", "agent_used": "general", "tokens_used": 321}
    assert answer(told, agent="@a") == told


@pytest.mark.parametrize("result", [{}, {"response": None}, None, {"response": "x", "tokens_used": "many"}])
def test_what_is_no_answer_is_refused(result: Value) -> None:
    assert isinstance(answer(result), list)
