"""Documented fragments about what goes wrong in the reactive dialect: of steps, of sub-agents, of a workflow as a
whole, and of a conversation that gets too long."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from support.engines import address_of
from support.fragments import inside, piece, workflow
from support.programs import Programs
from support.reactive_agents import MESSAGE, played
from support.rendered import Service
from workflows_mcp.errors import NotExpected
from workflows_mcp.settings.model import Settings, TemporalSettings

STEP_ERRORS = r"""
# Shell command errors
- type: "shell_command"
  command: "npm test"
  output_format: "json"
  on_error: "retry"  # fail | continue | retry
  retry_count: 3
  retry_delay: 1000  # ms
  fallback_value: {success: false, error: "Command failed"}
  state_update:
    path: "raw.test_result"

# MCP call errors
- type: "mcp_call"
  mcp:
    method: "lint_project"
    params: {...}
  on_error: "continue"
  error_state_update:
    path: "raw.errors.lint_failed"
    value: true

# Transformation errors (in state schema)
computed:
  parsed_data:
    from: "raw.json_output"
    transform: "JSON.parse(input)"
    on_error: "use_fallback"  # use_fallback | propagate | ignore
    fallback: {}
"""

SUB_AGENT_ERRORS = r"""
# In parallel_foreach
- type: "parallel_foreach"
  items: "{{ file_batches }}"
  max_parallel: 10
  wait_for_all: true
  sub_agent_task: "process_batch"
  on_sub_agent_error:
    strategy: "retry_failed"  # retry_failed | continue | fail_all
    max_retries: 2
    collect_errors: true
    error_state_path: "raw.sub_agent_errors"

# Sub-agent can return error status
sub_agent_tasks:
  process_batch:
    error_handling:
      return_on_error: true  # Return error to orchestrator
      cleanup_on_error:    # Cleanup steps before returning
        - type: "state_update"
          path: "raw.batch_status.{{ batch_id }}"
          value: "failed"
"""

WORKFLOW_ERRORS = r"""
# In workflow definition
error_handling:
  # What to do on unhandled errors
  on_error: "checkpoint_and_fail"  # checkpoint_and_fail | continue | retry_workflow

  # Collect all errors in state
  error_collection:
    enabled: true
    state_path: "raw.workflow_errors"
    include_stack_traces: false

  # Notifications
  on_failure:
    - type: "user_message"
      message: "Workflow failed: {{ error.message }}"
    - type: "state_update"
      path: "raw.workflow_status"
      value: "failed"

# Error recovery on resume
on_resume:
  retry_failed_steps: true
  skip_completed_steps: true
  reset_error_counts: false
"""

LONG_CONVERSATIONS = r"""
# Orchestrator monitors its own context usage
orchestrator_behavior:
  # After each batch of sub-agents complete
  - Check approximate token usage
  - If approaching limits (>80-85%), create checkpoint
  - Prompt user to clear and resume

# Example in orchestrator loop
on_high_context_usage:
  steps:
    - type: "mcp_call"
      mcp:
        method: "workflow.checkpoint"
        params:
          workflow_id: "{{ workflow_id }}"
          reason: "Context approaching limit"

    - type: "user_message"
      message: |
        Context usage is high. Progress saved.

        To continue:
        1. Clear this conversation
        2. Start new conversation
        3. Run: /workflow resume {{ workflow_id }}

    - type: "exit"

# Resume restores minimal context
on_resume:
  load_from_checkpoint:
    - workflow_metadata
    - computed_field_definitions
    - current raw state
    - pending tasks
  exclude:
    - historical data
    - completed task details
"""
LOADED = """\
  load_from_checkpoint:
    - workflow_metadata
    - computed_field_definitions
    - current raw state
    - pending tasks
