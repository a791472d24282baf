"""Payloads that people can read: what goes through the server is JSON, also where the code deals in bytes.

The code of runs and steps passes its data on in msgpack, as a store has it. On the server the same is JSON,
so that Temporal's page shows the inputs and outputs of a step:

    {"$here": {"run_id": "wf_1", "command": {"$msgpack": {"address": "build", "inputs": {…}}}}}

`$here` and `$blob` are what a `BlobStore` packs, `$large` is a mark for a large value. Only what comes back
as the same values is written so; all else is `binary/plain`, as all of it was in earlier versions.
"""

from __future__ import annotations

import base64
from typing import Any

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

from workflows_mcp.engines.values import MARK

_OURS = {"$here", "$blob", "$msgpack", "$bytes", "$large"}
_HERE, _BLOB = b"h", b"t"
_BLOB_BYTES = 21
_GROWTH = 1.5
"""What grows more than that as JSON stays as it is: the server limits how much it is sent at once."""
_BYTES_AND_ALL = 256

_packed = msgspec.msgpack.Encoder().encode
_unpacked = msgspec.msgpack.Decoder().decode


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
