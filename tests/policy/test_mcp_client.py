"""Tools of real MCP servers, called over pipes and over HTTP: results, errors, and what happens when one dies."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support import tool_server
from workflows_mcp.errors import Forbidden, RequestError, StepError
from workflows_mcp.policy.mcp_client import ToolServers
from workflows_mcp.policy.mcp_servers import McpServer, servers_in, servers_of
from workflows_mcp.policy.rules import Policy

pytestmark = pytest.mark.rows("X9")

SCRIPT = str(Path(tool_server.__file__))
Work = Callable[[ToolServers], Awaitable[None]]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the servers have noted down."""
    path = tmp_path / "log.txt"
    path.touch()
    monkeypatch.setenv("TOOL_SERVER_LOG", str(path))
    return path


def stdio(**more: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": [SCRIPT], **more}


def session(servers: dict[str, Any], work: Work, *, idle_seconds: float = 300.0) -> None:
    async def go() -> None:
        tools = ToolServers(servers_of(servers), trusts=lambda _: True, idle_seconds=idle_seconds)
        try:
            await work(tools)
        finally:
            await tools.close()

    asyncio.run(asyncio.wait_for(go(), 60))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_what_a_tool_gives_arrives_and_its_server_is_started_once_and_ended_at_the_end(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORKFLOWS_SECRET_TOKEN", "not for others")
    monkeypatch.setenv("GREETING", "hello")
    seen: dict[str, Any] = {}

    async def work(tools: ToolServers) -> None:
        async def value(tool: str, **arguments: Any) -> Any:
            result = await tools.call(tool, arguments, workspace=tmp_path)
            assert not result.failed, result.message
            return result.value

        assert await value("hub.add", a=1, b=2) == {"result": 3}
        assert await value("hub.issue", title="It's", labels=["x"]) == {
            "number": 7,
            "title": "It's",
            "labels": ["x"],
        }
        assert await value("hub.say", text='{"a": [1]}') == {"a": [1]}
        assert await value("hub.say", text="plain words") == "plain words"
        assert await value("add", a=2, b=2) == {"result": 4}, "the only server needs no name"
        assert await value("mcp__hub__add", a=3, b=2) == {"result": 5}
        content = (await value("hub.picture"))["content"]
        assert [block["type"] for block in content] == ["text", "image"]
        seen.update(await value("hub.where"))
        together = await asyncio.gather(*(value("hub.add", a=n, b=0) for n in range(20)))
        assert [each["result"] for each in together] == list(range(20))

    session({"hub": stdio(env={"GREETED": "${GREETING} ${NOBODY:-world}"})}, work)
    assert log.read_text().splitlines() == ["start", "issue It's"]
    assert seen["directory"] == str(tmp_path)
    assert seen["environment"]["GREETED"] == "hello world"
    assert not [name for name in seen["environment"] if name.startswith("WORKFLOWS_")]
    assert not is_alive(seen["pid"])
    captured = capfd.readouterr()
    assert captured.out == "", "standard output belongs to the protocol"
    assert "the tool server begins" not in captured.err


@pytest.mark.slow
def test_what_cannot_be_called_says_what_there_is(log: Path, tmp_path: Path) -> None:
    async def work(tools: ToolServers) -> None:
        async def refused(tool: str, **arguments: Any) -> StepError:
            with pytest.raises(StepError) as caught:
                await tools.call(tool, arguments, workspace=tmp_path)
            return caught.value

        error = await refused("hub.isue", title="x")
        assert error.message == "the MCP server 'hub' has no tool 'isue'"
        assert "did you mean 'issue'?" in error.hint
        error = await refused("hob.issue", title="x")
        assert error.message == "there is no MCP server 'hob'"
        assert "did you mean 'hub'?" in error.hint
        error = await refused("add", a=1, b=2)
        assert error.message == "several MCP servers have a tool 'add'"
        assert error.hint == "choose one: hub.add and other.add"
        error = await refused("nothing_like_it")
        assert "no MCP server has a tool 'nothing_like_it'" in error.message
        assert (
            "the MCP server 'broken' cannot be started: command not found: /no/such/program" in error.message
        )
        assert "hub.add" in error.hint
        failed = await tools.call("hub.refuse", {"reason": "the moon is full"}, workspace=tmp_path)
        assert failed.failed
        assert "the moon is full" in failed.message
        wrong = await tools.call("hub.add", {"a": "x"}, workspace=tmp_path)
        assert wrong.failed
        error = await refused("ends.add", a=1, b=2)
        assert error.message.startswith("the MCP server 'ends' cannot be started: ")
        assert error.message.endswith("; it printed last: no license")

    session(
        {
            "hub": stdio(),
            "other": stdio(),
            "broken": {"command": "/no/such/program"},
            "ends": {"command": "/bin/sh", "args": ["-c", "echo no license >&2; exit 1"]},
        },
        work,
    )


def test_without_any_server_the_error_says_where_to_describe_one(tmp_path: Path) -> None:
    async def work(tools: ToolServers) -> None:
        with pytest.raises(StepError) as caught:
            await tools.call("web_search", {}, workspace=tmp_path)
        assert "no MCP server is configured" in caught.value.message
        assert "[mcp_servers.name]" in caught.value.hint
        assert ".mcp.json" in caught.value.hint

    session({}, work)


@pytest.mark.slow
def test_a_server_that_has_died_is_started_again_and_no_call_is_made_twice_that_could_do_harm(
    log: Path, tmp_path: Path
) -> None:
    async def work(tools: ToolServers) -> None:
        before = (await tools.call("hub.where", {}, workspace=tmp_path)).value["pid"]
        with pytest.raises(StepError) as caught:
            await tools.call("hub.die", {"because": "out of memory"}, workspace=tmp_path)
        assert caught.value.message == (
            "the MCP server 'hub' ended while it ran 'die'; it printed last: out of memory"
        )
        assert "the tool may have completed" in caught.value.hint
        after = (await tools.call("hub.where", {}, workspace=tmp_path)).value["pid"]
        assert after != before
        os.kill(after, 9)
        while is_alive(after) or any(not it.silent for it in tools._connections.values()):
            await asyncio.sleep(0.01)
        assert (await tools.call("hub.add", {"a": 1, "b": 1}, workspace=tmp_path)).value == {"result": 2}
        mark = str(tmp_path / "mark")
        assert (await tools.call("hub.die_once", {"mark": mark}, workspace=tmp_path)).value == {
            "result": "alive"
        }

    session({"hub": stdio()}, work)
    lines = log.read_text().splitlines()
    assert lines.count("die") == 1
    assert lines.count("die_once") == 2, "what only reads is repeated"
    assert lines.count("start") == 4


@pytest.mark.slow
def test_a_call_that_is_given_up_leaves_the_server_usable(log: Path, tmp_path: Path) -> None:
    async def work(tools: ToolServers) -> None:
        call = asyncio.ensure_future(tools.call("hub.sleep", {"seconds": 60}, workspace=tmp_path))
        while "asleep" not in log.read_text():
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await tools.call("hub.add", {"a": 1, "b": 1}, workspace=tmp_path)).value == {"result": 2}

    session({"hub": stdio()}, work)
    assert log.read_text().splitlines().count("start") == 1


@pytest.mark.slow
def test_a_server_that_nobody_uses_is_ended_after_a_while(log: Path, tmp_path: Path) -> None:
    async def work(tools: ToolServers) -> None:
        pid = (await tools.call("hub.where", {}, workspace=tmp_path)).value["pid"]
        while is_alive(pid):
            await asyncio.sleep(0.01)
        assert (await tools.call("hub.add", {"a": 1, "b": 1}, workspace=tmp_path)).value == {"result": 2}

    session({"hub": stdio()}, work, idle_seconds=0.05)
    assert log.read_text().splitlines().count("start") == 2


class HttpServer:
    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, SCRIPT, str(self.port)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    async def is_up(self) -> None:
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def http_server() -> Iterator[HttpServer]:
    server = HttpServer()
    server.start()
    yield server
    server.stop()


@pytest.mark.slow
def test_tools_are_called_over_http_too(
    http_server: HttpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_TOKEN", "t0ken")

    async def work(tools: ToolServers) -> None:
        await http_server.is_up()
        assert (await tools.call("web.add", {"a": 1, "b": 2}, workspace=tmp_path)).value == {"result": 3}
        sent = await tools.call("web.header", {"name": "authorization"}, workspace=tmp_path)
        assert sent.value == {"result": "Bearer t0ken"}
        http_server.stop()
        with pytest.raises(StepError, match="the MCP server 'web' cannot be reached: "):
            await tools.call("web.add", {"a": 1, "b": 2}, workspace=tmp_path)
        http_server.start()
        await http_server.is_up()
        assert (await tools.call("web.add", {"a": 1, "b": 3}, workspace=tmp_path)).value == {"result": 4}

    session({"web": {"url": http_server.url, "headers": {"Authorization": "Bearer ${API_TOKEN}"}}}, work)


def test_a_server_that_may_not_be_used_is_neither_started_nor_called(log: Path, tmp_path: Path) -> None:
    policy = Policy(tmp_path, denied_capabilities=frozenset({"network"}), allow_commands=False)

    async def work(tools: ToolServers) -> None:
        for tool, needs in (("hub.add", "run_commands"), ("web.add", "network"), ("add", "run_commands")):
            with pytest.raises(Forbidden, match=needs):
                await tools.call(tool, {}, workspace=tmp_path, denied=policy.denial)

    session({"hub": stdio(), "web": {"url": "http://127.0.0.1:9/mcp"}}, work)
    assert log.read_text() == ""


# Descriptions of servers


def test_servers_of_the_workspace_are_read_as_other_clients_read_them(tmp_path: Path) -> None:
    (tmp_path / ".mcp.json").write_text(
        '{"mcpServers": {"hub": {"type": "stdio", "command": "hub", "args": ["x"], "autoApprove": ["y"]},'
        ' "web": {"type": "http", "url": "https://example.org/mcp"}, "off": {"command": "x", "disabled": true}}}'
    )
    found = servers_in(tmp_path)
    assert list(found) == ["hub", "web"]
    assert (found["hub"].command, found["hub"].args, found["hub"].needs) == ("hub", ("x",), "run_commands")
    assert (found["web"].url, found["web"].needs) == ("https://example.org/mcp", "network")
    assert servers_in(tmp_path / "nowhere") == {}
    tools = ToolServers(servers_of({"hub": {"command": "mine"}}), trusts=lambda _: True)
    assert tools.servers(tmp_path)["hub"].command == "mine", "the settings go before the file"
    assert list(tools.servers(tmp_path)) == ["hub", "web"]
    wary = ToolServers(servers_of({"hub": {"command": "mine"}}), trusts=lambda _: False)
    assert list(wary.servers(tmp_path)) == ["hub"], "a file of a directory that nobody trusts adds none"


def test_headers_are_sent_over_tls_or_to_this_machine_only() -> None:
    def server(url: str, **headers: str) -> McpServer:
        return servers_of({"web": {"url": url, "headers": headers}})["web"]

    with pytest.raises(StepError, match=r"not to http://search\.example\.org:80") as refused:
        server("http://user:pass@search.example.org:80/mcp", Authorization="Bearer ${T}").filled(
            {"T": "tok-1"}
        )
    assert "tok-1" not in str(refused.value)
    assert "pass" not in str(refused.value)
    for url in (
        "https://search.example.org/mcp",
        "http://127.0.0.1:9/mcp",
        "http://[::1]/",
        "http://localhost/",
    ):
        assert server(url, Authorization="Bearer x").filled({}).url == url
    assert server("http://search.example.org/mcp").filled({}).headers == {}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({}, "needs either a command"),
        ({"command": "x", "url": "y"}, "needs either a command"),
        ({"comand": "x"}, "unknown key 'comand'"),
        ({"command": ["x"]}, "'command' must be text"),
        ({"command": "x", "args": "y"}, "'args' must be a list of texts"),
        ({"command": "x", "env": {"A": 1}}, "'env' must be a table of texts"),
        ({"url": "x", "type": "sse"}, "of type 'sse'"),
        ("npx server", "must be a table"),
    ],
)
def test_a_description_that_is_wrong_is_refused(spec: Any, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        servers_of({"hub": spec})


@pytest.mark.parametrize("text", ["{", "[]", '{"mcpServers": []}'])
def test_a_file_that_is_wrong_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / ".mcp.json").write_text(text)
    with pytest.raises(RequestError, match=r"\.mcp\.json"):
        servers_in(tmp_path)


def test_a_variable_that_is_missing_is_named() -> None:
    server = servers_of({"hub": {"command": "x", "env": {"TOKEN": "${NO_SUCH_VARIABLE}"}}})["hub"]
    with pytest.raises(StepError, match="needs the environment variable NO_SUCH_VARIABLE"):
        server.filled({})
    assert server.filled({"NO_SUCH_VARIABLE": "v"}).env == {"TOKEN": "v"}
