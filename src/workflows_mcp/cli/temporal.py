"""`worker` and `temporal-dev`: a worker alone, and the development server of Temporal, each until it is told
to go. Neither has anything to say on stdout."""

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

_TO_GO = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_START_SECONDS = 30.0
_LOOK_AGAIN_SECONDS = 0.1
_LETTING_GO_SECONDS = 2.0
"""How long the server of a command that has just ended may take to end, too."""
_UI_ABOVE = 1000
"""How far the port of the web page is above that of the server, as Temporal has it."""


def worker_command(_: argparse.Namespace) -> int:
    settings = load_settings(engine="temporal")
    settings = dataclasses.replace(
        settings, temporal=dataclasses.replace(settings.temporal, worker=True, steps=True)
    )
    level = logging.getLevelNamesMapping().get(settings.log_level.upper(), logging.WARNING)
    logging.basicConfig(stream=sys.stderr, level=level, format="%(levelname)s %(name)s: %(message)s")
    # What a step type prints by accident is no answer of ours.
    with contextlib.redirect_stdout(sys.stderr):
        asyncio.run(_work(settings))
    return COMPLETED


async def _work(settings: Settings) -> None:
    told = asyncio.Event()
    for number in _TO_GO:
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    async with Service.open(settings):
        given = settings.temporal
        where = given.host or f"the development server in {settings.dev_server}"
        _say(
            f"a worker for {where}, namespace {given.namespace}, task queue {given.task_queue}: "
            f"up to {settings.limits.parallel_steps} steps at once. Ctrl-C ends it."
        )
        await told.wait()
    _say("the worker has ended; what it was carrying out is handed back")


def temporal_dev_command(options: argparse.Namespace) -> int:
    told = threading.Event()
    for number in _TO_GO:
        signal.signal(number, lambda *_: told.set())
    server, database, found = _started(options)
    try:
        until = time.monotonic() + _START_SECONDS
        while not answers(server.port) and not server.has_ended() and time.monotonic() < until:
            if told.wait(_LOOK_AGAIN_SECONDS):
                return COMPLETED
        if not server.has_ended():
            page = f", http://127.0.0.1:{server.port + _UI_ABOVE} in a browser" if options.ui else ""
            _say(f"Temporal development server at {server.host}{page}; database {database}. Ctrl-C ends it.")
            _say(f"{found}WORKFLOWS_ENGINE=temporal WORKFLOWS_TEMPORAL_HOST={server.host}")
        while not told.wait(_LOOK_AGAIN_SECONDS):
            if server.has_ended():
                _say(f"the server has ended by itself ({server.process.returncode})")
                return FAILED
        return COMPLETED
    finally:
        server.end()


def _started(options: argparse.Namespace) -> tuple[DevServer, Path, str]:
    """The server, its database, and how others find it."""
    port = options.port
    ui_port = port + _UI_ABOVE if options.ui else None
    for needed in (port, ui_port):
        if needed is not None and not is_free(needed):
            raise RequestError(
                f"the port {needed} is taken by another program", hint="choose another one with --port"
            )
    if options.db is not None:
        database = Path(options.db).expanduser().resolve()
        return start_dev_server(port, database, ui_port=ui_port), database, "to use it: "
    directory = load_settings().dev_server
    until = time.monotonic() + _LETTING_GO_SECONDS
    while (server := claim(directory, port=port, ui_port=ui_port, log=False)) is None:
        if time.monotonic() < until:
            time.sleep(_LOOK_AGAIN_SECONDS)
            continue
        raise RequestError(
            f"a server with this database runs already, at 127.0.0.1:{known_port(directory)}",
            hint="that one can be used, or another one started with --db FILE",
        )
    return server, directory / DATABASE, "found by all that have this home and no host set; by others with: "


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
