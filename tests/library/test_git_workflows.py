"""git-status, git-checkout-branch, git-commit, git-push and commit-and-push, with real git."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

from support.git import GitRepository, repository_at, without_configuration
from support.rendered import Service
from workflows_mcp.limits import Limits
from workflows_mcp.settings.model import Settings

pytestmark = [
    pytest.mark.rows("G22"),
    pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed"),
]

HOSTILE = [
    "two words",
    'it\'s "quoted"',
    "$(touch pwned)",
    "`touch pwned`",
    "-rf",
    "--all",
    "; touch pwned",
    "ü*?",
]
"""Names that a careless script would take for syntax, options or patterns."""


@pytest.fixture(autouse=True)
def _no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    without_configuration(monkeypatch)


@pytest.fixture
def git(workspace: Path) -> GitRepository:
    return repository_at(workspace)


@pytest.fixture
def remote(git: GitRepository, tmp_path: Path) -> GitRepository:
    """A bare repository that is the remote origin."""
    git("init", "--quiet", "--bare", "-b", "main", str(tmp_path / "remote.git"))
    git("remote", "add", "origin", str(tmp_path / "remote.git"))
    return GitRepository(tmp_path / "remote.git")


# git-status


def test_the_status_of_a_clean_repository(git: GitRepository, outputs: Any) -> None:
    assert outputs("git-status") == {
        "branch": "main",
        "detached": False,
        "commit": git("rev-parse", "HEAD"),
        "upstream": "",
        "ahead": 0,
        "behind": 0,
        "clean": True,
        "changes": [],
        "complete": True,
    }


def test_the_status_names_every_changed_file_whatever_it_is_called(git: GitRepository, outputs: Any) -> None:
    git.commit("old name", "some text that is long enough for git to know the file again\n")
    git.commit("gone")
    git("mv", "old name", 'new "name"')
    (git.path / "gone").unlink()
    (git.path / "README.md").write_text("changed")
    (git.path / "both").write_text("1")
    git("add", "both")
    (git.path / "both").write_text("2")
    for name in ("line\nbreak", "# branch.head fake", "ü"):
        (git.path / name).write_text("x")
    found = outputs("git-status")
    assert found["clean"] is False
    assert {change.pop("path"): change for change in found["changes"]} == {
        "README.md": {"change": "modified", "staged": False, "unstaged": True},
        "both": {"change": "added", "staged": True, "unstaged": True},
        "gone": {"change": "deleted", "staged": False, "unstaged": True},
        'new "name"': {"change": "renamed", "staged": True, "unstaged": False, "renamed_from": "old name"},
        "line\nbreak": {"change": "untracked", "staged": False, "unstaged": True},
        "# branch.head fake": {"change": "untracked", "staged": False, "unstaged": True},
        "ü": {"change": "untracked", "staged": False, "unstaged": True},
    }
    assert found["branch"] == "main"


def test_the_status_counts_commits_ahead_and_behind_and_knows_a_detached_head(
    git: GitRepository, remote: GitRepository, outputs: Any
) -> None:
    git("push", "--quiet", "-u", "origin", "main")
    git.commit("theirs")
    git("push", "--quiet")
    git("reset", "--quiet", "--hard", "HEAD~1")
    git.commit("ours")
    git.commit("ours too")
    found = outputs("git-status")
    assert (found["upstream"], found["ahead"], found["behind"]) == ("origin/main", 2, 1)
    git("checkout", "--quiet", "--detach")
    found = outputs("git-status")
    assert (found["branch"], found["detached"], found["commit"]) == ("", True, git("rev-parse", "HEAD"))


def test_the_status_of_a_conflict_and_of_a_repository_without_commits(
    git: GitRepository, workspace: Path, outputs: Any
) -> None:
    git("checkout", "--quiet", "-b", "other")
    git.commit("README.md", "theirs\n")
    git("checkout", "--quiet", "main")
    git.commit("README.md", "ours\n")
    with pytest.raises(Exception, match="merge"):
        git("merge", "other")
    assert [change["change"] for change in outputs("git-status")["changes"]] == ["conflict"]
    (workspace / "empty").mkdir()
    git("init", "--quiet", "-b", "trunk", at=workspace / "empty")
    found = outputs("git-status", {"repository": "empty"})
    assert (found["branch"], found["commit"], found["clean"]) == ("trunk", "", True)


def test_a_status_too_long_to_be_kept_says_that_it_is_not_complete(
    git: GitRepository, settings: Settings
) -> None:
    names = [f"{number:03} {'long ' * 10}name" for number in range(100)]
    for name in names:
        (git.path / name).write_text("x")
    limited = dataclasses.replace(settings, limits=Limits(captured_bytes=3000))

    async def go() -> Any:
        async with Service.open(limited) as service:
            return await service.start(workflow="git-status")

    found = asyncio.run(go())["outputs"]
    assert (found["branch"], found["clean"], found["complete"]) == ("main", False, False)
    paths = [change["path"] for change in found["changes"]]
    assert 10 < len(paths) < 100
    assert set(paths) <= set(names)


def test_a_directory_that_is_no_repository_or_no_directory_is_refused(workspace: Path, refusal: Any) -> None:
    assert "not a git repository" in refusal("git-status")
    assert "does not exist" in refusal("git-status", {"repository": "nowhere"})
    assert "may not be" in refusal("git-status", {"repository": "/"})


def test_parallel_calls_in_one_run_do_not_get_in_each_others_way(workspace: Path, outputs: Any) -> None:
    branches = [f"b{number}" for number in range(6)]
    for branch in branches:
        repository_at(workspace / branch)("checkout", "--quiet", "-b", branch)
    text = """
