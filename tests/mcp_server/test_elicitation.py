"""What a run asks of its user is put to the user directly, where workflow, setting and client allow it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.types import ElicitResult

from workflows_mcp.mcp_server.server import build_server
from workflows_mcp.settings.model import Settings

pytestmark = [pytest.mark.rows("X8"), pytest.mark.parametrize("mode", ["auto", "legacy"])]

GRAPH = """
name: release
{head}
blocks:
  - {{id: approve, type: Prompt, inputs: {{prompt: "Release it? yes or no"}}}}
  - {{id: name, type: Prompt, depends_on: [approve], inputs: {{prompt: "Under which name?"}}}}
outputs: {{said: "${{blocks.approve.outputs.response}} ${{blocks.name.outputs.response}}"}}
"""
STATEFUL = """
name: planning
elicitation: true
initial_state: {}
steps:
  - {id: hello, type: prompt, prompt_type: info, message: "We begin."}
  - {id: sure, type: prompt, prompt_type: confirm, message: "Are you sure?", output_to: sure}
  - {id: where, type: prompt, prompt_type: choice, message: "Where?", options: [here, there], output_to: where}
  - {id: end, type: return, needs_state: [sure, where], value: "{{ state.sure.confirmed }} {{ state.where.selected }}"}
"""
REACTIVE = """
name: deploy
elicitation: true
steps:
  - {type: user_message, message: "Deploying."}
  - id: env
    type: user_input
    prompt: "Where to?"
    validation: {pattern: "^(prod|test)$", error_message: "prod or test, please"}
    state_update: {path: raw.env}
"""


class Asked:
    """A user with a script, and what the user was shown."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.shown: list[tuple[str, dict[str, Any]]] = []

    async def __call__(self, _: Any, params: Any) -> ElicitResult:
        self.shown.append((params.message, params.requested_schema))
        said = self.answers.pop(0)
        if isinstance(said, str):
            return ElicitResult(action=said)  # type: ignore[arg-type]
        return ElicitResult(action="accept", content=said)

    @property
    def messages(self) -> list[str]:
        return [message for message, _ in self.shown]


def session(
    directory: Path, mode: str, user: Any, work: Callable[[Any], Awaitable[None]], **settings: Any
) -> None:
    given = Settings(workspace=directory, home=directory / "home", **settings)

    async def go() -> None:
        async with Client(build_server(given), mode=mode, elicitation_callback=user) as client:

            async def call(tool: str, **arguments: Any) -> dict[str, Any]:
                result = await client.call_tool(tool, arguments)
                assert not result.is_error, result.content
                answer: dict[str, Any] = result.structured_content
                return answer

            await work(call)

    asyncio.run(asyncio.wait_for(go(), 30))


def test_the_user_is_asked_everything_in_one_call_of_the_agent(tmp_path: Path, mode: str) -> None:
    user = Asked({"response": "yes"}, {"response": "spring"})

    async def work(call: Any) -> None:
        answer = await call("start_workflow", yaml=GRAPH.format(head="elicitation: true"))
        assert (answer["status"], answer["outputs"]) == ("completed", {"said": "yes spring"})
        assert len((await call("get_workflow_status"))["runs"]) == 1, (
            "a call that is made again starts nothing"
        )

    session(tmp_path, mode, user, work)
    assert user.messages == ["Release it? yes or no", "Under which name?"]
    assert user.shown[0][1]["properties"]["response"]["type"] == "string"
    assert user.shown[0][1]["required"] == ["response"]


def test_decisions_choices_and_messages_become_forms(tmp_path: Path, mode: str) -> None:
    user = Asked({}, {"confirmed": True}, {"selected": "there"})

    async def work(call: Any) -> None:
        answer = await call("start_workflow", yaml=STATEFUL)
        assert (answer["status"], answer["result"]) == ("completed", "true there")

    session(tmp_path, mode, user, work)
    forms = [form.get("properties", {}) for _, form in user.shown]
    assert forms[0] == {}
    assert forms[1]["confirmed"]["type"] == "boolean"
    assert forms[2]["selected"]["enum"] == ["here", "there"]


def test_an_answer_that_does_not_fit_is_asked_for_again_in_the_words_of_the_author(
    tmp_path: Path, mode: str
) -> None:
    user = Asked({"input": "staging"}, {"input": "test"})

    async def work(call: Any) -> None:
        answer = await call("start_workflow", yaml=REACTIVE)
        assert answer["status"] == "completed"
        state = await call("get_workflow_state", workflow_id=answer["workflow_id"])
        assert state["state"]["env"] == "test"

    session(tmp_path, mode, user, work)
    assert user.messages[0] == "Deploying.\n\nWhere to?", "what the user is told comes before the question"
    assert "prod or test, please" in user.messages[1]
    assert user.messages[1].endswith("Where to?")


def test_after_three_answers_that_do_not_fit_the_agent_is_asked(tmp_path: Path, mode: str) -> None:
    user = Asked(*[{"input": "staging"}] * 3)

    async def work(call: Any) -> None:
        answer = await call("start_workflow", yaml=REACTIVE)
        assert answer["status"] == "pending_action"
        answer = await call("submit_result", workflow_id=answer["workflow_id"], step_id="env", result="prod")
        state = await call("get_workflow_state", workflow_id=answer["workflow_id"])
        assert state["state"]["env"] == "prod"

    session(tmp_path, mode, user, work)
    assert len(user.shown) == 3


