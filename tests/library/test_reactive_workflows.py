"""The built-in reactive workflows, with real commands and an agent that knows what to do."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.rendered import Service
from workflows_mcp.errors import InvalidInputs
from workflows_mcp.settings.model import Settings

Answer = dict[str, Any]
Run = Callable[..., Answer]
CHECK = "grep -q sound"
"""A file is clean if it says that it is sound."""


@pytest.fixture
def gate(settings: Settings) -> Run:
    def run(**inputs: Any) -> Answer:
        async def work() -> Answer:
            async with Service.open(settings) as service:
                answer = await service.start(workflow="quality-gate", inputs=inputs)
                assert answer["status"] == "completed", answer
                return answer

        return asyncio.run(asyncio.wait_for(work(), 60))

    return run


@pytest.mark.rows("R3", "R4", "R9", "R13")
def test_a_project_that_passes_all_checks_is_good_enough(gate: Run, workspace: Path) -> None:
    (workspace / "sub").mkdir()
    answer = gate(checks={"here": "test -d sub", "there": "true"}, threshold=100)
    assert (answer["state"]["score"], answer["state"]["passed"]) == (100, True)
    assert answer["state"]["failed_checks"] == []
    assert answer["messages"] == ["Good enough: 100 of 100, and 100 are needed."]


@pytest.mark.rows("R8", "R9", "R13")
def test_every_check_runs_counts_as_much_as_it_should_and_says_why_it_failed(
    gate: Run, workspace: Path
) -> None:
    checks = {"lint": "echo broken >&2; exit 2", "tests": "touch ran", "slow check": "sleep 60"}
    answer = gate(checks=checks, weights={"tests": 3}, timeout=1)
    assert (workspace / "ran").exists()
    assert (answer["state"]["score"], answer["state"]["passed"]) == (60, False)
    assert [check["name"] for check in answer["state"]["failed_checks"]] == ["lint", "slow check"]
    assert answer["state"]["failed_checks"][0]["reason"] == "Command exited with code 2: broken"
    [message] = answer["messages"]
    first, lint, slow = message.splitlines()
    assert first == "Not good enough: 60 of 100, and 80 are needed."
    assert lint.startswith("- lint: ")
    assert slow.startswith("- slow check: ")


@pytest.mark.rows("R9")
def test_checks_run_where_they_are_told_and_none_at_all_are_good_enough(gate: Run, workspace: Path) -> None:
    (workspace / "sub").mkdir()
    assert (
        gate(checks={"place": 'test "$(basename "$PWD")" = sub'}, working_dir="sub")["state"]["passed"]
        is True
    )
    assert gate(checks={})["state"]["score"] == 100


@pytest.mark.rows("R13")
def test_a_threshold_that_nobody_can_reach_is_refused(gate: Run) -> None:
    with pytest.raises(InvalidInputs, match="'threshold' must be 100 or less"):
        gate(checks={}, threshold=101)


class Agents:
    """The main agent and its sub-agents; `mends` says whether a file gets sound, by its name and the try."""

    def __init__(self, settings: Settings, mends: Callable[[str, int], bool]) -> None:
        self.settings = settings
        self.mends = mends
        self.tries: dict[str, int] = {}
        self.handed: list[list[str]] = []
        self.hints: list[list[str]] = []

    def run(self, **inputs: Any) -> Answer:
        async def work() -> Answer:
            async with Service.open(self.settings) as service:
                given = {"check_command": CHECK, **inputs}
                return await self._drive(
                    service, await service.start(workflow="fix-files-in-parallel", inputs=given)
                )

        return asyncio.run(asyncio.wait_for(work(), 60))

    async def _drive(self, service: Service, answer: Answer) -> Answer:
        while answer["status"] == "pending_action":
            action, run_id = answer["action"], answer["workflow_id"]
            if action["type"] in ("parallel_tasks", "foreach"):
                waiting = [it for it in action["parameters"]["tasks"] if it["status"] == "waiting to start"]
                self.handed.append([task["task_id"] for task in waiting])
                await asyncio.gather(*(self._task(service, task["workflow_id"]) for task in waiting))
                answer = await service.status(run_id, wait_seconds=10)
            else:
                result = self._fix(action["parameters"])
                answer = await service.submit(run_id, result, step_id=action["step_id"])
        return answer

    async def _task(self, service: Service, workflow_id: str) -> None:
        answer = await service.next_step(workflow_id)
        while answer["status"] in ("running", "waiting"):
            answer = await service.status(workflow_id, wait_seconds=10)
        await self._drive(service, answer)

    def _fix(self, parameters: Answer) -> Answer:
        file = self.settings.workspace / parameters["file"]
        self.hints.append(parameters["hints"])
        self.tries[parameters["file"]] = self.tries.get(parameters["file"], 0) + 1
        if file.name == "locked":
            return {"is_error": True, "error": "it cannot be written"}
        if self.mends(file.name, self.tries[parameters["file"]]):
            file.write_text("sound", encoding="utf-8")
        return {"applied_count": 1}


def written(workspace: Path, *names: str, text: str = "broken") -> list[str]:
    for name in names:
        (workspace / name).write_text(text, encoding="utf-8")
    return list(names)


@pytest.mark.rows("R8", "R14", "R15", "R16")
def test_files_are_fixed_in_batches_until_the_check_is_content(settings: Settings, workspace: Path) -> None:
    files = written(workspace, "a.txt", "b c.txt", "d'.txt", "e.txt") + written(
        workspace, "f.txt", text="sound"
    )
    agents = Agents(settings, lambda name, attempt: attempt == 2)
    answer = agents.run(files=files, files_per_batch=2, check_command="grep -n sound")
    assert answer["status"] == "completed", answer
    state = answer["state"]
    handed = [task for wave in agents.handed for task in wave]
    assert sorted(handed)[:2] == ["batch_0", "batch_1"]
    assert handed.count("batch_2") <= 1, "the server finds by itself that there is nothing to do in it"
    assert agents.tries == dict.fromkeys(files[:4], 2)
    assert sorted(state["clean"]) == sorted(files)
    assert (sorted(state["fixed"]), state["unfixed"]) == (sorted(files[:4]), [])
    assert {name: it["attempts"] for name, it in state["results"].items()} == dict.fromkeys(files[:4], 2) | {
        "f.txt": 0
    }
    assert answer["messages"] == ["5 files: 5 clean, 4 of them fixed now, 0 not clean"]


@pytest.mark.rows("R13", "R15", "R16")
def test_a_file_that_stays_broken_is_given_up_and_a_task_that_fails_does_not_stop_the_others(
    settings: Settings, workspace: Path
) -> None:
    files = written(workspace, "hopeless", "locked", "other", "last")
    agents = Agents(settings, lambda name, attempt: name in ("other", "last"))
    answer = agents.run(files=files, files_per_batch=1, most_attempts=2, max_parallel=2)
    assert answer["status"] == "completed", answer
    state = answer["state"]
    assert agents.tries == {"hopeless": 2, "locked": 1, "other": 1, "last": 1}
    assert sorted(task for wave in agents.handed for task in wave) == [
        f"batch_{number}" for number in range(4)
    ]
    assert max(map(len, agents.handed)) <= 2
    assert (sorted(state["clean"]), state["unfixed"]) == (["last", "other"], ["hopeless", "locked"])
    [error] = state["task_errors"]
    assert error["task_id"] == "batch_1"
    assert "it cannot be written" in error["error"]
    assert answer["messages"][-1].endswith("2 not clean: hopeless, locked")


@pytest.mark.rows("R5", "R9")
def test_without_files_those_that_changed_are_taken(settings: Settings, workspace: Path) -> None:
    written(workspace, "a.py", "b.md", "c.py")
    for arguments in (
        ("init",),
        ("add", "-A"),
        ("-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-m", "x"),
    ):
        subprocess.run(["git", *arguments], cwd=workspace, check=True, capture_output=True)
    agents = Agents(settings, lambda name, attempt: True)
    assert agents.run()["messages"] == ["0 files: 0 clean, 0 of them fixed now, 0 not clean"]
    written(workspace, "a.py", "b.md", text="changed")
    answer = agents.run(pattern=r"\.py$", check_command="grep -H sound")
    assert answer["state"]["chosen"] == ["a.py"]
    assert (agents.tries, answer["state"]["fixed"]) == ({"a.py": 1}, ["a.py"])
