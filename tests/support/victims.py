"""Server processes that a test may kill: real ones, forked from a process that has everything loaded."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from support.rendered import Service
from workflows_mcp.settings.model import Settings

LOADED = [
    "support.mortal_servers",
    "workflows_mcp.cli.serve",
    "workflows_mcp.engines.sqlite.engine",
    "workflows_mcp.mcp_server.server",
    "workflows_mcp.mcp_server.tools.core",
    "workflows_mcp.steps.call",
    "workflows_mcp.steps.shell",
    "workflows_mcp.steps.template",
]
"""So that a process that is forked off can work at once."""
ENDED = ("completed", "failed", "cancelled")


def settings_of(home: Path) -> Settings:
    return Settings(workspace=home, home=home / "store")


def drive(home: Path, file: Path, inputs: dict[str, Any], ready: Event) -> None:
    """A server that starts a run and drives it to its end."""

    async def go() -> None:
        async with Service.open(settings_of(home)) as service:
            ready.set()
            answer = await service.start(file=str(file), inputs=inputs, request_id="the run")
            while answer["status"] not in ENDED:
                answer = await service.status(answer["workflow_id"], wait_seconds=30)
            (home / "driven.json").write_text(json.dumps(answer))

    asyncio.run(go())


def serve(home: Path, ready: Event, until_ended: bool) -> None:
    """A server that starts nothing; it goes on with what others have left."""

    async def go() -> None:
        async with Service.open(settings_of(home)) as service:
            ready.set()
            while True:
                runs = await service.recent(limit=100)
                if until_ended and all(run["status"] in ENDED for run in runs):
                    break
                await asyncio.sleep(0.02)
            states = [await service.state(str(run["workflow_id"])) for run in runs]
            answers = [await service.status(str(run["workflow_id"])) for run in runs]
            (home / "recovered.json").write_text(json.dumps([answers, states]))

    asyncio.run(go())


def forking() -> ForkServerContext:
    """Processes that are forked off one that has everything loaded."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["support.victims", *LOADED])
    return context


class Processes:
    def __init__(self) -> None:
        self._context = forking()
        self._started: list[BaseProcess] = []

    def start(self, target: Any, *arguments: Any) -> tuple[BaseProcess, Event]:
        ready = self._context.Event()
        places = {drive: (*arguments, ready), serve: (arguments[0], ready, *arguments[1:])}
        process = self._context.Process(target=target, args=places[target], daemon=True)
        process.start()
        self._started.append(process)
        return process, ready

    def end(self) -> None:
        for process in self._started:
            if process.is_alive():
                process.kill()
            process.join()


@contextmanager
def processes() -> Iterator[Processes]:
    group = Processes()
    try:
        yield group
    finally:
        group.end()
