"""A git repository as the worktree steps see it: what git says of it, and the few things git is told to do.

Git is started with a list of arguments, never through a shell, and only its output for programs is read,
never its wording. What the steps want, and when they refuse, is in `git`; here nothing is decided.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shlex
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from workflows_mcp.errors import StepError
from workflows_mcp.policy.handles import World
from workflows_mcp.policy.processes import Finished
from workflows_mcp.steps.base import StepContext
from workflows_mcp.values import did_you_mean

_REDIRECTIONS = frozenset(
    {
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_COMMON_DIR",
        "GIT_DIR",
        "GIT_GRAFT_FILE",
        "GIT_INDEX_FILE",
        "GIT_NAMESPACE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_PREFIX",
        "GIT_REPLACE_REF_BASE",
        "GIT_SHALLOW_FILE",
        "GIT_WORK_TREE",
    }
)
"""Variables that point git at another repository: a server that a git hook started has them."""
_WRONG_USAGE = 129
_PAUSE_SECONDS = 0.01
_WORDS = 600
"""How much of what git says is shown."""


@dataclass(frozen=True, slots=True)
class Worktree:
    path: Path
    commit: str
    """Empty where nothing has been committed yet."""
    branch: str
    """Empty where no branch is checked out."""
    main: bool
    lock: str | None
    """Why it is locked, if it is; empty where nobody said why."""

    @property
    def half_there(self) -> bool:
        """There is a directory, but it does not say any more that it is a worktree."""
        return self.path.is_dir() and not (self.path / ".git").exists()


class Repository:
    """One repository, asked from `directory` on behalf of one try of a step."""

    def __init__(self, world: World, key: str, directory: Path) -> None:
        self.directory = directory
        self._world = world
        self._key = key
        self._environment = {
            name: value
            for name, value in world.command_environment({"GIT_TERMINAL_PROMPT": "0"}).items()
            if name not in _REDIRECTIONS
        }

    @classmethod
    async def open(cls, context: StepContext, directory: str) -> Repository:
        """The repository that `directory` lies in; the workspace where it is empty."""
        world = context.world
        world.check_command()
        repository = cls(world, context.key, world.working_directory(directory))
        if shutil.which("git", path=repository._environment.get("PATH")) is None:
            raise StepError(
                "there is no git on this machine", hint="install it, or put it on the PATH of the server"
            )
        await repository.tell(
            "rev-parse",
            "--git-dir",
            failure=f"{repository.directory} cannot be used as a git repository",
            hint="run git init there, or say in `repository` where the repository is",
        )
        return repository

    # Running git

    async def git(self, *arguments: str, at: Path | None = None) -> Finished:
        return await self._run(["git", *arguments], at or self.directory)

    async def _run(self, arguments: list[str], directory: Path) -> Finished:
        return await self._world.run_command(
            arguments, directory=directory, environment=self._environment, key=self._key
        )

    async def tell(self, *arguments: str, at: Path | None = None, failure: str, hint: str = "") -> str:
        """What git prints; `failure` and git's own words are the error if it refuses."""
        finished = await self.git(*arguments, at=at)
        if finished.exit_code == 0:
            return finished.stdout
        if finished.exit_code == _WRONG_USAGE:
            hint = "this git may be too old: 2.33 or later is needed"
        raise StepError(f"{failure}: {words_of(finished)}", hint=hint)

    async def run_hook(self, name: str, *arguments: str, at: Path, failure: str) -> None:
        """Runs a hook of the repository, if there is one, as git does."""
        found = await self.tell("rev-parse", "--git-path", f"hooks/{name}", at=at, failure=failure)
        hook = at / found.rstrip("\n")
        if not os.access(hook, os.X_OK):
            return
        finished = await self._run([str(hook), *arguments], at)
        if finished.exit_code != 0:
            raise StepError(f"{failure}, its {name} hook failed: {words_of(finished)}", hint=f"see {hook}")

    # Names and commits

    async def check_name(self, name: str, what: str) -> None:
        """Refuses what cannot be the name of a branch, and what git would take for an option."""
        finished = await self.git("check-ref-format", f"refs/heads/{name}")
        if finished.exit_code != 0 or name.startswith("-") or name == "@":
            raise StepError(
                f"'{name}' cannot be a {what}",
                hint=(
                    "a branch is named like feature/login: no spaces, no '..', none of ~^:?*[\\, and it does "
                    "not begin with '-' or '.' nor end with '/' or '.lock'"
                ),
            )

    async def commit_of(self, name: str) -> str:
        """The commit that a name stands for, empty if there is none."""
        finished = await self.git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        return finished.stdout.strip() if finished.exit_code == 0 else ""

    async def branch_commit(self, branch: str) -> str:
        return await self.commit_of(f"refs/heads/{branch}")

    async def head_name(self) -> str:
        """The branch that is checked out, or the commit where none is."""
        finished = await self.git("symbolic-ref", "--quiet", "--short", "HEAD")
        return finished.stdout.strip() or await self.commit_of("HEAD")

    async def base_commit(self, base: str) -> str:
        """The commit that a new branch starts from: of the branch `base`, else of whatever has that name."""
        commit = await self.branch_commit(base) or await self.commit_of(base)
        if commit:
            return commit
        listed = await self.git("for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/remotes")
        names = listed.stdout.split()
        if not names:
            raise StepError(
                f"the repository {self.directory} has no commits yet",
                hint="commit something first: a worktree starts from a commit",
            )
        raise StepError(f"there is no branch '{base}' to start from", hint=did_you_mean(base, names))

    async def is_contained(self, commit: str, name: str) -> bool:
        """Whether `commit` is part of the history of `name`, which need not exist."""
        other = await self.commit_of(name)
        if not other:
            return False
        return (await self.git("merge-base", "--is-ancestor", commit, other)).exit_code == 0

    async def is_on_a_branch_or_tag(self, commit: str) -> bool:
        listed = await self.tell(
            "for-each-ref", "--count=1", f"--contains={commit}", failure=f"git does not find {commit}"
        )
        return bool(listed.strip())

    # Worktrees

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Keeps other steps, of any process, from making or removing worktrees of this repository meanwhile:
        git lets two of them make the same one."""
        found = await self.tell("rev-parse", "--git-common-dir", failure="git does not answer")
        descriptor = os.open(self.directory / found.rstrip("\n"), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    await asyncio.sleep(_PAUSE_SECONDS)
                except OSError:  # a file system without locks
                    break
            yield
        finally:
            os.close(descriptor)

    async def worktrees(self) -> list[Worktree]:
        """All that are registered, the main one first, also those whose directories are gone."""
        listed = await self.tell("worktree", "list", "--porcelain", failure="git does not list its worktrees")
        entries = [entry for entry in listed.split("\n\n") if entry.strip()]
        return [_worktree(entry, main=number == 0) for number, entry in enumerate(entries)]

    async def changes(self, path: Path) -> list[tuple[str, str]]:
        """What is not committed there, untracked files too: how, as `git status -s` says it, and which."""
        listed = await self.tell(
            "--no-optional-locks",
            "status",
            "--porcelain",
            "-z",
            "--no-renames",
            "--untracked-files=normal",
            "--ignore-submodules=none",
            at=path,
            failure=f"git cannot say what has changed in {path}",
        )
        return [(entry[:2], entry[3:]) for entry in listed.split("\0") if entry]

    async def has_submodules(self, path: Path) -> bool:
        """Whether repositories of submodules are kept with the worktree at `path`."""
        found = await self.tell("rev-parse", "--git-path", "modules", at=path, failure="git does not answer")
        modules = path / found.rstrip("\n")
        return modules.is_dir() and any(modules.iterdir())

    async def mend(self, worktree: Worktree) -> None:
        """A directory that a crash left half made or half removed becomes one that git can look at."""
        if worktree.half_there:
            await self.tell("worktree", "repair", failure=f"git cannot mend the worktree {worktree.path}")

    async def remove(self, worktree: Worktree) -> None:
        """The directory with all that is in it, and the registration, whatever state they are in."""
        path = worktree.path
        if path.is_dir() and os.listdir(path) in ([], [".git"]):
            # Git refuses to remove a worktree that it had only just begun to make.
            (path / ".git").unlink(missing_ok=True)
            path.rmdir()
        await self.mend(worktree)
        await self.tell(
            *("worktree", "remove", "--force", "--force", str(path)),
            failure=f"git could not remove all of the worktree {path}",
            hint=f"solve that and do it again; by hand: git worktree remove -f -f {shlex.quote(str(path))}",
        )


def _worktree(entry: str, *, main: bool) -> Worktree:
    fields = dict(line.partition(" ")[::2] for line in entry.splitlines())
    commit = fields.get("HEAD", "")
    return Worktree(
        path=Path(os.path.realpath(fields.get("worktree", ""))),
        commit="" if set(commit) <= {"0"} else commit,
        branch=fields.get("branch", "").removeprefix("refs/heads/"),
        main=main,
        lock=fields.get("locked"),
    )


def worktree_at(path: Path, worktrees: list[Worktree]) -> Worktree | None:
    return next((worktree for worktree in worktrees if worktree.path == path), None)


def is_empty(path: Path) -> bool:
    """Whether there is nothing at `path`, or a directory with nothing in it that anybody could miss."""
    if path.is_dir():
        names = os.listdir(path)
        return not names or (names == [".git"] and is_forgotten(path))
    return not os.path.lexists(path)


def is_forgotten(path: Path) -> bool:
    """Whether the directory says that it is a worktree, and no repository knows it any more."""
    pointer = path / ".git"
    if not pointer.is_file():
        return False
    directory = pointer.read_text("utf-8", "replace").removeprefix("gitdir:").strip()
    return not (path / directory).exists()


def words_of(finished: Finished) -> str:
    """What git says went wrong, in one line."""
    said = finished.stderr.strip() or finished.stdout.strip()
    lines = [line.removeprefix("fatal: ").removeprefix("error: ").strip() for line in said.splitlines()]
    text = "; ".join(line for line in lines if line and not line.startswith("Preparing worktree"))
    return (text if len(text) <= _WORDS else text[: _WORDS - 1] + "…") or f"exit code {finished.exit_code}"
