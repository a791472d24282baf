"""Workflows of steps and of blocks call each other; what a step of control skips and what the server carries out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., Any]

BLOCKS = """
name: of-blocks
inputs: {word: {type: string, validation: {min_length: 2}}}
blocks:
  - {id: say, type: Shell, inputs: {command: 'printf "%s" "${inputs.word}"'}}
outputs: {said: "${blocks.say.stdout}", result: 1}
"""
STEPS = """
name: of-steps
inputs: {word: string}
initial_state: {n: 2}
steps:
  - {id: give, type: return, needs_state: [n], value: {twice: "{{ inputs.word * state.n }}"}}
"""


@pytest.mark.rows("S4")
def test_what_a_called_workflow_of_blocks_gives_is_its_outputs(run: Run) -> None:
    text = """
steps:
  - {id: call, type: workflow, needs_state: [], workflow: of-blocks, inputs: {word: hello}, output_to: got}
  - {id: give, type: return, needs_state: [got], value: "{{ state.got }}"}
"""
    assert run(text, library={"of-blocks": BLOCKS}).answer["result"] == {"said": "hello", "result": 1}


@pytest.mark.rows("S4")
def test_what_a_called_workflow_of_steps_gives_is_what_it_returned(run: Run) -> None:
    text = """
steps:
  - {id: call, type: workflow, needs_state: [], workflow: of-steps, inputs: {word: ab}, output_to: got}
  - {id: give, type: return, needs_state: [got], value: "{{ state.got.twice }}"}
"""
    assert run(text, library={"of-steps": STEPS}).answer["result"] == "abab"


@pytest.mark.rows("S4", "G16")
def test_a_block_that_calls_a_workflow_of_steps_has_its_result(run: Run) -> None:
    text = """
blocks:
  - {id: call, type: Workflow, inputs: {workflow: of-steps, inputs: {word: ab}}}
outputs: {got: "${blocks.call.outputs.result.twice}"}
"""
    assert run(text, library={"of-steps": STEPS}).answer["outputs"] == {"got": "abab"}


@pytest.mark.rows("S1")
def test_the_inputs_of_a_called_workflow_are_checked_by_its_rules(run: Run) -> None:
    text = """
initial_state: {word: a}
steps:
  - {id: call, type: workflow, needs_state: [word], workflow: of-blocks, inputs: {word: "{{ state.word }}"}}
"""
    answer = run(text, library={"of-blocks": BLOCKS}).answer
    assert answer["status"] == "failed"
    assert "input 'word' must be at least 2 characters long, not 1" in answer["error"]["message"]


@pytest.mark.rows("S3", "S4")
@pytest.mark.parametrize(("when", "expected"), [("false", "behind"), ("true", "inside")])
def test_a_condition_that_is_skipped_goes_on_behind_its_steps(run: Run, when: str, expected: str) -> None:
    text = f"""
steps:
  - id: check
    type: condition
    needs_state: []
    when: {when}
    if: true
    then: [{{id: a, type: return, needs_state: [], value: inside}}]
    else: [{{id: b, type: return, needs_state: [], value: other}}]
  - {{id: c, type: return, needs_state: [], value: behind}}
"""
    ran = run(text)
    assert ran.answer["result"] == expected


@pytest.mark.rows("S8", "X5")
def test_a_command_on_the_server_gets_a_secret_and_its_exit_code_is_a_result(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKFLOWS_SECRET_TOKEN", "correct-horse-battery")
    text = """
steps:
  - id: use
    type: shell
    needs_state: []
    run_on: server
    command: 'test "{{ secrets.TOKEN }}" = correct-horse-battery && exit 3'
    output_to: used
  - {id: give, type: return, needs_state: [used], value: "{{ state.used.exit_code }}"}
"""
    answer = run(text).answer
    assert (answer["status"], answer["result"]) == ("completed", 3)


@pytest.mark.rows("S14")
def test_more_children_at_once_than_the_limit_is_a_clear_error(run: Run) -> None:
    text = """
steps:
  - {id: each, type: foreach, needs_state: [], items: "{{ range(101) | list }}", task: t, output_to: o%s}
  - {id: give, type: return, needs_state: [o], value: "{{ state.o | length }}"}
tasks: {t: {steps: [{id: r, type: return, needs_state: [], value: "{{ item }}"}]}}
"""
    answer = run(text % "").answer
    assert answer["status"] == "failed"
    assert "WORKFLOWS_LIMIT_PARALLEL_CHILDREN" in answer["error"]["message"] + answer["error"].get("hint", "")
    assert run(text % ", sequential: true").answer["result"] == 101
    assert run(text % ", max_parallel: 100").answer["result"] == 101
