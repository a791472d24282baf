"""Notes shared by all processes on the server: the memory, and the deleted checkpoints.

One workflow that never ends stores them; `NotesClient` is how the engine asks it. The names of its updates,
queries and fields are stored on the server: they cannot change.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from temporalio import workflow
from temporalio.client import Client, WithStartWorkflowOperation, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from workflows_mcp.engines.temporal.blobs import BlobStore, in_use
from workflows_mcp.engines.temporal.wire import NOTES
from workflows_mcp.engines.values import check_key, encode, full, packed, unpacked
from workflows_mcp.limits import Limits
from workflows_mcp.values import Value

_MOST_UPDATES = 1000


class Kept(msgspec.Struct, omit_defaults=True):
    memory: dict[str, bytes] = {}
    """Packed values by key."""
    forgotten: dict[str, list[int]] = {}


_kept = msgspec.msgpack.Decoder(Kept).decode


@workflow.defn(name=NOTES, sandboxed=False)
class Notes:
    @workflow.init
    def __init__(self, start: bytes) -> None:
        self._kept = _kept(in_use().unpacked(start)) if start else Kept()
        self._updates = 0

    @workflow.run
    async def run(self, start: bytes) -> None:
        await workflow.wait_condition(
            lambda: self._updates >= _MOST_UPDATES or workflow.info().is_continue_as_new_suggested()
        )
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.continue_as_new(args=[in_use().packed(encode(self._kept))])

    @workflow.update(name="remember")
    async def remember(self, key: str, packed: bytes, most: int) -> bool:
        """Store a value and return whether there was room; an empty value deletes the key."""
        self._updates += 1
        memory = self._kept.memory
        if not packed:
            memory.pop(key, None)
        elif key not in memory and len(memory) >= most:
            return False
        else:
            memory[key] = packed
        return True

    @workflow.update(name="forget")
    async def forget(self, run_id: str, position: int) -> None:
        self._updates += 1
        positions = self._kept.forgotten.setdefault(run_id, [])
        if position not in positions:
            positions.append(position)

    @workflow.query(name="recall")
    def recall(self, key: str) -> bytes:
        return self._kept.memory.get(key, b"")

    @workflow.query(name="remembered")
    def remembered(self, prefix: str) -> bytes:
        """The keys, packed, because a query may not answer that many."""
        return in_use().packed(encode(sorted(key for key in self._kept.memory if key.startswith(prefix))))

    @workflow.query(name="forgotten")
    def forgotten(self, run_id: str) -> list[int]:
        return self._kept.forgotten.get(run_id, [])


# ----------------------------------------------------------------------------------------------------
# The client


T = TypeVar("T")


class NotesClient:
    def __init__(self, client: Client, task_queue: str, store: BlobStore, limits: Limits) -> None:
        self._client = client
        self._task_queue = task_queue
        self._store = store
        self._limits = limits
        self._id = f"workflows-mcp-notes-{task_queue}"

    async def remember(self, key: str, value: Value) -> None:
        body = packed(key, value, self._limits)
        kept = b"" if value is None else self._store.packed(body)
        if not await self._update("remember", key, kept, self._limits.memory_keys, kind=bool):
            raise full(self._limits)

    async def recall(self, key: str) -> Value:
        check_key(key)
        body = await self._query("recall", key, default=b"")
        return unpacked(self._store.unpacked(body)) if body else None

    async def remembered(self, prefix: str) -> list[str]:
        body = await self._query("remembered", prefix, default=b"")
        return msgspec.msgpack.decode(self._store.unpacked(body), type=list[str]) if body else []

    async def delete_checkpoint(self, run_id: str, position: int) -> None:
        await self._update("forget", run_id, position, kind=type(None))

    async def deleted_checkpoints(self, run_id: str) -> set[int]:
        nothing: list[int] = []
        return set(await self._query("forgotten", run_id, default=nothing))

    async def _update(self, update: str, *args: Any, kind: type[T]) -> T:
        operation: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
            NOTES,
            b"",
            id=self._id,
            task_queue=self._task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        )
        answer: T = await self._client.execute_update_with_start_workflow(
            update, args=args, start_workflow_operation=operation, result_type=kind
        )
        return answer

    async def _query(self, query: str, *args: Any, default: T) -> T:
        handle: WorkflowHandle[Any, Any] = self._client.get_workflow_handle(self._id)
        try:
            answer: T = await handle.query(query, args=args, result_type=type(default))
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return default
            raise
        return answer
