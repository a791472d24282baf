"""A question asked three calls deep survives the server that asked it, and is answered at another one."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from mcp import Client, StdioServerParameters

DEEPEST = """\
name: three
inputs: {path: {type: string}}
blocks:
  - {id: before, type: Shell, inputs: {command: 'echo three >> log'}}
  - {id: ask, type: Prompt, depends_on: [before], inputs: {prompt: 'Go on at ${inputs.path}?'}}
  - {id: after, type: Shell, depends_on: [ask], inputs: {command: 'echo answered >> log'}}
outputs: {answer: '${blocks.ask.response}'}
"""


def calling(name: str, inner: str) -> str:
    return f"""\
name: {name}
inputs: {{path: {{type: string, default: ''}}}}
blocks:
  - {{id: before, type: Shell, inputs: {{command: 'echo {name} >> log'}}}}
  - id: call
    type: ExecuteWorkflow
    depends_on: [before]
    inputs: {{workflow: {inner}, inputs: {{path: '${{inputs.path}}/{name}'}}}}
outputs: {{answer: '${{blocks.call.outputs.answer}}'}}
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    (folder / ".workflows").mkdir(parents=True)
    texts = {name: calling(name, inner) for name, inner in (("top", "one"), ("one", "two"), ("two", "three"))}
    for name, text in {**texts, "three": DEEPEST}.items():
        (folder / ".workflows" / f"{name}.yaml").write_text(text)
    return folder


def server(workspace: Path) -> StdioServerParameters:
    """A server that writes down its process id before it serves."""
    command = f'echo $$ > "{workspace}/pid"; exec "{sys.executable}" -m workflows_mcp serve --toolsets graph'
    environment = {"WORKFLOWS_HOME": str(workspace.parent / "home"), "HOME": str(workspace.parent)}
    return StdioServerParameters(command="sh", args=["-c", command], env=environment, cwd=workspace)


def session(workspace: Path, work: Callable[[Client], Awaitable[None]]) -> None:
    async def go() -> None:
        async with Client(server(workspace)) as client:
            await work(client)

    asyncio.run(asyncio.wait_for(go(), 60))


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert isinstance(result.structured_content, dict)
    return result.structured_content


@pytest.mark.slow
@pytest.mark.rows("G16", "G18", "X1")
def test_a_question_three_calls_deep_is_answered_after_its_server_was_killed(workspace: Path) -> None:
    seen: dict[str, Any] = {}

    async def pause_and_die(client: Client) -> None:
        seen.update(await call(client, "execute_workflow", workflow="top"))
        pid = int((workspace / "pid").read_text())
        os.kill(pid, signal.SIGKILL)
        while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            await asyncio.sleep(0.01)

    with suppress(Exception):  # the client notices that its server is gone
        session(workspace, pause_and_die)
    assert seen["status"] == "paused"
    assert seen["prompt"] == "Go on at /top/one/two?"
    assert (workspace / "log").read_text().split() == ["top", "one", "two", "three"]

    async def answer(client: Client) -> None:
        found = (await call(client, "list_checkpoints", workflow_name="top"))["checkpoints"]
        assert found[0]["checkpoint_id"] == seen["checkpoint_id"]
        assert found[0]["paused_block"] == "call/call/call/ask"
        assert found[0]["moved_on"] is False
        info = await call(client, "get_checkpoint_info", checkpoint_id=seen["checkpoint_id"])
        assert info["workflow_stack"] == ["top", "one", "two", "three"]

        done = await call(
            client,
            "resume_workflow",
            checkpoint_id=seen["checkpoint_id"],
            response="yes",
            response_format="detailed",
        )
        assert (done["status"], done["outputs"]) == ("success", {"answer": "yes"})
        assert done["workflow_id"] == seen["workflow_id"]
        level, path = done, ""
        for name in ("top", "one", "two"):
            inside = level["blocks"]["call"]
            path += f"/{name}"
            assert inside["inputs"]["inputs"] == {"path": path}
            assert inside["outputs"] == {"answer": "yes"}
            assert inside["metadata"]["succeeded"] is True
            level = inside
        assert level["blocks"]["ask"]["outputs"] == {"response": "yes"}
        assert level["blocks"]["after"]["metadata"]["status"] == "completed"
        assert (workspace / "log").read_text().split() == ["top", "one", "two", "three", "answered"]

    session(workspace, answer)
