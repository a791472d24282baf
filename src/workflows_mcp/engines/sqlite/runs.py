"""Creates and reads the rows of runs, their journals, and what is stored in no journal.

create(connection, new_run, owner)                          # one row in `runs`
machine, large = read(store, bundles, run_id, limits)       # the latest snapshot, and the events since
RunJournal(store, lease, clock, run_id, epoch).append(...)  # where the driver of a run writes
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import apsw
import msgspec

from workflows_mcp.engines.audit import StoredSnapshot, audit_of
from workflows_mcp.engines.base import RunSummary
from workflows_mcp.engines.clock import Clock
from workflows_mcp.engines.executor import Executor
from workflows_mcp.engines.sqlite import leases
from workflows_mcp.engines.sqlite.store import Store
from workflows_mcp.engines.values import (
    Batch,
    Fetch,
    LargeValues,
    check_key,
    full,
    packed,
    split_events,
    unpacked,
)
from workflows_mcp.errors import Damaged, LeaseLost, RequestError, UnknownRun
from workflows_mcp.limits import Limits
from workflows_mcp.machine import (
    HASH_BYTES,
    Audit,
    Chain,
    Event,
    Machine,
    Mismatch,
    Recorded,
    StoredBatch,
    check_chain,
)
from workflows_mcp.plan import Bundle, bundle_key, decode_bundle, encode_bundle
from workflows_mcp.values import Value, to_json

_UNFINISHED = ("running", "idle")
_SUMMARY = (
    "SELECT id, workflow, status, started_at, changed_at, ifnull(forked_from, ''), ifnull(workspace, '')"
    " FROM runs"
)


@dataclass(frozen=True, slots=True)
class Request:
    """An idempotency key: the id of a request, and the digest of its arguments."""

    id: str
    digest: str

    @classmethod
    def of(cls, request_id: str, bundle: Bundle, inputs: dict[str, Value]) -> Request:
        body = to_json([bundle.main, inputs]).encode()
        return cls(request_id, hashlib.blake2b(body, digest_size=12).hexdigest())


class WorkspaceKey(NamedTuple):
    """Identifies the processes that recover a run after a crash: those with this workspace and settings."""

    workspace: str
    settings: str
    """A fingerprint of the settings that decide what steps may do, and where."""


@dataclass(frozen=True, slots=True)
class NewRun:
    run_id: str
    workflow: str
    bundle_key: str
    bundle: bytes
    request: Request | None
    started_at: float
    at: float
    """When the row is created; `started_at` of a fork is that of the original run."""
    workspace_key: WorkspaceKey
    forked_from: str = ""


class BundleCache:
    """Bundles by key, decoded once; runs of the same workflow share one."""

    def __init__(self, size: int = 64) -> None:
        self._bundles: OrderedDict[str, Bundle] = OrderedDict()
        self._encoded: OrderedDict[int, tuple[Bundle, str, bytes]] = OrderedDict()
        self._size = size

    def put(self, bundle: Bundle) -> tuple[str, bytes]:
        known = self._encoded.get(id(bundle))
        if known is not None and known[0] is bundle:
            return known[1], known[2]
        body = encode_bundle(bundle)
        key = bundle_key(bundle)
        self._encoded[id(bundle)] = (bundle, key, body)
        self._bundles[key] = bundle
        for cache in (self._encoded, self._bundles):
            if len(cache) > self._size:
                cache.popitem(last=False)
        return key, body

    def get(self, store: Store, key: str) -> Bundle:
        bundle = self._bundles.get(key)
        if bundle is None:
            bundle = decode_bundle(store.read("SELECT body FROM bundles WHERE key = ?", (key,))[0][0])
            self._bundles[key] = bundle
            if len(self._bundles) > self._size:
                self._bundles.popitem(last=False)
        return bundle


def create(connection: apsw.Connection, run: NewRun, owner: str) -> None:
    connection.execute("INSERT OR IGNORE INTO bundles VALUES(?, ?)", (run.bundle_key, run.bundle))
    request = (run.request.id, run.request.digest) if run.request is not None else (None, None)
    connection.execute(
        "INSERT INTO runs(id, workflow, bundle, request_id, request_digest, status, started_at, changed_at,"
        " workspace, settings, forked_from, owner, epoch)"
        " VALUES(?, ?, ?, ?, ?, 'running', ?, ?, ?, ?, ?, ?, 1)",
        (
            run.run_id, run.workflow, run.bundle_key, *request, run.started_at, run.at,
            *run.workspace_key, run.forked_from or None, owner,
        ),
    )  # fmt: skip
    if run.forked_from:
        _share_blobs(connection, run.forked_from, run.run_id)


def _share_blobs(connection: apsw.Connection, origin: str, fork: str) -> None:
    """Record that a fork needs the blobs of its origin. Raises UnknownRun if the origin was deleted."""
    if not connection.execute("SELECT 1 FROM runs WHERE id = ?", (origin,)).fetchall():
        raise unknown(origin)
    copies = (fork, origin)
    connection.execute("INSERT INTO blob_runs SELECT ?, hash FROM blob_runs WHERE run = ?", copies)
    connection.execute("INSERT OR IGNORE INTO unindexed SELECT ? FROM unindexed WHERE run = ?", copies)


class Row(NamedTuple):
    """The row of a run, as far as it says who drives the run."""

    status: str
    owner: str | None
    epoch: int
    workspace: str | None
    """None if an older version started the run."""
    settings: str | None


def row_of(store: Store, run_id: str) -> Row | None:
    rows = store.read("SELECT status, owner, epoch, workspace, settings FROM runs WHERE id = ?", (run_id,))
    return Row(*rows[0]) if rows else None


def why_not_recovered_here(store: Store, run_id: str, workspace_key: WorkspaceKey) -> str:
    """Explain why processes with this key do not recover a run on their own; empty if they do."""
    row = row_of(store, run_id)
    if row is None or row.workspace is None or (row.workspace, row.settings) == workspace_key:
        return ""
    with_settings = "" if row.workspace != workspace_key.workspace else " with other settings"
    return f"it was started in {row.workspace}{with_settings}"


def move(connection: apsw.Connection, run_id: str, workspace_key: WorkspaceKey) -> None:
    """Give a run another workspace key."""
    connection.execute("UPDATE runs SET workspace = ?, settings = ? WHERE id = ?", (*workspace_key, run_id))


def large_values(store: Store, run_id: str, limits: Limits) -> LargeValues:
    return LargeValues(run_id, limits.inline_bytes, blob_reader(store))


def blob_reader(store: Store) -> Fetch:
    def fetch(digest: bytes) -> bytes | None:
        rows = store.read("SELECT body FROM blobs WHERE hash = ?", (digest,))
        return rows[0][0] if rows else None

    return fetch


def read(store: Store, bundles: BundleCache, run_id: str, limits: Limits) -> tuple[Machine, LargeValues]:
    """Read a run: its latest snapshot, and the events since."""
    rows = store.read(
        "SELECT runs.bundle, snapshots.position, snapshots.body FROM runs"
        " LEFT JOIN snapshots ON snapshots.run = runs.id WHERE runs.id = ?",
        (run_id,),
    )
    if not rows:
        raise unknown(run_id)
    key, position, snapshot = rows[0]
    large = large_values(store, run_id, limits)
    state = large.restore(snapshot) if snapshot is not None else None
    machine = Machine(bundles.get(store, key), state)
    for event in _events(store, run_id, position or 0, large):
        machine.apply(event)
    return machine, large


def journal(
    store: Store, bundles: BundleCache, run_id: str, limits: Limits, after: int = 0
) -> tuple[Bundle, list[Event], LargeValues]:
    """The bundle that a run is pinned to, and its events after the first `after` ones."""
    rows = store.read("SELECT bundle FROM runs WHERE id = ?", (run_id,))
    if not rows:
        raise unknown(run_id)
    large = large_values(store, run_id, limits)
    [(start,)] = store.read(
        "SELECT max(position) FROM journal WHERE run = ? AND position <= ?", (run_id, after)
    )
    first = int(start or 0)
    events = list(_events(store, run_id, first, large))
    return bundles.get(store, rows[0][0]), events[after - first :], large


def _events(store: Store, run_id: str, position: int, large: LargeValues) -> Iterator[Event]:
    """The events of a run from a position on. Batches end where snapshots are made."""
    batches = store.read(
        "SELECT position, events FROM journal WHERE run = ? AND position >= ? ORDER BY position",
        (run_id, position),
    )
    for first, body in batches:
        if first != position:
            raise Damaged(f"the journal of the run {run_id} has a gap after {position} events")
        events = large.decode_events(body)
        position += len(events)
        yield from events


def chain_of(store: Store, run_id: str) -> Chain:
    """The hash chain of a run, to be continued by the process that drives it."""
    [(key, position)] = store.read(
        "SELECT bundle, (SELECT max(position) FROM journal WHERE run = id) FROM runs WHERE id = ?", (run_id,)
    )
    last = store.read("SELECT events, hashes FROM journal WHERE run = ? AND position = ?", (run_id, position))
    if last and last[0][1]:
        return Chain(last[0][1][-HASH_BYTES:])
    unhashed = int(position) + len(split_events(last[0][0])) if last else 0
    return Chain.begin(run_id, key, unhashed)  # an earlier version wrote the events before


def audit(store: Store, run_id: str) -> Audit:
    """Check the journal of a run, and all that is stored with it."""
    rows, snapshots, batches = store.read_together(
        (
            "SELECT runs.bundle, bundles.body, status, runs.events, head FROM runs"
            " LEFT JOIN bundles ON key = runs.bundle WHERE id = ?",
            "SELECT position, body FROM snapshots WHERE run = ?",
            "SELECT position, events, hashes FROM journal WHERE run = ? ORDER BY position",
        ),
        (run_id,),
    )
    if not rows:
        raise unknown(run_id)
    key, body, status, count, head = rows[0]
    stored = [
        StoredBatch(int(position), _bodies(events, hashes), hashes) for position, events, hashes in batches
    ]
    recorded = Recorded(int(count), head or b"", status not in _UNFINISHED) if count is not None else None
    snapshot = StoredSnapshot(*snapshots[0]) if snapshots else None
    found = audit_of(
        run_id, _definition(run_id, body), key, stored, blob_reader(store), recorded,
        snapshot=snapshot, status=status,
    )  # fmt: skip
    return _with_other_definition(store, run_id, found, stored)


def _bodies(batch: bytes, hashes: bytes | None) -> list[bytes]:
    """The encoded events of a batch; of one that is damaged, as many as it has hashes."""
    try:
        return split_events(batch)
    except msgspec.DecodeError:
        return [batch, *[b""] * (len(hashes or b"") // HASH_BYTES - 1)]


def _definition(run_id: str, body: bytes | None) -> Bundle:
    try:
        return decode_bundle(body or b"")
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError) as error:
        raise Damaged(f"cannot read the definition of the run {run_id}: {error}") from None


def _with_other_definition(store: Store, run_id: str, found: Audit, stored: Sequence[StoredBatch]) -> Audit:
    """Recognise a run that was pinned to another definition after it had started."""
    first = found.mismatches[0] if found.mismatches else None
    if first is None or first.kind != "edited" or first.event != 1:
        return found
    for (key,) in store.read("SELECT key FROM bundles"):
        if check_chain(stored, partial(Chain.begin, run_id, key)).mismatch is None:
            message = f"the run was started with another definition: {key}"
            mismatches = [Mismatch("definition", message), *found.mismatches[1:]]
            return msgspec.structs.replace(found, mismatches=mismatches)
    return found


def proof_of(store: Store, run_id: str) -> str:
    """The last hash of a run that has ended, in hex; empty before, or if it has none."""
    rows = store.read("SELECT head FROM runs WHERE id = ? AND status NOT IN ('running', 'idle')", (run_id,))
    return rows[0][0].hex() if rows and rows[0][0] else ""


def position_of(store: Store, run_id: str) -> tuple[int, int]:
    """Numbers that change when a run gets events or another owner."""
    rows = store.read(
        "SELECT epoch, (SELECT max(position) FROM journal WHERE run = runs.id) FROM runs WHERE id = ?",
        (run_id,),
    )
    if not rows:
        raise unknown(run_id)
    return int(rows[0][0]), int(rows[0][1] or 0)


def started_by(store: Store, request: Request) -> str | None:
    """The run that a request has started. Raises RequestError if the same id came with other arguments."""
    rows = store.read("SELECT id, request_digest FROM runs WHERE request_id = ?", (request.id,))
    if not rows:
        return None
    run_id, digest = str(rows[0][0]), str(rows[0][1])
    if digest != request.digest:
        raise RequestError(
            f"the request_id '{request.id}' has started something else: the run {run_id}",
            hint="use a new request_id for a new run; the same one only to repeat the same call",
        )
    return run_id


def unknown(run_id: str) -> UnknownRun:
    return UnknownRun(
        f"there is no run '{run_id}'",
        hint="get_workflow_status(), or workflows-mcp runs, lists the recent ones",
    )


# ----------------------------------------------------------------------------------------------------
# The journal of a run


Done = Callable[[Exception | None], None]

CHANGED_SECONDS = 1.0
"""`changed_at` of a run may lag by this many seconds, because updating it costs a write."""

_APPEND = """
INSERT OR IGNORE INTO journal(run, position, epoch, events, hashes)
SELECT ?1, ?2, ?3, ?4, ?6
WHERE EXISTS (SELECT 1 FROM runs WHERE id = ?1 AND epoch = ?3 AND (owner IS NULL OR owner = ?5))
"""


class RunJournal:
    """Writes the events of one run under one lease."""

    def __init__(self, store: Store, lease: leases.Lease, clock: Clock, run_id: str, epoch: int) -> None:
        self._store = store
        self._lease = lease
        self._owner = lease.owner.id
        self._clock = clock
        self.run_id = run_id
        self.epoch = epoch
        self.created: NewRun | None = None
        """The row of a new run, which the first batch creates."""
        self.claims = False
        """Whether the first batch claims an idle run."""
        self._status = "running"
        self._changed_at = 0.0
        """The last `changed_at` that was written."""
        self._lapses = lease.lapses
        self._lost = False
        """Whether another process owns the run: all writes are refused."""

    def append(self, batch: Batch, done: Done) -> None:
        created, self.created = self.created, None
        claims, self.claims = self.claims, False
        plain = (
            created is None
            and not claims
            and batch.snapshot is None
            and batch.status == self._status == "running"
            and batch.at < self._changed_at + CHANGED_SECONDS
        )
        if not plain:
            self._status, self._changed_at = batch.status, batch.at

        def write(connection: apsw.Connection) -> None:
            if created is not None or claims:
                self._lease.renew_if_due(connection, self._clock.now())
                self._lapses = self._lease.lapses
            if created is not None:
                create(connection, created, self._owner)
            elif claims:
                leases.claim_idle(connection, self.run_id, self._owner, self.epoch)
            self.write_events(connection, batch)
            if not plain:
                self.write_state(connection, batch)

        self._submit(write, done, single=plain and not batch.blobs)

    async def write(self, batch: Batch) -> None:
        """Write a batch; when this returns, it is committed."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: Exception | None) -> None:
            if error is not None:
                written.set_exception(error)
            else:
                written.set_result(None)

        self.append(batch, done)
        await written

    def write_events(self, connection: apsw.Connection, batch: Batch) -> None:
        """Write the events of a batch. Raises LeaseLost if the run has another owner or epoch."""
        values = (self.run_id, batch.position, self.epoch, batch.events, self._owner, batch.hashes)
        connection.execute(_APPEND, values)
        if connection.changes() != 1:
            raise leases.lost(self.run_id)
        if batch.blobs:
            connection.executemany("INSERT OR IGNORE INTO blobs VALUES(?, ?)", batch.blobs)
            needed = [(self.run_id, blob.hash) for blob in batch.blobs]
            connection.executemany("INSERT OR IGNORE INTO blob_runs VALUES(?, ?)", needed)

    def write_state(self, connection: apsw.Connection, batch: Batch) -> None:
        """Write the status after a batch, and its snapshot; only a running run has an owner."""
        owner = self._owner if batch.status == "running" else None
        connection.execute(
            "UPDATE runs SET status = ?, changed_at = ?, owner = ?, events = ?, head = ?"
            " WHERE id = ? AND epoch = ?",
            (
                batch.status,
                batch.at,
                owner,
                batch.position + batch.count,
                batch.hashes[-HASH_BYTES:],
                self.run_id,
                self.epoch,
            ),
        )
        if batch.snapshot is not None:
            connection.execute(
                "INSERT INTO snapshots VALUES(?, ?, ?) ON CONFLICT(run) DO UPDATE"
                " SET position = excluded.position, body = excluded.body",
                (self.run_id, batch.position + batch.count, batch.snapshot),
            )

    def in_force(self) -> bool:
        return self._lease.in_force_since(self._lapses)

    def confirm(self, done: Done) -> None:
        def check(connection: apsw.Connection) -> None:
            ours = "SELECT 1 FROM runs WHERE id = ? AND epoch = ? AND owner = ?"
            if not connection.execute(ours, (self.run_id, self.epoch, self._owner)).fetchall():
                raise leases.lost(self.run_id)
            self._lease.renew(connection, self._clock.now())
            self._lapses = self._lease.lapses

        self._submit(check, done, single=False)

    def _submit(self, write: Callable[[apsw.Connection], None], done: Done, *, single: bool) -> None:
        def guarded(connection: apsw.Connection) -> Exception | None:
            """Return the errors of this run, so that they do not undo other writes of the group."""
            try:
                if self._lost:
                    raise leases.lost(self.run_id)
                write(connection)
            except (LeaseLost, apsw.ConstraintError) as error:
                self._lost = True
                return error
            return None

        self._store.submit(guarded, lambda result, error: done(error or result), single=single)


