"""The documents are run: every workflow in them is checked, and the tutorial is carried out line by line."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import forked

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.M | re.S)


def fences(document: Path) -> Iterator[tuple[str, str, str]]:
    """Language, what stands behind it, and text of every block of code."""
    for match in _FENCE.finditer(document.read_text(encoding="utf-8")):
        yield match[1], match[2], match[3]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_workflow_in_a_document_is_right(document: Path, terminal: Any) -> None:
    found = [
        (extra, text)
        for language, extra, text in fences(document)
        if language == "yaml" and text.startswith("name:") and "invalid" not in extra
    ]
    for index, (extra, text) in enumerate(found):
        terminal.write(f"{index}.yaml", text)
        if name := re.search(r"file=(\S+)", extra):
            terminal.write(name[1], text)  # another one may import it
    if found:
        said = terminal.run("validate", *(f"{index}.yaml" for index in range(len(found))))
        assert said.code == 0, said.out


def test_the_tutorial_does_what_it_says(terminal: Any) -> None:
    command = terminal.home.parent / "bin" / "workflows-mcp"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {" ".join(forked.command())} "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    environment = {**terminal.environment, "PATH": f"{command.parent}:{terminal.environment['PATH']}"}
    ran = 0
    for language, extra, text in fences(ROOT / "docs" / "tutorial.md"):
        name = re.search(r"file=(\S+)", extra)
        if name:
            terminal.write(name[1], text)
        if language != "console":
            continue
        for line, expected in _commands(text):
            if "RUN_ID" in line:
                run_id = json.loads(terminal.run("runs", "--json").out)["runs"][0]["workflow_id"]
                line = line.replace("RUN_ID", run_id)  # noqa: PLW2901 - the reader does the same
            done = subprocess.run(
                line,
                shell=True,
                cwd=terminal.workspace,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=60,
                check=False,
            )
            shown = [text.rstrip() for text in done.stdout.splitlines()]
            for wanted in expected:
                assert wanted in shown, f"{line}\nsays\n{done.stdout}\nand not\n{wanted}"
            ran += 1
    assert ran > 8


def _commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each command with the lines that stand below it."""
    for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
        command, *expected = part.rstrip().splitlines()
        yield command, expected


def test_links_between_documents_lead_somewhere() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


@pytest.mark.rows("G1", "G6", "G12", "G16")
def test_the_demo_runs_twice_and_leaves_its_file(tmp_path: Path, terminal: Any) -> None:
    for name in ("release-notes.yaml", "quality-check.yaml"):
        terminal.write(f"examples/{name}", (ROOT / "examples" / name).read_text(encoding="utf-8"))
    for _ in range(2):
        said = terminal.run("run", "examples/release-notes.yaml", "--input", "project=demo", "--json")
        assert said.code == 0, said.err
        assert said.data["outputs"]["published"] is False
        assert "no tabs, no trailing spaces" in said.data["outputs"]["notes"]
    assert (terminal.workspace / "build" / "release-notes-demo.md").read_text().startswith("# demo 1.0.0")
    said = terminal.run(
        "run", "examples/release-notes.yaml", "-i", "project=demo", "-i", "publish=true", "--json"
    )
    assert said.data["outputs"]["published"] is True


@pytest.mark.rows("G22")
@pytest.mark.parametrize(
    ("name", "outputs"),
    [("example-hello", {"greeting": "Hello, world!"}), ("example-parallel", None)],
)
def test_built_in_workflows_run(terminal: Any, name: str, outputs: dict[str, Any] | None) -> None:
    terminal.write("a file.txt", "x")
    said = terminal.run("run", name, "--json")
    assert said.code == 0, said.err
    if outputs is None:
        assert re.fullmatch(r"1 files, .* in all, newest: a file\.txt", said.data["outputs"]["report"])
    else:
        assert said.data["outputs"] == outputs
