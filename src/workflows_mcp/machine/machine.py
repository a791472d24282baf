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
from typing import Any

import msgspec
from msgspec.structs import replace

from workflows_mcp.errors import TOO_LARGE, TOO_SLOW
from workflows_mcp.limits import Limits
from workflows_mcp.machine.again import repeated, tried_again
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
    key_of,
)
from workflows_mcp.machine.events import Event, Stopped
from workflows_mcp.machine.expected import refuse_unexpected
from workflows_mcp.machine.facts import APPLY
from workflows_mcp.machine.handling import failed
from workflows_mcp.machine.home import Home
from workflows_mcp.machine.items import OpenItems, items_outcome
from workflows_mcp.machine.lanes import REACTIVE, left_behind, stop_items, stop_leftovers
from workflows_mcp.machine.open_scope import OpenScope
from workflows_mcp.machine.operations import enter
from workflows_mcp.machine.program import MisplacedError, Program, program_of
from workflows_mcp.machine.reactive import OpenReactive, initial_state
from workflows_mcp.machine.rules import fails_the_workflow, finished_scope, outputs_if_not_run, skip_reason
from workflows_mcp.machine.scopes import OpenScopes
from workflows_mcp.machine.sequence import OpenSequence, finished_sequence
from workflows_mcp.machine.state import (
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
from workflows_mcp.machine.stopping import stop_the_rest
from workflows_mcp.machine.telling import hand_up
from workflows_mcp.plan.model import Bundle, Plan
from workflows_mcp.values import Value

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

    def wish(self, command: Command) -> None:
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

    def home_at(self, address: str) -> Home | None:
        """Where the state of a reactive workflow is: of the run, or of the task at an address."""
        scope = self.scope_inside(address)
        home: Home | None = scope.home if scope is not None else None
        return home

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
        except MisplacedError as error:
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
            and tried_again(self, scope, index, at, record, outputs or {}, message, fault)
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

    def _broken(self, scope: OpenScope, index: int, at: float, error: MisplacedError) -> None:
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

    def fault_of(self, scope: OpenScope, index: int, error: MisplacedError) -> Fault:
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
            hand_up(self, address, self.state.frames[address])
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
