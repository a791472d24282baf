"""The toolset `stateful`: what its tools look like, and a workflow driven with them by a main agent and its
sub-agents. To take over a change of the definitions, run `python tests/compat/test_stateful_toolset.py`."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

ANALYZE = """\
name: analyze-codebase
version: "1.0.0"
initial_state: {files: [main.py, test.py]}
steps:
  - id: approve
    type: prompt
    needs_state: [files]
    message: "Analyze {{ state.files | length }} files?"
    prompt_type: confirm
    output_to: approval
  - id: analyze-files
    type: foreach
    needs_state: [files]
    items: "{{ state.files }}"
    agent: "@task"
    task: analyze_file
    output_to: analysis
  - id: settle
    type: wait
    needs_state: []
    duration_seconds: 0.2
    message: "Letting the dust settle"
  - id: finish
    type: return
    needs_state: [analysis, approval]
    value: {approved: "{{ state.approval.confirmed }}", scores: "{{ state.analysis }}"}
tasks:
  analyze_file:
    inputs:
      file_path: {type: string, required: true}
    initial_state: {}
    steps:
      - id: read-file
        type: shell
        needs_state: []
        command: "cat {{ inputs.file_path }}"
        timeout: 30
        output_to: content
      - id: measure
        type: set_state
        needs_state: [content]
        updates: {length: "{{ state.content.stdout | length }}"}
      - id: return-result
        type: return
        needs_state: [length]
        value: {file: "{{ inputs.file_path }}", length: "{{ state.length }}"}
"""


@pytest.fixture
def stateful(place: Any) -> Any:
    (place.workspace / "workflows.toml").write_text('toolsets = ["stateful"]\n')
    place.define("analyze-codebase", ANALYZE)
    return place


@pytest.mark.rows("S6", "S8", "S12")
def test_a_main_agent_and_its_sub_agents_drive_a_workflow(stateful: Any) -> None:
    async def work(agent: Any) -> None:
        started = await agent.call("start_workflow", name="analyze-codebase")
        run_id = started["workflow_id"]
        assert started["type"] == "pending_action"
        assert started["action"]["type"] == "prompt"
        assert started["action"]["parameters"] == {"message": "Analyze 2 files?", "type": "confirm"}

        handed = await agent.call("submit_result", workflow_id=run_id, result={"confirmed": True})
        assert (handed["type"], handed["action"]["type"]) == ("pending_action", "parallel_tasks")
        assert "<workflow-server-rules>" in handed["action"]["sub_agent_prompt"]

        for number, task in enumerate(handed["action"]["parameters"]["tasks"]):
            child = task["workflow_id"]
            assert child == f"{run_id}.analyze-files.{number}"
            step = await agent.call("get_next_step", workflow_id=child)
            assert (step["step_id"], step["type"]) == ("read-file", "shell")
            assert (step["command"], step["timeout"]) == (f"cat {task['context']}", 30)
            assert step["action"]["instructions"].startswith("Run `command`")
            submit = f"submit_step_result(workflow_id='{child}', step_id='read-file', result=…)"
            assert step["next"] == submit
            result = {"stdout": "x" * (number + 1), "stderr": "", "exit_code": 0}
            ended = await agent.call(
                "submit_step_result", workflow_id=child, step_id="read-file", result=result
            )
            final = {"file": task["context"], "length": number + 1}
            assert (ended["status"], ended["final_result"]) == ("complete", final)
            silent = await agent.call(
                "submit_step_result", workflow_id=child, step_id="measure", result={"acknowledged": True}
            )
            assert silent["status"] == "complete"
            assert (await agent.call("get_next_step", workflow_id=child))["final_result"] == final

        done = await agent.call("get_workflow_status", workflow_id=run_id)
        assert done["status"] == "completed"
        assert done["result"] == {
            "approved": True,
            "scores": [{"file": "main.py", "length": 1}, {"file": "test.py", "length": 2}],
        }
        assert "state" not in done, "the state after the end is for whoever asks for it"
        assert (await agent.call("get_next_step", workflow_id=run_id))["status"] == "complete"

    stateful.serve(work)


EVERY_KIND = """
name: kinds
version: "1"
steps:
  - {id: look, type: shell, needs_state: [], command: "ls", working_dir: "."}
  - {id: call, type: mcp_call, needs_state: [], tool: web_search, parameters: {query: ants}}
  - {id: judge, type: delegate, needs_state: [], agent: "@reviewer", instructions: "Judge it"}
  - {id: choose, type: prompt, needs_state: [], prompt_type: choice, message: "Which?", choices: [a, b]}
