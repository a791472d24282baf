"""A call whose run goes on for long is a task, for clients that know tasks; for all others it answers as ever."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from support.task_client import TaskClient, ask
from workflows_mcp.mcp_server import server as server_module
from workflows_mcp.mcp_server.server import build_server
from workflows_mcp.settings.model import Settings

pytestmark = pytest.mark.rows("X8")

HELD = """
name: held
blocks:
  - {id: hold, type: Shell, inputs: {command: cat gate}}
  - {id: ask, type: Prompt, depends_on: [hold], inputs: {prompt: "Well?"}}
outputs: {said: "${blocks.hold.outputs.stdout} ${blocks.ask.outputs.response}"}
"""
REACTIVE = """
name: held
default_state: {raw: {said: ""}}
steps:
  - {id: hold, type: shell_command, command: cat gate, state_update: {path: raw.said}}
  - {id: ask, type: user_input, prompt: "Well?", state_update: {path: raw.answer}}
"""


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "WAIT_SECONDS", 0.0)


def session(
    directory: Path, tasks: TaskClient | None, work: Callable[[Client], Awaitable[None]], **settings: Any
) -> None:
    os.mkfifo(directory / "gate")
    given = Settings(workspace=directory, home=directory / "home", **settings)

    async def go() -> None:
        extensions = [tasks] if tasks is not None else None
        async with Client(build_server(given), extensions=extensions) as client:
            await work(client)

    asyncio.run(asyncio.wait_for(go(), 30))


def opens(directory: Path) -> Callable[[TaskClient], Awaitable[None]]:
    """Whoever waits at the gate goes on, the first time."""

    async def between(tasks: TaskClient) -> None:
        looks = len(tasks.seen)
        if looks == 2:
            await asyncio.to_thread((directory / "gate").write_text, "opened")

    return between


def test_a_call_that_would_wait_is_a_task_until_the_run_needs_its_agent(tmp_path: Path) -> None:
    tasks = TaskClient(opens(tmp_path))

    async def work(client: Client) -> None:
        result = await client.call_tool("start_workflow", {"yaml": HELD})
        answer = result.structured_content
        assert answer is not None
        assert (answer["status"], answer["action"]["step_id"]) == ("pending_action", "ask")
        arguments = {"workflow_id": answer["workflow_id"], "result": "fine"}
        ended = (await client.call_tool("submit_result", arguments)).structured_content
        assert ended is not None
        assert ended["outputs"] == {"said": "opened fine"}

    session(tmp_path, tasks, work)
    begun, first, *_, last = tasks.seen
    assert begun["status"] == first["status"] == "working"
    assert begun["createdAt"].endswith("Z")
    assert "hold" in begun["statusMessage"]
    assert last["status"] == "completed"


def test_a_task_of_the_toolset_reactive_ends_in_the_shape_of_its_tool(tmp_path: Path) -> None:
    folder = tmp_path / ".aromcp" / "workflows"
    folder.mkdir(parents=True)
    (folder / "held.yaml").write_text(REACTIVE, encoding="utf-8")

    async def work(client: Client) -> None:
        result = await client.call_tool("workflow_start", {"workflow": "held"})
        answer = result.structured_content
        assert answer is not None
        assert answer["state"]["said"] == "opened"
        assert answer["step"]["id"] == "ask"
        assert answer["workflow_id"].startswith("wf_")

    session(tmp_path, TaskClient(opens(tmp_path)), work, toolsets=("reactive",))


def test_a_tool_that_becomes_no_task_waits_as_for_any_other_client(tmp_path: Path) -> None:
    before = '  - {id: first, type: Prompt, inputs: {prompt: "Ready?"}}\n'
    text = HELD.replace("blocks:\n", f"blocks:\n{before}").replace("Shell,", "Shell, depends_on: [first],")

    async def work(client: Client) -> None:
        asked = (await client.call_tool("start_workflow", {"yaml": text})).structured_content
        assert asked is not None
        opened = asyncio.create_task(asyncio.to_thread((tmp_path / "gate").write_text, "opened"))
        answer = {"workflow_id": asked["workflow_id"], "step_id": "first", "result": "fine"}
        following = (await client.call_tool("submit_step_result", answer)).structured_content
        await opened
        assert following is not None
        assert following["step_id"] == "ask"

    session(tmp_path, TaskClient(lambda _: asyncio.sleep(0)), work, toolsets=("stateful",))


def test_how_long_to_wait_may_be_said_as_text(tmp_path: Path) -> None:
    async def cancel(tasks: TaskClient) -> None:
        await tasks.ask("tasks/cancel", tasks.seen[0]["taskId"])

    async def work(client: Client) -> None:
        await client.call_tool("start_workflow", {"yaml": HELD, "wait_seconds": "20"})

    tasks = TaskClient(cancel)
    session(tmp_path, tasks, work)
    assert tasks.seen[0]["status"] == "working"


def test_cancelling_a_task_cancels_its_run(tmp_path: Path) -> None:
    async def cancel(tasks: TaskClient) -> None:
        await tasks.ask("tasks/cancel", tasks.seen[0]["taskId"])

    async def work(client: Client) -> None:
        assert (await client.call_tool("start_workflow", {"yaml": HELD})).is_error
        status = (await client.call_tool("get_workflow_status", {})).structured_content
        assert status is not None
        assert [run["status"] for run in status["runs"]] == ["cancelled"]

    tasks = TaskClient(cancel)
    session(tmp_path, tasks, work)
    assert tasks.seen[-1]["status"] == "cancelled"


@pytest.mark.parametrize("looking", ["get_workflow_status", "get_next_step"])
def test_cancelling_a_task_that_only_looks_leaves_the_run_alone(tmp_path: Path, looking: str) -> None:
    statuses: list[str] = []

    async def give_up(tasks: TaskClient) -> None:
        task = tasks.seen[0]["taskId"]
        await tasks.ask("tasks/cancel", task.replace("start_workflow", looking))
        statuses.append((await tasks.ask("tasks/get", task)).status)
        await tasks.ask("tasks/cancel", task)

    async def work(client: Client) -> None:
        await client.call_tool("start_workflow", {"yaml": HELD})

    session(tmp_path, TaskClient(give_up), work)
    assert statuses == ["working"]


@pytest.mark.parametrize(
    ("settings", "task", "known"),
    [
        ({"read_only": True}, "get_workflow_status", True),
        ({"read_only": True}, "start_workflow", False),
        ({"toolsets": ("graph",)}, "submit_result", False),
        ({"toolsets": ("core",)}, "execute_workflow", False),
    ],
)
def test_a_server_has_tasks_of_the_tools_that_it_serves_and_one_that_only_looks_cancels_nothing(
    tmp_path: Path, settings: dict[str, Any], task: str, known: bool
) -> None:
    async def work(client: Client) -> None:
        started = await client.call_tool("start_workflow", {"yaml": HELD, "wait_seconds": 0})
        assert started.structured_content is not None
        run = started.structured_content["workflow_id"]
        other = Settings(workspace=tmp_path, home=tmp_path / "home", **settings)
        async with Client(build_server(other), extensions=[TaskClient(opens(tmp_path))]) as beside:
            for method in ("tasks/get", "tasks/update", "tasks/cancel"):
                refused = pytest.raises(MCPError, match="there is no task")
                with nullcontext() if known else refused:
                    await ask(beside.session, method, f"{task}:{run}:1")
        asked = {"workflow_id": run, "wait_seconds": 0}
        status = (await client.call_tool("get_workflow_status", asked)).structured_content
        assert status is not None
        assert status["status"] == "running"
        await client.call_tool("control_workflow", {"workflow_id": run, "action": "cancel"})

    session(tmp_path, None, work)


def test_asking_about_a_task_starts_nothing(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        result = await client.call_tool("execute_inline_workflow", {"workflow_yaml": HELD})
        assert result.structured_content is not None
        run = result.structured_content["workflow_id"]
        answer = {"checkpoint_id": run, "response": "fine"}
        await client.call_tool("resume_workflow", answer)
        for checkpoint in (f"chk_{run}_1", result.structured_content["checkpoint_id"]):
            with pytest.raises(MCPError, match="there is no task"):
                await ask(client.session, "tasks/get", f"execute_workflow:{checkpoint}:1")
        runs = (await client.call_tool("get_workflow_status", {})).structured_content
        assert runs is not None
        assert [it["workflow_id"] for it in runs["runs"]] == [run]

    session(tmp_path, TaskClient(opens(tmp_path)), work, toolsets=("graph",))


def test_a_task_outlives_the_server_that_handed_it_out(tmp_path: Path) -> None:
    task = ""

    async def stop(tasks: TaskClient) -> None:
        nonlocal task
        task = tasks.seen[0]["taskId"]
        raise ConnectionError("the server is gone")

    async def work(client: Client) -> None:
        with pytest.raises(ConnectionError):
            await client.call_tool("start_workflow", {"yaml": HELD})

    session(tmp_path, TaskClient(stop), work)
    (tmp_path / "gate").unlink()

    async def again(client: Client) -> None:
        run = task.split(":")[1]
        assert (await ask(client.session, "tasks/get", task)).status == "working"
        await client.call_tool("get_workflow_status", {"workflow_id": run})
        found = await ask(client.session, "tasks/get", task)
        assert found.result is not None
        assert found.result["structuredContent"]["action"]["step_id"] == "ask"

    session(tmp_path, TaskClient(opens(tmp_path)), again)


def test_an_unknown_task_is_refused(tmp_path: Path) -> None:
    refused = []

    async def wrong(tasks: TaskClient) -> None:
        run = tasks.seen[0]["taskId"].split(":")[1]
        for task in (
            "start_workflow:wf_0:1",
            "start_workflow:",
            "wf_0",
            f"list_workflows:{run}:1",
            f"start_workflow:{run}:x",
            f"start_workflow:{run}:1:a:b",
            f"start_workflow:{run}:1:detailed",
            f"start_workflow:{run}:{'9' * 5000}",
            f"start_workflow:{run}:999",
            f"start_workflow:{run}:01",
            f"start_workflow:{run}:٣",
        ):
            with pytest.raises(MCPError) as error:
                await tasks.ask("tasks/get", task)
            refused.append(error.value.error.message)
        await tasks.ask("tasks/cancel", tasks.seen[0]["taskId"])

    async def work(client: Client) -> None:
        await client.call_tool("start_workflow", {"yaml": HELD})

    session(tmp_path, TaskClient(wrong), work)
    assert len(refused) == 11
    assert all("there is no task" in message for message in refused)


def test_a_client_that_does_not_know_tasks_gets_the_answer(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        result = await client.call_tool("start_workflow", {"yaml": HELD, "wait_seconds": 0})
        assert result.structured_content is not None
        assert result.structured_content["status"] == "running"
        run = result.structured_content["workflow_id"]
        await client.call_tool("control_workflow", {"workflow_id": run, "action": "cancel"})

    session(tmp_path, None, work)


def test_a_task_that_is_done_stays_done_and_is_not_cancelled_when_its_run_goes_on(tmp_path: Path) -> None:
    asks_again = HELD.replace(
        "outputs:", "  - {id: more, type: Shell, depends_on: [ask], inputs: {command: cat gate}}\noutputs:"
    )
    tasks = TaskClient(opens(tmp_path))

    async def work(client: Client) -> None:
        first = (await client.call_tool("start_workflow", {"yaml": asks_again})).structured_content
        assert first is not None
        task, run = tasks.seen[0]["taskId"], first["workflow_id"]
        answer = {"workflow_id": run, "result": "fine", "wait_seconds": 0}
        submitted = (await client.call_tool("submit_result", answer)).structured_content
        assert submitted is not None
        assert submitted["status"] == "running"
        found = await ask(client.session, "tasks/get", task)
        assert found.result is not None
        assert (found.status, found.result["structuredContent"]["status"]) == ("completed", "running")
        await ask(client.session, "tasks/cancel", task)
        await asyncio.to_thread((tmp_path / "gate").write_text, "again")
        ended = await client.call_tool("get_workflow_status", {"workflow_id": run})
        assert ended.structured_content is not None
        assert ended.structured_content["status"] == "completed"
        await ask(client.session, "tasks/cancel", task)
        await ask(client.session, "tasks/cancel", task.replace("start_workflow", "submit_result"))

    session(tmp_path, tasks, work)


@pytest.mark.parametrize("seconds", [0, 0.5, 0.0])
def test_a_call_that_does_not_want_to_wait_is_no_task(tmp_path: Path, seconds: float) -> None:
    tasks = TaskClient(opens(tmp_path))

    async def work(client: Client) -> None:
        started = await client.call_tool("start_workflow", {"yaml": HELD, "wait_seconds": seconds})
        assert started.structured_content is not None
        assert started.structured_content["status"] == "running"
        run = started.structured_content["workflow_id"]
        looked = await client.call_tool("get_workflow_status", {"workflow_id": run, "wait_seconds": seconds})
        assert looked.structured_content is not None
        assert looked.structured_content["status"] == "running"
        await client.call_tool("control_workflow", {"workflow_id": run, "action": "cancel"})

    session(tmp_path, tasks, work)
    assert tasks.seen == []


def test_the_result_of_a_task_looks_as_the_call_has_asked_for_with_links_to_what_is_long(
    tmp_path: Path,
) -> None:
    long = """
name: long
blocks:
  - {id: hold, type: Shell, inputs: {command: cat gate}}
  - {id: print, type: Shell, depends_on: [hold], inputs: {command: "seq 20000"}}
outputs: {said: "${blocks.print.outputs.stdout}"}
"""

    async def work(client: Client) -> None:
        asked = {"workflow_yaml": long, "response_format": "detailed"}
        result = await client.call_tool("execute_inline_workflow", asked)
        assert result.structured_content is not None
        assert result.structured_content["blocks"]["hold"]["outputs"]["stdout"] == "opened"
        assert [part.type for part in result.content][:2] == ["text", "resource_link"]

    session(tmp_path, TaskClient(opens(tmp_path)), work, toolsets=("graph",))
