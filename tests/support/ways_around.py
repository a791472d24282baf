"""A run that an agent would like to leave, fake or pass, and everything that it can try.

scene = Scene(directory)
scene.prepare("gate")                          # a run whose gate waits; "step": whose step is asked
scene.agent(work)                              # work(call, client), with every tool of every toolset
scene.terminal("answer", scene.run, "approve") # a command in a shell
scene.has_passed                               # whether what the gate guards has happened
scene.events(Decided)                          # what the journal shows
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import apsw
from mcp import Client
from mcp.shared.exceptions import MCPError

from support import forked
from support.screen import Screen
from workflows_mcp.answers import Report
from workflows_mcp.engines.clock import SystemClock
from workflows_mcp.library.catalog import Catalog
from workflows_mcp.machine import Event, Machine, Refused, RunState, replayed
from workflows_mcp.mcp_server.server import build_server
from workflows_mcp.runs import Service
from workflows_mcp.runs.callers import AGENT_VARIABLES
from workflows_mcp.settings.model import Settings, load_settings
from workflows_mcp.steps.registry import default_registry

RELEASE = """\
name: release
inputs: {version: {type: string, default: "1.2"}}
default_state: {raw: {text: "", approval: null, item: ""}}
steps:
  - id: write
    type: delegate
    instructions: "Write it"
    result: {type: object, required: [text], properties: {text: {type: string}, note: {type: string}}}
    attempts: 3
    verify: ["result.text.length > 3", {command: "test -e checked", message: "make it checked"}]
    state_update: {path: raw.text, value: "{{ result.text }}"}
  - {id: approve, type: gate, message: "Publish {{ text }}?", state_update: {path: raw.approval, value: "{{ result }}"}}
  - {id: publish, type: shell_command, command: "printf '%s' {{ text }} > published"}
  - {id: end, type: delegate, instructions: "Report"}
"""
UNGATED = RELEASE.replace(
    '  - {id: approve, type: gate, message: "Publish {{ text }}?", state_update: {path: raw.approval, value: "{{ result }}"}}\n',
    "",
)
UNCHECKED = RELEASE.replace(
    '    verify: ["result.text.length > 3", {command: "test -e checked", message: "make it checked"}]\n', ""
).replace("    attempts: 3\n", "")
TASKS = """\
name: tasks
initial_state: {}
steps:
  - {id: each, type: foreach, needs_state: [], items: [a, b], agent: "@task", task: one, output_to: found}
  - {id: review, type: delegate, needs_state: [found], instructions: "Review"}
  - {id: publish, type: shell, run_on: server, needs_state: [], command: "touch published"}
tasks:
  one:
    inputs: {name: {type: string, required: true}}
    steps:
      - {id: work, type: delegate, needs_state: [], instructions: "Do {{ inputs.name }}", output_to: done}
      - {id: approve, type: gate, needs_state: [done], message: "Keep {{ state.done.response }}?"}
      - {id: back, type: return, needs_state: [done], value: "{{ state.done.response }}"}
"""
BUDGET = """\
name: budget
budget: {agent_steps: 1}
default_state: {raw: {n: 0}}
steps:
  - {id: first, type: delegate, instructions: "First"}
  - {id: second, type: delegate, instructions: "Second"}
  - {id: publish, type: shell_command, command: "touch published"}
"""
AGENTS = AGENT_VARIABLES
CHECKED = """\
name: checked
default_state: {raw: {}}
steps:
  - {id: write, type: delegate, instructions: "Write it", attempts: 1, verify: [{command: "test -e checked"}]}
  - {id: publish, type: shell_command, command: "touch published"}
