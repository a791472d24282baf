"""What a worker does for runs: carry out their steps, and find workflows that calls name by an expression.

A step tells the server that it is alive; when the server, or nobody any more, wants it, it is ended with all
that it has started. A worker that goes away says so, and the step is carried out elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from workflows_mcp.engines.base import FindBundle
from workflows_mcp.engines.driver import found_plan
from workflows_mcp.engines.executor import Executor
from workflows_mcp.engines.temporal.blobs import BlobStore
from workflows_mcp.engines.temporal.wire import (
    FIND,
    PERFORM,
    WORKER_GONE,
    decode_command,
    plan_task,
    step_task,
)
from workflows_mcp.engines.values import LargeValues, encode
from workflows_mcp.errors import LeaseLost, WorkflowsError
from workflows_mcp.machine import RunStep, StepDone, StepFailed

_SIGN_OF_LIFE_SECONDS = 0.8
_STALLED_SECONDS = 5.0
"""After so long without a sign of life the server may have given the step to another worker."""
_ENDING_SECONDS = 30.0
_STOPPED = "it was ended"


class Activities:
    def __init__(self, executor: Executor, store: BlobStore, find_bundle: FindBundle) -> None:
        self._executor = executor
        self._store = store
        self._find_bundle = find_bundle

    def all(self) -> list[Callable[..., Any]]:
        return [self.perform, self.find]

    @activity.defn(name=PERFORM)
    async def perform(self, body: bytes) -> bytes:
        """Carry out a step; the event that comes of it. A worker that is told to go may be told so at every
        moment of it."""
        try:
            return await self._performed(body)
        except asyncio.CancelledError:
            if _is_told_to_go():
                raise _gone("the worker goes away") from None
            raise

    async def _performed(self, body: bytes) -> bytes:
        alive = _Alive()
        task = step_task(self._store.unpacked(body))
        large = LargeValues(task.run_id, self._executor.limits.inline_bytes, self._store.get)
        command = decode_command(task.command, large)
        self._executor.secrets.learn(task.secrets)
        if task.again:
            await self._executor.end_leftovers([(task.run_id, command.key)])
        event = await self._carried_out(task.run_id, task.workspace, command, alive)
        try:
            encoded = large.encode(event)
        except WorkflowsError as error:
            message = f"its outputs are refused: {error}"
            encoded = encode(StepFailed(event.at, command.key, error.code, message))
        for blob in large.take_new():
            await asyncio.to_thread(self._store.put, blob.hash, blob.body)
        return self._store.packed(encoded)

    async def _carried_out(
        self, run_id: str, workspace: str, command: RunStep, alive: _Alive
    ) -> StepDone | StepFailed:
        hands = self._executor.runner_for(run_id, workspace, alive.confirm)
        ended: asyncio.Future[StepDone | StepFailed] = asyncio.get_running_loop().create_future()
        hands.perform(command, lambda event: None if ended.done() else ended.set_result(event))
        try:
            while not ended.done():
                await asyncio.wait([ended], timeout=_SIGN_OF_LIFE_SECONDS)
                if not ended.done():
                    alive.tell()
        except asyncio.CancelledError:
            hands.stop(command.key, _STOPPED)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(asyncio.wait([ended], timeout=_ENDING_SECONDS))
            if _is_told_to_go() or not ended.done():
                raise
        if alive.is_too_late:
            raise _gone("the worker was stopped for a while")
        return ended.result()

    @activity.defn(name=FIND)
    async def find(self, body: bytes) -> bytes:
        task = plan_task(body)
        found = await asyncio.to_thread(
            found_plan, task.command, self._find_bundle, task.workspace, time.time()
        )
        return self._store.packed(encode(found))


def _is_told_to_go() -> bool:
    """Whether it is the worker that is ended, and not the step alone. A step that was begun when the worker
    had just been told so knows it only from how it was cancelled."""
    details = activity.cancellation_details()
    return activity.is_worker_shutdown() or (details is not None and details.worker_shutdown)


def _gone(why: str) -> ApplicationError:
    return ApplicationError(why, type=WORKER_GONE, category=ApplicationErrorCategory.BENIGN)


class _Alive:
    """The signs of life of a step. A process that was stopped for a while does not know whether the step is
    still its own, and must not start what cannot be taken back."""

    def __init__(self) -> None:
        self._told = time.monotonic()
        self.is_too_late = False

    def tell(self) -> None:
        activity.heartbeat()
        self._told = time.monotonic()

    async def confirm(self) -> None:
        if time.monotonic() - self._told > _STALLED_SECONDS:
            self.is_too_late = True
            raise LeaseLost("the step may have been given to another worker")
