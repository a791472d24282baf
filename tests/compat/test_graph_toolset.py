"""The toolset `graph`: the names, parameters and response shape that its users know, over real pipes."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from mcp import Client

from workflows_mcp.limits import DEFAULT_LIMITS
from workflows_mcp.mcp_server.server import build_server
from workflows_mcp.settings.model import load_settings

INNER = """\
name: inner
inputs: {what: {type: string}}
blocks:
  - {id: confirm, type: Prompt, inputs: {prompt: 'Really ${inputs.what}?'}}
  - {id: act, type: Shell, depends_on: [confirm], inputs: {command: 'echo did ${inputs.what}'}}
outputs: {said: '${blocks.act.outputs.stdout}', answer: '${blocks.confirm.response}'}
"""
OUTER = """\
name: outer
tags: [two-levels]
inputs: {what: {type: string}}
blocks:
  - {id: prepare, type: Shell, inputs: {command: 'echo ready'}}
  - id: call
    type: ExecuteWorkflow
    depends_on: [prepare]
    inputs: {workflow: inner, inputs: {what: '${inputs.what}'}}
outputs: {said: '${blocks.call.outputs.said}'}
"""


@pytest.fixture
def graph(place: Any) -> Any:
    """A workspace whose servers have the toolset `graph` alone."""
    (place.workspace / "workflows.toml").write_text('toolsets = ["graph"]\n')
    place.define("inner", INNER)
    place.define("outer", OUTER)
    return place


def test_serve_is_told_the_toolsets_on_the_command_line(place: Any) -> None:
    parameters = place.parameters.model_copy(
        update={"args": ["-m", "workflows_mcp", "serve", "--toolsets", "core,graph"]}
    )

    async def session() -> list[str]:
        async with Client(parameters) as client:
            return [tool.name for tool in (await client.list_tools()).tools]

    names = asyncio.run(asyncio.wait_for(session(), 30))
    assert {"start_workflow", "execute_workflow", "resume_workflow"} <= set(names)
    assert len(names) == len(set(names))


@pytest.mark.rows("G16", "G18", "G19", "G20")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_an_agent_runs_pauses_resumes_and_looks_at_checkpoints(graph: Any, mode: str) -> None:
    async def work(agent: Any) -> None:
        listed = await agent.call("list_workflows", tags=["two-levels"])
        assert [item["name"] for item in listed["workflows"]] == ["outer"]
        assert (await agent.call("get_workflow_info", workflow="outer"))["inputs"]["required"] == ["what"]

        paused = await agent.call("execute_workflow", workflow="outer", inputs={"what": "fly"})
        run_id, question = paused["workflow_id"], paused["checkpoint_id"]
        assert question.startswith(f"pause_{run_id}_")
        assert paused == {
            "status": "paused",
            "workflow_id": run_id,
            "checkpoint_id": question,
            "prompt": "Really fly?",
            "message": f"answer with resume_workflow(checkpoint_id='{question}', response='…')",
        }
        found = await agent.call("list_checkpoints", workflow_name="outer")
        assert [it["type"] for it in found["checkpoints"]] == ["pause", "automatic"]
        assert found["checkpoints"][0]["paused_block"] == "call/confirm"
        info = await agent.call("get_checkpoint_info", checkpoint_id=question)
        assert info["workflow_stack"] == ["outer", "inner"]
        assert info["inputs"] == {"what": "fly"}

        done = await agent.call("resume_workflow", checkpoint_id=question, response="yes")
        assert done == {
            "status": "success",
            "workflow_id": run_id,
            "outputs": {"said": "did fly\n"},
            "blocks": {},
            "metadata": {},
        }
        fork = await agent.call("resume_workflow", checkpoint_id=question, response="no")
        assert fork["forked_from"] == run_id
        assert fork["workflow_id"] != run_id

        deleted = await agent.call("delete_checkpoint", checkpoint_id=question)
        assert deleted["deleted"] is True
        assert f"the run {run_id} is unchanged" in deleted["message"]
        assert "was deleted" in await agent.refused("resume_workflow", checkpoint_id=question, response="yes")
        state = await agent.call("get_workflow_state", workflow_id=run_id, paths=["blocks.call.blocks"])
        assert "act" in state["values"]["blocks.call.blocks"]

    graph.serve(work, mode=mode)


@pytest.mark.rows("G16", "G19")
def test_a_detailed_answer_has_every_block_with_those_of_called_workflows_inside(graph: Any) -> None:
    async def work(agent: Any) -> None:
        paused = await agent.call(
            "execute_workflow", workflow="outer", inputs={"what": "fly"}, response_format="detailed"
        )
        assert paused["blocks"]["call"]["blocks"]["confirm"]["metadata"]["status"] == "paused"
        assert paused["metadata"]["workflow_name"] == "outer"
        done = await agent.call(
            "resume_workflow",
            checkpoint_id=paused["checkpoint_id"],
            response="yes",
            response_format="detailed",
        )
        call = done["blocks"]["call"]
        assert call["inputs"] == {"workflow": "inner", "inputs": {"what": "fly"}}
        assert call["outputs"] == {"said": "did fly\n", "answer": "yes"}
        for block in (done["blocks"]["prepare"], call, *call["blocks"].values()):
            assert {"inputs", "outputs", "metadata"} <= block.keys()
            assert block["metadata"]["status"] == "completed"
            assert block["metadata"]["outcome"] == "success"
        assert call["blocks"]["confirm"]["outputs"] == {"response": "yes"}
        assert call["blocks"]["act"]["metadata"]["wave"] == 1
        metadata = done["metadata"]
        assert (metadata["total_blocks"], metadata["execution_waves"]) == (2, 2)
        assert metadata["execution_time_ms"] > 0
        assert metadata["start_time"].endswith("Z")

    graph.serve(work)


@pytest.mark.rows("G19", "G20")
def test_a_failure_is_told_as_a_text_with_block_place_and_what_was_printed(graph: Any) -> None:
    text = "name: bad\nblocks:\n  - id: it\n    type: Shell\n    inputs: {command: 'seq 100; exit 7'}\n"

    async def work(agent: Any) -> None:
        failed = await agent.call("execute_inline_workflow", workflow_yaml=text)
        assert failed.keys() == {"status", "workflow_id", "error", "message"}
        retry = f"control_workflow(workflow_id='{failed['workflow_id']}', action='retry')"
        assert failed["message"].startswith(f"{retry} re-runs only what failed, in a new run")
        assert failed["status"] == "failure"
        assert "block 'it' failed" in failed["error"]
        assert "at <yaml>:3:5: - id: it" in failed["error"]
        assert "it printed last:\n" in failed["error"]
        assert failed["error"].rstrip().endswith("99\n100")
        detailed = await agent.call("execute_inline_workflow", workflow_yaml=text, response_format="detailed")
        assert detailed["blocks"]["it"]["outputs"]["exit_code"] == 7
        assert detailed["metadata"]["total_blocks"] == 1

    graph.serve(work)


@pytest.mark.rows("G20", "G24")
def test_what_cannot_be_started_is_an_error_that_says_what_to_do(graph: Any) -> None:
    async def work(agent: Any) -> None:
        said = await agent.refused("execute_workflow", workflow="outr")
        assert "there is no workflow 'outr'" in said
        assert "did you mean 'outer'?" in said
        assert "missing input 'what'" in await agent.refused("execute_workflow", workflow="outer")
        said = await agent.refused("execute_inline_workflow", workflow_yaml=INNER.replace("Shell", "Shel"))
        assert "did you mean 'Shell'?" in said
        assert "<yaml>:" in said
        assert "is wrong" in await agent.refused(
            "execute_workflow", workflow="outer", inputs={"what": "x"}, response_format="full"
        )
        assert "list_checkpoints" in await agent.refused("get_checkpoint_info", checkpoint_id="pause_wf_x_1")
        assert "not found or has expired" in await agent.refused(
            "resume_workflow", checkpoint_id="pause_wf_x_1", response="yes"
        )
        assert (await agent.call("get_workflow_status"))["runs"] == []

    graph.serve(work)


@pytest.mark.rows("G19")
def test_a_run_that_takes_longer_is_waited_for_by_its_id_in_the_same_shape(graph: Any) -> None:
    text = "name: slow\nblocks:\n  - {id: it, type: Shell, inputs: {command: 'sleep 0.7; echo end'}}\noutputs: {said: '${blocks.it.outputs.stdout}'}\n"

    async def work(agent: Any) -> None:
        running = await agent.call("execute_inline_workflow", workflow_yaml=text, wait_seconds=0.1)
        run_id = running["workflow_id"]
        assert running["status"] == "running"
        assert running["message"].startswith("running 'it' for")
        assert f"resume_workflow(checkpoint_id='{run_id}')" in running["message"]
        done = await agent.call("resume_workflow", checkpoint_id=run_id)
        assert (done["status"], done["outputs"]) == ("success", {"said": "end\n"})
        assert len((await agent.call("get_workflow_status"))["runs"]) == 1

    graph.serve(work)


@pytest.mark.rows("G18")
def test_a_paused_inline_workflow_is_resumed_at_another_server_and_prompts_at_once_are_all_told(
    graph: Any,
) -> None:
    text = (
        "name: two\nblocks:\n"
        "  - {id: one, type: Prompt, inputs: {prompt: 'First?'}}\n"
        "  - {id: two, type: Prompt, inputs: {prompt: 'Second?'}}\n"
        "outputs: {all: '${blocks.one.response} ${blocks.two.response}'}\n"
    )

    async def ask(agent: Any) -> dict[str, Any]:
        paused: dict[str, Any] = await agent.call("execute_inline_workflow", workflow_yaml=text)
        return paused

    paused = graph.serve(ask)
    assert (paused["prompt"], paused["more_prompts"][0]["prompt"]) == ("First?", "Second?")

    async def answer(agent: Any) -> None:
        second = paused["more_prompts"][0]["checkpoint_id"]
        left = await agent.call("resume_workflow", checkpoint_id=second, response="[1]")
        assert left["checkpoint_id"] == paused["checkpoint_id"]
        done = await agent.call("resume_workflow", checkpoint_id=paused["checkpoint_id"], response="true")
        assert done["outputs"] == {"all": "true [1]"}

    graph.serve(answer)


@pytest.mark.rows("G19", "X6")
def test_long_values_are_cut_with_the_call_that_reads_on(graph: Any) -> None:
    text = (
        "name: long\nblocks:\n"
        "  - {id: it, type: Shell, inputs: {command: 'head -c 300000 /dev/zero | tr \"\\\\0\" x'}}\n"
        "outputs: {said: '${blocks.it.outputs.stdout}'}\n"
    )

    async def work(agent: Any) -> None:
        done = await agent.call("execute_inline_workflow", workflow_yaml=text, response_format="detailed")
        assert len(json.dumps(done)) < 40_000
        run_id = done["workflow_id"]
        for path, shown in (
            ("outputs.said", done["outputs"]["said"]),
            ("blocks.it.outputs.stdout", done["blocks"]["it"]["outputs"]["stdout"]),
        ):
            assert f"get_workflow_state(workflow_id='{run_id}', paths=[\"{path}\"], offset=4000)" in shown
            part = await agent.call("get_workflow_state", workflow_id=run_id, paths=[path], offset=4000)
            assert part["slices"][path]["total"] == 300_000

    graph.serve(work)


@pytest.mark.rows("G20")
def test_the_schema_of_definitions_can_be_asked_for(graph: Any) -> None:
    """An overview, the schema of each dialect and of each step type: all within the limit of an answer."""

    async def work(agent: Any) -> None:
        overview = await agent.call("get_workflow_schema")
        assert set(overview["dialects"]) == {"graph", "reactive", "stateful"}
        assert "Shell" in overview["dialects"]["graph"]["step_types"]
        assert "schema://workflow" in overview["next"]
        assert len(json.dumps(overview)) < DEFAULT_LIMITS.answer_chars
        for dialect, found in overview["dialects"].items():
            schema = await agent.call("get_workflow_schema", dialect=dialect)
            assert len(json.dumps(schema)) < DEFAULT_LIMITS.answer_chars
            Draft202012Validator.check_schema(schema)
            for step_type in found["step_types"]:
                part = await agent.call("get_workflow_schema", dialect=dialect, step_type=step_type)
                assert len(json.dumps(part)) < DEFAULT_LIMITS.answer_chars
                Draft202012Validator.check_schema(part)
        shell = Draft202012Validator(await agent.call("get_workflow_schema", step_type="Shell"))
        assert shell.is_valid({"id": "a", "type": "Shell", "inputs": {"command": "true"}})
        assert not shell.is_valid({"id": "a", "type": "Shell", "inputs": {"comand": "true"}})
        graph = Draft202012Validator(await agent.call("get_workflow_schema", dialect="graph"))
        assert graph.is_valid({"blocks": [{"id": "a", "type": "Shell", "inputs": {"command": "true"}}]})
        assert not graph.is_valid({"blocks": [{"id": "a", "type": "Shel"}]})
        step = {"id": "a", "type": "shell", "needs_state": [], "command": "true"}
        stateful = Draft202012Validator(await agent.call("get_workflow_schema", dialect="stateful"))
        assert stateful.is_valid({"initial_state": {}, "steps": [step]})
        assert not graph.is_valid({"initial_state": {}, "steps": [step]})
        said = await agent.refused("get_workflow_schema", step_type="Shel")
        assert "did you mean 'Shell'" in said

    graph.serve(work)


@pytest.mark.rows("G19")
def test_a_response_that_is_null_answers_a_question_and_none_is_only_a_look(graph: Any) -> None:
    text = (
        "name: calls\ndefault_state: {raw: {owner: unknown}}\nsteps:\n"
        "  - {id: find, type: mcp_call, method: find_owner, state_update: {path: raw.owner}}\n"
    )

    async def work(agent: Any) -> None:
        tools = {tool.name: tool for tool in (await agent.client.list_tools()).tools}
        schema = tools["resume_workflow"].input_schema
        assert {"type": "null"} in schema["properties"]["response"]["anyOf"]
        assert "response" not in schema["required"]

        for by in ("checkpoint_id", "workflow_id"):
            paused = await agent.call("execute_inline_workflow", workflow_yaml=text)
            assert (await agent.call("resume_workflow", checkpoint_id=paused["workflow_id"])) == paused
            if by == "checkpoint_id":
                said = await agent.refused("resume_workflow", checkpoint_id=paused[by])
                assert "is a question, so it needs a response" in said
            done = await agent.call("resume_workflow", checkpoint_id=paused[by], response=None)
            assert done["status"] == "success"
            state = await agent.call("get_workflow_state", workflow_id=done["workflow_id"])
            assert state["state"] == {"owner": None}
            again = await agent.call("resume_workflow", checkpoint_id=done["workflow_id"], response=None)
            assert again == done, "where nothing is asked, null says nothing"

    graph.serve(work)


def test_a_run_of_the_core_can_be_resumed_and_one_of_graph_answered_by_the_core(place: Any) -> None:
    (place.workspace / "workflows.toml").write_text('toolsets = "all"\n')
    place.define("inner", INNER)

    async def work(agent: Any) -> None:
        started = await agent.call("start_workflow", workflow="inner", inputs={"what": "fly"})
        (found, *_) = (await agent.call("list_checkpoints", workflow_id=started["workflow_id"]))[
            "checkpoints"
        ]
        done = await agent.call("resume_workflow", checkpoint_id=found["checkpoint_id"], response="yes")
        assert done["outputs"] == {"said": "did fly\n", "answer": "yes"}
        paused = await agent.call("execute_workflow", workflow="inner", inputs={"what": "swim"})
        ended = await agent.call("submit_result", workflow_id=paused["workflow_id"], result="yes")
        assert ended["outputs"]["said"] == "did swim\n"

    place.serve(work)


def test_a_setting_given_in_code_is_served(tmp_path: Path) -> None:
    settings = dataclasses.replace(load_settings({}, workspace=tmp_path), toolsets=("graph",))
    names = [tool.name for tool in asyncio.run(build_server(settings).list_tools())]
    assert "execute_workflow" in names
    assert "start_workflow" not in names
