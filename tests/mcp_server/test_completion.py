"""Completion of workflow names, run ids, tasks and inputs, and workflows that are prompts of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, PromptReference, ResourceTemplateReference

from support.in_memory import ERAS, Desk, called
from workflows_mcp.mcp_server.completion import LIMIT

pytestmark = pytest.mark.rows("X8")

DEPLOY = """\
name: ship-it
description: Ships a service.
prompt: true
inputs:
  service: {type: string, description: What to ship}
  where: {type: string, default: staging, validation: {enum: [staging, production]}}
  dry: {type: boolean, default: false}
blocks:
  - {id: ask, type: Prompt, inputs: {prompt: "ship ${inputs.service}?"}}
"""
HANDED_OUT = """\
name: handed-out
prompt: true
initial_state: {}
steps:
  - {id: work, type: foreach, needs_state: [], items: [x, y], agent: '@task', task: one, output_to: all}
tasks:
  one:
    inputs: {item: {type: string, required: true}}
    initial_state: {}
    steps:
      - {id: look, type: mcp_call, needs_state: [], tool: look, parameters: {at: '{{ inputs.item }}'}}
"""
REACTIVE = """\
name: says
prompt: true
default_state: {raw: {n: 0}}
steps:
  - {id: say, type: user_message, message: "{{ raw.n }}"}
