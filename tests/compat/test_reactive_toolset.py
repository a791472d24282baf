"""The toolset `reactive`: what its tools look like, and workflows driven with them by an agent and its sub-agents,
over real pipes. To take over a change of the definitions, run `python tests/compat/test_reactive_toolset.py`."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

RELEASE = r"""
name: "release:notes"
description: Collects what has changed, and publishes it
version: "1.2.0"
inputs:
  since: {type: string, default: v1, description: A tag}
default_state:
  raw: {subjects: [], checks: {}, log: []}
  state: {phase: collecting}
state_schema:
  raw: {subjects: array, title: string, log: array}
  computed:
    fixes: {from: raw.subjects, transform: "input.filter(s => s.startsWith('fix'))"}
    summary:
      from: [computed.fixes, raw.subjects]
      transform: "({fixes: input[0].length, total: input[1].length})"
steps:
  - id: collect
    type: shell_command
    command: "printf 'fix: a\nfeat: b\nfix: c\n'"
    output_format: lines
    state_update: {path: raw.subjects}
  - {id: tell, type: user_message, message: "{{ summary.total }} commits"}
  - id: ask
    type: user_input
    prompt: "{{ summary.fixes }} fixes since {{ since }}. What is it called?"
    validation: {pattern: '^v\d+$', error_message: "Please write it as v1"}
    state_update: {path: raw.title}
  - id: publish
    type: agent_shell_command
    command: "./publish.sh {{ title }}"
    reason: It asks for a password
    output_format: json
    timeout: 60000
    state_update: {path: raw.published}
  - id: check
    type: mcp_call
    mcp: {method: lint_project, params: {files: "{{ fixes }}", strict: true}}
    state_update: {path: "raw.checks.{{ title }}", value: "{{ result }}"}
  - id: note
    type: mcp_call
    method: write_log
    state_update: {path: raw.log, operation: append}
  - {type: user_message, message: "Published {{ title }}"}
"""

REVIEW = """
name: "review:all"
default_state:
  raw: {batches: [{id: batch_0, files: [a.ts, b.ts]}, {id: batch_1, files: [c.ts]}], results: {}}
state_schema:
  computed:
    done: {from: raw.results, transform: "Object.keys(input).length"}
steps:
  - {id: hello, type: user_message, message: "Reviewing {{ batches.length }} batches"}
  - id: review
    type: parallel_foreach
    items: "{{ batches }}"
    max_parallel: 5
    sub_agent_task: review_batch
  - {id: bye, type: user_message, message: "{{ done }} files reviewed"}
sub_agent_tasks:
  review_batch:
    steps:
      - id: each-file
        type: foreach
        items: "{{ files }}"
        variable_name: file
        steps:
          - id: look
            type: mcp_call
            method: review_file
            params: {path: "{{ file }}", batch: "{{ task_id }}"}
            state_update: {path: "raw.results.{{ file }}"}
      - {id: told, type: user_message, message: "{{ task_id }} is done"}
"""


@pytest.fixture
def reactive(place: Any) -> Any:
    (place.workspace / "workflows.toml").write_text('toolsets = ["reactive"]\n')
    place.define("release", RELEASE)
    place.define("review", REVIEW)
    return place


NULLS = """
name: "nulls"
default_state: {raw: {first: 1, second: 2}}
steps:
  - {id: look, type: mcp_call, method: find_owner, state_update: {path: raw.first}}
  - {id: again, type: mcp_call, method: find_owner, state_update: {path: raw.second}}
