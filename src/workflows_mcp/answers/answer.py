"""The answer about a run or a task: one shape for every tool, without empty fields.

    {"workflow_id": "wf_7f3a", "status": "pending_action", "action": {…}, "progress": {"done": 3, "total": 9},
     "next": "submit_result(workflow_id='wf_7f3a', step_id='approve', result=…)"}

Building it reads the run and changes nothing. The caller passes `place`, which finds a fault in its file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal

import msgspec

from workflows_mcp.answers.actions import Action, actions_of
from workflows_mcp.answers.decisions import OpenDecision, open_decisions
from workflows_mcp.answers.previews import Cut, Reader, cut, reader, shortened, within
from workflows_mcp.answers.progress import (
    PRINTED_CHARS,
    FailedBlock,
    failed_blocks,
    failed_for_good,
    progress_of,
    steps_that_follow,
)
from workflows_mcp.answers.run_view import RunView
from workflows_mcp.answers.state import StateSnapshot, snapshot_of, state_address
from workflows_mcp.answers.why import TELL_USER, not_driven, retry_call, why
from workflows_mcp.errors import Place, RequestError
from workflows_mcp.limits import DEFAULT_LIMITS, Limits
from workflows_mcp.machine import Fault, failed, short_proof
from workflows_mcp.plan import Call, Do
from workflows_mcp.steps import StepRegistry
from workflows_mcp.values import Value

# The next call
#
# submit_result(workflow_id='wf_1', step_id='approve', result=…)
# get_workflow_status(workflow_id='wf_1') waits for it; then 'deploy' if ${inputs.publish}, 'notify'
# control_workflow(workflow_id='wf_1', action='retry') re-runs only what failed, in a new run

_FORKS = 6
NOTHING_LEFT = "nothing: reply with the status"
"""For the agent of a task that has ended."""


@dataclass(frozen=True, slots=True)
class RerunOptions:
    """How an ended run can continue."""

    can_retry: bool
    continued_as: str | None
    """The run that a retry has made from it."""


def next_call(view: RunView, actions: list[Action], redo: RerunOptions | None = None) -> str:
    """Return the exact call that continues a run or a task."""
    workflow_id = view.target.id
    status = f"get_workflow_status(workflow_id='{workflow_id}')"
    if view.has_ended:
        return next_after_end(view, redo)
    if view.is_parked and not view.under_way("budget"):
        return f"control_workflow(workflow_id='{view.target.run_id}', action='resume')"
    if not actions and view.waits_for_people:
        wait = f"get_workflow_status(workflow_id='{workflow_id}', wait_seconds=30)"
        return f"{TELL_USER}; then {wait} waits for it"
    if not actions:
        tasks = [task for it in view.pending.delegations for task in it.tasks if task.standing == "at work"]
        gone = f"; if its agent is gone: {retry_call(tasks[0].target.id)}" if tasks else ""
        return f"{status} waits for it{gone}"
    first = f"{TELL_USER}; " if view.waits_for_people else ""
    if actions[0].delegated is not None:
        return f"{first}when the sub-agents have ended: {status}"
    call = f"submit_result(workflow_id='{workflow_id}', step_id='{actions[0].step_id}', result=…)"
    return first + (f"{call}, and so for each of more_actions" if len(actions) > 1 else call)


def next_after_end(view: RunView, redo: RerunOptions | None) -> str:
    """Return the exact calls that continue an ended run, or read its result."""
    if view.task is not None:
        return NOTHING_LEFT + (" and the error" * (view.status == "failed"))
    run_id = view.target.id
    control = f"control_workflow(workflow_id='{run_id}', action="
    ways = []
    if redo is not None and redo.continued_as:
        new = redo.continued_as
        ways.append(f"continued as {new}: get_workflow_status(workflow_id='{new}')")
    elif view.status == "cancelled":
        ways.append(f"{control}'retry') continues where it was cancelled, in a new run")
    elif view.status == "failed" and (redo is None or redo.can_retry):
        ways.append(f"{control}'retry') re-runs only what failed, in a new run")
    elif view.status == "completed":
        ways.append(f"nothing; get_workflow_state(workflow_id='{run_id}') has the details and step ids")
    if view.status != "cancelled" and (steps := _steps_to_redo(view)):
        if view.status == "failed" and not ways:
            ways.append(f"{control}'retry', definition=…) keeps what was done, after you fixed the workflow")
        named = ", ".join(f"'{it}'" for it in steps)
        ways.append(f"{control}'fork', step_id=…) redoes one of these steps and what follows it: {named}")
    return "; ".join(ways) or "fix the workflow or its inputs, and start it again"


def _steps_to_redo(view: RunView) -> list[str]:
    """Return the last completed steps of the outermost workflow, in the order in which they ended."""
    completed = [
        (record.completed_at or 0.0, node.id)
        for node, record in view.blocks_of_run()
        if record.status == "completed" and (node.for_each is not None or isinstance(node.do, Do | Call))
    ]
    return [name for _, name in sorted(completed, key=itemgetter(0))][-_FORKS:]


# The answer

MESSAGE_CHARS = 2000
STATE_SHARE = 8
"""The fraction of the usual length that the state gets beside a result."""

FindPlace = Callable[[Fault], Place | None]
Detail = Literal["step", "status", "all"]
"""How much an answer says. `step`: what an agent needs to drive the run; `status`: also progress and why it
waits; `all`: for programs, also every schema and the final state."""


class RunError(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a run or a task failed."""

    code: str
    message: str
    block: str = ""
    place: str = ""
    line: str = ""
    """The line of the definition at this place."""
    hint: str = ""
    printed: str = ""
    """The last output of the block."""

    def rendered(self) -> dict[str, Any]:
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return fields


