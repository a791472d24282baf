"""The SQLite file that holds runs: grouped writes, reads without locks, schema migrations.

    await store.write(lambda connection: leases.leave(connection, owner))
    store.read("SELECT status FROM runs WHERE id = ?", (run_id,))

A write is a function over the connection. All writes of one turn of the event loop share one commit, so
they pay for durability once, and each is answered only after its commit. On a fast disk the event loop
commits by itself, which is quicker than handing the group to a thread. When commits become slow, or
another process is writing, the writer thread commits instead.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import apsw

from workflows_mcp.errors import StoreError

logger = logging.getLogger(__name__)

SAFE_TO_SHARE = (3, 51, 3)
"""Older versions of SQLite can corrupt a file in WAL mode that two connections write to."""
BUSY_SECONDS = 10.0
"""How long to wait while other processes are writing."""
FAST_COMMIT_SECONDS = 0.001
"""The event loop commits by itself while commits take less than this on average."""
_SLICE_SECONDS = 0.005
"""How long the event loop commits before other tasks get their turn."""
_SHORTEST_SLEEP, _LONGEST_SLEEP = 0.000_05, 0.001
_WEIGHT = 0.05
"""The weight of the latest commit in the average."""
_IDLE_SECONDS = 0.5

Done = Callable[[Any, Exception | None], None]
T = TypeVar("T")


class Write(NamedTuple):
    action: Callable[[apsw.Connection], Any]
    done: Done
    single: bool
    """The action is one statement: alone in its group it needs no transaction around it."""


class Store:
    """Three connections to one file: for writes, for reads, and for renewals of leases."""

    def __init__(self, path: Path, *, synchronous: str = "FULL") -> None:
        self.path = path
        self._writer = _writer(path, synchronous)
        self._reader = _connect(path, synchronous)
        self._lease_connection = _connect(path, synchronous)
        self._loop = asyncio.get_running_loop()
        self._pending: list[Write] = []
        self._scheduled = False
        """Whether `_write_pending` is scheduled or running."""
        self._with_thread = 0
        """How many groups the writer thread has not answered yet."""
        self._average = 0.0
        self._lease_renewal: tuple[float, Callable[[apsw.Connection], None]] | None = None
        self._queue: queue.SimpleQueue[list[Write] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def read(self, sql: str, values: tuple[Any, ...] = ()) -> list[Any]:
        try:
            return list(self._reader.execute(sql, values))
        except apsw.Error as error:
            raise _store_error(self.path, error) from error

    def read_together(self, queries: Sequence[str], values: tuple[Any, ...] = ()) -> list[list[Any]]:
        """Run several queries on the same state of the store, each with the same values."""
        try:
            self._reader.execute("BEGIN")
            try:
                return [list(self._reader.execute(sql, values)) for sql in queries]
            finally:
                self._reader.execute("COMMIT")
        except apsw.Error as error:
            raise _store_error(self.path, error) from error

    def data_version(self) -> int:
        """A number that changes when another connection has written."""
        return int(self._reader.pragma("data_version"))

    def submit(self, action: Callable[[apsw.Connection], Any], done: Done, *, single: bool = False) -> None:
        """Write; `done(result, error)` is called on the event loop after the commit, in order."""
        self._pending.append(Write(action, done, single))
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._write_pending)

    async def write(self, action: Callable[[apsw.Connection], T]) -> T:
        future: asyncio.Future[T] = self._loop.create_future()

        def done(result: T, error: Exception | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.submit(action, done)
        return await future

    def set_lease_renewal(self, seconds: float, action: Callable[[apsw.Connection], None] | None) -> None:
        """Run `action` in the writer thread every `seconds`, even if the event loop is blocked.

        None stops it."""
        self._lease_renewal = None if action is None else (seconds, action)

    async def close(self) -> None:
        self._write_pending()
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)
        for connection in (self._reader, self._lease_connection, self._writer):
            connection.close()

    # Commits

    def _write_pending(self) -> None:
        """Write the pending groups, and those that follow from them, for one slice of time."""
        until = time.perf_counter() + _SLICE_SECONDS
        while self._pending:
            if time.perf_counter() > until:
                self._loop.call_soon(self._write_pending)
                return
            group, self._pending = self._pending, []
            if not self._with_thread and self._average < FAST_COMMIT_SECONDS:
                results = self._commit(group, wait=False)
                if results is not None:
                    _answer(group, results)
                    continue
            self._with_thread += 1
            self._queue.put(group)
        self._scheduled = False

    def _commit(self, group: list[Write], *, wait: bool) -> list[tuple[Any, Exception | None]] | None:
        """Write a group. With `wait=False`, return None if another process is writing."""
        connection = self._writer
        connection.set_busy_handler(_BusyHandler() if wait else None)
        started = time.perf_counter()
        try:
            if len(group) == 1 and group[0].single:
                results: list[tuple[Any, Exception | None]] = [(group[0].action(connection), None)]
            else:
                connection.execute("BEGIN IMMEDIATE")
                results = [self._try(write, alone=len(group) == 1) for write in group]
                connection.execute("COMMIT")
        except Exception as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if isinstance(error, apsw.BusyError) and not wait:
                return None
            # A violated constraint is not a broken store: the caller of the write handles it.
            broken = isinstance(error, apsw.Error) and not isinstance(error, apsw.ConstraintError)
            failure = _store_error(self.path, error) if broken else error
            return [(None, failure)] * len(group)
        self._average += _WEIGHT * (time.perf_counter() - started - self._average)
        if self._has_moved():
            return [(None, _moved_error(self.path))] * len(group)
        return results

    def _has_moved(self) -> bool:
        """Whether the file was removed or replaced while it was open: then its writes are lost."""
        moved = ctypes.c_int(0)
        self._writer.file_control("main", apsw.SQLITE_FCNTL_HAS_MOVED, ctypes.addressof(moved))
        return bool(moved.value)

    def _try(self, write: Write, *, alone: bool) -> tuple[Any, Exception | None]:
        """Run one write of a group; its failure does not undo the others."""
        if alone or write.single:
            return write.action(self._writer), None
        try:
            with self._writer:  # inside a transaction this is a savepoint
                result = write.action(self._writer)
        except Exception as error:
            return None, error
        return result, None

    # The writer thread: slow commits, and renewals of leases

    def _run(self) -> None:
        due = 0.0
        while True:
            renewal = self._lease_renewal
            if renewal is not None and time.monotonic() >= due:
                due = time.monotonic() + renewal[0]
                self._renew_lease(renewal[1])
            try:
                group = self._queue.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                continue
            if group is None:
                return
            results = self._commit(group, wait=True) or []
            try:
                self._loop.call_soon_threadsafe(self._thread_answered, group, results)
            except RuntimeError:
                return  # the event loop is closed
            del group, results  # keep no memory of ended runs while waiting

    def _thread_answered(self, group: list[Write], results: list[tuple[Any, Exception | None]]) -> None:
        self._with_thread -= 1
        _answer(group, results)

    def _renew_lease(self, action: Callable[[apsw.Connection], None]) -> None:
        try:
            action(self._lease_connection)
        except apsw.Error:
            logger.warning("cannot renew the lease in the store %s", self.path, exc_info=True)


class _BusyHandler:
    """A busy handler that retries within a millisecond.

    A commit takes a fraction of a millisecond. SQLite's own handler soon sleeps for a tenth of a second:
    next to a process that writes all the time it would wait for seconds, and a lease would expire."""

    def __init__(self) -> None:
        self._until = 0.0

    def __call__(self, tries: int) -> bool:
        now = time.monotonic()
        if tries == 0:
            self._until = now + BUSY_SECONDS
        if now >= self._until:
            return False
        # A random time, so that of several waiting processes none always comes too late.
        time.sleep(random.uniform(_SHORTEST_SLEEP, min(_LONGEST_SLEEP, _SHORTEST_SLEEP * (tries + 1))))
        return True


def _answer(group: list[Write], results: list[tuple[Any, Exception | None]]) -> None:
    for write, (result, error) in zip(group, results, strict=True):
        try:
            write.done(result, error)
        except Exception:
            logger.exception("a callback failed after a write")


def check_store(path: Path) -> None:
    """Open the store, or create it. Raises StoreError if that fails."""
    _writer(path, "FULL").close()


def _writer(path: Path, synchronous: str) -> apsw.Connection:
    """A connection to a store with the current schema; creates or migrates it."""
    _refuse_old_sqlite()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # inputs and outputs are private
    except OSError as error:
        raise _store_error(path, error) from error
    connection = _connect(path, synchronous)
    try:
        migrate(connection)
    except apsw.Error as error:
        connection.close()
        raise _store_error(path, error) from error
    return connection


def _connect(path: Path, synchronous: str) -> apsw.Connection:
    try:
        connection = apsw.Connection(str(path))
        connection.set_busy_handler(_BusyHandler())
        if path.stat().st_size == 0:
            connection.pragma("auto_vacuum", "incremental")  # later it would take a rewrite of the file
        _set_wal(connection)
        connection.pragma("synchronous", synchronous)
        connection.pragma("journal_size_limit", 64 * 1024 * 1024)
        persist = ctypes.c_int(1)  # the log keeps its size when the last process closes the store
        connection.file_control("main", apsw.SQLITE_FCNTL_PERSIST_WAL, ctypes.addressof(persist))
    except apsw.Error as error:
        raise _store_error(path, error) from error
    return connection


def _set_wal(connection: apsw.Connection) -> None:
    """Set WAL mode; retry while another process creates the same file, where SQLite does not wait."""
    busy = _BusyHandler()
    tries = 0
    while True:
        try:
            connection.pragma("journal_mode", "wal")
            return
        except apsw.BusyError:
            if not busy(tries):
                raise
            tries += 1


def _store_error(path: Path, error: Exception) -> StoreError:
    hint = "check that the disk has space and that the directory is writable, or set WORKFLOWS_HOME"
    if isinstance(error, apsw.NotADBError | apsw.CorruptError):
        hint = "restore the file from a backup, move it away to start a new one, or set WORKFLOWS_HOME"
    return StoreError(f"the store of runs {path} cannot be used: {error}", hint=hint)


def _moved_error(path: Path) -> StoreError:
    return StoreError(
        f"the store of runs {path} was removed or replaced while this process used it: writes are rejected",
        hint="restore the file and restart the server; or restart it to begin with a new store",
    )


def _refuse_old_sqlite() -> None:
    version = tuple(int(part) for part in apsw.sqlite_lib_version().split("."))
    if version < SAFE_TO_SHARE:
        needed = ".".join(map(str, SAFE_TO_SHARE))
        raise StoreError(
            f"SQLite {apsw.sqlite_lib_version()} can damage a store that two processes share",
            hint=f"{needed} or later is needed: install the apsw wheel, which includes its own SQLite",
        )


# ----------------------------------------------------------------------------------------------------
# The schema, and the migrations that lead to it


VERSION = 8

PREALLOCATED_BYTES = 4 * 1024 * 1024

_VERSION_1 = """
CREATE TABLE bundles(           -- the plans that runs are pinned to, by content
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
  epoch INTEGER NOT NULL);      -- incremented when the owner changes; a write with an older one is refused
