"""The hash chain of a journal: each event has a hash that covers all events before it.

    chain = Chain.begin("wf_1", bundle_key)
    hashes = chain.extend([b"started", b"done"])       # 32 bytes for each event; `chain.head` is the last one
    check_chain(batches, lambda position: begin(...))  # the first event that does not fit, if any

The first hash covers the id of the run and the hash of its definition. An event that is edited, removed,
inserted or moved does not fit the hashes from there on. Who can write to the store can compute the whole
chain again: then its head differs from the one that the client was given when the run ended.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from workflows_mcp.machine.events import Event
from workflows_mcp.machine.state import RunState
from workflows_mcp.plan import Bundle

HASH_BYTES = 32
PROOF_DIGITS = 16
"""How many hex digits of the head an answer has."""


class Chain:
    """The hashes of the events of one run, up to the last one."""

    __slots__ = ("head",)

    def __init__(self, head: bytes) -> None:
        self.head = head

    @classmethod
    def begin(cls, run_id: str, bundle_key: str, position: int = 0) -> Chain:
        """The chain of a run before its first event, or before the first one that has a hash."""
        return cls(hashlib.sha256(f"workflows-mcp\n{run_id}\n{bundle_key}\n{position}".encode()).digest())

    def extend(self, bodies: Iterable[bytes]) -> bytes:
        """Append encoded events, and return their hashes."""
        head, hashes = self.head, []
        for body in bodies:
            head = _next(head, body)
            hashes.append(head)
        self.head = head
        return b"".join(hashes)


def _next(head: bytes, body: bytes) -> bytes:
    return hashlib.sha256(head + body).digest()


def short_proof(head: str) -> str:
    """A head in hex as answers show it: `9f86d081884c7d65`."""
    return head[:PROOF_DIGITS]


# ----------------------------------------------------------------------------------------------------
# Checking a journal

MismatchKind = Literal[
    "edited", "removed", "inserted", "reordered", "truncated", "unhashed", "rewritten", "unreadable",
    "value", "snapshot", "definition", "status",
]  # fmt: skip


class Mismatch(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something in the store that does not fit the journal: somebody has changed it."""

    kind: MismatchKind
    message: str
    event: int = 0
    """The number of the first event that does not fit; 0: it is about no event."""


class StoredBatch(NamedTuple):
    position: int
    """How many events of the run come before these, as it is stored."""
    bodies: Sequence[bytes]
    hashes: bytes | None
    """None if an earlier version wrote the batch."""


class Recorded(NamedTuple):
    """What the row of a run says about its journal."""

    events: int
    head: bytes
    is_final: bool
    """No event follows: the run has ended."""


class ChainCheck(NamedTuple):
    """What the check of a chain has found."""

    head: bytes
    """The last hash; empty if no event has one."""
    first: int
    """The number of the first event that has a hash."""
    hashes: bytes
    """All hashes up to the first event that does not fit."""
    mismatch: Mismatch | None


class Audit(msgspec.Struct, frozen=True):
    """A journal, and what of the store does not fit it."""

    bundle: Bundle
    events: list[Event]
    """As far as they can be read."""
    head: str = ""
    """The last hash of the chain in hex; empty if no event has one."""
    first: int = 1
    """The number of the first event that has a hash."""
    hashes: bytes = b""
    """The hashes from that event on, as they are stored."""
    mismatches: list[Mismatch] = []
    position: int = 0
    """How many events the snapshot covers."""
    snapshot: RunState | None = None
    """The state that is stored for this position."""
    status: str = ""
    """The status that is stored with the run."""
    guarantee: str = ""
    """What the engine itself guarantees about the journal."""


class _Link(NamedTuple):
    body: bytes
    hash: bytes | None


