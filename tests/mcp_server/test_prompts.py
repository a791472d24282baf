"""The prompts that the server offers: `/workflow` in its forms, and the roles of agents and sub-agents."""

from __future__ import annotations

import asyncio
import re
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS

from workflows_mcp.mcp_server.prompts import words_typed
from workflows_mcp.mcp_server.server import build_server
from workflows_mcp.settings.model import load_settings
from workflows_mcp.values import to_json

pytestmark = pytest.mark.rows("R23")

TOOLSETS = (
    "core",
    "reactive",
    "graph",
    "stateful",
    "memory",
    "debug",
    "core,reactive",
    "graph,reactive",
    "all",
)


async def text_of(client: Client, name: str, **arguments: str) -> str:
    found = await client.get_prompt(name, arguments)
    [message] = found.messages
    assert message.role == "user"
    return str(getattr(message.content, "text", ""))


@cache
def tool_names(toolsets: str) -> set[str]:
    server = build_server(load_settings({"WORKFLOWS_TOOLSETS": toolsets}))
    return {tool.name for tool in asyncio.run(server.list_tools())}


def rendered(toolsets: str, name: str, **arguments: str) -> str:
    [text] = all_rendered(toolsets, (name, arguments))
    return text


def all_rendered(toolsets: str, *prompts: tuple[str, dict[str, str]]) -> list[str]:
    async def go(home: str) -> list[str]:
        found = load_settings({"WORKFLOWS_TOOLSETS": toolsets, "WORKFLOWS_HOME": home})
        async with Client(build_server(found)) as client:
            return [await text_of(client, name, **arguments) for name, arguments in prompts]

    with TemporaryDirectory() as home:
        return asyncio.run(go(home))


@pytest.mark.parametrize("toolsets", TOOLSETS)
def test_prompts_name_only_tools_that_are_switched_on(toolsets: str) -> None:
    every, there = tool_names("all"), tool_names(toolsets)
    orchestrator = ("workflow_orchestrator", {"workflow_name": "standards:fix"})
    forms = (
        "",
        "list",
        "list git",
        "standards:fix info",
        "standards:fix start",
        "resume wf_1",
        "status wf_1",
    )
    for text in all_rendered(toolsets, orchestrator, *(("workflow", {"command": it}) for it in forms)):
        named = set(re.findall(r"[a-z_]+", text)) & every
        assert named, text
        assert named <= there, f"{toolsets}: {named - there}"


