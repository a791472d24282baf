"""Workflows and runs as resources: what is listed, what is read, and what is said of what is not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS

from support.in_memory import ERAS, Desk, called
from workflows_mcp.dialects.schema import workflow_schema
from workflows_mcp.mcp_server.resources import (
    RUNS_LISTED,
    TEMPLATES,
    WORKFLOWS_LISTED,
    run_uri,
    workflow_uri,
)
from workflows_mcp.steps.registry import default_registry
from workflows_mcp.values import to_json

pytestmark = pytest.mark.rows("X8")

PIPELINE = """\
name: "team/ci: all"
description: Builds and asks.
inputs: {hosts: {type: list, default: [a, b]}}
blocks:
  - {id: build, type: Shell, inputs: {command: "seq 1 3000"}}
  - {id: lint, type: Shell, depends_on: [{block: build, required: false}], inputs: {command: "exit 3"}}
  - {id: each, type: Shell, depends_on: [build], for_each: "${inputs.hosts}", inputs: {command: "echo ${each.value}"}}
  - {id: ask, type: Prompt, depends_on: [each, {block: lint, required: false}], inputs: {prompt: "ok?"}}
outputs: {log: "${blocks.build.outputs.stdout}"}
"""
ROUNDS = """\
name: rounds
initial_state: {n: 0}
steps:
  - id: check
    type: condition
    needs_state: [n]
    if: "{{ state.n < 2 }}"
    then:
      - {id: count, type: set_state, needs_state: [n], updates: {n: "{{ state.n + 1 }}"}}
    else:
      - {id: stop, type: return, needs_state: [n], value: "{{ state.n }}"}
  - {id: again, type: goto, needs_state: [], target: check, max_iterations: 5}
