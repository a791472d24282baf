"""CreateWorktree and RemoveWorktree, with real git."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support.git import (
    THE_TRY,
    GitRepository,
    one_try,
    repository_at,
    start_one_try,
    without_configuration,
)
from workflows_mcp.errors import Forbidden, StepError
from workflows_mcp.policy.handles import World
from workflows_mcp.policy.processes import end_leftovers
from workflows_mcp.policy.rules import Policy
from workflows_mcp.steps.base import Step, StepContext, StepResult
from workflows_mcp.steps.git import CreateWorktree, RemoveWorktree
from workflows_mcp.values import Value

RunStep = Callable[..., StepResult]
CREATE = CreateWorktree()
REMOVE = RemoveWorktree()

pytestmark = pytest.mark.rows("G14")


@pytest.fixture(autouse=True)
def _no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    without_configuration(monkeypatch)


@pytest.fixture
def git(workspace: Path) -> GitRepository:
    return repository_at(workspace)


def outputs_of(run_step: RunStep, step: Step, **inputs: Value) -> dict[str, Value]:
    return run_step(step, inputs).outputs


def refusal(run_step: RunStep, step: Step, **inputs: Value) -> str:
    with pytest.raises(StepError) as caught:
        run_step(step, inputs)
    assert caught.value.hint
    return str(caught.value)


# Making


def test_a_branch_that_does_not_exist_is_made_from_the_base(run_step: RunStep, git: GitRepository) -> None:
    first = git("rev-parse", "HEAD")
    git.commit("later.txt")
    git("branch", "release", first)
    made = outputs_of(
        run_step, CREATE, path=".worktrees/feature/x", branch="feature/x", base_branch="release"
    )
    path = git.path / ".worktrees" / "feature" / "x"
    assert made == {
        "worktree_path": str(path),
        "branch": "feature/x",
        "base_branch": "release",
        "commit": first,
        "created": True,
        "success": True,
    }
    assert (path / "README.md").read_text() == "# Project\n"
    assert not (path / "later.txt").exists()
    assert git("branch", "--show-current", at=path) == "feature/x"
    assert "locked" not in git("worktree", "list", "--porcelain")


def test_without_a_base_the_current_head_is_taken(run_step: RunStep, git: GitRepository) -> None:
    made = outputs_of(run_step, CREATE, path="w", branch="new")
    assert (made["base_branch"], made["commit"]) == ("main", git("rev-parse", "main"))
    git("checkout", "--quiet", "--detach")
    made = outputs_of(run_step, CREATE, path="v", branch="newer")
    assert made["base_branch"] == made["commit"] == git("rev-parse", "HEAD")


@pytest.mark.parametrize("kind", ["tag", "commit", "remote"])
def test_a_base_can_be_a_tag_a_commit_or_a_branch_of_a_remote(
    run_step: RunStep, git: GitRepository, kind: str
) -> None:
    first = git("rev-parse", "HEAD")
    git.commit("later.txt")
    git("tag", "v1", first)
    git("update-ref", "refs/remotes/origin/old", first)
    git("config", "remote.origin.url", ".")
    git("config", "remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*")
    base = {"tag": "v1", "commit": first, "remote": "origin/old"}[kind]
    assert outputs_of(run_step, CREATE, path="w", branch="b", base_branch=base)["commit"] == first
    assert "branch.b" not in git("config", "--list")


def test_a_branch_is_preferred_to_a_tag_of_the_same_name(run_step: RunStep, git: GitRepository) -> None:
    first = git("rev-parse", "HEAD")
    second = git.commit("later.txt")
    git("tag", "same", first)
    git("branch", "same", second)
    assert outputs_of(run_step, CREATE, path="w", branch="b", base_branch="same")["commit"] == second


def test_a_branch_that_exists_is_checked_out_as_it_is(run_step: RunStep, git: GitRepository) -> None:
    git("branch", "old")
    git.commit("later.txt")
    made = outputs_of(run_step, CREATE, path="w", branch="old", base_branch="main")
    assert made["created"] is True
    assert made["commit"] == git("rev-parse", "old") != git("rev-parse", "main")


def test_an_empty_directory_is_used(run_step: RunStep, git: GitRepository) -> None:
    (git.path / "w").mkdir()
    assert outputs_of(run_step, CREATE, path="w", branch="b")["created"] is True


def test_the_repository_can_be_elsewhere_in_the_workspace(run_step: RunStep, workspace: Path) -> None:
    git = repository_at(workspace / "project")
    (git.path / "src").mkdir()
    made = outputs_of(run_step, CREATE, path="trees/b", branch="b", repository="project/src")
    assert made["worktree_path"] == str(workspace / "trees" / "b")
    assert git.worktrees() == [str(git.path), str(workspace / "trees" / "b")]


def test_a_worktree_that_is_there_already_is_taken_as_it_is(run_step: RunStep, git: GitRepository) -> None:
    first = outputs_of(run_step, CREATE, path="w", branch="b")
    commit = git.commit("work.txt", at=git.path / "w")
    (git.path / "w" / "unsaved.txt").write_text("mine")
    again = outputs_of(run_step, CREATE, path="w", branch="b")
    assert again == {**first, "created": False, "commit": commit}
    assert (git.path / "w" / "unsaved.txt").read_text() == "mine"


def test_a_worktree_whose_directory_was_deleted_is_made_again(run_step: RunStep, git: GitRepository) -> None:
    outputs_of(run_step, CREATE, path="w", branch="b")
    commit = git.commit("work.txt", at=git.path / "w")
    shutil.rmtree(git.path / "w")
    again = outputs_of(run_step, CREATE, path="w", branch="b")
    assert (again["created"], again["commit"]) == (True, commit)
    assert git.worktrees() == [str(git.path), str(git.path / "w")]


def test_a_locked_worktree_whose_directory_is_missing_is_left_alone(
    run_step: RunStep, git: GitRepository
) -> None:
    outputs_of(run_step, CREATE, path="w", branch="b")
    git("worktree", "lock", "--reason", "on a stick", "w")
    shutil.rmtree(git.path / "w")
    assert "is locked (on a stick), and its directory is missing" in refusal(
        run_step, CREATE, path="w", branch="b"
    )


@pytest.mark.parametrize(
    "branch",
    ["-f", "--detach", "a b", "a..b", "a~1", "@", "HEAD", "x.lock", "", "/a", "a\nb", "@{-1}", "a;b\\c"],
)
def test_what_cannot_be_a_branch_is_refused(run_step: RunStep, git: GitRepository, branch: str) -> None:
    assert "cannot be a branch" in refusal(run_step, CREATE, path="w", branch=branch)
    assert git.branches() == ["main"]
    assert not (git.path / "w").exists()


@pytest.mark.parametrize("base", ["-f", "--orphan", "main~1", "a b", "@{u}"])
def test_what_cannot_be_a_base_is_refused(run_step: RunStep, git: GitRepository, base: str) -> None:
    assert "cannot be a base_branch" in refusal(run_step, CREATE, path="w", branch="b", base_branch=base)
    assert git.branches() == ["main"]


def test_a_name_is_never_read_by_a_shell(run_step: RunStep, git: GitRepository) -> None:
    outputs_of(run_step, CREATE, path="w w$(touch hacked)", branch="b;touch${IFS}hacked|'x'")
    assert git.worktrees()[1] == str(git.path / "w w$(touch hacked)")
    assert git("branch", "--show-current", at=Path(git.worktrees()[1])) == "b;touch${IFS}hacked|'x'"
    assert not (git.path / "hacked").exists()


def test_a_base_that_does_not_exist_is_refused_with_the_nearest(
    run_step: RunStep, git: GitRepository
) -> None:
    message = refusal(run_step, CREATE, path="w", branch="b", base_branch="mian")
    assert "there is no branch 'mian' to start from\ndid you mean 'main'?" in message
    assert git.branches() == ["main"]


def test_a_branch_that_is_checked_out_elsewhere_is_refused_and_the_place_named(
    run_step: RunStep, git: GitRepository
) -> None:
    outputs_of(run_step, CREATE, path="w", branch="b")
    assert f"the branch 'b' is checked out in {git.path / 'w'}" in refusal(
        run_step, CREATE, path="v", branch="b"
    )
    assert f"the branch 'main' is checked out in {git.path}" in refusal(
        run_step, CREATE, path="v", branch="main"
    )
    shutil.rmtree(git.path / "w")
    assert "git worktree prune" in refusal(run_step, CREATE, path="v", branch="b")
    assert not (git.path / "v").exists()


def test_what_else_is_at_the_path_is_named_and_left_alone(run_step: RunStep, git: GitRepository) -> None:
    outputs_of(run_step, CREATE, path="w", branch="b")
    (git.path / "file").write_text("x")
    (git.path / "full").mkdir()
    (git.path / "full" / "mine.txt").write_text("x")
    repository_at(git.path / "foreign")
    outputs_of(run_step, CREATE, path="forgotten", branch="f")
    shutil.rmtree(git.path / ".git" / "worktrees" / "forgotten")
    before = sorted(git.path.rglob("*"))
    for path, what in {
        "w": "is already a worktree, with the branch 'b' checked out instead of 'c'",
        ".": "is the main worktree",
        "file": "there is a file at",
        "full": "is not empty and is not a worktree",
        "foreign": "belongs to another git repository",
        "forgotten": "was a worktree, but git no longer has it",
    }.items():
        assert what in refusal(run_step, CREATE, path=path, branch="c")
    assert sorted(git.path.rglob("*")) == before
    assert git.branches() == ["b", "f", "main"]


def test_a_worktree_that_has_lost_its_git_file_is_named(run_step: RunStep, git: GitRepository) -> None:
    outputs_of(run_step, CREATE, path="w", branch="b")
    (git.path / "w" / ".git").unlink()
    assert "git worktree repair" in refusal(run_step, CREATE, path="w", branch="b")
    assert "git worktree repair" in refusal(run_step, REMOVE, path="w")
    assert (git.path / "w" / "README.md").exists()


def test_a_directory_that_is_no_repository_is_refused(run_step: RunStep, workspace: Path) -> None:
    for step in (CREATE, REMOVE):
        inputs = {"path": "w", **({"branch": "b"} if step is CREATE else {})}
        message = refusal(run_step, step, **inputs)
        assert f"{workspace} cannot be used as a git repository" in message
        assert "set `repository`" in message


def test_a_repository_without_commits_is_refused(run_step: RunStep, workspace: Path) -> None:
    GitRepository(workspace)("init", "--quiet", "-b", "main")
    assert "has no commits yet" in refusal(run_step, CREATE, path="w", branch="b")
    assert not (workspace / "w").exists()


def test_a_machine_without_git_is_named(
    run_step: RunStep, git: GitRepository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "git is not installed on this machine" in refusal(run_step, CREATE, path="w", branch="b")


def test_policy_decides_where_and_whether(
    run_step: RunStep, git: GitRepository, tmp_path: Path, workspace: Path
) -> None:
    with pytest.raises(Forbidden, match="it is outside"):
        run_step(CREATE, {"path": "../w", "branch": "b"})
    with pytest.raises(Forbidden, match="it is outside"):
        run_step(REMOVE, {"path": "../w"})
    with pytest.raises(Forbidden, match="it is outside"):
        run_step(CREATE, {"path": "w", "branch": "b", "repository": ".."})
    without_commands = World(Policy(workspace, allow_commands=False), "run-1", tmp_path / "scratch")
    with pytest.raises(Forbidden, match="allow_commands"):
        run_step(CREATE, {"path": "w", "branch": "b"}, at=without_commands)
    assert git.branches() == ["main"]


def test_variables_that_point_git_elsewhere_are_not_followed(
    run_step: RunStep, git: GitRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = repository_at(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(other.path / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other.path))
    outputs_of(run_step, CREATE, path="w", branch="b")
    monkeypatch.delenv("GIT_DIR")
    monkeypatch.delenv("GIT_WORK_TREE")
    assert git.branches() == ["b", "main"]
    assert other.branches() == ["main"]


def test_hooks_of_the_repository_run_and_one_that_fails_leaves_nothing(
    run_step: RunStep, git: GitRepository
) -> None:
    git.hook("post-checkout", "ls > hook-was-here; echo $* >> hook-was-here")
    commit = outputs_of(run_step, CREATE, path="w", branch="b")["commit"]
    seen = (git.path / "w" / "hook-was-here").read_text()
    assert seen == f"README.md\nhook-was-here\n{'0' * 40} {commit} 1\n"
    git.hook("post-checkout", "echo 'no disk for this' >&2; exit 1")
    with pytest.raises(StepError, match=r"the worktree .*/v, its post-checkout hook failed: no disk"):
        run_step(CREATE, {"path": "v", "branch": "c"})
    assert git.branches() == ["b", "main"]
    assert not (git.path / "v").exists()
    git("branch", "kept")
    with pytest.raises(StepError, match="no disk"):
        run_step(CREATE, {"path": "v", "branch": "kept"})
    assert git.branches() == ["b", "kept", "main"]
    assert git.worktrees() == [str(git.path), str(git.path / "w")]


# Being cut off


def killed_when_stuck(
    pipe: Path, step: Step, inputs: dict[str, Value], workspace: Path, tmp_path: Path
) -> None:
    """A process that carries the step out is killed when git says in the pipe that it has come that far."""
    process = start_one_try(step, inputs, workspace, tmp_path / "scratch")
    pipe.read_text()
    process.kill()
    process.wait()
    assert end_leftovers({THE_TRY}) > 0
    pipe.unlink()


@pytest.fixture
def stuck_checkout(git: GitRepository) -> Path:
    """Git stops in the middle of a checkout, and says so in the pipe that is given; removing it ends that."""
    pipe = git.path / ".git" / "stuck"
    os.mkfifo(pipe)
    git.commit(".gitattributes", "slow.txt filter=slow\n")
    git.commit("slow.txt")
    git.commit("zz-after.txt")
    git("config", "filter.slow.smudge", f"test -p '{pipe}' || exec cat; echo here > '{pipe}'; exec sleep 100")
    return pipe


def test_being_stopped_leaves_neither_worktree_nor_branch(
    git: GitRepository, world: World, stuck_checkout: Path
) -> None:
    async def go() -> None:
        context = StepContext("run-1", "run-1/stopped", world)
        inputs = CREATE.Inputs.model_validate({"path": "w", "branch": "b"})
        task = asyncio.create_task(CREATE.run(inputs, context))
        await asyncio.to_thread(stuck_checkout.read_text)
        assert (git.path / "w" / ".git").exists()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(go(), 20))
    assert git.worktrees() == [str(git.path)]
    assert git.branches() == ["main"]
    assert not (git.path / "w").exists()


def test_a_worktree_that_a_crash_left_half_made_is_made_again(
    run_step: RunStep, git: GitRepository, stuck_checkout: Path, tmp_path: Path
) -> None:
    inputs: dict[str, Value] = {"path": "w", "branch": "b"}
    killed_when_stuck(stuck_checkout, CREATE, inputs, git.path, tmp_path)
    assert (git.path / "w").exists()
    assert not (git.path / "w" / "zz-after.txt").exists()

    assert "another process is creating the worktree" in refusal(run_step, CREATE, path="w", branch="b")
    assert "another process is creating the worktree" in refusal(run_step, REMOVE, path="w", force=True)
    made = one_try(CREATE, inputs, git.path, tmp_path / "scratch").outputs
    assert made["created"] is True
    assert (git.path / "w" / "zz-after.txt").exists()
    assert git("status", "--porcelain", at=git.path / "w") == ""
    assert git.worktrees() == [str(git.path), str(git.path / "w")]


@pytest.mark.parametrize("left", ["nothing", "empty directory", "only the git file", "unknown to git"])
def test_a_worktree_that_was_barely_begun_is_made_again(
    git: GitRepository, tmp_path: Path, left: str
) -> None:
    inputs: dict[str, Value] = {"path": "w", "branch": "b"}
    one_try(CREATE, inputs, git.path, tmp_path / "scratch")
    reason = lock_of(CREATE, git, tmp_path)
    path = git.path / "w"
    pointer = (path / ".git").read_text()
    git("worktree", "lock", "--reason", reason, "w")
    shutil.rmtree(path)
    if left != "nothing":
        path.mkdir()
    if left == "unknown to git":
        (path / ".git").write_text(pointer)
        shutil.rmtree(git.path / ".git" / "worktrees" / "w")
    if left == "only the git file":
        (path / ".git").write_text(pointer)
        (git.path / ".git" / "worktrees" / "w" / "HEAD").unlink()
    assert one_try(CREATE, inputs, git.path, tmp_path / "scratch").outputs["created"] is True
    assert git("status", "--porcelain", at=path) == ""


def lock_of(step: Step, git: GitRepository, tmp_path: Path) -> str:
    """The lock that the one try of `one_try` puts on what it makes, read while git makes it."""
    git.hook("post-checkout", f"cat '{git.path}/.git/worktrees/probe/locked' > '{tmp_path}/lock'")
    one_try(step, {"path": "probe", "branch": "probe"}, git.path, tmp_path / "scratch")
    (git.path / ".git" / "hooks" / "post-checkout").unlink()
    return (tmp_path / "lock").read_text()


@pytest.mark.parametrize("exists", [False, True])
def test_several_that_want_the_same_path_make_it_once(git: GitRepository, world: World, exists: bool) -> None:
    if exists:
        git("branch", "b")

    async def go() -> list[StepResult | BaseException]:
        tries = [
            CREATE.run(
                CREATE.Inputs.model_validate({"path": "w", "branch": "b"}),
                StepContext("run-1", f"run-1/{number}", world),
            )
            for number in range(16)
        ]
        return await asyncio.gather(*tries, return_exceptions=True)

    ended = asyncio.run(go())
    assert all(isinstance(it, StepResult | StepError) for it in ended)
    made = [it for it in ended if isinstance(it, StepResult) and it.outputs["created"]]
    assert len(made) == 1
    assert git.worktrees() == [str(git.path), str(git.path / "w")]
    assert git("status", "--porcelain", at=git.path / "w") == ""
    assert git("branch", "--show-current", at=git.path / "w") == "b"


def test_a_removal_that_a_crash_cut_off_is_ended(
    run_step: RunStep, git: GitRepository, tmp_path: Path
) -> None:
    path = git.path / "w"
    git.commit("large.bin")
    outputs_of(run_step, CREATE, path="w", branch="feature/ü")
    half_removed(git, path, tmp_path)
    assert git.branches() == ["main"]
    assert "another process is removing the worktree" in refusal(
        run_step, CREATE, path="w", branch="feature/ü"
    )
    assert outputs_of(run_step, REMOVE, path="w", delete_branch=True) == {
        "removed": True,
        "worktree_path": str(path),
        "branch": "feature/ü",
        "branch_deleted": True,
        "success": True,
    }
    assert not path.exists()
    assert git.worktrees() == [str(git.path)]


def test_a_removal_that_was_cut_off_does_not_take_what_came_after(
    run_step: RunStep, git: GitRepository, tmp_path: Path
) -> None:
    git.commit("large.bin")
    outputs_of(run_step, CREATE, path="w", branch="b")
    half_removed(git, git.path / "w", tmp_path)
    (git.path / "w" / "new.txt").write_text("mine")
    assert "new.txt (untracked)" in refusal(run_step, REMOVE, path="w")
    assert (git.path / "w" / "new.txt").exists()
    (git.path / "w" / ".git").unlink()
    assert outputs_of(run_step, REMOVE, path="w", force=True)["removed"] is True
    assert not (git.path / "w").exists()


def half_removed(git: GitRepository, path: Path, tmp_path: Path) -> None:
    """A removal is killed when the branch is gone; then some files go, as if it had been killed later."""
    pipe = git.path / ".git" / "stuck"
    os.mkfifo(pipe)
    git.hook(
        "reference-transaction",
        f"""test "$(cd '{git.path}/.git/refs/heads'; find . -type f)" = ./main || exit 0
        echo here > '{pipe}'; exec sleep 100""",
    )
    killed_when_stuck(pipe, REMOVE, {"path": "w", "delete_branch": True}, git.path, tmp_path)
    (git.path / ".git" / "hooks" / "reference-transaction").unlink()
    (path / "large.bin").unlink()
    (path / ".git").unlink()


# Removing


def test_a_clean_worktree_is_removed_and_its_branch_kept(run_step: RunStep, git: GitRepository) -> None:
    outputs_of(run_step, CREATE, path="w", branch="b")
    git.commit("work.txt", at=git.path / "w")
    assert outputs_of(run_step, REMOVE, path="w") == {
        "removed": True,
        "worktree_path": str(git.path / "w"),
        "branch": "b",
        "branch_deleted": False,
        "success": True,
    }
    assert git.worktrees() == [str(git.path)]
    assert git.branches() == ["b", "main"]
    assert not (git.path / "w").exists()


def test_what_is_not_committed_keeps_a_worktree(run_step: RunStep, git: GitRepository) -> None:
    git.commit("gone.txt")
    outputs_of(run_step, CREATE, path="w", branch="b")
    path = git.path / "w"
    (path / "README.md").write_text("changed")
    (path / "gone.txt").unlink()
    for number in range(5):
        (path / f"new{number}.txt").write_text("")
    git("config", "status.showUntrackedFiles", "no")
    message = refusal(run_step, REMOVE, path="w", delete_branch=True)
    assert "README.md (changed), gone.txt (deleted), new0.txt (untracked)" in message
    assert ", and 2 more\ncommit them, or set force: true" in message
    assert (path / "README.md").read_text() == "changed"
    assert git.branches() == ["b", "main"]
    assert "locked" not in git("worktree", "list", "--porcelain")
    assert outputs_of(run_step, REMOVE, path="w", force=True)["removed"] is True
    assert not path.exists()


def test_ignored_files_do_not_keep_a_worktree(run_step: RunStep, git: GitRepository) -> None:
    git.commit(".gitignore", "*.log\n")
    outputs_of(run_step, CREATE, path="w", branch="b")
    (git.path / "w" / "x.log").write_text("")
    assert outputs_of(run_step, REMOVE, path="w")["removed"] is True


def test_a_commit_that_is_on_no_branch_keeps_a_worktree(run_step: RunStep, git: GitRepository) -> None:
    outputs_of(run_step, CREATE, path="w", branch="b")
    git("checkout", "--quiet", "--detach", at=git.path / "w")
    commit = git.commit("work.txt", at=git.path / "w")
    assert f"git branch NAME {commit[:12]}" in refusal(run_step, REMOVE, path="w")
    git("tag", "keep", commit)
    assert outputs_of(run_step, REMOVE, path="w")["removed"] is True


def test_submodules_keep_a_worktree(run_step: RunStep, git: GitRepository) -> None:
    repository_at(git.path.parent / "library")
    allow = ["-c", "protocol.file.allow=always"]
    git(*allow, "submodule", "--quiet", "add", str(git.path.parent / "library"), "lib")
    git("commit", "--quiet", "-m", "submodule")
    outputs_of(run_step, CREATE, path="w", branch="b")
    git(*allow, "submodule", "--quiet", "update", "--init", at=git.path / "w")
    assert "has submodules" in refusal(run_step, REMOVE, path="w")
    assert outputs_of(run_step, REMOVE, path="w", force=True)["removed"] is True


def test_a_merged_branch_goes_with_its_worktree(run_step: RunStep, git: GitRepository) -> None:
    outputs_of(run_step, CREATE, path="w", branch="b")
    git.commit("work.txt", at=git.path / "w")
    git("merge", "--quiet", "--no-edit", "b")
    removed = outputs_of(run_step, REMOVE, path="w", delete_branch=True)
    assert (removed["branch"], removed["branch_deleted"]) == ("b", True)
    assert git.branches() == ["main"]


def test_a_branch_that_was_pushed_goes_with_its_worktree(run_step: RunStep, git: GitRepository) -> None:
    outputs_of(run_step, CREATE, path="w", branch="b")
    commit = git.commit("work.txt", at=git.path / "w")
    git("config", "remote.origin.url", ".")
    git("config", "remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*")
    git("update-ref", "refs/remotes/origin/b", commit)
    git("branch", "--quiet", "--set-upstream-to=origin/b", "b")
    assert outputs_of(run_step, REMOVE, path="w", delete_branch=True)["branch_deleted"] is True
    assert git.branches() == ["main"]
    assert "branch.b" not in git("config", "--list")


def test_a_branch_that_is_not_merged_keeps_branch_and_worktree(run_step: RunStep, git: GitRepository) -> None:
    outputs_of(run_step, CREATE, path="w", branch="b")
    git.commit("work.txt", at=git.path / "w")
    message = refusal(run_step, REMOVE, path="w", delete_branch=True)
    assert (
        "the branch 'b' is not merged: it has commits that are neither in main nor in its upstream" in message
    )
    assert (git.path / "w" / "work.txt").exists()
    assert git("branch", "--show-current", at=git.path / "w") == "b"
    assert "locked" not in git("worktree", "list", "--porcelain")
    forced = outputs_of(run_step, REMOVE, path="w", delete_branch=True, force=True)
    assert (forced["removed"], forced["branch_deleted"]) == (True, True)
    assert git.branches() == ["main"]


def test_a_branch_that_git_does_not_delete_leaves_all_as_it_was(
    run_step: RunStep, git: GitRepository
) -> None:
    outputs_of(run_step, CREATE, path="w", branch="b")
    git.hook("reference-transaction", 'test "$1" = prepared && grep -q refs/heads/b && exit 1; exit 0')
    assert "git did not delete the branch 'b'" in refusal(run_step, REMOVE, path="w", delete_branch=True)
    assert git("branch", "--show-current", at=git.path / "w") == "b"
    assert "locked" not in git("worktree", "list", "--porcelain")


def test_what_is_gone_already_is_fine(run_step: RunStep, git: GitRepository) -> None:
    assert outputs_of(run_step, REMOVE, path="w")["removed"] is False
    outputs_of(run_step, CREATE, path="w", branch="b")
    shutil.rmtree(git.path / "w")
    removed = outputs_of(run_step, REMOVE, path="w", delete_branch=True)
    assert (removed["removed"], removed["branch"], removed["branch_deleted"]) == (False, "b", True)
    assert git.worktrees() == [str(git.path)]
    assert git.branches() == ["main"]


def test_only_a_worktree_of_this_repository_is_removed(run_step: RunStep, git: GitRepository) -> None:
    (git.path / "directory").mkdir()
    repository_at(git.path / "foreign")
    outputs_of(run_step, CREATE, path="w", branch="b")
    (git.path / "w" / "inside").mkdir()
    for path, what in {
        ".": "is the main worktree",
        "directory": f"is not a worktree of the repository {git.path}; it is inside the worktree {git.path}\n",
        "foreign": "is not a worktree of the repository",
        "w/inside": f"it is inside the worktree {git.path / 'w'}\n",
    }.items():
        assert what in refusal(run_step, REMOVE, path=path, force=True)
        assert (git.path / path).is_dir()


def test_a_locked_worktree_is_never_removed(run_step: RunStep, git: GitRepository) -> None:
    outputs_of(run_step, CREATE, path="w", branch="b")
    git("worktree", "lock", "--reason", "in use", "w")
    message = refusal(run_step, REMOVE, path="w", force=True)
    assert f"the worktree {git.path / 'w'} is locked (in use)" in message
    assert "git worktree unlock" in message


def test_a_worktree_can_be_named_as_its_own_repository(run_step: RunStep, git: GitRepository) -> None:
    outputs_of(run_step, CREATE, path="w", branch="b")
    assert outputs_of(run_step, REMOVE, path="w", repository="w", delete_branch=True)["removed"] is True
    assert git.branches() == ["main"]


def test_worktrees_of_a_bare_repository_work_alike(run_step: RunStep, workspace: Path) -> None:
    origin = repository_at(workspace / "origin")
    origin("clone", "--quiet", "--bare", str(origin.path), str(workspace / "bare.git"))
    made = outputs_of(run_step, CREATE, path="w", branch="b", repository="bare.git")
    assert (made["created"], made["base_branch"]) == (True, "main")
    removed = outputs_of(run_step, REMOVE, path="w", repository="bare.git", delete_branch=True)
    assert (removed["removed"], removed["branch_deleted"]) == (True, True)
