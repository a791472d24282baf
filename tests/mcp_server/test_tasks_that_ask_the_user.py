"""A call that has become a task asks the user through the task, where client, workflow and setting allow it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.types import ElicitResult

from support.task_client import Seen, TaskClient, TaskId, TaskRequest, ask
from workflows_mcp.mcp_server import server as server_module
from workflows_mcp.mcp_server.server import build_server
from workflows_mcp.settings.model import Settings

pytestmark = pytest.mark.rows("X8")

HELD = """
name: held
elicitation: true
steps:
  - {id: hold, type: shell_command, command: cat gate}
  - {id: hello, type: user_message, message: "Deploying."}
  - id: env
    type: user_input
    prompt: "Where to?"
    validation: {pattern: "^(prod|test)$", error_message: "prod or test, please"}
    state_update: {path: raw.env}
"""


async def by_hand(context: Any, params: Any) -> ElicitResult:
    raise AssertionError("the form is filled in by hand")


async def nobody(tasks: TaskClient) -> None:
    raise AssertionError("nothing becomes a task here")


class Update(TaskId):
    input_responses: dict[str, Any]


class UpdateRequest(TaskRequest):
    params: Update


class Asking:
    """A task whose run has come to its question."""

    def __init__(self, client: Client, task: str) -> None:
        self._client = client
        self.id = task

    async def seen(self) -> dict[str, Any]:
        found = await ask(self._client.session, "tasks/get", self.id)
        return found.model_dump(by_alias=True, mode="json")

    async def form(self) -> tuple[str, str]:
        """The key of the only one, and what it says."""
        seen = await self.seen()
        assert seen["status"] == "input_required"
        [(key, request)] = seen["inputRequests"].items()
        assert request["method"] == "elicitation/create"
        assert request["params"]["requestedSchema"]["properties"]["input"]["type"] == "string"
        return key, request["params"]["message"]

    async def say(self, key: str, said: Any) -> None:
        params = Update(task_id=self.id, input_responses={key: said})
        await self._client.session.send_request(UpdateRequest(method="tasks/update", params=params), Seen)

    async def state(self, run: str) -> dict[str, Any]:
        read = await self._client.call_tool("get_workflow_state", {"workflow_id": run})
        assert read.structured_content is not None
        state: dict[str, Any] = read.structured_content["state"]
        return state

    async def result(self) -> dict[str, Any]:
        seen = await self.seen()
        assert seen["status"] == "completed"
        answer: dict[str, Any] = seen["result"]["structuredContent"]
        return answer


def session(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    work: Callable[[Asking], Awaitable[None]],
    *,
    forms: bool = True,
) -> None:
    monkeypatch.setattr(server_module, "WAIT_SECONDS", 0.0)
    os.mkfifo(directory / "gate")

    async def open_gate(tasks: TaskClient) -> None:
        if len(tasks.seen) == 2:
            await asyncio.to_thread((directory / "gate").write_text, "opened")

    async def go() -> None:
        tasks = TaskClient(open_gate)
        server = build_server(Settings(workspace=directory, home=directory / "home"))
        asks = by_hand if forms else None
        async with Client(server, extensions=[tasks], elicitation_callback=asks) as client:
            await client.call_tool("start_workflow", {"yaml": HELD})
            await work(Asking(client, tasks.seen[0]["taskId"]))

    asyncio.run(asyncio.wait_for(go(), 30))


def accepted(text: str) -> dict[str, Any]:
    return {"action": "accept", "content": {"input": text}}


def test_what_the_user_fills_in_goes_to_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(task: Asking) -> None:
        key, message = await task.form()
        assert message == "Deploying.\n\nWhere to?"
        assert await task.form() == (key, message), "asking about a task changes nothing"
        await task.say(key, accepted("prod"))
        ended = await task.result()
        assert ended["status"] == "completed"
        assert (await task.state(ended["workflow_id"]))["env"] == "prod"

    session(tmp_path, monkeypatch, work)


def test_what_does_not_fit_is_asked_for_again_under_another_key_and_then_of_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(task: Asking) -> None:
        keys: list[str] = []
        for _ in range(3):
            key, message = await task.form()
            assert ("prod or test, please" in message) is bool(keys)
            keys.append(key)
            await task.say(key, accepted("staging"))
        assert len(set(keys)) == 3
        assert (await task.result())["action"]["step_id"] == "env"

    session(tmp_path, monkeypatch, work)


@pytest.mark.parametrize(
    "said", [{"action": "decline"}, {"action": "perhaps"}, {"action": "accept", "content": {"input": {}}}, 7]
)
def test_a_user_who_does_not_answer_leaves_it_to_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Any
) -> None:
    async def work(task: Asking) -> None:
        await task.say((await task.form())[0], said)
        assert (await task.result())["action"]["step_id"] == "env"

    session(tmp_path, monkeypatch, work)


def test_an_answer_to_something_else_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(task: Asking) -> None:
        asked = await task.form()
        await task.say("hold#1", accepted("prod"))
        assert await task.form() == asked

    session(tmp_path, monkeypatch, work)


def test_a_client_without_forms_gets_the_action(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(task: Asking) -> None:
        await task.say("env#1", accepted("prod"))
        assert (await task.result())["action"]["step_id"] == "env"

    session(tmp_path, monkeypatch, work, forms=False)


def test_a_form_that_was_answered_does_not_come_again_with_the_next_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(task: Asking) -> None:
        first, _ = await task.form()
        await task.say(first, accepted("staging"))
        second, _ = await task.form()
        server = build_server(Settings(workspace=tmp_path, home=tmp_path / "home"))
        async with Client(server, extensions=[TaskClient(nobody)], elicitation_callback=by_hand) as other:
            there = Asking(other, task.id)
            assert (await there.form())[0] == second != first
            await there.say(first, accepted("prod"))
            assert (await there.form())[0] == second, "an answer to an old form is none"
            await there.say(second, {"action": "decline"})
            assert "declined" in (await there.result())["action"]["instructions"]
        assert "declined" in (await task.result())["action"]["instructions"]
        await task.say("env#3", accepted("prod"))
        assert (await task.result())["status"] == "pending_action", "it is for the agent now"

    session(tmp_path, monkeypatch, work)
