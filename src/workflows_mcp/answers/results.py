"""Checks the result of a step before it becomes an event, and recognises harmless submissions.

    check_result(view, registry, "approve", {"confirmed": True})

A result that does not fit is never stored, and the error says what would fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workflows_mcp.answers.actions import asked_at, asked_by
from workflows_mcp.answers.run_view import RunView, Visited
from workflows_mcp.answers.tasks import outermost
from workflows_mcp.answers.why import TELL_USER, until
from workflows_mcp.errors import InvalidResult, NotExpected
from workflows_mcp.machine import TERMINAL, Frame, Record, TooLarge
from workflows_mcp.plan import (
    Branch,
    Checkpoint,
    Do,
    Each,
    Jump,
    Leave,
    Node,
    Return,
    SetState,
    Tell,
    UpdateState,
    Wait,
    While,
)
from workflows_mcp.steps import (
    StepRegistry,
    StepResult,
    example_of,
    fits,
    reported_failure,
    understood,
    violations_of,
)
from workflows_mcp.values import (
    Value,
    nearest,
    to_json,
    to_text,
)

# Results

_LESS = "submit less of it, e.g. only the part that matters, or write it to a file and submit its path"
_SHORTER = "That answer is too long to store. Please enter a shorter one."
Redact = Callable[[Value], Value]
"""Redacts secrets in a value from outside; see `policy.secrets`."""


def _unchanged(value: Value) -> Value:
    return value


def check_result(
    view: RunView, registry: StepRegistry, step_id: str | None, result: Any, clean: Redact = _unchanged
) -> tuple[str, StepResult]:
    """Return the address of the step that `result` answers, and the step result.

    Raises NotExpected if nothing or something else is asked, InvalidResult if the result does not fit.
    """
    address = question_address(view, step_id)
    asked = asked_at(view, registry, address)
    normalized = clean(understood(asked, result))
    wrong = violations_of(asked, normalized)
    if wrong and (failure := reported_failure(result)) is not None:
        return address, StepResult(_default_outputs(view, address), ok=False, message=to_text(clean(failure)))
    if wrong:
        name = view.target.step_id(address)
        message = f"the result does not fit what '{name}' asks for: {'; '.join(wrong)}"
        reason = asked.step.rejection_message(asked.inputs, normalized)
        schema = asked.question.result_schema
        fix = f"submit for example {to_json(example_of(asked))}"
        if asked.question.for_user:  # an example would be an answer that the user has not given
            fix = "submit what the user said in that form, or ask the user again if it is unclear"
        raise InvalidResult(
            f"the answer to '{name}' is refused: {reason}" if reason else message,
            hint=(f"{'; '.join(wrong)}; " if reason else "")
            + f"{fix}; the result must fit {to_json(schema)}. Nothing has changed.",
            for_user=reason or refusal_for_person(normalized, asked.question.result_schema),
        )
    step_result = asked.step.apply_config(
        asked.step.parse_result(asked.inputs, normalized), _config(view, address)
    )
    unfit = view.machine.does_not_fit(address, step_result.outputs) if step_result.ok else None
    if unfit is not None:
        too_large = isinstance(unfit, TooLarge)
        raise InvalidResult(
            f"the result does not fit into the state: {unfit}",
            hint=f"{_LESS if too_large else unfit.hint}. Nothing has changed.",
            for_user=_SHORTER if too_large else f"That answer cannot be used: {unfit}.",
        )
    return address, step_result


def _config(view: RunView, address: str) -> dict[str, Value]:
    scope, index = view.machine.locate(address)
    do = scope.program.nodes[index].do
    return do.settings if isinstance(do, Do) else {}


def _default_outputs(view: RunView, address: str) -> dict[str, Value]:
    """Return the default outputs of a step; a command that did not run has no exit code."""
    scope, index = view.machine.locate(address)
    outputs = dict(scope.program.defaults(index))
    return {**outputs, "exit_code": None} if "exit_code" in outputs else outputs


def already_answered(
    view: RunView, registry: StepRegistry, step_id: str | None, result: Any, clean: Redact = _unchanged
) -> bool:
    """Whether this result was accepted before, so that submitting it again is harmless.

    Without a step id, it is compared with the last answer, as long as nothing else is asked.
    """
    visited = _last_answered(view) if step_id is None else view.block_named(step_id)
    if visited is None or not _was_answered(visited.node, visited.record):
        return False
    asked = asked_by(visited, registry)
    normalized = clean(understood(asked, result))
    if violations_of(asked, normalized):
        failure = reported_failure(result)
        return failure is not None and visited.record.message == clean(failure)
    return asked.step.parse_result(asked.inputs, normalized).outputs == visited.record.outputs


# Which question


def question_address(view: RunView, step_id: str | None) -> str:
    """Return the address of the open question that `step_id` names, or raise NotExpected."""
    open_questions = {address for address, _ in view.under_way("agent")}
    if step_id is not None:
        asking = step_id.partition("@")[2]
        for address in view.target.addresses_for(step_id):
            if address in open_questions and view.question_id(address).partition("@")[2] == asking:
                return address
    pending = [address for address, _ in view.pending.questions]
    if not pending:
        raise _nothing_asked(view, step_id)
    known = [view.question_id(address) for address in pending]
    names = ", ".join(map(repr, known))
    if step_id is None:
        if len(pending) == 1:
            return pending[0]
        raise NotExpected(
            f"{len(pending)} actions are pending: pass the step_id that this result is for",
            hint=f"pending now: {names}",
        )
    message = f"'{step_id}' does not wait for an answer: {_standing(view, step_id, known)}"
    raise NotExpected(message, hint=f"pending now: {names}")


def _nothing_asked(view: RunView, step_id: str | None) -> NotExpected:
    what = f"the {'run' if view.task is None else 'task'} {view.target.id}"
    status = f"get_workflow_status(workflow_id='{view.target.id}'"
    if view.has_ended:
        message = f"{what} has ended: it is {view.status}"
        if by := view.state.superseded_by:
            return NotExpected(f"{message}, superseded by {by}", hint=f"continue with workflow_id='{by}'")
        return NotExpected(message, hint=f"read how it went with {status})")
    if view.pending.delegations:
        delegated = [view.target.step_id(it.address) for it in view.pending.delegations]
        names = ", ".join(map(repr, delegated))
        message = f"{what} takes no result for {names}"
        if step_id is not None and step_id not in delegated:
            standing = _standing(view, step_id, delegated)
            message = f"'{step_id}' does not wait for an answer: {standing}. Now {message}"
        return NotExpected(
            f"{message}: the sub-agents of its tasks submit theirs, each for its own task, and it continues "
            "by itself when all tasks are done",
            hint="the agent of a task submits with the workflow_id of that task, as its prompt says; "
            f"check the tasks with {status})",
        )
    addresses = view.target.addresses_for(step_id) if step_id is not None else None
    for address, frame in view.under_way("wait"):
        if addresses is None or address in addresses:
            name = view.target.step_id(address)
            message = f"'{name}' takes no result: {_waits(frame, view.now)}"
            return NotExpected(message, hint=f"wait with {status}, wait_seconds=30)")
    if people := view.waits_for_people:
        standing = f"'{step_id}': {_standing(view, step_id, [])}. " if step_id is not None else ""
        message = f"{standing}{what} asks nothing of you now: {people}"
        return NotExpected(message, hint=f"{TELL_USER}, and wait with {status}, wait_seconds=30)")
    performed = [it for _, it in view.under_way("step") if it.headless]
    doing = f"the agent '{performed[0].headless}' of the settings performs it" if performed else ""
    message = f"{what} asks nothing of you now: {doing or 'it is still working'}"
    return NotExpected(message, hint=f"wait for it with {status}, wait_seconds=30)")


def _waits(frame: Frame, now: float) -> str:
    return f"the server itself waits {until(frame, now)}, and then continues"


def _standing(view: RunView, step_id: str, pending: list[str]) -> str:
    visited = view.block_named(step_id)
    if visited is None:
        close = nearest(step_id, pending)
        what = "run" if view.target.is_run else "task"
        return f"the {what} has no such step" + (f"; did you mean '{close}'?" if close else "")
    frame = view.frame_at(visited.address)
    if frame is not None and frame.kind == "wait":
        return _waits(frame, view.now)
    if frame is not None and frame.kind == "step" and frame.headless:
        return f"the agent '{frame.headless}' of the settings performs it"
    if frame is not None and frame.kind == "gate":
        return "it is a gate, and only a person can decide it"
    if frame is not None and frame.kind == "verify":
        return "its result is being checked"
    if frame is not None and frame.kind == "budget":
        return "it waits until a person allows agents to do more"
    if frame is not None and frame.kind == "agent":
        return f"it is asked again, as '{view.question_id(visited.address)}'"
    if _was_answered(visited.node, visited.record):
        return "it has been answered already, with another result"
    if getattr(visited.node.do, "by", "") == "human":
        return "only a person can decide it, and the run has not come to it yet"
    if not _by_agent(visited.node):
        return "the server runs it"
    status = visited.record.status
    return "it has not started yet" if status == "pending" else f"it is {status}"


def _last_answered(view: RunView) -> Visited | None:
    """Return the step that the agent answered last, if nothing is asked of it now."""
    target = view.target
    if view.pending.questions:
        return None
    inside = [it for it in view.blocks() if it.address != target.address and target.covers(it.address)]
    others = {it.address for it in inside if it.node.for_each is not None and it.node.for_each.agent}
    own = [it for it in inside if outermost(it.address, others) is None]
    if (itself := view.block_at(target.address)) is not None:
        own.append(itself)
    answered = [it for it in own if _was_answered(it.node, it.record)]
    return max(reversed(answered), key=lambda it: it.record.completed_at or 0.0, default=None)


def failed_outputs(visited: Visited) -> dict[str, Value]:
    """Return the outputs of a step that failed, or whose result the agent has written to the state."""
    do = visited.node.do
    return dict(do.defaults) if isinstance(do, Do) else {}


def _by_agent(node: Node) -> bool:
    return isinstance(node.do, Do) and node.do.by == "agent"


def _was_answered(node: Node, record: Record) -> bool:
    return _by_agent(node) and record.status == "completed"


# Refusals for a person who has filled in a form: one sentence, without steps and schemas
#
#     refusal_for_person({"input": "x"}, schema)    # "Choose one of: dev, prod."

_WANTED = {
    "string": "Please enter text.",
    "integer": "Please enter a whole number.",
    "number": "Please enter a number.",
    "boolean": "Please answer yes or no.",
}

_ASK_AGAIN = "That answer cannot be used. Please fill in the form again."

_OPTIONS = 20


def refusal_for_person(result: Value, schema: dict[str, Any]) -> str:
    """Return what to enter instead of a result that does not fit its schema."""
    given = result if isinstance(result, dict) else {}
    fields: dict[str, Any] = schema.get("properties", {})
    required = schema.get("required", ())
    wanted = {
        name: _wanted(given.get(name), field)
        for name, field in fields.items()
        if (not fits(given[name], field) if name in given else name in required)
    }
    if not wanted:
        return _ASK_AGAIN  # no field of the form is wrong
    if len(wanted) == 1 and list(wanted) == list(required or fields):
        return next(iter(wanted.values()))
    return "\n".join(f"{fields[name].get('title', name)}: {text}" for name, text in wanted.items())


def _wanted(value: Value, field: dict[str, Any]) -> str:
    if options := field.get("enum"):
        listed = ", ".join(to_text(option) for option in options[:_OPTIONS])
        return f"Choose one of: {listed}{', …' if len(options) > _OPTIONS else '.'}"
    kind = field.get("type")
    if not isinstance(kind, str) or kind not in _WANTED:
        return _ASK_AGAIN
    if not fits(value, {"type": kind}) or value == "":
        return _WANTED[kind]
    if isinstance(value, str):
        return _text(value, field)
    least, most = field.get("minimum"), field.get("maximum")
    return f"{_WANTED[kind].rstrip('.')}{_bounds(least, most)}."


def _text(value: str, field: dict[str, Any]) -> str:
    least, most = field.get("minLength"), field.get("maxLength")
    if len(value) < (least or 0) or (most is not None and len(value) > most):
        return f"Please enter text{_bounds(least, most, ' characters')}; yours has {len(value)}."
    return f"Please enter text that fits the pattern {field['pattern']}" if "pattern" in field else _ASK_AGAIN


def _bounds(least: float | None, most: float | None, of: str = "") -> str:
    if most is None:
        return f" of at least {least}{of}" if least is not None else ""
    return f" of at most {most}{of}" if least is None else f" of {least} to {most}{of}"


# Acknowledgements of steps that the server runs: not needed, but accepted from agents that send them

_ACKNOWLEDGEMENTS = ("", "{}", "ok", "done", "true", "acknowledged")
_FIELDS = {"acknowledged", "resumed", "duration", "success", "status"}


def is_harmless(view: RunView, step_id: str | None, result: Any) -> bool:
    """Whether a result only acknowledges a step that takes none, such as a wait or delegated tasks."""
    if not _acknowledges(result):
        return False
    if step_id is None:
        waits = view.under_way("wait") or view.pending.delegations
        return bool(waits) and not view.pending.questions
    visited = view.block_named(step_id)
    return visited is not None and _takes_no_result(visited.node) and _was_reached(visited)


def _acknowledges(result: Any) -> bool:
    if isinstance(result, str):
        return result.strip().lower() in _ACKNOWLEDGEMENTS
    if isinstance(result, dict):
        return set(result) <= _FIELDS
    return result is None or result is True


def _takes_no_result(node: Node) -> bool:
    if node.for_each is not None:
        return bool(node.for_each.agent)
    return isinstance(
        node.do,
        SetState | Branch | Return | Jump | Wait | UpdateState | Tell | Checkpoint | While | Each | Leave,
    )


def _was_reached(visited: Visited) -> bool:
    return visited.record.status in TERMINAL or visited.record.status == "running"
