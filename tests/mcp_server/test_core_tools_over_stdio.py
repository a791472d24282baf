from __future__ import annotations

import time
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

DEPLOY = """\
name: deploy
description: Builds, asks, ships
tags: [shipping]
inputs:
  target: {type: string, description: Where to}
  times: {type: integer, default: 1}
blocks:
  - id: build
    type: Shell
    inputs: {command: 'echo "built for ${inputs.target}"'}
  - id: approve
    type: Prompt
    depends_on: [build]
    inputs: {prompt: 'Ship to ${inputs.target}? yes or no'}
  - id: ship
    type: Shell
    depends_on: [approve]
    condition: ${blocks.approve.outputs.response} == 'yes'
    inputs: {command: 'echo shipped'}
outputs:
  built: ${blocks.build.outputs.stdout}
  shipped: ${blocks.ship.succeeded}
"""


def one_block(command: str, **extra: str) -> str:
    lines = [
        "name: one",
        "blocks:",
        "  - id: it",
        "    type: Shell",
        "    inputs:",
        "      command: |",
        *(f"        {line}" for line in command.splitlines()),
        *(f"      {key}: {value}" for key, value in extra.items()),
        "outputs:",
        "  stdout: ${blocks.it.outputs.stdout}",
    ]
    return "\n".join(lines) + "\n"


def test_an_agent_reads_a_definition_to_learn_from_it(place: Any) -> None:
    """Also that of the library, and one that is wrong; the text can be saved as a workflow of its own."""
    place.define("broken", "name: broken\nblocks: 3\n")

    async def work(agent: Any) -> None:
        [example] = (await agent.call("list_workflows", tags=["example"], query="hello"))["workflows"]
        read = await agent.call("get_workflow_info", workflow=example["name"], definition=True)
        assert set(read) == {"workflow", "source", "definition"}
        assert read["source"] == "built-in"  # a path would invite to change the library
        text = read["definition"].replace(f"name: {example['name']}", "name: mine")
        assert (await agent.call("validate_workflow_yaml", yaml_content=text))["valid"]
        place.define("mine", text)
        assert (await agent.call("start_workflow", workflow="mine"))["status"] == "completed"
        broken = await agent.call("get_workflow_info", workflow="broken", definition=True)
        assert broken["definition"] == "name: broken\nblocks: 3\n"
        assert broken["source"].endswith("broken.yaml")

    place.serve(work)


