"""The toolset `debug`: what its tools look like, and what they tell of runs and workflows, over real pipes. To take
over a change of the definitions, run `python tests/mcp_server/test_debug_toolset.py`."""

from __future__ import annotations

from typing import Any

import pytest

FILES = """
name: "files:check"
inputs:
  batches: {type: array, default: [[a.ts], [b.ts, c.ts]]}
default_state:
  raw: {files: [], limit: 10, seen: {}}
state_schema:
  computed:
    sources: {from: raw.files, transform: "input.filter(f => f.endsWith('.ts'))"}
    report: {from: [computed.sources, raw.limit], transform: "`${input[0].length} of ${input[1]}`"}
    strict: {from: raw.files, transform: "input.find(f => f.endsWith('.c')).length", on_error: use_fallback, fallback: -1}
steps:
  - id: list
    type: shell_command
    command: "printf 'a.ts\\nb.py\\n'"
    output_format: lines
    state_update: {path: raw.files}
  - id: choose
    type: conditional
    condition: "{{ sources.length > 5 }}"
    then:
      - {id: many, type: user_message, message: "Many"}
    else:
      - id: few
        type: mcp_call
        method: lint_project
        params: {files: "{{ sources }}"}
        state_update: {path: raw.lint}
  - id: rest
    type: foreach
    items: "{{ sources }}"
    steps:
      - {id: mark, type: state_update, path: "raw.seen.{{ item }}", value: true}
  - id: known
    type: parallel_foreach
    items: "{{ batches }}"
    sub_agent_task: one
  - id: unknown
    type: parallel_foreach
    items: "{{ sources }}"
    sub_agent_task: one
sub_agent_tasks:
  one: {steps: [{id: do, type: mcp_call, method: check_typescript, state_update: {path: "raw.done.{{ task_id }}"}}]}
"""


@pytest.fixture
def debug(place: Any) -> Any:
    (place.workspace / "workflows.toml").write_text('toolsets = ["reactive", "debug"]\n')
    place.define("files", FILES)
    return place


@pytest.mark.rows("R21", "R8")
def test_it_is_told_how_computed_fields_got_their_values(debug: Any) -> None:
    async def work(agent: Any) -> None:
        run_id = (await agent.call("workflow_start", workflow="files:check"))["workflow_id"]

        async def traced(field: str, **more: Any) -> list[dict[str, Any]]:
            found = await agent.call(
                "workflow_trace_transformations", workflow_id=run_id, field=field, **more
            )
            traces: list[dict[str, Any]] = found["traces"]
            assert all(trace["field"] == field.removeprefix("computed.") for trace in traces)
            assert all(trace["timestamp"].endswith("Z") for trace in traces)
            return traces

        first, second = await traced("sources")
        assert (first["trigger"], first["input"], first["output"]) == ("first read", [], [])
        assert (second["trigger"], second["input"], second["output"]) == (
            "raw.files",
            ["a.ts", "b.py"],
            ["a.ts"],
        )
        assert "duration_ms" not in second
        # only what it follows from makes a field be computed again
        await agent.call(
            "workflow_state_update", workflow_id=run_id, updates=[{"path": "raw.limit", "value": 3}]
        )
        assert len(await traced("computed.sources")) == 2
        reports = await traced("report", include_timing=True)
        assert [trace["output"] for trace in reports] == ["0 of 10", "1 of 10", "1 of 3"]
        assert reports[-1]["trigger"] == "raw.limit"
        assert all(trace["duration_ms"] >= 0 for trace in reports)
        last = (await traced("strict"))[-1]
        assert last["output"] == -1
        assert "undefined" in last["error"]

        every = await agent.call("workflow_trace_transformations", workflow_id=run_id)
        assert {trace["field"] for trace in every["traces"]} == {"sources", "report", "strict"}
        refused = await agent.refused("workflow_trace_transformations", workflow_id=run_id, field="surces")
        assert "did you mean 'sources'" in refused
        by_hand = (await agent.call("workflow_trace_transformations", workflow_id=run_id, field="raw.limit"))[
            "traces"
        ]
        assert [(it["input"], it["output"], "step" in it) for it in by_hand] == [(10, 3, False)]
        assert by_hand[0]["event"] > second["event"]
        assert second["step"], "the step that has changed what it follows from"

    debug.serve(work)


