"""The interpreter. `apply(event)` changes the state by one fact and returns what is wished for next.

How it works, in three sentences. A graph keeps, for each block, the number of dependencies that are not
done; a block whose number reaches zero goes on a work list and is entered: skipped, handed to the
engine, asked of the agent, or, for a call, opened as a scope of its own. Whatever ends a block lowers
the numbers of its dependents, and the last block of a scope ends the scope, which ends the block that
called it or the run. Nothing here waits, reads a clock or knows an engine: time is `event.at`, and all
that is under way can be named again from the state alone (`outstanding`).

    machine = Machine(bundle)
    commands = machine.apply(Started(at=0.0, run_id="wf_1", inputs={}))
    commands = machine.apply(StepDone(at=1.0, key="build#1", outputs={…}))
    again = Machine(bundle, machine.snapshot())
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from workflows_mcp.errors import TOO_LARGE, TOO_SLOW, NotExpected
from workflows_mcp.limits import Limits
from workflows_mcp.machine.changes import WrongChange
from workflows_mcp.machine.commands import (
    ClearTimer,
    Command,
    Finish,
    LoadPlan,
    RunStep,
    SetTimer,
    StopStep,
    TellInterrupted,
    address_of,
    key_of,
)
from workflows_mcp.machine.core import (
    OpenScope,
    hand_to_caller,
    mark_stopped,
    messages_delivered,
    park,
    stop,
    stop_the_rest,
)
from workflows_mcp.machine.events import (
    Answered,
    CancelRequested,
    ContextFull,
    Event,
    Forked,
    Interrupted,
    Marked,
    Parked,
    PlanLoaded,
    Resumed,
    SlotFreed,
    Started,
    StateUpdated,
    StepDone,
    StepFailed,
    Stopped,
    TimerFired,
)
from workflows_mcp.machine.items import OpenItems, items_outcome
from workflows_mcp.machine.names import ProgramOf, names_in
from workflows_mcp.machine.operations import (
    ENTER,
    decided,
    enter,
    interrupted,
    keep_to_limits,
    repeated,
    schedule_retry,
    wait_afresh,
)
from workflows_mcp.machine.program import EvaluationError, Program, program_of
from workflows_mcp.machine.reactive import (
    REACTIVE,
    OpenReactive,
    cleaned_up_first,
    initial_state,
    left_behind,
    stop_items,
    stop_leftovers,
)
from workflows_mcp.machine.reactive_state import Changes, ReactiveState
from workflows_mcp.machine.rules import (
    failed,
    fails_the_workflow,
    finished_scope,
    outputs_if_not_run,
    skip_reason,
)
from workflows_mcp.machine.sequence import OpenSequence, finished_sequence
from workflows_mcp.machine.state import (
    MARKS,
    TERMINAL,
    BlockStatus,
    Fault,
    Frame,
    Mark,
    Message,
    Outcome,
    Record,
    RunState,
    Scope,
)
from workflows_mcp.plan import CONTEXT_FULL, Bundle, Call, Plan, Steps
from workflows_mcp.values import Value

# ----------------------------------------------------------------------------------------------------
# Which scopes are open, by the prefix of the addresses inside of them. All of it follows from the state.


class OpenScopes:
    def __init__(self, limits: Callable[[], Limits], seed: Callable[[], str]) -> None:
        self._open: dict[str, OpenScope] = {}
        self._limits = limits
        self._seed = seed
        self.on_home: Callable[[ReactiveState], None] | None = None
        """Told of every state that is opened, for whoever wants to know what is computed in it."""

    def open_workflow(
        self,
        scope: Scope,
        program_of: ProgramOf,
        run_id: str,
        around: OpenScope | None = None,
        name: str = "",
    ) -> OpenScope:
        """A workflow: the run's own, or the one that the block `name` of the scope `around` calls."""
        prefix, depth, tries = "", 0, ""
        if around is not None:
            prefix, depth = f"{around.prefix}{name}/", around.depth + 1
            tries = around.tries_inside(name)
        names = names_in(scope, run_id, program_of)
        program = program_of(scope.workflow)
        kind = OpenSequence if isinstance(program.plan.body, Steps) else OpenScope
        if kind is OpenSequence:
            names = {**names, "__limits__": self._limits()}
        opened: OpenScope
        if program.plan.dialect == "reactive":
            reactive = self._home(scope, program, around)
            opened = OpenReactive(prefix, scope, program, names, depth, tries, reactive, run_id, self._seed)
        else:
            opened = kind(prefix, scope, program, names, depth, tries)
        self._open[prefix] = opened
        return opened

    def _home(self, scope: Scope, program: Program, around: OpenScope | None) -> ReactiveState:
        """Where its state is: a task may share that of the workflow around it."""
        outside = around.reactive if around is not None else None
        if program.plan.shares_state and outside is not None:
            shared: ReactiveState = outside
            return shared
        is_task = "#" in program.plan.name
        reactive = ReactiveState(scope, program, self._limits(), outside if is_task else None)
        if self.on_home is not None:
            self.on_home(reactive)
        return reactive

    def open_items(
        self, scope: Scope, around: OpenScope, index: int, items: Value, limit: int | None
    ) -> OpenScope:
        """The items of the block `index` of the scope `around`, so many of them at once."""
        prefix = f"{around.prefix}{around.program.nodes[index].id}/"
        opened = self._open[prefix] = OpenItems(around, index, prefix, scope, items, limit)
        return opened

    def reopen(self, root: Scope, program_of: ProgramOf, run_id: str, frames: Mapping[str, Frame]) -> None:
        """Count again what is open, after a restart. Nothing is ready: ready means started."""
        pending = [self.open_workflow(root, program_of, run_id)]
        while pending:
            around = pending.pop()
            for name, record in around.scope.records.items():
                address = around.prefix + name
                if record.scope is None or record.status in TERMINAL or frames[address].kind == "retry":
                    continue  # nothing is inside, or what is inside has ended
                if record.scope.each is None:
                    pending.append(self.open_workflow(record.scope, program_of, run_id, around, name))
                else:
                    index = around.program.ids[name]
                    prepared, names = around.program.prepared(index), around.names_for(index)
                    items: Value = record.scope.items
                    if items is None:
                        items = prepared.items(names)
                    # how many may be under way at once is settled: as one ends, the next one begins
                    pending.append(self.open_items(record.scope, around, index, items, None))

    def locate(self, address: str) -> tuple[OpenScope, int]:
        """The block at an address: its scope, and its place in the program."""
        cut = address.rfind("/") + 1
        scope = self._open[address[:cut]]
        return scope, scope.program.ids[address[cut:]]

    def at(self, prefix: str) -> OpenScope | None:
        return self._open.get(prefix)

    def of_items(self) -> list[OpenItems]:
        """The items that are open, those inside of others last."""
        return [it for it in self._open.values() if isinstance(it, OpenItems)]

    def homes(self) -> list[ReactiveState]:
        """Every state that is open, each once."""
        return list(
            {id(it.reactive): it.reactive for it in self._open.values() if it.reactive is not None}.values()
        )

    def close(self, prefix: str) -> None:
        del self._open[prefix]

    def close_inside(self, prefix: str) -> None:
        for inside in [inside for inside in self._open if inside.startswith(prefix)]:
            del self._open[inside]

    def clear(self) -> None:
        self._open.clear()


