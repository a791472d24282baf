"""How runs look: asked of the server, which has the code of the run say what has happened since they were
seen last. The machine is pure: the same events lead here to where they have led there.

What has just come from the server is taken for how things are: whoever has changed a run meanwhile has not
been told so yet, because that takes a round trip to the server, too.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

import msgspec
from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionStatus,
    WorkflowHistoryEventFilterType,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)
from temporalio.common import QueryRejectCondition
from temporalio.service import RPCError, RPCStatusCode

from workflows_mcp.engines.base import RunSummary
from workflows_mcp.engines.executor import Executor
from workflows_mcp.engines.temporal.blobs import BlobStore
from workflows_mcp.engines.temporal.wire import RUN, look, run_start
from workflows_mcp.engines.values import LargeValues
from workflows_mcp.errors import Damaged, RequestError, UnknownRun, WorkflowsError
from workflows_mcp.machine import CancelRequested, Event, Machine, RunState
from workflows_mcp.plan import Bundle, decode_bundle

# ----------------------------------------------------------------------------------------------------
# One question at a time: whoever asks what is being asked already shares the answer to the next question.
#
# The server takes few questions about a run at a time, and refuses whoever has more of them; of a hundred
# agents that want to know the same at once, one need ask. An answer that was under way when somebody came
# may be older than they may be told, so they wait for the one after it, and all who came meanwhile share
# that one.


T = TypeVar("T")


class SingleFlight(Generic[T]):
    def __init__(self) -> None:
        self._asking: dict[str, asyncio.Task[T]] = {}
        self._next: dict[str, asyncio.Task[T]] = {}
        """Those that begin when the one before them has ended; more may still come to them."""

    async def ask(self, key: str, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer to a question that begins after this call. Whoever goes away leaves it to the others."""
        task = self._next.get(key)
        if task is None:
            before = self._asking.get(key)
            task = asyncio.create_task(self._asked(key, ask, before))
            task.add_done_callback(_seen)
            if before is None:
                self._asking[key] = task
            else:
                self._next[key] = task
        return await asyncio.shield(task)

    async def _asked(self, key: str, ask: Callable[[], Awaitable[T]], before: asyncio.Task[T] | None) -> T:
        if before is not None:
            await asyncio.wait([before])
            self._asking[key] = self._next.pop(key)
        try:
            if before is not None and (error := _unanswered(before)) is not None:
                raise error
            return await ask()
        finally:
            if key not in self._next:
                self._asking.pop(key, None)

    async def close(self) -> None:
        tasks = [*self._asking.values(), *self._next.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _unanswered(before: asyncio.Task[T]) -> WorkflowsError | None:
    """That nobody has answered, after all the time that there is, holds for those who came meanwhile, too."""
    error = None if before.cancelled() else before.exception()
    return error if isinstance(error, WorkflowsError) and error.code == "no_worker" else None


def _seen(task: asyncio.Task[T]) -> None:
    if not task.cancelled():
        task.exception()  # those who wanted to know may all have gone away


_NEW_ENOUGH_SECONDS = 0.005

FIRST_TURN_SECONDS = 5.0

"""How long the start of a run waits until a worker has begun it. The run is started in any case."""

_KNOWN_RUNS = 256

_UNSERVED_EVENTS = 2

"""The history of a run that no worker has begun: it was started, and its first task is to be taken."""

_WHOLE = -1

"""What a run is asked with that is to show all of itself, and not events."""


@dataclass(slots=True)
class Seen:
    """A run as it was seen last. What happens later is added to the same machine, so that it is to be read
    before anything else gets a turn."""

    machine: Machine
    last_seen: dict[str, float]
    ending: bool
    at: float
    ended_by: Event | None = None
    """The last event of a run that was ended from outside, so that its journal does not have it."""

    @property
    def is_final(self) -> bool:
        return self.machine.state.status != "running" and not self.ending


class RunCache:
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
        self._looking: SingleFlight[Seen] = SingleFlight()
        self._finding: SingleFlight[Bundle] = SingleFlight()

    async def close(self) -> None:
        await self._looking.close()
        await self._finding.close()

    def large(self, run_id: str) -> LargeValues:
        return LargeValues(run_id, self._executor.limits.inline_bytes, self._store.get)

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
            at, last_seen = time.monotonic(), given.last_seen
            if last_seen is None:
                last_seen, at = (last.last_seen, at if last.at else 0.0) if last is not None else ({}, 0.0)
            return _kept(self._last, run_id, Seen(machine, last_seen, given.ending, at))

    async def _applied(self, machine: Machine, events: list[Event]) -> bool:
        """False where an expression took longer here than it did there: then this is not how the run is."""
        for event in events:
            if machine.sequences:
                await self._executor.apply_in_thread(machine, event)
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


# ----------------------------------------------------------------------------------------------------
# The runs that changed last. Of one that has ended, the server itself knows what is listed; one that has
# not is asked. The list of the server lags behind a little, so that what was just started here is added.


_MOST_OPEN = 200

"""How many runs that have not ended are asked when they last changed."""

_MOST_OF_ALL = 5000

"""How many are looked through for those of one workflow."""

_AT_ONCE = 16

_LISTED_AFTER_SECONDS = 10.0

_ENDED_OUTSIDE = {
    WorkflowExecutionStatus.TERMINATED: "cancelled",
    WorkflowExecutionStatus.CANCELED: "cancelled",
    WorkflowExecutionStatus.FAILED: "failed",
    WorkflowExecutionStatus.TIMED_OUT: "failed",
}

"""What a run has come to that did not end by itself."""


class Listing:
    def __init__(self, client: Client, task_queue: str, looks: RunCache) -> None:
        self._client = client
        self._task_queue = task_queue
        self._cache = looks
        self._begun: OrderedDict[str, float] = OrderedDict()
        """Runs that were begun here a moment ago."""

    def begun(self, run_id: str) -> None:
        self._begun[run_id] = time.monotonic()
        self._drop_listed()

    async def recent(self, limit: int, workflow: str | None) -> list[RunSummary]:
        opened = await self._open(_MOST_OPEN, workflow)
        found = {run.run_id: run async for run in self._closed(limit, workflow)} | opened
        return sorted(found.values(), key=lambda run: run.changed_at, reverse=True)[:limit]

    async def unfinished(self) -> list[RunSummary]:
        found = (await self._open(_MOST_OF_ALL, None)).values()
        open_ones = [run for run in found if run.status in ("running", "idle")]
        return sorted(open_ones, key=lambda run: run.changed_at, reverse=True)

    async def _open(self, limit: int, workflow: str | None) -> dict[str, RunSummary]:
        """Those that the server calls running, and those that were begun here a moment ago."""
        found: dict[str, RunSummary] = {}
        open_ones = [it async for it in self._named("ExecutionStatus = 'Running'", limit, workflow)]
        self._drop_listed()
        asked = dict.fromkeys([*(it.id for it, _ in open_ones), *self._begun])
        room = asyncio.Semaphore(_AT_ONCE)
        for run in await asyncio.gather(*(self._asked(run_id, room) for run_id in asked)):
            if run is not None and (workflow is None or run.workflow == workflow):
                found[run.run_id] = run
        return found

    async def _named(
        self, which: str, limit: int, workflow: str | None
    ) -> AsyncIterator[tuple[WorkflowExecution, Mapping[str, Any]]]:
        """Those of one workflow, or all, with what was noted of each: the latest first."""
        task_queue = self._task_queue.replace("'", "''")
        query = f"WorkflowType = '{RUN}' AND TaskQueue = '{task_queue}' AND {which}"
        most = _MOST_OF_ALL if workflow is not None else limit
        count = 0
        async for execution in self._client.list_workflows(query, limit=most):
            if count >= limit:
                return
            memo = await execution.memo()
            if workflow is None or memo.get("workflow") == workflow:
                count += 1
                yield execution, memo

    async def _closed(self, limit: int, workflow: str | None) -> AsyncIterator[RunSummary]:
        which = "ExecutionStatus != 'Running' AND ExecutionStatus != 'ContinuedAsNew'"
        async for execution, memo in self._named(which, limit, workflow):
            status = memo.get("status") or _ENDED_OUTSIDE.get(execution.status, "failed")  # type: ignore[arg-type]
            closed = execution.close_time or execution.start_time
            yield RunSummary(
                execution.id,
                str(memo.get("workflow", "")),
                str(status),
                float(memo.get("started_at", execution.start_time.timestamp())),
                float(memo.get("changed_at", closed.timestamp())),
                str(memo.get("forked_from", "")),
            )

    async def _asked(self, run_id: str, room: asyncio.Semaphore) -> RunSummary | None:
        async with room:
            try:
                state = (await self._cache.now(run_id)).machine.state
            except WorkflowsError as error:
                if error.code in ("no_temporal", "no_worker"):
                    raise
                return None  # gone meanwhile, or it cannot be read, which whoever asks for it is told
        origin = state.forked_from.partition("@")[0]
        status = _status_of(state)
        return RunSummary(run_id, state.workflow, status, state.started_at, state.changed_at, origin)

    def _drop_listed(self) -> None:
        now = time.monotonic()
        while self._begun and now - next(iter(self._begun.values())) > _LISTED_AFTER_SECONDS:
            self._begun.popitem(last=False)


def _status_of(state: RunState) -> str:
    if state.status != "running":
        return state.status
    return "idle" if state.idle else "running"
