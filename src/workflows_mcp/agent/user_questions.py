"""What a run asks that can be put to the user without the agent: the words, and a form for the answer.

A form is the JSON Schema of the result with what clients can show: texts, numbers, decisions and choices,
none inside of another. Whatever a form cannot say, such as a pattern, is checked when the answer is
submitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workflows_mcp.agent.actions import question_at
from workflows_mcp.agent.parts import question_id
from workflows_mcp.agent.situation import Situation
from workflows_mcp.machine.machine import Machine
from workflows_mcp.steps.registry import StepRegistry

_KINDS = ("string", "number", "integer", "boolean")
_SAID = ("type", "title", "description", "enum", "minLength", "maxLength", "minimum", "maximum", "default")


@dataclass(frozen=True, slots=True)
class UserQuestion:
    step_id: str
    message: str
    form: dict[str, Any]


def user_question(situation: Situation, registry: StepRegistry, setting: str) -> UserQuestion | None:
    """The oldest question of a run, where it is one for the user, and workflow and `setting` want the user to
    be asked directly. One that a crash has cut off is for the agent to decide."""
    if setting == "never" or situation.task is not None or not situation.duties.questions:
        return None
    machine = situation.machine
    address, frame = situation.duties.questions[0]
    if frame.cut_off or not _is_wanted(machine, address, setting):
        return None
    question = question_at(machine, registry, address)
    form = _form(question.result_schema)
    if not question.for_user or form is None:
        return None
    return UserQuestion(question_id(machine.state, situation.part, address), question.for_user, form)


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
