"""Which process drives which run: leases with an epoch, so that the dead lose and the late are refused.

A process is alive while its row in `owners` is; it renews it every second, and the row of one that is
known to be gone is removed. A run belongs to the process in its row; taking a run over raises its epoch,
and a batch is written only under the epoch that its writer was given, and into no run that belongs to
another: of two processes that wake up the same run at once, both believe to have the same epoch. So a
process that was stopped and wakes up again cannot write into a run that another one drives by now; and it
asks before it starts a step.
"""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from workflows_mcp.engines.forks import Batch
from workflows_mcp.engines.sqlite.store import Store
from workflows_mcp.errors import LeaseLost

# ----------------------------------------------------------------------------------------------------
# Processes that drive runs, and how one tells that another is gone.
#
# A lease that has run out says so in the end; but a process of this very machine that does not exist any
# more is known to be gone at once, so a restart after a crash need not wait for its lease.


class Owner(NamedTuple):
    id: str
    machine: str
    """Where process ids mean the same: this boot of this machine, this container."""
    pid: int
    born: float
    """When the process started, because process ids are used again."""


def this_process() -> Owner:
    pid = os.getpid()
    return Owner(f"{pid}-{os.urandom(4).hex()}", _machine(), pid, _born(pid) or 0.0)


def is_gone(machine: str, pid: int, born: float) -> bool:
    """Whether a process is known not to exist any more; False where that cannot be known from here."""
    return machine == _machine() and _born(pid) != born


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return platform.node()


def _born(pid: int) -> float | None:
    """When a process started, in a measure that a change of the clock does not touch; None if there is
    none."""
    if Path("/proc/self/stat").exists():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in ("Z", "X") else float(fields[19])
    import psutil

    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return None


LEASE_SECONDS = 4.0

RENEW_SECONDS = 1.0

_MARGIN_SECONDS = 0.5


_ALIVE = "(SELECT id FROM owners WHERE expires_at > ?)"


ORPHANS = f"""
SELECT id FROM runs WHERE status = 'running' AND (owner IS NULL OR owner = ? OR owner NOT IN {_ALIVE})
ORDER BY epoch
"""

"""Runs that somebody should drive and nobody else alive does: takes the id of the asker, and the time. Those
that have lost the most owners come last, because a step of theirs may be what ends servers."""


_APPEND = """
INSERT OR IGNORE INTO journal(run, position, epoch, events)
SELECT ?1, ?2, ?3, ?4
WHERE EXISTS (SELECT 1 FROM runs WHERE id = ?1 AND epoch = ?3 AND (owner IS NULL OR owner = ?5))
"""


