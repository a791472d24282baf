"""Rows of the store: creating a run, and reading one back."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import apsw

from workflows_mcp.engines.encoding import decode_events
from workflows_mcp.engines.sqlite.store import Store
from workflows_mcp.errors import StoreError, UnknownRun
from workflows_mcp.machine.machine import Machine
from workflows_mcp.plan.codec import bundle_key, decode_bundle, encode_bundle
from workflows_mcp.plan.model import Bundle


@dataclass(frozen=True, slots=True)
class Request:
    """What makes a repeated call start nothing: its id, and the digest of what it asks for."""

    id: str
    digest: str


@dataclass(frozen=True, slots=True)
class NewRun:
    run_id: str
    workflow: str
    bundle_key: str
    bundle: bytes
    request: Request | None
    at: float


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
        " owner, epoch) VALUES(?, ?, ?, ?, ?, 'running', ?, ?, ?, 1)",
        (run.run_id, run.workflow, run.bundle_key, *request, run.at, run.at, owner),
    )


def read(store: Store, bundles: BundleCache, run_id: str, call_depth: int) -> Machine:
    """The run as it is on disk: its latest snapshot and what has happened since."""
    rows = store.read(
        "SELECT runs.bundle, snapshots.position, snapshots.body FROM runs"
        " LEFT JOIN snapshots ON snapshots.run = runs.id WHERE runs.id = ?",
        (run_id,),
    )
    if not rows:
        raise UnknownRun(f"there is no run '{run_id}'", hint="the recent runs are listed without an id")
    key, position, snapshot = rows[0]
    machine = Machine(bundles.get(store, key), snapshot, call_depth=call_depth)
    batches = store.read(
        "SELECT position, events FROM journal WHERE run = ? AND position >= ? ORDER BY position",
        (run_id, position or 0),
    )
    for first, events in batches:
        if first != machine.state.events:
            raise StoreError(f"the journal of the run {run_id} has a gap after {machine.state.events} events")
        for event in decode_events(events):
            machine.apply(event)
    return machine


def position_of(store: Store, run_id: str) -> tuple[int, int]:
    """Changes whenever something has happened in a run, or its owner has."""
    rows = store.read(
        "SELECT epoch, (SELECT max(position) FROM journal WHERE run = runs.id) FROM runs WHERE id = ?",
        (run_id,),
    )
    if not rows:
        raise UnknownRun(f"there is no run '{run_id}'", hint="the recent runs are listed without an id")
    return int(rows[0][0]), int(rows[0][1] or 0)


def started_by(store: Store, request_id: str) -> tuple[str, str] | None:
    """The run that a request has started, and the digest of what it asked for."""
    rows = store.read("SELECT id, request_digest FROM runs WHERE request_id = ?", (request_id,))
    return (str(rows[0][0]), str(rows[0][1])) if rows else None


def has_ended(store: Store, run_id: str) -> bool:
    rows = store.read("SELECT status FROM runs WHERE id = ?", (run_id,))
    return bool(rows) and rows[0][0] not in ("running", "idle")
