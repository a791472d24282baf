"""One development server for all processes that have the same home.

The file `server.json` says at which port it is. The server itself holds a lock on that file as long as it
lives: whoever gets the lock knows that there is none, and starts one, on the same database and, so that the
others find it again, at the same port. It is ended with the process that started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from workflows_mcp.errors import RequestError
from workflows_mcp.temporal_dev.program import (
    HOST,
    DevServer,
    answers,
    find_program,
    free_port,
    is_free,
    start_dev_server,
)

logger = logging.getLogger(__name__)

DATABASE = "dev.db"
_FILE = "server.json"
_LOG = "server.log"
_START_SECONDS = 30.0
_LOOK_AGAIN_SECONDS = 0.1
_WATCH_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0


def known_port(directory: Path) -> int | None:
    """The port of the server that is, or was, shared; None where there never was one."""
    try:
        port = json.loads((directory / _FILE).read_bytes())["port"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return port if isinstance(port, int) else None


def claim(
    directory: Path, *, port: int | None = None, ui_port: int | None = None, log: bool = True
) -> DevServer | None:
    """Start the server of a directory, at this port, else where it was last; None where there is one."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(directory / _FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        if port is None:
            last = known_port(directory)
            port = last if last is not None and is_free(last) else free_port()
        elif not is_free(port):
            raise RequestError(f"the port {port} is taken by another program")
        told = json.dumps({"port": port, "pid": os.getpid()}).encode()
        os.pwrite(lock, told, 0)
        os.ftruncate(lock, len(told))
        said = directory / _LOG if log else None
        return start_dev_server(port, directory / DATABASE, ui_port=ui_port, log=said, keep_open=[lock])
    finally:
        os.close(lock)  # the server has it now, or nobody


class SharedServer:
    """The server of a directory, kept running while this is open."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._own: DevServer | None = None
        self._port = 0
        self._watching: asyncio.Task[None] | None = None

    async def open(self, is_ready: Callable[[str], Awaitable[bool]]) -> str:
        """Where it is, when it is ready there: something else may listen where it was. Raises RequestError
        where none can be started."""
        find_program()
        until = time.monotonic() + _START_SECONDS
        while True:
            if self._own is None:
                self._own = claim(self._directory)
            port = known_port(self._directory)
            if port is not None and answers(port) and await is_ready(f"{HOST}:{port}"):
                break
            if (self._own is not None and self._own.has_ended()) or time.monotonic() > until:
                await self.close()
                raise RequestError(
                    f"the Temporal development server did not start: {self._last_words()}",
                    hint=f"what it said is in {self._directory / _LOG}",
                    code="no_temporal",
                )
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        self._port = port
        self._watching = asyncio.create_task(self._keep_running())
        return f"{HOST}:{port}"

    async def close(self) -> None:
        """The server that was started here ends; whoever still needs one starts it again."""
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
        if self._own is not None:
            self._own.let_go()

    async def _keep_running(self) -> None:
        pause = _WATCH_SECONDS
        while True:
            await asyncio.sleep(pause)
            if self._own is not None:
                if not self._own.has_ended():
                    pause = _WATCH_SECONDS
                    continue
                code = self._own.process.returncode
                logger.warning("the Temporal development server ended (%s): %s", code, self._last_words())
                self._own = None
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
            try:
                self._own = claim(self._directory, port=self._port)
            except (OSError, RequestError) as error:
                logger.error("the Temporal development server cannot be started again: %s", error)
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    def _last_words(self) -> str:
        try:
            lines = (self._directory / _LOG).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        said = [line for line in lines if line.strip()]
        return said[-1][:500] if said else "it said nothing"
