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

from workflows_mcp.errors import NotExpected
from workflows_mcp.limits import Limits
from workflows_mcp.machine.again import decided, interrupted, tried_again, wait_afresh
from workflows_mcp.machine.commands import (
    ClearTimer,
    Command,
    Finish,
    LoadPlan,
    SetTimer,
    StopStep,
    TellInterrupted,
    address_of,
    key_of,
)
from workflows_mcp.machine.events import (
    Answered,
    CancelRequested,
    Event,
    Forked,
    Interrupted,
    PlanLoaded,
    Started,
    StepDone,
    StepFailed,
    TimerFired,
)
from workflows_mcp.machine.items import OpenItems, items_outcome
from workflows_mcp.machine.open_scope import OpenScope
from workflows_mcp.machine.operations import ENTER, enter, step_command
from workflows_mcp.machine.program import MisplacedError, Program, program_of
from workflows_mcp.machine.rules import finished_scope, outputs_if_not_run, skip_reason
from workflows_mcp.machine.scopes import OpenScopes
from workflows_mcp.machine.state import BlockStatus, Fault, Frame, Outcome, Record, RunState, Scope
from workflows_mcp.plan.model import Bundle, Call, Plan
from workflows_mcp.values import Value

_snapshots = msgspec.msgpack.Encoder()
_restored = msgspec.msgpack.Decoder(RunState)
_COMPOSITE = ("call", "each")
"""Frames with further frames inside."""


