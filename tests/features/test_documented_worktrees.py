"""The documented examples of the graph dialect: work in a git worktree of its own, with real git."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from support.git import GitRepository
from support.programs import Programs

REFERENCES = """
# Workflow inputs
${inputs.project_name}
${inputs.workspace}

# Workflow metadata
${metadata.workflow_name}
${metadata.start_time}

# Block outputs (explicit)
${blocks.create_worktree.outputs.worktree_path}
${blocks.run_tests.outputs.exit_code}

# Block outputs (shortcut - auto-expands to outputs)
${blocks.run_tests.exit_code}           # Same as outputs.exit_code
${blocks.create_worktree.worktree_path}  # Same as outputs.worktree_path

# Block inputs (for debugging)
${blocks.run_tests.inputs.command}

# Block metadata
${blocks.run_tests.metadata.execution_time_ms}
"""
BUILD_PROJECT = """
name: build-project
description: Build project with tests

inputs:
  project_name:
    type: string
    default: "my-project"

  workspace:
    type: string
    default: "."

blocks:
  - id: create_worktree
    type: CreateWorktree
    inputs:
      branch: "feature/${inputs.project_name}"
      path: ".worktrees/${inputs.project_name}"

  - id: create_file
    type: CreateFile
    inputs:
      path: "${blocks.create_worktree.outputs.worktree_path}/README.md"
      content: |
        # ${inputs.project_name}
        Built at: ${metadata.start_time}
    depends_on:
      - create_worktree

  - id: run_tests
    type: Shell
    inputs:
      command: "pytest tests/"
      working_dir: "${blocks.create_worktree.outputs.worktree_path}"
    depends_on:
      - create_file

outputs:
  worktree_path: "${blocks.create_worktree.outputs.worktree_path}"
  tests_passed: "${blocks.run_tests.succeeded}"  # ADR-007: Use shortcut
"""
WORKTREE_PATTERN = """
- id: create_worktree
  type: CreateWorktree
  inputs:
    path: ".worktrees/feature/${inputs.feature_name}"
    branch: "feature/${inputs.feature_name}"
    base_branch: "main"

# Use worktree path in subsequent blocks
- id: create_file
  type: CreateFile
  inputs:
    path: "${blocks.create_worktree.outputs.worktree_path}/new-file.txt"
    content: |
      Feature: ${inputs.feature_name}
      Created at: ${metadata.start_time}
  depends_on:
    - create_worktree
"""


@pytest.mark.rows("G14", "G17")
@pytest.mark.parametrize("exit_code", [0, 1])
def test_a_project_is_built_and_tested_in_a_worktree_of_its_own(
    run: Any, programs: Programs, repository: GitRepository, exit_code: int
) -> None:
    programs.add("pytest", f"pwd; exit {exit_code}")
    repository.commit("first.txt", "first")
    ran = run(BUILD_PROJECT)
    worktree = repository.path / ".worktrees" / "my-project"
    assert ran.answer["status"] == ("failed" if exit_code else "completed"), ran.answer
    assert ran.answer["outputs"] == {
        "worktree_path": str(worktree.resolve()),
        "tests_passed": exit_code == 0,
    }
    assert repository("branch", "--show-current", at=worktree) == "feature/my-project"
    assert (worktree / "first.txt").read_text(encoding="utf-8") == "first"
    readme = (worktree / "README.md").read_text(encoding="utf-8")
    assert re.fullmatch(r"# my-project\nBuilt at: \d{4}-\d\d-\d\dT[\d:.]+Z\n", readme)
    assert Path(ran.blocks["run_tests"]["outputs"]["stdout"].strip()).resolve() == worktree.resolve()
    assert repository("branch", "--show-current") == "main"
    assert repository("diff", "HEAD", "--name-only") == "", "what was there is as it was"


@pytest.mark.rows("G3", "G14")
def test_the_references_to_a_worktree_give_its_path(
    run: Any, programs: Programs, repository: GitRepository
) -> None:
    programs.add("pytest")
    paths = re.findall(r"^\$\{([\w.]+)\}", REFERENCES, re.M)
    assert len(paths) == 10
    ran = run(BUILD_PROJECT + "".join(f'  {path}: "${{{path}}}"\n' for path in paths))
    found = ran.answer["outputs"]
    worktree = str((repository.path / ".worktrees" / "my-project").resolve())
    took = found.pop("blocks.run_tests.metadata.execution_time_ms")
    assert took > 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", found.pop("metadata.start_time"))
    assert found == {
        "worktree_path": worktree,
        "tests_passed": True,
        "inputs.project_name": "my-project",
        "inputs.workspace": ".",
        "metadata.workflow_name": "build-project",
        "blocks.create_worktree.outputs.worktree_path": worktree,
        "blocks.create_worktree.worktree_path": worktree,
        "blocks.run_tests.outputs.exit_code": 0,
        "blocks.run_tests.exit_code": 0,
        "blocks.run_tests.inputs.command": "pytest tests/",
    }


@pytest.mark.rows("G14")
def test_a_worktree_starts_from_the_base_branch_that_it_names(run: Any, repository: GitRepository) -> None:
    repository("checkout", "-q", "-b", "elsewhere")
    repository.commit("not-on-main.txt")
    ran = run(
        "name: pattern\ninputs: {feature_name: string}\nblocks:" + WORKTREE_PATTERN, {"feature_name": "x"}
    )
    assert ran.answer["status"] == "completed", ran.answer
    worktree = repository.path / ".worktrees" / "feature" / "x"
    assert repository("branch", "--show-current", at=worktree) == "feature/x"
    assert repository("rev-parse", "HEAD", at=worktree) == repository("rev-parse", "main")
    text = (worktree / "new-file.txt").read_text(encoding="utf-8")
    assert re.fullmatch(r"Feature: x\nCreated at: \d{4}-\d\d-\d\dT[\d:.]+Z\n", text)