@pytest.mark.rows("G15", "G17", "G19", "G20", "G24", "X3")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_an_agent_finds_starts_answers_reads_and_cancels_workflows(place: Any, mode: str) -> None:
    place.define("deploy", DEPLOY)

    async def work(agent: Any) -> None:
        listed = await agent.call("list_workflows", tags=["shipping"])
        assert listed["workflows"] == [
            {
                "name": "deploy",
                "description": "Builds, asks, ships",
                "dialect": "graph",
                "source": str(place.workspace / ".workflows"),
                "tags": ["shipping"],
            }
        ]
        info = await agent.call("get_workflow_info", workflow="deploy")
        assert info["inputs"]["required"] == ["target"]
        assert info["asks"][0]["step"] == "approve"
        assert "run_commands" in info["needs"]

        run = await agent.call("start_workflow", workflow="deploy", inputs={"target": "staging"})
        assert run["status"] == "pending_action"
        assert run["action"]["step_id"] == "approve"
        assert "Ship to staging?" in str(run["action"]["parameters"])
        assert run["next"].startswith(
            f"submit_result(workflow_id='{run['workflow_id']}', step_id='approve', "
        )
        where = await agent.call("get_workflow_status", workflow_id=run["workflow_id"])
        assert where["progress"] == {"done": 1, "total": 3}
        assert "'approve' since" in where["why"]
        assert "outputs" not in run
        assert "error" not in run
        again = await agent.call("get_next_step", workflow_id=run["workflow_id"])
        assert again["action"] == run["action"]

        done = await agent.call("submit_result", workflow_id=run["workflow_id"], result="yes")
        assert done["status"] == "completed"
        assert done["outputs"] == {"built": "built for staging\n", "shipped": True}
        assert "action" not in done
        assert "why" not in done
        twice = await agent.call(
            "submit_result", workflow_id=run["workflow_id"], result="yes", step_id="approve"
        )
        assert twice == done
        assert "it is completed" in await agent.refused(
            "submit_result", workflow_id=run["workflow_id"], result="no", step_id="approve"
        )

        state = await agent.call("get_workflow_state", workflow_id=run["workflow_id"])
        assert state["blocks"]["ship"]["outcome"] == "success"
        values = await agent.call(
            "get_workflow_state", workflow_id=run["workflow_id"], paths=["blocks.ship.outputs.stdout"]
        )
        assert values["values"] == {"blocks.ship.outputs.stdout": "shipped\n"}

        waiting = await agent.call("start_workflow", workflow="deploy", inputs={"target": "x"})
        ended = await agent.call("control_workflow", workflow_id=waiting["workflow_id"], action="cancel")
        assert ended["status"] == "cancelled"
        recent = await agent.call("get_workflow_status")
        assert [item["status"] for item in recent["runs"]] == ["cancelled", "completed"]
        status = await agent.call("get_workflow_status", workflow_id=waiting["workflow_id"])
        assert status["status"] == "cancelled"

        again = await agent.call("control_workflow", workflow_id=waiting["workflow_id"], action="retry")
        assert (again["status"], again["action"]) == ("pending_action", waiting["action"])
        assert again["forked_from"] == waiting["workflow_id"] != again["workflow_id"]
        other = await agent.call(
            "control_workflow", workflow_id=run["workflow_id"], action="fork", step_id="approve"
        )
        assert other["action"]["step_id"] == "approve"
        refused = await agent.refused("control_workflow", workflow_id=run["workflow_id"], action="fork")
        assert "give its step_id" in refused
        refused = await agent.refused("control_workflow", workflow_id=run["workflow_id"], action="retry")
        assert "has completed, so there is nothing to retry" in refused

        valid = await agent.call("validate_workflow_yaml", yaml_content=DEPLOY)
        assert valid == {"valid": True, "problems": []}
        wrong = await agent.call("validate_workflow_yaml", yaml_content=DEPLOY.replace("Prompt", "Promt"))
        assert not wrong["valid"]
        assert "did you mean 'Prompt'?" in wrong["problems"][0]["hint"]
        assert wrong["problems"][0]["place"] == "<yaml>:12:11"
        assert wrong["problems"][0]["line"] == "type: Promt"

    place.serve(work, mode=mode)


def test_arguments_that_are_structures_are_taken_as_json_text_too(place: Any) -> None:
    place.define("deploy", DEPLOY)

    async def work(agent: Any) -> None:
        run = await agent.call(
            "start_workflow", workflow="deploy", inputs='{"target": "prod", "times": "2"}', wait_seconds=20
        )
        state = await agent.call("get_workflow_state", workflow_id=run["workflow_id"], paths='["inputs"]')
        assert state["values"]["inputs"] == {"target": "prod", "times": 2}
        done = await agent.call("submit_result", workflow_id=run["workflow_id"], result='{"response": "yes"}')
        assert done["outputs"]["shipped"] is True
        assert len((await agent.call("list_workflows", tags="shipping"))["workflows"]) == 1
        assert len((await agent.call("list_workflows", tags=None, query=None))["workflows"]) >= 4
        status = await agent.call("get_workflow_status", workflow_id=run["workflow_id"], wait_seconds=None)
        assert {name: it for name, it in status.items() if name != "workflow"} == done

    place.serve(work)


