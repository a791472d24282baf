"""The scratch directories of runs, on this machine: they go with the runs that they belong to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from workflows_mcp.engines.executor import Executor

logger = logging.getLogger(__name__)

_ENDED_BY_ITSELF = (
    WorkflowExecutionStatus.COMPLETED,
    WorkflowExecutionStatus.FAILED,
    WorkflowExecutionStatus.CANCELED,
)
_GOING_ON = (WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.CONTINUED_AS_NEW)


class Scratch:
    def __init__(self, client: Client, executor: Executor) -> None:
        self._client = client
        self._executor = executor
        self._tasks: set[asyncio.Task[None]] = set()

    def leave(self, run_id: str, keep: bool) -> None:
        """A run has ended."""
        self._begin(asyncio.to_thread(self._executor.leave_scratch, run_id, keep=keep))

    def sweep(self) -> None:
        """Clear what was left of runs that the server has ended, and of those that ended by themselves and
        that nobody has tried again. Directories of runs that the server does not know are not touched: they
        may be another engine's."""
        self._begin(self._swept())

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _swept(self) -> None:
        for run_id in await asyncio.to_thread(self._executor.scratch_of_runs):
            try:
                described = await self._client.get_workflow_handle(run_id).describe()
            except RPCError:
                if self._executor.is_a_copy_cut_off(run_id):
                    await asyncio.to_thread(self._executor.clear_scratch, run_id)
                continue
            may_be_tried_again = described.status in _ENDED_BY_ITSELF
            if described.status in _GOING_ON:
                continue
            if not may_be_tried_again or self._executor.scratch_is_old(run_id):
                await asyncio.to_thread(self._executor.clear_scratch, run_id)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("what a run left behind could not be removed: %s", error)
