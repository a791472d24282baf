"""Events in their written form. What cannot be written down is refused before it becomes a fact."""

from __future__ import annotations

from typing import Any

import msgspec

from workflows_mcp.errors import RequestError
from workflows_mcp.machine.events import Event

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
