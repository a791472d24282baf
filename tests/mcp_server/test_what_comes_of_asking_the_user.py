"""What has come of asking the user directly is known to whoever asks next: the agent, and every other server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.types import ElicitResult, InputRequiredResult

from workflows_mcp.mcp_server.server import build_server
from workflows_mcp.runs import progress
from workflows_mcp.settings.model import Settings

pytestmark = pytest.mark.rows("X8")

BOTH = pytest.mark.parametrize("mode", ["auto", "legacy"])
ONE = """
name: release
elicitation: true
blocks: [{id: approve, type: Prompt, inputs: {prompt: "Release it?"}}]
outputs: {said: "${blocks.approve.outputs.response}"}
"""
THREE = """
name: three
elicitation: true
blocks:
  - {id: one, type: Prompt, inputs: {prompt: "One?"}}
  - {id: two, type: Prompt, inputs: {prompt: "Two?"}}
  - {id: three, type: Prompt, inputs: {prompt: "Three?"}}
"""
REACTIVE = """
name: deploy
elicitation: true
steps: [{id: env, type: user_input, prompt: "Where to?", state_update: {path: raw.env}}]
"""

User = Any
"""Called with a form, as the protocol library does."""
Work = Callable[[Client], Awaitable[None]]


def says(*answers: Any) -> User:
    left = list(answers)

    async def user(context: Any, params: Any) -> Any:
        said = left.pop(0)
        if isinstance(said, str):
            return ElicitResult(action=said)  # type: ignore[arg-type]
        return ElicitResult(action="accept", content=said)

    return user


async def within(
    directory: Path, work: Work, *, mode: str = "auto", user: User | None, **settings: Any
) -> None:
    given = Settings(workspace=directory, home=directory / "home", **settings)
    async with Client(build_server(given), mode=mode, elicitation_callback=user) as client:
        await work(client)


def session(*given: Any, **named: Any) -> None:
    asyncio.run(asyncio.wait_for(within(*given, **named), 30))


async def called(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert isinstance(result.structured_content, dict)
    return result.structured_content


# The agent works meanwhile

BOTH_AT_ONCE = """
name: both
elicitation: true
blocks:
  - {id: approve, type: Prompt, inputs: {prompt: "Release it?"}}
  - {id: notes, type: ExecuteWorkflow, inputs: {workflow: notes}}
  - {id: ship, type: Prompt, depends_on: [approve, notes], inputs: {prompt: "Ship ${blocks.notes.result}?"}}
"""
NOTES = """
name: notes
steps:
  - {id: write, type: delegate, instructions: Write the notes, output_to: notes}
  - {id: end, type: return, needs_state: [notes], value: "{{ state.notes.response }}"}
