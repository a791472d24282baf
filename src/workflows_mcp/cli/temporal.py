"""`worker` and `temporal-dev`: a Temporal worker, and a Temporal development server.

Each runs until it gets SIGINT, SIGTERM or SIGHUP, and prints to stderr only.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import logging
import signal
import sys
import threading
import time
from pathlib import Path

from workflows_mcp.cli.terminal import COMPLETED, FAILED
from workflows_mcp.errors import RequestError
from workflows_mcp.runs import Service
from workflows_mcp.settings import Settings, load_settings
from workflows_mcp.temporal_dev import (
    DATABASE,
    DevServer,
    answers,
    claim,
    is_free,
    known_port,
    start_dev_server,
)

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_START_SECONDS = 30.0
_POLL_SECONDS = 0.1
_CLAIM_SECONDS = 2.0
"""How long the server of a command that has just ended may still hold its directory."""
_UI_PORT_OFFSET = 1000
"""The port of the web UI is the port of the server plus this, as in the Temporal CLI."""


def worker_command(_: argparse.Namespace) -> int:
    settings = load_settings(engine="temporal")
    settings = dataclasses.replace(
        settings, temporal=dataclasses.replace(settings.temporal, worker=True, steps=True)
    )
    level = logging.getLevelNamesMapping().get(settings.log_level.upper(), logging.WARNING)
    logging.basicConfig(stream=sys.stderr, level=level, format="%(levelname)s %(name)s: %(message)s")
    # A step type may print by accident: that must not reach stdout.
    with contextlib.redirect_stdout(sys.stderr):
        asyncio.run(_work(settings))
    return COMPLETED


async def _work(settings: Settings) -> None:
    stopped = asyncio.Event()
    for number in _STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with Service.open(settings):
        temporal = settings.temporal
        where = temporal.host or f"the development server in {settings.dev_server}"
        _print(
            f"worker for {where}, namespace {temporal.namespace}, task queue {temporal.task_queue}: "
            f"up to {settings.limits.parallel_steps} steps at once. Ctrl-C stops it."
        )
        await stopped.wait()
    _print("the worker has stopped; other workers take over its unfinished steps")


def temporal_dev_command(options: argparse.Namespace) -> int:
    stopped = threading.Event()
    for number in _STOP_SIGNALS:
        signal.signal(number, lambda *_: stopped.set())
    server, database, found = _start(options)
    try:
        until = time.monotonic() + _START_SECONDS
        while not answers(server.port) and not server.has_ended() and time.monotonic() < until:
            if stopped.wait(_POLL_SECONDS):
                return COMPLETED
        if not server.has_ended():
            page = f", http://127.0.0.1:{server.port + _UI_PORT_OFFSET} in a browser" if options.ui else ""
            _print(
                f"Temporal development server at {server.host}{page}; database {database}. Ctrl-C stops it."
            )
            _print(f"{found}WORKFLOWS_ENGINE=temporal WORKFLOWS_TEMPORAL_HOST={server.host}")
        while not stopped.wait(_POLL_SECONDS):
            if server.has_ended():
                _print(f"the server exited unexpectedly with code {server.process.returncode}")
                return FAILED
        return COMPLETED
    finally:
        server.end()


def _start(options: argparse.Namespace) -> tuple[DevServer, Path, str]:
    """Start the server; return it, its database, and a line that says how clients find it."""
    port = options.port
    ui_port = port + _UI_PORT_OFFSET if options.ui else None
    for needed in (port, ui_port):
        if needed is not None and not is_free(needed):
            raise RequestError(
                f"port {needed} is in use by another program", hint="choose another port with --port"
            )
    if options.db is not None:
        database = Path(options.db).expanduser().resolve()
        return start_dev_server(port, database, ui_port=ui_port), database, "to use it: "
    directory = load_settings().dev_server
    until = time.monotonic() + _CLAIM_SECONDS
    while (server := claim(directory, port=port, ui_port=ui_port, log=False)) is None:
        if time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
            continue
        raise RequestError(
            f"a server with this database is already running, at 127.0.0.1:{known_port(directory)}",
            hint="use that server, or start another one with --db FILE",
        )
    return server, directory / DATABASE, "processes with this home and no host set find it; others need: "


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
