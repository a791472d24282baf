"""Ending an operation from outside, with all that is under way inside of it: on a cancel or a timeout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workflows_mcp.machine.commands import ClearTimer, StopStep, key_of
from workflows_mcp.machine.open_scope import OpenScope
from workflows_mcp.machine.rules import outputs_if_not_run
from workflows_mcp.machine.state import TERMINAL, Frame, Record

if TYPE_CHECKING:
    from workflows_mcp.machine.machine import Machine

LEFT_OPEN = "the workflow has ended"
"""Why something ends that was still open when its workflow ended: it is cancelled, and has not failed."""
_COMPOSITE = ("call", "each")
"""Frames with further frames inside."""


def park(machine: Machine, at: float) -> None:
    """Steps are stopped and timers cleared; their frames stay, so that they can be wished for again."""
    state = machine.state
    if state.parked is not None:
        return
    state.parked = at
    for address, frame in state.frames.items():
        key = key_of(address, frame.attempt)
        if frame.kind == "step":
            machine.wish(StopStep(key))
        if frame.deadline is not None:
            machine.wish(ClearTimer(key))


def stop(machine: Machine, address: str, frame: Frame, at: float, reason: str) -> None:
    """End an operation and all that is under way inside of it."""
    if frame.kind in _COMPOSITE:
        inside = address + "/"
        frames = machine.state.frames
        for other, inner in [item for item in frames.items() if item[0].startswith(inside)]:
            if inner.kind not in _COMPOSITE:
                stop(machine, other, inner, at, reason)
            else:
                machine.close_frame(other, inner)
            mark_stopped(machine, *machine.locate(other), at, reason)
        machine.close_inside(inside)
    machine.close_frame(address, frame)
    if frame.kind == "step":
        machine.wish(StopStep(key_of(address, frame.attempt)))


def stop_the_rest(machine: Machine, scope: OpenScope, failed: str, at: float) -> None:
    """A block has failed, and the workflow says fail_fast: end what is under way in it, and begin no more."""
    reason = f"ended, because '{failed}' failed"
    machine.forget_work(scope)
    frames = machine.state.frames
    for index, node in enumerate(scope.program.nodes):
        address = scope.prefix + node.id
        if address in frames:
            stop(machine, address, frames[address], at, reason)
        record = scope.scope.records.setdefault(node.id, Record())
        if record.status not in TERMINAL:
            record.status, record.message, record.completed_at = "skipped", reason, at
            record.outputs = outputs_if_not_run(scope.program, index, machine.plans)
    scope.unfinished, scope.finished = 0, True


def mark_stopped(machine: Machine, scope: OpenScope, index: int, at: float, reason: str) -> None:
    """A block that was ended from outside: it keeps its shape."""
    record = scope.scope.records[scope.program.nodes[index].id]
    record.status, record.message, record.completed_at = "failed", reason, at
    record.outputs = outputs_if_not_run(scope.program, index, machine.plans)
