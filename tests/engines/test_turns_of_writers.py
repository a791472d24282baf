"""Processes that share a store and all have something to write, all the time."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

import apsw
import pytest

from workflows_mcp.engines.sqlite.store import Store

SECONDS = 2.0
MOST_IN_A_ROW = 4000
"""What one process alone writes in some half a second; a lease lasts four."""


def write_all_the_time(path: Path, name: str, together: Barrier) -> None:
    async def go() -> None:
        store = Store(path)
        together.wait(30)
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            await store.write(lambda connection: connection.execute("INSERT INTO turns VALUES(?)", (name,)))
        await store.close()

    asyncio.run(go())


@pytest.mark.alone
@pytest.mark.rows("X1")
def test_processes_that_write_all_the_time_leave_each_other_their_turns(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with apsw.Connection(str(path)) as connection:
        connection.execute("CREATE TABLE turns(name)")
    of_processes = multiprocessing.get_context("spawn")
    together = of_processes.Barrier(2)
    processes = [
        of_processes.Process(target=write_all_the_time, args=(path, name, together), daemon=True)
        for name in ("one", "another")
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    turns = [
        str(name) for (name,) in apsw.Connection(str(path)).execute("SELECT name FROM turns ORDER BY rowid")
    ]
    in_a_row = [len(list(turn)) for _, turn in itertools.groupby(turns)]
    assert max(in_a_row[:-1]) < MOST_IN_A_ROW  # the last one is what was written when the other had ended
