"""What every tool looks like to a client. A change shows up as a difference in tool_schemas.json; to take
it over, run `python tests/mcp_server/test_tool_definitions.py`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from workflows_mcp.mcp_server.server import build_server
from workflows_mcp.mcp_server.toolsets import INSTRUCTIONS
from workflows_mcp.settings.model import TOOLSETS, load_settings

SNAPSHOT = Path(__file__).parent / "tool_schemas.json"
MEMORY = Path(__file__).parent / "memory_schemas.json"
TOKENS = 2500


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


def definitions(toolsets: str = "") -> list[dict[str, Any]]:
    server = build_server(load_settings({"WORKFLOWS_TOOLSETS": toolsets}))
    tools = asyncio.run(server.list_tools())
    return [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in tools]


def test_every_tool_is_as_it_was_published() -> None:
    assert definitions() == json.loads(SNAPSHOT.read_text(encoding="utf-8"))


def test_all_definitions_together_stay_within_their_budget_of_tokens() -> None:
    text = json.dumps(definitions(), separators=(",", ":"), ensure_ascii=False)
    assert len(text) / 4 < TOKENS
    assert len(INSTRUCTIONS) / 4 < 250


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
    names = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
    for tool in definitions(toolsets):
        assert tuple(tool["annotations"].get(name) for name in names) in KINDS, tool["name"]


def test_every_tool_and_every_argument_is_described_and_every_answer_typed() -> None:
    for tool in definitions():
        assert tool["description"], tool["name"]
        assert tool["annotations"], tool["name"]
        assert tool["outputSchema"]["properties"], tool["name"]
        for name, argument in tool["inputSchema"]["properties"].items():
            assert argument.get("description"), f"{tool['name']}.{name}"


def memory_definitions() -> list[dict[str, Any]]:
    return [tool for tool in definitions("memory") if "memory" in tool["name"]]


if __name__ == "__main__":
    for path, tools in ((SNAPSHOT, definitions()), (MEMORY, memory_definitions())):
        path.write_text(json.dumps(tools, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
