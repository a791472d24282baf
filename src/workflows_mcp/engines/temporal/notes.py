"""Notes shared by all processes on the server: the memory, and the deleted checkpoints.

One workflow that never ends stores them; `NotesOfRuns` is how the engine asks it. The names of its updates,
queries and fields are stored on the server: they cannot change.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from temporalio import workflow
from temporalio.client import Client, WithStartWorkflowOperation, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from workflows_mcp.engines.executor import Executor
from workflows_mcp.engines.temporal.blobs import BlobStore, in_use
from workflows_mcp.engines.temporal.cache import RunCache
from workflows_mcp.engines.temporal.connection import Address
from workflows_mcp.engines.temporal.wire import NOTES
from workflows_mcp.engines.values import check_key, encode, full, packed, unpacked
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
# The methods of the engine for them


T = TypeVar("T")


class NotesOfRuns:
    """The methods of the engine for the memory and for deleted checkpoints."""

    _client: Client
    _address: Address
    _executor: Executor
    _store: BlobStore
    _cache: RunCache

    async def remember(self, key: str, value: Value) -> None:
        limits = self._executor.limits
        body = packed(key, value, limits)
        kept = b"" if value is None else self._store.packed(body)
        if not await self._update_notes("remember", key, kept, limits.memory_keys, kind=bool):
            raise full(limits)

    async def recall(self, key: str) -> Value:
        check_key(key)
        body = await self._query_notes("recall", key, default=b"")
        return unpacked(self._store.unpacked(body)) if body else None

    async def remembered(self, prefix: str = "") -> list[str]:
        body = await self._query_notes("remembered", prefix, default=b"")
        return msgspec.msgpack.decode(self._store.unpacked(body), type=list[str]) if body else []

    async def delete_checkpoint(self, run_id: str, position: int) -> None:
        await self._cache.now(run_id)
        await self._update_notes("forget", run_id, position, kind=type(None))

    async def deleted_checkpoints(self, run_id: str) -> set[int]:
        await self._cache.now(run_id)
        nothing: list[int] = []
        return set(await self._query_notes("forgotten", run_id, default=nothing))

    async def _update_notes(self, update: str, *args: Any, kind: type[T]) -> T:
        operation: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
            NOTES,
            b"",
            id=self._notes_id,
            task_queue=self._address.task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        )
        answer: T = await self._client.execute_update_with_start_workflow(
            update, args=args, start_workflow_operation=operation, result_type=kind
        )
        return answer

    async def _query_notes(self, query: str, *args: Any, default: T) -> T:
        handle: WorkflowHandle[Any, Any] = self._client.get_workflow_handle(self._notes_id)
        try:
            answer: T = await handle.query(query, args=args, result_type=type(default))
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return default
            raise
        return answer

    @property
    def _notes_id(self) -> str:
        return f"workflows-mcp-notes-{self._address.task_queue}"
