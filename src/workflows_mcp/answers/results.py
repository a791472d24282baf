"""Checks the result of a step before it becomes an event, and recognises harmless submissions.

    check_result(view, registry, "approve", {"confirmed": True})
    violations({"confirmed": "maybe"}, schema)   # ["'confirmed' must be true or false, not text \"maybe\""]
    example(schema)                              # {"confirmed": True}

A result that does not fit is never stored, and the error says what would fit. The check supports the part of
JSON Schema that actions use, and reports all violations at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workflows_mcp.answers.actions import Asked, TypedResult, asked_at, asked_by
from workflows_mcp.answers.run_view import RunView, Visited
from workflows_mcp.answers.tasks import outermost
from workflows_mcp.answers.why import TELL_USER, until
from workflows_mcp.errors import ExpressionError, InvalidResult, NotExpected
from workflows_mcp.expressions import search
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
from workflows_mcp.steps import Question, StepRegistry, StepResult
from workflows_mcp.values import (
    Value,
    did_you_mean,
    from_json,
    kind_and_value,
    nearest,
    shown,
    to_json,
    to_text,
)

# Results

_LESS = "submit less of it, e.g. only the part that matters, or write it to a file and submit its path"
_SHORTER = "That answer is too long to store. Please enter a shorter one."
_FAILURE_KEYS = frozenset({"is_error", "isError", "error", "message"})
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
    wrong = _violations(asked, normalized)
    if wrong and (failure := reported_failure(result)) is not None:
        return address, StepResult(_default_outputs(view, address), ok=False, message=to_text(clean(failure)))
    if wrong:
        name = view.target.step_id(address)
        message = f"the result does not fit what '{name}' asks for: {'; '.join(wrong)}"
        reason = asked.step.rejection_message(asked.inputs, normalized)
        schema = asked.question.result_schema
        shown_as = asked.step.example() if isinstance(asked.step, TypedResult) else example(schema)
        fix = f"submit for example {to_json(shown_as)}"
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


def _violations(asked: Asked, result: Value) -> list[str]:
    """Return what is wrong with a result; the schema of a `result` key can be any JSON Schema."""
    if isinstance(asked.step, TypedResult):
        return asked.step.violations(result)
    return violations(result, asked.question.result_schema)


def reported_tokens(result: Any) -> int:
    """Return how many tokens an agent reports to have used; 0 if it does not."""
    given = _read(result) if isinstance(result, str) else result
    tokens = given.get("tokens_used") if isinstance(given, dict) else None
    return tokens if isinstance(tokens, int) and not isinstance(tokens, bool) and tokens > 0 else 0


def reported_failure(result: Any) -> str | None:
    """Return the message of `{"is_error": true, "error": "…"}`, which may answer any action."""
    given = _read(result) if isinstance(result, str) else result
    if not isinstance(given, dict) or not given.keys() <= _FAILURE_KEYS:
        return None
    if given.get("is_error") is not True and given.get("isError") is not True:
        return None
    texts = [text for key in ("error", "message") if isinstance(text := given.get(key), str) and text.strip()]
    return texts[0] if texts else "the agent reported a failure without a reason"


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
    if _violations(asked, normalized):
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
    message = f"{what} asks nothing of you now: it is still working"
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


# Reading a result


def understood(asked: Asked, result: Any) -> Value:
    """Return the result as its step reads it.

    Text that is a JSON object is read as that object if it names the main field and fits, or if the text
    itself does not fit.
    """
    if isinstance(asked.step, TypedResult):
        parsed = _read(result) if isinstance(result, str) else result
        whole = asked.step.normalize_result(asked.inputs, parsed)
        return result if isinstance(result, str) and not asked.step.violations(result) else whole
    schema, main = asked.question.result_schema, asked.question.main_field
    normalized = asked.step.normalize_result(asked.inputs, _as_object(asked.question, result))
    if isinstance(result, str) and isinstance(parsed := _read(result), dict):
        from_text = asked.step.normalize_result(asked.inputs, _as_object(asked.question, parsed))
        if (main in parsed and fits(from_text, schema)) or not fits(normalized, schema):
            return from_text
    return normalized


def _read(text: str) -> Value:
    try:
        return from_json(text)
    except ValueError:
        return text


def _as_object(question: Question, result: Any) -> Value:
    """Return the result as the object of the schema; a bare value becomes the main field."""
    main = question.main_field
    if isinstance(result, str):
        parsed = _read(result)
        if main is None:
            return parsed if isinstance(parsed, dict | list) else result  # "1.10" is a text
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
    """Whether an object is the main field itself, not the whole result."""
    return main not in result and _field(question, main).get("type") == "object"


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


# Checking against a schema

_WORDS = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}

_EXAMPLES: dict[str, Value] = {
    "string": "…",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "array": [],
    "object": {},
    "null": None,
}


def fits(value: Value, schema: dict[str, Any]) -> bool:
    return not violations(value, schema)


def violations(value: Value, schema: dict[str, Any], name: str = "the result") -> list[str]:
    """List what is wrong with a value, the outermost first; empty if it fits."""
    called = name if name == "the result" else f"'{name}'"
    if "anyOf" in schema:
        return _any_of(value, schema["anyOf"], name, called)
    kinds = _kinds(schema)
    if kinds and not any(_is_kind(value, kind) for kind in kinds):
        wanted = " or ".join(_WORDS[kind] for kind in kinds)
        return [f"{called} must be {wanted}, not {kind_and_value(value)}"]
    if "const" in schema and not _same(value, schema["const"]):
        return [f"{called} must be {shown(schema['const'])}, not {shown(value)}"]
    if "enum" in schema and not any(_same(value, option) for option in schema["enum"]):
        options = ", ".join(shown(option) for option in schema["enum"])
        texts = [option for option in schema["enum"] if isinstance(option, str)]
        close = nearest(value, texts) if isinstance(value, str) else None
        suggestion = f"; did you mean {shown(close)}?" if close else ""
        return [f"{called} must be one of {options}, not {shown(value)}{suggestion}"]
    if isinstance(value, dict):
        return _object(value, schema, name)
    if isinstance(value, list):
        return _list(value, schema, name, called)
    if isinstance(value, str):
        return _string(value, schema, called)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _number(value, schema, called)
    return []


def example(schema: dict[str, Any]) -> Value:
    """Return a simple value that fits a schema, for the hint of an error."""
    if "default" in schema:
        return schema["default"]
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    if schema.get("anyOf"):
        return example(schema["anyOf"][0])
    kinds = _kinds(schema)
    kind = kinds[0] if kinds else "string"
    if kind == "object":
        properties = schema.get("properties", {})
        wanted = schema.get("required") or list(properties)[:1]
        return {name: example(properties.get(name, {})) for name in wanted}
    if kind == "array":
        return [example(schema["items"])] if schema.get("items") else []
    if kind in ("integer", "number"):
        return schema.get("minimum", _EXAMPLES[kind])
    return _EXAMPLES[kind]


def _object(value: dict[str, Value], schema: dict[str, Any], name: str) -> list[str]:
    inside = "" if name == "the result" else f"{name}."
    properties: dict[str, Any] = schema.get("properties", {})
    found: list[str] = []
    for key in schema.get("required", ()):
        if key not in value:
            description = properties.get(key, {}).get("description", "")
            found.append(f"'{inside}{key}' is missing" + (f" ({description})" if description else ""))
    extra = schema.get("additionalProperties", True)
    for key, item in value.items():
        if key in properties:
            found += violations(item, properties[key], f"{inside}{key}")
        elif extra is False:
            found.append(f"'{inside}{key}' is not known here: {did_you_mean(key, properties)}")
        elif isinstance(extra, dict):
            found += violations(item, extra, f"{inside}{key}")
    return found


def _list(value: list[Value], schema: dict[str, Any], name: str, called: str) -> list[str]:
    found: list[str] = []
    if len(value) < schema.get("minItems", 0):
        found.append(f"{called} must have at least {schema['minItems']} items, it has {len(value)}")
    if "maxItems" in schema and len(value) > schema["maxItems"]:
        found.append(f"{called} must have at most {schema['maxItems']} items, it has {len(value)}")
    if "items" in schema:
        inside = "" if name == "the result" else name
        for index, item in enumerate(value):
            found += violations(item, schema["items"], f"{inside}[{index}]")
    return found


def _string(value: str, schema: dict[str, Any], called: str) -> list[str]:
    found: list[str] = []
    if len(value) < schema.get("minLength", 0):
        wanted = schema["minLength"]
        found.append(f"{called} must not be empty" if wanted == 1 else f"{called} needs {wanted} characters")
    if "maxLength" in schema and len(value) > schema["maxLength"]:
        found.append(f"{called} may have {schema['maxLength']} characters, it has {len(value)}")
    if "pattern" in schema and (problem := _unmatched(schema["pattern"], value)):
        found.append(f"{called} must match the pattern {schema['pattern']}, {problem}")
    return found


def _unmatched(pattern: str, value: str) -> str:
    """Return why a text does not match a pattern, or an empty string. Matching has a time limit."""
    try:
        return "" if search(pattern, value) is not None else f"{shown(value)} does not"
    except ExpressionError as error:
        return f"and cannot be checked: {error.message}"


def _number(value: float, schema: dict[str, Any], called: str) -> list[str]:
    found: list[str] = []
    if "minimum" in schema and value < schema["minimum"]:
        found.append(f"{called} must be {schema['minimum']} or more, not {value}")
    if "maximum" in schema and value > schema["maximum"]:
        found.append(f"{called} must be {schema['maximum']} or less, not {value}")
    return found


def _any_of(value: Value, options: list[dict[str, Any]], name: str, called: str) -> list[str]:
    tried = [violations(value, option, name) for option in options]
    if any(not found for found in tried):
        return []
    # An option of the right kind explains better than one of another kind.
    same_kind = [
        found
        for found, option in zip(tried, options, strict=True)
        if any(_is_kind(value, kind) for kind in _kinds(option))
    ]
    if same_kind:
        return same_kind[0]
    wanted = " or ".join(_WORDS[kind] for option in options for kind in _kinds(option))
    return [f"{called} must be {wanted}, not {kind_and_value(value)}"]


def _kinds(schema: dict[str, Any]) -> list[str]:
    kind = schema.get("type", [])
    return [kind] if isinstance(kind, str) else list(kind)


def _is_kind(value: Value, kind: str) -> bool:
    match kind:
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            return whole and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
    return value is None


def _same(value: Value, other: Value) -> bool:
    """Whether two values are equal in JSON, where true is not 1."""
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


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