@pytest.mark.rows("R21")
def test_it_is_told_how_a_run_went_so_far(debug: Any) -> None:
    async def work(agent: Any) -> None:
        run_id = (await agent.call("workflow_start", workflow="files:check"))["workflow_id"]
        info = await agent.call("workflow_debug_info", workflow_id=run_id)
        assert (info["current_step"], info["status"]) == ("few", "pending_action")
        history = [(step["step_id"], step["type"], step["status"]) for step in info["step_history"]]
        assert history == [("list", "shell_command", "success"), ("choose", "conditional", "success")]
        assert info["step_history"][0]["started_at"] <= info["step_history"][0]["completed_at"]
        assert info["state_size"]["raw_bytes"] > info["state_size"]["computed_bytes"] > 0
        assert info["state_size"]["total_transformations"] >= 1
        slow = info["performance"]["slowest_transformations"]
        assert {"field", "avg_ms", "count"} == set(slow[0])
        assert info["performance"]["avg_transformation_time"] >= 0

        await agent.call(
            "workflow_step_complete", workflow_id=run_id, step_id="few", status="failed", error="no linter"
        )
        info = await agent.call("workflow_debug_info", workflow_id=run_id)
        assert (info["current_step"], info["status"]) == (None, "failed")
        assert info["step_history"][-1]["step_id"] == "few"
        assert info["step_history"][-1]["status"] == "failed"

    debug.serve(work)


@pytest.mark.rows("R21")
def test_the_steps_of_a_loop_and_of_tasks_are_in_the_history_in_order(debug: Any) -> None:
    async def work(agent: Any) -> None:
        run_id = (await agent.call("workflow_start", workflow="files:check"))["workflow_id"]
        await agent.call("workflow_step_complete", workflow_id=run_id, step_id="few", result={})
        info = await agent.call("workflow_debug_info", workflow_id=run_id)
        names = [step["step_id"] for step in info["step_history"]]
        assert names == ["list", "choose", "few", "rest", "mark", "rest"]
        tasks = (await agent.call("workflow_get_next_step", workflow_id=run_id))["step"]["definition"][
            "tasks"
        ]
        for task in tasks:
            step = await agent.call("workflow_get_next_step", workflow_id=run_id, task_id=task["task_id"])
            await agent.call(
                "workflow_step_complete",
                workflow_id=run_id,
                task_id=task["task_id"],
                step_id=step["step"]["id"],
                result=1,
            )
        info = await agent.call("workflow_debug_info", workflow_id=run_id)
        names = [step["step_id"] for step in info["step_history"]]
        assert names[6:] == ["known/0/do", "known/0", "known/1/do", "known/1", "known"]

    debug.serve(work)


@pytest.mark.rows("R21", "R5", "R6")
@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ({"transform": "input.filter(n => n > 1)", "input": [1, 2, 3]}, {"success": True, "output": [2, 3]}),
        (
            {
                "transform": "input + offset + total",
                "input": 1,
                "context": '{"raw": {"offset": 2}, "total": 4}',
            },
            {"success": True, "output": 7},
        ),
        ({"transform": "JSON.parse(input).a", "input": '{"a": 5}'}, {"success": True, "output": 5}),
        ({"transform": "return input[0] / input[1];", "input": [6, 3]}, {"success": True, "output": 2}),
    ],
)
def test_a_transform_can_be_tried_out(debug: Any, arguments: dict[str, Any], wanted: dict[str, Any]) -> None:
    async def work(agent: Any) -> None:
        tested = await agent.call("workflow_test_transformation", **arguments)
        assert tested.pop("execution_time_ms") >= 0
        assert tested == wanted

    debug.serve(work)


@pytest.mark.rows("R21", "R5", "R6")
def test_a_transform_that_fails_says_why(debug: Any) -> None:
    async def work(agent: Any) -> None:
        async def failed(**arguments: Any) -> str:
            tested = await agent.call("workflow_test_transformation", **arguments)
            assert tested["success"] is False
            assert "output" not in tested
            return str(tested["error"])

        assert "null" in await failed(transform="input.length", input=None)
        assert "did you mean 'files'" in await failed(
            transform="flies.length", input=1, context={"files": []}
        )
        assert await failed(transform="input +", input=1)
        assert await failed(transform="input[0] / input[1]", input=[0, 0], validate="!isNaN(output)")

    debug.serve(work)