"""


@pytest.mark.rows("R19")
def test_a_result_that_is_null_is_stored_and_one_that_is_left_out_is_asked_for(reactive: Any) -> None:
    reactive.define("nulls", NULLS)

    async def work(agent: Any) -> None:
        tools = {tool.name: tool for tool in (await agent.client.list_tools()).tools}
        schema = tools["workflow_step_complete"].input_schema
        assert {"type": "null"} in schema["properties"]["result"]["anyOf"]
        assert "result" not in schema["required"]

        run_id = (await agent.call("workflow_start", workflow="nulls"))["workflow_id"]
        step = {"workflow_id": run_id, "step_id": "look"}
        assert "'look' needs a result" in await agent.refused("workflow_step_complete", **step)
        await agent.call("workflow_step_complete", **step, result=None)
        failed = {"status": "failed", "error": "no such owner", "result": None}
        ended = await agent.call("workflow_step_complete", workflow_id=run_id, step_id="again", **failed)
        assert ended["status"] == "failed", "a step that failed has no result, whatever is sent for it"
        assert await agent.call("workflow_state_read", workflow_id=run_id) == {"first": None, "second": 2}

    reactive.serve(work)


# One step after the other


@pytest.mark.rows("R17", "R19")
def test_an_agent_is_handed_atomic_steps_and_hands_in_what_came_of_them(reactive: Any) -> None:
    async def work(agent: Any) -> None:
        listed = await agent.call("workflow_list", include_global=False)
        assert [it["name"] for it in listed["workflows"]] == ["release:notes", "review:all"]
        assert {it["source"] for it in listed["workflows"]} == {"project"}
        info = await agent.call("workflow_get_info", workflow="release:notes")
        assert (info["name"], info["version"]) == ("release:notes", "1.2.0")
        assert info["inputs"]["since"] == {
            "type": "string",
            "default": "v1",
            "required": False,
            "description": "A tag",
        }
        assert info["found_at"].endswith("release.yaml")

        started = await agent.call("workflow_start", workflow="release:notes", inputs='{"since": "v7"}')
        run_id = started["workflow_id"]
        assert started["state"] == {
            "phase": "collecting",
            "since": "v7",
            "subjects": ["fix: a", "feat: b", "fix: c"],
            "checks": {},
            "log": [],
            "fixes": ["fix: a", "fix: c"],
            "summary": {"fixes": 2, "total": 3},
        }
        assert (started["messages"], started["status"]) == (["3 commits"], "pending_action")
        asked = started["step"]
        assert (asked["id"], asked["type"]) == ("ask", "user_input")
        assert asked["definition"] == {
            "prompt": "2 fixes since v7. What is it called?",
            "validation": {"pattern": r"^v\d+$", "error_message": "Please write it as v1"},
            "state_update": {"path": "raw.title"},
        }
        assert asked["variable_replacements"] == {"{{ summary.fixes }}": 2, "{{ since }}": "v7"}
        assert asked["original_expression"] == "summary.fixes; since"
        assert "raw.title" not in asked["instructions"], "it is in the definition"
        assert await agent.call("workflow_get_next_step", workflow_id=run_id) == {
            name: started[name] for name in ("step", "messages", "status")
        }

        refused = await agent.refused(
            "workflow_step_complete", workflow_id=run_id, step_id="ask", result="nine"
        )
        assert "Please write it as v1" in refused
        done = await agent.call("workflow_step_complete", workflow_id=run_id, step_id="ask", result="v9")
        assert done["success"] is True
        command = done["step"]
        assert (command["id"], command["type"]) == ("publish", "agent_shell_command")
        assert command["definition"] == {
            "command": "./publish.sh v9",
            "reason": "It asks for a password",
            "output_format": "json",
            "timeout": 60000,
            "state_update": {"path": "raw.published"},
        }
        assert "definition.command" in command["instructions"]
        assert "parameters." not in command["instructions"]

        printed = {"stdout": '{"ok": true}', "stderr": "", "exit_code": 0}
        done = await agent.call(
            "workflow_step_complete", workflow_id=run_id, step_id="publish", result=printed
        )
        call = done["step"]
        assert (call["id"], call["type"]) == ("check", "mcp_call")
        assert call["definition"] == {
            "method": "lint_project",
            "params": {"files": ["fix: a", "fix: c"], "strict": True},
            "state_update": {"path": "raw.checks.v9", "value": "{{ result }}"},
        }
        assert "definition.params" in call["instructions"]
        done = await agent.call(
            "workflow_step_complete", workflow_id=run_id, step_id="check", result={"errors": 0}
        )
        assert done["step"]["definition"]["state_update"] == {"path": "raw.log", "operation": "append"}
        done = await agent.call(
            "workflow_step_complete", workflow_id=run_id, step_id="note", result="written"
        )
        assert (done["step"], done["status"]) == (None, "completed")
        assert done["messages"] == ["Published v9"]
        assert (await agent.call("workflow_get_next_step", workflow_id=run_id))["step"] is None

        ended = await agent.call("workflow_complete", workflow_id=run_id, status="success")
        assert (ended["success"], ended["status"]) == (True, "completed")
        final = ended["final_state"]
        assert (final["title"], final["published"]) == ("v9", {"ok": True})
        assert (final["checks"], final["log"]) == ({"v9": {"errors": 0}}, ["written"])
        otherwise = await agent.call("workflow_complete", workflow_id=run_id, status="failed")
        assert (otherwise["success"], otherwise["why"]) == (False, "the run is completed")

    reactive.serve(work)


@pytest.mark.rows("R19")
def test_completing_twice_is_harmless_and_completing_what_is_not_asked_is_refused(reactive: Any) -> None:
    async def work(agent: Any) -> None:
        run_id = (await agent.call("workflow_start", workflow="release:notes"))["workflow_id"]
        for _ in range(2):
            done = await agent.call("workflow_step_complete", workflow_id=run_id, step_id="ask", result="v2")
            assert done["step"]["id"] == "publish"
        # the server does it itself: an agent that acknowledges it all the same hears what is next
        done = await agent.call("workflow_step_complete", workflow_id=run_id, step_id="tell")
        assert done["step"]["id"] == "publish"
        refused = await agent.refused(
            "workflow_step_complete", workflow_id=run_id, step_id="ask", result="v3"
        )
        assert "it has been answered already, with another result" in refused
        assert "publish" in refused
        refused = await agent.refused(
            "workflow_step_complete", workflow_id=run_id, step_id="pubish", result=1
        )
        assert "did you mean 'publish'" in refused

    reactive.serve(work)


@pytest.mark.rows("R17", "R19")
def test_what_is_refused_says_what_is_asked_in_the_words_of_the_tools_that_there_are(reactive: Any) -> None:
    missing = ("submit_result", " get_next_step", "parameters")

    async def work(agent: Any) -> None:
        run_id = (await agent.call("workflow_start", workflow="release:notes"))["workflow_id"]
        for given in ({"result": "v2"}, {}, {"status": "failed", "error": "no"}):
            refused = await agent.refused(
                "workflow_step_complete", workflow_id=run_id, step_id="aks", **given
            )
            assert "did you mean 'ask'" in refused
            assert "workflow_step_complete(step_id='ask', result=…)" in refused
            assert '"definition":{"prompt":"2 fixes since v1. What is it called?"' in refused
            assert [word for word in missing if word in refused] == []
        tasks = (await agent.call("workflow_start", workflow="review:all"))["workflow_id"]
        refused = await agent.refused(
            "workflow_step_complete", workflow_id=tasks, step_id="review", result=[1, 2]
        )
        assert "the sub-agents of its tasks submit theirs" in refused
        assert "workflow_get_next_step(" in refused
        assert "sub_agent_prompt" not in refused, "it may be a sub-agent who asks"
        assert [word for word in missing if word in refused] == []
        await agent.call("workflow_complete", workflow_id=run_id, status="cancelled")
        refused = await agent.refused(
            "workflow_step_complete", workflow_id=run_id, step_id="ask", result="v2"
        )
        assert "has ended: it is cancelled" in refused
        assert f"workflow_get_next_step(workflow_id='{run_id}') has the status" in refused

    reactive.serve(work)


@pytest.mark.rows("R19", "R20")
def test_an_agent_may_write_the_result_itself_and_it_is_not_stored_a_second_time(reactive: Any) -> None:
    async def work(agent: Any) -> None:
        run_id = (await agent.call("workflow_start", workflow="release:notes"))["workflow_id"]
        refused = await agent.refused("workflow_step_complete", workflow_id=run_id, step_id="ask")
        assert "'ask' needs a result: nothing was written to raw.title since it was asked" in refused
        assert "result=…" in refused

        updates = [{"path": "raw.title", "value": "v4"}]
        await agent.call("workflow_state_update", workflow_id=run_id, updates=updates)
        for _ in range(2):
            done = await agent.call("workflow_step_complete", workflow_id=run_id, step_id="ask")
            assert (done["success"], done["step"]["id"]) == (True, "publish")
        # what was written for the step before does not count for this one
        refused = await agent.refused("workflow_step_complete", workflow_id=run_id, step_id="publish")
        assert "raw.published" in refused
        await agent.call("workflow_step_complete", workflow_id=run_id, step_id="publish", result={"ok": 1})
        await agent.call(
            "workflow_state_update",
            workflow_id=run_id,
            updates=[{"path": 'raw.checks["v4"].errors', "value": 0}],
        )
        done = await agent.call("workflow_step_complete", workflow_id=run_id, step_id="check")
        assert done["step"]["id"] == "note"
        entry = [{"path": "raw.log", "operation": "append", "value": "mine"}]
        await agent.call("workflow_state_update", workflow_id=run_id, updates=entry)
        done = await agent.call("workflow_step_complete", workflow_id=run_id, step_id="note")
        assert done["status"] == "completed"
        state = await agent.call("workflow_state_read", workflow_id=run_id)
        assert (state["title"], state["checks"], state["log"]) == ("v4", {"v4": {"errors": 0}}, ["mine"])

    reactive.serve(work)


@pytest.mark.rows("R19", "R11")
def test_a_step_that_failed_does_what_its_on_error_says(reactive: Any) -> None:
    reactive.define(
        "failing",
        """
