"""The plugin for Claude Code: what it says agrees with the server, and Claude Code itself takes it and works with it."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.claude_code import Claude, claude_code
from support.scripted_model import last_result, scripted_model, texts
from workflows_mcp import __version__
from workflows_mcp.answers.actions import SUB_AGENT_PROMPT
from workflows_mcp.mcp_server.compat import reactive
from workflows_mcp.mcp_server.tools import core
from workflows_mcp.steps.registry import default_registry

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ROOT / "plugin"
COMMAND = PLUGIN / "commands" / "workflow.md"
AGENT = PLUGIN / "agents" / "workflow-task.md"
TOOL = "mcp__plugin_workflows_workflows__"
TOOLS = {tool.name for tool in core.TOOLSET.make().values()}
FORMS = (
    "list",
    "NAME info",
    "NAME start [--input key=value ...]",
    "resume WORKFLOW_ID",
    "status WORKFLOW_ID",
)
HANDED_OUT = {"parallel_tasks", "foreach", "sub_agent_prompt"}
"""What an action that hands out tasks has, beyond the types of steps."""
ELSEWHERE = {"workflow_resume"}
"""Tools of other toolsets, which the pages name for servers that have them."""


def data(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def page(path: Path) -> tuple[dict[str, Any], str]:
    """What stands above the text, and the text."""
    _, above, text = path.read_text(encoding="utf-8").split("---\n", 2)
    found: dict[str, Any] = yaml.safe_load(above)
    return found, text


def words_of(schema: object) -> Iterator[str]:
    """Every property, and every value of a choice, in a schema."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        yield from (value for value in schema.get("enum", ()) if isinstance(value, str))
        for value in schema.values():
            yield from words_of(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from words_of(value)


def known_words() -> set[str]:
    """The names of tools, of what they take and give, and of what an agent is handed."""
    found = TOOLS | HANDED_OUT | ELSEWHERE
    for tool in core.TOOLSET.make().values():
        found |= {*words_of(tool.parameters), *words_of(tool.output_schema)}
    registry = default_registry()
    for name in registry.own_names():
        found |= {name, *registry.get(name).dialect_names.values()}
    return found


def test_the_plugin_and_the_marketplace_agree_with_the_package() -> None:
    manifest = data(PLUGIN / ".claude-plugin" / "plugin.json")
    assert manifest["version"] == __version__
    market = data(ROOT / ".claude-plugin" / "marketplace.json")
    [listed] = market["plugins"]
    assert (listed["name"], listed["description"]) == (manifest["name"], manifest["description"])
    assert (ROOT / listed["source"]).resolve() == PLUGIN
    assert "version" not in listed, "the plugin says it"


def test_the_plugin_starts_the_server_by_the_command_that_the_package_installs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == __version__
    [server] = data(PLUGIN / ".mcp.json")["mcpServers"].values()
    default = re.fullmatch(r"\$\{WORKFLOWS_MCP_COMMAND:-([\w-]+)\}", server["command"])
    assert default is not None
    assert default[1] in project["scripts"]
    assert server["args"] == ["serve"]


def test_who_has_the_program_elsewhere_is_told_how_to_say_where() -> None:
    """By the page that starts the plugin from a checkout, and by the model where the tools do not come."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    [line] = re.findall(r"^.*claude --plugin-dir.*$", readme, re.M)
    assert line.startswith("WORKFLOWS_MCP_COMMAND=/path/to/this/.venv/bin/workflows-mcp ")
    said = " ".join(page(COMMAND)[1].split())
    assert "on the `PATH` of Claude Code" in said
    assert "`WORKFLOWS_MCP_COMMAND=/path/to/workflows-mcp`" in said


@pytest.mark.rows("R23")
def test_the_command_is_called_workflow_and_has_all_of_its_forms() -> None:
    above, text = page(COMMAND)
    assert above["name"] == "workflow"
    assert above["argument-hint"] == " | ".join(FORMS)
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert [form for form in FORMS if not any(f"`{form}`" in row for row in rows)] == []
    assert "/workflow $ARGUMENTS" in text


@pytest.mark.rows("R23")
@pytest.mark.parametrize("path", [COMMAND, AGENT], ids=lambda path: path.stem)
def test_the_pages_for_the_model_name_nothing_that_the_server_does_not_have(path: Path) -> None:
    _, text = page(path)
    named = set(re.findall(r"`(?:action\.)?([a-z]+(?:_[a-z]+)+)`", text))
    assert named & TOOLS
    assert {tool.name for tool in reactive.TOOLSET.make().values()} >= ELSEWHERE
    assert named - known_words() == set()


@pytest.mark.rows("R23")
def test_the_command_may_use_tools_that_exist_and_does_not_cancel_unasked() -> None:
    allowed = page(COMMAND)[0]["allowed-tools"].split(", ")
    assert {name.removeprefix(TOOL) for name in allowed} == TOOLS - {"validate_workflow_yaml"}


@pytest.mark.rows("R23")
def test_sub_agents_are_told_the_same_by_the_plugin_and_by_the_server() -> None:
    above, text = page(AGENT)
    assert above["name"] == AGENT.stem
    assert f"`workflows:{AGENT.stem}`" in page(COMMAND)[1]
    assert "tools" not in above, "a task can need any tool"
    assert "get_next_step" in SUB_AGENT_PROMPT
    assert "the call in `next`" in SUB_AGENT_PROMPT
    for said in (SUB_AGENT_PROMPT, " ".join(text.split())):
        assert "ou cannot ask the user: if a step cannot be done, or is for the user, submit" in said
    for name in ("get_next_step", "submit_result", "get_workflow_status"):
        assert f"`{name}`" in text
    for placeholder in ("{workflow_id}", "{input}"):
        assert placeholder in SUB_AGENT_PROMPT
        assert f"`{placeholder}`" in page(COMMAND)[1]


@pytest.fixture
def claude(tmp_path: Path) -> Claude:
    home = tmp_path / "claude"
    home.mkdir()
    return claude_code(home)


@pytest.mark.slow
@pytest.mark.rows("R23")
def test_claude_code_finds_nothing_wrong_with_the_plugin(claude: Claude, tmp_path: Path) -> None:
    for path in (PLUGIN, ROOT / ".claude-plugin" / "marketplace.json"):
        said = claude("plugin", "validate", "--strict", path)
        assert said.returncode == 0, said.stdout + said.stderr
    broken = tmp_path / "broken"
    shutil.copytree(PLUGIN, broken)
    (broken / ".claude-plugin" / "plugin.json").write_text('{"version": 1}', encoding="utf-8")
    assert claude("plugin", "validate", broken).returncode != 0


GREET = """\
name: greet
description: Greets somebody, if that is fine
inputs:
  who: {type: string, description: Whom}
blocks:
  - id: approve
    type: Prompt
    inputs: {prompt: 'Greet ${inputs.who}?'}
outputs: {said: "Hello ${inputs.who}: ${blocks.approve.outputs.response}"}
"""


@pytest.mark.slow
@pytest.mark.rows("R23")
def test_claude_code_installs_the_plugin_and_runs_a_workflow_with_its_command(
    claude: Claude, tmp_path: Path
) -> None:
    for arguments in (("marketplace", "add", ROOT), ("install", "workflows@workflows-mcp")):
        said = claude("plugin", *arguments)
        assert said.returncode == 0, said.stdout + said.stderr
    project = tmp_path / "project"
    (project / ".workflows").mkdir(parents=True)
    (project / ".workflows" / "greet.yaml").write_text(GREET, encoding="utf-8")
    server = tmp_path / "workflows-mcp"
    server.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m workflows_mcp "$@"\n', encoding="utf-8")
    server.chmod(0o755)

    def answered(messages: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
        asked = last_result(messages)
        assert asked["action"]["parameters"]["prompt"] == "Greet Ada?"
        step = asked["action"]["step_id"]
        return f"{TOOL}submit_result", {
            "workflow_id": asked["workflow_id"],
            "step_id": step,
            "result": "yes",
        }

    turns = [
        lambda messages: (f"{TOOL}get_workflow_info", {"workflow": "greet"}),
        lambda messages: (f"{TOOL}start_workflow", {"workflow": "greet", "inputs": {"who": "Ada"}}),
        answered,
        lambda messages: last_result(messages)["outputs"]["said"],
    ]
    with scripted_model(turns) as (address, last_seen):
        said = claude(
            *("-p", "/workflow greet start --input who=Ada", "--output-format", "stream-json", "--verbose"),
            cwd=project,
            environment={
                "ANTHROPIC_BASE_URL": address,
                "ANTHROPIC_API_KEY": "none",
                "WORKFLOWS_MCP_COMMAND": str(server),
                "WORKFLOWS_HOME": str(tmp_path / "runs"),
            },
        )
    told = [json.loads(line) for line in said.stdout.splitlines()]
    [begun] = [it for it in told if it["type"] == "system" and it.get("subtype") == "init"]
    assert "workflows:workflow-task" in begun["agents"]
    assert {f"{TOOL}{name}" for name in TOOLS} <= set(begun["tools"])
    assert "The user typed: `/workflow greet start --input who=Ada`" in texts(last_seen[0]["messages"])
    assert told[-1]["result"] == "Hello Ada: yes"
    assert told[-1]["permission_denials"] == []
    assert (tmp_path / "runs").is_dir(), "settings reach the server through the environment"
