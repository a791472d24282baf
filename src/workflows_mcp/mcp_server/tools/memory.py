"""Toolset `memory`: store values under keys, for all agents and workflows that share the store."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from workflows_mcp.mcp_server.tooling import OVERWRITES, READS, AnyOrNull, Content, Ctx, Toolset
from workflows_mcp.mcp_server.tooling import service_of as _service
from workflows_mcp.values import beginning, to_json

TOOLSET = Toolset("memory")


Key = Annotated[str, Field(description="The name of the value")]
_LISTED = 500
_ROOM = 100
"""Room in an answer for everything except the key and the value."""


class Saved(TypedDict):
    saved: bool
    key: str


class Loaded(TypedDict):
    key: str
    found: bool
    value: NotRequired[Any]
    text: NotRequired[str]
    total_chars: NotRequired[int]
    next_offset: NotRequired[int]


class Keys(TypedDict):
    keys: list[str]
    count: int
    more: NotRequired[int]


@TOOLSET.tool("Save to memory", OVERWRITES, serves_task=True)
async def save_to_memory(
    ctx: Ctx, key: Key, value: Annotated[AnyOrNull, Field(description="Any JSON value; null deletes the key")]
) -> Annotated[Content, Saved]:
    """Store a value for other runs and conversations. It replaces the old value of the key."""
    await _service(ctx).save_memory(key, value)
    return {"saved": value is not None, "key": key}


@TOOLSET.tool("Load from memory", READS, serves_task=True)
async def load_from_memory(
    ctx: Ctx,
    key: Key,
    offset: Annotated[int, Field(description="Where to read on in the text of a long value", ge=0)] = 0,
) -> Annotated[Content, Loaded]:
    """The value of a key. Of a long value, `text` is a part of its JSON; read on with next_offset."""
    service = _service(ctx)
    value = await service.load_memory(key)
    if value is None:
        return {"key": key, "found": False}
    text, most = to_json(value), service.settings.limits.answer_chars - len(to_json(key)) - _ROOM
    if len(text) <= most and not offset:
        return {"key": key, "found": True, "value": value}
    part = beginning(text[offset : offset + most], most)
    after = offset + len(part)
    more = {"next_offset": after} if after < len(text) else {}
    return {"key": key, "found": True, "text": part, "total_chars": len(text), **more}


@TOOLSET.tool("List keys of the memory", READS, serves_task=True)
async def list_memory_keys(
    ctx: Ctx,
    prefix: Annotated[str, Field(description="Only keys with this prefix")] = "",
) -> Annotated[Content, Keys]:
    """The keys in order. `more`: how many are left out; narrow with prefix."""
    keys = await _service(ctx).list_memory(prefix)
    more = {"more": len(keys) - _LISTED} if len(keys) > _LISTED else {}
    return {"keys": keys[:_LISTED], "count": len(keys), **more}
