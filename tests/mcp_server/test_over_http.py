"""MCP over streamable HTTP: a real server process, spoken to by the official client and by whoever else comes."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from support.http_server import ERAS, SERVE, call, client_of, environment_of, http_server
from support.processes import eventually

GREET = """\
name: greet
inputs: {who: {type: string, default: world}}
blocks:
  - {id: hello, type: Shell, inputs: {command: 'echo "Hello ${inputs.who}"'}}
  - {id: approve, type: Prompt, depends_on: [hello], inputs: {prompt: 'Was that polite?'}}
outputs: {said: '${blocks.hello.outputs.stdout}', polite: '${blocks.approve.outputs.response}'}
"""
SLOW = """\
name: slow
blocks:
  - {id: wait, type: Shell, inputs: {command: 'echo $$ > pid; echo begun >> begun; while [ ! -e go ]; do sleep 0.05; done'}}
outputs: {code: '${blocks.wait.outputs.exit_code}'}
"""
TOKEN = "t0ken-of-the-test"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    workflows = tmp_path / "workspace" / ".workflows"
    workflows.mkdir(parents=True)
    (workflows / "greet.yaml").write_text(GREET)
    (workflows / "slow.yaml").write_text(SLOW)
    return tmp_path


def sent(url: str, **headers: str | bytes) -> httpx2.Response:
    """What comes back when somebody introduces himself with these headers."""
    client = {"name": "test", "version": "1"}
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
    return httpx2.post(
        url,
        json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params},
        headers={
            b"Accept": b"application/json, text/event-stream",
            **{
                name.encode(): value if isinstance(value, bytes) else value.encode()
                for name, value in headers.items()
            },
        },
        timeout=30,
    )


def refused(directory: Path, *arguments: str, **more: str) -> str:
    """What a server says that does not start."""
    done = subprocess.run(
        [*SERVE[:-1], *arguments],
        cwd=directory / "workspace",
        env=environment_of(directory, more),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done
    assert not done.stdout
    return done.stderr


def test_clients_of_both_eras_share_the_runs_of_one_server(place: Path) -> None:
    async def work(url: str) -> None:
        async with client_of(url, ERAS[0]) as modern, client_of(url, ERAS[1]) as legacy:
            begun = await call(modern, "start_workflow", workflow="greet", inputs={"who": "Ada"})
            assert begun["action"]["parameters"]["prompt"] == "Was that polite?"
            run_id = begun["workflow_id"]
            assert (await call(legacy, "get_next_step", workflow_id=run_id))["action"] == begun["action"]
            ended = await call(legacy, "submit_result", workflow_id=run_id, result="yes")
            assert ended["outputs"] == {"said": "Hello Ada\n", "polite": "yes"}
            assert (await call(modern, "get_workflow_status", workflow_id=run_id))["status"] == "completed"
            tools = [await client.list_tools() for client in (modern, legacy)]
            assert tools[0].tools == tools[1].tools

    with http_server(place) as listening:
        asyncio.run(asyncio.wait_for(work(listening.url), 60))


def test_who_calls_it_by_another_name_or_comes_from_another_page_gets_nothing(place: Path) -> None:
    with http_server(place) as listening:
        port = httpx2.URL(listening.url).port
        assert sent(listening.url).status_code == 200
        assert (
            sent(listening.url, Host=f"localhost:{port}", Origin=f"http://localhost:{port}").status_code
            == 200
        )
        for host in (
            "evil.example",
            f"evil.example:{port}",
            "127.0.0.1.evil.example",
            "localhost.evil.example:80",
        ):
            assert sent(listening.url, Host=host).status_code == 421, host
        for origin in ("http://evil.example", "https://localhost.evil.example", "null"):
            assert sent(listening.url, Origin=origin).status_code == 403, origin


def test_names_that_the_settings_give_it_are_its_own(place: Path) -> None:
    (place / "workspace" / "workflows.toml").write_text('[http]\nhosts = ["Flows.example.org"]\n')
    with http_server(place, more={"WORKFLOWS_TRUST": str(place)}) as listening:
        for origin in ("https://flows.example.org", "http://flows.example.org:8080"):
            assert sent(listening.url, Host="flows.example.org", Origin=origin).status_code == 200
        assert sent(listening.url, Host="FLOWS.example.org").status_code == 200
        assert sent(listening.url, Host="example.org").status_code == 421


def test_where_there_is_a_token_nobody_gets_in_without_it(place: Path) -> None:
    async def work(url: str) -> None:
        for era in ERAS:
            async with client_of(url, era, TOKEN) as client:
                assert (await call(client, "get_workflow_status"))["runs"] == []

    with http_server(place, more={"WORKFLOWS_HTTP_TOKEN": TOKEN}) as listening:
        for wrong in (b"", b"Bearer nonsense", f"Basic {TOKEN}", f"Bearer {TOKEN}x", b"Bearer \xfcber"):
            got = sent(listening.url, Authorization=wrong)
            assert got.status_code == 401, wrong
            assert got.headers["WWW-Authenticate"].startswith("Bearer ")
            assert TOKEN not in got.text
        assert httpx2.get(listening.url.replace("/mcp", "/else")).status_code == 401
        assert sent(listening.url, Authorization=f"Bearer {TOKEN}").status_code == 200
        assert sent(listening.url, Authorization=f"bearer {TOKEN}", Host="evil.example").status_code == 421
        asyncio.run(asyncio.wait_for(work(listening.url), 60))
        assert TOKEN not in listening.server.said


def test_it_does_not_listen_where_others_can_reach_it_without_a_token(place: Path) -> None:
    for address in ("0.0.0.0:0", "example.org"):
        said = refused(place, address)
        assert "a token is required" in said
        assert "set WORKFLOWS_HTTP_TOKEN" in said
    with http_server(
        place, more={"WORKFLOWS_HTTP_TOKEN": TOKEN, "WORKFLOWS_HTTP_ADDRESS": "0.0.0.0:0"}, command=SERVE[:-2]
    ) as listening:
        port = httpx2.URL(listening.url).port
        own = f"http://127.0.0.1:{port}/mcp"
        assert sent(own).status_code == 401
        assert sent(own, Authorization=f"Bearer {TOKEN}").status_code == 200
        assert (
            sent(own, Authorization=f"Bearer {TOKEN}", Host=socket.gethostname().lower()).status_code == 200
        )
        assert sent(own, Authorization=f"Bearer {TOKEN}", Host="evil.example").status_code == 421


def test_an_address_that_cannot_be_had_is_told_with_what_to_do(place: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = refused(place, str(port))
        assert f"127.0.0.1:{port} is in use by another process" in said
        assert "give another port" in said
    assert "--http must be HOST:PORT, not 'http://x'" in refused(place, "http://x")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_go_it_ends_what_is_under_way_and_leaves_the_run_to_the_next_server(
    place: Path, number: int
) -> None:
    """Also while clients of both eras wait for an answer and for notices."""
    begun, go = place / "workspace" / "begun", place / "workspace" / "go"

    async def wait_for(url: str, era: str, run_id: str) -> str:
        try:
            async with client_of(url, era) as client:
                await call(client, "get_workflow_status", workflow_id=run_id, wait_seconds=45)
        except Exception:
            return "cut off"
        return "answered"

    async def work(url: str) -> str:
        async with client_of(url) as client:
            run_id = str(
                (await call(client, "start_workflow", workflow="slow", wait_seconds=0))["workflow_id"]
            )
        await asyncio.to_thread(eventually, begun.exists)
        waiting = [asyncio.create_task(wait_for(url, era, run_id)) for era in ERAS]
        await asyncio.to_thread(eventually, lambda: _connections(url) >= 2)
        code = await asyncio.to_thread(listening.told, number)
        assert code == 128 + number
        await asyncio.wait_for(asyncio.gather(*waiting), 30)
        return run_id

    with http_server(place) as listening:
        run_id = asyncio.run(asyncio.wait_for(work(listening.url), 60))
    assert "Traceback" not in listening.server.said
    assert begun.read_text() == "begun\n"
    assert not psutil.pid_exists(int((place / "workspace" / "pid").read_text()))

    async def go_on(url: str) -> dict[str, Any]:
        await asyncio.to_thread(eventually, lambda: begun.read_text() == "begun\nbegun\n")
        go.touch()
        async with client_of(url) as client:
            return await call(client, "get_workflow_status", workflow_id=run_id)

    with http_server(place) as again:
        assert asyncio.run(asyncio.wait_for(go_on(again.url), 60))["outputs"] == {"code": 0}


def _connections(url: str) -> int:
    """How many clients the server has."""
    port = httpx2.URL(url).port
    found = [it for it in psutil.Process().net_connections() if it.raddr and it.raddr.port == port]
    return len([it for it in found if it.status == psutil.CONN_ESTABLISHED])


@pytest.mark.parametrize("era", ERAS)
def test_a_client_that_goes_away_during_a_call_leaves_the_run_running(place: Path, era: str) -> None:
    async def work(url: str) -> dict[str, Any]:
        async with client_of(url, era) as client:
            left = asyncio.create_task(call(client, "start_workflow", workflow="slow", wait_seconds=45))
            await asyncio.to_thread(eventually, (place / "workspace" / "begun").exists)
            left.cancel()
        (place / "workspace" / "go").touch()
        async with client_of(url, era) as client:
            [run] = (await call(client, "get_workflow_status"))["runs"]
            return await call(client, "get_workflow_status", workflow_id=run["workflow_id"])

    with http_server(place) as listening:
        assert asyncio.run(asyncio.wait_for(work(listening.url), 60))["outputs"] == {"code": 0}


def test_a_server_that_cannot_open_its_runs_says_so_and_ends(place: Path) -> None:
    (place / "home").write_text("a file, where a directory is needed")
    done = subprocess.run(
        [sys.executable, "-m", "workflows_mcp", "serve", "--http", ":0"],
        cwd=place / "workspace",
        env=environment_of(place),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert "serves MCP at" not in done.stderr


def test_a_definition_as_large_as_the_limit_goes_through(place: Path) -> None:
    text = GREET + "# " + "x" * 5_000_000 + "\n"
    assert len(json.dumps(text)) > 4 * 1024 * 1024

    async def work(url: str) -> dict[str, Any]:
        async with client_of(url) as client:
            return await call(client, "validate_workflow_yaml", yaml_content=text)

    with http_server(place) as listening:
        assert asyncio.run(asyncio.wait_for(work(listening.url), 60))["valid"] is True


def opened(url: str, text: str = "") -> socket.socket:
    """A connection on which this much of a request was sent."""
    connection = socket.create_connection(("127.0.0.1", httpx2.URL(url).port or 0), timeout=60)
    connection.sendall(text.encode())
    return connection


def answer_of(connection: socket.socket) -> str:
    """What the server says before it closes the connection."""
    said = b""
    while more := connection.recv(65536):
        said += more
    return said.decode()


HEAD = "POST /mcp HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.rows("O20")
@pytest.mark.parametrize("token", ["", TOKEN])
def test_a_request_that_does_not_arrive_in_time_is_ended(place: Path, token: str) -> None:
    more = {
        "WORKFLOWS_HTTP_HEADER_SECONDS": "0.3",
        "WORKFLOWS_HTTP_BODY_SECONDS": "0.3",
        "WORKFLOWS_HTTP_TOKEN": token,
    }
    with http_server(place, more=more) as listening:
        for part in ("", "POST /mcp HT", HEAD):
            with opened(listening.url, part) as unfinished:
                assert answer_of(unfinished).startswith("HTTP/1.1 408 ")
        with opened(listening.url, HEAD + "Content-Length: 100\r\n\r\n{") as unfinished:
            # Without a token the head is enough to be refused; the connection is not kept for the body either.
            assert answer_of(unfinished).startswith("HTTP/1.1 401 " if token else "HTTP/1.1 408 ")
        named = {"Authorization": f"Bearer {token}"} if token else {}
        assert sent(listening.url, **named).status_code == 200
        assert "Traceback" not in listening.server.said


@pytest.mark.rows("O20")
def test_a_connection_too_many_is_refused_until_another_one_is_closed(place: Path) -> None:
    with http_server(place, more={"WORKFLOWS_HTTP_CONNECTIONS": "3"}) as listening:
        held = [opened(listening.url) for _ in range(3)]
        for _ in range(20):
            with opened(listening.url) as refused:
                assert answer_of(refused).startswith("HTTP/1.1 503 ")
        held.pop().close()
        eventually(lambda: sent(listening.url).status_code == 200)
        assert listening.server.said.count("WORKFLOWS_HTTP_CONNECTIONS") == 1
        for it in held:
            it.close()


@pytest.mark.rows("O20")
@pytest.mark.parametrize("limit", ["-S -n 100", "-n 100"], ids=["soft", "hard"])
def test_runs_have_descriptors_left_however_many_connections_are_open(place: Path, limit: str) -> None:
    async def work(url: str) -> str:
        async with client_of(url) as client:
            begun = await call(client, "start_workflow", workflow="greet")
            return str(begun["action"]["parameters"]["prompt"])

    limited = ("sh", "-c", f'ulimit {limit}; exec "$@"', "sh", *SERVE)
    with http_server(place, command=limited) as listening:
        held = [opened(listening.url) for _ in range(150)]
        if limit.startswith("-n"):
            for it in held[:20]:  # room for one client
                it.close()
        eventually(lambda: sent(listening.url).status_code == 200)
        assert asyncio.run(asyncio.wait_for(work(listening.url), 60)) == "Was that polite?"
        for it in held:
            it.close()
        assert "Traceback" not in listening.server.said
        # A soft limit is raised to the hard one, which leaves room for all of them.
        assert ("connections are open" in listening.server.said) == limit.startswith("-n")


@pytest.mark.rows("O20")
def test_a_server_without_a_descriptor_left_says_so_in_one_line_and_recovers(place: Path) -> None:
    async def work(url: str) -> None:
        async with client_of(url) as client:
            assert (await call(client, "get_workflow_status"))["runs"] == []

    with http_server(place, command=SERVE) as listening:
        asyncio.run(asyncio.wait_for(work(listening.url), 60))  # all is open that it opens only once
        server = psutil.Process(listening.server.process.pid)
        _, hard = server.rlimit(psutil.RLIMIT_NOFILE)
        server.rlimit(psutil.RLIMIT_NOFILE, (server.num_fds(), hard))
        held = [opened(listening.url) for _ in range(5)]
        listening.server.says("a connection cannot be accepted: Too many open files")
        server.rlimit(psutil.RLIMIT_NOFILE, (hard, hard))
        eventually(lambda: sent(listening.url).status_code == 200)
        for it in held:
            it.close()
        assert "Traceback" not in listening.server.said
        assert listening.server.said.count("cannot be accepted") == 1
