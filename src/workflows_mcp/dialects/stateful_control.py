"""The step types of the stateful dialect that are operations of the plan: what each of them takes.

A new one is a row in `CONTROL`, a reader here, and a row in `READERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from workflows_mcp.dialects.document_keys import unknown_keys
from workflows_mcp.dialects.repetition import check_children, read_items, read_max_parallel
from workflows_mcp.dialects.stateful_drafts import StepDraft
from workflows_mcp.dialects.step_keys import read_on_limit, read_timeout
from workflows_mcp.plan.model import Call, ForEach, Return, SetState, Wait
from workflows_mcp.values import Value, did_you_mean, kind_and_value, kind_of, nearest, shown

if TYPE_CHECKING:
    from workflows_mcp.dialects.stateful_steps import StepReader

Path = tuple[str | int, ...]

ABOUT = ("id", "type", "name", "description", "needs_state")
MODIFIERS = ("output_to", "error_to", "when", "on_error")
"""What every step takes but return."""
CONTROL: dict[str, tuple[str, ...]] = {
    "condition": ("if", "then", "else"),
    "set_state": ("updates",),
    "foreach": ("items", "task", "agent", "sequential", "max_parallel", "timeout", "on_timeout", "retry"),
    "return": ("value",),
    "goto": ("target", "max_iterations", "on_limit"),
    "wait": ("duration_seconds", "message"),
    "workflow": ("workflow", "inputs", "timeout", "on_timeout", "retry"),
}
"""The types that are operations of the plan, with their own keys."""
REQUIRED: dict[str, dict[str, str]] = {
    "condition": {"if": 'if: "{{ state.ready }}"', "then": "then:, and below it the steps"},
    "set_state": {"updates": "updates: {field: value}"},
    "foreach": {
        "items": 'items: "{{ state.files }}"',
        "task": "task: the name of one of the tasks",
        "output_to": "output_to: a field for the list of results",
    },
    "goto": {"target": "target: the id of a step", "max_iterations": "max_iterations: 3"},
    "wait": {"duration_seconds": "duration_seconds: 30"},
    "workflow": {"workflow": "workflow: the name of a workflow"},
}
"""The keys that a step of a type cannot do without, and how they are written."""


def own_keys(kind: str) -> tuple[str, ...]:
    """All keys of a step of a type that controls."""
    modifiers = () if kind == "return" else MODIFIERS
    return (*ABOUT, *modifiers, *CONTROL[kind])


def read_control(reader: StepReader, draft: StepDraft, step: dict[str, Value]) -> None:
    kind, at = draft.kind, draft.at
    known = own_keys(kind)
    misspelt = set()
    for problem in unknown_keys(step, known, at, f"a step of type {kind}"):
        key = str(problem.path[-1])
        misspelt.add(nearest(key, known))
        if kind == "return" and key in MODIFIERS:
            reader.problem(problem.code, problem.message, _ON_RETURN[key], problem.path, on_key=True)
        else:
            reader.report(problem)
    for key, example in REQUIRED.get(kind, {}).items():
        if step.get(key) is None and key not in misspelt:  # one mistake, one problem
            message = f"a step of type {kind} needs '{key}'"
            reader.problem("missing_key", message, f"add a line: {example}", at)
    READERS[kind](reader, draft, step)
    reader.retry(draft, step)
    if "on_timeout" in CONTROL[kind]:
        reader.on_timeout(draft, step)


def _read_condition(reader: StepReader, draft: StepDraft, step: dict[str, Value]) -> None:
    at = draft.at
    if step.get("if") is not None:
        draft.test = reader.condition(draft, step["if"], (*at, "if"))
    if step.get("then") is not None:
        draft.then = reader.read_list(step["then"], (*at, "then"))
    if step.get("else") not in (None, []):
        draft.otherwise = reader.read_list(step["else"], (*at, "else"))


def _read_set_state(reader: StepReader, draft: StepDraft, step: dict[str, Value]) -> None:
    updates, path = step.get("updates"), (*draft.at, "updates")
    if updates is None:
        misspelt = next((key for key in step if nearest(key, ["updates"])), "")
        draft.updates = tuple(step[misspelt]) if isinstance(step.get(misspelt), dict) else ()
        return
    if not isinstance(updates, dict) or not updates:
        what = "is empty" if updates == {} else f"must be a mapping, not {kind_of(updates)}"
        message = f"'updates' {what}"
        reader.problem("wrong_type", message, 'e.g. updates: {count: "{{ state.count + 1 }}"}', path)
        return
    draft.updates = tuple(name for name in updates if reader.field(name, (*path, name), on_key=True))
    draft.uses += reader.references.in_value(updates, path)
    draft.do = SetState({name: updates[name] for name in draft.updates})


def _read_foreach(reader: StepReader, draft: StepDraft, step: dict[str, Value]) -> None:
    at = draft.at
    items: Value = []
    if step.get("items") is not None:
        example = 'e.g. items: "{{ state.files }}" or items: [linux, macos]'
        items, uses = read_items(
            step["items"], (*at, "items"), reader.references, reader.report, example, (list,)
        )
        draft.uses += uses
    path = (*at, "max_parallel")
    limit, uses = read_max_parallel(step.get("max_parallel"), path, reader.references, reader.report)
    draft.uses += uses
    if reader.flag(step.get("sequential", False), (*at, "sequential"), "true: one item after the other"):
        limit = 1
    check_children(items, limit, at, reader.limits, reader.report, ", or sequential: true")
    agent = reader.agent(step.get("agent"), (*at, "agent"))
    draft.for_each = ForEach(items, limit, agent=agent)
    timeout, uses = read_timeout(step.get("timeout"), (*at, "timeout"), reader.references, reader.report)
    draft.uses += uses
    draft.do = Call(None, timeout=timeout, of_item=True)
    task = step.get("task")
    if task is None:
        return
    if isinstance(task, str) and task in reader.tasks:
        draft.task = task
        draft.do = Call(f"{reader.workflow}#{task}", timeout=timeout, of_item=True)
        return
    draft.task = nearest(str(task), reader.tasks)
    hint = did_you_mean(str(task), reader.tasks, what="tasks")
    if not reader.tasks:
        hint = f"declare it: tasks: {{{task}: {{steps: […]}}}}"
    reader.problem("unknown_task", f"there is no task {shown(task)}", hint, (*at, "task"))


def _read_return(reader: StepReader, draft: StepDraft, step: dict[str, Value]) -> None:
    draft.uses += reader.references.in_value(step.get("value"), (*draft.at, "value"))
    draft.do = Return(step.get("value"))


def _read_goto(reader: StepReader, draft: StepDraft, step: dict[str, Value]) -> None:
    target, path = step.get("target"), (*draft.at, "target")
    if isinstance(target, int | float):
        target = reader.document.written(path)
    if isinstance(target, str):
        draft.target = target
    elif target is not None:
        message = f"'target' must be the id of a step, not {kind_and_value(target)}"
        reader.problem("wrong_type", message, "e.g. target: improve-quality", path)
    least = "how often it may jump; after that it fails, or the steps below it go on (on_limit: continue)"
    draft.most = reader.number(draft, step, "max_iterations", 1, least, whole=True)
    if step.get("max_iterations") is not None:  # that it is missing is said already
        draft.on_limit = read_on_limit(step, draft.at, reader.report)


def _read_wait(reader: StepReader, draft: StepDraft, step: dict[str, Value]) -> None:
    seconds = reader.number(draft, step, "duration_seconds", 0, "seconds, e.g. duration_seconds: 30")
    draft.uses += reader.references.in_value(step.get("message"), (*draft.at, "message"))
    draft.do = Wait(seconds, step.get("message"))


def _read_workflow(reader: StepReader, draft: StepDraft, step: dict[str, Value]) -> None:
    at = draft.at
    timeout, uses = read_timeout(step.get("timeout"), (*at, "timeout"), reader.references, reader.report)
    draft.uses += uses
    called, inputs = step.get("workflow"), step.get("inputs")
    if called is not None and not isinstance(called, str):
        message = f"'workflow' must be the name of a workflow, not {kind_and_value(called)}"
        reader.problem("wrong_type", message, "e.g. workflow: run-tests", (*at, "workflow"))
    if inputs is not None and not isinstance(inputs, dict | str):
        message = f"'inputs' must be a mapping of names and values, not {kind_and_value(inputs)}"
        reader.problem("wrong_type", message, "write the inputs below it: name: value", (*at, "inputs"))
        inputs = None
    draft.uses += reader.references.in_value(called, (*at, "workflow"))
    draft.uses += reader.references.in_value(inputs, (*at, "inputs"))
    draft.do = Call(called, {} if inputs is None else inputs, timeout)


_ON_RETURN = {
    "when": "put the return into the then of a condition",
    "output_to": "what it returns is the result; nothing comes after it",
    "error_to": "nothing comes after it; put what may fail into a step before it",
    "on_error": "nothing comes after it; put what may fail into a step before it",
}

READERS: dict[str, Callable[[StepReader, StepDraft, dict[str, Value]], None]] = {
    "condition": _read_condition,
    "set_state": _read_set_state,
    "foreach": _read_foreach,
    "return": _read_return,
    "goto": _read_goto,
    "wait": _read_wait,
    "workflow": _read_workflow,
}
