"""Reads workflows and runs without changing them.

- `Inspector`: what resources, notices and the command line show.
- `RunList`: the list of runs.
- `Debugger`: the toolset `debug`.

Nothing here counts as a heartbeat of an agent. Expressions are evaluated outside the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from workflows_mcp.answers import (
    Cut,
    RunDetails,
    all_tasks,
    check_field,
    cut,
    debug_answer,
    debug_view_of,
    details_of,
    drawn_plan,
    drawn_run,
    explained,
    journal_view,
    replayed,
    run_of,
    shortened,
    target_of,
    traces_answer,
    within,
)
from workflows_mcp.engines import Engine, RunSummary
from workflows_mcp.errors import ExpressionError, InvalidInputs, RequestError, WorkflowsError
from workflows_mcp.library import Catalog, Entry
from workflows_mcp.limits import Limits
from workflows_mcp.machine import iso, transform_of
from workflows_mcp.plan import LANGUAGES, Bundle, Computed, check_inputs
from workflows_mcp.runs.agent_protocol import AgentProtocol
from workflows_mcp.steps import StepRegistry
from workflows_mcp.values import Value

_WAIT_SECONDS = 30.0

"""How long one wait for a change lasts; then the next one starts."""

_SCAN_SECONDS = 1.0


class Inspector:
    def __init__(self, engine: Engine, agents: AgentProtocol, catalog: Catalog, limits: Limits) -> None:
        self._engine = engine
        self._agents = agents
        self._catalog = catalog
        self._limits = limits
        self._scanned_at = float("-inf")
        self._entries: dict[str, Entry] = {}

    # Workflows

    def names(self) -> list[str]:
        """Return the names of all workflows, valid or not."""
        return sorted(self._catalog.entries())

    def text_of(self, workflow: str) -> str:
        """Return the text of a definition, even an invalid one."""
        return self._catalog.text_of(workflow)

    def file_of(self, workflow: str) -> str:
        """Return the file of a workflow. Raises UnknownWorkflow."""
        return str(self._catalog.find(workflow).path)

    def stamp_of(self, workflow: str) -> str:
        """Return a stamp that changes with the file of a workflow. Raises UnknownWorkflow."""
        self._catalog.find(workflow)
        return self._stamp(workflow)

    async def rewritten(self, workflow: str, stamp: str) -> str:
        """Wait until the stamp of a workflow changes, and return it; empty if the workflow is gone."""
        while True:
            found = self._stamp(workflow)
            if found != stamp:
                return found
            await asyncio.sleep(_SCAN_SECONDS)

    def _stamp(self, workflow: str) -> str:
        now = time.monotonic()
        if now - self._scanned_at > _SCAN_SECONDS / 2:  # one scan for all watchers
            self._scanned_at, self._entries = now, self._catalog.entries()
        entry = self._entries.get(workflow)
        try:
            status = entry.path.stat() if entry is not None else None
        except OSError:
            status = None
        if entry is None or status is None:
            return ""
        parts = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
        return f"{entry.path} {parts}"

    def drawing_of(self, workflow: str) -> str:
        return drawn_plan(self._catalog.definition(workflow).plan)

    # Runs, and tasks of runs

    def run_of(self, workflow_id: str) -> str:
        """Return the id of the run that an id belongs to."""
        return run_of(workflow_id)

    async def tasks(self, workflow_id: str) -> list[str]:
        """Return the ids of its current tasks."""
        run_id = run_of(workflow_id)
        known = [target.id for target in all_tasks((await self._engine.view(run_id)).state)]
        return [it for it in known if workflow_id == run_id or it.startswith(f"{workflow_id}.")]

    async def graph(self, workflow_id: str) -> str:
        view = await self._agents.view(workflow_id)
        return drawn_run(view)

    async def journal(self, workflow_id: str, *, offset: int = 0, limit: int | None = None) -> dict[str, Any]:
        _check_slice(offset, limit)
        target = target_of(await self._engine.view(run_of(workflow_id)), workflow_id)
        _, events = await self._engine.journal(target.run_id)
        return journal_view(target, events, self._limits, offset=offset, limit=limit)

    async def value(self, workflow_id: str, path: str, *, offset: int = 0, limit: int | None = None) -> Value:
        """Return the value at a path; of a text, a list or an object, the requested slice."""
        _check_slice(offset, limit)
        value = await self._agents.value(workflow_id, path)
        end = None if limit is None else offset + limit
        if isinstance(value, dict):
            return dict(list(value.items())[offset:end])
        return value[offset:end] if isinstance(value, str | list) else value

    async def details(self, run_id: str) -> RunDetails:
        """Return every block of a run, and how it went as a whole."""
        return details_of(await self._agents.view(run_id))

    async def origin_of(self, run_id: str) -> str:
        """Return the run that this one was forked from, or an empty string."""
        return (await self._engine.view(run_id)).state.forked_from.partition("@")[0]

    async def position(self, workflow_id: str) -> int:
        """Return how many events the run has; see `moved`."""
        return (await self._engine.view(run_of(workflow_id))).state.events

    async def moved(self, workflow_id: str, position: int) -> int | None:
        """Wait until the run is beyond a position, and return the new one; None if it has ended there."""
        while True:
            machine = await self._engine.wait(
                run_of(workflow_id),
                lambda state: state.events > position or state.status != "running",
                _WAIT_SECONDS,
            )
            state = machine.state
            if state.events > position:
                return state.events
            if state.status != "running":
                return None

    async def times(self, run_id: str) -> tuple[str, str]:
        """Return when a run started, and when it changed last."""
        state = (await self._engine.view(run_of(run_id))).state
        return iso(state.started_at) or "", iso(state.changed_at) or ""


def _check_slice(offset: int, limit: int | None) -> None:
    if offset < 0 or (limit is not None and limit < 1):
        raise RequestError("offset must be 0 or more, and limit 1 or more")


# Debugging

Answer = dict[str, Any]

_PARTS = ("state", "raw", "computed")
"""Parts of a state whose fields have short names; later parts take precedence."""


class Debugger:
    def __init__(
        self,
        engine: Engine,
        agents: AgentProtocol,
        registry: StepRegistry,
        limits: Limits,
        *,
        bundle_of: Callable[[str], Bundle],
    ) -> None:
        self._engine = engine
        self._agents = agents
        self._registry = registry
        self._limits = limits
        self._bundle_of = bundle_of

    async def trace_transformations(
        self, workflow_id: str, field: str | None, *, include_timing: bool = False
    ) -> Answer:
        """Return the last computations of a run: time, trigger, input and output of each."""
        run_id = run_of(workflow_id)
        only = check_field(await self._engine.view(run_id), field) if field else None
        bundle, events = await self._engine.journal(run_id)
        traced = await asyncio.to_thread(replayed, bundle, events, every_field=True, only=only)
        return traces_answer(traced, self._limits, main=bundle.main, include_timing=include_timing)

    async def debug_info(self, workflow_id: str) -> Answer:
        """Return the current step of a run, its step history, the size of its state, and timings."""
        run_id = run_of(workflow_id)
        bundle, events = await self._engine.journal(run_id)
        traced = await asyncio.to_thread(replayed, bundle, events)
        debug_view = debug_view_of(await self._agents.view(run_id))
        return await asyncio.to_thread(debug_answer, debug_view, traced, self._registry, self._limits)

    async def test_transformation(
        self, transform: str, given: Value, context: dict[str, Value] | None, validate: str
    ) -> Answer:
        """Evaluate a transform on an input, without side effects."""
        return await asyncio.to_thread(self._tested, transform, given, context or {}, validate)

    def _tested(self, transform: str, given: Value, context: dict[str, Value], validate: str) -> Answer:
        names: dict[str, Any] = {}
        for target in _PARTS:
            fields = context.get(target)
            names |= fields if isinstance(fields, dict) else {}
        names |= {**context, "input": given, "__limits__": self._limits}
        spec = Computed(transform=transform, validate=validate)
        begun = time.perf_counter()
        answer: Answer = {"success": True}
        try:
            output = transform_of(spec, LANGUAGES["javascript"]).evaluate(names)
            answer["output"] = output
        except ExpressionError as error:
            answer = {"success": False, "error": str(error)}
        answer["execution_time_ms"] = round((time.perf_counter() - begun) * 1000, 3)
        return within(self._limits, lambda how: _cut(answer, how))

    async def explain_plan(self, workflow: str, inputs: dict[str, Value] | None) -> Answer:
        """Explain what a workflow will do with these inputs. Raises InvalidInputs if they do not fit."""
        bundle = self._bundle_of(workflow)
        complete: dict[str, Value] | None
        try:
            complete = check_inputs(bundle.plans[bundle.main], inputs or {})
        except InvalidInputs:
            if inputs:
                raise
            complete = None
        return await asyncio.to_thread(explained, bundle, self._registry, self._limits, complete)


def _cut(answer: Answer, how: Cut) -> Answer:
    return {name: cut(it, (), how, lambda *_: "nothing: it was not stored") for name, it in answer.items()}


# The list of runs: unfinished ones first, each with what it waits for, then those that ended last
#
#     {"runs": [{"workflow_id": "wf_2", "workflow": "deploy", "status": "pending_action",
#                "question": "Release 1.4?", "why": "waiting for your answer to 'approve' since 12:04:31Z",
#                "next": "get_next_step(workflow_id='wf_2')",
#                "started_at": …, "changed_at": …, "forked_from": "wf_1"},
#               {"workflow_id": "wf_1", "workflow": "deploy", "status": "failed", "continued_as": "wf_2", …}],
#      "more": true}
#
# `more` means that older ended runs are left out. An unfinished run is never left out. A pending action is
# not in the list, so `next` reads it.

_WITH_DETAILS = 50
"""How many unfinished runs are listed with the reason why they wait."""
_QUESTION_CHARS = 200
_WHY_CHARS = 300
_FATAL = ("no_temporal", "no_worker")


class RunList:
    def __init__(self, engine: Engine, agents: AgentProtocol) -> None:
        self._engine = engine
        self._agents = agents

    async def runs(self, limit: int) -> dict[str, Value]:
        """List every unfinished run, and at most `limit` ended ones."""
        unfinished = await self._engine.unfinished()
        known = {run.run_id for run in unfinished}
        recent = await self._engine.recent(len(known) + limit + 1)
        ended = [run for run in recent if run.run_id not in known and run.status not in ("running", "idle")]
        continued = {
            run.forked_from: run.run_id for run in reversed([*unfinished, *ended]) if run.forked_from
        }
        listed: list[Value] = [
            await self._unfinished(run, details=number < _WITH_DETAILS)
            for number, run in enumerate(unfinished)
        ]
        for run in ended[:limit]:
            entry = _entry(run, run.status)
            if run.status != "completed" and run.run_id in continued:
                entry["continued_as"] = continued[run.run_id]
            listed.append(entry)
        return {"runs": listed, **({"more": True} if len(ended) > limit else {})}

    async def _unfinished(self, run: RunSummary, *, details: bool) -> dict[str, Value]:
        try:
            found = await self._agents.answer(run.run_id)
        except WorkflowsError as error:
            if error.code in _FATAL:
                raise
            return _entry(run, "waiting") | {"why": f"it cannot be read: {error.message}"}
        entry = _entry(run, found.status)
        if found.has_ended or not details:
            return entry
        given = found.actions[0].parameters if found.actions else {}
        for name in given.keys() & {"prompt", "message"}:
            entry["question"] = shortened(" ".join(str(given[name]).split()), _QUESTION_CHARS)
        return entry | {
            "why": shortened(found.reason, _WHY_CHARS),
            "next": f"get_next_step(workflow_id='{run.run_id}')" if found.actions else found.next,
        }


def _entry(run: RunSummary, status: str) -> dict[str, Value]:
    entry: dict[str, Value] = {
        "workflow_id": run.run_id,
        "workflow": run.workflow,
        "status": status,
        "started_at": iso(run.started_at),
        "changed_at": iso(run.changed_at),
    }
    if run.forked_from:
        entry["forked_from"] = run.forked_from
    if run.workspace:
        entry["workspace"] = run.workspace
    return entry
