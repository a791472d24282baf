"""The command as people start it: in a process of its own, with a store of runs of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support import forked


class Said(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def data(self) -> dict[str, Any]:
        """The one JSON object on stdout."""
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value


class Terminal:
    def __init__(self, directory: Path) -> None:
        self.workspace = directory / "workspace"
        self.home = directory / "home"
        self.workspace.mkdir()
        keep = {key: value for key, value in os.environ.items() if not key.startswith("WORKFLOWS_")}
        self.environment = {**keep, "WORKFLOWS_HOME": str(self.home), "HOME": str(directory), "NO_COLOR": "1"}
        self.command = [sys.executable, "-m", "workflows_mcp"]

    def write(self, name: str, text: str) -> Path:
        path = self.workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def run(self, *arguments: str, stdin: str = "") -> Said:
        done = subprocess.run(
            [*forked.command(), *arguments],
            cwd=self.workspace,
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return Said(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    return Terminal(tmp_path)
