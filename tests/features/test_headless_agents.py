"""Steps of agents that the server performs itself, with a command of the settings."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psutil
import pytest

from support.rendered import Service
from support.scripted_agent import ScriptedAgent
from workflows_mcp.errors import NotExpected, RequestError
from workflows_mcp.limits import Limits
from workflows_mcp.machine.commands import Assignment, RunStep
from workflows_mcp.machine.state import RunState, record_at
from workflows_mcp.settings.model import Settings

pytestmark = pytest.mark.rows("P9")

T = TypeVar("T")
SECRET = "tok-3f9a-very-secret"
WRITE = """
name: write
steps:
  - id: draft
    type: delegate
    needs_state: []
    instructions: "Write about {{ inputs.topic }}"
    output_to: draft
  - {id: back, type: return, needs_state: [draft], value: "{{ state.draft.response }}"}
inputs: {topic: {type: string, default: rivers}}
initial_state: {draft: null}
"""
FILES = """
name: find
steps:
  - id: find
    type: delegate
    needs_state: []
    instructions: Find the files
    result: {type: object, required: [files], properties: {files: {type: array, items: {type: string}}}}
    output_to: found
  - {id: back, type: return, needs_state: [found], value: "{{ state.found.files }}"}
initial_state: {found: null}
"""
REVIEW = """
name: review
steps:
  - id: each
    type: foreach
    needs_state: []
    items: [a, b, c, d]
    agent: "@reviewer"
    task: one
    max_parallel: 2
    output_to: all
  - id: sum-up
    type: delegate
    needs_state: [all]
    instructions: Sum up {{ state.all }}
    output_to: summary
initial_state: {all: [], summary: null}
tasks:
  one:
    inputs: {path: {type: string}}
    steps:
      - {id: look, type: delegate, needs_state: [], instructions: "Review {{ inputs.path }}", output_to: it}
      - {id: back, type: return, needs_state: [it], value: "{{ state.it.response }}"}