"""
BROKEN: dict[str, Any] = {"is_error": True, "error": "no such tool"}
AFTER = '- {id: after, type: user_message, message: "it goes on"}\n'


# Steps


def trying_npm() -> str:
    """The fragment with less time between its tries."""
    steps = piece(STEP_ERRORS, "Shell command errors")
    assert "retry_delay: 1000" in steps
    return workflow(steps.replace("retry_delay: 1000", "retry_delay: 1") + AFTER)


@pytest.mark.rows("R9")
def test_a_command_is_tried_again_and_has_a_fallback_when_no_try_succeeds(
    settings: Settings, programs: Programs
) -> None:
    programs.add("npm", "exit 1")
    run = played(settings, yaml=trying_npm())
    assert programs.calls == ["npm test"] * 4  # once, and three times again
    assert run.state == {"test_result": {"success": False, "error": "Command failed"}}
    assert run.messages == ["it goes on"]


@pytest.mark.rows("R9")
def test_a_command_that_succeeds_at_last_gives_its_own_result(settings: Settings, programs: Programs) -> None:
    programs.add("npm", "echo x >> tries; test $(wc -l < tries) = 3 && echo '{\"success\": true}'")
    run = played(settings, yaml=trying_npm())
    assert programs.calls == ["npm test"] * 3
    assert run.state == {"test_result": {"success": True}}


@pytest.mark.rows("R9")
def test_output_that_is_not_json_is_a_failure_of_the_command(settings: Settings, programs: Programs) -> None:
    programs.add("npm", "echo 5 passing")
    run = played(settings, yaml=trying_npm())
    assert len(programs.calls) == 4
    assert run.state["test_result"] == {"success": False, "error": "Command failed"}


@pytest.mark.rows("R11")
@pytest.mark.parametrize(
    ("reply", "state"), [(BROKEN, {"errors": {"lint_failed": True}}), ({"issues": 0}, {})]
)
def test_a_tool_that_fails_is_noted_and_the_run_goes_on(
    reply: dict[str, Any], state: dict[str, Any], settings: Settings
) -> None:
    run = played(settings, [reply], yaml=workflow(piece(STEP_ERRORS, "MCP call errors") + AFTER))
    assert [it.type for it in run.handed] == ["mcp_call", MESSAGE]
    assert run.handed[0].definition["method"] == "lint_project"
    assert run.answer["status"] == "completed"
    assert run.state == state


@pytest.mark.rows("R11")
def test_without_on_error_a_tool_that_fails_ends_the_run_and_is_noted_all_the_same(
    settings: Settings,
) -> None:
    steps = piece(STEP_ERRORS, "MCP call errors").replace('on_error: "continue"', 'on_error: "fail"')
    run = played(settings, [BROKEN], yaml=workflow(steps + AFTER))
    assert run.answer["status"] == "failed"
    assert "no such tool" in run.answer["error"]["message"]
    assert run.state == {"errors": {"lint_failed": True}}
    assert run.messages == []


@pytest.mark.rows("R6")
@pytest.mark.parametrize(("output", "parsed"), [('{"a": 1}', {"a": 1}), ("{bad", {})])
def test_a_transform_that_fails_has_a_fallback(output: str, parsed: Any, settings: Settings) -> None:
    computed = inside(piece(STEP_ERRORS, "Transformation errors"), 2)
    text = workflow(AFTER, f"state_schema:\n{computed}", "inputs: {json_output: {type: string}}")
    run = played(settings, yaml=text, inputs={"json_output": output})
    assert run.state["parsed_data"] == parsed
    assert list(run.errors) == ([] if parsed else ["parsed_data"])


@pytest.mark.rows("R6")
@pytest.mark.parametrize(("on_error", "status"), [("propagate", "failed"), ("ignore", "completed")])
def test_a_transform_that_fails_ends_the_run_or_leaves_the_field_out(
    on_error: str, status: str, settings: Settings
) -> None:
    computed = inside(piece(STEP_ERRORS, "Transformation errors"), 2)
    computed = computed.replace('"use_fallback"', f'"{on_error}"').replace("      fallback: {}", "")
    steps = "- {type: state_update, path: raw.json_output, value: '{bad'}\n"
    state = "default_state: {raw: {json_output: '{}'}}"
    run = played(settings, yaml=workflow(steps + AFTER, f"state_schema:\n{computed}", state))
    assert run.answer["status"] == status
    if status == "failed":
        assert "parsed_data" in run.answer["error"]["message"]
        assert run.state == {"json_output": "{}", "parsed_data": {}}, "the change was not made"
    else:
        assert run.state == {"json_output": "{bad"}


# Sub-agents


def processing_batches(strategy: str = "retry_failed") -> str:
    steps = piece(SUB_AGENT_ERRORS, "In parallel_foreach").replace('"retry_failed"', f'"{strategy}"')
    if strategy != "retry_failed":
        steps = steps.replace("    max_retries: 2\n", "")
    task = piece(SUB_AGENT_ERRORS, "Sub-agent can return").rstrip()
    task += """
    inputs: {batch_id: "{{ item.id }}"}
    steps:
      - {id: lint, type: mcp_call, mcp: {method: lint, params: {batch: "{{ batch_id }}"}}}
      - {type: state_update, path: "raw.batch_status.{{ batch_id }}", value: complete}
