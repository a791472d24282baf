"""`prune` on the terminal."""

from __future__ import annotations

from typing import Any

import pytest

FLOW = "name: hi\nblocks:\n  - {id: hi, type: Shell, inputs: {command: echo hi}}\n"
ASKS = "name: asks\nblocks:\n  - {id: ask, type: Prompt, inputs: {prompt: Go?}}\n"


@pytest.mark.rows("O1")
def test_prune_lists_first_and_then_deletes_ended_runs_only(terminal: Any) -> None:
    terminal.write("hi.yaml", FLOW)
    terminal.write("asks.yaml", ASKS)
    ended = terminal.run("run", "hi.yaml", "--json").data["workflow_id"]
    waiting = terminal.run("run", "asks.yaml", "--json").data["workflow_id"]

    assert terminal.run("prune").out == "deleted 0 runs, 0 B\n"
    listed = terminal.run("prune", "--days", "0", "--dry-run")
    assert listed.code == 0
    assert ended in listed.out
    assert waiting not in listed.out
    assert "would delete 1 run," in listed.out
    assert terminal.run("show", ended).code == 0

    deleted = terminal.run("prune", "--days", "0", "--json").data
    assert [run["workflow_id"] for run in deleted["deleted"]] == [ended]
    assert deleted["dry_run"] is False
    left = terminal.run("runs", "--json").data["runs"]
    assert [run["workflow_id"] for run in left] == [waiting]
    assert terminal.run("show", ended).code == 2


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--days", "soon", "expected a number of days, not 'soon'"),
        ("--days", "-1", "expected a number of days, not '-1'"),
        ("--size", "big", "expected a size such as 500MB or 2GB, not 'big'"),
        ("--keep", "0", "expected a whole number of 1 or more, not '0'"),
    ],
)
def test_a_limit_that_is_no_limit_is_refused(terminal: Any, option: str, value: str, said: str) -> None:
    refused = terminal.run("prune", option, value)
    assert refused.code == 2
    assert said in refused.err
