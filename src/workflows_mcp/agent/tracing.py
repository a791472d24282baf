"""A run carried out again from its journal, to see what it did: which steps ended when, and what was computed
in its state, from what, and how long that took.

Nothing is run and nothing is asked: events are facts. It takes as long as the expressions of the run do, so
it belongs beside the event loop.

    traced = replayed(bundle, events, every_field=True)
    traced.computations[-1].trace.field, traced.history[-1].address
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from workflows_mcp.machine.computed import Trace
from workflows_mcp.machine.events import Event
from workflows_mcp.machine.handling import failed
from workflows_mcp.machine.home import Home
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.open_scope import OpenScope
from workflows_mcp.machine.program import MisplacedError
from workflows_mcp.machine.state import TERMINAL, Record
from workflows_mcp.plan.model import Bundle, Node
from workflows_mcp.values import Value

KEPT = 500
"""How many of the last computations and steps are kept."""
SECONDS = 20.0
"""How long fields are computed that the run itself has not looked at."""


@dataclass(frozen=True, slots=True)
class Cause:
    """What a change comes from: the event that was applied, and the step that was carried out by it."""

    event: int
    step: str = ""
    """Empty where no step did it: an agent has written into the state, or the run begins."""
    item: str | int | None = None
    """Of a step in a loop the position of the item, counted from 0; of a task the name of its item."""


@dataclass(frozen=True, slots=True)
class Computation:
    """One computation of a field, or one change of a raw one."""

    at: float
    workflow: str
    trace: Trace
    cause: Cause


@dataclass(slots=True)
class EndedStep:
    address: str
    workflow: str
    node: Node
    started_at: float
    ended_at: float
    status: str
    """success, failed or skipped."""
    cause: Cause


@dataclass(slots=True)
class Times:
    """How often a field was computed, and how long that took together."""

    count: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Traced:
    computations: deque[Computation] = field(default_factory=lambda: deque(maxlen=KEPT))
    history: deque[EndedStep] = field(default_factory=lambda: deque(maxlen=KEPT))
    computed: int = 0
    """How many computations there were."""
    ended: int = 0
    """How many steps have ended."""
    times: dict[str, Times] = field(default_factory=dict)
    cut_short: bool = False
    """Whether computing fields after each event took too long, and was given up."""


def replayed(
    bundle: Bundle, events: Iterable[Event], *, every_field: bool = False, only: str | None = None
) -> Traced:
    """`every_field`: after each event, fields are computed that the run itself has not looked at; `only` one
    of them, and what it follows from."""
    traced = Traced()
    machine = _Watched(bundle, traced, only)
    until = time.monotonic() + SECONDS
    for event in events:
        machine.at = event.at
        machine.cause = Cause(machine.state.events + 1)
        machine.apply(event)
        if every_field and not traced.cut_short:
            traced.cut_short = time.monotonic() > until
            machine.compute(only)
    return traced


class _Watched(Machine):
    """The interpreter, which tells what it does."""

    def __init__(self, bundle: Bundle, traced: Traced, only: str | None) -> None:
        super().__init__(bundle)
        self.at = 0.0
        self.cause = Cause(0)
        self._changed_by: dict[int, Cause] = {}
        """What has changed a state last, by the identity of the state."""
        self._traced = traced
        self._only = only
        self._outermost: Home | None = None
        self._scopes.on_home = self._watch

    def _watch(self, home: Home) -> None:
        self._outermost = self._outermost or home
        home.fields.clock = time.perf_counter
        home.fields.trace = lambda trace: self._note(home, trace)
        home.on_change = lambda before: self._changed(home, before)

    def _changed(self, home: Home, before: dict[str, Value]) -> None:
        self._changed_by[id(home)] = self.cause
        part, _, name = (self._only or "").partition(".")
        if part not in ("raw", "state"):
            return
        old, new = (it.get(part, {}).get(name) for it in (before, home.scope.state))
        if old is not new:
            trace = Trace(f"{part}.{name}", self.cause.step or "outside of the steps", old, new)
            self._traced.computed += 1
            self._traced.computations.append(Computation(self.at, home.plan.name, trace, self.cause))

    def _cause_of(self, scope: OpenScope, index: int) -> Cause:
        node, state = scope.program.nodes[index], scope.scope
        heads = [state.loops.get(scope.program.nodes[head].id) for head in node.loops]
        item: str | int | None = None
        around, _, last = scope.prefix[:-1].rpartition("/")
        if heads and heads[-1] is not None:
            item = max(heads[-1].count - 1, 0)
        elif (frame := self.state.frames.get(around)) is not None and frame.kind == "each":
            item = last
        rounds = state.rounds.get(node.id, 1)
        address = f"{scope.prefix}{node.id}@{rounds}" if rounds > 1 else f"{scope.prefix}{node.id}"
        return Cause(self.state.events, address, item)

    def _enter(self, scope: OpenScope, index: int) -> None:
        self.cause = self._cause_of(scope, index)
        super()._enter(scope, index)

    def _note(self, home: Home, trace: Trace) -> None:
        traced = self._traced
        traced.computed += 1
        times = traced.times.setdefault(trace.field, Times())
        times.count += 1
        times.seconds += trace.seconds or 0.0
        if self._only in (None, trace.field):
            cause = self._changed_by.get(id(home), self.cause)
            traced.computations.append(Computation(self.at, home.plan.name, trace, cause))

    def compute(self, only: str | None) -> None:
        """The fields of every state that is open, and of that of the run, also when it has ended."""
        homes = self._scopes.homes()
        if self._outermost is not None and self._outermost not in homes:
            homes.append(self._outermost)
        for home in homes:
            for name in home.plan.computed if only is None else (only,):
                if name not in home.plan.computed:
                    continue
                try:
                    home.fields.value(name, home.around())
                except MisplacedError as error:
                    if home.fields.error(name) is None:  # it was stopped: nobody has told of it yet
                        self._note(home, Trace(name, "too long", None, None, error.cause.message))

    def end(self, scope: OpenScope, index: int, at: float, status: Any, *more: Any, **named: Any) -> None:
        node, history = scope.program.nodes[index], self._traced.history
        before = scope.scope.records.get(node.id)
        # noted before what follows from it, and settled after
        self.cause = self._cause_of(scope, index)
        step = EndedStep(
            scope.prefix + node.id, scope.scope.workflow, node, at, at, _OUTCOMES[status], self.cause
        )
        history.append(step)
        self._traced.ended += 1
        super().end(scope, index, at, status, *more, **named)
        record: Record | None = before or scope.scope.records.get(node.id)
        if record is None:
            return
        if record.status not in TERMINAL:  # it is tried again
            self._traced.ended -= 1
            if step in history:
                history.remove(step)
            return
        step.started_at = record.started_at if record.started_at is not None else at
        if failed(record):
            step.status = "failed"


_OUTCOMES = {"completed": "success", "failed": "failed", "skipped": "skipped"}
