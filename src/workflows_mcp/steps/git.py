"""The step types `CreateWorktree` and `RemoveWorktree` give each line of work its own checkout.

    - {id: tree, type: CreateWorktree, inputs: {path: .worktrees/login, branch: feature/login}}

Each step either completes or changes nothing, and can be repeated. While git makes or removes a worktree, the
worktree is locked with a reason that names the step: after a crash, that lock identifies what is half done,
and nothing else is replaced or removed. `Repository`, at the end, runs git: with a list of arguments, never
through a shell, and it reads only the output that git makes for programs.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import shlex
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from pydantic import Field

from workflows_mcp.errors import StepError
from workflows_mcp.policy import Finished, World
from workflows_mcp.steps.base import Step, StepContext, StepInputs, StepOutputs, StepResult
from workflows_mcp.values import Value, did_you_mean

MAKING = "workflows-mcp is making this worktree, step "
REMOVING = "workflows-mcp is removing this worktree, branch "
_GIT_IS_MAKING = "initializing"
_SHOWN = 5
"""How many changed files an error names."""
_HOW = {"??": "untracked", " D": "deleted", "D ": "deleted", "A ": "added"}


class CreateWorktreeInputs(StepInputs):
    path: str = Field(description="Where the worktree is put; relative to the workspace.")
    branch: str = Field(description="The branch to check out there; made if it does not exist.")
    base_branch: str = Field(
        "", description="What a new branch starts from: a branch, a tag or a commit; by default the HEAD."
    )
    repository: str = Field("", description="A directory in the repository; by default the workspace.")


class CreateWorktreeOutputs(StepOutputs):
    worktree_path: str = ""
    branch: str = ""
    base_branch: str = ""
    commit: str = ""
    created: bool = False
    success: bool = False


class CreateWorktree(Step):
    """Makes a git worktree: a directory of its own with a branch checked out.

    A branch that exists is checked out, one that does not is made from `base_branch`. A worktree that is
    there already, with that branch, is taken as it is, and `created` is false.
    """

    name = "CreateWorktree"
    Inputs = CreateWorktreeInputs
    Outputs = CreateWorktreeOutputs
    level = "privileged"
    capabilities = frozenset({"run_commands", "read_files", "write_files"})

    async def run(self, inputs: CreateWorktreeInputs, context: StepContext) -> StepResult:
        path = _worktree_path(inputs.path, context)
        repository = await Repository.open(context, inputs.repository)
        branch = inputs.branch
        await repository.check_name(branch, "branch")
        if branch == "HEAD":
            raise StepError("'HEAD' cannot be a branch", hint="name the branch to check out or to make")
        if inputs.base_branch:
            await repository.check_name(inputs.base_branch, "base_branch")
        base = inputs.base_branch or await repository.head_name()

        step = context.key.rsplit("#", 1)[0]  # whichever try this is
        lock = MAKING + hashlib.sha256(step.encode()).hexdigest()[:16]
        async with repository.alone():
            worktrees = await repository.worktrees()
            there = worktree_at(path, worktrees)
            if there is not None and not _can_be_replaced(there, lock):
                _check_is_whole(there, branch)
                return _made(path, branch, base, there.commit, created=False)
            for other in worktrees:
                if other.branch == branch and other is not there:
                    raise _checked_out_elsewhere(branch, other)
            if there is not None:
                await repository.remove(there)
            _check_is_free(path, worktrees)
            _tidy(path)
            commit = await repository.branch_commit(branch)
            is_new = not commit
            if is_new:
                commit = await repository.base_commit(base)
                # It tracks nothing: the base is not what it is to be pushed to.
                await repository.tell(
                    *("branch", "--no-track", branch, commit),
                    failure=f"git did not make the branch '{branch}'",
                )
            async with _all_or_nothing(repository, path, lock, branch if is_new else ""):
                await repository.tell(
                    *("worktree", "add", "--quiet", "--no-checkout", "--lock", "--reason", lock),
                    *(str(path), branch),
                    failure=f"git could not make the worktree {path}",
                )
        async with _all_or_nothing(repository, path, lock, branch if is_new else ""):
            await _check_out(repository, path, commit)
        return _made(path, branch, base, commit, created=True)


def _made(path: Path, branch: str, base: str, commit: str, *, created: bool) -> StepResult:
    outputs: dict[str, Value] = {
        "worktree_path": str(path),
        "branch": branch,
        "base_branch": base,
        "commit": commit,
        "created": created,
        "success": True,
    }
    return StepResult(outputs)


async def _check_out(repository: Repository, path: Path, commit: str) -> None:
    """Puts the files into a worktree that is registered and locked.

    Git would do all at once, and would tidy up if it failed: killed while tidying, it leaves files of which
    nobody can say whose they are.
    """
    failure = f"git could not make the worktree {path}"
    await repository.tell("reset", "--hard", "--quiet", "--no-recurse-submodules", at=path, failure=failure)
    no_commit = "0" * len(commit)
    await repository.run_hook("post-checkout", no_commit, commit, "1", at=path, failure=failure)
    await repository.tell("worktree", "unlock", str(path), failure=failure)


@asynccontextmanager
async def _all_or_nothing(
    repository: Repository, path: Path, lock: str, new_branch: str
) -> AsyncIterator[None]:
    """Whatever stops the making of a worktree, nothing of it is left, nor of the branch made for it."""
    try:
        yield
    except (StepError, asyncio.CancelledError):
        with suppress(StepError):  # what stopped it matters more; the lock says what is left
            there = worktree_at(path, await repository.worktrees())
            if there is None:
                _tidy(path)
            elif there.lock == lock:
                await repository.remove(there)
            if new_branch:
                await repository.git("branch", "-D", new_branch)  # refused if somebody works on it by now
        raise


def _tidy(path: Path) -> None:
    """Removes the one file of a worktree that git was killed over before it knew it."""
    if path.is_dir() and is_empty(path):
        (path / ".git").unlink(missing_ok=True)


def _can_be_replaced(there: Worktree, lock: str) -> bool:
    """Whether nothing is lost: this very step was making it when it was cut off, or it is empty."""
    if there.main:
        return False
    return there.lock == lock or (there.lock is None and is_empty(there.path))


def _check_is_whole(there: Worktree, branch: str) -> None:
    """Refuses what is registered at the path unless it can be used as it is."""
    path, by_hand = there.path, shlex.quote(str(there.path))
    if there.main:
        raise StepError(
            f"{path} is the main worktree of the repository", hint="choose another path, e.g. .worktrees/name"
        )
    if there.lock is not None and (there.lock == _GIT_IS_MAKING or there.lock.startswith(MAKING)):
        raise StepError(
            f"the worktree {path} is being made by somebody else, or was left half made",
            hint=f"if nobody is making it, remove it: git worktree remove -f -f {by_hand}",
        )
    if there.lock is not None and there.lock.startswith(REMOVING):
        raise StepError(
            f"the worktree {path} is being removed, or was left half removed",
            hint=f"end that with RemoveWorktree, or with: git worktree remove -f -f {by_hand}",
        )
    if is_empty(path):
        raise StepError(
            f"the worktree {path} is locked{_reason(there)}, and its directory is missing",
            hint=f"bring the directory back, or give it up: git worktree remove -f -f {by_hand}",
        )
    if there.half_there:
        raise StepError(
            f"git knows a worktree at {path}, but the file .git in it is missing",
            hint=f"bring it back with git worktree repair, or remove the directory {path}",
        )
    if there.branch != branch:
        what = f"the branch '{there.branch}'" if there.branch else "no branch"
        raise StepError(
            f"{path} is a worktree already, with {what} checked out and not '{branch}'",
            hint="choose another path, or remove it with RemoveWorktree",
        )


def _check_is_free(path: Path, worktrees: list[Worktree]) -> None:
    if is_empty(path):
        return
    if not path.is_dir():
        raise StepError(f"there is a file at {path}", hint="choose another path, or move the file away")
    if (path / ".git").exists():
        if is_forgotten(path):
            raise StepError(
                f"{path} was a worktree, and git does not know it any more",
                hint="choose another path, or move away what is in it",
            )
        raise StepError(
            f"{path} belongs to another git repository than {worktrees[0].path}",
            hint="choose another path, or say in `repository` which repository is meant",
        )
    raise StepError(
        f"the directory {path} is not empty, and not a worktree",
        hint="choose another path, or move away what is in it",
    )


def _checked_out_elsewhere(branch: str, other: Worktree) -> StepError:
    hint = "a branch can be checked out once: use that worktree, or another branch"
    if not other.path.exists():
        hint = "its directory is gone: git worktree prune makes git forget it"
    return StepError(f"the branch '{branch}' is checked out in {other.path}", hint=hint)


# Removing


class RemoveWorktreeInputs(StepInputs):
    path: str = Field(description="The worktree to remove; relative to the workspace.")
    repository: str = Field("", description="A directory in the repository; by default the workspace.")
    force: bool = Field(
        False, description="Whether it goes with all that is not committed, and its branch if not merged."
    )
    delete_branch: bool = Field(
        False, description="Whether its branch goes too; refused unless merged, or part of its upstream."
    )


class RemoveWorktreeOutputs(StepOutputs):
    removed: bool = False
    worktree_path: str = ""
    branch: str = ""
    branch_deleted: bool = False
    success: bool = False


class RemoveWorktree(Step):
    """Removes a git worktree, unless something in it would be lost.

    Changes that are not committed, untracked files, and with `delete_branch` commits that are not merged are
    refused unless `force` is true; nothing is touched then. A worktree that is gone already is fine, and
    `removed` is false.
    """

    name = "RemoveWorktree"
    Inputs = RemoveWorktreeInputs
    Outputs = RemoveWorktreeOutputs
    level = "privileged"
    capabilities = frozenset({"run_commands", "read_files", "write_files"})

    async def run(self, inputs: RemoveWorktreeInputs, context: StepContext) -> StepResult:
        path = _worktree_path(inputs.path, context)
        repository = await Repository.open(context, inputs.repository)
        async with repository.alone():
            return await _remove(repository, path, inputs)


async def _remove(repository: Repository, path: Path, inputs: RemoveWorktreeInputs) -> StepResult:
    worktrees = await repository.worktrees()
    there = worktree_at(path, worktrees)
    if there is None:
        _check_is_gone(path, worktrees)
        return _removed(path, "", removed=False, branch_deleted=False)
    if there.main:
        raise StepError(
            f"{path} is the main worktree of the repository, which cannot be removed",
            hint="give the path of a worktree that CreateWorktree made",
        )
    repository.directory = worktrees[0].path  # the worktree cannot be removed from inside
    begun = there.lock is not None and there.lock.startswith(REMOVING)
    if there.lock is not None and not begun:
        raise _locked(there)
    branch = unquote(there.lock.removeprefix(REMOVING)) if begun and there.lock else there.branch
    is_there = not is_empty(path)
    if is_there and not inputs.force:
        await _check_nothing_is_lost(repository, there, begun=begun)
    tip = await repository.branch_commit(branch) if inputs.delete_branch and branch else ""
    if tip:
        for other in worktrees:
            if other.branch == branch and other is not there:
                raise _checked_out_elsewhere(branch, other)
        if not inputs.force:
            await _check_is_merged(repository, branch, tip)

    if is_there and not begun:
        reason = REMOVING + quote(branch)
        failure = f"git could not lock the worktree {path}"
        await repository.tell("worktree", "lock", "--reason", reason, str(path), failure=failure)
    if tip and is_there:
        await _delete_branch_from_under(repository, there, branch, tip)
    await repository.remove(there)
    if tip and not is_there:
        await repository.tell("branch", "-D", branch, failure=f"git did not delete the branch '{branch}'")
    branch_deleted = bool(tip) or (begun and inputs.delete_branch and bool(branch))
    return _removed(path, branch, removed=is_there or begun, branch_deleted=branch_deleted)


def _removed(path: Path, branch: str, *, removed: bool, branch_deleted: bool) -> StepResult:
    outputs: dict[str, Value] = {
        "removed": removed,
        "worktree_path": str(path),
        "branch": branch,
        "branch_deleted": branch_deleted,
        "success": True,
    }
    return StepResult(outputs)


def _check_is_gone(path: Path, worktrees: list[Worktree]) -> None:
    if not os.path.lexists(path):
        return
    around = [worktree.path for worktree in worktrees if path.is_relative_to(worktree.path)]
    where = f"; it lies in the worktree {max(around, key=lambda it: len(it.parts))}" if around else ""
    raise StepError(
        f"{path} is not a worktree of the repository {worktrees[0].path}{where}",
        hint="give the worktree_path that CreateWorktree gave, and in `repository` the same repository",
    )


def _locked(there: Worktree) -> StepError:
    path = shlex.quote(str(there.path))
    if there.lock and (there.lock == _GIT_IS_MAKING or there.lock.startswith(MAKING)):
        return StepError(
            f"the worktree {there.path} is being made, or was left half made",
            hint=f"if nobody is making it: git worktree remove -f -f {path}",
        )
    return StepError(
        f"the worktree {there.path} is locked{_reason(there)}",
        hint=f"whoever locked it wants to keep it; to unlock it: git worktree unlock {path}",
    )


def _reason(there: Worktree) -> str:
    return f" ({there.lock})" if there.lock else ""


async def _check_nothing_is_lost(repository: Repository, there: Worktree, *, begun: bool) -> None:
    path = there.path
    if begun:
        await repository.mend(there)
    elif there.half_there:
        raise StepError(
            f"nobody can say what has changed in {path}: the file .git in it is missing",
            hint="bring it back with git worktree repair, or say force: true",
        )
    changes = await repository.changes(path)
    if begun:  # files that are missing are those that were removed before
        changes = [change for change in changes if change[0] != " D"]
    if changes:
        listed = ", ".join(f"{name} ({_HOW.get(how, 'changed')})" for how, name in changes[:_SHOWN])
        more = f", and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
        raise StepError(
            f"the worktree {path} has changes that are not committed: {listed}{more}",
            hint="commit them, or say force: true to lose them",
        )
    if await repository.has_submodules(path):
        raise StepError(
            f"the worktree {path} holds submodules, whose own commits would go with it",
            hint="push what is needed of them, and say force: true",
        )
    is_detached = not begun and not there.branch and there.commit
    if is_detached and not await repository.is_on_a_branch_or_tag(there.commit):
        raise StepError(
            f"the worktree {path} is at the commit {there.commit[:12]}, which is on no branch",
            hint=f"keep it with git branch NAME {there.commit[:12]}, or say force: true to lose it",
        )


async def _check_is_merged(repository: Repository, branch: str, tip: str) -> None:
    for name in ("HEAD", f"{branch}@{{upstream}}"):
        if await repository.is_contained(tip, name):
            return
    into = await repository.head_name()
    raise StepError(
        f"the branch '{branch}' is not merged: it has commits that are neither in {into} nor in its upstream",
        hint="merge or push it, say delete_branch: false to keep it, or force: true to lose it",
    )


async def _delete_branch_from_under(repository: Repository, there: Worktree, branch: str, tip: str) -> None:
    """Deletes the branch before the worktree goes: the lock of that still names it after a crash."""
    await repository.mend(there)
    failure = f"git did not delete the branch '{branch}'"
    await repository.tell("update-ref", "--no-deref", "HEAD", tip, at=there.path, failure=failure)
    deleted = await repository.git("branch", "-D", branch)
    if deleted.exit_code != 0:
        await repository.git("symbolic-ref", "HEAD", f"refs/heads/{branch}", at=there.path)
        await repository.git("worktree", "unlock", str(there.path))
        raise StepError(f"{failure}: {words_of(deleted)}", hint="the worktree is as it was")


def _worktree_path(text: str, context: StepContext) -> Path:
    path = context.world.path_for_writing(text)
    if "\n" in str(path):
        raise StepError(f"the path {str(path)!r} holds a line break", hint="git cannot list such worktrees")
    return path


# Running git

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
