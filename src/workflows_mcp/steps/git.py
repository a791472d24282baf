"""The step types `CreateWorktree` and `RemoveWorktree` give each task its own checkout.

    - {id: tree, type: CreateWorktree, inputs: {path: .worktrees/login, branch: feature/login}}

Each step either completes or changes nothing, and can be repeated. While git creates or removes a worktree,
the worktree is locked with a reason that names the step. After a crash, that lock marks what is half done,
and nothing else is replaced or removed. `Repository`, at the end, runs git with a list of arguments, never
through a shell, and reads only the output that git prints for programs.
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
    path: str = Field(description="The path of the worktree, relative to the workspace.")
    branch: str = Field(description="The branch to check out there; created if it does not exist.")
    base_branch: str = Field(
        "", description="Where a new branch starts: a branch, a tag or a commit; by default HEAD."
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
    """Creates a git worktree: a separate directory with a branch checked out.

    A branch that does not exist is created from `base_branch`. If the path is already a worktree of that
    branch, nothing changes, and `created` is false.
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
            raise StepError("'HEAD' cannot be a branch", hint="name the branch to check out or to create")
        if inputs.base_branch:
            await repository.check_name(inputs.base_branch, "base_branch")
        base = inputs.base_branch or await repository.head_name()

        step = context.key.rsplit("#", 1)[0]  # without the number of the attempt
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
                # It has no upstream: the base is not the branch to push to.
                await repository.output_of(
                    *("branch", "--no-track", branch, commit),
                    failure=f"git did not create the branch '{branch}'",
                )
            async with _all_or_nothing(repository, path, lock, branch if is_new else ""):
                await repository.output_of(
                    *("worktree", "add", "--quiet", "--no-checkout", "--lock", "--reason", lock),
                    *(str(path), branch),
                    failure=f"git could not create the worktree {path}",
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
    """Check out the files of a worktree that is registered and locked.

    `git worktree add` could do this too, and would clean up after a failure. If it were killed while it
    cleans up, nothing would identify the remaining files.
    """
    failure = f"git could not create the worktree {path}"
    await repository.output_of(
        "reset", "--hard", "--quiet", "--no-recurse-submodules", at=path, failure=failure
    )
    no_commit = "0" * len(commit)
    await repository.run_hook("post-checkout", no_commit, commit, "1", at=path, failure=failure)
    await repository.output_of("worktree", "unlock", str(path), failure=failure)


@asynccontextmanager
async def _all_or_nothing(
    repository: Repository, path: Path, lock: str, new_branch: str
) -> AsyncIterator[None]:
    """Remove the worktree, and the branch created for it, if the context fails or is cancelled."""
    try:
        yield
    except (StepError, asyncio.CancelledError):
        with suppress(StepError):  # the first error matters more; the lock marks what remains
            there = worktree_at(path, await repository.worktrees())
            if there is None:
                _tidy(path)
            elif there.lock == lock:
                await repository.remove(there)
            if new_branch:
                await repository.git("branch", "-D", new_branch)  # refused if it is checked out by now
        raise


def _tidy(path: Path) -> None:
    """Remove the only file of a worktree that a killed git had not registered."""
    if path.is_dir() and is_empty(path):
        (path / ".git").unlink(missing_ok=True)


def _can_be_replaced(there: Worktree, lock: str) -> bool:
    """Whether nothing would be lost: it is empty, or an interrupted attempt of this step created it."""
    if there.main:
        return False
    return there.lock == lock or (there.lock is None and is_empty(there.path))


def _check_is_whole(there: Worktree, branch: str) -> None:
    """Raise StepError unless the registered worktree can be used unchanged."""
    path, by_hand = there.path, shlex.quote(str(there.path))
    if there.main:
        raise StepError(
            f"{path} is the main worktree of the repository", hint="choose another path, e.g. .worktrees/name"
        )
    if there.lock is not None and (there.lock == _GIT_IS_MAKING or there.lock.startswith(MAKING)):
        raise StepError(
            f"another process is creating the worktree {path}, or was interrupted while it did",
            hint=f"if no process is creating it, remove it: git worktree remove -f -f {by_hand}",
        )
    if there.lock is not None and there.lock.startswith(REMOVING):
        raise StepError(
            f"another process is removing the worktree {path}, or was interrupted while it did",
            hint=f"finish that with RemoveWorktree, or with: git worktree remove -f -f {by_hand}",
        )
    if is_empty(path):
        raise StepError(
            f"the worktree {path} is locked{_reason(there)}, and its directory is missing",
            hint=f"restore the directory, or remove the worktree: git worktree remove -f -f {by_hand}",
        )
    if there.half_there:
        raise StepError(
            f"git has a worktree at {path}, but its file .git is missing",
            hint=f"restore it with git worktree repair, or remove the directory {path}",
        )
    if there.branch != branch:
        what = f"the branch '{there.branch}'" if there.branch else "no branch"
        raise StepError(
            f"{path} is already a worktree, with {what} checked out instead of '{branch}'",
            hint="choose another path, or remove the worktree with RemoveWorktree",
        )


def _check_is_free(path: Path, worktrees: list[Worktree]) -> None:
    if is_empty(path):
        return
    if not path.is_dir():
        raise StepError(f"there is a file at {path}", hint="choose another path, or move the file")
    if (path / ".git").exists():
        if is_forgotten(path):
            raise StepError(
                f"{path} was a worktree, but git no longer has it",
                hint="choose another path, or move the files in it",
            )
        raise StepError(
            f"{path} belongs to another git repository than {worktrees[0].path}",
            hint="choose another path, or set `repository` to a directory of that repository",
        )
    raise StepError(
        f"the directory {path} is not empty and is not a worktree",
        hint="choose another path, or move the files in it",
    )


def _checked_out_elsewhere(branch: str, other: Worktree) -> StepError:
    hint = "a branch can be checked out only once: use that worktree, or another branch"
    if not other.path.exists():
        hint = "its directory no longer exists: run git worktree prune"
    return StepError(f"the branch '{branch}' is checked out in {other.path}", hint=hint)


# Removing


class RemoveWorktreeInputs(StepInputs):
    path: str = Field(description="The worktree to remove, relative to the workspace.")
    repository: str = Field("", description="A directory in the repository; by default the workspace.")
    force: bool = Field(
        False, description="Whether to discard uncommitted changes, and commits that are not merged."
    )
    delete_branch: bool = Field(
        False, description="Whether to delete its branch too, if it is merged or part of its upstream."
    )


class RemoveWorktreeOutputs(StepOutputs):
    removed: bool = False
    worktree_path: str = ""
    branch: str = ""
    branch_deleted: bool = False
    success: bool = False


class RemoveWorktree(Step):
    """Removes a git worktree, unless work in it would be lost.

    The step fails and changes nothing if there are uncommitted changes, untracked files or, with
    `delete_branch`, commits that are not merged; `force` discards them. If there is no worktree at the path,
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
            f"{path} is the main worktree of the repository, which git cannot remove",
            hint="use the path of a worktree that CreateWorktree has created",
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
        await repository.output_of("worktree", "lock", "--reason", reason, str(path), failure=failure)
    if tip and is_there:
        await _delete_branch_from_under(repository, there, branch, tip)
    await repository.remove(there)
    if tip and not is_there:
        await repository.output_of(
            "branch", "-D", branch, failure=f"git did not delete the branch '{branch}'"
        )
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
    where = f"; it is inside the worktree {max(around, key=lambda it: len(it.parts))}" if around else ""
    raise StepError(
        f"{path} is not a worktree of the repository {worktrees[0].path}{where}",
        hint="use the output worktree_path of CreateWorktree, and the same `repository`",
    )


def _locked(there: Worktree) -> StepError:
    path = shlex.quote(str(there.path))
    if there.lock and (there.lock == _GIT_IS_MAKING or there.lock.startswith(MAKING)):
        return StepError(
            f"another process is creating the worktree {there.path}, or was interrupted while it did",
            hint=f"if no process is creating it: git worktree remove -f -f {path}",
        )
    return StepError(
        f"the worktree {there.path} is locked{_reason(there)}",
        hint=f"if it is not needed any more, unlock it: git worktree unlock {path}",
    )


def _reason(there: Worktree) -> str:
    return f" ({there.lock})" if there.lock else ""


async def _check_nothing_is_lost(repository: Repository, there: Worktree, *, begun: bool) -> None:
    path = there.path
    if begun:
        await repository.repair(there)
    elif there.half_there:
        raise StepError(
            f"cannot determine the changes in {path}: its file .git is missing",
            hint="restore it with git worktree repair, or set force: true",
        )
    changes = await repository.changes(path)
    if begun:  # missing files are those that the first attempt removed
        changes = [change for change in changes if change[0] != " D"]
    if changes:
        listed = ", ".join(f"{name} ({_HOW.get(how, 'changed')})" for how, name in changes[:_SHOWN])
        more = f", and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
        raise StepError(
            f"the worktree {path} has uncommitted changes: {listed}{more}",
            hint="commit them, or set force: true to discard them",
        )
    if await repository.has_submodules(path):
        raise StepError(
            f"the worktree {path} has submodules, whose local commits would be lost",
            hint="push the commits that you need, and set force: true",
        )
    is_detached = not begun and not there.branch and there.commit
    if is_detached and not await repository.is_on_a_branch_or_tag(there.commit):
        raise StepError(
            f"the worktree {path} is at the commit {there.commit[:12]}, which is on no branch",
            hint=f"keep it with git branch NAME {there.commit[:12]}, or set force: true to discard it",
        )


async def _check_is_merged(repository: Repository, branch: str, tip: str) -> None:
    for name in ("HEAD", f"{branch}@{{upstream}}"):
        if await repository.is_contained(tip, name):
            return
    into = await repository.head_name()
    raise StepError(
        f"the branch '{branch}' is not merged: it has commits that are neither in {into} nor in its upstream",
        hint="merge or push it, set delete_branch: false to keep it, or force: true to discard it",
    )


async def _delete_branch_from_under(repository: Repository, there: Worktree, branch: str, tip: str) -> None:
    """Delete the branch before the worktree, whose lock still names the branch after a crash."""
    await repository.repair(there)
    failure = f"git did not delete the branch '{branch}'"
    await repository.output_of("update-ref", "--no-deref", "HEAD", tip, at=there.path, failure=failure)
    deleted = await repository.git("branch", "-D", branch)
    if deleted.exit_code != 0:
        await repository.git("symbolic-ref", "HEAD", f"refs/heads/{branch}", at=there.path)
        await repository.git("worktree", "unlock", str(there.path))
        raise StepError(f"{failure}: {error_text(deleted)}", hint="the worktree is unchanged")


def _worktree_path(text: str, context: StepContext) -> Path:
    path = context.world.path_for_writing(text)
    if "\n" in str(path):
        raise StepError(
            f"the path {str(path)!r} contains a line break", hint="git cannot list such worktrees"
        )
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
"""Variables that point git to another repository. A server that a git hook starts has them."""
_WRONG_USAGE = 129
_PAUSE_SECONDS = 0.01
_WORDS = 600
"""How many characters of the output of git an error shows."""


@dataclass(frozen=True, slots=True)
class Worktree:
    path: Path
    commit: str
    """Empty if there are no commits yet."""
    branch: str
    """Empty if no branch is checked out."""
    main: bool
    lock: str | None
    """The reason of its lock, which may be empty; None if it is not locked."""

    @property
    def half_there(self) -> bool:
        """Whether its directory exists, but without the file that makes it a worktree."""
        return self.path.is_dir() and not (self.path / ".git").exists()


class Repository:
    """A repository. Commands run in `directory`, for one attempt of a step."""

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
        """Open the repository that contains `directory`, or the workspace if it is empty."""
        world = context.world
        world.check_command()
        repository = cls(world, context.key, world.working_directory(directory))
        if shutil.which("git", path=repository._environment.get("PATH")) is None:
            raise StepError(
                "git is not installed on this machine",
                hint="install git, or add it to the PATH of the server",
            )
        await repository.output_of(
            "rev-parse",
            "--git-dir",
            failure=f"{repository.directory} cannot be used as a git repository",
            hint="run git init there, or set `repository` to the directory of the repository",
        )
        return repository

    # Running git

    async def git(self, *arguments: str, at: Path | None = None) -> Finished:
        return await self._run(["git", *arguments], at or self.directory)

    async def _run(self, arguments: list[str], directory: Path) -> Finished:
        return await self._world.run_command(
            arguments, directory=directory, environment=self._environment, key=self._key
        )

    async def output_of(self, *arguments: str, at: Path | None = None, failure: str, hint: str = "") -> str:
        """Run git and return its output. Raises StepError with `failure` and the error message of git."""
        finished = await self.git(*arguments, at=at)
        if finished.exit_code == 0:
            return finished.stdout
        if finished.exit_code == _WRONG_USAGE:
            hint = "git may be too old: version 2.33 or later is required"
        raise StepError(f"{failure}: {error_text(finished)}", hint=hint)

    async def run_hook(self, name: str, *arguments: str, at: Path, failure: str) -> None:
        """Run a hook of the repository as git does, if there is one."""
        found = await self.output_of("rev-parse", "--git-path", f"hooks/{name}", at=at, failure=failure)
        hook = at / found.rstrip("\n")
        if not os.access(hook, os.X_OK):
            return
        finished = await self._run([str(hook), *arguments], at)
        if finished.exit_code != 0:
            raise StepError(f"{failure}, its {name} hook failed: {error_text(finished)}", hint=f"see {hook}")

    # Names and commits

    async def check_name(self, name: str, what: str) -> None:
        """Raise StepError if this cannot be the name of a branch, or if git would read it as an option."""
        finished = await self.git("check-ref-format", f"refs/heads/{name}")
        if finished.exit_code != 0 or name.startswith("-") or name == "@":
            raise StepError(
                f"'{name}' cannot be a {what}",
                hint=(
                    "use a name like feature/login: without spaces, '..' or any of ~^:?*[\\, not starting "
                    "with '-' or '.', and not ending with '/' or '.lock'"
                ),
            )

    async def commit_of(self, name: str) -> str:
        """Return the commit of a name; empty if there is none."""
        finished = await self.git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        return finished.stdout.strip() if finished.exit_code == 0 else ""

    async def branch_commit(self, branch: str) -> str:
        return await self.commit_of(f"refs/heads/{branch}")

    async def head_name(self) -> str:
        """Return the branch that is checked out, or else the commit."""
        finished = await self.git("symbolic-ref", "--quiet", "--short", "HEAD")
        return finished.stdout.strip() or await self.commit_of("HEAD")

    async def base_commit(self, base: str) -> str:
        """Return the commit where a new branch starts: of the branch `base`, else of any ref of that name."""
        commit = await self.branch_commit(base) or await self.commit_of(base)
        if commit:
            return commit
        listed = await self.git("for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/remotes")
        names = listed.stdout.split()
        if not names:
            raise StepError(
                f"the repository {self.directory} has no commits yet",
                hint="commit something first: a worktree needs a commit",
            )
        raise StepError(f"there is no branch '{base}' to start from", hint=did_you_mean(base, names))

    async def is_contained(self, commit: str, name: str) -> bool:
        """Return whether `commit` is in the history of `name`, which may not exist."""
        other = await self.commit_of(name)
        if not other:
            return False
        return (await self.git("merge-base", "--is-ancestor", commit, other)).exit_code == 0

    async def is_on_a_branch_or_tag(self, commit: str) -> bool:
        listed = await self.output_of(
            "for-each-ref", "--count=1", f"--contains={commit}", failure=f"git does not find {commit}"
        )
        return bool(listed.strip())

    # Worktrees

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Lock the worktrees of this repository against other steps, in any process.

        Git itself lets two processes create the same worktree.
        """
        found = await self.output_of("rev-parse", "--git-common-dir", failure="git failed")
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
        """Return the registered worktrees, the main one first, including those without a directory."""
        listed = await self.output_of(
            "worktree", "list", "--porcelain", failure="git cannot list its worktrees"
        )
        entries = [entry for entry in listed.split("\n\n") if entry.strip()]
        return [_worktree(entry, main=number == 0) for number, entry in enumerate(entries)]

    async def changes(self, path: Path) -> list[tuple[str, str]]:
        """Return the uncommitted changes, with untracked files: the code of `git status -s`, and the file."""
        listed = await self.output_of(
            "--no-optional-locks",
            "status",
            "--porcelain",
            "-z",
            "--no-renames",
            "--untracked-files=normal",
            "--ignore-submodules=none",
            at=path,
            failure=f"git cannot determine the changes in {path}",
        )
        return [(entry[:2], entry[3:]) for entry in listed.split("\0") if entry]

    async def has_submodules(self, path: Path) -> bool:
        """Return whether the worktree at `path` has repositories of submodules."""
        found = await self.output_of("rev-parse", "--git-path", "modules", at=path, failure="git failed")
        modules = path / found.rstrip("\n")
        return modules.is_dir() and any(modules.iterdir())

    async def repair(self, worktree: Worktree) -> None:
        """Repair a worktree that a crash left half created or half removed, so that git can read it."""
        if worktree.half_there:
            await self.output_of(
                "worktree", "repair", failure=f"git cannot repair the worktree {worktree.path}"
            )

    async def remove(self, worktree: Worktree) -> None:
        """Remove the directory with its content, and the registration, in whatever state they are."""
        path = worktree.path
        if path.is_dir() and os.listdir(path) in ([], [".git"]):
            # Git refuses to remove a worktree that it has only begun to create.
            (path / ".git").unlink(missing_ok=True)
            path.rmdir()
        await self.repair(worktree)
        await self.output_of(
            *("worktree", "remove", "--force", "--force", str(path)),
            failure=f"git could not remove the worktree {path} completely",
            hint=f"fix that and run the step again, or run: git worktree remove -f -f "
            f"{shlex.quote(str(path))}",
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
    """Return whether nothing is at `path`, or only an empty directory or an unregistered worktree."""
    if path.is_dir():
        names = os.listdir(path)
        return not names or (names == [".git"] and is_forgotten(path))
    return not os.path.lexists(path)


def is_forgotten(path: Path) -> bool:
    """Return whether the directory was a worktree that its repository no longer has."""
    pointer = path / ".git"
    if not pointer.is_file():
        return False
    directory = pointer.read_text("utf-8", "replace").removeprefix("gitdir:").strip()
    return not (path / directory).exists()


def error_text(finished: Finished) -> str:
    """Return the error message of git, in one line."""
    output = finished.stderr.strip() or finished.stdout.strip()
    lines = [line.removeprefix("fatal: ").removeprefix("error: ").strip() for line in output.splitlines()]
    text = "; ".join(line for line in lines if line and not line.startswith("Preparing worktree"))
    return (text if len(text) <= _WORDS else text[: _WORDS - 1] + "…") or f"exit code {finished.exit_code}"
