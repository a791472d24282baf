"""Built-in workflows run by name, through the service, on the embedded engine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.programs import Programs
from support.rendered import Service
from workflows_mcp.settings.model import Settings

Answer = dict[str, Any]
Run = Callable[..., Answer]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "workspace"
    path.mkdir()
    return path


@pytest.fixture
def settings(tmp_path: Path, workspace: Path) -> Settings:
    return Settings(workspace=workspace, home=tmp_path / "home")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Stand-ins that commands of workflows find before the real programs."""
    found = Programs(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{found.directory}{os.pathsep}{os.environ['PATH']}")
    return found


@pytest.fixture
def run(settings: Settings) -> Run:
    """Run a workflow, by name or as text, with these inputs; `answers` are submitted in order, each for the
    question that is asked then, or (step_id, answer) for one of several."""

    def go(workflow: str, inputs: dict[str, Any] | None = None, *, answers: tuple[Any, ...] = ()) -> Answer:
        which = "text" if "\n" in workflow else "workflow"

        async def work() -> Answer:
            async with Service.open(settings) as service:
                answer = await service.start(**{which: workflow}, inputs=inputs or {})
                for result in answers:
                    step, said = result if isinstance(result, tuple) else (None, result)
                    answer = await service.submit(answer["workflow_id"], said, step_id=step)
                return answer

        return asyncio.run(asyncio.wait_for(work(), 60))

    return go


@pytest.fixture
def outputs(run: Run) -> Run:
    """The same, for a run that must complete: its outputs."""

    def go(workflow: str, inputs: dict[str, Any] | None = None, *, answers: tuple[Any, ...] = ()) -> Answer:
        answer = run(workflow, inputs, answers=answers)
        assert answer["status"] == "completed", answer
        given: Answer = answer["outputs"]
        return given

    return go


@pytest.fixture
def refusal(run: Run) -> Callable[..., str]:
    """The same, for a run that must fail: what its error says."""

    def go(workflow: str, inputs: dict[str, Any] | None = None, *, answers: tuple[Any, ...] = ()) -> str:
        answer = run(workflow, inputs, answers=answers)
        assert answer["status"] == "failed", answer
        message: str = answer["error"]["message"]
        return message

    return go
