"""Every action can be answered with a failure; what is tolerated is listed, and outputs handle nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.rendered import Service
from workflows_mcp.dialects import load
from workflows_mcp.errors import DefinitionError
from workflows_mcp.settings.model import Settings
from workflows_mcp.steps.registry import default_registry

FAILED = {"is_error": True, "error": "the user has gone home"}
ACTIONS = {
    "Prompt": "blocks:\n  - {id: ask, type: Prompt, inputs: {prompt: Go?}}\n",
    "prompt": (
        "initial_state: {}\nsteps:\n"
        "  - {id: ask, type: prompt, needs_state: [], message: Go?, prompt_type: confirm}\n"
    ),
    "delegate": (
        "initial_state: {}\nsteps:\n  - {id: ask, type: delegate, needs_state: [], instructions: Go}\n"
    ),
    "shell": "initial_state: {}\nsteps:\n  - {id: ask, type: shell, needs_state: [], command: make}\n",
    "user_input": "default_state: {raw: {}}\nsteps:\n  - {id: ask, type: user_input, prompt: Go?}\n",
    "mcp_call": "default_state: {raw: {}}\nsteps:\n  - {id: ask, type: mcp_call, method: lint}\n",
}


@pytest.mark.parametrize("body", ACTIONS.values(), ids=ACTIONS.keys())
def test_every_action_can_be_answered_with_a_failure(run: Any, body: str) -> None:
    answer = run(f"name: it\n{body}", answers=[FAILED]).answer
    assert answer["status"] == "failed"
    assert "the user has gone home" in answer["error"]["message"]


def test_a_failure_that_an_agent_reports_is_tried_again_and_then_tolerated(run: Any) -> None:
    text = """
name: it
blocks:
  - {id: ask, type: Prompt, inputs: {prompt: "Go?"}, retry: {attempts: 2, delay: 0}, on_failure: continue}
"""

    answer = run(text, answers=[FAILED, FAILED]).answer
    assert answer["status"] == "completed"
    assert answer["failed_blocks"] == [
        {"block": "ask", "tolerated_by": "on_failure: continue", "message": "the user has gone home"}
    ]


def test_a_failure_is_not_checked_against_the_type_of_the_field_that_the_result_goes_to(run: Any) -> None:
    text = """
name: it
default_state: {raw: {found: []}}
state_schema: {raw: {found: array}}
steps:
  - {id: look, type: mcp_call, method: lint, on_error: continue, fallback_value: [nothing],
     state_update: {path: raw.found}}
"""
    answer = run(text, answers=[FAILED]).answer
    assert (answer["status"], answer["state"]["found"]) == ("completed", ["nothing"])


def test_an_output_that_reports_a_status_does_not_handle_the_failure(run: Any) -> None:
    text = """
name: it
blocks: [{id: tag, type: Shell, inputs: {command: exit 3}}]
outputs: {tagged: "${blocks.tag.succeeded}", code: "${blocks.tag.exit_code}"}
"""
    answer = run(text).answer
    assert answer["status"] == "failed"
    assert answer["error"]["block"] == "tag"
    assert answer["outputs"] == {"tagged": False, "code": 3}


TOLERANT = """
name: it
blocks:
  - {id: test, type: Shell, inputs: {command: exit 1}}
  - {id: notify, type: Shell, inputs: {command: "true"}, depends_on: [{block: test, required: false}]}
"""


def test_the_answer_lists_the_blocks_whose_failure_was_tolerated(run: Any) -> None:
    answer = run(TOLERANT).answer
    assert answer["status"] == "completed"
    assert answer["failed_blocks"] == [
        {"block": "test", "tolerated_by": "notify", "message": "Command exited with code 1"}
    ]


def test_a_dependency_that_is_not_required_tolerates_a_timeout(run: Any) -> None:
    text = TOLERANT.replace("{command: exit 1}", "{command: sleep 60, timeout: 0.05}")
    answer = run(text).answer
    assert answer["status"] == "completed"
    assert [it["block"] for it in answer["failed_blocks"]] == ["test"]


def test_a_block_that_asks_for_the_status_runs_in_any_case(run: Any) -> None:
    for work in ("{command: exit 1}", "{command: 'true'}"):
        text = f"""
