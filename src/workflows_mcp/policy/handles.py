"""Gives steps access to files, commands, tools and memory, as far as the settings allow.

    world = World(policy, run_id, settings.scratch / run_id).for_step("build-1-14-9f86d081")
    path = world.path_for_writing("report.md")
    world.write(path, b"...")

A `World` belongs to a run; `for_step` makes one for each execution of a step. It allows paths inside the
workspace, the directories in the settings and the run's scratch directory, after resolving all symbolic
links. It runs commands if the settings allow commands.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from workflows_mcp.errors import Forbidden, StepError
from workflows_mcp.policy import files
from workflows_mcp.policy.mcp_client import ToolResult, ToolServers
from workflows_mcp.policy.processes import Finished, OnOutput, run_process
from workflows_mcp.policy.rules import MODIFY_STATE, READ_FILES, RUN_COMMANDS, WRITE_FILES, Policy
from workflows_mcp.policy.secrets import Secrets
from workflows_mcp.values import Value

SCRATCH = "SCRATCH"
"""The variable with the scratch directory of a step, in commands and at the start of paths."""
RUN_SCRATCH = "RUN_SCRATCH"
"""The variable with the scratch directory that all steps of a run share."""
STEPS_DIRECTORY = ".steps"
"""The directory for the steps, inside the scratch directory of their run."""
INTERNAL = "WORKFLOWS_"
"""The prefix of our settings, which commands do not get."""

MayStart = Callable[[], Awaitable[None]]
"""Called just before a command starts; raises if it may not start."""

_DENIED = {
    RUN_COMMANDS: "commands are",
    READ_FILES: "reading files is",
    WRITE_FILES: "writing files is",
    MODIFY_STATE: "changing the memory is",
}


class Memory(Protocol):
    """The memory beyond a run, which an engine stores."""

    async def remember(self, key: str, value: Value) -> None: ...

    async def recall(self, key: str) -> Value: ...

    async def remembered(self, prefix: str = "") -> list[str]: ...


class World:
    __slots__ = (
        "_may_start",
        "_memory",
        "_on_output",
        "_run_scratch",
        "_scratch",
        "_secrets",
        "_tools",
        "limits",
        "policy",
        "run_id",
    )

    def __init__(
        self,
        policy: Policy,
        run_id: str,
        scratch: Path,
        may_start: MayStart | None = None,
        secrets: Secrets | None = None,
        *,
        tools: ToolServers | None = None,
        memory: Memory | None = None,
    ) -> None:
        self.policy = policy
        self.limits = policy.limits
        self.run_id = run_id
        self._run_scratch = self._scratch = scratch
        self._may_start = may_start
        self._secrets = secrets or Secrets(environ={})
        self._on_output: OnOutput | None = None
        self._tools = tools
        self._memory = memory

    def for_step(self, name: str, on_output: OnOutput | None = None) -> World:
        """The world for one execution of a step.

        It has an empty scratch directory of its own; without a `name` it shares the directory of the run.
        `on_output` gets the output of its commands as they print it.
        """
        world = copy(self)
        world._on_output = on_output
        if name:
            world._scratch = self._run_scratch / STEPS_DIRECTORY / name
            for directory in (self._run_scratch, self._run_scratch / STEPS_DIRECTORY):
                if directory.is_symlink():  # a command has replaced our directory with a link
                    files.remove_directory(directory)
            if world._scratch.exists():  # from an interrupted execution, or from the original of a fork
                files.remove_directory(world._scratch)
        return world

    # Paths

    @property
    def scratch_path(self) -> Path:
        """The path of the step's scratch directory, which may not exist yet."""
        return self._scratch

    def scratch_directory(self) -> Path:
        """The step's own directory, created on first use."""
        if not self._scratch.is_dir():
            files.make_directory(self._scratch)
        return self._scratch

    def path_for_reading(self, text: str) -> Path:
        self._check(READ_FILES)
        return self._allowed_path(text, "read")

    def path_for_writing(self, text: str) -> Path:
        self._check(WRITE_FILES)
        return self._allowed_path(text, "written")

    def working_directory(self, text: str) -> Path:
        """The directory that a command runs in; the workspace if `text` is empty."""
        path = self._allowed_path(text, "used") if text.strip() else self.policy.workspace
        if not path.is_dir():
            what = "is not a directory" if path.exists() else "does not exist"
            raise StepError(f"the working directory {path} {what}")
        return path

    def in_scratch(self, path: Path) -> bool:
        """Whether `path`, with its links followed, lies in the run's scratch directory, or in a step's."""
        return Path(os.path.realpath(path)).is_relative_to(self._own_place)

    @property
    def _own_place(self) -> Path:
        """The run's scratch directory; a link in its place is not followed."""
        return _resolved(self._run_scratch.parent) / self._run_scratch.name

    def _allowed_path(self, text: str, verb: str) -> Path:
        if not text.strip():
            raise StepError("the path is empty")
        if "\0" in text:
            raise StepError(f"the path {text!r} contains a NUL character")
        path = Path(os.path.realpath(self.policy.workspace / self._expanded(text)))
        roots = [_resolved(root) for root in self.policy.roots]
        if any(path.is_relative_to(root) for root in roots):
            return path
        if path.is_relative_to(self._own_place):
            self.scratch_directory()
            return path
        raise Forbidden(
            f"{path} may not be {verb}: it is outside {' and '.join(str(root) for root in roots)}",
            hint="add its directory to WORKFLOWS_ALLOWED_PATHS (allowed_paths in workflows.toml) to allow it",
        )

    def _expanded(self, text: str) -> str:
        if text.startswith("~"):
            return os.path.expanduser(text)
        for name, directory in ((SCRATCH, self._scratch), (RUN_SCRATCH, self._run_scratch)):
            for spelling in (f"${name}", f"${{{name}}}"):
                if text == spelling or text.startswith(spelling + "/"):
                    return str(directory) + text[len(spelling) :]
        return text

    # Files

    def read(self, path: Path, *, most: int | None = None, limit_hint: str = "") -> bytes | None:
        """The content of a file of at most `most` bytes; None if there is no file."""
        self._check(READ_FILES)
        if most is None:
            most = self.limits.file_bytes
            limit_hint = f"raise {self.limits.setting('file_bytes')} to allow it"
        return files.read_file(path, most, limit_hint)

    def write(
        self,
        path: Path,
        data: bytes,
        *,
        permissions: int | None = None,
        overwrite: bool = True,
        create_parents: bool = True,
    ) -> bool:
        """Write a file, whole or not at all; return whether it is new."""
        self._check(WRITE_FILES)
        if create_parents and not path.parent.is_dir():
            files.make_directory(path.parent)
        return files.write_file(path, data, permissions=permissions, overwrite=overwrite)

    @contextmanager
    def only_writer_of(self, path: Path, *, create_parents: bool = True) -> Iterator[None]:
        """Lock a file between reading and writing it, against other steps in any process."""
        if create_parents and not path.parent.is_dir():
            files.make_directory(path.parent)
        with files.only_writer_in(path.parent):
            yield

    # Commands

    def check_command(self) -> None:
        self._check(RUN_COMMANDS)

    def _check(self, capability: str) -> None:
        """Raise Forbidden if the settings deny a capability, declared by the step or not."""
        denial = self.policy.denial(capability)
        if denial is not None:
            raise Forbidden(f"{_DENIED[capability]} switched off: {denial.setting}", hint=denial.remedy)

    def command_environment(self, added: Mapping[str, str]) -> dict[str, str]:
        """The server's variables without its settings, then `added`, then SCRATCH and RUN_SCRATCH."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(INTERNAL)}
        for name, value in added.items():
            if not name or "=" in name or "\0" in name:
                raise StepError(f"{name!r} cannot be the name of an environment variable")
            if "\0" in value:
                raise StepError(f"the environment variable {name} contains a NUL character")
            environment[name] = value
        environment[SCRATCH] = str(self.scratch_directory())
        environment[RUN_SCRATCH] = str(self._run_scratch)
        return environment

    async def run_command(
        self,
        arguments: Sequence[str],
        *,
        directory: Path,
        environment: Mapping[str, str],
        key: str,
        capture: bool = True,
        truncate: bool = False,
        stdin: bytes = b"",
    ) -> Finished:
        """Run a command to its end. `key` marks its processes; cancelling kills all of them.

        Raises StepError if it prints more than the limit, unless `truncate` keeps the beginning.
        """
        self.check_command()
        if self._may_start is not None:
            await self._may_start()
        return await run_process(
            arguments,
            directory=directory,
            environment=environment,
            key=key,
            capture=capture,
            limits=self.limits,
            trim=self._secrets,
            truncate=truncate,
            on_output=self._on_output,
            stdin=stdin,
        )

    async def watching_files(
        self, directory: Path, running: Awaitable[Finished]
    ) -> tuple[Finished, list[str]]:
        """Run a command, and return which files below a directory it has changed."""
        before = await asyncio.to_thread(files.fingerprints, directory)
        finished = await running
        after = await asyncio.to_thread(files.fingerprints, directory)
        return finished, files.changed_files(before, after)

    # Tools of other servers

    async def call_tool(self, tool: str, arguments: dict[str, Value]) -> ToolResult:
        """Call a tool of an MCP server from the settings or the workspace."""
        if self._tools is None:
            raise StepError(f"the tool '{tool}' cannot be called: this engine does not call tools")
        if self._may_start is not None:
            await self._may_start()
        workspace = self.policy.workspace
        return await self._tools.call(tool, arguments, workspace=workspace, denied=self.policy.denial)

    # Memory beyond the run, which has marks instead of secrets

    async def remember(self, key: str, value: Value) -> None:
        """Store a value under a key; null deletes it."""
        self._check(MODIFY_STATE)
        if self._may_start is not None:
            await self._may_start()
        await self._memory_or_refuse().remember(self._secrets.redact(key), self._secrets.redact(value))

    async def recall(self, key: str) -> Value:
        """The value under a key; null if there is none."""
        return self._secrets.redact(await self._memory_or_refuse().recall(self._secrets.redact(key)))

    async def remembered(self, prefix: str = "") -> list[str]:
        """The keys that start with `prefix`."""
        return await self._memory_or_refuse().remembered(prefix)

    def _memory_or_refuse(self) -> Memory:
        if self._memory is None:
            raise StepError("this engine has no memory")
        return self._memory


@lru_cache(maxsize=256)
def _resolved(path: Path) -> Path:
    return Path(os.path.realpath(path))
