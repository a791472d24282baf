"""What is kept beside runs, for all who share the server: what is remembered under keys, and the checkpoints
that nobody wants to be offered any more. One workflow that never ends keeps it."""

from __future__ import annotations

import msgspec
from temporalio import workflow

from workflows_mcp.engines.encoding import encode
from workflows_mcp.engines.temporal.blobs import in_use
from workflows_mcp.engines.temporal.wire import NOTES

_MOST_UPDATES = 1000


class Kept(msgspec.Struct, omit_defaults=True):
    memory: dict[str, bytes] = {}
    """By key: the value, or where it is."""
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
        """Whether there was room for it; an empty value forgets the key."""
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
        """The keys, packed: there may be more of them than a query may answer."""
        return in_use().packed(encode(sorted(key for key in self._kept.memory if key.startswith(prefix))))

    @workflow.query(name="forgotten")
    def forgotten(self, run_id: str) -> list[int]:
        return self._kept.forgotten.get(run_id, [])