name: it
blocks:
  - {{id: work, type: Shell, inputs: {work}, on_failure: fail}}
  - {{id: cleanup, type: Shell, depends_on: [work], condition: "${{blocks.work.status}} != 'pending'",
     inputs: {{command: "true"}}}}
"""
        ran = run(text)
        assert ran.blocks["cleanup"]["metadata"]["status"] == "completed"
        assert ran.answer["status"] == ("failed" if "exit" in work else "completed")


def test_the_toolset_graph_lists_them_too(settings: Settings) -> None:
    async def go() -> dict[str, Any]:
        async with Service.open(settings) as service:
            return await service.execute(text=TOLERANT)

    answer = asyncio.run(asyncio.wait_for(go(), 30))
    assert [it["block"] for it in answer["failed_blocks"]] == ["test"]


FAILS = {
    "graph": """
name: it
blocks:
  - {id: stop, type: Fail, on_failure: continue, inputs: {message: "no ${inputs.what} left", code: quota}}
  - {id: then, type: Shell, depends_on: [{block: stop, required: false}], inputs: {command: "true"}}
inputs: {what: {type: string, default: money}}
""",
    "stateful": """
name: it
inputs: {what: {type: string, default: money}}
initial_state: {}
steps:
  - {id: not-yet, type: fail, when: "{{ false }}", needs_state: [], message: "never"}
  - {id: stop, type: fail, needs_state: [], message: "no {{ inputs.what }} left", code: quota, on_error: continue}
""",
    "reactive": """
name: it
inputs: {what: {type: string, default: money}}
default_state: {raw: {}}
error_handling: {on_error: continue}
steps:
  - {id: stop, type: fail, message: "no {{ inputs.what }} left", code: quota}
""",
}


@pytest.mark.parametrize("text", FAILS.values(), ids=FAILS.keys())
def test_a_workflow_fails_on_purpose_with_its_own_message_and_code(run: Any, text: str) -> None:
    answer = run(text).answer
    assert answer["status"] == "failed"
    assert (answer["error"]["code"], answer["error"]["message"]) == ("quota", "no money left")
    assert answer["error"]["block"] == "stop"


SERVER_SHELL = """
name: it
initial_state: {runs: 0}
steps:
  - {id: build, type: shell, needs_state: [], run_on: server, command: "echo out; exit 3"%s}
  - {id: end, type: return, needs_state: ["*"], value: "%s"}
"""


def test_a_command_of_the_server_that_exits_otherwise_than_0_fails_its_step(run: Any) -> None:
    answer = run(SERVER_SHELL % ("", "done")).answer
    assert (answer["status"], answer["error"]["block"]) == ("failed", "build")
    assert "Command exited with code 3" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("more", "value", "result"),
    [
        (", on_error: continue", "done", "done"),
        (", output_to: built", "{{ state.built.exit_code }}", 3),
        (
            ", output_to: built, on_error: continue",
            "{{ state.built.error }}",
            "Command exited with code 3: out",
        ),
        (
            ", error_to: why, on_error: continue",
            "{{ state.why }}",
            {"message": "Command exited with code 3: out", "code": "step_failed", "step": "build"},
        ),
    ],
)
def test_the_failure_of_a_command_is_handled_by_who_says_so_or_reads_its_exit_code(
    run: Any, more: str, value: str, result: Any
) -> None:
    answer = run(SERVER_SHELL % (more, value)).answer
    assert (answer["status"], answer["result"]) == ("completed", result)
    assert [it["block"] for it in answer["failed_blocks"]] == ["build"]


def test_a_command_of_the_server_is_tried_again_for_its_exit_code(run: Any) -> None:
    retry = ', retry: {attempts: 3, delay: 0, "on": [3]}, on_error: continue'
    assert run(SERVER_SHELL % (retry, "done")).blocks["build"]["metadata"]["attempts"] == 3


AGENT_SHELL = """
name: it
initial_state: {}
steps:
  - {id: build, type: shell, needs_state: [], command: make%s}
  - {id: end, type: return, needs_state: [], value: done}