def test_the_prompts_are_there_over_stdio_with_their_arguments(place: Any) -> None:
    async def work(agent: Any) -> None:
        listed = (await agent.client.list_prompts()).prompts
        assert [prompt.name for prompt in listed] == [
            "workflow",
            "workflow_orchestrator",
            "workflow_sub_agent",
        ]
        for prompt in listed:
            assert prompt.title
            assert prompt.description
            assert all(argument.description for argument in prompt.arguments or ())
        required = {it.name: [a.name for a in it.arguments or () if a.required] for it in listed}
        assert required == {
            "workflow": [],
            "workflow_orchestrator": ["workflow_name"],
            "workflow_sub_agent": ["workflow_id"],
        }
        text = await text_of(agent.client, "workflow_orchestrator", workflow_name="standards:fix")
        assert text.startswith("You run a workflow: standards:fix.")
        assert "get_workflow_info(workflow='standards:fix')" in text

    place.serve(work)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_an_unknown_prompt_and_a_wrong_argument_are_told_apart_from_a_broken_server(
    place: Any, mode: str
) -> None:
    async def work(agent: Any) -> None:
        for name, arguments, said in (
            ("workflows", {}, "did you mean 'workflow'"),
            ("workflow_orchestrator", {}, "'workflow_name' is missing"),
            ("workflow_orchestrator", {"workflow_name": "x", "name": "y"}, "unknown argument 'name'"),
            ("workflow_sub_agent", {"workflow_id": "wf_0"}, "there is no run 'wf_0'"),
        ):
            with pytest.raises(MCPError) as refused:
                await agent.client.get_prompt(name, arguments)
            assert refused.value.error.code == INVALID_PARAMS
            assert said in refused.value.error.message

    place.serve(work, mode=mode)


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("", "Call list_workflows."),
        ("list", "Call list_workflows."),
        ("list git clean", 'Call list_workflows(query="git clean").'),
        ("standards:fix info", 'Call get_workflow_info(workflow="standards:fix").'),
        ("standards:fix", 'Call get_workflow_info(workflow="standards:fix").'),
        ("resume wf_7", "Call get_next_step(workflow_id='wf_7')"),
        ("resume", "ask the user which one to continue"),
        ("status wf_7", "Call get_workflow_status(workflow_id='wf_7', wait_seconds=0)."),
        ("status", "Call get_workflow_status without a workflow_id"),
        ("standards:fix start", "Run this workflow."),
        (
            "standards:fix start --input branch=main --input 'note=two words'",
            'with inputs {"branch":"main","note":"two words"}',
        ),
        ("standards:fix start --input=a=b=c", 'with inputs {"a":"b=c"}'),
        ("standards:fix start --dry", "Start nothing: '--dry' is not valid"),
        ("standards:fix stop it", "That is not a valid command"),
        ("it's broken", "That is not a valid command"),
    ],
)
def test_every_form_of_the_command_says_what_to_do(typed: str, wanted: str) -> None:
    text = rendered("core", "workflow", command=typed)
    assert text.startswith(f"The user typed: /workflow {typed}".rstrip())
    assert wanted in text


@pytest.mark.parametrize(
    ("typed", "inputs"),
    [
        ('service={"a":1}', {"service": '{"a":1}'}),
        ('service={"a": [1, "} b"]} env=x', {"service": '{"a": [1, "} b"]}', "env": "x"}),
        ("files=[a, b]", {"files": "[a, b]"}),
        ("--input=files=[1, 2]", {"files": "[1, 2]"}),
        ("path=C:\\tmp\\new", {"path": "C:\\tmp\\new"}),
        ("service=it's note=Bob's", {"service": "it's", "note": "Bob's"}),
        ('note="two  words" more=\'and "more"\'', {"note": "two  words", "more": 'and "more"'}),
        ("note='Bob's own'", {"note": "Bob's own"}),
        ('"note=two words" x=1', {"note": "two words", "x": "1"}),
        ('note="" x=1', {"note": "", "x": "1"}),
        ('note=5" x={open', {"note": '5"', "x": "{open"}),
        ('note="open x=1', {"note": '"open', "x": "1"}),
        ('q=a="b c=d', {"q": 'a="b', "c": "d"}),
    ],
)
def test_what_was_typed_reaches_the_workflow_as_it_was_typed(typed: str, inputs: dict[str, str]) -> None:
    text = rendered("core", "workflow", command=f"fix start {typed}")
    assert f"with inputs {to_json(inputs)}. " in text


@pytest.mark.parametrize(
    ("words", "inputs"),
    [
        (["service=a b"], {"service": "a b"}),
        (["--input", "service=a  b", "--input", "note=it's"], {"service": "a  b", "note": "it's"}),
        (["--input=service=a b"], {"service": "a b"}),
        (['service={"a": 1}'], {"service": '{"a": 1}'}),
        (['note="two', 'words"', "x=1"], {"note": "two words", "x": "1"}),
        (['map={"a":', "1}", "x=1"], {"map": '{"a": 1}', "x": "1"}),
        (['note="open', "x=1"], {"note": '"open', "x": "1"}),
    ],
)
def test_a_word_that_came_as_one_stays_one_and_pieces_of_one_are_put_together(
    words: list[str], inputs: dict[str, str]
) -> None:
    given = {f"word{number}": word for number, word in enumerate(["start", *words], 2)}
    text = rendered("core", "workflow", command="fix", **given)
    assert f"with inputs {to_json(inputs)}. " in text


