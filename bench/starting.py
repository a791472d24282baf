"""Cold start of the server: from the start of the process to the answer to `initialize`, and its memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time

import psutil

from bench.measure import median, row, title

_SMALLEST = "from mcp.server import MCPServer; MCPServer('smallest').run('stdio')"


def run() -> None:
    title("Cold start to `initialize` over stdio, median of 5, and resident memory then")
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "WORKFLOWS_HOME": home}
        commands = {
            "the smallest server there is": [sys.executable, "-c", _SMALLEST],
            "workflows-mcp": [sys.executable, "-m", "workflows_mcp"],
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for _ in range(5):
            for name, command in commands.items():
                found[name].append(_start(command, environment))
    times = {name: median([took for took, _ in values]) for name, values in found.items()}
    memory = {name: median([size for _, size in values]) for name, values in found.items()}
    for name in commands:
        row(name, f"{times[name]:.2f} s", f"{memory[name]:.0f} MB")
    smallest, ours = times
    row("ratio", f"{times[ours] / times[smallest]:.2f}", f"{memory[ours] - memory[smallest]:+.0f} MB")


def _start(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    request = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "bench", "version": "1"},
        },
    }
    started = time.perf_counter()
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()
    answer = json.loads(process.stdout.readline())
    took = time.perf_counter() - started
    assert answer["id"] == 1, answer
    memory = psutil.Process(process.pid).memory_info().rss / 1e6
    process.stdin.close()
    process.wait(timeout=10)
    process.stdout.close()
    return took, memory
