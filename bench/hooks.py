"""What a hook of a client costs for each call of a tool: without a run, and while a step is pending.

Beside a shell and a Python that do nothing: no program of a hook can be faster than they are.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

from bench.measure import row, seconds, title, verdict
from workflows_mcp.hook import links

TIMES = 40
MILLISECONDS = 100
_SCRIPT = Path(__file__).resolve().parents[1] / "plugin" / "hooks" / "hook.sh"
_PYTHON = os.path.realpath(sys.executable)
_SESSION = "bench-session"
_WORKFLOW = """
name: bench
description: A step of the agent that limits its tools
dialect: stateful
initial_state: {}
steps:
  - {id: work, type: delegate, instructions: Work, allow_tools: [Edit, "Bash(pytest:*)"]}
"""


def run() -> None:
    title(f"A hook of a client, best of {TIMES} calls")
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as temporary:
        asyncio.run(_measure(Path(temporary)))


async def _measure(home: Path) -> None:
    environment = {**os.environ, "WORKFLOWS_HOME": str(home), "WORKFLOWS_HOOKS": "on"}
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "workflows_mcp"], env=environment, cwd=home
    )
    async with Client(server) as client:
        shell = await _timed(["sh", "-c", ":"], environment)
        python = await _timed([_PYTHON, "-I", "-S", "-c", "pass"], environment)
        row("sh -c :", f"{shell * 1e3:.1f} ms")
        row("python3 -I -S -c pass", f"{python * 1e3:.1f} ms")
        if any(Path(links()).glob("*/sessions/*.json")):
            row(
                "the first figure is that of the second", "", "an unfinished run is in another data directory"
            )
        _row("no session has a run", await _timed(["sh", str(_SCRIPT)], environment, "Bash"), shell, "sh")

        answer = (await client.call_tool("start_workflow", {"yaml": _WORKFLOW})).structured_content
        assert answer is not None
        assert answer["status"] == "pending_action", answer
        await _timed(["sh", str(_SCRIPT), "open"], environment, "start_workflow", answer, times=1)
        assert list((home / "sessions").glob("*.json"))
        other = await _timed(["sh", str(_SCRIPT)], environment, "Bash", session="another")
        _row("another session has a run", other, python, "python3")
        _row(
            "PreToolUse, a step is pending",
            await _timed(["sh", str(_SCRIPT)], environment, "Bash"),
            python,
            "python3",
        )
        by_command = await _timed([sys.executable, "-m", "workflows_mcp", "hook"], environment, "Bash")
        _row("the same by `workflows-mcp hook`", by_command, python, "python3")


def _row(what: str, taken: float, bare: float, name: str) -> None:
    reached = verdict(taken * 1e3, MILLISECONDS, at_least=False)
    row(what, f"{taken * 1e3:.1f} ms", f"{taken / bare:.1f} times {name}; {reached}")


async def _timed(
    command: list[str],
    environment: dict[str, str],
    tool: str = "",
    answer: dict[str, Any] | None = None,
    *,
    session: str = _SESSION,
    times: int = TIMES,
) -> float:
    event: dict[str, Any] = {"session_id": session, "hook_event_name": "PreToolUse", "tool_name": tool}
    event["tool_input"] = {"command": "pytest -q"}
    if answer is not None:
        event |= {"hook_event_name": "PostToolUse", "tool_name": f"mcp__workflows__{tool}"}
        event["tool_response"] = json.dumps(answer)
    given = json.dumps(event).encode()

    def call() -> None:
        subprocess.run(command, input=given, env=environment, stdout=subprocess.DEVNULL, check=True)

    return min([await asyncio.to_thread(seconds, call) for _ in range(times)])