"""


def test_a_command_of_the_agent_fails_by_its_exit_code_only_where_the_step_says_so(run: Any) -> None:
    assert run(AGENT_SHELL % "", answers=[{"exit_code": 2}]).answer["status"] == "completed"
    answer = run(AGENT_SHELL % ", on_error: fail", answers=[{"exit_code": 2}]).answer
    assert (answer["status"], answer["error"]["block"]) == ("failed", "build")


FAILING_STEPS = {
    "it could not be run": "{id: a, type: ReadFile, path: nowhere, %s}",
    "its command failed": "{id: a, type: shell, run_on: server, command: exit 1, %s}",
    "its expression failed": '{id: a, type: set_state, updates: {x: "{{ 1 / state.none }}"}, %s}',
}


@pytest.mark.parametrize("step", FAILING_STEPS.values(), ids=FAILING_STEPS.keys())
def test_after_any_failure_the_output_says_so_in_the_same_way(run: Any, step: str) -> None:
    more = "needs_state: [none], output_to: out, error_to: why, on_error: continue"
    text = f"name: it\ninitial_state: {{none: 0}}\nsteps:\n  - {step % more}\n"
    state = run(text).answer["state"]
    assert state["out"]["error"] == state["why"]["message"]
    assert state["out"]["error_code"] == state["why"]["code"]
    assert state["why"]["step"] == "a"


DOOMED = """
name: it
%sblocks:
  - {id: submit, type: Shell, inputs: {command: exit 1}}
  - {id: approve, type: Prompt, inputs: {prompt: "Fine?"}}
  - {id: after, type: Shell, depends_on: [approve], inputs: {command: "true"}}
