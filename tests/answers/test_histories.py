"""A run read from its journal: whatever happens, and in whatever order, its open questions are found."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import msgspec
import pytest

from support.plans import Do, block, bundle, plan
from support.steps import Note, registry_of
from workflows_mcp.answers.answer import answer_about
from workflows_mcp.answers.history import History
from workflows_mcp.answers.previews import WHOLE
from workflows_mcp.answers.run_view import run_view_of
from workflows_mcp.library.catalog import Catalog
from workflows_mcp.limits import Limits
from workflows_mcp.machine.commands import key_of
from workflows_mcp.machine.events import Answered, Event, Interrupted, Started, StepDone, TimerFired
from workflows_mcp.machine.machine import Machine
from workflows_mcp.mcp_server.compat.graph import as_graph
from workflows_mcp.settings.model import Settings
from workflows_mcp.steps.registry import default_registry

INNER = """\
name: inner
blocks:
  - {id: work, type: Shell, inputs: {command: 'true'}}
  - {id: ask, type: Prompt, depends_on: [work], inputs: {prompt: 'Inner?'}}
"""
OUTER = """\
name: outer
blocks:
  - {id: first, type: Prompt, inputs: {prompt: 'First?'}}
  - {id: flaky, type: Shell, retry: {attempts: 3, delay: 1}, inputs: {command: 'true'}}
  - {id: people, type: Prompt, for_each: [a, b, c, d, e], max_parallel: 2, inputs: {prompt: 'How is ${each.value}?'}}
  - {id: calls, type: ExecuteWorkflow, for_each: [1, 2, 3], depends_on: [flaky], inputs: {workflow: inner}}
  - {id: last, type: Prompt, depends_on: [people, first], inputs: {prompt: 'Last?'}}
"""


@pytest.mark.parametrize("seed", range(30))
def test_after_every_event_the_open_checkpoints_are_what_the_run_waits_for(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    folder = tmp_path / ".workflows"
    folder.mkdir()
    (folder / "inner.yaml").write_text(INNER)
    registry = default_registry()
    catalog = Catalog.of(Settings(workspace=tmp_path, home=tmp_path / "home"), registry)
    machine = Machine(catalog.bundle_of_text(OUTER))
    history = History(machine, registry)
    now = 100.0
    event: Event = Started(now, "wf_1", {})
    opened: set[str] = set()
    while True:
        history.take(event)
        asked = [address for address, _ in run_view_of(machine).under_way("agent")]
        assert [it.address for it in history.open_questions()] == asked
        new = {str(it.id) for it in history.open_questions()} - opened
        assert all(name.removeprefix("pause_wf_1_").split(".")[0] == str(history.position) for name in new)
        opened |= new
        if machine.state.status != "running":
            break
        now += chance.choice((0.0, 0.0, 0.5))  # many things happen at the same time
        event = _something(machine, now, chance)
    assert machine.state.status == "completed"
    assert len(opened) == len([it for it in history.checkpoints if it.id.type == "pause"]) == 10
    assert len({it.id for it in history.checkpoints}) == len(history.checkpoints)
    assert all(it.answer is not None for it in history.checkpoints if it.id.type == "pause")


def _something(machine: Machine, now: float, chance: random.Random) -> Event:
    """Any fact that the run waits for."""
    frames = [
        item for item in machine.state.frames.items() if item[1].kind in ("agent", "step") or item[1].deadline
    ]
    address, frame = chance.choice(frames)
    if frame.kind == "agent":
        return Answered(now, address, {"response": "fine"})
    key = key_of(address, frame.attempt)
    if frame.kind == "step":
        return StepDone(
            now, key, {"exit_code": 0, "stdout": ""}, ok=chance.random() < 0.9 or address != "flaky"
        )
    return TimerFired(max(now, frame.deadline or now), key)


def test_a_step_that_was_cut_off_is_a_question_with_the_schema_of_its_answer() -> None:
    node, needs = block("a", Do("Note", {"text": "x"}, defaults={"text": ""}))
    asks = msgspec.structs.replace(node, on_interrupt="ask")
    registry = registry_of(Note())
    history = History(Machine(bundle(plan((asks, needs)))), registry)
    history.take(Started(1.0, "wf_1", {}))
    history.take(Interrupted(2.0, "a#1"))
    (question,) = history.open_questions()
    assert str(question.id) == "pause_wf_1_2"
    assert question.prompt.startswith("The server stopped while it was running this Note step")
    view = run_view_of(history.machine, now=3.0, alone=True)
    view = dataclasses.replace(view, checkpoint_ids={question.address: str(question.id)})
    answer = as_graph(answer_about(view, registry, Limits(), place=lambda _: None), WHOLE)
    assert answer["status"] == "paused"
    assert answer["response_schema"]["properties"]["decision"]["enum"] == ["repeat", "done", "fail"]
