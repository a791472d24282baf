"""`AgentProtocol` serves the agents of runs and tasks: it returns actions, takes results, records heartbeats.

    answer = await agents.next_step("wf_7f3a.analyze.0")                 # the action for its agent
    await agents.submit("wf_7f3a.analyze.0", {"response": "yes"}, None)

It builds the answers of the toolsets `core` and `stateful`. `StepProtocol` sends its results and heartbeats
through this class, and adds what only the toolset `reactive` has: an answer with one atomic step, completing
a step without a result, and access to the state.

Every method that takes the id of a run also takes the id of a task. A sub-agent sends a heartbeat when it
asks for its next step or submits a result. Reading the status of a task is not a heartbeat.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from workflows_mcp.answers import (
    Cut,
    Detail,
    FindPlace,
    LastSeen,
    Redact,
    RerunOptions,
    RunView,
    Target,
    actions_of,
    all_tasks,
    already_answered,
    answer_about,
    block_at,
    check_result,
    given_up_at,
    has_ended,
    in_stateful_words,
    is_harmless,
    last_contact,
    over_answer,
    parts_of_state,
    pending_for,
    reader,
    retry_note,
    run_of,
    run_view_of,
    shortened_action,
    started_note,
    starter_of,
    state_of,
    step_answer,
    target_of,
    task_of,
    value_of,
    whole_run,
)
from workflows_mcp.engines import Engine
from workflows_mcp.errors import NotExpected, Place, RequestError
from workflows_mcp.limits import Limits
from workflows_mcp.machine import Event, Fault, Machine, RunState, events
from workflows_mcp.runs.progress import wait_with_progress
from workflows_mcp.steps import StepRegistry
from workflows_mcp.values import Value, to_json

Answer = dict[str, Any]
ExplainRefusal = Callable[[NotExpected, Machine, Target], NotExpected]
"""Adds the current question to a refusal, with the names of one toolset."""


class AgentProtocol:
    def __init__(
        self,
        engine: Engine,
        registry: StepRegistry,
        limits: Limits,
        *,
        redacted: Callable[[Machine], Redact],
        place: Callable[[Machine, Fault], Place | None],
        redo: Callable[[RunState], Awaitable[RerunOptions | None]],
        now: Callable[[], float] = time.time,
    ) -> None:
        """`redo` returns how a failed or cancelled run can continue."""
        self._engine = engine
        self._redo = redo
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
        detail: Detail = "all",
    ) -> Answer:
        """Return the answer as soon as its agent has something to do, or it has ended.

        `at_work` includes tasks that sub-agents are working on. `alone`: the agent has no sub-agents.
        """
        try:
            view = await self.view(workflow_id, wait_seconds, alone=alone)
        except RequestError as error:
            return _over(workflow_id, error)
        if view.has_ended and view.task is None and detail == "all":
            view = await self.with_fields(view)
        return answer_about(
            view,
            self._registry,
            self._limits,
            place=self.place_in(view.machine),
            at_work=at_work,
            detail=detail,
            redo=await self.redo_of(view),
        )

    async def redo_of(self, view: RunView) -> RerunOptions | None:
        return await self._redo(view.machine.state) if view.task is None else None

    async def next_step(self, workflow_id: str, detail: Detail = "all") -> Answer:
        """Return the current step of a run or task, and record a heartbeat of its agent."""
        try:
            await self.heartbeat(workflow_id)
        except RequestError as error:
            return _over(workflow_id, error)
        return await self.answer(workflow_id, at_work=True, detail=detail)

    async def step(self, workflow_id: str, wait_seconds: float = 0.0) -> Answer:
        """Return the current step in the shape of the toolset `stateful`."""
        try:
            await self.heartbeat(workflow_id)
            view = await self.view(workflow_id, wait_seconds)
        except RequestError as error:
            return in_stateful_words(_over(workflow_id, error))
        place, redo = self.place_in(view.machine), await self.redo_of(view)
        return step_answer(view, self._registry, self._limits, place=place, redo=redo)

    async def submit(
        self,
        workflow_id: str,
        result: Any,
        step_id: str | None,
        explain_refusal: ExplainRefusal | None = None,
    ) -> None:
        """Submit the result of a step.

        With a `step_id`, the same result twice is harmless; so is acknowledging a step that takes no result.
        Raises NotExpected, with the current question, if nothing or something else is asked.
        """

        def make_event(machine: Machine, target: Target, now: float) -> Event:
            clean = self._redacted(machine)
            address, step_result = check_result(
                machine, self._registry, step_id, result, clean, target, self._now()
            )
            return events.Answered(now, address, step_result.outputs, step_result.ok, step_result.message)

        def harmless(machine: Machine, target: Target) -> bool:
            clean = self._redacted(machine)
            if already_answered(machine, self._registry, step_id, result, clean, target):
                return True
            return is_harmless(machine, target, step_id, result)

        await self.send(workflow_id, make_event, harmless, explain_refusal, submitted=(step_id, result))

    async def send(
        self,
        workflow_id: str,
        make_event: Callable[[Machine, Target, float], Event],
        harmless: Callable[[Machine, Target], bool],
        explain_refusal: ExplainRefusal | None = None,
        *,
        submitted: tuple[str | None, Value],
    ) -> None:
        """Send the event of an agent to the run.

        If the run does not expect it, `harmless` decides whether to ignore it; otherwise NotExpected is
        raised, reworded by `explain_refusal`. `submitted`: the step that the agent names, and its result.
        """
        run_id = run_of(workflow_id)
        try:
            await self.heartbeat(workflow_id)
        except RequestError as error:
            _reraise_unless_task_over(error)  # of an earlier round: the answer says so
            return
        try:
            await self._engine.send(
                run_id,
                lambda machine, now: _for_current_attempt(
                    make_event, machine, workflow_id, now, self._token(machine, workflow_id, submitted)
                ),
            )
        except NotExpected as refusal:
            machine = await self._engine.view(run_id)
            target = target_of(machine, workflow_id)
            token = self._token(machine, workflow_id, submitted)
            if harmless(machine, target) or token in machine.state.answer_tokens:
                return
            raise (explain_refusal or self._with_current_action)(refusal, machine, target) from None

    def _token(self, machine: Machine, workflow_id: str, submitted: tuple[str | None, Value]) -> str:
        """Return the idempotency token of a submission; empty if it names no step.

        Secrets are redacted first: a hash of a secret could be brute-forced. A submission without a step
        could be for the next step, so it has no token.
        """
        step_id, result = submitted
        if step_id is None:
            return ""
        text = to_json([workflow_id, step_id, self._redacted(machine)(result)])
        return hashlib.blake2b(text.encode(), digest_size=9).hexdigest()

    async def next_target(self, workflow_id: str) -> str:
        """Return the id of what the next answer to this agent is about.

        For a sub-agent that is its own task; for an agent that does the tasks itself, the run.
        """
        run_id = run_of(workflow_id)
        if run_id == workflow_id:
            return run_id
        machine = await self._engine.view(run_id)
        names = [name.partition("@")[0] for name in workflow_id.split(".")[1:]]
        around = [block_at(machine, "/".join(names[:length])) for length in range(1, len(names))]
        delegated = any(
            it is not None and it.node.for_each is not None and it.node.for_each.agent for it in around
        )
        return workflow_id if delegated else run_id

    async def state(
        self, workflow_id: str, *, paths: Sequence[str] = (), offset: int = 0, limit: int | None = None
    ) -> dict[str, Any]:
        view = await self.with_fields(await self.view(workflow_id))
        return state_of(view, self._registry, self._limits, paths=paths, offset=offset, limit=limit)

    async def value(self, workflow_id: str, path: str) -> Value:
        view = await self.with_fields(await self.view(workflow_id))
        return value_of(view, self._registry, path)

    async def with_fields(self, view: RunView) -> RunView:
        """Add the fields of a reactive state to the view.

        Computing them can take long, so a running run is read again afterwards.
        """
        parts = parts_of_state(view.machine, view.target.address)
        if parts is None:
            return view
        fields = await asyncio.to_thread(parts.fields)
        if view.machine.state.status == "running":
            view = await self.view(view.target.id, alone=view.alone)
        return replace(view, fields=fields)

    async def full_id(self, workflow_id: str) -> str:
        """Return the full id of a task that is named in short, such as `wf_1.batch_0`."""
        if run_of(workflow_id) == workflow_id:
            return workflow_id
        try:
            return target_of(await self._engine.view(run_of(workflow_id)), workflow_id).id
        except RequestError:
            return workflow_id

    async def view(self, workflow_id: str, wait_seconds: float = 0.0, *, alone: bool = False) -> RunView:
        run_id = run_of(workflow_id)
        target = whole_run(run_id)
        if workflow_id != run_id:
            target = target_of(await self._engine.view(run_id), workflow_id)
        last_seen = await self._engine.last_seen(run_id)
        seconds = min(max(wait_seconds, 0.0), self._limits.wait_seconds)
        ready = self._ready(target, last_seen, alone)
        machine = await wait_with_progress(self._engine, run_id, ready, seconds, target=target, now=self._now)
        if any(frame.agent for frame in machine.state.frames.values()):
            last_seen = await self._engine.last_seen(run_id)  # heartbeats may have come while we waited
            machine = await self._engine.view(run_id)
        target = target_of(machine, workflow_id)
        limits = self._limits
        found = run_view_of(
            machine, now=self._now(), target=target, last_seen=last_seen, limits=limits, alone=alone
        )
        if found.status in ("running", "waiting") and machine.state.parked is None:
            return replace(found, why_not_driven=await self._engine.why_not_driven(run_id))
        return found

    def _ready(self, target: Target, last_seen: LastSeen, alone: bool) -> Callable[[RunState], bool]:
        """Return the condition to wait for: its agent has something to do, or it has ended."""
        silence_limit = self._limits.action_lease_seconds

        def ready(state: RunState) -> bool:
            if (
                has_ended(state, target)
                or state.parked is not None
                or (not target.is_run and task_of(state, target.address).id != target.id)
            ):
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

    async def retry_task(self, workflow_id: str, detail: Detail = "all") -> Answer:
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
        return await self.answer(around.id, detail=detail)

    def place_in(self, machine: Machine) -> FindPlace:
        return lambda fault: self._place(machine, fault)

    def _with_current_action(self, refusal: NotExpected, machine: Machine, target: Target) -> NotExpected:
        view = run_view_of(machine, now=self._now(), target=target)
        actions = actions_of(view, self._registry) if view.pending.questions else []
        actions = [it for it in actions if "sub_agent_prompt" not in it]  # the caller may be a sub-agent
        if not actions:
            return refusal
        shown = shortened_action(actions[0], Cut(self._limits.preview_chars), reader(target.id))
        asked = f"what is asked now: {to_json(shown)}"
        return NotExpected(refusal.message, hint=f"{refusal.hint}\n{asked}" if refusal.hint else asked)


def _for_current_attempt(
    make_event: Callable[[Machine, Target, float], Event],
    machine: Machine,
    workflow_id: str,
    now: float,
    token: str,
) -> Event:
    """Bind an answer to the current attempt of its step.

    Otherwise an answer that reaches the driving process late could count for a later attempt.
    """
    event = make_event(machine, target_of(machine, workflow_id), now)
    if isinstance(event, events.Answered) and (frame := machine.state.frames.get(event.address)) is not None:
        return msgspec.structs.replace(event, attempt=frame.attempt, token=token)
    return event


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
    if block is None or not block.agent:
        raise RequestError(
            f"the task '{task.id}' has no agent of its own: its steps are asked of '{task.run_id}'",
            hint=f"get_next_step(workflow_id='{task.run_id}') has what is asked now",
            code="nothing_to_retry",
        )


def _reraise_unless_task_over(error: RequestError) -> None:
    """Re-raise an error, unless it says that the task is one of an earlier round."""
    if error.code != "task_over":
        raise error


def _over(workflow_id: str, error: RequestError) -> Answer:
    """Return the answer about a task of an earlier round; re-raise any other error."""
    _reraise_unless_task_over(error)
    return over_answer(workflow_id, error.message)
