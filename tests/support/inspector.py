"""The MCP Inspector on the command line, as a client that nobody here wrote.

    with inspector(command, era="modern", …) as client:     # skips the test where it cannot be had
        client.call("list_workflows", query="greet")        # the structured content; an error fails the test
        client.ask("prompts/list")

`mcpdo` keeps the connection in a daemon, so that a call costs the start of Node and not that of the server.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from support.node import node, npm_package

PACKAGE = "@modelcontextprotocol/inspector@2"
Era = Literal["modern", "legacy"]
_CONNECTION = "server"


@dataclass(frozen=True)
class Inspector:
    programs: Path
    cwd: Path
    environment: Mapping[str, str]

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return node(self.programs / program, *arguments, cwd=self.cwd, environment=self.environment)

    def ask(self, method: str, *arguments: str) -> dict[str, Any]:
        """What a command of the open connection gives."""
        said = self.run(
            "mcpdo/build/mcp-bin.js", method, *arguments, "--connection", _CONNECTION, "--format", "json"
        )
        assert said.returncode == 0, f"{method} {arguments}: {said.stdout}{said.stderr}"
        found: dict[str, Any] = json.loads(said.stdout)
        return found

    def call(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        given = json.dumps(arguments)
        answer = self.ask("tools/call", "--tool-name", tool, "--tool-args-json", given)
        structured: dict[str, Any] = answer["structuredContent"]
        assert json.loads(answer["content"][0]["text"]) == structured
        return structured

    def strictly(self, command: Sequence[str], era: Era, method: str) -> dict[str, Any]:
        """What a method gives without a daemon, where schemas that some clients cannot read are errors."""
        said = self.run(
            "launcher/build/index.js",
            *("--cli", *command, "--protocol-era", era, "--method", method),
            *("--strict", "--format", "json", "-q"),
        )
        assert said.returncode == 0, said.stdout + said.stderr
        found: dict[str, Any] = json.loads(said.stdout)["result"]
        return found


@contextmanager
def inspector(
    command: Sequence[str], era: Era, *, cwd: Path, environment: Mapping[str, str]
) -> Iterator[Inspector]:
    place = npm_package(PACKAGE)
    # The path of a socket is short by nature, and that of a test's own directory is not.
    with tempfile.TemporaryDirectory(prefix="mcp-") as home:
        alone = {
            "HOME": home,
            "MCP_INSPECTOR_DAEMON_DIR": f"{home}/daemon",
            "MCP_INSPECTOR_DAEMON_TOKEN": secrets.token_urlsafe(16),
            "MCP_INSPECTOR_SECRET_STORE": "memory",
            "NODE_COMPILE_CACHE": str(place / "compiled"),
        }
        programs = place / "node_modules" / "@modelcontextprotocol" / "inspector" / "clients"
        client = Inspector(programs, cwd, {**alone, **environment})
        do = "mcpdo/build/mcp-bin.js"
        asked_nothing = ("--elicit", "off")
        try:
            said = client.run(do, "connect", f"@{_CONNECTION}", "--era", era, *asked_nothing, "--", *command)
            assert said.returncode == 0, said.stdout + said.stderr
            yield client
        finally:
            client.run(do, "daemon", "stop")
