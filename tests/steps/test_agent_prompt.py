"""The prompt for a program that performs a step, and which results are found in what it replies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from workflows_mcp.steps.agent_prompt import failure_in, find_result, prompt_for
from workflows_mcp.steps.agent_shell import AgentShell
from workflows_mcp.steps.delegate import Delegate
from workflows_mcp.steps.results import Asked, asked_of
from workflows_mcp.values import Value

pytestmark = pytest.mark.rows("P9")

SCHEMA: dict[str, Value] = {
    "type": "object",
    "properties": {"files": {"type": "array", "items": {"type": "string"}}},
    "required": ["files"],
    "additionalProperties": False,
}
FITS = json.dumps({"files": ["a"]})


def asked(schema: dict[str, Value] | None = None) -> Asked:
    step = Delegate()
    inputs = step.Inputs(instructions="Find the files", agent="@finder")  # type: ignore[call-arg]
    return asked_of(step, inputs, step.ask_alone(inputs), schema)


@pytest.mark.parametrize(
    "reply",
    [
        FITS,
        f"  {FITS}\n",
        f"I looked everywhere.\n\n```json\n{FITS}\n```\nThat is all.",
        f"```\n{FITS}\n```",
        f"The result is {FITS}.",
        f'First I thought {{"files": ["b"]}}, but it is {FITS}',
        f'{{not json}} {{"other": 1}} {FITS} {{"files": 1}}',
        json.dumps({"files": ["a"], "tokens_used": 7}),
    ],
)
def test_a_result_is_found_alone_in_a_code_block_and_between_words(reply: str) -> None:
    assert find_result(asked(SCHEMA), reply) == ({"files": ["a"]}, [])


def test_a_reply_without_a_result_says_what_is_missing() -> None:
    assert find_result(asked(SCHEMA), "I did it.")[1]
    [wrong] = find_result(asked(SCHEMA), 'Here: {"files": "a"}')[1]
    assert "files" in wrong


@pytest.mark.parametrize(
    ("reply", "response"),
    [
        ("# Plan\n\nDo it.\n", "# Plan\n\nDo it."),
        ('{"response": "Do it."}', "Do it."),
        ('Done.\n```json\n{"response": "Do it."}\n```', "Do it."),
        ('["one", "two"]', '["one", "two"]'),
        ('Use this:\n```json\n{"port": 1}\n```', 'Use this:\n```json\n{"port": 1}\n```'),
        ('{"response": ["one"]}', '["one"]'),
    ],
)
def test_a_text_is_the_reply_as_a_whole_unless_it_has_the_field_of_the_result(
    reply: str, response: str
) -> None:
    assert find_result(asked(), reply) == ({"response": response}, [])


def test_what_a_command_printed_is_found_between_words() -> None:
    step = AgentShell()
    inputs = step.Inputs(command="ls")  # type: ignore[call-arg]
    shell = asked_of(step, inputs, step.ask_alone(inputs))
    result, wrong = find_result(shell, 'I ran it: {"stdout": "a\\n", "stderr": "", "exit_code": 0}')
    assert (result, wrong) == ({"stdout": "a\n", "stderr": "", "exit_code": 0}, [])


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        ('{"is_error": true, "error": "which one?"}', True),
        ('I cannot.\n```json\n{"is_error": true, "error": "which one?"}\n```', True),
        ('{"is_error": false, "error": "which one?"}', False),
        ("I cannot", False),
    ],
)
def test_a_reply_can_say_that_the_step_failed(reply: str, found: bool) -> None:
    assert (failure_in(reply) is not None) is found


def test_a_reply_that_is_deep_or_full_of_braces_is_read_in_no_time() -> None:
    for reply in ("[" * 100_000, "{" * 100_000, '{"a":' * 5_000):
        assert find_result(asked(SCHEMA), reply)[1]


def test_the_prompt_has_the_instructions_the_parameters_the_schema_and_what_to_fix() -> None:
    question = asked(SCHEMA).question
    text = prompt_for(question, ["'files' is missing"], role="You find files.")
    for part in ("You find files.", "@finder", "Find the files", json.dumps(["files"]), "'files' is missing"):
        assert part in text
    for part in ("sub-agent", "Start"):
        assert part not in text
    again: Any = prompt_for(question)
    assert "rejected" not in again
