"""The step types of the reactive dialect that are operations of the plan: what each of them takes.

A new one is a row in `CONTROL`, a reader here, and a row in `READERS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from workflows_mcp.dialects.document_keys import unknown_keys
from workflows_mcp.dialects.reactive_drafts import ReactiveDraft
from workflows_mcp.dialects.repetition import check_children, read_items, read_max_parallel
from workflows_mcp.dialects.step_keys import read_on_limit, read_word
from workflows_mcp.plan.model import Call, ForEach, Return, Tell, UpdateState, Wait
from workflows_mcp.values import Value, did_you_mean, kind_and_value, nearest, shown

if TYPE_CHECKING:
    from workflows_mcp.dialects.reactive_steps import StepReader

Path = tuple[str | int, ...]

ABOUT = ("id", "type", "name", "description", "when")
"""What every step takes."""
FAILING = ("state_update", "on_error", "retry_count", "retry_delay", "fallback_value", "error_state_update")
"""What steps take that are carried out, and can fail."""
CONTROL: dict[str, tuple[str, ...]] = {
    "conditional": ("condition", "then", "else", "on_error"),
    "while": ("condition", "max_iterations", "on_limit", "body", "steps", "on_error"),
    "foreach": ("items", "steps", "body", "variable_name", "index_name", "on_error"),
    "break": (),
    "continue": (),
    "sequential": ("steps",),
    "parallel_foreach": (
        "items",
        "sub_agent_task",
        "max_parallel",
        "wait_for_all",
        "sub_agent_prompt_override",
        "on_sub_agent_error",
        "timeout",
        "on_timeout",
        "state_update",
        "error_state_update",
    ),
    "include_workflow": ("workflow", "inputs", "on_complete", "timeout", "on_timeout", *FAILING),
    "state_update": ("path", "value", "operation", "transform", "updates", "on_error"),
    "user_message": ("message", "on_error"),
    "exit": (),
    "wait": ("duration_seconds", "message"),
}
"""The types that are operations of the plan, with their own keys."""
REQUIRED: dict[str, dict[str, str]] = {
    "conditional": {"condition": 'condition: "{{ has_errors }}"', "then": "then:, and below it the steps"},
    "while": {"condition": 'condition: "{{ has_errors }}"', "body": "body:, and below it the steps"},
    "foreach": {"items": 'items: "{{ files }}"', "steps": "steps:, and below it the steps"},
    "sequential": {"steps": "steps:, and below it the steps"},
    "parallel_foreach": {
        "items": 'items: "{{ file_batches }}"',
        "sub_agent_task": "sub_agent_task: the name of one of the sub_agent_tasks",
    },
    "include_workflow": {"workflow": 'workflow: "the name of a workflow"'},
    "user_message": {"message": 'message: "{{ summary }}"'},
    "wait": {"duration_seconds": "duration_seconds: 30"},
}
"""The keys that a step of a type cannot do without, and how they are written."""
SAME = {"body": "steps", "steps": "body"}
"""The body of a loop may be called either."""
ERROR_KEYS = ("strategy", "max_retries", "collect_errors", "error_state_path")
STRATEGIES = ("retry_failed", "continue", "fail_all")
ITEM_ERRORS = "raw.sub_agent_errors"
"""Where errors of sub-agents are collected if nothing is said of it."""
AGENT = "@task"
"""Who carries out the tasks of a parallel_foreach: an agent of its own for each."""
NAMES = (
    "raw", "state", "computed", "inputs", "config", "this", "global", "loop", "secrets", "input", "result",
    "error", "context", "task_id", "workflow_id", "total", "parent",
)  # fmt: skip
"""Names that have a meaning of their own in expressions."""
_NAME = re.compile(r"[A-Za-z$][\w$]*", re.ASCII)


def own_keys(kind: str) -> tuple[str, ...]:
    """All keys of a step of a type that controls."""
    return (*ABOUT, *CONTROL[kind])


def read_control(reader: StepReader, draft: ReactiveDraft, step: dict[str, Value]) -> None:
    kind, at = draft.kind, draft.at
    known = own_keys(kind)
    misspelt = set()
    for problem in unknown_keys(step, known, at, f"a step of type {kind}"):
        key = str(problem.path[-1])
        misspelt.add(nearest(key, known))
        hint = _ELSEWHERE.get((kind, key))
        if hint:
            reader.problem(problem.code, problem.message, hint, problem.path, on_key=True)
        else:
            reader.report(problem)
    for key, example in REQUIRED.get(kind, {}).items():
        spellings = (key, SAME[key]) if key in SAME and SAME[key] in known else (key,)
        if all(step.get(it) is None and it not in misspelt for it in spellings):  # one mistake, one problem
            message = f"a step of type {kind} needs '{key}'"
            reader.problem("missing_key", message, f"add a line: {example}", at)
    if "on_error" in CONTROL[kind] and kind != "include_workflow" and "on_error" in step:
        reader.on_error_of_control(draft, step["on_error"])
    READERS[kind](reader, draft, step)
    if "on_timeout" in CONTROL[kind]:
        reader.on_timeout(draft, step)


def _read_conditional(reader: StepReader, draft: ReactiveDraft, step: dict[str, Value]) -> None:
    at = draft.at
    if step.get("condition") is not None:
        draft.test = reader.condition(draft, step["condition"], (*at, "condition"))
    if step.get("then") is not None:
        draft.then = reader.read_list(step["then"], (*at, "then"))
    if step.get("else") not in (None, []):
        draft.otherwise = reader.read_list(step["else"], (*at, "else"))


def _body(reader: StepReader, draft: ReactiveDraft, step: dict[str, Value]) -> None:
    both = [key for key in ("body", "steps") if step.get(key) is not None]
    if len(both) > 1:
        message = f"a step of type {draft.kind} has 'body' and 'steps', which mean the same"
        reader.problem("unknown_key", message, "keep one of the two", (*draft.at, both[1]), on_key=True)
    draft.repeats = True
    for key in both[:1]:
        draft.then = reader.read_list(step[key], (*draft.at, key))


def _read_while(reader: StepReader, draft: ReactiveDraft, step: dict[str, Value]) -> None:
    if step.get("condition") is not None:
        draft.test = reader.condition(draft, step["condition"], (*draft.at, "condition"))
    means = (
        "how often the body is carried out at most; after that the loop fails, or ends (on_limit: continue)"
    )
    draft.most = reader.number(draft, step, "max_iterations", 1, means, whole=True)
    draft.on_limit = read_on_limit(step, draft.at, reader.report)
    _body(reader, draft, step)


def _read_foreach(reader: StepReader, draft: ReactiveDraft, step: dict[str, Value]) -> None:
    draft.items = _items(reader, draft, step)
    draft.item = _variable(reader, step, "variable_name", draft.item, draft.at)
    draft.index = _variable(reader, step, "index_name", draft.index, draft.at)
    if draft.item == draft.index:
        message = f"the item and its position are both called '{draft.item}'"
        key = "index_name" if "index_name" in step else "variable_name"
        reader.problem("bad_id", message, "give one of the two another name", (*draft.at, key))
    _body(reader, draft, step)


def _items(reader: StepReader, draft: ReactiveDraft, step: dict[str, Value]) -> Value:
    if step.get("items") is None:
        return []
    example = 'e.g. items: "{{ files }}" or items: [linux, macos]'
    path = (*draft.at, "items")
    items, uses = read_items(step["items"], path, reader.references, reader.report, example, (list,))
    draft.uses += uses
    return items


def _variable(reader: StepReader, step: dict[str, Value], key: str, usual: str, at: Path) -> str:
    given = step.get(key)
    if given is None:
        return usual
    if isinstance(given, str) and _NAME.fullmatch(given) and given not in NAMES:
        return given
    hint = "a name of letters, digits and '_' that starts with a letter, e.g. file"
    if given in NAMES:
        hint = f"'{given}' has a meaning of its own in expressions: take another name"
    reader.problem("bad_id", f"{shown(given)} cannot be the name of a variable", hint, (*at, key))
    return usual


def _read_sequential(reader: StepReader, draft: ReactiveDraft, step: dict[str, Value]) -> None:
    draft.test = "true"
    if step.get("steps") is not None:
        draft.then = reader.read_list(step["steps"], (*draft.at, "steps"))


def _read_nothing(reader: StepReader, draft: ReactiveDraft, step: dict[str, Value]) -> None:
    if draft.kind == "exit":
        draft.do = Return()


def _read_parallel(reader: StepReader, draft: ReactiveDraft, step: dict[str, Value]) -> None:
    at = draft.at
    items = _items(reader, draft, step)
    path = (*at, "max_parallel")
    limit, uses = read_max_parallel(step.get("max_parallel"), path, reader.references, reader.report)
    draft.uses += uses
    check_children(items, limit, at, reader.limits, reader.report)
    prompt = reader.text(draft, step, "sub_agent_prompt_override", "what each sub-agent is told")
    wait = True
    if step.get("wait_for_all") is not None:
        means = "false: the steps behind it go on while the tasks are under way"
        wait = reader.flag(step["wait_for_all"], (*at, "wait_for_all"), means)
    strategy, errors_to = _on_sub_agent_error(reader, draft, step.get("on_sub_agent_error"))
    draft.for_each = ForEach(
        items,
        limit,
        agent=AGENT,
        prompt=prompt,
        wait=wait,
        fail_fast=strategy == "fail_all",
        puts_up=strategy == "continue",
        errors_to=errors_to,
    )
    timeout = reader.seconds(draft, step, "timeout", least=1)
    draft.changes = reader.changes(draft, step.get("state_update"), "state_update")
    draft.error_changes = reader.changes(draft, step.get("error_state_update"), "error_state_update")
    draft.task = _task(reader, step.get("sub_agent_task"), (*at, "sub_agent_task"))
    where = draft.task if draft.task.startswith("#") else f"{reader.workflow}#{draft.task}"
    draft.do = Call(where, timeout=timeout, of_item=True)


def _task(reader: StepReader, given: Value, path: Path) -> str:
    """The name of a task; one that this file does not have, and that it may import, starts with '#'."""
    if given is None:
        return ""
    if isinstance(given, str) and given in reader.tasks:
        return given
    if isinstance(given, str) and given and reader.has_imports:
        return f"#{given}"
    hint = did_you_mean(str(given), reader.tasks, what="tasks")
    if not reader.tasks:
        hint = f"declare it: sub_agent_tasks: {{{given}: {{steps: […]}}}}"
    reader.problem("unknown_task", f"there is no task {shown(given)}", hint, path)
    return nearest(str(given), reader.tasks) or ""


def _on_sub_agent_error(
    reader: StepReader, draft: ReactiveDraft, given: Value
) -> tuple[str | None, tuple[Value, ...]]:
    """What becomes of tasks that fail, and where their errors are collected; tries are the draft's."""
    path = (*draft.at, "on_sub_agent_error")
    if given is None:
        return None, ()
    if isinstance(given, str):
        given = {"strategy": given}
    if not isinstance(given, dict):
        message = f"'on_sub_agent_error' must be a mapping, not {kind_and_value(given)}"
        hint = "e.g. on_sub_agent_error: {strategy: retry_failed, max_retries: 2}"
        reader.problem("wrong_type", message, hint, path)
        return None, ()
    for problem in unknown_keys(given, ERROR_KEYS, path, "'on_sub_agent_error'"):
        reader.report(problem)
    strategy = None
    if given.get("strategy") is not None:
        strategy = read_word(given["strategy"], STRATEGIES, (*path, "strategy"), reader.report)
    if strategy == "retry_failed":
        draft.retry = {
            "attempts": reader.attempts(draft, given, "max_retries", path),
            "delay": 0,
            "on": "any",
        }
    elif given.get("max_retries") is not None:
        message = "'max_retries' is for strategy: retry_failed"
        hint = "write strategy: retry_failed, or remove it"
        reader.problem("unknown_key", message, hint, (*path, "max_retries"), on_key=True)
    draft.says_on_error = strategy not in (None, "continue")  # that is said of the tasks, not of the step
    where = given.get("error_state_path")
    collect = where is not None
    if given.get("collect_errors") is not None:
        means = "true: what went wrong in a task is added to the list at error_state_path"
        collect = reader.flag(given["collect_errors"], (*path, "collect_errors"), means)
    keys = reader.state_path(draft, where or ITEM_ERRORS, (*path, "error_state_path")) if collect else ()
    return strategy, keys


