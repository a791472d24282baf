"""Answers of the toolset `reactive`: the next atomic step with its values, or null.

    {"step": {"id": "deploy", "type": "agent_shell_command", "instructions": "Run definition.command …",
              "definition": {"command": "./deploy.sh --env prod", "reason": "…", "timeout": 600000,
                             "state_update": {"path": "raw.deploy_result"}},
              "variable_replacements": {"{{ environment }}": "prod"}, "original_expression": "environment"},
     "messages": ["Version 1.2.3"], "status": "pending_action"}

`step_view_of` reads the run in one go; `rendered` builds the answer and cuts long values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from workflows_mcp.answers.actions import ROLE, actions_of, context_of, role_in, task_title
from workflows_mcp.answers.actions import SUB_AGENT_PROMPT as IN_CORE_WORDS
from workflows_mcp.answers.answer import DELEGATED, NOTHING_LEFT, FindPlace, error_view
from workflows_mcp.answers.previews import Cut, Reader, cut, reader, shortened, within
from workflows_mcp.answers.run_view import RunView
from workflows_mcp.answers.state import FlatState
from workflows_mcp.answers.targets import Target, Visited, block_at, target_of
from workflows_mcp.answers.vocabulary import REACTIVE
from workflows_mcp.answers.why import retry_call, why
from workflows_mcp.errors import RequestError
from workflows_mcp.limits import Limits
from workflows_mcp.machine import path_text
from workflows_mcp.plan import LANGUAGES, Change, Do
from workflows_mcp.steps import StepRegistry
from workflows_mcp.values import Value, to_json

_REPLACED = Cut(200, 20)
"""How much is shown of replaced values, which the definition has in full."""
_EXPRESSION_CHARS = 400
_STATE_SHARE = 4
"""The fraction of the usual length that the state gets beside a step."""
_RENAMED = REACTIVE.renamed
"""The names of parameters of an `mcp_call` in the definition of a step."""
_DESCRIBED = ("agent_shell_command", "mcp_call", "user_input", "apply_hints")
"""Types whose instructions describe the result, so that they need no schema."""
_WAIT = "Wait until ALL of them have ended"
_CONTINUE = (
    "Do not wait: continue with more_steps, or make the call in `next`; only the end of the workflow "
    "waits for all tasks"
)

SUB_AGENT_PROMPT = """\
%(role)s

