"""The server is killed while it checks a result: the check is repeated, and the result is not lost."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from support.killed import called

pytestmark = pytest.mark.rows("P2", "X1")
CHECKED = """
name: checked
blocks:
  - id: write
    type: Delegate
    inputs: {instructions: "Write it"}
    verify: [{command: "echo $$ >> ran; until [ -e go ]; do sleep 0.02; done; test -e good", message: "make it good"}]
outputs: {text: "${blocks.write.response}"}
"""


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_check_that_was_cut_off_is_repeated_after_what_is_left_of_it_has_been_ended(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    run = called(tmp_path, "start_workflow", yaml=CHECKED)["workflow_id"]

    def begun(times: int) -> bool:
        return (workspace / "ran").exists() and len((workspace / "ran").read_text().split()) == times

    answer = called(
        tmp_path, "submit_result", workflow_id=run, result="text", step_id="write", wait_seconds=0,
        until=lambda: begun(1),
    )  # fmt: skip
    assert answer["status"] == "running"
    again = called(
        tmp_path, "submit_result", workflow_id=run, result="text", step_id="write", wait_seconds=0,
        until=lambda: begun(2),
    )  # fmt: skip
    assert again["status"] == "running"
    first, second = map(int, (workspace / "ran").read_text().split())
    assert not runs(first)
    (workspace / "go").touch()
    rejected = called(tmp_path, "get_workflow_status", workflow_id=run, wait_seconds=20)
    assert "the server stopped 2 times while it ran" in rejected["action"]["rejected_because"][0]
    assert not runs(second), "a check that may have ended the server twice is not tried again"
    (workspace / "good").touch()
    step_id = rejected["action"]["step_id"]
    done = called(tmp_path, "submit_result", workflow_id=run, result="text", step_id=step_id, wait_seconds=20)
    assert (done["status"], done["outputs"]) == ("completed", {"text": "text"})
