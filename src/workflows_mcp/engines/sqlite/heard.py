"""When somebody was last heard of who is at work on a task of a run: a note beside the run, not a fact of it,
so that it costs no place in the journal and a fork does not inherit it."""

from __future__ import annotations

import apsw

from workflows_mcp.engines.sqlite import runs
from workflows_mcp.engines.sqlite.store import Store


async def note(store: Store, run_id: str, task: str, at: float) -> None:
    """Raises UnknownRun where there is no such run."""

    def write(connection: apsw.Connection) -> bool:
        if not connection.execute("SELECT 1 FROM runs WHERE id = ?", (run_id,)).fetchall():
            return False
        connection.execute(
            "INSERT INTO heard VALUES(?, ?, ?) ON CONFLICT DO UPDATE SET at = max(at, excluded.at)",
            (run_id, task, at),
        )
        return True

    if not await store.write(write):
        raise runs.unknown(run_id)


def notes(store: Store, run_id: str) -> dict[str, float]:
    return {
        str(task): float(at) for task, at in store.read("SELECT task, at FROM heard WHERE run = ?", (run_id,))
    }