name: failing
default_state: {raw: {errors: {}}}
steps:
  - id: lint
    type: mcp_call
    method: lint
    on_error: continue
    state_update: {path: raw.linted}
    error_state_update: {path: raw.errors.lint, value: "{{ error.message }}"}
  - {id: test, type: mcp_call, method: run_tests, state_update: {path: raw.tested}}
""",
    )

    async def work(agent: Any) -> None:
        run_id = (await agent.call("workflow_start", workflow="failing"))["workflow_id"]
        for _ in range(2):
            done = await agent.call(
                "workflow_step_complete",
                workflow_id=run_id,
                step_id="lint",
                status="failed",
                error="no such tool",
            )
            assert (done["success"], done["step"]["id"]) == (True, "test")
        state = await agent.call("workflow_state_read", workflow_id=run_id)
        assert "no such tool" in state["errors"]["lint"]
        done = await agent.call("workflow_step_complete", workflow_id=run_id, step_id="test", status="failed")
        assert (done["step"], done["status"]) == (None, "failed")
        assert "the agent reports that it failed" in done["error"]["message"]
        ended = await agent.call("workflow_complete", workflow_id=run_id, status="failed")
        assert ended["success"] is True
        claimed = await agent.call("workflow_complete", workflow_id=run_id, status="success")
        assert claimed["success"] is False
        assert "the agent reports that it failed" in claimed["why"]

    reactive.serve(work)


@pytest.mark.rows("R19")
def test_a_run_that_has_not_ended_is_only_ended_by_cancelling_it(reactive: Any) -> None:
    async def work(agent: Any) -> None:
        run_id = (await agent.call("workflow_start", workflow="release:notes"))["workflow_id"]
        early = await agent.call("workflow_complete", workflow_id=run_id, status="success")
        assert (early["success"], early["status"]) == (False, "pending_action")
        assert "waiting for your answer to 'ask'" in early["why"]
        assert early["final_state"]["summary"] == {"fixes": 2, "total": 3}
        for _ in range(2):
            ended = await agent.call("workflow_complete", workflow_id=run_id, status="cancelled")
            assert (ended["success"], ended["status"]) == (True, "cancelled")
        assert (await agent.call("workflow_get_next_step", workflow_id=run_id))["status"] == "cancelled"
        refused = await agent.refused(
            "workflow_state_update", workflow_id=run_id, updates=[{"path": "raw.title", "value": "v1"}]
        )
        assert "has ended: it is cancelled" in refused

    reactive.serve(work)


# The state


@pytest.mark.rows("R7", "R20")
def test_the_state_is_read_flat_or_by_paths(reactive: Any) -> None:
    async def work(agent: Any) -> None:
        run_id = (await agent.call("workflow_start", workflow="release:notes"))["workflow_id"]

        async def read(*paths: str) -> dict[str, Any]:
            found: dict[str, Any] = await agent.call(
                "workflow_state_read", workflow_id=run_id, paths=list(paths)
            )
            return found

        assert await read("summary.total", "raw.subjects[0]", "computed.fixes", "phase", "inputs.since") == {
            "summary.total": 3,
            "raw.subjects[0]": "fix: a",
            "computed.fixes": ["fix: a", "fix: c"],
            "phase": "collecting",
            "inputs.since": "v1",
        }
        assert await read("title") == {"title": None}  # known, and not written yet
        assert await agent.call("workflow_state_read", workflow_id=run_id, paths='["phase"]') == {
            "phase": "collecting"
        }
        refused = await agent.refused("workflow_state_read", workflow_id=run_id, paths=["sumary.total"])
        assert "did you mean 'summary'" in refused
        refused = await agent.refused("workflow_state_read", workflow_id=run_id, paths=["summary.totals"])
        assert "did you mean 'total'" in refused

    reactive.serve(work)


@pytest.mark.rows("R7", "R8", "R20")
def test_updates_are_made_together_or_not_at_all_and_tell_what_follows_from_them(reactive: Any) -> None:
    async def work(agent: Any) -> None:
        run_id = (await agent.call("workflow_start", workflow="release:notes"))["workflow_id"]

        async def update(*updates: dict[str, Any]) -> dict[str, Any]:
            made: dict[str, Any] = await agent.call(
                "workflow_state_update", workflow_id=run_id, updates=list(updates)
            )
            return made

        made = await update(
            {"path": "raw.subjects", "operation": "append", "value": "feat: d"},
            {"path": "state.phase", "value": "writing"},
            {"path": "raw.count", "operation": "increment"},
            {"path": "raw.checks", "operation": "merge", "value": {"a.b": 1}},
            {"path": 'raw.checks["a.b"]', "operation": "increment", "value": 2},
        )
        assert made == {"success": True, "computed": {"summary": {"fixes": 2, "total": 4}}}
        state = await agent.call("workflow_state_read", workflow_id=run_id)
        assert (state["phase"], state["count"], state["checks"]) == ("writing", 1, {"a.b": 3})
        assert (await update({"path": "state.phase", "value": "done"}))["computed"] == {}

        good = {"path": "raw.count", "operation": "increment"}
        for wrong, reason in (
            ({"path": "computed.fixes", "value": []}, "updates[1]: 'computed.fixes' cannot be written"),
            ({"path": "title", "value": "v1"}, "updates[1]: 'title' does not say which part"),
            ({"path": "raw.title", "value": 7}, "'raw.title' is declared as string, and cannot be integer 7"),
            ({"path": "raw.title", "operation": "append", "value": 7}, "updates[1]"),
            ({"path": "raw.count", "operation": "ad", "value": 1}, "there is no operation"),
            ({"path": "raw.count"}, "updates[1] needs a value"),
            ({"path": "raw.count", "vaule": 1}, "did you mean 'value'"),
            ({"path": "raw.x y", "value": 1}, "is not a path"),
        ):
            refused = await agent.refused("workflow_state_update", workflow_id=run_id, updates=[good, wrong])
            assert reason in refused
            assert "Nothing has changed" in refused
        after = await agent.call("workflow_state_read", workflow_id=run_id)
        assert after == {**state, "phase": "done"}
        as_text = json.dumps({"path": "raw.subjects", "value": []})
        made = await agent.call("workflow_state_update", workflow_id=run_id, updates=as_text)
        assert made["computed"] == {"fixes": [], "summary": {"fixes": 0, "total": 0}}

    reactive.serve(work)


@pytest.mark.rows("R20")
def test_dependencies_of_a_field_are_told_of_a_run_and_of_a_workflow(reactive: Any) -> None:
    async def work(agent: Any) -> None:
        run_id = (await agent.call("workflow_start", workflow="release:notes"))["workflow_id"]
        for where in (run_id, "release:notes"):
            assert await agent.call("workflow_state_dependencies", workflow_id=where, field="summary") == {
                "direct_deps": ["computed.fixes", "raw.subjects"],
                "all_deps": ["computed.fixes", "raw.subjects"],
                "dependents": [],
            }
            assert await agent.call(
                "workflow_state_dependencies", workflow_id=where, field="raw.subjects"
            ) == {"direct_deps": [], "all_deps": [], "dependents": ["computed.fixes", "computed.summary"]}
        refused = await agent.refused("workflow_state_dependencies", workflow_id=run_id, field="fixs")
        assert "did you mean 'fixes'" in refused
        refused = await agent.refused("workflow_state_dependencies", workflow_id="realease:notes", field="a")
        assert "did you mean 'release:notes'" in refused

    reactive.serve(work)


# Sub-agents


@pytest.mark.rows("R15", "R16", "R19")
def test_sub_agents_carry_out_their_tasks_by_the_names_that_they_are_listed_with(reactive: Any) -> None:
    async def work(agent: Any) -> None:
        started = await agent.call("workflow_start", workflow="review:all")
        run_id, step = started["workflow_id"], started["step"]
        assert started["messages"] == ["Reviewing 2 batches"]
        assert (step["id"], step["type"], step["original_expression"]) == (
            "review",
            "parallel_tasks",
            "batches",
        )
        tasks = step["definition"]["tasks"]
        assert [task["task_id"] for task in tasks] == ["batch_0", "batch_1"]
        context = tasks[0]["context"]
        assert context == {"id": "batch_0", "files": ["a.ts", "b.ts"], "index": 0, "total": 2}
        assert [task["workflow_id"] for task in tasks] == [f"{run_id}.review.batch_{n}" for n in (0, 1)]
        prompt = step["definition"]["sub_agent_prompt"]
        assert "workflow_get_next_step(workflow_id='{workflow_id}')" in prompt
        assert run_id not in prompt
        assert "{task_id}" not in prompt
        assert "workflow_step_complete" in prompt

        early = await agent.call("workflow_step_complete", workflow_id=run_id, step_id="review")
        assert (early["success"], early["step"]["id"]) == (False, "review")

        first = await agent.call("workflow_get_next_step", workflow_id=run_id, task_id="batch_0")
        assert first["step"]["definition"] == {
            "method": "review_file",
            "params": {"path": "a.ts", "batch": "batch_0"},
            "state_update": {"path": 'raw.results["a.ts"]'},
        }
        # the other one is still to be started; this one is at work
        again = await agent.call("workflow_get_next_step", workflow_id=run_id)
        assert [task["task_id"] for task in again["step"]["definition"]["tasks"]] == ["batch_1"]
        second = await agent.call(
            "workflow_get_next_step", workflow_id=run_id, sub_agent_context={"task_id": "batch_1"}
        )
        assert second["step"]["definition"]["params"]["path"] == "c.ts"

        done = await agent.call(
            "workflow_step_complete",
            workflow_id=run_id,
            task_id="batch_0",
            step_id=first["step"]["id"],
            result={"ok": True},
        )
        assert done["step"]["definition"]["params"]["path"] == "b.ts"
        updates = [{"path": 'raw.results["b.ts"]', "value": {"ok": False}}]
        made = await agent.call(
            "workflow_state_update", workflow_id=run_id, task_id="batch_0", updates=updates
        )
        assert made["computed"] == {"done": 2}
        done = await agent.call(
            "workflow_step_complete", workflow_id=run_id, task_id="batch_0", step_id=done["step"]["id"]
        )
        assert (done["step"], done["status"], done["messages"]) == (None, "completed", [])
        read = await agent.call(
            "workflow_state_read", workflow_id=run_id, task_id="batch_1", paths=["task_id", "done"]
        )
        assert read == {"task_id": "batch_1", "done": 2}
        waiting = await agent.call("workflow_get_next_step", workflow_id=run_id, wait_seconds=0)
        assert (waiting["step"], waiting["status"]) == (None, "waiting")
        assert "1 of 2 done" in waiting["why"]

        last = await agent.call(
            "workflow_step_complete",
            workflow_id=run_id,
            task_id=f"{run_id}.review.batch_1",
            step_id=second["step"]["id"],
            result={"ok": True},
        )
        assert last["status"] == "completed"
        done = await agent.call("workflow_step_complete", workflow_id=run_id, step_id="review")
        assert (done["success"], done["status"]) == (True, "completed")
        assert done["messages"][-1] == "3 files reviewed"
        refused = await agent.refused("workflow_get_next_step", workflow_id=run_id, task_id="batch_7")
        assert "has no task" in refused
        assert "batch_0" not in refused, "that is the task of another agent"

    reactive.serve(work)


@pytest.mark.rows("R16")
def test_a_task_that_is_under_way_goes_before_one_of_an_earlier_step_with_the_same_name(
    reactive: Any,
) -> None:
    reactive.define(
        "twice",
        """
