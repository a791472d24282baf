"""The toolset `memory` over MCP: a real server process, spoken to by the official client."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from workflows_mcp.settings.model import load_settings
from workflows_mcp.settings.trust import Trust

pytestmark = pytest.mark.rows("S18")


@pytest.fixture
def serve(place: Any) -> Any:
    """Serves the toolset, with a file of secrets."""
    secrets = place.workspace / "secrets.env"
    secrets.write_text("TOKEN=s3cr3t-value\n")
    secrets.chmod(0o600)
    (place.workspace / "workflows.toml").write_text(
        f'toolsets = ["core", "memory"]\nsecrets_file = "{secrets}"\n'
    )
    Trust(place.home.parent / ".config" / "workflows-mcp" / "trusted.json").add(place.workspace)
    return place.serve


@pytest.mark.slow
def test_a_value_is_saved_loaded_listed_and_there_after_a_restart(serve: Any, place: Any) -> None:
    async def first(agent: Any) -> None:
        assert await agent.call("load_from_memory", key="plan") == {"key": "plan", "found": False}
        value = {"steps": ["a", 2, None], "done": False}
        assert await agent.call("save_to_memory", key="plan", value=value) == {"saved": True, "key": "plan"}
        assert await agent.call("load_from_memory", key="plan") == {
            "key": "plan",
            "found": True,
            "value": value,
        }
        await agent.call("save_to_memory", key="note", value="true")
        assert (await agent.call("load_from_memory", key="note"))["value"] == "true", "text stays text"
        await agent.call("save_to_memory", key="secret", value={"header": ["Bearer s3cr3t-value"]})
        assert "s3cr3t" not in json.dumps(await agent.call("load_from_memory", key="secret"))
        refused = await agent.refused("save_to_memory", key="", value=1)
        assert "must not be empty" in refused
        long = "ü" * 90_000
        await agent.call("save_to_memory", key="long", value=long)
        text, offset = "", 0
        while True:
            part = await agent.call("load_from_memory", key="long", offset=offset)
            assert "value" not in part
            text += part["text"]
            if "next_offset" not in part:
                break
            offset = part["next_offset"]
        assert json.loads(text) == long
        assert part["total_chars"] == len(text)

    async def second(agent: Any) -> None:
        assert await agent.call("list_memory_keys") == {
            "keys": ["long", "note", "plan", "secret"],
            "count": 4,
        }
        assert await agent.call("list_memory_keys", prefix="p") == {"keys": ["plan"], "count": 1}
        assert await agent.call("save_to_memory", key="plan", value=None) == {"saved": False, "key": "plan"}
        assert await agent.call("list_memory_keys", prefix="p") == {"keys": [], "count": 0}

    serve(first)
    serve(second)
    files = [path for path in Path(place.home).rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if b"s3cr3t" in path.read_bytes()]


def test_servers_for_tools_are_settings_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "workflows.toml").write_text('[mcp_servers.hub]\ncommand = "hub"\nargs = ["x"]\n')
    trusted = {"WORKFLOWS_TRUST": str(tmp_path)}
    assert load_settings(trusted, workspace=tmp_path).mcp_servers == {
        "hub": {"command": "hub", "args": ["x"]}
    }
    given = load_settings({"WORKFLOWS_MCP_SERVERS": '{"web": {"url": "http://x"}}'}, workspace=tmp_path)
    assert given.mcp_servers == {"web": {"url": "http://x"}}
    assert replace(given, mcp_servers={}).mcp_servers == {}
