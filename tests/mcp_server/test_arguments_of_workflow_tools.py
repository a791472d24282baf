"""The inputs of a workflow as the arguments of its tool: what they are called, and what counts when the workflow
has changed since the server was started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from support.in_memory import Desk, called
from workflows_mcp.errors import InvalidInputs
from workflows_mcp.mcp_server.workflow_tools import Arguments, argument_names

pytestmark = pytest.mark.rows("X11")


def workflow(**inputs: str) -> str:
    declared = "\n".join(f"  {name!r}: {spec}" for name, spec in inputs.items())
    outputs = "\n".join(f"  out{number}: \"${{inputs['{name}']}}\"" for number, name in enumerate(inputs))
    return (
        f"name: takes\ninputs:\n{declared}\noutputs:\n{outputs}\n"
        "blocks: [{id: a, type: Shell, inputs: {command: 'true'}}]\n"
    )


def serve(desk: Desk, work: Any, **more: str) -> None:
    desk.serve(work, more={"WORKFLOWS_WORKFLOW_TOOLS": "takes", **more})


async def refused(client: Client, **arguments: Any) -> str:
    result = await client.call_tool("takes", arguments)
    assert result.is_error
    return "".join(getattr(block, "text", "") for block in result.content)


# Names


@pytest.mark.parametrize(
    ("inputs", "arguments"),
    [
        (["plain", "with.dots-and_more"], ["plain", "with.dots-and_more"]),
        (["due date", "größe", "発布", "文"], ["due_date", "gr_e", "input", "input_2"]),
        (["a b", "a_b", "a  b"], ["a_b_2", "a_b", "a_b_3"]),
        (["x" * 65, "x" * 64, "y" * 80], ["x" * 62 + "_2", "x" * 64, "y" * 64]),
        (["$ref", "filter[id]"], ["ref", "filter_id"]),
    ],
)
def test_every_argument_has_a_name_that_models_can_be_sent_and_no_other_has(
    inputs: list[str], arguments: list[str]
) -> None:
    assert argument_names(inputs) == dict(zip(arguments, inputs, strict=True))


def test_an_argument_stands_for_its_input_and_says_which_where_their_names_differ(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    text = workflow(
        **{
            "due date": "{type: string, description: When}",
            "größe": "{type: integer, default: 1}",
            "who": "{}",
        }
    )
    desk.define("takes", text)

    async def work(client: Client) -> None:
        [tool] = [it for it in (await client.list_tools()).tools if it.name == "takes"]
        shown = tool.input_schema["properties"]
        assert list(shown) == ["due_date", "gr_e", "who"]
        assert tool.input_schema["required"] == ["due_date", "who"]
        assert shown["due_date"]["description"] == "When (the input 'due date')"
        assert shown["gr_e"] == {"type": "integer", "default": 1, "description": "The input 'größe'"}
        assert "description" not in shown["who"]
        for given in ({"due_date": "today", "gr_e": "3"}, {"due date": "today", "größe": 3}):
            ended = await called(client, "takes", who="me", **given)
            assert ended["outputs"] == {"out0": "today", "out1": 3, "out2": "me"}
        assert "missing input 'due date'" in await refused(client, who="me")

    serve(desk, work)


def test_an_input_that_is_given_by_both_of_its_names_is_refused() -> None:
    arguments = Arguments.of({"properties": {"a b": {"type": "string"}}, "required": ["a b"]})
    with pytest.raises(InvalidInputs, match="the input 'a b' is given twice\ngive only 'a_b'"):
        arguments.to_inputs({"a_b": "1", "a b": "2"})


# A workflow that has changed


CHANGED = "The workflow has changed since this server was started"


@pytest.mark.parametrize(
    ("toolset", "starts"),
    [("core", "start_workflow"), ("reactive", "workflow_start"), ("graph", "execute_workflow")],
)
def test_what_a_workflow_takes_today_counts(tmp_path: Path, toolset: str, starts: str) -> None:
    desk = Desk(tmp_path)
    desk.define("takes", workflow(a="{type: string}"))

    async def work(client: Client) -> None:
        before = await client.list_tools()
        desk.define("takes", workflow(a="{type: string}", b="{type: list}"))
        said = await refused(client, a="1")
        assert "missing input 'b'" in said
        assert CHANGED in said
        assert f"or use {starts}, " in said
        ended = await called(client, "takes", a="1", b="[2]")
        assert ended["outputs"] == {"out0": "1", "out1": [2]}
        assert starts in {tool.name for tool in before.tools}
        assert await client.list_tools() == before, "clients want a list that stays"

    serve(desk, work, WORKFLOWS_TOOLSETS=toolset)


def test_an_input_that_is_gone_is_refused_with_the_reason(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.define("takes", workflow(a="{type: string}", b="{type: string}"))

    async def work(client: Client) -> None:
        desk.define("takes", workflow(a="{type: string}"))
        said = await refused(client, a="1", b="2")
        assert "unknown input 'b'" in said
        assert CHANGED in said
        assert (await called(client, "takes", a="1"))["outputs"] == {"out0": "1"}

    serve(desk, work)


def test_a_wrong_argument_of_a_workflow_that_has_not_changed_is_all_that_is_told(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.define("takes", workflow(count="{type: integer}"))

    async def work(client: Client) -> None:
        said = await refused(client, conut=1)
        assert "unknown input 'conut', did you mean 'count'?" in said
        assert "missing input 'count'" in said
        assert CHANGED not in said

    serve(desk, work)
