"""Reads a journal that somebody may have changed, and says what does not fit.

    audit = audit_of("wf_1", bundle, key, batches, fetch, recorded)
    audit.events, audit.mismatches

Normal reading stops at the first damage. An audit reads as much as it can, so that a report shows what is
left: a large value that was changed becomes a text that says so.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from workflows_mcp.engines.values import Fetch, LargeValues, value_hash
from workflows_mcp.errors import Damaged
from workflows_mcp.machine import (
    Audit,
    Chain,
    Event,
    Mismatch,
    Recorded,
    RunState,
    StoredBatch,
    check_chain,
)
from workflows_mcp.plan import Bundle, bundle_key

_EARLIER = "or an earlier version wrote it"


class StoredSnapshot(msgspec.Struct, frozen=True):
    position: int
    body: bytes


def audit_of(
    run_id: str,
    bundle: Bundle,
    key: str,
    batches: Sequence[StoredBatch],
    fetch: Fetch,
    recorded: Recorded | None = None,
    *,
    snapshot: StoredSnapshot | None = None,
    status: str = "",
    guarantee: str = "",
) -> Audit:
    """Check a journal as it is stored. `key`: the hash of its definition, as it is stored."""
    checked = check_chain(batches, lambda position: Chain.begin(run_id, key, position), recorded)
    mismatches = [checked.mismatch] if checked.mismatch is not None else []
    if bundle_key(bundle) != key:
        message = f"the definition does not fit its hash {key}: it was edited, {_EARLIER}"
        mismatches.append(Mismatch("definition", message))
    values = _LenientValues(run_id, fetch, mismatches)
    events: list[Event] = []
    for number, body in enumerate((body for batch in batches for body in batch.bodies), start=1):
        values.event = number
        try:
            events.append(values.decode_as(Event, body))
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
            message = f"event {number} cannot be read, nor what follows: {error}"
            mismatches.append(Mismatch("unreadable", message, number))
            break
    state: RunState | None = None
    position = 0
    if snapshot is not None and checked.first <= snapshot.position + 1:
        values.event, position = 0, snapshot.position
        try:
            state = values.restore(snapshot.body)
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
            mismatches.append(Mismatch("snapshot", f"the snapshot cannot be read: {error}"))
    return Audit(
        bundle,
        events,
        checked.head.hex(),
        checked.first,
        checked.hashes,
        mismatches,
        position,
        state,
        status,
        guarantee,
    )


class _LenientValues(LargeValues):
    """Reads a value that was changed or is missing as a text that says so, and notes that."""

    def __init__(self, run_id: str, fetch: Fetch, mismatches: list[Mismatch]) -> None:
        super().__init__(run_id, 0, self._fetched)
        self._stored = fetch
        self._mismatches = mismatches
        self.event = 0
        """The number of the event that is being read; 0: a snapshot."""

    def _fetched(self, digest: bytes) -> bytes:
        try:
            body = self._stored(digest)
        except Damaged:
            body = None
        if body is not None and value_hash(body) == digest:
            return body
        what = "is missing" if body is None else "was edited"
        where = f"of event {self.event}" if self.event else "of the snapshot"
        message = f"a large value {where} {what} (blob {digest.hex()})"
        self._mismatches.append(Mismatch("value", message, self.event))
        raise _NotAsItWas(f"[this value {what}]")

    def _value_of(self, code, data):  # type: ignore[no-untyped-def]
        try:
            return super()._value_of(code, data)
        except _NotAsItWas as error:
            return str(error)


class _NotAsItWas(Exception):
    """A large value is not as it was."""
