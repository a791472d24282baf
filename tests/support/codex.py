"""Codex itself, for tests of what it is given: installed from npm, once, and run in a home of its own.

    codex = codex_cli(home)                                   # skips the test where it cannot be had
    codex("Run the workflow greet", address, server, cwd=…)   # what it said, line by line as JSON

It speaks the Responses API to the address, and to nobody else.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from support.node import npm_package

PACKAGE = "@openai/codex@0"
RUN_SECONDS = 60


class Codex(Protocol):
    def __call__(
        self,
        asked: str,
        address: str,
        server: Sequence[str],
        *,
        cwd: Path,
        environment: Mapping[str, str],
        resumes: bool = False,
        settings: str = "",
    ) -> list[dict[str, Any]]: ...


def codex_cli(home: Path) -> Codex:
    """A function that runs it with one MCP server, called `workflows`, whose tools need no approval."""
    program = codex_program()

    def run(
        asked: str,
        address: str,
        server: Sequence[str],
        *,
        cwd: Path,
        environment: Mapping[str, str],
        resumes: bool = False,
        settings: str = "",
    ) -> list[dict[str, Any]]:
        """`resumes` the last conversation; `settings` stand first in its file. Hooks in its home need no trust."""
        whole = settings + _settings(address, server, environment)
        (home / "config.toml").write_text(whole, encoding="utf-8")
        hooks = ["--dangerously-bypass-hook-trust"] if (home / "hooks.json").exists() else []
        last = ["resume", "--last"] if resumes else []
        said = subprocess.run(
            [program, "exec", *last, "--skip-git-repo-check", *hooks, "--json", asked],
            cwd=cwd,
            env={"PATH": os.environ["PATH"], "HOME": str(home), "CODEX_HOME": str(home)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
        assert said.returncode == 0, said.stdout + said.stderr
        return [json.loads(line) for line in said.stdout.splitlines()]

    return run


def codex_program() -> str:
    """Where it is. Skips the test where it cannot be had."""
    found = sorted(npm_package(PACKAGE).glob("node_modules/@openai/codex-*/vendor/*/bin/codex"))
    if not found:
        pytest.skip(f"{PACKAGE} has no program for this machine")
    return str(found[0])


def settings_of_model(address: str) -> str:
    """The settings of Codex for a model on loopback."""
    return f"""\
model = "scripted"
model_provider = "loopback"

[model_providers.loopback]
name = "loopback"
base_url = "{address}/v1"
wire_api = "responses"
"""


def _settings(address: str, server: Sequence[str], environment: Mapping[str, str]) -> str:
    # JSON is TOML, as far as texts and lists of them go.
    command, *arguments = server
    of_server = "\n".join(f"{name} = {json.dumps(value)}" for name, value in environment.items())
    return f"""\
{settings_of_model(address)}
[mcp_servers.workflows]
command = {json.dumps(command)}
args = {json.dumps(arguments)}
required = true  # the first turn waits until it is there
default_tools_approval_mode = "approve"  # `exec` has nobody to ask

[mcp_servers.workflows.env]
{of_server}
"""
