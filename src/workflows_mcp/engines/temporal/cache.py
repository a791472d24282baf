"""Caches the states of runs that this process has seen, and lists runs.

A query asks the workflow of a run for the events since the last query, and the same pure machine applies
them here. A state that has just come from the server counts as current: a client that has changed the run
meanwhile has no answer yet, because that takes a round trip, too.
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
from temporalio.api.enums.v1 import EventType
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
# One query at a time per run: callers that ask while a query is under way share the next one
#
# The server accepts few queries of a run at once and refuses more. A query that is under way may be older
# than a caller accepts, so the caller waits for the next one, with all others that came meanwhile.


T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Runs one query at a time for each key; later callers share the next query."""

    def __init__(self) -> None:
        self._asking: dict[str, asyncio.Task[T]] = {}
        self._next: dict[str, asyncio.Task[T]] = {}
        """Queries that have not started yet, and that more callers may share."""

    async def ask(self, key: str, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the answer of a query that starts after this call. Cancelling one caller stops no other."""
        task = self._next.get(key)
        if task is None:
            task = asyncio.create_task(self._asked(key, ask, self._asking.get(key)))
            task.add_done_callback(_seen)
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
            del self._asking[key]

    async def close(self) -> None:
        tasks = [*self._asking.values(), *self._next.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _unanswered(before: asyncio.Task[T]) -> WorkflowsError | None:
    """The error of a query that got no answer in time, which its successors share."""
    error = None if before.cancelled() else before.exception()
    return error if isinstance(error, WorkflowsError) and error.code == "no_worker" else None


def _seen(task: asyncio.Task[T]) -> None:
    if not task.cancelled():
        task.exception()  # all callers may have been cancelled


_NEW_ENOUGH_SECONDS = 0.005

FIRST_TURN_SECONDS = 5.0
"""How long `start` waits for a worker; the run is started in any case."""

_KNOWN_RUNS = 256

_UNSERVED_EVENTS = 2
"""The length of a history that no worker has worked on: the start, and the first task."""

_CONTINUED_AS_NEW = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW

_WHOLE = -1
"""The argument of a query for the whole state instead of events."""


@dataclass(slots=True)
class Seen:
    """A cached run. Later events are applied to the same machine: read it before the next await."""

    machine: Machine
    last_seen: dict[str, float]
    ending: bool
    at: float
    ended_by: Event | None = None
    """The event for a run that the server ended; it is not in the journal."""

    @property
    def is_final(self) -> bool:
        return self.machine.state.status != "running" and not self.ending


class RunCache:
    """Caches the runs that this process has seen, and updates them with queries."""

    def __init__(self, client: Client, store: BlobStore, executor: Executor) -> None:
        self._client = client
        self._store = store
        self._executor = executor
        self._last: OrderedDict[str, Seen] = OrderedDict()
        self._bundles: OrderedDict[str, Bundle] = OrderedDict()
        self._adding: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Locks of cached runs, held while events are applied: the state must not be read then."""
        self._unknown: OrderedDict[str, int] = OrderedDict()
        """Runs that are queried as a whole, because an expression took too long in this process."""
        self._state_queries: SingleFlight[Seen] = SingleFlight()
        self._bundle_queries: SingleFlight[Bundle] = SingleFlight()

    async def close(self) -> None:
        await self._state_queries.close()
        await self._bundle_queries.close()

    def large(self, run_id: str) -> LargeValues:
        return LargeValues(run_id, self._executor.limits.inline_bytes, self._store.get)

    async def last(self, run_id: str) -> Seen | None:
        async with self._lock(run_id):
            return self._last.get(run_id)

    async def begun(self, run_id: str) -> None:
        """Query a new run as soon as a worker has started it; give up after a few seconds."""
        try:
            async with asyncio.timeout(FIRST_TURN_SECONDS):
                await self.add(run_id, await self.asked(run_id, "look", bytes, 0))
        except TimeoutError:
            pass  # no worker is needed to start a run, only to continue it
        except RequestError as error:
            if error.code != "no_worker":
                raise

    async def now(self, run_id: str, *, fresh: bool = False, served: bool = False) -> Seen:
        """Return the current state. `fresh`: query it. `served`: wait until a worker has started the run."""
        last = await self.last(run_id)
        if last is not None and last.is_final:
            return last
        if last is not None and not fresh and time.monotonic() - last.at < _NEW_ENOUGH_SECONDS:
            return last
        if last is None and not served and (unserved := await self._unserved(run_id)) is not None:
            return unserved
        return await self._state_queries.ask(run_id, lambda: self._query_state(run_id))

    async def _unserved(self, run_id: str) -> Seen | None:
        """Return a run that no worker has started yet, from the data of the server; None for others."""
        handle = self._client.get_workflow_handle(run_id)
        try:
            described = await handle.describe()
        except RPCError as error:
            raise _unknown(run_id) if error.status is RPCStatusCode.NOT_FOUND else error from None
        first = described.raw_description.workflow_execution_info.first_run_id
        is_open = described.status is WorkflowExecutionStatus.RUNNING
        events = described.history_length if is_open else described.history_length - 1
        if events > _UNSERVED_EVENTS or first not in ("", described.run_id):
            return None  # it has started, or this is a later history of a long run
        started = await anext(handle.fetch_history_events(page_size=1))
        given = started.workflow_execution_started_event_attributes.input.payloads
        (body,) = await self._client.data_converter.decode(given, [bytes])
        machine = Machine(decode_bundle(self._store.unpacked(run_start(body).bundle)))
        state = machine.state
        state.run_id, state.started_at = run_id, described.start_time.timestamp()
        state.changed_at = state.started_at
        state.forked_from = str((await described.memo()).get("forked_from", ""))
        if not is_open:
            end = await self._end_of(run_id)
            if end is None:
                return None
            machine.apply(end)
        return Seen(machine, {}, False, time.monotonic())

    async def _query_state(self, run_id: str) -> Seen:
        while True:
            last = await self.last(run_id)
            known = last.machine.state.events if last is not None else self._unknown.get(run_id, 0)
            try:
                body = await self.asked(run_id, "look", bytes, known, only_open=True)
                is_open = True
            except WorkflowQueryRejectedError:
                body, is_open = await self.asked(run_id, "look", bytes, known), False
            seen = await self.add(run_id, body)
            if seen is not None and (is_open or await self._is_closed(run_id, seen)):
                return seen

    async def _is_closed(self, run_id: str, seen: Seen) -> bool:
        """Mark a run as cancelled that the server ended, as `temporal workflow terminate` does.

        False if only a part of its history is closed: the run has continued as new meanwhile."""
        async with self._lock(run_id):
            if seen.machine.state.status == "running":
                seen.ended_by = await self._end_of(run_id)
                if seen.ended_by is None:
                    return False
                await self._applied(seen.machine, [seen.ended_by])
                seen.ending = False
        return True

    async def _end_of(self, run_id: str) -> CancelRequested | None:
        """Return the event for a run that the server ended; None if the run continues."""
        handle = self._client.get_workflow_handle(run_id)
        closing = [
            event
            async for event in handle.fetch_history_events(
                event_filter_type=WorkflowHistoryEventFilterType.CLOSE_EVENT
            )
        ]
        if not closing or closing[-1].event_type == _CONTINUED_AS_NEW:
            return None
        last = closing[-1]
        why = last.workflow_execution_terminated_event_attributes.reason
        message = "it was terminated on the Temporal server" + (f": {why}" if why else "")
        return CancelRequested(last.event_time.ToMicroseconds() / 1e6, message)

    async def add(self, run_id: str, body: bytes, sent: Event | None = None) -> Seen | None:
        """Apply an answer of a run to its cached state; None if events are missing between them.

        `sent`: the event that it answers, which the answer leaves out."""
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
                return None  # events are missing, or the run was dropped from the cache meanwhile
            elif not given.events:
                return last  # nothing new
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
        """Apply events; False if an expression was stopped here that the worker did not stop."""
        for event in events:
            if machine.sequences:
                await self._executor.apply_in_thread(machine, event)
            else:
                machine.apply(event)
            if machine.stopped_expressions:
                return False
        return True

    def _lock(self, run_id: str) -> asyncio.Lock:
        return self._adding.setdefault(run_id, asyncio.Lock())

    def outdated(self, run_id: str) -> None:
        """Do not use the cached state without a query."""
        if (last := self._last.get(run_id)) is not None:
            last.at = 0.0

    def know_bundle(self, run_id: str, bundle: Bundle) -> None:
        _kept(self._bundles, run_id, bundle)

    async def bundle(self, run_id: str) -> Bundle:
        known = self._bundles.get(run_id)
        if known is not None:
            return known
        return await self._bundle_queries.ask(run_id, lambda: self._query_bundle(run_id))

    async def _query_bundle(self, run_id: str) -> Bundle:
        known = self._bundles.get(run_id)
        if known is not None:
            return known
        body = await self.asked(run_id, "bundle", bytes)
        return _kept(self._bundles, run_id, decode_bundle(self._store.unpacked(body)))

    async def asked(self, run_id: str, query: str, kind: type[T], *args: Any, only_open: bool = False) -> T:
        """Query a run. `only_open`: raise WorkflowQueryRejectedError if it is closed on the server."""
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
# Lists of runs
#
# The server stores the fields of a list for ended runs; the others are queried. Its index is a little behind,
# so runs that were just started here are added.


_MOST_OPEN = 200
"""How many unfinished runs are queried for a list."""

_MOST_OF_ALL = 5000
"""How many runs are searched for those of one workflow."""

_AT_ONCE = 16

_LISTED_AFTER_SECONDS = 10.0

_ENDED_OUTSIDE = {
    WorkflowExecutionStatus.TERMINATED: "cancelled",
    WorkflowExecutionStatus.CANCELED: "cancelled",
    WorkflowExecutionStatus.FAILED: "failed",
    WorkflowExecutionStatus.TIMED_OUT: "failed",
}

"""The status of a run that the server ended."""


class Listing:
    """Lists runs, from the index of the server and the cache."""

    def __init__(self, client: Client, task_queue: str, cache: RunCache) -> None:
        self._client = client
        self._task_queue = task_queue
        self._cache = cache
        self._begun: OrderedDict[str, float] = OrderedDict()
        """Runs that this process has just started."""

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
        """The runs that the server lists as running, and those that this process has just started."""
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
        """The runs of one workflow, or all, with their memos, latest first."""
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
                return None  # deleted meanwhile, or unreadable, which a query for this run reports
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
