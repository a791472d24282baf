"""Workflows that are published as tools of their own, with their inputs as typed arguments."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.types import ElicitResult

from support.task_client import TaskClient
from workflows_mcp.errors import RequestError
from workflows_mcp.mcp_server import server as server_module
from workflows_mcp.mcp_server.server import build_server
from workflows_mcp.mcp_server.toolsets import tools_of
from workflows_mcp.mcp_server.workflow_tools import tool_name
from workflows_mcp.settings.model import Settings

pytestmark = pytest.mark.rows("X11")

DEPLOY = """
name: "deploy:web-app"
description: Brings the web application to a place.
tags: [deploy]
inputs:
  place: {type: string, description: Where to}
  times: {type: integer, default: 1}
  parts: {type: list, required: false}
blocks:
  - {id: sure, type: Prompt, inputs: {prompt: "To ${inputs.place}?"}}
outputs: {said: "${blocks.sure.outputs.response}", times: "${inputs.times}", parts: "${inputs.parts}"}
"""


def settings(directory: Path, *selectors: str, **files: str) -> Settings:
    folder = directory / ".workflows"
    folder.mkdir(exist_ok=True)
    for name, text in {"deploy": DEPLOY, **files}.items():
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    return Settings(workspace=directory, home=directory / "home", workflow_tools=selectors)


def session(given: Settings, work: Callable[[Client], Awaitable[None]]) -> None:
    async def go() -> None:
        async with Client(build_server(given)) as client:
            await work(client)

    asyncio.run(asyncio.wait_for(go(), 30))


def test_a_workflow_is_a_tool_with_its_inputs_and_runs_as_any_other(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        [tool] = [it for it in (await client.list_tools()).tools if it.name == "deploy_web_app"]
        assert tool.title == "deploy:web-app"
        assert tool.description is not None
        assert tool.description.startswith("Brings the web application to a place. (A workflow.")
        assert tool.input_schema["required"] == ["place"]
        assert tool.input_schema["properties"]["place"] == {"type": "string", "description": "Where to"}
        assert tool.output_schema is not None
        assert {"workflow_id", "status"} <= set(tool.output_schema["required"])
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint is not True

        given = {"place": "here", "times": "3", "parts": '["a", "b"]'}
        asked = (await client.call_tool("deploy_web_app", given)).structured_content
        assert asked is not None
        assert asked["action"]["parameters"] == {"prompt": "To here?"}
        answer = {"workflow_id": asked["workflow_id"], "result": "yes"}
        ended = (await client.call_tool("submit_result", answer)).structured_content
        assert ended is not None
        assert ended["outputs"] == {"said": "yes", "times": 3, "parts": ["a", "b"]}

    session(settings(tmp_path, "tag:deploy"), work)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, ["place"]),
        ({"place": "x", "tims": 2}, ["tims", "did you mean 'times'"]),
        ({"place": "x", "times": "many"}, ["times", "integer"]),
    ],
)
def test_wrong_arguments_are_refused_by_name_and_nothing_is_started(
    tmp_path: Path, arguments: dict[str, Any], said: list[str]
) -> None:
    async def work(client: Client) -> None:
        result = await client.call_tool("deploy_web_app", arguments)
        text = "".join(getattr(block, "text", "") for block in result.content)
        assert result.is_error
        assert [word for word in said if word not in text] == []
        runs = (await client.call_tool("get_workflow_status", {})).structured_content
        assert runs == {"runs": []}

    session(settings(tmp_path, "tag:deploy"), work)


@pytest.mark.parametrize(
    ("selectors", "published"),
    [
        (("tag:deploy",), {"deploy_web_app"}),
        (("deploy:*",), {"deploy_web_app"}),
        (("deploy:web-app", "other"), {"deploy_web_app", "other"}),
        (("tag:none",), set()),
        (("all",), {"deploy_web_app", "other"}),
        (("*",), {"deploy_web_app", "other"}),
        (("deploy-service", "tag:more"), {"deploy_service", "other"}),
        ((), set()),
    ],
)
def test_workflows_are_chosen_by_name_pattern_and_tag_and_built_in_ones_by_name_alone(
    tmp_path: Path, selectors: tuple[str, ...], published: set[str]
) -> None:
    other = DEPLOY.replace("deploy:web-app", "other").replace("[deploy]", "[more]")
    names: set[str] = set()

    async def work(client: Client) -> None:
        names.update(tool.name for tool in (await client.list_tools()).tools)

    session(settings(tmp_path, *selectors, other=other), work)
    assert names - {tool.name for tool in tools_of(["core"])} == published


def test_a_workflow_in_the_place_of_a_built_in_one_is_one_of_the_users_own(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        [tool] = [it for it in (await client.list_tools()).tools if it.name == "deploy_service"]
        assert (tool.description or "").startswith("Brings the web application")

    own = DEPLOY.replace("deploy:web-app", "deploy-service")
    session(settings(tmp_path, "tag:deploy", own=own), work)


def test_a_choice_that_finds_nothing_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    build_server(settings(tmp_path, "conditional-*"))
    assert "there is no workflow for 'conditional-*' (built-in workflows are chosen by" in caplog.text


@pytest.mark.parametrize(("workflows", "told"), [(30, False), (31, False), (32, True)])
def test_more_tools_than_clients_show_are_told_of_with_those_of_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, workflows: int, told: bool
) -> None:
    own = len(tools_of(["core"]))
    assert own == 9
    more = {f"w{it}": DEPLOY.replace("deploy:web-app", f"w{it}") for it in range(workflows - 1)}
    build_server(settings(tmp_path, "all", **more))
    assert (f"there are {own + workflows} tools, {workflows} of them workflows" in caplog.text) is told


@pytest.mark.parametrize("extensions", [None, [TaskClient(lambda _: asyncio.sleep(0))]])
def test_inputs_are_inputs_whatever_they_are_called(tmp_path: Path, extensions: Any) -> None:
    names = ["wait_seconds", "task_id", "workflow_id", "sub_agent_context"]
    declared = "".join(f"  {name}: {{type: string}}\n" for name in names)
    outputs = "".join(f'  {name}: "${{inputs.{name}}}"\n' for name in names)
    text = f"name: named\nelicitation: true\ninputs:\n{declared}"
    text += f'blocks: [{{id: sure, type: Prompt, inputs: {{prompt: "Sure?"}}}}]\noutputs:\n{outputs}'
    shown: list[str] = []

    async def user(context: Any, params: Any) -> ElicitResult:
        shown.append(params.message)
        return ElicitResult(action="accept", content={"response": "yes"})

    async def go() -> None:
        server = build_server(settings(tmp_path, "named", named=text))
        async with Client(server, extensions=extensions, elicitation_callback=user) as client:
            given = {name: "forty" for name in names}
            ended = (await client.call_tool("named", given)).structured_content
            assert ended is not None
            assert ended["outputs"] == given

    asyncio.run(asyncio.wait_for(go(), 30))
    assert shown == ["Sure?"], "the answer is known to be about a run"


def test_a_call_that_would_wait_is_a_task_as_that_of_any_other_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "WAIT_SECONDS", 0.0)
    os.mkfifo(tmp_path / "gate")
    held = "name: held\nblocks: [{id: hold, type: Shell, inputs: {command: cat gate}}]\n"
    held += 'outputs: {said: "${blocks.hold.outputs.stdout}"}\n'

    async def open_gate(tasks: TaskClient) -> None:
        if len(tasks.seen) == 2:
            await asyncio.to_thread((tmp_path / "gate").write_text, "opened")

    tasks = TaskClient(open_gate)

    async def go() -> None:
        server = build_server(settings(tmp_path, "held", held=held))
        async with Client(server, extensions=[tasks]) as client:
            ended = (await client.call_tool("held", {})).structured_content
            assert ended is not None
            assert ended["outputs"] == {"said": "opened"}

    asyncio.run(asyncio.wait_for(go(), 30))
    assert [it["status"] for it in tasks.seen[:2]] == ["working", "working"]
    assert tasks.seen[0]["taskId"].startswith("held:")


@pytest.mark.parametrize("toolsets", [("graph",), ("reactive",), ("graph", "reactive"), ("memory",)])
def test_what_a_run_asks_can_be_answered_whatever_the_toolsets(
    tmp_path: Path, toolsets: tuple[str, ...]
) -> None:
    async def work(client: Client) -> None:
        asked = (await client.call_tool("deploy_web_app", {"place": "here"})).structured_content
        assert asked is not None
        run = asked["workflow_id"]
        status = (await client.call_tool("get_workflow_status", {"workflow_id": run})).structured_content
        assert asked.keys() == {"workflow_id", "status", "action", "next"}
        assert status is not None
        assert status.pop("why").startswith("waiting for your answer to 'sure' since ")
        assert status == {**asked, "workflow": "deploy:web-app", "progress": {"done": 0, "total": 1}}
        answer = {"workflow_id": run, "result": "yes"}
        ended = (await client.call_tool("submit_result", answer)).structured_content
        assert ended is not None
        assert ended["outputs"]["said"] == "yes"

    session(dataclasses.replace(settings(tmp_path, "tag:deploy"), toolsets=toolsets), work)


def test_without_workflows_as_tools_a_toolset_keeps_to_its_own_way(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        assert "submit_result" not in {tool.name for tool in (await client.list_tools()).tools}

    session(dataclasses.replace(settings(tmp_path), toolsets=("graph",)), work)


def test_the_flag_of_the_command_says_which_workflows_are_tools(tmp_path: Path) -> None:
    settings(tmp_path)

    async def go() -> list[str]:
        program = StdioServerParameters(
            command=sys.executable,
            args=["-m", "workflows_mcp", "serve", "--workflow-tools", "tag:deploy,nothing-*"],
            env={"WORKFLOWS_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)},
            cwd=tmp_path,
        )
        async with Client(program) as client:
            return [tool.name for tool in (await client.list_tools()).tools]

    names = asyncio.run(asyncio.wait_for(go(), 30))
    assert "deploy_web_app" in names
    assert "start_workflow" in names


def test_a_broken_workflow_is_left_out_and_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken = DEPLOY.replace("deploy:web-app", "broken").replace("type: Prompt", "type: Promt")

    async def work(client: Client) -> None:
        assert "broken" not in {tool.name for tool in (await client.list_tools()).tools}

    session(settings(tmp_path, "broken", broken=broken), work)
    assert "the workflow broken is not served as a tool" in caplog.text


@pytest.mark.parametrize("name", ["deploy web.app", "start workflow"])
def test_two_tools_of_one_name_are_refused_at_the_start(tmp_path: Path, name: str) -> None:
    given = settings(tmp_path, "tag:deploy", second=DEPLOY.replace("deploy:web-app", name))
    with pytest.raises(RequestError, match="that is the name of") as refused:
        build_server(given)
    assert tool_name(name) in str(refused.value)


@pytest.mark.parametrize(
    ("workflow", "tool"),
    [
        ("deploy:web-app", "deploy_web_app"),
        ("CI", "ci"),
        ("2fa", "workflow_2fa"),
        ("ärger", "rger"),
        ("x" * 80, "x" * 60),
    ],
)
def test_names_are_such_that_every_client_takes_them(workflow: str, tool: str) -> None:
    assert tool_name(workflow) == tool
