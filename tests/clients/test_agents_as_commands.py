"""Real Claude Code and real Codex perform the steps of a run that the terminal starts, without a person."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.claude_code import ALONE, claude_program
from support.codex import codex_program, settings_of_model
from support.model_apis import MESSAGES, RESPONSES
from support.processes import background, eventually
from support.scripted_model import scripted_model, texts
from workflows_mcp.machine.state import Identity, Record, record_at
from workflows_mcp.runs.service import Service
from workflows_mcp.settings.model import load_settings

pytestmark = [pytest.mark.slow, pytest.mark.rows("P9")]

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "workflows_mcp"]
PLAN = "# Plan\n\n1. Build the bridge."
ANSWERS = {"get-user-request": {"input": "a bridge"}, "approve-plan": {"confirmed": True}}


def as_result(response: str) -> str:
    return json.dumps({"response": response})


def reply(messages: list[dict[str, Any]]) -> str:
    """What the model says to the prompt of a step."""
    text = texts(messages)
    if found := re.search(r"changes of the file (\S+)\. Change nothing", text):
        finding = {"file": found[1], "line": 1, "severity": "high", "message": f"fix {found[1]}"}
        return as_result(json.dumps([finding]))
    if "Break this down into specific research tasks" in text:
        return "Here you are:\n" + as_result('["Which river?", "Which steel?"]')
    if found := re.search(r"Research this question: (\S+ \S+)", text):
        return as_result(f"findings about {found[1]}")
    if "create a detailed implementation plan" in text:
        return as_result("# Draft")
    if "senior architect" in text:
        return as_result("Add numbers.")
    assert "Update the implementation plan" in text
    return as_result(PLAN)


@dataclass
class Desk:
    """A project with a store of runs, and an agent on the PATH whose model is on loopback."""

    project: Path
    environment: dict[str, str]
    asked: list[dict[str, Any]]

    def run(self, *arguments: str) -> dict[str, Any]:
        done = subprocess.run(
            [*COMMAND, *arguments, "--json"],
            cwd=self.project,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.stdout, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    async def record(self, run_id: str, address: str) -> Record:
        settings = load_settings(
            {"WORKFLOWS_HOME": self.environment["WORKFLOWS_HOME"]}, workspace=self.project
        )
        async with Service.open(settings, recovers=False) as service:
            found = record_at((await service._engine.view(run_id)).state, address)
        assert found is not None
        return found


def git(project: Path, *arguments: str) -> None:
    who = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", str(project), *who, *arguments], check=True, capture_output=True)


@contextmanager
def desk_with(
    name: str, directory: Path, turn: Callable[[list[dict[str, Any]]], str] = reply
) -> Iterator[Desk]:
    project, home, programs = (directory / it for it in ("project", "home", "bin"))
    for place in (project, home, programs):
        place.mkdir()
    git(project, "init", "-q")
    for file in ("a.py", "b.py"):
        (project / file).write_text("one\n")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "Add files")
    for file in ("a.py", "b.py"):
        (project / file).write_text("two\n")
    program, api = (claude_program(), MESSAGES) if name == "claude" else (codex_program(), RESPONSES)
    (programs / name).symlink_to(program)
    with scripted_model([turn], api) as (address, asked):
        (home / "config.toml").write_text(settings_of_model(address))
        environment = {
            **ALONE,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(home),
            "CODEX_HOME": str(home),
            "ANTHROPIC_BASE_URL": address,
            "ANTHROPIC_API_KEY": "none",
            "WORKFLOWS_HOME": str(directory / "store"),
            "CLAUDECODE": "1",
        }
        yield Desk(project, environment, asked)


@pytest.mark.parametrize("name", ["claude", "codex"])
def test_changed_files_are_reviewed_by_one_process_each_and_the_tokens_are_recorded(
    name: str, tmp_path: Path
) -> None:
    with desk_with(name, tmp_path) as desk:
        answer = desk.run("run", str(ROOT / "examples" / "review-changes.yaml"), "--agent", name)
        assert answer["status"] == "completed", answer
        assert [it["file"] for it in answer["result"]["findings"]] == ["a.py", "b.py"]
        assert len(desk.asked) == 2
    for number in range(2):
        record = asyncio.run(desk.record(answer["workflow_id"], f"review/{number}/look"))
        assert record.by == Identity(name, via="command", client=name)
        assert record.tokens == 2, "one in, one out"


def test_a_plan_is_made_with_a_person_only_at_the_questions(tmp_path: Path) -> None:
    answers = tmp_path / "answers.json"
    answers.write_text(json.dumps(ANSWERS))
    with desk_with("claude", tmp_path) as desk:
        answer = desk.run("run", "interactive-planning", "--agent", "claude", "--answers", str(answers))
    assert answer["status"] == "completed", answer
    assert answer["result"]["approved"] is True
    assert answer["result"]["plan"] == PLAN
    assert len(desk.asked) == 6


def test_a_run_whose_terminal_is_killed_is_continued_by_a_server_and_repeats_nothing(tmp_path: Path) -> None:
    held: list[str] = []
    killed = threading.Event()

    def turn(messages: list[dict[str, Any]]) -> str:
        text = texts(messages)
        if "file b.py" in text:
            held.append("b.py")
            if len(held) == 1:
                killed.wait(60)
        return reply(messages)

    with desk_with("claude", tmp_path, turn) as desk:
        example = str(ROOT / "examples" / "review-changes.yaml")
        command = [*COMMAND, "run", example, "--agent", "claude"]
        with background(command, desk.project, desk.environment) as terminal:
            terminal.says("✓ review/0/look")
            eventually(lambda: held)
            terminal.told(signal.SIGKILL)
            killed.set()
        with background([*COMMAND, "serve"], desk.project, desk.environment) as server:
            server.introduce()
            [run] = server.call("get_workflow_status")["runs"]
            answer = eventually(
                lambda: _ended(server.call("get_workflow_status", workflow_id=run["workflow_id"]))
            )
        assert answer["status"] == "completed"
    prompts = [texts(it["messages"]) for it in desk.asked]
    assert sum("file a.py" in it for it in prompts) == 1, "what was done is not done again"
    assert sum("file b.py" in it for it in prompts) == 2


def _ended(answer: dict[str, Any]) -> dict[str, Any] | None:
    return answer if answer["status"] in ("completed", "failed", "cancelled") else None