@pytest.mark.rows("R21")
def test_a_plan_is_explained_without_running_it(debug: Any) -> None:
    async def work(agent: Any) -> None:
        explained = await agent.call("workflow_explain_plan", workflow="files:check")
        steps = {step["step_id"]: step for step in explained["steps"]}
        assert list(steps) == [
            "list", "choose", "many", "few", "rest", "mark", "known", "known/do", "unknown", "unknown/do",
        ]  # fmt: skip
        assert steps["list"] == {
            "step_id": "list",
            "type": "shell_command",
            "by": "server",
            "command": "printf 'a.ts\nb.py\n'",
        }
        assert steps["choose"] == {
            "step_id": "choose",
            "type": "conditional",
            "conditions": ["{{ sources.length > 5 }}"],
            "dependencies": ["computed.sources"],
        }
        assert steps["many"]["conditions"] == ["{{ sources.length > 5 }}"]
        assert steps["few"] == {
            "step_id": "few",
            "type": "mcp_call",
            "by": "agent",
            "conditions": ["not ({{ sources.length > 5 }})"],
            "dependencies": ["computed.sources"],
        }
        assert steps["mark"]["conditions"] == ["for each item of {{ sources }}"]
        assert (steps["known"]["type"], steps["known"]["estimated_sub_agents"]) == ("parallel_foreach", 2)
        assert steps["unknown"]["estimated_sub_agents"] == (
            "unknown: {{ sources }} depends on what 'list' will have written by then"
        )
        assert explained["required_tools"] == ["lint_project", "check_typescript"]
        assert explained["estimated_duration"].startswith("unknown: it depends on 3 steps of the agent")

        given = await agent.call(
            "workflow_explain_plan", workflow="files:check", inputs={"batches": [[], [], [], []]}
        )
        assert given["steps"][6]["estimated_sub_agents"] == 4
        refused = await agent.refused(
            "workflow_explain_plan", workflow="files:check", inputs={"batches": "none"}
        )
        assert "batches" in refused

    debug.serve(work)


@pytest.mark.rows("R21")
def test_workflows_of_other_dialects_are_explained_and_looked_into_too(debug: Any) -> None:
    debug.define(
        "blocks",
        """
name: blocks
blocks:
  - {id: ask, type: Prompt, inputs: {prompt: "Ship it?"}}
  - {id: ship, type: Shell, depends_on: [ask], condition: "${blocks.ask.outputs.response} == 'yes'", inputs: {command: "true"}}
  - {id: tell, type: Shell, depends_on: [ask, {block: ship, required: false}], inputs: {command: "true"}}
""",
    )

    async def work(agent: Any) -> None:
        explained = await agent.call("workflow_explain_plan", workflow="blocks")
        assert explained["steps"][1] == {
            "step_id": "ship",
            "type": "Shell",
            "by": "server",
            "command": "true",
            "conditions": ["${blocks.ask.outputs.response} == 'yes'"],
            "dependencies": ["ask"],
        }
        assert explained["steps"][2]["dependencies"] == ["ask", "ship (required: false)"]
        run_id = (await agent.call("workflow_start", workflow="blocks"))["workflow_id"]
        info = await agent.call("workflow_debug_info", workflow_id=run_id)
        assert (info["current_step"], info["step_history"]) == ("ask", [])
        assert (await agent.call("workflow_trace_transformations", workflow_id=run_id))["traces"] == []

    debug.serve(work)


LOOP = """
name: loop
dialect: reactive
default_state: {raw: {total: 0}}
state_schema: {computed: {double: {from: raw.total, transform: input * 2}}}
steps:
  - id: each
    type: foreach
    items: [5, 6, 7]
    steps:
      - {id: add, type: state_update, path: raw.total, operation: increment, value: "{{ item }}"}
"""


@pytest.mark.rows("R21")
def test_every_traced_change_names_its_step_its_item_and_its_event(debug: Any) -> None:
    debug.define("loop", LOOP)

    async def work(agent: Any) -> None:
        run_id = (await agent.call("workflow_start", workflow="loop"))["workflow_id"]

        async def traced(field: str) -> list[tuple[Any, ...]]:
            found = await agent.call("workflow_trace_transformations", workflow_id=run_id, field=field)
            return [(it.get("step"), it.get("item"), it["event"], it["output"]) for it in found["traces"]]

        assert await traced("raw.total") == [("add", 0, 1, 5), ("add@2", 1, 1, 11), ("add@3", 2, 1, 18)]
        assert (await traced("double"))[-1] == ("add@3", 2, 1, 36)
        history = (await agent.call("workflow_debug_info", workflow_id=run_id))["step_history"]
        assert [(it["step_id"], it.get("item"), it["event"]) for it in history if it["step_id"] == "add"] == [
            ("add", 0, 1),
            ("add", 1, 1),
            ("add", 2, 1),
        ]

    debug.serve(work)
