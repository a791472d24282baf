"""Workflows run from text to answer, through the service, on the embedded engine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.git import GitRepository, repository_at, without_configuration
from support.programs import Programs
from support.rendered import Service
from support.workspaces import settings, workspace
from workflows_mcp.settings.model import Settings

__all__ = ["settings", "workspace"]


class Ran(NamedTuple):
    answer: dict[str, Any]
    blocks: dict[str, Any]
    """All that is known of each block, by id."""


Run = Callable[..., Ran]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Stand-ins that commands of workflows find before the real programs."""
    found = Programs(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{found.directory}{os.pathsep}{os.environ['PATH']}")
    return found


@pytest.fixture
def repository(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> GitRepository:
    """The workspace as a git repository with one commit on main."""
    without_configuration(monkeypatch)
    return repository_at(workspace)


@pytest.fixture
def run(settings: Settings, workspace: Path) -> Run:
    """Run a workflow to its end; `answers` are submitted in order, `library` are further workflows."""

    def go(
        text: str,
        inputs: dict[str, Any] | None = None,
        answers: list[Any] | None = None,
        library: dict[str, str] | None = None,
    ) -> Ran:
        for name, other in (library or {}).items():
            (workspace / ".workflows" / f"{name}.yaml").write_text(other)

        async def work() -> Ran:
            async with Service.open(settings) as service:
                answer = await service.start(text=text, inputs=inputs or {})
                for result in answers or []:
                    answer = await service.submit(answer["workflow_id"], result)
                found = await service.state(answer["workflow_id"], paths=["blocks"])
                return Ran(answer, found["values"]["blocks"])

        return asyncio.run(asyncio.wait_for(work(), 30))

    return go
