"""How definitions and errors are put so that they arrive: what clients leave out, misread or cut is said so that they
do not."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from support.in_memory import ERAS, Desk, called
from support.rendered import Service
from workflows_mcp.errors import WorkflowsError
from workflows_mcp.mcp_server.tooling import ERROR_CHARS, compact, render_error
from workflows_mcp.mcp_server.toolsets import tools_of
from workflows_mcp.mcp_server.workflow_tools import workflow_tools
from workflows_mcp.settings.model import TOOLSETS

CORE = {"list_workflows", "get_workflow_info", "start_workflow", "submit_result", "get_workflow_status"}
GRAPH = {"list_workflows", "get_workflow_info", "execute_workflow", "resume_workflow"}
REACTIVE = {"workflow_list", "workflow_get_info", "workflow_start", "workflow_step_complete"}


@pytest.mark.parametrize(
    ("toolsets", "at_once"),
    [
        (["core"], CORE),
        (["stateful"], CORE),
        (["memory"], CORE),
        (["graph"], GRAPH),
        (["reactive", "debug"], REACTIVE),
        (TOOLSETS, CORE),
    ],
    ids=["core", "stateful", "memory", "graph", "reactive and debug", "all"],
)
def test_the_tools_that_a_run_needs_are_loaded_at_once_and_no_others(
    toolsets: list[str], at_once: set[str]
) -> None:
    marked = {tool.name: tool.meta for tool in tools_of(toolsets) if tool.meta}
    assert marked == {key: {"anthropic/alwaysLoad": True} for key in at_once}


@pytest.mark.parametrize(
    "tool", ["get_workflow_status", "get_next_step", "control_workflow", "get_workflow_info"]
)
def test_half_of_a_character_is_refused_and_named(tmp_path: Path, tool: str) -> None:
    """A text that was cut inside of an emoji is sent so by programs in JavaScript."""
    desk = Desk(tmp_path)

    async def work(client: Client) -> None:
        name = "workflow" if tool == "get_workflow_info" else "workflow_id"
        more = {"action": "cancel"} if tool == "control_workflow" else {}
        result = await client.call_tool(tool, {name: "\ud83d", **more})
        assert result.is_error
        [said] = result.content
        assert f"argument '{name}' holds half of a character" in str(said)

    desk.serve(work)


@pytest.mark.parametrize("result", [["\ud800"], {"deep": ["\udfff"]}])
def test_half_of_a_character_is_found_wherever_it_is(tmp_path: Path, result: Any) -> None:
    async def work(client: Client) -> None:
        said = await client.call_tool("submit_result", {"workflow_id": "wf_1", "result": result})
        assert said.is_error
        assert "argument 'result' holds half of a character" in str(said.content)

    Desk(tmp_path).serve(work)


@pytest.mark.parametrize(
    ("tool", "given", "said"),
    [
        (
            "start_workflow",
            {"inputs": '{"who": "Ada",}'},
            "argument 'inputs' is wrong: the text is not valid JSON: ",
        ),
        ("start_workflow", {"inputs": "who=Ada"}, "it must be an object, or JSON text of one"),
        (
            "start_workflow",
            {"inputs": '{"a":' + "[" * 3000 + "]" * 3000 + "}"},
            "the JSON is nested too deeply",
        ),
        ("list_workflows", {"tags": '["a",'}, "argument 'tags' is wrong: the text is not valid JSON: "),
        ("start_workflow", {}, "by exactly one of `workflow` (its name), `yaml`"),
    ],
)
def test_what_is_wrong_with_arguments_is_said(
    tmp_path: Path, tool: str, given: dict[str, Any], said: str
) -> None:
    async def work(client: Client) -> None:
        result = await client.call_tool(tool, given)
        assert result.is_error
        assert said in str(result.content)

    Desk(tmp_path).serve(work)


def test_a_refusal_is_never_longer_than_clients_show(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        for given in ({"x" * 300_000: 1}, {f"unknown_{number}": 1 for number in range(3000)}):
            result = await client.call_tool("list_workflows", given)
            assert result.is_error
            assert len(str(result.content[0])) < ERROR_CHARS + 500
        with pytest.raises(MCPError) as refused:
            await client.call_tool("y" * 300_000, {})
        assert len(refused.value.error.message) < ERROR_CHARS + 500

    Desk(tmp_path).serve(work)


@pytest.mark.rows("G24")
@pytest.mark.parametrize("mode", ERAS)
def test_a_file_whose_name_is_no_utf_8_takes_nothing_else_with_it(tmp_path: Path, mode: str) -> None:
    desk = Desk(tmp_path)
    desk.define("fine", "blocks: [{id: a, type: Prompt, inputs: {prompt: x}}]")
    [folder] = [path.parent for path in tmp_path.rglob("fine.yaml")]
    for name in (b"caf\xe9.yaml", b"caf\xe9/inner.yaml"):
        path = Path(os.fsdecode(os.fsencode(folder) + b"/" + name))
        path.parent.mkdir(exist_ok=True)
        path.write_text("blocks: [{id: a, type: Prompt, inputs: {prompt: x}}]", encoding="utf-8")

    async def work(client: Client) -> None:
        names = [it["name"] for it in (await called(client, "list_workflows"))["workflows"]]
        assert "fine" in names
        assert not [name for name in names if name.startswith("caf")]
        misspelt = await client.call_tool("start_workflow", {"workflow": "caf"})
        assert misspelt.is_error
        assert "there is no workflow 'caf'" in str(misspelt.content)
        assert (await client.list_resources()).resources

    desk.serve(work, mode=mode)


TAKES_ALL_KINDS = """
name: takes
inputs:
  "one value": {type: any}
  other: {type: any, required: false, validation: {enum: [1, a]}}
  list: {type: list, default: []}
  texts: {type: list, required: false, validation: {item_type: string}}
  lists: {type: list, required: false, validation: {item_type: list}}
  object: {type: object, required: false}
  config:
    type: object
    required: false
    validation: {properties: {port: {type: integer}, rest: {type: object}, more: {type: any}}}
