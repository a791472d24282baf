"""A real server process and the official client, for tests that are about more than the tools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from mcp import Client, StdioServerParameters

from support import forked

T = TypeVar("T")
Call = Callable[..., Awaitable[dict[str, Any]]]


def served(
    directory: Path,
    work: Callable[[Call], Awaitable[T]],
    *,
    toolsets: str = "core",
    more: Mapping[str, str] | None = None,
    seconds: float = 60,
) -> T:
    """What `work` gives, done with `call(tool, **arguments)` of a server that has its home and its workspace in
    the directory; `more` are further settings."""
    command, environment, workspace = serving(directory, toolsets, more)
    parameters = StdioServerParameters(command=command[0], args=command[1:], env=environment, cwd=workspace)

    async def session() -> T:
        async with Client(parameters) as client:

            async def call(tool: str, **arguments: Any) -> dict[str, Any]:
                result = await client.call_tool(tool, arguments)
                text = "".join(getattr(block, "text", "") for block in result.content)
                assert not result.is_error, text
                assert isinstance(result.structured_content, dict)
                assert json.loads(text) == result.structured_content
                return result.structured_content

            return await work(call)

    return asyncio.run(asyncio.wait_for(session(), seconds))


def serving(
    directory: Path, toolsets: str = "core", more: Mapping[str, str] | None = None
) -> tuple[list[str], dict[str, str], Path]:
    """How the server is started: command, environment, and the directory to start it in."""
    workspace = directory / "workspace"
    workspace.mkdir(exist_ok=True)
    environment = {
        "WORKFLOWS_HOME": str(directory / "home"),
        "WORKFLOWS_TOOLSETS": toolsets,
        "HOME": str(directory),
        **(more or {}),
    }
    return [*forked.command()], environment, workspace
