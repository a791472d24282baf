"""Only machine/lifecycle.py changes a status or the frames of a run, and the documentation shows its tables."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from workflows_mcp.machine.lifecycle import (
    FRAME,
    RECORD,
    RUN,
    FrameEvent,
    IllegalTransition,
    RecordEvent,
    advance,
    begin_stopping,
    close_frame,
    diagrams,
    finish_run,
    open_frame,
)
from workflows_mcp.machine.state import (
    TERMINAL,
    BlockStatus,
    Frame,
    FrameKind,
    Record,
    RunState,
    RunStatus,
    Scope,
)

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "workflows_mcp"
DOC = ROOT / "docs" / "how-it-works.md"
BEGIN = "<!-- life cycles, from machine/lifecycle.py -->\n"
END = "<!-- end of life cycles -->\n"
LIFECYCLE = "machine/lifecycle.py"
CHANGES_A_DICT = {"pop", "popitem", "clear", "update", "setdefault"}


def nodes(folder: Path = SOURCE) -> Iterator[tuple[str, ast.AST]]:
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            yield path.relative_to(SOURCE).as_posix(), node


def is_frames(node: ast.expr) -> bool:
    return ast.unparse(node).split(".")[-1] == "frames"


def changes_frames(node: ast.AST) -> bool:
    if isinstance(node, ast.Subscript):
        return is_frames(node.value) and isinstance(node.ctx, ast.Store | ast.Del)
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
        return node.attr in ("frames", "stopping")
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in CHANGES_A_DICT and is_frames(node.func.value)
    return False


def test_only_the_life_cycles_change_the_frames_of_a_run() -> None:
    found = {path for path, node in nodes() if changes_frames(node)}
    assert found == {LIFECYCLE}


def test_only_the_life_cycles_set_a_status_in_the_machine() -> None:
    found = {
        path
        for path, node in nodes(SOURCE / "machine")
        if isinstance(node, ast.Attribute) and node.attr == "status" and isinstance(node.ctx, ast.Store)
    }
    assert found == {LIFECYCLE}


def test_every_record_begins_as_pending() -> None:
    made = [
        (path, node)
        for path, node in nodes()
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Record", "RunState")
    ]
    assert made
    assert [path for path, it in made if it.args or "status" in {named.arg for named in it.keywords}] == []


def test_the_tables_know_every_state_and_every_event() -> None:
    assert {old for old, _ in RUN} | set(RUN.values()) == set(get_args(RunStatus))
    assert {old for old, _ in RECORD} | set(RECORD.values()) == set(get_args(BlockStatus))
    assert {event for _, event in RECORD} == set(get_args(RecordEvent))
    kinds, other = get_args(FrameEvent)
    assert {event for _, event in FRAME} == {*get_args(kinds), *get_args(other)}
    states = {"closed", "stopping", *get_args(FrameKind)}
    assert {old for old, _ in FRAME} | set(FRAME.values()) == states
    assert all(FRAME["closed", kind] == kind for kind in get_args(FrameKind))


def test_a_record_that_has_ended_changes_only_with_what_its_result_does() -> None:
    assert {event for old, event in RECORD if old in TERMINAL} == {"fell_back", "rejected"}


def test_a_transition_that_is_not_in_the_table_is_refused() -> None:
    record = Record()
    with pytest.raises(IllegalTransition, match="a record that is pending cannot be retried"):
        advance(record, "retried")
    assert record.status == "pending"
    state = RunState("wf_1", "main", Scope("main"), status="completed")
    with pytest.raises(IllegalTransition, match="the run wf_1 is completed"):
        finish_run(state, "failed")


def test_an_address_has_one_frame_at_a_time_and_closes_by_what_it_waits_for() -> None:
    state = RunState("wf_1", "main", Scope("main"), events=7)
    open_frame(state, "ask", Frame("agent", 0.0))
    assert state.frames["ask"].event == 7
    with pytest.raises(IllegalTransition, match="'ask' is agent"):
        open_frame(state, "ask", Frame("step", 0.0))
    with pytest.raises(IllegalTransition, match="not ready for 'reported'"):
        close_frame(state, "ask", "reported")
    assert close_frame(state, "ask", "answered").kind == "agent"
    with pytest.raises(IllegalTransition, match="'ask' is closed"):
        close_frame(state, "ask", "answered")


def test_only_a_step_is_stopped_after_its_timeout() -> None:
    step, call = Frame("step", 0.0), Frame("call", 0.0)
    begin_stopping(step, "build", "timed out")
    assert step.stopping == "timed out"
    with pytest.raises(IllegalTransition):
        begin_stopping(call, "ci", "timed out")


def test_the_documentation_shows_the_tables() -> None:
    text = DOC.read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0] == diagrams()