def test_the_schema_of_a_result_allows_null(place: Any) -> None:
    async def work(agent: Any) -> None:
        tools = {tool.name: tool for tool in (await agent.client.list_tools()).tools}
        schema = tools["submit_result"].input_schema["properties"]["result"]
        assert {"type": "null"} in schema["anyOf"]

    place.serve(work)


def test_an_answer_that_looks_like_json_stays_the_text_that_it_is(place: Any) -> None:
    place.define("deploy", DEPLOY)

    async def work(agent: Any) -> None:
        for text in ("true", "null", "[1, 2]", '{"a": 1}', "42"):
            run = await agent.call("start_workflow", workflow="deploy", inputs={"target": "x"})
            await agent.call("submit_result", workflow_id=run["workflow_id"], result=text)
            path = "blocks.approve.outputs.response"
            state = await agent.call("get_workflow_state", workflow_id=run["workflow_id"], paths=[path])
            assert state["values"][path] == text

    place.serve(work)


@pytest.mark.rows("G24")
def test_refusals_say_what_is_wrong_and_what_to_do(place: Any) -> None:
    place.define("deploy", DEPLOY)
    place.define("broken", "name: broken\nblocks:\n  - id: a\n    type: Shel\n    inputs: {comand: x}\n")

    async def work(agent: Any) -> None:
        said = await agent.refused("start_workflow", workflow="deplyo")
        assert "there is no workflow 'deplyo'" in said
        assert "did you mean 'deploy'?" in said
        said = await agent.refused(
            "start_workflow", workflow="deploy", inputs={"tarket": "x", "times": "two"}
        )
        assert "missing input 'target'" in said
        assert "unknown input 'tarket', did you mean 'target'?" in said
        assert "input 'times' must be a whole number" in said
        said = await agent.refused("start_workflow", workflow="broken")
        assert "did you mean 'Shell'?" in said
        assert "broken.yaml:4:11" in said
        assert "exactly one of" in await agent.refused("start_workflow")
        said = await agent.refused("start_workflow", workflow="deploy", input={"target": "x"})
        assert "unknown argument 'input': did you mean 'inputs'?" in said
        assert "argument 'workflow_id' is missing" in await agent.refused("submit_result", result=1)
        assert "wf_nothing" in await agent.refused("get_workflow_status", workflow_id="wf_nothing")
        run = await agent.call("start_workflow", workflow="deploy", inputs={"target": "x"})
        said = await agent.refused("submit_result", workflow_id=run["workflow_id"], result={"answer": "yes"})
        assert "'response' is missing" in said
        assert "Nothing has changed" in said
        said = await agent.refused(
            "submit_result", workflow_id=run["workflow_id"], result="x", step_id="ship"
        )
        assert "'ship' does not wait for an answer" in said
        assert '"step_id":"approve"' in said
        said = await agent.refused(
            "get_workflow_state", workflow_id=run["workflow_id"], paths=["blocks.biuld"]
        )
        assert "did you mean 'build'?" in said
        said = await agent.refused(
            "control_workflow", workflow_id=run["workflow_id"], action="cancel", step_id="approve"
        )
        assert "a single step cannot be cancelled" in said
        assert "leave out step_id to cancel the whole run" in said
        still = await agent.call("get_workflow_status", workflow_id=run["workflow_id"])
        assert still["status"] == "pending_action"
        with pytest.raises(MCPError, match="Unknown tool: start_workflo"):
            await agent.client.call_tool("start_workflo", {})

    place.serve(work)


def test_a_failed_run_shows_the_block_its_line_and_what_it_printed(place: Any) -> None:
    async def work(agent: Any) -> None:
        run = await agent.call(
            "start_workflow", yaml=one_block("echo before\necho 'no such host' >&2\nexit 7")
        )
        assert run["status"] == "failed"
        error = run["error"]
        assert error["block"] == "it"
        assert error["place"].startswith("<yaml>:3:")
        assert error["line"] == "- id: it"
        assert error["printed"] == "no such host"
        assert "7" in error["message"]

    place.serve(work)