def check_chain(
    batches: Iterable[StoredBatch], begin: Callable[[int], Chain], recorded: Recorded | None = None
) -> ChainCheck:
    """Find the first event that does not fit the hashes, or the record of the run."""
    links: list[_Link] = []
    odd: Mismatch | None = None
    for batch in batches:
        if odd is None and batch.position != len(links):
            odd = _gap(batch.position, len(links))
        hashes = _split(batch.hashes, len(batch.bodies))
        if odd is None and batch.hashes is not None and len(batch.hashes) != HASH_BYTES * len(batch.bodies):
            kind: MismatchKind = "inserted" if None in hashes else "removed"
            odd = Mismatch(kind, f"events were {kind} in the batch of event {len(links) + 1}", len(links) + 1)
        links += [_Link(body, it) for body, it in zip(batch.bodies, hashes, strict=True)]
    first = next((number for number, it in enumerate(links) if it.hash is not None), len(links))
    missing = recorded.events - len(links) if recorded is not None else 0
    found = _first_misfit(links, first, begin(first).head, missing)
    if odd is not None and (found is None or odd.event <= found.event):
        found = odd
    if found is None and recorded is not None:
        found = _unlike_the_record(links, recorded)
    head = links[-1].hash if links and links[-1].hash is not None else b""
    fitting = links[first : found.event - 1] if found is not None and found.event else links[first:]
    fitted = b"".join(it.hash for it in fitting if it.hash is not None)
    return ChainCheck(head, first + 1, fitted, found)


def _split(hashes: bytes | None, count: int) -> list[bytes | None]:
    """The hashes of the events of a batch, as many as it has events."""
    found: list[bytes | None] = [
        hashes[at : at + HASH_BYTES] for at in range(0, len(hashes or b""), HASH_BYTES) if hashes is not None
    ]
    return [*found[:count], *[None] * (count - len(found))]


def _gap(position: int, count: int) -> Mismatch:
    if position > count:
        one = position == count + 1
        which = f"event {position} is" if one else f"events {count + 1} to {position} are"
        return Mismatch("removed", f"{which} missing in the journal", count + 1)
    return Mismatch("inserted", f"events were inserted after event {position}", position + 1)


def _first_misfit(links: list[_Link], first: int, head: bytes, missing: int) -> Mismatch | None:
    for at in range(first, len(links)):
        body, stored = links[at]
        number = at + 1
        if stored is None:
            return Mismatch("unhashed", f"event {number} has no hash, although those before it have", number)
        if _next(head, body) != stored:
            return _explained(links, at, head, missing)
        head = stored
    return None


def _explained(links: list[_Link], at: int, head: bytes, missing: int) -> Mismatch:
    """Say how the journal was changed where a hash does not fit, as far as the hashes show it."""
    number, (body, stored) = at + 1, links[at]
    for later in range(at + 1, len(links)):
        moved = _next(head, links[later].body)
        count = later - at
        if moved == links[later].hash:
            if _next(moved, body) == stored:
                return Mismatch("reordered", f"event {number} was moved: {later + 1} comes first", number)
            which = f"event {number} was" if count == 1 else f"events {number} to {later} were"
            return Mismatch("inserted", f"{which} inserted", number)
        if moved == stored:
            return Mismatch("reordered", f"event {number} was moved: {later + 1} comes first", number)
    for earlier in reversed(range(at - 1)):
        known = links[earlier].hash
        if known is not None and _next(known, body) == stored:
            which = f"event {number - 1} was" if earlier == at - 2 else f"events {earlier + 2} to {at} were"
            return Mismatch("inserted", f"{which} inserted, with a hash", earlier + 2)
    if missing > 0:
        which = "an event was" if missing == 1 else f"{missing} events were"
        return Mismatch("removed", f"{which} removed before event {number}", number)
    return Mismatch("edited", f"event {number} was edited: it does not fit its hash", number)


def _unlike_the_record(links: list[_Link], recorded: Recorded) -> Mismatch | None:
    count = len(links)
    if recorded.events > count:
        missing = recorded.events - count
        what = "the last event is" if missing == 1 else f"the last {missing} events are"
        return Mismatch("truncated", f"{what} missing: the run had {recorded.events} events", count + 1)
    if recorded.is_final and recorded.events < count:
        return Mismatch(
            "inserted", f"events were appended after the run had {recorded.events}", recorded.events + 1
        )
    there = links[recorded.events - 1].hash if recorded.events else None
    if recorded.head and there != recorded.head:
        return Mismatch(
            "rewritten",
            f"the hashes up to event {recorded.events} were computed again: they do not lead to the hash "
            "that is recorded with the run",
        )
    return None
