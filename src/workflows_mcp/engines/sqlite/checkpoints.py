"""Positions of runs that nobody wants to be offered any more. The events themselves stay."""

from __future__ import annotations

import apsw

from workflows_mcp.engines.sqlite import runs
from workflows_mcp.engines.sqlite.store import Store


async def forget(store: Store, run_id: str, position: int) -> None:
    """Raises UnknownRun where there is no such run."""

    def write(connection: apsw.Connection) -> bool:
        connection.execute(
            "INSERT OR IGNORE INTO forgotten SELECT id, ? FROM runs WHERE id = ?", (position, run_id)
        )
        return bool(connection.execute("SELECT 1 FROM runs WHERE id = ?", (run_id,)).fetchall())

    if not await store.write(write):
        raise runs.unknown(run_id)


def forgotten(store: Store, run_id: str) -> set[int]:
    """Raises UnknownRun where there is no such run."""
    rows = store.read(
        "SELECT forgotten.position FROM runs LEFT JOIN forgotten ON forgotten.run = runs.id"
        " WHERE runs.id = ?",
        (run_id,),
    )
    if not rows:
        raise runs.unknown(run_id)
    return {int(position) for (position,) in rows if position is not None}
