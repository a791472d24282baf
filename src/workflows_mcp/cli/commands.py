"""Commands that a run hands to its agent, carried out by the terminal that plays the agent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from workflows_mcp.values import Value

SHELL = "/bin/sh"
TIMED_OUT = 124
"""The exit code of a command that was ended because it took too long, as `timeout` has it."""


_GRACE_SECONDS = 1.0


async def run_command(
    command: str,
    *,
    seconds: float | None,
    directory: str,
    variables: Mapping[str, str],
    kept_bytes: int,
) -> Value:
    """What an agent hands in for a command: what it printed, its exit code, and how long it took."""
    started = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        SHELL,
        "-c",
        command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=directory,
        env={**os.environ, **variables},
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    reading = asyncio.gather(
        _read(process.stdout, kept_bytes), _read(process.stderr, kept_bytes), process.wait()
    )
    try:
        stdout, stderr, code = await asyncio.wait_for(asyncio.shield(reading), seconds)
    except TimeoutError:
        _end(process.pid)
        try:
            stdout, stderr, _ = await asyncio.wait_for(reading, _GRACE_SECONDS)
        except TimeoutError:  # something that it started has left its group, and holds the pipes
            stdout = stderr = ""
        stderr += f"\n[it was ended after {seconds:g} s, which is its timeout]"
        code = TIMED_OUT
    except BaseException:
        _end(process.pid)
        raise
    took = round(time.monotonic() - started, 3)
    return {"stdout": stdout, "stderr": stderr.lstrip("\n"), "exit_code": code, "duration": took}


def only_known(result: dict[str, Value], schema: dict[str, Any]) -> dict[str, Value]:
    """The part of a result that a schema has a place for."""
    known = schema.get("properties", {})
    return {name: value for name, value in result.items() if name in known}


async def _read(stream: asyncio.StreamReader, kept_bytes: int) -> str:
    kept, size = bytearray(), 0
    while part := await stream.read(65536):
        size += len(part)
        kept += part[: max(kept_bytes - len(kept), 0)]
    text = kept.decode("utf-8", "replace")
    return text if size <= kept_bytes else f"{text}\n[cut: it printed {size} bytes]"


def _end(group: int) -> None:
    """The command and all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