"""


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path)
    desk.define("pipeline", PIPELINE)
    desk.define("rounds", ROUNDS)
    return desk


async def text_of(client: Client, uri: str, mime_type: str | None = None) -> str:
    [content] = (await client.read_resource(uri)).contents
    assert mime_type in (None, content.mime_type)
    assert str(content.uri) == uri
    return str(getattr(content, "text", ""))


async def json_of(client: Client, uri: str) -> Any:
    return json.loads(await text_of(client, uri, "application/json"))


async def refused(client: Client, uri: str) -> str:
    with pytest.raises(MCPError) as error:
        await client.read_resource(uri)
    assert error.value.error.code == INVALID_PARAMS
    assert error.value.error.data == {"uri": uri}
    return error.value.error.message


@pytest.mark.parametrize("mode", ERAS)
def test_workflows_and_recent_runs_are_listed_and_every_listed_one_can_be_read(desk: Desk, mode: str) -> None:
    async def work(client: Client) -> None:
        started = await called(client, "start_workflow", workflow="rounds")
        listed = {it.name: it for it in (await client.list_resources()).resources}
        assert listed["team/ci: all"].uri == "workflow://team%2Fci%3A%20all"
        assert listed["team/ci: all"].mime_type == "application/yaml"
        run = listed[started["workflow_id"]]
        assert (run.uri, run.title) == (f"run://{started['workflow_id']}", "rounds: completed")
        for it in listed.values():
            assert await text_of(client, str(it.uri), it.mime_type)

    desk.serve(work, mode=mode)


def test_a_long_list_is_cut(desk: Desk) -> None:
    for number in range(WORKFLOWS_LISTED + 5):
        desk.define(
            f"w{number}", f"name: w{number}\nblocks: [{{id: a, type: Shell, inputs: {{command: 'true'}}}}]\n"
        )

    async def work(client: Client) -> None:
        for _ in range(RUNS_LISTED + 2):
            await called(client, "start_workflow", workflow="rounds")
        listed = [str(it.uri) for it in (await client.list_resources()).resources]
        assert sum(uri.startswith("workflow:") for uri in listed) == WORKFLOWS_LISTED
        assert sum(uri.startswith("run:") for uri in listed) == RUNS_LISTED

    desk.serve(work)


@pytest.mark.parametrize("mode", ERAS)
def test_the_templates_say_what_can_be_read(desk: Desk, mode: str) -> None:
    async def work(client: Client) -> None:
        templates = (await client.list_resource_templates()).resource_templates
        assert [it.uri_template for it in templates] == [
            "workflow://{name}",
            "workflow://{name}/graph",
            "run://{id}",
            "run://{id}/graph",
            "run://{id}/journal{?offset,limit}",
            "run://{id}/report",
            "run://{id}/values/{+path}{?offset,limit}",
        ]
        assert all(it.description and it.title for it in templates)

    desk.serve(work, mode=mode)


@pytest.mark.parametrize("mode", ERAS)
def test_a_definition_is_read_whatever_its_name_is_made_of(desk: Desk, mode: str) -> None:
    async def work(client: Client) -> None:
        for uri in ("workflow://team%2Fci%3A%20all", "workflow://team/ci%3A%20all"):
            assert await text_of(client, uri, "application/yaml") == PIPELINE
        drawn = await text_of(client, "workflow://team%2Fci%3A%20all/graph", "text/vnd.mermaid")
        assert drawn.startswith("flowchart TD\n")
        assert "n0 -.-> n1" in drawn  # lint need not have its dependency succeed
        assert "n2 --> n3" in drawn

    desk.serve(work, mode=mode)


def test_a_definition_that_is_wrong_can_be_read_and_its_picture_says_what_is_wrong(desk: Desk) -> None:
    desk.define("broken", "name: broken\nblocks: [{id: a, type: Shel}]\n")

    async def work(client: Client) -> None:
        assert "Shel" in await text_of(client, "workflow://broken")
        assert "did you mean 'Shell'" in await refused(client, "workflow://broken/graph")

    desk.serve(work)


@pytest.mark.parametrize("mode", ERAS)
def test_a_run_is_read_as_its_status_tells_it(desk: Desk, mode: str) -> None:
    async def work(client: Client) -> None:
        started = await called(client, "start_workflow", workflow="team/ci: all")
        run = f"run://{started['workflow_id']}"
        status = await called(
            client, "get_workflow_status", workflow_id=started["workflow_id"], wait_seconds=0
        )
        assert await json_of(client, run) == status

        drawn = await text_of(client, f"{run}/graph", "text/vnd.mermaid")
        assert 'subgraph n2["each · Shell · for each"]' in drawn
        classes = {
            line.split()[2]: line.split()[1] for line in drawn.splitlines() if line.startswith("  class n")
        }
        assert classes == {"paused": "n3", "completed": "n0,n2_0,n2_1,n2", "failed": "n1"}

        whole = await text_of(client, f"{run}/values/blocks.build.outputs.stdout", "text/plain")
        assert whole.endswith("2999\n3000\n")
        part = await text_of(
            client, f"{run}/values/blocks.build.outputs.stdout?offset=2&limit=4", "text/plain"
        )
        assert part == whole[2:6]
        assert await json_of(client, f"{run}/values/inputs.hosts?offset=1") == ["b"]

    desk.serve(work, mode=mode)


@pytest.mark.parametrize("mode", ERAS)
def test_a_journal_has_the_events_in_order_and_is_read_in_parts(desk: Desk, mode: str) -> None:
    async def work(client: Client) -> None:
        started = await called(client, "start_workflow", workflow="team/ci: all")
        journal = f"{run_uri(started['workflow_id'])}/journal"
        await called(client, "submit_result", workflow_id=started["workflow_id"], result="yes")
        whole = await json_of(client, journal)
        assert whole["total"] == len(whole["events"]) == 6
        assert [it["position"] for it in whole["events"]] == [1, 2, 3, 4, 5, 6]
        assert whole["events"][0]["event"] == "started"
        assert {"event": "done", "step": "build", "try": "1"}.items() <= whole["events"][1].items()
        assert {"event": "answered", "step": "ask"}.items() <= whole["events"][-1].items()
        assert "[cut: 13893 characters" in whole["events"][1]["outputs"]["stdout"]
        part = await json_of(client, f"{journal}?offset=1&limit=2")
        assert (part["events"], part["next_offset"]) == (whole["events"][1:3], 3)

    desk.serve(work, mode=mode)


def test_the_picture_of_a_sequence_has_its_branches_its_loops_and_its_rounds(desk: Desk) -> None:
    async def work(client: Client) -> None:
        started = await called(client, "start_workflow", workflow="rounds")
        drawn = (await text_of(client, f"run://{started['workflow_id']}/graph")).splitlines()
        assert [line.strip() for line in drawn[1:-3]] == [
            'n0{"check · condition · round 3"}',
            'n1["count · set_state · round 2"]',
            'n2(["stop · return"])',
            'n3["again · goto · round 2"]',
            'n0 -->|"yes"| n1',
            'n0 -->|"no"| n2',
            "n1 --> n3",
            "n2 --> nend",
            'n3 -->|"at most 5 times"| n0',
            'n3 -->|"then"| nend',
        ]

    desk.serve(work)


@pytest.mark.parametrize("mode", ERAS)
def test_what_is_not_there_is_refused_with_what_is_meant(desk: Desk, mode: str) -> None:
    async def work(client: Client) -> None:
        run_id = (await called(client, "start_workflow", workflow="team/ci: all"))["workflow_id"]
        assert "did you mean 'rounds'?" in await refused(client, "workflow://round")
        assert f"did you mean '{run_id}'?" in await refused(client, f"run://{run_id[:-1]}")
        assert "did you mean 'graph'?" in await refused(client, f"run://{run_id}/grph")
        assert "did you mean 'stdout'?" in await refused(
            client, f"run://{run_id}/values/blocks.build.outputs.stdot"
        )
        assert "a path is missing" in await refused(client, f"run://{run_id}/values")
        assert "did you mean 'offset'?" in await refused(client, f"run://{run_id}/journal?ofset=1")
        assert "limit must be a whole number" in await refused(client, f"run://{run_id}/journal?limit=few")
        assert "limit 1 or more" in await refused(client, f"run://{run_id}/journal?limit=0")
        assert "only a journal" in await refused(client, f"run://{run_id}?limit=1")
        assert "run://{id}" in await refused(client, "rum://wf_1")

    desk.serve(work, mode=mode)


def test_a_task_is_read_by_its_own_id(desk: Desk) -> None:
    desk.define(
        "handed-out",
        "name: handed-out\ninitial_state: {}\n"
        "steps:\n"
        "  - {id: work, type: foreach, needs_state: [], items: [x, y], agent: '@task', task: one, output_to: all}\n"
        "tasks:\n  one:\n    inputs: {item: {type: string, required: true}}\n    initial_state: {}\n"
        "    steps:\n      - {id: ask, type: mcp_call, needs_state: [], tool: look, parameters: {at: '{{ inputs.item }}'}}\n",
    )

    async def work(client: Client) -> None:
        run_id = (await called(client, "start_workflow", workflow="handed-out"))["workflow_id"]
        task = f"{run_id}.work.1"
        assert (await json_of(client, run_uri(task)))["workflow_id"] == task
        assert "ask · MCPCall" in await text_of(client, f"{run_uri(task)}/graph")
        await called(client, "submit_result", workflow_id=task, result="fine")
        [event] = (await json_of(client, f"{run_uri(task)}/journal"))["events"]
        assert (event["event"], event["step"]) == ("answered", "work/1/ask")

    desk.serve(work)


def test_a_secret_is_in_no_resource(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.define(
        "hides",
        "name: hides\nblocks:\n"
        "  - {id: say, type: Shell, inputs: {command: 'echo ${secrets.TOKEN}'}}\n"
        "outputs: {said: '${blocks.say.outputs.stdout}'}\n",
    )

    async def work(client: Client) -> None:
        run_id = (await called(client, "start_workflow", workflow="hides"))["workflow_id"]
        for part in ("", "/graph", "/journal", "/values/outputs.said", "/values/blocks.say"):
            assert "hunter2hunter2" not in await text_of(client, f"run://{run_id}{part}")

    monkeypatch.setenv("WORKFLOWS_SECRET_TOKEN", "hunter2hunter2")
    desk.serve(work)


def test_every_template_and_its_type_is_documented() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "mcp.md").read_text(encoding="utf-8")
    rows = {row.split("`")[1]: row for row in text.splitlines() if row.startswith("| `")}
    for template in TEMPLATES:
        assert f"`{template.mime_type or 'text/plain'}`" in rows[template.uri_template]


def test_names_survive_being_put_into_a_uri() -> None:
    assert workflow_uri("a/b:c d?#%é") == "workflow://a%2Fb%3Ac%20d%3F%23%25%C3%A9"
    assert run_uri("wf_1.review@2.0") == "run://wf_1.review%402.0"


def test_the_schema_of_definitions_is_read_whole(desk: Desk) -> None:
    async def work(client: Client) -> None:
        assert "schema://workflow" in [str(it.uri) for it in (await client.list_resources()).resources]
        schema = await text_of(client, "schema://workflow", "application/schema+json")
        assert json.loads(schema) == json.loads(to_json(workflow_schema(default_registry())))

    desk.serve(work)