# ----------------------------------------------------------------------------------------------------
# Whether a run waits for an event. What is not expected (any more) is refused before it is written down.


def refuse_unexpected(machine: Machine, event: Event) -> None:
    """Raises NotExpected where nothing waits for `event`."""
    state = machine.state
    if isinstance(event, Started | Stopped | Forked):
        return
    if state.status != "running":
        by = state.superseded_by
        raise NotExpected(
            f"the run {state.run_id} has ended: it is {state.status}"
            + (f", superseded by {by}" if by else ""),
            hint=f"continue with workflow_id='{by}'" if by else "",
        )
    if isinstance(event, CancelRequested | Marked | ContextFull | Parked):
        return
    if isinstance(event, Resumed):
        if state.parked is None:
            raise NotExpected(f"the run {state.run_id} is not parked")
        return
    if state.parked is not None and isinstance(event, Answered | StateUpdated):
        raise NotExpected(
            f"the run {state.run_id} is parked: {why_parked(state)}",
            hint=f"resume it first: {how_to_resume(state.run_id)}",
        )
    if isinstance(event, StateUpdated):
        _refuse_update(machine, event)
        return
    if isinstance(event, SlotFreed):
        if event.address not in state.frames:
            raise NotExpected(f"'{event.address}' is not under way")
        return
    if isinstance(event, Answered):
        frame = state.frames.get(event.address)
        if frame is None or frame.kind != "agent":
            raise NotExpected(f"nothing is asked at '{event.address}'")
        if event.attempt and event.attempt != frame.attempt:
            raise NotExpected(f"'{event.address}' is asked anew")
        if frame.deadline is not None and event.at > frame.deadline:
            raise NotExpected(f"the question at '{event.address}' has timed out")
        return
    if not is_under_way(state, event.key):
        raise NotExpected(f"'{event.key}' is not under way")


