"""The skills extension from the side of a client.

listed = await skills_of(client)                      # every page of skills/list
entry = await skill(client, "skill://x/SKILL.md")     # skills/get
"""

from __future__ import annotations

from typing import Any

from mcp import Client
from mcp.types import Request, RequestParams, Result
from pydantic import ConfigDict

SKILLS = "io.modelcontextprotocol/skills"


class Listed(Result):
    model_config = ConfigDict(extra="allow")
    skills: list[dict[str, Any]]
    next_cursor: str | None = None


class Got(Result):
    model_config = ConfigDict(extra="allow")
    skill: dict[str, Any]


class Cursor(RequestParams):
    cursor: str | None = None


class Uri(RequestParams):
    uri: str


class ListRequest(Request[Cursor, str]):
    method: str = "skills/list"
    params: Cursor


class GetRequest(Request[Uri, str]):
    method: str = "skills/get"
    params: Uri


async def pages_of(client: Client) -> list[Listed]:
    pages: list[Listed] = []
    cursor: str | None = None
    while not pages or cursor is not None:
        page = await client.session.send_request(ListRequest(params=Cursor(cursor=cursor)), Listed)
        pages.append(page)
        cursor = page.next_cursor
    return pages


async def skills_of(client: Client) -> dict[str, dict[str, Any]]:
    """Every skill that is listed, by its URI."""
    return {it["uri"]: it for page in await pages_of(client) for it in page.skills}


async def skill(client: Client, uri: str) -> dict[str, Any]:
    return (await client.session.send_request(GetRequest(params=Uri(uri=uri)), Got)).skill


async def text_at(client: Client, uri: str) -> str:
    [content] = (await client.read_resource(uri)).contents
    assert content.mime_type == "text/markdown"
    text = getattr(content, "text", None)
    assert isinstance(text, str)
    return text
