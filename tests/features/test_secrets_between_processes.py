"""Secrets in real processes: their logs, what they print, and what another process goes on with."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from support.rendered import Service
from workflows_mcp.settings.model import Settings
from workflows_mcp.values import secret_mark

pytestmark = pytest.mark.rows("X5")

SECRET = "pw-0a1b2c3d/very+secret"
DIGEST = hashlib.sha256(SECRET.encode()).hexdigest()
MARK = secret_mark("TOKEN")
PARTS = ("pw-0a1b2c3d", "very+secret", "cHctMGExYjJjM2Qv")

BREAKS = """\
from workflows_mcp.steps.template import RenderTemplate


def run(self, inputs, context):
    raise RuntimeError("it broke over " + inputs.template)


RenderTemplate.run = run
"""
"""Loaded by Python itself when a process starts: a step type with a fault."""

DEFINITION = """\
name: secretive
blocks:
  - id: prints
    type: Shell
    inputs: {command: 'echo "${secrets.TOKEN}"; printf %s "${secrets.TOKEN}" | base64; echo "${secrets.TOKEN}" >&2'}
  - id: broken
    type: RenderTemplate
    inputs: {template: 'x ${secrets.TOKEN} y'}
  - id: fails
    type: Shell
    inputs: {command: 'echo "no ${secrets.TOKEN}" >&2; exit 1'}
outputs:
  printed: ${blocks.prints.stdout}
"""


@pytest.fixture
def environment(tmp_path: Path, settings: Settings) -> dict[str, str]:
    breaks = tmp_path / "breaks"
    breaks.mkdir()
    (breaks / "sitecustomize.py").write_text(BREAKS)
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PYTHONPATH": str(breaks),
        "PYTHONASYNCIODEBUG": "1",
        "WORKFLOWS_HOME": str(settings.home),
        "WORKFLOWS_LOG_LEVEL": "DEBUG",
        "WORKFLOWS_SECRET_TOKEN": SECRET,
    }


def command(settings: Settings, environment: dict[str, str], *arguments: str) -> str:
    """All that a command of the terminal prints."""
    done = subprocess.run(
        [sys.executable, "-m", "workflows_mcp", *arguments],
        cwd=settings.workspace,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout + done.stderr


def assert_nowhere(settings: Settings, *texts: str) -> None:
    for text in texts:
        assert [part for part in PARTS if part in text] == []
    for path in settings.home.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert [part for part in PARTS if part.encode() in data] == [], path


def test_the_terminal_shows_no_secret_and_logs_none(settings: Settings, environment: dict[str, str]) -> None:
    file = settings.workspace / "flow.yaml"
    file.write_text(DEFINITION)
    said = command(settings, environment, "run", str(file), "--json")
    answer = json.loads(said[said.index("{") : said.rindex("}") + 1])
    run_id = answer["workflow_id"]
    more = [
        command(settings, environment, *arguments)
        for arguments in (
            ("show", run_id),
            ("show", run_id, "--json"),
            ("runs", "--json"),
            ("info", str(file)),
            ("info", str(file), "--json"),
        )
    ]
    assert "RuntimeError: it broke over x ⟦secret:TOKEN⟧ y" in said, "the fault is in the log"
    assert MARK in more[1]
    assert "secrets: TOKEN" in more[3]
    assert_nowhere(settings, said, *more)


def message(method: str, number: int | None = None, **parameters: Any) -> str:
    said: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": parameters}
    if number is not None:
        said["id"] = number
    return json.dumps(said) + "\n"


def test_a_server_that_logs_everything_logs_no_secret(
    settings: Settings, environment: dict[str, str]
) -> None:
    text = DEFINITION.replace("blocks:", "inputs: {given: {type: string, default: ''}}\nblocks:", 1)
    process = subprocess.Popen(
        [sys.executable, "-m", "workflows_mcp"],
        cwd=settings.workspace,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    client = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    arguments = {"yaml": text, "inputs": {"given": f"I was told {SECRET}"}}
    try:
        process.stdin.write(message("initialize", 1, **client))
        process.stdin.write(message("notifications/initialized"))
        process.stdin.write(message("tools/call", 2, name="start_workflow", arguments=arguments))
        process.stdin.flush()
        said = [process.stdout.readline(), process.stdout.readline()]
        run_id = json.loads(said[1])["result"]["structuredContent"]["workflow_id"]
        state = {"workflow_id": run_id, "paths": ["blocks", "inputs", "outputs"]}
        process.stdin.write(message("tools/call", 3, name="get_workflow_state", arguments=state))
        process.stdin.flush()
        said.append(process.stdout.readline())
        assert_nowhere(settings)
        process.stdin.close()
        log = process.stderr.read()
        process.wait(20)
    finally:
        process.kill()
    values = json.loads(said[2])["result"]["structuredContent"]["values"]
    assert values["inputs"] == {"given": f"I was told {MARK}"}
    assert f"it broke over x {MARK} y" in log
    assert "DEBUG" in log
    assert_nowhere(settings, log, *said)


def test_after_kill_minus_nine_another_process_uses_the_real_value(
    settings: Settings, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = settings.workspace
    file = workspace / "flow.yaml"
    file.write_text(
        "name: cut-off\nblocks:\n"
        "  - id: prints\n    type: Shell\n    inputs: {command: 'echo \"${secrets.TOKEN}\" | tee printed'}\n"
        "  - id: waits\n    type: Shell\n    depends_on: [prints]\n    inputs:\n      command: >-\n"
        "        echo $$ >> started; while ! [ -e go ]; do sleep 0.05; done; cat printed\n"
        "  - id: later\n    type: Shell\n    depends_on: [waits]\n    inputs:\n      command: >-\n"
        '        printf %s "${secrets.TOKEN}" | sha256sum; printf %s "${blocks.waits.stdout}" | sha256sum\n'
    )
    victim = subprocess.Popen(
        [sys.executable, "-m", "workflows_mcp", "run", str(file)],
        cwd=workspace,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + 30
        while not (workspace / "started").exists():
            assert time.monotonic() < until
            assert victim.poll() is None
            time.sleep(0.02)
    finally:
        victim.send_signal(signal.SIGKILL)
        victim.wait()
    assert_nowhere(settings)
    (workspace / "go").touch()
    monkeypatch.setenv("TOKEN", SECRET)  # in another way than before

    async def go_on() -> tuple[dict[str, Any], dict[str, Any]]:
        async with Service.open(settings) as service:
            run_id = str((await service.recent())[0]["workflow_id"])
            answer = await service.status(run_id, wait_seconds=30)
            return answer, await service.state(run_id, paths=["blocks"])

    answer, state = asyncio.run(asyncio.wait_for(go_on(), 60))
    assert answer["status"] == "completed", answer
    blocks = state["values"]["blocks"]
    with_newline = hashlib.sha256(f"{SECRET}\n".encode()).hexdigest()
    assert blocks["prints"]["outputs"]["stdout"] == f"{MARK}\n"
    assert blocks["waits"]["outputs"]["stdout"] == f"{MARK}\n", "it names no secret and shows none"
    assert blocks["later"]["outputs"]["stdout"] == f"{DIGEST}  -\n{with_newline}  -\n"
    assert len((workspace / "started").read_text().split()) == 2
    assert_nowhere(settings, json.dumps([answer, state], ensure_ascii=False))
