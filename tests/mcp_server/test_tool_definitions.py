"""What every tool looks like to a client. A change shows up as a difference in a file `*_schemas.json`; to take
it over, run `python tests/mcp_server/test_tool_definitions.py`."""

from __future__ import annotations

import asyncio
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from workflows_mcp.errors import RequestError
from workflows_mcp.mcp_server.server import build_server
from workflows_mcp.mcp_server.toolsets import toolset
from workflows_mcp.settings.model import TOOLSETS, load_settings

HERE = Path(__file__).parent
SNAPSHOTS = {
    "core": HERE / "tool_schemas.json",
    "memory": HERE / "memory_schemas.json",
    "debug": HERE / "debug_schemas.json",
    "graph": HERE.parent / "compat" / "graph_schemas.json",
    "stateful": HERE.parent / "compat" / "stateful_schemas.json",
    "reactive": HERE.parent / "compat" / "reactive_schemas.json",
}
TOKENS = {"core": 2500, "memory": 480, "debug": 900, "graph": 1900, "stateful": 1500, "reactive": 2600}
SHARED = [
    "list_workflows",
    "get_workflow_info",
    "get_workflow_status",
    "get_workflow_state",
    "control_workflow",
    "validate_workflow_yaml",
]
"""The tools of the core that `graph` has, too; `reactive` has its own for the first two."""

READS = (True, None, None, False)
"""readOnlyHint, destructiveHint, idempotentHint, openWorldHint"""
WORKS = (None, True, None, None)
"""Steps may do anything, anywhere, and again if it is called again: what is assumed of tools that say nothing."""
HANDS_OUT = (None, False, True, False)
"""It notes which agent is at work; nothing is lost, and once more changes nothing."""
ENDS = (None, True, True, False)
"""It takes something away, of what the server itself keeps; once more changes nothing."""
KEEPS = (None, False, None, False)
"""It adds something each time, to what the server itself keeps."""
KINDS = (READS, WORKS, HANDS_OUT, ENDS, KEEPS)


@cache
def definitions(toolsets: str) -> list[dict[str, Any]]:
    server = build_server(load_settings({"WORKFLOWS_TOOLSETS": toolsets}))
    tools = asyncio.run(server.list_tools())
    return [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in tools]


def names(toolsets: str) -> list[str]:
    return [tool["name"] for tool in definitions(toolsets)]


def own_definitions(name: str) -> list[dict[str, Any]]:
    return [tool for tool in definitions(name) if tool["name"] in toolset(name).records]


@pytest.mark.parametrize("name", TOKENS)
def test_every_tool_is_as_it_was_published(name: str) -> None:
    assert own_definitions(name) == json.loads(SNAPSHOTS[name].read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", TOKENS)
def test_all_definitions_together_stay_within_their_budget_of_tokens(name: str) -> None:
    text = json.dumps(own_definitions(name), separators=(",", ":"), ensure_ascii=False)
    assert len(text) / 4 < TOKENS[name]


@pytest.mark.parametrize("toolsets", [*TOOLSETS, "reactive,graph", "core,reactive", "all"])
def test_instructions_are_short_and_name_only_tools_that_are_served(toolsets: str) -> None:
    text = build_server(load_settings({"WORKFLOWS_TOOLSETS": toolsets})).instructions or ""
    assert len(text) / 4 < 250
    assert {*re.findall(r"\w+", text)} & {*names("all")} <= {*names(toolsets)}


@pytest.mark.rows("G20")
def test_alone_a_toolset_has_all_that_it_needs_and_beside_the_core_every_tool_is_there_once() -> None:
    core = names("core")
    for name, shared in (("graph", SHARED), ("reactive", SHARED[2:]), ("memory", core), ("debug", core)):
        own = list(toolset(name).records)
        assert names(name) == [*shared, *own]
        assert names(f"core,{name}") == [*core, *own]
    assert names("stateful") == [*core, "submit_step_result"]
    assert definitions("core,stateful") == definitions("stateful")
    assert len(names("all")) == len({*names("all")})
    assert definitions("all") == definitions(", ".join(reversed(TOOLSETS)))
    assert definitions("default") == definitions("core") == definitions("")


def test_an_unknown_toolset_is_refused_with_those_that_exist() -> None:
    with pytest.raises(RequestError, match=r"unknown toolset 'grpah'(.|\n)*did you mean 'graph'"):
        load_settings({"WORKFLOWS_TOOLSETS": "core,grpah"})


def published() -> dict[str, list[dict[str, Any]]]:
    """What the snapshots have, by the names of tools: one of some name can be of several toolsets."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in Path(__file__).parents[1].glob("*/*schemas.json"):
        for tool in json.loads(path.read_text(encoding="utf-8")):
            found.setdefault(tool["name"], []).append(by_itself(tool))
    return found


def by_itself(tool: dict[str, Any]) -> dict[str, Any]:
    """The definition without what depends on the toolsets beside it: test_what_models_are_shown has that."""
    return {key: value for key, value in tool.items() if key != "_meta"}


@pytest.mark.parametrize("toolsets", [*TOOLSETS, "all"])
def test_every_tool_of_every_toolset_is_in_a_snapshot(toolsets: str) -> None:
    there, here = published(), map(by_itself, definitions(toolsets))
    assert [tool["name"] for tool in here if tool not in there.get(tool["name"], ())] == []


@pytest.mark.parametrize("toolsets", [*TOOLSETS, "all"])
def test_the_hints_of_every_tool_are_of_one_kind(toolsets: str) -> None:
    """Which kind it is, the snapshots say."""
    hints = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
    for tool in definitions(toolsets):
        assert tuple(tool["annotations"].get(hint) for hint in hints) in KINDS, tool["name"]


@pytest.mark.parametrize("name", TOKENS)
def test_every_tool_and_every_argument_is_described_and_every_answer_typed(name: str) -> None:
    for tool in own_definitions(name):
        assert tool["description"], tool["name"]
        assert tool["annotations"], tool["name"]
        # the names of the fields of a state are those of the workflow
        assert tool["outputSchema"]["properties"] or tool["name"] == "workflow_state_read", tool["name"]
        for argument, schema in tool["inputSchema"].get("properties", {}).items():
            assert schema.get("description"), f"{tool['name']}.{argument}"
        assert name != "debug" or tool["annotations"]["readOnlyHint"] is True


if __name__ == "__main__":
    for name, path in SNAPSHOTS.items():
        text = json.dumps(own_definitions(name), indent=2, ensure_ascii=False)
        path.write_text(text + "\n", encoding="utf-8")
