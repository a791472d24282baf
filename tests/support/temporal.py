"""One real Temporal server for all tests of a process, and a task queue of its own for each test.

`temporal_address` is what a test asks for; `tests/conftest.py` makes it known everywhere. The server keeps
its database in a temporary directory and is ended with the tests.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from workflows_mcp.errors import RequestError
from workflows_mcp.temporal_dev.server import DevServer, find_program, free_port, start_dev_server

if TYPE_CHECKING:
    from workflows_mcp.engines.temporal.connection import Address


@contextmanager
def running_server(database: Path, *, port: int | None = None) -> Iterator[DevServer]:
    """A server that answers; ended at the end. On the same port and database it goes on where it was."""
    server = start_dev_server(port or free_port(), database, log=database.with_suffix(".log"))
    try:
        wait_until_it_answers(server.host)
        yield server
    finally:
        server.end()


def wait_until_it_answers(host: str, seconds: float = 60) -> None:
    from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
    from temporalio.service import RPCError

    from workflows_mcp.engines.temporal.connection import Address, connect

    async def until_it_does() -> None:
        async with asyncio.timeout(seconds):
            while True:
                try:
                    client = await connect(Address(host))
                    await client.workflow_service.describe_namespace(
                        DescribeNamespaceRequest(namespace="default")
                    )
                except (RequestError, RPCError):
                    await asyncio.sleep(0.05)
                else:
                    return

    asyncio.run(until_it_does())


def servers_of(directory: Path) -> list[psutil.Process]:
    """The servers that keep their runs somewhere there, without their guards."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "start-dev" in words and "-I" not in words and str(directory) in " ".join(words):
            found.append(process)
    return found


@pytest.fixture(scope="session")
def temporal_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    """The server that all tests of this process share: do not end it."""
    pytest.importorskip("temporalio", reason="temporalio is not installed: pip install -e .[temporal]")
    try:
        find_program()
    except RequestError as error:
        pytest.skip(f"{error.message}: {error.hint}")
    with running_server(tmp_path_factory.mktemp("temporal") / "dev.db") as server:
        yield server


@pytest.fixture
def temporal_address(temporal_server: DevServer) -> Address:
    """Where that server is, with a task queue that no other test has."""
    from workflows_mcp.engines.temporal.connection import Address

    return Address(host=temporal_server.host, task_queue=f"test-{uuid.uuid4().hex[:12]}")
