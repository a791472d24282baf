"""Questions to the user as each era of the protocol has them: requests to the client, which it can fail at, and
since 2026-07-28 calls that are answered with a form and made again."""

from __future__ import annotations

import asyncio
import stat
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp.types import METHOD_NOT_FOUND, ElicitResult, ErrorData, InputRequiredResult

from workflows_mcp.mcp_server import elicitation
from workflows_mcp.mcp_server.server import build_server
from workflows_mcp.settings.model import Settings

pytestmark = pytest.mark.rows("X8")

ONE = """
name: release
elicitation: true
blocks: [{id: approve, type: Prompt, inputs: {prompt: "Release it?"}}]
outputs: {said: "${blocks.approve.outputs.response}"}
"""
ACCEPTED = {"answer": ElicitResult(action="accept", content={"response": "yes"})}


def many(questions: int) -> str:
    blocks = [
        f'{{id: q{at}, type: Prompt, depends_on: [{f"q{at - 1}" if at else ""}], inputs: {{prompt: "{at}?"}}}}'
        for at in range(questions)
    ]
    listed = "".join(f"  - {block}\n" for block in blocks)
    return f"name: many\nelicitation: true\nblocks:\n{listed}"


async def fills_in(context: Any, params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content={"response": "yes"})


def session(
    directory: Path, work: Callable[[Client], Awaitable[None]], *, mode: str = "auto", user: Any = fills_in
) -> None:
    async def go() -> None:
        server = build_server(Settings(workspace=directory, home=directory / "home"))
        async with Client(server, mode=mode, elicitation_callback=user) as client:
            await work(client)

    asyncio.run(asyncio.wait_for(go(), 30))


async def called(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert isinstance(result.structured_content, dict)
    return result.structured_content


# Requests to the client


@pytest.mark.parametrize(
    "said",
    [
        ErrorData(code=METHOD_NOT_FOUND, message="Method not found"),
        ElicitResult.model_construct(action="perhaps"),
        ElicitResult.model_construct(action="accept", content={"response": {"deep": [1]}}),
    ],
)
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_where_the_client_fails_at_asking_the_agent_is_asked(tmp_path: Path, said: Any) -> None:
    asked = 0

    async def user(context: Any, params: Any) -> Any:
        nonlocal asked
        asked += 1
        return said

    async def work(client: Client) -> None:
        answer = await called(client, "start_workflow", yaml=ONE)
        run = answer["workflow_id"]
        assert (answer["status"], answer["action"]["step_id"]) == ("pending_action", "approve")
        assert (await called(client, "get_workflow_status", workflow_id=run))["status"] == "pending_action"
        ended = await called(client, "submit_result", workflow_id=run, result="no")
        assert ended["outputs"] == {"said": "no"}

    session(tmp_path, work, mode="legacy", user=user)
    assert asked == 1


def test_a_call_that_stays_open_asks_as_much_as_there_is(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        assert (await called(client, "start_workflow", yaml=many(13)))["status"] == "completed"

    session(tmp_path, work, mode="legacy")


# Calls that are made again


async def form(client: Client) -> InputRequiredResult:
    found = await client.session.call_tool("start_workflow", {"yaml": ONE}, allow_input_required=True)
    assert isinstance(found, InputRequiredResult)
    return found


async def filled_in(client: Client, state: str | None) -> Any:
    result = await client.session.call_tool(
        "start_workflow", {"yaml": ONE}, input_responses=dict(ACCEPTED), request_state=state
    )
    return (result.structured_content or {})["outputs"]


def test_a_form_can_be_filled_in_after_the_server_has_been_started_anew(tmp_path: Path) -> None:
    states: list[str | None] = []

    async def open_form(client: Client) -> None:
        states.append((await form(client)).request_state)

    async def fill_in(client: Client) -> None:
        assert await filled_in(client, states[0]) == {"said": "yes"}
        assert len((await called(client, "get_workflow_status"))["runs"]) == 1

    session(tmp_path, open_form)
    session(tmp_path, fill_in)
    key = tmp_path / "home" / elicitation.KEY_FILE
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert not list(key.parent.glob(f".{key.name}.*")), "nothing is left of making it"


@pytest.mark.parametrize(("days", "holds"), [(6, True), (8, False)])
def test_a_form_can_be_filled_in_for_a_week(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int, holds: bool
) -> None:
    async def work(client: Client) -> None:
        state = (await form(client)).request_state
        then = time.time() + days * 24 * 3600
        with monkeypatch.context() as patched:
            patched.setattr("mcp.server.request_state.time", SimpleNamespace(time=lambda: then))
            if holds:
                assert await filled_in(client, state) == {"said": "yes"}
            else:
                with pytest.raises(MCPError, match="expired"):
                    await filled_in(client, state)

    session(tmp_path, work)


def test_two_servers_of_one_home_take_the_forms_of_each_other(tmp_path: Path) -> None:
    one, other = elicitation.KeptSeal(tmp_path / "home" / "k"), elicitation.KeptSeal(tmp_path / "home" / "k")
    assert other.unseal(one.seal(b"about")) == b"about"
    assert one.unseal(other.seal(b"about")) == b"about"


def test_a_home_in_which_no_key_can_be_kept_is_told_of_and_forms_hold_for_the_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "short").write_bytes(b"x")
    for path in (tmp_path / "file" / "key", tmp_path / "short"):
        seal = elicitation.KeptSeal(path)
        assert seal.unseal(seal.seal(b"about")) == b"about"
        assert str(path) in caplog.text


def test_nothing_is_written_where_nothing_is_sealed(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        with pytest.raises(MCPError, match="requestState"):
            await filled_in(client, "v1.made_up")

    session(tmp_path, work)
    assert not (tmp_path / "home" / elicitation.KEY_FILE).exists()


def test_after_eight_forms_in_one_call_the_agent_is_asked_and_the_user_again_by_its_next_call(
    tmp_path: Path,
) -> None:
    asked: list[str] = []

    async def user(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return await fills_in(context, params)

    async def work(client: Client) -> None:
        answer = await called(client, "start_workflow", yaml=many(13))
        assert (answer["status"], answer["action"]["step_id"]) == ("pending_action", "q8")
        run = answer["workflow_id"]
        ended = await called(client, "submit_result", workflow_id=run, step_id="q8", result="yes")
        assert ended["status"] == "completed"

    session(tmp_path, work, user=user)
    assert asked == [f"{at}?" for at in range(13) if at != 8]
