"""Looking at workflows and runs from outside, without driving them: the part of the service behind resources
and notices. Nothing here changes a run, and nobody is counted as its agent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from workflows_mcp.agent.journal_view import journal_view
from workflows_mcp.agent.mermaid import drawn_plan, drawn_run
from workflows_mcp.agent.parts import all_tasks, part_of, run_of
from workflows_mcp.driving import Driving
from workflows_mcp.engines.base import Engine
from workflows_mcp.errors import RequestError
from workflows_mcp.library.catalog import Catalog, Entry
from workflows_mcp.limits import Limits
from workflows_mcp.machine.events import Event
from workflows_mcp.machine.scope import iso
from workflows_mcp.machine.state import RunState
from workflows_mcp.values import Value
from workflows_mcp.watching import Progress, Watch

__all__ = ["Observing", "Progress", "Watch", "asks", "needs_attention"]

_LOOK_SECONDS = 30.0
"""How long one wait for a change lasts; another one follows."""
_LOOK_AT_FILES_SECONDS = 1.0


class Observing:
    def __init__(self, engine: Engine, driving: Driving, catalog: Catalog, limits: Limits) -> None:
        self._engine = engine
        self._driving = driving
        self._catalog = catalog
        self._limits = limits
        self._looked_at = float("-inf")
        self._entries: dict[str, Entry] = {}

    # Workflows

    def names(self) -> list[str]:
        """Of all workflows that can be found, whether they can be run or not."""
        return sorted(self._catalog.entries())

    def text_of(self, workflow: str) -> str:
        """The definition as it is written, also where it is wrong."""
        return self._catalog.text_of(workflow)

    def file_of(self, workflow: str) -> str:
        """Where a workflow that is known by name stands. Raises UnknownWorkflow."""
        return str(self._catalog.find(workflow).path)

    def stamp_of(self, workflow: str) -> str:
        """Something that is another when the definition is rewritten. Raises UnknownWorkflow."""
        self._catalog.find(workflow)
        return self._stamp(workflow)

    async def rewritten(self, workflow: str, stamp: str) -> str:
        """Its stamp as soon as that is not this one any more; empty where there is no such workflow."""
        while True:
            found = self._stamp(workflow)
            if found != stamp:
                return found
            await asyncio.sleep(_LOOK_AT_FILES_SECONDS)

    def _stamp(self, workflow: str) -> str:
        now = time.monotonic()
        if now - self._looked_at > _LOOK_AT_FILES_SECONDS / 2:  # once for all that are being watched
            self._looked_at, self._entries = now, self._catalog.entries()
        entry = self._entries.get(workflow)
        try:
            status = entry.path.stat() if entry is not None else None
        except OSError:
            status = None
        if entry is None or status is None:
            return ""
        parts = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
        return f"{entry.path} {parts}"

    def drawing_of(self, workflow: str) -> str:
        return drawn_plan(self._catalog.definition(workflow).plan)

    # Runs, and tasks of runs

    def run_of(self, workflow_id: str) -> str:
        """The run that this is, or that it is a task of."""
        return run_of(workflow_id)

    async def tasks(self, workflow_id: str) -> list[str]:
        """The ids of its tasks, as far as there are any now."""
        run_id = run_of(workflow_id)
        known = [part.id for part in all_tasks((await self._engine.view(run_id)).state)]
        return [it for it in known if workflow_id == run_id or it.startswith(f"{workflow_id}.")]

    async def graph(self, workflow_id: str) -> str:
        situation = await self._driving.situation(workflow_id)
        return drawn_run(situation.machine, situation.scope, situation.task)

    async def journal(self, workflow_id: str, *, offset: int = 0, limit: int | None = None) -> dict[str, Any]:
        _check_slice(offset, limit)
        part = part_of(await self._engine.view(run_of(workflow_id)), workflow_id)
        _, events = await self._engine.journal(part.run_id)
        return journal_view(part, events, self._limits, offset=offset, limit=limit)

    async def value(self, workflow_id: str, path: str, *, offset: int = 0, limit: int | None = None) -> Value:
        """The value at a path, whole; of a text, a list or an object as much as is asked for."""
        _check_slice(offset, limit)
        value = await self._driving.value(workflow_id, path)
        end = None if limit is None else offset + limit
        if isinstance(value, dict):
            return dict(list(value.items())[offset:end])
        return value[offset:end] if isinstance(value, str | list) else value

    async def made_of(self, run_id: str) -> str:
        """The run that this one was made of; empty where it was not."""
        return (await self._engine.view(run_id)).state.forked_from.partition("@")[0]

    async def position(self, workflow_id: str) -> int:
        """How many events the run has behind it, so that `moved` can tell what has happened since."""
        return (await self._engine.view(run_of(workflow_id))).state.events

    async def moved(self, workflow_id: str, position: int) -> int | None:
        """Where the run is as soon as it has gone beyond a position, whichever process drives it. None: it
        has ended there, and will not change any more."""
        while True:
            machine = await self._engine.wait(
                run_of(workflow_id),
                lambda state: state.events > position or state.status != "running",
                _LOOK_SECONDS,
            )
            state = machine.state
            if state.events > position:
                return state.events
            if state.status != "running":
                return None

    async def times(self, run_id: str) -> tuple[str, str]:
        """When a run was begun, and when something happened in it last."""
        state = (await self._engine.view(run_of(run_id))).state
        return iso(state.started_at) or "", iso(state.changed_at) or ""

    async def so_far(self, run_id: str) -> Watch:
        """A watch that has seen all that has happened by now."""
        watch = Watch()
        watch.look(await self._engine.view(run_id))
        for _ in watch.news():
            pass
        return watch

    async def watch(
        self, run_id: str, watch: Watch | None = None, *, until: Callable[[RunState], bool] | None = None
    ) -> AsyncIterator[Progress]:
        """Every step as it starts and ends, until the run has ended or needs an answer, or as `until` says;
        from what the watch has seen on, if there is one."""
        watch, is_over = watch or Watch(), until or needs_attention
        while True:
            before = watch.position
            machine = await self._engine.wait(run_id, _moved_beyond(before, is_over), 1.0)
            over = is_over(machine.state)
            events: list[Event] = []
            if watch.look(machine):
                _, events = await self._engine.journal(run_id, before)
            for step in watch.news(events[: watch.position - before]):
                yield step
            if over:
                return


def _check_slice(offset: int, limit: int | None) -> None:
    if offset < 0 or (limit is not None and limit < 1):
        raise RequestError("offset must be 0 or more, and limit 1 or more")


def needs_attention(state: RunState) -> bool:
    """Whether the run has ended, is parked, or asks something of the agent."""
    return has_stopped(state) or asks(state)


def asks(state: RunState) -> bool:
    return any(frame.kind == "agent" for frame in state.frames.values())


def has_stopped(state: RunState) -> bool:
    """Whether the run has ended, or is parked."""
    return state.status != "running" or state.parked is not None


def _moved_beyond(position: int, is_over: Callable[[RunState], bool]) -> Callable[[RunState], bool]:
    return lambda state: state.events > position or is_over(state)
