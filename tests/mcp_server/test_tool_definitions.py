"""What every tool looks like to a client. A change shows up as a difference in tool_schemas.json; to take
it over, run `python tests/mcp_server/test_tool_definitions.py`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from workflows_mcp.mcp_server.server import INSTRUCTIONS, build_server
from workflows_mcp.settings import load_settings

SNAPSHOT = Path(__file__).parent / "tool_schemas.json"
TOKENS = 2500


def definitions() -> list[dict[str, Any]]:
    server = build_server(load_settings({}))
    tools = asyncio.run(server.list_tools())
    return [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in tools]


def test_every_tool_is_as_it_was_published() -> None:
    assert definitions() == json.loads(SNAPSHOT.read_text(encoding="utf-8"))


def test_the_core_has_exactly_its_tools_in_a_fixed_order() -> None:
    assert [tool["name"] for tool in definitions()] == [
        "list_workflows",
        "get_workflow_info",
        "start_workflow",
        "submit_result",
        "get_next_step",
        "get_workflow_status",
        "get_workflow_state",
        "control_workflow",
        "validate_workflow_yaml",
    ]


def test_all_definitions_together_stay_within_their_budget_of_tokens() -> None:
    text = json.dumps(definitions(), separators=(",", ":"), ensure_ascii=False)
    assert len(text) / 4 < TOKENS
    assert len(INSTRUCTIONS) / 4 < 250


def test_every_tool_and_every_argument_is_described_and_every_answer_typed() -> None:
    for tool in definitions():
        assert tool["description"], tool["name"]
        assert tool["annotations"], tool["name"]
        assert tool["outputSchema"]["properties"], tool["name"]
        for name, argument in tool["inputSchema"]["properties"].items():
            assert argument.get("description"), f"{tool['name']}.{name}"


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps(definitions(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