def test_two_questions_at_once_are_both_pending_and_answered_by_their_ids(place: Any) -> None:
    text = (
        "name: two\nblocks:\n"
        "  - {id: one, type: Prompt, inputs: {prompt: 'First?'}}\n"
        "  - {id: two, type: Prompt, inputs: {prompt: 'Second?'}}\n"
        "outputs: {all: '${blocks.one.response} ${blocks.two.response}'}\n"
    )

    async def work(agent: Any) -> None:
        run = await agent.call("start_workflow", yaml=text)
        assert run["action"]["step_id"] == "one"
        assert [action["step_id"] for action in run["more_actions"]] == ["two"]
        said = await agent.refused("submit_result", workflow_id=run["workflow_id"], result="b")
        assert "pass the step_id that this result is for" in said
        run = await agent.call("submit_result", workflow_id=run["workflow_id"], result="b", step_id="two")
        assert run["action"]["step_id"] == "one"
        assert "more_actions" not in run
        run = await agent.call("submit_result", workflow_id=run["workflow_id"], result="a")
        assert run["outputs"] == {"all": "a b"}

    place.serve(work)


def test_the_same_request_id_returns_the_same_run(place: Any) -> None:
    place.define("deploy", DEPLOY)

    async def work(agent: Any) -> None:
        first = await agent.call("start_workflow", workflow="deploy", inputs={"target": "x"}, request_id="r1")
        second = await agent.call(
            "start_workflow", workflow="deploy", inputs={"target": "x"}, request_id="r1"
        )
        assert first["workflow_id"] == second["workflow_id"]
        assert len((await agent.call("get_workflow_status"))["runs"]) == 1

    place.serve(work)


def test_a_long_list_of_workflows_is_cut_and_can_be_narrowed_down(place: Any) -> None:
    for number in range(200):
        place.define(
            f"w{number}", DEPLOY.replace("name: deploy", f"name: w{number}").replace("Builds", "x " * 500)
        )

    async def work(agent: Any) -> None:
        listed = await agent.call("list_workflows")
        assert len(listed["workflows"]) + listed["more"] >= 203
        assert len(str(listed)) < 45_000
        narrowed = await agent.call("list_workflows", query="w17")
        assert "more" not in narrowed
        assert {item["name"] for item in narrowed["workflows"]} >= {"w17", "w170"}

    place.serve(work)


def test_a_call_that_is_given_up_leaves_its_run_running(place: Any) -> None:
    text = one_block("sleep 1.5; echo finished")

    async def work(agent: Any) -> None:
        assert (await agent.call("get_workflow_status"))["runs"] == []  # the server is ready from here on
        with pytest.raises(MCPError):
            await agent.client.call_tool("start_workflow", {"yaml": text}, read_timeout_seconds=0.5)
        (run,) = (await agent.call("get_workflow_status"))["runs"]
        assert run["status"] == "running"
        done = await agent.call("get_workflow_status", workflow_id=run["workflow_id"], wait_seconds=20)
        assert done["outputs"] == {"stdout": "finished\n"}

    place.serve(work)


def test_a_run_that_is_not_done_in_time_says_what_runs(place: Any) -> None:
    async def work(agent: Any) -> None:
        run = await agent.call("start_workflow", yaml=one_block("sleep 20"), wait_seconds=0.3)
        assert run["status"] == "running"
        assert run["why"].startswith("running 'it' for 0 s")
        started = time.monotonic()
        ended = await agent.call(
            "control_workflow", workflow_id=run["workflow_id"], action="cancel", reason="late"
        )
        assert ended["status"] == "cancelled"
        assert ended["error"] == {"code": "cancelled", "message": "late"}
        assert time.monotonic() - started < 15, "long before the command would have ended"

    place.serve(work)