class Timer(msgspec.Struct, frozen=True):
    """A wait that is under way while the agent has nothing to do."""

    step_id: str
    duration: float | None
    seconds_left: float
    message: Value


class Answer(msgspec.Struct, kw_only=True):
    """What is known about a run or a task, and what its agent does next: whole values, nothing cut.

    `rendered` is the shape of the core; the other toolsets translate it (`mcp_server/compat`).
    """

    workflow_id: str
    status: str
    workflow: str = ""
    limits: Limits = DEFAULT_LIMITS
    is_task: bool = False
    has_ended: bool = False
    is_parked: bool = False
    messages: list[str] = []
    actions: list[Action] = []
    at_work: bool = False
    """Whether the actions include tasks that sub-agents are working on."""
    delegating: list[str] = []
    """The steps whose tasks sub-agents perform."""
    timer: Timer | None = None
    progress: dict[str, Value] | None = None
    why: str = ""
    """Why it has not ended; of a task that was skipped, the reason."""
    why_beside: str = ""
    """The part of `why` that the actions do not show."""
    not_driven: str = ""
    """That no server continues it, and how to change that."""
    doomed: str = ""
    """The failed block that makes an unfinished run fail in the end."""
    is_sequence: bool = False
    result: Value = None
    """The result of a sequence."""
    outputs: dict[str, Value] | None = None
    """The outputs so far; None if they are not known any more."""
    state: StateSnapshot = StateSnapshot()
    """The state that the agent reads and writes; computed fields are evaluated when it is read."""
    failed_blocks: list[FailedBlock] = []
    error: RunError | None = None
    next: str = ""
    """The exact call that continues it."""
    following: str = ""
    """The steps after the running ones, each with its condition."""
    forked_from: str = ""
    proof: str = ""
    """The first digits of the last hash of its journal, if the run has ended."""
    decisions: list[OpenDecision] = []
    """What only a person can decide now."""

    @property
    def reason(self) -> str:
        """Why it has not ended, and that no server continues it if so."""
        return "; ".join(it for it in (self.why, self.not_driven) if it)

    @property
    def delegates(self) -> bool:
        return bool(self.actions) and self.actions[0].delegated is not None

    def add_proof(self, head: str) -> None:
        """Name the report of a run that has ended, with the hash that the client can compare later."""
        self.proof = short_proof(head)
        expect = f" --expect {self.proof}" if self.proof else ""
        self.next += f"; workflows-mcp report {self.workflow_id}{expect} shows who did what"

    def rendered(self, detail: Detail = "all", *, with_result: bool | None = None) -> dict[str, Any]:
        """Return the answer of the core, cut to the limits.

        `all` can evaluate computed fields, which can be slow. `with_result` includes the result; the agent
        of a task has it already.
        """
        if with_result is None:
            with_result = not self.is_task or detail == "all"
        return within(self.limits, lambda how: self._rendered(how, detail, with_result))

    def _rendered(self, how: Cut, detail: Detail, with_result: bool) -> dict[str, Any]:
        read = reader(self.workflow_id)
        answer: dict[str, Any] = {"workflow_id": self.workflow_id}
        if detail != "step" and self.workflow:
            answer["workflow"] = self.workflow
        answer["status"] = self.status
        if self.messages:
            answer["messages"] = cut(self.messages, ("messages",), how, read)
        shown = self.actions[: how.items + 1]
        if shown:
            brief = detail != "all"
            first, *more = [
                it.rendered(how, read, brief=brief and not (self.at_work and it.delegated)) for it in shown
            ]
            answer["action"] = first
            if more:
                answer["more_actions"] = more
        if self.decisions:
            answer["decisions"] = cut([it.rendered() for it in self.decisions], ("decisions",), how, read)
        if self.progress is not None and (detail != "step" or not (self.actions or self.is_task)):
            answer["progress"] = self.progress
        if reasons := self._reasons(detail, len(self.actions) - len(shown)):
            answer["why"] = "; ".join(reasons)
        if self.has_ended:
            if with_result:
                answer |= self._given(how, read, with_state=detail == "all")
            if self.failed_blocks:
                failures = msgspec.to_builtins(self.failed_blocks)
                answer["failed_blocks"] = cut(failures, ("failed_blocks",), how, read)
            if self.error is not None:
                answer["error"] = self.error.rendered()
            if self.proof and detail == "all":
                answer["proof"] = self.proof
        answer["next"] = self.next
        if detail != "step" and not self.delegates and self.following:
            answer["next"] += f"; then {self.following}"
        if self.forked_from:
            answer["forked_from"] = self.forked_from
        return answer

    def _reasons(self, detail: Detail, left_out: int) -> list[str]:
        if self.has_ended:
            return [self.why] if self.why else []
        reasons = []
        if detail == "all" or not self.actions:
            reasons.append(self.reason)
        elif detail == "status":
            reasons += [it for it in (self.why_beside, self.not_driven) if it]
        if left_out:
            reasons.append(f"{left_out} more actions are shown when these have been answered")
        return reasons

    def _given(self, how: Cut, read: Reader, *, with_state: bool) -> dict[str, Value]:
        """Return the result: the value and the state of a sequence, or the outputs."""
        completed = self.status == "completed"
        if not self.is_sequence:
            given = bool(self.outputs) or (completed and self.outputs is not None)
            return {"outputs": cut(self.outputs, ("outputs",), how, read)} if given else {}
        if not completed:
            return {}
        found: dict[str, Value] = {}
        if self.result is not None or with_state:
            found["result"] = cut(self.result, ("result",), how, read)
        if not self.is_task and with_state:
            shown = how if self.result is None else Cut(how.characters // STATE_SHARE, how.items)
            found["state"] = cut(self.state.flat, self.state.prefix, shown, read)
        return found


def answer_about(
    view: RunView,
    registry: StepRegistry,
    limits: Limits,
    *,
    place: FindPlace,
    at_work: bool = False,
    redo: RerunOptions | None = None,
) -> Answer:
    """Return the answer about a run or a task.

    `at_work` includes tasks that sub-agents are working on, for an agent that has lost its action.
    """
    scope, task, ended = view.scope, view.task, view.has_ended
    actions = [] if ended else actions_of(view, registry, at_work=at_work)
    skipped = task is not None and ended and task.record.status == "skipped"
    answer = Answer(
        workflow_id=view.target.id,
        status=view.status,
        workflow=view.workflow,
        limits=limits,
        is_task=task is not None,
        has_ended=ended,
        is_parked=view.is_parked,
        messages=view.messages,
        actions=actions,
        at_work=at_work,
        delegating=[view.target.step_id(it.address) for it in view.pending.delegations],
        timer=_timer(view),
        is_sequence=view.is_sequence,
        result=scope.result if scope is not None else None,
        outputs=view.outputs,
        state=snapshot_of(view, state_address(view)),
        next=next_call(view, actions, redo),
        following=steps_that_follow(view),
        progress=progress_of(view),
        failed_blocks=failed_blocks(view),
        decisions=[] if ended else open_decisions(view, registry),
    )
    if not ended:
        answer.why, answer.why_beside = why(view), why(view, brief=True)
        answer.not_driven, answer.doomed = not_driven(view), failed_for_good(view)
    elif skipped and task is not None:
        answer.why = f"skipped: {task.record.message}"
    if ended:
        answer.error = error_of_run(view, place)
    return answer


def answer_when_over(workflow_id: str, error: RequestError, limits: Limits) -> Answer:
    """Return the answer about a task of an earlier round; re-raise any other error."""
    if error.code != "task_over":
        raise error
    return Answer(
        workflow_id=workflow_id,
        status="completed",
        limits=limits,
        is_task=True,
        has_ended=True,
        why=error.message,
        next=NOTHING_LEFT,
    )


def _timer(view: RunView) -> Timer | None:
    waits = view.under_way("wait")
    if view.status != "waiting" or not waits:
        return None
    address, frame = waits[0]
    visited = view.block_at(address)
    left = round(max((frame.deadline or 0.0) - view.now, 0.0), 3)
    message = visited.record.inputs.get("message") if visited is not None else None
    return Timer(view.target.step_id(address), frame.timeout, left, message)


def error_of_run(view: RunView, place: FindPlace) -> RunError | None:
    """Return why the run or the task failed: code, message, block, place, and last output."""
    target, fault = view.target, _fault_of(view)
    if fault is None or (fault.code == "cancelled" and fault.message == "cancelled"):
        return None
    where = place(fault)
    line = where.excerpt()[0].strip() if where is not None and where.text.strip() else ""
    return RunError(
        fault.code,
        shortened(fault.message, MESSAGE_CHARS),
        target.step_id(fault.address) if fault.address and target.covers(fault.address) else fault.address,
        str(where) if where is not None else "",
        line,
        fault.hint,
        _printed(view, fault.address),
    )


def _fault_of(view: RunView) -> Fault | None:
    if view.task is None:
        return view.state.fault
    record = view.task.record
    if record.fault is not None or not failed(record):
        return record.fault
    code = "cancelled" if view.state.status == "cancelled" else "block_failed"
    return Fault(code, record.message or "no reason was given", address=view.target.address)


def _printed(view: RunView, address: str) -> str:
    visited = view.block_at(address) if address else None
    if visited is None:
        return ""
    for stream in ("stderr", "stdout"):
        text = visited.record.outputs.get(stream)
        if isinstance(text, str) and text.strip():
            text = text.rstrip()
            return text if len(text) <= PRINTED_CHARS else "…" + text[-PRINTED_CHARS:]
    return ""
