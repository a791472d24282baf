"""What a run asks that can be put to the user without the agent: the words, and a form for the answer.

A form is the JSON Schema of the result with what clients can show: texts, numbers, decisions and choices,
none inside of another. Whatever a form cannot say, such as a pattern, is checked when the answer is
submitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workflows_mcp.agent.actions import question_at
from workflows_mcp.agent.of_the_user import OfTheUser, of_the_user
from workflows_mcp.agent.parts import question_id, whole_run
from workflows_mcp.agent.situation import Situation
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.state import RunState
from workflows_mcp.steps.registry import StepRegistry

_KINDS = ("string", "number", "integer", "boolean")
_SAID = ("type", "title", "description", "enum", "minLength", "maxLength", "minimum", "maximum", "default")


@dataclass(frozen=True, slots=True)
class UserQuestion:
    address: str
    step_id: str
    message: str
    form: dict[str, Any]
    heard: OfTheUser
    """What has come of asking it until now."""

    def is_open(self, state: RunState) -> bool:
        """Whether somebody still has to answer it."""
        frame = state.frames.get(self.address)
        asked = frame is not None and frame.kind == "agent"
        return asked and question_id(state, whole_run(state.run_id), self.address) == self.step_id


@dataclass(frozen=True, slots=True)
class ForTheUser:
    """What a run asks that is to be put to the user directly."""

    questions: list[UserQuestion]
    """The oldest first."""
    agent_is_busy: bool
    """Whether the agent has work of its own to do, for which nobody need wait for the user."""

    @property
    def next(self) -> UserQuestion | None:
        return self.questions[0] if self.questions else None


NOTHING = ForTheUser([], agent_is_busy=False)


def for_the_user(situation: Situation, registry: StepRegistry, setting: str) -> ForTheUser:
    """The questions of a run that are for the user, where workflow and `setting` want the user to be asked
    directly. One that a crash has cut off is for the agent to decide, and so is one that has been put to the
    user in vain."""
    if setting == "never" or situation.task is not None:
        return NOTHING
    machine, found = situation.machine, []
    busy = any(delegation.needs_somebody for delegation in situation.duties.delegations)
    for address, frame in situation.duties.questions:
        question = question_at(machine, registry, address)
        form = _form(question.result_schema)
        if frame.cut_off or not question.for_user:
            busy = True
            continue
        step_id = question_id(machine.state, situation.part, address)
        heard = of_the_user(situation.heard, step_id)
        if form is not None and not heard.is_over and _is_wanted(machine, address, setting):
            found.append(UserQuestion(address, step_id, question.for_user, form, heard))
    return ForTheUser(found, busy)


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
