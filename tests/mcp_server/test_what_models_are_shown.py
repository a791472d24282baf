"""How definitions and errors are put so that they arrive: what clients leave out, misread or cut is said so that they
do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from support.in_memory import Desk
from workflows_mcp.errors import WorkflowsError
from workflows_mcp.mcp_server.tooling import ERROR_CHARS, compact, worded
from workflows_mcp.mcp_server.toolsets import tools_of
from workflows_mcp.settings import TOOLSETS

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


def test_every_argument_has_a_type_and_no_object_or_list_seems_to_be_empty() -> None:
    def look(schema: dict[str, Any], where: str) -> None:
        kinds = schema.get("anyOf", [schema])
        for kind in kinds:
            assert {"type", "enum", "const"} & kind.keys(), f"{where} has no type"
            if kind.get("type") == "object":
                assert kind.get("properties") or kind.get("additionalProperties") is True, where
            if kind.get("type") == "array":
                assert "items" in kind, where

    for tool in tools_of(TOOLSETS):
        for name, schema in tool.parameters["properties"].items():
            look(schema, f"{tool.name}.{name}")


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
    *shown, note = worded(WorkflowsError("\n".join(lines))).split("\n")
    assert shown == lines[: len(shown)]
    assert len("\n".join(shown)) <= ERROR_CHARS
    assert note == f"… (cut: {1000 - len(shown)} more lines; mend these first, and the rest is told then)"


def test_an_error_of_one_long_line_is_cut_inside_of_it() -> None:
    text = worded(WorkflowsError("wrong:\n" + "x" * 9000))
    assert text.endswith("… (cut: 9007 characters in all)")
    assert len(text) < ERROR_CHARS + 50
