"""Shows the journal of a run: its events, and in a replay the ended steps, computations, and their times.

    traced = replayed(bundle, events, every_field=True)
    traced.computations[-1].trace.field, traced.history[-1].address

A replay runs no steps, but it evaluates the expressions of the run: call it outside the event loop.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from workflows_mcp.answers.explain import type_name
from workflows_mcp.answers.previews import Cut, Reader, cut, within
from workflows_mcp.answers.run_view import RunView
from workflows_mcp.answers.state import StateSnapshot, reactive_snapshot
from workflows_mcp.answers.tasks import Target
from workflows_mcp.errors import RequestError
from workflows_mcp.limits import Limits
from workflows_mcp.machine import (
    TERMINAL,
    EvaluationError,
    Event,
    Machine,
    OpenScope,
    PlanLoaded,
    ReactiveState,
    Record,
    Trace,
    address_of,
    failed,
    iso,
    size_of,
)
from workflows_mcp.plan import Bundle, Node
from workflows_mcp.steps import StepRegistry
from workflows_mcp.values import Value, did_you_mean

KEPT = 500
"""How many of the last computations and steps are kept."""
SECONDS = 20.0
"""The time limit for computing fields that the run itself did not read."""


@dataclass(frozen=True, slots=True)
class Cause:
    """The cause of a change: the event, and the step that it ran."""

    event: int
    step: str = ""
    """Empty if no step caused it: an agent has updated the state, or the run starts."""
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
    """How often a field was computed, and the total time."""

    count: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Traced:
    computations: deque[Computation] = field(default_factory=lambda: deque(maxlen=KEPT))
    history: deque[EndedStep] = field(default_factory=lambda: deque(maxlen=KEPT))
    computed: int = 0
    """The number of computations."""
    ended: int = 0
    """The number of ended steps."""
    times: dict[str, Times] = field(default_factory=dict)
    cut_short: bool = False
    """Whether computing fields after each event exceeded the time limit."""


def replayed(
    bundle: Bundle, events: Iterable[Event], *, every_field: bool = False, only: str | None = None
) -> Traced:
    """Replay events. `every_field` also computes fields that the run itself did not read after each event;
    `only` restricts this to one field and its dependencies."""
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
    """The interpreter, with hooks that record what it computes."""

    def __init__(self, bundle: Bundle, traced: Traced, only: str | None) -> None:
        super().__init__(bundle)
        self.at = 0.0
        self.cause = Cause(0)
        self._changed_by: dict[int, Cause] = {}
        """The cause of the last change of a state, by the identity of the state."""
        self._traced = traced
        self._only = only
        self._outermost: ReactiveState | None = None
        self.on_state_opened = self._watch

    def _watch(self, home: ReactiveState) -> None:
        self._outermost = self._outermost or home
        home.fields.clock = time.perf_counter
        home.fields.trace = lambda trace: self._note(home, trace)
        home.on_change = lambda before: self._changed(home, before)

    def _changed(self, home: ReactiveState, before: dict[str, Value]) -> None:
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
        visits = state.visits.get(node.id, 1)
        address = f"{scope.prefix}{node.id}@{visits}" if visits > 1 else f"{scope.prefix}{node.id}"
        return Cause(self.state.events, address, item)

    def _enter(self, scope: OpenScope, index: int) -> None:
        self.cause = self._cause_of(scope, index)
        super()._enter(scope, index)

    def _note(self, home: ReactiveState, trace: Trace) -> None:
        traced = self._traced
        traced.computed += 1
        times = traced.times.setdefault(trace.field, Times())
        times.count += 1
        times.seconds += trace.seconds or 0.0
        if self._only in (None, trace.field):
            cause = self._changed_by.get(id(home), self.cause)
            traced.computations.append(Computation(self.at, home.plan.name, trace, cause))

    def compute(self, only: str | None) -> None:
        """Compute the fields of every open state, and of the state of the run even if it has ended."""
        homes = self.reactive_states()
        if self._outermost is not None and self._outermost not in homes:
            homes.append(self._outermost)
        for home in homes:
            for name in home.plan.computed if only is None else (only,):
                if name not in home.plan.computed:
                    continue
                try:
                    home.fields.value(name, home.around())
                except EvaluationError as error:
                    if home.fields.error(name) is None:  # it was stopped, so it left no trace
                        self._note(home, Trace(name, "too long", None, None, error.fault.message))

    def end(self, scope: OpenScope, index: int, at: float, status: Any, *more: Any, **named: Any) -> None:
        node, history = scope.program.nodes[index], self._traced.history
        before = scope.scope.records.get(node.id)
        # Recorded before its consequences; the status is corrected afterwards.
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
        if record.status not in TERMINAL:  # it will be retried
            self._traced.ended -= 1
            if step in history:
                history.remove(step)
            return
        step.started_at = record.started_at if record.started_at is not None else at
        if failed(record):
            step.status = "failed"


_OUTCOMES = {"completed": "success", "failed": "failed", "skipped": "skipped"}


# ----------------------------------------------------------------------------------------------------
# The answers of the toolset `debug` about a run: its computations, its steps, and the size of its state.
# `debug_view_of` reads the run without a pause, so that the run cannot change meanwhile.


LISTED = 100

"""The maximum number of traces, and of steps, that are shown: the last ones."""

SLOWEST = 5

_VALUE_SHARE = 8

"""Values get this fraction of the usual length, because each trace has two."""


def check_field(machine: Machine, field: str) -> str:
    """Return the name of a computed field, or of another one as in `raw.count`.

    Raises RequestError if no workflow of the run has the field.
    """
    name = field.removeprefix("computed.")
    known = {it for plan in machine.plans.values() for it in plan.computed}
    if name in known:
        return name
    raw = {f"{part}.{it}" for part in ("raw", "state") for it in machine.state.root.state.get(part, {})}
    raw |= {f"raw.{it}" for plan in machine.plans.values() for it in plan.raw_types}
    for spelling in (field, f"raw.{field}", f"state.{field}"):
        if spelling in raw:
            return spelling
    hint = did_you_mean(name, known | raw, what="fields") if known or raw else "the workflow has none"
    raise RequestError(f"there is no field '{field}'", hint=hint, code="invalid_path")


def traces_answer(traced: Traced, limits: Limits, *, main: str, include_timing: bool) -> dict[str, Any]:
    shown = list(traced.computations)[-LISTED:]

    def build(how: Cut) -> dict[str, Any]:
        values = Cut(max(how.characters // _VALUE_SHARE, 40), how.items)
        last = shown[-min(how.items, len(shown)) :] if shown else []
        traces = [_trace(it, values, main, include_timing) for it in last]
        answer: dict[str, Any] = {"traces": traces}
        if len(traces) < traced.computed:
            answer["total"] = traced.computed
        if traced.cut_short:
            answer["note"] = "computing took too long: later traces show only fields that the run itself read"
        return answer

    return within(limits, build)


def _trace(computation: Computation, how: Cut, main: str, include_timing: bool) -> dict[str, Value]:
    trace = computation.trace
    read: Reader = lambda *_: "workflow_state_read"  # noqa: E731
    entry: dict[str, Value] = {
        "field": trace.field,
        "timestamp": iso(computation.at),
        "trigger": trace.trigger,
        "input": cut(trace.input, (), how, read),
        "output": cut(trace.output, (), how, read),
        **_cause(computation.cause),
    }
    if computation.workflow != main:
        entry["workflow"] = computation.workflow
    if include_timing:
        entry["duration_ms"] = _milliseconds(trace.seconds or 0.0)
    if trace.error is not None:
        entry["error"] = trace.error
    return entry


@dataclass(frozen=True, slots=True)
class DebugView:
    """A run at a moment."""

    current_step: str | None
    status: str
    events: int
    dialects: dict[str, str]
    """By workflow."""
    state: dict[str, Value]
    reactive: StateSnapshot | None


def debug_view_of(view: RunView) -> DebugView:
    machine = view.machine
    dialects = {name: plan.dialect for name, plan in machine.plans.items()}
    reactive = reactive_snapshot(machine, view.target.address)
    state = dict(machine.state.root.state) if reactive is None else reactive.around.state.get("raw", {})
    step, status = _current_step(view), view.status
    return DebugView(step, status, machine.state.events, dialects, state, reactive)


def debug_answer(
    debug_view: DebugView, traced: Traced, registry: StepRegistry, limits: Limits
) -> dict[str, Any]:
    """Build the answer. This computes the fields for their size, which can be slow."""
    computed = debug_view.reactive.computed if debug_view.reactive is not None else {}
    total = sum(times.seconds for times in traced.times.values())
    slowest = sorted(traced.times.items(), key=lambda it: it[1].seconds / it[1].count, reverse=True)
    rest: dict[str, Any] = {
        "state_size": {
            "raw_bytes": size_of(debug_view.state),
            "computed_bytes": size_of(computed),
            "total_transformations": traced.computed,
        },
        "performance": {
            "avg_transformation_time": _milliseconds(total / traced.computed) if traced.computed else 0,
            "slowest_transformations": [
                {"field": name, "avg_ms": _milliseconds(times.seconds / times.count), "count": times.count}
                for name, times in slowest[:SLOWEST]
            ],
        },
        "status": debug_view.status,
        "events": debug_view.events,
    }

    def build(how: Cut) -> dict[str, Any]:
        steps = list(traced.history)[-min(LISTED, how.items) :]
        history = [_ended(step, debug_view.dialects, registry) for step in steps]
        left_out = traced.ended - len(history)
        more = {"earlier_steps": left_out} if left_out else {}
        return {"current_step": debug_view.current_step, "step_history": history, **more, **rest}

    return within(limits, build)


def _current_step(view: RunView) -> str | None:
    """Return the id of the oldest step that is asked or under way."""
    questions = [address for address, _ in view.pending.questions]
    addresses = questions or [address for address, _ in view.under_way("step", "wait", "plan", "each")]
    if not addresses:
        return None
    return view.question_id(addresses[0])


def _ended(step: EndedStep, dialects: dict[str, str], registry: StepRegistry) -> dict[str, Value]:
    return {
        "step_id": step.address,
        "type": type_name(step.node.do, dialects.get(step.workflow, "graph"), registry),
        "started_at": iso(step.started_at),
        "completed_at": iso(step.ended_at),
        "status": step.status,
        **{key: value for key, value in _cause(step.cause).items() if key != "step"},
    }


def _cause(cause: Cause) -> dict[str, Value]:
    fields: dict[str, Value] = {"event": cause.event}
    if cause.step:
        fields["step"] = cause.step
    if cause.item is not None:
        fields["item"] = cause.item
    return fields


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)


# The events of a run or a task: time, kind, step and values, with long values cut

EVENTS_SHOWN = 200


def journal_view(
    target: Target, events: Sequence[Event], limits: Limits, *, offset: int = 0, limit: int | None = None
) -> dict[str, Any]:
    """Return the events of a run or task from `offset` on; `position` counts in the journal of the run."""
    mine = [(position, event) for position, event in enumerate(events, 1) if target.covers(event.address)]
    most = EVENTS_SHOWN if limit is None else min(limit, EVENTS_SHOWN)
    shown = mine[offset : offset + most]

    def build(how: Cut) -> dict[str, Any]:
        # Cut long values, but never the list of events.
        inside = Cut(how.characters, max(how.items, 3))
        answer: dict[str, Any] = {
            "workflow_id": target.id,
            "total": len(mine),
            "events": [
                cut(_event(position, event), (), inside, lambda *_: _how_to_read(target))
                for position, event in shown
            ],
        }
        if offset + len(shown) < len(mine):
            answer["next_offset"] = offset + len(shown)
        return answer

    return within(limits, build)


def _how_to_read(target: Target) -> str:
    return f"get_workflow_state(workflow_id='{target.id}')"


def _event(position: int, event: Event) -> dict[str, Value]:
    fields: dict[str, Any] = msgspec.to_builtins(event)
    shown: dict[str, Value] = {"position": position, "at": iso(fields.pop("at")), "event": fields.pop("type")}
    if "key" in fields:
        shown["step"], shown["try"] = address_of(fields.pop("key"))
    elif "address" in fields:
        shown["step"] = fields.pop("address")
    fields.pop("limits", None)  # they are settings, not part of what happened
    fields.pop("state", None)  # it follows from the events before it
    if isinstance(event, PlanLoaded):
        fields.pop("sources", None)
        if event.plans:
            fields["plans"] = list(event.plans)
    return shown | fields
