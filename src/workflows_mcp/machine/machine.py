"""The interpreter: `apply(event)` changes the state of a run and returns commands.

    machine = Machine(bundle)
    commands = machine.apply(Started(at=0.0, run_id="wf_1", inputs={}))
    commands = machine.apply(StepDone(at=1.0, key="build#1", outputs={…}))
    restored = Machine(bundle, machine.snapshot())

A graph counts, for each block, the dependencies that have not ended. A block whose count reaches zero is
added to a work list and entered: it is skipped, sent to the engine, asked of the agent, or, for a call,
opened as a scope of its own. When a block ends, the counts of its dependents go down; the last block of a
scope ends the scope, which ends the block that called it, or the run. Nothing here waits, reads a clock or
knows an engine: time is `event.at`, and the state alone says what is under way (`outstanding`).

The parts of this module: the class; what each event does (`APPLY`); which events are expected (`EXPECTED`).
A new kind of event is a class in `events.py`, a function here for what it does, and a row in both tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from workflows_mcp.errors import TOO_LARGE, TOO_SLOW, NotExpected
from workflows_mcp.machine.agents import agents_assigned
from workflows_mcp.machine.budgets import add_tokens, raise_budget, spent_of
from workflows_mcp.machine.changes import WrongChange
from workflows_mcp.machine.commands import (
    ClearTimer,
    Command,
    Finish,
    LoadPlan,
    ReportInterrupted,
    RunStep,
    SetTimer,
    StopStep,
    address_of,
    key_of,
)
from workflows_mcp.machine.core import Core, OpenScope, Purpose
from workflows_mcp.machine.events import (
    AgentsAssigned,
    Answered,
    BudgetRaised,
    CancelRequested,
    ContextFull,
    Decided,
    Event,
    ExpressionStopped,
    Forked,
    Interrupted,
    Marked,
    Parked,
    PlanLoaded,
    Refused,
    Reopened,
    Resumed,
    SlotFreed,
    Started,
    StateUpdated,
    StepDone,
    StepFailed,
    StepReport,
    TimerFired,
)
from workflows_mcp.machine.items import OpenItems
from workflows_mcp.machine.lifecycle import advance, begin_stopping, close_frame, finish_run
from workflows_mcp.machine.names import iso, names_in
from workflows_mcp.machine.operations import (
    ENTER,
    decided,
    enter,
    interrupted,
    repeated,
    restart_timer,
    restart_timers,
    schedule_retry,
)
from workflows_mcp.machine.program import Program, program_of
from workflows_mcp.machine.reactive import (
    OpenReactive,
    initial_state,
)
from workflows_mcp.machine.reactive_state import Changes, ReactiveState
from workflows_mcp.machine.rules import (
    outputs_if_not_run,
)
from workflows_mcp.machine.sequence import OpenSequence
from workflows_mcp.machine.state import (
    MARKS,
    TERMINAL,
    EndStatus,
    Fault,
    Frame,
    Mark,
    Message,
    Outcome,
    Record,
    RunState,
    RunStatus,
    Scope,
    Submitted,
)
from workflows_mcp.machine.verify import checked, verify
from workflows_mcp.plan import (
    CONTEXT_FULL,
    REJECTED,
    Bundle,
    Call,
    Expr,
    Plan,
    Steps,
    decoder,
    place_of_call,
    result_violations,
)
from workflows_mcp.values import Value

ANSWERS_KEPT = 50
"""How many accepted answers a run remembers, so that submitting one of them again is harmless."""

_encode_state = msgspec.msgpack.Encoder().encode
_decode_state = decoder(RunState)


class Machine(Core):
    def __init__(self, bundle: Bundle, snapshot: bytes | RunState | None = None) -> None:
        super().__init__(bundle)
        self._programs: dict[str, Program] = {}
        self.on_state_opened: Callable[[ReactiveState], None] | None = None
        """Called with every state of a reactive workflow that is opened; for tracing."""
        if snapshot is not None:
            self.restore(_decode_state(snapshot) if isinstance(snapshot, bytes) else snapshot)

    # What an engine calls

    def apply(self, event: Event) -> list[Command]:
        """Apply an event and return commands. An event that is not expected (any more) changes nothing."""
        state = self.state
        commands: list[Command] = []
        self._commands = commands
        state.events += 1
        if isinstance(event, ExpressionStopped):
            self._recorded_stops = event.faults
            return commands
        self.stopped_expressions = {}
        state.changed_at = event.at
        if state.status == "running" or isinstance(event, Reopened):
            APPLY[type(event)](self, event)
            self.enter_queued()
        self._recorded_stops = {}
        if self.state.parked is not None:
            # `resumed` emits the other commands again
            return [it for it in commands if isinstance(it, StopStep | ClearTimer | Finish)]
        return commands

    def record_stopped_expressions(self, at: float) -> ExpressionStopped | None:
        """Return the event to store before the last one; None if no expression was stopped."""
        if not self.stopped_expressions:
            return None
        state = self.state
        since: list[Frame | Message | Mark] = [*state.frames.values(), *state.messages, *state.marks]
        for it in since:
            it.event += it.event == state.events  # `ExpressionStopped` is inserted before it: it moves by one
        self._commands[:] = [
            replace(it, event=it.event + 1) if isinstance(it, RunStep) and it.event == state.events else it
            for it in self._commands
        ]
        state.events += 1
        return ExpressionStopped(at, self.stopped_expressions)

    def refuse_unexpected(self, event: Event) -> None:
        """Raise NotExpected where nothing waits for `event`, so that it is not stored at all."""
        state = self.state
        if event.never_refused:
            return
        if state.status != "running":
            by = state.superseded_by
            raise NotExpected(
                f"the run {state.run_id} has ended: it is {state.status}"
                + (f", superseded by {by}" if by else ""),
                hint=f"continue with workflow_id='{by}'" if by else "",
            )
        if state.parked is not None and event.by_agent:
            raise NotExpected(
                f"the run {state.run_id} is parked: {why_parked(state)}",
                hint=f"resume it first: {how_to_resume(state.run_id)}",
            )
        EXPECTED[type(event)](self, event)

    def outstanding(self, now: float, *, after_crash: bool = True, by_user: bool = False) -> list[Command]:
        """The commands for all that is under way: what an engine performs after a restart.

        A step that a crash stopped is reported as interrupted, which decides whether it is repeated; one that
        the user has interrupted (`by_user`) is repeated unless its block says otherwise. Steps restart with a
        new timeout; all other operations keep their deadlines. Pass `after_crash=False` for a fork, whose
        steps have not started. A parked run has no commands.
        """
        commands: list[Command] = []
        if self.state.parked is not None:
            return commands
        for address, frame in self.state.frames.items():
            scope, index = self.locate(address)
            key = key_of(address, frame.attempt)
            if frame.stopping:
                commands.append(StopStep(key, frame.stopping))
            elif frame.on_server:
                node = scope.program.nodes[index]
                repeats = frame.kind == "verify" or node.on_interrupt == "repeat"
                if after_crash and not (repeats and by_user):
                    commands.append(ReportInterrupted(key))
                else:
                    commands += repeated(self, scope, index, frame, key, now)
            elif frame.kind == "plan":
                name = scope.scope.records[scope.program.nodes[index].id].inputs["workflow"]
                commands.append(LoadPlan(key, name, scope.program.plan.file))
            elif frame.deadline is not None:
                commands.append(SetTimer(key, frame.deadline))
        return commands

    def snapshot(self) -> bytes:
        return _encode_state(self.state)

    # What readers of a run call

    def does_not_fit(self, address: str, outputs: dict[str, Value]) -> WrongChange | None:
        """Why these outputs of a step cannot be written to the state, if they cannot."""
        scope, index = self.locate(address)
        return scope.does_not_fit(index, outputs, self.limits)

    def source_of(self, workflow: str) -> str:
        """The source text of a workflow of this run; a task is in the file of its workflow."""
        workflow = workflow.partition("#")[0]
        return self.bundle.sources.get(workflow) or self.state.sources.get(workflow, "")

    def reactive_state_at(self, address: str) -> ReactiveState | None:
        """The state of a reactive workflow: of the run, or of the task at an address."""
        scope = self.scope_inside(address)
        reactive: ReactiveState | None = scope.reactive if scope is not None else None
        return reactive

    def reactive_states(self) -> list[ReactiveState]:
        """Every state that is open, each once."""
        found = (it.reactive for it in self._open.values() if it.reactive is not None)
        return list({id(it): it for it in found}.values())

    def program_named(self, workflow: str) -> Program:
        program = self._programs.get(workflow)
        if program is None or program.plan is not self.plans[workflow]:
            program = self._programs[workflow] = program_of(self.plans[workflow])
        return program

    @property
    def open_item_scopes(self) -> list[OpenItems]:
        """The items that are open, those inside of others last."""
        return [it for it in self._open.values() if isinstance(it, OpenItems)]

    # Blocks

    def enter_queued(self) -> None:
        while self._work:
            self._enter(*self._work.popleft())

    def _enter(self, scope: OpenScope, index: int) -> None:
        """Skip or start a block whose dependencies have all ended. A retried block is not skipped."""
        at = self.state.changed_at
        scope.time = at
        try:
            fault = self.guarded(scope, index, lambda: self._evaluate_and_enter(scope, index, at))
        except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
            # an unexpected value must fail this block, not block the run for ever
            message = f"the block cannot be entered: {type(error).__name__}: {error}"
            fault = self.fault(scope, index, "internal", message)
        if fault is None:
            return
        record = scope.scope.records.get(scope.program.nodes[index].id)
        if record is not None and fault.code in (TOO_SLOW, TOO_LARGE):
            # drop what was evaluated before: a replay does not evaluate it
            record.inputs, record.code, record.places, record.replaced = {}, {}, [], {}
        self.fail(scope, index, fault)

    def _evaluate_and_enter(self, scope: OpenScope, index: int, at: float) -> None:
        node = scope.program.nodes[index]
        if node.id not in scope.scope.records:
            if reason := scope.skip_reason(index):
                self.end(scope, index, at, "skipped", message=reason)
                return
            if node.retry is not None and node.for_each is None:
                scope.program.retry(node, scope.names_for(index))  # raises if it is invalid
        enter(self, scope, index, at)

    def end(
        self,
        scope: OpenScope,
        index: int,
        at: float,
        status: EndStatus,
        outcome: Outcome = "n/a",
        outputs: dict[str, Value] | None = None,
        message: str | None = None,
        fault: Fault | None = None,
    ) -> None:
        """End a block: store its result and queue what is ready now, or schedule a retry."""
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
        advance(record, status)
        record.outcome = outcome
        record.outputs = outputs_if_not_run(program, index, self.plans) if outputs is None else outputs
        record.message = message
        record.fault = fault
        record.completed_at = at
        scope.time = at
        scope.handle_end(self, index)
        if not scope.prefix:
            self.state.done += 1
        self.enqueue(scope, scope.after_end(self, index))
        if scope.finished:
            self._scope_finished(scope, at)

    # Scopes

    def add_tasks(self, plan: Plan) -> None:
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
        """The scope of a workflow that begins. Raises EvaluationError if its first state cannot be made."""
        plan = self.plans[workflow]
        state = dict(plan.initial_state)
        if plan.reactive:
            seed = f"{self.state.seed}/{prefix}"
            program = program_of(plan)
            if plan.shares_state:
                state = {}
            else:
                state = initial_state(program, inputs, at, seed, self.limits, variables, self.state.run_id)
        return Scope(workflow, inputs, at, {}, state=state, variables=variables or {})

    def open_scope(self, scope: Scope, around: OpenScope | None = None, name: str = "") -> None:
        self._begin(self._open_workflow(scope, around, name))

    def open_items(
        self, scope: Scope, around: OpenScope, index: int, items: Value, limit: int | None
    ) -> None:
        self._begin(self._open_items(scope, around, index, items, limit))

    def _begin(self, opened: OpenScope) -> None:
        self._work.extend((opened, index) for index in opened.ready())
        if not opened.program.nodes:
            self._scope_finished(opened, self.state.changed_at)

    def _scope_finished(self, scope: OpenScope, at: float) -> None:
        if following := scope.after_detached_failure(self):
            self.enqueue(scope, following)
            return
        result = scope.outcome(self)
        outputs, fault = result.outputs, result.fault
        if fault is None and scope.program.plan.result is not None and scope.prefix:
            fault = self._unfit_result(scope, outputs.get("result"), scope.program.plan.result)
        del self._open[scope.prefix]
        if not scope.prefix:
            self.state.outputs = outputs
            self.state.result = scope.scope.result
            self.finish("completed" if fault is None else "failed", at, fault)
            return
        address = scope.prefix[:-1]
        self.close_frame(address, "ended")
        caller, index = self.locate(address)
        outcome: Outcome = "success" if fault is None else "failure"
        message = fault.message if fault is not None else None
        self.end(caller, index, at, "completed", outcome, outputs, message, fault)

    def _unfit_result(self, scope: OpenScope, result: Value, schema: dict[str, Value]) -> Fault | None:
        """The fault of a task whose value does not fit its `result`."""
        wrong = result_violations(result, schema)
        if not wrong:
            return None
        message = f"the value that the task returns does not fit its result: {'; '.join(wrong)}"
        return Fault("wrong_result", message, "", scope.prefix[:-1], scope.scope.workflow)

    def finish(self, status: RunStatus, at: float, fault: Fault | None) -> None:
        """End the run."""
        state = self.state
        finish_run(state, status)
        state.fault = fault
        state.ended_at = at
        state.parked = None
        self._open.clear()
        self._work.clear()
        self._commands.append(Finish(status))

    def _open_workflow(self, scope: Scope, around: OpenScope | None = None, name: str = "") -> OpenScope:
        prefix, depth, attempt_prefix = "", 0, ""
        if around is not None:
            prefix, depth = f"{around.prefix}{name}/", around.depth + 1
            attempt_prefix = around.attempt_prefix_inside(name)
        run_id = self.state.run_id
        names = names_in(scope, run_id, self.program_named)
        program = self.program_named(scope.workflow)
        kind = OpenSequence if isinstance(program.plan.body, Steps) else OpenScope
        if kind is OpenSequence:
            names = {**names, "__limits__": self.limits}
        opened: OpenScope
        if program.plan.reactive:
            reactive = self._state_for(scope, program, around)
            opened = OpenReactive(
                prefix, scope, program, names, depth, attempt_prefix, reactive, run_id, self._seed
            )
        else:
            opened = kind(prefix, scope, program, names, depth, attempt_prefix)
        self._open[prefix] = opened
        return opened

    def _seed(self) -> str:
        return self.state.seed

    def _state_for(self, scope: Scope, program: Program, around: OpenScope | None) -> ReactiveState:
        """The state of a workflow: a task may share that of the workflow around it."""
        outside: ReactiveState | None = around.reactive if around is not None else None
        if program.plan.shares_state and outside is not None:
            return outside
        is_task = "#" in program.plan.name
        reactive = ReactiveState(scope, program, self.limits, outside if is_task else None)
        if self.on_state_opened is not None:
            self.on_state_opened(reactive)
        return reactive

    def _open_items(
        self, scope: Scope, around: OpenScope, index: int, items: Value, limit: int | None
    ) -> OpenScope:
        prefix = f"{around.prefix}{around.program.nodes[index].id}/"
        opened = self._open[prefix] = OpenItems(around, index, prefix, scope, items, limit)
        return opened

    def restore(self, state: RunState) -> None:
        """Continue from this state; nothing is entered."""
        self.state = state
        self.plans.update(state.plans)
        for plan in state.plans.values():
            self.add_tasks(plan)
        self._open.clear()
        self._work.clear()
        self._open_scopes()

    def _open_scopes(self) -> None:
        """Open the scopes of a restored state. Nothing is entered: what was ready has started."""
        if not self.state.events or self.state.status != "running":
            return
        pending = [self._open_workflow(self.state.root)]
        while pending:
            around = pending.pop()
            for name, record in around.scope.records.items():
                if record.scope is None or record.status in TERMINAL:
                    continue
                if self.state.frames[around.prefix + name].kind == "retry":
                    continue  # nothing is inside, or what is inside has ended
                if record.scope.each is None:
                    pending.append(self._open_workflow(record.scope, around, name))
                else:
                    index = around.program.ids[name]
                    each = around.program.nodes[index].for_each
                    items: Value = record.scope.items
                    if items is None and each is not None:
                        items = around.program.items(each, around.names_for(index))
                    pending.append(self._open_items(record.scope, around, index, items, record.scope.limit))


def replayed(bundle: Bundle, events: Iterable[Event]) -> Machine:
    """Return the machine of a run after these events."""
    machine = Machine(bundle)
    for event in events:
        machine.apply(event)
    return machine


# What each event does to a run


def started(machine: Machine, event: Started) -> None:
    state = machine.state
    state.run_id = event.run_id
    state.workspace = event.workspace
    state.forked_from = event.forked_from
    state.seed = event.seed or event.run_id
    state.limits = event.limits
    state.agents = event.agents
    state.by = event.by
    state.started_at = event.at
    state.root = Scope(machine.bundle.main, event.inputs, event.at, {})

    def make_root() -> None:
        state.root = machine.new_scope(machine.bundle.main, event.inputs, event.at)

    fault = machine.guarded_at(Purpose.START_RUN, make_root)
    if fault is not None:
        machine.finish("failed", event.at, fault)
    else:
        machine.open_scope(state.root)


def forked(machine: Machine, event: Forked) -> None:
    """A fork becomes a run of its own from here on."""
    machine.state.seed = event.seed or f"{machine.state.seed}/{machine.state.run_id}"
    machine.state.parked = None
    machine.state.context_full = CONTEXT_FULL in machine.state.frames
    if event.steps_restart and not event.over_limit:
        keep_to_limits(machine)
    restart_timers(machine, event)


def keep_to_limits(machine: Machine) -> None:
    """Postpone items of a fork until there is room.

    More items than the limit may be under way: items that are re-run had already released their slots to
    later items."""
    frames = machine.state.frames
    for scope in machine.open_item_scopes:
        addresses = [scope.prefix + node.id for node in scope.program.nodes]
        under_way = [index for index, address in enumerate(addresses) if address in frames]
        for index in under_way[scope.limit :] if scope.limit is not None else ():
            inside = f"{addresses[index]}/"
            machine.close_inside(inside)
            for address in [it for it in frames if f"{it}/".startswith(inside)]:
                machine.close_frame(address, "postponed")
            scope.postpone(index)


def step_ended(machine: Machine, event: StepReport) -> None:
    if isinstance(event, Answered):
        address = event.address
        frame = machine.state.frames.get(address)
        expected = frame is not None and frame.kind == "agent" and event.attempt in ("", frame.attempt)
    else:
        address, attempt = address_of(event.key)
        frame = machine.state.frames.get(address)
        expected = frame is not None and frame.on_server and frame.attempt == attempt
    if frame is None or not expected:
        return
    scope, index = machine.locate(address)
    if frame.kind == "agent":
        machine.messages_delivered(address, frame)
    machine.close_frame(address, "answered" if frame.kind == "agent" else "reported")
    if frame.kind == "verify" and not isinstance(event, Answered):
        checked(machine, scope, index, frame, event, event.at)
        return
    if frame.after_interruption:
        decided(machine, scope, index, event)
        return
    node = scope.program.nodes[index]
    record = scope.scope.records[node.id]
    record.by = event.by or record.by
    add_tokens(machine, scope, index, event.tokens)
    if isinstance(event, Answered):
        if event.token:
            machine.state.answer_tokens = [*machine.state.answer_tokens, event.token][-ANSWERS_KEPT:]
        record.written_by_agent = event.written_by_agent
    if isinstance(event, StepFailed):
        fault = machine.fault(scope, index, event.code, event.message, event.hint)
        outputs = {**scope.program.defaults(index), **event.outputs}
        message = f"{event.message}\n{event.hint}" if event.hint else event.message
        status, outcome = event.ended_as
        machine.end(scope, index, event.at, status, outcome, outputs, message, fault)
        return
    if node.verify and event.ok:
        verify(machine, scope, index, event.at, Submitted(event.outputs, event.message))
        return
    status, outcome = event.ended_as
    machine.end(scope, index, event.at, status, outcome, event.outputs, event.message)


def decided_by_person(machine: Machine, event: Decided) -> None:
    """Let a run pass its gate, or not."""
    frame = machine.state.frames.get(event.address)
    if frame is None or frame.kind != "gate" or event.attempt not in ("", frame.attempt):
        return
    scope, index = machine.locate(event.address)
    node = scope.program.nodes[index]
    machine.close_frame(event.address, "decided")
    scope.scope.records[node.id].by = event.by
    passed = event.choice != REJECTED
    outputs: dict[str, Value] = {
        "decision": event.choice,
        "approved": passed,
        "comment": event.comment,
        "by": event.by.name,
        "via": event.by.via,
        "at": iso(event.at),
    }
    message = None
    if not passed:
        message = f"{event.by.name} rejected it" + (f": {event.comment}" if event.comment else "")
    outcome: Outcome = "success" if passed or node.on_reject == "continue" else "failure"
    machine.end(scope, index, event.at, "completed", outcome, outputs, message)


def refused(machine: Machine, event: Refused) -> None:
    machine.state.refusals += 1


def timer_fired(machine: Machine, event: TimerFired) -> None:
    address, attempt = address_of(event.key)
    frame = machine.state.frames.get(address)
    if frame is None or frame.attempt != attempt:
        return
    if frame.kind == "retry":
        scope, index = machine.locate(address)
        close_frame(machine.state, address, "timed_out")
        machine.enqueue(scope, [index])
        return
    if frame.kind == "wait":
        scope, index = machine.locate(address)
        close_frame(machine.state, address, "timed_out")
        outputs = {"resumed": True, "duration": frame.timeout}
        machine.end(scope, index, event.at, "completed", "success", outputs)
        return
    message = f"timed out after {frame.timeout:g} s"
    if (
        frame.kind == "agent"
        and not frame.after_interruption
        and answered_by_definition(machine, address, event.at)
    ):
        return
    if frame.on_server:
        begin_stopping(frame, address, message)
        machine.emit(StopStep(event.key, message))
        return
    scope, index = machine.locate(address)
    timeout: Expr | None = getattr(scope.program.nodes[index].do, "timeout", None)
    fault = machine.fault(scope, index, "timeout", message, path=timeout.at if timeout is not None else ())
    if machine.clean_up_first(address, event.at, fault):
        return
    machine.stop(address, frame, event.at, "its caller timed out")
    machine.fail(scope, index, fault)


def answered_by_definition(machine: Machine, address: str, at: float) -> bool:
    """Answer a question that timed out with its on_timeout answer; false if it has none."""
    scope, index = machine.locate(address)
    answer = scope.program.nodes[index].timeout_answer
    if answer is None:
        return False
    frame = close_frame(machine.state, address, "timed_out")
    outputs: dict[str, Value] = {}

    def evaluate() -> None:
        outputs.update(scope.program.evaluate(answer, scope.names_for(index)))

    fault = machine.guarded(scope, index, evaluate, Purpose.ANSWER_BY_DEFINITION)
    if fault is not None:
        machine.fail(scope, index, fault)
    else:
        message = f"nobody answered within {frame.timeout:g} s: the on_timeout answer was used"
        machine.end(scope, index, at, "completed", "success", outputs, message)
    return True


def plan_loaded(machine: Machine, event: PlanLoaded) -> None:
    address, attempt = address_of(event.key)
    frame = machine.state.frames.get(address)
    if frame is None or frame.kind != "plan" or frame.attempt != attempt:
        return
    scope, index = machine.locate(address)
    machine.close_frame(address, "loaded")
    if event.error is not None:
        where = place_of_call(scope.program.nodes[index])
        machine.fail_with(scope, index, "unknown_workflow", event.error, path=where)
        return
    state = machine.state
    for name, plan in event.plans.items():
        if name not in machine.plans:
            machine.plans[name] = state.plans[name] = plan
            machine.add_tasks(plan)
            state.sources[name] = event.sources.get(name, "")
    ENTER[Call](machine, scope, index, event.at)


def state_updated(machine: Machine, event: StateUpdated) -> None:
    reactive = machine.reactive_state_at(event.address)
    state = machine.state
    if reactive is None or (event.token and event.token in state.update_tokens):
        return
    state.update_tokens = (
        [*state.update_tokens[1 - MARKS :], event.token] if event.token else state.update_tokens
    )
    with suppress(WrongChange):
        # a field that propagates its error fails the step that reads it, not the update
        reactive.reset(reactive.tried(changes_of(event))[0])


def marked(machine: Machine, event: Marked | ContextFull) -> None:
    machine.state.mark(event.at, event.reason, event.step)


def reopened(machine: Machine, event: Reopened) -> None:
    """Continue without the reopened steps and all that followed from them; then enter these steps."""
    before = machine.state
    machine.restore(
        replace(
            _decode_state(_encode_state(event.state)),
            run_id=before.run_id,
            forked_from=before.forked_from,
            seed=before.seed,
            changed_at=event.at,
            events=before.events,
            marks=before.marks,
            update_tokens=before.update_tokens,
            answer_tokens=before.answer_tokens,
            spent=before.spent,
            refusals=before.refusals,
        )
    )
    for owner, limits in event.raised.items():
        spent = spent_of(machine, owner)
        spent.raised = {**spent.raised, **limits}
    if event.decision is not None:
        send_back(machine, event.decision, event.steps)
    frames = machine.state.frames
    for address, frame in before.frames.items():
        if address in frames and frames[address].event == frame.event:
            continue
        key = key_of(address, frame.attempt)
        if frame.on_server:
            machine.emit(StopStep(key))
        if frame.deadline is not None:
            machine.emit(ClearTimer(key))
    for address, frame in frames.items():
        if address not in before.frames:
            restart_timer(machine, address, frame, event.at)
    for command in machine.outstanding(event.at, after_crash=False):
        if isinstance(command, RunStep | SetTimer) and address_of(command.key)[0] not in before.frames:
            machine.emit(command)
    for key in event.steps:
        around, _, name = address_of(key)[0].rpartition("/")
        scope = machine.scope_inside(around)
        if scope is None or not scope.admit(scope.program.ids[name]):
            continue  # it ended with an earlier one, or starts when another item has ended
        machine.enqueue(scope, [scope.program.ids[name]])
        machine.enter_queued()


def send_back(machine: Machine, decision: Decided, steps: list[str]) -> None:
    """Make the decision of a person available where the steps run again, as `rejection`."""
    around = address_of(steps[0])[0].rpartition("/")[0] if steps else ""
    scope = machine.scope_inside(around)
    if scope is None:
        return
    before = scope.scope.variables.get("rejection") or {}
    scope.scope.variables = {
        **scope.scope.variables,
        "rejection": {
            "comment": decision.comment,
            "by": decision.by.name,
            "gate": decision.address.rpartition("/")[2],
            "step": address_of(steps[0])[0].rpartition("/")[2],
            "count": before.get("count", 0) + 1,
        },
    }
    scope.names = {**scope.names, "rejection": scope.scope.variables["rejection"]}


def slot_freed(machine: Machine, event: SlotFreed) -> None:
    scope = machine.scope_inside(event.address.rpartition("/")[0])
    if scope is not None:
        machine.enqueue(scope, scope.next_ones())


def context_full(machine: Machine, event: ContextFull) -> None:
    """Run the steps for a full context in parallel with the others, then park the run.

    Without such steps, park it at once. A second report meanwhile only adds a mark."""
    marked(machine, event)
    state = machine.state
    if state.context_full or state.parked is not None:
        return
    state.context_full = True
    scope = machine.scope_inside("")
    steps = scope.on_context_full() if scope is not None else []
    if scope is not None and steps:
        machine.enqueue(scope, steps)
    else:
        machine.park(event.at)


def parked(machine: Machine, event: Parked) -> None:
    machine.park(event.at)


def resumed(machine: Machine, event: Resumed) -> None:
    """Resume a run, and move its deadlines: the time for which it was parked does not count."""
    state = machine.state
    if state.parked is None:
        return
    later = max(event.at - state.parked, 0.0)
    state.parked = None
    if state.context_full and CONTEXT_FULL not in state.frames:
        state.context_full = False
        own = f"{CONTEXT_FULL}/"  # their messages were for the conversation before
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
            machine.stop(address, frame, event.at, reason)
            machine.mark_stopped(scope, index, event.at, reason)
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
    Reopened: reopened,
    SlotFreed: slot_freed,
    StateUpdated: state_updated,
    Decided: decided_by_person,
    Refused: refused,
    BudgetRaised: raise_budget,
    Marked: marked,
    ContextFull: context_full,
    Parked: parked,
    Resumed: resumed,
    AgentsAssigned: agents_assigned,
    CancelRequested: cancel_requested,
}


# Which events are expected; others are refused before they are stored


def always_accepted(machine: Machine, event: Event) -> None:
    """A run that has not ended always accepts the event."""


def expect_attempt(
    machine: Machine, event: StepDone | StepFailed | TimerFired | PlanLoaded | Interrupted
) -> None:
    if not is_under_way(machine.state, event.key):
        raise NotExpected(f"'{event.key}' is not under way")


def expect_question(machine: Machine, event: Answered) -> None:
    frame = machine.state.frames.get(event.address)
    if frame is None or frame.kind != "agent":
        raise NotExpected(f"nothing is asked at '{event.address}'")
    if event.attempt and event.attempt != frame.attempt:
        raise NotExpected(f"'{event.address}' was asked again")
    if frame.deadline is not None and event.at > frame.deadline:
        raise NotExpected(f"the question at '{event.address}' has timed out")


def expect_gate(machine: Machine, event: Decided) -> None:
    frame = machine.state.frames.get(event.address)
    if frame is None or frame.kind != "gate":
        raise NotExpected(f"no gate waits at '{event.address}'")
    if event.attempt and event.attempt != frame.attempt:
        raise NotExpected(f"the gate '{event.address}' was reached again since: decide on what it shows now")
    if frame.deadline is not None and event.at > frame.deadline:
        raise NotExpected(f"the gate '{event.address}' has timed out")


def expect_budget(machine: Machine, event: BudgetRaised) -> None:
    if not machine.has_budgets:
        raise NotExpected(f"the run {machine.state.run_id} has no budget")


def expect_item(machine: Machine, event: SlotFreed) -> None:
    if event.address not in machine.state.frames:
        raise NotExpected(f"'{event.address}' is not under way")


def expect_position(machine: Machine, event: Reopened) -> None:
    if event.state.events != machine.state.events:
        raise NotExpected(f"the run {machine.state.run_id} has changed since", hint="try again")


def expect_parked(machine: Machine, event: Resumed) -> None:
    if machine.state.parked is None:
        raise NotExpected(f"the run {machine.state.run_id} is not parked")


def expect_state(machine: Machine, event: StateUpdated) -> None:
    reactive = machine.reactive_state_at(event.address)
    if reactive is None:
        hint = "only the state of a reactive workflow, or of a task of it that is under way, can be"
        raise NotExpected("there is no state here that can be changed from outside", hint=hint)
    try:
        reactive.tried(changes_of(event))
    except WrongChange as wrong:
        raise NotExpected(str(wrong), hint=wrong.hint) from None


EXPECTED: dict[type[Any], Callable[[Machine, Any], None]] = {
    StepDone: expect_attempt,
    StepFailed: expect_attempt,
    TimerFired: expect_attempt,
    PlanLoaded: expect_attempt,
    Interrupted: expect_attempt,
    Answered: expect_question,
    SlotFreed: expect_item,
    Reopened: expect_position,
    StateUpdated: expect_state,
    Resumed: expect_parked,
    Decided: expect_gate,
    BudgetRaised: expect_budget,
    Refused: always_accepted,
    Marked: always_accepted,
    ContextFull: always_accepted,
    Parked: always_accepted,
    AgentsAssigned: always_accepted,
    CancelRequested: always_accepted,
}


def why_parked(state: RunState) -> str:
    if any(frame.kind == "budget" for frame in state.frames.values()):
        return "a budget is used up"
    return "the context of its agent was nearly full" if state.context_full else "the user interrupted it"


def how_to_resume(run_id: str) -> str:
    return f"control_workflow(workflow_id='{run_id}', action='resume'), or workflows-mcp resume {run_id}"


def is_under_way(state: RunState, key: str) -> bool:
    address, attempt = address_of(key)
    frame = state.frames.get(address)
    return frame is not None and frame.attempt == attempt


def changes_of(event: StateUpdated) -> Changes:
    return [(tuple(path), operation, value) for path, operation, value in event.changes]
