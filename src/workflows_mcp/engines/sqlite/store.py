"""The file: writes are made in groups, readers never wait.

A write is a function over the connection. All writes that one turn of the event loop brings share one
commit, so the price of durability is paid once for all of them, and every write is answered only after
the commit that holds it. On a fast disk the loop makes the commit itself, which is quicker than handing
it to a thread; as soon as commits take longer than the loop may be held up, or another process is
writing, the thread makes them.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import apsw

from workflows_mcp.errors import StoreError

# ----------------------------------------------------------------------------------------------------
# The schema of the store, and how an older one becomes the present one.


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


logger = logging.getLogger(__name__)


SAFE_TO_SHARE = (3, 51, 3)

"""Older versions of SQLite can corrupt a file in WAL mode that two connections write to."""

PATIENCE_SECONDS = 10.0

"""How long to wait for a turn while other processes are writing."""

HELD_UP_SECONDS = 0.001

"""How long a commit may take, on average, for the event loop to make it itself."""

_SLICE_SECONDS = 0.005

_SHORTEST_LOOK, _LONGEST_LOOK = 0.000_05, 0.001

_WEIGHT = 0.05

_IDLE_SECONDS = 0.5


Done = Callable[[Any, Exception | None], None]

T = TypeVar("T")


class Write(NamedTuple):
    action: Callable[[apsw.Connection], Any]
    done: Done
    single: bool
    """The action is one statement: alone in its group it needs no transaction around it."""


class Store:
    def __init__(self, path: Path, *, synchronous: str = "FULL") -> None:
        self.path = path
        self._writer = _writer(path, synchronous)
        self._reader = _connect(path, synchronous)
        self._keeper = _connect(path, synchronous)
        self._loop = asyncio.get_running_loop()
        self._pending: list[Write] = []
        self._taken = False
        """Whether somebody is about to write what is pending."""
        self._with_thread = 0
        """How many groups the thread has been given and has not answered."""
        self._average = 0.0
        self._heartbeat: tuple[float, Callable[[apsw.Connection], None]] | None = None
        self._queue: queue.SimpleQueue[list[Write] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def read(self, sql: str, values: tuple[Any, ...] = ()) -> list[Any]:
        try:
            return list(self._reader.execute(sql, values))
        except apsw.Error as error:
            raise _store_error(self.path, error) from error

    def data_version(self) -> int:
        """Changes whenever anybody else has written."""
        return int(self._reader.pragma("data_version"))

    def submit(self, action: Callable[[apsw.Connection], Any], done: Done, *, single: bool = False) -> None:
        """Write; `done(result, error)` is called on the event loop after the commit, in order."""
        self._pending.append(Write(action, done, single))
        if not self._taken:
            self._taken = True
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

    def beat(self, seconds: float, action: Callable[[apsw.Connection], None] | None) -> None:
        """Write `action` every so many seconds, whatever the event loop is busy with; None stops it."""
        self._heartbeat = None if action is None else (seconds, action)

    async def close(self) -> None:
        self._write_pending()
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)
        for connection in (self._reader, self._keeper, self._writer):
            connection.close()

    # Commits

    def _write_pending(self) -> None:
        """Write what has come, and what follows from it, for as long as the loop may be held up."""
        until = time.perf_counter() + _SLICE_SECONDS
        while self._pending:
            if time.perf_counter() > until:
                self._loop.call_soon(self._write_pending)
                return
            group, self._pending = self._pending, []
            if not self._with_thread and self._average < HELD_UP_SECONDS:
                results = self._commit(group, wait=False)
                if results is not None:
                    _answer(group, results)
                    continue
            self._with_thread += 1
            self._queue.put(group)
        self._taken = False

    def _commit(self, group: list[Write], *, wait: bool) -> list[tuple[Any, Exception | None]] | None:
        """Write a group. Without waiting: None when somebody else is writing at this moment."""
        connection = self._writer
        connection.set_busy_handler(_Patience() if wait else None)
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
            # That something is there already is no fault of the store, but news for whoever writes it.
            broken = isinstance(error, apsw.Error) and not isinstance(error, apsw.ConstraintError)
            failure = _store_error(self.path, error) if broken else error
            return [(None, failure)] * len(group)
        self._average += _WEIGHT * (time.perf_counter() - started - self._average)
        if self._has_moved():
            return [(None, _moved_error(self.path))] * len(group)
        return results

    def _has_moved(self) -> bool:
        """Whether the file was removed or replaced under us: then what was written into it is lost."""
        moved = ctypes.c_int(0)
        self._writer.file_control("main", apsw.SQLITE_FCNTL_HAS_MOVED, ctypes.addressof(moved))
        return bool(moved.value)

    def _try(self, write: Write, *, alone: bool) -> tuple[Any, Exception | None]:
        """One write of a group: its failure must not take the others with it."""
        if alone or write.single:
            return write.action(self._writer), None
        try:
            with self._writer:  # inside a transaction this is a savepoint
                result = write.action(self._writer)
        except Exception as error:
            return None, error
        return result, None

    # The thread: commits that take long, and heartbeats

    def _run(self) -> None:
        beat_at = 0.0
        while True:
            heartbeat = self._heartbeat
            if heartbeat is not None and time.monotonic() >= beat_at:
                beat_at = time.monotonic() + heartbeat[0]
                self._keep(heartbeat[1])
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
                return  # the loop has been closed: nobody is left to be told
            del group, results  # while waiting, nothing of a run that has ended is held

    def _thread_answered(self, group: list[Write], results: list[tuple[Any, Exception | None]]) -> None:
        self._with_thread -= 1
        _answer(group, results)

    def _keep(self, action: Callable[[apsw.Connection], None]) -> None:
        try:
            action(self._keeper)
        except apsw.Error:
            logger.warning("the store %s could not be looked after", self.path, exc_info=True)


class _Patience:
    """Waits for a turn, as a busy handler of SQLite. A commit takes a fraction of a millisecond, so it looks
    that often: SQLite's own one soon sleeps for a tenth of a second, and beside a process that writes all
    the time it would get no turn for seconds, in which a lease runs out."""

    def __init__(self) -> None:
        self._until = 0.0

    def __call__(self, tries: int) -> bool:
        now = time.monotonic()
        if tries == 0:
            self._until = now + PATIENCE_SECONDS
        if now >= self._until:
            return False
        # By chance, so that of several who wait none is always the one that comes too late.
        time.sleep(random.uniform(_SHORTEST_LOOK, min(_LONGEST_LOOK, _SHORTEST_LOOK * (tries + 1))))
        return True


def _answer(group: list[Write], results: list[tuple[Any, Exception | None]]) -> None:
    for write, (result, error) in zip(group, results, strict=True):
        try:
            write.done(result, error)
        except Exception:
            logger.exception("what follows a write has failed")


def check_store(path: Path) -> None:
    """Raises StoreError if no store can be opened there. Makes it if there is none."""
    _writer(path, "FULL").close()


def _writer(path: Path, synchronous: str) -> apsw.Connection:
    """A connection to a store of today's form, which is made or brought to it."""
    _refuse_old_sqlite()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # inputs and outputs are the user's own
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
        connection.set_busy_handler(_Patience())
        if path.stat().st_size == 0:
            connection.pragma("auto_vacuum", "incremental")  # only a new file takes it without a rewrite
        _set_wal(connection)
        connection.pragma("synchronous", synchronous)
        connection.pragma("journal_size_limit", 64 * 1024 * 1024)
        keep = ctypes.c_int(1)  # the log stays at its size when the last process closes the store
        connection.file_control("main", apsw.SQLITE_FCNTL_PERSIST_WAL, ctypes.addressof(keep))
    except apsw.Error as error:
        raise _store_error(path, error) from error
    return connection


