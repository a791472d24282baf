"""Spellings of real reactive files that are not the documented ones: understood, each with a warning that names it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.rendered import Service
from workflows_mcp.dialects import load
from workflows_mcp.errors import DefinitionError
from workflows_mcp.settings.model import Settings
from workflows_mcp.steps.registry import default_registry

TEXT = """
name: other-spellings
default_state: {raw: {n: 0, files: [a, b]}, state: {phase: first}}
state_schema:
  computed:
    count: {from: "{{ files }}", transform: input.length}
    twice: {from: this.count, transform: input * 2}
    where: {from: ["{{ raw.n }}", this.phase], transform: "input.join(' ')"}
steps:
  - id: rounds
    type: while_loop
    condition: "{{ n < 2 }}"
    max_iterations: 5
    body:
      - id: which
        type: conditional
        condition: "{{ n == 0 }}"
        then_steps:
          - {type: state_update, path: raw.first, value: "{{ twice }}"}
        else_steps:
          - {type: state_update, path: raw.second, value: "{{ where }}"}
      - {type: state_update, path: raw.n, operation: increment}
  - {id: call, type: mcp_call, tool: lint, parameters: {level: 3}, timeout_seconds: 90}
  - {id: nested, type: mcp_call, mcp: {tool: lint, parameters: {level: 4}}, timeout_seconds: "{{ n * 10 }}"}
"""


@pytest.mark.rows("R1")
def test_a_file_with_other_spellings_runs_as_it_is_meant(settings: Settings) -> None:
    async def go() -> None:
        async with Service.open(settings) as service:
            answer = await service.start(text=TEXT)
            run_id = answer["workflow_id"]
            for level, timeout in ((3, 90), (4, 20)):
                parameters: dict[str, Any] = answer["action"]["parameters"]
                assert parameters == {"tool": "lint", "args": {"level": level}, "timeout": timeout}
                answer = await service.submit(run_id, {"ok": True})
            assert answer["status"] == "completed"
            raw = (await service.state(run_id, paths=["raw"]))["values"]["raw"]
            assert (raw["first"], raw["second"]) == (4, "1 first")

    asyncio.run(asyncio.wait_for(go(), 30))


@pytest.mark.rows("R1")
def test_each_other_spelling_is_warned_of_with_the_documented_one_at_its_place() -> None:
    definition = load(TEXT, file="other.yaml", registry=default_registry())
    found = [(it.place.line, it.hint) for it in definition.warnings if it.code == "spelling" and it.place]
    assert sorted(found) == [
        (6, "write from: raw.files"),
        (7, "write from: computed.count"),
        (8, "write from: raw.n"),
        (8, "write from: state.phase"),
        (11, "write type: while"),
        (18, "write then"),
        (20, "write else"),
        (23, "write method"),
        (23, "write params"),
        (23, "write timeout, in milliseconds"),
        (24, "write method"),
        (24, "write params"),
        (24, "write timeout, in milliseconds"),
    ]


@pytest.mark.rows("R1")
def test_a_problem_below_another_spelling_is_shown_at_its_place() -> None:
    text = TEXT.replace("path: raw.first, value", "pth: raw.first, value").replace(
        "level: 4", "level: '{{ ( }}'"
    )
    with pytest.raises(DefinitionError) as caught:
        load(text, file="other.yaml", registry=default_registry())
    lines = {it.place.line for it in caught.value.problems if it.place and not it.warning}
    assert lines == {19, 24}
