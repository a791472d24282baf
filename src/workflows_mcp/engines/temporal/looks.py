"""How runs look: asked of the server, which has the code of the run say what has happened since they were
seen last. The machine is pure: the same events lead here to where they have led there.

What has just come from the server is taken for how things are: whoever has changed a run meanwhile has not
been told so yet, because that takes a round trip to the server, too.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import msgspec
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowHistoryEventFilterType,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)
from temporalio.common import QueryRejectCondition
from temporalio.service import RPCError, RPCStatusCode

from workflows_mcp.engines.executor import Executor
from workflows_mcp.engines.large_values import LargeValues
from workflows_mcp.engines.temporal.blobs import BlobStore
from workflows_mcp.engines.temporal.together import Together
from workflows_mcp.engines.temporal.wire import look, run_start
from workflows_mcp.errors import Damaged, RequestError, UnknownRun
from workflows_mcp.machine.events import CancelRequested, Event
from workflows_mcp.machine.machine import Machine
from workflows_mcp.plan.codec import decode_bundle
from workflows_mcp.plan.model import Bundle

_NEW_ENOUGH_SECONDS = 0.005
FIRST_TURN_SECONDS = 5.0
"""How long the start of a run waits until a worker has begun it. The run is started in any case."""
_KNOWN_RUNS = 256
_UNSERVED_EVENTS = 2
"""The history of a run that no worker has begun: it was started, and its first task is to be taken."""
_WHOLE = -1
"""What a run is asked with that is to show all of itself, and not events."""

T = TypeVar("T")


@dataclass(slots=True)
class Seen:
    """A run as it was seen last. What happens later is added to the same machine, so that it is to be read
    before anything else gets a turn."""

    machine: Machine
    heard: dict[str, float]
    ending: bool
    at: float
    ended_by: Event | None = None
    """The last event of a run that was ended from outside, so that its journal does not have it."""

    @property
    def is_final(self) -> bool:
        return self.machine.state.status != "running" and not self.ending


class Looks:
    def __init__(self, client: Client, store: BlobStore, executor: Executor) -> None:
        self._client = client
        self._store = store
        self._executor = executor
        self._last: OrderedDict[str, Seen] = OrderedDict()
        self._bundles: OrderedDict[str, Bundle] = OrderedDict()
        self._adding: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Held while something is added to what was seen of a run: then nobody may read it."""
        self._unknown: OrderedDict[str, int] = OrderedDict()
        """Runs of which this process is too slow to follow the events."""
        self._looking: Together[Seen] = Together()
        self._finding: Together[Bundle] = Together()

    async def close(self) -> None:
        await self._looking.close()
        await self._finding.close()

    def large(self, run_id: str) -> LargeValues:
        return LargeValues(run_id, self._executor.limits.stored_bytes, self._store.get)

    async def last(self, run_id: str) -> Seen | None:
        async with self._lock(run_id):
            return self._last.get(run_id)

    async def begun(self, run_id: str) -> None:
        """Look at a run that was just started as soon as a worker has begun it, if one does soon."""
        try:
            async with asyncio.timeout(FIRST_TURN_SECONDS):
                await self.add(run_id, await self.asked(run_id, "look", bytes, 0))
        except TimeoutError:
            pass  # no worker is needed to start a run, only to continue it
        except RequestError as error:
            if error.code != "no_worker":
                raise

    async def now(self, run_id: str, *, again: bool = False, served: bool = False) -> Seen:
        """`again`: also if somebody has just looked. `served`: wait for a worker where none has begun it."""
        last = await self.last(run_id)
        if last is not None and last.is_final:
            return last
        if last is not None and not again and time.monotonic() - last.at < _NEW_ENOUGH_SECONDS:
            return last
        if last is None and not served and (unserved := await self._unserved(run_id)) is not None:
            return unserved
        return await self._looking.ask(run_id, lambda: self._looked(run_id))

    async def _unserved(self, run_id: str) -> Seen | None:
        """A run that no worker has begun yet, as far as the server alone knows it; None for all others."""
        handle = self._client.get_workflow_handle(run_id)
        try:
            described = await handle.describe()
        except RPCError as error:
            raise _unknown(run_id) if error.status is RPCStatusCode.NOT_FOUND else error from None
        first = described.raw_description.workflow_execution_info.first_run_id
        is_open = described.status is WorkflowExecutionStatus.RUNNING
        events = described.history_length if is_open else described.history_length - 1
        if events > _UNSERVED_EVENTS or first not in ("", described.run_id):
            return None  # it has begun, or this is the next history of a long run
        started = await anext(handle.fetch_history_events(page_size=1))
        given = started.workflow_execution_started_event_attributes.input.payloads
        (body,) = await self._client.data_converter.decode(given, [bytes])
        machine = Machine(decode_bundle(self._store.unpacked(run_start(body).bundle)))
        state = machine.state
        state.run_id, state.started_at = run_id, described.start_time.timestamp()
        state.changed_at = state.started_at
        state.forked_from = str((await described.memo()).get("forked_from", ""))
        if not is_open:
            machine.apply(await self._end_of(run_id))
        return Seen(machine, {}, False, time.monotonic())

    async def _looked(self, run_id: str) -> Seen:
        while True:
            last = await self.last(run_id)
            known = last.machine.state.events if last is not None else self._unknown.get(run_id, 0)
            try:
                body = await self.asked(run_id, "look", bytes, known, only_open=True)
                is_open = True
            except WorkflowQueryRejectedError:
                body, is_open = await self.asked(run_id, "look", bytes, known), False
            seen = await self.add(run_id, body)
            if seen is not None:
                return seen if is_open else await self._closed(run_id, seen)

    async def _closed(self, run_id: str, seen: Seen) -> Seen:
        """A run that the server has ended while it was under way, as `temporal workflow terminate` does, is
        cancelled."""
        async with self._lock(run_id):
            if seen.machine.state.status == "running":
                seen.ended_by = await self._end_of(run_id)
                await self._applied(seen.machine, [seen.ended_by])
                seen.ending = False
        return seen

    async def _end_of(self, run_id: str) -> CancelRequested:
        handle = self._client.get_workflow_handle(run_id)
        last = [
            event
            async for event in handle.fetch_history_events(
                event_filter_type=WorkflowHistoryEventFilterType.CLOSE_EVENT
            )
        ][-1]
        why = last.workflow_execution_terminated_event_attributes.reason
        message = "it was terminated on the Temporal server" + (f": {why}" if why else "")
        return CancelRequested(last.event_time.ToMicroseconds() / 1e6, message)

    async def add(self, run_id: str, body: bytes, sent: Event | None = None) -> Seen | None:
        """What a run has said of itself, added to what is known of it; None where that is too little. `sent`:
        the event that it has answered, and that it does not repeat."""
        given = look(body)
        bundle = await self.bundle(run_id)
        async with self._lock(run_id):
            last = self._last.get(run_id)
            machine = last.machine if last is not None else Machine(bundle)
            large = self.large(run_id)
            if given.snapshot:
                if given.position > machine.state.events:
                    machine = Machine(bundle, large.restore(self._store.unpacked(given.snapshot)))
            elif given.position > machine.state.events:
                self.outdated(run_id)
                return None  # there is more to see, or it was forgotten while the run was asked
            elif not given.events:
                return last  # all of it has been seen
            else:
                events = large.decode_events(self._store.unpacked(given.events))
                if given.own and sent is not None:
                    events.insert(given.own - 1, msgspec.structs.replace(sent, at=given.own_at))
                if not await self._applied(machine, events[machine.state.events - given.position :]):
                    _kept(self._unknown, run_id, _WHOLE)
                    self._last.pop(run_id, None)
                    return None
            at, heard = time.monotonic(), given.heard
            if heard is None:
                heard, at = (last.heard, at if last.at else 0.0) if last is not None else ({}, 0.0)
            return _kept(self._last, run_id, Seen(machine, heard, given.ending, at))

    async def _applied(self, machine: Machine, events: list[Event]) -> bool:
        """False where an expression took longer here than it did there: then this is not how the run is."""
        for event in events:
            if machine.sequences:
                await self._executor.apply_elsewhere(machine, event)
            else:
                machine.apply(event)
            if machine.stopped:
                return False
        return True

    def _lock(self, run_id: str) -> asyncio.Lock:
        return self._adding.setdefault(run_id, asyncio.Lock())

    def outdated(self, run_id: str) -> None:
        """What was seen last is not how things are any more."""
        if (last := self._last.get(run_id)) is not None:
            last.at = 0.0

    def know_bundle(self, run_id: str, bundle: Bundle) -> None:
        _kept(self._bundles, run_id, bundle)

    async def bundle(self, run_id: str) -> Bundle:
        known = self._bundles.get(run_id)
        if known is not None:
            return known
        return await self._finding.ask(run_id, lambda: self._found(run_id))

    async def _found(self, run_id: str) -> Bundle:
        known = self._bundles.get(run_id)
        if known is not None:
            return known
        body = await self.asked(run_id, "bundle", bytes)
        return _kept(self._bundles, run_id, decode_bundle(self._store.unpacked(body)))

    async def asked(self, run_id: str, query: str, kind: type[T], *args: Any, only_open: bool = False) -> T:
        """`only_open`: WorkflowQueryRejectedError where the run is closed on the server."""
        condition = QueryRejectCondition.NOT_OPEN if only_open else None
        try:
            answer: T = await self._client.get_workflow_handle(run_id).query(
                query, args=args, result_type=kind, reject_condition=condition
            )
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                raise _unknown(run_id) from None
            raise
        except WorkflowQueryFailedError as error:
            raise Damaged(
                f"the run {run_id} cannot be read: {error}",
                hint="see the log of the workers: all of them need the same directory of large values",
            ) from None
        return answer


def _unknown(run_id: str) -> UnknownRun:
    return UnknownRun(f"there is no run '{run_id}'")


def _kept(cache: OrderedDict[str, Any], key: str, value: T) -> T:
    cache[key] = value
    cache.move_to_end(key)
    while len(cache) > _KNOWN_RUNS:
        cache.popitem(last=False)
    return value
