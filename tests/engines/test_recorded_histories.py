"""Histories of runs as they were when they were recorded, repeated with the code as it is now, without a server.

A history that cannot be repeated is a run in flight that a new version would break. If that is meant, record
them anew (`support.record_histories`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("temporalio", reason="temporalio is not installed: pip install -e .[temporal]")

from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner
from temporalio.workflow import NondeterminismError

from support.record_histories import HISTORIES, RECORDED
from workflows_mcp.engines.temporal.blobs import BlobStore, in_use, use
from workflows_mcp.engines.temporal.wire import READABLE, RULES, look
from workflows_mcp.engines.temporal.workflow import Run
from workflows_mcp.engines.values import LargeValues
from workflows_mcp.machine.commands import Command, RunStep
from workflows_mcp.machine.events import Event
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.state import RunState

pytestmark = pytest.mark.rows("S13")
FILES = sorted(path.name for path in HISTORIES.glob("*.json"))
LONGEST = 60_000


@pytest.fixture(autouse=True)
def _nothing_beside(tmp_path: Path) -> Iterator[None]:
    use(BlobStore(tmp_path / "blobs"))
    yield
    assert not any(tmp_path.rglob("*"))


def recorded(file: str) -> WorkflowHistory:
    text = (HISTORIES / file).read_text()
    return WorkflowHistory.from_json(json.loads(text)["workflow_id"], text)


def repeated(file: str) -> None:
    """Raises NondeterminismError where the code does other things than it did."""
    replayer = Replayer(
        workflows=[Run],
        workflow_runner=UnsandboxedWorkflowRunner(),
        data_converter=READABLE,
        debug_mode=True,
    )
    asyncio.run(replayer.replay_workflow(recorded(file)))


@pytest.mark.parametrize("file", FILES)
def test_a_run_in_flight_goes_on_as_it_began(file: str) -> None:
    repeated(file)


def test_every_feature_has_its_history_and_none_is_large() -> None:
    names = {file.removesuffix(".json").partition("-")[0] for file in FILES}
    assert names == set(RECORDED)
    assert len([file for file in FILES if file.startswith("long-")]) == 2 * 3
    of_today = {file.partition("-")[0] for file in FILES if f"-rules{RULES}" in file}
    assert of_today == set(RECORDED)
    assert all((HISTORIES / file).stat().st_size < LONGEST for file in FILES)


EXPECTED: dict[str, tuple[str, Any]] = {
    "graph.json": ("completed", {"said": "this"}),
    "tries.json": ("failed", {}),
    "tasks.json": ("completed", [{"topic": t, "found": f"it {n}!"} for n, t in enumerate(("ants", "bees", "cats"))]),
    "loop.json": ("completed", None),
    "cancelled.json": ("cancelled", {}),
    "fork.json": ("completed", {}),
    "interrupted.json": ("failed", {}),
    "long-3.json": ("completed", 21),
}  # fmt: skip


@pytest.mark.parametrize("file", EXPECTED)
def test_what_was_written_of_a_run_can_still_be_read(file: str) -> None:
    state = final_state(file)
    status, result = EXPECTED[file]
    assert state.status == status
    assert result in (state.result, state.outputs)


def final_state(file: str) -> RunState:
    last = recorded(file).events[-1]
    body = last.workflow_execution_completed_event_attributes.result.payloads[0].data
    snapshot = in_use().unpacked(look(body).snapshot)
    return LargeValues("", 10**9).restore(snapshot)


# That a change is noticed

NOTICED = (NondeterminismError, RuntimeError)
"""What comes of a history that cannot be repeated; of some, the library makes a plain error."""


def test_a_machine_that_does_the_same_in_another_order_is_noticed() -> None:
    apply = Machine.apply

    def backwards(machine: Machine, event: Event) -> list[Command]:
        return list(reversed(apply(machine, event)))

    with mock.patch.object(Machine, "apply", backwards), pytest.raises(NOTICED):
        repeated("tries.json")


def test_a_machine_that_does_less_is_noticed() -> None:
    apply = Machine.apply

    def lazy(machine: Machine, event: Event) -> list[Command]:
        commands = apply(machine, event)
        return [it for it in commands if not isinstance(it, RunStep) or it.address != "last"]

    with mock.patch.object(Machine, "apply", lazy), pytest.raises(NOTICED):
        repeated("graph.json")
