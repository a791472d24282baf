"""What goes between the engine, the workflow of a run, and the activities that perform its steps.

The names of fields, and `name=`, are stored on the server: they cannot change.

In this module: the data, its form on the server, and notifications inside one process.
"""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import msgspec
from msgspec.msgpack import Ext
from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    BinaryNullPayloadConverter,
    BinaryPlainPayloadConverter,
    BinaryProtoPayloadConverter,
    CompositePayloadConverter,
    DataConverter,
    JSONPlainPayloadConverter,
    JSONProtoPayloadConverter,
)

from workflows_mcp.engines.values import MARK, LargeValues, encode, split_events
from workflows_mcp.expressions import Code
from workflows_mcp.machine import LoadPlan, RunStep

RUN = "workflows_mcp_run"
NOTES = "workflows_mcp_notes"
PERFORM = "workflows_mcp_step"
FIND = "workflows_mcp_find"
NOT_EXPECTED = "not_expected"
"""The error type of an update that the run does not expect."""
WORKER_GONE = "worker_gone"
"""The error type of a step whose worker shut down: another worker performs it."""
NEVER_BEGUN = "CancelledError"
"""The error type that the SDK gives a step whose worker shut down before its code started."""

RULES = 2
"""The rules of new runs: see RunStart.rules."""
UPDATES_A_HISTORY = 1500
"""The server refuses the 2,001st update of a history; a run continues as a new one before that."""


class RunStart(msgspec.Struct, omit_defaults=True):
    """The argument of a run: its first event, or the snapshot and journal that it continues from."""

    bundle: bytes
    started: bytes = b""
    snapshot: bytes = b""
    segments: list[bytes] = []
    """The journal up to the snapshot, in pieces."""
    last_seen: dict[str, float] = msgspec.field(default_factory=dict, name="heard")
    taken: list[str] = []
    """The ids of the last updates of the previous history: one that got no answer is sent again."""
    updates_a_history: int = UPDATES_A_HISTORY
    """A run keeps this number, so that its histories can be replayed."""
    rules: int = 1
    """The version of the rules that the run was started with. Since 2, a failed run is FAILED on the server,
    and a cancelled one CANCELED; before, both were COMPLETED."""


class Sent(msgspec.Struct, omit_defaults=True):
    """An event from outside."""

    event: bytes
    known: int = 0
    """How many events of the run the sender knows: the answer has the others."""
    since: float = 0.0
    """When the question that it answers was asked; a question that was asked again is another one."""
    brief: bool = False
    """The answer leaves out the event itself, and the heartbeats."""


class RunSnapshot(msgspec.Struct, omit_defaults=True):
    """The current state of a run: the events since those that the client knows, or a snapshot.

    With neither, only the number of events: the client must query for them."""

    position: int
    """The number of events before `events`, or up to `snapshot`."""
    events: bytes = b""
    snapshot: bytes = b""
    last_seen: dict[str, float] | None = msgspec.field(default_factory=dict, name="heard")
    """None if the client knows them."""
    ending: bool = False
    """The run has ended, but some steps are still being stopped."""
    own: int = 0
    """The position in `events`, from 1, of the sender's own event, which is left out; 0 if none is."""
    own_at: float = 0.0
    """When that event was applied."""


class StepTask(msgspec.Struct, omit_defaults=True):
    run_id: str
    workspace: str
    command: bytes
    secrets: list[str] = []
    interrupted: bool = msgspec.field(default=False, name="again")
    """An earlier attempt was interrupted: its processes are killed first."""


class PlanTask(msgspec.Struct, omit_defaults=True):
    workspace: str
    command: LoadPlan


run_start = msgspec.msgpack.Decoder(RunStart).decode
sent = msgspec.msgpack.Decoder(Sent).decode
look = msgspec.msgpack.Decoder(RunSnapshot).decode
step_task = msgspec.msgpack.Decoder(StepTask).decode
plan_task = msgspec.msgpack.Decoder(PlanTask).decode


def encode_command(command: RunStep, large: LargeValues) -> bytes:
    """Encode a command, with marks for large values."""
    code = {
        name: Code(it.texts, tuple(large.thin_entries({"": value})[""] for value in it.values))
        for name, it in command.code.items()
    }
    return encode(msgspec.structs.replace(command, inputs=large.thin_entries(command.inputs), code=code))


def decode_command(body: bytes, large: LargeValues) -> RunStep:
    command: RunStep = large.decode_as(RunStep, body)
    return command


# ----------------------------------------------------------------------------------------------------
# Payloads that people can read: what goes through the server is JSON, also where the code deals in bytes
#
# The code of runs and steps passes its data on in msgpack, as a store has it. On the server the same is JSON,
# so that Temporal's page shows the inputs and outputs of a step:
#
#     {"$here": {"run_id": "wf_1", "command": {"$msgpack": {"address": "build", "inputs": {…}}}}}
#
# `$here` and `$blob` are what a `BlobStore` packs, `$large` is a mark for a large value. Only what comes back
# as the same values is written so; all else is `binary/plain`, as all of it was in earlier versions.


_OURS = {"$here", "$blob", "$msgpack", "$bytes", "$large"}
_HERE, _BLOB = b"h", b"t"
_BLOB_BYTES = 21
_GROWTH = 1.5
"""What grows more than that as JSON stays as it is: the server limits how much it is sent at once."""
_BYTES_AND_ALL = 256

_packed = msgspec.msgpack.Encoder().encode
_unpacked = msgspec.msgpack.Decoder().decode


