"""`run --agent`: a command-line agent performs the steps, and the person at the terminal answers questions."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.processes import background, eventually
from support.scripted_agent import ScriptedAgent

from .conftest import Terminal

pytestmark = pytest.mark.rows("P9")

REVIEW = Path(__file__).resolve().parents[2] / "examples" / "review-changes.yaml"
FINDING = '[{{"file": "{0}", "line": 1, "severity": "high", "message": "fix {0}"}}]'


@pytest.fixture
def agent(tmp_path: Path, terminal: Terminal) -> ScriptedAgent:
    agent = ScriptedAgent(tmp_path / "agent")
    terminal.environment["WORKFLOWS_AGENTS"] = json.dumps({"helper": {"command": agent.argv()}})
    return agent


@pytest.fixture
def changed(terminal: Terminal) -> Terminal:
    """A repository with two changed files."""
    for command in ("git init -q", "git -c user.name=A -c user.email=a@b.c commit -qm x --allow-empty"):
        subprocess.run(command.split(), cwd=terminal.workspace, check=True)
    terminal.write("a.py", "1\n")
    terminal.write("b.py", "2\n")
    return terminal


def test_changed_files_are_reviewed_without_anybody(agent: ScriptedAgent, changed: Terminal) -> None:
    for file in ("a.py", "b.py"):
        agent.answers(f"file {file}", FINDING.format(file))
    said = changed.run("run", str(REVIEW), "--agent", "helper", "--json")
    assert said.data["status"] == "completed", said.err
    assert [it["message"] for it in said.data["result"]["findings"]] == ["fix a.py", "fix b.py"]
    assert len(agent.calls) == 2


def planning(agent: ScriptedAgent) -> None:
    agent.answers("specific research tasks", '["Which river?", "Which steel?"]')
    agent.answers("Research this question", "found out")
    agent.answers("create a detailed implementation plan", "# Draft")
    agent.answers("senior architect", "Add numbers.")
    agent.answers("Update the implementation plan", "# Plan")


def test_a_plan_is_made_with_a_person_only_at_the_questions(agent: ScriptedAgent, terminal: Terminal) -> None:
    planning(agent)
    terminal.write("answers.json", json.dumps({"get-user-request": {"input": "a bridge"}}))
    said = terminal.run(
        "run", "interactive-planning", "--agent", "helper", "--answers", "answers.json", "--json"
    )
    assert said.code == 3, said.err
    assert said.data["action"]["step_id"] == "approve-plan"
    assert "# Plan" in said.data["action"]["parameters"]["message"]
    assert len(agent.calls) == 6
    said = terminal.run("answer", said.data["workflow_id"], "yes", "--json")
    assert said.data["result"]["approved"] is True
    assert len(agent.calls) == 6


def test_a_run_that_was_killed_is_continued_by_a_server_and_repeats_nothing(
    agent: ScriptedAgent, changed: Terminal
) -> None:
    agent.answers("file a.py", FINDING.format("a.py"))
    agent.answers("file b.py", FINDING.format("b.py"), waits_for="go", children=True)
    command = [*changed.command, "run", str(REVIEW), "--agent", "helper"]
    with background(command, changed.workspace, changed.environment) as run:
        run.says("✓ review/0/look")
        eventually(lambda: len(agent.children) == 2)
        run.told(signal.SIGKILL)
    left = [*agent.children, agent.calls[-1]["pid"]]
    with background([*changed.command, "serve"], changed.workspace, changed.environment) as server:
        server.introduce()
        eventually(lambda: len(agent.calls) == 3)
        assert not any(map(_is_alive, left)), "what was left of the step was ended before its repetition"
        agent.continues("go")
        [found] = server.call("get_workflow_status")["runs"]
        answer = eventually(lambda: _ended(server.call("get_workflow_status", **_id(found))))
    assert answer["status"] == "completed"
    asked = ["a.py" if "file a.py" in prompt else "b.py" for prompt in agent.prompts]
    assert sorted(asked) == ["a.py", "b.py", "b.py"]


def test_a_server_that_the_program_starts_serves_its_own_task_and_nothing_else_of_the_run(
    agent: ScriptedAgent, changed: Terminal
) -> None:
    agent.answers("file a.py", FINDING.format("a.py"), waits_for="go")
    agent.answers("file b.py", FINDING.format("b.py"))
    command = [*changed.command, "run", str(REVIEW), "--agent", "helper"]
    with background(command, changed.workspace, changed.environment) as run:
        run.says("✓ review/1/look")
        [call] = [it for it in agent.calls if "file a.py" in it["prompt"]]
        inside = {name: it for name, it in changed.environment.items() if not name.startswith("WORKFLOWS_")}
        inside |= {name: it for name, it in call["environment"].items() if name != "WORKFLOWS_MCP_STEP"}
        task = inside["WORKFLOWS_TASK"]
        with background([*changed.command, "serve"], changed.workspace, inside) as server:
            server.introduce()
            assert server.call("get_workflow_status", workflow_id=task, wait_seconds=0)["status"] == "running"
            for other in (task.partition(".")[0], task[:-1] + "1"):
                refused = server.ask(
                    "tools/call", name="get_workflow_status", arguments={"workflow_id": other}
                )
                assert refused["result"]["isError"] is True
        agent.continues("go")
        assert run.process.wait(60) == 0


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _id(run: dict[str, Any]) -> dict[str, Any]:
    return {"workflow_id": run["workflow_id"]}


def _ended(answer: dict[str, Any]) -> dict[str, Any] | None:
    return answer if answer["status"] in ("completed", "failed", "cancelled") else None


def test_a_run_that_waits_for_an_agent_is_resumed_with_a_command(
    agent: ScriptedAgent, changed: Terminal
) -> None:
    for file in ("a.py", "b.py"):
        agent.answers(f"file {file}", FINDING.format(file))
    waiting = changed.run("run", str(REVIEW), "--json")
    assert waiting.code == 3
    said = changed.run("resume", waiting.data["workflow_id"], "--agent", "helper", "--json")
    assert said.data["status"] == "completed", said.err
    assert len(agent.calls) == 2


def test_a_failed_step_is_retried_with_another_agent(agent: ScriptedAgent, changed: Terminal) -> None:
    other = ScriptedAgent(changed.home.parent / "other")
    agents = {"helper": {"command": agent.argv()}, "other": {"command": other.argv()}}
    changed.environment["WORKFLOWS_AGENTS"] = json.dumps(agents)
    agent.answers("file a.py", FINDING.format("a.py"))
    agent.answers("file b.py", stderr="no account\n", code=1)
    other.answers("file b.py", FINDING.format("b.py"))
    failed = changed.run("run", str(REVIEW), "--agent", "helper")
    assert failed.code == 1
    assert "the agent 'helper'" in failed.err
    assert "no account" in failed.err
    run_id = next(word for word in failed.err.split() if word.startswith("wf_"))
    said = changed.run("retry", run_id, "--agent", "other", "--json")
    assert said.data["status"] == "completed", said.err
    assert (len(agent.calls), len(other.calls)) == (2, 1)


def test_an_agent_that_does_not_exist_is_named_before_anything_runs(terminal: Terminal) -> None:
    said = terminal.run("run", "interactive-planning", "--agent", "cluade")
    assert said.code != 0
    assert "there is no agent 'cluade'" in said.err
    assert "did you mean 'claude'" in said.err