CREATE INDEX runs_by_change ON runs(changed_at);
CREATE INDEX runs_to_drive ON runs(owner) WHERE status = 'running';

CREATE TABLE journal(           -- the events of a run, in batches
  run TEXT NOT NULL, position INTEGER NOT NULL, epoch INTEGER NOT NULL, events BLOB NOT NULL,
  PRIMARY KEY(run, position)) WITHOUT ROWID;

CREATE TABLE snapshots(         -- the state of a run after `position` events
  run TEXT PRIMARY KEY, position INTEGER NOT NULL, body BLOB NOT NULL);

CREATE TABLE owners(            -- the leases of processes that drive runs
  id TEXT PRIMARY KEY, expires_at REAL NOT NULL,
  machine TEXT NOT NULL, pid INTEGER NOT NULL, born REAL NOT NULL);

CREATE TABLE inbox(             -- `mailbox` since version 7
  id INTEGER PRIMARY KEY, run TEXT NOT NULL, event BLOB NOT NULL, answer TEXT);
"""

_VERSION_2 = """
CREATE INDEX runs_by_workflow ON runs(workflow, changed_at);

CREATE TABLE forgotten(         -- `deleted_checkpoints` since version 7
  run TEXT NOT NULL, position INTEGER NOT NULL, PRIMARY KEY(run, position)) WITHOUT ROWID;

