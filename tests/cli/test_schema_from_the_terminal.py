"""`workflows-mcp schema`: the schema of workflow files, for editors."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.rows("X12")
def test_the_schema_is_printed_or_written_to_a_file(terminal: Any) -> None:
    said = terminal.run("schema")
    assert (said.code, said.err) == (0, "")
    Draft202012Validator.check_schema(said.data)
    assert "Shell" in said.data["$defs"]["block"]["properties"]["type"]["enum"]

    written = terminal.run("schema", "--output", "made/schema.json")
    path = terminal.workspace / "made" / "schema.json"
    assert (written.code, written.out) == (0, "")
    assert json.loads(path.read_text(encoding="utf-8")) == said.data
    assert "step types" not in written.err
    assert f"# yaml-language-server: $schema={path}" in written.err
    assert [it.name for it in path.parent.iterdir()] == ["schema.json"]
    assert not terminal.home.exists()


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_leads_nowhere(terminal: Any, closed: str) -> None:
    for command in (["schema"], ["run", "example-hello"]):
        words = shlex.join([*terminal.command, *command])
        done = subprocess.run(
            ["sh", "-c", f"{words} {closed}"],
            cwd=terminal.workspace,
            env=terminal.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert [run["status"] for run in terminal.run("runs", "--json").data["runs"]] == ["completed"]


def test_a_place_that_cannot_be_written_is_named(terminal: Any) -> None:
    (terminal.workspace / "taken").mkdir()
    said = terminal.run("schema", "-o", "taken")
    assert said.code == 2
    assert "cannot write taken: Is a directory" in said.err
    assert list(terminal.workspace.iterdir()) == [terminal.workspace / "taken"]


@pytest.mark.rows("X12")
def test_the_page_on_editors_shows_a_workflow_that_fits(terminal: Any) -> None:
    text = (ROOT / "docs" / "editor.md").read_text(encoding="utf-8")
    (example,) = re.findall(
        r"```yaml\n(# yaml-language-server: \$schema=\./schema\.json\n.*?)```", text, re.S
    )
    terminal.write("greet.yaml", example)
    assert terminal.run("run", "greet.yaml", "--json").data["status"] == "completed"
    for settings in re.findall(r"```json\n(.*?)```", text, re.S):
        json.loads(settings)
