"""Retry, fork and resume: which run continues, and with which events.

`Reruns` re-runs some steps of a run, in a new run. Steps that do not depend on them keep their results; the
old run is unchanged.

| request                      | what continues                                                          |
| ---------------------------- | ----------------------------------------------------------------------- |
| retry, the run has failed    | a new run, which re-runs the failed steps                               |
| retry, it was cancelled      | a new run, from where it was cancelled                                  |
| retry, it was retried before | the run that was made then, or, if that has failed too, one made of it  |
| fork from a step             | a new run, which re-runs this step                                      |

Both accept a changed definition; see `changed_definition.py`.

`CheckpointResume` continues from a checkpoint.

| checkpoint                            | what continues                                              |
| ------------------------------------- | ----------------------------------------------------------- |
| an open question                      | the run, with the response                                  |
| a question that had the same response | the run, wherever it is                                     |
| a question that was closed otherwise  | a fork with the response; the same one if it exists already |
| automatic, the run has moved on       | a fork                                                      |
| automatic, the run has not moved on   | the run                                                     |

`ConversationResume` continues a run in a new conversation. Resuming twice gives the same new run.

| run                                    | what continues                                    |
| -------------------------------------- | ------------------------------------------------- |
| running                                | the run                                           |
| failed                                 | a new run, which re-runs the failed steps         |
| failed, `skip_completed_steps: false`  | a new run, from the start, with the same inputs   |
| failed, `retry_failed_steps: false`    | nothing                                           |
| completed or cancelled                 | nothing                                           |
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from msgspec.structs import replace

from workflows_mcp.answers import (
    Checkpoint,
    CheckpointId,
    History,
    Redact,
    RerunOptions,
    check_result,
    question_id,
    run_of,
    run_view_of,
    target_of,
    whole_run,
)
from workflows_mcp.engines import ChangedDefinition, Engine
from workflows_mcp.errors import NotExpected, RequestError, UnknownRun
from workflows_mcp.machine import (
    BUDGET_CODE,
    Event,
    Identity,
    Machine,
    Path,
    Reopening,
    Resumed,
    RunState,
    StateUpdated,
    failed_steps,
    replayed,
    scope_at,
    value_at,
)
from workflows_mcp.plan import Bundle, Plan
from workflows_mcp.runs.changed_definition import reopened_with, same_definition
from workflows_mcp.runs.checkpoints import Histories
from workflows_mcp.steps import StepRegistry
from workflows_mcp.values import LEFT_OUT, did_you_mean, to_json

Submit = Callable[[str, Any, str], Awaitable[None]]
"""Answers the question of a run at an address."""
Fork = tuple[int, Sequence[Event], ChangedDefinition | None]
"""At which position to fork a run, the events that follow, and its changed definition."""
_NAMED = 12
_REMEMBERED = 256


class RaisedBudgets(NamedTuple):
    """New limits of a budget, which a person has allowed."""

    limits: dict[str, float]
    by: Identity
    owner: str = ""


class Reruns:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._can_retry: OrderedDict[str, bool] = OrderedDict()
        """By the id of a failed run, which does not change any more."""

    async def options(self, state: RunState) -> RerunOptions | None:
        """Return how a failed or cancelled run can continue; None for others."""
        if state.status not in ("failed", "cancelled"):
            return None
        continued = await continued_as(self._engine, state.run_id, state.events)
        return RerunOptions(
            state.status == "cancelled" or await self._failed_can_retry(state.run_id), continued
        )

    async def _failed_can_retry(self, run_id: str) -> bool:
        if run_id not in self._can_retry:
            bundle, events = await self._engine.journal(run_id)
            self._can_retry[run_id] = await asyncio.to_thread(_can_retry, run_id, bundle, events)
            while len(self._can_retry) > _REMEMBERED:
                self._can_retry.popitem(last=False)
        return self._can_retry[run_id]

    async def retry(
        self,
        run_id: str,
        new: Bundle | None = None,
        raised: RaisedBudgets | None = None,
        first: Sequence[Event] = (),
    ) -> tuple[str, bool]:
        """Return the run that continues this one, and whether it existed before.

        `new` is a changed definition; see `changed_definition.py`. `raised` are new limits of budgets.
        `first`: events of a new run, before any of its steps starts."""
        while True:
            bundle, events = await self._engine.journal(run_id)
            request = retry_request(run_id, len(events))
            made = await continued_as(self._engine, run_id, len(events))
            if made is None:
                at, then, changed = await asyncio.to_thread(
                    _for_another_try, run_id, bundle, events, new, raised
                )
                made = await self._engine.fork(
                    run_id, at, (*then, *first), changed=changed, request_id=request
                )
                return made, False
            if (await self._engine.view(made)).state.status not in ("failed", "cancelled"):
                if new is not None and not same_definition((await self._engine.journal(made))[0], new):
                    raise _continued_otherwise(run_id, made)
                return made, True
            run_id = made

    async def fork(
        self, workflow_id: str, step_id: str, new: Bundle | None = None, *, request_id: str | None = None
    ) -> str:
        """Make a new run that re-runs a step; the same `request_id` gives the same run."""
        run_id = run_of(workflow_id)
        bundle, events = await self._engine.journal(run_id)
        at, then, changed = await asyncio.to_thread(_from_step, workflow_id, step_id, bundle, events, new)
        return await self._engine.fork(run_id, at, then, changed=changed, request_id=request_id)


def _can_retry(run_id: str, bundle: Bundle, events: Sequence[Event]) -> bool:
    try:
        _for_another_try(run_id, bundle, events)
    except RequestError:
        return False
    return True


def _continued_otherwise(run_id: str, made: str) -> RequestError:
    return RequestError(
        f"the run {run_id} was continued before, as {made}, with another definition: this one was not used",
        hint=f"to run steps again with this definition, fork {made} from the first step that it changes",
        code="continued_before",
    )


def _for_another_try(
    run_id: str,
    bundle: Bundle,
    events: Sequence[Event],
    new: Bundle | None = None,
    raised: RaisedBudgets | None = None,
) -> Fork:
    machine = replayed(bundle, events)
    status, fault = machine.state.status, machine.state.fault
    if status == "cancelled":
        position = next(number for number, event in enumerate(events) if event.cancels)
        return _continued(bundle, new, events[:position], ())
    if status != "failed" or fault is None:
        how = "is still running and has not failed" if status == "running" else "has completed"
        raise RequestError(
            f"the run {run_id} {how}, so there is nothing to retry",
            hint=f"to run a step of it again, in a new run: {_forking(events)}",
            code="nothing_to_retry",
        )
    failed = failed_steps(machine)
    if new is not None:
        return _continued(bundle, new, events, failed)
    reopening = Reopening(bundle, events, failed)
    if raised is not None:
        event = replace(reopening.event(), raised={raised.owner: raised.limits}, by=raised.by)
        return len(events), (event,), None
    if fault.code == BUDGET_CODE:
        raise RequestError(
            f"the run {run_id} failed because a budget is used up: {fault.message}",
            hint=fault.hint,
            code="nothing_to_retry",
        )
    if not reopening.ran:
        raise RequestError(
            f"the run {run_id} failed because of its definition and values, not because of a step, so it "
            f"would fail again: {fault.message}",
            hint="fix the workflow and retry with the new definition; or, to run an earlier step again, in a "
            f"new run: {_forking(events)}",
            code="nothing_to_retry",
        )
    return len(events), (reopening.event(),), None


def _continued(bundle: Bundle, new: Bundle | None, events: Sequence[Event], steps: Sequence[str]) -> Fork:
    """Return the fork that continues after these events, with a changed definition if there is one."""
    if new is None:
        return len(events), (), None
    event, changed = reopened_with(bundle, new, events, steps)
    return len(events), (event,), changed


def _from_step(
    workflow_id: str, step_id: str, bundle: Bundle, events: Sequence[Event], new: Bundle | None
) -> Fork:
    machine = replayed(bundle, events)
    target = target_of(machine, workflow_id)
    reached = [it.address for it in run_view_of(machine).blocks() if it.record.started_at is not None]
    address = next((it for it in target.addresses_for(step_id.strip()) if it in reached), None)
    if address is None:
        ended = [it for it in _steps_with_events(events) if it in reached]
        done = [target.step_id(it) for it in ended if target.covers(it)]
        raise RequestError(
            f"the run {workflow_id} has not reached a step '{step_id}'",
            hint=did_you_mean(step_id, done, what="it has run", limit=_NAMED),
            code="unknown_step",
        )
    _refuse_an_earlier_round(machine, step_id.strip(), address)
    if new is not None:
        return _continued(bundle, new, events, [address])
    reopening = Reopening(bundle, events, [address])
    if not reopening.ran:
        raise RequestError(
            f"the step '{step_id}' follows from the steps before it, and cannot run again alone",
            hint=_forking(events),
            code="unknown_step",
        )
    return len(events), (reopening.event(),), None


def _refuse_an_earlier_round(machine: Machine, step_id: str, address: str) -> None:
    """Raise RequestError for `ask@2` if round 2 of the step is not its last."""
    wanted = step_id.partition("@")[2].partition(".")[0]
    around, _, name = address.rpartition("/")
    scope = scope_at(machine.state, around)
    visits = scope.visits.get(name, 1) if scope is not None else 1
    if wanted.isdecimal() and int(wanted) != visits:
        raise RequestError(
            f"the run has reached '{name}' {visits} times, and only the last round can run again",
            hint=f"leave out '@{wanted}', or fork from a step before the round of '{name}' that you mean",
            code="unknown_step",
        )


def _steps_with_events(events: Sequence[Event]) -> list[str]:
    """Return the steps that have events, in the order of their first ones."""
    return list(dict.fromkeys(event.address for event in events if event.of_step))


def _forking(events: Sequence[Event]) -> str:
    """Say how to run a step again."""
    steps = ", ".join(f"'{it}'" for it in _steps_with_events(events)[-_NAMED:])
    return f"fork from one of {steps}" if steps else "start the workflow again: no step of it has run"


# Resuming


async def unpark(engine: Engine, run_id: str) -> None:
    """Continue a run that is parked or that no process drives; harmless otherwise."""
    await engine.ensure_driven(run_id)  # first: only a run of this workspace takes the event
    with suppress(NotExpected):
        await engine.send(run_id, lambda machine, now: Resumed(now))


class CheckpointResume:
    def __init__(
        self,
        engine: Engine,
        histories: Histories,
        registry: StepRegistry,
        *,
        submit: Submit,
        redacted: Callable[[Machine], Redact],
    ) -> None:
        self._engine = engine
        self._histories = histories
        self._registry = registry
        self._submit = submit
        self._redacted = redacted

    async def resume(self, checkpoint_id: str, response: Any = LEFT_OUT) -> tuple[str, CheckpointId | None]:
        """Return the run that continues and, if it is a fork, the checkpoint that it was made from.

        With the id of a run instead of a checkpoint, that run continues, and a response answers its only
        question. Null is a response if the run asks something, and no response otherwise.
        """
        if await self._is_run(checkpoint_id):
            await unpark(self._engine, checkpoint_id)
            if response is LEFT_OUT or (response is None and not await self._asks(checkpoint_id)):
                return checkpoint_id, None
            checkpoint_id = await self._histories.only_question(checkpoint_id)
        history, checkpoint = await self._histories.find(checkpoint_id)
        if checkpoint.id.type == "automatic":
            run_id = await self._from_position(history, checkpoint, response)
        else:
            run_id = await self._from_question(history, checkpoint, response)
        return run_id, checkpoint.id if run_id != checkpoint.id.run_id else None

    async def _from_position(self, history: History, checkpoint: Checkpoint, response: Any) -> str:
        if response is not LEFT_OUT and response is not None:
            raise RequestError(
                f"'{checkpoint.id}' asks nothing, so it takes no response",
                hint="leave out the response; each open question of the run has a checkpoint of its own",
            )
        if not history.moved_on(checkpoint):
            await unpark(self._engine, checkpoint.id.run_id)
            return checkpoint.id.run_id
        return await self._engine.fork(checkpoint.id.run_id, checkpoint.id.position)

    async def _from_question(self, history: History, checkpoint: Checkpoint, response: Any) -> str:
        run_id, address = checkpoint.id.run_id, checkpoint.address
        if response is LEFT_OUT:
            hint = f"it asks: {checkpoint.prompt}"
            raise RequestError(f"'{checkpoint.id}' is a question, so it needs a response", hint=hint)
        then = await self._histories.state_at(checkpoint.id)
        question = question_id(then.state, whole_run(run_id), address)
        if not history.moved_on(checkpoint):
            await unpark(self._engine, run_id)
            await self._submit(run_id, response, question)
            return run_id
        clean = self._redacted(then)
        _, step_result = check_result(run_view_of(then), self._registry, question, response, clean)
        if checkpoint.answer is not None and checkpoint.answer.outputs == step_result.outputs:
            return run_id
        request = hashlib.blake2b(to_json([str(checkpoint.id), step_result.outputs]).encode(), digest_size=12)
        made = await self._engine.fork(
            run_id, checkpoint.id.position, request_id=f"fork {request.hexdigest()}"
        )
        await self._submit(made, response, question)  # harmless if the same call made the fork before
        return made

    async def _asks(self, run_id: str) -> bool:
        return bool((await self._histories.open_questions(run_id))[1])

    async def _is_run(self, run_id: str) -> bool:
        try:
            await self._engine.view(run_id)
        except UnknownRun:
            return False
        return True


class ConversationResume:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def resume(self, run_id: str) -> str:
        """Return the run that continues: this one, or one that was made from it."""
        while True:
            machine = await self._engine.view(run_id)
            plan = machine.plan_named(machine.state.workflow)
            if machine.state.status == "running":
                await unpark(self._engine, run_id)
                return run_id
            if machine.state.status != "failed" or not plan.on_resume.get("retry_failed_steps", True):
                return run_id
            bundle, events = await self._engine.journal(run_id)
            known = await continued_as(self._engine, run_id, len(events))
            if known is None:
                return await self._made_of(run_id, plan, bundle, events, retry_request(run_id, len(events)))
            run_id = known

    async def _made_of(
        self, run_id: str, plan: Plan, bundle: Bundle, events: Sequence[Event], request: str
    ) -> str:
        then: list[Event] = []
        if plan.on_resume.get("skip_completed_steps", True):
            then = await asyncio.to_thread(_resume_for_another_try, plan, bundle, events)
        if not then:
            view = await self._engine.view(run_id)
            return await self._engine.start(
                bundle, view.state.root.inputs, request_id=request, agents=view.state.agents
            )
        return await self._engine.fork(run_id, len(events), then, request_id=request)


def retry_request(run_id: str, position: int) -> str:
    """Return the request id of a retry; a resume uses it too, so that both give the same run."""
    return f"retry {run_id}@{position}"


async def continued_as(engine: Engine, run_id: str, position: int) -> str | None:
    """Return the run that a retry or a resume has made from this one, if any."""
    made = await engine.run_of_request(retry_request(run_id, position))
    return made or await engine.run_of_request(f"resume {run_id}@{position}")  # as earlier versions called it


def _resume_for_another_try(plan: Plan, bundle: Bundle, events: Sequence[Event]) -> list[Event]:
    """Return the events that reopen the failed steps.

    If a step failed because of its input values, the step before it runs again too, and may give others.
    """
    failed = failed_steps(replayed(bundle, events))
    reopening = Reopening(bundle, events, failed)
    causes = [it if it in reopening.ran else reopening.reached_by[it].address for it in failed]
    if causes != failed:
        reopening = Reopening(bundle, events, causes)
    if not reopening.steps:
        return []
    then: list[Event] = [reopening.event()]
    if plan.on_resume.get("reset_error_counts") and plan.errors_to:
        where: Path = tuple(plan.errors_to)
        errors = value_at(reopening.state.root.state, where)
        if isinstance(errors, list) and errors:
            then.append(StateUpdated(events[-1].at, [(list(where), "set", [])]))
    return then