def why_parked(state: RunState) -> str:
    return "the context of its agent was nearly full" if state.context_full else "the user interrupted it"


def how_to_resume(run_id: str) -> str:
    return f"control_workflow(workflow_id='{run_id}', action='resume'), or workflows-mcp resume {run_id}"


def is_under_way(state: RunState, key: str) -> bool:
    address, attempt = address_of(key)
    frame = state.frames.get(address)
    return frame is not None and frame.attempt == attempt


def changes_of(event: StateUpdated) -> Changes:
    return [(tuple(path), operation, value) for path, operation, value in event.changes]


def _refuse_update(machine: Machine, event: StateUpdated) -> None:
    reactive = machine.reactive_state_at(event.address)
    if reactive is None:
        hint = "only the state of a reactive workflow, or of a task of it that is under way, can be"
        raise NotExpected("there is no state here that can be changed from outside", hint=hint)
    try:
        reactive.tried(changes_of(event))
    except WrongChange as wrong:
        raise NotExpected(str(wrong), hint=wrong.hint) from None


# ----------------------------------------------------------------------------------------------------
# What each event does to a run. A fact that is not expected (any more) changes nothing.
#
# A new kind of event is a function here and a row in `APPLY`.


STARTING = "~start"

"""Instead of the key of a step: the state that the run begins with could not be made in time."""

ANSWERING = "~unanswered"

"""What the key of a question ends with whose answer by on_timeout could not be made in time."""


def started(machine: Machine, event: Started) -> None:
    state = machine.state
    state.run_id = event.run_id
    state.workspace = event.workspace
    state.forked_from = event.forked_from
    state.seed = event.seed or event.run_id
    state.limits = event.limits
    state.started_at = event.at
    state.root = Scope(machine.bundle.main, event.inputs, event.at, {})
    fault = machine.known_to_stop_at(STARTING)
    if fault is None:
        try:
            state.root = machine.new_scope(machine.bundle.main, event.inputs, event.at)
        except EvaluationError as error:
            cause, main = error.cause, machine.bundle.main
            fault = Fault(cause.code, cause.message, cause.hint, "", main, error.path, cause.offset)
            if cause.code in (TOO_SLOW, TOO_LARGE):
                machine.stopped[STARTING] = fault
    if fault is not None:
        machine.finish("failed", event.at, fault)
    else:
        machine.open_scope(state.root)


def forked(machine: Machine, event: Forked) -> None:
    """A run that is made of another one goes its own way from here on."""
    machine.state.seed = event.seed or f"{machine.state.seed}/{machine.state.run_id}"
    machine.state.parked = None
    machine.state.context_full = CONTEXT_FULL in machine.state.frames
    if event.begun_anew and not event.over_limit:
        keep_to_limits(machine)
    wait_afresh(machine, event)


ANSWERS_KEPT = 50

"""How many accepted answers a run remembers, so that submitting one of them again is harmless."""


def step_ended(machine: Machine, event: StepDone | StepFailed | Answered) -> None:
    if isinstance(event, Answered):
        address = event.address
        frame = machine.state.frames.get(address)
        expected = frame is not None and frame.kind == "agent" and event.attempt in ("", frame.attempt)
    else:
        address, attempt = address_of(event.key)
        frame = machine.state.frames.get(address)
        expected = frame is not None and frame.kind == "step" and frame.attempt == attempt
    if frame is None or not expected:
        return
    scope, index = machine.locate(address)
    if frame.kind == "agent":
        messages_delivered(machine, address, frame)
    machine.close_frame(address, frame)
    if frame.cut_off:
        decided(machine, scope, index, event)
        return
    if isinstance(event, Answered):
        if event.token:
            machine.state.answers = [*machine.state.answers, event.token][-ANSWERS_KEPT:]
        scope.scope.records[scope.program.nodes[index].id].settled = event.settled
    if isinstance(event, StepFailed):
        fault = machine.fault(scope, index, event.code, event.message, event.hint)
        outputs = {**scope.program.defaults(index), **event.outputs}
        message = f"{event.message}\n{event.hint}" if event.hint else event.message
        machine.end(scope, index, event.at, "failed", "n/a", outputs, message, fault)
        return
    outcome: Outcome = "success" if event.ok else "failure"
    machine.end(scope, index, event.at, "completed", outcome, event.outputs, event.message)


