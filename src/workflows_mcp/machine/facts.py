"""What each event does to a run. A fact that is not expected (any more) changes nothing.

A new kind of event is a function here and a row in `APPLY`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from workflows_mcp.errors import TOO_LARGE, TOO_SLOW
from workflows_mcp.machine.again import decided, interrupted, keep_to_limits, wait_afresh
from workflows_mcp.machine.changes import WrongChange
from workflows_mcp.machine.commands import StopStep, address_of
from workflows_mcp.machine.events import (
    Answered,
    CancelRequested,
    ContextFull,
    Forked,
    Interrupted,
    MadeRoom,
    Marked,
    Parked,
    PlanLoaded,
    Resumed,
    Started,
    StateUpdated,
    StepDone,
    StepFailed,
    TimerFired,
)
from workflows_mcp.machine.expected import changes_of
from workflows_mcp.machine.items import OpenItems
from workflows_mcp.machine.lanes import cleaned_up_first
from workflows_mcp.machine.operations import ENTER
from workflows_mcp.machine.program import MisplacedError
from workflows_mcp.machine.reactive import OpenReactive
from workflows_mcp.machine.state import MARKS, Fault, Outcome, Scope
from workflows_mcp.machine.stopping import mark_stopped, park, stop
from workflows_mcp.machine.telling import passed_on
from workflows_mcp.plan.model import CONTEXT_FULL, Call

if TYPE_CHECKING:
    from workflows_mcp.machine.machine import Machine

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
        except MisplacedError as error:
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
        passed_on(machine, address, frame)
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
        machine.wish(StopStep(event.key, message))
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
        except MisplacedError as error:
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
    home = machine.home_at(event.address)
    state = machine.state
    if home is None or (event.token and event.token in state.tokens):
        return
    state.tokens = [*state.tokens[1 - MARKS :], event.token] if event.token else state.tokens
    with suppress(WrongChange):
        # a field that propagates its error fails the step that reads it, not the update
        home.reset(home.tried(changes_of(event))[0])


def marked(machine: Machine, event: Marked | ContextFull) -> None:
    machine.state.mark(event.at, event.reason, event.step)


def made_room(machine: Machine, event: MadeRoom) -> None:
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
        machine.wish(command)


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
    MadeRoom: made_room,
    StateUpdated: state_updated,
    Marked: marked,
    ContextFull: context_full,
    Parked: parked,
    Resumed: resumed,
    CancelRequested: cancel_requested,
}
