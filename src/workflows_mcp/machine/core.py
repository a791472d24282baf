"""The core of a machine: the state, the open scopes, the frames, and what operations do to them.

`Core` has everything that entering and ending blocks needs. Operations and scopes know only `Core`;
`machine.py` adds what needs them: `apply`, `end` and opening scopes.

An `OpenScope` is a workflow under way, or the items of a block: its state, and counters of the blocks that
have not ended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from msgspec.structs import replace

from workflows_mcp.errors import TOO_LARGE, TOO_SLOW
from workflows_mcp.expressions import Code
from workflows_mcp.limits import Limits
from workflows_mcp.machine.changes import Path, WrongChange
from workflows_mcp.machine.commands import ClearTimer, Command, SetTimer, StopStep, key_of
from workflows_mcp.machine.lifecycle import FrameEvent, advance, close_frame, open_frame
from workflows_mcp.machine.program import EvaluationError, Program
from workflows_mcp.machine.rules import (
    ScopeResult,
    fails_the_workflow,
    finished_scope,
    outputs_if_not_run,
    runs_after,
)
from workflows_mcp.machine.state import (
    TERMINAL,
    EndStatus,
    Fault,
    Frame,
    Outcome,
    Record,
    RunState,
    Scope,
)
from workflows_mcp.plan import Bundle, Plan, Steps, keys_of
from workflows_mcp.values import Value


class Purpose(StrEnum):
    """What the expressions of a block are evaluated for; part of the keys of stopped expressions."""

    ENTER = ""
    WRITE_RESULT = "~"
    WRITE_FAILURE = "~failed"
    FALL_BACK = "~fallback"
    RESTART_WORKFLOW = "~anew"
    RETURN_STATE = "~left"
    RETRY = "~again"
    ANSWER_BY_DEFINITION = "~unanswered"
    START_RUN = "~start"
    VERIFY = "~verify"
    CHECK = "~check"
    TASK_RESULT = "~result"


LEFT_OPEN = "the workflow has ended"
"""The reason for ending what is still open when its workflow ends: it is cancelled, not failed."""

_COMPOSITE = ("call", "each")
"""Frames with further frames inside."""


class OpenScope:
    """A scope with unfinished blocks, and the counters that it needs while it is open.

    All of it follows from the state, so it is not stored but rebuilt after a restart.
    """

    __slots__ = (
        "attempt_prefix",
        "depth",
        "finished",
        "missing",
        "names",
        "prefix",
        "program",
        "reactive",
        "scope",
        "time",
        "unfinished",
    )

    can_clean_up = False
    """Whether it has steps for its failure that have not started."""
    cleans_up = False
    """Whether the steps for its failure are under way."""

    def __init__(
        self,
        prefix: str,
        scope: Scope,
        program: Program,
        names: dict[str, Any],
        depth: int = 0,
        attempt_prefix: str = "",
    ) -> None:
        self.prefix = prefix
        self.scope = scope
        self.program = program
        self.names = names
        self.depth = depth
        """How many calls this scope is nested in."""
        self.attempt_prefix = attempt_prefix
        """The attempts of the calls around it, which distinguish this attempt from earlier ones."""
        self.reactive: Any = None
        """The state that its steps share, in a reactive workflow."""
        self.finished = not program.nodes
        self.time = scope.started_at
        """The time at which the current block is entered."""
        ended = {name for name, record in scope.records.items() if record.status in TERMINAL}
        self.unfinished = len(program.nodes) - len(ended)
        if ended:
            ids = [node.id for node in program.nodes]
            self.missing = [sum(ids[need.node] not in ended for need in node.needs) for node in program.nodes]
        else:
            self.missing = [len(node.needs) for node in program.nodes]

    def attempt(self, name: str, record: Record) -> str:
        """The attempt of a block; from its second round on, the round precedes it."""
        return f"{self.attempt_prefix}{attempt_in(self.scope, name, record)}"

    def attempt_key(self, index: int) -> str:
        """The key of the current attempt of a block."""
        name = self.program.nodes[index].id
        record = self.scope.records.get(name) or Record()
        return key_of(self.prefix + name, self.attempt(name, record))

    def attempt_prefix_inside(self, name: str) -> str:
        """The prefix of the attempts of everything inside a block: empty while all are first ones."""
        attempt = self.attempt(name, self.scope.records[name])
        return f"{attempt}." if attempt != "1" else ""

    def skip_reason(self, index: int) -> str | None:
        """Why the dependencies or the condition of a block do not let it run, or None when they do."""
        program, records = self.program, self.scope.records
        node = program.nodes[index]
        for need in node.needs:
            other = program.nodes[need.node]
            record = records[other.id]
            if not need.watched and not runs_after(program.plan, other, record, required=need.required):
                how = "was skipped" if record.status == "skipped" else "failed"
                return f"its dependency '{other.id}' {how}"
        # evaluate the condition of a loop once, not before every iteration
        if node.condition is None or node.id in self.scope.loops:
            return None
        if program.condition(node.condition, self.names_for(index)):
            return None
        return f"the condition is false: {node.condition.source.strip()}"

    def names_for(self, index: int) -> Any:
        """The names that expressions of a block start from."""
        return self.names

    def names_with_result(self, index: int, result: Value) -> Any:
        """The names that the checks of a result see: those of the block, and `result`."""
        return {**self.names_for(index), "result": result}

    def handle_end(self, machine: Core, index: int) -> None:
        """Handle the end of a block on its own, before other blocks are entered."""

    def admit(self, index: int) -> bool:
        """Whether a reopened block may be entered now."""
        return True

    def after_end(self, machine: Core, index: int) -> list[int]:
        """The blocks to enter because this one has ended; others may end with it."""
        following = self.after(index)
        node, plan = self.program.nodes[index], self.program.plan
        if plan.fail_fast and fails_the_workflow(plan, node, self.scope.records[node.id]):
            machine.stop_the_rest(self, node.id)
            return []
        return following

    def after_detached_failure(self, machine: Core) -> list[int]:
        """The blocks to enter at its end, because items that nothing waited for have failed."""
        return []

    def outcome(self, machine: Core) -> ScopeResult:
        """What the workflow that has ended gives."""
        return finished_scope(self.prefix, self.scope, self.program, self.names)

    def does_not_fit(self, index: int, outputs: dict[str, Value], limits: Limits) -> WrongChange | None:
        """Why the result of an agent cannot be written to the state, if it cannot."""
        return None

    def keep_for_later(self, index: int, record: Record, code: dict[str, Code]) -> None:
        """Store what a step has read when it starts, if that can change while it runs."""

    def on_context_full(self) -> list[int]:
        """The step that handles a full context, if there is one."""
        return []

    def continue_beside(self, index: int) -> list[int]:
        """The blocks to enter while the items of this one run."""
        return []

    def keys_of_items(
        self, index: int, items: list[Value] | dict[str, Value], plans: Mapping[str, Plan]
    ) -> list[str | int]:
        return keys_of(items)

    def clean_up(self, fault: Fault) -> list[int]:
        """The first of the steps for its failure."""
        return []

    def next_ones(self) -> list[int]:
        """The next item, in a list; empty if all have started, or if there are no items."""
        return []

    def ready(self) -> list[int]:
        """The blocks to enter when the scope is opened."""
        return [index for index, missing in enumerate(self.missing) if not missing]

    def after(self, index: int) -> list[int]:
        """The blocks to enter because this one has ended; `finished` is set if it was the last."""
        self.unfinished -= 1
        self.finished = not self.unfinished
        ready = []
        missing = self.missing
        for dependent in self.program.dependents[index]:
            missing[dependent] -= 1
            if not missing[dependent]:
                ready.append(dependent)
        return ready


def attempt_in(scope: Scope, name: str, record: Record) -> str:
    """The attempt of a block: its round, its attempt, and the result that is asked for (`v2`: the second)."""
    visits = scope.visits.get(name, 1)
    attempt = f"r{visits}.{record.attempts}" if visits > 1 else str(record.attempts)
    return f"{attempt}.v{record.rejections + 1}" if record.rejections else attempt


class Core(ABC):
    """What entering and ending blocks needs of the machine."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.plans: dict[str, Plan] = bundle.every_plan
        self.state = RunState(run_id="", workflow=bundle.main, root=Scope(bundle.main))
        self.stopped_expressions: dict[str, Fault] = {}
        """The expressions that were stopped while the last event was applied; they are stored before it."""
        self._recorded_stops: dict[str, Fault] = {}
        """The expressions that were stopped when the next event was applied for the first time."""
        self._limits: Limits | None = None
        self._has_budgets: tuple[int, bool] | None = None
        """Whether there are budgets, and of how many plans this is known."""
        self._commands: list[Command] = []
        self._work: deque[tuple[OpenScope, int]] = deque()
        self._open: dict[str, OpenScope] = {}
        """The scopes that are open, by the prefix of the addresses inside. They follow from the state."""

    # What only the full machine can do

    @abstractmethod
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

    @abstractmethod
    def new_scope(
        self,
        workflow: str,
        inputs: dict[str, Value],
        at: float,
        variables: dict[str, Value] | None = None,
        prefix: str = "",
    ) -> Scope:
        """The scope of a workflow that begins. Raises EvaluationError if its first state cannot be made."""

    @abstractmethod
    def open_scope(self, scope: Scope, around: OpenScope | None = None, name: str = "") -> None:
        """Open a workflow: the run's own, or the one that the block `name` of the scope `around` calls."""

    @abstractmethod
    def open_items(
        self, scope: Scope, around: OpenScope, index: int, items: Value, limit: int | None
    ) -> None:
        """Open the items of a block, at most `limit` of them at once."""

    # The run

    @property
    def limits(self) -> Limits:
        """The limits that the run was started with."""
        if self._limits is None:
            self._limits = Limits(**self.state.limits)  # type: ignore[arg-type]
        return self._limits

    @property
    def sequences(self) -> bool:
        """Whether a workflow of steps is part of the run: its expressions are programs, so that applying an
        event can take as long as an expression may."""
        return any(isinstance(plan.body, Steps) for plan in self.plans.values())

    @property
    def has_budgets(self) -> bool:
        """Whether anything of the run has a budget."""
        if self._has_budgets is None or self._has_budgets[0] != len(self.plans):
            found = any(
                plan.budget is not None or any(node.budget is not None for node in plan.body.nodes)
                for plan in self.plans.values()
            )
            self._has_budgets = len(self.plans), found
        return self._has_budgets[1]

    @property
    def questions(self) -> int:
        """How many actions wait for agents."""
        return sum(frame.kind == "agent" for frame in self.state.frames.values())

    def plan_named(self, workflow: str) -> Plan:
        return self.plans[workflow]

    def emit(self, command: Command) -> None:
        self._commands.append(command)

    def park(self, at: float) -> None:
        """Stop steps and clear timers; their frames stay, so that the run can be resumed."""
        state = self.state
        if state.parked is not None:
            return
        state.parked = at
        for address, frame in state.frames.items():
            key = key_of(address, frame.attempt)
            if frame.on_server:
                self.emit(StopStep(key))
            if frame.deadline is not None:
                self.emit(ClearTimer(key))

    # Scopes and what is entered in them

    def locate(self, address: str) -> tuple[OpenScope, int]:
        """The block at an address: its scope, and its place in the program."""
        cut = address.rfind("/") + 1
        scope = self._open[address[:cut]]
        return scope, scope.program.ids[address[cut:]]

    def scope_inside(self, address: str) -> OpenScope | None:
        """The scope that the block at an address has opened; without an address, the run's own."""
        return self._open.get(f"{address}/" if address else "")

    def close_inside(self, prefix: str) -> None:
        """Close the scopes inside, and enter nothing more of them."""
        for inside in [inside for inside in self._open if inside.startswith(prefix)]:
            del self._open[inside]
        self._work = deque(item for item in self._work if not item[0].prefix.startswith(prefix))

    def enqueue(self, scope: OpenScope, following: list[int]) -> None:
        """Queue these blocks to be entered after the current ones."""
        self._work.extend((scope, index) for index in following)

    def forget_work(self, scope: OpenScope) -> None:
        """Enter nothing more of a scope."""
        self._work = deque(item for item in self._work if item[0] is not scope)

    # Frames

    def open_frame(self, address: str, frame: Frame, timeout: float | None, at: float) -> None:
        """Open a frame and set its timer."""
        open_frame(self.state, address, frame)
        if timeout is not None:
            frame.timeout, frame.deadline = timeout, at + timeout
        if frame.deadline is not None:
            self._commands.append(SetTimer(key_of(address, frame.attempt), frame.deadline))

    def close_frame(self, address: str, event: FrameEvent) -> None:
        """Close the frame at an address and clear its timer."""
        frame = close_frame(self.state, address, event)
        if frame.deadline is not None:
            self._commands.append(ClearTimer(key_of(address, frame.attempt)))

    # Messages to the user. A message never blocks the run: the next action of an agent carries it.
    #
    # The agent of the run gets every message, also those that a task of a sub-agent sends. A message counts
    # as shown once that agent has answered a question that it got with the message or later. In runs of
    # earlier versions the sub-agent of a task got its messages, and the rest went to the agent that had
    # started it.

    def task_around(self, address: str) -> str:
        """The innermost task around an address that has an agent of its own; empty: the run."""
        names = address.split("/")
        for end in reversed(range(1, len(names) - 1)):
            frame = self.state.frames.get("/".join(names[:end]))
            if frame is not None and frame.kind == "each" and frame.agent:
                return "/".join(names[: end + 1])
        return ""

    def messages_delivered(self, address: str, frame: Frame) -> None:
        """Remove the messages that the agent of an answered question has seen: those from before it."""
        state = self.state
        if state.messages:
            task = self.task_around(address)
            self._remove_shown(task, frame.event)
            while task:  # the agent that started the sub-agent knows the answer
                around = task.rpartition("/")[0]
                state.frames[around].answered = True
                task = self.task_around(around)

    def hand_to_caller(self, address: str, frame: Frame) -> None:
        """Pass messages that the agents of ended items have not shown to the agent that started them."""
        if self.state.messages:
            task = self.task_around(address)
            if frame.answered:
                self._remove_shown(task, frame.event)
            for message in self.state.messages:
                if message.task.startswith(f"{address}/"):
                    message.task = task

    def _remove_shown(self, task: str, event: int) -> None:
        state = self.state
        state.messages = [it for it in state.messages if it.task != task or it.event > event]

    # Ending operations from outside: after a cancel, a timeout, or the failure of another one

    def stop(self, address: str, frame: Frame, at: float, reason: str) -> None:
        """End an operation and all that is under way inside of it."""
        if frame.kind in _COMPOSITE:
            inside = address + "/"
            for other, inner in [it for it in self.state.frames.items() if it[0].startswith(inside)]:
                if inner.kind not in _COMPOSITE:
                    self.stop(other, inner, at, reason)
                else:
                    self.close_frame(other, "stopped")
                self.mark_stopped(*self.locate(other), at, reason)
            self.close_inside(inside)
        self.close_frame(address, "stopped")
        if frame.on_server:
            self.emit(StopStep(key_of(address, frame.attempt)))

    def stop_the_rest(self, scope: OpenScope, failed: str) -> None:
        """End what is under way in a fail_fast workflow in which a block has failed, and start no more."""
        at = self.state.changed_at
        reason = f"ended, because '{failed}' failed"
        self.forget_work(scope)
        frames = self.state.frames
        for index, node in enumerate(scope.program.nodes):
            address = scope.prefix + node.id
            if address in frames:
                self.stop(address, frames[address], at, reason)
            record = scope.scope.records.setdefault(node.id, Record())
            if record.status not in TERMINAL:
                advance(record, "skipped")
                record.message, record.completed_at = reason, at
                record.outputs = outputs_if_not_run(scope.program, index, self.plans)
        scope.unfinished, scope.finished = 0, True

    def stop_everything_in(self, scope: OpenScope, at: float, reason: str = LEFT_OPEN) -> None:
        """End what is under way in a workflow that ends or fails."""
        for index, node in enumerate(scope.program.nodes):
            address = scope.prefix + node.id
            frame = self.state.frames.get(address)
            if frame is not None:
                self.stop(address, frame, at, reason)
                self.mark_stopped(scope, index, at, reason)

    def clean_up_first(self, address: str, at: float, fault: Fault) -> bool:
        """Start the failure steps of a workflow that is ended from outside; false if it has none.

        Everything else in it ends at once. The steps get as much time as the whole workflow had.
        """
        scope = self.scope_inside(address)
        if scope is None or scope.program.plan.semantics < 2 or not scope.can_clean_up:
            return False
        self.forget_work(scope)
        self.stop_everything_in(scope, at, fault.message)
        frame = self.state.frames[address]
        if frame.timeout is not None:
            frame.since, frame.parked, frame.deadline = at, 0.0, at + frame.timeout
            key = key_of(address, frame.attempt)
            self.emit(ClearTimer(key))
            self.emit(SetTimer(key, frame.deadline))
        self.enqueue(scope, scope.clean_up(fault))
        return True

    def mark_stopped(self, scope: OpenScope, index: int, at: float, reason: str) -> None:
        """Record that a block was ended from outside; its outputs keep their shape."""
        record = scope.scope.records[scope.program.nodes[index].id]
        advance(record, "stopped")
        record.message, record.completed_at = reason, at
        record.outputs = outputs_if_not_run(scope.program, index, self.plans)

    # Faults, and expressions that were stopped

    def fail(self, scope: OpenScope, index: int, fault: Fault) -> None:
        """End a block that could not run."""
        self.end(scope, index, self.state.changed_at, "failed", message=fault.message, fault=fault)

    def fail_with(
        self, scope: OpenScope, index: int, code: str, message: str, hint: str = "", path: Path = ()
    ) -> None:
        self.fail(scope, index, self.fault(scope, index, code, message, hint, path))

    def fault(
        self, scope: OpenScope, index: int, code: str, message: str, hint: str = "", path: Path = ()
    ) -> Fault:
        """A fault of a block; `path` leads to its place in the document, the block itself if it is empty."""
        node = scope.program.nodes[index]
        return Fault(code, message, hint, scope.prefix + node.id, scope.scope.workflow, path or node.at)

    def fault_of(self, scope: OpenScope, index: int, error: EvaluationError) -> Fault:
        return replace(error.fault, address=scope.prefix + scope.program.nodes[index].id)

    def guarded(
        self, scope: OpenScope, index: int, do: Callable[[], None], purpose: Purpose = Purpose.ENTER
    ) -> Fault | None:
        """Evaluate expressions of a block; return the fault of the one that failed.

        An expression that exceeds a limit is stopped by a clock. Its fault is recorded, and a replay of the
        event has the same fault without evaluating anything."""
        key = scope.attempt_key(index) + purpose
        return self.guarded_at(key, do, scope.prefix + scope.program.nodes[index].id)

    def guarded_at(self, key: str, do: Callable[[], None], address: str = "") -> Fault | None:
        if key in self._recorded_stops:
            return self._recorded_stops[key]
        try:
            do()
        except EvaluationError as error:
            fault = replace(error.fault, address=address)
            if fault.code in (TOO_SLOW, TOO_LARGE):
                self.stopped_expressions[key] = fault
            return fault
        return None
