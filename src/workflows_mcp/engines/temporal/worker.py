"""The worker of this process, and its activities: perform a step, and find a workflow that a call names.

A running step sends heartbeats to the server. If the server cancels it, it is stopped with all processes that
it has started. A worker that shuts down reports that, and another worker performs the step.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from workflows_mcp.engines.base import FindBundle
from workflows_mcp.engines.driver import found_plan
from workflows_mcp.engines.executor import Executor
from workflows_mcp.engines.temporal.blobs import BlobStore
from workflows_mcp.engines.temporal.notes import Notes
from workflows_mcp.engines.temporal.wire import (
    FIND,
    PERFORM,
    WORKER_GONE,
    decode_command,
    plan_task,
    step_task,
)
from workflows_mcp.engines.temporal.workflow import Run
from workflows_mcp.engines.values import LargeValues, encode
from workflows_mcp.errors import LeaseLost, WorkflowsError
from workflows_mcp.machine import RunStep, StepDone, StepFailed

logger = logging.getLogger(__name__)

_HEARTBEAT_SECONDS = 0.8
_STALLED_SECONDS = 5.0
"""After so long without a heartbeat the server may have given the step to another worker."""
_STOP_SECONDS = 30.0
_STOPPED = "it was ended"
_LONGEST_PAUSE_SECONDS = 60.0


class Activities:
    def __init__(self, executor: Executor, store: BlobStore, find_bundle: FindBundle) -> None:
        self._executor = executor
        self._store = store
        self._find_bundle = find_bundle

    def all(self) -> list[Callable[..., Any]]:
        return [self.perform, self.find]

    @activity.defn(name=PERFORM)
    async def perform(self, body: bytes) -> bytes:
        """Perform a step and return its event; the worker may shut down at any moment of it."""
        try:
            return await self._performed(body)
        except asyncio.CancelledError:
            if _is_shutdown():
                raise _worker_gone("the worker shuts down") from None
            raise

    async def _performed(self, body: bytes) -> bytes:
        heartbeats = _Heartbeats()
        task = step_task(self._store.unpacked(body))
        large = LargeValues(task.run_id, self._executor.limits.inline_bytes, self._store.get)
        command = decode_command(task.command, large)
        self._executor.secrets.learn(task.secrets)
        if task.interrupted:
            await self._executor.end_leftovers(task.run_id, [command.key])
        event = await self._step_event(task.run_id, task.workspace, command, heartbeats)
        try:
            encoded = large.encode(event)
        except WorkflowsError as error:
            message = f"its outputs are refused: {error}"
            encoded = encode(StepFailed(event.at, command.key, error.code, message))
        for blob in large.take_new():
            await asyncio.to_thread(self._store.put, blob.hash, blob.body)
        return self._store.packed(encoded)

    async def _step_event(
        self, run_id: str, workspace: str, command: RunStep, heartbeats: _Heartbeats
    ) -> StepDone | StepFailed:
        runner = self._executor.runner_for(run_id, workspace, heartbeats.confirm)
        ended: asyncio.Future[StepDone | StepFailed] = asyncio.get_running_loop().create_future()
        runner.perform(command, lambda event: None if ended.done() else ended.set_result(event))
        try:
            while not ended.done():
                await asyncio.wait([ended], timeout=_HEARTBEAT_SECONDS)
                if not ended.done():
                    heartbeats.send()
        except asyncio.CancelledError:
            runner.stop(command.key, _STOPPED)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(asyncio.wait([ended], timeout=_STOP_SECONDS))
            if _is_shutdown() or not ended.done():
                raise
        if heartbeats.is_too_late:
            raise _worker_gone("the worker was suspended for a while")
        return ended.result()

    @activity.defn(name=FIND)
    async def find(self, body: bytes) -> bytes:
        task = plan_task(body)
        found = await asyncio.to_thread(
            found_plan, task.command, self._find_bundle, task.workspace, time.time()
        )
        return self._store.packed(encode(found))


def _is_shutdown() -> bool:
    """Whether the worker shuts down, and not the step alone was cancelled.

    A step that started during the shutdown knows it only from the details of its cancellation."""
    details = activity.cancellation_details()
    return activity.is_worker_shutdown() or (details is not None and details.worker_shutdown)


def _worker_gone(why: str) -> ApplicationError:
    return ApplicationError(why, type=WORKER_GONE, category=ApplicationErrorCategory.BENIGN)


class _Heartbeats:
    """The heartbeats of a step.

    After a process was suspended, another worker may have the step: then it must start no command."""

    def __init__(self) -> None:
        self._sent_at = time.monotonic()
        self.is_too_late = False

    def send(self) -> None:
        activity.heartbeat()
        self._sent_at = time.monotonic()

    async def confirm(self) -> None:
        if time.monotonic() - self._sent_at > _STALLED_SECONDS:
            self.is_too_late = True
            raise LeaseLost("the step may have been given to another worker")


class WorkerSupervisor:
    """Runs a worker; one that fails, as when a key has expired, is replaced by another."""

    def __init__(self, make: Callable[[], Worker]) -> None:
        self._make = make
        self._worker = make()
        self._working = asyncio.create_task(self._work())

    async def _work(self) -> None:
        pause = 1.0
        while True:
            try:
                return await self._worker.run()
            except Exception as error:
                logger.error("the worker has failed; another one starts in %g s: %s", pause, error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
            self._worker = self._make()

    async def close(self) -> None:
        """Stop the worker and hand its steps back to the server; safe to call twice."""
        await self._worker.shutdown()
        self._working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._working


def worker_of(client: Client, task_queue: str, activities: Activities | None, *, steps: int) -> Worker:
    """A worker that performs up to `steps` steps at once; without activities, only workflow tasks."""
    return Worker(
        client,
        task_queue=task_queue,
        workflows=[Run, Notes],
        activities=activities.all() if activities is not None else [],
        workflow_runner=UnsandboxedWorkflowRunner(),
        workflow_task_executor=ThreadPoolExecutor(16, thread_name_prefix="temporal-runs"),
        max_concurrent_activities=steps,
        max_heartbeat_throttle_interval=timedelta(seconds=0.5),
        default_heartbeat_throttle_interval=timedelta(seconds=0.5),
        graceful_shutdown_timeout=timedelta(seconds=0),
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=2),  # then another worker continues the run
        debug_mode=True,  # an expression may take longer than the two seconds of the watchdog
    )
