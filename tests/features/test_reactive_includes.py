"""Workflows that include others, and hand out tasks of other files."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from support.reactive_agents import Played, played
from support.rendered import Service
from workflows_mcp.settings.model import Settings

INCLUDES = """
name: "main:flow"
imports: ["shared/check.yaml"]
default_state: {raw: {checked: false, behind: false}}
steps:
  - id: check
    type: include_workflow
    workflow: "shared:check"
    inputs: {exit_code: "{{ inputs.exit_code }}"}
    when: "{{ inputs.check }}"
    on_error: continue
    error_state_update: {path: raw.why, value: "{{ error.message }}"}
    on_complete:
      - {type: state_update, path: raw.checked, value: "{{ said }}"}
  - {type: state_update, path: raw.behind, value: true}
"""
CHECK = """
workflow:
  name: "shared:check"
  steps:
    - {id: run, type: shell_command, command: "echo fine; exit {{ inputs.exit_code }}", output_format: lines,
       state_update: {path: raw.said}}
"""


def state_after(tmp_path: Path, **inputs: Any) -> dict[str, Any]:
    (tmp_path / "flows" / "shared").mkdir(parents=True)
    (tmp_path / "flows" / "shared" / "check.yaml").write_text(CHECK)
    main = tmp_path / "flows" / "main.yaml"
    main.write_text(INCLUDES)

    async def go() -> dict[str, Any]:
        async with Service.open(Settings(workspace=tmp_path, home=tmp_path / "home")) as service:
            answer = await service.start(file=str(main), inputs=inputs)
            assert answer["status"] == "completed", answer
            found = await service.state(answer["workflow_id"], paths=["raw"])
            return dict(found["values"]["raw"])

    return asyncio.run(asyncio.wait_for(go(), 30))


@pytest.mark.rows("R2")
def test_what_is_for_the_success_of_an_included_workflow_sees_what_it_has_left(tmp_path: Path) -> None:
    state = state_after(tmp_path, check=True, exit_code=0)
    assert (state["checked"], state["behind"]) == (["fine"], True)


@pytest.mark.rows("R2")
def test_an_included_workflow_that_failed_is_passed_with_what_was_for_its_success(tmp_path: Path) -> None:
    state = state_after(tmp_path, check=True, exit_code=3)
    assert (state["checked"], state["behind"]) == (False, True)
    assert "code 3" in state["why"]


@pytest.mark.rows("R2")
def test_an_included_workflow_that_is_skipped_is_passed_with_what_was_for_its_success(tmp_path: Path) -> None:
    state = state_after(tmp_path, check=False, exit_code=0)
    assert (state["checked"], state["behind"], "why" in state) == (False, True, False)


TASKS = """
name: "shared:tasks"
sub_agent_tasks:
  process:
    inputs: {which: "{{ item }}"}
    steps:
      - id: work
        type: mcp_call
        mcp:
          method: lint
          params: {file: "{{ which.PART }}"}
        state_update: {path: "raw.results.{{ which }}"}
"""
HANDS_OUT = """
name: "main:tasks"
imports: ["shared/tasks.yaml"]
default_state: {raw: {files: [a.ts, b.ts], results: {}}}
steps:
  - {id: go, type: parallel_foreach, items: "{{ files }}", sub_agent_task: process}
  - {type: user_message, message: "{{ Object.keys(results).length }} done"}
"""


def tasks_played(tmp_path: Path, part: str, replies: dict[str | None, list[Any]]) -> Played:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "tasks.yaml").write_text(TASKS.replace("PART", part))
    (tmp_path / "main.yaml").write_text(HANDS_OUT)
    settings = Settings(workspace=tmp_path, home=tmp_path / "home")
    return played(settings, replies, file=str(tmp_path / "main.yaml"))


@pytest.mark.rows("R2", "R16")
def test_a_task_of_another_file_shares_the_state_of_who_hands_it_out(tmp_path: Path) -> None:
    replies: dict[str | None, list[Any]] = {"process.item0": [{"n": 1}], "process.item1": [{"n": 2}]}
    run = tasks_played(tmp_path, "length", replies)
    assert (run.answer["status"], run.messages) == ("completed", ["2 done"])
    assert run.state["results"] == {"a.ts": {"n": 1}, "b.ts": {"n": 2}}


@pytest.mark.rows("R2", "R11")
def test_an_error_in_a_task_of_another_file_is_shown_where_it_stands(tmp_path: Path) -> None:
    run = tasks_played(tmp_path, "no.part", {})
    assert run.answer["status"] == "failed"
    assert "tasks.yaml:11:" in str(run.answer["error"])


ASKS = """
name: "main:asks"
default_state: {raw: {name: outer, n: 1}}
steps:
  - {id: inner, type: include_workflow, workflow: "shared:asks", inputs: {topic: ants}}
  - {id: last, type: user_input, prompt: "{{ name }}", state_update: {path: raw.said}}
"""
ASKED = """
name: "shared:asks"
inputs: {topic: string}
default_state: {raw: {name: inner, lines: []}}
state_schema: {computed: {loud: {from: raw.name, transform: input.toUpperCase()}}}
steps:
  - {id: ask, type: user_input, prompt: "{{ topic }}", state_update: {path: raw.answer}}
"""


@pytest.mark.rows("R2", "R19")
def test_an_agent_reads_the_state_that_it_writes_in_a_workflow_that_was_included(
    settings: Settings, workspace: Path
) -> None:
    (workspace / ".workflows" / "main.yaml").write_text(ASKS)
    (workspace / ".workflows" / "asked.yaml").write_text(ASKED)

    async def go() -> None:
        async with Service.open(settings) as service:
            stepping = service.step_protocol
            started = await stepping.start("main:asks", {}, 30.0)
            run_id, step = started["workflow_id"], started["step"]["id"]
            assert (started["state"]["name"], started["state"]["loud"]) == ("inner", "INNER")
            changes: list[dict[str, Any]] = [
                {"path": "raw.name", "value": "new"},
                {"path": "raw.lines", "value": ["long " * 9000]},
            ]
            written = await stepping.update(run_id, changes, None)
            assert written["computed"] == {"loud": "NEW"}
            found = await stepping.read(run_id, ["name", "raw.name", "loud", "inputs.topic", "topic"], None)
            assert list(found.values()) == ["new", "new", "NEW", "ants", "ants"]
            everything = await stepping.read(run_id, [], None)
            assert everything.keys() == {"name", "lines", "loud", "topic"}
            assert "get_workflow_state" not in str(everything), "which does not lead there"
            marked = await stepping.checkpoint(run_id, "here", None)
            assert (await stepping.read(marked["checkpoint_id"], ["name"], None)) == {"name": "new"}
            await stepping.complete_step(run_id, step, result="yes", wait_seconds=30.0)
            assert await stepping.read(run_id, ["name", "n"], None) == {"name": "outer", "n": 1}

    asyncio.run(asyncio.wait_for(go(), 30))
