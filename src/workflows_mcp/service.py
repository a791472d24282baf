"""The one API: what MCP, the terminal and a page in a browser can do, they all do through this.

The main path of the product: `start` finds the definition and has it read (`dialects`) into a plan with
all that it calls (`library`), checks the inputs (`plan`), hands both to an engine (`engines`), which feeds
the interpreter (`machine`), and words the answer (`agent`).

    async with Service.open(load_settings()) as service:
        answer = await service.start(workflow="deploy", inputs={"environment": "staging"})
        while "action" in answer:
            answer = await service.submit(answer["workflow_id"], {"response": "yes"})
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from workflows_mcp.agent.actions import already_answered, check_result, pending_actions
from workflows_mcp.agent.info import workflow_info
from workflows_mcp.agent.views import run_answer, run_state
from workflows_mcp.agent.walk import blocks_of
from workflows_mcp.dialects.yaml_source import locate
from workflows_mcp.engines.base import Engine
from workflows_mcp.errors import DefinitionError, NotExpected, Place, Problem, RequestError
from workflows_mcp.library.catalog import Catalog, WorkflowSummary
from workflows_mcp.machine.events import Answered, CancelRequested, Event
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.scope import iso
from workflows_mcp.machine.state import TERMINAL, Fault, RunState
from workflows_mcp.plan.inputs import check_inputs
from workflows_mcp.plan.model import Bundle
from workflows_mcp.settings import Settings
from workflows_mcp.steps.registry import StepRegistry, default_registry
from workflows_mcp.values import Value, to_json

Answer = dict[str, Any]
DEFAULT_WAIT = 30.0


@dataclass(frozen=True, slots=True)
class Progress:
    """A block that has started or ended."""

    at: float
    address: str
    status: str
    outcome: str
    message: str | None
    seconds: float | None


class Service:
    def __init__(self, settings: Settings, engine: Engine, catalog: Catalog, registry: StepRegistry) -> None:
        self.settings = settings
        self._engine = engine
        self._catalog = catalog
        self._registry = registry

    @classmethod
    def open(cls, settings: Settings, *, registry: StepRegistry | None = None, adopt: bool = True) -> Service:
        """A service over the embedded engine. One that adopts goes on with what dead processes left."""
        from workflows_mcp.engines.clock import SystemClock
        from workflows_mcp.engines.executor import Executor
        from workflows_mcp.engines.sqlite.engine import SqliteEngine
        from workflows_mcp.policy.rules import policy_of

        registry = registry or default_registry()
        catalog = Catalog.of(settings, registry)
        clock = SystemClock()
        executor = Executor(registry, policy_of(settings), settings.scratch, clock)
        engine = SqliteEngine(settings.store, executor, catalog.bundle, clock=clock, adopt=adopt)
        return cls(settings, engine, catalog, registry)

    async def __aenter__(self) -> Self:
        await self._engine.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._engine.close()

    # Definitions

    def list_workflows(self, *, tags: Sequence[str] = (), query: str = "") -> list[WorkflowSummary]:
        return self._catalog.list(tags=tags, query=query)

    def workflow_info(self, workflow: str) -> dict[str, Any]:
        bundle = self._catalog.bundle(workflow)
        return workflow_info(bundle, self._registry, source=self._catalog.source_of(workflow))

    def file_info(self, file: str) -> dict[str, Any]:
        return workflow_info(self._catalog.bundle_of_file(Path(file)), self._registry, source=file)

    def validate(self, text: str, *, file: str = "<yaml>") -> list[Problem]:
        """All problems and warnings of a definition, with those of its calls; nothing when it is fine."""
        try:
            return self._catalog.check_text(text, file=file)
        except DefinitionError as error:
            return error.problems

    # Runs

    async def start(
        self,
        *,
        workflow: str | None = None,
        text: str | None = None,
        file: str | None = None,
        inputs: dict[str, Value] | None = None,
        request_id: str | None = None,
        wait_seconds: float = DEFAULT_WAIT,
    ) -> Answer:
        bundle = self._bundle(workflow, text, file)
        complete = check_inputs(bundle.plans[bundle.main], inputs or {})
        run_id = await self._engine.start(bundle, complete, request_id=request_id)
        return await self._answer(run_id, wait_seconds)

    async def submit(
        self, run_id: str, result: Any, *, step_id: str | None = None, wait_seconds: float = DEFAULT_WAIT
    ) -> Answer:
        """Answer what the run asks. The same answer twice is harmless; another one is refused with what
        is asked now."""

        def answered(machine: Machine, now: float) -> Event:
            address, taken = check_result(machine, self._registry, step_id, result)
            return Answered(now, address, taken.outputs, taken.ok, taken.message)

        try:
            await self._engine.send(run_id, answered)
        except NotExpected as refusal:
            machine = await self._engine.view(run_id)
            if not already_answered(machine, self._registry, step_id, result):
                raise self._with_current_action(refusal, machine) from None
        return await self._answer(run_id, wait_seconds)

    async def next_step(self, run_id: str, *, task_id: str | None = None) -> Answer:
        """What is asked now, again; harmless to repeat. A task is driven by its own id."""
        return await self._answer(task_id or run_id, 0.0)

    async def status(self, run_id: str, *, wait_seconds: float = 0.0) -> Answer:
        return await self._answer(run_id, wait_seconds)

    async def cancel(self, run_id: str, *, reason: str = "") -> Answer:
        """End a run and all that is under way in it. Cancelling twice is harmless."""
        try:
            await self._engine.send(run_id, lambda _, now: CancelRequested(now, reason))
        except NotExpected:
            machine = await self._engine.view(run_id)
            if machine.state.status != "cancelled":
                raise
        return await self._answer(run_id, 0.0)

    async def recent(self, *, limit: int = 20) -> list[dict[str, Value]]:
        runs = await self._engine.recent(limit)
        return [
            {
                "workflow_id": run.run_id,
                "workflow": run.workflow,
                "status": "pending_action" if run.status == "idle" else run.status,
                "started_at": iso(run.started_at),
                "changed_at": iso(run.changed_at),
            }
            for run in runs
        ]

    async def state(
        self, run_id: str, *, paths: Sequence[str] = (), offset: int = 0, limit: int | None = None
    ) -> dict[str, Any]:
        machine = await self._engine.view(run_id)
        limits = self.settings.limits
        return run_state(machine, self._registry, limits, paths=paths, offset=offset, limit=limit)

    async def watch(self, run_id: str) -> AsyncIterator[Progress]:
        """Every block as it starts and ends, until the run has ended or needs an answer."""
        seen: dict[str, str] = {}
        position = -1
        while True:
            machine = await self._engine.wait(run_id, _moved_beyond(position), 1.0)
            state = machine.state
            position = state.events
            for address, _, record in blocks_of(machine):
                if seen.get(address) == record.status:
                    continue
                seen[address] = record.status
                ended = record.completed_at if record.status in TERMINAL else None
                seconds = ended - record.started_at if ended and record.started_at else None
                at = ended or record.started_at or state.changed_at
                yield Progress(at, address, record.status, record.outcome, record.message, seconds)
            if _needs_attention(state):
                return

    # Inside

    def _bundle(self, workflow: str | None, text: str | None, file: str | None) -> Bundle:
        if workflow is not None and text is None and file is None:
            return self._catalog.bundle(workflow)
        if text is not None and workflow is None and file is None:
            return self._catalog.bundle_of_text(text)
        if file is not None and workflow is None and text is None:
            return self._catalog.bundle_of_file(Path(file))
        raise RequestError("say which workflow to start: exactly one of its name, its YAML or its file")

    async def _answer(self, run_id: str, wait_seconds: float) -> Answer:
        seconds = min(max(wait_seconds, 0.0), self.settings.limits.wait_seconds)
        machine = await self._engine.wait(run_id, _needs_attention, seconds)
        return run_answer(
            machine, self._registry, self.settings.limits, place=lambda fault: _place(machine, fault)
        )

    def _with_current_action(self, refusal: NotExpected, machine: Machine) -> NotExpected:
        actions = pending_actions(machine, self._registry)
        if not actions:
            return refusal
        asked = f"what is asked now: {to_json(actions[0])}"
        return NotExpected(refusal.message, hint=f"{refusal.hint}\n{asked}" if refusal.hint else asked)


def _needs_attention(state: RunState) -> bool:
    """Whether the run has ended or asks something of the agent."""
    return state.status != "running" or any(frame.kind == "agent" for frame in state.frames.values())


def _moved_beyond(position: int) -> Callable[[RunState], bool]:
    return lambda state: state.events > position or _needs_attention(state)


def _place(machine: Machine, fault: Fault) -> Place | None:
    source = machine.source_of(fault.workflow) if fault.workflow and fault.path else ""
    if not source:
        return None
    return locate(source, machine.plan_named(fault.workflow).file, fault.path, fault.offset)