"""


@pytest.fixture
def agent(tmp_path: Path) -> ScriptedAgent:
    return ScriptedAgent(tmp_path / "agent")


def run(settings: Settings, work: Callable[[Service], Awaitable[T]]) -> T:
    async def session() -> T:
        async with Service.open(settings) as service:
            return await work(service)

    return asyncio.run(asyncio.wait_for(session(), 50))


def knowing(settings: Settings, **agents: Any) -> Settings:
    return dataclasses.replace(settings, agents=agents)


async def begun(service: Service, text: str, agent: str | None = "helper", **inputs: Any) -> str:
    return await service.begin(text=text, inputs=inputs, agent=agent)


async def ended(service: Service, run_id: str) -> dict[str, Any]:
    while (answer := await service.status(run_id, wait_seconds=30))["status"] == "running":
        await asyncio.sleep(0)
    return answer


async def state_of(service: Service, run_id: str) -> RunState:
    return (await service._engine.view(run_id)).state


def performed(settings: Settings, text: str, **inputs: Any) -> dict[str, Any]:
    """The answer of a run that ends by itself, with `helper` as its agent."""

    async def work(service: Service) -> dict[str, Any]:
        return await ended(service, await begun(service, text, **inputs))

    return run(settings, work)


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def test_the_command_performs_every_step_of_an_agent(agent: ScriptedAgent, settings: Settings) -> None:
    agent.answers("Write about lakes", "Lakes are wet.")
    given = knowing(settings, helper=agent.command("helper"))
    assert performed(given, WRITE, topic="lakes")["result"] == "Lakes are wet."
    [call] = agent.calls
    assert Path(call["directory"]) == settings.workspace


def test_who_performed_a_step_and_its_tokens_are_recorded(agent: ScriptedAgent, settings: Settings) -> None:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": 2}
    printed = {"type": "result", "subtype": "success", "is_error": False, "result": "Wet.", "usage": usage}
    agent.answers("rivers", json.dumps(printed))

    async def work(service: Service) -> None:
        run_id = await begun(service, WRITE)
        await ended(service, run_id)
        record = record_at(await state_of(service, run_id), "draft")
        assert record is not None
        assert record.by is not None
        assert (record.by.name, record.by.via, record.by.human) == ("helper", "command", False)
        assert record.tokens == 17
        assert record.outputs == {"response": "Wet.", "agent_used": "helper", "tokens_used": 17}

    run(knowing(settings, helper=agent.command("helper", output="claude")), work)


CLAUDE = {"type": "result", "subtype": "success", "is_error": False, "result": "Wet.", "usage": {}}
CODEX = [
    {"type": "thread.started", "thread_id": "1"},
    {"type": "error", "message": "Reconnecting... 1/5"},
    {"type": "item.completed", "item": {"type": "agent_message", "text": "Thinking."}},
    {"type": "item.completed", "item": {"type": "agent_message", "text": "Wet."}},
    {"type": "turn.completed", "usage": {"input_tokens": 7, "cached_input_tokens": 3, "output_tokens": 1}},
]


@pytest.mark.parametrize(
    ("output", "printed"),
    [
        ("text", "Wet.\n"),
        ("text", 'Sure!\n```json\n{"response": "Wet."}\n```\n'),
        ("json", '{"response": "Wet."}'),
        ("json", '"Wet."'),
        ("claude", json.dumps(CLAUDE)),
        ("claude", json.dumps([{"type": "system"}, CLAUDE])),
        ("claude", "\n".join(json.dumps(it) for it in ({"type": "system"}, CLAUDE)) + "\n"),
        ("codex", "\n".join(map(json.dumps, CODEX))),
    ],
)
def test_each_form_of_output_is_read(
    output: str, printed: str, agent: ScriptedAgent, settings: Settings
) -> None:
    agent.answers("rivers", printed)
    given = knowing(settings, helper=agent.command("helper", output=output))
    assert performed(given, WRITE)["result"] == "Wet."


@pytest.mark.parametrize(
    ("output", "printed", "expected"),
    [
        ("text", "", "nothing was printed"),
        ("json", "no JSON", "not one JSON value"),
        ("json", "[" * 50_000, "not one JSON value"),
        ("claude", "hello", "run claude with --output-format json"),
        ("claude", json.dumps({**CLAUDE, "is_error": True, "result": "no credit"}), "no credit"),
        ("claude", json.dumps({"type": "result", "subtype": "error_max_turns"}), "error_max_turns"),
        ("codex", "hello", "run codex exec with --json"),
        ("codex", json.dumps({"type": "turn.failed", "error": {"message": "no quota"}}), "no quota"),
        ("codex", json.dumps(CODEX[-1]), "the agent said nothing"),
        ("text", '{"is_error": true, "error": "which river?"}', "which river?"),
    ],
)
def test_a_program_that_gives_no_result_fails_the_step_and_says_why(
    output: str, printed: str, expected: str, agent: ScriptedAgent, settings: Settings
) -> None:
    agent.answers("rivers", printed)
    given = knowing(settings, helper=agent.command("helper", output=output))
    answer = performed(given, WRITE)
    assert answer["status"] == "failed"
    assert expected in answer["error"]["message"]
    assert len(agent.calls) <= 2, "one more try at most"


def test_the_prompt_can_be_an_argument(agent: ScriptedAgent, settings: Settings) -> None:
    agent.answers("rivers", "Wet.")
    helper = agent.command("helper", in_argument=True)
    argv = (*helper.command, "--argument", "{prompt}")
    assert performed(knowing(settings, helper=dataclasses.replace(helper, command=argv)), WRITE)["result"]


def test_a_result_that_does_not_fit_is_returned_once_with_what_is_wrong(
    agent: ScriptedAgent, settings: Settings
) -> None:
    agent.answers("Find the files", '{"files": "a.py"}', '{"files": ["a.py"]}')
    given = knowing(settings, helper=agent.command("helper"))
    assert performed(given, FILES)["result"] == ["a.py"]
    first, second = agent.prompts
    assert "rejected" not in first
    assert "What has to be fixed" in second
    assert "a.py" in second.partition("What has to be fixed")[2]


def test_a_program_that_never_fits_the_schema_fails_the_step_after_its_second_result(
    agent: ScriptedAgent, settings: Settings
) -> None:
    agent.answers("Find the files", "I like files.")
    answer = performed(knowing(settings, helper=agent.command("helper")), FILES)
    assert answer["status"] == "failed"
    assert "the agent 'helper' gave 2 results that do not fit" in answer["error"]["message"]
    assert "I like files." in answer["error"]["message"]
    assert len(agent.calls) == 2


def test_an_exit_code_fails_the_step_with_the_last_lines_of_standard_error(
    agent: ScriptedAgent, settings: Settings
) -> None:
    lines = "".join(f"line {number}\n" for number in range(100))
    agent.answers("rivers", "half a result", stderr=lines, code=3)
    error = performed(knowing(settings, helper=agent.command("helper")), WRITE)["error"]
    assert "ended with exit code 3" in error["message"]
    assert "line 99" in error["message"]
    assert "line 80" not in error["message"]
    assert "by hand" in error["hint"]


def test_a_program_that_is_missing_fails_the_step_with_the_setting_to_change(settings: Settings) -> None:
    missing = ScriptedAgent(settings.workspace / "a").command("helper")
    given = knowing(settings, helper=dataclasses.replace(missing, command=("no-such-agent",)))
    error = performed(given, WRITE)["error"]
    assert "command not found: no-such-agent" in error["message"]
    assert "agents.helper.command" in error["hint"]


def test_a_program_that_hangs_is_killed_with_its_children_when_its_time_is_over(
    agent: ScriptedAgent, settings: Settings
) -> None:
    agent.answers("rivers", waits_for="never", children=True, stderr="working\n")

    async def work(service: Service) -> dict[str, Any]:
        run_id = await begun(service, WRITE)
        await until(lambda: len(agent.children) == 2)
        return await ended(service, run_id)

    error = run(knowing(settings, helper=agent.command("helper", timeout=5.0)), work)["error"]
    assert "the agent 'helper' was killed after 5 s" in error["message"]
    assert error["code"] == "timeout"
    assert not any(map(is_alive, [*agent.children, agent.calls[0]["pid"]]))


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_cancelling_the_run_ends_the_program_and_its_children(
    agent: ScriptedAgent, settings: Settings
) -> None:
    agent.answers("rivers", waits_for="never", children=True)

    async def work(service: Service) -> None:
        run_id = await begun(service, WRITE)
        await until(lambda: len(agent.children) == 2)
        assert (await service.cancel(run_id))["status"] == "cancelled"
        await until(lambda: not any(map(is_alive, [*agent.children, agent.calls[0]["pid"]])))

    run(knowing(settings, helper=agent.command("helper")), work)


def test_a_program_that_prints_without_end_is_killed(agent: ScriptedAgent, settings: Settings) -> None:
    agent.answers("rivers", "x" * 300_000)
    small = dataclasses.replace(settings, limits=Limits(captured_bytes=100_000))
    error = performed(knowing(small, helper=agent.command("helper")), WRITE)["error"]
    assert "printed more than 100000 bytes" in error["message"]
    assert "CAPTURED_BYTES" in error["hint"]


def test_a_secret_that_a_program_prints_is_redacted_everywhere(
    agent: ScriptedAgent, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKFLOWS_SECRET_TOKEN", SECRET)
    text = """
