"""ReadJSONState, WriteJSONState and MergeJSONState."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from workflows_mcp.errors import Forbidden, StepError
from workflows_mcp.steps.base import StepResult
from workflows_mcp.steps.json_state import MergeJSONState, ReadJSONState, WriteJSONState

RunStep = Callable[..., StepResult]
READ, WRITE, MERGE = ReadJSONState(), WriteJSONState(), MergeJSONState()


@pytest.mark.rows("G13")
def test_what_is_written_can_be_read(run_step: RunStep, workspace: Path) -> None:
    data = {"text": "ü", "number": 42, "yes": True, "none": None, "list": ["a"], "nested": {"key": "value"}}
    written = run_step(WRITE, {"path": "a/s.json", "data": data})
    path = workspace / "a" / "s.json"
    assert written.outputs == {"path": str(path), "size_bytes": len(path.read_bytes())}
    assert path.read_text() == json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    assert run_step(READ, {"path": "a/s.json"}).outputs == {"data": data, "found": True, "path": str(path)}


@pytest.mark.rows("G13")
def test_a_missing_state_is_empty_unless_it_is_required(run_step: RunStep, workspace: Path) -> None:
    outputs = run_step(READ, {"path": "s.json"}).outputs
    assert outputs == {"data": {}, "found": False, "path": str(workspace / "s.json")}
    with pytest.raises(StepError, match="there is no file"):
        run_step(READ, {"path": "s.json", "required": True})


@pytest.mark.rows("G13")
def test_merging_goes_into_objects_and_replaces_the_rest(run_step: RunStep, workspace: Path) -> None:
    (workspace / "s.json").write_text('{"phase": "a", "deep": {"x": 1, "y": {"z": 1}}, "list": [1, 2]}')
    updates = {"phase": "b", "deep": {"y": {"w": 2}, "x": [1]}, "list": [3], "new": {"n": 1}}
    merged = {
        "phase": "b",
        "deep": {"x": [1], "y": {"z": 1, "w": 2}},
        "list": [3],
        "new": {"n": 1},
    }
    outputs = run_step(MERGE, {"path": "s.json", "updates": updates}).outputs
    assert outputs == {"path": str(workspace / "s.json"), "created": False, "merged_data": merged}
    assert json.loads((workspace / "s.json").read_text()) == merged


@pytest.mark.rows("G13")
def test_merging_into_nothing_makes_the_file_unless_told_otherwise(
    run_step: RunStep, workspace: Path
) -> None:
    with pytest.raises(StepError, match="create_if_missing"):
        run_step(MERGE, {"path": "s.json", "updates": {"a": 1}, "create_if_missing": False})
    assert list(workspace.iterdir()) == []
    outputs = run_step(MERGE, {"path": "d/s.json", "updates": {"a": 1}}).outputs
    assert (outputs["created"], outputs["merged_data"]) == (True, {"a": 1})
    with pytest.raises(StepError, match="No such file or directory"):
        run_step(MERGE, {"path": "no/s.json", "updates": {}, "create_parents": False})


def test_wrong_json_is_shown_with_its_place(run_step: RunStep, workspace: Path) -> None:
    (workspace / "s.json").write_text('{\n  "a": 1,\n  b: 2\n}')
    for step, inputs in ((READ, {}), (MERGE, {"updates": {"a": 1}})):
        with pytest.raises(StepError, match=r"s\.json:3:3 is not valid JSON"):
            run_step(step, {"path": "s.json", **inputs})
    (workspace / "s.json").write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(StepError, match="is not valid JSON"):
        run_step(READ, {"path": "s.json"})
    (workspace / "s.json").write_text("[1]")
    with pytest.raises(StepError, match="contains list"):
        run_step(MERGE, {"path": "s.json", "updates": {}})
    assert run_step(READ, {"path": "s.json"}).outputs["data"] == [1]


def test_state_outside_is_closed(run_step: RunStep) -> None:
    for step, inputs in ((READ, {}), (WRITE, {"data": 1}), (MERGE, {"updates": {}})):
        with pytest.raises(Forbidden):
            run_step(step, {"path": "/etc/s.json", **inputs})


@pytest.mark.rows("G13")
def test_merges_of_several_processes_never_lose_one_another(workspace: Path) -> None:
    program = """
import sys
from pathlib import Path
from workflows_mcp.policy.handles import World
from workflows_mcp.policy.rules import Policy
from workflows_mcp.steps.base import StepContext
from workflows_mcp.steps.json_state import MergeJSONState
workspace, name = Path(sys.argv[1]), sys.argv[2]
step = MergeJSONState()
context = StepContext("r", "k", World(Policy(workspace), "r", workspace / "scratch"))
for number in range(40):
    inputs = {"path": "s.json", "updates": {"counts": {f"{name}-{number}": number}}}
    step.run(step.Inputs.model_validate(inputs), context)
"""
    running = [
        subprocess.Popen([sys.executable, "-c", program, str(workspace), name]) for name in ("a", "b", "c")
    ]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    assert len(json.loads((workspace / "s.json").read_text())["counts"]) == 120
    assert [entry.name for entry in workspace.iterdir()] == ["s.json"]


def test_reading_changes_nothing_and_writing_does() -> None:
    assert READ.changes_world({}) is False
    assert WRITE.changes_world({}) is True
    assert MERGE.changes_world({}) is True
