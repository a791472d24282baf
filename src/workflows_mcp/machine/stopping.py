"""Ending an operation from outside, with all that is under way inside of it: on a cancel or a timeout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workflows_mcp.machine.commands import StopStep, key_of
from workflows_mcp.machine.open_scope import OpenScope
from workflows_mcp.machine.rules import outputs_if_not_run
from workflows_mcp.machine.state import Frame

if TYPE_CHECKING:
    from workflows_mcp.machine.machine import Machine

_COMPOSITE = ("call", "each")
"""Frames with further frames inside."""


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


def mark_stopped(machine: Machine, scope: OpenScope, index: int, at: float, reason: str) -> None:
    """A block that was ended from outside: it keeps its shape."""
    record = scope.scope.records[scope.program.nodes[index].id]
    record.status, record.message, record.completed_at = "failed", reason, at
    record.outputs = outputs_if_not_run(scope.program, index, machine.plans)
