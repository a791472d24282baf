"""The answers of the toolset `debug` about a run: what was computed in it, how its steps went, how large its
state is. What is read of the run itself is read while nothing else has a turn (`look_at`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workflows_mcp.agent.fields import PartsOfState, parts_of_state
from workflows_mcp.agent.info import type_name
from workflows_mcp.agent.parts import question_id
from workflows_mcp.agent.previews import Cut, Reader, cut, within
from workflows_mcp.agent.situation import Situation
from workflows_mcp.agent.tracing import Cause, Computation, EndedStep, Traced
from workflows_mcp.errors import RequestError
from workflows_mcp.limits import Limits
from workflows_mcp.machine.changes import size_of
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.scope import iso
from workflows_mcp.steps.registry import StepRegistry
from workflows_mcp.values import Value, did_you_mean

LISTED = 100
"""How many traces, and how many steps, are shown at most: the last ones."""
SLOWEST = 5
_VALUE_SHARE = 8
"""Values are cut so many times earlier than elsewhere: there are two in each trace."""


def check_field(machine: Machine, field: str) -> str:
    """The bare name of a computed field, or that of a raw one as in raw.count. Raises RequestError where no
    workflow of the run has it."""
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
            answer["note"] = "computing took too long: later traces are only of what the run itself looked at"
        return answer

    return within(limits, build)


def _trace(computation: Computation, how: Cut, main: str, include_timing: bool) -> dict[str, Value]:
    trace = computation.trace
    read: Reader = lambda *_: "workflow_state_read"  # noqa: E731
    said: dict[str, Value] = {
        "field": trace.field,
        "timestamp": iso(computation.at),
        "trigger": trace.trigger,
        "input": cut(trace.input, (), how, read),
        "output": cut(trace.output, (), how, read),
        **_cause(computation.cause),
    }
    if computation.workflow != main:
        said["workflow"] = computation.workflow
    if include_timing:
        said["duration_ms"] = _milliseconds(trace.seconds or 0.0)
    if trace.error is not None:
        said["error"] = trace.error
    return said


@dataclass(frozen=True, slots=True)
class Looked:
    """A run at a moment."""

    current_step: str | None
    status: str
    events: int
    dialects: dict[str, str]
    """By workflow."""
    state: dict[str, Value]
    parts: PartsOfState | None


def look_at(situation: Situation) -> Looked:
    machine = situation.machine
    dialects = {name: plan.dialect for name, plan in machine.plans.items()}
    parts = parts_of_state(machine, situation.part.address)
    state = dict(machine.state.root.state) if parts is None else parts.around.state.get("raw", {})
    step, status = _current_step(situation), situation.status
    return Looked(step, status, machine.state.events, dialects, state, parts)


def debug_answer(looked: Looked, traced: Traced, registry: StepRegistry, limits: Limits) -> dict[str, Any]:
    """Computing the fields, for their size, can take as long as expressions may."""
    computed = looked.parts.fields().computed if looked.parts is not None else {}
    total = sum(times.seconds for times in traced.times.values())
    slowest = sorted(traced.times.items(), key=lambda it: it[1].seconds / it[1].count, reverse=True)
    rest: dict[str, Any] = {
        "state_size": {
            "raw_bytes": size_of(looked.state),
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
        "status": looked.status,
        "events": looked.events,
    }

    def build(how: Cut) -> dict[str, Any]:
        steps = list(traced.history)[-min(LISTED, how.items) :]
        history = [_ended(step, looked.dialects, registry) for step in steps]
        left_out = traced.ended - len(history)
        more = {"earlier_steps": left_out} if left_out else {}
        return {"current_step": looked.current_step, "step_history": history, **more, **rest}

    return within(limits, build)


def _current_step(situation: Situation) -> str | None:
    """What is asked or under way, the oldest first."""
    questions = [address for address, _ in situation.duties.questions]
    addresses = questions or [address for address, _ in situation.under_way("step", "wait", "plan", "each")]
    if not addresses:
        return None
    return question_id(situation.machine.state, situation.part, addresses[0])


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
    said: dict[str, Value] = {"event": cause.event}
    if cause.step:
        said["step"] = cause.step
    if cause.item is not None:
        said["item"] = cause.item
    return said


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)
