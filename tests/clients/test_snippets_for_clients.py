"""What the documents tell people to paste into their clients parses, and asks of our program what it can do."""

from __future__ import annotations

import json
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.claude_code import claude_code
from workflows_mcp.cli.main import build_parser
from workflows_mcp.settings.model import _READERS, PREFIX, load_settings, read_toolsets

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs" / "clients.md", ROOT / "plugin" / "README.md"]
PROGRAM = "workflows-mcp"
OUTSIDE = {"WORKFLOWS_MCP_COMMAND"}
"""Read by the plugin and by clients, not by the server."""
_FENCE = re.compile(r"^ *```(\w*)([^\n]*)\n(.*?)^ *```$", re.M | re.S)


def fences(page: Path) -> Iterator[tuple[str, str]]:
    for match in _FENCE.finditer(page.read_text(encoding="utf-8")):
        yield match[1], match[3]


def servers() -> Iterator[Any]:
    """Every server that a snippet describes, whatever the client calls the list of them."""
    for page in PAGES:
        for language, text in fences(page):
            if language not in ("json", "toml"):
                continue
            data = json.loads(text) if language == "json" else tomllib.loads(text)
            for key in ("mcpServers", "servers", "mcp_servers"):
                for name, server in data.get(key, {}).items():
                    yield pytest.param(server, id=f"{page.stem}-{key}-{name}")


def commands() -> Iterator[Any]:
    """Every line in which somebody is told to add our server with a command of a client, and what it is to start."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for line in re.findall(r"(?:claude|codex) mcp add [^\n`]*", text):
            yield pytest.param(line, id=f"{page.stem}-{line.split()[0]}")


def started(words: list[str]) -> list[str]:
    """The arguments of our program in what a client starts, also where a shell changes the directory first."""
    if words[0] == "sh":
        assert words[1] == "-c"
        place, command = words[2].split(" && exec ")
        assert place.startswith("cd ")
        words = shlex.split(command)
    program = re.sub(r"\$\{\w+:-(.+)\}", r"\1", words[0])
    assert Path(program).name == PROGRAM
    return words[1:]


def accept(arguments: list[str], environment: dict[str, str]) -> None:
    options = build_parser().parse_args(arguments)
    assert options.command in (None, "serve")
    if options.command and options.toolsets:
        read_toolsets("toolsets", options.toolsets)
    assert {it for it in environment if it.removeprefix(PREFIX).lower() not in _READERS} == set()
    load_settings(environment)


@pytest.mark.parametrize("server", list(servers()))
def test_a_client_that_reads_the_snippet_starts_our_server(server: dict[str, Any]) -> None:
    accept(started([server["command"], *server.get("args", [])]), server.get("env", {}))


@pytest.mark.parametrize("line", list(commands()))
def test_a_client_that_is_told_so_on_the_terminal_starts_our_server(line: str) -> None:
    before, command = line.split(" -- ")
    given = re.findall(r"--env (\w+)=(\S+)", before)
    accept(started(shlex.split(command)), dict(given))


def test_every_variable_that_a_page_names_is_a_setting() -> None:
    known = {f"{PREFIX}{name.upper()}" for name in _READERS} | OUTSIDE
    for page in PAGES:
        named = set(re.findall(r"\bWORKFLOWS_[A-Z_]+[A-Z]\b", page.read_text(encoding="utf-8")))
        assert named - known == set(), page.name


def test_every_flag_of_the_server_that_the_page_names_exists() -> None:
    text = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
    for arguments in re.findall(r'"args": (\["serve".*?\])', text):
        accept(json.loads(arguments), {})


def test_there_are_snippets_for_every_client_that_the_page_is_about() -> None:
    text = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
    for client in ("Claude Code", "Codex", "Cursor", "VS Code", "Claude Desktop"):
        section = text.split(f"\n## {client}\n")[1].split("\n## ")[0]
        assert "```" in section
    assert len(list(servers())) >= 6


@pytest.mark.slow
def test_claude_code_takes_the_lines_for_it_and_connects(tmp_path: Path) -> None:
    program, project = tmp_path / PROGRAM, tmp_path / "project"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m workflows_mcp "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    project.mkdir()
    claude = claude_code(tmp_path)
    page = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
    lines = re.findall(r"^claude (mcp add [^\n]*)", page, re.M)
    assert len(lines) == 2
    for line in lines:
        added = claude(*shlex.split(line.replace(f"/path/to/{PROGRAM}", str(program))), cwd=project)
        assert added.returncode == 0, added.stderr
    shared = json.loads((project / ".mcp.json").read_text(encoding="utf-8"))["mcpServers"]["workflows"]
    assert shared["args"] == ["serve"]
    assert shared["env"] == {"WORKFLOWS_TOOLSETS": "core,graph"}
    listed = claude("mcp", "list", cwd=project, environment={"WORKFLOWS_HOME": str(tmp_path / "runs")})
    assert re.search(rf"workflows: {program}.* Connected", listed.stdout), listed.stdout