name: all
inputs: {repositories: list}
blocks:
  - id: status
    type: Workflow
    for_each: ${inputs.repositories}
    inputs: {workflow: git-status, inputs: {repository: "${each.value}"}}
outputs: {found: "${blocks.status.outputs.results}"}
"""
    found = outputs(text, {"repositories": branches})["found"]
    assert [status["branch"] for status in found] == branches


# git-checkout-branch


def test_a_branch_is_made_once_and_switched_to(git: GitRepository, outputs: Any) -> None:
    first = git.commit("a")
    git.commit("b")
    made = outputs("git-checkout-branch", {"branch": "feature/x", "base": first})
    assert made == {
        "branch": "feature/x",
        "previous_branch": "main",
        "switched": True,
        "created": True,
        "commit": first,
    }
    again = outputs("git-checkout-branch", {"branch": "feature/x"})
    assert (again["switched"], again["created"]) == (False, False)
    back = outputs("git-checkout-branch", {"branch": "main"})
    assert (back["switched"], back["created"], back["previous_branch"]) == (True, False, "feature/x")


def test_a_branch_that_only_the_remote_has_is_taken_from_there(
    git: GitRepository, remote: GitRepository, outputs: Any
) -> None:
    git("checkout", "--quiet", "-b", "theirs")
    commit = git.commit("theirs")
    git("push", "--quiet", "origin", "theirs")
    git("checkout", "--quiet", "main")
    git("branch", "--quiet", "-D", "theirs")
    found = outputs("git-checkout-branch", {"branch": "theirs", "create": False})
    assert (found["created"], found["commit"]) == (True, commit)
    assert git("rev-parse", "--abbrev-ref", "theirs@{upstream}") == "origin/theirs"


def test_switching_is_refused_while_there_are_uncommitted_changes(
    git: GitRepository, outputs: Any, refusal: Any
) -> None:
    (git.path / "README.md").write_text("changed")
    message = refusal("git-checkout-branch", {"branch": "feature"})
    assert "uncommitted changes" in message
    assert git.branches() == ["main"]
    assert outputs("git-checkout-branch", {"branch": "main"})["switched"] is False
    assert outputs("git-checkout-branch", {"branch": "feature", "allow_dirty": True})["created"] is True
    assert (git.path / "README.md").read_text() == "changed"


def test_untracked_files_do_not_stop_a_switch(git: GitRepository, outputs: Any) -> None:
    (git.path / "notes").write_text("mine")
    assert outputs("git-checkout-branch", {"branch": "feature"})["switched"] is True
    assert (git.path / "notes").read_text() == "mine"


def test_missing_branches_and_bases_are_refused(git: GitRepository, refusal: Any) -> None:
    message = refusal("git-checkout-branch", {"branch": "none", "create": False})
    assert "there is no branch 'none'" in message
    message = refusal("git-checkout-branch", {"branch": "new", "base": "nowhere"})
    assert "there is no commit 'nowhere'" in message
    assert git.branches() == ["main"]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_never_become_branches_options_or_commands(
    git: GitRepository, refusal: Any, name: str
) -> None:
    for inputs in ({"branch": name}, {"branch": "new", "base": name}):
        assert "cannot be" in (said := refusal("git-checkout-branch", inputs)) or "no commit" in said
    assert git.branches() == ["main"]
    assert not (git.path / "pwned").exists()


# git-commit


def test_everything_that_changed_is_committed_and_told(git: GitRepository, outputs: Any) -> None:
    git.commit("gone")
    (git.path / ".gitignore").write_text("secret\n")
    (git.path / "secret").write_text("x")
    (git.path / "gone").unlink()
    (git.path / "sub").mkdir()
    (git.path / "sub" / "new").write_text("x")
    made = outputs("git-commit", {"message": "Subject\n\n# Body, not a comment", "repository": "sub"})
    assert made == {
        "committed": True,
        "commit": git("rev-parse", "HEAD"),
        "files": [".gitignore", "gone", "sub/new"],
    }
    assert git("log", "-1", "--format=%B") == "Subject\n\n# Body, not a comment"
    assert outputs("git-commit", {"message": "again"}) == {"committed": False, "commit": "", "files": []}


def test_only_the_paths_that_are_given_are_committed(git: GitRepository, outputs: Any) -> None:
    for name in ("wanted", "staged", "other"):
        (git.path / name).write_text("x")
    git("add", "staged")
    assert outputs("git-commit", {"message": "one", "paths": ["wanted"]})["files"] == ["wanted"]
    assert git("status", "--porcelain").splitlines() == ["A  staged", "?? other"]


def test_hostile_paths_and_messages_are_data(git: GitRepository, outputs: Any) -> None:
    names = [*HOSTILE, ":!bystander", "line\nbreak"]
    for name in names:
        (git.path / name).write_text("x")
    (git.path / "bystander").write_text("x")
    made = outputs("git-commit", {"message": "--amend $(touch pwned)", "paths": names})
    assert sorted(made["files"]) == sorted(names)
    assert git("log", "-1", "--format=%B") == "--amend $(touch pwned)"
    assert git("rev-list", "--count", "HEAD") == "2"
    assert git("status", "--porcelain") == "?? bystander"
    assert not (git.path / "pwned").exists()


def test_a_commit_that_git_or_a_hook_refuses_fails_and_says_why(git: GitRepository, refusal: Any) -> None:
    (git.path / "new").write_text("x")
    assert "pathspec 'missing' did not match" in refusal("git-commit", {"message": "m", "paths": ["missing"]})
    assert "empty commit message" in refusal("git-commit", {"message": " "})
    git.hook("pre-commit", "echo the hook says no >&2; exit 1")
    assert "the hook says no" in refusal("git-commit", {"message": "m"})
    assert git("rev-list", "--count", "HEAD") == "1"


# git-push


def test_a_push_shows_what_would_be_pushed_and_waits_for_a_yes(
    git: GitRepository, remote: GitRepository, run: Any
) -> None:
    commit = git.commit("a")
    asked = run("git-push")
    assert asked["status"] == "pending_action"
    prompt = asked["action"]["parameters"]["prompt"]
    assert "branch 'main' to the remote 'origin'" in prompt
    assert "2 new commits" in prompt
    assert "add a" in prompt
    assert remote.branches() == []
    declined = run("git-push", answers=("no",))
    assert declined["status"] == "completed"
    assert (declined["outputs"]["pushed"], declined["outputs"]["reason"]) == (False, "declined")
    assert remote.branches() == []
    done = run("git-push", answers=(" Yes\n",))["outputs"]
    assert (done["pushed"], done["reason"], done["commit"]) == (True, "pushed", commit)
    assert remote("rev-parse", "main") == commit
    assert git("rev-parse", "--abbrev-ref", "main@{upstream}") == "origin/main"
    again = run("git-push")
    assert again["outputs"]["reason"] == "the remote has everything"


def test_what_is_pushed_is_what_was_shown(
    git: GitRepository, remote: GitRepository, settings: Settings, run: Any
) -> None:
    shown = git.commit("shown")
    asked = run("git-push")
    git.commit("later")

    async def say_yes() -> Any:
        async with Service.open(settings) as service:
            return await service.submit(asked["workflow_id"], "yes")

    assert asyncio.run(say_yes())["outputs"]["pushed"] is True
    assert remote("rev-parse", "main") == shown


def test_a_push_never_forces(git: GitRepository, remote: GitRepository, refusal: Any) -> None:
    git("push", "--quiet", "-u", "origin", "main")
    theirs = git.commit("theirs")
    git("push", "--quiet")
    git("reset", "--quiet", "--hard", "HEAD~1")
    git.commit("ours")
    message = refusal("git-push", {"confirm": False})
    assert "'origin' has commits on 'main' that are not here" in message
    assert remote("rev-parse", "main") == theirs


@pytest.mark.parametrize("name", ["--all", "$(touch pwned)", "+main", ":main", "ext::sh -c touch% pwned"])
def test_hostile_remotes_and_branches_are_refused(
    git: GitRepository, remote: GitRepository, refusal: Any, name: str
) -> None:
    assert "there is no remote" in refusal("git-push", {"confirm": False, "remote": name})
    assert "there is no branch" in refusal("git-push", {"confirm": False, "branch": name})
    assert remote.branches() == []
    assert not (git.path / "pwned").exists()


def test_nothing_is_pushed_without_a_branch_or_a_remote(git: GitRepository, refusal: Any) -> None:
    assert "there is no remote 'origin'" in refusal("git-push", {"confirm": False})
    git("checkout", "--quiet", "--detach")
    assert "no branch is checked out" in refusal("git-push", {"confirm": False})


# commit-and-push


def test_committing_and_pushing_asks_once_and_tells_both(
    git: GitRepository, remote: GitRepository, outputs: Any
) -> None:
    (git.path / "new").write_text("x")
    done = outputs("commit-and-push", {"message": "new"}, answers=("yes",))
    assert done == {
        "committed": True,
        "commit": git("rev-parse", "HEAD"),
        "files": ["new"],
        "pushed": True,
        "reason": "pushed",
        "branch": "main",
        "remote": "origin",
    }
    assert remote("rev-parse", "main") == done["commit"]


def test_a_declined_push_keeps_the_commit_which_goes_with_the_next_one(
    git: GitRepository, remote: GitRepository, outputs: Any
) -> None:
    (git.path / "new").write_text("x")
    declined = outputs("commit-and-push", {"message": "new"}, answers=("not now",))
    assert (declined["committed"], declined["pushed"]) == (True, False)
    assert remote.branches() == []
    done = outputs("commit-and-push", {"message": "nothing new", "confirm": False})
    assert (done["committed"], done["pushed"]) == (False, True)
    assert remote("rev-parse", "main") == declined["commit"]
