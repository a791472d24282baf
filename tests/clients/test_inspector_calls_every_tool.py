"""The MCP Inspector in both eras of the protocol: it finds nothing wrong with our lists, and calls every tool of every
toolset. The calls are a table; a tool that is not in it is called with arguments that its schema asks for."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from support.inspector import Era, Inspector, inspector
from workflows_mcp.mcp_server.prompts import prompts_of
from workflows_mcp.mcp_server.toolsets import tools_of
from workflows_mcp.settings.model import TOOLSETS

SERVER = [sys.executable, "-m", "workflows_mcp", "serve", "--toolsets", "all"]
TOOLS = [tool.name for tool in tools_of(TOOLSETS)]

GREET = """\
name: greet
description: Greets somebody, if that is fine
inputs:
  who: {type: string, required: true}
blocks:
  - id: hello
    type: Shell
    inputs: {command: 'echo "Hello ${inputs.who}"'}
  - id: approve
    type: Prompt
    depends_on: [hello]
    inputs: {prompt: 'Greet ${inputs.who}?'}
outputs: {said: "${blocks.hello.outputs.stdout}", answer: "${blocks.approve.outputs.response}"}
"""
SHOUT = """\
name: shout
description: Says a word louder
inputs:
  word: {type: string, required: true}
default_state: {raw: {heard: ""}}
state_schema:
  computed:
    loud: {from: raw.heard, transform: "input.toUpperCase()"}
steps:
  - {id: ask, type: user_input, prompt: "{{ word }}?", state_update: {path: raw.heard}}
  - {id: again, type: user_input, prompt: "{{ loud }}?", state_update: {path: raw.again}}
"""


@dataclass(frozen=True)
class Call:
    """A call, and what its answer must have. `<name>` in an argument stands for what an earlier answer had, which
    that call has noted under the name."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    has: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


ADA = {"workflow": "greet", "inputs": {"who": "Ada"}}
CORE = (  # and stateful, which has its own answers to some of the same calls
    Call("list_workflows", {"query": "somebody"}),
    Call("get_workflow_info", {"workflow": "greet"}, {"workflow": "greet", "dialect": "graph"}),
    Call("validate_workflow_yaml", {"yaml_content": GREET}, {"valid": True}),
    Call("start_workflow", ADA, {"status": "pending_action"}, {"run": "workflow_id"}),
    Call("get_next_step", {"workflow_id": "<run>"}, {"step_id": "approve"}),
    Call("get_workflow_status", {"workflow_id": "<run>"}, {"status": "pending_action"}),
    Call(
        "submit_result",
        {"workflow_id": "<run>", "step_id": "approve", "result": {"response": "yes"}},
        {"status": "completed", "outputs": {"said": "Hello Ada\n", "answer": "yes"}},
    ),
    Call(
        "get_workflow_state",
        {"workflow_id": "<run>", "paths": ["outputs.said"]},
        {"values": {"outputs.said": "Hello Ada\n"}},
    ),
    Call("start_workflow", ADA, {"status": "pending_action"}, {"flat": "workflow_id"}),
    Call(
        "submit_step_result",
        {"workflow_id": "<flat>", "step_id": "approve", "result": "no"},
        {"status": "complete"},
    ),
)
GRAPH = (
    Call(
        "execute_workflow",
        ADA,
        {"status": "paused", "prompt": "Greet Ada?"},
        {"paused": "workflow_id", "question": "checkpoint_id"},
    ),
    Call("list_checkpoints", {"workflow_id": "<paused>"}),
    Call("get_checkpoint_info", {"checkpoint_id": "<question>"}, {"type": "pause", "moved_on": False}),
    Call("resume_workflow", {"checkpoint_id": "<question>", "response": "yes"}, {"status": "success"}),
    Call(
        "execute_inline_workflow",
        {"workflow_yaml": GREET, "inputs": {"who": "Bob"}, "response_format": "detailed"},
        {"status": "paused", "prompt": "Greet Bob?"},
        {"inline": "workflow_id", "other": "checkpoint_id"},
    ),
    Call("delete_checkpoint", {"checkpoint_id": "<other>"}, {"deleted": True}),
    Call("control_workflow", {"workflow_id": "<inline>", "action": "cancel"}, {"status": "cancelled"}),
    Call("get_workflow_schema", {"dialect": "graph"}, {"type": "object"}),
)
REACTIVE = (
    Call("workflow_list", {"include_global": False}),
    Call("workflow_get_info", {"workflow": "shout"}, {"name": "shout"}),
    Call("workflow_load_definition", {"workflow": "shout"}, {"name": "shout"}),
    Call(
        "workflow_start",
        {"workflow": "shout", "inputs": {"word": "hello"}},
        {"status": "pending_action"},
        {"steps": "workflow_id"},
    ),
    Call("workflow_get_next_step", {"workflow_id": "<steps>"}, {"status": "pending_action"}),
    Call(
        "workflow_step_complete",
        {"workflow_id": "<steps>", "step_id": "ask", "result": "ahoy"},
        {"success": True, "status": "pending_action"},
    ),
    Call("workflow_state_read", {"workflow_id": "<steps>", "paths": ["loud"]}, {"loud": "AHOY"}),
    Call(
        "workflow_state_update",
        {"workflow_id": "<steps>", "updates": [{"path": "raw.heard", "value": "hey"}]},
        {"success": True, "computed": {"loud": "HEY"}},
    ),
    Call(
        "workflow_state_dependencies",
        {"workflow_id": "<steps>", "field": "loud"},
        {"direct_deps": ["raw.heard"]},
    ),
    Call("workflow_checkpoint", {"workflow_id": "<steps>", "reason": "That is enough for now"}),
    Call("workflow_resume", {"workflow_id": "<steps>"}, {"workflow": "shout"}),
    # what `debug` tells of the same run
    Call("workflow_trace_transformations", {"workflow_id": "<steps>", "include_timing": True}),
    Call("workflow_debug_info", {"workflow_id": "<steps>"}, {"current_step": "again"}),
    Call(
        "workflow_test_transformation",
        {"transform": "input.length", "input": [1, 2]},
        {"success": True, "output": 2},
    ),
    Call("workflow_explain_plan", {"workflow": "shout", "inputs": {"word": "hello"}}),
    Call("workflow_complete", {"workflow_id": "<steps>", "status": "cancelled"}, {"status": "cancelled"}),
)
MEMORY = (
    Call("save_to_memory", {"key": "greeted", "value": {"who": ["Ada"]}}, {"saved": True}),
    Call("load_from_memory", {"key": "greeted"}, {"found": True, "value": {"who": ["Ada"]}}),
    Call("list_memory_keys", {"prefix": "gr"}, {"keys": ["greeted"], "count": 1}),
)