def _set_wal(connection: apsw.Connection) -> None:
    """Two processes that make a new file at once are in each other's way, and SQLite does not wait for
    that."""
    patience = _Patience()
    tries = 0
    while True:
        try:
            connection.pragma("journal_mode", "wal")
            return
        except apsw.BusyError:
            if not patience(tries):
                raise
            tries += 1


def _store_error(path: Path, error: Exception) -> StoreError:
    hint = "check that the disk has space and that the directory is writable, or set WORKFLOWS_HOME"
    if isinstance(error, apsw.NotADBError | apsw.CorruptError):
        hint = "put the file back from a backup, or move it away for a new one; or set WORKFLOWS_HOME"
    return StoreError(f"the store of runs {path} cannot be used: {error}", hint=hint)


def _moved_error(path: Path) -> StoreError:
    return StoreError(
        f"the store of runs {path} was removed or replaced while this process used it: nothing is accepted",
        hint="put the file back and start the server again; or start it again to begin with a new store",
    )


def _refuse_old_sqlite() -> None:
    version = tuple(int(part) for part in apsw.sqlite_lib_version().split("."))
    if version < SAFE_TO_SHARE:
        needed = ".".join(map(str, SAFE_TO_SHARE))
        raise StoreError(
            f"SQLite {apsw.sqlite_lib_version()} can damage a store that two processes share",
            hint=f"it takes {needed} or later: install the wheel of apsw, which brings its own SQLite",
        )