def _read_include(reader: StepReader, draft: ReactiveDraft, step: dict[str, Value]) -> None:
    at = draft.at
    timeout = reader.seconds(draft, step, "timeout", least=1)
    called, inputs = step.get("workflow"), step.get("inputs")
    if called is not None and not isinstance(called, str):
        message = f"'workflow' must be the name of a workflow, not {kind_and_value(called)}"
        reader.problem("wrong_type", message, 'e.g. workflow: "shared:check-standards"', (*at, "workflow"))
    if inputs is not None and not isinstance(inputs, dict | str):
        message = f"'inputs' must be a mapping of names and values, not {kind_and_value(inputs)}"
        reader.problem("wrong_type", message, "write the inputs below it: name: value", (*at, "inputs"))
        inputs = None
    draft.uses += reader.references.in_value(called, (*at, "workflow"))
    draft.uses += reader.references.in_value(inputs, (*at, "inputs"))
    reader.failing(draft, step)
    if step.get("on_complete") not in (None, []):
        draft.then = reader.read_list(step["on_complete"], (*at, "on_complete"))
    draft.do = Call(called, {} if inputs is None else inputs, timeout, leads_on=bool(draft.then))


def _read_state_update(reader: StepReader, draft: ReactiveDraft, step: dict[str, Value]) -> None:
    at = draft.at
    own = [key for key in ("path", "value", "operation", "transform") if key in step]
    if step.get("updates") is not None:
        if own:
            message = f"'{own[0]}' stands beside 'updates', which has its own"
            hint = "put it into the list of updates"
            reader.problem("unknown_key", message, hint, (*at, own[0]), on_key=True)
        draft.updates = reader.updates(draft, step["updates"])
    else:
        unknown = [key for key in step if key not in own_keys(draft.kind)]
        if step.get("path") is None and not any(nearest(key, ["path", "updates"]) for key in unknown):
            message = "a step of type state_update needs 'path', or 'updates'"
            hint = "add a line: path: raw.count, or updates: [{path: raw.count, value: 1}]"
            reader.problem("missing_key", message, hint, at)
        draft.updates = reader.change(draft, step)
    draft.do = UpdateState(draft.updates)