name: leak
blocks:
  - {id: use, type: Shell, inputs: {command: "test -n ${secrets.TOKEN}"}}
  - {id: ask, type: Prompt, depends_on: [use], inputs: {prompt: "Do ${blocks.use.outputs.exit_code} well"}}
outputs: {said: "${blocks.ask.outputs.response}"}
"""
    agent.answers("well", f"I used {SECRET}", stderr=f"debug {SECRET}\n")
    answer = performed(knowing(settings, helper=agent.command("helper")), text)
    assert answer["status"] == "completed"
    assert answer["outputs"]["said"].startswith("I used ")
    assert SECRET not in json.dumps(answer)
    assert SECRET not in json.dumps(agent.calls)
    stored = b"".join(path.read_bytes() for path in settings.home.rglob("*") if path.is_file())
    assert SECRET.encode() not in stored


def test_a_program_knows_its_task_and_its_name_and_no_other_setting_of_ours(
    agent: ScriptedAgent, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKFLOWS_SECRET_TOKEN", SECRET)
    monkeypatch.setenv("CLAUDECODE", "1")
    agent.answers("Review", "fine")
    agent.answers("Sum up", "all fine")
    helper = agent.command("helper", env={"WORKFLOWS_TASK": "forged", "MORE": "1"}, without=("CLAUDECODE",))

    async def work(service: Service) -> str:
        run_id = await begun(service, REVIEW)
        assert (await ended(service, run_id))["status"] == "completed"
        return run_id

    run_id = run(knowing(settings, helper=helper), work)
    given = [call["environment"] for call in agent.calls]
    assert sorted(it["WORKFLOWS_TASK"] for it in given) == [
        run_id,
        *(f"{run_id}.each.{number}" for number in range(4)),
    ]
    assert {it["WORKFLOWS_AGENT"] for it in given} == {"helper"}
    assert {it["WORKFLOWS_HOME"] for it in given} == {str(settings.home)}
    assert not any("SECRET" in name for it in given for name in it)


def test_an_agent_of_the_settings_performs_its_steps_and_its_tasks_and_others_are_asked(
    agent: ScriptedAgent, settings: Settings
) -> None:
    agent.answers("Review", "fine")

    async def work(service: Service) -> None:
        run_id = await begun(service, REVIEW, agent=None)
        answer = await service.status(run_id, wait_seconds=30)
        assert answer["action"]["step_id"] == "sum-up"
        assert "fine" in answer["action"]["parameters"]["instructions"]
        done = await service.submit(run_id, {"response": "all fine"}, wait_seconds=30)
        assert done["status"] == "completed"

    run(knowing(settings, reviewer=agent.command("reviewer")), work)
    assert len(agent.calls) == 4


def test_tasks_of_a_command_run_max_parallel_at_a_time_and_are_delegated_to_nobody(
    agent: ScriptedAgent, settings: Settings
) -> None:
    agent.answers("Review [ab]", "fine", waits_for="go")
    agent.answers("Review", "fine")

    async def work(service: Service) -> None:
        run_id = await begun(service, REVIEW, agent=None)
        await until(lambda: len(agent.calls) == 2)
        answer = await service.status(run_id)
        assert "action" not in answer
        assert answer["status"] == "running"
        assert "by the agent 'reviewer'" in answer["why"]
        state = await state_of(service, run_id)
        assert sorted(at for at, frame in state.frames.items() if frame.kind == "step") == [
            "each/0/look",
            "each/1/look",
        ]
        with pytest.raises(NotExpected, match="the agent 'reviewer' of the settings performs it"):
            await service.submit(f"{run_id}.each.0", {"response": "mine"}, step_id="look")
        with pytest.raises(RequestError, match="no agent of its own"):
            await service.retry(f"{run_id}.each.0")
        agent.continues("go")
        assert (await service.status(run_id, wait_seconds=30))["action"]["step_id"] == "sum-up"

    run(knowing(settings, reviewer=agent.command("reviewer")), work)
    assert len(agent.calls) == 4


def test_a_process_runs_no_more_programs_at_once_than_its_limit(
    agent: ScriptedAgent, settings: Settings
) -> None:
    agent.answers("Review", "fine", waits_for="go")
    one = dataclasses.replace(settings, limits=Limits(parallel_agents=1))

    async def work(service: Service) -> None:
        run_id = await begun(service, REVIEW, agent=None)
        await until(lambda: agent.calls)
        frames = (await state_of(service, run_id)).frames
        assert sum(frame.kind == "step" for frame in frames.values()) == 2
        assert len(agent.calls) == 1
        agent.continues("go")
        assert (await service.status(run_id, wait_seconds=30))["action"]["step_id"] == "sum-up"

    run(knowing(one, reviewer=agent.command("reviewer")), work)
    assert len(agent.calls) == 4


def test_questions_to_the_user_are_left_to_the_user(agent: ScriptedAgent, settings: Settings) -> None:
    text = """
