"""A real server process, spoken to by the official client over real pipes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from mcp import Client, StdioServerParameters

from support import forked
from support.declared import undeclared

T = TypeVar("T")


class Agent:
    """What an agent sees of the server: answers as data, refusals as text."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._schemas: dict[str, dict[str, Any]] = {}

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = await self.client.call_tool(tool, arguments)
        text = "".join(getattr(block, "text", "") for block in result.content)
        assert not result.is_error, text
        assert isinstance(result.structured_content, dict)
        assert json.loads(text) == result.structured_content
        assert undeclared(tool, await self._schema(tool), result.structured_content) == []
        return result.structured_content

    async def _schema(self, tool: str) -> dict[str, Any]:
        if not self._schemas:
            tools = (await self.client.list_tools()).tools
            self._schemas = {it.name: it.output_schema or {} for it in tools}
        return self._schemas[tool]

    async def refused(self, tool: str, **arguments: Any) -> str:
        result = await self.client.call_tool(tool, arguments)
        assert result.is_error, result.structured_content
        return "".join(getattr(block, "text", "") for block in result.content)


class Place:
    """A workspace with a store of runs of its own."""

    def __init__(self, directory: Path) -> None:
        self.workspace = directory / "workspace"
        self.home = directory / "home"
        self.workspace.mkdir()

    @property
    def parameters(self) -> StdioServerParameters:
        command = forked.command()
        environment = {
            "WORKFLOWS_HOME": str(self.home),
            "HOME": str(self.home.parent),
        }
        return StdioServerParameters(
            command=command[0], args=list(command[1:]), env=environment, cwd=self.workspace
        )

    def define(self, name: str, text: str) -> None:
        folder = self.workspace / ".workflows"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")

    def serve(self, work: Callable[[Agent], Awaitable[T]], *, mode: str = "auto") -> T:
        """Start a server, let an agent work with it, and stop it."""

        async def session() -> T:
            async with Client(self.parameters, mode=mode) as client:
                return await work(Agent(client))

        return _run(session())

    def serve_two(self, work: Callable[[Agent, Agent], Awaitable[T]]) -> T:
        """Start two servers that share the store, and let an agent work with each."""

        async def session() -> T:
            async with Client(self.parameters) as one, Client(self.parameters) as other:
                return await work(Agent(one), Agent(other))

        return _run(session())


def _run(session: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(asyncio.wait_for(session, 60))
    except BaseExceptionGroup as group:
        raise _innermost(group) from None


def _innermost(error: BaseException) -> BaseException:
    """What went wrong, without the wrappings of the task groups that it came through."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)
