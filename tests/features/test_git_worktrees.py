"""Git worktrees in a workflow: lines of work side by side, from YAML to answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.git import GitRepository, repository_at, without_configuration

TWO_LINES_OF_WORK = """
name: two-lines-of-work
inputs:
  left: {type: string}
  right: {type: string}
blocks:
  - id: left
    type: CreateWorktree
    inputs: {path: ".worktrees/${inputs.left}", branch: "feature/${inputs.left}", base_branch: main}
  - id: right
    type: CreateWorktree
    inputs: {path: ".worktrees/${inputs.right}", branch: "feature/${inputs.right}", base_branch: main}
  - id: note
    type: CreateFile
    depends_on: [left]
    inputs: {path: "${blocks.left.worktree_path}/note.txt", content: "made on the left"}
  - id: work_left
    type: Shell
    depends_on: [note]
    inputs:
      command: git add note.txt && git commit --quiet -m note && git log -1 --format=%s
      working_dir: ${blocks.left.outputs.worktree_path}
  - id: work_right
    type: Shell
    depends_on: [right]
    inputs: {command: "echo unsaved > draft.txt; ls", working_dir: "${blocks.right.worktree_path}"}
  - id: remove_left
    type: RemoveWorktree
    depends_on: [work_left]
    inputs: {path: "${blocks.left.worktree_path}"}
  - id: remove_right
    type: RemoveWorktree
    depends_on: [work_right]
    inputs: {path: "${blocks.right.worktree_path}"}
    on_failure: continue
outputs:
  left: ${blocks.left.worktree_path}
  said: ${blocks.work_left.stdout}
  seen: ${blocks.work_right.stdout}
  left_removed: ${blocks.remove_left.removed}
  right_removed: ${blocks.remove_right.removed}
  refusal: ${blocks.remove_right.metadata.message}
"""


@pytest.fixture
def git(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> GitRepository:
    without_configuration(monkeypatch)
    return repository_at(workspace)


@pytest.mark.rows("G14")
def test_two_worktrees_are_worked_in_at_once_and_the_dirty_one_is_kept(run: Any, git: GitRepository) -> None:
    ran = run(TWO_LINES_OF_WORK, {"left": "login", "right": "search"})
    outputs = ran.answer["outputs"]
    assert ran.answer["status"] == "completed", ran.answer
    assert ran.blocks["left"]["metadata"]["started_at"] <= ran.blocks["right"]["metadata"]["completed_at"]
    assert ran.blocks["right"]["metadata"]["started_at"] <= ran.blocks["left"]["metadata"]["completed_at"]
    kept = git.path / ".worktrees" / "search"
    assert outputs == {
        "left": str(git.path / ".worktrees" / "login"),
        "said": "note\n",
        "seen": "README.md\ndraft.txt\n",
        "left_removed": True,
        "right_removed": False,
        "refusal": outputs["refusal"],
    }
    assert f"{kept} has uncommitted changes: draft.txt (untracked)" in outputs["refusal"]
    assert "force: true" in outputs["refusal"]
    assert git.worktrees() == [str(git.path), str(kept)]
    assert git("show", "feature/login:note.txt") == "made on the left"
    assert (kept / "draft.txt").read_text() == "unsaved\n"


@pytest.mark.rows("G14")
def test_a_worktree_that_cannot_be_made_fails_the_run_and_says_why(run: Any, git: GitRepository) -> None:
    ran = run(
        """
name: wrong-base
blocks:
  - {id: tree, type: CreateWorktree, inputs: {path: w, branch: b, base_branch: mian}}
  - {id: work, type: Shell, depends_on: [tree], inputs: {command: pwd, working_dir: "${blocks.tree.worktree_path}"}}
"""
    )
    assert ran.answer["status"] == "failed"
    assert "there is no branch 'mian' to start from" in ran.answer["error"]["message"]
    assert ran.blocks["work"]["metadata"]["status"] == "skipped"
    assert git.branches() == ["main"]