def timer_fired(machine: Machine, event: TimerFired) -> None:
    address, attempt = address_of(event.key)
    frame = machine.state.frames.get(address)
    if frame is None or frame.attempt != attempt:
        return
    if frame.kind == "retry":
        scope, index = machine.locate(address)
        del machine.state.frames[address]
        machine.enter_again(scope, index)
        return
    if frame.kind == "wait":
        scope, index = machine.locate(address)
        del machine.state.frames[address]
        outputs = {"resumed": True, "duration": frame.timeout}
        machine.end(scope, index, event.at, "completed", "success", outputs)
        return
    message = f"timed out after {frame.timeout:g} s"
    if frame.kind == "agent" and not frame.cut_off and answered_by_definition(machine, address, event.at):
        return
    if frame.kind == "step":
        frame.stopping = message
        machine.emit(StopStep(event.key, message))
        return
    scope, index = machine.locate(address)
    fault = machine.fault(scope, index, "timeout", message, path=("timeout",))
    if cleaned_up_first(machine, address, event.at, fault):
        return
    stop(machine, address, frame, event.at, "its caller timed out")
    machine.fail(scope, index, event.at, fault)


def answered_by_definition(machine: Machine, address: str, at: float) -> bool:
    """Nobody has answered a question in time: take the answer that its definition has for that, if any."""
    scope, index = machine.locate(address)
    if scope.program.nodes[index].timeout_answer is None:
        return False
    frame = machine.state.frames.pop(address)
    fault = machine.known_to_stop(scope, index, ANSWERING)
    if fault is None:
        try:
            outputs = scope.program.prepared(index).timeout_answer(scope.names_for(index))
        except EvaluationError as error:
            fault = machine.fault_of(scope, index, error)
            if error.cause.code in (TOO_SLOW, TOO_LARGE):
                machine.note_stop(scope, index, fault, ANSWERING)
    if fault is not None:
        machine.fail(scope, index, at, fault)
    else:
        message = f"nobody answered within {frame.timeout:g} s: the answer of on_timeout was taken"
        machine.end(scope, index, at, "completed", "success", outputs, message)
    return True


def plan_loaded(machine: Machine, event: PlanLoaded) -> None:
    address, attempt = address_of(event.key)
    frame = machine.state.frames.get(address)
    if frame is None or frame.kind != "plan" or frame.attempt != attempt:
        return
    scope, index = machine.locate(address)
    machine.close_frame(address, frame)
    if event.error is not None:
        where = ("inputs", "workflow")
        fault = machine.fault(scope, index, "unknown_workflow", event.error, path=where)
        machine.fail(scope, index, event.at, fault)
        return
    state = machine.state
    for name, plan in event.plans.items():
        if name not in machine.plans:
            machine.plans[name] = state.plans[name] = plan
            machine.know(plan)
            state.sources[name] = event.sources.get(name, "")
    ENTER[Call](machine, scope, index, event.at)


def state_updated(machine: Machine, event: StateUpdated) -> None:
    reactive = machine.reactive_state_at(event.address)
    state = machine.state
    if reactive is None or (event.token and event.token in state.tokens):
        return
    state.tokens = [*state.tokens[1 - MARKS :], event.token] if event.token else state.tokens
    with suppress(WrongChange):
        # a field that propagates its error fails the step that reads it, not the update
        reactive.reset(reactive.tried(changes_of(event))[0])


def marked(machine: Machine, event: Marked | ContextFull) -> None:
    machine.state.mark(event.at, event.reason, event.step)


def slot_freed(machine: Machine, event: SlotFreed) -> None:
    if event.address not in machine.state.frames:
        return
    scope, _ = machine.locate(event.address)
    if isinstance(scope, OpenItems):
        machine.enter_next(scope, scope.next_ones())


def context_full(machine: Machine, event: ContextFull) -> None:
    """The steps for that case run beside the others; at their end the run is parked, or at once where there
    are none. Reported again meanwhile, it is only marked."""
    marked(machine, event)
    state = machine.state
    if state.context_full or state.parked is not None:
        return
    state.context_full = True
    scope = machine.scope_inside("")
    steps = scope.on_context_full() if isinstance(scope, OpenReactive) else []
    if scope is not None and steps:
        machine.enter_next(scope, steps)
    else:
        park(machine, event.at)


