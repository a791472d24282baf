from __future__ import annotations

from typing import Any

import pytest

DEPLOY = """\
name: deploy
blocks:
  - {id: build, type: Shell, inputs: {command: 'echo build >> log'}}
  - {id: approve, type: Prompt, depends_on: [build], inputs: {prompt: 'Ship it?'}}
  - id: ship
    type: Shell
    depends_on: [approve]
    condition: ${blocks.approve.response} == 'yes'
    inputs: {command: 'echo ship >> log'}
outputs: {shipped: '${blocks.ship.succeeded}'}
"""


@pytest.fixture
def run_id(terminal: Any) -> str:
    terminal.write("deploy.yaml", DEPLOY)
    said = terminal.run("run", "deploy.yaml", "--json")
    assert said.code == 3
    return str(said.data["workflow_id"])


@pytest.mark.rows("G18")
def test_checkpoints_are_listed_described_resumed_and_deleted(terminal: Any, run_id: str) -> None:
    question = f"pause_{run_id}_2"
    said = terminal.run("checkpoints")
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[1].split()[0] == question
    assert lines[1].split()[3:] == ["waits", "deploy", "approve:", "Ship", "it?"]
    assert lines[2].split()[0] == f"chk_{run_id}_2"
    assert "1 block ended" in lines[2]
    assert terminal.run("checkpoints", run_id, "--json").data["checkpoints"][0]["checkpoint_id"] == question

    said = terminal.run("checkpoints", question)
    assert "Ship it?" in said.out
    assert f"workflows-mcp resume {question} RESPONSE" in said.out

    said = terminal.run("resume", question, "yes", "--json")
    assert (said.code, said.data["outputs"]) == (0, {"shipped": True})
    assert said.data["workflow_id"] == run_id
    assert "build" not in said.err.replace("deploy", "")

    said = terminal.run("resume", question, stdin="no\n")
    assert said.code == 0
    assert "shipped: false" in said.out
    assert f"is a new run, forked from {question}" in said.err
    forked = terminal.run("resume", question, "no", "--json").data
    assert forked["forked_from"] == run_id
    assert (terminal.workspace / "log").read_text().split() == ["build", "ship"]

    said = terminal.run("checkpoints", question, "--delete")
    assert said.code == 0
    assert "is unchanged" in said.err
    assert question not in terminal.run("checkpoints").out
    said = terminal.run("resume", question, "yes", "--json")
    assert said.code == 2
    assert said.data["error"]["code"] == "unknown_checkpoint"


def test_an_automatic_checkpoint_makes_a_new_run_that_asks_again(terminal: Any, run_id: str) -> None:
    assert terminal.run("answer", run_id, "yes").code == 0
    said = terminal.run("resume", f"chk_{run_id}_2")
    assert said.code == 3
    assert "Ship it?" in said.err
    assert f"is a new run, forked from chk_{run_id}_2" in said.err
    assert "workflows-mcp answer wf_" in said.err


def test_wrong_use_is_refused(terminal: Any, run_id: str) -> None:
    assert "--delete needs a checkpoint id" in terminal.run("checkpoints", "--delete").err
    assert "--delete needs a checkpoint id" in terminal.run("checkpoints", run_id, "--delete").err
    said = terminal.run("resume", f"pause_{run_id}_2")
    assert said.code == 2
    assert "needs a response" in said.err
    assert terminal.run("resume", "nonsense").code == 2
    assert terminal.run("checkpoints", "wf_nothing").code == 2
    said = terminal.run("serve", "--toolsets", "grpah")
    assert said.code == 2
    assert "did you mean 'graph'?" in said.err
