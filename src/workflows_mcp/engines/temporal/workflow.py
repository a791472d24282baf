"""The one Temporal workflow: it feeds events to the machine and has its wishes performed.

A step is an activity, a wait a timer, and what comes from outside an update. The machine is pure, so that
repeating the history of a run leads to the same state; time is that of the workflow, and large values are
read by their hashes. A history that has become long goes on as a new one, from a snapshot.
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
from workflows_mcp.engines.temporal.local import tell_ended, tell_here
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
    run_start,
    sent,
)
from workflows_mcp.engines.values import LargeValues, decode_event, encode, join_events
from workflows_mcp.errors import NotExpected
from workflows_mcp.limits import DEFAULT_LIMITS
from workflows_mcp.machine import (
    Answered,
    CancelRequested,
    ClearTimer,
    Command,
    Event,
    Finish,
    Interrupted,
    LoadPlan,
    Machine,
    RunState,
    RunStep,
    SetTimer,
    StepFailed,
    StopStep,
    TellInterrupted,
    TimerFired,
    is_under_way,
)
from workflows_mcp.plan import decode_bundle
from workflows_mcp.values import Value

# ----------------------------------------------------------------------------------------------------
# The search attributes by which an operator finds runs: the name of the workflow, and how the run stands.
#
#     temporal workflow list --query "WorkflowsName = 'deploy' AND WorkflowsStatus = 'waiting'"
#
# The server must know them before a run can have them. Where it does not let us make them known, runs do
# without: all else works the same.


logger = logging.getLogger(__name__)


NAME = SearchAttributeKey.for_keyword("WorkflowsName")

STATUS = SearchAttributeKey.for_keyword("WorkflowsStatus")

_KEYWORD = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD


def attributes_of(workflow: str) -> TypedSearchAttributes:
    """Those of a run that is just started."""
    return TypedSearchAttributes(
        [SearchAttributePair(NAME, workflow), SearchAttributePair(STATUS, "running")]
    )


def status_of(state: RunState) -> str:
    """running, waiting (for an agent, or because the user has parked it), completed, failed or cancelled."""
    return "waiting" if state.status == "running" and state.idle else state.status


async def are_known(client: Client) -> bool:
    """Whether runs can have them; the server is asked to know them where it does not."""
    service, namespace = client.operator_service, client.namespace
    try:
        listed = await service.list_search_attributes(ListSearchAttributesRequest(namespace=namespace))
        known = listed.custom_attributes
        missing = {key.name: _KEYWORD for key in (NAME, STATUS) if key.name not in known}
        if missing:
            request = AddSearchAttributesRequest(namespace=namespace, search_attributes=missing)
            await service.add_search_attributes(request)
    except RPCError as error:
        if error.status is not RPCStatusCode.ALREADY_EXISTS:  # else somebody else has just added them
            say_that_runs_do_without(client, error.message)
            return False
        return True
    wrong = [key.name for key in (NAME, STATUS) if known.get(key.name, _KEYWORD) != _KEYWORD]
    if wrong:
        say_that_runs_do_without(client, f"{', '.join(wrong)} is not of the type Keyword")
    return not wrong


def is_refusal_of(error: RPCError) -> bool:
    """Whether the server refuses a run because it does not know its attributes after all."""
    return error.status is RPCStatusCode.INVALID_ARGUMENT and "search attribute" in error.message.lower()


def say_that_runs_do_without(client: Client, why: str) -> None:
    logger.warning(
        "runs have no search attributes on the Temporal server (namespace '%s'): %s; an operator can add "
        "them: temporal operator search-attribute create --name %s --type Keyword --name %s --type Keyword",
        client.namespace, " ".join(why.split()), NAME.name, STATUS.name,
    )  # fmt: skip


TIMEOUT = "timeout"

_HEARTBEAT = timedelta(seconds=10)

_LONGEST = timedelta(days=3650)

_ENDING = timedelta(seconds=5)

_ONCE = RetryPolicy(maximum_attempts=1)

_TOGETHER = timedelta(milliseconds=50)

"""How long an answer waits for its question. Nobody waits who is asked: that takes a timer of the server."""

_TURNS = 5

"""Of the loop, until what has come together with a timer is taken."""

_STEPS_UNDER_WAY = 500

_BYTES_UNDER_WAY = 2 * 1024 * 1024

"""What the server is asked to have carried out at once. It refuses 2,000 activities of a run, and ends a run
that asks for more than 4 MiB in one turn."""

_FEW_EVENTS = 64

"""Whoever knows of all but so many events is told these, and not the whole run."""

_UPDATE_BYTES = 2 * 1024

"""What an update answers is kept in the history: whoever is to be told more has to look."""

_REPEATED = 100

"""Whoever sends an update that a history ended upon sends it again: so many of them are known."""

_MESSAGE_CHARS = 2000

_QUERY_BYTES = 1024 * 1024

"""What a query answers is not kept, so that it may be larger."""

_SEGMENT_BYTES = 4 * 1024

"""The piece of the journal that a history leaves to the next goes with it where it is no larger: there may be
hundreds of them."""


@workflow.defn(name=RUN, sandboxed=False)
class Run:
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
        """The history is to go on as a new one: no step is begun any more."""
        self._waiting: deque[RunStep] = deque()
        """Steps that are begun when others have ended."""
        self._begun: dict[str, int] = {}
        """The steps that are begun, and how many bytes each was begun with."""
        self._steps: dict[str, workflow.ActivityHandle[bytes]] = {}
        self._cut_off: set[str] = set()
        """Steps whose worker went away: what is left of them goes first."""
        self._reasons: dict[str, str] = {}
        """Steps that are being ended, and why; empty: nobody wants to know of them any more."""
        self._timers: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wishes: list[Command] = []
        self._running = False
        bundle = decode_bundle(store.unpacked(given.bundle))
        if given.snapshot:
            state = self._large.restore(store.unpacked(given.snapshot))
            self._machine = Machine(bundle, state)
            self._wishes += self._machine.outstanding(self._now(), cut_off=False)
        else:
            self._machine = Machine(bundle)
            self._take(self._large.decode_as(Event, store.unpacked(given.started)))

    @workflow.run
    async def run(self, start: bytes) -> bytes:
        self._running = True
        self._perform_wishes()
        self._show_status()
        await self._until_it_is_over()
        state = self._machine.state
        if state.status == "running":
            workflow.continue_as_new(args=[self._as_start()])
        for task in self._timers.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        workflow.upsert_memo(
            {"status": state.status, "started_at": state.started_at, "changed_at": state.changed_at}
        )
        tell_ended(state.run_id, keep=needs_scratch(self._machine))
        if self._start.rules >= 2:
            self._raise_unless_completed()
        return in_use().packed(encode(self._result()))

    def _result(self) -> dict[str, Value]:
        """What came of it, for whoever reads it on the server; the run itself is queried."""
        state = self._machine.state
        given = {"outputs": state.outputs, "result": state.result}
        shown = {name: value for name, value in given.items() if value}
        result = {"status": state.status, **self._large.thin_entries(shown)}
        in_use().keep(self._large.take_new())
        return result

    def _raise_unless_completed(self) -> None:
        """The server shows a run as it ended. All else about it can still be queried."""
        status, fault = self._machine.state.status, self._machine.state.fault
        message = fault.message[:_MESSAGE_CHARS] if fault is not None else status
        if status == "failed":
            code, block = (fault.code, fault.address) if fault is not None else (status, "")
            raise ApplicationError(message, {"block": block}, type=code, non_retryable=True)
        if status == "cancelled":
            _allow_cancelled(message)
            raise CancelledError(message)

    async def _until_it_is_over(self) -> None:
        """Until the run has ended, or its history has."""
        while True:
            try:
                await workflow.wait_condition(
                    lambda: self._machine.state.status != "running" or self._long_and_quiet()
                )
                await workflow.wait_condition(workflow.all_handlers_finished)
                return
            except asyncio.CancelledError:  # by the tools of Temporal
                if self._machine.state.status == "running":
                    self._take(CancelRequested(0.0, "it was cancelled on the Temporal server"))

    # What comes from outside

    @workflow.update(name="send")
    async def send(self, body: bytes) -> bytes:
        """Take in an event, if it is expected; the run as it is then."""
        self._updates += 1
        given = sent(in_use().unpacked(body))
        update = workflow.current_update_info()
        if update is not None and update.id in self._start.taken:
            return encode(self._told(given))
        event = self._large.decode_as(Event, given.event)
        refusal = await self._lasting_refusal(event, given)
        if refusal is not None:
            raise ApplicationError(refusal.message, refusal.hint, type=NOT_EXPECTED, non_retryable=True)
        at, own = self._now(), self._take(event)
        if update is not None:
            self._taken.append(update.id)
        if isinstance(event, CancelRequested):
            with suppress(asyncio.TimeoutError):  # whoever cancels is told when it is over
                await workflow.wait_condition(lambda: not self._steps, timeout=_ENDING)
        return encode(self._told(given, own, at))

    async def _lasting_refusal(self, event: Event, given: Sent) -> NotExpected | None:
        """What leads to the question may have come together with the answer, and is taken in after it by a
        worker that repeats the history, before it by one that does not: the answer must wait for it."""
        if self._refusal(event, given) is not None:
            with suppress(asyncio.TimeoutError):
                await workflow.wait_condition(
                    lambda: self._refusal(event, given) is None or self._machine.state.status != "running",
                    timeout=_TOGETHER,
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
        """The run as it is when it has begun."""
        return encode(self._told(Sent(b"")))

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

    def _told(self, given: Sent, own: int = 0, at: float = 0.0) -> RunSnapshot:
        """For whoever has changed something: what came of it, if that is little. `own`: the number of the
        event that was sent, which the sender has; `at`: when it was taken in."""
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
        """The events that somebody does not know yet; None where those are too many, or too old."""
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
        """Whether the history is to go on as a new one, and can: nothing of it is under way."""
        if not self._draining:
            suggested = workflow.info().is_continue_as_new_suggested()
            self._draining = suggested or self._updates >= self._start.updates_a_history
        return self._draining and not self._steps and not self._wishes

    @property
    def _is_parked(self) -> bool:
        return self._machine.state.parked is not None

    # The loop

    def _now(self) -> float:
        return workflow.now().timestamp()

    async def _until(self, due: float) -> None:
        await asyncio.sleep(max(due - self._now(), 0.0))

    def _take(self, event: Event) -> int:
        """Its number among the events of the run."""
        event = msgspec.structs.replace(event, at=self._now())
        body = self._large.encode(event)
        commands = self._applied(event, body)
        self._written.append(body)
        in_use().keep(self._large.take_new())
        number = self._machine.state.events
        self._wishes += commands
        if self._running:
            self._perform_wishes()
            self._show_status()
        tell_here(self._machine.state.run_id)
        return number

    def _show_status(self) -> None:
        """To whoever looks with the tools of Temporal. A run that was started without attributes has none."""
        status = status_of(self._machine.state)
        workflow.set_current_details(f"{self._machine.state.workflow}: {status}")
        if workflow.info().typed_search_attributes.get(STATUS, status) != status:
            workflow.upsert_search_attributes([STATUS.value_set(status)])

    def _applied(self, event: Event, body: bytes) -> list[Command]:
        """Apply an event. Whether an expression took too long is not the same whenever it is repeated: what
        was stopped is written down beside the history, and whoever repeats it looks there first."""
        machine, store = self._machine, in_use()
        if not machine.sequences:
            return machine.apply(event)
        place = place_of_stop(workflow.info().workflow_id, machine.state.events, body)
        known = store.noted(place)
        if known is not None:
            machine.apply(decode_event(known))
            self._written.append(known)
        commands = machine.apply(event)
        stopped = machine.note_stopped(event.at)
        if stopped is not None:
            self._written.append(encode(stopped))
            store.note(place, self._written[-1])
        return commands

    def _perform_wishes(self) -> None:
        while self._wishes:
            self._perform(self._wishes.pop(0))

    def _perform(self, command: Command) -> None:
        match command:
            case RunStep():
                self._waiting.append(command)
                self._begin_steps()
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
            case TellInterrupted(key=key):
                self._take(Interrupted(0.0, key))
            case Finish():
                pass

    def _begin(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _timer(self, key: str, due: float) -> None:
        """A step that has ended goes before its timeout, where a worker hears of both at once."""
        await self._until(due)
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        self._timers.pop(key, None)
        self._take(TimerFired(0.0, key))

    # Steps

    def _begin_steps(self) -> None:
        """As many of those that wait as there is room for, in their order; of a history that is to end, none:
        the one that follows wishes for them again."""
        while self._waiting and not self._draining:
            room = _BYTES_UNDER_WAY - sum(self._begun.values())
            if self._begun and (room <= 0 or len(self._begun) >= _STEPS_UNDER_WAY):
                return
            command = self._waiting.popleft()
            if is_under_way(self._machine.state, command.key):
                task = self._task_of(command)
                packed = in_use().packed(encode(task))
                self._begun[command.key] = len(packed)
                self._begin(self._step(command, task, packed))

    def _task_of(self, command: RunStep) -> StepTask:
        state = self._machine.state
        plans = (*self._machine.bundle.plans.values(), *state.plans.values())
        secrets = sorted({name for plan in plans for name in plan.secrets})
        body = encode_command(command, self._large)
        in_use().keep(self._large.take_new())
        return StepTask(state.run_id, state.workspace, body, secrets, command.key in self._cut_off)

    async def _step(self, command: RunStep, task: StepTask, packed: bytes) -> None:
        event = await self._carried_out(command, task, packed)
        self._begun.pop(command.key, None)
        if event is not None:
            self._take(event)
        self._begin_steps()

    async def _carried_out(self, command: RunStep, task: StepTask, packed: bytes) -> Event | None:
        """What came of a step; None where nobody waits for it any more."""
        key = command.key
        await self._until_earlier_tries_are_gone(command.address)
        if self._draining or self._is_parked or not is_under_way(self._machine.state, key):
            return None  # the history that follows wishes for it again, or whoever resumes the run
        event: Event | None = None
        while event is None:
            handle = self._steps[key] = workflow.start_activity(
                PERFORM,
                packed,
                result_type=bytes,
                start_to_close_timeout=_LONGEST,
                heartbeat_timeout=_HEARTBEAT,
                retry_policy=_ONCE,
                cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
                summary=command.address,
            )
            try:
                event = self._large.decode_as(Event, in_use().unpacked(await handle))
            except ActivityError as error:
                event = self._without_result(command, error)
                packed = in_use().packed(encode(msgspec.structs.replace(task, again=True)))
            finally:
                self._steps.pop(key, None)
        reason = self._reasons.pop(key, None)
        if reason is None:
            return event
        return StepFailed(0.0, key, TIMEOUT, reason, getattr(event, "outputs", {})) if reason else None

    async def _until_earlier_tries_are_gone(self, address: str) -> None:
        """A block that is tried again begins when what is left of its last try has ended."""
        block = address.partition("/")[0]

        def are_gone() -> bool:
            ending = (key.partition("#")[0].partition("/")[0] for key in self._reasons)
            return block not in ending

        if not are_gone():
            await workflow.wait_condition(are_gone)

    def _without_result(self, command: RunStep, error: ActivityError) -> Event | None:
        """What a step amounts to of which no result came; None: it is to be begun again."""
        key, cause = command.key, error.cause
        if key in self._reasons:
            return StepFailed(0.0, key, TIMEOUT, "it was ended")
        # One that was cancelled although the run did not ask for it was cut off by a worker that went away.
        if isinstance(cause, ApplicationError) and cause.type not in (WORKER_GONE, NEVER_BEGUN):
            return StepFailed(0.0, key, cause.type or "internal", cause.message)
        if not is_under_way(self._machine.state, key):
            return StepFailed(0.0, key, "interrupted", "it was cut off")
        scope, index = self._machine.locate(command.address)
        if scope.program.nodes[index].on_interrupt == "repeat" and scope.program.plan.semantics < 3:
            return None  # as the histories of such runs have it
        self._cut_off.add(key)
        return Interrupted(0.0, key)

    def _stop(self, key: str, reason: str) -> None:
        handle = self._steps.get(key)
        if handle is not None:
            self._reasons.setdefault(key, reason)
            handle.cancel()
        elif reason:
            self._take(StepFailed(0.0, key, TIMEOUT, reason))

    async def _find(self, command: LoadPlan) -> None:
        task = PlanTask(self._machine.state.workspace, command)
        body: bytes = await workflow.execute_activity(
            FIND,
            encode(task),
            result_type=bytes,
            start_to_close_timeout=timedelta(seconds=60),
            retry_policy=RetryPolicy(maximum_attempts=5),
        )
        self._take(decode_event(in_use().unpacked(body)))


def _allow_cancelled(reason: str) -> None:
    """The library makes a run CANCELED only where Temporal's own tools have asked for it. Where it keeps that
    in another place than today, the run is FAILED with this reason."""
    instance: Any = workflow._Runtime.current()
    if getattr(instance, "_cancel_reason", reason) is None:
        instance._cancel_reason = reason
