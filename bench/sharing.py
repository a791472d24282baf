"""Processes that all write to one store all the time: how long one of them waits for its turn, beside plain
connections to a file of SQLite, which wait as SQLite does by itself."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path

import apsw

from bench.measure import median, row, title
from workflows_mcp.engines.sqlite.store import Store

PROCESSES = 4
SECONDS = 3.0
_INSERT = "INSERT INTO turns VALUES(?)"
_BODY = os.urandom(500)

Writer = Callable[[Path, Barrier], list[float]]


def through_the_store(path: Path, together: Barrier) -> list[float]:
    async def go() -> list[float]:
        store = Store(path)
        took = []
        together.wait(60)
        until = time.perf_counter() + SECONDS
        while (started := time.perf_counter()) < until:
            await store.write(lambda connection: connection.execute(_INSERT, (_BODY,)))
            took.append(time.perf_counter() - started)
        await store.close()
        return took

    return asyncio.run(go())


def plainly(path: Path, together: Barrier) -> list[float]:
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(10_000)
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "FULL")
    took = []
    together.wait(60)
    until = time.perf_counter() + SECONDS
    while (started := time.perf_counter()) < until:
        connection.execute(_INSERT, (_BODY,))
        took.append(time.perf_counter() - started)
    connection.close()
    return took


def waits(write: Writer, processes: int) -> list[list[float]]:
    """Seconds of every write of every process."""
    of_processes = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as directory,
        of_processes.Manager() as manager,
        of_processes.Pool(processes) as pool,
    ):
        path = Path(directory) / "runs.db"
        connection = apsw.Connection(str(path))
        connection.execute("CREATE TABLE turns(body)")
        connection.close()
        given = [(path, manager.Barrier(processes))] * processes
        return pool.starmap(write, given, chunksize=1)


def run() -> None:
    title(f"{PROCESSES} processes that write to one store all the time, for {SECONDS:g} s")
    longest = {}
    for what, write in (("SQLite's own waiting", plainly), ("the store of runs", through_the_store)):
        of_each = waits(write, PROCESSES)
        every = sorted(took for one in of_each for took in one)
        longest[what] = every[-1]
        row(f"{what}: writes a second, all together", f"{len(every) / SECONDS:,.0f}/s")
        row(f"{what}: p50 of a write", f"{median(every) * 1000:.2f} ms")
        row(f"{what}: longest wait", f"{every[-1] * 1000:.0f} ms")
        fewest, most = min(map(len, of_each)), max(map(len, of_each))
        row(f"{what}: fewest writes of a process to the most", f"{fewest / most:.2f}")
    plain, ours = longest.values()
    row("longest wait, to SQLite's own", f"{ours / plain:.2f}")
