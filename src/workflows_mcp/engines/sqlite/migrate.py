"""The schema of the store, and how an older one becomes the present one."""

from __future__ import annotations

import apsw

from workflows_mcp.errors import StoreError

VERSION = 6
LAID_OUT_BYTES = 4 * 1024 * 1024

_FIRST = """
CREATE TABLE bundles(           -- what runs are pinned to, by content
  key TEXT PRIMARY KEY, body BLOB NOT NULL);

CREATE TABLE runs(
  id TEXT PRIMARY KEY,
  workflow TEXT NOT NULL,
  bundle TEXT NOT NULL REFERENCES bundles(key),
  request_id TEXT UNIQUE,
  request_digest TEXT,
  status TEXT NOT NULL,         -- running, idle (waits for an agent only), completed, failed, cancelled
  started_at REAL NOT NULL,
  changed_at REAL NOT NULL,
  owner TEXT,                   -- the process that drives it
  epoch INTEGER NOT NULL);      -- raised by every change of owner; a write with an older one is refused
CREATE INDEX runs_by_change ON runs(changed_at);
CREATE INDEX runs_to_drive ON runs(owner) WHERE status = 'running';

CREATE TABLE journal(           -- the events of a run, in batches
  run TEXT NOT NULL, position INTEGER NOT NULL, epoch INTEGER NOT NULL, events BLOB NOT NULL,
  PRIMARY KEY(run, position)) WITHOUT ROWID;

CREATE TABLE snapshots(         -- the state of a run after `position` events
  run TEXT PRIMARY KEY, position INTEGER NOT NULL, body BLOB NOT NULL);

CREATE TABLE owners(            -- the processes that drive runs, while they are alive
  id TEXT PRIMARY KEY, expires_at REAL NOT NULL,
  machine TEXT NOT NULL, pid INTEGER NOT NULL, born REAL NOT NULL);

CREATE TABLE inbox(             -- events for runs that another process drives
  id INTEGER PRIMARY KEY, run TEXT NOT NULL, event BLOB NOT NULL, answer TEXT);
"""

_SECOND = """
CREATE INDEX runs_by_workflow ON runs(workflow, changed_at);

CREATE TABLE forgotten(         -- positions of runs that nobody wants to be offered any more
  run TEXT NOT NULL, position INTEGER NOT NULL, PRIMARY KEY(run, position)) WITHOUT ROWID;

CREATE TABLE blobs(             -- large values of events and snapshots, each once, by content
  hash BLOB PRIMARY KEY, body BLOB NOT NULL);
"""

_THIRD = """
CREATE TABLE heard(             -- when somebody was last at work on a task of a run
  run TEXT NOT NULL, task TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY(run, task)) WITHOUT ROWID;
"""

_FOURTH = """
CREATE TABLE memory(            -- what is remembered beyond runs
  key TEXT PRIMARY KEY, value BLOB NOT NULL, changed_at REAL NOT NULL);
"""

_FIFTH = """
CREATE INDEX runs_ended ON runs(changed_at) WHERE status IN ('completed', 'failed', 'cancelled');

CREATE TABLE blob_runs(         -- which runs need which blobs; a blob without a run is deleted
  run TEXT NOT NULL, hash BLOB NOT NULL, PRIMARY KEY(run, hash)) WITHOUT ROWID;
CREATE INDEX blob_runs_by_hash ON blob_runs(hash);

CREATE TABLE unindexed(         -- runs of older versions whose blobs are not in blob_runs yet
  run TEXT PRIMARY KEY) WITHOUT ROWID;
INSERT INTO unindexed SELECT id FROM runs WHERE EXISTS (SELECT 1 FROM blobs);

CREATE TABLE pruned(            -- deleted runs of which rows are left
  run TEXT PRIMARY KEY) WITHOUT ROWID;

CREATE TABLE upkeep(            -- when a server last did a chore that one server at a time does
  chore TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID;
"""

_SIXTH = """
ALTER TABLE runs ADD COLUMN workspace TEXT;     -- where the process works that the run belongs to,
ALTER TABLE runs ADD COLUMN settings TEXT;      -- and the fingerprint of its settings; see `leases.ORPHANS`
ALTER TABLE runs ADD COLUMN forked_from TEXT;   -- the run that it was made of
CREATE INDEX runs_unfinished ON runs(changed_at) WHERE status IN ('running', 'idle');
"""

_STEPS = (_FIRST, _SECOND, _THIRD, _FOURTH, _FIFTH, _SIXTH)
"""What leads from each version to the next."""


def migrate(connection: apsw.Connection) -> None:
    """Bring the store to the present schema; refuse one that a newer version has written."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = int(connection.pragma("user_version") or 0)
        if found > VERSION:
            raise StoreError(
                f"the store of runs has version {found}, this program knows versions up to {VERSION}",
                hint="update workflows-mcp, or set WORKFLOWS_HOME to another directory",
            )
        for step in _STEPS[found:]:
            connection.execute(step)
        if found < VERSION:
            connection.pragma("user_version", VERSION)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    if found == 0:
        _lay_out(connection)


def _lay_out(connection: apsw.Connection) -> None:
    """Give a new store its files at working size: writing over what is there takes the disk a third less
    time than making a file longer, for every single commit. The pages are free to be used."""
    try:
        connection.execute("CREATE TABLE filler(bytes)")
        connection.execute("INSERT INTO filler VALUES(zeroblob(?))", (LAID_OUT_BYTES,))
        connection.execute("DROP TABLE filler")
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
    except apsw.BusyError:
        return  # another process is at work in the new store already: it is fine as it is
