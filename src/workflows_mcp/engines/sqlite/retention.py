"""Deletes ended runs beyond the limits: too old, too many, or too large together.

The oldest ended runs are deleted first; unfinished runs never. All work happens in small transactions, so
that other processes can write between them:

    runs -> pruned      the run disappears, with its snapshot and heartbeats  one transaction
    pruned -> nothing   its journal and the blobs that only it needed         a few hundred rows at a time
    free pages          go back to the file system                            a few hundred pages at a time

If a process dies in between, rows are left in `pruned`, and the next pruning continues with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import apsw
import msgspec

from workflows_mcp.engines.base import Pruned, PrunedRun
from workflows_mcp.engines.sqlite.store import PREALLOCATED_BYTES, Store
from workflows_mcp.engines.values import MARK
from workflows_mcp.limits import Limits

T = TypeVar("T")

PRUNE_SECONDS = 3600.0
"""One of the servers that share a store prunes it, this often."""
_DAY_SECONDS = 86_400
_RUNS, _ROWS, _PAGES = 50, 200, 256
"""How many runs or rows one transaction deletes, or pages it returns."""
_INCREMENTAL = 2

_ENDED = "('completed', 'failed', 'cancelled')"
_OLDEST = f"""
SELECT id, workflow, status, changed_at,
  (SELECT coalesce(sum(length(events)), 0) FROM journal WHERE run = runs.id)
  + (SELECT coalesce(sum(length(body)), 0) FROM snapshots WHERE run = runs.id)
  + (SELECT coalesce(sum(length(body)), 0) FROM blobs WHERE hash IN
      (SELECT hash FROM blob_runs WHERE run = runs.id) AND NOT EXISTS
      (SELECT 1 FROM blob_runs WHERE hash = blobs.hash AND run != runs.id))