# ----------------------------------------------------------------------------------------------------
# What an engine reads and writes itself, whichever process drives a run


class StoredRuns:
    """The methods of the engine that need only the store: lists of runs, the memory, and notes about runs.

    Notes are heartbeats and deleted checkpoints. They are no events: a fork does not inherit them."""

    store: Store
    _executor: Executor
    _clock: Clock
    _recovers: bool
    _workspace_key: WorkspaceKey

    async def recent(self, limit: int, workflow: str | None = None) -> list[RunSummary]:
        which, values = ("", (limit,)) if workflow is None else ("WHERE workflow = ? ", (workflow, limit))
        rows = self.store.read(f"{_SUMMARY} {which}ORDER BY changed_at DESC LIMIT ?", values)
        return [RunSummary(*row) for row in rows]

    async def unfinished(self) -> list[RunSummary]:
        rows = self.store.read(f"{_SUMMARY} WHERE status IN ('running', 'idle') ORDER BY changed_at DESC")
        return [RunSummary(*row) for row in rows]

    async def run_of_request(self, request_id: str) -> str | None:
        rows = self.store.read("SELECT id FROM runs WHERE request_id = ?", (request_id,))
        return str(rows[0][0]) if rows else None

    async def proof(self, run_id: str) -> str:
        return proof_of(self.store, run_id)

    async def why_not_driven(self, run_id: str) -> str:
        """Why no process will recover the run; servers recover runs of their workspace within a second."""
        why = why_not_recovered_here(self.store, run_id, self._workspace_key)
        if (self._recovers and not why) or leases.is_driven(self.store, run_id, self._clock.now()):
            return ""
        return why or "the process that ran it has exited"

    async def remember(self, key: str, value: Value) -> None:
        limits = self._executor.limits
        body = packed(key, value, limits)
        now = self._clock.now()

        def write(connection: apsw.Connection) -> bool:
            if value is None:
                connection.execute("DELETE FROM memory WHERE key = ?", (key,))
                return True
            known = connection.execute("SELECT 1 FROM memory WHERE key = ?", (key,)).fetchall()
            [(count,)] = connection.execute("SELECT count(*) FROM memory").fetchall()
            if not known and int(count or 0) >= limits.memory_keys:
                return False
            connection.execute(
                "INSERT INTO memory VALUES(?, ?, ?) ON CONFLICT DO UPDATE"
                " SET value = excluded.value, changed_at = excluded.changed_at",
                (key, body, now),
            )
            return True

        if not await self.store.write(write):
            raise full(limits)

    async def recall(self, key: str) -> Value:
        check_key(key)
        rows = self.store.read("SELECT value FROM memory WHERE key = ?", (key,))
        return unpacked(rows[0][0]) if rows else None

    async def remembered(self, prefix: str = "") -> list[str]:
        rows = self.store.read(
            "SELECT key FROM memory WHERE substr(key, 1, ?) = ? ORDER BY key", (len(prefix), prefix)
        )
        return [str(key) for (key,) in rows]

    async def heartbeat(self, run_id: str, task: str, at: float) -> None:
        await self._note(
            run_id,
            "INSERT INTO heartbeats VALUES(?1, ?2, ?3) ON CONFLICT DO UPDATE SET at = max(at, excluded.at)",
            (run_id, task, at),
        )

    async def last_seen(self, run_id: str) -> dict[str, float]:
        rows = self.store.read("SELECT task, at FROM heartbeats WHERE run = ?", (run_id,))
        return {str(task): float(at) for task, at in rows}

    async def delete_checkpoint(self, run_id: str, position: int) -> None:
        await self._note(run_id, "INSERT OR IGNORE INTO deleted_checkpoints VALUES(?, ?)", (run_id, position))

    async def deleted_checkpoints(self, run_id: str) -> set[int]:
        if row_of(self.store, run_id) is None:
            raise unknown(run_id)
        rows = self.store.read("SELECT position FROM deleted_checkpoints WHERE run = ?", (run_id,))
        return {int(position) for (position,) in rows}

    async def _note(self, run_id: str, sql: str, values: tuple[str | float, ...]) -> None:
        """Write a note about a run. Raises UnknownRun if there is no such run."""

        def write(connection: apsw.Connection) -> bool:
            if not connection.execute("SELECT 1 FROM runs WHERE id = ?", (run_id,)).fetchall():
                return False
            connection.execute(sql, values)
            return True

        if not await self.store.write(write):
            raise unknown(run_id)
