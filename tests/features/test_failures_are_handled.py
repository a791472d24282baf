"""Every action can be answered with a failure; what is tolerated is listed, and outputs handle nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from workflows_mcp.service import Service
from workflows_mcp.settings import Settings

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
