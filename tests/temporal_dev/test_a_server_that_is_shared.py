"""One development server for all processes of a home: who starts it, who finds it, who starts it again."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.processes import eventually
from support.temporal import servers_of
from workflows_mcp.errors import RequestError
from workflows_mcp.temporal_dev.server import (
    SharedServer,
    answers,
    claim,
    free_port,
    known_port,
    start_dev_server,
)

pytestmark = [pytest.mark.rows("S13"), pytest.mark.usefixtures("temporal_server")]


async def at_once(_: str) -> bool:
    """Whoever listens is ready."""
    return True


def port_of(host: str) -> int:
    return int(host.partition(":")[2])


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.02)


def test_whoever_comes_second_finds_the_server_of_the_first_and_takes_over_when_that_one_goes(
    tmp_path: Path,
) -> None:
    async def go() -> None:
        first, second = SharedServer(tmp_path), SharedServer(tmp_path)
        host = await first.open(at_once)
        assert await second.open(at_once) == host
        assert len(servers_of(tmp_path)) == 1
        old = servers_of(tmp_path)
        await first.close()
        await until(lambda: [it for it in servers_of(tmp_path) if it not in old])
        await until(lambda: answers(port_of(host)))
        assert known_port(tmp_path) == port_of(host)
        await second.close()
        await until(lambda: not servers_of(tmp_path))

    asyncio.run(go())


def test_two_that_come_at_once_start_one(tmp_path: Path) -> None:
    async def go() -> None:
        servers = [SharedServer(tmp_path) for _ in range(4)]
        hosts = await asyncio.gather(*(server.open(at_once) for server in servers))
        assert len(set(hosts)) == 1
        assert len(servers_of(tmp_path)) == 1
        for server in servers:
            await server.close()

    asyncio.run(go())


def test_a_server_that_dies_is_started_again_at_the_same_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        server = SharedServer(tmp_path)
        host = await server.open(at_once)
        died = servers_of(tmp_path)
        died[0].kill()
        await until(lambda: [it for it in servers_of(tmp_path) if it not in died])
        await until(lambda: answers(port_of(host)))
        assert "development server ended" in caplog.text
        await server.close()

    asyncio.run(go())


def test_what_is_in_the_file_of_a_server_that_is_gone_misleads_nobody(tmp_path: Path) -> None:
    async def go() -> None:
        (tmp_path / "server.json").write_text("{ broken")
        server = SharedServer(tmp_path)
        host = await server.open(at_once)
        assert answers(port_of(host))
        await server.close()
        await until(lambda: not servers_of(tmp_path))
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", port_of(host)))
            taken.listen()

            async def is_another(found: str) -> bool:
                return found != host

            other = SharedServer(tmp_path)
            assert answers(port_of(await other.open(is_another)))
            await other.close()

    asyncio.run(go())


def test_a_server_that_cannot_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "dev.db").write_bytes(b"this is no database" * 1000)
    with pytest.raises(RequestError, match="did not start") as caught:
        asyncio.run(SharedServer(tmp_path).open(at_once))
    assert caught.value.code == "no_temporal"
    assert str(tmp_path / "server.log") in caught.value.hint
    assert "it printed nothing" not in caught.value.message


def test_a_port_can_be_asked_for_and_one_that_is_taken_is_told(tmp_path: Path) -> None:
    port = free_port()
    server = claim(tmp_path / "one", port=port)
    assert server is not None
    try:
        eventually(lambda: answers(port))
        assert claim(tmp_path / "one") is None
        with pytest.raises(RequestError, match=f"the port {port} is taken"):
            claim(tmp_path / "two", port=port)
    finally:
        server.end()
    assert server.has_ended()


STARTS = """\
import sys, time
from pathlib import Path
from workflows_mcp.temporal_dev.server import start_dev_server
start_dev_server(int(sys.argv[1]), Path(sys.argv[2]), log=Path(sys.argv[2] + ".log"))
print("started", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_ends_with_the_process_that_started_it_however_that_ends(
    tmp_path: Path, number: int
) -> None:
    port = free_port()
    command = [sys.executable, "-c", STARTS, str(port), str(tmp_path / "dev.db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as owner:
        eventually(lambda: answers(port))
        owner.send_signal(number)
    eventually(lambda: not answers(port))
    eventually(lambda: not servers_of(tmp_path))


def test_what_it_says_is_in_its_log_and_nothing_of_it_on_our_outputs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    server = start_dev_server(free_port(), tmp_path / "dev.db", log=tmp_path / "log")
    eventually(lambda: answers(server.port))
    server.end()
    assert "Temporal" in (tmp_path / "log").read_text()
    assert capfd.readouterr() == ("", "")
