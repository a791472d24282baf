"""The answer that an agent gets about a run or a task: one shape, whatever was asked, with absent parts left
out.

    {"workflow_id": "wf_7f3a", "status": "pending_action", "action": {…}, "progress": {"done": 3, "total": 9},
     "next": "submit_result(workflow_id='wf_7f3a', step_id='approve', result=…)"}

Only reads the run. Where a fault stands in a file is told by whoever has the file (`place`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

from workflows_mcp.agent.actions import actions_of
from workflows_mcp.agent.following import HANDED_OUT, NOTHING_LEFT, Redo, next_call, steps_that_follow
from workflows_mcp.agent.parts import Part, whole_run
from workflows_mcp.agent.previews import Cut, Reader, cut, reader, shortened, within
from workflows_mcp.agent.progress import progress_of
from workflows_mcp.agent.situation import Situation, situation_of
from workflows_mcp.agent.state_view import run_state
from workflows_mcp.agent.vocabulary import CORE, Vocabulary
from workflows_mcp.agent.waiting import why
from workflows_mcp.agent.walk import block_at
from workflows_mcp.errors import Place
from workflows_mcp.limits import Limits
from workflows_mcp.machine.handling import failed, handler_of
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.scope import outputs_of
from workflows_mcp.machine.state import Fault, Scope
from workflows_mcp.steps.registry import StepRegistry
from workflows_mcp.values import Value

__all__ = ["answer_about", "error_view", "run_answer", "run_state"]

MESSAGE_CHARS = 2000
PRINTED_CHARS = 500
"""How much of what a failed block printed last is part of the error."""
STATE_SHARE = 8
"""Beside the value that a workflow returns, its state is cut so many times earlier."""

FindPlace = Callable[[Fault], Place | None]
Detail = Literal["step", "status", "all"]
"""How much an answer says. `step`: what an agent needs that drives the run; `status`: also what it is and
why it waits; `all`: also schemas that the instructions make needless, and the final state, for programs."""


def run_answer(
    machine: Machine,
    registry: StepRegistry,
    limits: Limits,
    *,
    place: FindPlace,
    now: float | None = None,
) -> dict[str, Any]:
    situation = situation_of(machine, now=time.time() if now is None else now, limits=limits)
    return answer_about(situation, registry, limits, place=place)


def answer_about(
    situation: Situation,
    registry: StepRegistry,
    limits: Limits,
    *,
    place: FindPlace,
    at_work: bool = False,
    detail: Detail = "all",
    with_result: bool | None = None,
    redo: Redo | None = None,
    words: Vocabulary = CORE,
) -> dict[str, Any]:
    """`at_work`: also the action of tasks at which sub-agents are at work, for an agent that has lost it.
    `with_result`: what came of it, if it has ended; not for the agent of a task, which has it."""
    actions = actions_of(situation, registry, at_work=at_work, brief=detail != "all")
    if with_result is None:
        with_result = situation.task is None or detail == "all"
    return within(
        limits, lambda how: _answer(situation, actions, how, place, detail, with_result, redo, words)
    )


def over_answer(workflow_id: str, message: str) -> dict[str, Any]:
    """About a task whose step is being carried out anew: there is nothing left of it, and nothing to do."""
    return {"workflow_id": workflow_id, "status": "completed", "why": message, "next": NOTHING_LEFT}


def _answer(
    situation: Situation,
    actions: list[dict[str, Value]],
    how: Cut,
    place: FindPlace,
    detail: Detail,
    with_result: bool,
    redo: Redo | None,
    words: Vocabulary,
) -> dict[str, Any]:
    read = reader(situation.part.id)
    answer: dict[str, Any] = {"workflow_id": situation.part.id}
    if detail != "step":
        answer["workflow"] = situation.workflow
    answer["status"] = situation.status
    if messages := situation.messages:
        answer["messages"] = cut(messages, ("messages",), how, read)
    left_out = 0
    if actions:
        first, *more = [shortened_action(action, how, read) for action in actions[: how.items + 1]]
        answer["action"] = first
        if more:
            answer["more_actions"] = more
        left_out = len(actions) - 1 - len(more)
    scope = situation.scope
    if scope is not None and (detail != "step" or not (actions or situation.task)):
        answer["progress"] = progress_of(
            situation.machine, scope, ended=situation.has_ended, address=_under_way(situation)
        )
    if not situation.has_ended:
        reasons = []
        if detail == "all" or not actions:
            reasons.append(why(situation))
        elif detail == "status" and (beside := why(situation, brief=True)):
            reasons.append(beside)
        if left_out:
            reasons.append(f"{left_out} more actions are shown when these have been answered")
        if reasons:
            answer["why"] = "; ".join(reasons)
    elif situation.task is not None and situation.task.record.status == "skipped":
        answer["why"] = f"skipped: {situation.task.record.message}"
    if situation.has_ended:
        if with_result:
            answer |= _given(situation, how, read, with_state=detail == "all")
        if (
            scope is not None
            and situation.status == "completed"
            and (tolerated := failed_blocks(situation.machine, scope))
        ):
            answer["failed_blocks"] = cut(tolerated, ("failed_blocks",), how, read)
        error = error_view(situation.machine, place, situation.part)
        if error is not None:
            answer["error"] = error
    answer["next"] = next_call(situation, actions, redo, words)
    handed_out = bool(actions) and actions[0]["type"] in HANDED_OUT
    if detail != "step" and not handed_out and (following := steps_that_follow(situation)):
        answer["next"] += f"; then {following}"
    return answer


def _under_way(situation: Situation) -> str:
    """The step that its agent, or else the server, is at, as seen from the part."""
    duties = situation.duties
    addresses = [address for address, _ in duties.questions] + [it.address for it in duties.delegations]
    addresses += [address for address, _ in situation.under_way()]
    prefix = f"{situation.part.address}/" if situation.part.address else ""
    return next((it[len(prefix) :] for it in addresses if it.startswith(prefix)), "")


def _given(situation: Situation, how: Cut, read: Reader, *, with_state: bool) -> dict[str, Value]:
    """What came of it: the value that a sequence returned and the state that it left, or outputs."""
    completed = situation.status == "completed"
    scope, state = situation.scope, situation.machine.state
    if situation.is_sequence and scope is not None:
        if not completed:
            return {}
        given: dict[str, Value] = {}
        if scope.result is not None or with_state:
            given["result"] = cut(scope.result, ("result",), how, read)
        if situation.task is None and with_state:
            shown = how if scope.result is None else Cut(how.characters // STATE_SHARE, how.items)
            fields = scope.state if situation.fields is None else situation.fields.flat
            given["state"] = cut(fields, ("state",) if situation.fields is None else (), shown, read)
        return given
    outputs = state.outputs if situation.task is None else outputs_of(situation.task.record)
    return {"outputs": cut(outputs, ("outputs",), how, read)} if outputs or completed else {}


def failed_blocks(machine: Machine, scope: Scope) -> list[Value]:
    """The blocks of a workflow that failed, and whose failure was handled: by whom, and why they failed."""
    plan = machine.plan_named(scope.workflow)
    found: list[Value] = []
    for node in plan.body.nodes:
        record = scope.records.get(node.id)
        if record is None or not failed(record):
            continue
        by = handler_of(plan, node, record)
        said: dict[str, Value] = {"block": node.id}
        if by:
            said["tolerated_by"] = by
        if record.message:
            said["message"] = shortened(record.message, PRINTED_CHARS)
        found.append(said)
    return found


def error_view(machine: Machine, place: FindPlace, part: Part | None = None) -> dict[str, Value] | None:
    """Why the run or the task failed: what happened, in which block, where that stands, and what it printed
    last."""
    part = part or whole_run(machine.state.run_id)
    fault = _fault_of(machine, part)
    if fault is None or (fault.code == "cancelled" and fault.message == "cancelled"):
        return None
    error: dict[str, Value] = {"code": fault.code, "message": shortened(fault.message, MESSAGE_CHARS)}
    if fault.address:
        error["block"] = part.step_id(fault.address) if part.covers(fault.address) else fault.address
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


def _fault_of(machine: Machine, part: Part) -> Fault | None:
    visited = None if part.is_run else block_at(machine, part.address)
    if visited is None:
        return machine.state.fault
    record = visited.record
    if record.fault is not None or not failed(record):
        return record.fault
    code = "cancelled" if machine.state.status == "cancelled" else "block_failed"
    return Fault(code, record.message or "no reason was given", address=part.address)


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


def shortened_action(action: dict[str, Value], how: Cut, read: Reader) -> dict[str, Value]:
    """An action with long texts cut; the schema of its result stays whole."""
    path = ("actions", action["step_id"])
    short = dict(action)
    for part in ("instructions", "parameters"):
        short[part] = cut(action[part], (*path, part), how, read)
    return short
