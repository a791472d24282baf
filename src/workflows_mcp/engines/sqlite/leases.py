"""Which process drives which run: leases, owners and epochs.

    epoch = claim(connection, run_id, owner, now)       # None if a live process drives the run

A process holds a lease, its row in `owners`, and renews it every second. Each run names its owner. Taking a
run over increments its epoch, and `RunJournal` writes a batch only as the owner with the current epoch. So a
process that was suspended and continues cannot write into a run that another process drives by now; it also
checks its lease before it starts a step. The owner is compared too, because two processes that continue the
same idle run at once both expect the same epoch.
"""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import NamedTuple

import apsw

from workflows_mcp.engines.sqlite.store import VERSION, Store
from workflows_mcp.errors import LeaseLost

LEASE_SECONDS = 4.0
RENEW_SECONDS = 1.0
_MARGIN_SECONDS = 0.5

_ALIVE = "(SELECT id FROM owners WHERE expires_at > ?)"

ORPHANS = f"""
SELECT id FROM runs WHERE status = 'running' AND (owner IS NULL OR owner = ? OR owner NOT IN {_ALIVE})
ORDER BY epoch
"""
"""Running runs that no other live process drives; takes the id of the caller, and the time. Runs that changed
their owner most often come last, as a rough guard against runs whose steps kill servers."""


# ----------------------------------------------------------------------------------------------------
# Processes: a dead process of this machine is known to be dead before its lease expires


class Owner(NamedTuple):
    id: str
    machine: str
    """This boot of this machine, and its pid namespace: process ids are unique within it."""
    pid: int
    born: float
    """When the process started, because process ids are reused."""


def this_process() -> Owner:
    pid = os.getpid()
    return Owner(f"{pid}-{os.urandom(4).hex()}", _machine(), pid, _born(pid) or 0.0)


def is_dead(machine: str, pid: int, born: float) -> bool:
    """Whether a process is known to be dead; False if it runs on another machine."""
    return machine == _machine() and _born(pid) != born


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return platform.node()


def _born(pid: int) -> float | None:
    """When a process started, independent of changes of the clock; None if there is no such process."""
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


# ----------------------------------------------------------------------------------------------------
# The lease of a process


class Lease:
    """The lease of this process: it may drive runs while it renews the lease."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.lapses = 0
        """How often it had expired before it was renewed: each time, runs may have been taken over."""
        self._ends = 0.0

    def renew_if_due(self, connection: apsw.Connection, now: float) -> None:
        """Renew before a run is taken over, unless the lease was renewed within the last second."""
        renewed = "SELECT 1 FROM owners WHERE id = ? AND expires_at > ?"
        if not connection.execute(renewed, (self.owner.id, now + LEASE_SECONDS - RENEW_SECONDS)).fetchall():
            self.renew(connection, now)

    def renew(self, connection: apsw.Connection, now: float) -> None:
        started = time.monotonic()
        if started >= self._ends:
            self.lapses += 1
        connection.execute(
            "INSERT INTO owners(id, expires_at, machine, pid, born, schema) VALUES(?, ?, ?, ?, ?, ?)"
            " ON CONFLICT(id) DO UPDATE SET expires_at = excluded.expires_at",
            (
                self.owner.id,
                now + LEASE_SECONDS,
                self.owner.machine,
                self.owner.pid,
                self.owner.born,
                VERSION,
            ),
        )
        connection.execute("DELETE FROM owners WHERE expires_at < ?", (now - LEASE_SECONDS,))
        self._ends = started + LEASE_SECONDS - _MARGIN_SECONDS

    def in_force_since(self, lapses: int) -> bool:
        """Whether no process can have taken over the runs that this one owned at that number of lapses.

        The monotonic clock decides: it advances while the process is suspended."""
        return self.lapses == lapses and time.monotonic() < self._ends


def dead_owners(store: Store, owner: Owner, now: float) -> list[str]:
    """Processes that are known to be dead although their leases have not expired."""
    others = store.read(
        "SELECT id, machine, pid, born FROM owners WHERE expires_at > ? AND id != ?", (now, owner.id)
    )
    return [str(name) for name, machine, pid, born in others if is_dead(machine, pid, born)]


def evict(connection: apsw.Connection, owner_ids: list[str]) -> None:
    """Remove the leases of dead processes, so that their runs can be taken over at once."""
    connection.executemany("DELETE FROM owners WHERE id = ?", [(owner_id,) for owner_id in owner_ids])


def leave(connection: apsw.Connection, owner: str) -> None:
    """End the lease of a process that exits; its runs have no owner at once."""
    connection.execute("UPDATE runs SET owner = NULL WHERE owner = ?", (owner,))
    connection.execute("DELETE FROM owners WHERE id = ?", (owner,))


# ----------------------------------------------------------------------------------------------------
# The owner of a run


def claim(connection: apsw.Connection, run_id: str, owner: str, now: float) -> int | None:
    """Take over a run that no live process drives.

    Returns its new epoch; None if a live process drives it, or if it has ended."""
    rows = connection.execute(
        "UPDATE runs SET owner = ?, epoch = epoch + 1, status = 'running'"
        " WHERE id = ? AND status IN ('running', 'idle')"
        f" AND (owner IS NULL OR owner = ? OR owner NOT IN {_ALIVE}) RETURNING epoch",
        (owner, run_id, owner, now),
    ).fetchall()
    return int(str(rows[0][0])) if rows else None


def claim_idle(connection: apsw.Connection, run_id: str, owner: str, epoch: int) -> None:
    """Take over a run that has been idle since the previous epoch. Raises LeaseLost if it is not any more."""
    connection.execute(
        "UPDATE runs SET owner = ?, epoch = ?, status = 'running'"
        " WHERE id = ? AND status = 'idle' AND owner IS NULL AND epoch = ?",
        (owner, epoch, run_id, epoch - 1),
    )
    if connection.changes() != 1:
        raise lost(run_id)


def release(connection: apsw.Connection, run_id: str, owner: str, status: str) -> bool:
    """Give back a claimed run; return False if another process owns it by now.

    `status`: idle; running to undo the claim; or how the run has ended according to its journal."""
    connection.execute(
        "UPDATE runs SET owner = NULL, status = ? WHERE id = ? AND owner = ?", (status, run_id, owner)
    )
    return connection.changes() == 1


def is_driven(store: Store, run_id: str, now: float) -> bool:
    """Whether a running run has an owner that is alive as far as this process can know."""
    owners = store.read(
        "SELECT machine, pid, born, expires_at FROM runs LEFT JOIN owners ON owners.id = runs.owner"
        " WHERE runs.id = ? AND status = 'running'",
        (run_id,),
    )
    return all(until is not None and until > now and not is_dead(*owner) for *owner, until in owners)


def lost(run_id: str) -> LeaseLost:
    return LeaseLost(f"the run {run_id} was taken over by another process")
