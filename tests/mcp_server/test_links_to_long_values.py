"""What an answer shows in part is linked as a resource, which has the whole of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from mcp import Client
from mcp.types import ResourceLink, TextResourceContents

from workflows_mcp.mcp_server.server import build_server
from workflows_mcp.settings.model import Settings

LONG = """
name: long
inputs: {text: string, "odd name": {type: string, default: ""}}
blocks:
  - {id: say, type: RenderTemplate, inputs: {template: "{{ text * 3000 }}", variables: {text: "${inputs.text}"}}}
outputs:
  short: "${inputs.text}"
  said: "${blocks.say.outputs.content}"
  "odd/näme": "${blocks.say.outputs.content}"
"""


@pytest.mark.rows("X6", "X8")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_long_output_is_linked_and_the_link_leads_to_all_of_it(tmp_path: Path, mode: str) -> None:
    async def go() -> None:
        settings = Settings(workspace=tmp_path, home=tmp_path / "home")
        async with Client(build_server(settings), mode=mode) as client:
            result = await client.call_tool("start_workflow", {"yaml": LONG, "inputs": {"text": "word "}})
            answer = result.structured_content
            assert answer is not None
            assert "[cut: 15000 characters" in answer["outputs"]["said"]
            assert json.loads(getattr(result.content[0], "text", "")) == answer
            links = [block for block in result.content if isinstance(block, ResourceLink)]
            assert len(links) == len(result.content) - 1
            assert [link.description for link in links] == ["the whole value: 15000 characters"] * 2
            assert links[0].name == "outputs.said"
            for link in links:
                [whole] = (await client.read_resource(link.uri)).contents
                assert isinstance(whole, TextResourceContents)
                assert whole.text == "word " * 3000

    asyncio.run(asyncio.wait_for(go(), 30))


def test_an_answer_that_shows_everything_has_no_links(tmp_path: Path) -> None:
    async def go() -> None:
        settings = Settings(workspace=tmp_path, home=tmp_path / "home")
        async with Client(build_server(settings)) as client:
            text = LONG.replace("3000", "1")
            result = await client.call_tool("start_workflow", {"yaml": text, "inputs": {"text": "word "}})
            assert [block.type for block in result.content] == ["text"]

    asyncio.run(asyncio.wait_for(go(), 30))