def test_words_may_come_one_by_one() -> None:
    words = {"command": "standards:fix", "word2": "start", "word3": "--input", "word4": "a=1"}
    whole = rendered("core", "workflow", command="standards:fix start --input a=1")
    assert rendered("core", "workflow", **words) == whole
    assert "start_workflow" in whole
    assert "/workflow resume" in whole


def test_with_the_toolset_reactive_alone_its_own_tools_are_named() -> None:
    text = rendered("reactive", "workflow", command="standards:fix start")
    for name in ("workflow_get_info", "workflow_start", "workflow_step_complete", "workflow_checkpoint"):
        assert name in text
    assert "Call workflow_resume(workflow_id='wf_7')" in rendered(
        "reactive", "workflow", command="resume wf_7"
    )


TASKS = """
name: tasks
steps:
  - {id: work, type: parallel_foreach, items: [{id: a, file: x.ts}], sub_agent_task: one}
sub_agent_tasks:
  one: {steps: [{id: do, type: mcp_call, method: do, params: {file: "{{ file }}"}}]}
"""


@pytest.mark.parametrize(
    ("toolset", "start", "begin"),
    [("core", "start_workflow", "get_next_step"), ("reactive", "workflow_start", "workflow_get_next_step")],
)
def test_the_prompt_of_a_sub_agent_has_its_task_in_place(
    place: Any, toolset: str, start: str, begin: str
) -> None:
    (place.workspace / "workflows.toml").write_text(f'toolsets = ["{toolset}"]\n')
    place.define("tasks", TASKS)

    async def work(agent: Any) -> None:
        run_id = (await agent.call(start, workflow="tasks"))["workflow_id"]
        text = await text_of(agent.client, "workflow_sub_agent", workflow_id=run_id, task_id="a")
        task = f"{run_id}.work.a"
        assert await text_of(agent.client, "workflow_sub_agent", workflow_id=task) == text
        assert f"Call {begin}(" in text
        assert "x.ts" in text
        assert task in text
        assert "{" not in text.replace('{"', "")
        # what it says works
        first = await agent.call(begin, workflow_id=run_id, task_id=task)
        assert first["status"] == "pending_action"
        with pytest.raises(MCPError, match="is a run, not a task"):
            await agent.client.get_prompt("workflow_sub_agent", {"workflow_id": run_id})

    place.serve(work)


@pytest.mark.parametrize("piece", ["{ 'word ", '"word { ', "[[ ", "note={ "])
def test_a_line_of_many_beginnings_and_no_end_is_taken_apart_all_the_same(piece: str) -> None:
    """Looking for the end of each of them would take minutes."""
    typed = piece * 5000
    assert words_typed(typed) == typed.split()


@pytest.mark.parametrize(
    ("toolset", "call"),
    [("core", "control_workflow(workflow_id, action='context_full')"), ("reactive", "workflow_checkpoint(")],
)
def test_the_prompt_of_the_orchestrator_has_what_the_author_of_the_workflow_says(
    place: Any, toolset: str, call: str
) -> None:
    (place.workspace / "workflows.toml").write_text(f'toolsets = ["{toolset}"]\n')
    says = "orchestrator_behavior: [Check approximate token usage]\n"
    handler = "on_high_context_usage: {steps: [{type: user_message, message: saved}]}\n"
    place.define(
        "long",
        f"name: long\nprompt: true\n{says}{handler}steps: [{{id: lint, type: mcp_call, method: lint}}]\n",
    )

    async def work(agent: Any) -> None:
        for prompt, given in (("workflow_orchestrator", {"workflow_name": "long"}), ("long", {})):
            text = await text_of(agent.client, prompt, **given)
            said = text.partition("The author of this workflow says:\n")[2]
            assert said.startswith("- Check approximate token usage\n")
            assert f"When your context is nearly full: {call}" in said

    place.serve(work)