name: twice
default_state: {raw: {items: [{id: a}], results: []}}
steps:
  - {id: first, type: parallel_foreach, items: "{{ items }}", sub_agent_task: one}
  - {id: second, type: parallel_foreach, items: "{{ items }}", sub_agent_task: one}
sub_agent_tasks:
  one: {steps: [{id: do, type: mcp_call, method: do, state_update: {path: raw.results, operation: append}}]}
""",
    )

    async def work(agent: Any) -> None:
        run_id = (await agent.call("workflow_start", workflow="twice"))["workflow_id"]
        for number in (1, 2):
            step = (await agent.call("workflow_get_next_step", workflow_id=run_id))["step"]
            [task] = step["definition"]["tasks"]
            assert task["task_id"] == "a"
            await agent.call("workflow_get_next_step", workflow_id=run_id, task_id="a")
            await agent.call(
                "workflow_step_complete", workflow_id=run_id, task_id="a", step_id="do", result=number
            )
        ended = await agent.call("workflow_complete", workflow_id=run_id, status="success")
        assert ended["final_state"]["results"] == [1, 2]

    reactive.serve(work)


@pytest.mark.rows("R16")
@pytest.mark.parametrize("inner", ["q", "n"], ids=["as that of a task around it", "as that beside it"])
def test_a_name_that_a_sub_agent_was_told_stays_good_when_others_of_the_same_name_begin(
    reactive: Any, inner: str
) -> None:
    reactive.define(
        "nest",
        """
