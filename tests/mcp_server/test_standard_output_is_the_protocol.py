from __future__ import annotations

import json
import signal
import subprocess
import time
from typing import Any

import apsw
import psutil
import pytest

from support.processes import eventually

NOISY = """\
from workflows_mcp.steps.template import RenderTemplate

quiet = RenderTemplate.run


def run(self, inputs, context):
    print("noise of a step")
    return quiet(self, inputs, context)


RenderTemplate.run = run
"""


def message(method: str, number: int | None = None, **parameters: Any) -> str:
    said: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": parameters}
    if number is not None:
        said["id"] = number
    return json.dumps(said) + "\n"


def start(place: Any, **environment: str) -> subprocess.Popen[str]:
    parameters = place.parameters
    return subprocess.Popen(
        [parameters.command, *parameters.args],
        cwd=parameters.cwd,
        env={**parameters.env, "PATH": "/usr/bin:/bin", **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def statuses(place: Any) -> list[str]:
    """Of the runs that there are in the store."""
    try:
        connection = apsw.Connection(str(place.home / "runs.db"), flags=apsw.SQLITE_OPEN_READONLY)
        return [str(row[0]) for row in connection.execute("SELECT status FROM runs")]
    except apsw.Error:
        return []


@pytest.mark.rows("G25")
def test_every_line_on_stdout_is_a_message_and_logs_go_to_stderr(place: Any) -> None:
    noisy = place.home.parent / "noisy"
    noisy.mkdir()
    (noisy / "sitecustomize.py").write_text(NOISY, encoding="utf-8")
    yaml = "name: x\nblocks:\n  - {id: a, type: Shell, inputs: {command: 'echo out; echo err >&2'}}\n"
    yaml += "  - {id: b, type: RenderTemplate, inputs: {template: 'x'}}\n"
    process = start(place, WORKFLOWS_LOG_LEVEL="DEBUG", PYTHONPATH=str(noisy))
    assert process.stdin is not None
    assert process.stdout is not None
    client = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    process.stdin.write(message("initialize", 1, **client))
    process.stdin.write(message("notifications/initialized"))
    process.stdin.write(message("tools/call", 2, name="start_workflow", arguments={"yaml": yaml}))
    process.stdin.flush()
    lines = [process.stdout.readline(), process.stdout.readline()]
    out, err = process.communicate(timeout=20)  # closing its input ends the server
    assert process.returncode == 0
    messages = [json.loads(line) for line in [*lines, *out.splitlines()]]
    assert {item["jsonrpc"] for item in messages} == {"2.0"}
    by_id = {item["id"]: item for item in messages if "id" in item}
    assert by_id[1]["result"]["serverInfo"]["name"] == "workflows-mcp"
    assert "submit_result" in by_id[1]["result"]["instructions"]
    assert by_id[2]["result"]["structuredContent"]["status"] == "completed"
    assert "noise of a step" in err


def test_a_store_that_cannot_be_used_is_told_without_a_traceback(place: Any) -> None:
    place.home.mkdir()
    (place.home / "runs.db").write_bytes(b"this is not a database" * 100)
    process = start(place)
    out, err = process.communicate("", timeout=20)
    assert process.returncode == 2
    assert out == ""
    assert "Traceback" not in err
    assert str(place.home) in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_is_told_to_go_ends_what_it_has_started_and_goes(place: Any, number: int) -> None:
    yaml = "name: x\nblocks:\n  - {id: a, type: Shell, inputs: {command: 'echo $$ > pid; sleep 97'}}\n"
    process = start(place)
    assert process.stdin is not None
    client = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    process.stdin.write(message("initialize", 1, **client))
    process.stdin.write(message("notifications/initialized"))
    process.stdin.write(message("tools/call", 2, name="start_workflow", arguments={"yaml": yaml}))
    process.stdin.flush()
    pid = place.workspace / "pid"
    until = time.monotonic() + 20
    while not (pid.exists() and pid.read_text().strip()):
        assert time.monotonic() < until
        time.sleep(0.01)
    process.send_signal(number)
    assert process.wait(timeout=10) == 128 + number
    assert not psutil.pid_exists(int(pid.read_text()))
    for stream in (process.stdin, process.stdout, process.stderr):
        assert stream is not None
        stream.close()


def test_a_client_that_is_gone_in_the_middle_of_a_call_leaves_no_traceback(place: Any) -> None:
    yaml = "name: x\nblocks:\n  - {id: a, type: Prompt, inputs: {prompt: x}}\n"
    process = start(place)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    client = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    process.stdin.write(message("initialize", 1, **client))
    process.stdin.flush()
    assert "result" in process.stdout.readline()
    process.stdout.close()
    process.stdin.write(message("notifications/initialized"))
    process.stdin.write(message("tools/call", 2, name="start_workflow", arguments={"yaml": yaml}))
    process.stdin.flush()
    eventually(lambda: [status for status in statuses(place) if status == "idle"])
    process.stdin.close()
    assert process.wait(timeout=20) == 0
    assert process.stderr.read() == ""
    process.stderr.close()
