"""Putting to the user directly what a run asks of its user: the part of the service behind forms. How a form
is shown is for whoever shows it; here is which question comes next, what has come of asking it before, and
when nobody needs its answer any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from workflows_mcp.answers import (
    FormOutcome,
    Outcome,
    RunView,
    form_outcome,
    question_at,
    question_id,
    run_of,
    whole_run,
)
from workflows_mcp.engines import Engine
from workflows_mcp.machine import Machine, RunState
from workflows_mcp.runs.agent_protocol import AgentProtocol
from workflows_mcp.runs.progress import wait_with_progress
from workflows_mcp.steps import StepRegistry

# ----------------------------------------------------------------------------------------------------
# What a run asks that can be put to the user without the agent: the words, and a form for the answer.
#
# A form is the JSON Schema of the result with what clients can show: texts, numbers, decisions and choices,
# none inside of another. Whatever a form cannot say, such as a pattern, is checked when the answer is
# submitted.


_KINDS = ("string", "number", "integer", "boolean")

_SAID = ("type", "title", "description", "enum", "minLength", "maxLength", "minimum", "maximum", "default")


@dataclass(frozen=True, slots=True)
class UserQuestion:
    address: str
    step_id: str
    message: str
    form: dict[str, Any]
    last_seen: FormOutcome
    """What has come of asking it until now."""

    def is_open(self, state: RunState) -> bool:
        """Whether somebody still has to answer it."""
        frame = state.frames.get(self.address)
        asked = frame is not None and frame.kind == "agent"
        return asked and question_id(state, whole_run(state.run_id), self.address) == self.step_id


@dataclass(frozen=True, slots=True)
class UserQuestions:
    """What a run asks that is to be put to the user directly."""

    questions: list[UserQuestion]
    """The oldest first."""
    agent_is_busy: bool
    """Whether the agent has work of its own to do, for which nobody need wait for the user."""

    @property
    def next(self) -> UserQuestion | None:
        return self.questions[0] if self.questions else None


NOTHING = UserQuestions([], agent_is_busy=False)


def user_questions(view: RunView, registry: StepRegistry, setting: str) -> UserQuestions:
    """The questions of a run that are for the user, where workflow and `setting` want the user to be asked
    directly. One that a crash has cut off is for the agent to decide, and so is one that has been put to the
    user in vain."""
    if setting == "never" or view.task is not None:
        return NOTHING
    machine, found = view.machine, []
    busy = any(delegation.needs_somebody for delegation in view.pending.delegations)
    for address, frame in view.pending.questions:
        question = question_at(machine, registry, address)
        form = _form(question.result_schema)
        if frame.cut_off or not question.for_user:
            busy = True
            continue
        step_id = question_id(machine.state, view.target, address)
        last_seen = form_outcome(view.last_seen, step_id)
        if form is not None and not last_seen.is_over and _is_wanted(machine, address, setting):
            found.append(UserQuestion(address, step_id, question.for_user, form, last_seen))
    return UserQuestions(found, busy)


def _is_wanted(machine: Machine, address: str, setting: str) -> bool:
    """The workflow in which the step stands decides; if it does not say, the one that has called it."""
    plans = [machine.plan_named(machine.state.root.workflow)]
    scope = machine.state.root
    for name in address.split("/"):
        record = scope.records.get(name)
        if record is None or record.scope is None:
            break
        scope = record.scope
        plans.append(machine.plan_named(scope.workflow))
    said = [plan.elicitation for plan in plans if plan.elicitation is not None]
    return said[-1] if said else setting == "always"


def _form(schema: dict[str, Any]) -> dict[str, Any] | None:
    """None where the result is not what a form can ask for."""
    fields: dict[str, Any] = {}
    for name, field in schema.get("properties", {}).items():
        if "const" in field:
            continue  # that the user has seen it is said by the answer itself
        if field.get("type") not in _KINDS:
            return None
        fields[name] = {key: field[key] for key in _SAID if key in field}
    required = [name for name in schema.get("required", ()) if name in fields]
    return {"type": "object", "properties": fields, **({"required": required} if required else {})}


T = TypeVar("T")


_LONG = 7 * 86_400.0


class Elicitation:
    def __init__(
        self,
        engine: Engine,
        agents: AgentProtocol,
        registry: StepRegistry,
        setting: str,
        now: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._agents = agents
        self._registry = registry
        self._setting = setting
        self._now = now

    async def questions(self, run_id: str) -> UserQuestions:
        """What the run asks that is to be put to the user directly, if anything is."""
        if run_of(run_id) != run_id or self._setting == "never":
            return NOTHING
        return user_questions(await self._agents.view(run_id), self._registry, self._setting)

    # What comes of asking, for whoever asks next

    async def form_shown(self, run_id: str, question: UserQuestion) -> None:
        await self._note(run_id, question.last_seen.put_up)

    async def form_answered(self, run_id: str, question: UserQuestion) -> None:
        await self._note(run_id, question.last_seen.answered)

    async def form_failed(self, run_id: str, step_id: str, outcome: Outcome) -> None:
        await self._note(run_id, FormOutcome(step_id).ended(outcome))

    async def _note(self, run_id: str, note: str) -> None:
        await self._engine.heartbeat(run_id, note, self._now())

    async def until_closed(
        self, run_id: str, question: UserQuestion, shown: Coroutine[Any, Any, T]
    ) -> T | None:
        """What comes of showing the question; None as soon as nobody needs the answer any more, because the
        run has ended or somebody else has answered. Meanwhile it is told that the run waits."""
        showing = asyncio.ensure_future(shown)
        settled = asyncio.ensure_future(
            wait_with_progress(
                self._engine, run_id, lambda state: not question.is_open(state), _LONG, now=self._now
            )
        )
        try:
            await asyncio.wait([showing, settled], return_when=asyncio.FIRST_COMPLETED)
            return showing.result() if showing.done() else None
        finally:
            for task in (showing, settled):
                task.cancel()
            await asyncio.gather(showing, settled, return_exceptions=True)
