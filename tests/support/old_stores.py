"""Stores as earlier versions of the program have left them."""

from __future__ import annotations

from pathlib import Path

import apsw

from workflows_mcp.engines.sqlite.store import MIGRATIONS

RENAMED = {"inbox": "mailbox", "heard": "heartbeats", "forgotten": "deleted_checkpoints"}
"""Tables that have another name today."""
RENAMED_COLUMNS = {("owners", "version"): "schema"}


def turn_back(store: Path, version: int) -> None:
    """Rewrite a store in the schema of an earlier version; what that version had no place for is lost."""
    newer = store.with_suffix(".newer")
    store.rename(newer)
    for suffix in ("-wal", "-shm"):
        log = store.with_name(store.name + suffix)
        if log.exists():
            log.rename(newer.with_name(newer.name + suffix))
    connection = apsw.Connection(str(store))
    connection.pragma("journal_mode", "wal")
    for migration in MIGRATIONS[:version]:
        connection.execute(migration)
    connection.execute("ATTACH ? AS newer", (str(newer),))
    tables = "SELECT name FROM main.sqlite_schema WHERE type = 'table'"
    for (table,) in connection.execute(tables).fetchall():
        source = RENAMED.get(str(table), table)
        names = [str(row[1]) for row in connection.execute(f"PRAGMA main.table_info({table})")]
        columns = ", ".join(names)
        found = ", ".join(RENAMED_COLUMNS.get((str(table), name), name) for name in names)
        connection.execute(f"INSERT INTO main.{table}({columns}) SELECT {found} FROM newer.{source}")
    connection.pragma("user_version", version)
    connection.close()
    newer.unlink()
