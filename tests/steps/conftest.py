from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workflows_mcp.expressions.language import Code
from workflows_mcp.policy.handles import World
from workflows_mcp.policy.rules import Policy
from workflows_mcp.steps.base import Step, StepContext, StepResult
from workflows_mcp.values import Value

RunStep = Callable[..., StepResult]
_keys = itertools.count()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "workspace"
    path.mkdir()
    return path


@pytest.fixture
def world(workspace: Path, tmp_path: Path) -> World:
    return World(Policy(workspace), "run-1", tmp_path / "scratch" / "run-1")


@pytest.fixture
def run_step(world: World) -> RunStep:
    """Carries a step out as an engine does: `run_step(Shell(), {...}, code=..., config=...)`."""

    def run(
        step: Step,
        inputs: dict[str, Value],
        *,
        code: Code | None = None,
        config: dict[str, Value] | None = None,
        at: World | None = None,
    ) -> StepResult:
        context = StepContext(
            run_id="run-1",
            key=f"run-1/step-{next(_keys)}",
            world=at or world,
            config=config or {},
            code={"command": code} if code is not None else {},
        )
        outcome: Any = step.run(step.Inputs.model_validate(inputs), context)
        if asyncio.iscoroutine(outcome):
            outcome = asyncio.run(outcome)
        assert isinstance(outcome, StepResult)
        return outcome

    return run
