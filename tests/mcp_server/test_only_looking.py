"""`--read-only`: tools that change nothing, a process that carries out nothing, and words that fit both."""

from __future__ import annotations

import asyncio
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from support.http_server import call, client_of, http_server
from support.processes import eventually
from workflows_mcp.mcp_server.server import build_server
from workflows_mcp.settings.model import load_settings

TOOLSETS = ("core", "graph", "stateful", "reactive", "memory", "debug", "all")
CORE = {
    "list_workflows",
    "get_workflow_info",
    "get_workflow_status",
    "get_workflow_state",
    "validate_workflow_yaml",
}


def server_of(toolsets: str, tmp_path: Path, read_only: str = "true") -> Any:
    environ = {
        "WORKFLOWS_TOOLSETS": toolsets,
        "WORKFLOWS_READ_ONLY": read_only,
        "WORKFLOWS_HOME": str(tmp_path),
    }
    return build_server(load_settings(environ, workspace=tmp_path), exits_on_signals=False)


def tools(server: Any) -> dict[str, Any]:
    return {tool.name: tool for tool in asyncio.run(server.list_tools())}


@pytest.mark.parametrize("toolsets", TOOLSETS)
def test_exactly_the_tools_that_change_nothing_are_served(toolsets: str, tmp_path: Path) -> None:
    there, every = tools(server_of(toolsets, tmp_path)), tools(server_of(toolsets, tmp_path, "false"))
    assert set(there) == {name for name, tool in every.items() if tool.annotations.read_only_hint}
    assert there
    if toolsets == "core":
        assert set(there) == CORE


@pytest.mark.parametrize("toolsets", TOOLSETS)
def test_instructions_and_prompts_name_only_tools_that_are_there(toolsets: str, tmp_path: Path) -> None:
    server = server_of(toolsets, tmp_path)
    every = set(tools(server_of("all", tmp_path, "false")))
    texts = [server.instructions]
    assert [prompt.name for prompt in asyncio.run(server.list_prompts())] == ["workflow"]
    for typed in ("", "list", "list x", "x info", "x start", "resume wf_1", "status", "status wf_1", "a b c"):
        found = asyncio.run(server.get_prompt("workflow", {"command": typed}))
        texts.append(found.messages[0].content.text)
    named = {word for text in texts for word in re.findall(r"\w+", text)} & every
    assert named
    assert named <= set(tools(server))
    assert not [text for text in texts if "/workflow NAME start" in text]


def test_what_would_start_or_resume_something_is_told_to_be_impossible(tmp_path: Path) -> None:
    server = server_of("core", tmp_path)
    for typed in ("greet start --input who=Ada", "resume wf_1"):
        found = asyncio.run(server.get_prompt("workflow", {"command": typed}))
        assert "read-only" in found.messages[0].content.text
    assert "read-only" in server.instructions

    async def work() -> None:
        async with Client(server) as client:
            with pytest.raises(MCPError, match="Unknown tool: start_workflow"):
                await client.call_tool("start_workflow", {"workflow": "greet"})

    asyncio.run(asyncio.wait_for(work(), 30))


def test_a_run_that_nobody_drives_is_looked_at_and_left_alone(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    (workspace / ".workflows").mkdir(parents=True)
    (workspace / ".workflows" / "slow.yaml").write_text(
        "name: slow\nblocks:\n"
        "  - {id: wait, type: Shell, inputs: {command: 'echo begun >> begun; sleep 600'}}\n"
    )
    begun = workspace / "begun"

    async def start(url: str) -> str:
        async with client_of(url) as client:
            return str((await call(client, "start_workflow", workflow="slow", wait_seconds=0))["workflow_id"])

    async def look(url: str, run_id: str) -> dict[str, Any]:
        async with client_of(url) as client:
            return await call(client, "get_workflow_status", workflow_id=run_id, wait_seconds=1.2)

    with http_server(tmp_path) as first:
        run_id = asyncio.run(start(first.url))
        eventually(begun.exists)
        first.told(signal.SIGTERM)
    with http_server(tmp_path, "--read-only") as looking:
        assert asyncio.run(look(looking.url, run_id))["status"] == "running"
        assert begun.read_text() == "begun\n", "servers that go on with runs do so before they listen"
    with http_server(tmp_path) as last:
        eventually(lambda: begun.read_text() == "begun\nbegun\n")
        last.told(signal.SIGTERM)  # and its command with it


@pytest.mark.rows("G24")
@pytest.mark.parametrize(
    ("toolsets", "read_only", "tool", "said"),
    [
        ("core", "true", "start_workflow", "changes runs, and this server is read-only"),
        ("core", "false", "execute_workflow", "is in the toolset 'graph'"),
        ("graph", "true", "workflow_state_read", "is in the toolset 'reactive'"),
        ("core", "true", "list_workflow", "did you mean 'list_workflows'?"),
    ],
)
def test_a_tool_that_is_not_served_is_said_to_be_elsewhere(
    tmp_path: Path, toolsets: str, read_only: str, tool: str, said: str
) -> None:
    async def go() -> None:
        async with Client(server_of(toolsets, tmp_path, read_only)) as client:
            with pytest.raises(MCPError, match=f"Unknown tool: {tool}") as refused:
                await client.call_tool(tool, {})
            assert said in refused.value.error.message

    asyncio.run(asyncio.wait_for(go(), 20))
