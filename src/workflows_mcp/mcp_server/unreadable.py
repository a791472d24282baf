"""Lines that are no message of the protocol, over stdio: they are answered, where the protocol library would
pass over them and leave whoever sent one to wait for its time to run out.

    {"jsonrpc": "2.0", "id": 7, "error": {"code": -32700, "message": "the line is no JSON: …"}}

The id is that of the line, as far as one can be made out. Knows nothing of what messages are about.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any, Protocol, Self

from mcp.shared.message import SessionMessage
from mcp.types import INVALID_REQUEST, PARSE_ERROR, ErrorData, JSONRPCError, JSONRPCRequest
from pydantic import ValidationError

from workflows_mcp.values import is_whole

_SHOWN = 200
_HALF = "it holds half of a character (a lone surrogate, such as one part of an emoji): send the text whole"


_TOO_MUCH = "it is nested too deeply, or holds a number that is too long"
_NEAR = 400
_SHORT = r'\s*"(?:jsonrpc|method)"\s*:\s*"[^"\\]{0,100}"\s*'
_ID = r'\s*"id"\s*:\s*(?P<id>-?(?:0|[1-9][0-9]{0,17})|"[^"\\]{0,100}")\s*'
_AT_THE_START = re.compile(rf"\s*\{{(?:{_SHORT},)*{_ID}[,}}]")
_AT_THE_END = re.compile(rf",{_ID}(?:,{_SHORT})*\}}\s*\Z")

Item = SessionMessage | Exception


class Incoming(Protocol):
    """Where messages come from, and what was sent instead of one."""

    last_context: Context | None

    async def receive(self) -> Item: ...
    async def __anext__(self) -> Item: ...
    async def aclose(self) -> None: ...


class Outgoing(Protocol):
    async def send(self, item: SessionMessage, /) -> None: ...


class Readable:
    """The messages that come in; whatever is none is answered on the way."""

    def __init__(self, incoming: Incoming, outgoing: Outgoing) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    @property
    def last_context(self) -> Context | None:
        return self._incoming.last_context

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        return await self._message(self._incoming.__anext__)

    async def receive(self) -> Item:
        return await self._message(self._incoming.receive)

    async def _message(self, received: Callable[[], Awaitable[Item]]) -> Item:
        while True:
            item = await received()
            if not isinstance(item, ValidationError):
                return item
            refusal = refusal_of(item)
            if refusal is not None:
                await self._outgoing.send(SessionMessage(refusal))

    async def aclose(self) -> None:
        await self._incoming.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def refusal_of(error: ValidationError) -> JSONRPCError | None:
    """What to answer to a line that could not be read; None where nobody waits for an answer to it."""
    found = error.errors(include_url=False)
    line = next((it["input"] for it in found if it["type"] == "json_invalid"), None)
    if isinstance(line, str | bytes):
        return _no_json(line)
    # It is JSON, of whatever: of the kinds of message that it could be, one always misses something of it.
    message = next((it["input"] for it in found if len(it["loc"]) == 1 or it["type"] == "missing"), None)
    if isinstance(message, dict):
        if "id" not in message and isinstance(message.get("method"), str):
            return None  # a notice: nobody waits for an answer
        as_request = [it for it in found if it["loc"][:1] == (JSONRPCRequest.__name__,)]
        wrong = "; ".join(f"{'.'.join(map(str, it['loc'][1:]))}: {it['msg']}" for it in as_request)
        return _error(_id_in(message), INVALID_REQUEST, f"the line is no message of JSON-RPC 2.0: {wrong}")
    what = "a batch, and messages are sent one by one" if isinstance(message, list) else "no object"
    return _error(None, INVALID_REQUEST, f"the line is no message of JSON-RPC 2.0: it is {what}")


def _no_json(line: str | bytes) -> JSONRPCError | None:
    if not line.strip():
        return None
    try:
        message = json.loads(line.strip())  # less strict than the protocol library
    except RecursionError:
        return _error(_id_near_an_end(line), PARSE_ERROR, f"the line cannot be read: {_TOO_MUCH}")
    except ValueError as error:
        return _error(_id_near_an_end(line), PARSE_ERROR, f"the line is no JSON: {error}")
    why = f"is no JSON: {_HALF}" if not is_whole(message) else f"cannot be read: {_TOO_MUCH}"
    return _error(_id_in(message), PARSE_ERROR, f"the line {why}")


def _id_near_an_end(line: str | bytes) -> int | str | None:
    """The id of a request that cannot be read as a whole, where it stands before or after everything that is
    of any length: so it is answered, and whoever sent it does not wait."""
    text = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
    found = _AT_THE_START.match(text) or _AT_THE_END.search(text[-_NEAR:])
    if found is None or '"method"' not in text:
        return None
    identity = json.loads(found["id"])
    return identity if is_whole(identity) else None


def _id_in(message: Any) -> int | str | None:
    found = message.get("id") if isinstance(message, dict) and "method" in message else None
    can_be_told = isinstance(found, int | str) and not isinstance(found, bool) and is_whole(found)
    return found if can_be_told else None


def _error(message_id: int | str | None, code: int, text: str) -> JSONRPCError:
    short = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
    return JSONRPCError(jsonrpc="2.0", id=message_id, error=ErrorData(code=code, message=short))
