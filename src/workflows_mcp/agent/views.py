"""The answer that an agent gets about a run: one shape, whatever was asked, with absent parts left out.

    {"workflow_id": "wf_7f3a", "workflow": "deploy", "status": "pending_action", "action": {…},
     "progress": {"done": 3, "total": 9}, "why": "waiting for your answer to 'approve' since 12:04:31Z"}

Only reads the run. Where a fault stands in a file is told by whoever has the file (`place`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from workflows_mcp.agent.actions import pending_actions
from workflows_mcp.agent.previews import Cut, Reader, cut, reader, shortened, within
from workflows_mcp.agent.state_view import run_state
from workflows_mcp.agent.waiting import run_status, why_waiting
from workflows_mcp.agent.walk import block_at
from workflows_mcp.errors import Place
from workflows_mcp.limits import Limits
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.state import Fault
from workflows_mcp.steps.registry import StepRegistry
from workflows_mcp.values import Value

__all__ = ["error_view", "run_answer", "run_state", "run_status"]

MESSAGE_CHARS = 2000
PRINTED_CHARS = 500
"""How much of what a failed block printed last is part of the error."""

FindPlace = Callable[[Fault], Place | None]


def run_answer(
    machine: Machine,
    registry: StepRegistry,
    limits: Limits,
    *,
    place: FindPlace,
    now: float | None = None,
) -> dict[str, Any]:
    at = time.time() if now is None else now
    actions = pending_actions(machine, registry)
    return within(limits, lambda how: _answer(machine, actions, how, place, at))


def _answer(
    machine: Machine, actions: list[dict[str, Value]], how: Cut, place: FindPlace, now: float
) -> dict[str, Any]:
    state = machine.state
    read = reader(state.run_id)
    answer: dict[str, Any] = {
        "workflow_id": state.run_id,
        "workflow": state.workflow,
        "status": run_status(machine),
    }
    if actions:
        first, *more = [_shortened(action, how, read) for action in actions]
        answer["action"] = first
        if more:
            answer["more_actions"] = more
    answer["progress"] = {
        "done": state.done,
        "total": len(machine.program_named(state.workflow).nodes),
    }
    if state.status == "running":
        answer["why"] = why_waiting(machine, now)
        return answer
    if state.outputs or state.status == "completed":
        answer["outputs"] = cut(state.outputs, ("outputs",), how, read)
    error = error_view(machine, place)
    if error is not None:
        answer["error"] = error
    return answer


def error_view(machine: Machine, place: FindPlace) -> dict[str, Value] | None:
    """Why the run failed: what happened, in which block, where that stands, and what it printed last."""
    fault = machine.state.fault
    if fault is None or (fault.code == "cancelled" and fault.message == "cancelled"):
        return None
    error: dict[str, Value] = {"code": fault.code, "message": shortened(fault.message, MESSAGE_CHARS)}
    if fault.address:
        error["block"] = fault.address
    where = place(fault)
    if where is not None:
        error["place"] = str(where)
        if where.text.strip():
            error["line"] = where.excerpt()[0].strip()
    if fault.hint:
        error["hint"] = fault.hint
    printed = _printed(machine, fault.address)
    if printed:
        error["printed"] = printed
    return error


def _printed(machine: Machine, address: str) -> str:
    visited = block_at(machine, address) if address else None
    if visited is None:
        return ""
    for stream in ("stderr", "stdout"):
        text = visited.record.outputs.get(stream)
        if isinstance(text, str) and text.strip():
            text = text.rstrip()
            return text if len(text) <= PRINTED_CHARS else "…" + text[-PRINTED_CHARS:]
    return ""


def _shortened(action: dict[str, Value], how: Cut, read: Reader) -> dict[str, Value]:
    """An action with long texts cut; the schema of its result stays whole."""
    path = ("actions", action["step_id"])
    short = dict(action)
    for part in ("instructions", "parameters"):
        short[part] = cut(action[part], (*path, part), how, read)
    return short