"""
GOOD = {"text": "good text"}
Call = Callable[..., Awaitable[dict[str, Any]]]
Work = Callable[[Call, Client], Awaitable[None]]


class Scene:
    def __init__(self, directory: Path) -> None:
        self.workspace = directory / "workspace"
        self.home = directory / "home"
        (self.workspace / ".workflows").mkdir(parents=True)
        for name, text in (("release", RELEASE), ("tasks", TASKS), ("budget", BUDGET)):
            self.file(name).write_text(text)
        keep = {
            name: it
            for name, it in os.environ.items()
            if not name.startswith("WORKFLOWS_") and name not in AGENT_VARIABLES
        }
        self.environment = {**keep, "WORKFLOWS_HOME": str(self.home), "HOME": str(directory), "NO_COLOR": "1"}
        self.command = [sys.executable, "-m", "workflows_mcp"]
        self.run = ""
        self.said: list[str] = []
        """What the agent was told, by tools and commands."""

    def file(self, name: str) -> Path:
        return self.workspace / ".workflows" / f"{name}.yaml"

    def prepare(self, at: str) -> None:
        """Start a run: at its `gate`, at its first `step`, in `tasks`, or where a `budget` is used up.

        `elsewhere`: the way starts one."""
        if at == "elsewhere":
            return
        workflow = {"tasks": "tasks", "budget": "budget"}.get(at, "release")

        async def begin(call: Call, _: Client) -> None:
            self.run = (await call("start_workflow", workflow=workflow))["workflow_id"]
            if at == "gate":
                (self.workspace / "checked").touch()
                await call("submit_result", workflow_id=self.run, step_id="write", result=GOOD)
            elif at == "budget":
                await call("submit_result", workflow_id=self.run, step_id="first", result="done")
            elif at == "tasks":
                await call("submit_result", workflow_id=f"{self.run}.each.0", step_id="work", result="A")

        self.agent(begin, toolsets="core")
        self.said.clear()

    def agent(
        self,
        work: Work,
        *,
        toolsets: str = "all",
        user: Any = None,
        mode: str = "auto",
        more: Mapping[str, str] | None = None,
        **client: Any,
    ) -> None:
        """Let an agent work with a server; a refusal becomes `{"refused": text}`."""
        given = {"WORKFLOWS_HOME": str(self.home), "WORKFLOWS_TOOLSETS": toolsets, **(more or {})}
        server = build_server(load_settings(given, workspace=self.workspace))

        async def go() -> None:
            async with Client(server, mode=mode, elicitation_callback=user, **client) as connected:
                await work(self.call_of(connected), connected)

        asyncio.run(asyncio.wait_for(go(), 60))

    def call_of(self, client: Client) -> Call:
        async def call(tool: str, **arguments: Any) -> dict[str, Any]:
            try:
                result = await client.call_tool(tool, arguments)
            except MCPError as error:
                self.said.append(str(error))
                return {"refused": str(error)}
            text = "".join(getattr(block, "text", "") for block in result.content)
            self.said.append(text)
            if result.is_error:
                return {"refused": text}
            return dict(result.structured_content or {})

        return call

    def terminal(self, *arguments: str, stdin: str = "", **environment: str) -> int:
        """Run the command in a shell without a terminal; returns its exit code."""
        done = subprocess.run(
            [*forked.command(), *arguments],
            cwd=self.workspace,
            env={**self.environment, **environment},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        self.said += [done.stdout, done.stderr]
        return done.returncode

    def screen(self, *arguments: str, typed: str = "", **environment: str) -> tuple[int, str]:
        """Run the command on a terminal of its own, and type something."""
        before = self.environment
        self.environment = {**before, **environment}
        try:
            screen = Screen(self, *arguments)
        finally:
            self.environment = before
        screen.type(typed)
        screen.read_to_end()
        code, out = screen.end()
        self.said += [screen.shown, out]
        return code, screen.shown

    # What has come of it

    @property
    def has_passed(self) -> bool:
        return (self.workspace / "published").exists()

    @property
    def told(self) -> str:
        return "\n".join(self.said)

    def journal(self, run_id: str = "") -> list[Event]:
        return self._read(run_id or self.run)[1]

    def events(self, *kinds: type[Any], run_id: str = "") -> list[Any]:
        return [event for event in self.journal(run_id) if isinstance(event, kinds)]

    def refusals(self) -> list[Refused]:
        return self.events(Refused)

    def state(self, run_id: str = "") -> RunState:
        machine, events = self._read(run_id or self.run)
        assert machine.state == replayed(machine.bundle, events).state
        return machine.state

    def report(self, run_id: str = "") -> Report:
        """What `workflows-mcp report` shows."""

        async def read() -> Report:
            async with Service.open(self._settings(), recovers=False) as service:
                return await service.report(run_id or self.run)

        return asyncio.run(read())

    def edit(self, change: str, *values: Any) -> None:
        """Change the file of runs, as any program of the user can."""
        connection = apsw.Connection(str(self.home / "runs.db"))
        connection.execute(change, values)
        connection.close()

    def runs(self) -> list[str]:
        """The ids of all runs, the newest first."""

        async def read() -> list[str]:
            async with self._engine() as engine:
                return [run.run_id for run in await engine.recent(50)]

        return asyncio.run(read())

    def _read(self, run_id: str) -> tuple[Machine, list[Event]]:
        async def read() -> tuple[Machine, list[Event]]:
            async with self._engine() as engine:
                return await engine.view(run_id), list((await engine.journal(run_id))[1])

        return asyncio.run(read())

    def _settings(self) -> Settings:
        return load_settings({"WORKFLOWS_HOME": str(self.home)}, workspace=self.workspace)

    def _engine(self) -> Any:
        from workflows_mcp.engines import Executor
        from workflows_mcp.engines.sqlite.engine import SqliteEngine
        from workflows_mcp.policy import policy_of

        settings = self._settings()
        registry, clock = default_registry(), SystemClock()
        executor = Executor(registry, policy_of(settings), settings.scratch, clock)
        find = Catalog.of(settings, registry).bundle
        return _Opened(SqliteEngine(settings.store, executor, find, clock=clock, recovers=False))

    def person(self, work: Callable[[Service], Awaitable[Any]]) -> Any:
        """Do something with the service as a person's program does."""

        async def go() -> Any:
            async with Service.open(self._settings()) as service:
                return await work(service)

        return asyncio.run(asyncio.wait_for(go(), 40))


class _Opened:
    def __init__(self, engine: Any) -> None:
        self._engine = engine

    async def __aenter__(self) -> Any:
        await self._engine.open()
        return self._engine

    async def __aexit__(self, *_: object) -> None:
        await self._engine.close()