def _read_message(reader: StepReader, draft: ReactiveDraft, step: dict[str, Value]) -> None:
    draft.uses += reader.references.in_value(step.get("message"), (*draft.at, "message"))
    draft.do = Tell(step.get("message"))


def _read_wait(reader: StepReader, draft: ReactiveDraft, step: dict[str, Value]) -> None:
    seconds = reader.number(draft, step, "duration_seconds", 0, "seconds, e.g. duration_seconds: 30")
    draft.uses += reader.references.in_value(step.get("message"), (*draft.at, "message"))
    draft.do = Wait(seconds, step.get("message"))


_ELSEWHERE = {
    ("parallel_foreach", "on_error"): "write on_sub_agent_error: {strategy: continue}",
    ("parallel_foreach", "steps"): "put the steps into sub_agent_tasks, and name the task: sub_agent_task: …",
    ("user_message", "state_update"): "a message has no result: use a step of type state_update",
    ("wait", "timeout"): "write duration_seconds",
}
"""Keys of other types, and what does the same here."""

READERS: dict[str, Callable[[StepReader, ReactiveDraft, dict[str, Value]], None]] = {
    "conditional": _read_conditional,
    "while": _read_while,
    "foreach": _read_foreach,
    "break": _read_nothing,
    "continue": _read_nothing,
    "sequential": _read_sequential,
    "parallel_foreach": _read_parallel,
    "include_workflow": _read_include,
    "state_update": _read_state_update,
    "user_message": _read_message,
    "exit": _read_nothing,
    "wait": _read_wait,
}