name: ask
blocks:
  - {id: think, type: Prompt, inputs: {prompt: "Which version?"}}
  - {id: sure, type: Prompt, depends_on: [think], inputs: {prompt: "Sure?", confirm: true}}
  - {id: which, type: Prompt, depends_on: [sure], inputs: {prompt: "Where?", choices: [here, there]}}
"""
    agent.answers("Which version", "1.2")

    async def work(service: Service) -> None:
        run_id = await begun(service, text)
        answer = await service.status(run_id, wait_seconds=30)
        assert answer["action"]["step_id"] == "sure"
        answer = await service.submit(run_id, {"confirmed": True}, wait_seconds=30)
        assert answer["action"]["step_id"] == "which"

    run(knowing(settings, helper=agent.command("helper")), work)
    assert len(agent.calls) == 1


def test_a_result_that_its_checks_reject_is_asked_again_with_what_to_fix(
    agent: ScriptedAgent, settings: Settings
) -> None:
    text = FILES.replace(
        "    output_to: found",
        '    verify: [{test: "result.files | length > 1", message: name two}]\n    output_to: found',
    )
    agent.answers("Find the files", '{"files": ["a"]}', '{"files": ["a", "b"]}')
    answer = performed(knowing(settings, helper=agent.command("helper")), text)
    assert answer["result"] == ["a", "b"]
    assert "name two" in agent.prompts[1]


def test_an_agent_that_this_server_does_not_know_fails_the_step_and_retry_can_name_another(
    agent: ScriptedAgent, settings: Settings
) -> None:
    agent.answers("rivers", stderr="no account", code=1)
    other = ScriptedAgent(settings.workspace.parent / "other")
    other.answers("rivers", "Wet.")

    async def failing(service: Service) -> str:
        run_id = await begun(service, WRITE)
        assert (await ended(service, run_id))["status"] == "failed"
        return run_id

    run_id = run(knowing(settings, helper=agent.command("helper")), failing)

    async def again(service: Service) -> None:
        unknown = await service.retry(run_id, wait_seconds=30)
        error = (await ended(service, unknown["workflow_id"]))["error"]
        assert "the agent 'helper' is not known to this server" in error["message"]
        assert "agents.helper.command" in error["hint"]
        with pytest.raises(RequestError, match="there is no agent 'helper'"):
            await service.retry(unknown["workflow_id"], agent="helper")
        made = await service.retry(unknown["workflow_id"], agent="other", wait_seconds=30)
        assert (await ended(service, made["workflow_id"]))["result"] == "Wet."

    run(knowing(settings, other=other.command("other")), again)


def test_an_agent_can_take_over_a_run_that_waits_for_its_client(
    agent: ScriptedAgent, settings: Settings
) -> None:
    agent.answers("Review", "fine")
    agent.answers("Sum up", "all fine")

    async def work(service: Service) -> None:
        run_id = await begun(service, REVIEW, agent=None)
        asked = await service.status(run_id, wait_seconds=30)
        assert asked["action"]["type"] == "parallel_tasks"
        await service.assign_agent(run_id, "helper")
        await service.assign_agent(run_id, "helper")
        assert (await ended(service, run_id))["status"] == "completed"

    run(knowing(settings, helper=agent.command("helper")), work)
    assert len(agent.calls) == 5


def test_a_step_that_changes_hands_counts_once_for_its_budget(
    agent: ScriptedAgent, settings: Settings
) -> None:
    agent.answers("Review", "fine")
    agent.answers("Sum up", "all fine")

    async def work(service: Service) -> None:
        run_id = await begun(service, f"{REVIEW}budget: {{agent_steps: 5}}\n", agent=None)
        await service.status(run_id, wait_seconds=30)
        await service.assign_agent(run_id, "helper")
        assert (await ended(service, run_id))["status"] == "completed"
        assert (await state_of(service, run_id)).spent[""].agent_steps == 5

    run(knowing(settings, helper=agent.command("helper")), work)


def test_a_question_that_a_command_answers_changes_the_world(settings: Settings) -> None:
    async def work(service: Service) -> None:
        executor = service._engine._executor  # type: ignore[attr-defined]
        asked = RunStep("ask#1", "ask", "Prompt", {"prompt": "Which?"})
        performed = msgspec.structs.replace(asked, assignment=Assignment("helper", "wf_1"))
        assert not executor.changes_world(asked)
        assert executor.changes_world(performed), "its start is stored before it runs"

    run(settings, work)


def test_the_author_of_a_definition_can_say_who_the_agents_of_a_task_are(
    agent: ScriptedAgent, settings: Settings
) -> None:
    text = """
name: parallel
default_state: {raw: {files: [a, b]}}
steps:
  - id: each
    type: parallel_foreach
    items: "{{ raw.files }}"
    sub_agent_task: one
    sub_agent_prompt_override: You review files, and only files.
sub_agent_tasks:
  one:
    inputs: {file: {type: string}}
    steps:
      - {id: look, type: agent_shell_command, command: "review {{ inputs.file }}"}
"""
    agent.answers("review [ab]", '{"stdout": "fine", "exit_code": 0}')
    assert performed(knowing(settings, helper=agent.command("helper")), text)["status"] == "completed"
    assert [it.startswith("You review files, and only files.\n") for it in agent.prompts] == [True, True]


def test_commands_that_are_switched_off_are_not_run_for_agents_either(
    agent: ScriptedAgent, settings: Settings
) -> None:
    off = dataclasses.replace(settings, allow_commands=False)
    error = performed(knowing(off, helper=agent.command("helper")), WRITE)["error"]
    assert "commands are switched off" in error["message"]
    assert agent.calls == []