name: nest
default_state: {raw: {log: []}}
steps: [{id: par, type: parallel_foreach, items: [{id: p}, {id: q}], sub_agent_task: page}]
sub_agent_tasks:
  page:
    steps:
      - {id: c, type: mcp_call, method: check}
      - {id: n, type: parallel_foreach, items: [{id: q}], sub_agent_task: nested}
      - {id: d, type: mcp_call, method: check}
  nested: {steps: [{id: z, type: mcp_call, method: zz}, {id: z2, type: mcp_call, method: zz}]}
""".replace("items: [{id: q}]", f"items: [{{id: {inner}}}]"),
    )

    async def work(agent: Any) -> None:
        started = await agent.call("workflow_start", workflow="nest")
        run_id = started["workflow_id"]

        async def complete(task: str, step: str) -> dict[str, Any]:
            return cast(
                dict[str, Any],
                await agent.call(
                    "workflow_step_complete", workflow_id=run_id, task_id=task, step_id=step, result=1
                ),
            )

        assert [it["task_id"] for it in started["step"]["definition"]["tasks"]] == ["p", "q"]
        nested = []
        for outer in ("p", "q"):
            await agent.call("workflow_get_next_step", workflow_id=run_id, task_id=outer)
            [task] = (await complete(outer, "c"))["step"]["definition"]["tasks"]
            nested.append(task["task_id"])
            assert (await complete(task["task_id"], "z"))["step"]["id"] == "z2"
        for outer, task in zip(("p", "q"), nested, strict=True):
            assert (await complete(task, "z2"))["status"] == "completed"
            assert (await complete(outer, "d"))["status"] == "completed"
        ended = await agent.call("workflow_complete", workflow_id=run_id, status="success")
        assert ended["success"] is True

    reactive.serve(work)


@pytest.mark.rows("R15")
def test_what_goes_on_beside_tasks_that_nobody_waits_for_is_handed_out_with_them(reactive: Any) -> None:
    reactive.define(
        "beside",
        """
