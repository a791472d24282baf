"""What the hooks of a client are answered: an agent is held to the pending step of its run, and to nothing else.

The decisions are the same on every engine; here is no client, tests/clients has the real ones.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from support.conversations import GATE, LIMITED, ONE_BY_ONE, TOOL, TWO_STEPS, Conversation
from support.engines import address_of
from workflows_mcp.limits import Limits
from workflows_mcp.machine import Identity, events
from workflows_mcp.runs import Service
from workflows_mcp.settings.model import Settings, TemporalSettings
from workflows_mcp.settings.trust import trust_of

pytestmark = pytest.mark.rows("P4")

ADA = Identity("ada", "terminal", human=True)
Scenario = Callable[[Conversation], Awaitable[None]]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "workspace").mkdir()
    return Settings(workspace=tmp_path / "workspace", home=tmp_path / "home")


@pytest.fixture(params=["embedded", "temporal"])
def engine(request: pytest.FixtureRequest, settings: Settings) -> Settings:
    if request.param == "embedded":
        return settings
    pytest.importorskip("temporalio")
    address = address_of("temporal", request)
    assert address is not None
    temporal = TemporalSettings(host=address.host, task_queue=address.task_queue)
    return dataclasses.replace(settings, engine="temporal", temporal=temporal)


def conversing(settings: Settings, scenario: Scenario) -> None:
    async def session() -> None:
        async with Service.open(settings) as service:
            await scenario(Conversation(service, "session-1"))

    asyncio.run(asyncio.wait_for(session(), 60))


async def refusals(service: Service, run_id: str) -> list[tuple[str, str]]:
    """What was refused, and by whom it was tried, as the journal has it."""
    _, journal = await service._engine.journal(run_id)
    return [(it.what, str(it.by)) for it in journal if isinstance(it, events.Refused)]


def files(settings: Settings) -> list[str]:
    return sorted(path.stem for path in (settings.home / "sessions").glob("*.json"))


def test_an_agent_cannot_stop_while_a_step_is_pending_and_is_shown_the_step_and_the_call(
    engine: Settings,
) -> None:
    async def scenario(chat: Conversation) -> None:
        assert await chat.stop() == {}, "nothing is bound"
        run = await chat.start(TWO_STEPS)
        refused = await chat.stop()
        assert refused["decision"] == "block"
        for part in (
            "'first' (delegate)",
            "Write the plan",
            f"submit_result(workflow_id='{run}', step_id='first'",
        ):
            assert part in refused["reason"]
        for way in ("'cancel'", "'context_full'"):
            assert f"control_workflow(workflow_id='{run}', action={way})" in refused["reason"]
        await chat.submit(run, "first")
        assert "Do the plan" in (await chat.stop())["reason"]
        await chat.submit(run, "second")
        assert await chat.stop() == {}
        assert await refusals(chat.service, run) == [("stop", "claude-code by MCP of claude-code")] * 2

    conversing(engine, scenario)


def test_a_step_with_limited_tools_denies_the_others_until_it_is_done(engine: Settings) -> None:
    async def scenario(chat: Conversation) -> None:
        run = await chat.start(LIMITED)
        assert await chat.use("Edit", file_path="a.py") == ""
        assert await chat.use("Bash", command="pytest -q") == ""
        assert await chat.use("Read", file_path="a.py") == ""
        assert await chat.use("AskUserQuestion", questions=[]) == ""
        assert await chat.use(f"{TOOL}submit_result", workflow_id=run, result="x") == ""
        denied = await chat.use("Bash", command="git push")
        for part in ("`git push` is not allowed", "the step 'test'", "Edit, Bash(pytest:*)"):
            assert part in denied
        await chat.submit(run, "test")
        assert await chat.use("Bash", command="git push") == ""
        assert await refusals(chat.service, run) == [("tool", "claude-code by MCP of claude-code")]

    conversing(engine, scenario)


def test_a_gate_does_not_hold_the_agent_and_no_command_of_it_passes_the_gate(engine: Settings) -> None:
    async def scenario(chat: Conversation) -> None:
        run = await chat.start(GATE)
        await chat.submit(run, "work")
        assert await chat.stop() == {}, "it waits for a person"
        denied = await chat.use("Bash", command=f"workflows-mcp answer {run} approve")
        assert "`workflows-mcp answer` is for the user" in denied
        assert await chat.use("Bash", command=f"rm -rf {chat.service.settings.home}") != ""
        assert await chat.use("Edit", file_path=str(chat.service.settings.store)) != ""
        assert await chat.use("Edit", file_path="/plugins/workflows/hooks/hook.sh") != ""
        trusted = trust_of(os.environ).file
        assert await chat.use("Write", file_path=str(trusted), content="{}") != ""
        assert await chat.use("Bash", command="ls") == ""
        assert [what for what, _ in await refusals(chat.service, run)] == ["command"] * 5
        await chat.service.decide(run, "approve", by=ADA)
        assert "Release" in (await chat.stop())["reason"]

    conversing(engine, scenario)


def test_the_pending_step_is_back_in_the_context_after_resume_compaction_and_a_new_server(
    engine: Settings,
) -> None:
    found: list[str] = []

    async def begin(chat: Conversation) -> None:
        assert await chat.begin("startup") == ""
        found.append(await chat.start(TWO_STEPS))
        assert "Write the plan" in await chat.begin("compact")

    async def resume(chat: Conversation) -> None:
        context = await chat.begin("resume")
        assert f"run {found[0]}" in context
        assert f"submit_result(workflow_id='{found[0]}', step_id='first'" in context
        assert "Write the plan" in context
        assert (await chat.stop())["decision"] == "block"

    conversing(engine, begin)
    conversing(engine, resume)


def test_a_sub_agent_is_held_to_its_own_task_and_the_main_agent_to_the_run(engine: Settings) -> None:
    async def scenario(chat: Conversation) -> None:
        run = await chat.start(ONE_BY_ONE)
        first, second = chat.sub_agent("agent-1"), chat.sub_agent("agent-2")
        assert await first.stop() == {}, "it has no task yet"
        assert f"nobody works on: {run}.each.0, {run}.each.1" in (await chat.stop())["reason"]
        await first.next_step(f"{run}.each.0")
        await second.next_step(f"{run}.each.1")
        assert await chat.stop() == {}, "its sub-agents work"
        refused = await first.stop()
        assert f"task {run}.each.0" in refused["reason"]
        assert "is_error" in refused["reason"]
        assert "cancel" not in refused["reason"], "a sub-agent does not end the run"
        await first.submit(f"{run}.each.0", "look")
        assert await first.stop() == {}
        assert (await second.stop())["decision"] == "block"
        await second.submit(f"{run}.each.1", "look")
        assert "Sum it up" in (await chat.stop())["reason"]
        assert ("stop", "claude-code, sub-agent agent-1 by MCP of claude-code") in await refusals(
            chat.service, run
        )

    conversing(engine, scenario)


# What needs no second engine


def test_an_agent_that_only_stops_is_refused_three_times_and_the_user_hears_of_the_fourth(
    settings: Settings,
) -> None:
    async def scenario(chat: Conversation) -> None:
        run = await chat.start(TWO_STEPS)
        for _ in range(3):
            assert (await chat.stop())["decision"] == "block"
        given_up = await chat.stop()
        assert given_up.keys() == {"systemMessage"}
        assert run in given_up["systemMessage"]
        assert await chat.stop() == {}
        await chat.submit(run, "first")
        assert (await chat.stop())["decision"] == "block", "progress counts from the start"
        assert len(await refusals(chat.service, run)) == 4

    conversing(settings, scenario)


def test_the_number_of_refusals_is_a_setting(settings: Settings) -> None:
    async def scenario(chat: Conversation) -> None:
        await chat.start(TWO_STEPS)
        assert (await chat.stop())["decision"] == "block"
        assert "decision" not in await chat.stop()

    conversing(dataclasses.replace(settings, limits=Limits(stop_refusals=1)), scenario)


def test_a_session_is_not_held_to_the_runs_of_others(settings: Settings) -> None:
    async def scenario(chat: Conversation) -> None:
        other = Conversation(chat.service, "session-2")
        run = await chat.start(LIMITED)
        assert await other.stop() == {}
        assert await other.use("Bash", command="git push") == ""
        assert await other.begin() == ""
        await other.called("get_workflow_status", {"workflow_id": run}, await chat.service.status(run))
        assert await other.stop() == {}, "it has only looked"
        await other.next_step(run)
        assert (await other.stop())["decision"] == "block"
        assert await chat.stop() == {}, "the other one continues it"
        assert files(settings) == ["session-2"]

    conversing(settings, scenario)


def test_a_run_that_has_ended_was_cancelled_parked_or_deleted_holds_nobody(settings: Settings) -> None:
    async def scenario(chat: Conversation) -> None:
        parked = await chat.start(TWO_STEPS)
        await chat.service.context_full(parked)
        assert await chat.stop() == {}
        assert "Next: control_workflow" in await chat.begin("compact")
        cancelled = await chat.start(TWO_STEPS)
        await chat.service.cancel(cancelled)
        assert await chat.stop() == {}
        assert cancelled not in await chat.begin("compact")
        await chat.service.cancel(parked)
        assert await chat.begin("compact") == ""
        assert files(settings) == [], "nothing is stored, so that hooks cost nothing"

    conversing(settings, scenario)


def test_a_question_to_the_user_holds_nobody_and_one_that_may_be_is_refused_once(settings: Settings) -> None:
    ask = "name: ask\nblocks:\n  - {id: ask, type: Prompt, inputs: {prompt: 'Which one?'%s}}\n"

    async def scenario(chat: Conversation) -> None:
        await chat.start(ask % ", choices: [a, b]")
        assert await chat.stop() == {}, "the user must be able to answer"
        run = await chat.start(ask % "")
        refused = (await chat.stop())["reason"]
        assert "If only the user can answer it, and you have asked, end your turn again" in refused
        assert await chat.stop() == {}
        await chat.submit(run, "ask")

    conversing(settings, scenario)


def test_a_sub_agent_in_the_background_keeps_the_main_agent_from_nothing(settings: Settings) -> None:
    async def scenario(chat: Conversation) -> None:
        await chat.start(ONE_BY_ONE)
        running = [{"id": "agent-1", "type": "subagent", "status": "running"}]
        assert await chat.stop(background_tasks=running) == {}, "the client continues when it ends"
        assert (await chat.stop(background_tasks=[{"id": "1", "type": "shell"}]))["decision"] == "block"

    conversing(settings, scenario)


def test_a_task_that_its_sub_agent_has_left_waits_for_the_main_agent(settings: Settings) -> None:
    async def scenario(chat: Conversation) -> None:
        run = await chat.start(ONE_BY_ONE)
        first, second = chat.sub_agent("agent-1"), chat.sub_agent("agent-2")
        await first.next_step(f"{run}.each.0")
        await second.next_step(f"{run}.each.1")
        for _ in range(4):
            left = await first.stop()
        assert "decision" not in left
        running = [{"id": "agent-3", "type": "subagent", "status": "running"}]
        assert await chat.stop(background_tasks=running) == {}, "another one may be on its way"
        reason = (await chat.stop())["reason"]
        assert f"control_workflow(workflow_id='{run}.each.0', action='retry')" in reason
        await chat.service.retry(f"{run}.each.0")
        third = chat.sub_agent("agent-3")
        await third.next_step(f"{run}.each.0")
        assert await chat.stop() == {}, "another one works on it"

    conversing(settings, scenario)


def test_a_run_that_a_sub_agent_has_left_waits_for_the_main_agent(settings: Settings) -> None:
    async def scenario(chat: Conversation) -> None:
        helper = chat.sub_agent("agent-1")
        await helper.start(TWO_STEPS)
        assert await chat.stop() == {}
        for _ in range(4):
            await helper.stop()
        assert (await chat.stop())["decision"] == "block"

    conversing(settings, scenario)


def test_a_sub_agent_without_a_task_has_the_rules_of_the_main_agent(settings: Settings) -> None:
    async def scenario(chat: Conversation) -> None:
        await chat.start(LIMITED.replace("[Edit,", "[Agent, Edit,"))
        assert await chat.use("Agent", prompt="do it for me") == ""
        assert "`git push` is not allowed" in await chat.sub_agent("agent-1").use("Bash", command="git push")

    conversing(settings, scenario)


def test_a_second_run_does_not_lift_the_limits_of_the_first(settings: Settings) -> None:
    async def scenario(chat: Conversation) -> None:
        await chat.start(LIMITED)
        await chat.start(TWO_STEPS)
        assert "`git push` is not allowed" in await chat.use("Bash", command="git push")

    conversing(settings, scenario)


def test_steps_that_wait_at_the_same_time_allow_their_tools_together(settings: Settings) -> None:
    both = """
