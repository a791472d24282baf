"""Rows of the store: creating a run, reading one back, and the letters between processes."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import apsw
import msgspec

from workflows_mcp.engines.sqlite.store import Store
from workflows_mcp.errors import UnknownRun
from workflows_mcp.machine.events import Event
from workflows_mcp.machine.machine import Machine
from workflows_mcp.plan.codec import bundle_key, decode_bundle, encode_bundle
from workflows_mcp.plan.model import Bundle

_events = msgspec.msgpack.Decoder(list[Event])


@dataclass(frozen=True, slots=True)
class NewRun:
    run_id: str
    workflow: str
    bundle_key: str
    bundle: bytes
    request_id: str | None
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
        return bundle


def create(connection: apsw.Connection, run: NewRun, owner: str) -> None:
    connection.execute("INSERT OR IGNORE INTO bundles VALUES(?, ?)", (run.bundle_key, run.bundle))
    connection.execute(
        "INSERT INTO runs(id, workflow, bundle, request_id, status, started_at, changed_at, owner, epoch)"
        " VALUES(?, ?, ?, ?, 'running', ?, ?, ?, 1)",
        (run.run_id, run.workflow, run.bundle_key, run.request_id, run.at, run.at, owner),
    )


def read(store: Store, bundles: BundleCache, run_id: str, call_depth: int) -> Machine:
    """The run as it is on disk: its latest snapshot and what has happened since."""
    rows = store.read(
        "SELECT runs.bundle, snapshots.position, snapshots.body FROM runs"
        " LEFT JOIN snapshots ON snapshots.run = runs.id WHERE runs.id = ?",
        (run_id,),
    )
    if not rows:
        raise UnknownRun(f"there is no run '{run_id}'")
    key, position, snapshot = rows[0]
    machine = Machine(bundles.get(store, key), snapshot, call_depth=call_depth)
    batches = store.read(
        "SELECT events FROM journal WHERE run = ? AND position >= ? ORDER BY position",
        (run_id, position or 0),
    )
    for (events,) in batches:
        for event in _events.decode(events):
            machine.apply(event)
    return machine


def post(connection: apsw.Connection, run_id: str, event: bytes) -> int:
    connection.execute("INSERT INTO inbox(run, event) VALUES(?, ?)", (run_id, event))
    return connection.last_insert_rowid()


def reply(connection: apsw.Connection, row: int, answer: str) -> None:
    connection.execute("UPDATE inbox SET answer = ? WHERE id = ?", (answer, row))


def forget(connection: apsw.Connection, row: int) -> None:
    connection.execute("DELETE FROM inbox WHERE id = ?", (row,))