class Lease:
    """What lets this process drive runs, as long as it is renewed."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.lapses = 0
        """How often it had run out before it was renewed: each time, runs may have been taken over."""
        self._ends = 0.0

    def renew_if_due(self, connection: apsw.Connection, now: float) -> None:
        """For whoever takes a run over: a row that was renewed a moment ago need not be written again."""
        renewed = "SELECT 1 FROM owners WHERE id = ? AND expires_at > ?"
        if not connection.execute(renewed, (self.owner.id, now + LEASE_SECONDS - RENEW_SECONDS)).fetchall():
            self.renew(connection, now)

    def renew(self, connection: apsw.Connection, now: float) -> None:
        asked = time.monotonic()
        if asked >= self._ends:
            self.lapses += 1
        connection.execute(
            "INSERT INTO owners VALUES(?, ?, ?, ?, ?)"
            " ON CONFLICT(id) DO UPDATE SET expires_at = excluded.expires_at",
            (self.owner.id, now + LEASE_SECONDS, self.owner.machine, self.owner.pid, self.owner.born),
        )
        connection.execute("DELETE FROM owners WHERE expires_at < ?", (now - LEASE_SECONDS,))
        self._ends = asked + LEASE_SECONDS - _MARGIN_SECONDS

    def in_force_since(self, lapses: int) -> bool:
        """Whether nobody can have taken over a run that was ours when there had been so many lapses, by our
        own clock, which does not stand still when the process does."""
        return self.lapses == lapses and time.monotonic() < self._ends


def dead_owners(store: Store, owner: Owner, now: float) -> list[str]:
    """Processes whose lease still runs and that are known not to exist any more."""
    others = store.read(
        "SELECT id, machine, pid, born FROM owners WHERE expires_at > ? AND id != ?", (now, owner.id)
    )
    return [str(name) for name, machine, pid, born in others if is_gone(machine, pid, born)]


def evict(connection: apsw.Connection, owner_ids: list[str]) -> None:
    connection.executemany("DELETE FROM owners WHERE id = ?", [(owner_id,) for owner_id in owner_ids])


def leave(connection: apsw.Connection, owner: str) -> None:
    """The process goes: its runs are free at once."""
    connection.execute("UPDATE runs SET owner = NULL WHERE owner = ?", (owner,))
    connection.execute("DELETE FROM owners WHERE id = ?", (owner,))


def claim(connection: apsw.Connection, run_id: str, owner: str, now: float) -> int | None:
    """Take over a run that nobody alive drives; its new epoch, or None when it cannot be had."""
    rows = connection.execute(
        "UPDATE runs SET owner = ?, epoch = epoch + 1, status = 'running'"
        " WHERE id = ? AND status IN ('running', 'idle')"
        f" AND (owner IS NULL OR owner = ? OR owner NOT IN {_ALIVE}) RETURNING epoch",
        (owner, run_id, owner, now),
    ).fetchall()
    return int(str(rows[0][0])) if rows else None


def claim_at_rest(connection: apsw.Connection, run_id: str, owner: str, epoch: int) -> None:
    """Take over a run that is at rest since the epoch before this one; LeaseLost where it is not any more."""
    connection.execute(
        "UPDATE runs SET owner = ?, epoch = ?, status = 'running'"
        " WHERE id = ? AND status = 'idle' AND owner IS NULL AND epoch = ?",
        (owner, epoch, run_id, epoch - 1),
    )
    if connection.changes() != 1:
        raise lost(run_id)


def release(connection: apsw.Connection, run_id: str, owner: str) -> None:
    """Give back a run that was claimed and in which there is nothing to do."""
    rows = connection.execute(
        "UPDATE runs SET owner = NULL, status = 'idle' WHERE id = ? AND owner = ? RETURNING 1",
        (run_id, owner),
    ).fetchall()
    if not rows:
        raise lost(run_id)


def mark_ended(connection: apsw.Connection, run_id: str, owner: str, status: str) -> None:
    """What is said of a run that was claimed is not true: by its journal it has ended."""
    connection.execute(
        "UPDATE runs SET owner = NULL, status = ? WHERE id = ? AND owner = ?", (status, run_id, owner)
    )


def is_free(store: Store, run_id: str) -> bool:
    """Whether a run belongs to nobody: it waits for an agent, or has ended."""
    return store.read("SELECT 1 FROM runs WHERE id = ? AND owner IS NULL", (run_id,)) != []


def is_driven(store: Store, run_id: str, now: float) -> bool:
    """Whether a run that somebody should drive belongs to a process that is there, as far as can be known."""
    owners = store.read(
        "SELECT machine, pid, born, expires_at FROM runs LEFT JOIN owners ON owners.id = runs.owner"
        " WHERE runs.id = ? AND status = 'running'",
        (run_id,),
    )
    return all(until is not None and until > now and not is_gone(*owner) for *owner, until in owners)


def epoch_of(store: Store, run_id: str) -> int | None:
    rows = store.read("SELECT epoch FROM runs WHERE id = ?", (run_id,))
    return int(rows[0][0]) if rows else None


def check(connection: apsw.Connection, run_id: str, owner: str, epoch: int) -> None:
    """LeaseLost where the run is not ours any more."""
    ours = "SELECT 1 FROM runs WHERE id = ? AND epoch = ? AND owner = ?"
    if not connection.execute(ours, (run_id, epoch, owner)).fetchall():
        raise lost(run_id)


def lost(run_id: str) -> LeaseLost:
    return LeaseLost(f"the run {run_id} was taken over by another process")


def append(connection: apsw.Connection, run_id: str, owner: str, epoch: int, batch: Batch) -> None:
    """Write a batch under the lease; LeaseLost where the run is not ours any more."""
    connection.execute(_APPEND, (run_id, batch.position, epoch, batch.events, owner))
    if connection.changes() != 1:
        raise lost(run_id)
    if batch.blobs:
        connection.executemany("INSERT OR IGNORE INTO blobs VALUES(?, ?)", batch.blobs)
        needed = [(run_id, blob.hash) for blob in batch.blobs]
        connection.executemany("INSERT OR IGNORE INTO blob_runs VALUES(?, ?)", needed)


def close_batch(
    connection: apsw.Connection, run_id: str, owner: str, epoch: int, batch: Batch, *, rest: bool
) -> None:
    """Write a batch, and with it that the run has changed its status; at rest it has no owner."""
    append(connection, run_id, owner, epoch, batch)
    values: tuple[Any, ...] = (batch.status, batch.at, None if rest else owner, run_id, epoch)
    connection.execute(
        "UPDATE runs SET status = ?, changed_at = ?, owner = ? WHERE id = ? AND epoch = ?", values
    )
    if batch.snapshot is not None:
        connection.execute(
            "INSERT INTO snapshots VALUES(?, ?, ?) ON CONFLICT(run) DO UPDATE"
            " SET position = excluded.position, body = excluded.body",
            (run_id, batch.position + batch.count, batch.snapshot),
        )
