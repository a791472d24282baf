"""The Temporal engine under a clock that a test moves by hand, over a real server.

The time of a run is a fact of its history here, like everything else: the clock tells every run how late it is
(an update), and its timers wait for that. So scenarios that were written for `VirtualClock` hold as they are, to
the second; that timers of the server work is shown elsewhere, with real time.

The worker keeps nothing of a run: whatever happens, its history is repeated from the beginning first. So every
scenario also shows that repeating leads to where the run was.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Any
from unittest import mock

import msgspec
from temporalio import workflow
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker

from support.steps import Gate
from workflows_mcp.engines.clock import VirtualClock, settle
from workflows_mcp.engines.temporal import worker
from workflows_mcp.engines.temporal.blobs import in_use
from workflows_mcp.engines.temporal.engine import TemporalEngine
from workflows_mcp.engines.temporal.wire import RUN, RunStart, run_start
from workflows_mcp.engines.temporal.workflow import Run
from workflows_mcp.plan.model import Bundle

_TURN_SECONDS = 0.005
_MOST_SECONDS = 15.0


@workflow.defn(name=RUN, sandboxed=False)
class RunInVirtualTime(Run):
    @workflow.init
    def __init__(self, start: bytes) -> None:
        self._time = _time_of(run_start(start))
        self._dues: list[float] = []
        super().__init__(start)

    @workflow.run
    async def run(self, start: bytes) -> bytes:
        return await super().run(start)

    def _now(self) -> float:
        return self._time

    async def _until(self, due: float) -> None:
        self._dues.append(due)
        try:
            await workflow.wait_condition(lambda: self._time >= due)
        finally:
            self._dues.remove(due)

    @workflow.update(name="move")
    async def move(self, time: float) -> None:
        self._time = max(self._time, time)

    @workflow.query(name="dues")
    def dues(self) -> list[float]:
        return self._dues


def _time_of(start: RunStart) -> float:
    """When the last event happened that it begins with."""
    if start.started:
        events = [msgspec.msgpack.decode(in_use().unpacked(start.started))]
    else:
        events = msgspec.msgpack.decode(in_use().unpacked(start.segments[-1]))
    return float(events[-1]["at"])


class EngineInVirtualTime(TemporalEngine):
    def __init__(self, *arguments: Any, clock: TemporalClock, gate: Gate) -> None:
        super().__init__(*arguments)
        self.known_runs: list[str] = []
        self._gate = gate
        clock.engine = self

    async def open(self) -> None:
        nothing_kept = functools.partial(Worker, max_cached_workflows=0)
        with (
            mock.patch.object(worker, "Run", RunInVirtualTime),
            mock.patch.object(worker, "Worker", nothing_kept),
        ):
            await super().open()

    async def _begin(
        self, run_id: str, bundle: Bundle, start: RunStart, asked: str, *, forked_from: str = ""
    ) -> None:
        await super()._begin(run_id, bundle, start, asked, forked_from=forked_from)
        self.known_runs.append(run_id)

    async def settled(self) -> None:
        """Until nothing goes on without time passing: whatever is under way waits for a gate to be opened."""
        async with asyncio.timeout(_MOST_SECONDS):
            while not await self._is_settled():
                await asyncio.sleep(_TURN_SECONDS)

    async def _is_settled(self) -> bool:
        states = [(await self._cache.now(run_id, fresh=True)).machine.state for run_id in self.known_runs]
        frames = [frame for state in states if state.status == "running" for frame in state.frames.values()]
        if any(frame.stopping or frame.kind == "plan" for frame in frames):
            return False
        return sum(frame.on_server for frame in frames) == self._gate.waiting

    async def next_due(self) -> float | None:
        dues = [await self._cache.asked(run_id, "dues", list[float]) for run_id in self.known_runs]
        return min((due for of_run in dues for due in of_run), default=None)

    async def move(self, time: float) -> None:
        for run_id in self.known_runs:
            try:
                await self._handle(run_id).execute_update("move", time)
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise


class TemporalClock(VirtualClock):
    """Moves the time of every run of an engine."""

    engine: EngineInVirtualTime

    async def advance(self, seconds: float) -> None:
        until = self._now + seconds
        await self.engine.settled()
        while (due := await self.engine.next_due()) is not None and due <= until:
            self._now = max(self._now, due)
            await self.engine.move(self._now)
            await self.engine.settled()
        self._now = until
        await self.engine.move(until)
        await settle()