class Machine:
    def __init__(
        self,
        bundle: Bundle,
        snapshot: bytes | RunState | None = None,
    ) -> None:
        self.bundle = bundle
        self._plans = dict(bundle.plans)
        self._commands: list[Command] = []
        self._work: deque[tuple[OpenScope, int]] = deque()
        self._scopes = OpenScopes()
        self.state = RunState(run_id="", workflow=bundle.main, root=Scope(bundle.main))
        if snapshot is not None:
            self.state = _restored.decode(snapshot) if isinstance(snapshot, bytes) else snapshot
            self._plans.update(self.state.plans)
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
        state.changed_at = event.at
        if state.status == "running":
            match event:
                case StepDone() | StepFailed() | Answered():
                    self._step_ended(event)
                case Started():
                    self._start(event)
                case TimerFired():
                    self._timed_out(event)
                case PlanLoaded():
                    self._plan_loaded(event)
                case Interrupted():
                    interrupted(self, event)
                case Forked():
                    wait_afresh(self, event)
                case CancelRequested():
                    self._cancel(event)
            while self._work:
                self._enter(*self._work.popleft())
        return commands

    def refuse_unexpected(self, event: Event) -> None:
        """Raise NotExpected where nothing waits for `event`, so that it is not written down at all."""
        state = self.state
        if isinstance(event, Started | Forked):
            return
        if state.status != "running":
            raise NotExpected(f"the run {state.run_id} has ended: it is {state.status}")
        if isinstance(event, CancelRequested):
            return
        if isinstance(event, Answered):
            frame = state.frames.get(event.address)
            if frame is None or frame.kind != "agent":
                raise NotExpected(f"nothing is asked at '{event.address}'")
            if frame.deadline is not None and event.at > frame.deadline:
                raise NotExpected(f"the question at '{event.address}' has timed out")
            return
        address, attempt = address_of(event.key)
        frame = state.frames.get(address)
        if frame is None or frame.attempt != attempt:
            raise NotExpected(f"'{event.key}' is not under way")

    def outstanding(self, now: float, *, cut_off: bool = True) -> list[Command]:
        """All that is under way, wished for again: what an engine performs after a restart.

        A step that was cut off starts afresh, and so does its timeout; a call keeps its deadline. A run that
        is made of the events of another one has started nothing yet: nothing of it was cut off.
        """
        commands: list[Command] = []
        for address, frame in self.state.frames.items():
            scope, index = self.locate(address)
            key = key_of(address, frame.attempt)
            if frame.stopping:
                commands.append(StopStep(key, frame.stopping))
            elif frame.kind == "step" and cut_off and scope.program.nodes[index].on_interrupt != "repeat":
                commands.append(TellInterrupted(key))
            elif frame.kind == "step":
                if frame.timeout is not None:
                    commands.append(SetTimer(key, now + frame.timeout))
                commands.append(step_command(scope, index, frame.attempt))
            elif frame.kind == "plan":
                name = scope.program.prepared(index).workflow(scope.names_for(index))
                commands.append(LoadPlan(key, name, scope.program.plan.file))
            elif frame.deadline is not None:
                commands.append(SetTimer(key, frame.deadline))
        return commands

    def snapshot(self) -> bytes:
        return _snapshots.encode(self.state)

    def program_named(self, workflow: str) -> Program:
        return program_of(self._plans[workflow])

    # What operations call

    @property
    def limits(self) -> Limits:
        return Limits(**self.state.limits)

    def wish(self, command: Command) -> None:
        self._commands.append(command)

    def knows(self, workflow: str) -> bool:
        return workflow in self._plans

    def locate(self, address: str) -> tuple[OpenScope, int]:
        """The block at an address: the scope that it is in, and its place in the program."""
        return self._scopes.locate(address)

    def enter_again(self, scope: OpenScope, index: int) -> None:
        self._work.append((scope, index))

    # What readers of a run call

    def source_of(self, workflow: str) -> str:
        """The text that a workflow of this run was read from."""
        return self.bundle.sources.get(workflow) or self.state.sources.get(workflow, "")

    def plan_named(self, workflow: str) -> Plan:
        return self._plans[workflow]

    # Events

    def _start(self, event: Started) -> None:
        state = self.state
        state.run_id = event.run_id
        state.workspace = event.workspace
        state.forked_from = event.forked_from
        state.limits = event.limits
        state.started_at = event.at
        state.root = Scope(self.bundle.main, event.inputs, event.at, {})
        self.open_scope(state.root)

    def _step_ended(self, event: StepDone | StepFailed | Answered) -> None:
        if isinstance(event, Answered):
            address = event.address
            frame = self.state.frames.get(address)
            expected = frame is not None and frame.kind == "agent"
        else:
            address, attempt = address_of(event.key)
            frame = self.state.frames.get(address)
            expected = frame is not None and frame.kind == "step" and frame.attempt == attempt
        if frame is None or not expected:
            return
        scope, index = self.locate(address)
        self.close_frame(address, frame)
        if frame.cut_off:
            decided(self, scope, index, event)
            return
        if isinstance(event, StepFailed):
            fault = self.fault(scope, index, event.code, event.message, event.hint)
            outputs = {**scope.program.defaults(index), **event.outputs}
            message = f"{event.message}\n{event.hint}" if event.hint else event.message
            self.end(scope, index, event.at, "failed", "n/a", outputs, message, fault)
            return
        outcome: Outcome = "success" if event.ok else "failure"
        self.end(scope, index, event.at, "completed", outcome, event.outputs, event.message)

    def _timed_out(self, event: TimerFired) -> None:
        address, attempt = address_of(event.key)
        frame = self.state.frames.get(address)
        if frame is None or frame.attempt != attempt:
            return
        if frame.kind == "retry":
            scope, index = self.locate(address)
            del self.state.frames[address]
            self.enter_again(scope, index)
            return
        message = f"timed out after {frame.timeout:g} s"
        if frame.kind == "step":
            frame.stopping = message
            self._commands.append(StopStep(event.key, message))
            return
        scope, index = self.locate(address)
        self._stop(address, frame, event.at, "its caller timed out")
        self.fail(scope, index, event.at, self.fault(scope, index, "timeout", message, path=("timeout",)))

    def _plan_loaded(self, event: PlanLoaded) -> None:
        address, attempt = address_of(event.key)
        frame = self.state.frames.get(address)
        if frame is None or frame.kind != "plan" or frame.attempt != attempt:
            return
        scope, index = self.locate(address)
        self.close_frame(address, frame)
        if event.error is not None:
            where = ("inputs", "workflow")
            fault = self.fault(scope, index, "unknown_workflow", event.error, path=where)
            self.fail(scope, index, event.at, fault)
            return
        state = self.state
        for name, plan in event.plans.items():
            if name not in self._plans:
                self._plans[name] = state.plans[name] = plan
                state.sources[name] = event.sources.get(name, "")
        ENTER[Call](self, scope, index, event.at)

    def _cancel(self, event: CancelRequested) -> None:
        reason = event.reason or "cancelled"
        for address, frame in list(self.state.frames.items()):
            if "/" not in address:
                scope, index = self.locate(address)
                self._stop(address, frame, event.at, reason)
                self._mark_stopped(scope, index, event.at, reason)
        self._finish("cancelled", event.at, Fault("cancelled", reason))

    # Blocks

    def _enter(self, scope: OpenScope, index: int) -> None:
        """A block whose dependencies are all done: skip it, or start it. One that is tried again was not
        skipped the first time."""
        at = self.state.changed_at
        node = scope.program.nodes[index]
        reason = None
        try:
            if node.id not in scope.scope.records:
                reason = skip_reason(scope.program, index, scope.scope.records)
                if reason is None and node.condition is not None:
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
        record.outputs = outputs_if_not_run(program, index, self._plans) if outputs is None else outputs
        record.message = message
        record.fault = fault
        record.completed_at = at
        if not scope.prefix:
            self.state.done += 1
        scope.unfinished -= 1
        missing = scope.missing
        for dependent in program.dependents[index]:
            missing[dependent] -= 1
            if not missing[dependent]:
                self._work.append((scope, dependent))
        if (following := scope.following()) is not None:
            self._work.append((scope, following))
        if not scope.unfinished:
            self._scope_finished(scope, at)

    def fail(self, scope: OpenScope, index: int, at: float, fault: Fault) -> None:
        """A block could not be carried out."""
        self.end(scope, index, at, "failed", message=fault.message, fault=fault)

    def _broken(self, scope: OpenScope, index: int, at: float, error: MisplacedError) -> None:
        cause = error.cause
        fault = self.fault(scope, index, cause.code, cause.message, cause.hint, error.path, cause.offset)
        self.fail(scope, index, at, fault)

    # Scopes

    def open_scope(self, scope: Scope, around: OpenScope | None = None, name: str = "") -> None:
        self._begin(self._scopes.open_workflow(scope, self.program_named, self.state.run_id, around, name))

    def open_items(
        self, scope: Scope, around: OpenScope, index: int, items: Value, limit: int | None
    ) -> None:
        self._begin(self._scopes.open_items(scope, around, index, items, limit))

    def _begin(self, opened: OpenScope) -> None:
        self._work.extend((opened, index) for index in opened.ready())
        if not opened.program.nodes:
            self._scope_finished(opened, self.state.changed_at)

    def _scope_finished(self, scope: OpenScope, at: float) -> None:
        if isinstance(scope, OpenItems):
            message, fault = items_outcome(scope.prefix, scope.scope, scope.program)
            outputs: dict[str, Value] = {}  # they are made of the outputs of the items
        else:
            result = finished_scope(scope.prefix, scope.scope, scope.program, scope.names)
            outputs, fault = result.outputs, result.fault
            message = fault.message if fault is not None else None
        self._scopes.close(scope.prefix)
        if not scope.prefix:
            self.state.outputs = outputs
            self._finish("completed" if fault is None else "failed", at, fault)
            return
        address = scope.prefix[:-1]
        self.close_frame(address, self.state.frames[address])
        caller, index = self.locate(address)
        outcome: Outcome = "success" if fault is None else "failure"
        self.end(caller, index, at, "completed", outcome, outputs, message, fault)

    def _finish(self, status: Any, at: float, fault: Fault | None) -> None:
        state = self.state
        state.status = status
        state.fault = fault
        state.ended_at = at
        self._scopes.clear()
        self._work.clear()
        self._commands.append(Finish(status))

    # Frames

    def open_frame(self, address: str, frame: Frame, timeout: float | None, at: float) -> None:
        self.state.frames[address] = frame
        if timeout is not None:
            frame.timeout, frame.deadline = timeout, at + timeout
            self._commands.append(SetTimer(key_of(address, frame.attempt), frame.deadline))

    def close_frame(self, address: str, frame: Frame) -> None:
        del self.state.frames[address]
        if frame.deadline is not None:
            self._commands.append(ClearTimer(key_of(address, frame.attempt)))

    def _stop(self, address: str, frame: Frame, at: float, reason: str) -> None:
        """End an operation and all that is under way inside of it."""
        if frame.kind in _COMPOSITE:
            inside = address + "/"
            for other, inner in [item for item in self.state.frames.items() if item[0].startswith(inside)]:
                if inner.kind not in _COMPOSITE:
                    self._stop(other, inner, at, reason)
                else:
                    self.close_frame(other, inner)
                self._mark_stopped(*self.locate(other), at, reason)
            self._scopes.close_inside(inside)
        self.close_frame(address, frame)
        if frame.kind == "step":
            self._commands.append(StopStep(key_of(address, frame.attempt)))

    def _mark_stopped(self, scope: OpenScope, index: int, at: float, reason: str) -> None:
        """A block that was ended from outside: it keeps its shape."""
        record = scope.scope.records[scope.program.nodes[index].id]
        record.status, record.message, record.completed_at = "failed", reason, at
        record.outputs = outputs_if_not_run(scope.program, index, self._plans)

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
