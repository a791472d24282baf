"""Checks and encodes keys and values of the memory, for all engines.

    body = packed("release", {"version": 3}, limits)    # bytes, or RequestError
    unpacked(body)                                      # {"version": 3}

Steps and agents of all runs share the memory, so it holds no secrets: `RedactingMemory` redacts them.
"""

from __future__ import annotations

import re

import msgspec

from workflows_mcp.engines.values import encode
from workflows_mcp.errors import RequestError
from workflows_mcp.limits import Limits
from workflows_mcp.policy import Memory, Secrets
from workflows_mcp.values import Value, shown

KEY_CHARS = 500
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def check_key(key: str) -> None:
    """Raises RequestError if the key is empty, too long, or has control characters."""
    if not key.strip():
        raise RequestError("a key of the memory must not be empty")
    if len(key) > KEY_CHARS or _CONTROL.search(key):
        raise RequestError(
            f"{shown(key)} cannot be a key of the memory",
            hint=f"a key has at most {KEY_CHARS} characters, and no control characters",
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


class RedactingMemory:
    """The memory that steps use: redacts secrets in keys and values."""

    def __init__(self, memory: Memory, secrets: Secrets) -> None:
        self._memory = memory
        self._secrets = secrets

    async def remember(self, key: str, value: Value) -> None:
        await self._memory.remember(self._secrets.redact(key), self._secrets.redact(value))

    async def recall(self, key: str) -> Value:
        return self._secrets.redact(await self._memory.recall(self._secrets.redact(key)))

    async def remembered(self, prefix: str = "") -> list[str]:
        return await self._memory.remembered(prefix)
