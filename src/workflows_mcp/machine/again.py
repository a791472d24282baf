"""A block that is carried out again: because it failed, or because a crash has cut it off.

A block that waits for its next try is a frame of kind `retry` with a timer. A step that was cut off is
repeated unless its block says otherwise (`on_interrupt`): then it has failed, or the agent is asked. It is
also asked when the same step has been cut off `step_interruptions` times: the step may be what ends the
server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workflows_mcp.errors import TOO_LARGE, TOO_SLOW
from workflows_mcp.machine.commands import Command, SetTimer, address_of, key_of
from workflows_mcp.machine.events import Answered, Forked, Interrupted, StepDone, StepFailed
from workflows_mcp.machine.open_scope import OpenScope
from workflows_mcp.machine.operations import step_command
from workflows_mcp.machine.program import MisplacedError
from workflows_mcp.machine.state import Fault, Frame, Record
from workflows_mcp.plan.retry import Failure, pause
from workflows_mcp.values import Value

if TYPE_CHECKING:
    from workflows_mcp.machine.machine import Machine

CUT_OFF = "the server stopped while this step was under way"
AGAIN = "~again"
"""What the key of a step ends with of which could not be said in time whether it is tried again."""


def tried_again(
    machine: Machine,
    scope: OpenScope,
    index: int,
    at: float,
    record: Record,
    outputs: dict[str, Value],
    message: str | None,
    fault: Fault | None,
) -> bool:
    """Whether a block that has failed gets another try, which then waits for its time."""
    state = machine.state
    if machine.known_to_stop(scope, index, AGAIN) is not None:
        return False
    try:
        seconds = _seconds_to_next_try(scope, index, at, state.run_id, record, outputs, fault)
    except MisplacedError as error:  # what it is made of has changed since the first try
        if error.cause.code in (TOO_SLOW, TOO_LARGE):
            machine.note_stop(scope, index, machine.fault_of(scope, index, error), AGAIN)
        return False
    if seconds is None:
        return False
    node = scope.program.nodes[index]
    address = scope.prefix + node.id
    record.attempts += 1
    record.status, record.outcome, record.message, record.outputs = "running", "n/a", message, outputs
    frame = Frame("retry", at, scope.attempt(node.id, record), deadline=at + seconds)
    machine.open_frame(address, frame, None, at)
    return True


def _seconds_to_next_try(
    scope: OpenScope,
    index: int,
    at: float,
    run_id: str,
    record: Record,
    outputs: dict[str, Value],
    fault: Fault | None,
) -> float | None:
    """How long a block that has failed waits for its next try; None where it gets none."""
    node = scope.program.nodes[index]
    if node.for_each is not None:
        return None  # its items have had their tries
    rule = scope.program.prepared(index).retry(scope.names_for(index))
    if rule is None:
        return None
    code = fault.code if fault is not None else ""
    kind = "failure" if record.scope is not None or fault is None else "error"
    failure = Failure("timeout" if code == "timeout" else kind, code, outputs.get("exit_code"))
    this_try = f"{run_id}/{key_of(scope.prefix + node.id, scope.attempt(node.id, record))}"
    return pause(rule, record.attempts, failure, at - (record.started_at or at), this_try)


def wait_afresh(machine: Machine, event: Forked) -> None:
    """A fork begins where another run was long ago: what waits for a time waits as long from now on."""
    for address, frame in machine.state.frames.items():
        begun_anew = event.begun_anew and frame.kind in ("step", "agent")
        if frame.deadline is None and not begun_anew:
            continue
        later = event.at - frame.since
        frame.since, frame.parked = event.at, 0.0
        frame.deadline = None if frame.deadline is None else frame.deadline + later
        scope, index = machine.locate(address)
        record = scope.scope.records[scope.program.nodes[index].id]
        if (frame.kind == "retry" or begun_anew) and record.started_at is not None:
            record.started_at += later  # `within` counts from the first try


def keep_to_limits(machine: Machine) -> None:
    """Of items of which more are under way than may be, because those that are done again were begun before
    others that had their places then, the last ones begin when there is room."""
    frames = machine.state.frames
    for scope in machine.open_items:
        addresses = [scope.prefix + node.id for node in scope.program.nodes]
        under_way = [index for index, address in enumerate(addresses) if address in frames]
        for index in under_way[scope.limit :] if scope.limit is not None else ():
            inside = f"{addresses[index]}/"
            machine.close_inside(inside)
            for address in [it for it in frames if f"{it}/".startswith(inside)]:
                machine.close_frame(address, frames[address])
            scope.come_later(index)


def interrupted(machine: Machine, event: Interrupted) -> None:
    """A step was cut off: repeat it, let it fail, or ask."""
    address, attempt = address_of(event.key)
    frame = machine.state.frames.get(address)
    if frame is None or frame.kind != "step" or frame.attempt != attempt:
        return
    scope, index = machine.locate(address)
    rule = scope.program.nodes[index].on_interrupt
    frame.interruptions += 1
    if rule == "repeat" and frame.interruptions < machine.limits.step_interruptions:
        for command in repeated(scope, index, frame, event.key, event.at):
            machine.wish(command)
        return
    machine.close_frame(address, frame)
    if rule == "fail":
        machine.fail(scope, index, event.at, machine.fault(scope, index, "interrupted", CUT_OFF))
        return
    machine.open_frame(address, Frame("agent", event.at, attempt, cut_off=True), None, event.at)
    record = scope.scope.records[scope.program.nodes[index].id]
    times = f" ({frame.interruptions} times)" if frame.interruptions > 1 else ""
    record.status, record.message = "paused", CUT_OFF + times


def repeated(scope: OpenScope, index: int, frame: Frame, key: str, at: float) -> list[Command]:
    """What lets a step that was cut off start again; its timeout starts again with it."""
    timer: list[Command] = [] if frame.timeout is None else [SetTimer(key, at + frame.timeout)]
    return [*timer, step_command(scope, index, frame)]


def decided(machine: Machine, scope: OpenScope, index: int, event: StepDone | StepFailed | Answered) -> None:
    """The agent has said what becomes of a step that was cut off."""
    decision = event.outputs.get("decision")
    if decision == "repeat":
        scope.scope.records[scope.program.nodes[index].id].attempts += 1
        machine.enter_again(scope, index)
    elif decision == "done":
        given = event.outputs.get("outputs")
        outputs = {**scope.program.defaults(index), **(given if isinstance(given, dict) else {})}
        machine.end(scope, index, event.at, "completed", "success", outputs)
    else:
        machine.fail(scope, index, event.at, machine.fault(scope, index, "interrupted", CUT_OFF))