@pytest.mark.parametrize("said", ["decline", "cancel"])
def test_a_user_who_does_not_answer_is_not_asked_again_and_the_agent_is(
    tmp_path: Path, mode: str, said: str
) -> None:
    user = Asked(said, {"response": "spring"})

    async def work(call: Any) -> None:
        answer = await call("start_workflow", yaml=GRAPH.format(head="elicitation: true"))
        assert (answer["status"], answer["action"]["step_id"]) == ("pending_action", "approve")
        run = answer["workflow_id"]
        for tool in ("get_next_step", "get_workflow_status"):
            assert (await call(tool, workflow_id=run))["action"]["step_id"] == "approve"
        answer = await call("submit_result", workflow_id=run, step_id="approve", result="no")
        assert answer["outputs"] == {"said": "no spring"}, "the next question is put to the user again"

    session(tmp_path, mode, user, work)
    assert user.messages == ["Release it? yes or no", "Under which name?"]


@pytest.mark.parametrize(
    ("head", "setting", "asked"),
    [
        ("", "workflow", False),
        ("", "always", True),
        ("elicitation: true", "workflow", True),
        ("elicitation: false", "always", False),
        ("elicitation: true", "never", False),
    ],
)
def test_the_workflow_decides_and_the_setting_for_those_that_do_not_say(
    tmp_path: Path, mode: str, head: str, setting: str, asked: bool
) -> None:
    user = Asked("decline", "decline")

    async def work(call: Any) -> None:
        answer = await call("start_workflow", yaml=GRAPH.format(head=head))
        assert answer["status"] == "pending_action"

    session(tmp_path, mode, user, work, elicitation=setting)
    assert bool(user.shown) is asked


def test_a_client_that_cannot_ask_gets_the_action(tmp_path: Path, mode: str) -> None:
    async def work(call: Any) -> None:
        answer = await call("start_workflow", yaml=GRAPH.format(head="elicitation: true"))
        assert answer["action"]["parameters"] == {"prompt": "Release it? yes or no"}

    session(tmp_path, mode, None, work)


def test_a_called_workflow_that_does_not_say_follows_the_one_that_calls_it(tmp_path: Path, mode: str) -> None:
    directory = tmp_path / ".workflows"
    directory.mkdir()
    (directory / "release.yaml").write_text(GRAPH.format(head=""), encoding="utf-8")
    outer = """
name: outer
elicitation: true
blocks: [{id: inner, type: ExecuteWorkflow, inputs: {workflow: release}}]
outputs: {said: "${blocks.inner.outputs.said}"}
"""
    user = Asked({"response": "yes"}, {"response": "autumn"})

    async def work(call: Any) -> None:
        assert (await call("start_workflow", yaml=outer))["outputs"] == {"said": "yes autumn"}

    session(tmp_path, mode, user, work)


@pytest.mark.parametrize(
    ("toolsets", "tool", "argument", "ended"),
    [
        (("graph",), "execute_inline_workflow", "workflow_yaml", "success"),
        (("core", "stateful"), "start_workflow", "yaml", "completed"),
    ],
)
def test_tools_of_other_toolsets_answer_in_their_own_shape(
    tmp_path: Path, mode: str, toolsets: tuple[str, ...], tool: str, argument: str, ended: str
) -> None:
    user = Asked({"response": "yes"}, {"response": "spring"})

    async def work(call: Any) -> None:
        answer = await call(tool, **{argument: GRAPH.format(head="elicitation: true")})
        assert answer["status"] == ended
        assert answer["outputs"] == {"said": "yes spring"}

    session(tmp_path, mode, user, work, toolsets=toolsets)


def test_the_toolset_reactive_goes_on_step_by_step(tmp_path: Path, mode: str) -> None:
    directory = tmp_path / ".aromcp" / "workflows"
    directory.mkdir(parents=True)
    (directory / "deploy.yaml").write_text(REACTIVE, encoding="utf-8")
    user = Asked({"input": "prod"})

    async def work(call: Any) -> None:
        answer = await call("workflow_start", workflow="deploy")
        assert (answer["step"], answer["status"]) == (None, "completed")

    session(tmp_path, mode, user, work, toolsets=("reactive",))


def test_that_the_run_has_ended_while_the_user_thought_is_no_error(tmp_path: Path, mode: str) -> None:
    class Slow(Asked):
        call: Any = None

        async def __call__(self, context: Any, params: Any) -> ElicitResult:
            [run] = (await self.call("get_workflow_status"))["runs"]
            await self.call("control_workflow", workflow_id=run["workflow_id"], action="cancel")
            return await super().__call__(context, params)

    user = Slow({"response": "yes"})

    async def work(call: Any) -> None:
        user.call = call
        answer = await call("start_workflow", yaml=GRAPH.format(head="elicitation: true"))
        assert answer["status"] == "cancelled"

    session(tmp_path, mode, user, work)