"""


def test_a_question_of_a_run_that_can_only_fail_says_so(settings: Settings) -> None:
    async def go() -> None:
        async with Service.open(settings) as service:
            run_id = (await service.start(text=DOOMED % ""))["workflow_id"]
            while "has failed" not in (answer := await service.status(run_id))["why"]:
                await asyncio.sleep(0.01)
            assert "block 'submit' (Command exited with code 1) has failed" in answer["why"]
            assert (
                "block 'submit' (Command exited with code 1) has failed" in answer["action"]["instructions"]
            )
            paused = await service.resume(run_id)
            assert paused["status"] == "paused"
            assert "block 'submit' (Command exited with code 1) has failed" in paused["message"]

    asyncio.run(asyncio.wait_for(go(), 30))


CALLS = "blocks:\n  - id: call\n    type: ExecuteWorkflow\n    inputs: {workflow: it}\n"
INCLUDES = "steps:\n  - id: call\n    type: include_workflow\n    workflow: it\n"
RETRIES = "error_handling: {on_error: retry_workflow, max_retries: 1}\n"


@pytest.mark.parametrize(
    ("calls", "is_doomed", "end"),
    [
        (CALLS, True, "failed"),
        (CALLS + "    on_failure: continue\n", False, "completed"),
        (CALLS + "    retry: {attempts: 2, delay: 0}\n", False, "pending_action"),
        (INCLUDES, True, "failed"),
        (INCLUDES + "    on_error: continue\n", False, "completed"),
        (INCLUDES + "    fallback_value: 1\n", False, "completed"),
        (INCLUDES + RETRIES, False, "pending_action"),
    ],
)
def test_a_question_of_a_called_workflow_that_can_only_fail_says_so_if_nothing_handles_it(
    settings: Settings, calls: str, is_doomed: bool, end: str
) -> None:
    (settings.workspace / ".workflows" / "it.yaml").write_text(DOOMED % "", encoding="utf-8")

    async def go() -> None:
        async with Service.open(settings) as service:
            run_id = (await service.start(text="name: outer\n" + calls))["workflow_id"]
            while "running" in (answer := await service.status(run_id))["why"]:
                await asyncio.sleep(0.01)
            said = "block 'call/submit' (Command exited with code 1) has failed, so the run will fail"
            for text in (answer["why"], answer["action"]["instructions"]):
                assert (said in text, "has failed" in text) == (is_doomed, is_doomed)
            answer = await service.submit(run_id, {"response": "yes"})
            while answer["status"] == "running":
                answer = await service.status(run_id, wait_seconds=5)
            assert answer["status"] == end

    asyncio.run(asyncio.wait_for(go(), 30))


def test_with_fail_fast_the_first_failure_ends_the_workflow_at_once(settings: Settings) -> None:
    async def go() -> None:
        async with Service.open(settings) as service:
            run_id = (await service.start(text=DOOMED % "fail_fast: true\n"))["workflow_id"]
            while (answer := await service.status(run_id))["status"] != "failed":
                await asyncio.sleep(0.01)
            assert answer["error"]["block"] == "submit"
            blocks = (await service.state(run_id, paths=["blocks"]))["values"]["blocks"]
            assert blocks["approve"]["metadata"]["message"] == "ended, because 'submit' failed"

    asyncio.run(asyncio.wait_for(go(), 30))


def test_validation_warns_where_nothing_reads_the_exit_code_of_an_agents_command() -> None:
    def warned(more: str, value: str = "done") -> list[str]:
        text = (
            "name: it\ninitial_state: {}\nsteps:\n"
            f"  - {{id: build, type: shell, needs_state: [], command: make, output_to: built{more}}}\n"
            f"  - {{id: end, type: return, needs_state: [built], value: '{value}'}}\n"
        )
        found = load(text, file="it.yaml", registry=default_registry()).warnings
        return [problem.code for problem in found if problem.code == "unread_exit_code"]

    assert warned("") == ["unread_exit_code"]
    assert warned("", "{{ state.built.stdout }}") == ["unread_exit_code"]
    for settled in (", on_error: fail", ", on_error: continue", ", run_on: server"):
        assert warned(settled) == []
    for value in ("{{ state.built.exit_code }}", "{{ state.built.success }}", "{{ state.built }}"):
        assert warned("", value) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("blocks:\n  - {id: a, type: ReadFile, inputs: {path: x}, retry: {on: [75]}}\n", "ReadFile has none"),
        (
            "initial_state: {}\nsteps:\n"
            "  - {id: a, type: shell, needs_state: [], command: x, retry: {on: [75]}}\n",
            "the exit code of a command of the agent is a result",
        ),
    ],
)
def test_a_retry_for_an_exit_code_that_is_never_a_failure_is_refused(text: str, why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        load(f"name: it\n{text}", file="it.yaml", registry=default_registry())


def test_a_retry_for_the_exit_code_of_an_agents_command_works_with_on_error_fail(run: Any) -> None:
    retry = ', on_error: fail, retry: {attempts: 2, delay: 0, "on": [75]}'
    ran = run(AGENT_SHELL % retry, answers=[{"exit_code": 75}, {"exit_code": 0}])
    assert (ran.answer["status"], ran.blocks["build"]["metadata"]["attempts"]) == ("completed", 2)


def test_the_view_of_the_state_lists_the_errors_of_steps(settings: Settings) -> None:
    async def go() -> dict[str, Any]:
        async with Service.open(settings) as service:
            answer = await service.start(text=SERVER_SHELL % (", on_error: continue", "done"))
            return await service.state(answer["workflow_id"])

    [error] = asyncio.run(asyncio.wait_for(go(), 30))["errors"]
    assert error == {"message": "Command exited with code 3: out", "code": "step_failed", "step": "build"}


def test_a_command_that_the_agent_could_not_run_has_no_exit_code(run: Any) -> None:
    text = """
name: it
initial_state: {}
steps:
  - {id: build, type: shell, needs_state: [], command: make, output_to: built%s}
  - {id: end, type: return, needs_state: [built], value: "{{ state.built.exit_code == 0 }}"}
"""
    assert run(text % "", answers=[FAILED]).answer["status"] == "failed"
    answer = run(text % ", on_error: continue", answers=[FAILED]).answer
    assert (answer["status"], answer["result"]) == ("completed", False)
    assert [it["block"] for it in answer["failed_blocks"]] == ["build"]
