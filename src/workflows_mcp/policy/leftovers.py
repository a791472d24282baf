"""Finding and ending every process that a step has started, also those that ran away from it.

A command runs in a session of its own, carries `WORKFLOWS_MCP_STEP=<key>` in its environment, and, on Linux,
inherits an open file in memory whose name is made of the key. What it started is found by any of five traces:
the environment, the open file, the session, the process group, or being a child of something found. So a
child that called setsid, one with an emptied environment whose parent has ended, and one that outlived a
server that was killed, are found too. One that has dropped all of these is not.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import NamedTuple

MARK = "WORKFLOWS_MCP_STEP"
ROUNDS = 200
PAUSE_SECONDS = 0.005
_IN_MEMORY = "/memfd:"


class Process(NamedTuple):
    pid: int
    parent: int
    group: int
    session: int
    key: str | None
    """The step that its environment names."""
    held: str | None = None
    """The name of the file in memory that it has inherited from its step; looked for where `key` is None."""


def open_mark(key: str) -> int | None:
    """An empty file in memory, for a command to inherit; None where the system has none. Close it."""
    try:
        return os.memfd_create(_name_of(key))
    except (AttributeError, OSError):
        return None


def _name_of(key: str) -> str:
    return f"{MARK}-{hashlib.blake2b(key.encode('utf-8', 'surrogateescape'), digest_size=16).hexdigest()}"


def end_leftovers(keys: Collection[str]) -> int:
    """Kills whatever is left of these steps on this machine and returns how many processes that were.

    Comes back when they are gone. For a server that starts after another was killed, before it repeats steps.
    """
    ended: set[int] = set()
    for _ in range(ROUNDS):
        found = kill_all_of(keys)
        if not found:
            break
        ended |= found
        time.sleep(PAUSE_SECONDS)
    return len(ended)


def kill_all_of(keys: Collection[str], session: int | None = None) -> set[int]:
    """Kills what is found of these steps, and of the session, and returns it.

    A process may start another while it is looked for: call this until nothing is found. Whoever has started
    another goes first: a shell that outlives its command, for a moment, says "Killed" in its output.
    """
    if not keys:
        return set()
    found = _belonging_to(keys, session, list(_processes()))
    for pid in found:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return set(found)


def _belonging_to(keys: Collection[str], session: int | None, processes: list[Process]) -> list[int]:
    """Parents before their children."""
    parents = {process.pid: process.parent for process in processes}
    children: dict[int, list[int]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process.pid)
    ourselves = _line_of(os.getpid(), parents)  # a server may itself have been started by a step
    found: set[int] = set()
    names = {_name_of(key) for key in keys}
    waiting = [
        process.pid
        for process in processes
        if process.key in keys
        or process.held in names
        or (session is not None and session in (process.session, process.group))
    ]
    while waiting:
        pid = waiting.pop()
        if pid not in found and pid not in ourselves:
            found.add(pid)
            waiting += children.get(pid, ())
    return sorted(found, key=lambda pid: len(_line_of(pid, parents)))


def _line_of(pid: int, parents: dict[int, int]) -> set[int]:
    """A process and those that it runs in."""
    line: set[int] = set()
    while pid and pid not in line:
        line.add(pid)
        pid = parents.get(pid, 0)
    return line


def _processes() -> Iterator[Process]:
    """All living processes; one that has ended but was not collected yet does not count."""
    return _from_proc() if sys.platform == "linux" else _from_psutil()


def _from_proc() -> Iterator[Process]:
    mark = f"{MARK}=".encode()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb", buffering=0) as file:
                # The second field is the name in parentheses, which may hold spaces and parentheses.
                state, parent, group, session = file.read().rpartition(b")")[2].split(None, 4)[:4]
        except OSError:
            continue
        if state in (b"Z", b"X"):
            continue
        key = None
        with suppress(OSError), open(f"/proc/{name}/environ", "rb", buffering=0) as file:
            environment = b"".join(iter(lambda: file.read(65536), b""))
            if mark in environment:
                key = next(
                    (
                        entry[len(mark) :].decode("utf-8", "surrogateescape")
                        for entry in environment.split(b"\0")
                        if entry.startswith(mark)
                    ),
                    None,
                )
        held = None if key is not None else _held_by(name)
        yield Process(int(name), int(parent), int(group), int(session), key, held)


def _held_by(pid: str) -> str | None:
    with suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                opened = os.readlink(f"/proc/{pid}/fd/{number}")
                if opened.startswith(_IN_MEMORY + MARK):
                    return opened[len(_IN_MEMORY) :].partition(" ")[0]
    return None


def _from_psutil() -> Iterator[Process]:
    import psutil

    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            key = None
            with suppress(psutil.Error):
                key = process.environ().get(MARK)
            group = session = 0
            with suppress(OSError):
                group, session = os.getpgid(process.pid), os.getsid(process.pid)
            yield Process(process.pid, process.ppid(), group, session, key)