def parked(machine: Machine, event: Parked) -> None:
    park(machine, event.at)


def resumed(machine: Machine, event: Resumed) -> None:
    """The time for which a run was parked does not count: deadlines are that much later."""
    state = machine.state
    if state.parked is None:
        return
    later = max(event.at - state.parked, 0.0)
    state.parked = None
    if state.context_full and CONTEXT_FULL not in state.frames:
        state.context_full = False
        own = f"{CONTEXT_FULL}/"  # what they told the user was for the conversation before
        state.messages = [it for it in state.messages if not it.address.startswith(own)]
    for frame in state.frames.values():
        frame.parked += later
        if frame.deadline is not None:
            frame.deadline += later
    for command in machine.outstanding(event.at, by_user=True):
        machine.emit(command)


def cancel_requested(machine: Machine, event: CancelRequested) -> None:
    reason = event.reason or "cancelled"
    machine.state.superseded_by = event.superseded_by
    for address, frame in list(machine.state.frames.items()):
        if "/" not in address:
            scope, index = machine.locate(address)
            stop(machine, address, frame, event.at, reason)
            mark_stopped(machine, scope, index, event.at, reason)
    machine.finish("cancelled", event.at, Fault("cancelled", reason))


APPLY: dict[type[Any], Callable[[Machine, Any], None]] = {
    Started: started,
    StepDone: step_ended,
    StepFailed: step_ended,
    Answered: step_ended,
    TimerFired: timer_fired,
    PlanLoaded: plan_loaded,
    Interrupted: interrupted,
    Forked: forked,
    SlotFreed: slot_freed,
    StateUpdated: state_updated,
    Marked: marked,
    ContextFull: context_full,
    Parked: parked,
    Resumed: resumed,
    CancelRequested: cancel_requested,
}


_snapshots = msgspec.msgpack.Encoder()

_restored = msgspec.msgpack.Decoder(RunState)


