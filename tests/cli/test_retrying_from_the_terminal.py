"""Trying again what a run failed by, and doing a step of it again, from the terminal."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.rows("X3")

SHIP = """\
name: ship
blocks:
  - {id: build, type: Shell, inputs: {command: 'echo build >> log'}}
  - {id: test, type: Shell, depends_on: [build], inputs: {command: 'echo test >> log; test -f ready'}}
  - {id: approve, type: Prompt, depends_on: [test], inputs: {prompt: 'Ship it?'}}
outputs: {said: '${blocks.approve.response}'}
"""


@pytest.fixture
def failed(terminal: Any) -> str:
    terminal.write("ship.yaml", SHIP)
    said = terminal.run("run", "ship.yaml", "--json")
    assert said.code == 1
    run_id = str(said.data["workflow_id"])
    assert f"workflows-mcp retry {run_id} re-runs only what failed" in said.err
    fork = f"workflows-mcp fork {run_id} STEP redoes one of these steps and what follows it: 'build'"
    assert fork in said.err
    return run_id


def test_a_failed_run_is_tried_again_and_a_step_of_it_done_again(terminal: Any, failed: str) -> None:
    terminal.write("ready", "")
    said = terminal.run("retry", failed, "--json")
    assert (said.code, said.data["status"], said.data["forked_from"]) == (3, "pending_action", failed)
    new = said.data["workflow_id"]
    assert f"{new} is a new run, forked from {failed}" in said.err
    assert "build" not in said.err, "what was done is not shown again"
    assert f", forked from {failed}" in terminal.run("show", new).out
    assert terminal.run("show", new, "--json").data["forked_from"] == failed
    shown = terminal.run("show", failed).out
    assert f"continued as {new}: workflows-mcp show {new}" in shown
    assert ("forked from" in shown, "workflows-mcp retry" in shown) == (False, False)
    assert terminal.run("answer", new, "yes").code == 0

    terminal.write("answers.yaml", "approve: no")
    said = terminal.run("fork", new, "approve", "--answers", "answers.yaml", "--json")
    assert (said.code, said.data["outputs"], said.data["forked_from"]) == (0, {"said": "no"}, new)
    said = terminal.run("fork", new, "test")
    assert said.code == 3
    assert (terminal.workspace / "log").read_text().split() == ["build", "test", "test", "test"]


def test_a_task_whose_sub_agent_is_gone_is_handed_out_again_in_the_same_run(terminal: Any) -> None:
    terminal.write(
        "each.yaml",
        """
name: each
initial_state: {}
tasks:
  look: {inputs: {it: {type: string}}, steps: [
    {id: read, type: delegate, needs_state: [], instructions: "{{ inputs.it }}"}]}
steps:
  - {id: look, type: foreach, needs_state: [], items: [a, b], task: look, agent: "@task", output_to: a}
""",
    )
    run_id = terminal.run("run", "each.yaml", "--json").data["workflow_id"]
    said = terminal.run("retry", f"{run_id}.look.1")
    assert (said.code, said.out) == (0, "")
    assert f"the task {run_id}.look.1 will start again: get its action from {run_id}" in said.err
    said = terminal.run("retry", f"{run_id}.look.1", "--json")
    assert (said.code, said.data["action"]["step_id"]) == (0, "look")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("retry", "wf_unknown"), "there is no run 'wf_unknown'"),
        (("fork", "RUN", "tset"), "did you mean 'test'?"),
        (("fork", "RUN", "approve"), "fork from one of 'build', 'test'"),
    ],
)
def test_what_cannot_be_done_again_is_told(
    terminal: Any, failed: str, words: tuple[str, ...], expected: str
) -> None:
    said = terminal.run(*(word.replace("RUN", failed) for word in words))
    assert said.code == 2
    assert expected in said.err


def test_a_run_is_tried_again_with_the_definition_that_was_fixed(terminal: Any, failed: str) -> None:
    terminal.write("ship.yaml", SHIP.replace("test -f ready", "true"))
    said = terminal.run("retry", failed, "--definition", "ship.yaml", "--json")
    assert (said.code, said.data["status"], said.data["forked_from"]) == (3, "pending_action", failed)
    assert (terminal.workspace / "log").read_text().split() == ["build", "test", "test"]
    terminal.write("ship.yaml", SHIP.replace("echo test", "echo tested").replace("Ship it?", "Really?"))
    said = terminal.run("retry", said.data["workflow_id"], "--definition", "ship.yaml")
    assert (said.code, "is still running and has not failed" in said.err) == (2, True)
    said = terminal.run("fork", failed, "test", "--definition", "nowhere.yaml")
    assert said.code == 2


def test_a_run_that_would_fail_again_says_how_to_continue_with_a_fixed_definition(terminal: Any) -> None:
    text = SHIP.replace("${blocks.approve.response}", "${inputs.data.nmae}").replace(
        "blocks:", "inputs: {data: {type: object, default: {name: Ada}}}\nblocks:"
    )
    terminal.write("ship.yaml", text)
    terminal.write("ready", "")
    terminal.write("answers.yaml", "approve: 'yes'")
    said = terminal.run("run", "ship.yaml", "--answers", "answers.yaml")
    assert said.code == 1
    (hint,) = [line.split() for line in said.err.splitlines() if "--definition FILE" in line]
    terminal.write("ship.yaml", text.replace("nmae", "name"))
    said = terminal.run("retry", hint[2], "--definition", "ship.yaml", "--json")
    assert (said.code, said.data["status"], said.data["outputs"]) == (0, "completed", {"said": "Ada"})
    assert (terminal.workspace / "log").read_text().split() == ["build", "test"]


def test_a_definition_that_changes_what_was_done_is_refused_with_the_line(terminal: Any, failed: str) -> None:
    terminal.write("ship.yaml", SHIP.replace("echo build", "echo built"))
    said = terminal.run("retry", failed, "--definition", "ship.yaml")
    assert said.code == 2
    expected = (
        "'build' has run, and its 'inputs.command' differs: \"echo build >> log\" → \"echo built >> log\""
    )
    assert expected in said.err
    assert "ship.yaml:3)" in said.err
    assert "fork from the first step that differs" in said.err
    said = terminal.run("fork", failed, "build", "--definition", "ship.yaml")
    assert (terminal.workspace / "log").read_text().split() == ["build", "test", "built", "test"]