"""
    batches = "default_state: {raw: {file_batches: [{id: batch_0}, {id: batch_1}], batch_status: {}}}"
    return workflow(steps + AFTER, batches, task)


@pytest.mark.rows("R16")
def test_a_task_that_failed_is_handed_out_again(settings: Settings) -> None:
    replies = {"batch_0": [{"issues": 0}], "batch_1": [BROKEN, BROKEN, {"issues": 1}]}
    run = played(settings, replies, yaml=processing_batches())
    assert run.answer["status"] == "completed"
    assert run.state["batch_status"] == {"batch_0": "complete", "batch_1": "complete"}
    assert run.state["sub_agent_errors"] == []
    tasks = [[task["task_id"] for task in it.definition["tasks"]] for it in run.handed if it.type != MESSAGE]
    assert tasks[0] == ["batch_0", "batch_1"]
    assert all(again == ["batch_1"] for again in tasks[1:])


@pytest.mark.rows("R16")
def test_a_task_that_fails_every_time_cleans_up_and_its_error_is_kept(settings: Settings) -> None:
    replies = {"batch_0": [{"issues": 0}], "batch_1": [BROKEN] * 3}
    run = played(settings, replies, yaml=processing_batches())
    assert run.state["batch_status"] == {"batch_0": "complete", "batch_1": "failed"}
    (error,) = run.state["sub_agent_errors"]
    assert error["task_id"] == "batch_1"
    assert "no such tool" in error["error"]
    assert run.answer["status"] == "failed"
    assert run.messages == []


@pytest.mark.rows("R16")
def test_a_run_can_go_on_although_a_task_has_failed(settings: Settings) -> None:
    replies = {"batch_0": [BROKEN], "batch_1": [{"issues": 0}]}
    run = played(settings, replies, yaml=processing_batches("continue"))
    assert run.answer["status"] == "completed"
    assert run.state["batch_status"] == {"batch_0": "failed", "batch_1": "complete"}
    assert [error["task_id"] for error in run.state["sub_agent_errors"]] == ["batch_0"]
    assert run.messages == ["it goes on"]


@pytest.mark.rows("R16")
def test_the_first_task_that_fails_can_end_all(settings: Settings) -> None:
    text = processing_batches("fail_all").replace("max_parallel: 10", "max_parallel: 1")
    run = played(settings, {"batch_0": [BROKEN]}, yaml=text)
    assert run.answer["status"] == "failed"
    assert run.state["batch_status"] == {"batch_0": "failed"}
    assert "batch_1" not in run.agents.handed


# Workflows as a whole

LINT = '- {id: lint, type: mcp_call, mcp: {method: lint_project}}\n- {type: user_message, message: "done"}\n'


@pytest.mark.rows("R18")
def test_a_workflow_that_fails_says_so_and_keeps_its_errors(settings: Settings) -> None:
    run = played(settings, [BROKEN], yaml=workflow(LINT, WORKFLOW_ERRORS))
    assert run.answer["status"] == "failed"
    (message,) = run.messages
    assert message.startswith("Workflow failed: ")
    assert "no such tool" in message
    assert run.state["workflow_status"] == "failed"
    (error,) = run.state["workflow_errors"]
    assert (error["step"], error["message"]) == ("lint", run.answer["error"]["message"])


@pytest.mark.rows("R18")
def test_a_workflow_that_does_not_fail_does_none_of_it(settings: Settings) -> None:
    run = played(settings, [{"issues": 0}], yaml=workflow(LINT, WORKFLOW_ERRORS))
    assert (run.answer["status"], run.messages, run.state) == ("completed", ["done"], {"workflow_errors": []})


@pytest.mark.rows("R18")
def test_a_workflow_can_go_on_after_errors_and_keep_them(settings: Settings) -> None:
    handling = WORKFLOW_ERRORS.replace('on_error: "checkpoint_and_fail"', 'on_error: "continue"')
    run = played(settings, [BROKEN], yaml=workflow(LINT, handling))
    assert (run.answer["status"], run.messages) == ("completed", ["done"])
    assert [error["step"] for error in run.state["workflow_errors"]] == ["lint"]


@pytest.mark.rows("R18")
def test_a_workflow_can_be_carried_out_once_more(settings: Settings) -> None:
    handling = WORKFLOW_ERRORS.replace('on_error: "checkpoint_and_fail"', 'on_error: "retry_workflow"')
    count = "- {type: state_update, path: raw.begun, operation: increment}\n"
    run = played(settings, [BROKEN, {"issues": 0}], yaml=workflow(count + LINT, handling))
    assert (run.answer["status"], run.messages) == ("completed", ["done"])
    assert run.state["begun"] == 1, "it begins anew"
    assert [error["step"] for error in run.state["workflow_errors"]] == ["lint"]


TWO_STEPS = """\
- {id: first, type: mcp_call, mcp: {method: prepare}, on_error: continue}
- {id: lint, type: mcp_call, mcp: {method: lint_project}}
"""


@pytest.mark.rows("R18", "R22")
@pytest.mark.parametrize(
    ("says", "asked", "errors"),
    [
        ({}, "lint", ["first"]),
        ({"reset_error_counts: false": "reset_error_counts: true"}, "lint", []),
        ({"skip_completed_steps: true": "skip_completed_steps: false"}, "first", []),
        ({"retry_failed_steps: true": "retry_failed_steps: false"}, None, ["first", "lint"]),
    ],
)
def test_a_workflow_says_what_going_on_after_a_failure_means(
    says: dict[str, str], asked: str | None, errors: list[str], settings: Settings
) -> None:
    handling = WORKFLOW_ERRORS
    for old, new in says.items():
        assert old in handling
        handling = handling.replace(old, new)

    async def go() -> None:
        async with Service.open(settings) as service:
            answer = await service.start(text=workflow(TWO_STEPS, handling))
            await service.submit(answer["workflow_id"], BROKEN)
            answer = await service.submit(answer["workflow_id"], BROKEN)
            assert answer["status"] == "failed"
            resumed = await service.step_protocol.resume(answer["workflow_id"], 30.0)
            assert (resumed["step"] and resumed["step"]["id"].partition("@")[0]) == asked
            assert [error["step"] for error in resumed["state"]["workflow_errors"]] == errors
            assert (asked is None) == (resumed["state"].get("workflow_status") == "failed")

    asyncio.run(asyncio.wait_for(go(), 30))


# Conversations


@pytest.fixture(params=["embedded", "temporal"])
def on_engine(request: pytest.FixtureRequest, settings: Settings) -> Settings:
    """The settings, once for each engine."""
    address = address_of(request.param, request)
    if address is None:
        return settings
    temporal = TemporalSettings(host=address.host, task_queue=address.task_queue)
    return replace(settings, engine="temporal", temporal=temporal)


@pytest.mark.rows("R14", "R22")
def test_a_checkpoint_is_made_by_the_server_the_user_is_told_and_the_run_ends(settings: Settings) -> None:
    part = piece(LONG_CONVERSATIONS, "Example in orchestrator loop")
    steps = part.partition("  steps:\n")[2]
    run = played(settings, yaml=workflow(inside(steps, 2) + "\n" + inside(AFTER, 2)))
    run_id = run.agents.run_id
    assert [it.type for it in run.handed] == [MESSAGE]
    (message,) = run.messages
    assert message.endswith(f"3. Run: /workflow resume {run_id}\n")
    assert run.answer["status"] == "completed"


ASKED = "- {id: lint, type: mcp_call, method: lint_project, state_update: {path: raw.lint}}\n"
STATE = "default_state: {raw: {files: [a, b]}}\nstate_schema: {computed: {count: {from: raw.files, transform: input.length}}}"


@pytest.mark.rows("R22")
@pytest.mark.parametrize("reported_by", ["workflow_checkpoint", "control_workflow"])
def test_a_full_context_runs_its_steps_and_parks_the_run_until_it_is_resumed(
    reported_by: str, on_engine: Settings
) -> None:
    async def go() -> None:
        async with Service.open(on_engine) as service:
            answer = await service.start(text=workflow(ASKED + AFTER, LONG_CONVERSATIONS, STATE))
            run_id = answer["workflow_id"]
            assert answer["action"]["step_id"] == "lint"
            if reported_by == "workflow_checkpoint":
                told = await service.step_protocol.checkpoint(run_id, "context nearly full", None)
            else:
                told = await service.context_full(run_id)
                assert told["status"] == "waiting"
                assert "the context of its agent was nearly full" in told["why"]
            (message,) = told["messages"]
            assert message.startswith("Context usage is high. Progress saved.")
            assert message.endswith(f"/workflow resume {run_id}\n")
            assert await service.is_parked(run_id)
            with pytest.raises(NotExpected, match="is parked: the context of its agent was nearly full"):
                await service.submit(run_id, {"issues": 0})
            listed = (await service.checkpoints(run_id=run_id))["checkpoints"]
            assert listed[0]["reason"] == "Context approaching limit"
            resumed = await service.step_protocol.resume(run_id, 30.0)
            assert resumed["step"]["id"] == "lint"
            assert resumed["messages"] == []
            assert resumed["last_checkpoint"]["reason"] == "Context approaching limit"
            answer = await service.submit(run_id, {"issues": 0})
            assert answer["status"] == "completed"
            assert answer["messages"] == ["it goes on"]

    asyncio.run(asyncio.wait_for(go(), 30))


@pytest.mark.rows("R22")
@pytest.mark.parametrize(
    ("says", "parts"),
    [
        ({}, {"workflow_metadata", "computed_field_definitions", "state"}),
        ({"- workflow_metadata": "- historical data"}, {"computed_field_definitions", "state"}),
        (
            {"- current raw state": "- completed task details"},
            {"workflow_metadata", "computed_field_definitions"},
        ),
        ({LOADED: "", "- historical data": "- computed state"}, {"state"}),
    ],
)
def test_the_workflow_chooses_what_the_answer_to_a_resume_contains(
    says: dict[str, str], parts: set[str], on_engine: Settings
) -> None:
    text = LONG_CONVERSATIONS
    for old, new in says.items():
        assert old in text
        text = text.replace(old, new)

    async def go() -> None:
        async with Service.open(on_engine) as service:
            answer = await service.start(text=workflow(ASKED, text, STATE))
            await service.context_full(answer["workflow_id"])
            resumed = await service.step_protocol.resume(answer["workflow_id"], 30.0)
            every = {"workflow_metadata", "computed_field_definitions", "state", "historical_data"}
            assert every & resumed.keys() == parts
            assert resumed.get("state", {"files": ["a", "b"]}) == {"files": ["a", "b"]}, "only what is raw"
            if "computed_field_definitions" in parts:
                definition = {"from": ["raw.files"], "transform": "input.length"}
                assert resumed["computed_field_definitions"] == {"count": definition}

    asyncio.run(asyncio.wait_for(go(), 30))


@pytest.mark.rows("R22")
def test_steps_for_a_full_context_that_the_agent_carries_out_come_before_the_run_is_parked(
    on_engine: Settings,
) -> None:
    handler = "on_high_context_usage: {steps: [{id: save, type: mcp_call, method: save_notes}]}"

    async def go() -> None:
        async with Service.open(on_engine) as service:
            answer = await service.start(text=workflow(ASKED + AFTER, handler))
            run_id = answer["workflow_id"]
            await service.context_full(run_id)
            assert not await service.is_parked(run_id)
            await service.submit(run_id, {}, step_id="on_high_context_usage/save")
            assert await service.is_parked(run_id)
            answer = await service.resume_run(run_id)
            assert answer["action"]["step_id"] == "lint"
            await service.context_full(run_id)
            assert not await service.is_parked(run_id), "they run every time"

    asyncio.run(asyncio.wait_for(go(), 30))
