"""Real Codex with our hooks, and a model that does not want to follow the process: it has to.

The hooks are those of plugin/codex/hooks.json. Where Codex is less strict than Claude Code, docs/clients.md says so.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.codex import codex_cli
from support.model_apis import RESPONSES
from support.scripted_model import Turn, last_output, last_result, scripted_model, texts
from workflows_mcp.machine import Identity, events
from workflows_mcp.runs import Service
from workflows_mcp.settings.model import Settings

pytestmark = [pytest.mark.slow, pytest.mark.rows("P4")]

HOOKS = Path(__file__).resolve().parents[2] / "plugin" / "codex" / "hooks.json"
TOOL = "mcp__workflows__"
Messages = list[dict[str, Any]]

RELEASE = """\
name: release
description: A plan, the approval of a person, and the release
dialect: stateful
initial_state: {}
steps:
  - {id: plan, type: delegate, instructions: Write the plan, allow_tools: [Edit, "Bash(make test:*)"]}
  - {id: approve, type: gate, message: Release it?}
  - {id: publish, type: delegate, instructions: Publish it}
"""
FAN = """\
name: fan
description: One task of a sub-agent, and a summary
dialect: stateful
initial_state: {}
steps:
  - {id: each, type: foreach, items: "{{ ['a'] }}", agent: "@task", task: one, output_to: done}
  - {id: sum, type: delegate, instructions: Sum it up, needs_state: []}
tasks:
  one:
    inputs: {name: {type: string}}
    steps:
      - {id: look, type: delegate, instructions: Look at it}
"""
SUB_AGENT = "You are to do one task"


class Place:
    """A project with a workflow, and Codex in it, with a home that has our hooks."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.project, self.runs = directory / "project", directory / "runs"
        (self.project / ".workflows").mkdir(parents=True)
        for name, text in (("release", RELEASE), ("fan", FAN)):
            (self.project / ".workflows" / f"{name}.yaml").write_text(text, encoding="utf-8")
        home, programs = directory / "codex", directory / "bin"
        home.mkdir()
        programs.mkdir()
        shutil.copy(HOOKS, home / "hooks.json")
        program = programs / "workflows-mcp"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m workflows_mcp "$@"\n', encoding="utf-8")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
        self._codex = codex_cli(home)

    def ask(self, prompt: str, *turns: Turn, resumes: bool = False, settings: str = "") -> list[Messages]:
        """What the model was sent, turn by turn."""
        script = [*turns, lambda _: "The script has ended."]
        with scripted_model(script, RESPONSES) as (address, seen):
            # Only the server knows where runs are: hooks do not get its environment
            self._codex(
                prompt,
                address,
                [sys.executable, "-m", "workflows_mcp", "serve"],
                cwd=self.project,
                environment={"WORKFLOWS_HOME": str(self.runs), "WORKFLOWS_ELICITATION": "never"},
                resumes=resumes,
                settings=settings,
            )
        return [it["messages"] for it in seen]

    def served(self, work: Any) -> Any:
        async def session() -> Any:
            async with Service.open(Settings(workspace=self.project, home=self.runs)) as service:
                return await work(service)

        return asyncio.run(session())

    def journal(self, run_id: str) -> Sequence[events.Event]:
        async def read(service: Service) -> Sequence[events.Event]:
            return (await service._engine.journal(run_id))[1]

        found: Sequence[events.Event] = self.served(read)
        return found


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


def calls(tool: str, **arguments: Any) -> Turn:
    own = tool == "exec_command" or tool.startswith("multi_agent")
    return lambda _: (tool if own else f"{TOOL}{tool}", arguments)


def says(text: str) -> Turn:
    return lambda _: text


