"""`workflows-mcp report RUN`: on the terminal, into a file, and against the hash that a client has."""

from __future__ import annotations

import json
from typing import Any

import apsw
import pytest

from cli.conftest import Terminal

pytestmark = pytest.mark.rows("P7")
GREET = """
name: greet
inputs: {who: {type: string, default: Ada}}
blocks:
  - {id: say, type: Shell, inputs: {command: "echo hello ${inputs.who}"}}
  - {id: fail, type: Shell, on_failure: continue, inputs: {command: "exit 3"}}
outputs: {said: "${blocks.say.outputs.stdout}"}
"""


@pytest.fixture
def ended(terminal: Terminal) -> dict[str, Any]:
    terminal.write(".workflows/greet.yaml", GREET)
    return terminal.run("run", "greet", "--json").data


def edit(terminal: Terminal) -> None:
    connection = apsw.Connection(str(terminal.home / "runs.db"))
    connection.execute("UPDATE journal SET events = CAST(replace(events, 'hello', 'hallo') AS BLOB)")
    connection.close()


def test_a_report_is_markdown_on_stdout_by_default(terminal: Terminal, ended: dict[str, Any]) -> None:
    done = terminal.run("report", ended["workflow_id"])
    assert done.code == 0
    assert done.out.startswith(f"# Report of the run `{ended['workflow_id']}`\n\n- workflow: `greet`")
    assert "| tolerated failure | `fail` | failed, and the run continued" in done.out
    assert done.out.rindex("## ") == done.out.index("## Deviations")
    assert done.err == ""


def test_a_report_is_written_to_a_file_in_each_format(terminal: Terminal, ended: dict[str, Any]) -> None:
    beginnings = {"md": "# Report", "html": "<!DOCTYPE html>", "json": "{\n"}
    for form, beginning in beginnings.items():
        name = f"report.{form}"
        done = terminal.run("report", ended["workflow_id"][:9], "--format", form, "--output", name)
        assert (done.code, done.out) == (0, ""), done.err
        assert (terminal.workspace / name).read_text(encoding="utf-8").startswith(beginning)


def test_json_is_one_object_on_stdout(terminal: Terminal, ended: dict[str, Any]) -> None:
    for options in (["--json"], ["--format", "json"]):
        found = json.loads(terminal.run("report", ended["workflow_id"], *options).out)
        assert found["run"]["inputs"] == {"who": "Ada"}
        assert found["proof"]["head"].startswith(ended["proof"])
        assert [it["step"] for it in found["steps"]] == ["say", "fail"]


def test_the_proof_of_the_last_answer_still_fits_until_somebody_edits_the_store(
    terminal: Terminal, ended: dict[str, Any]
) -> None:
    assert ended["next"].endswith(
        f"workflows-mcp report {ended['workflow_id']} --expect {ended['proof']} shows who did what"
    )
    fits = terminal.run("report", ended["workflow_id"], "--expect", ended["proof"])
    assert (fits.code, fits.err) == (0, "")
    assert f"expected hash: `{ended['proof']}` fits event" in fits.out
    other = terminal.run("report", ended["workflow_id"], "--expect", "0123456789abcdef")
    assert other.code == 1
    assert "does not hold: no event has the expected hash 0123456789abcdef" in other.err
    edit(terminal)
    edited = terminal.run("report", ended["workflow_id"])
    assert edited.code == 1
    assert "does not hold: event 2 was edited" in edited.err
    assert "| 2 | changed store |" in edited.out


def test_an_unknown_run_and_an_unknown_format_are_refused(terminal: Terminal, ended: dict[str, Any]) -> None:
    unknown = terminal.run("report", "wf_000000000000", "--json")
    assert (unknown.code, unknown.data["error"]["code"]) == (2, "unknown_run")
    assert terminal.run("report", ended["workflow_id"], "--format", "pdf").code == 2
    wrong = terminal.run("report", ended["workflow_id"], "--expect", "abc")
    assert wrong.code == 2
    assert "is not a hash of a journal" in wrong.err