name: beside
default_state: {raw: {}}
steps:
  - {id: par, type: parallel_foreach, items: [{id: p}], sub_agent_task: t, wait_for_all: false}
  - {id: one, type: mcp_call, method: meanwhile}
  - {id: two, type: mcp_call, method: meanwhile}
sub_agent_tasks: {t: {steps: [{id: c, type: mcp_call, method: check}]}}
""",
    )

    async def work(agent: Any) -> None:
        started = await agent.call("workflow_start", workflow="beside")
        run_id, step = started["workflow_id"], started["step"]
        assert (step["id"], [it["id"] for it in started["more_steps"]]) == ("par", ["one"])
        assert "Do not wait: continue with more_steps" in step["instructions"]
        [task] = step["definition"]["tasks"]
        done = await agent.call("workflow_step_complete", workflow_id=run_id, step_id="one", result=1)
        assert (done["step"]["id"], [it["id"] for it in done["more_steps"]]) == ("par", ["two"])
        await agent.call("workflow_get_next_step", workflow_id=run_id, task_id=task["task_id"])
        alone = await agent.call("workflow_get_next_step", workflow_id=run_id)
        assert (alone["step"]["id"], "more_steps" in alone) == ("two", False)
        done = await agent.call(
            "workflow_step_complete", workflow_id=run_id, step_id="two", result=1, wait_seconds=0.1
        )
        assert "more_steps" not in done
        last = {"task_id": task["task_id"], "step_id": "c", "result": 1}
        await agent.call("workflow_step_complete", workflow_id=run_id, **last)
        ended = await agent.call("workflow_complete", workflow_id=run_id, status="success")
        assert ended["success"] is True

    reactive.serve(work)


def test_a_result_of_another_kind_than_the_state_wants_is_refused_and_the_kind_named(reactive: Any) -> None:
    reactive.define(
        "kinds",
        """
