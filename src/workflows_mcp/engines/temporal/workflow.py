"""A run as a Temporal workflow: it feeds events to the machine and performs its commands.

    step -> activity        wait -> timer       event from outside -> update        state -> query

The machine is pure, so replaying the history of a run leads to the same state. Time is that of the workflow,
and large values are read by their hashes. A history that has become long continues as a new one, from a
snapshot.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec
from temporalio import workflow
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.common import RetryPolicy, SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError
from temporalio.service import RPCError, RPCStatusCode

from workflows_mcp.engines.forks import needs_scratch
from workflows_mcp.engines.temporal.blobs import PACKED_BYTES, in_use, place_of_stop
from workflows_mcp.engines.temporal.wire import (
    FIND,
    NEVER_BEGUN,
    NOT_EXPECTED,
    PERFORM,
    RUN,
    WORKER_GONE,
    PlanTask,
    RunSnapshot,
    Sent,
    StepTask,
    encode_command,
    events_to_hash,
    notify_changed,
    notify_ended,
    run_start,
    sent,
)
from workflows_mcp.engines.values import LargeValues, decode_event, encode, join_events
from workflows_mcp.errors import NotExpected
from workflows_mcp.limits import DEFAULT_LIMITS
from workflows_mcp.machine import (
    Answered,
    CancelRequested,
    Chain,
    ClearTimer,
    Command,
    Event,
    Finish,
    Interrupted,
    LoadPlan,
    Machine,
    ReportInterrupted,
    RunState,
    RunStep,
    SetTimer,
    StepFailed,
    StopStep,
    TimerFired,
    is_under_way,
)
from workflows_mcp.plan import bundle_key, decode_bundle
from workflows_mcp.values import Value

logger = logging.getLogger(__name__)

TIMEOUT = "timeout"

_HEARTBEAT = timedelta(seconds=10)

_STEP_TIMEOUT = timedelta(days=3650)

_STOP_TIMEOUT = timedelta(seconds=5)

_NO_RETRY = RetryPolicy(maximum_attempts=1)

_QUESTION_TIMEOUT = timedelta(milliseconds=50)
"""How long an answer waits for its question; an answer to an open question does not wait."""

_TURNS = 5
"""Turns of the event loop after which events that came with a timer are applied."""

_STEPS_UNDER_WAY = 500

_BYTES_UNDER_WAY = 2 * 1024 * 1024
"""The limits of activities at once. The server refuses 2,000 activities of a run, and ends a run that sends
more than 4 MiB in one workflow task."""

_FEW_EVENTS = 64
"""A client that misses at most so many events gets these, another one the whole state."""

_UPDATE_BYTES = 2 * 1024
"""Answers of updates are stored in the history; a client queries for larger ones."""

_REPEATED = 100
"""How many ids of updates are remembered: an update that a history ended upon is sent again."""

_MESSAGE_CHARS = 2000

_QUERY_BYTES = 1024 * 1024
"""Answers of queries are not stored, so they may be larger."""

_SEGMENT_BYTES = 4 * 1024
"""A smaller piece of the journal is passed to the next history itself, a larger one as a blob: there may be
hundreds of pieces."""


@workflow.defn(name=RUN, sandboxed=False)
class Run:
    """One run. Its queries and updates are what `TemporalEngine` asks."""

    @workflow.init
    def __init__(self, start: bytes) -> None:
        given = run_start(start)
        store = in_use()
        self._start = given
        self._large = LargeValues(workflow.info().workflow_id, DEFAULT_LIMITS.inline_bytes, store.get)
        self._written: list[bytes] = []
        """The events of this history."""
        self._last_seen = given.last_seen
        self._taken: deque[str] = deque(maxlen=_REPEATED)
        self._updates = 0
        self._draining = False
        """The history will continue as a new one: no step is started."""
        self._waiting: deque[RunStep] = deque()
        """Steps that start when others have ended."""
        self._started: dict[str, int] = {}
        """The started steps, with the size of their inputs."""
        self._steps: dict[str, workflow.ActivityHandle[bytes]] = {}
        self._interrupted: set[str] = set()
        """Steps whose worker died: their processes are killed before they are repeated."""
        self._reasons: dict[str, str] = {}
        """Steps that are being stopped, with the reason to report; empty if none is reported."""
        self._timers: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._commands: list[Command] = []
        self._running = False
        bundle = decode_bundle(store.unpacked(given.bundle))
        if given.snapshot:
            state = self._large.restore(store.unpacked(given.snapshot))
            self._machine = Machine(bundle, state)
            self._commands += self._machine.outstanding(self._now(), after_crash=False)
        else:
            self._machine = Machine(bundle)
            self._apply(self._large.decode_as(Event, store.unpacked(given.started)))

    @workflow.run
    async def run(self, start: bytes) -> bytes:
        self._running = True
        self._perform_commands()
        self._show_status()
        await self._until_ended()
        state = self._machine.state
        if state.status == "running":
            workflow.continue_as_new(args=[self._as_start()])
        for task in self._timers.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        workflow.upsert_memo(
            {
                "status": state.status,
                "started_at": state.started_at,
                "changed_at": state.changed_at,
                "proof": self._proof(),
            }
        )
        notify_ended(state.run_id, keep=needs_scratch(self._machine))
        if self._start.rules >= 2:
            self._raise_unless_completed()
        return in_use().packed(encode(self._result()))

    def _proof(self) -> str:
        """The last hash of the journal: the server keeps it apart from the events that it follows from."""
        chain = Chain.begin(self._machine.state.run_id, bundle_key(self._machine.bundle))
        for segment in self._start.segments:
            chain.extend(events_to_hash(in_use().unpacked(segment)))
        chain.extend(events_to_hash(join_events(self._written)))
        return chain.head.hex()

    def _result(self) -> dict[str, Value]:
        """The result of the workflow, for people who read it on the server."""
        state = self._machine.state
        given = {"outputs": state.outputs, "result": state.result}
        shown = {name: value for name, value in given.items() if value}
        result = {"status": state.status, **self._large.thin_entries(shown)}
        in_use().keep(self._large.take_new())
        return result

    def _raise_unless_completed(self) -> None:
        """Let the server show a run as failed or cancelled; it can still be queried."""
        status, fault = self._machine.state.status, self._machine.state.fault
        message = fault.message[:_MESSAGE_CHARS] if fault is not None else status
        if status == "failed":
            code, block = (fault.code, fault.address) if fault is not None else (status, "")
            raise ApplicationError(message, {"block": block}, type=code, non_retryable=True)
        if status == "cancelled":
            _allow_cancelled(message)
            raise CancelledError(message)

    async def _until_ended(self) -> None:
        """Wait until the run, or this history, has ended."""
        while True:
            try:
                await workflow.wait_condition(
                    lambda: self._machine.state.status != "running" or self._long_and_quiet()
                )
                await workflow.wait_condition(workflow.all_handlers_finished)
                return
            except asyncio.CancelledError:  # cancelled with the tools of Temporal
                if self._machine.state.status == "running":
                    self._apply(CancelRequested(0.0, "it was cancelled on the Temporal server"))

    # Updates, signals and queries

    @workflow.update(name="send")
    async def send(self, body: bytes) -> bytes:
        """Apply an event if it is expected; answer with the new events."""
        self._updates += 1
        given = sent(in_use().unpacked(body))
        update = workflow.current_update_info()
        if update is not None and update.id in self._start.taken:
            return encode(self._answer(given))
        event = self._large.decode_as(Event, given.event)
        refusal = await self._lasting_refusal(event, given)
        if refusal is not None:
            raise ApplicationError(refusal.message, refusal.hint, type=NOT_EXPECTED, non_retryable=True)
        at, own = self._now(), self._apply(event)
        if update is not None:
            self._taken.append(update.id)
        if isinstance(event, CancelRequested):
            with suppress(asyncio.TimeoutError):  # the canceller gets its answer when the steps have ended
                await workflow.wait_condition(lambda: not self._steps, timeout=_STOP_TIMEOUT)
        return encode(self._answer(given, own, at))

    async def _lasting_refusal(self, event: Event, given: Sent) -> NotExpected | None:
        """The refusal of an event, if it lasts: an answer waits a moment for its question.

        What leads to the question may come in the same workflow task as the answer. A worker that replays
        the history applies it after the answer, another one before it."""
        if self._refusal(event, given) is not None:
            with suppress(asyncio.TimeoutError):
                await workflow.wait_condition(
                    lambda: self._refusal(event, given) is None or self._machine.state.status != "running",
                    timeout=_QUESTION_TIMEOUT,
                )
        return self._refusal(event, given)

    def _refusal(self, event: Event, given: Sent) -> NotExpected | None:
        machine = self._machine
        try:
            machine.refuse_unexpected(msgspec.structs.replace(event, at=self._now()))
        except NotExpected as error:
            return error
        if isinstance(event, Answered) and given.since != machine.state.frames[event.address].since:
            return NotExpected(f"the question at '{event.address}' is another one by now")
        return None

    @workflow.update(name="looked")
    async def looked(self) -> bytes:
        """Answer when a worker has started the run."""
        return encode(self._answer(Sent(b"")))

    @workflow.signal(name="hear")
    def heartbeat(self, task: str, at: float) -> None:
        self._last_seen[task] = at

    @workflow.query(name="look")
    def look(self, known: int) -> bytes:
        return encode(self._look(known))

    @workflow.query(name="bundle")
    def bundle(self) -> bytes:
        return self._start.bundle

    @workflow.query(name="journal")
    def journal(self) -> list[bytes]:
        """All events, in pieces."""
        return [*self._start.segments, in_use().packed(join_events(self._written))]

    def _answer(self, given: Sent, own: int = 0, at: float = 0.0) -> RunSnapshot:
        """The answer of an update: the new events, if they are few.

        `own`: the number of the event that was sent, which is left out; `at`: when it was applied."""
        known, left_out = given.known, 0
        events = self._since(known)
        if events is not None and given.brief and own > known:
            left_out = own - known
            del events[left_out - 1]
        if events is None or sum(map(len, events)) > _UPDATE_BYTES:
            return RunSnapshot(self._machine.state.events)
        last_seen = None if given.brief else self._last_seen
        packed = in_use().packed(join_events(events))
        return RunSnapshot(
            known, packed, b"", last_seen, self._is_ending(), left_out, at if left_out else 0.0
        )

    def _look(self, known: int) -> RunSnapshot:
        events = self._since(known)
        if events is None:
            return self._whole(_QUERY_BYTES)
        packed = in_use().packed(join_events(events), _QUERY_BYTES)
        return RunSnapshot(known, packed, b"", self._last_seen, self._is_ending())

    def _since(self, known: int) -> list[bytes] | None:
        """The events after the first `known` ones; None if they are too many, or of an earlier history."""
        state = self._machine.state
        first = state.events - len(self._written)
        if not first <= known <= state.events or state.events - known > _FEW_EVENTS:
            return None
        return self._written[known - first :]

    def _whole(self, most: int) -> RunSnapshot:
        return RunSnapshot(
            self._machine.state.events, b"", self._snapshot(most), self._last_seen, self._is_ending()
        )

    def _is_ending(self) -> bool:
        return self._machine.state.status != "running" and bool(self._steps)

    def _snapshot(self, most: int = PACKED_BYTES) -> bytes:
        snapshot = self._large.snapshot(self._machine)
        in_use().keep(self._large.take_new())
        return in_use().packed(snapshot, most)

    def _as_start(self) -> bytes:
        start, taken = self._start, list(self._taken)
        snapshot = self._snapshot()
        segments = [*start.segments, in_use().packed(join_events(self._written), _SEGMENT_BYTES)]
        return encode(
            msgspec.structs.replace(
                start,
                started=b"",
                snapshot=snapshot,
                segments=segments,
                last_seen=self._last_seen,
                taken=taken,
            )
        )

    def _long_and_quiet(self) -> bool:
        """Whether the history is long and nothing is under way, so that it can continue as a new one."""
        if not self._draining:
            suggested = workflow.info().is_continue_as_new_suggested()
            self._draining = suggested or self._updates >= self._start.updates_a_history
        return self._draining and not self._steps and not self._commands

    @property
    def _is_parked(self) -> bool:
        return self._machine.state.parked is not None

    # The loop

    def _now(self) -> float:
        return workflow.now().timestamp()

    async def _until(self, due: float) -> None:
        await asyncio.sleep(max(due - self._now(), 0.0))

    def _apply(self, event: Event) -> int:
        """Apply an event and perform the commands; return the number of the event."""
        event = msgspec.structs.replace(event, at=self._now())
        body = self._large.encode(event)
        commands = self._applied(event, body)
        self._written.append(body)
        in_use().keep(self._large.take_new())
        number = self._machine.state.events
        self._commands += commands
        if self._running:
            self._perform_commands()
            self._show_status()
        notify_changed(self._machine.state.run_id)
        return number

    def _show_status(self) -> None:
        """Show the status in the tools of Temporal."""
        status = status_of(self._machine.state)
        workflow.set_current_details(f"{self._machine.state.workflow}: {status}")
        if workflow.info().typed_search_attributes.get(STATUS, status) != status:
            workflow.upsert_search_attributes([STATUS.value_set(status)])

    def _applied(self, event: Event, body: bytes) -> list[Command]:
        """Apply an event; record which expressions were stopped because they took too long.

        That differs from replay to replay, so it is stored outside the history, and a replay reads it."""
        machine, store = self._machine, in_use()
        if not machine.sequences:
            return machine.apply(event)
        place = place_of_stop(workflow.info().workflow_id, machine.state.events, body)
        known = store.noted(place)
        if known is not None:
            machine.apply(decode_event(known))
            self._written.append(known)
        commands = machine.apply(event)
        stopped = machine.record_stopped_expressions(event.at)
        if stopped is not None:
            self._written.append(encode(stopped))
            store.note(place, self._written[-1])
        return commands

    def _perform_commands(self) -> None:
        while self._commands:
            self._perform(self._commands.pop(0))

    def _perform(self, command: Command) -> None:
        match command:
            case RunStep():
                self._waiting.append(command)
                self._start_steps()
            case SetTimer(key=key, due=due):
                self._timers[key] = asyncio.create_task(self._timer(key, due))
            case ClearTimer(key=key):
                if (timer := self._timers.pop(key, None)) is not None:
                    timer.cancel()
            case StopStep(key=key, reason=reason):
                if self._is_parked:
                    self._waiting = deque(it for it in self._waiting if it.key != key)
                self._stop(key, reason)
            case LoadPlan():
                self._begin(self._find(command))
            case ReportInterrupted(key=key):
                self._apply(Interrupted(0.0, key))
            case Finish():
                pass

    def _begin(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _timer(self, key: str, due: float) -> None:
        """Fire a timer; a step that has ended in the same workflow task comes before its timeout."""
        await self._until(due)
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        self._timers.pop(key, None)
        self._apply(TimerFired(0.0, key))

    # Steps

    def _start_steps(self) -> None:
        """Start waiting steps in order while there is room; none if the history is about to end."""
        while self._waiting and not self._draining:
            room = _BYTES_UNDER_WAY - sum(self._started.values())
            if self._started and (room <= 0 or len(self._started) >= _STEPS_UNDER_WAY):
                return
            command = self._waiting.popleft()
            if is_under_way(self._machine.state, command.key):
                task = self._task_of(command)
                packed = in_use().packed(encode(task))
                self._started[command.key] = len(packed)
                self._begin(self._step(command, task, packed))

    def _task_of(self, command: RunStep) -> StepTask:
        state = self._machine.state
        plans = (*self._machine.bundle.plans.values(), *state.plans.values())
        secrets = sorted({name for plan in plans for name in plan.secrets})
        body = encode_command(command, self._large)
        in_use().keep(self._large.take_new())
        return StepTask(state.run_id, state.workspace, body, secrets, command.key in self._interrupted)

    async def _step(self, command: RunStep, task: StepTask, packed: bytes) -> None:
        event = await self._performed(command, task, packed)
        self._started.pop(command.key, None)
        if event is not None:
            self._apply(event)
        self._start_steps()

    async def _performed(self, command: RunStep, task: StepTask, packed: bytes) -> Event | None:
        """Perform a step as an activity; None if the run does not wait for it any more."""
        key = command.key
        await self._until_earlier_attempts_ended(command.address)
        if self._draining or self._is_parked or not is_under_way(self._machine.state, key):
            return None  # the next history starts it again
        event: Event | None = None
        while event is None:
            handle = self._steps[key] = workflow.start_activity(
                PERFORM,
                packed,
                result_type=bytes,
                start_to_close_timeout=_STEP_TIMEOUT,
                heartbeat_timeout=_HEARTBEAT,
                retry_policy=_NO_RETRY,
                cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
                summary=command.address,
            )
            try:
                event = self._large.decode_as(Event, in_use().unpacked(await handle))
            except ActivityError as error:
                event = self._without_result(command, error)
                packed = in_use().packed(encode(msgspec.structs.replace(task, interrupted=True)))
            finally:
                self._steps.pop(key, None)
        reason = self._reasons.pop(key, None)
        if reason is None:
            return event
        return StepFailed(0.0, key, TIMEOUT, reason, getattr(event, "outputs", {})) if reason else None

    async def _until_earlier_attempts_ended(self, address: str) -> None:
        """Wait until the steps of earlier attempts of the same top-level block have ended."""
        block = address.partition("/")[0]

        def have_ended() -> bool:
            ending = (key.partition("#")[0].partition("/")[0] for key in self._reasons)
            return block not in ending

        if not have_ended():
            await workflow.wait_condition(have_ended)

    def _without_result(self, command: RunStep, error: ActivityError) -> Event | None:
        """The event for an activity that failed; None if it starts again."""
        key, cause = command.key, error.cause
        if key in self._reasons:
            return StepFailed(0.0, key, TIMEOUT, "it was ended")
        # A step that was cancelled without a request of the run was interrupted by the end of its worker.
        if isinstance(cause, ApplicationError) and cause.type not in (WORKER_GONE, NEVER_BEGUN):
            return StepFailed(0.0, key, cause.type or "internal", cause.message)
        if not is_under_way(self._machine.state, key):
            return StepFailed(0.0, key, "interrupted", "it was cut off")
        scope, index = self._machine.locate(command.address)
        if scope.program.nodes[index].on_interrupt == "repeat" and scope.program.plan.semantics < 3:
            return None  # the rule of runs with older semantics
        self._interrupted.add(key)
        return Interrupted(0.0, key)

    def _stop(self, key: str, reason: str) -> None:
        handle = self._steps.get(key)
        if handle is not None:
            self._reasons.setdefault(key, reason)
            handle.cancel()
        elif reason:
            self._apply(StepFailed(0.0, key, TIMEOUT, reason))

    async def _find(self, command: LoadPlan) -> None:
        task = PlanTask(self._machine.state.workspace, command)
        body: bytes = await workflow.execute_activity(
            FIND,
            encode(task),
            result_type=bytes,
            start_to_close_timeout=timedelta(seconds=60),
            retry_policy=RetryPolicy(maximum_attempts=5),
        )
        self._apply(decode_event(in_use().unpacked(body)))


def _allow_cancelled(reason: str) -> None:
    """Let a run end as CANCELED, which the SDK allows only after a cancellation by Temporal's own tools.

    If a later SDK stores that in another place, the run ends as FAILED with this reason."""
    instance: Any = workflow._Runtime.current()
    if getattr(instance, "_cancel_reason", reason) is None:
        instance._cancel_reason = reason


# ----------------------------------------------------------------------------------------------------
# Search attributes: an operator finds runs by the name of the workflow and by their status
#
#     temporal workflow list --query "WorkflowsName = 'deploy' AND WorkflowsStatus = 'waiting'"
#
# The server must know them before a run can have them. If it does not let us register them, runs have none;
# everything else works.


NAME = SearchAttributeKey.for_keyword("WorkflowsName")

STATUS = SearchAttributeKey.for_keyword("WorkflowsStatus")

_KEYWORD = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD


def attributes_of(workflow: str) -> TypedSearchAttributes:
    """The search attributes of a new run."""
    return TypedSearchAttributes(
        [SearchAttributePair(NAME, workflow), SearchAttributePair(STATUS, "running")]
    )


def status_of(state: RunState) -> str:
    """running, waiting (for an agent, or because it is parked), completed, failed or cancelled."""
    return "waiting" if state.status == "running" and state.idle else state.status


async def register_attributes(client: Client) -> bool:
    """Register the search attributes if the server does not know them; whether runs can have them."""
    service, namespace = client.operator_service, client.namespace
    try:
        listed = await service.list_search_attributes(ListSearchAttributesRequest(namespace=namespace))
        known = listed.custom_attributes
        missing = {key.name: _KEYWORD for key in (NAME, STATUS) if key.name not in known}
        if missing:
            request = AddSearchAttributesRequest(namespace=namespace, search_attributes=missing)
            await service.add_search_attributes(request)
    except RPCError as error:
        if error.status is not RPCStatusCode.ALREADY_EXISTS:  # another process may have added them just now
            warn_about_missing_attributes(client, error.message)
            return False
        return True
    wrong = [key.name for key in (NAME, STATUS) if known.get(key.name, _KEYWORD) != _KEYWORD]
    if wrong:
        warn_about_missing_attributes(client, f"{', '.join(wrong)} is not of the type Keyword")
    return not wrong


def is_unknown_attribute(error: RPCError) -> bool:
    """Whether the server refused a run because it does not know its search attributes."""
    return error.status is RPCStatusCode.INVALID_ARGUMENT and "search attribute" in error.message.lower()


def warn_about_missing_attributes(client: Client, why: str) -> None:
    logger.warning(
        "runs have no search attributes on the Temporal server (namespace '%s'): %s; an operator can add "
        "them: temporal operator search-attribute create --name %s --type Keyword --name %s --type Keyword",
        client.namespace, " ".join(why.split()), NAME.name, STATUS.name,
    )  # fmt: skip
