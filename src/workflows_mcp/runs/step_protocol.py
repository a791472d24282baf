"""`StepProtocol` serves the toolset `reactive`: one atomic step at a time, and the state.

    answer = await steps.start("deploy", {"env": "prod"}, 30)
    answer = await steps.complete_step("wf_7f3a", "approve", result="yes")

It builds the answers of that toolset, reads and updates the state, and continues runs in new conversations.
Results and heartbeats go through `AgentProtocol`, which answers the toolsets `core` and `stateful` and does
not know state updates. Only here can an agent write a result to the state with `update`, and then complete
the step without one.

Every method that takes the id of a run also takes the id of a task, or the id of a run and the name of a
task.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from workflows_mcp.answers import (
    DELEGATED,
    REACTIVE,
    CheckpointId,
    Dependencies,
    FlatState,
    Redact,
    RunView,
    StepView,
    Target,
    Visited,
    WrittenState,
    block_at,
    blocks_of,
    check_result,
    failed_outputs,
    gather,
    is_harmless,
    joined,
    over,
    parse_checkpoint_id,
    prompt_for_task,
    question_address,
    question_id,
    read_updates,
    rendered,
    run_of,
    run_view_of,
    state_address,
    state_alone,
    step_view_of,
    target_of,
    trial_of,
    values_at,
)
from workflows_mcp.engines import Engine
from workflows_mcp.errors import InvalidResult, NotExpected, RequestError, UnknownRun
from workflows_mcp.limits import Limits
from workflows_mcp.machine import (
    TERMINAL,
    Event,
    Machine,
    Mark,
    events,
    iso,
)
from workflows_mcp.plan import CONTEXT_FULL, Plan
from workflows_mcp.runs.agent_protocol import AgentProtocol
from workflows_mcp.runs.checkpoints import Histories
from workflows_mcp.runs.redo import CheckpointResume, ConversationResume
from workflows_mcp.steps import StepRegistry
from workflows_mcp.values import LEFT_OUT, Value, to_json

Answer = dict[str, Any]
FAILED = "the agent reports that it failed"
_ENDED_AS = {"success": "completed", "failed": "failed", "cancelled": "cancelled"}


class StepProtocol:
    def __init__(
        self,
        engine: Engine,
        agents: AgentProtocol,
        histories: Histories,
        checkpoint_resume: CheckpointResume,
        registry: StepRegistry,
        limits: Limits,
        *,
        begin: Callable[[str, dict[str, Value] | None], Awaitable[str]],
        plan_of: Callable[[str], Plan],
        cancel: Callable[[str], Awaitable[Answer]],
        redacted: Callable[[Machine], Redact],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self._agents = agents
        self._histories = histories
        self._checkpoint_resume = checkpoint_resume
        self._conversation_resume = ConversationResume(engine)
        self._registry = registry
        self._limits = limits
        self._begin = begin
        self._plan_of = plan_of
        self._cancel = cancel
        self._redacted = redacted
        self._now = now

    # One step after the other

    async def start(self, workflow: str, inputs: dict[str, Value] | None, wait_seconds: float) -> Answer:
        run_id = await self._begin(workflow, inputs)
        return await self._answer(run_id, wait_seconds, first={"workflow_id": run_id}, with_state=True)

    async def next_step(self, workflow_id: str, task_id: str | None, wait_seconds: float) -> Answer:
        """Return the next step for the agent, as soon as there is one; safe to repeat."""
        target_id = await self._agents.full_id(joined(workflow_id, task_id))
        try:
            await self._agents.heartbeat(target_id)
        except RequestError as error:
            return rendered(_over(target_id, error), self._limits)
        return await self._answer(target_id, wait_seconds)

    async def complete_step(
        self,
        workflow_id: str,
        step_id: str,
        *,
        status: Literal["success", "failed"] = "success",
        result: Any = LEFT_OUT,
        error: str = "",
        task_id: str | None = None,
        wait_seconds: float = 0.0,
    ) -> Answer:
        """Complete a step, with success or failure.

        Raises NotExpected, with the current step, if this step is not asked; InvalidResult if its result is
        missing or does not fit.
        """
        target_id = await self._agents.full_id(joined(workflow_id, task_id))
        done = True
        if status == "failed":
            await self._fail_step(target_id, step_id, error)
        elif result is not LEFT_OUT:
            await self._agents.submit(target_id, result, step_id, self._refused)
        else:
            done = await self._complete_without_result(target_id, step_id)
        next_id = await self._agents.next_target(target_id)
        return await self._answer(next_id, wait_seconds, first={"success": done}, brief=True)

    async def _fail_step(self, workflow_id: str, step_id: str, error: str) -> None:
        def answered(machine: Machine, target: Target, now: float) -> Event:
            address = question_address(machine, target, step_id, self._now())
            visited = block_at(machine, address)
            assert visited is not None
            message = self._redacted(machine)(error) or FAILED
            if machine.state.frames[address].after_interruption:
                return events.Answered(now, address, {"decision": "fail"})
            return events.Answered(now, address, failed_outputs(visited), ok=False, message=message)

        def harmless(machine: Machine, target: Target) -> bool:
            visited = _step_named(machine, target, step_id)
            message = self._redacted(machine)(error) or FAILED
            return visited is not None and visited.record.message == message

        submitted = (step_id, ["failed", error])
        await self._agents.send(workflow_id, answered, harmless, self._refused, submitted=submitted)

    async def _complete_without_result(self, workflow_id: str, step_id: str) -> bool:
        """Complete a step without a result; False if it still waits for delegated tasks."""
        written = await self._written(workflow_id, step_id)

        def answered(machine: Machine, target: Target, now: float) -> Event:
            address = question_address(machine, target, step_id, self._now())
            visited = block_at(machine, address)
            assert visited is not None
            scope, _ = machine.locate(address)
            if scope.reactive is None or machine.state.frames[address].after_interruption:
                clean = self._redacted(machine)
                _, step_result = check_result(
                    machine, self._registry, step_id, {}, clean, target, self._now()
                )
                return events.Answered(now, address, step_result.outputs, step_result.ok, step_result.message)
            if missing := written.missing(visited):
                raise _result_needed(step_id, missing)
            return events.Answered(now, address, failed_outputs(visited), written_by_agent=True)

        def harmless(machine: Machine, target: Target) -> bool:
            visited = _step_named(machine, target, step_id)
            if visited is not None and visited.record.written_by_agent:
                return True
            return is_harmless(machine, target, step_id, {})

        await self._agents.send(
            workflow_id, answered, harmless, self._refused, submitted=(step_id, ["completed"])
        )
        machine = await self._engine.view(run_of(workflow_id))
        try:
            visited = _step_named(machine, target_of(machine, workflow_id), step_id)
        except RequestError:  # the task is over: the run has started its step again
            return True
        frame = machine.state.frames.get(visited.address) if visited is not None else None
        return frame is None or not frame.agent

    async def _written(self, workflow_id: str, step_id: str) -> WrittenState:
        """Return the state paths that agents have written since a step was delivered."""
        run_id = run_of(workflow_id)
        machine = await self._engine.view(run_id)
        try:
            address = question_address(machine, target_of(machine, workflow_id), step_id, self._now())
        except RequestError:
            return WrittenState()
        frame, home = machine.state.frames[address], machine.locate(address)[0].reactive
        shared = {it for it in ("", *_around(address)) if machine.reactive_state_at(it) is home}
        _, since = await self._engine.journal(run_id, frame.event)
        return WrittenState(
            [
                path
                for it in since
                if isinstance(it, events.StateUpdated) and it.address in shared
                for path, *_ in it.changes
            ]
        )

    # In another conversation

    async def resume(self, workflow_id: str, wait_seconds: float) -> Answer:
        """Continue a run in a new conversation, and return what its agent needs to know."""
        if parse_checkpoint_id(workflow_id) is not None:
            run_id, _ = await self._checkpoint_resume.resume(workflow_id)
            await self._engine.ensure_driven(run_id)
        else:
            run_id = await self._conversation_resume.resume(run_of(workflow_id))
        first: Answer = {"workflow_id": run_id, "workflow": ""}
        if run_id != run_of(workflow_id):
            first["resumed_from"] = workflow_id
        return await self._answer(run_id, wait_seconds, first=first, with_state=True, at_work=True)

    async def checkpoint(
        self, workflow_id: str, reason: str, step_id: str | None, *, park: bool = False
    ) -> Answer:
        """Mark the current position, to resume from it later.

        If the reason is a full context and the workflow has steps for that case, they run and the run is
        parked; `park` parks it in any case. Raises NotExpected if the run has ended.
        """
        run_id = run_of(workflow_id)
        made: list[Mark] = []

        def marked(machine: Machine, now: float) -> Event:
            clean, step = self._redacted(machine), step_id or _asked_first(machine, self._now())
            plan = machine.plan_named(machine.state.workflow)
            full = park or (bool(plan.on_context_full) and "context" in reason.lower())
            made[:] = [Mark(machine.state.events, now, clean(reason), clean(step))]
            return (events.ContextFull if full else events.Marked)(now, made[0].reason, made[0].step)

        await self._engine.send(run_id, marked)
        machine = await self._engine.view(run_id)
        mark = next(it for it in machine.state.marks if _follows(it, made[0]))
        checkpoint_id = str(CheckpointId(run_id, mark.event))
        own = f"{CONTEXT_FULL}/"
        messages = [it.text for it in machine.state.messages if it.address.startswith(own)]
        return {
            **({"messages": messages} if messages else {}),
            "checkpoint_id": checkpoint_id,
            "state_path": f"workflow_state_read(workflow_id='{checkpoint_id}')",
            "message": "All progress is kept, up to the last completed step. To continue in a new "
            f"conversation: workflow_resume(workflow_id='{run_id}'), or /workflow resume {run_id}. To return "
            f"to this position later: workflow_resume(workflow_id='{checkpoint_id}').",
        }

    async def complete(self, workflow_id: str, status: Literal["success", "failed", "cancelled"]) -> Answer:
        """Return the final state of a run; the status `cancelled` cancels it first."""
        run_id = run_of(workflow_id)
        machine = await self._engine.view(run_id)
        if status == "cancelled" and machine.state.status in ("running", "cancelled"):
            await self._cancel(workflow_id)
        view = await self._agents.view(workflow_id)
        step_view = self._step_view(view)
        state = await asyncio.to_thread(gather(view).read)
        answer: Answer = {"success": step_view.status == _ENDED_AS[status], "status": step_view.status}
        if not answer["success"]:
            answer["why"] = _why_not(step_view, status)
        return {**answer, "final_state": state_alone(state, self._limits, step_view.workflow_id)}

    async def sub_agent_prompt(
        self, workflow_id: str, task_id: str | None, way: Literal["core", "reactive", "graph"]
    ) -> str:
        """Return the prompt for the sub-agent of a task, in the words of its toolset."""
        if way == "graph":
            hint = "enable the toolset core or reactive as well"
            raise RequestError("the toolset graph alone has no tools to perform a task", hint=hint)
        target_id = await self._agents.full_id(joined(workflow_id, task_id))
        view = await self._agents.view(target_id)
        if view.task is None:
            raise RequestError(
                f"'{target_id}' is a run, not a task",
                hint="give the id of one of its tasks",
                code="unknown_task",
            )
        return prompt_for_task(view, in_core_words=way == "core")

    # The state

    async def read(self, workflow_id: str, paths: Sequence[str], task_id: str | None) -> dict[str, Value]:
        """Return the state by field names, or the values at `paths`; also of a checkpoint."""
        if (checkpoint := parse_checkpoint_id(workflow_id)) is not None:
            await self._histories.find(workflow_id)
            machine = await self._histories.state_at(checkpoint)
            target_id = checkpoint.run_id
            view = run_view_of(machine, now=self._now(), limits=self._limits)
        else:
            target_id = await self._agents.full_id(joined(workflow_id, task_id))
            view = await self._agents.view(target_id)
        state = await asyncio.to_thread(gather(view, state_address(view)).read)
        if not paths:
            return state_alone(state, self._limits, target_id)
        return values_at(state, paths, self._limits, state.reader(target_id))

    async def update(
        self, workflow_id: str, updates: Sequence[dict[str, Any]], task_id: str | None
    ) -> Answer:
        """Make all of the updates, or none: then raise RequestError that names the wrong one."""
        target_id = await self._agents.full_id(joined(workflow_id, task_id))
        changes = read_updates(updates)
        machine = await self._engine.view(run_of(target_id))
        address = state_address(run_view_of(machine, now=self._now(), target=target_of(machine, target_id)))
        trial = trial_of(machine, address, changes, self._redacted(machine))
        await asyncio.to_thread(trial.check)
        token = os.urandom(8).hex()

        def updated(machine: Machine, now: float) -> Event:
            trial.refuse_wrong(machine)
            return events.StateUpdated(now, trial.changes, address, token)

        await self._engine.send(run_of(target_id), updated)
        machine = await self._engine.view(run_of(target_id))
        changed, errors = await asyncio.to_thread(trial.changed_in(machine))
        fields = FlatState(changed, changed)
        answer: Answer = {"success": True, "computed": state_alone(fields, self._limits, target_id)}
        return {**answer, "errors": errors} if errors else answer

    async def dependencies(self, workflow_id: str, field: str) -> dict[str, Value]:
        """Return what a field depends on, in a run, a task, or a workflow given by name."""
        try:
            machine = await self._engine.view(run_of(workflow_id))
        except UnknownRun:
            return Dependencies(self._plan_of(workflow_id)).of(field)
        view = run_view_of(machine, now=self._now(), target=target_of(machine, workflow_id))
        return Dependencies(machine.plan_named(view.workflow)).of(field)

    # Inside

    async def _answer(
        self,
        workflow_id: str,
        wait_seconds: float,
        *,
        first: Answer | None = None,
        with_state: bool = False,
        at_work: bool = False,
        brief: bool = False,
    ) -> Answer:
        try:
            view = await self._agents.view(workflow_id, 0.0 if at_work else wait_seconds)
            if at_work and not view.pending.delegations and wait_seconds:
                view = await self._agents.view(workflow_id, wait_seconds)
        except RequestError as error:
            return rendered(_over(workflow_id, error), self._limits, first=first)
        step_view = self._step_view(view, at_work=at_work)
        if first is not None and "workflow" in first:
            checkpoint = _last_checkpoint(view, step_view)
            first = {**first, "workflow": step_view.workflow, "last_checkpoint": checkpoint}
        if not with_state:
            return rendered(step_view, self._limits, first=first, brief=brief)
        gathered = gather(view, state_address(view))
        parts = _parts_of_resume(view) if at_work else None
        if parts is None:
            state = await asyncio.to_thread(gathered.read)
            return rendered(step_view, self._limits, first=first, state=state)
        first = {**(first or {}), **_about(view, parts)}
        if not parts & _STATES:
            return rendered(step_view, self._limits, first=first)
        state = await asyncio.to_thread(gathered.read)
        if not parts >= _STATES:
            computed = view.machine.plan_named(view.workflow).computed
            wanted = "computed_state" in parts
            state = replace(state, flat={k: v for k, v in state.flat.items() if (k in computed) == wanted})
        return rendered(step_view, self._limits, first=first, state=state)

    def _refused(self, refusal: NotExpected, machine: Machine, target: Target) -> NotExpected:
        view = run_view_of(machine, now=self._now(), target=target, limits=self._limits)
        step_view = self._step_view(view)
        if step_view.step is None or step_view.step["type"] in DELEGATED:  # the caller may be a sub-agent
            hint = f"workflow_get_next_step(workflow_id='{target.id}') has the status"
        else:
            asked = rendered(step_view, self._limits, brief=True)["step"]
            call = f"{REACTIVE.submit}(step_id='{asked['id']}', result=…)"
            hint = f"what is asked now, with {call}: {to_json(asked)}"
        return NotExpected(refusal.message, hint=f"{hint}. Nothing has changed.")

    def _step_view(self, view: RunView, *, at_work: bool = False) -> StepView:
        place = self._agents.place_in(view.machine)
        return step_view_of(view, self._registry, place, at_work=at_work)


def _over(workflow_id: str, error: RequestError) -> StepView:
    """Return the view of a task of an earlier round; re-raise any other error."""
    if error.code != "task_over":
        raise error
    return over(workflow_id, error.message)


def _step_named(machine: Machine, target: Target, step_id: str) -> Visited | None:
    found = (block_at(machine, address) for address in target.addresses_for(step_id))
    return next((it for it in found if it is not None), None)


def _around(address: str) -> list[str]:
    names = address.split("/")
    return ["/".join(names[:length]) for length in range(1, len(names))]


def _result_needed(step_id: str, missing: list[str]) -> InvalidResult:
    return InvalidResult(
        f"'{step_id}' needs a result: nothing was written to {' and '.join(missing)} since it was asked",
        hint=f"call {REACTIVE.submit}(step_id='{step_id}', result=…) with its result, as its instructions "
        "say, and the server stores it; or write it yourself with workflow_state_update first. If the step "
        "failed, pass status='failed' and error. Nothing has changed.",
    )


def _asked_first(machine: Machine, now: float) -> str:
    view = run_view_of(machine, now=now)
    asked = [address for address, _ in view.pending.questions]
    asked += [it.address for it in view.pending.delegations]
    return question_id(machine.state, view.target, asked[0]) if asked else ""


def _follows(mark: Mark, asked: Mark) -> bool:
    """Whether a mark is the requested one. The engine sets its time, so that may differ."""
    return (mark.reason, mark.step) == (asked.reason, asked.step) and mark.event > asked.event


def _last_checkpoint(view: RunView, step_view: StepView) -> dict[str, Value]:
    """Return the last marked position; without one, the current position."""
    state = view.machine.state
    if state.marks:
        mark = state.marks[-1]
        return {
            "checkpoint_id": str(CheckpointId(state.run_id, mark.event)),
            "step_id": mark.step,
            "timestamp": iso(mark.at),
            "reason": mark.reason,
        }
    return {
        "step_id": step_view.step["id"] if step_view.step is not None else "",
        "timestamp": iso(state.changed_at),
        "reason": "automatic: every completed step is kept",
    }


_STATES = frozenset({"current_raw_state", "computed_state"})


def _parts_of_resume(view: RunView) -> set[str] | None:
    """Return which parts the answer to a resume has; None if the workflow does not say."""
    on_resume = view.machine.plan_named(view.machine.state.workflow).on_resume
    if not {"load_from_checkpoint", "exclude"} & on_resume.keys():
        return None
    return set(on_resume.get("load_from_checkpoint", _STATES)) - set(on_resume.get("exclude", ()))


def _about(view: RunView, parts: set[str]) -> Answer:
    """Return the parts other than the state and the step."""
    machine = view.machine
    plan = machine.plan_named(machine.state.workflow)
    about: Answer = {}
    if "workflow_metadata" in parts:
        about["workflow_metadata"] = {
            "name": plan.name,
            "description": plan.description,
            "version": plan.version,
            "started_at": iso(machine.state.started_at),
        }
    if "computed_field_definitions" in parts:
        about["computed_field_definitions"] = {
            name: {"from": list(it.sources), "transform": it.transform} for name, it in plan.computed.items()
        }
    ended = [it for it in blocks_of(machine) if it.record.status in TERMINAL]
    tasks = [it for it in ended if it.address.count("/") == 1 and _is_task(machine, it.address)]
    if "historical_data" in parts:
        about["historical_data"] = [_brief(it) for it in ended if "/" not in it.address]
    if "completed_task_details" in parts:
        about["completed_task_details"] = [_brief(it) for it in tasks]
    return about


def _is_task(machine: Machine, address: str) -> bool:
    around = block_at(machine, address.rpartition("/")[0])
    return around is not None and around.node.for_each is not None


def _brief(visited: Visited) -> Answer:
    record = visited.record
    return {"step": visited.address, "status": record.status, "completed_at": iso(record.completed_at)}


def _why_not(step_view: StepView, status: str) -> str:
    if step_view.error is not None:
        return f"the run is {step_view.status}: {step_view.error['message']}"
    if step_view.status in _ENDED_AS.values():
        return f"the run is {step_view.status}"
    hint = "" if status == "cancelled" else "; status='cancelled' ends it"
    return f"the run has not ended: it is {step_view.status}, {step_view.why}{hint}"
