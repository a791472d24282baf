"""`AgentProtocol` serves the agents of runs and tasks: it returns answers, takes results, records heartbeats.

    answer = await agents.next_step("wf_7f3a.analyze.0")                 # with the action for its agent
    await agents.submit("wf_7f3a.analyze.0", {"response": "yes"}, None)

Every method that takes the id of a run also takes the id of a task. A sub-agent sends a heartbeat when it
asks for its next step or submits a result. Reading the status of a task is not a heartbeat.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from workflows_mcp.answers import (
    NEVER_SEEN,
    Answer,
    Cut,
    LastSeen,
    Redact,
    RerunOptions,
    RunView,
    StateSnapshot,
    Target,
    WrittenState,
    all_tasks,
    answer_about,
    answer_when_over,
    given_up_at,
    has_ended,
    is_delegated,
    last_contact,
    open_decisions,
    pending_for,
    question_address,
    reader,
    retry_note,
    run_of,
    run_view_of,
    snapshot_of,
    started_note,
    starter_of,
    state_of,
    target_of,
    task_of,
    value_of,
    whole_run,
    written_state,
)
from workflows_mcp.engines import Engine
from workflows_mcp.errors import InvalidResult, NotExpected, Place, RequestError
from workflows_mcp.limits import Limits
from workflows_mcp.machine import Event, Fault, Identity, Machine, RefusedWhat, RunState
from workflows_mcp.runs.callers import caller
from workflows_mcp.runs.checkpoints import Histories
from workflows_mcp.runs.progress import wait_with_progress
from workflows_mcp.runs.submissions import Completion, Failure, StepFailure, Submission
from workflows_mcp.steps import StepRegistry
from workflows_mcp.values import LEFT_OUT, Value, to_json

ExplainRefusal = Callable[[NotExpected, Answer], NotExpected]
"""Adds the current question to a refusal, with the names of one toolset."""


class AgentProtocol:
    def __init__(
        self,
        engine: Engine,
        histories: Histories,
        registry: StepRegistry,
        limits: Limits,
        *,
        redacted: Callable[[Machine], Redact],
        place: Callable[[Machine, Fault], Place | None],
        redo: Callable[[RunState], Awaitable[RerunOptions | None]],
        refused: Callable[[str, RefusedWhat, str], Awaitable[None]],
        now: Callable[[], float] = time.time,
    ) -> None:
        """`redo` returns how a failed or cancelled run can continue. `refused` records an attempt to do
        something else than the run asks for."""
        self._engine = engine
        self._histories = histories
        self._redo = redo
        self._refused = refused
        self._registry = registry
        self._limits = limits
        self._redacted = redacted
        self._place = place
        self._now = now

    async def answer(
        self,
        workflow_id: str,
        wait_seconds: float = 0.0,
        *,
        at_work: bool = False,
        alone: bool = False,
        patient: bool = False,
        with_checkpoints: bool = False,
    ) -> Answer:
        """Return the answer as soon as its agent has something to do, or it has ended.

        `at_work` includes tasks that sub-agents are working on. `alone`: the agent has no sub-agents.
        `patient`: wait for the decisions of people too. `with_checkpoints` names the checkpoint of each
        question.
        """
        try:
            view = await self.view(workflow_id, wait_seconds, alone=alone, patient=patient)
        except RequestError as error:
            return answer_when_over(workflow_id, error, self._limits)
        if with_checkpoints and view.pending.questions:
            machine, ids = await self._histories.open_questions(view.target.run_id)
            view = self._view_of(machine, view.target, view.last_seen, alone=alone)
            view = replace(view, checkpoint_ids=ids)
        redo = await self._redo(view.machine.state) if view.task is None else None
        answer = self._answer_about(view, at_work=at_work, redo=redo)
        if view.task is None and view.has_ended:
            answer.add_proof(await self._engine.proof(view.target.run_id))
        return answer

    def _answer_about(
        self, view: RunView, *, at_work: bool = False, redo: RerunOptions | None = None
    ) -> Answer:
        def place(fault: Fault) -> Place | None:
            return self._place(view.machine, fault)

        return answer_about(view, self._registry, self._limits, place=place, at_work=at_work, redo=redo)

    async def next_step(
        self, workflow_id: str, wait_seconds: float = 0.0, *, at_work: bool = True, patient: bool = False
    ) -> Answer:
        """Return the current step of a run or task, and record a heartbeat of its agent."""
        try:
            await self.heartbeat(workflow_id)
        except RequestError as error:
            return answer_when_over(workflow_id, error, self._limits)
        return await self.answer(workflow_id, wait_seconds, at_work=at_work, patient=patient)

    async def submit(
        self,
        workflow_id: str,
        result: Any,
        step_id: str | None,
        explain_refusal: ExplainRefusal | None = None,
    ) -> None:
        """Submit the result of a step; a `StepFailure`; or LEFT_OUT, if the agent has written the result.

        With a `step_id`, the same result twice is harmless; so is acknowledging a step that takes no result.
        Raises NotExpected, with the current question, if nothing or something else is asked.
        """
        run_id = run_of(workflow_id)
        try:
            await self.heartbeat(workflow_id)
        except RequestError as error:
            answer_when_over(workflow_id, error, self._limits)  # of an earlier round: the answer says so
            return
        submission = await self._submission(workflow_id, result, step_id)
        by = caller()
        try:
            await self._engine.send(
                run_id, lambda machine, now: _for_current_attempt(submission, machine, workflow_id, now, by)
            )
        except InvalidResult as refusal:
            await self._refused(workflow_id, "result", f"{step_id or 'a result'}: {refusal.message}")
            raise
        except NotExpected as refusal:
            machine = await self._engine.view(run_id)
            target = target_of(machine, workflow_id)
            token = submission.token(machine, workflow_id)
            view = self._view_of(machine, target, NEVER_SEEN)
            if submission.is_harmless(view) or token in machine.state.answer_tokens:
                return
            gate = any(it.step_id.partition("@")[0] == step_id for it in open_decisions(view, self._registry))
            what: RefusedWhat = "gate" if gate else "step"
            await self._refused(workflow_id, what, refusal.message)
            now = self._answer_about(view)
            raise (explain_refusal or _with_current_action)(refusal, now) from None

    async def _submission(self, workflow_id: str, result: Any, step_id: str | None) -> Submission:
        what = (self._registry, self._redacted, step_id, result)
        if isinstance(result, StepFailure):
            return Failure(*what)
        if result is LEFT_OUT and step_id is not None:
            return Completion(*what, await self._written(workflow_id, step_id))
        return Submission(*what)

    async def _written(self, workflow_id: str, step_id: str) -> WrittenState:
        """Return the state paths that agents have written since a step was delivered."""
        run_id = run_of(workflow_id)
        machine = await self._engine.view(run_id)
        try:
            view = self._view_of(machine, target_of(machine, workflow_id), NEVER_SEEN)
            address = question_address(view, step_id)
        except RequestError:
            return WrittenState()
        _, since = await self._engine.journal(run_id, machine.state.frames[address].event)
        return written_state(machine, address, since)

    async def next_target(self, workflow_id: str) -> str:
        """Return the id of what the next answer to this agent is about.

        For a sub-agent that is its own task; for an agent that does the tasks itself, the run.
        """
        run_id = run_of(workflow_id)
        if run_id == workflow_id:
            return run_id
        view = run_view_of(await self._engine.view(run_id))
        names = [name.partition("@")[0] for name in workflow_id.split(".")[1:]]
        around = [view.block_at("/".join(names[:length])) for length in range(1, len(names))]
        delegated = any(
            it is not None and it.node.for_each is not None and it.node.for_each.agent for it in around
        )
        return workflow_id if delegated else run_id

    async def state(
        self, workflow_id: str, *, paths: Sequence[str] = (), offset: int = 0, limit: int | None = None
    ) -> dict[str, Any]:
        view, snapshot = await self._state(workflow_id)
        return state_of(view, snapshot, self._registry, self._limits, paths=paths, offset=offset, limit=limit)

    async def value(self, workflow_id: str, path: str) -> Value:
        view, snapshot = await self._state(workflow_id)
        return value_of(view, snapshot, self._registry, path)

    async def _state(self, workflow_id: str) -> tuple[RunView, StateSnapshot]:
        view = await self.view(workflow_id)
        return view, await asyncio.to_thread(snapshot_of(view).read)

    async def full_id(self, workflow_id: str) -> str:
        """Return the full id of a task that is named in short, such as `wf_1.batch_0`."""
        if run_of(workflow_id) == workflow_id:
            return workflow_id
        try:
            return target_of(await self._engine.view(run_of(workflow_id)), workflow_id).id
        except RequestError:
            return workflow_id

    async def view(
        self, workflow_id: str, wait_seconds: float = 0.0, *, alone: bool = False, patient: bool = False
    ) -> RunView:
        run_id = run_of(workflow_id)
        target = whole_run(run_id)
        if workflow_id != run_id:
            target = target_of(await self._engine.view(run_id), workflow_id)
        last_seen = await self._engine.last_seen(run_id)
        seconds = min(max(wait_seconds, 0.0), self._limits.wait_seconds)
        ready = self._ready(target, last_seen, alone, patient)
        machine = await wait_with_progress(self._engine, run_id, ready, seconds, target=target, now=self._now)
        if any(is_delegated(frame) for frame in machine.state.frames.values()):
            last_seen = await self._engine.last_seen(run_id)  # heartbeats may have come while we waited
            machine = await self._engine.view(run_id)
        found = self._view_of(machine, target_of(machine, workflow_id), last_seen, alone=alone)
        if found.status in ("running", "waiting") and machine.state.parked is None:
            return replace(found, why_not_driven=await self._engine.why_not_driven(run_id))
        return found

    def _view_of(
        self, machine: Machine, target: Target, last_seen: LastSeen, *, alone: bool = False
    ) -> RunView:
        return run_view_of(
            machine, now=self._now(), target=target, last_seen=last_seen, limits=self._limits, alone=alone
        )

    def _ready(
        self, target: Target, last_seen: LastSeen, alone: bool, patient: bool
    ) -> Callable[[RunState], bool]:
        """Return the condition to wait for: its agent has something to do, or it has ended.

        Unless the caller is `patient`, also that only people can continue it."""
        silence_limit = self._limits.action_lease_seconds

        def ready(state: RunState) -> bool:
            if (
                has_ended(state, target)
                or state.parked is not None
                or (not target.is_run and task_of(state, target.address).id != target.id)
            ):
                return True
            if not patient and _only_people_can_continue(state, target):
                return True
            return pending_for(
                state, target, last_seen, now=self._now(), silence_limit=silence_limit, alone=alone
            ).pending

        return ready

    async def heartbeat(self, workflow_id: str) -> None:
        """Record that the agent of a task is alive; the agent of a run has no heartbeat."""
        run_id = run_of(workflow_id)
        if workflow_id == run_id:
            return
        machine = await self._engine.view(run_id)
        target = target_of(machine, workflow_id)
        if has_ended(machine.state, target):
            return
        last_seen, now = await self._engine.last_seen(run_id), self._now()
        if last_contact(machine.state, target, last_seen) is None:
            now = max(now, math.nextafter(given_up_at(machine.state, target, last_seen), math.inf))
            await self._engine.heartbeat(run_id, started_note(target.id), now)
        await self._engine.heartbeat(run_id, target.id, now)

    async def retry_task(self, workflow_id: str) -> Answer:
        """Delegate a task again because its agent is gone; its completed steps are kept.

        The answer is for the agent that starts the sub-agents. Calling this twice is harmless.
        """
        run_id = run_of(workflow_id)
        machine = await self._engine.view(run_id)
        target = target_of(machine, await self.full_id(workflow_id))
        _refuse_retry(machine.state, target)
        last_seen = await self._engine.last_seen(run_id)
        for task in all_tasks(machine.state):
            if target.covers(task.address) and last_contact(machine.state, task, last_seen) is not None:
                await self._engine.heartbeat(run_id, retry_note(task.id), last_seen[task.id])
        around = starter_of(machine.state, target)
        return await self.answer(around.id)


def _only_people_can_continue(state: RunState, target: Target) -> bool:
    """Whether all that is under way waits for decisions of people."""
    kinds = {frame.kind for address, frame in state.frames.items() if target.covers(address)}
    return bool(kinds & {"gate", "budget"}) and kinds <= {"gate", "budget", "call", "each"}


def _with_current_action(refusal: NotExpected, now: Answer) -> NotExpected:
    """Add what is asked now; the caller may be a sub-agent, so tasks to delegate are left out."""
    asked = next((it for it in now.actions if it.delegated is None), None)
    if asked is None:
        return refusal
    shown = to_json(asked.rendered(Cut(now.limits.preview_chars), reader(now.workflow_id)))
    hint = f"what is asked now: {shown}"
    return NotExpected(refusal.message, hint=f"{refusal.hint}\n{hint}" if refusal.hint else hint)


def _for_current_attempt(
    submission: Submission, machine: Machine, workflow_id: str, now: float, by: Identity | None
) -> Event:
    """Bind an answer to the current attempt of its step.

    Otherwise an answer that reaches the driving process late could count for a later attempt.
    """
    event = submission.event(run_view_of(machine, now=now, target=target_of(machine, workflow_id)), now)
    frame = machine.state.frames.get(event.address)
    if frame is None:
        return event
    token = submission.token(machine, workflow_id)
    return msgspec.structs.replace(event, attempt=frame.attempt, token=token, by=by)


def _refuse_retry(state: RunState, task: Target) -> None:
    """Raise RequestError if the task has no agent that could be replaced."""
    if state.status != "running":
        raise RequestError(
            f"the run of the task '{task.id}' has ended: it is {state.status}",
            hint=f"retry the run: control_workflow(workflow_id='{task.run_id}', action='retry')",
            code="nothing_to_retry",
        )
    if has_ended(state, task):
        raise RequestError(
            f"the task '{task.id}' has ended, so no agent is needed for it",
            hint="to run a step of it again, in a new run: "
            f"control_workflow(workflow_id='{task.id}', action='fork', step_id=…)",
            code="nothing_to_retry",
        )
    block = state.frames.get(task.address.rpartition("/")[0])
    if block is None or not is_delegated(block):
        raise RequestError(
            f"the task '{task.id}' has no agent of its own: its steps are asked of '{task.run_id}'",
            hint=f"get_next_step(workflow_id='{task.run_id}') has what is asked now",
            code="nothing_to_retry",
        )