name: kinds
default_state: {raw: {log: []}}
state_schema: {raw: {log: array}}
steps: [{id: ask, type: mcp_call, method: m, state_update: {path: raw.log}}]
""",
    )

    async def work(agent: Any) -> None:
        run_id = (await agent.call("workflow_start", workflow="kinds"))["workflow_id"]
        refused = await agent.refused(
            "workflow_step_complete", workflow_id=run_id, step_id="ask", result={"a": 1}
        )
        assert "'raw.log' is declared as array" in refused
        assert "give it a value of that type" in refused
        assert "submit less" not in refused

    reactive.serve(work)


@pytest.mark.rows("R15")
def test_a_step_can_bring_a_prompt_of_its_own_for_sub_agents(reactive: Any) -> None:
    text = REVIEW.replace(
        "    max_parallel: 5\n", '    sub_agent_prompt_override: "Review as {{ batches.length }} would."\n'
    )
    reactive.define("own", text.replace("review:all", "review:own"))

    async def work(agent: Any) -> None:
        started = await agent.call("workflow_start", workflow="review:own")
        prompt = started["step"]["definition"]["sub_agent_prompt"]
        assert prompt.startswith("Review as 2 would.\n\n<workflow-server-rules>")
        assert "workflow_step_complete(workflow_id='{workflow_id}'" in prompt
        assert "You do one task of a workflow" not in prompt

    reactive.serve(work)


# In another conversation


@pytest.mark.rows("R22", "R19")
def test_a_new_conversation_goes_on_where_the_last_one_stopped(reactive: Any) -> None:
    async def first(agent: Any) -> tuple[str, str]:
        run_id = (await agent.call("workflow_start", workflow="release:notes"))["workflow_id"]
        await agent.call("workflow_step_complete", workflow_id=run_id, step_id="ask", result="v5")
        made = await agent.call("workflow_checkpoint", workflow_id=run_id, reason="context is nearly full")
        assert made["checkpoint_id"].startswith(f"chk_{run_id}_")
        assert f"workflow_resume(workflow_id='{run_id}')" in made["message"]
        assert made["state_path"] == f"workflow_state_read(workflow_id='{made['checkpoint_id']}')"
        return run_id, made["checkpoint_id"]

    run_id, checkpoint_id = reactive.serve(first)

    async def second(agent: Any) -> None:
        resumed = await agent.call("workflow_resume", workflow_id=run_id)
        assert (resumed["workflow_id"], resumed["workflow"]) == (run_id, "release:notes")
        assert "resumed_from" not in resumed
        assert (resumed["step"]["id"], resumed["state"]["title"]) == ("publish", "v5")
        mark = resumed["last_checkpoint"]
        assert (mark["step_id"], mark["reason"]) == ("publish", "context is nearly full")
        assert (mark["checkpoint_id"], mark["timestamp"][-1]) == (checkpoint_id, "Z")

        await agent.call("workflow_step_complete", workflow_id=run_id, step_id="publish", result={"ok": 1})
        before = await agent.call("workflow_state_read", workflow_id=checkpoint_id)
        assert "published" not in before
        back = await agent.call("workflow_resume", workflow_id=checkpoint_id)
        assert back["workflow_id"] != run_id
        assert (back["resumed_from"], back["step"]["id"]) == (checkpoint_id, "publish")
        assert (await agent.call("workflow_get_next_step", workflow_id=run_id))["step"]["id"] == "check"

        await agent.call("workflow_complete", workflow_id=run_id, status="cancelled")
        refused = await agent.refused("workflow_checkpoint", workflow_id=run_id, reason="late")
        assert "has ended" in refused
        ended = await agent.call("workflow_resume", workflow_id=run_id)
        assert (ended["step"], ended["status"]) == (None, "cancelled")

    reactive.serve(second)


@pytest.mark.rows("R22")
def test_a_new_conversation_hears_of_tasks_whose_agents_went_with_the_last_one(reactive: Any) -> None:
    async def work(agent: Any) -> None:
        run_id = (await agent.call("workflow_start", workflow="review:all"))["workflow_id"]
        for task in ("batch_0", "batch_1"):
            await agent.call("workflow_get_next_step", workflow_id=run_id, task_id=task)
        resumed = await agent.call("workflow_resume", workflow_id=run_id)
        tasks = resumed["step"]["definition"]["tasks"]
        assert [task["task_id"] for task in tasks] == ["batch_0", "batch_1"]
        assert all(task["status"] == "at work" for task in tasks)
        assert all(task["started_at"] <= task["last_contact"] for task in tasks)
        call = f"control_workflow(workflow_id='{tasks[0]['workflow_id']}', action='retry')"
        assert f"If it is gone, {call} assigns such a task again" in resumed["step"]["instructions"]
        await agent.call("control_workflow", workflow_id=tasks[0]["workflow_id"], action="retry")
        asked = await agent.call("workflow_get_next_step", workflow_id=run_id)
        assert [task["task_id"] for task in asked["step"]["definition"]["tasks"]] == ["batch_0"]
        assert "{workflow_id}" in asked["step"]["definition"]["sub_agent_prompt"]
        assert resumed["last_checkpoint"]["reason"] == "automatic: every completed step is kept"

    reactive.serve(work)


# Definitions, and workflows of other dialects


@pytest.mark.rows("R19", "R2")
def test_a_definition_is_given_as_it_is_written_with_what_it_imports(reactive: Any) -> None:
    shared = reactive.workspace / ".workflows" / "shared"
    shared.mkdir()
    (shared / "checks.yaml").write_text(
        'name: "shared:checks"\nsteps: [{id: lint, type: mcp_call, method: lint}]\n'
    )
    reactive.define(
        "main",
        """
