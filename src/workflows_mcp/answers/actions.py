"""Builds the actions that a run or a task asks of its agent, and checks their results.

    actions_of(view, registry)     # [Action(step_id="approve", type="prompt", instructions="…", …)]
    check_result(machine, registry, "approve", {"confirmed": True})

An action has everything that the agent needs: step, instructions, values, and the JSON Schema of the result.
A result is checked before it becomes an event: one that does not fit is never stored, and the error says what
would fit. One action delegates all tasks of a step, with one prompt for all sub-agents.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
from pydantic import ValidationError

from workflows_mcp.answers.elicitation_log import FormOutcome, form_outcome
from workflows_mcp.answers.previews import Cut, Reader, cut
from workflows_mcp.answers.results import example, fits, violations
from workflows_mcp.answers.run_view import RunView, run_view_of
from workflows_mcp.answers.targets import (
    Target,
    Visited,
    asking_of,
    block_at,
    block_named,
    blocks_of,
    question_id,
    task_of,
    under_way,
    whole_run,
)
from workflows_mcp.answers.tasks import Count, Delegation, Standing, count_tasks, outermost
from workflows_mcp.answers.why import failed_for_good, standing, task_name, until
from workflows_mcp.errors import InvalidResult, NotExpected
from workflows_mcp.machine import Frame, Machine, Record, TooLarge, iso, path_text
from workflows_mcp.plan import (
    LANGUAGES,
    Call,
    Do,
    ForEach,
    Node,
    Operation,
    kind_of_operation,
    names_of_items,
)
from workflows_mcp.steps import Question, Step, StepInputs, StepRegistry, StepResult
from workflows_mcp.values import Value, from_json, nearest, to_json, to_text

# What an agent is asked to do
#
#     {"step_id": "approve", "type": "prompt", "instructions": "…", "parameters": {…}, "result_schema": {…}}


class StateUpdate(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the result of a step will be stored in a reactive state."""

    path: str
    operation: str = "set"
    value: Value | msgspec.UnsetType = msgspec.UNSET
    """The stored value, if it is not the result."""
    transform: str = ""


class DelegatedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that a sub-agent performs."""

    task_id: Value
    """Its key among the tasks of its step, or its id relative to the agent that starts it."""
    name: str
    """Its key if the workflow waits for it and the key is unique in the run, else its id."""
    workflow_id: str
    context: Value
    standing: Standing
    status: str
    since: str | None
    last_contact: str | None
    is_retry: bool

    @property
    def is_at_work(self) -> bool:
        return self.standing == "at work"

    def rendered(self, *, brief: bool) -> dict[str, Value]:
        entry: dict[str, Value] = {"workflow_id": self.workflow_id, "context": self.context}
        if not brief or not self.workflow_id.endswith(f".{self.task_id}"):
            entry = {"task_id": self.task_id, **entry}
        if not brief or self.standing != "to start":
            entry["status"] = self.status
        if self.last_contact is not None:
            entry |= {"started_at": self.since, "last_contact": self.last_contact}
        return entry


class Delegated(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks of a step that sub-agents perform: one action for all of them."""

    role: str
    task: str
    agent: str
    tasks: list[DelegatedTask]
    max_parallel: int | None
    """The limit, if several run at once."""
    to_come: int
    """How many tasks start when others end."""
    begun: bool
    """Whether a task has ended or is at work."""
    waits: bool
    """Whether the workflow continues only when the tasks have ended."""
    items: str
    """The expression of the items, if they are computed."""

    def is_known(self) -> bool:
        """Whether the agent already has the prompt of the sub-agents."""
        return self.begun and not any(it.standing == "silent" or it.is_retry for it in self.tasks)

    def parameters(self, *, brief: bool) -> dict[str, Value]:
        parameters: dict[str, Value] = {"task": self.task}
        if self.agent != GENERAL or not brief:
            parameters["agent"] = self.agent
        if self.max_parallel is not None:
            parameters["max_parallel"] = self.max_parallel
        if self.to_come:
            parameters["to_come"] = self.to_come
        return {**parameters, "tasks": [task.rendered(brief=brief) for task in self.tasks]}


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent is asked to do: one step, or tasks to delegate to sub-agents."""

    step_id: str
    type: str
    instructions: str
    parameters: dict[str, Value] = {}
    result_schema: dict[str, Value] = {}
    describes_result: bool = False
    """Whether the instructions describe the result in full."""
    address: str
    """The step in its run."""
    of_task: dict[str, str] = {}
    """Id and title of the task that the question belongs to, if the agent performs the task itself."""
    delegated: Delegated | None = None
    updates: list[StateUpdate] = []
    replaced: dict[str, Value] = {}
    """The evaluated expressions in the inputs of the step, and their values."""
    forms: FormOutcome
    """The forms of the question that the user was shown."""
    prompt: str = ""
    """The question as one text, for answers without instructions."""
    checkpoint_id: str = ""
    """The checkpoint of the question, if a caller has asked for checkpoints and it is not deleted."""

    def rendered(self, how: Cut, read: Reader, *, brief: bool = False) -> dict[str, Any]:
        """Return the action as the core shows it.

        `brief` leaves out a schema that the instructions describe, and a prompt that the agent has.
        """
        delegated, path = self.delegated, ("actions", self.step_id)
        known = brief and delegated is not None and delegated.is_known()
        parameters = delegated.parameters(brief=brief) if delegated is not None else self.parameters
        action: dict[str, Any] = {
            **self.of_task,
            "step_id": self.step_id,
            "type": self.type,
            "instructions": cut(
                _ONCE_MORE if known else self.instructions, (*path, "instructions"), how, read
            ),
            "parameters": cut(parameters, (*path, "parameters"), how, read),
        }
        if delegated is None and not (brief and self.describes_result):
            action["result_schema"] = self.result_schema
        if delegated is not None and not known:
            action["sub_agent_prompt"] = SUB_AGENT_PROMPT % {"role": delegated.role, "task": delegated.task}
        return action


# Questions of steps, and two that no step type asks: about an interrupted step, and about invalid inputs


@dataclass(frozen=True, slots=True)
class Asked:
    """A step that asks the agent, with its inputs and its question."""

    step: Step
    inputs: StepInputs
    question: Question


class _Interrupted(Step):
    """Asks what to do about an interrupted step; the machine acts on the decision."""

    name = "interrupted"
    performer = "agent"


def interrupted_question(visited: Visited) -> Asked:
    step = visited.node.do.step if isinstance(visited.node.do, Do) else "step"
    question = Question(
        type="interrupted",
        instructions=f"The server stopped while it was running this {step} step, so nobody knows how much of "
        "it was done. Find out, or ask the user, and then submit a decision: repeat runs it again, done "
        "marks it as done (with its outputs, if later steps need them), fail marks it as failed.",
        parameters={"step": step, "inputs": visited.record.inputs},
        result_schema={
            "type": "object",
            "properties": {
                "decision": {"type": "string", "enum": ["repeat", "done", "fail"]},
                "outputs": {"type": "object", "description": "The outputs of the step, for done"},
            },
            "required": ["decision"],
            "additionalProperties": False,
        },
        main_field="decision",
        describes_result=True,
    )
    return Asked(_Interrupted(), StepInputs(), question)


class _Unaskable(Step):
    """Replaces a step with invalid inputs: any answer fails the step.

    Without it the run would wait for an answer that nobody can give.
    """

    name = "unaskable"
    performer = "agent"

    def __init__(self, wrong: str, outputs: dict[str, Value]) -> None:
        self._wrong = wrong
        self._outputs = outputs

    def parse_result(self, inputs: Any, result: dict[str, Value]) -> StepResult:
        return StepResult(self._outputs, ok=False, message=f"its inputs do not fit: {self._wrong}")


def unaskable(visited: Visited, step: Step, error: ValidationError) -> Asked:
    wrong = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
    do = visited.node.do
    question = Question(
        type=step.name.lower(),
        instructions=f"The inputs of this {step.name} step are invalid ({wrong}), so it cannot run. "
        "Submit {} to continue the run with this step as failed, or cancel the run.",
        parameters=dict(visited.record.inputs),
        result_schema={"type": "object"},
        describes_result=True,
    )
    defaults = dict(do.defaults) if isinstance(do, Do) else {}
    return Asked(_Unaskable(wrong, defaults), StepInputs(), question)


# Delegation: one action for the agent that starts the sub-agents, and one prompt with places for id and input
#
#     {"step_id": "analyze", "type": "parallel_tasks", "instructions": "…",
#      "parameters": {"agent": "@task", "task": "analyze_file", "tasks": [{"task_id": "analyze.0",
#                     "workflow_id": "wf_1.analyze.0", "context": "src/a.py"}, …]},
#      "sub_agent_prompt": "<workflow-server-rules>…{workflow_id}…{input}…</workflow-server-rules>…"}
#
# Nothing is submitted for it: the workflow continues by itself when all of its tasks are done.

GENERAL = "@task"
"""An agent without a special role."""
ROLE = "You do one task of a workflow."
"""The default role, which a prompt of the author replaces."""
_ONCE_MORE = "As before, with the same sub_agent_prompt (get_next_step shows it again)."

SUB_AGENT_PROMPT = """\
%(role)s