def events_to_hash(batch: bytes) -> list[bytes]:
    """The events of a piece of the journal as they are hashed.

    A piece that was JSON on the server has the same values, but not always the same bytes."""
    return [_packed(_unpacked(body)) for body in split_events(batch)]


class _Readable(JSONPlainPayloadConverter):
    def to_payload(self, value: Any) -> Payload | None:
        if isinstance(value, bytes):
            text = _text_of(value)
            return None if text is None else _json(text)
        if isinstance(value, list) and value and all(isinstance(it, bytes) for it in value):
            return _json(msgspec.json.encode([_shown(it) for it in value]))
        return super().to_payload(value)

    def from_payload(self, payload: Payload, type_hint: type | None = None) -> Any:
        if type_hint is bytes:
            return _bytes_of(msgspec.json.decode(payload.data))
        if type_hint == list[bytes]:
            return [_bytes_of(it) for it in msgspec.json.decode(payload.data)]
        return super().from_payload(payload, type_hint)


class _Converter(CompositePayloadConverter):
    def __init__(self) -> None:
        super().__init__(
            BinaryNullPayloadConverter(),
            JSONProtoPayloadConverter(),  # what Temporal's page asks for
            BinaryProtoPayloadConverter(),
            _Readable(),
            BinaryPlainPayloadConverter(),
        )


READABLE = DataConverter(payload_converter_class=_Converter)


def _json(text: bytes) -> Payload:
    return Payload(metadata={"encoding": b"json/plain"}, data=text)


def _text_of(body: bytes) -> bytes | None:
    """The JSON text that stands for `body`; None where it had better stay as it is."""
    shown = _shown(body)
    if "$bytes" in shown:
        return None
    text = msgspec.json.encode(shown)
    return text if len(text) <= len(body) * _GROWTH + _BYTES_AND_ALL else None


def _shown(body: bytes) -> dict[str, Any]:
    """`body` as JSON data that leads back to the same values."""
    if body[:1] == _BLOB and len(body) == _BLOB_BYTES:
        return {"$blob": body[1:].hex()}
    for key, inner in (("$here", body[1:] if body[:1] == _HERE else b""), ("$msgpack", body)):
        try:
            value = _unpacked(inner)
            if isinstance(value, dict | list):
                shown = {key: _plain(value)}
                back = _bytes_of(msgspec.json.decode(msgspec.json.encode(shown)))
                if _plain(_unpacked(back[len(body) - len(inner) :])) == shown[key]:
                    return shown
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
            continue  # it is something else
    return {"$bytes": base64.b64encode(body).decode()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        if not _OURS.isdisjoint(value):
            raise ValueError("a key of a value would be taken for one of ours")
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, bytes):
        return _shown(value)
    if isinstance(value, Ext):
        return {"$large": bytes(value.data).hex()} if value.code == MARK else value
    return value


def _bytes_of(shown: Any) -> bytes:
    match shown:
        case {"$blob": str(digest)}:
            return _BLOB + bytes.fromhex(digest)
        case {"$here": inner}:
            return _HERE + _packed(_value(inner))
        case {"$msgpack": inner}:
            return _packed(_value(inner))
        case {"$bytes": str(text)}:
            return base64.b64decode(text)
        case list():  # as earlier versions sent several at once
            return bytes(shown)
    raise ValueError("a payload is none of a run")


def _value(shown: Any) -> Any:
    if isinstance(shown, list):
        return [_value(inner) for inner in shown]
    if not isinstance(shown, dict):
        return shown
    if len(shown) == 1:
        ((key, inner),) = shown.items()
        if key == "$large":
            return Ext(MARK, bytes.fromhex(inner))
        if key in _OURS:
            return _bytes_of(shown)
    return {key: _value(inner) for key, inner in shown.items()}


# ----------------------------------------------------------------------------------------------------
# Notifies the engines of this process when a worker of this process has continued or ended a run
#
#     await listeners.change(run_id, 0.5)     # until `notify_changed`, at most half a second
#     notify_changed(run_id)                  # from any thread
#
# This only saves time: without a notification an engine polls, and removes the files of ended runs later.


class LocalListeners:
    """The waiting tasks of one engine; `on_end` is called in the thread of its event loop."""

    def __init__(self, on_end: Callable[[str, bool], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_end = on_end
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        with _lock:
            _engines.add(self)

    def close(self) -> None:
        with _lock:
            _engines.discard(self)

    async def change(self, run_id: str, seconds: float) -> None:
        """Wait until the run changes, for at most `seconds`."""
        waiter = self._loop.create_future()
        self._waiting.setdefault(run_id, set()).add(waiter)
        try:
            await asyncio.wait([waiter], timeout=seconds)
        finally:
            waiter.cancel()
            waiting = self._waiting.get(run_id, set())
            waiting.discard(waiter)
            if not waiting:
                self._waiting.pop(run_id, None)

    def changed(self, run_id: str) -> None:
        if run_id in self._waiting and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake, run_id)

    def ended(self, run_id: str, keep: bool) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._on_end, run_id, keep)

    def _wake(self, run_id: str) -> None:
        for waiter in list(self._waiting.get(run_id, ())):
            if not waiter.done():
                waiter.set_result(None)


_lock = threading.Lock()
_engines: WeakSet[LocalListeners] = WeakSet()


def notify_changed(run_id: str) -> None:
    """Wake all who wait for a change of the run."""
    for listeners in _all():
        listeners.changed(run_id)


def notify_ended(run_id: str, *, keep: bool) -> None:
    """Report that a run and all of its steps have ended. `keep`: its files may be needed for a retry."""
    for listeners in _all():
        listeners.ended(run_id, keep)


def _all() -> list[LocalListeners]:
    with _lock:
        return list(_engines)