CREATE TABLE blobs(             -- large values of events and snapshots, each once, by content
  hash BLOB PRIMARY KEY, body BLOB NOT NULL);
"""

_VERSION_3 = """
CREATE TABLE heard(             -- `heartbeats` since version 7
  run TEXT NOT NULL, task TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY(run, task)) WITHOUT ROWID;
"""

_VERSION_4 = """
CREATE TABLE memory(            -- values that outlive runs
  key TEXT PRIMARY KEY, value BLOB NOT NULL, changed_at REAL NOT NULL);
"""

_VERSION_5 = """
CREATE INDEX runs_ended ON runs(changed_at) WHERE status IN ('completed', 'failed', 'cancelled');

CREATE TABLE blob_runs(         -- which runs need which blobs; a blob without a run is deleted
  run TEXT NOT NULL, hash BLOB NOT NULL, PRIMARY KEY(run, hash)) WITHOUT ROWID;
CREATE INDEX blob_runs_by_hash ON blob_runs(hash);

CREATE TABLE unindexed(         -- runs of older versions whose blobs are not in blob_runs yet
  run TEXT PRIMARY KEY) WITHOUT ROWID;
INSERT INTO unindexed SELECT id FROM runs WHERE EXISTS (SELECT 1 FROM blobs);

CREATE TABLE pruned(            -- deleted runs that still have rows in other tables
  run TEXT PRIMARY KEY) WITHOUT ROWID;

