"""What the terminal says of failures: of those that are tolerated, and of answers that are failures."""

from __future__ import annotations

import re
from typing import Any

TOLERANT = """
name: ci
blocks:
  - {id: test, type: Shell, inputs: {command: exit 1}}
  - {id: notify, type: Shell, inputs: {command: "true"}, depends_on: [{block: test, required: false}]}
"""
REPORTS = """
name: ci
blocks: [{id: tag, type: Shell, inputs: {command: exit 3}}]
outputs: {tagged: "${blocks.tag.succeeded}"}
"""
ASKS = "name: ask\nblocks: [{id: approve, type: Prompt, inputs: {prompt: Go?}}]\n"


def test_the_last_line_names_the_blocks_whose_failure_was_tolerated_and_by_whom(terminal: Any) -> None:
    terminal.write("ci.yaml", TOLERANT)
    said = terminal.run("run", "ci.yaml")
    assert said.code == 0
    last = said.err.strip().splitlines()[-1]
    assert re.search(r"completed in \S+ m?s, 1 block failed: test \(tolerated by notify\)$", last)


def test_an_output_that_reports_a_failure_does_not_make_the_run_green(terminal: Any) -> None:
    terminal.write("ci.yaml", REPORTS)
    said = terminal.run("run", "ci.yaml", "--json")
    assert (said.code, said.data["status"], said.data["outputs"]) == (1, "failed", {"tagged": False})


def test_an_answer_can_be_a_failure(terminal: Any) -> None:
    terminal.write("ask.yaml", ASKS)
    run_id = terminal.run("run", "ask.yaml", "--json").data["workflow_id"]
    said = terminal.run("answer", run_id, "--fail", "nobody is here", "--json")
    assert (said.code, said.data["status"]) == (1, "failed")
    assert "nobody is here" in said.data["error"]["message"]