FROM runs WHERE status IN {_ENDED} AND (changed_at, id) > (?, ?) ORDER BY changed_at, id LIMIT ?
"""


@dataclass(slots=True)
class Retention:
    store: Store
    clear_scratch: Callable[[str], None]

    async def prune(self, limits: Limits, now: float, *, dry_run: bool = False) -> Pruned:
        """Delete the runs beyond the limits; with `dry_run`, return what would be deleted."""
        if dry_run:
            return Pruned(tuple(await self._expired(limits, now)))
        await self._index_blobs()
        await self._finish()
        deleted: list[PrunedRun] = []
        while expired := await self._expired(limits, now):
            removed: set[str] = set()
            for first in range(0, len(expired), _RUNS):
                ids = [run.run_id for run in expired[first : first + _RUNS]]
                removed.update(await self._write(_remove, ids))
                await self._finish()
            if not removed:
                break
            deleted += [run for run in expired if run.run_id in removed]
        if deleted:
            await self._write(_execute, "DELETE FROM bundles WHERE key NOT IN (SELECT bundle FROM runs)")
        return Pruned(tuple(deleted), await self._return_pages())

    async def is_due(self, now: float) -> bool:
        """Whether no server has pruned for an hour. The server that gets True must prune."""
        if not self.store.read(*_due(now)):
            return False

        def claim(connection: apsw.Connection) -> bool:
            if not connection.execute(*_due(now)).fetchall():
                return False
            connection.execute("INSERT OR REPLACE INTO upkeep VALUES('prune', ?)", (now,))
            return True

        return await self.store.write(claim)

    async def _expired(self, limits: Limits, now: float) -> list[PrunedRun]:
        """The oldest ended runs, as many as are beyond a limit."""
        oldest_end = now - limits.run_days * _DAY_SECONDS
        ended = int(self.store.read(f"SELECT count(*) FROM runs WHERE status IN {_ENDED}")[0][0])
        used = self._used_bytes()
        expired: list[PrunedRun] = []
        last: tuple[float, str] = (-1.0, "")
        while True:
            rows = self.store.read(_OLDEST, (*last, _RUNS))
            for run_id, workflow, status, changed_at, size in rows:
                if not (
                    changed_at < oldest_end or ended > limits.max_ended_runs or used > limits.store_bytes
                ):
                    return expired
                expired.append(PrunedRun(run_id, workflow, status, changed_at, size))
                ended, used, last = ended - 1, used - size, (changed_at, run_id)
            if len(rows) < _RUNS:
                return expired
            await asyncio.sleep(0)  # let other tasks run

    def _used_bytes(self) -> int:
        pages, free, size = self._pages()
        return (pages - free) * size

    def _pages(self) -> tuple[int, int, int]:
        """The pages of the file, the free ones among them, and the size of a page."""
        read = self.store.read
        return tuple(  # type: ignore[return-value]
            int(read(f"PRAGMA {name}")[0][0]) for name in ("page_count", "freelist_count", "page_size")
        )

    async def _finish(self) -> None:
        """Delete the remaining rows of pruned runs."""
        for (run_id,) in self.store.read("SELECT run FROM pruned"):
            while not await self._write(_remove_rest, run_id):
                pass
            self.clear_scratch(run_id)
            await self._write(_execute, "DELETE FROM pruned WHERE run = ?", run_id)

    async def _write(self, action: Callable[..., T], *values: Any) -> T:
        """Run one small transaction; other tasks can read and write after it."""
        return await self.store.write(lambda connection: action(connection, *values))

    async def _index_blobs(self) -> None:
        """Index the blobs of runs that an older version has written."""
        for (run_id,) in self.store.read("SELECT run FROM unindexed"):
            await self._write(_index, run_id)

    async def _return_pages(self) -> int:
        """Return free pages to the file system, except as many as a new store has."""
        before, free, size = self._pages()
        if int(self.store.read("PRAGMA auto_vacuum")[0][0]) != _INCREMENTAL:
            return 0
        surplus = free - PREALLOCATED_BYTES // size
        while surplus >= _PAGES:
            await self._write(_execute, f"PRAGMA incremental_vacuum({_PAGES})")
            surplus -= _PAGES
        return max(0, before - self._pages()[0]) * size


def _due(now: float) -> tuple[str, tuple[float]]:
    return "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM upkeep WHERE chore = 'prune' AND at > ?)", (
        now - PRUNE_SECONDS,
    )


def _execute(connection: apsw.Connection, sql: str, *values: Any) -> None:
    connection.execute(sql, values).fetchall()


def _remove(connection: apsw.Connection, run_ids: list[str]) -> list[str]:
    """Delete the rows of ended runs in `runs`, and return the ids of those that were deleted."""
    removed = []
    for run_id in run_ids:
        ended = f"DELETE FROM runs WHERE id = ? AND status IN {_ENDED} RETURNING 1"
        if not connection.execute(ended, (run_id,)).fetchall():
            continue
        connection.execute("INSERT OR IGNORE INTO pruned VALUES(?)", (run_id,))
        for table in ("snapshots", "heartbeats", "deleted_checkpoints", "mailbox", "unindexed"):
            connection.execute(f"DELETE FROM {table} WHERE run = ?", (run_id,))
        removed.append(run_id)
    return removed


def _remove_rest(connection: apsw.Connection, run_id: str) -> bool:
    """Delete some of the remaining rows of a pruned run; return whether none are left."""
    connection.execute(
        "DELETE FROM journal WHERE run = ?1 AND position IN"
        " (SELECT position FROM journal WHERE run = ?1 LIMIT ?2)",
        (run_id, _ROWS),
    )
    if connection.changes() == _ROWS:
        return False
    hashes = connection.execute(
        "DELETE FROM blob_runs WHERE run = ?1 AND hash IN"
        " (SELECT hash FROM blob_runs WHERE run = ?1 LIMIT ?2) RETURNING hash",
        (run_id, _ROWS),
    ).fetchall()
    connection.executemany(
        "DELETE FROM blobs WHERE hash = ?1 AND NOT EXISTS (SELECT 1 FROM blob_runs WHERE hash = ?1)", hashes
    )
    return len(hashes) < _ROWS


def _index(connection: apsw.Connection, run_id: str) -> None:
    bodies: Any = connection.execute(
        "SELECT events FROM journal WHERE run = ?1 UNION ALL SELECT body FROM snapshots WHERE run = ?1",
        (run_id,),
    ).fetchall()
    found: set[bytes] = set()

    def note(code: int, data: memoryview) -> None:
        if code == MARK:
            found.add(bytes(data))

    for (body,) in bodies:
        msgspec.msgpack.decode(body, ext_hook=note)
    needed = [(run_id, digest) for digest in found]
    connection.executemany("INSERT OR IGNORE INTO blob_runs VALUES(?, ?)", needed)
    connection.execute("DELETE FROM unindexed WHERE run = ?", (run_id,))