CREATE TABLE upkeep(            -- when a server last did a chore that one server at a time does
  chore TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID;
"""

_VERSION_6 = """
ALTER TABLE runs ADD COLUMN workspace TEXT;     -- the workspace of the process that started the run,
ALTER TABLE runs ADD COLUMN settings TEXT;      -- and the fingerprint of its settings: `runs.WorkspaceKey`
ALTER TABLE runs ADD COLUMN forked_from TEXT;   -- the run that it is a fork of
CREATE INDEX runs_unfinished ON runs(changed_at) WHERE status IN ('running', 'idle');
"""

# A process of an older version that has the file open does not know the new names. The new column of
# `owners` keeps it from renewing its lease, so it loses its runs instead of driving them half-blind.
_VERSION_7 = """
ALTER TABLE inbox RENAME TO mailbox;                    -- events for runs that another process drives
ALTER TABLE heard RENAME TO heartbeats;                 -- when the agent of a task was last active
ALTER TABLE forgotten RENAME TO deleted_checkpoints;    -- positions that are not listed any more
ALTER TABLE owners ADD COLUMN version INTEGER;          -- the version of the schema that it works with
"""

# A process of version 7 would write events without hashes: the new name keeps it from renewing its lease.
_VERSION_8 = """
ALTER TABLE journal ADD COLUMN hashes BLOB;             -- the hash of each event: `machine/chain.py`
ALTER TABLE runs ADD COLUMN events INTEGER;             -- how many events it had when the row was written,
ALTER TABLE runs ADD COLUMN head BLOB;                  -- and the hash of the last of them
ALTER TABLE owners RENAME COLUMN version TO schema;
"""

MIGRATIONS = (
    _VERSION_1, _VERSION_2, _VERSION_3, _VERSION_4, _VERSION_5, _VERSION_6, _VERSION_7, _VERSION_8
)  # fmt: skip
"""The SQL that leads from each version to the next."""


def migrate(connection: apsw.Connection) -> None:
    """Bring the store to the current schema; refuse one that a newer version has written."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = int(connection.pragma("user_version") or 0)
        if found > VERSION:
            raise StoreError(
                f"the store of runs has version {found}, this program knows versions up to {VERSION}",
                hint="update workflows-mcp, or set WORKFLOWS_HOME to another directory",
            )
        for migration in MIGRATIONS[found:]:
            connection.execute(migration)
        if found < VERSION:
            connection.pragma("user_version", VERSION)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    if found == 0:
        _preallocate(connection)


def _preallocate(connection: apsw.Connection) -> None:
    """Fill a new store with free pages: a commit that overwrites is a third faster than one that appends."""
    try:
        connection.execute("CREATE TABLE filler(bytes)")
        connection.execute("INSERT INTO filler VALUES(zeroblob(?))", (PREALLOCATED_BYTES,))
        connection.execute("DROP TABLE filler")
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
    except apsw.BusyError:
        return  # another process uses the new store already: it is fine as it is
