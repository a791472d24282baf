"""The settings of agents: which programs perform their steps, and who may say so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from workflows_mcp.errors import RequestError
from workflows_mcp.settings.agents import PRESETS, AgentCommand, find_agent, read_agents
from workflows_mcp.settings.model import Settings, load_settings

pytestmark = pytest.mark.rows("P9")


def loaded(directory: Path, text: str = "", **environ: str) -> Settings:
    (directory / "workflows.toml").write_text(text)
    return load_settings({"HOME": str(directory), **environ}, workspace=directory)


TABLE = """
[agents.code-reviewer]
command = ["review", "--ask", "{prompt}"]
timeout = 60
env = {MODE = "strict"}

[agents.claude]
args = ["--model", "opus"]

[agents.fast]
preset = "codex"
args = ["--model", "small"]
"""


def test_an_agent_is_a_command_or_a_preset_with_more_arguments(tmp_path: Path) -> None:
    agents = loaded(tmp_path, TABLE, WORKFLOWS_TRUST=str(tmp_path)).agents
    assert agents["code-reviewer"] == AgentCommand(
        "code-reviewer",
        ("review", "--ask", "{prompt}"),
        in_argument=True,
        timeout=60.0,
        env={"MODE": "strict"},
    )
    assert agents["claude"].command == ("claude", "-p", "--output-format", "json", "--model", "opus")
    assert agents["claude"].output == "claude"
    assert agents["fast"].arguments("hello") == [*PRESETS["codex"].command, "--model", "small"]
    assert not agents["fast"].in_argument


def test_a_project_that_is_not_trusted_cannot_name_programs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert loaded(tmp_path, TABLE).agents == {}
    assert "these settings of its files are ignored: agents" in caplog.text


def test_the_environment_can_name_programs_as_json(tmp_path: Path) -> None:
    given = json.dumps({"helper": {"command": ["help-me"], "output": "json"}})
    agents = loaded(tmp_path, WORKFLOWS_AGENTS=given).agents
    assert agents["helper"].output == "json"
    assert agents["helper"].arguments("hello") == ["help-me"]


def test_the_prompt_stands_where_the_command_says_or_last(tmp_path: Path) -> None:
    first, second = (
        read_agents("agents", {"a": {"command": command, "input": "argument"}})["a"]
        for command in (["x", "--ask={prompt}", "-q"], ["x", "-q"])
    )
    assert first.arguments("hello") == ["x", "--ask=hello", "-q"]
    assert second.arguments("hello") == ["x", "-q", "hello"]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, "has no command"),
        ({"command": []}, "must name a program"),
        ({"command": "claude -p"}, "must be a list of texts"),
        ({"command": ["x"], "args": [1]}, "must be a list of texts"),
        ({"command": ["x"], "ouput": "json"}, "unknown setting 'agents.a.ouput'"),
        ({"command": ["x"], "output": "xml"}, "cannot be 'xml'"),
        ({"command": ["x"], "input": "file"}, "cannot be 'file'"),
        ({"command": ["x", "{prompt}"], "input": "stdin"}, "but input is stdin"),
        ({"preset": "cluade"}, "cannot be 'cluade'"),
        ({"command": ["x"], "timeout": 0}, "more than 0"),
        ({"command": ["x"], "timeout": True}, "more than 0"),
        ({"command": ["x"], "env": {"A": 1}}, "must be a table of texts"),
        ("claude", "must be a table"),
    ],
)
def test_a_wrong_setting_says_which_and_how_to_fix_it(spec: Any, expected: str) -> None:
    with pytest.raises(RequestError) as refused:
        read_agents("agents", {"a": spec})
    assert expected in str(refused.value)


def test_a_name_that_no_definition_can_use_is_refused() -> None:
    with pytest.raises(RequestError, match=r"agents\.Code_Reviewer"):
        read_agents("agents", {"Code_Reviewer": {"command": ["x"]}})


def test_a_preset_needs_no_setting_where_its_program_is_on_the_path() -> None:
    def nowhere(name: str) -> None:
        return None

    assert find_agent("claude", {}, str) == PRESETS["claude"]
    assert find_agent("claude", {}, nowhere) is None
    assert find_agent("other", {}, str) is None
    own = {"claude": AgentCommand("claude", ("mine",))}
    assert find_agent("claude", own, nowhere) == own["claude"]


def test_a_run_is_recovered_only_where_its_agents_are_the_same_programs(tmp_path: Path) -> None:
    def fingerprint(command: str) -> str:
        given = json.dumps({"helper": {"command": [command, "--key", "secret"]}})
        return loaded(tmp_path, WORKFLOWS_AGENTS=given).fingerprint

    assert fingerprint("one") == fingerprint("one")
    assert fingerprint("one") != fingerprint("two")
