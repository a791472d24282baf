"""MCP servers that are killed with their first answer: no two calls reach the same process.

Each is a process of its own that serves MCP over its standard input and output. It is forked off one that has the
modules loaded: loading them a hundred times is not what is tested.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from support.stdio import serving
from support.victims import forking


def serve_stdio(stdin: Connection, stdout: Connection, environment: dict[str, str], directory: str) -> None:
    """What `python -m workflows_mcp` does, in a process that is there already."""
    from workflows_mcp.cli.main import main

    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    os.dup2(stdin.fileno(), 0)
    os.dup2(stdout.fileno(), 1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    stdin.close()
    stdout.close()
    sys.stdin, sys.stdout = os.fdopen(0, "r", closefd=False), os.fdopen(1, "w", closefd=False)
    main(["serve"])


class Victims:
    """A server process for each call, one after the other; sub-agents side by side have theirs at the same time."""

    def __init__(self, directory: Path, more: Mapping[str, str] | None = None) -> None:
        self._directory = directory
        self._more = more
        self.killed = 0

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        _, environment, workspace = serving(self._directory, more=self._more)
        context = forking()
        its_input, our_output = context.Pipe(duplex=False)
        our_input, its_output = context.Pipe(duplex=False)
        place = (its_input, its_output, environment, str(workspace))
        server = context.Process(target=serve_stdio, args=place, daemon=True)
        server.start()
        its_input.close()
        its_output.close()
        try:
            result = await asyncio.to_thread(_called, our_output, our_input, tool, arguments)
        finally:
            server.kill()  # not a moment after its answer
            server.join()
            our_output.close()
            our_input.close()
            self.killed += 1
        assert not result.get("isError"), result
        answer = result["structuredContent"]
        assert isinstance(answer, dict)
        return answer


def _called(to: Connection, back: Connection, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    client = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    messages: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": client},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": tool, "arguments": arguments}},
    ]
    with os.fdopen(os.dup(to.fileno()), "wb") as stdin, os.fdopen(os.dup(back.fileno()), "rb") as stdout:
        stdin.write(b"".join(json.dumps({"jsonrpc": "2.0", **it}).encode() + b"\n" for it in messages))
        stdin.flush()
        for line in stdout:
            message = json.loads(line)
            if message.get("id") == 2:
                result = message["result"]
                assert isinstance(result, dict)
                return result
    raise AssertionError("the server ended without an answer")
