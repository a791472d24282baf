from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest

from support.screen import Screen
from workflows_mcp import __version__

GOOD = """\
name: good
description: All is well
tags: [t]
blocks:
  - {id: a, type: Shell, inputs: {command: 'true'}}
"""
BAD = """\
name: bad
blocks:
  - id: a
    type: Shel
  - id: a
    type: Shell
    inputs: {command: 'echo ${inputs.nothing}', tiemout: 3}
"""


@pytest.mark.rows("G21")
def test_list_shows_built_in_and_own_workflows_with_their_source(terminal: Any) -> None:
    terminal.write(".workflows/good.yaml", GOOD)
    said = terminal.run("list")
    assert said.code == 0
    names = [line.split()[0] for line in said.out.splitlines()]
    assert names == sorted(names)
    assert {"example-hello", "good"} <= set(names)
    data = terminal.run("list", "--tags", "t", "--json").data
    assert [item["name"] for item in data["workflows"]] == ["good"]
    assert data["workflows"][0]["source"] == str(terminal.workspace / ".workflows")
    assert terminal.run("list", "well").out.startswith("good")


def test_the_list_has_a_line_for_each_workflow_with_the_first_sentence_that_fits_a_terminal(
    terminal: Any,
) -> None:
    first = "It does what it says, " + "and then it does it again, " * 3 + "and that is all."
    text = GOOD.replace("good", "zz").replace("All is well", f">\n  {first}\n  It also sings.")
    terminal.write(".workflows/zz.yaml", text)
    (line,) = [line for line in terminal.run("list").out.splitlines() if line.startswith("zz ")]
    assert line.endswith(first), "a program gets all of the sentence"
    terminal.environment["COLUMNS"] = "80"
    terminal.command = ["sh", "-c", 'exec "$0" "$@" >&2', *terminal.command]
    screen = Screen(terminal, "list")
    screen.wait_for("\nzz ")
    screen.wait_for("…\r\n", after="\nzz ")
    assert screen.end() == (0, "")
    lines = screen.shown.splitlines()
    assert max(map(len, lines)) == 80
    assert re.match(r"zz +\./\.workflows  It does what it says, ", lines[-1])


def test_a_broken_file_is_listed_with_the_command_that_says_why(terminal: Any) -> None:
    terminal.write(".workflows/bad.yaml", BAD)
    said = terminal.run("list")
    assert "bad" in said.out
    assert "workflows-mcp validate" in said.err


def test_two_files_of_one_name_are_told_wherever_the_name_is_used_and_info_says_which_it_is(
    terminal: Any,
) -> None:
    hidden = terminal.write(".workflows/a.yaml", GOOD)
    used = terminal.write(".workflows/b.yaml", GOOD)
    for command in (["list"], ["info", "good"], ["run", "good"]):
        said = terminal.run(*command)
        assert said.code == 0, said.err
        assert said.err.count("two files hold a workflow named 'good'") == 1
        assert ".workflows/b.yaml is used, .workflows/a.yaml is not" in said.err
    said = terminal.run("validate", str(hidden))
    assert said.code == 0
    assert "warning: the name 'good' is also used by .workflows/b.yaml" in said.out
    assert f"graph dialect, from {used}\n" in terminal.run("info", "good").out
    assert terminal.run("info", "good", "--json").data["file"] == str(used)
    assert f"graph dialect, from {hidden}\n" in terminal.run("info", str(hidden)).out
    assert "graph dialect, built-in, from /" in terminal.run("info", "example-hello").out


@pytest.mark.parametrize("name", ["example-approval", "flow.yaml"])
def test_info_says_what_a_workflow_takes_asks_and_gives(terminal: Any, name: str) -> None:
    terminal.write(
        "flow.yaml",
        "name: flow\ninputs: {change: {type: string, default: x}}\nblocks:\n"
        "  - {id: approve, type: Prompt, inputs: {prompt: 'Sure?'}}\n"
        "outputs: {approved: '${blocks.approve.response}'}\n",
    )
    said = terminal.run("info", name)
    assert said.code == 0, said.err
    assert "change" in said.out
    assert "waits for an answer at: approve" in said.out
    assert "approved" in said.out
    data = terminal.run("info", name, "--json").data
    assert data["inputs"]["properties"]["change"]["type"] == "string"


