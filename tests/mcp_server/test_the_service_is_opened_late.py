"""A server answers first and opens its service after that; nobody who asks something of it can tell."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from mcp import Client, MCPError

from workflows_mcp.errors import StoreError
from workflows_mcp.mcp_server import lazy
from workflows_mcp.mcp_server.server import build_server
from workflows_mcp.runs.service import Service
from workflows_mcp.settings.model import Settings, load_settings


class Opening:
    """Stands between the server and its service: how often it was opened, and what became of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        self.let_go = threading.Event()
        self.let_go.set()
        self.failures: list[Exception] = []
        make = lazy._open_service

        def made(settings: Settings) -> Service:
            self.times += 1
            self.let_go.wait(20)
            if self.failures:
                raise self.failures.pop(0)
            return make(settings)

        monkeypatch.setattr(lazy, "_open_service", made)


@pytest.fixture
def opening(monkeypatch: pytest.MonkeyPatch) -> Opening:
    return Opening(monkeypatch)


@pytest.fixture
def served(place: Any, opening: Opening) -> Callable[[Callable[[Client], Awaitable[None]]], None]:
    def serve(work: Callable[[Client], Awaitable[None]]) -> None:
        async def session() -> None:
            settings = load_settings({"WORKFLOWS_HOME": str(place.home), "HOME": str(place.home.parent)})
            async with Client(build_server(settings), raise_exceptions=False) as client:
                await work(client)

        asyncio.run(asyncio.wait_for(session(), 30))

    return serve


def test_what_the_server_is_made_of_is_listed_before_the_service_is_there(
    served: Any, opening: Opening
) -> None:
    opening.let_go.clear()

    async def work(client: Client) -> None:
        assert (await client.list_tools()).tools
        assert (await client.list_resource_templates()).resource_templates
        opening.let_go.set()

    served(work)


def test_calls_that_come_too_early_wait_for_one_service(served: Any, opening: Opening) -> None:
    opening.let_go.clear()

    async def work(client: Client) -> None:
        calls = [asyncio.create_task(client.call_tool("list_workflows", {})) for _ in range(3)]
        while not opening.times:
            await asyncio.sleep(0)
        opening.let_go.set()
        for result in await asyncio.gather(*calls):
            assert not result.is_error
            assert result.structured_content is not None

    served(work)
    assert opening.times == 1


def test_a_service_that_does_not_open_says_why_and_the_next_call_tries_again(
    served: Any, opening: Opening, caplog: pytest.LogCaptureFixture
) -> None:
    opening.failures.append(StoreError("the disk is full", hint="make room"))

    async def work(client: Client) -> None:
        with pytest.raises(MCPError, match="the disk is full"):
            await client.call_tool("list_workflows", {})
        assert not (await client.call_tool("list_workflows", {})).is_error

    with caplog.at_level(logging.ERROR):
        served(work)
    assert "the disk is full" in caplog.text


def test_the_service_is_opened_also_when_nobody_says_anything(
    place: Any, opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lazy, "_WITHOUT_MESSAGE", 0.0)

    async def silence() -> None:
        waiting = lazy.LazyService(load_settings({"WORKFLOWS_HOME": str(place.home)}))
        waiting.open_in()
        while not opening.times:
            await asyncio.sleep(0)
        await waiting.close()

    asyncio.run(asyncio.wait_for(silence(), 30))
    assert opening.times == 1


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("WORKFLOWS_MCP_SERVERS", '{"there": {"command": 7}}', "there"),
        ("WORKFLOWS_TOOLSETS", "kore", "kore"),
    ],
)
def test_settings_that_cannot_be_meant_are_told_before_any_answer(
    place: Any, variable: str, value: str, said: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "workflows_mcp"],
        input=json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}) + "\n",
        capture_output=True,
        text=True,
        timeout=30,
        cwd=place.workspace,
        env={"PATH": "/usr/bin:/bin", **place.parameters.env, variable: value},
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr
    assert "Traceback" not in done.stderr