name: both
blocks:
  - {id: a, type: Prompt, allow_tools: [Edit], inputs: {prompt: a}}
  - {id: b, type: Prompt, %sinputs: {prompt: b}}
"""

    async def scenario(chat: Conversation) -> None:
        run = await chat.start(both % "allow_tools: ['Bash(make:*)'], ")
        assert await chat.use("Edit", file_path="a") == ""
        assert await chat.use("Bash", command="make") == ""
        assert await chat.use("Bash", command="git push") != ""
        await chat.service.cancel(run)
        await chat.start(both % "")
        assert await chat.use("Bash", command="git push") == "", "which of the two it does cannot be seen"

    conversing(settings, scenario)


def test_a_cleared_conversation_hands_its_runs_to_the_next_one_of_the_same_client(settings: Settings) -> None:
    async def scenario(chat: Conversation) -> None:
        await chat.start(TWO_STEPS)
        await chat.event("SessionEnd", reason="clear")
        stranger = Conversation(chat.service, "session-3", client="4712")
        assert await stranger.begin("clear") == ""
        assert "Write the plan" in await Conversation(chat.service, "session-2").begin("clear")
        assert files(settings) == ["session-2"]

    conversing(settings, scenario)


def test_tools_of_other_toolsets_bind_and_refusals_name_them(settings: Settings) -> None:
    async def scenario(chat: Conversation) -> None:
        answer = await chat.service.start(text=TWO_STEPS)
        run = answer.workflow_id
        paused = {"status": "paused", "workflow_id": run, "checkpoint_id": "pause_1", "prompt": "x"}
        await chat.called("mcp__wf__execute_workflow", {"workflow": "two"}, paused)
        assert f"resume_workflow(checkpoint_id='{run}')" in (await chat.stop())["reason"]
        step = {"workflow_id": run, "step": {"id": "first"}}
        await chat.called("mcp__wf__workflow_start", {"workflow": "two"}, step)
        reason = (await chat.stop())["reason"]
        assert f"workflow_step_complete(workflow_id='{run}', step_id='first', result=…)" in reason
        assert f"workflow_get_next_step(workflow_id='{run}')" in await chat.begin()
        await chat.submit(run, "first")
        served_as_a_tool = {"workflow_id": run, "status": "pending_action"}
        await chat.called("mcp__wf__release_notes", {"version": "1"}, served_as_a_tool)
        assert await chat.use("mcp__wf__anything") == "", "its server is ours"

    conversing(settings, scenario)


@pytest.mark.parametrize(
    "named", [{"task_id": "each.0"}, {"sub_agent_context": {"task_id": "each.0"}}], ids=["id", "context"]
)
def test_a_task_that_is_named_beside_its_run_is_bound(settings: Settings, named: dict[str, object]) -> None:
    async def scenario(chat: Conversation) -> None:
        run = await chat.start(ONE_BY_ONE)
        helper = chat.sub_agent("agent-1")
        await chat.service.next_step(run, task_id="each.0")
        shown = {"step": {"id": "look"}, "status": "pending_action"}
        await helper.called("workflow_get_next_step", {"workflow_id": run, **named}, shown)
        assert f"{run}.each.0" in (await helper.stop())["reason"]
        assert f"nobody works on: {run}.each.1" in (await chat.stop())["reason"]

    conversing(settings, scenario)


def test_codex_gives_the_result_of_a_call_as_content(settings: Settings) -> None:
    async def scenario(chat: Conversation) -> None:
        answer = (await chat.service.start(text=TWO_STEPS)).rendered("step")
        await chat.event(
            "PostToolUse",
            tool_name="mcp__workflows__start_workflow",
            tool_input={"workflow": "two"},
            tool_response={"content": [{"type": "text", "text": json.dumps(answer)}]},
            turn_id="1",
        )
        assert (await chat.stop(turn_id="1"))["decision"] == "block"
        assert await refusals(chat.service, answer["workflow_id"]) == [("stop", "codex by MCP of codex")]

    conversing(settings, scenario)


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"session_id": 1, "hook_event_name": "Stop"},
        {"session_id": "../../etc/x", "hook_event_name": "Stop"},
        {"session_id": "s", "hook_event_name": "Unheard"},
        {"session_id": "s", "hook_event_name": "PostToolUse"},
        {"session_id": "s", "hook_event_name": "PostToolUse", "tool_name": "mcp__a__b", "tool_response": "{"},
        {"session_id": "s", "hook_event_name": "PostToolUse", "tool_name": "mcp__", "tool_response": [None]},
        {
            "session_id": "../s",
            "hook_event_name": "PostToolUse",
            "tool_name": "mcp__a__start_workflow",
            "tool_response": {"workflow_id": "wf_none"},
        },
        {"session_id": "s", "hook_event_name": "PreToolUse", "tool_input": None},
    ],
)
def test_an_event_that_is_not_understood_has_no_answer(settings: Settings, event: dict[str, object]) -> None:
    async def scenario(chat: Conversation) -> None:
        assert await chat._hooks.answer(event, {}) == {}
        assert files(settings) == []

    conversing(settings, scenario)


def test_a_broken_file_of_a_session_holds_nobody(settings: Settings) -> None:
    async def scenario(chat: Conversation) -> None:
        await chat.start(TWO_STEPS)
        (settings.home / "sessions" / "session-1.json").write_text("{", encoding="utf-8")
        assert await chat.stop() == {}

    conversing(settings, scenario)
