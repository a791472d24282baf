"""Questions that a client can show to its user directly, as forms, without the agent.

    questions = await elicitation.questions("wf_7f3a")
    if question := questions.next:
        await elicitation.form_shown("wf_7f3a", question)
        answer = await elicitation.until_closed("wf_7f3a", question, show(question.form))

A form is the JSON Schema of the result, reduced to what clients can show: texts, numbers, decisions and
choices, without nesting. The rest of the schema, such as a pattern, is checked when the answer is submitted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from workflows_mcp.answers import (
    FormOutcome,
    OpenDecision,
    Outcome,
    RunView,
    form_outcome,
    open_decisions,
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

_KINDS = ("string", "number", "integer", "boolean")
_KEYWORDS = (
    "type",
    "title",
    "description",
    "enum",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "default",
)


@dataclass(frozen=True, slots=True)
class UserQuestion:
    address: str
    step_id: str
    message: str
    form: dict[str, Any]
    forms: FormOutcome
    """The forms that were shown for it so far."""

    def is_open(self, state: RunState) -> bool:
        """Whether it is still unanswered."""
        frame = state.frames.get(self.address)
        asked = frame is not None and frame.kind in ("agent", "gate", "budget")
        return asked and question_id(state, whole_run(state.run_id), self.address) == self.step_id


@dataclass(frozen=True, slots=True)
class UserQuestions:
    """The questions of a run that can be shown to the user directly."""

    questions: list[UserQuestion]
    """The oldest first."""
    agent_is_busy: bool
    """Whether the agent has other work, so that it need not wait for the user."""

    @property
    def next(self) -> UserQuestion | None:
        return self.questions[0] if self.questions else None


NOTHING = UserQuestions([], agent_is_busy=False)


def user_questions(view: RunView, registry: StepRegistry, setting: str) -> UserQuestions:
    """Return the questions for the user, if the workflow or the setting asks for forms.

    A question about an interrupted step goes to the agent, and so does one whose form was declined or failed.
    """
    if setting == "never" or view.task is not None:
        return NOTHING
    machine, found = view.machine, []
    busy = any(delegation.needs_somebody for delegation in view.pending.delegations)
    for address, frame in view.pending.questions:
        question = question_at(view, registry, address)
        form = _form(question.result_schema)
        if frame.after_interruption or not question.for_user:
            busy = True
            continue
        step_id = view.question_id(address)
        forms = form_outcome(view.last_seen, step_id)
        if form is not None and not forms.is_over and _is_wanted(machine, address, setting):
            found.append(UserQuestion(address, step_id, question.for_user, form, forms))
    for decision in open_decisions(view, registry):
        forms = form_outcome(view.last_seen, decision.step_id)
        if not forms.is_over and _is_shown(machine, decision):
            form = _form_of_decision(decision)
            found.append(UserQuestion(decision.address, decision.step_id, decision.message, form, forms))
    return UserQuestions(found, busy)


def _is_shown(machine: Machine, decision: OpenDecision) -> bool:
    """Whether a decision is shown as a form: unless its workflow says no, or it needs a number."""
    return not decision.budget and _is_wanted(machine, decision.address, "always")


def _form_of_decision(decision: OpenDecision) -> dict[str, Any]:
    choice = {"type": "string", "enum": decision.choices, "description": "The decision"}
    comment = {"type": "string", "description": "Why, or what should change"}
    fields = {"decision": choice, "comment": comment}
    return {"type": "object", "properties": fields, "required": ["decision"]}


def _is_wanted(machine: Machine, address: str, setting: str) -> bool:
    """Whether to ask directly: the workflow of the step decides, else its callers, else the setting."""
    plans = [machine.plan_named(machine.state.root.workflow)]
    scope = machine.state.root
    for name in address.split("/"):
        record = scope.records.get(name)
        if record is None or record.scope is None:
            break
        scope = record.scope
        plans.append(machine.plan_named(scope.workflow))
    choices = [plan.elicitation for plan in plans if plan.elicitation is not None]
    return choices[-1] if choices else setting == "always"


def _form(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return the form for a result schema; None if a form cannot show it."""
    fields: dict[str, Any] = {}
    for name, field in schema.get("properties", {}).items():
        if "const" in field:
            continue  # the answer itself shows that the user has seen it
        if field.get("type") not in _KINDS:
            return None
        fields[name] = {key: field[key] for key in _KEYWORDS if key in field}
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
        """Return the questions of a run that can be shown to the user directly."""
        if run_of(run_id) != run_id or self._setting == "never":
            return NOTHING
        return user_questions(await self._agents.view(run_id), self._registry, self._setting)

    # Notes about forms, which every server of the run reads

    async def form_shown(self, run_id: str, question: UserQuestion) -> None:
        await self._note(run_id, question.forms.shown_note)

    async def form_answered(self, run_id: str, question: UserQuestion) -> None:
        await self._note(run_id, question.forms.answered_note)

    async def form_failed(self, run_id: str, step_id: str, outcome: Outcome) -> None:
        await self._note(run_id, FormOutcome(step_id).outcome_note(outcome))

    async def _note(self, run_id: str, note: str) -> None:
        await self._engine.heartbeat(run_id, note, self._now())

    async def until_closed(
        self, run_id: str, question: UserQuestion, shown: Coroutine[Any, Any, T]
    ) -> T | None:
        """Return the result of `shown`, or None as soon as the question is closed.

        A question is closed when the run has ended or another caller has answered it. Progress is reported
        meanwhile.
        """
        showing = asyncio.ensure_future(shown)
        closed = asyncio.ensure_future(
            wait_with_progress(
                self._engine, run_id, lambda state: not question.is_open(state), _LONG, now=self._now
            )
        )
        try:
            await asyncio.wait([showing, closed], return_when=asyncio.FIRST_COMPLETED)
            return showing.result() if showing.done() else None
        finally:
            for task in (showing, closed):
                task.cancel()
            await asyncio.gather(showing, closed, return_exceptions=True)
