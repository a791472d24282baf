"""The runs that changed last. Of one that has ended, the server itself knows what is listed; one that has not
is asked. The list of the server lags behind a little, so that what was just started here is added."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from typing import Any

from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus

from workflows_mcp.engines.base import RunSummary
from workflows_mcp.engines.temporal.looks import Looks
from workflows_mcp.engines.temporal.wire import RUN
from workflows_mcp.errors import WorkflowsError
from workflows_mcp.machine.state import RunState

_MOST_OPEN = 200
"""How many runs that have not ended are asked when they last changed."""
_MOST_OF_ALL = 5000
"""How many are looked through for those of one workflow."""
_AT_ONCE = 16
_LISTED_AFTER_SECONDS = 10.0
_ENDED_OUTSIDE = {
    WorkflowExecutionStatus.TERMINATED: "cancelled",
    WorkflowExecutionStatus.CANCELED: "cancelled",
    WorkflowExecutionStatus.FAILED: "failed",
    WorkflowExecutionStatus.TIMED_OUT: "failed",
}
"""What a run has come to that did not end by itself."""


class Listing:
    def __init__(self, client: Client, task_queue: str, looks: Looks) -> None:
        self._client = client
        self._task_queue = task_queue
        self._looks = looks
        self._begun: OrderedDict[str, float] = OrderedDict()
        """Runs that were begun here a moment ago."""

    def begun(self, run_id: str) -> None:
        self._begun[run_id] = time.monotonic()
        self._drop_listed()

    async def recent(self, limit: int, workflow: str | None) -> list[RunSummary]:
        opened = await self._open(_MOST_OPEN, workflow)
        found = {run.run_id: run async for run in self._closed(limit, workflow)} | opened
        return sorted(found.values(), key=lambda run: run.changed_at, reverse=True)[:limit]

    async def unfinished(self) -> list[RunSummary]:
        found = (await self._open(_MOST_OF_ALL, None)).values()
        open_ones = [run for run in found if run.status in ("running", "idle")]
        return sorted(open_ones, key=lambda run: run.changed_at, reverse=True)

    async def _open(self, limit: int, workflow: str | None) -> dict[str, RunSummary]:
        """Those that the server calls running, and those that were begun here a moment ago."""
        found: dict[str, RunSummary] = {}
        open_ones = [it async for it in self._named("ExecutionStatus = 'Running'", limit, workflow)]
        self._drop_listed()
        asked = dict.fromkeys([*(it.id for it, _ in open_ones), *self._begun])
        room = asyncio.Semaphore(_AT_ONCE)
        for run in await asyncio.gather(*(self._asked(run_id, room) for run_id in asked)):
            if run is not None and (workflow is None or run.workflow == workflow):
                found[run.run_id] = run
        return found

    async def _named(
        self, which: str, limit: int, workflow: str | None
    ) -> AsyncIterator[tuple[WorkflowExecution, Mapping[str, Any]]]:
        """Those of one workflow, or all, with what was noted of each: the latest first."""
        task_queue = self._task_queue.replace("'", "''")
        query = f"WorkflowType = '{RUN}' AND TaskQueue = '{task_queue}' AND {which}"
        most = _MOST_OF_ALL if workflow is not None else limit
        count = 0
        async for execution in self._client.list_workflows(query, limit=most):
            if count >= limit:
                return
            memo = await execution.memo()
            if workflow is None or memo.get("workflow") == workflow:
                count += 1
                yield execution, memo

    async def _closed(self, limit: int, workflow: str | None) -> AsyncIterator[RunSummary]:
        which = "ExecutionStatus != 'Running' AND ExecutionStatus != 'ContinuedAsNew'"
        async for execution, memo in self._named(which, limit, workflow):
            status = memo.get("status") or _ENDED_OUTSIDE.get(execution.status, "failed")  # type: ignore[arg-type]
            closed = execution.close_time or execution.start_time
            yield RunSummary(
                execution.id,
                str(memo.get("workflow", "")),
                str(status),
                float(memo.get("started_at", execution.start_time.timestamp())),
                float(memo.get("changed_at", closed.timestamp())),
                str(memo.get("forked_from", "")),
            )

    async def _asked(self, run_id: str, room: asyncio.Semaphore) -> RunSummary | None:
        async with room:
            try:
                state = (await self._looks.now(run_id)).machine.state
            except WorkflowsError as error:
                if error.code in ("no_temporal", "no_worker"):
                    raise
                return None  # gone meanwhile, or it cannot be read, which whoever asks for it is told
        origin = state.forked_from.partition("@")[0]
        status = _status_of(state)
        return RunSummary(run_id, state.workflow, status, state.started_at, state.changed_at, origin)

    def _drop_listed(self) -> None:
        now = time.monotonic()
        while self._begun and now - next(iter(self._begun.values())) > _LISTED_AFTER_SECONDS:
            self._begun.popitem(last=False)


def _status_of(state: RunState) -> str:
    if state.status != "running":
        return state.status
    return "idle" if state.idle else "running"
