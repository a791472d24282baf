"""A real server process that is spoken to over HTTP, and the official client for it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from support import forked
from support.processes import Background, background

SERVE = (sys.executable, "-m", "workflows_mcp", "serve", "--http", ":0")
"""A process that loads its modules; without it, one that has them."""
SAYS = "serves MCP at "
ERAS = ("2026-07-28", "legacy")


class Listening:
    """A server that listens, and where."""

    def __init__(self, server: Background, url: str) -> None:
        self.server = server
        self.url = url

    def told(self, number: int) -> int:
        return self.server.told(number)


def environment_of(directory: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "WORKFLOWS_HOME": str(directory / "home"),
        **(more or {}),
    }


@contextmanager
def http_server(
    directory: Path,
    *arguments: str,
    more: Mapping[str, str] | None = None,
    command: Sequence[str] = (),
) -> Iterator[Listening]:
    """One that has its home and its workspace in the directory; `more` are further settings."""
    workspace = directory / "workspace"
    workspace.mkdir(exist_ok=True)
    command = command or (*forked.command(), "serve", "--http", ":0")
    with background([*command, *arguments], workspace, environment_of(directory, more)) as server:
        said = server.says(SAYS)
        yield Listening(server, said.split(SAYS)[1].split()[0])


@asynccontextmanager
async def client_of(url: str, era: str = "auto", token: str | None = None) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http), mode=era) as client,
    ):
        yield client


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    text = "".join(getattr(block, "text", "") for block in result.content)
    assert not result.is_error, text
    assert isinstance(result.structured_content, dict)
    assert json.loads(text) == result.structured_content
    return result.structured_content
