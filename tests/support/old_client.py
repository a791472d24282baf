"""A client of 2025: mcp 1.16, in a Python environment of its own, made once beside the one that runs the tests.

    with old_client(command, cwd=…, environment=…) as ask:       # skips the test where it cannot be had
        ask("initialize")["protocolVersion"]
        ask("call_tool", name="list_workflows", arguments={})

`ask` carries out a method of that library's session, and gives what came of it as it was on the wire.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

PACKAGES = ("mcp==1.16.*", "pydantic<2.12")
INSTALL_SECONDS = 180
SESSION_SECONDS = 60

_SESSION = """
import asyncio, json, sys
import mcp.types
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

async def session(version, command, *arguments):
    if version:
        mcp.types.LATEST_PROTOCOL_VERSION = version
    server = StdioServerParameters(command=command, args=arguments, env=json.loads(sys.stdin.readline()))
    async with stdio_client(server) as streams, ClientSession(*streams) as client:
        while line := await asyncio.to_thread(sys.stdin.readline):
            method, given = json.loads(line)
            try:
                found = (await getattr(client, method)(**given)).model_dump(mode="json", by_alias=True)
            except mcp.McpError as error:
                found = {"error": error.error.message}
            print(json.dumps(found), flush=True)

asyncio.run(session(*sys.argv[1:]))
"""


class Ask(Protocol):
    def __call__(self, method: str, **given: Any) -> dict[str, Any]: ...


@contextmanager
def old_client(
    command: Sequence[str], *, cwd: Path, environment: Mapping[str, str], version: str = ""
) -> Iterator[Ask]:
    """`version`: another one of the protocol than the newest that it knows."""
    process = subprocess.Popen(
        [_python(), "-c", _SESSION, version, *command],
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "HOME": str(cwd)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        sent, last_seen = process.stdin, process.stdout

        def say(value: Any) -> None:
            sent.write(json.dumps(value) + "\n")
            sent.flush()

        def ask(method: str, **given: Any) -> dict[str, Any]:
            say([method, given])
            line = last_seen.readline()
            assert line, f"the client is gone: {method}"
            found: dict[str, Any] = json.loads(line)
            return found

        say(dict(environment))
        patience = threading.Timer(SESSION_SECONDS, process.kill)
        patience.start()
        try:
            yield ask
            sent.close()
            assert process.wait() == 0
        finally:
            patience.cancel()
            process.kill()


def _python() -> Path:
    """The Python that has it. Two processes of the same test run make it once."""
    of_the_tests = Path(sys.prefix) if sys.prefix != sys.base_prefix else Path(tempfile.gettempdir())
    place = of_the_tests / "old-client"
    place.mkdir(exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "complete").exists():
            _make(place / "venv")
            (place / "complete").touch()
    return place / "venv" / "bin" / "python"


def _make(place: Path) -> None:
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--python",
        str(place / "bin" / "python"),
    ]
    for command in (
        [sys.executable, "-m", "venv", "--clear", "--without-pip", str(place)],
        [*pip, "install", "--quiet", *PACKAGES],
    ):
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            pytest.skip(f"{', '.join(PACKAGES)} were not installed within {INSTALL_SECONDS} seconds")
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip().splitlines()
            pytest.skip(
                f"{', '.join(PACKAGES)} cannot be installed here: {said[-1] if said else 'no reason'}"
            )
