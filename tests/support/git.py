"""A git repository for tests, made with real git and with no configuration but its own, and steps that use it
and may be killed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from workflows_mcp.policy.handles import World
from workflows_mcp.policy.rules import Policy
from workflows_mcp.steps.base import Step, StepContext, StepResult
from workflows_mcp.steps.registry import default_registry
from workflows_mcp.values import Value

THE_TRY = "run-1/the-try"
"""The key of the one try of a step."""


class GitRepository:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, *arguments: str, at: Path | None = None) -> str:
        """What git prints."""
        return subprocess.run(
            ["git", *arguments], cwd=at or self.path, check=True, capture_output=True, text=True
        ).stdout.strip()

    def commit(self, name: str, text: str = "text\n", *, at: Path | None = None) -> str:
        """A new commit with one file, and its id."""
        directory = at or self.path
        (directory / name).write_text(text)
        self("add", "--", name, at=directory)
        self("commit", "--quiet", "-m", f"add {name}", at=directory)
        return self("rev-parse", "HEAD", at=directory)

    def branches(self) -> list[str]:
        return self("for-each-ref", "--format=%(refname:short)", "refs/heads").split()

    def worktrees(self) -> list[str]:
        """The directories that git knows, the main one first."""
        lines = self("worktree", "list", "--porcelain").splitlines()
        return [line.removeprefix("worktree ") for line in lines if line.startswith("worktree ")]

    def hook(self, name: str, script: str) -> None:
        path = self.path / ".git" / "hooks" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)


def without_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Git of the test and of the steps sees no configuration of the machine, and has somebody to commit as."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "Ada")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "ada@example.org")


def repository_at(path: Path) -> GitRepository:
    """A repository on branch main with one commit."""
    path.mkdir(parents=True, exist_ok=True)
    repository = GitRepository(path)
    repository("init", "--quiet", "-b", "main")
    repository.commit("README.md", "# Project\n")
    return repository


def one_try(step: Step, inputs: dict[str, Value], workspace: Path, scratch: Path) -> StepResult:
    """One try of a step; whenever it is repeated it is the same one."""
    context = StepContext("run-1", THE_TRY, World(Policy(workspace), "run-1", scratch))
    outcome: Any = step.run(step.Inputs.model_validate(inputs), context)
    result = asyncio.run(outcome)
    assert isinstance(result, StepResult)
    return result


def start_one_try(
    step: Step, inputs: dict[str, Value], workspace: Path, scratch: Path
) -> subprocess.Popen[bytes]:
    """The same in a process of its own, that may be killed."""
    tests = Path(__file__).resolve().parents[1]
    given = json.dumps([step.name, inputs, str(workspace), str(scratch)])
    code = "import sys; from support import git; git._try_here(sys.argv[1])"
    return subprocess.Popen([sys.executable, "-c", code, given], env={**os.environ, "PYTHONPATH": str(tests)})


def _try_here(given: str) -> None:
    name, inputs, workspace, scratch = json.loads(given)
    one_try(default_registry().get(name), inputs, Path(workspace), Path(scratch))