"""


@pytest.mark.rows("S8")
def test_instructions_name_only_fields_that_the_answer_has_and_next_the_tool_of_the_step(
    stateful: Any,
) -> None:
    stateful.define("kinds", EVERY_KIND)
    results = {"look": {"stdout": "", "exit_code": 0}, "call": "x", "judge": "y", "choose": "a"}

    async def work(agent: Any) -> None:
        run = await agent.call("start_workflow", workflow="kinds")
        assert "parameters.command" in run["action"]["instructions"], "there it stands in the action"
        assert "submit_result(" in run["next"]
        step = await agent.call("get_next_step", workflow_id=run["workflow_id"])
        for step_id, result in results.items():
            said = step["action"]["instructions"]
            named = re.findall(r"`(\w+)`", said)
            assert step["step_id"] == step_id
            assert named
            assert set(named) <= step.keys()
            nested = re.findall(r"parameters\.(\w+)", said)
            assert set(nested) <= step["action"].get("parameters", {}).keys()
            assert step["next"].startswith("submit_step_result(")
            step = await agent.call(
                "submit_step_result", workflow_id=run["workflow_id"], step_id=step_id, result=result
            )
        assert step["status"] == "complete"

    stateful.serve(work)


@pytest.mark.rows("S8")
def test_a_wait_is_shown_and_needs_nothing(stateful: Any) -> None:
    stateful.define(
        "pause",
        "name: pause\nversion: '1'\nsteps:\n"
        "  - {id: nap, type: wait, needs_state: [], duration_seconds: 60, message: 'Wait for DNS'}\n",
    )

    async def work(agent: Any) -> None:
        run = await agent.call("start_workflow", workflow="pause", wait_seconds=0)
        run_id = run["workflow_id"]
        assert run["status"] == "waiting"
        assert "at 'nap': Wait for DNS" in run["why"]
        step = await agent.call("get_next_step", workflow_id=run_id)
        assert (step["step_id"], step["type"], step["duration"]) == ("nap", "wait", 60)
        assert (step["message"], step["requires_action"]) == ("Wait for DNS", False)
        early = await agent.call(
            "submit_step_result", workflow_id=run_id, step_id="nap", result={}, wait_seconds=0
        )
        assert early["seconds_left"] > 50
        refused = await agent.refused(
            "submit_step_result", workflow_id=run_id, step_id="nap", result={"made": "up"}
        )
        assert "the server itself waits until" in refused
        await agent.call("control_workflow", workflow_id=run_id, action="cancel")
        assert (await agent.call("get_next_step", workflow_id=run_id))["status"] == "cancelled"

    stateful.serve(work)


def test_tasks_that_do_not_exist_are_refused_without_naming_those_of_other_agents(stateful: Any) -> None:
    async def work(agent: Any) -> None:
        run_id = (await agent.call("start_workflow", workflow="analyze-codebase"))["workflow_id"]
        await agent.call("submit_result", workflow_id=run_id, result=True)
        refused = await agent.refused("get_next_step", workflow_id=f"{run_id}.analyze-files.7")
        assert "use the workflow_id of the task exactly as it was given" in refused
        assert "analyze-files.0" not in refused
        state = await agent.call("get_workflow_state", workflow_id=f"{run_id}.analyze-files.1")
        assert (state["inputs"], state["state"]) == ({"file_path": "test.py"}, {})
        first = await agent.call("get_next_step", workflow_id=run_id, task_id="analyze-files.0")
        assert first["step_id"] == "read-file"

    stateful.serve(work)


@pytest.mark.rows("S6", "X1")
def test_sub_agents_may_have_servers_of_their_own(stateful: Any) -> None:
    async def work(main: Any, sub: Any) -> None:
        run_id = (await main.call("start_workflow", workflow="analyze-codebase"))["workflow_id"]
        handed = await main.call("submit_result", workflow_id=run_id, result=True)
        tasks = [task["workflow_id"] for task in handed["action"]["parameters"]["tasks"]]
        for task in tasks:
            await sub.call("get_next_step", workflow_id=task)
        at_work = await main.call("get_workflow_status", workflow_id=run_id, wait_seconds=0)
        assert (at_work["status"], "action" in at_work) == ("waiting", False)
        waiting = asyncio.create_task(main.call("get_workflow_status", workflow_id=run_id))
        for task in tasks:
            result = {"stdout": "abc", "exit_code": 0}
            await sub.call("submit_step_result", workflow_id=task, step_id="read-file", result=result)
        ended = await waiting
        assert [score["length"] for score in ended["result"]["scores"]] == [3, 3]

    stateful.serve_two(work)