class Machine:
    def __init__(self, bundle: Bundle, snapshot: bytes | RunState | None = None) -> None:
        self.bundle = bundle
        self.plans = bundle.every_plan
        self._commands: list[Command] = []
        self._work: deque[tuple[OpenScope, int]] = deque()
        self._scopes = OpenScopes(lambda: self.limits, lambda: self.state.seed)
        self._limits: Limits | None = None
        self._known_to_stop: dict[str, Fault] = {}
        self.stopped: dict[str, Fault] = {}
        """What the last event led to that took too long: to be written down before it."""
        self.state = RunState(run_id="", workflow=bundle.main, root=Scope(bundle.main))
        if snapshot is not None:
            self.state = _restored.decode(snapshot) if isinstance(snapshot, bytes) else snapshot
            self.plans.update(self.state.plans)
            for plan in self.state.plans.values():
                self.know(plan)
            if self.state.events and self.state.status == "running":
                state = self.state
                self._scopes.reopen(state.root, self.program_named, state.run_id, state.frames)

    # What an engine calls

    def apply(self, event: Event) -> list[Command]:
        """Take in one fact. A fact that is not expected (any more) changes nothing."""
        state = self.state
        commands: list[Command] = []
        self._commands = commands
        state.events += 1
        if isinstance(event, Stopped):
            self._known_to_stop = event.faults
            return commands
        self.stopped = {}
        state.changed_at = event.at
        if state.status == "running":
            APPLY[type(event)](self, event)
            while self._work:
                self._enter(*self._work.popleft())
        self._known_to_stop = {}
        if state.parked is not None:
            # Whatever these events lead to is wished for again when the run is resumed.
            return [it for it in commands if isinstance(it, StopStep | ClearTimer | Finish)]
        return commands

    def note_stopped(self, at: float) -> Stopped | None:
        """The event to write before the one that was applied last, if expressions had to be stopped."""
        if not self.stopped:
            return None
        state = self.state
        since: list[Frame | Message | Mark] = [*state.frames.values(), *state.messages, *state.marks]
        for it in since:
            it.event += it.event == state.events  # the event is one further than it was
        self._commands[:] = [
            replace(it, event=it.event + 1) if isinstance(it, RunStep) and it.event == state.events else it
            for it in self._commands
        ]
        state.events += 1
        return Stopped(at, self.stopped)

    def refuse_unexpected(self, event: Event) -> None:
        """Raise NotExpected where nothing waits for `event`, so that it is not written down at all."""
        refuse_unexpected(self, event)

    def outstanding(self, now: float, *, cut_off: bool = True, by_user: bool = False) -> list[Command]:
        """All that is under way, wished for again: what an engine performs after a restart.

        A step that was cut off is reported as interrupted, which decides whether it is repeated; one that the
        user has interrupted (`by_user`) is repeated unless its block says otherwise. A step starts afresh,
        and so does its timeout; a call keeps its deadline. A run that is made of the events of another one
        has started nothing yet: nothing of it was cut off. A parked run wishes for nothing.
        """
        commands: list[Command] = []
        if self.state.parked is not None:
            return commands
        for address, frame in self.state.frames.items():
            scope, index = self.locate(address)
            key = key_of(address, frame.attempt)
            if frame.stopping:
                commands.append(StopStep(key, frame.stopping))
            elif frame.kind == "step":
                repeats = scope.program.nodes[index].on_interrupt == "repeat"
                if cut_off and not (repeats and by_user):
                    commands.append(TellInterrupted(key))
                else:
                    commands += repeated(scope, index, frame, key, now)
            elif frame.kind == "plan":
                name = scope.scope.records[scope.program.nodes[index].id].inputs["workflow"]
                commands.append(LoadPlan(key, name, scope.program.plan.file))
            elif frame.deadline is not None:
                commands.append(SetTimer(key, frame.deadline))
        return commands

    @property
    def sequences(self) -> bool:
        """Whether steps one after the other are part of the run: their expressions are programs, so that
        applying an event can take as long as an expression may."""
        return any(plan.dialect != "graph" for plan in self.plans.values())

    def does_not_fit(self, address: str, outputs: dict[str, Value]) -> WrongChange | None:
        """What is wrong with these outputs of a step, if the state that they go to cannot take them."""
        scope, index = self.locate(address)
        if not isinstance(scope, OpenSequence):
            return None
        return scope.does_not_fit(index, outputs, self.limits)

    @property
    def questions(self) -> int:
        """How many actions wait for agents."""
        return sum(frame.kind == "agent" for frame in self.state.frames.values())

    def snapshot(self) -> bytes:
        return _snapshots.encode(self.state)

    def program_named(self, workflow: str) -> Program:
        return program_of(self.plans[workflow])

    # What operations call

    @property
    def limits(self) -> Limits:
        """Those that the run was started with."""
        if self._limits is None:
            self._limits = Limits(**self.state.limits)  # type: ignore[arg-type]
        return self._limits

    def emit(self, command: Command) -> None:
        self._commands.append(command)

    def know(self, plan: Plan) -> None:
        """The tasks of a workflow are workflows too."""
        for task in plan.tasks:
            self.plans[task.name] = task

    def new_scope(
        self,
        workflow: str,
        inputs: dict[str, Value],
        at: float,
        variables: dict[str, Value] | None = None,
        prefix: str = "",
    ) -> Scope:
        """Raises MisplacedError where the state that it begins with cannot be made."""
        plan = self.plans[workflow]
        state = dict(plan.initial_state)
        if plan.dialect == REACTIVE:
            seed = f"{self.state.seed}/{prefix}"
            program = program_of(plan)
            if plan.shares_state:
                state = {}
            else:
                state = initial_state(program, inputs, at, seed, self.limits, variables, self.state.run_id)
        return Scope(workflow, inputs, at, {}, state=state, variables=variables or {})

    def locate(self, address: str) -> tuple[OpenScope, int]:
        """The block at an address: the scope that it is in, and its place in the program."""
        return self._scopes.locate(address)

    def close_inside(self, prefix: str) -> None:
        """Nothing inside goes on, and nothing more of it is entered."""
        self._scopes.close_inside(prefix)
        self._work = deque(item for item in self._work if not item[0].prefix.startswith(prefix))

    @property
    def open_items(self) -> list[OpenItems]:
        return self._scopes.of_items()

    def forget_work(self, scope: OpenScope) -> None:
        """Nothing more of it is entered."""
        self._work = deque(item for item in self._work if item[0] is not scope)

    def scope_inside(self, address: str) -> OpenScope | None:
        """What the block at an address has opened; without an address, the run's own scope."""
        return self._scopes.at(f"{address}/" if address else "")

    def reactive_state_at(self, address: str) -> ReactiveState | None:
        """Where the state of a reactive workflow is: of the run, or of the task at an address."""
        scope = self.scope_inside(address)
        reactive: ReactiveState | None = scope.reactive if scope is not None else None
        return reactive

    def enter_again(self, scope: OpenScope, index: int) -> None:
        self._work.append((scope, index))

    # What readers of a run call

    def source_of(self, workflow: str) -> str:
        """The text that a workflow of this run was read from; a task is in the file of its workflow."""
        workflow = workflow.partition("#")[0]
        return self.bundle.sources.get(workflow) or self.state.sources.get(workflow, "")

    def plan_named(self, workflow: str) -> Plan:
        return self.plans[workflow]

    # Blocks

    def _enter(self, scope: OpenScope, index: int) -> None:
        """A block whose dependencies are all done: skip it, or start it. One that is tried again was not
        skipped the first time."""
        at = self.state.changed_at
        node = scope.program.nodes[index]
        reason = None
        scope.time = at
        try:
            if (known := self.known_to_stop(scope, index)) is not None:
                self._stopped(scope, index, at, known)
                return
            if node.id not in scope.scope.records:
                reason = skip_reason(scope.program, index, scope.scope.records)
                begun = node.id in scope.scope.loops  # a loop is asked once, not before every round
                if reason is None and node.condition is not None and not begun:
                    prepared = scope.program.prepared(index)
                    if not prepared.condition(scope.names_for(index)):
                        reason = f"the condition is false: {node.condition.strip()}"
                if reason is None and node.retry is not None and node.for_each is None:
                    scope.program.prepared(index).retry(scope.names_for(index))  # whether it makes sense
            if reason is not None:
                self.end(scope, index, at, "skipped", message=reason)
            else:
                enter(self, scope, index, at)
        except EvaluationError as error:
            self._broken(scope, index, at, error)
        except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
            # A value that nobody thought of must not stop the run for ever: it is this block's failure.
            message = f"the block cannot be entered: {type(error).__name__}: {error}"
            self.fail(scope, index, at, self.fault(scope, index, "internal", message))

    def end(
        self,
        scope: OpenScope,
        index: int,
        at: float,
        status: BlockStatus,
        outcome: Outcome = "n/a",
        outputs: dict[str, Value] | None = None,
        message: str | None = None,
        fault: Fault | None = None,
    ) -> None:
        """A block has ended: keep its result, and see what that makes ready, unless it is tried again."""
        program = scope.program
        name = program.nodes[index].id
        records = scope.scope.records
        record = records.get(name)
        if record is None:
            record = records[name] = Record(started_at=at)
        elif (
            (status == "failed" or outcome == "failure")
            and program.nodes[index].retry is not None
            and schedule_retry(self, scope, index, at, record, outputs or {}, message, fault)
        ):
            return
        record.status = status
        record.outcome = outcome
        record.outputs = outputs_if_not_run(program, index, self.plans) if outputs is None else outputs
        record.message = message
        record.fault = fault
        record.completed_at = at
        scope.time = at
        scope.settle(self, index)
        if not scope.prefix:
            self.state.done += 1
        if isinstance(scope, OpenItems) and scope.fails_fast and failed(record):
            stop_items(self, scope, at)
        following = scope.after(index)
        plan = program.plan
        is_graph = not isinstance(scope, OpenSequence | OpenItems)
        if is_graph and plan.fail_fast and fails_the_workflow(plan, program.nodes[index], record):
            stop_the_rest(self, scope, name, at)
            following = []
        self.enter_next(scope, following)
        if scope.finished:
            self._scope_finished(scope, at)

    def enter_next(self, scope: OpenScope, following: list[int]) -> None:
        self._work.extend((scope, index) for index in following)

    def fail(self, scope: OpenScope, index: int, at: float, fault: Fault) -> None:
        """A block could not be carried out."""
        self.end(scope, index, at, "failed", message=fault.message, fault=fault)

    def _broken(self, scope: OpenScope, index: int, at: float, error: EvaluationError) -> None:
        fault = self.fault_of(scope, index, error)
        if error.cause.code in (TOO_SLOW, TOO_LARGE):
            self.note_stop(scope, index, fault)
            self._stopped(scope, index, at, fault)
        else:
            self.fail(scope, index, at, fault)

    def _stopped(self, scope: OpenScope, index: int, at: float, fault: Fault) -> None:
        """An expression of a block was stopped, now or when this event was first applied: nothing is kept of
        what was made before it."""
        record = scope.scope.records.get(scope.program.nodes[index].id)
        if record is not None:
            record.inputs, record.code, record.places, record.replaced = {}, {}, [], {}
        self.fail(scope, index, at, fault)

    def fault_of(self, scope: OpenScope, index: int, error: EvaluationError) -> Fault:
        cause = error.cause
        fault = self.fault(scope, index, cause.code, cause.message, cause.hint, error.path, cause.offset)
        if not error.workflow:
            return fault
        return replace(fault, workflow=error.workflow, path=error.path)

    def note_stop(self, scope: OpenScope, index: int, fault: Fault, what: str = "") -> None:
        """An expression had to be stopped; `what` it was for, beside entering the block."""
        self.stopped[self._try_of(scope, index) + what] = fault

    def known_to_stop(self, scope: OpenScope, index: int, what: str = "") -> Fault | None:
        """The fault of an expression that was stopped when this event was applied for the first time."""
        return self.known_to_stop_at(self._try_of(scope, index) + what) if self._known_to_stop else None

    def known_to_stop_at(self, key: str) -> Fault | None:
        return self._known_to_stop.get(key)

    def _try_of(self, scope: OpenScope, index: int) -> str:
        name = scope.program.nodes[index].id
        record = scope.scope.records.get(name) or Record()
        return key_of(scope.prefix + name, scope.attempt(name, record))

    # Scopes

    def open_scope(self, scope: Scope, around: OpenScope | None = None, name: str = "") -> None:
        self._begin(self._scopes.open_workflow(scope, self.program_named, self.state.run_id, around, name))

    def enter_items(
        self, scope: Scope, around: OpenScope, index: int, items: Value, limit: int | None
    ) -> None:
        self._begin(self._scopes.open_items(scope, around, index, items, limit))

    def _begin(self, opened: OpenScope) -> None:
        self._work.extend((opened, index) for index in opened.ready())
        if not opened.program.nodes:
            self._scope_finished(opened, self.state.changed_at)

    def _scope_finished(self, scope: OpenScope, at: float) -> None:
        if isinstance(scope, OpenReactive) and (following := scope.after_loose_failure(self)):
            self.enter_next(scope, following)
            return
        if isinstance(scope, OpenItems):
            message, fault = items_outcome(scope.prefix, scope.scope, scope.program)
            outputs: dict[str, Value] = {}  # they are made of the outputs of the items
        elif isinstance(scope, OpenSequence):
            fault = finished_sequence(scope.prefix, scope.scope, scope.program)
            outputs = {"result": scope.scope.result}
            if isinstance(scope, OpenReactive):
                stop_leftovers(self, scope, at)
                outputs, fault = left_behind(self, scope, fault)
            message = fault.message if fault is not None else None
        else:
            result = finished_scope(scope.prefix, scope.scope, scope.program, scope.names)
            outputs, fault = result.outputs, result.fault
            message = fault.message if fault is not None else None
        self._scopes.close(scope.prefix)
        if not scope.prefix:
            self.state.outputs = outputs
            self.state.result = scope.scope.result
            self.finish("completed" if fault is None else "failed", at, fault)
            return
        address = scope.prefix[:-1]
        if isinstance(scope, OpenItems):
            hand_to_caller(self, address, self.state.frames[address])
        self.close_frame(address, self.state.frames[address])
        caller, index = self.locate(address)
        outcome: Outcome = "success" if fault is None else "failure"
        self.end(caller, index, at, "completed", outcome, outputs, message, fault)

    def finish(self, status: Any, at: float, fault: Fault | None) -> None:
        state = self.state
        state.status = status
        state.fault = fault
        state.ended_at = at
        state.parked = None
        self._scopes.clear()
        self._work.clear()
        self._commands.append(Finish(status))

    # Frames

    def open_frame(self, address: str, frame: Frame, timeout: float | None, at: float) -> None:
        """Every frame is opened here: this is what gives an execution its identity."""
        frame.event = self.state.events
        self.state.frames[address] = frame
        if timeout is not None:
            frame.timeout, frame.deadline = timeout, at + timeout
        if frame.deadline is not None:
            self._commands.append(SetTimer(key_of(address, frame.attempt), frame.deadline))

    def close_frame(self, address: str, frame: Frame) -> None:
        del self.state.frames[address]
        if frame.deadline is not None:
            self._commands.append(ClearTimer(key_of(address, frame.attempt)))

    def fault(
        self,
        scope: OpenScope,
        index: int,
        code: str,
        message: str,
        hint: str = "",
        path: tuple[str | int, ...] = (),
        offset: int = 0,
    ) -> Fault:
        node = scope.program.nodes[index]
        return Fault(
            code, message, hint, scope.prefix + node.id, scope.scope.workflow, (*node.at, *path), offset
        )
