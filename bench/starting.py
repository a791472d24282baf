"""Cold start of the server: from the start of the process to the answer to `initialize`, and its memory,
beside the smallest server that the protocol library can be. Started in turns, because a machine is never
equally busy twice.

The client reads the clock, and then asks the kernel about the process while it waits for its next message:

- `wall`: from before the process was there until its answer could be read
- `cpu`: what all of its threads have computed, which another process on the machine disturbs least
- `undisturbed`: `wall` without the time in which its main thread could have run but no processor was free
- `memory`: resident, and `own`, which is what it shares with nobody
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench.measure import median, row, title, verdict

SMALLEST = (sys.executable, "-c", "from mcp.server import MCPServer; MCPServer('smallest').run('stdio')")
OURS = (sys.executable, "-m", "workflows_mcp")
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "bench", "version": "1"},
    },
}
RATIO = 1.15
MEGABYTES = 25
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Start:
    wall: float
    cpu: float
    undisturbed: float
    memory: float
    own: float


@dataclass(slots=True)
class SideBySide:
    smallest: list[Start] = field(default_factory=list)
    ours: list[Start] = field(default_factory=list)

    def again(self, environment: Mapping[str, str]) -> None:
        self.smallest.append(start(SMALLEST, environment))
        self.ours.append(start(OURS, environment))

    def ratio(self, what: str, of: Callable[[list[float]], float] = min) -> float:
        return self._of(self.ours, what, of) / self._of(self.smallest, what, of)

    def more(self, what: str) -> float:
        """Megabytes."""
        return self._of(self.ours, what, median) - self._of(self.smallest, what, median)

    @staticmethod
    def _of(starts: list[Start], what: str, of: Callable[[list[float]], float]) -> float:
        return of([getattr(it, what) for it in starts])


def run() -> None:
    title(f"Cold start to `initialize` over stdio, {_ROUNDS} times in turns: best time, and memory then")
    found = SideBySide()
    with tempfile.TemporaryDirectory() as home:
        for _ in range(_ROUNDS):
            found.again({**os.environ, "WORKFLOWS_HOME": home})
    for name, starts in (("the smallest server there is", found.smallest), ("workflows-mcp", found.ours)):
        best = {what: min(getattr(it, what) for it in starts) for what in ("wall", "cpu")}
        memory = median([it.memory for it in starts])
        row(name, f"{best['wall']:.2f} s", f"{best['cpu']:.2f} s of a processor, {memory:.0f} MB")
    for what in ("wall", "undisturbed", "cpu"):
        ratio = found.ratio(what)
        row(f"ratio, {what}", f"{ratio:.2f}", verdict(ratio, RATIO, at_least=False))
    more = found.more("memory")
    row("more memory", f"{more:+.0f} MB", verdict(more, MEGABYTES, at_least=False))


def start(command: Sequence[str], environment: Mapping[str, str]) -> Start:
    """Start a server, greet it, look at it, and end it."""
    started = time.perf_counter()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(INITIALIZE).encode() + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
        wall = time.perf_counter() - started
        found = _looked_at(process.pid, wall)
        assert json.loads(line)["id"] == 1, line
        process.stdin.close()
        process.wait(timeout=60)
    return found


def _looked_at(pid: int, wall: float) -> Start:
    seen = psutil.Process(pid)
    times = seen.cpu_times()
    memory = seen.memory_full_info()
    return Start(
        wall, times.user + times.system, wall - _kept_waiting(pid), memory.rss / 1e6, memory.uss / 1e6
    )


def _kept_waiting(pid: int) -> float:
    """Seconds in which the main thread was ready and no processor was free, where the kernel counts them."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0
