"""What each event does to a run. A fact that is not expected (any more) changes nothing.

A new kind of event is a function here and a row in `APPLY`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from workflows_mcp.machine.again import decided, interrupted, wait_afresh
from workflows_mcp.machine.commands import StopStep, address_of
from workflows_mcp.machine.events import (
    Answered,
    CancelRequested,
    Forked,
    Interrupted,
    PlanLoaded,
    Started,
    StepDone,
    StepFailed,
    TimerFired,
)
from workflows_mcp.machine.operations import ENTER
from workflows_mcp.machine.state import Fault, Outcome
from workflows_mcp.machine.stopping import mark_stopped, stop
from workflows_mcp.plan.model import Call

if TYPE_CHECKING:
    from workflows_mcp.machine.machine import Machine


def started(machine: Machine, event: Started) -> None:
    state = machine.state
    state.run_id = event.run_id
    state.workspace = event.workspace
    state.forked_from = event.forked_from
    state.limits = event.limits
    state.started_at = event.at
    state.root = machine.new_scope(machine.bundle.main, event.inputs, event.at)
    machine.open_scope(state.root)


def step_ended(machine: Machine, event: StepDone | StepFailed | Answered) -> None:
    if isinstance(event, Answered):
        address = event.address
        frame = machine.state.frames.get(address)
        expected = frame is not None and frame.kind == "agent"
    else:
        address, attempt = address_of(event.key)
        frame = machine.state.frames.get(address)
        expected = frame is not None and frame.kind == "step" and frame.attempt == attempt
    if frame is None or not expected:
        return
    scope, index = machine.locate(address)
    machine.close_frame(address, frame)
    if frame.cut_off:
        decided(machine, scope, index, event)
        return
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
    if frame.kind == "step":
        frame.stopping = message
        machine.wish(StopStep(event.key, message))
        return
    scope, index = machine.locate(address)
    stop(machine, address, frame, event.at, "its caller timed out")
    machine.fail(scope, index, event.at, machine.fault(scope, index, "timeout", message, path=("timeout",)))


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


def cancel_requested(machine: Machine, event: CancelRequested) -> None:
    reason = event.reason or "cancelled"
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
    Forked: wait_afresh,
    CancelRequested: cancel_requested,
}
