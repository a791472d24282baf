"""Resources and their notices over what real clients use: pipes and HTTP, in both eras of the protocol."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import uvicorn
from mcp import Client

from support.in_memory import ERAS, Desk, called
from support.subscriptions import LastSeen, subscribed
from workflows_mcp.mcp_server.server import build_server

pytestmark = [
    pytest.mark.rows("X8"),
    # What old clients do is what is tested.
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]

ASKS = """\
name: asks
blocks:
  - {id: one, type: Prompt, inputs: {prompt: "first?"}}
  - {id: two, type: Prompt, depends_on: [one], inputs: {prompt: "second?"}}
"""
GATED = """\
name: gated
blocks:
  - {id: gate, type: Shell, inputs: {command: "until [ -e go ]; do sleep 0.02; done"}}
"""


@asynccontextmanager
async def over_http(desk: Desk) -> AsyncIterator[str]:
    """The address of a server in this process."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        app = build_server(desk.settings()).streamable_http_app()
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on"))
        started = asyncio.Event()
        begin = server.startup

        async def startup(sockets: list[socket.socket] | None = None) -> None:
            await begin(sockets)
            started.set()

        server.startup = startup  # type: ignore[method-assign]
        serving = asyncio.create_task(server.serve([listening]))
        await started.wait()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        server.should_exit = True
        await serving


def with_http(desk: Desk, work: Callable[[str], Awaitable[None]]) -> None:
    async def session() -> None:
        async with over_http(desk) as address:
            await work(address)

    asyncio.run(asyncio.wait_for(session(), 60))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path)
    desk.define("asks", ASKS)
    desk.define("gated", GATED)
    return desk


async def notified(one: Client, other: Client, mode: str, last_seen: LastSeen) -> None:
    """`one` hears of what `other` does, and reads it."""
    run_id = (await called(other, "start_workflow", workflow="asks"))["workflow_id"]
    uri = f"run://{run_id}"
    async with subscribed(one, mode, uri):
        await called(other, "submit_result", workflow_id=run_id, result="yes")
        assert await last_seen.uris.get() == uri
        [content] = (await one.read_resource(uri)).contents
        assert json.loads(str(getattr(content, "text", "")))["action"]["step_id"] == "two"


@pytest.mark.parametrize("mode", ERAS)
def test_one_process_hears_over_its_pipes_of_a_run_in_another(place: Any, mode: str) -> None:
    place.define("asks", ASKS)
    last_seen = LastSeen()

    async def session() -> None:
        async with (
            Client(place.parameters, mode=mode, message_handler=last_seen) as one,
            Client(place.parameters) as other,
        ):
            await notified(one, other, mode, last_seen)

    asyncio.run(asyncio.wait_for(session(), 60))


@pytest.mark.parametrize("mode", ERAS)
def test_one_client_hears_over_http_of_what_another_does(desk: Desk, mode: str) -> None:
    last_seen = LastSeen()

    async def work(address: str) -> None:
        async with Client(address, mode=mode, message_handler=last_seen) as one, Client(address) as other:
            await notified(one, other, mode, last_seen)

    with_http(desk, work)


@pytest.mark.parametrize("mode", ERAS)
def test_a_client_that_is_gone_leaves_its_run_running_over_http(desk: Desk, mode: str) -> None:
    async def work(address: str) -> None:
        async with Client(address) as other:

            async def runs() -> list[dict[str, Any]]:
                return list((await called(other, "get_workflow_status"))["runs"])

            with anyio.CancelScope() as gone:

                async def leave() -> None:
                    while not await runs():
                        pass
                    gone.cancel()

                async with anyio.create_task_group() as both, Client(address, mode=mode) as one:
                    both.start_soon(leave)
                    await called(one, "start_workflow", workflow="gated", wait_seconds=45)
            [run] = await runs()
            assert run["status"] == "running"
            (desk.workspace / "go").touch()
            ended = await called(
                other, "get_workflow_status", workflow_id=run["workflow_id"], wait_seconds=45
            )
            assert ended["status"] == "completed"

    with_http(desk, work)
