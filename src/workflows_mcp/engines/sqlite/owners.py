"""Processes that drive runs, and how one tells that another is gone.

A lease that has run out says so in the end; but a process of this very machine that does not exist any
more is known to be gone at once, so a restart after a crash need not wait for its lease.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import NamedTuple


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
