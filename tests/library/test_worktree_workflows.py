"""git-worktree-create, git-worktree-remove and git-in-worktree, with real git."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from support.git import GitRepository, repository_at, without_configuration

pytestmark = [
    pytest.mark.rows("G22", "G14"),
    pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed"),
]


@pytest.fixture(autouse=True)
def _no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    without_configuration(monkeypatch)


@pytest.fixture
def git(workspace: Path) -> GitRepository:
    return repository_at(workspace / "project")


def test_a_worktree_is_made_beside_the_work_and_git_does_not_take_it_for_a_file(
    git: GitRepository, outputs: Any
) -> None:
    inputs = {"repository": "project", "branch": "feature/x"}
    made = outputs("git-worktree-create", inputs)
    assert made == {
        "worktree_path": str(git.path / ".worktrees" / "feature" / "x"),
        "branch": "feature/x",
        "base_branch": "main",
        "commit": git("rev-parse", "main"),
        "created": True,
    }
    assert (Path(made["worktree_path"]) / "README.md").exists()
    assert git("status", "--porcelain") == ""
    assert outputs("git-worktree-create", inputs)["created"] is False
    assert (git.path / ".git" / "info" / "exclude").read_text().count(".worktrees/") == 1


def test_a_worktree_can_lie_elsewhere_and_start_from_another_commit(git: GitRepository, outputs: Any) -> None:
    first = git("rev-parse", "HEAD")
    git.commit("later")
    made = outputs(
        "git-worktree-create",
        {"repository": "project", "branch": "old", "base_branch": first, "path": "else where"},
    )
    assert (made["worktree_path"], made["commit"]) == (str(git.path.parent / "else where"), first)
    assert ".worktrees" not in (git.path / ".git" / "info" / "exclude").read_text()


def test_a_worktree_is_removed_by_its_branch_unless_something_would_be_lost(
    git: GitRepository, outputs: Any, refusal: Any
) -> None:
    inputs: dict[str, Any] = {"repository": "project", "branch": "feature"}
    tree = Path(outputs("git-worktree-create", inputs)["worktree_path"])
    (tree / "notes").write_text("not committed")
    assert "notes (untracked)" in refusal("git-worktree-remove", inputs)
    git.commit("notes", at=tree)
    assert "is not merged" in refusal("git-worktree-remove", {**inputs, "delete_branch": True})
    assert tree.exists()
    removed = outputs("git-worktree-remove", inputs)
    assert removed == {"removed": True, "worktree_path": str(tree), "branch_deleted": False}
    assert git.branches() == ["feature", "main"]
    assert outputs("git-worktree-remove", inputs)["removed"] is False
    assert "main worktree" in refusal("git-worktree-remove", {**inputs, "branch": "main"})


def test_a_command_runs_on_a_clean_checkout_that_leaves_no_trace(git: GitRepository, outputs: Any) -> None:
    (git.path / "README.md").write_text("half done")
    done = outputs(
        "git-in-worktree",
        {
            "repository": "project",
            "command": "cat README.md; echo junk > junk; git add junk; git commit -qm x",
        },
    )
    assert done["passed"] is True
    assert done["stdout"] == "# Project\n"
    assert done["removed"] is True
    assert not Path(done["worktree_path"]).exists()
    assert git.branches() == ["main"]
    assert git.worktrees() == [str(git.path)]
    assert (git.path / "README.md").read_text() == "half done"


@pytest.mark.parametrize(("command", "exit_code"), [("echo no >&2; exit 3", 3), ("sleep 30", 137)])
def test_a_command_that_fails_or_takes_too_long_is_a_result_and_leaves_no_trace_either(
    git: GitRepository, outputs: Any, command: str, exit_code: int
) -> None:
    inputs = {"repository": "project", "command": command, "ref": "main", "timeout": 0.5}
    done = outputs("git-in-worktree", inputs)
    assert (done["passed"], done["exit_code"], done["removed"]) == (False, exit_code, True)
    assert git.worktrees() == [str(git.path)]


def test_the_checkout_of_a_failed_command_can_be_kept(git: GitRepository, outputs: Any) -> None:
    inputs = {"repository": "project", "command": "touch evidence; exit 1", "keep_on_failure": True}
    done = outputs("git-in-worktree", inputs)
    assert done["removed"] is False
    assert (Path(done["worktree_path"]) / "evidence").exists()


@pytest.mark.parametrize("ref", ["nowhere", "-f", "$(touch pwned)"])
def test_what_cannot_be_checked_out_fails_the_run_with_the_reason(
    git: GitRepository, refusal: Any, ref: str
) -> None:
    message = refusal("git-in-worktree", {"repository": "project", "command": "touch pwned", "ref": ref})
    assert "block 'create' failed" in message
    assert git.branches() == ["main"]
    assert list(git.path.parent.rglob("pwned")) == []