blocks: [{id: a, type: Prompt, inputs: {prompt: x}}]
"""


def test_every_argument_has_a_type_and_no_object_or_list_seems_to_be_empty(tmp_path: Path) -> None:
    def look(schema: dict[str, Any], where: str) -> None:
        kinds = schema.get("anyOf", [schema])
        for kind in kinds:
            assert {"type", "enum", "const"} & kind.keys(), f"{where} has no type"
            if kind.get("type") == "object":
                assert kind.get("properties") or kind.get("additionalProperties") is True, where
            if kind.get("type") == "array":
                assert "items" in kind, where
                if kind["items"]:
                    look(kind["items"], f"{where}[]")
            for name, inner in kind.get("properties", {}).items():
                look(inner, f"{where}.{name}")

    desk = Desk(tmp_path)
    desk.define("takes", TAKES_ALL_KINDS)
    service = Service.open(desk.settings())
    every = [workflow.name for workflow in service.list_workflows()]
    of_workflows = workflow_tools(service, every, ())
    assert len(of_workflows) == len(every) > 20
    for tool in (*tools_of(TOOLSETS), *of_workflows):
        for name, schema in tool.parameters["properties"].items():
            look(schema, f"{tool.name}.{name}")
            assert re.fullmatch("[a-zA-Z0-9_.-]{1,64}", name), f"{tool.name}.{name}"


def test_a_definition_that_is_used_once_stands_where_it_is_used() -> None:
    twice = {"type": "object", "properties": {"deep": {"$ref": "#/$defs/Once"}}}
    schema: dict[str, Any] = {
        "$defs": {"Twice": twice, "Once": {"type": "string", "title": "Once"}},
        "properties": {name: {"$ref": "#/$defs/Twice"} for name in ("a", "b")},
    }
    assert compact(schema) == {
        "$defs": {"Twice": {"type": "object", "properties": {"deep": {"type": "string"}}}},
        "properties": {"a": {"$ref": "#/$defs/Twice"}, "b": {"$ref": "#/$defs/Twice"}},
    }
    del schema["properties"]["b"]
    inner = {"type": "object", "properties": {"deep": {"type": "string"}}}
    assert compact(schema) == {"properties": {"a": inner}}


def test_a_long_error_is_cut_between_lines_and_says_how_much_is_left() -> None:
    lines = [f"line {number} is wrong" for number in range(1000)]
    *shown, note = render_error(WorkflowsError("\n".join(lines))).split("\n")
    assert shown == lines[: len(shown)]
    assert len("\n".join(shown)) <= ERROR_CHARS
    assert note == f"… (cut: {1000 - len(shown)} more lines; fix these first to see the rest)"


def test_an_error_of_one_long_line_is_cut_inside_of_it() -> None:
    text = render_error(WorkflowsError("wrong:\n" + "xy " * 3000))
    assert text.endswith("… (cut: 9007 characters in all)")
    assert len(text) < ERROR_CHARS + 50