def test_a_model_that_stops_skips_and_answers_the_gate_finishes_in_order(place: Place) -> None:
    found: dict[str, str] = {}

    def stops(messages: Messages) -> str:
        found["run"] = last_result(messages)["workflow_id"]
        return "All done, the release is out!"

    def submits(step: str) -> Turn:
        return lambda _: (
            f"{TOOL}submit_result",
            {"workflow_id": found["run"], "step_id": step, "result": {"response": step}, "wait_seconds": 0},
        )

    seen = place.ask(
        "Run the workflow release",
        calls("start_workflow", workflow="release"),
        stops,
        submits("publish"),
        calls("exec_command", cmd="git push"),
        submits("plan"),
        lambda _: ("exec_command", {"cmd": f"workflows-mcp answer {found['run']} approve"}),
        says("A person has to approve it."),
    )
    assert len(seen) == 7, "a gate holds nobody"
    assert "Your turn is not over" in texts(seen[2][-1:])
    assert "Pending step: 'plan' (delegate)" in texts(seen[2][-1:])
    assert "'plan'" in last_output(seen[3])
    assert "`git push` is not allowed" in last_output(seen[4])
    assert last_result(seen[5])["status"] == "waiting"
    assert "`workflows-mcp answer` is for the user" in last_output(seen[6])

    ada = Identity("ada", "terminal", human=True)
    place.served(lambda service: service.decide(found["run"], "approve", by=ada))
    seen = place.ask(
        "Go on", says("It is released."), submits("publish"), says("Now it is released."), resumes=True
    )
    assert f"This conversation works on the workflow 'release' (run {found['run']})" in texts(seen[0])
    assert "Pending step: 'publish' (delegate)" in texts(seen[1][-1:])
    assert last_result(seen[2])["status"] == "completed"
    assert len(seen) == 3
    journal = place.journal(found["run"])
    done = [it.address for it in journal if isinstance(it, events.Answered | events.Decided)]
    assert done == ["plan", "approve", "publish"]
    tried = [it.what for it in journal if isinstance(it, events.Refused)]
    assert tried == ["stop", "step", "tool", "command", "stop"]
    assert list((place.runs / "sessions").glob("*.json")) == []


def test_a_model_that_is_compacted_in_the_middle_has_its_step_back(place: Place) -> None:
    found: dict[str, str] = {}

    def submits(messages: Messages) -> tuple[str, dict[str, Any]]:
        [reminder] = [it for it in messages if "This conversation works on" in texts([it])]
        found["run"] = re.findall(r"wf_\w+", texts([reminder]))[0]
        result = {"workflow_id": found["run"], "step_id": "plan", "result": "x", "wait_seconds": 0}
        return f"{TOOL}submit_result", result

    seen = place.ask(
        "Run the workflow release",
        calls("start_workflow", workflow="release"),
        submits,
        says("A person has to approve it."),
        settings="model_auto_compact_token_limit = 3\n",
    )
    assert "start_workflow" not in json.dumps(seen[1]), "it has only the summary"
    assert [it.address for it in place.journal(found["run"]) if isinstance(it, events.Answered)] == ["plan"]


def test_a_sub_agent_that_stops_early_is_held_to_its_task(place: Place) -> None:
    found: dict[str, str] = {}

    def delegates(messages: Messages) -> tuple[str, dict[str, Any]]:
        found["run"] = last_result(messages)["workflow_id"]
        return "multi_agent_v1__spawn_agent", {"message": f"{SUB_AGENT} {found['run']}.each.0"}

    def waits(messages: Messages) -> tuple[str, dict[str, Any]]:
        agent = json.loads(last_output(messages))["agent_id"]
        return "multi_agent_v1__wait_agent", {"targets": [agent], "timeout_ms": 30_000}

    def submits(step: str, task: str = "") -> Turn:
        return lambda _: (
            f"{TOOL}submit_result",
            {"workflow_id": found["run"] + task, "step_id": step, "result": {"response": step}},
        )

    main = iter(
        [calls("start_workflow", workflow="fan"), delegates, waits, submits("sum"), says("All is done.")]
    )
    sub = iter(
        [
            lambda _: (f"{TOOL}get_next_step", {"workflow_id": f"{found['run']}.each.0"}),
            says("I have looked at it."),
            submits("look", ".each.0"),
            says("Now I have."),
        ]
    )
    heard: list[str] = []

    def turn(messages: Messages) -> Any:
        users = [it for it in messages if it["role"] == "user"]
        is_sub = SUB_AGENT in texts(users) and "Run the workflow fan" not in texts(users)
        if is_sub:
            heard.append(texts(messages[-1:]))
        return next(sub if is_sub else main)(messages)

    place.ask("Run the workflow fan", *[turn] * 9)
    assert f"(task {found['run']}.each.0) waits for you. Pending step: 'look'" in heard[2]
    done = [it.address for it in place.journal(found["run"]) if isinstance(it, events.Answered)]
    assert done == ["each/0/look", "sum"]


def test_without_a_run_the_hooks_print_nothing(place: Place) -> None:
    seen = place.ask(
        "Say hello",
        calls("list_workflows"),
        calls("exec_command", cmd="echo workflows-mcp answer wf_1"),
        says("Hello"),
    )
    assert len(seen) == 3
    assert "workflows-mcp answer wf_1" in last_output(seen[2])
    assert "hook_prompt" not in json.dumps(seen[2])
    assert not (place.runs / "sessions").exists()
