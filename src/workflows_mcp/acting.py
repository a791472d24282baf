"""Carrying out what an agent is handed, for whoever plays the agent here: commands, as processes like those
of the server's own steps. Knows nothing of runs: what came of a command is for the caller to hand in."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Mapping

from workflows_mcp.policy.processes import Killed, run_process
from workflows_mcp.settings import Settings
from workflows_mcp.values import Value

SHELL = "/bin/sh"
TIMED_OUT = 124
"""The exit code of a command that was ended because it took too long, as `timeout` has it."""


class Acting:
    def __init__(self, settings: Settings) -> None:
        self._workspace = settings.workspace
        self._limits = settings.limits

    async def run_command(
        self, command: str, *, seconds: float | None, directory: str, variables: Mapping[str, str]
    ) -> dict[str, Value]:
        """What an agent hands in for a command: what it printed, its exit code, and how long it took. When it
        takes too long, or whoever waits for it is told to go, all that it has started is ended first."""
        running = asyncio.create_task(
            run_process(
                [SHELL, "-c", command],
                directory=self._workspace / directory,
                environment={**os.environ, **variables},
                key=f"acting:{uuid.uuid4().hex}",
                capture=True,
                keep_bytes=self._limits.captured_bytes,
                setting=self._limits.setting("captured_bytes"),
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
            finished = await running
            code, stderr = finished.exit_code, finished.stderr
        except Killed as killed:
            finished, code = killed.finished, TIMED_OUT
            note = f"[it was ended after {seconds:g} s, which is its timeout]"
            stderr = f"{finished.stderr}\n{note}" if finished.stderr else note
        return {
            "stdout": finished.stdout,
            "stderr": stderr,
            "exit_code": code,
            "duration": round(finished.seconds, 3),
        }