<workflow-server-rules>
Call workflow_get_next_step(workflow_id='{workflow_id}'), do what `step` says, then \
workflow_step_complete(workflow_id='{workflow_id}', step_id=<step.id>, result=<its result>), whose \
reply has the next step, and so on until `step` is null; reply with the status only. Submit what really \
happened. You cannot ask the user: if a step cannot be done, or is for the user, complete it with \
status='failed', error='<why, or the question>'.
Task: %(task)s
Context: {input}
</workflow-server-rules>"""


@dataclass(frozen=True, slots=True)
class StepView:
    """A run or a task for the toolset `reactive`, before long values are cut."""

    workflow_id: str
    workflow: str
    status: str
    step: dict[str, Any] | None
    messages: list[str]
    why: str = ""
    error: dict[str, Value] | None = None
    next: str = ""
    more: list[dict[str, Any]] = field(default_factory=list)
    """Further steps that can run now: those after tasks that the workflow does not wait for."""


def step_view_of(
    view: RunView, registry: StepRegistry, place: FindPlace, *, at_work: bool = False
) -> StepView:
    """Read the current step. `at_work` includes tasks that sub-agents are working on."""
    actions = actions_of(view, registry, at_work=at_work)
    actions.sort(key=lambda action: action["type"] not in DELEGATED)  # so that sub-agents begin
    steps = [_step(view, action, at_work) for action in actions]
    reason, error = "", None
    if view.has_ended:
        error = error_view(view.machine, place, view.target)
        task = view.task
        if task is not None and task.record.status == "skipped":
            reason = f"skipped: {task.record.message}"
    else:
        reason = why(view)
    messages, status = view.messages, view.status
    first, more = (steps[0] if steps else None), steps[1:]
    call = _next(view, first)
    return StepView(view.target.id, view.workflow, status, first, messages, reason, error, call, more)


def _next(view: RunView, step: dict[str, Any] | None) -> str:
    """Return the call that continues a run or a task."""
    workflow_id = view.target.id
    ahead = f"workflow_get_next_step(workflow_id='{workflow_id}')"
    if step is not None:  # how to submit a result is explained once, when a run or a task starts
        handed_out = step["type"] == "parallel_tasks"
        before = "when the sub-agents have ended: " * (_WAIT in step["instructions"])
        return f"{before}{ahead}" if handed_out else ""
    if not view.has_ended:
        return f"{ahead} waits for it"
    if view.task is not None:
        return NOTHING_LEFT + (" and the error" * (view.status == "failed"))
    if view.status == "completed":
        return (
            f"nothing; workflow_complete(workflow_id='{workflow_id}', status='success') has the final state"
        )
    return f"workflow_resume(workflow_id='{workflow_id}') continues, as a new run, where it ended"


def over(workflow_id: str, message: str) -> StepView:
    """Return the view of a task whose step has started a new round."""
    return StepView(workflow_id, "", "completed", None, [], message, next=NOTHING_LEFT)


def rendered(
    step_view: StepView,
    limits: Limits,
    *,
    state: FlatState | None = None,
    first: dict[str, Any] | None = None,
    brief: bool = False,
) -> dict[str, Any]:
    """Return the answer, cut to the limits. `first` comes first; `brief` leaves out replaced values."""
    read = reader(step_view.workflow_id)

    def build(how: Cut) -> dict[str, Any]:
        answer: dict[str, Any] = dict(first or {})
        if state is not None:
            shown = Cut(max(how.characters // _STATE_SHARE, 40), how.items)
            answer["state"] = state.shown(shown, step_view.workflow_id)
        answer["step"] = None if step_view.step is None else _shortened(step_view.step, how, read)
        if brief and step_view.step is not None:
            for name in ("variable_replacements", "original_expression"):
                answer["step"].pop(name, None)
        if step_view.more:
            answer["more_steps"] = [_shortened(step, how, read) for step in step_view.more]
        answer["messages"] = cut(step_view.messages, ("messages",), how, read)
        answer["status"] = step_view.status
        if step_view.why and step_view.status != "pending_action":
            answer["why"] = step_view.why
        if step_view.error is not None:
            answer["error"] = step_view.error
        if step_view.next:
            answer["next"] = step_view.next
        return answer

    return within(limits, build)


def state_alone(state: FlatState, limits: Limits, workflow_id: str) -> dict[str, Value]:
    """Return all fields by their names, cut to the limits."""
    return within(limits, lambda how: state.shown(how, workflow_id))


def values_at(state: FlatState, paths: Sequence[str], limits: Limits, read: Reader) -> dict[str, Value]:
    """Return the value at each path. Raises RequestError for an unknown path."""
    found = {path: (state.at(path), state.where(path)) for path in paths}
    return within(
        limits, lambda how: {path: cut(value, where, how, read) for path, (value, where) in found.items()}
    )


# A step


def _step(view: RunView, action: dict[str, Value], at_work: bool) -> dict[str, Any]:
    target, kind = view.target, action["type"]
    visited = _visited(view, target, action["step_id"])
    if visited is not None and kind in DELEGATED:
        return _tasks(view, action, visited, at_work)
    definition = {
        _RENAMED.get(name, name) if kind == "mcp_call" else name: value
        for name, value in action["parameters"].items()
    }
    step: dict[str, Any] = {"id": action["step_id"], "type": kind}
    if visited is not None and (updates := _state_updates(visited)):
        definition["state_update"] = updates[0] if len(updates) == 1 else updates
    step["instructions"] = REACTIVE.instructions(str(action["instructions"]))
    step["definition"] = definition
    if kind not in _DESCRIBED:
        step["result_schema"] = action["result_schema"]
    if visited is not None and visited.record.replaced:
        replaced = visited.record.replaced
        step["variable_replacements"] = cut(replaced, (), _REPLACED, lambda *_: "the definition itself")
        step["original_expression"] = _expressions(replaced)
    return step


def _visited(view: RunView, target: Target, step_id: str) -> Visited | None:
    found = (block_at(view.machine, address) for address in target.addresses_for(step_id))
    return next((it for it in found if it is not None), None)


def _state_updates(visited: Visited) -> list[dict[str, Value]]:
    """Return where the result of a step will be stored, as far as that is known yet."""
    places = visited.record.places
    updates: list[dict[str, Value]] = []
    for number, change in enumerate(visited.node.changes):
        known = places[number] if number < len(places) else None
        update: dict[str, Value] = {"path": path_text(tuple(known)) if known else _written(change)}
        if change.operation != "set":
            update["operation"] = change.operation
        if change.has_value:
            update["value"] = change.value
        if change.transform:
            update["transform"] = change.transform
        updates.append(update)
    return updates


def _written(change: Change) -> str:
    """Return a path that depends on the result, as the author wrote it."""
    return ".".join(map(str, change.path))


def _expressions(replaced: dict[str, Value]) -> str:
    """Return the evaluated expressions, without braces."""
    inner = [piece.strip().removeprefix("{{").removesuffix("}}").strip() for piece in replaced]
    return shortened("; ".join(inner), _EXPRESSION_CHARS)


def _shortened(step: dict[str, Any], how: Cut, read: Reader) -> dict[str, Any]:
    """Return a step with long values cut; its result schema and state update stay whole."""
    path = ("actions", step["id"], "parameters")
    names = {called: name for name, called in _RENAMED.items()} if step["type"] == "mcp_call" else {}
    short = dict(step)
    short["instructions"] = cut(step["instructions"], (*path[:2], "instructions"), how, read)
    short["definition"] = {
        name: value
        if name in ("state_update", "sub_agent_prompt")
        else cut(value, (*path, names.get(name, name)), how, read)
        for name, value in step["definition"].items()
    }
    return short


# Tasks for sub-agents


def _tasks(view: RunView, action: dict[str, Value], visited: Visited, at_work: bool) -> dict[str, Any]:
    machine, parameters = view.machine, action["parameters"]
    each = visited.node.for_each
    waiting = {
        task.target.id for it in view.pending.delegations for task in it.tasks if task.standing != "at work"
    }
    listed: list[Value] = []
    for task in parameters["tasks"]:
        if not at_work and task["workflow_id"] not in waiting:
            continue
        called = task["workflow_id"]
        if each is not None and each.wait:
            called = _name_of_task(view, task["task_id"], task["workflow_id"])
        entry: dict[str, Value] = {"task_id": called, "workflow_id": task["workflow_id"]}
        entry["context"] = task["context"]
        if at_work and task["workflow_id"] not in waiting:
            entry |= {name: task[name] for name in ("status", "started_at", "last_contact")}
        listed.append(entry)
    prompt = SUB_AGENT_PROMPT % {"role": role_in(visited), "task": parameters["task"]}
    definition: dict[str, Value] = {"tasks": listed, "sub_agent_prompt": prompt}
    for name in ("max_parallel", "to_come"):
        if name in parameters:
            definition[name] = parameters[name]
    one_by_one = action["type"] == "foreach"
    who = "the task in definition.tasks"
    if not one_by_one:
        who = "EVERY task in definition.tasks, all of them at once"
    step: dict[str, Any] = {
        "id": action["step_id"],
        "type": "parallel_tasks",
        "instructions": f"Start exactly one sub-agent for {who}: its prompt is definition.sub_agent_prompt "
        "with its workflow_id and context in place of {workflow_id} and {input}"
        + ". They submit their results themselves; submit nothing for this step. "
        + (_WAIT if each is None or each.wait else _CONTINUE)
        + (", and further tasks come as others end" * ("to_come" in parameters))
        + _at_work(listed)
        + ". Without sub-agents, follow the prompt yourself, task by task.",
        "definition": definition,
    }
    if each is not None and isinstance(each.items, str):
        dialect = machine.plan_named(view.workflow).dialect
        if LANGUAGES[dialect].is_dynamic(each.items):
            step["original_expression"] = _expressions({each.items: None})
    return step


def _at_work(listed: list[Value]) -> str:
    """Say what to do about tasks that have an agent."""
    ids = [task["workflow_id"] for task in listed if "status" in task]
    if not ids:
        return ""
    return (
        ". Those with a status have an agent, which last called at last_contact: start none for them. "
        f"If it is gone, {retry_call(ids[0])} assigns such a task again; its completed steps are kept"
    )


def _name_of_task(view: RunView, task_id: Value, workflow_id: str) -> str:
    """Return the name of a task if it stays unique in the run, else its id.

    A nested task always gets its id, because another task of the same name may start beside it.
    """
    name = str(task_id)
    try:
        named = target_of(view.machine, f"{view.target.run_id}.{name}")
    except RequestError:
        return workflow_id
    return name if named.id == workflow_id and named.address.count("/") == 1 else workflow_id


def prompt_for_task(view: RunView, *, in_core_words: bool) -> str:
    """Return the prompt for the sub-agent of one task. `in_core_words`: it has the tools of the core."""
    target, scope, machine = view.target, view.scope, view.machine
    around = block_at(machine, target.address.rpartition("/")[0])
    role = role_in(around) if around is not None else ROLE
    task = task_title(around.node.do) if around is not None else view.workflow
    prompt = IN_CORE_WORDS if in_core_words else SUB_AGENT_PROMPT
    text = prompt % {"role": role, "task": task}
    context: Value = dict(scope.inputs) if scope is not None else {}
    if scope is not None and "context" in scope.variables:
        context = context_of(scope.variables)
    ids = {"{workflow_id}": target.id, "{task_id}": target.id, "{input}": to_json(context)}
    for name, value in ids.items():
        text = text.replace(name, value)
    return text


def failed_outputs(visited: Visited) -> dict[str, Value]:
    """Return the outputs of a step that failed."""
    do = visited.node.do
    return dict(do.defaults) if isinstance(do, Do) else {}
