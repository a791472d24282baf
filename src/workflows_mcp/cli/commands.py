"""Commands that a run hands to its agent, carried out by the terminal that plays the agent."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workflows_mcp.limits import Limits
from workflows_mcp.policy.processes import Killed, run_process
from workflows_mcp.values import Value

SHELL = "/bin/sh"
TIMED_OUT = 124
"""The exit code of a command that was ended because it took too long, as `timeout` has it."""


async def run_command(
    command: str,
    *,
    seconds: float | None,
    directory: Path,
    variables: Mapping[str, str],
    limits: Limits,
) -> dict[str, Value]:
    """What an agent hands in for a command: what it printed, its exit code, and how long it took. When it
    takes too long, or whoever waits for it is told to go, all that it has started is ended first."""
    running = asyncio.create_task(
        run_process(
            [SHELL, "-c", command],
            directory=directory,
            environment={**os.environ, **variables},
            key=f"terminal:{uuid.uuid4().hex}",
            capture=True,
            keep_bytes=limits.captured_bytes,
            setting=limits.setting("captured_bytes"),
        )
    )
    try:
        await asyncio.wait([running], timeout=seconds)
    except asyncio.CancelledError:
        running.cancel()
        await asyncio.wait([running])
        raise
    running.cancel()
    try:
        finished, note, code = await running, "", None
    except Killed as killed:
        finished, code = killed.finished, TIMED_OUT
        note = f"\n[it was ended after {seconds:g} s, which is its timeout]"
    return {
        "stdout": finished.stdout,
        "stderr": (finished.stderr + note).lstrip("\n"),
        "exit_code": finished.exit_code if code is None else code,
        "duration": round(finished.seconds, 3),
    }


def only_known(result: dict[str, Value], schema: dict[str, Any]) -> dict[str, Value]:
    """The part of a result that a schema has a place for."""
    known = schema.get("properties", {})
    return {name: value for name, value in result.items() if name in known}