"""


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path)
    desk.define("ship", DEPLOY)
    desk.define("handed-out", HANDED_OUT)
    desk.define("says", REACTIVE)
    return desk


async def completed(
    client: Client, ref: str, argument: str, typed: str, given: dict[str, str] | None = None
) -> list[str]:
    reference: PromptReference | ResourceTemplateReference = (
        ResourceTemplateReference(type="ref/resource", uri=ref)
        if "://" in ref
        else PromptReference(type="ref/prompt", name=ref)
    )
    found = await client.complete(reference, {"name": argument, "value": typed}, given)
    assert found.completion.total == len(found.completion.values)
    assert found.completion.has_more is False
    return found.completion.values


@pytest.mark.parametrize("mode", ERAS)
def test_names_of_workflows_are_completed_first_by_their_beginning(desk: Desk, mode: str) -> None:
    async def work(client: Client) -> None:
        for ref, argument in (
            ("workflow_orchestrator", "workflow_name"),
            ("workflow://{name}", "name"),
            ("workflow://{name}/graph", "name"),
        ):
            found = await completed(client, ref, argument, "S")
            assert found[:3] == ["says", "setup-python-env", "ship-it"]
            assert await completed(client, ref, argument, "it-st") == ["git-status"]
        assert client.server_capabilities is not None
        assert client.server_capabilities.completions is not None

    desk.serve(work, mode=mode)


@pytest.mark.parametrize("mode", ERAS)
def test_ids_of_runs_are_completed_also_by_the_name_of_their_workflow(desk: Desk, mode: str) -> None:
    async def work(client: Client) -> None:
        old = (await called(client, "start_workflow", workflow="ship-it", inputs={"service": "web"}))[
            "workflow_id"
        ]
        new = (await called(client, "start_workflow", workflow="handed-out"))["workflow_id"]
        for ref, argument in (
            ("workflow_sub_agent", "workflow_id"),
            ("run://{id}", "id"),
            ("run://{id}/graph", "id"),
        ):
            assert await completed(client, ref, argument, "wf_") == [new, old]
            assert await completed(client, ref, argument, old[3:]) == [old]
            assert await completed(client, ref, argument, "ship") == [old]
        given = {"workflow_id": new}
        tasks = await completed(client, "workflow_sub_agent", "task_id", "", given)
        assert tasks == [f"{new}.work.0", f"{new}.work.1"]
        assert await completed(client, "workflow_sub_agent", "task_id", "work.1", given) == [tasks[1]]
        assert (
            await completed(client, "workflow_sub_agent", "task_id", "", {"workflow_id": "wf_nothing"}) == []
        )
        path = "run://{id}/values/{+path}{?offset,limit}"
        assert await completed(client, path, "path", "inputs.s", {"id": old}) == ["inputs.service"]

    desk.serve(work, mode=mode)


def test_the_words_of_the_command_are_completed_one_by_one_or_in_one_text(desk: Desk) -> None:
    async def work(client: Client) -> None:
        run_id = (await called(client, "start_workflow", workflow="handed-out"))["workflow_id"]
        assert await completed(client, "workflow", "command", "shi") == ["ship-it"]
        assert await completed(client, "workflow", "command", "res") == ["resume"]
        assert await completed(client, "workflow", "word2", "", {"command": "resume"}) == [run_id]
        assert await completed(client, "workflow", "command", "resume wf_") == [f"resume {run_id}"]
        assert await completed(client, "workflow", "word2", "", {"command": "ship-it"}) == ["info", "start"]
        assert (
            await completed(client, "workflow", "word3", "", {"command": "ship-it", "word2": "start"}) == []
        )

    desk.serve(work)


def test_at_most_a_hundred_are_told_with_how_many_there_are(desk: Desk) -> None:
    for number in range(LIMIT + 7):
        desk.define(
            f"many{number}", f"name: many{number}\nblocks: [{{id: a, type: Prompt, inputs: {{prompt: x}}}}]\n"
        )

    async def work(client: Client) -> None:
        reference = PromptReference(type="ref/prompt", name="workflow_orchestrator")
        found = (await client.complete(reference, {"name": "workflow_name", "value": "many"})).completion
        assert (len(found.values), found.total, found.has_more) == (LIMIT, LIMIT + 7, True)

    desk.serve(work)


@pytest.mark.parametrize("mode", ERAS)
def test_what_cannot_be_completed_is_refused_with_what_there_is(desk: Desk, mode: str) -> None:
    async def work(client: Client) -> None:
        for ref, hint in (("workflow_orchestrater", "workflow_orchestrator"), ("run://{od}", "run://{id}")):
            with pytest.raises(MCPError) as refused:
                await completed(client, ref, "id", "")
            assert refused.value.error.code == INVALID_PARAMS
            assert f"did you mean '{hint}'?" in refused.value.error.message

    desk.serve(work, mode=mode)


@pytest.mark.parametrize("mode", ERAS)
def test_a_workflow_of_any_dialect_that_asks_for_it_is_a_prompt_with_its_inputs(
    desk: Desk, mode: str
) -> None:
    async def work(client: Client) -> None:
        listed = {it.name: it for it in (await client.list_prompts()).prompts}
        assert list(listed)[3:] == ["handed-out", "says", "ship-it"]
        ship = listed["ship-it"]
        assert ship.description == "Ships a service."
        assert [(it.name, it.required) for it in ship.arguments or ()] == [
            ("service", True), ("where", False), ("dry", False),
        ]  # fmt: skip
        assert (ship.arguments or [])[0].description == "What to ship; string"

        found = await client.get_prompt("ship-it", {"service": "web"})
        [message] = found.messages
        text = str(getattr(message.content, "text", ""))
        assert 'with inputs {"service":"web"}' in text
        assert "start_workflow" in text
        assert "ship-it" in text
        assert await completed(client, "ship-it", "where", "p") == ["production"]
        assert await completed(client, "ship-it", "dry", "") == ["true", "false"]
        assert await completed(client, "ship-it", "service", "") == []

    desk.serve(work, mode=mode)


@pytest.mark.parametrize("mode", ERAS)
def test_a_prompt_of_a_workflow_says_what_is_wrong_with_its_arguments(desk: Desk, mode: str) -> None:
    async def work(client: Client) -> None:
        with pytest.raises(MCPError) as refused:
            await client.get_prompt("ship-it", {"servce": "web"})
        assert refused.value.error.code == INVALID_PARAMS
        assert "'service' is missing" in refused.value.error.message
        assert "did you mean 'service'?" in refused.value.error.message
        with pytest.raises(MCPError) as refused:
            await client.get_prompt("ship-itt")
        assert "did you mean 'ship-it'?" in refused.value.error.message

    desk.serve(work, mode=mode)


@pytest.mark.parametrize("mode", ERAS)
def test_an_argument_that_was_left_empty_is_not_given(desk: Desk, mode: str) -> None:
    """Clients that show a field for each argument send those that nothing was typed into."""

    async def work(client: Client) -> None:
        found = await client.get_prompt("ship-it", {"service": "web", "where": "", "dry": ""})
        assert 'with inputs {"service":"web"}. ' in str(getattr(found.messages[0].content, "text", ""))
        for name, arguments, missing in (
            ("ship-it", {"service": "", "where": "staging"}, "service"),
            ("workflow_orchestrator", {"workflow_name": ""}, "workflow_name"),
        ):
            with pytest.raises(MCPError) as refused:
                await client.get_prompt(name, arguments)
            assert refused.value.error.code == INVALID_PARAMS
            assert refused.value.error.message == f"{name}: '{missing}' is missing"

    desk.serve(work, mode=mode)


@pytest.mark.parametrize("text", [DEPLOY, HANDED_OUT, REACTIVE])
def test_whether_a_workflow_is_a_prompt_is_true_or_false(desk: Desk, text: str) -> None:
    async def work(client: Client) -> None:
        assert (await called(client, "validate_workflow_yaml", yaml_content=text))["valid"]
        wrong = text.replace("prompt: true", "prompt: often", 1)
        found = await called(client, "validate_workflow_yaml", yaml_content=wrong)
        [problem] = found["problems"]
        assert problem["message"] == "'prompt' must be true or false, not text \"often\""
        assert problem["line"] == "prompt: often"

    desk.serve(work)


def test_a_workflow_does_not_take_the_place_of_a_prompt_of_the_server(desk: Desk) -> None:
    desk.define(
        "workflow", "name: workflow\nprompt: true\nblocks: [{id: a, type: Prompt, inputs: {prompt: x}}]\n"
    )

    async def work(client: Client) -> None:
        listed = [it.name for it in (await client.list_prompts()).prompts]
        assert listed.count("workflow") == 1
        assert "list_workflows" in str((await client.get_prompt("workflow")).messages[0])

    desk.serve(work)