def test_validate_names_all_problems_of_all_files(terminal: Any) -> None:
    terminal.write("good.yaml", GOOD)
    terminal.write("bad.yaml", BAD)
    assert terminal.run("validate", "good.yaml", "bad.yaml").code == 1
    said = terminal.run("validate", "good.yaml", "bad.yaml", "absent.yaml")
    assert said.code == 2
    assert "✓ good.yaml" in said.out
    for place in ("bad.yaml:4:11", "bad.yaml:5:9", "bad.yaml:7:", "absent.yaml:1:1"):
        assert place in said.out
    assert "did you mean 'Shell'?" in said.out
    assert "did you mean 'timeout'?" in said.out
    data = terminal.run("validate", "good.yaml", "bad.yaml", "--json").data
    assert data["valid"] is False
    assert [file["valid"] for file in data["files"]] == [True, False]
    assert len(data["files"][1]["problems"]) == 4
    assert terminal.run("validate", "good.yaml").code == 0
    assert terminal.run("validate", "-", stdin=GOOD).code == 0
    assert "<stdin>:4:11" in terminal.run("validate", "-", stdin=BAD).out


@pytest.mark.parametrize(
    ("given", "why", "hint"),
    [
        ("nope.yaml", "No such file or directory", "check the path"),
        ("flows", "Is a directory", "workflows-mcp validate flows/*.yaml"),
        ("good", "No such file or directory", "workflows-mcp validate {workspace}/.workflows/fine.yaml"),
    ],
)
def test_what_is_no_file_cannot_be_validated_and_it_is_said_what_can(
    terminal: Any, given: str, why: str, hint: str
) -> None:
    terminal.write(".workflows/fine.yaml", GOOD)
    terminal.write("flows/good.yaml", GOOD)
    said = terminal.run("validate", given)
    assert said.code == 2
    assert f"{given}:1:1: the file cannot be read: {why}" in said.out
    assert hint.format(workspace=terminal.workspace) in said.out
    said = terminal.run("validate", given, "--json")
    assert said.code == 2
    assert said.data["files"][0]["problems"][0]["hint"]


def test_a_directory_of_workflows_that_is_not_there_is_warned_of_once(terminal: Any) -> None:
    terminal.write("flows/good.yaml", GOOD)
    terminal.environment["WORKFLOWS_TEMPLATE_PATHS"] = "flows,absent"
    said = terminal.run("list", "well")
    assert said.out.startswith("good")
    assert said.err.count(f"template_paths: there is no directory {terminal.workspace}/absent") == 1
    assert "flows," not in said.err


def test_validate_finds_the_files_that_a_file_calls(terminal: Any) -> None:
    call = "name: caller\nblocks:\n  - {id: a, type: Workflow, inputs: {workflow: %s}}\n"
    terminal.write("flows/good.yaml", GOOD)
    terminal.write("flows/caller.yaml", call % "good")
    assert terminal.run("validate", "flows/caller.yaml").code == 0
    terminal.write("flows/caller.yaml", call % "goood")
    said = terminal.run("validate", "flows/caller.yaml")
    assert said.code == 1
    assert "did you mean 'good'?" in said.out


def test_version_and_help(terminal: Any) -> None:
    assert terminal.run("--version").out == f"workflows-mcp {__version__}\n"
    said = terminal.run("--help")
    assert said.code == 0
    for command in ("run", "list", "info", "validate", "runs", "show", "answer", "cancel", "serve"):
        assert f"\n    {command} " in said.out


def test_help_and_mistakes_import_neither_mcp_nor_the_service() -> None:
    script = (
        "import sys\nfrom workflows_mcp.cli.main import build_parser\nbuild_parser().format_help()\n"
        "heavy = {'mcp', 'pydantic', 'apsw', 'yaml', 'jinja2', 'asyncio'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
