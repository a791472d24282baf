"""The engine over a Temporal server: a run is a Temporal workflow, and this process its client.

    async with engine:                                  # connects, and starts a worker if the settings say so
        run_id = await engine.start(bundle, inputs)     # starts a Temporal workflow
        await engine.send(run_id, make_event)           # an update
        await engine.view(run_id)                       # a query

The process that has the engine runs a worker for the server; other processes may run more. Nothing of a run
is stored in this process: it may exit at once.

In this module: the engine, scratch directories, and the engine with its own development server.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import itertools
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from weakref import WeakValueDictionary

import msgspec
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from workflows_mcp.engines.audit import audit_of
from workflows_mcp.engines.base import NO_AGENTS, ChangedDefinition, FindBundle, MakeEvent, Pruned, RunSummary
from workflows_mcp.engines.executor import Executor
from workflows_mcp.engines.forks import fork_of, new_run_id, request_digest
from workflows_mcp.engines.temporal import workflow
from workflows_mcp.engines.temporal.blobs import BlobStore, use
from workflows_mcp.engines.temporal.cache import Listing, RunCache
from workflows_mcp.engines.temporal.connection import Address, connect
from workflows_mcp.engines.temporal.notes import NotesOfRuns
from workflows_mcp.engines.temporal.wire import (
    NOT_EXPECTED,
    RULES,
    RUN,
    UPDATES_A_HISTORY,
    LocalListeners,
    RunStart,
    Sent,
    events_to_hash,
)
from workflows_mcp.engines.temporal.worker import Activities, WorkerSupervisor, worker_of
from workflows_mcp.engines.values import LargeValues, encode, join_events
from workflows_mcp.errors import NotExpected, RequestError
from workflows_mcp.limits import Limits
from workflows_mcp.machine import (
    Answered,
    Audit,
    Chain,
    Event,
    Identity,
    Machine,
    Mismatch,
    RunState,
    Started,
    StoredBatch,
)
from workflows_mcp.plan import Bundle, Steps, bundle_key, encode_bundle
from workflows_mcp.settings import Settings
from workflows_mcp.temporal_dev import SharedServer
from workflows_mcp.values import Value, to_json

logger = logging.getLogger(__name__)

_POLL_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.5)
"""The pauses between two queries while nothing happens."""

_SEND_TRIES = 5

_GUARANTEE = (
    "The events follow from the history that the Temporal server keeps: no client can edit it, but who can "
    "write to the database of the server can. The hash that is compared was stored when the run ended."
)

_CLOSING_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.4)
"""How long to wait until a run that has ended is closed on the server, too."""

_UPDATES_AT_ONCE = 8
"""The server allows ten updates of a run at once, and delays more for long."""

_TASK_TIMEOUT = timedelta(seconds=30)
"""How long a workflow task may take if expressions are programs; a dead worker is noticed after that time."""


class TemporalEngine(NotesOfRuns):
    """The engine; see `base.Engine` for what its public methods promise."""

    def __init__(
        self,
        address: Address,
        executor: Executor,
        find_bundle: FindBundle,
        store: BlobStore,
        *,
        worker: bool = True,
        steps: bool = True,
        updates_a_history: int = UPDATES_A_HISTORY,
    ) -> None:
        """`worker`: run a worker in this process. `steps`: the worker also performs steps, not only workflow
        tasks."""
        self._address = address
        self._executor = executor
        self.live = executor.live
        self._find_bundle = find_bundle
        self._store = store
        self._has_worker = worker
        self._performs_steps = steps
        self._updates_a_history = updates_a_history
        self._now = executor.clock.now
        self._client: Client
        self._listeners: LocalListeners
        self._cache: RunCache
        self._listing: Listing
        self._scratch: Scratch
        self._supervisor: WorkerSupervisor | None = None
        self._room: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._is_open = False
        self._is_indexed: bool | None = None
        """Whether runs have search attributes; None if the server was not asked yet."""

    async def open(self) -> None:
        use(self._store)
        address, limits = self._address, self._executor.limits
        client = self._client = await connect(address)
        self._cache = RunCache(client, self._store, self._executor)
        self._listing = Listing(client, address.task_queue, self._cache)
        self._scratch = Scratch(client, self._executor)
        self._listeners = LocalListeners(self._scratch.release)
        self._executor.memory = self
        self._is_open = True
        if not self._has_worker:
            return
        activities = (
            Activities(self._executor, self._store, self._find_bundle) if self._performs_steps else None
        )
        self._supervisor = WorkerSupervisor(
            lambda: worker_of(client, address.task_queue, activities, steps=limits.parallel_steps)
        )
        if self._performs_steps:
            self._scratch.sweep()

    async def close(self) -> None:
        if self._supervisor is not None:
            await self._supervisor.close()
        if self._is_open:
            self._listeners.close()
            await self._cache.close()
            await self._scratch.close()
        self._executor.close()

    # Runs

    async def start(
        self,
        bundle: Bundle,
        inputs: dict[str, Value],
        *,
        request_id: str | None = None,
        agents: Mapping[str, str] = NO_AGENTS,
        by: Identity | None = None,
    ) -> str:
        run_id = new_run_id() if request_id is None else self._run_id_for_request(request_id)
        workspace, limits = str(self._executor.policy.workspace), self._executor.limits
        large = self._cache.large(run_id)
        event = Started(self._now(), run_id, inputs, workspace, limits.of_a_run, agents=dict(agents), by=by)
        started = large.encode(event)
        await self._store_blobs(large)
        asked = "" if request_id is None else _digest(to_json([bundle.main, inputs]))
        start = RunStart(self._packed(bundle), self._store.packed(started))
        await self._begin(run_id, bundle, start, asked)
        return run_id

    async def fork(
        self,
        run_id: str,
        position: int,
        then: Sequence[Event] = (),
        *,
        changed: ChangedDefinition | None = None,
        request_id: str | None = None,
    ) -> str:
        new_id = new_run_id() if request_id is None else self._run_id_for_request(request_id)
        asked = "" if request_id is None else request_digest(run_id, position, then, changed)
        if request_id is not None and await self._was_started(new_id, asked):
            return new_id
        bundle, events = changed or await self.journal(run_id)
        scratch = self._executor.scratch
        fork = fork_of(run_id, bundle, events, position, self._now(), new_id, then, scratch)
        large = self._cache.large(new_id)
        journal = self._store.packed(join_events([large.encode(event) for event in fork.events]))
        snapshot = self._store.packed(large.snapshot(fork.machine))
        await self._store_blobs(large)
        await asyncio.to_thread(self._executor.copy_scratch, run_id, new_id)
        start = RunStart(self._packed(bundle), b"", snapshot, [journal])
        await self._begin(new_id, bundle, start, asked, forked_from=run_id)
        return new_id

    async def run_of_request(self, request_id: str) -> str | None:
        run_id = self._run_id_for_request(request_id)
        return run_id if await self._memo(run_id) is not None else None

    async def _begin(
        self, run_id: str, bundle: Bundle, start: RunStart, asked: str, *, forked_from: str = ""
    ) -> None:
        """Start the Temporal workflow. `asked`: the digest of the request, if it has an id."""
        start.updates_a_history, start.rules = self._updates_a_history, RULES
        programs = any(isinstance(plan.body, Steps) for plan in bundle.plans.values())
        begin = functools.partial(
            self._client.start_workflow,
            RUN,
            encode(start),
            id=run_id,
            task_queue=self._address.task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            task_timeout=_TASK_TIMEOUT if programs else None,
            memo={"workflow": bundle.main, "asked": asked, "forked_from": forked_from},
            static_summary=bundle.main,
        )
        if self._is_indexed is None:
            self._is_indexed = await workflow.register_attributes(self._client)
        try:
            try:
                found_by = workflow.attributes_of(bundle.main) if self._is_indexed else None
                await begin(search_attributes=found_by)
            except RPCError as error:
                if not self._is_indexed or not workflow.is_unknown_attribute(error):
                    raise
                self._is_indexed = False
                workflow.warn_about_missing_attributes(self._client, error.message)
                await begin()
        except WorkflowAlreadyStartedError:
            await self._was_started(run_id, asked)
            return  # it has ended already
        if asked:
            await self._was_started(run_id, asked)
        self._cache.know_bundle(run_id, bundle)
        self._listing.begun(run_id)
        await self._cache.begun(run_id)

    async def _was_started(self, run_id: str, asked: str) -> bool:
        """Whether the request has started the run. Raises RequestError if it had other arguments."""
        memo = await self._memo(run_id)
        if memo is None:
            return False
        if memo.get("asked") != asked:
            raise RequestError(
                f"the request_id has started something else: the run {run_id}",
                hint="use a new request_id for a new run; the same one only to repeat the same call",
            )
        return True

    async def _memo(self, run_id: str) -> Mapping[str, Any] | None:
        """The memo of a run; None if there is no such run."""
        try:
            return await (await self._handle(run_id).describe()).memo()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise

    async def send(self, run_id: str, make_event: MakeEvent) -> None:
        """Make the event from the cached state and send it; if the run refuses it, query and try again."""
        for left in reversed(range(_SEND_TRIES)):
            last = await self._cache.last(run_id) if left == _SEND_TRIES - 1 else None
            machine = (last or await self._cache.now(run_id, fresh=True, served=True)).machine
            try:
                event = make_event(machine, self._now())
                machine.refuse_unexpected(event)
            except RequestError:
                if last is None:
                    raise
                continue
            try:
                await self._sent(run_id, machine, event)
                return
            except NotExpected:
                if not left:
                    raise

    async def _sent(self, run_id: str, machine: Machine, event: Event) -> None:
        frame = machine.state.frames.get(event.address) if isinstance(event, Answered) else None
        large = self._cache.large(run_id)
        known, since = machine.state.events, frame.since if frame is not None else 0.0
        body = encode(Sent(large.encode(event), known, since, brief=True))
        await self._store_blobs(large)
        room = self._room.setdefault(run_id, asyncio.Semaphore(_UPDATES_AT_ONCE))
        try:
            async with room:
                answer: bytes = await self._handle(run_id).execute_update(
                    "send", self._store.packed(body), result_type=bytes
                )
        except WorkflowUpdateFailedError as error:
            cause = error.cause
            if not isinstance(cause, ApplicationError) or cause.type != NOT_EXPECTED:
                raise
            raise NotExpected(cause.message, hint=str(cause.details[0])) from None
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                raise NotExpected(f"the run {run_id} has ended") from None
            raise
        await self._cache.add(run_id, answer, event)

    async def ensure_driven(self, run_id: str) -> None:
        await self._cache.now(run_id)

    async def is_driven_here(self, run_id: str) -> bool:
        return False  # the server drives it, with any of its workers

    async def view(self, run_id: str) -> Machine:
        return (await self._cache.now(run_id)).machine

    async def wait(self, run_id: str, ready: Callable[[RunState], bool], seconds: float) -> Machine:
        until = time.monotonic() + seconds
        seen = await self._cache.now(run_id)
        pauses = _pauses()
        while not ready(seen.machine.state) or seen.ending:
            left = until - time.monotonic()
            if left <= 0:
                break
            await self._listeners.change(run_id, min(next(pauses), left))
            before = seen.machine.state.events
            seen = await self._cache.now(run_id, fresh=True)
            if seen.machine.state.events != before:
                pauses = _pauses()
        return seen.machine

    async def recent(self, limit: int, workflow: str | None = None) -> list[RunSummary]:
        return await self._listing.recent(limit, workflow)

    async def prune(self, limits: Limits, *, dry_run: bool = False) -> Pruned:
        raise RequestError(
            "a Temporal server decides how long it keeps ended runs",
            hint="set it for the namespace: temporal operator namespace update --retention 30d NAME",
        )

    async def unfinished(self) -> list[RunSummary]:
        return await self._listing.unfinished()

    async def journal(self, run_id: str, after: int = 0) -> tuple[Bundle, list[Event]]:
        bundle = await self._cache.bundle(run_id)
        segments = await self._cache.asked(run_id, "journal", list[bytes])
        large = self._cache.large(run_id)
        events = [event for part in segments for event in large.decode_events(self._store.unpacked(part))]
        if (ended_by := (await self._cache.now(run_id)).ended_by) is not None:
            events.append(ended_by)
        return bundle, events[after:]

    async def audit(self, run_id: str) -> Audit:
        bundle = await self._cache.bundle(run_id)
        batches, mismatches = await self._stored_batches(run_id)
        key, memo = bundle_key(bundle), await self._memo(run_id) or {}
        found = audit_of(run_id, bundle, key, batches, self._store.get, guarantee=_GUARANTEE)
        if (known := memo.get("proof", found.head)) != found.head:
            message = f"the events do not lead to the hash that was stored when the run ended: {known}"
            mismatches.append(Mismatch("rewritten", message))
        events = found.events
        if (ended_by := (await self._cache.now(run_id)).ended_by) is not None:
            events = [*events, ended_by]
        return msgspec.structs.replace(found, events=events, mismatches=[*mismatches, *found.mismatches])

    async def _stored_batches(self, run_id: str) -> tuple[list[StoredBatch], list[Mismatch]]:
        """The journal with the hashes that its events have; the server stores only the last one."""
        packed = await self._cache.asked(run_id, "journal", list[bytes])
        chain = Chain.begin(run_id, bundle_key(await self._cache.bundle(run_id)))
        batches: list[StoredBatch] = []
        mismatches: list[Mismatch] = []
        position = 0
        for segment in packed:
            if not self._store.is_intact(segment):
                message = f"events from {position + 1} on were edited in the directory of large values"
                mismatches.append(Mismatch("edited", message, position + 1))
            bodies = events_to_hash(self._store.unpacked(segment))
            batches.append(StoredBatch(position, bodies, chain.extend(bodies)))
            position += len(bodies)
        return batches, mismatches

    async def proof(self, run_id: str) -> str:
        if not (await self._cache.now(run_id)).is_final:
            return ""
        for pause in _CLOSING_SECONDS:
            described = await self._handle(run_id).describe()
            memo = await described.memo()
            if "proof" in memo or described.status is not WorkflowExecutionStatus.RUNNING:
                return str(memo.get("proof", ""))
            await asyncio.sleep(pause)
        return ""

    async def heartbeat(self, run_id: str, task: str, at: float) -> None:
        try:
            await self._handle(run_id).signal("hear", args=[task, at])
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            await self._cache.now(run_id)  # raises UnknownRun if there is no such run
        self._cache.outdated(run_id)

    async def last_seen(self, run_id: str) -> dict[str, float]:
        return dict((await self._cache.now(run_id)).last_seen)

    async def why_not_driven(self, run_id: str) -> str:
        if await self._cache.last(run_id) is not None:
            return ""  # the server continues it
        return (
            f"no worker has started it: none serves the task queue '{self._address.task_queue}'; start one "
            "with the same settings: workflows-mcp worker. Then the run continues"
        )

    # The server

    def _handle(self, run_id: str) -> WorkflowHandle[Any, Any]:
        return self._client.get_workflow_handle(run_id)

    def _packed(self, bundle: Bundle) -> bytes:
        return self._store.packed(encode_bundle(bundle))

    async def _store_blobs(self, large: LargeValues) -> None:
        for blob in large.take_new():
            await asyncio.to_thread(self._store.put, blob.hash, blob.body)

    def _run_id_for_request(self, request_id: str) -> str:
        """The id of the run that a request starts; it is the same in every process."""
        return f"wf_{_digest(f'{self._address.task_queue}/{request_id}')}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _pauses() -> itertools.chain[float]:
    return itertools.chain(_POLL_SECONDS, itertools.repeat(_POLL_SECONDS[-1]))


# ----------------------------------------------------------------------------------------------------
# Scratch directories on this machine, removed with their runs


_ENDED_BY_ITSELF = (
    WorkflowExecutionStatus.COMPLETED,
    WorkflowExecutionStatus.FAILED,
    WorkflowExecutionStatus.CANCELED,
)

_UNFINISHED = (WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.CONTINUED_AS_NEW)


class Scratch:
    def __init__(self, client: Client, executor: Executor) -> None:
        self._client = client
        self._executor = executor
        self._tasks: set[asyncio.Task[None]] = set()

    def release(self, run_id: str, keep: bool) -> None:
        """Remove or keep the scratch directory of a run that has ended."""
        self._begin(asyncio.to_thread(self._executor.release_scratch, run_id, keep=keep))

    def sweep(self) -> None:
        """Remove the directories of ended runs; those of runs that may be retried are kept for a day.

        Directories of runs that the server does not know are kept: they may belong to another engine."""
        self._begin(self._swept())

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _swept(self) -> None:
        for run_id in await asyncio.to_thread(self._executor.scratch_of_runs):
            try:
                described = await self._client.get_workflow_handle(run_id).describe()
            except RPCError:
                if self._executor.is_unfinished_copy(run_id):
                    await asyncio.to_thread(self._executor.clear_scratch, run_id)
                continue
            may_be_retried = described.status in _ENDED_BY_ITSELF
            if described.status in _UNFINISHED:
                continue
            if not may_be_retried or self._executor.scratch_is_old(run_id):
                await asyncio.to_thread(self._executor.clear_scratch, run_id)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("cannot remove the scratch directory of a run: %s", error)


# ----------------------------------------------------------------------------------------------------
# The engine of the settings: on a named server, or on a development server that processes share


_ANSWER_SECONDS = 2.0


def temporal_engine(settings: Settings, executor: Executor, find_bundle: FindBundle) -> TemporalEngine:
    given = settings.temporal
    address = Address(
        host=given.host or "",
        namespace=given.namespace,
        task_queue=given.task_queue,
        tls=given.tls,
        tls_ca=given.tls_ca,
        tls_cert=given.tls_cert,
        tls_key=given.tls_key,
        api_key=given.api_key,
    )
    parts = address, executor, find_bundle, BlobStore(settings.blobs)
    steps = given.steps and not settings.read_only
    if given.host is not None:
        return TemporalEngine(*parts, worker=given.worker, steps=steps)
    server = SharedServer(settings.dev_server)
    return DevServerEngine(server, *parts, worker=given.worker, steps=steps)


class DevServerEngine(TemporalEngine):
    """Starts or joins the shared development server; its address is known when it runs."""

    def __init__(
        self,
        server: SharedServer,
        address: Address,
        executor: Executor,
        find_bundle: FindBundle,
        store: BlobStore,
        *,
        worker: bool,
        steps: bool,
    ) -> None:
        super().__init__(address, executor, find_bundle, store, worker=worker, steps=steps)
        self._dev_server = server

    async def open(self) -> None:
        self._address = replace(self._address, host=await self._dev_server.open(self._is_ready))
        try:
            await super().open()
        except BaseException:
            await self._dev_server.close()
            raise

    async def _is_ready(self, host: str) -> bool:
        """Whether the server answers; a new one listens before that."""
        try:
            await connect(replace(self._address, host=host), seconds=_ANSWER_SECONDS)
        except RequestError:
            return False
        return True

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            await self._dev_server.close()
