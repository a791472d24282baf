"""A client from before structured answers were common, over stdio, with the protocol of its time: it lists what
there is, carries out a workflow with three answers, and is told what it did wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from support.announcing import ANNOUNCE, DRAFT
from support.old_client import Ask, old_client
from workflows_mcp.mcp_server.prompts import prompts_of
from workflows_mcp.mcp_server.toolsets import INSTRUCTIONS, tools_of

SERVER = [sys.executable, "-m", "workflows_mcp"]

pytestmark = pytest.mark.slow


def answered(ask: Ask, tool: str, **arguments: Any) -> dict[str, Any]:
    """What the text of an answer says: all that the oldest of these clients look at."""
    found = ask("call_tool", name=tool, arguments=arguments)
    text = found["content"][0]["text"]
    assert not found["isError"], text
    said: dict[str, Any] = json.loads(text)
    assert found["structuredContent"] in (said, None)
    return said


def refused(ask: Ask, tool: str, **arguments: Any) -> str:
    found = ask("call_tool", name=tool, arguments=arguments)
    assert found["isError"]
    return str(found["content"][0]["text"])


@pytest.mark.parametrize("version", ["2025-06-18", "2024-11-05"])
def test_it_lists_what_there_is_and_carries_out_a_workflow(tmp_path: Path, version: str) -> None:
    (tmp_path / ".workflows").mkdir()
    (tmp_path / ".workflows" / "announce.yaml").write_text(ANNOUNCE, encoding="utf-8")
    store = {"WORKFLOWS_HOME": str(tmp_path / "store")}
    with old_client(SERVER, cwd=tmp_path, environment=store, version=version) as ask:
        begun = ask("initialize")
        assert begun["protocolVersion"] == version
        assert begun["instructions"] == INSTRUCTIONS

        listed = ask("list_tools")["tools"]
        assert [tool["name"] for tool in listed] == [tool.name for tool in tools_of(["core"])]
        prompts = ask("list_prompts")["prompts"]
        assert [prompt["name"] for prompt in prompts] == [
            prompt.offered.name for prompt in prompts_of(["core"])
        ]
        resources = ask("list_resources")["resources"]
        assert any("announce" in resource["uri"] for resource in resources)
        assert ask("list_resource_templates")["resourceTemplates"]

        error = refused(ask, "start_workflow", workflow="announce", inputs={"projct": "Ada"})
        assert "did you mean 'project'?" in error
        asked = answered(ask, "start_workflow", workflow="announce", inputs={"project": "Ada"})
        run = asked["workflow_id"]
        for step, result in {"channel": "forum", "draft": DRAFT, "approve": True}.items():
            assert asked["action"]["step_id"] == step
            asked = answered(ask, "submit_result", workflow_id=run, step_id=step, result=result)
        assert asked["status"] == "completed"
        state = answered(ask, "get_workflow_state", workflow_id=run)["state"]
        assert state["approved"] is True
        assert answered(ask, "get_workflow_status", workflow_id=run)["status"] == "completed"
