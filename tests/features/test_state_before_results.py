"""A bare name in a `state_update` is the field of the state; only `result` and documented outputs go before it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from support.fragments import workflow
from support.rendered import Service
from workflows_mcp.dialects import load
from workflows_mcp.settings.model import Settings
from workflows_mcp.steps.registry import default_registry

ASKS = """
default_state: {raw: {count: 10}}
steps:
  - id: ask
    type: mcp_call
    method: count_files
    state_update:
      - {path: raw.bare, value: "{{ count }}"}
      - {path: raw.of_result, value: "{{ result.count }}"}
      - {path: raw.only_there, value: "{{ applied }}"}
      - {path: raw.transformed, value: 1, transform: "input + count"}
"""
CALLEE = """
name: callee
default_state: {raw: {n: 5, m: 6}}
steps:
  - {type: state_update, path: raw.done, value: true}
"""
CALLER = """
name: caller
default_state: {raw: {n: 1}}
steps:
  - id: call
    type: include_workflow
    workflow: callee
    state_update:
      - {path: raw.own, value: "{{ n }}"}
      - {path: raw.theirs, value: "{{ result.n }}"}
      - {path: raw.only_theirs, value: "{{ m }}"}
"""


def raw_after(settings: Settings, text: str, *answers: Any) -> dict[str, Any]:
    async def go() -> dict[str, Any]:
        async with Service.open(settings) as service:
            answer = await service.start(text=text)
            for given in answers:
                answer = await service.submit(answer["workflow_id"], given)
            assert answer["status"] == "completed", answer
            found = await service.state(answer["workflow_id"], paths=["raw"])
            return dict(found["values"]["raw"])

    return asyncio.run(asyncio.wait_for(go(), 30))


@pytest.mark.rows("R4")
def test_a_field_of_the_state_goes_before_one_of_the_result(settings: Settings) -> None:
    raw = raw_after(settings, ASKS, {"count": 3, "applied": 4})
    assert (raw["bare"], raw["of_result"], raw["only_there"], raw["transformed"]) == (10, 3, 4, 11)


@pytest.mark.rows("R4")
def test_what_a_step_type_documents_goes_before_the_state(settings: Settings) -> None:
    text = """
default_state: {raw: {applied_count: 77}}
steps:
  - {id: fix, type: apply_hints, file: a.py, hints: [x], state_update: {path: raw.n, value: "{{ applied_count }}"}}
"""
    assert raw_after(settings, text, {"applied_count": 1})["n"] == 1


@pytest.mark.rows("R9", "R11", "R14")
@pytest.mark.parametrize(
    ("step", "word", "answers", "stored"),
    [
        ("type: shell_command, command: printf ants", "stdout", [], "ants"),
        ("type: mcp_call, method: look", "result", ["ants"], "ants"),
        ("type: mcp_call, method: look", "content", [{"content": "ants"}], "ants"),
        ("type: user_input, prompt: What?", "response", ["ants"], "ants"),
        ("type: ReadFile, path: ants.txt", "content", [], "ants"),
    ],
)
def test_the_hint_for_a_word_as_value_stores_the_result(
    settings: Settings, workspace: Path, step: str, word: str, answers: list[Any], stored: str
) -> None:
    (workspace / "ants.txt").write_text("ants", encoding="utf-8")
    text = (
        "name: words\ndefault_state: {raw: {said: none}}\nsteps:\n"
        f"  - {{id: look, {step}, state_update: {{path: raw.said, value: VALUE}}}}\n"
    )
    [problem] = load(text.replace("VALUE", word), file="f.yaml", registry=default_registry()).warnings
    assert problem.code == "literal_value"
    hinted = re.findall(r'"({{ .*? }})"', problem.hint)
    assert stored in [
        raw_after(settings, text.replace("VALUE", f"'{it}'"), *answers)["said"] for it in hinted
    ]


@pytest.mark.rows("R2", "R4")
def test_an_included_workflow_never_shadows_the_state_of_its_caller(
    settings: Settings, workspace: Path
) -> None:
    (workspace / ".workflows" / "callee.yaml").write_text(CALLEE)
    raw = raw_after(settings, CALLER)
    assert (raw["own"], raw["theirs"], raw["only_theirs"]) == (1, 5, 6)


@pytest.mark.rows("R4")
def test_a_field_that_is_set_to_itself_is_warned_of() -> None:
    step = '- {id: ask, type: mcp_call, method: m, state_update: {path: raw.count, value: "{{ count }}"}}\n'
    definition = load(workflow(step), file="w.yaml", registry=default_registry())
    [warning] = definition.warnings
    assert warning.code == "without_effect"
    assert "{{ result.count }}" in warning.hint
