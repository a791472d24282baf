"""Gives steps access to files, commands, tools and memory; steps have no other access.

    world = World(policy, run_id, settings.scratch / run_id).for_step("build-1-14-9f86d081")
    path = world.path_for_writing("report.md")
    world.write(path, b"...")

A `World` belongs to a run; `for_step` makes one for each execution of a step. It allows paths inside the
workspace, the directories in the settings and the run's scratch directory, after resolving all symbolic
links. It runs commands if the settings allow commands.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from workflows_mcp.errors import Forbidden, StepError
from workflows_mcp.limits import Limits
from workflows_mcp.policy import files
from workflows_mcp.policy.mcp_client import ToolResult, ToolServers
from workflows_mcp.policy.processes import Finished, OnOutput, Trim, run_process
from workflows_mcp.policy.rules import MODIFY_STATE, READ_FILES, RUN_COMMANDS, WRITE_FILES, Policy
from workflows_mcp.values import Value

SCRATCH = "SCRATCH"
"""The variable that names the scratch directory of this execution of a step, in commands and at the beginning
of paths."""
RUN_SCRATCH = "RUN_SCRATCH"
"""The variable that names the scratch directory that all steps of the run share."""
STEPS_DIRECTORY = ".steps"
"""Where the directories of steps are, in the scratch directory of their run."""
INTERNAL = "WORKFLOWS_"
"""Our own settings: commands do not get them."""

MayStart = Callable[[], Awaitable[None]]
"""Asked at the last moment before a command is started; raises where it must not be started after all."""

_DENIED = {
    RUN_COMMANDS: "commands are",
    READ_FILES: "reading files is",
    WRITE_FILES: "writing files is",
    MODIFY_STATE: "changing the memory is",
}


class Memory(Protocol):
    """What is remembered beyond a run; an engine keeps it."""

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
        "_tools",
        "_trim",
        "policy",
        "run_id",
    )

    def __init__(
        self,
        policy: Policy,
        run_id: str,
        scratch: Path,
        may_start: MayStart | None = None,
        trim: Trim | None = None,
        *,
        tools: ToolServers | None = None,
        memory: Memory | None = None,
    ) -> None:
        self.policy = policy
        self.run_id = run_id
        self._run_scratch = self._scratch = scratch
        self._may_start = may_start
        self._trim = trim
        self._on_output: OnOutput | None = None
        self._tools = tools
        self._memory = memory

    def for_step(self, name: str, on_output: OnOutput | None = None) -> World:
        """The same world for one execution of a step. It begins with an empty directory of its own; without a
        `name` it shares that of the run. `on_output` is given what its commands print, as it comes."""
        world = copy(self)
        world._on_output = on_output
        if name:
            world._scratch = self._run_scratch / STEPS_DIRECTORY / name
            for directory in (self._run_scratch, self._run_scratch / STEPS_DIRECTORY):
                if directory.is_symlink():  # a command has put it there, in place of our directory
                    files.remove_directory(directory)
            if world._scratch.exists():  # of an execution that was cut off, or that a fork does again
                files.remove_directory(world._scratch)
        return world

    @property
    def limits(self) -> Limits:
        return self.policy.limits

    # Paths

    @property
    def scratch_path(self) -> Path:
        """Where the step's scratch directory is, or would be."""
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
        """Where the run's scratch directory is; a link that a command puts in its place is not followed."""
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
        """The content of a file, None if there is none; refused if it has more than `most` bytes."""
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
        """Puts a file there, whole or not at all; says whether it is new."""
        self._check(WRITE_FILES)
        if create_parents and not path.parent.is_dir():
            files.make_directory(path.parent)
        return files.write_file(path, data, permissions=permissions, overwrite=overwrite)

    @contextmanager
    def only_writer_of(self, path: Path, *, create_parents: bool = True) -> Iterator[None]:
        """Keeps other steps, of any process, from changing the file between reading and writing it."""
        if create_parents and not path.parent.is_dir():
            files.make_directory(path.parent)
        with files.only_writer_in(path.parent):
            yield

    # Commands

    def check_command(self) -> None:
        self._check(RUN_COMMANDS)

    def _check(self, capability: str) -> None:
        """For steps that do what they have not declared; what they declare is looked at before they run."""
        denial = self.policy.denial(capability)
        if denial is not None:
            raise Forbidden(f"{_DENIED[capability]} switched off: {denial.setting}", hint=denial.remedy)

    def command_environment(self, added: Mapping[str, str]) -> dict[str, str]:
        """The server's own variables without its settings, then `added`, then SCRATCH and RUN_SCRATCH."""
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
    ) -> Finished:
        """Runs a command to its end; cancelling kills everything that it has started. `key` marks it. Raises
        StepError where it prints more than is kept, unless only the beginning is wanted (`truncate`)."""
        self.check_command()
        if self._may_start is not None:
            await self._may_start()
        return await run_process(
            arguments,
            directory=directory,
            environment=environment,
            key=key,
            capture=capture,
            keep_bytes=self.limits.captured_bytes,
            setting=self.limits.setting("captured_bytes"),
            trim=self._trim,
            truncate=truncate,
            on_output=self._on_output,
        )

    # Tools of other servers

    async def call_tool(self, tool: str, arguments: dict[str, Value]) -> ToolResult:
        """Calls a tool of an MCP server that the settings or the workspace describe."""
        if self._tools is None:
            raise StepError(f"the tool '{tool}' cannot be called: this engine does not call tools")
        if self._may_start is not None:
            await self._may_start()
        workspace = self.policy.workspace
        return await self._tools.call(tool, arguments, workspace=workspace, denied=self.policy.denial)

    # What is remembered beyond the run

    async def remember(self, key: str, value: Value) -> None:
        """Keeps a value under a key; null forgets it."""
        self._check(MODIFY_STATE)
        if self._may_start is not None:
            await self._may_start()
        await self._memory_or_refuse().remember(key, value)

    async def recall(self, key: str) -> Value:
        """What is kept under a key; null if nothing is."""
        return await self._memory_or_refuse().recall(key)

    async def remembered(self, prefix: str = "") -> list[str]:
        """The keys that there are, those that begin so."""
        return await self._memory_or_refuse().remembered(prefix)

    def _memory_or_refuse(self) -> Memory:
        if self._memory is None:
            raise StepError("this engine has no memory")
        return self._memory


@lru_cache(maxsize=256)
def _resolved(path: Path) -> Path:
    return Path(os.path.realpath(path))