def unlisted(listed: Sequence[Sequence[Call]]) -> Iterator[Call]:
    """Calls of the tools that no chain has: what each requires is a workflow, a run, or any text."""
    named = {call.tool for chain in listed for call in chain}
    known = {"workflow": "greet", "workflow_id": "<run>", "yaml_content": GREET}
    yield Call("start_workflow", ADA, notes={"run": "workflow_id"})
    for tool in tools_of(TOOLSETS):
        if tool.name not in named:
            required = tool.parameters.get("required", [])
            yield Call(tool.name, {name: known.get(name, "any") for name in required})


LISTED = (CORE, GRAPH, REACTIVE, MEMORY)
CHAINS = (*LISTED, tuple(unlisted(LISTED)))
"""Those of a chain build upon one another; chains know nothing of each other."""


def filled(value: Any, noted: Mapping[str, str]) -> Any:
    """The arguments with what is noted in place."""
    match value:
        case str() if named := re.fullmatch(r"<(\w+)>", value):
            return noted[named[1]]
        case dict():
            return {key: filled(item, noted) for key, item in value.items()}
    return value


def make(client: Inspector, chain: Sequence[Call]) -> None:
    noted: dict[str, str] = {}
    for call in chain:
        found = client.call(call.tool, filled(call.arguments, noted))
        assert {key: found.get(key) for key in call.has} == call.has, call.tool
        noted |= {name: found[key] for name, key in call.notes.items()}


@pytest.fixture(scope="module", params=["modern", "legacy"])
def era(request: pytest.FixtureRequest) -> Era:
    found: Era = request.param
    return found


@pytest.fixture(scope="module")
def client(era: Era, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inspector]:
    workspace = tmp_path_factory.mktemp("workspace")
    (workspace / ".workflows").mkdir()
    for name, text in {"greet": GREET, "shout": SHOUT}.items():
        (workspace / ".workflows" / f"{name}.yaml").write_text(text, encoding="utf-8")
    store = {"WORKFLOWS_HOME": str(tmp_path_factory.mktemp("store"))}
    with inspector(SERVER, era, cwd=workspace, environment=store) as connected:
        yield connected


def test_the_calls_have_every_tool_of_every_toolset() -> None:
    assert {call.tool for chain in CHAINS for call in chain} == set(TOOLS)


@pytest.mark.slow
def test_its_strict_look_at_the_tools_finds_no_error(client: Inspector, era: Era) -> None:
    listed = client.strictly(SERVER, era, "tools/list")
    assert [tool["name"] for tool in listed["tools"]] == TOOLS


@pytest.mark.slow
def test_it_calls_every_tool_and_every_answer_fits_what_was_published(client: Inspector, era: Era) -> None:
    shown = client.ask("connections/show")
    assert shown["protocolVersion"] == {"modern": "2026-07-28", "legacy": "2025-11-25"}[era]
    with ThreadPoolExecutor() as side_by_side:
        for _ in side_by_side.map(lambda chain: make(client, chain), CHAINS):
            pass  # raises what went wrong there


@pytest.mark.slow
def test_it_lists_prompts_and_resources(client: Inspector) -> None:
    prompts = client.ask("prompts/list")["prompts"]
    assert [prompt["name"] for prompt in prompts] == [prompt.offered.name for prompt in prompts_of(TOOLSETS)]
    assert client.ask("resources/list")["resources"]
    assert client.ask("resources/templates/list")["resourceTemplates"]


@pytest.mark.slow
def test_a_refusal_is_an_error_with_what_to_do(client: Inspector) -> None:
    call = ("tools/call", "--tool-name", "start_workflow", "--tool-args-json", '{"workflow": "great"}')
    said = client.run("mcpdo/build/mcp-bin.js", *call, "--connection", "server", "--format", "json")
    assert said.returncode != 0
    assert "did you mean 'greet'?" in said.stdout + said.stderr
