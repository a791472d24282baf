"""Encodes events, and stores each large value of a run once, as a blob named by its hash.

    large = LargeValues("wf_1", limits.inline_bytes, fetch=blobs.get)
    body = large.encode(StepDone(1.0, "a#1", {"stdout": "…5 MB…"}))     # a few bytes
    blobs.update(large.take_new())                                      # to be written with `body`
    events = large.decode_events(join_events([body]))                   # the value is whole again

In memory, values stay whole. In encoded events and snapshots, a mark stands for a large value. A value that
is passed from step to step stays the same object, so it is recognised by its identity without being read. A
run without large values pays for one comparison of a length. Nothing here knows how blobs are stored.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from msgspec.msgpack import Ext
from msgspec.structs import replace

from workflows_mcp.errors import Damaged, RequestError
from workflows_mcp.limits import Limits
from workflows_mcp.machine import Event, Machine, Record, Reopened, RunState, Scope
from workflows_mcp.plan import decoder
from workflows_mcp.values import Value, shown

# ----------------------------------------------------------------------------------------------------
# Encoding; a value that cannot be encoded is refused before it becomes part of an event


_encoder = msgspec.msgpack.Encoder()

_event: Callable[[bytes], Event] = decoder(Event)


def encode(value: Any) -> bytes:
    """Encode an event or a value. Raises RequestError if it is not JSON data."""
    try:
        return _encoder.encode(value)
    except (OverflowError, UnicodeEncodeError, TypeError, ValueError, RecursionError) as error:
        raise RequestError(
            f"a value cannot be kept: {error}",
            hint="values are JSON: numbers of at most 64 bits, valid text, no endless nesting",
            code="unencodable",
        ) from None


def decode_event(body: bytes) -> Event:
    return _event(body)


def join_events(encoded: list[bytes]) -> bytes:
    """A batch of encoded events."""
    return _encoder.encode([msgspec.Raw(body) for body in encoded])


def split_events(batch: bytes) -> list[bytes]:
    """The encoded events of a batch. Raises msgspec.DecodeError if it is none."""
    return [bytes(body) for body in msgspec.msgpack.decode(batch, type=list[msgspec.Raw])]


# ----------------------------------------------------------------------------------------------------
# Large values


MARK = 1
"""The msgpack extension code of a mark."""
_HASH_BYTES = 20
_DEPTH = 4
"""How deep large values are searched for in lists and objects: inputs of calls, results of items."""
_FEW = 64
_KNOWN_BYTES = 64 * 1024 * 1024
"""The size of the values that are recognised by identity; dropping the oldest only costs time."""
_SEARCHED_BYTES = 1024
"""A state with more bytes for each event is searched for large values that came with no event."""

Fetch = Callable[[bytes], bytes | None]
"""The body of a blob by its hash; None if there is none."""


class Blob(NamedTuple):
    hash: bytes
    body: bytes


class Batch(msgspec.Struct, frozen=True):
    """Events of one run that are committed together."""

    position: int
    """How many events of the run come before these."""
    events: bytes
    count: int
    status: str
    """running, idle (it waits only for agents), completed, failed or cancelled."""
    at: float
    snapshot: bytes | None = None
    blobs: tuple[Blob, ...] = ()
    """Large values that the events or the snapshot refer to, and that are new."""
    hashes: bytes = b""
    """The hashes of the events in the chain of the journal."""


class _Known(NamedTuple):
    value: Value
    """Referenced, so that no other object can get its identity."""
    mark: Ext
    digest: bytes
    size: int


class LargeValues:
    """Encodes and decodes the events and snapshots of one run, with large values as blobs."""

    def __init__(self, run_id: str, inline_bytes: int, fetch: Fetch = lambda _: None) -> None:
        self._run_id = run_id
        self._limit = inline_bytes
        self._fetch = fetch
        self._known: dict[int, _Known] = {}
        self._by_hash: dict[bytes, Value] = {}
        self._known_bytes = 0
        self._new: list[Blob] = []
        self._events = decoder(list[Event], self._value_of)
        self._state = decoder(RunState, self._value_of)
        self._value = msgspec.msgpack.Decoder(Any, ext_hook=self._value_of)
        self._decoders: dict[Any, Callable[[bytes], Any]] = {}

    # Writing

    def encode(self, event: Event) -> bytes:
        """Encode an event. Raises RequestError if a value in it is not JSON data."""
        if not self._known:
            body = encode(event)
            if len(body) <= self._limit:
                return body
        return encode(self._thin_event(event))

    def snapshot(self, machine: Machine) -> bytes:
        state = machine.state
        if not self._known:
            body = machine.snapshot()
            if len(body) <= max(self._limit, _SEARCHED_BYTES * state.events):
                return body
        return encode(self._thin_state(state))

    def take_new(self) -> tuple[Blob, ...]:
        """The new blobs since the last call; write them no later than what refers to them."""
        if not self._new:
            return ()
        new, self._new = tuple(self._new), []
        return new

    def _thin_event(self, event: Event) -> Event:
        for name in ("outputs", "inputs"):
            values = getattr(event, name, None)
            if values and (thin := self.thin_entries(values)) is not values:
                event = replace(event, **{name: thin})
        return replace(event, state=self._thin_state(event.state)) if isinstance(event, Reopened) else event

    def _thin_state(self, state: RunState) -> RunState:
        return replace(state, root=self._thin_scope(state.root), outputs=self.thin_entries(state.outputs))

    def _thin_scope(self, scope: Scope) -> Scope:
        records = {name: self._thin_record(record) for name, record in scope.records.items()}
        return replace(scope, inputs=self.thin_entries(scope.inputs), records=records)

    def _thin_record(self, record: Record) -> Record:
        inputs, outputs = self.thin_entries(record.inputs), self.thin_entries(record.outputs)
        if record.scope is not None:
            return replace(record, inputs=inputs, outputs=outputs, scope=self._thin_scope(record.scope))
        if inputs is not record.inputs or outputs is not record.outputs:
            return replace(record, inputs=inputs, outputs=outputs)
        return record

    def thin_entries(self, values: dict[str, Value], depth: int = 0) -> dict[str, Value]:
        """The entries with marks for large values; the same object if there are none."""
        changed = {
            key: thin for key, value in values.items() if (thin := self._thin(value, depth)) is not value
        }
        return {**values, **changed} if changed else values

    def _thin(self, value: Value, depth: int) -> Value:
        """What to encode for a value: itself, a mark, or a copy with marks inside."""
        kind = type(value)
        if kind is str:
            if len(value) * 4 <= self._limit:
                return value
        elif kind is not dict and kind is not list:
            return value
        known = self._known.get(id(value))
        if known is not None:
            return known.mark
        thin = value
        if kind is not str and len(value) <= _FEW and self._has_known(value):
            thin = self._thin_inside(value, depth)
        body = encode(thin)
        if len(body) > self._limit and thin is value and kind is not str:
            thin = self._thin_inside(value, depth)
            body = body if thin is value else encode(thin)
        return thin if len(body) <= self._limit else self._mark(value, body)

    def _has_known(self, value: list[Value] | dict[str, Value]) -> bool:
        known = self._known
        inside = value.values() if isinstance(value, dict) else value
        return any(id(item) in known for item in inside)

    def _thin_inside(self, value: list[Value] | dict[str, Value], depth: int) -> Value:
        if depth >= _DEPTH:
            return value
        if isinstance(value, dict):
            return self.thin_entries(value, depth + 1)
        thin = [self._thin(item, depth + 1) for item in value]
        return value if all(a is b for a, b in zip(thin, value, strict=True)) else thin

    def _mark(self, value: Value, body: bytes) -> Ext:
        digest = value_hash(body)
        if digest not in self._by_hash:
            self._new.append(Blob(digest, body))
        return self._remember(value, digest, len(body))

    def _remember(self, value: Value, digest: bytes, size: int) -> Ext:
        mark = Ext(MARK, digest)
        self._known[id(value)] = _Known(value, mark, digest, size)
        self._by_hash.setdefault(digest, value)
        self._known_bytes += size
        while self._known_bytes > _KNOWN_BYTES and len(self._known) > 1:
            oldest = self._known.pop(next(iter(self._known)))
            self._known_bytes -= oldest.size
            self._by_hash.pop(oldest.digest, None)
        return mark

    # Reading

    def decode_events(self, batch: bytes) -> list[Event]:
        """Decode a batch. Raises Damaged if a blob is missing."""
        found: list[Event] = self._events(batch)
        return found

    def decode_as(self, kind: Any, body: bytes) -> Any:
        """Decode another type that has marks. Raises Damaged if a blob is missing."""
        decode = self._decoders.get(kind)
        if decode is None:
            decode = self._decoders[kind] = decoder(kind, self._value_of)
        return decode(body)

    def restore(self, snapshot: bytes) -> RunState:
        """Decode a snapshot. Raises Damaged if a blob is missing."""
        state: RunState = self._state(snapshot)
        return state

    def _value_of(self, code: int, data: memoryview) -> Value:
        digest = bytes(data)
        if digest in self._by_hash:
            return self._by_hash[digest]
        body = self._fetch(digest) if code == MARK else None
        if body is None:
            raise self._damaged("a large value is missing", digest)
        if value_hash(body) != digest:
            raise self._damaged("a large value was changed", digest)
        value = self._value.decode(body)
        self._remember(value, digest, len(body))
        return value

    def _damaged(self, what: str, digest: bytes) -> Damaged:
        return Damaged(
            f"cannot read the run {self._run_id}: {what} (blob {digest.hex()})",
            hint="the store of runs is damaged: restore it from a backup, or start the workflow again",
        )


def value_hash(body: bytes) -> bytes:
    """The hash by which a large value is stored."""
    return hashlib.blake2b(body, digest_size=_HASH_BYTES).digest()


# ----------------------------------------------------------------------------------------------------
# Keys and values of the memory that runs share
#
#     body = packed("release", {"version": 3}, limits)    # bytes, or RequestError
#     unpacked(body)                                      # {"version": 3}

_KEY_CHARS = 500
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def check_key(key: str) -> None:
    """Raises RequestError if the key is empty, too long, or has control characters."""
    if not key.strip():
        raise RequestError("a key of the memory must not be empty")
    if len(key) > _KEY_CHARS or _CONTROL.search(key):
        raise RequestError(
            f"{shown(key)} cannot be a key of the memory",
            hint=f"a key has at most {_KEY_CHARS} characters, and no control characters",
        )


def packed(key: str, value: Value, limits: Limits) -> bytes:
    """Encode a value. Raises RequestError if the key is invalid or the value is too large."""
    check_key(key)
    encode(key)
    body = encode(value)
    if len(body) > limits.memory_value_bytes:
        raise RequestError(
            f"the value for '{key}' has {len(body)} bytes, at most {limits.memory_value_bytes} are stored",
            hint=f"store less, or set {limits.setting('memory_value_bytes')}",
        )
    return body


def unpacked(body: bytes) -> Value:
    return msgspec.msgpack.decode(body)


def full(limits: Limits) -> RequestError:
    return RequestError(
        f"the memory is full: it has {limits.memory_keys} keys",
        hint="save null under keys that are no longer needed, which deletes them, or set "
        f"{limits.setting('memory_keys')}",
    )
