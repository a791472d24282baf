"""What a run asks of the agent, and whether a result answers it.

An action is a question with everything in place: which step, what to do, with which values, and the
JSON Schema of the result. A result is checked here, before it becomes a fact: nothing that does not fit
is ever written down, and the refusal says what would fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from workflows_mcp.agent.asked import Asked, cut_off, unaskable
from workflows_mcp.agent.schema_check import example, fits, violations
from workflows_mcp.agent.walk import Visited, block_at, blocks_of, under_way
from workflows_mcp.errors import InvalidResult, NotExpected
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.state import Record
from workflows_mcp.plan.model import Do, Node
from workflows_mcp.steps.base import Question, StepResult
from workflows_mcp.steps.registry import StepRegistry
from workflows_mcp.values import Value, from_json, nearest, to_json, to_text

Clean = Callable[[Value], Value]
"""Makes a value from outside fit to be kept; see `policy.secrets`."""


def pending_actions(machine: Machine, registry: StepRegistry) -> list[dict[str, Value]]:
    """All that is asked of the agent now, the oldest first."""
    return [
        _as_action(address, _asked(machine, registry, address).question)
        for address, _ in under_way(machine, "agent")
    ]


def check_result(
    machine: Machine, registry: StepRegistry, step_id: str | None, result: Any, clean: Clean | None = None
) -> tuple[str, StepResult]:
    """The address of the step that `result` answers, and what the result amounts to.

    Raises NotExpected where nothing (or something else) is asked, InvalidResult where it does not fit.
    """
    address = _question_meant(machine, step_id)
    asked = _asked(machine, registry, address)
    taken = _taken(asked.question, result)
    taken = clean(taken) if clean is not None else taken
    wrong = violations(taken, asked.question.result_schema)
    if wrong:
        raise InvalidResult(
            f"the result does not fit what '{address}' asks for: {'; '.join(wrong)}",
            hint=f"submit for example {to_json(example(asked.question.result_schema))}; "
            f"the result must fit {to_json(asked.question.result_schema)}. Nothing has changed.",
        )
    return address, asked.step.answered(asked.inputs, taken)


def already_answered(
    machine: Machine, registry: StepRegistry, step_id: str | None, result: Any, clean: Clean | None = None
) -> bool:
    """Whether this very answer was taken before: then submitting it again is harmless.

    Without a step id, the last answer is meant, as long as nothing else is asked.
    """
    if step_id is None:
        if under_way(machine, "agent"):
            return False
        answered = [visited for visited in blocks_of(machine) if _was_answered(visited.node, visited.record)]
        if not answered:
            return False
        visited = max(answered, key=lambda item: item.record.completed_at or 0.0)
    else:
        found = block_at(machine, step_id)
        if found is None or not _was_answered(found.node, found.record):
            return False
        visited = found
    asked = _asked_at(visited, registry)
    taken = _taken(asked.question, result)
    taken = clean(taken) if clean is not None else taken
    if not fits(taken, asked.question.result_schema):
        return False
    return asked.step.answered(asked.inputs, taken).outputs == visited.record.outputs


# Which question


def _question_meant(machine: Machine, step_id: str | None) -> str:
    pending = [address for address, _ in under_way(machine, "agent")]
    state = machine.state
    if step_id in pending:
        return step_id
    if not pending:
        if state.status != "running":
            raise NotExpected(
                f"the run {state.run_id} has ended: it is {state.status}",
                hint=f"read how it went with get_workflow_status(workflow_id='{state.run_id}')",
            )
        raise NotExpected(
            f"the run {state.run_id} asks nothing of you now: it is still working",
            hint=f"wait for it with get_workflow_status(workflow_id='{state.run_id}', wait_seconds=30)",
        )
    if step_id is None:
        if len(pending) == 1:
            return pending[0]
        raise NotExpected(
            f"{len(pending)} actions are pending, so say with step_id which one this result is for",
            hint=f"pending now: {', '.join(repr(address) for address in pending)}",
        )
    message = f"'{step_id}' does not wait for an answer: {_standing(machine, step_id, pending)}"
    raise NotExpected(message, hint=f"pending now: {', '.join(repr(address) for address in pending)}")


def _standing(machine: Machine, step_id: str, pending: list[str]) -> str:
    visited = block_at(machine, step_id)
    if visited is None:
        close = nearest(step_id, pending)
        return "the run has no such step" + (f"; did you mean '{close}'?" if close else "")
    if _was_answered(visited.node, visited.record):
        return "it has been answered already, with another result"
    if not _by_agent(visited.node):
        return "the server carries it out itself"
    return f"it is {visited.record.status}"


# What the result amounts to


def _taken(question: Question, result: Any) -> Value:
    """The result as the object that the schema describes: JSON text is read, and a bare value is taken
    as the main field."""
    main = question.main_field
    if isinstance(result, str):
        try:
            parsed = from_json(result)
        except ValueError:
            parsed = result
        if isinstance(parsed, dict) and (main is None or fits(parsed, question.result_schema)):
            return parsed
        if main is None:
            return parsed
        if not fits(result, _field(question, main)) and fits(parsed, _field(question, main)):
            return {main: parsed}
        return {main: result}
    if main is None or (isinstance(result, dict) and not _is_bare_object(question, main, result)):
        return result
    if isinstance(result, int | float) and not isinstance(result, bool):
        # "Answer with the number of your choice": a number for a text is the text of the number.
        as_text = to_text(result)
        if not fits(result, _field(question, main)) and fits(as_text, _field(question, main)):
            return {main: as_text}
    return {main: result}


def _field(question: Question, name: str) -> dict[str, Any]:
    field: dict[str, Any] = question.result_schema.get("properties", {}).get(name, {})
    return field


def _is_bare_object(question: Question, main: str, result: dict[str, Value]) -> bool:
    """Whether an object is meant as the main field itself and not as the whole result."""
    return main not in result and _field(question, main).get("type") == "object"


# Steps and their questions


def _asked(machine: Machine, registry: StepRegistry, address: str) -> Asked:
    visited = block_at(machine, address)
    assert visited is not None
    frame = machine.state.frames.get(address)
    if frame is not None and frame.cut_off:
        return cut_off(visited)
    return _asked_at(visited, registry)


def _asked_at(visited: Visited, registry: StepRegistry) -> Asked:
    do = visited.node.do
    assert isinstance(do, Do)
    step = registry.get(do.step)
    try:
        inputs = step.Inputs.model_validate(visited.record.inputs)
    except ValidationError as error:
        return unaskable(visited, step, error)
    return Asked(step, inputs, step.ask(inputs))


def _as_action(address: str, question: Question) -> dict[str, Value]:
    return {
        "step_id": address,
        "type": question.type,
        "instructions": question.instructions,
        "parameters": question.parameters,
        "result_schema": question.result_schema,
    }


def _by_agent(node: Node) -> bool:
    return isinstance(node.do, Do) and node.do.by == "agent"


def _was_answered(node: Node, record: Record) -> bool:
    return _by_agent(node) and record.status == "completed"