name: main
imports: ["shared/checks.yaml"]
state_schema:
  raw: {files: array}
  computed: {count: {from: raw.files, transform: input.length}}
steps:
  - {id: run, type: include_workflow, workflow: "shared:checks"}
""",
    )

    async def work(agent: Any) -> None:
        found = await agent.call("workflow_load_definition", workflow="main")
        assert found["steps"] == [{"id": "run", "type": "include_workflow", "workflow": "shared:checks"}]
        assert found["state_schema"] == {
            "raw": {"files": "array"},
            "computed": {"count": {"from": "raw.files", "transform": "input.length"}},
        }
        assert (found["sub_agent_tasks"], found["source"]) == ({}, "project")
        assert found["loaded_from"].endswith("main.yaml")
        [imported] = found["resolved_imports"]
        assert imported["workflow"] == "shared:checks"
        assert imported["path"].endswith("checks.yaml")
        refused = await agent.refused("workflow_load_definition", workflow="mian")
        assert "did you mean 'main'" in refused

    reactive.serve(work)


@pytest.mark.rows("R19", "R20")
def test_what_is_written_goes_to_the_workflow_that_the_step_belongs_to(reactive: Any) -> None:
    reactive.define(
        "inner",
        """
name: inner
default_state: {raw: {found: null}}
steps: [{id: look, type: mcp_call, method: look, state_update: {path: raw.found}}]
""",
    )
    reactive.define(
        "outer",
        """
name: outer
default_state: {raw: {found: outer}}
steps: [{id: call, type: include_workflow, workflow: inner, state_update: {path: raw.inner}}]
""",
    )

    async def work(agent: Any) -> None:
        started = await agent.call("workflow_start", workflow="outer")
        run_id, step = started["workflow_id"], started["step"]
        await agent.call(
            "workflow_state_update", workflow_id=run_id, updates=[{"path": "raw.found", "value": 7}]
        )
        done = await agent.call("workflow_step_complete", workflow_id=run_id, step_id=step["id"])
        assert done["status"] == "completed"
        state = await agent.call("workflow_state_read", workflow_id=run_id)
        assert state == {"found": "outer", "inner": {"found": 7}}

    reactive.serve(work)


@pytest.mark.rows("R19")
def test_workflows_of_other_dialects_are_driven_in_the_same_way(reactive: Any) -> None:
    reactive.define(
        "blocks",
        """
name: blocks
blocks:
  - {id: ask, type: Prompt, inputs: {prompt: "Ship it?"}}
  - {id: ship, type: Shell, depends_on: [ask], inputs: {command: "printf %s ${blocks.ask.outputs.response}"}}
outputs: {said: "${blocks.ship.outputs.stdout}"}
""",
    )
    reactive.define(
        "steps",
        """
name: steps
version: "1"
initial_state: {count: 1}
steps:
  - {id: ask, type: prompt, prompt_type: confirm, message: Go on?, needs_state: [], output_to: approval}
  - {id: bump, type: set_state, needs_state: [count], updates: {count: "{{ state.count + 1 }}"}}
""",
    )

    async def work(agent: Any) -> None:
        started = await agent.call("workflow_start", workflow="blocks")
        run_id, step = started["workflow_id"], started["step"]
        assert (step["id"], step["definition"]["prompt"]) == ("ask", "Ship it?")
        assert step["result_schema"]["required"] == ["response"]
        refused = await agent.refused("workflow_step_complete", workflow_id=run_id, step_id="ask")
        assert "the result does not fit" in refused
        done = await agent.call("workflow_step_complete", workflow_id=run_id, step_id="ask", result="yes")
        assert (done["step"], done["status"]) == (None, "completed")
        ended = await agent.call("workflow_complete", workflow_id=run_id, status="success")
        assert ended["final_state"] == {"said": "yes"}

        started = await agent.call("workflow_start", workflow="steps")
        run_id = started["workflow_id"]
        assert started["state"] == {"count": 1}
        refused = await agent.refused(
            "workflow_state_update", workflow_id=run_id, updates=[{"path": "state.count", "value": 7}]
        )
        assert "no state here that can be changed from outside" in refused
        await agent.call("workflow_step_complete", workflow_id=run_id, step_id="ask", result=True)
        state = await agent.call("workflow_state_read", workflow_id=run_id, paths=["count", "approval"])
        assert state == {"count": 2, "approval": {"confirmed": True}}
        resumed = await agent.call("workflow_resume", workflow_id=run_id)
        assert (resumed["status"], resumed["workflow"]) == ("completed", "steps")

    reactive.serve(work)
