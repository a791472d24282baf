"""The large values of one run: each is written once, by its hash, however often it is passed on.

In memory values stay whole. In the written form of events and snapshots a mark stands for a large value, and
the value itself is a blob that is written beside them. A value that is passed on stays the same object, so it
is known again by its identity, without being looked at; a run without large values pays for one comparison
of a length. How blobs are kept is not known here.

    large = LargeValues("wf_1", limits.inline_bytes, fetch=blobs.get)
    body = large.encode(StepDone(1.0, "a#1", {"stdout": "…5 MB…"}))     # a few bytes
    blobs.update(large.take_new())                                      # to be written with `body`
    events = large.decode_events(join_events([body]))                   # the value is whole again
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from msgspec.msgpack import Ext
from msgspec.structs import replace

from workflows_mcp.errors import Damaged, RequestError
from workflows_mcp.machine import Event, Machine, Record, RunState, Scope
from workflows_mcp.values import Value

# ----------------------------------------------------------------------------------------------------
# Events in their written form. What cannot be written down is refused before it becomes a fact.


_encoder = msgspec.msgpack.Encoder()

_event: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)


def encode(value: Any) -> bytes:
    """An event, or a value of one. Raises RequestError where it is not JSON data that can be kept."""
    try:
        return _encoder.encode(value)
    except (OverflowError, UnicodeEncodeError, TypeError, ValueError, RecursionError) as error:
        raise RequestError(
            f"a value cannot be kept: {error}",
            hint="values are JSON: numbers of at most 64 bits, valid text, no endless nesting",
            code="unencodable",
        ) from None


def decode_event(body: bytes) -> Event:
    return _event.decode(body)


def join_events(encoded: list[bytes]) -> bytes:
    """A batch, of events that have been encoded before."""
    return _encoder.encode([msgspec.Raw(body) for body in encoded])


MARK = 1

"""The kind of extension, in msgpack, that a mark is."""

_HASH_BYTES = 20

_DEPTH = 4

"""How far into lists and objects large values are looked for: inputs of calls, results of items."""

_FEW = 64

_KNOWN_BYTES = 64 * 1024 * 1024

"""How much is known by its identity; what was known longest is forgotten, which costs only time."""

_WORTH_BYTES = 1024

"""How much a state must hold for each event before it is searched for values that no event has brought."""


Fetch = Callable[[bytes], bytes | None]

"""The body of a blob by its hash; None if there is none."""


class Blob(NamedTuple):
    hash: bytes
    body: bytes


class _Known(NamedTuple):
    value: Value
    """Held, so that nothing else can get its identity."""
    mark: Ext
    digest: bytes
    size: int


class LargeValues:
    def __init__(self, run_id: str, inline_bytes: int, fetch: Fetch = lambda _: None) -> None:
        self._run_id = run_id
        self._limit = inline_bytes
        self._fetch = fetch
        self._known: dict[int, _Known] = {}
        self._by_hash: dict[bytes, Value] = {}
        self._known_bytes = 0
        self._new: list[Blob] = []
        self._events = msgspec.msgpack.Decoder(list[Event], ext_hook=self._value_of)
        self._state = msgspec.msgpack.Decoder(RunState, ext_hook=self._value_of)
        self._value = msgspec.msgpack.Decoder(Any, ext_hook=self._value_of)
        self._decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}

    # Writing

    def encode(self, event: Event) -> bytes:
        """Raises RequestError where a value in it is not JSON data that can be kept."""
        if not self._known:
            body = encode(event)
            if len(body) <= self._limit:
                return body
        return encode(self._thin_event(event))

    def snapshot(self, machine: Machine) -> bytes:
        state = machine.state
        if not self._known:
            body = machine.snapshot()
            if len(body) <= max(self._limit, _WORTH_BYTES * state.events):
                return body
        thin = replace(state, root=self._thin_scope(state.root), outputs=self.thin_entries(state.outputs))
        return encode(thin)

    def take_new(self) -> tuple[Blob, ...]:
        """What has become a blob since this was last asked. It must be written no later than what refers
        to it."""
        if not self._new:
            return ()
        new, self._new = tuple(self._new), []
        return new

    def _thin_event(self, event: Event) -> Event:
        for name in ("outputs", "inputs"):
            values = getattr(event, name, None)
            if values and (thin := self.thin_entries(values)) is not values:
                event = replace(event, **{name: thin})
        return event

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
        """With marks for what is large; the same object if nothing is."""
        changed = {
            key: thin for key, value in values.items() if (thin := self._thin(value, depth)) is not value
        }
        return {**values, **changed} if changed else values

    def _thin(self, value: Value, depth: int) -> Value:
        """What stands for a value in what is written: itself, a mark, or a copy with marks inside."""
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
        digest = _hash(body)
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
        """Raises Damaged where a value is gone."""
        return self._events.decode(batch)

    def decode_as(self, kind: Any, body: bytes) -> Any:
        """Anything else that has marks in it. Raises Damaged where a value is gone."""
        decoder = self._decoders.get(kind)
        if decoder is None:
            decoder = self._decoders[kind] = msgspec.msgpack.Decoder(kind, ext_hook=self._value_of)
        return decoder.decode(body)

    def restore(self, snapshot: bytes) -> RunState:
        """Raises Damaged where a value is gone."""
        return self._state.decode(snapshot)

    def _value_of(self, code: int, data: memoryview) -> Value:
        digest = bytes(data)
        if digest in self._by_hash:
            return self._by_hash[digest]
        body = self._fetch(digest) if code == MARK else None
        if body is None:
            raise self._damaged("a large value of it is missing", digest)
        if _hash(body) != digest:
            raise self._damaged("a large value of it is not what was written", digest)
        value = self._value.decode(body)
        self._remember(value, digest, len(body))
        return value

    def _damaged(self, what: str, digest: bytes) -> Damaged:
        return Damaged(
            f"the run {self._run_id} cannot be read: {what} (blob {digest.hex()})",
            hint="the store of runs is damaged: put it back from a backup, or start the workflow again",
        )


def _hash(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_HASH_BYTES).digest()
