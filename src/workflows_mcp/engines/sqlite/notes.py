"""What an engine keeps in the file beside the runs: what is remembered beyond them, which of their positions
nobody wants any more, who was heard of, and who is there to go on with them. All processes that share the
file see the same."""

from __future__ import annotations

import apsw

from workflows_mcp.engines.clock import Clock
from workflows_mcp.engines.executor import Executor
from workflows_mcp.engines.remembering import check_key, full, packed, unpacked
from workflows_mcp.engines.sqlite import checkpoints, heard, leases, runs
from workflows_mcp.engines.sqlite.store import Store
from workflows_mcp.values import Value


class KeepsNotes:
    """The part of the engine that keeps them."""

    store: Store
    _executor: Executor
    _clock: Clock
    _adopts: bool
    _home: runs.Home

    async def remember(self, key: str, value: Value) -> None:
        limits = self._executor.limits
        body = packed(key, value, limits)
        now = self._clock.now()

        def write(connection: apsw.Connection) -> bool:
            if value is None:
                connection.execute("DELETE FROM memory WHERE key = ?", (key,))
                return True
            known = connection.execute("SELECT 1 FROM memory WHERE key = ?", (key,)).fetchall()
            [(count,)] = connection.execute("SELECT count(*) FROM memory").fetchall()
            if not known and int(count or 0) >= limits.memory_keys:
                return False
            connection.execute(
                "INSERT INTO memory VALUES(?, ?, ?) ON CONFLICT DO UPDATE"
                " SET value = excluded.value, changed_at = excluded.changed_at",
                (key, body, now),
            )
            return True

        if not await self.store.write(write):
            raise full(limits)

    async def recall(self, key: str) -> Value:
        check_key(key)
        rows = self.store.read("SELECT value FROM memory WHERE key = ?", (key,))
        return unpacked(rows[0][0]) if rows else None

    async def remembered(self, prefix: str = "") -> list[str]:
        rows = self.store.read(
            "SELECT key FROM memory WHERE substr(key, 1, ?) = ? ORDER BY key", (len(prefix), prefix)
        )
        return [str(key) for (key,) in rows]

    async def forget_checkpoint(self, run_id: str, position: int) -> None:
        await checkpoints.forget(self.store, run_id, position)

    async def forgotten_checkpoints(self, run_id: str) -> set[int]:
        return checkpoints.forgotten(self.store, run_id)

    async def hear(self, run_id: str, task: str, at: float) -> None:
        await heard.note(self.store, run_id, task, at)

    async def heard(self, run_id: str) -> dict[str, float]:
        return heard.notes(self.store, run_id)

    async def abandoned(self, run_id: str) -> str:
        """A process that adopts runs adopts one of its own within a second."""
        stranger = runs.stranger_to(self.store, run_id, self._home)
        if (self._adopts and not stranger) or leases.is_driven(self.store, run_id, self._clock.now()):
            return ""
        return stranger or "the process that ran it has gone"
