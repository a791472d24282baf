"""Runs and tasks under way, for the agents that drive them: the part of the service that hands out what is
asked, takes in results, and remembers which sub-agents it has heard of.

Whatever takes the id of a run takes that of a task as well: `wf_7f3a.analyze.0`. Of a sub-agent something is
heard when it asks for its next step or submits a result; whoever only looks at a task is not its agent.
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
    Redo,
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
from workflows_mcp.machine import Answered, Event, Fault, Machine, RunState
from workflows_mcp.runs.progress import wait_with_progress
from workflows_mcp.steps import StepRegistry
from workflows_mcp.values import Value, to_json

Answer = dict[str, Any]
Refused = Callable[[NotExpected, Machine, Target], NotExpected]
"""A refusal with what is asked now, in the words of whoever is to read it."""


class AgentProtocol:
    def __init__(
        self,
        engine: Engine,
        registry: StepRegistry,
        limits: Limits,
        *,
        redacted: Callable[[Machine], Redact],
        place: Callable[[Machine, Fault], Place | None],
        redo: Callable[[str], Awaitable[Redo]],
        now: Callable[[], float] = time.time,
    ) -> None:
        """`redo`: tells what of a run that has failed can be done again."""
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
        """How it stands, as soon as its agent is to do something or it has ended. `at_work`: also the action
        of tasks at which sub-agents are at work; `alone`: there are no sub-agents."""
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

    async def redo_of(self, view: RunView) -> Redo | None:
        failed = view.task is None and view.status == "failed"
        return await self._redo(view.target.run_id) if failed else None

    async def deliver(self, workflow_id: str, detail: Detail = "all") -> Answer:
        """What its agent is to do, again; of a sub-agent something has been heard now."""
        try:
            await self.heartbeat(workflow_id)
        except RequestError as error:
            return _over(workflow_id, error)
        return await self.answer(workflow_id, at_work=True, detail=detail)

    async def step(self, workflow_id: str, wait_seconds: float = 0.0) -> Answer:
        """The same in the words of the toolset `stateful`."""
        try:
            await self.heartbeat(workflow_id)
            view = await self.view(workflow_id, wait_seconds)
        except RequestError as error:
            return in_stateful_words(_over(workflow_id, error))
        place, redo = self.place_in(view.machine), await self.redo_of(view)
        return step_answer(view, self._registry, self._limits, place=place, redo=redo)

    async def submit(
        self, workflow_id: str, result: Any, step_id: str | None, refused: Refused | None = None
    ) -> None:
        """Raises NotExpected with what is asked now, where this is not what is asked for. The same result
        twice is harmless, and so is the acknowledgement of a step that takes no result."""

        def answered(machine: Machine, target: Target, now: float) -> Event:
            clean = self._redacted(machine)
            address, taken = check_result(
                machine, self._registry, step_id, result, clean, target, self._now()
            )
            return Answered(now, address, taken.outputs, taken.ok, taken.message)

        def harmless(machine: Machine, target: Target) -> bool:
            clean = self._redacted(machine)
            if already_answered(machine, self._registry, step_id, result, clean, target):
                return True
            return is_harmless(machine, target, step_id, result)

        await self.send(workflow_id, answered, harmless, refused, said=(step_id, result))

    async def send(
        self,
        workflow_id: str,
        answered: Callable[[Machine, Target, float], Event],
        harmless: Callable[[Machine, Target], bool],
        refused: Refused | None = None,
        *,
        said: tuple[str | None, Value],
    ) -> None:
        """Send what the agent has done; `harmless` tells whether one that is not expected does no harm, and
        `refused` words what else becomes of it. `said`: the step that the agent names, and its result."""
        run_id = run_of(workflow_id)
        try:
            await self.heartbeat(workflow_id)
        except RequestError as error:
            _over(workflow_id, error)  # a task of an earlier round: its agent is told so by the answer
            return
        try:
            await self._engine.send(
                run_id,
                lambda machine, now: _of_this_try(
                    answered, machine, workflow_id, now, self._token(machine, workflow_id, said)
                ),
            )
        except NotExpected as refusal:
            machine = await self._engine.view(run_id)
            target = target_of(machine, workflow_id)
            if harmless(machine, target) or self._token(machine, workflow_id, said) in machine.state.answers:
                return
            raise (refused or self._with_current_action)(refusal, machine, target) from None

    def _token(self, machine: Machine, workflow_id: str, said: tuple[str | None, Value]) -> str:
        """The same for two calls that submit the same for the same step. Secrets are no part of it: a hash
        would let somebody try them out. Empty where the call names no step: it could be the next one."""
        step_id, result = said
        if step_id is None:
            return ""
        submitted = to_json([workflow_id, step_id, self._redacted(machine)(result)])
        return hashlib.blake2b(submitted.encode(), digest_size=9).hexdigest()

    async def next_target(self, workflow_id: str) -> str:
        """What the agent that hands in a result is to hear of: its task, where that was given to an agent of
        its own; else the run, whose agent carries out the tasks as well and needs the next thing to do."""
        run_id = run_of(workflow_id)
        if run_id == workflow_id:
            return run_id
        machine = await self._engine.view(run_id)
        names = [name.partition("@")[0] for name in workflow_id.split(".")[1:]]
        around = [block_at(machine, "/".join(names[:length])) for length in range(1, len(names))]
        handed_out = any(
            it is not None and it.node.for_each is not None and it.node.for_each.agent for it in around
        )
        return workflow_id if handed_out else run_id

    async def state(
        self, workflow_id: str, *, paths: Sequence[str] = (), offset: int = 0, limit: int | None = None
    ) -> dict[str, Any]:
        view = await self.with_fields(await self.view(workflow_id))
        return state_of(view, self._registry, self._limits, paths=paths, offset=offset, limit=limit)

    async def value(self, workflow_id: str, path: str) -> Value:
        view = await self.with_fields(await self.view(workflow_id))
        return value_of(view, self._registry, path)

    async def with_fields(self, view: RunView) -> RunView:
        """With the state of a reactive workflow as it can be read. Computing fields can take long: the run is
        looked at again afterwards, because it may not be while it goes on."""
        parts = parts_of_state(view.machine, view.target.address)
        if parts is None:
            return view
        fields = await asyncio.to_thread(parts.fields)
        if view.machine.state.status == "running":
            view = await self.view(view.target.id, alone=view.alone)
        return replace(view, fields=fields)

    async def full_id(self, workflow_id: str) -> str:
        """The id of a task that may be called by less than that: wf_1.batch_0"""
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
            last_seen = await self._engine.last_seen(run_id)  # meanwhile somebody may have been heard of
            machine = await self._engine.view(run_id)
        target = target_of(machine, workflow_id)
        limits = self._limits
        found = run_view_of(
            machine, now=self._now(), target=target, last_seen=last_seen, limits=limits, alone=alone
        )
        if found.status in ("running", "waiting") and machine.state.parked is None:
            return replace(found, abandoned=await self._engine.abandoned(run_id))
        return found

    def _ready(self, target: Target, last_seen: LastSeen, alone: bool) -> Callable[[RunState], bool]:
        """Whether its agent is to do something, or it has ended, or is over."""
        lease = self._limits.action_lease_seconds

        def ready(state: RunState) -> bool:
            if (
                has_ended(state, target)
                or state.parked is not None
                or (not target.is_run and task_of(state, target.address).id != target.id)
            ):
                return True
            return pending_for(state, target, last_seen, now=self._now(), lease=lease, alone=alone).pending

        return ready

    async def heartbeat(self, workflow_id: str) -> None:
        """Remember that the agent of a task is at work. Of the agent of a run nothing needs to be known."""
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
        """Hand out a task again whose agent is gone; what is done in it stays done. The answer is that of
        whoever starts its agents, with their prompt. Doing it twice is harmless."""
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
        actions = [it for it in actions if "sub_agent_prompt" not in it]  # it may be a sub-agent who asks
        if not actions:
            return refusal
        shown = shortened_action(actions[0], Cut(self._limits.preview_chars), reader(target.id))
        asked = f"what is asked now: {to_json(shown)}"
        return NotExpected(refusal.message, hint=f"{refusal.hint}\n{asked}" if refusal.hint else asked)


def _of_this_try(
    answered: Callable[[Machine, Target, float], Event],
    machine: Machine,
    workflow_id: str,
    now: float,
    token: str,
) -> Event:
    """What the agent has done, for the question as it is asked now: on its way to the process that drives the
    run it must not be taken for an answer to the next one."""
    event = answered(machine, target_of(machine, workflow_id), now)
    if isinstance(event, Answered) and (frame := machine.state.frames.get(event.address)) is not None:
        return msgspec.structs.replace(event, attempt=frame.attempt, token=token)
    return event


def _refuse_retry(state: RunState, task: Target) -> None:
    """Raises RequestError where a task has no agent that another one could replace."""
    if state.status != "running":
        raise RequestError(
            f"the run of the task '{task.id}' has ended: it is {state.status}",
            hint=f"retry the run: control_workflow(workflow_id='{task.run_id}', action='retry')",
            code="nothing_to_retry",
        )
    if has_ended(state, task):
        raise RequestError(
            f"the task '{task.id}' has ended, so no agent is needed for it",
            hint="to do a step of it again, in a new run: "
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


def _over(workflow_id: str, error: RequestError) -> Answer:
    """About a task that is over: its agent has nothing to do any more. Any other error is raised again."""
    if error.code != "task_over":
        raise error
    return over_answer(workflow_id, error.message)
