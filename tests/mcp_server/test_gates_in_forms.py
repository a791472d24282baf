"""A gate is decided in a form of the client, by its user; no call of the agent decides it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.types import ElicitResult

from workflows_mcp.answers import Answer
from workflows_mcp.mcp_server.server import build_server
from workflows_mcp.runs import Service
from workflows_mcp.settings import Settings

pytestmark = [pytest.mark.rows("P1", "X8"), pytest.mark.parametrize("mode", ["auto", "legacy"])]

RELEASE = """
name: release
steps:
  - {id: build, type: delegate, instructions: "Build it {{ rejection.comment }}", output_to: built}
  - id: approve
    type: gate
    message: "Release it?"
    on_reject: {back_to: build}
    output_to: decision
  - {id: end, type: return, needs_state: [decision], value: "{{ state.decision.by }}: {{ state.decision.decision }}"}
"""


class User:
    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.shown: list[tuple[str, dict[str, Any]]] = []

    async def __call__(self, _: Any, params: Any) -> ElicitResult:
        self.shown.append((params.message, params.requested_schema))
        given = self.answers.pop(0)
        if isinstance(given, str):
            return ElicitResult(action=given)  # type: ignore[arg-type]
        return ElicitResult(action="accept", content=given)


def session(directory: Path, mode: str, user: Any, work: Callable[[Any], Awaitable[None]]) -> None:
    given = Settings(workspace=directory, home=directory / "home")

    async def go() -> None:
        async with Client(build_server(given), mode=mode, elicitation_callback=user) as client:

            async def call(tool: str, **arguments: Any) -> dict[str, Any]:
                result = await client.call_tool(tool, arguments)
                if result.is_error:
                    return {"refused": str(result.content)}
                answer: dict[str, Any] = result.structured_content
                return answer

            await work(call)

    asyncio.run(go())


def test_the_user_decides_in_a_form_and_may_send_the_work_back(tmp_path: Path, mode: str) -> None:
    user = User({"decision": "reject", "comment": "add tests"}, {"decision": "approve"})

    async def work(call: Any) -> None:
        started = await call("start_workflow", yaml=RELEASE)
        run = started["workflow_id"]
        again = await call("submit_result", workflow_id=run, step_id="build", result={"response": "done"})
        assert again["action"]["sent_back"]["comment"] == "add tests"
        assert again["action"]["parameters"]["instructions"] == "Build it add tests"
        step_id = again["action"]["step_id"]
        ended = await call(
            "submit_result", workflow_id=run, step_id=step_id, result={"response": "with tests"}
        )
        assert ended["status"] == "completed"
        assert ended["result"].endswith(": approve")

    session(tmp_path, mode, user, work)
    assert [message for message, _ in user.shown] == ["Release it?", "Release it?"]
    assert user.shown[0][1]["properties"]["decision"]["enum"] == ["approve", "reject"]


def test_after_a_declined_form_the_gate_still_waits_and_the_agent_cannot_answer(
    tmp_path: Path, mode: str
) -> None:
    user = User("decline")

    async def work(call: Any) -> None:
        run = (await call("start_workflow", yaml=RELEASE))["workflow_id"]
        waiting = await call("submit_result", workflow_id=run, step_id="build", result={"response": "done"})
        assert waiting["status"] == "waiting"
        assert waiting["decisions"][0]["step_id"] == "approve"
        assert "workflows-mcp answer" in waiting["decisions"][0]["how"]
        for result in ({"decision": "approve"}, "approve", {"is_error": True, "error": "skip it"}):
            refused = await call("submit_result", workflow_id=run, step_id="approve", result=result)
            assert "only a person can decide it" in refused["refused"]
        assert (await call("get_workflow_status", workflow_id=run, wait_seconds=0))["status"] == "waiting"

    session(tmp_path, mode, user, work)
    assert len(user.shown) == 1


def test_a_client_without_forms_hears_where_the_user_can_decide(tmp_path: Path, mode: str) -> None:
    async def work(call: Any) -> None:
        run = (await call("start_workflow", yaml=RELEASE))["workflow_id"]
        waiting = await call("submit_result", workflow_id=run, step_id="build", result={"response": "done"})
        assert waiting["status"] == "waiting"
        assert "tell the user" in waiting["next"]

    session(tmp_path, mode, None, work)


def test_a_status_shows_the_open_form_at_once_and_does_not_wait_for_another_decision(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def begin(call: Any) -> None:
        run.append((await call("start_workflow", yaml=RELEASE))["workflow_id"])
        await call("submit_result", workflow_id=run[0], step_id="build", result={"response": "done"})

    async def status(service: Service, *given: Any, patient: bool = False, **named: Any) -> Answer:
        waits.append(patient)
        return await read(service, *given, patient=patient, **named)

    async def look(call: Any) -> None:
        ended = await call("get_workflow_status", workflow_id=run[0])
        assert ended["status"] == "completed"

    run: list[str] = []
    waits: list[bool] = []
    read = Service.status
    session(tmp_path, mode, None, begin)
    monkeypatch.setattr(Service, "status", status)
    session(tmp_path, mode, User({"decision": "approve"}), look)
    assert waits
    assert True not in waits
