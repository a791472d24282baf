"""A server inside of the test, spoken to by the official client in either era of the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from mcp import Client

from workflows_mcp.mcp_server.server import build_server
from workflows_mcp.settings.model import Settings, load_settings

T = TypeVar("T")
ERAS = ("auto", "legacy")


class Desk:
    """A workspace with a store of runs, and the client of a server that works there."""

    def __init__(self, directory: Path) -> None:
        self.workspace = directory / "workspace"
        self.home = directory / "home"
        self.workspace.mkdir(exist_ok=True)

    def define(self, name: str, text: str) -> Path:
        file = self.workspace / ".workflows" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    def settings(self, **more: str) -> Settings:
        environment = {"WORKFLOWS_HOME": str(self.home), **more}
        return load_settings(environment, workspace=self.workspace)

    def serve(
        self, work: Callable[[Client], Awaitable[T]], *, mode: str = "auto", more: dict[str, str] | None = None,
        **client: Any,
    ) -> T:  # fmt: skip
        """What `work` gives, done with a client of the server; `more` are further settings."""

        async def session() -> T:
            async with Client(build_server(self.settings(**(more or {}))), mode=mode, **client) as it:
                return await work(it)

        try:
            return asyncio.run(asyncio.wait_for(session(), 60))
        except BaseExceptionGroup as group:
            raise _innermost(group) from None


def _innermost(error: BaseException) -> BaseException:
    """What went wrong, without the wrappings of the task groups that it came through."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


async def called(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """What a tool answers."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert isinstance(result.structured_content, dict)
    return result.structured_content