"""


@BOTH
def test_what_the_agent_has_to_do_itself_does_not_wait_for_the_user(tmp_path: Path, mode: str) -> None:
    (tmp_path / ".workflows").mkdir()
    (tmp_path / ".workflows" / "notes.yaml").write_text(NOTES)

    async def work(client: Client) -> None:
        run = await called(client, "start_workflow", yaml=BOTH_AT_ONCE)
        assert run["action"]["step_id"] == "notes/write"
        assert "more_actions" not in run, "what the user is asked directly is not for the agent"
        assert "the user is asked 'approve' directly, when you have done this" in run["why"]
        again = await called(client, "get_next_step", workflow_id=run["workflow_id"])
        assert again["action"]["step_id"] == "notes/write"
        done = await called(
            client, "submit_result", workflow_id=run["workflow_id"], step_id="notes/write", result="done"
        )
        assert done["status"] == "completed", "both questions were put to the user when the notes were there"
        assert done["progress"] == {"done": 3, "total": 3}

    user = says({"response": "yes"}, {"response": "ship it"})
    session(tmp_path, work, mode=mode, user=user)


# The agent is told


@BOTH
@pytest.mark.parametrize("said", ["decline", "cancel"])
def test_an_agent_is_told_not_to_answer_what_the_user_has_declined_to_answer(
    tmp_path: Path, mode: str, said: str
) -> None:
    async def work(client: Client) -> None:
        asked = await called(client, "start_workflow", yaml=ONE)
        again = await called(client, "get_next_step", workflow_id=asked["workflow_id"])
        for answer in (asked, again):
            told = answer["action"]["instructions"]
            assert "declined to answer it. Do not answer it for the user" in told
            assert "answer it yourself" not in told
        ended = await called(client, "submit_result", workflow_id=asked["workflow_id"], result="no")
        assert ended["outputs"] == {"said": "no"}, "the user may still have decided"

    session(tmp_path, work, mode=mode, user=says(said))


@BOTH
def test_it_is_told_in_the_words_of_every_toolset(tmp_path: Path, mode: str) -> None:
    folder = tmp_path / ".aromcp" / "workflows"
    folder.mkdir(parents=True)
    (folder / "deploy.yaml").write_text(REACTIVE, encoding="utf-8")

    async def work(client: Client) -> None:
        graph = await called(client, "execute_inline_workflow", workflow_yaml=ONE)
        assert "declined" in graph["message"]
        assert f"resume_workflow(checkpoint_id='{graph['checkpoint_id']}'" in graph["message"]
        reactive = await called(client, "workflow_start", workflow="deploy")
        assert "declined" in reactive["step"]["instructions"]

    session(tmp_path, work, mode=mode, user=says("decline", "decline"), toolsets=("graph", "reactive"))


@BOTH
def test_it_is_told_of_every_question_that_was_declined(tmp_path: Path, mode: str) -> None:
    async def work(client: Client) -> None:
        answer = await called(client, "execute_inline_workflow", workflow_yaml=THREE)
        assert [("declined" in it.get("message", "")) for it in (answer, *answer["more_prompts"])] == [
            True,
            False,
            True,
        ]
        for checkpoint, declined in ((answer, True), (answer["more_prompts"][0], False)):
            known = await called(client, "get_checkpoint_info", checkpoint_id=checkpoint["checkpoint_id"])
            assert ("declined" in known["how_to_resume"]) is declined
            assert "resume_workflow(checkpoint_id=" in known["how_to_resume"]

    # the second one is put up three times in vain
    said = ("decline", *[{"response": 7}] * 3, "decline")
    session(tmp_path, work, mode=mode, user=says(*said), toolsets=("graph",))


@BOTH
def test_an_agent_is_told_that_no_answer_came_that_fits(tmp_path: Path, mode: str) -> None:
    async def work(client: Client) -> None:
        asked = await called(client, "start_workflow", yaml=ONE)
        told = asked["action"]["instructions"]
        assert told.startswith("The user was asked this directly, without an answer that fits: ask the user")
        assert "Answer parameters.prompt in the form that it asks for" in told

    session(tmp_path, work, mode=mode, user=says(*[{"response": 7}] * 3))


def test_a_client_that_never_comes_back_with_a_form_gets_the_action_after_three(tmp_path: Path) -> None:
    async def user(context: Any, params: Any) -> ElicitResult:
        raise RuntimeError("no forms today")

    async def work(client: Client) -> None:
        failed = 0
        for _ in range(3):
            with pytest.raises(Exception, match=r"no forms today|elicit|Elicit|unhandled|TaskGroup"):
                await client.call_tool("start_workflow", {"yaml": ONE, "request_id": "one"})
            failed += 1
        asked = await called(client, "start_workflow", yaml=ONE, request_id="one")
        assert (failed, asked["action"]["step_id"]) == (3, "approve")

    session(tmp_path, work, user=user)


@BOTH
def test_of_several_questions_only_the_one_that_was_declined_goes_to_the_agent(
    tmp_path: Path, mode: str
) -> None:
    async def work(client: Client) -> None:
        answer = await called(client, "start_workflow", yaml=THREE)
        assert answer["action"]["step_id"] == "two"
        assert "more_actions" not in answer

    session(tmp_path, work, mode=mode, user=says({"response": "1"}, "decline", {"response": "3"}))


# Every server knows it


@BOTH
def test_what_was_declined_is_not_asked_again_by_the_next_server(tmp_path: Path, mode: str) -> None:
    runs: list[str] = []

    async def decline(client: Client) -> None:
        runs.append((await called(client, "start_workflow", yaml=ONE))["workflow_id"])

    async def look(client: Client) -> None:
        asked = await called(client, "get_workflow_status", workflow_id=runs[0])
        assert "declined" in asked["action"]["instructions"]

    session(tmp_path, decline, mode=mode, user=says("decline"))
    session(tmp_path, look, mode=mode, user=says())


# Others, meanwhile


@BOTH
def test_a_look_that_does_not_wait_asks_nobody(tmp_path: Path, mode: str) -> None:
    async def without_forms(client: Client) -> None:
        run = (await called(client, "start_workflow", yaml=ONE))["workflow_id"]

        async def look(other: Client) -> None:
            asked = await called(other, "get_workflow_status", workflow_id=run, wait_seconds=0)
            assert asked["status"] == "pending_action"
            waited = await called(other, "get_workflow_status", workflow_id=run)
            assert waited["outputs"] == {"said": "yes"}

        await within(tmp_path, look, mode=mode, user=says({"response": "yes"}))

    session(tmp_path, without_forms, user=None)


@BOTH
def test_that_an_answer_came_too_late_is_told(tmp_path: Path, mode: str) -> None:
    async def without_forms(client: Client) -> None:
        run = (await called(client, "start_workflow", yaml=ONE))["workflow_id"]

        async def slow(context: Any, params: Any) -> ElicitResult:
            await called(client, "submit_result", workflow_id=run, result="somebody else")
            return ElicitResult(action="accept", content={"response": "yes"})

        async def look(other: Client) -> None:
            ended = await called(other, "get_workflow_status", workflow_id=run)
            assert ended["outputs"] == {"said": "somebody else"}
            if mode == "auto":  # in the other era the form has been withdrawn
                assert ended["messages"] == [
                    "The user's answer to 'approve' came too late, and was not used."
                ]

        await within(tmp_path, look, mode=mode, user=slow)

    session(tmp_path, without_forms, user=None)


def test_a_form_is_withdrawn_when_somebody_else_has_answered(tmp_path: Path) -> None:
    gone = asyncio.Event()

    async def without_forms(client: Client) -> None:
        run = (await called(client, "start_workflow", yaml=ONE))["workflow_id"]

        async def never(context: Any, params: Any) -> ElicitResult:
            try:
                await called(client, "submit_result", workflow_id=run, result="somebody else")
                await asyncio.Event().wait()
            finally:
                gone.set()
            raise AssertionError

        async def look(other: Client) -> None:
            ended = await called(other, "get_workflow_status", workflow_id=run)
            assert ended["outputs"] == {"said": "somebody else"}

        await within(tmp_path, look, mode="legacy", user=never)

    session(tmp_path, without_forms, user=None)
    assert gone.is_set()


def test_while_a_form_is_open_it_is_told_that_the_run_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "STILL_SECONDS", 0.01)
    told: list[str | None] = []
    enough = asyncio.Event()

    async def told_of(progress: float, total: float | None, message: str | None) -> None:
        told.append(message)
        if len(told) == 3:
            enough.set()

    async def user(context: Any, params: Any) -> ElicitResult:
        await enough.wait()
        return ElicitResult(action="accept", content={"response": "yes"})

    async def work(client: Client) -> None:
        result = await client.call_tool("start_workflow", {"yaml": ONE}, progress_callback=told_of)
        assert result.structured_content is not None
        assert result.structured_content["outputs"] == {"said": "yes"}

    session(tmp_path, work, mode="legacy", user=user)
    assert all(message is not None and "waiting for your answer to 'approve'" in message for message in told)


def test_an_answer_to_the_last_form_that_is_put_up_still_counts(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        asked = {"yaml": ONE, "request_id": "one"}
        for _ in range(3):
            form = await client.session.call_tool("start_workflow", asked, allow_input_required=True)
            assert isinstance(form, InputRequiredResult)
            state = form.request_state
        result = await client.session.call_tool(
            "start_workflow",
            asked,
            input_responses={"answer": ElicitResult(action="accept", content={"response": "yes"})},
            request_state=state,
        )
        assert result.structured_content is not None
        assert result.structured_content["outputs"] == {"said": "yes"}

    session(tmp_path, work, user=says())
