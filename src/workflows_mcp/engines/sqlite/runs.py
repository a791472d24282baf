"""Creates and reads the rows of runs, their journals, and notes that are not part of a journal.

create(connection, new_run, owner)                          # one row in `runs`
machine, large = read(store, bundles, run_id, limits)       # the latest snapshot, and the events since
RunJournal(store, lease, clock, run_id, epoch).append(...)  # where the driver of a run writes
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import apsw

from workflows_mcp.engines.base import RunSummary
from workflows_mcp.engines.clock import Clock
from workflows_mcp.engines.executor import Executor
from workflows_mcp.engines.sqlite import leases
from workflows_mcp.engines.sqlite.store import Store
from workflows_mcp.engines.values import Batch, LargeValues, check_key, full, packed, unpacked
from workflows_mcp.errors import Damaged, LeaseLost, RequestError, UnknownRun
from workflows_mcp.limits import Limits
from workflows_mcp.machine import Event, Machine
from workflows_mcp.plan import Bundle, bundle_key, decode_bundle, encode_bundle
from workflows_mcp.values import Value, to_json

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


def workspace_key_of(store: Store, run_id: str) -> WorkspaceKey | None:
    """Return the workspace key of a run; None if an older version started it."""
    rows = store.read("SELECT workspace, settings FROM runs WHERE id = ?", (run_id,))
    return WorkspaceKey(*rows[0]) if rows and rows[0][0] is not None else None


def why_not_recovered_here(store: Store, run_id: str, workspace_key: WorkspaceKey) -> str:
    """Explain why processes with this key do not recover a run on their own; empty if they do."""
    found = workspace_key_of(store, run_id)
    if found is None or found == workspace_key:
        return ""
    with_settings = "" if found.workspace != workspace_key.workspace else " with other settings"
    return f"it was started in {found.workspace}{with_settings}"


def move(connection: apsw.Connection, run_id: str, workspace_key: WorkspaceKey) -> None:
    """Give a run another workspace key."""
    connection.execute("UPDATE runs SET workspace = ?, settings = ? WHERE id = ?", (*workspace_key, run_id))


def large_values(store: Store, run_id: str, limits: Limits) -> LargeValues:
    def fetch(digest: bytes) -> bytes | None:
        rows = store.read("SELECT body FROM blobs WHERE hash = ?", (digest,))
        return rows[0][0] if rows else None

    return LargeValues(run_id, limits.inline_bytes, fetch)


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


def recent(store: Store, limit: int, workflow: str | None) -> list[RunSummary]:
    latest = "ORDER BY changed_at DESC LIMIT ?"
    if workflow is None:
        rows = store.read(f"{_SUMMARY} {latest}", (limit,))
    else:
        rows = store.read(f"{_SUMMARY} WHERE workflow = ? {latest}", (workflow, limit))
    return [RunSummary(*row) for row in rows]


def unfinished(store: Store) -> list[RunSummary]:
    rows = store.read(f"{_SUMMARY} WHERE status IN ('running', 'idle') ORDER BY changed_at DESC")
    return [RunSummary(*row) for row in rows]


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


def run_of_request(store: Store, request_id: str) -> str | None:
    rows = store.read("SELECT id FROM runs WHERE request_id = ?", (request_id,))
    return str(rows[0][0]) if rows else None


def status_of(store: Store, run_id: str) -> str | None:
    """The status in the row of a run; None if there is no such run."""
    rows = store.read("SELECT status FROM runs WHERE id = ?", (run_id,))
    return str(rows[0][0]) if rows else None


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


class RunJournal:
    """Writes the events of one run under one lease."""

    def __init__(self, store: Store, lease: leases.Lease, clock: Clock, run_id: str, epoch: int) -> None:
        self._store = store
        self._lease = lease
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
            and batch.status == self._status
            and batch.at < self._changed_at + CHANGED_SECONDS
        )
        if not plain:
            self._status, self._changed_at = batch.status, batch.at
        owner = self._lease.owner.id

        def write(connection: apsw.Connection) -> None:
            if created is not None or claims:
                self._lease.renew_if_due(connection, self._clock.now())
                self._lapses = self._lease.lapses
            if created is not None:
                create(connection, created, owner)
            elif claims:
                leases.claim_idle(connection, self.run_id, owner, self.epoch)
            if plain:
                leases.append(connection, self.run_id, owner, self.epoch, batch)
            else:
                leases.close_batch(
                    connection, self.run_id, owner, self.epoch, batch, release=batch.status != "running"
                )

        self._submit(write, done, single=plain and not batch.blobs)

    def in_force(self) -> bool:
        return self._lease.in_force_since(self._lapses)

    def confirm(self, done: Done) -> None:
        def check(connection: apsw.Connection) -> None:
            leases.check(connection, self.run_id, self._lease.owner.id, self.epoch)
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
# Notes: what is stored in no journal: memory, heartbeats and deleted checkpoints. All processes share them


class Notes:
    """The methods of the engine for memory, heartbeats and deleted checkpoints."""

    store: Store
    _executor: Executor
    _clock: Clock
    _recovers: bool
    _workspace_key: WorkspaceKey

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

    async def delete_checkpoint(self, run_id: str, position: int) -> None:
        await delete_checkpoint(self.store, run_id, position)

    async def deleted_checkpoints(self, run_id: str) -> set[int]:
        return deleted_checkpoints(self.store, run_id)

    async def heartbeat(self, run_id: str, task: str, at: float) -> None:
        await heartbeat(self.store, run_id, task, at)

    async def last_seen(self, run_id: str) -> dict[str, float]:
        return last_seen(self.store, run_id)

    async def why_not_driven(self, run_id: str) -> str:
        """Why no process will recover the run; servers recover runs of their workspace within a second."""
        why = why_not_recovered_here(self.store, run_id, self._workspace_key)
        if (self._recovers and not why) or leases.is_driven(self.store, run_id, self._clock.now()):
            return ""
        return why or "the process that ran it has exited"


async def heartbeat(store: Store, run_id: str, task: str, at: float) -> None:
    """Record that the agent of a task was active. Raises UnknownRun if there is no such run.

    Heartbeats are no events: a fork does not inherit them."""

    def write(connection: apsw.Connection) -> bool:
        if not connection.execute("SELECT 1 FROM runs WHERE id = ?", (run_id,)).fetchall():
            return False
        connection.execute(
            "INSERT INTO heartbeats VALUES(?, ?, ?) ON CONFLICT DO UPDATE SET at = max(at, excluded.at)",
            (run_id, task, at),
        )
        return True

    if not await store.write(write):
        raise unknown(run_id)


def last_seen(store: Store, run_id: str) -> dict[str, float]:
    return {
        str(task): float(at)
        for task, at in store.read("SELECT task, at FROM heartbeats WHERE run = ?", (run_id,))
    }


async def delete_checkpoint(store: Store, run_id: str, position: int) -> None:
    """Stop listing a checkpoint; its events stay. Raises UnknownRun if there is no such run."""

    def write(connection: apsw.Connection) -> bool:
        connection.execute(
            "INSERT OR IGNORE INTO deleted_checkpoints SELECT id, ? FROM runs WHERE id = ?",
            (position, run_id),
        )
        return bool(connection.execute("SELECT 1 FROM runs WHERE id = ?", (run_id,)).fetchall())

    if not await store.write(write):
        raise unknown(run_id)


def deleted_checkpoints(store: Store, run_id: str) -> set[int]:
    """The deleted positions of a run. Raises UnknownRun if there is no such run."""
    rows = store.read(
        "SELECT deleted.position FROM runs LEFT JOIN deleted_checkpoints AS deleted ON deleted.run = runs.id"
        " WHERE runs.id = ?",
        (run_id,),
    )
    if not rows:
        raise unknown(run_id)
    return {int(position) for (position,) in rows if position is not None}
