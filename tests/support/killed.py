"""A server for each call of a tool, killed the moment that it has answered: no two calls reach the same process."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.stdio import serving

_CLIENT = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}


def called(
    directory: Path,
    tool: str,
    *,
    toolsets: str = "core",
    until: Callable[[], bool] = lambda: True,
    **arguments: Any,
) -> dict[str, Any]:
    """The answer of a server that has its home and its workspace in the directory; it is killed when `until`
    holds."""
    command, environment, workspace = serving(directory, toolsets)
    server = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        cwd=workspace,
    )
    try:
        answer = _answer(server, tool, arguments)
        end = time.monotonic() + 20
        while not until():
            assert time.monotonic() < end
            time.sleep(0.01)
        return answer
    finally:
        server.kill()
        server.communicate()


def _answer(server: subprocess.Popen[bytes], tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    assert server.stdin is not None
    assert server.stdout is not None
    messages: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": _CLIENT},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": tool, "arguments": arguments}},
    ]
    server.stdin.write(b"".join(json.dumps({"jsonrpc": "2.0", **it}).encode() + b"\n" for it in messages))
    server.stdin.flush()
    for line in server.stdout:
        message = json.loads(line)
        if message.get("id") == 2:
            result = message["result"]
            assert not result.get("isError"), result
            answer = result["structuredContent"]
            assert isinstance(answer, dict)
            return answer
    raise AssertionError("the server ended without an answer")
