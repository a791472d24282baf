"""What a step asks of the agent, and the two questions that no step type asks: what becomes of a step that
a crash has cut off, and that a step cannot be asked because its inputs came out wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from workflows_mcp.agent.walk import Visited
from workflows_mcp.plan.model import Do
from workflows_mcp.steps.base import Question, Step, StepInputs, StepResult
from workflows_mcp.values import Value


@dataclass(frozen=True, slots=True)
class Asked:
    """A step that was handed to the agent, with the inputs that it was handed with."""

    step: Step
    inputs: StepInputs
    question: Question


class _CutOff(Step):
    """What becomes of a step that a crash has cut off; the run itself acts on the decision."""

    name = "cut_off"
    by = "agent"


def cut_off(visited: Visited) -> Asked:
    step = visited.node.do.step if isinstance(visited.node.do, Do) else "step"
    question = Question(
        type="interrupted",
        instructions=f"The server stopped while it was carrying out this {step} step, so nobody knows how "
        "much of it was done. Find out, or ask the user, and then submit a decision: repeat carries it out "
        "again, done takes it as done (with its outputs, where later steps need them), "
        "fail takes it as failed.",
        parameters={"step": step, "inputs": visited.record.inputs},
        result_schema={
            "type": "object",
            "properties": {
                "decision": {"type": "string", "enum": ["repeat", "done", "fail"]},
                "outputs": {"type": "object", "description": "What the step gave, for done"},
            },
            "required": ["decision"],
            "additionalProperties": False,
        },
        main_field="decision",
        says_result=True,
    )
    return Asked(_CutOff(), StepInputs(), question)


class _Unaskable(Step):
    """Stands in for a step whose inputs came out wrong: whatever the agent answers, the step has failed.
    Without it the run would wait for an answer that nobody can give."""

    name = "unaskable"
    by = "agent"

    def __init__(self, wrong: str, outputs: dict[str, Value]) -> None:
        self._wrong = wrong
        self._outputs = outputs

    def answered(self, inputs: Any, result: dict[str, Value]) -> StepResult:
        return StepResult(self._outputs, ok=False, message=f"its inputs do not fit: {self._wrong}")


def unaskable(visited: Visited, step: Step, error: ValidationError) -> Asked:
    wrong = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
    do = visited.node.do
    question = Question(
        type=step.name.lower(),
        instructions=f"The inputs of this {step.name} step do not fit it ({wrong}), so it cannot be carried "
        "out. Submit {} to let the run go on with this step as failed, or cancel the run.",
        parameters=dict(visited.record.inputs),
        result_schema={"type": "object"},
        says_result=True,
    )
    defaults = dict(do.defaults) if isinstance(do, Do) else {}
    return Asked(_Unaskable(wrong, defaults), StepInputs(), question)