<workflow-server-rules>
Call get_next_step(workflow_id='{workflow_id}'), do what `action` says, make the call in `next`, and so on \
until nothing is left; reply with the status only. Submit what really happened. You cannot ask the user: if \
a step cannot be done, or is for the user, submit {"is_error": true, "error": "<why, or the question>"}.
Task: %(task)s
Input: {input}
</workflow-server-rules>"""


def delegated_action(view: RunView, delegation: Delegation) -> Action:
    """Return the action that delegates tasks."""
    block = block_at(view.machine, delegation.address)
    assert block is not None
    each = block.node.for_each
    assert each is not None
    count = count_tasks(view.machine.state, delegation.address)
    one_by_one, items = each.at_once == 1, each.items.source
    is_limited = isinstance(each.at_once, int) and not one_by_one
    language = LANGUAGES[view.machine.plan_named(view.workflow).language]
    return Action(
        step_id=view.target.step_id(delegation.address),
        type="foreach" if one_by_one else "parallel_tasks",
        instructions=_instructions(each, delegation, count),
        address=delegation.address,
        forms=FormOutcome(""),
        delegated=Delegated(
            role=role_in(block),
            task=task_title(block.node.do),
            agent=each.agent,
            tasks=_tasks(view, delegation, block),
            max_parallel=each.at_once if is_limited else None,
            to_come=0 if one_by_one else count.to_come,
            begun=count.done + count.failed > 0 or any(it.standing == "at work" for it in delegation.tasks),
            waits=each.wait,
            items=items if isinstance(items, str) and language.is_dynamic(items) else "",
        ),
    )


def role_in(block: Visited) -> str:
    """Return the role of the sub-agents of a block: from the author, or the default."""
    scope = block.record.scope
    return (scope.prompt if scope is not None else "") or ROLE


def is_task(node: Node) -> bool:
    """Whether a node is an item that runs a task of the workflow."""
    return node.for_each is None and isinstance(node.do, Call) and node.do.of_item


def task_title(do: Operation) -> str:
    """Return the name of the operation that runs for an item."""
    called = do.name if isinstance(do, Call) and isinstance(do.name, str) else kind_of_operation(do)
    return called.partition("#")[2] or called


def context_of(variables: dict[str, Value]) -> Value:
    """Return the context of a task for its agent, each value once.

    It leaves out the ids that only expressions use, and the item if its fields are there.
    """
    context = variables["context"]
    if not isinstance(context, dict):
        return context
    item = context.get("item")
    own = item if isinstance(item, dict) else {}
    hidden = {"workflow_id", "task_id", *(("item",) if own else ())} - own.keys()
    return {name: value for name, value in context.items() if name not in hidden}


class TaskBrief(NamedTuple):
    """What the sub-agent of one task needs to know."""

    workflow_id: str
    role: str
    task: str
    context: Value

    def prompt(self, template: str = SUB_AGENT_PROMPT) -> str:
        text = template % {"role": self.role, "task": self.task}
        for place in ("{workflow_id}", "{task_id}"):
            text = text.replace(place, self.workflow_id)
        return text.replace("{input}", to_json(self.context))


def brief_of(view: RunView) -> TaskBrief:
    """Return what the sub-agent of a task needs to know."""
    target, scope = view.target, view.scope
    around = block_at(view.machine, target.address.rpartition("/")[0])
    role = role_in(around) if around is not None else ROLE
    task = task_title(around.node.do) if around is not None else view.workflow
    context: Value = dict(scope.inputs) if scope is not None else {}
    if scope is not None and "context" in scope.variables:
        context = context_of(scope.variables)
    return TaskBrief(target.id, role, task, context)


def _instructions(each: ForEach, delegation: Delegation, count: Count) -> str:
    kind = "" if each.agent == GENERAL else f" of the kind {each.agent} (or a general one)"
    which = "the task" if len(delegation.tasks) == 1 else "each task, all at once"
    if each.at_once == 1 and count.total > 1:
        which = f"this task, one of {count.total} that run one after the other"
    if any(task.standing == "at work" for task in delegation.tasks):
        which = "each task that is not at work"
    return (
        f"Start one sub-agent{kind} for {which}: its prompt is sub_agent_prompt, with {{workflow_id}} and "
        "{input} replaced by its workflow_id and context. They submit their results themselves: submit "
        "nothing. "
        "Without sub-agents, follow the prompt yourself."
    )


def _tasks(view: RunView, delegation: Delegation, block: Visited) -> list[DelegatedTask]:
    """List the tasks that may be worked on now."""
    scope, each = block.record.scope, block.node.for_each
    assert scope is not None
    assert each is not None
    names = names_of_items(scope.each or [], scope.named)
    keys = dict(zip(names, scope.each or [], strict=True))
    items = dict(zip(names, scope.items, strict=True)) if scope.items is not None else None
    listed: list[DelegatedTask] = []
    for task in delegation.tasks:
        name = task.target.address.rpartition("/")[2]
        record = scope.records[name]
        given = record.inputs
        context = items[name] if items is not None else given.get("inputs") or given or name
        task_id: Value = task_name(view, task)
        if record.scope is not None and "context" in record.scope.variables:  # a task that has a name
            context, task_id = context_of(record.scope.variables), keys[name]
        listed.append(
            DelegatedTask(
                task_id=task_id,
                name=view.name_of_task(str(task_id), task.target) if each.wait else task.target.id,
                workflow_id=task.target.id,
                context=context,
                standing=task.standing,
                status=standing(task, view.now),
                since=iso(task.since),
                last_contact=iso(task.last_contact),
                is_retry=task.is_retry,
            )
        )
    return listed


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


# Results

_LESS = "submit less of it, e.g. only the part that matters, or write it to a file and submit its path"

_DECIDED = "The result must fit result_schema."

_SHORTER = "That answer is too long to store. Please enter a shorter one."

_FAILURE_KEYS = frozenset({"is_error", "isError", "error", "message"})

Redact = Callable[[Value], Value]

"""Redacts secrets in a value from outside; see `policy.secrets`."""


def actions_of(view: RunView, registry: StepRegistry, *, at_work: bool = False) -> list[Action]:
    """Return the actions of the agent of a run or task, the oldest first.

    `at_work` includes tasks that sub-agents are working on.
    """
    if view.machine.state.parked is not None:
        return []
    doomed = failed_for_good(view.machine)
    found = [(frame.since, _question(view, registry, it, doomed)) for it, frame in view.pending.questions]
    found += [
        (it.frame.since, delegated_action(view, it))
        for it in view.pending.delegations
        if at_work or it.needs_somebody
    ]
    return [action for _, action in sorted(found, key=itemgetter(0))]


def _question(view: RunView, registry: StepRegistry, address: str, doomed: str) -> Action:
    machine, target = view.machine, view.target
    question = question_at(machine, registry, address)
    forms = form_outcome(view.last_seen, question_id(machine.state, whole_run(target.run_id), address))
    instructions = forms.instructions(question.instructions, decided=_DECIDED)
    if doomed:
        instructions += f" Note: block {doomed} has failed, so the run will fail in any case."
    visited = block_at(machine, address)
    return Action(
        step_id=question_id(machine.state, target, address),
        type=question.type,
        instructions=instructions,
        parameters=question.parameters,
        result_schema=question.result_schema,
        describes_result=question.describes_result,
        address=address,
        of_task=_of_task(machine, target, address),
        updates=_updates(visited) if visited is not None else [],
        replaced=visited.record.replaced if visited is not None else {},
        forms=forms,
        prompt=prompt_at(machine, registry, address),
        checkpoint_id=view.checkpoint_ids.get(address, ""),
    )


def _updates(visited: Visited) -> list[StateUpdate]:
    """Return where the result of a step will be stored, as far as that is known yet."""
    places = visited.record.places
    known = [places[it] if it < len(places) else None for it in range(len(visited.node.changes))]
    return [
        StateUpdate(
            path=path_text(tuple(place)) if place else ".".join(map(str, change.path.source)),
            operation=change.operation,
            value=change.value.source if change.value is not None else msgspec.UNSET,
            transform=change.transform.source if change.transform is not None else "",
        )
        for change, place in zip(visited.node.changes, known, strict=True)
    ]


def check_result(
    machine: Machine,
    registry: StepRegistry,
    step_id: str | None,
    result: Any,
    clean: Redact | None = None,
    target: Target | None = None,
    now: float | None = None,
) -> tuple[str, StepResult]:
    """Return the address of the step that `result` answers, and the step result.

    Raises NotExpected if nothing or something else is asked, InvalidResult if the result does not fit.
    """
    at = time.time() if now is None else now
    address = question_address(machine, target or whole_run(machine.state.run_id), step_id, at)
    asked = _asked(machine, registry, address)
    normalized = understood(asked, result)
    normalized = clean(normalized) if clean is not None else normalized
    wrong = violations(normalized, asked.question.result_schema)
    if wrong and (failure := reported_failure(result)) is not None:
        message = to_text(clean(failure)) if clean is not None else failure
        return address, StepResult(_default_outputs(machine, address), ok=False, message=message)
    if wrong:
        name = target.step_id(address) if target is not None else address
        message = f"the result does not fit what '{name}' asks for: {'; '.join(wrong)}"
        reason = asked.step.rejection_message(asked.inputs, normalized)
        schema = asked.question.result_schema
        fix = f"submit for example {to_json(example(schema))}"
        if asked.question.for_user:  # an example would be an answer that the user has not given
            fix = "submit what the user said in that form, or ask the user again if it is unclear"
        raise InvalidResult(
            f"the answer to '{name}' is refused: {reason}" if reason else message,
            hint=(f"{'; '.join(wrong)}; " if reason else "")
            + f"{fix}; the result must fit {to_json(schema)}. Nothing has changed.",
            for_user=reason or refusal_for_person(normalized, asked.question.result_schema),
        )
    step_result = asked.step.apply_config(
        asked.step.parse_result(asked.inputs, normalized), _config(machine, address)
    )
    unfit = machine.does_not_fit(address, step_result.outputs) if step_result.ok else None
    if unfit is not None:
        too_large = isinstance(unfit, TooLarge)
        raise InvalidResult(
            f"the result does not fit into the state: {unfit}",
            hint=f"{_LESS if too_large else unfit.hint}. Nothing has changed.",
            for_user=_SHORTER if too_large else f"That answer cannot be used: {unfit}.",
        )
    return address, step_result


def reported_failure(result: Any) -> str | None:
    """Return the message of `{"is_error": true, "error": "…"}`, which may answer any action."""
    given = _read(result) if isinstance(result, str) else result
    if not isinstance(given, dict) or not given.keys() <= _FAILURE_KEYS:
        return None
    if given.get("is_error") is not True and given.get("isError") is not True:
        return None
    texts = [text for key in ("error", "message") if isinstance(text := given.get(key), str) and text.strip()]
    return texts[0] if texts else "the agent reported a failure without a reason"


def _config(machine: Machine, address: str) -> dict[str, Value]:
    scope, index = machine.locate(address)
    do = scope.program.nodes[index].do
    return do.settings if isinstance(do, Do) else {}


def _default_outputs(machine: Machine, address: str) -> dict[str, Value]:
    """Return the default outputs of a step; a command that did not run has no exit code."""
    scope, index = machine.locate(address)
    outputs = dict(scope.program.defaults(index))
    return {**outputs, "exit_code": None} if "exit_code" in outputs else outputs


def already_answered(
    machine: Machine,
    registry: StepRegistry,
    step_id: str | None,
    result: Any,
    clean: Redact | None = None,
    target: Target | None = None,
) -> bool:
    """Whether this result was accepted before, so that submitting it again is harmless.

    Without a step id, it is compared with the last answer, as long as nothing else is asked.
    """
    target = target or whole_run(machine.state.run_id)
    visited = _last_answered(machine, target) if step_id is None else block_named(machine, target, step_id)
    if visited is None or not _was_answered(visited.node, visited.record):
        return False
    asked = _asked_at(visited, registry)
    normalized = understood(asked, result)
    normalized = clean(normalized) if clean is not None else normalized
    if not fits(normalized, asked.question.result_schema):
        failure = reported_failure(result)
        return failure is not None and visited.record.message == (clean(failure) if clean else failure)
    return asked.step.parse_result(asked.inputs, normalized).outputs == visited.record.outputs


# Which question


def question_address(machine: Machine, target: Target, step_id: str | None, now: float) -> str:
    """Return the address of the open question that `step_id` names, or raise NotExpected."""
    open_questions = {address for address, _ in under_way(machine, "agent") if target.covers(address)}
    if step_id is not None:
        asking = step_id.partition("@")[2]
        for address in target.addresses_for(step_id):
            if address in open_questions and asking_of(machine.state, address) == asking:
                return address
    view = run_view_of(machine, target=target, now=now)
    pending = [address for address, _ in view.pending.questions]
    if not pending:
        raise _nothing_asked(view, step_id)
    names = ", ".join(repr(question_id(machine.state, target, address)) for address in pending)
    if step_id is None:
        if len(pending) == 1:
            return pending[0]
        raise NotExpected(
            f"{len(pending)} actions are pending: pass the step_id that this result is for",
            hint=f"pending now: {names}",
        )
    known = [question_id(machine.state, target, address) for address in pending]
    message = f"'{step_id}' does not wait for an answer: {_standing(view, step_id, known)}"
    raise NotExpected(message, hint=f"pending now: {names}")


def _nothing_asked(view: RunView, step_id: str | None) -> NotExpected:
    what = f"the {'run' if view.task is None else 'task'} {view.target.id}"
    status = f"get_workflow_status(workflow_id='{view.target.id}'"
    if view.has_ended:
        message = f"{what} has ended: it is {view.status}"
        if by := view.machine.state.superseded_by:
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
    message = f"{what} asks nothing of you now: it is still working"
    return NotExpected(message, hint=f"wait for it with {status}, wait_seconds=30)")


def _waits(frame: Frame, now: float) -> str:
    return f"the server itself waits {until(frame, now)}, and then continues"


def _standing(view: RunView, step_id: str, pending: list[str]) -> str:
    machine, target = view.machine, view.target
    visited = block_named(machine, target, step_id)
    if visited is None:
        close = nearest(step_id, pending)
        what = "run" if target.is_run else "task"
        return f"the {what} has no such step" + (f"; did you mean '{close}'?" if close else "")
    frame = machine.state.frames.get(visited.address)
    if frame is not None and frame.kind == "wait":
        return _waits(frame, view.now)
    if frame is not None and frame.kind == "agent":
        return f"it is asked again, as '{question_id(machine.state, target, visited.address)}'"
    if _was_answered(visited.node, visited.record):
        return "it has been answered already, with another result"
    if not _by_agent(visited.node):
        return "the server runs it"
    status = visited.record.status
    return "it has not started yet" if status == "pending" else f"it is {status}"


def _last_answered(machine: Machine, target: Target) -> Visited | None:
    """Return the step that the agent answered last, if nothing is asked of it now."""
    if run_view_of(machine, target=target, now=machine.state.changed_at).pending.questions:
        return None
    inside = [it for it in blocks_of(machine) if it.address != target.address and target.covers(it.address)]
    others = {it.address for it in inside if it.node.for_each is not None and it.node.for_each.agent}
    own = [it for it in inside if outermost(it.address, others) is None]
    if (itself := block_at(machine, target.address)) is not None:
        own.append(itself)
    answered = [it for it in own if _was_answered(it.node, it.record)]
    return max(reversed(answered), key=lambda it: it.record.completed_at or 0.0, default=None)


def failed_outputs(visited: Visited) -> dict[str, Value]:
    """Return the outputs of a step that failed, or whose result the agent has written to the state."""
    do = visited.node.do
    return dict(do.defaults) if isinstance(do, Do) else {}


# Reading a result


def understood(asked: Asked, result: Any) -> Value:
    """Return the result as its step reads it.

    Text that is a JSON object is read as that object if it names the main field and fits, or if the text
    itself does not fit.
    """
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


# Steps and their questions


def question_at(machine: Machine, registry: StepRegistry, address: str) -> Question:
    """Return the open question at an address."""
    return _asked(machine, registry, address).question


def prompt_at(machine: Machine, registry: StepRegistry, address: str) -> str:
    """Return an open question as one text: the author's prompt, or instructions and parameters."""
    visited = block_at(machine, address)
    prompt = visited.record.inputs.get("prompt") if visited is not None else None
    if isinstance(prompt, str) and not machine.state.frames[address].after_interruption:
        return prompt
    question = question_at(machine, registry, address)
    parameters = question.parameters
    if question.type == "prompt":
        prompt = parameters.get("prompt", parameters.get("message"))
        if isinstance(prompt, str):
            return "\n".join([prompt, *(f"- {option}" for option in parameters.get("choices", ()))])
    given = f"\n{to_json(parameters)}" if parameters else ""
    return f"{question.instructions}{given}"


def _asked(machine: Machine, registry: StepRegistry, address: str) -> Asked:
    visited = block_at(machine, address)
    assert visited is not None
    frame = machine.state.frames.get(address)
    if frame is not None and frame.after_interruption:
        return interrupted_question(visited)
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


def _of_task(machine: Machine, target: Target, address: str) -> dict[str, str]:
    """Return the task that a question belongs to, if this agent performs that task itself."""
    names = address.split("/")
    for end in reversed(range(2, len(names))):
        item = "/".join(names[:end])
        if item == target.address or not target.covers(item):
            break
        visited = block_at(machine, item)
        if visited is not None and is_task(visited.node):
            return {"workflow_id": task_of(machine.state, item).id, "task": task_title(visited.node.do)}
    return {}


def _by_agent(node: Node) -> bool:
    return isinstance(node.do, Do) and node.do.by == "agent"


def _was_answered(node: Node, record: Record) -> bool:
    return _by_agent(node) and record.status == "completed"