@pytest.mark.rows("G25")
def test_a_block_that_reads_gets_the_end_of_input_and_never_the_protocol(place: Any) -> None:
    async def work(agent: Any) -> None:
        run = await agent.call("start_workflow", yaml=one_block("cat; echo end"))
        assert run["outputs"] == {"stdout": "end\n"}
        assert len((await agent.call("list_workflows"))["workflows"]) >= 3

    place.serve(work)


@pytest.mark.rows("G10")
def test_a_timeout_ends_the_whole_tree_of_processes(place: Any) -> None:
    async def work(agent: Any) -> None:
        started = time.monotonic()
        run = await agent.call("start_workflow", yaml=one_block("sleep 31.4 & sleep 31.4", timeout="1"))
        assert time.monotonic() - started < 20, "long before the command would have ended"
        assert run["status"] == "failed"
        assert "timed out after 1 s" in run["error"]["message"]
        assert "sleep 31.4" not in _commands()

    place.serve(work)


@pytest.mark.rows("G10", "X6")
def test_fifty_megabytes_of_output_neither_block_nor_flood_the_answer(place: Any) -> None:
    async def work(agent: Any) -> None:
        run = await agent.call("start_workflow", yaml=one_block("head -c 50000000 /dev/zero | tr '\\0' x"))
        assert run["status"] == "completed"
        shown = run["outputs"]["stdout"]
        assert len(shown) < 5000
        assert 'paths=["outputs.stdout"], offset=4000' in shown
        rest = await agent.call(
            "get_workflow_state", workflow_id=run["workflow_id"], paths=["outputs.stdout"], offset=4000
        )
        part = rest["slices"]["outputs.stdout"]
        assert part["offset"] == 4000
        assert part["total"] > 900_000
        assert len(rest["values"]["outputs.stdout"]) == part["length"]

    place.serve(work)


@pytest.mark.rows("G3", "G10")
def test_a_value_in_a_command_never_becomes_a_second_command_in_any_quoting(place: Any) -> None:
    values = [
        '; touch pwned; echo "',
        "'; touch pwned; echo '",
        "$(touch pwned)",
        "`touch pwned`",
        "a\ntouch pwned",
        "&& touch pwned #",
    ]
    quotings = [
        "printf '%s|' ${inputs.x}",
        "printf '%s|' \"${inputs.x}\"",
        "printf '%s|' '${inputs.x}'",
        "printf '%s|' a${inputs.x}b",
        "printf '%s|' \"$(printf '%s' ${inputs.x})\"",
        "cat <<END\n${inputs.x}\nEND",
    ]

    async def work(agent: Any) -> None:
        for command in quotings:
            yaml = one_block(command).replace("blocks:", "inputs: {x: {type: string}}\nblocks:", 1)
            for value in values:
                run = await agent.call("start_workflow", yaml=yaml, inputs={"x": value})
                assert run["status"] == "completed", (command, value, run)
                assert not (place.workspace / "pwned").exists(), (command, value)

    place.serve(work)


@pytest.mark.rows("X1")
def test_a_question_survives_the_server_and_is_answered_at_the_next_one(place: Any) -> None:
    place.define("deploy", DEPLOY)

    async def ask(agent: Any) -> str:
        run = await agent.call("start_workflow", workflow="deploy", inputs={"target": "x"})
        return str(run["workflow_id"])

    run_id = place.serve(ask)
    place.define("deploy", "name: deploy\nblocks: this is not a workflow any more\n")

    async def answer(agent: Any) -> dict[str, Any]:
        run = await agent.call("get_next_step", workflow_id=run_id)
        assert run["action"]["step_id"] == "approve"
        done: dict[str, Any] = await agent.call("submit_result", workflow_id=run_id, result="yes")
        return done

    assert place.serve(answer)["outputs"]["shipped"] is True


def _commands() -> str:
    import psutil

    found = []
    for process in psutil.process_iter():
        try:
            found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return "\n".join(found)
