"""Reads the steps of a reactive document into drafts of nodes.

Control steps have a row in `CONTROL`; every other type is a step type of the registry.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, cast

from workflows_mcp.dialects.document_keys import unknown_keys
from workflows_mcp.dialects.reactive_state import Keys, Pieces, WrongPath, read_path
from workflows_mcp.dialects.repetition import check_children
from workflows_mcp.dialects.step_inputs import StepShape, check_step_inputs
from workflows_mcp.dialects.steps import (
    ID,
    ON_FAILURE,
    BaseStepReader,
    Draft,
    StepValues,
    read_on_interrupt,
    read_on_limit,
    read_word,
)
from workflows_mcp.errors import ExpressionError, Problem
from workflows_mcp.plan import (
    MOST_ATTEMPTS,
    MOST_SECONDS,
    Call,
    Change,
    ChangeOperation,
    Checkpoint,
    Do,
    ForEach,
    Return,
    Tell,
    UpdateState,
    Use,
    converted,
)
from workflows_mcp.steps import Performer, Step
from workflows_mcp.values import Value, kind_and_value, nearest, shown

# ----------------------------------------------------------------------------------------------------
# A step as read from a reactive document.


@dataclass(slots=True)
class ReactiveDraft(Draft):
    own_id: str = ""
    """The id in the file, without its templates; empty if nothing is left."""
    changes: tuple[Change, ...] = ()
    """What its result changes in the state."""
    error_changes: tuple[Change, ...] = ()
    fallback: Value = None
    has_fallback: bool = False
    sets_on_error: bool = False
    """Whether the step itself sets what happens when it fails."""
    updates: tuple[Change, ...] = ()
    """What a state_update changes."""
    most: Value = None
    """The maximum number of iterations of a while."""
    items: Value = None
    """The list of a foreach, and the variables for the item and its position."""
    item: str = "item"
    index: str = "index"
    task: str = ""
    """The task of a parallel_foreach; the name of a task of another file starts with '#'."""

    @property
    def every_change(self) -> tuple[Change, ...]:
        return (*self.updates, *self.changes, *self.error_changes)


# ----------------------------------------------------------------------------------------------------
# The control steps of the reactive dialect, which are operations of the plan.
#
# A new one needs a row in `CONTROL`, a reader here, and a row in `READERS`.


Path = tuple[str | int, ...]


ABOUT = ("id", "type", "name", "description", "when")

"""The keys of every step."""

FAILING = ("state_update", "on_error", "retry_count", "retry_delay", "fallback_value", "error_state_update")

"""The keys of steps that can fail."""

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

"""The types of control steps, with their own keys."""

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

"""The required keys of each type, and how to write them."""

SAME = {"body": "steps", "steps": "body"}

"""The two names of the body of a loop."""

ERROR_KEYS = ("strategy", "max_retries", "collect_errors", "error_state_path")

STRATEGIES = ("retry_failed", "continue", "fail_all")

ITEM_ERRORS = "raw.sub_agent_errors"

"""The default place for errors of sub-agents."""

AGENT = "@task"

"""The kind of sub-agent that runs a task of a parallel_foreach."""

NAMES = (
    "raw", "state", "computed", "inputs", "config", "this", "global", "loop", "secrets", "input", "result",
    "error", "context", "task_id", "workflow_id", "total", "parent",
)  # fmt: skip

"""Names that already have a meaning in expressions."""

_NAME = re.compile(r"[A-Za-z$][\w$]*", re.ASCII)
_ITEMS_EXAMPLE = "{{ files }}"


def own_keys(kind: str) -> tuple[str, ...]:
    """All keys of a control step."""
    return (*ABOUT, *CONTROL[kind])


def read_control(reader: StepReader, draft: ReactiveDraft, step: dict[str, Value]) -> None:
    kind = draft.kind
    reader.check_keys(draft, step)
    if "on_error" in CONTROL[kind] and kind != "include_workflow" and "on_error" in step:
        reader.on_error_of_control(draft, step["on_error"])
    READERS[kind](reader, draft, step)
    if "on_timeout" in CONTROL[kind]:
        reader.on_timeout(draft, step)


def _read_conditional(reader: StepReader, draft: ReactiveDraft, step: dict[str, Value]) -> None:
    reader.branches(draft, step, "condition")


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
    means = "the maximum number of iterations; then the loop fails, or ends (on_limit: continue)"
    draft.most = reader.number(draft, step, "max_iterations", 1, means, whole=True)
    draft.on_limit = read_on_limit(step, draft.at, reader.report)
    _body(reader, draft, step)


def _read_foreach(reader: StepReader, draft: ReactiveDraft, step: dict[str, Value]) -> None:
    draft.items = reader.items(draft, step, _ITEMS_EXAMPLE)
    draft.item = _variable(reader, step, "variable_name", draft.item, draft.at)
    draft.index = _variable(reader, step, "index_name", draft.index, draft.at)
    if draft.item == draft.index:
        message = f"the item and its position are both called '{draft.item}'"
        key = "index_name" if "index_name" in step else "variable_name"
        reader.problem("bad_id", message, "give one of the two another name", (*draft.at, key))
    _body(reader, draft, step)


def _variable(reader: StepReader, step: dict[str, Value], key: str, usual: str, at: Path) -> str:
    given = step.get(key)
    if given is None:
        return usual
    if isinstance(given, str) and _NAME.fullmatch(given) and given not in NAMES:
        return given
    hint = "a name of letters, digits and '_' that starts with a letter, e.g. file"
    if given in NAMES:
        hint = f"'{given}' already has a meaning in expressions: choose another name"
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
    items = reader.items(draft, step, _ITEMS_EXAMPLE)
    limit = reader.max_parallel(draft, step)
    check_children(items, limit, at, reader.limits, reader.report)
    prompt = reader.text(draft, step, "sub_agent_prompt_override", "the prompt for each sub-agent")
    wait = True
    if step.get("wait_for_all") is not None:
        means = "false: the next steps run while the tasks are running"
        wait = reader.flag(step["wait_for_all"], (*at, "wait_for_all"), means)
    strategy, errors_to = _on_sub_agent_error(reader, draft, step.get("on_sub_agent_error"))
    draft.for_each = ForEach(
        items,
        limit,
        agent=AGENT,
        prompt=prompt,
        wait=wait,
        fail_fast=strategy == "fail_all",
        tolerate_failures=strategy == "continue",
        errors_to=errors_to,
    )
    timeout = reader.seconds(draft, step, "timeout", least=1)
    draft.changes = reader.changes(draft, step.get("state_update"), "state_update")
    draft.error_changes = reader.changes(draft, step.get("error_state_update"), "error_state_update")
    draft.task = _task(reader, step.get("sub_agent_task"), (*at, "sub_agent_task"))
    where = draft.task if draft.task.startswith("#") else f"{reader.workflow}#{draft.task}"
    draft.do = Call(where, timeout=timeout, of_item=True)


def _task(reader: StepReader, given: Value, path: Path) -> str:
    """The name of a task; '#' marks one that can only come from an import."""
    if given is None:
        return ""
    if isinstance(given, str) and given in reader.tasks:
        return given
    if isinstance(given, str) and given and reader.has_imports:
        return f"#{given}"
    return reader.unknown_task(given, path, "sub_agent_tasks") or ""


def _on_sub_agent_error(
    reader: StepReader, draft: ReactiveDraft, given: Value
) -> tuple[str | None, tuple[Value, ...]]:
    """Reads the strategy for failed tasks, and the place for their errors.

    The retry rule goes into the draft.
    """
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
    draft.sets_on_error = strategy not in (None, "continue")  # "continue" is about the tasks, not the step
    where = given.get("error_state_path")
    collect = where is not None
    if given.get("collect_errors") is not None:
        means = "true: the errors of tasks are added to the list at error_state_path"
        collect = reader.flag(given["collect_errors"], (*path, "collect_errors"), means)
    keys = reader.state_path(draft, where or ITEM_ERRORS, (*path, "error_state_path")) if collect else ()
    return strategy, keys


def _read_include(reader: StepReader, draft: ReactiveDraft, step: dict[str, Value]) -> None:
    at = draft.at
    timeout = reader.seconds(draft, step, "timeout", least=1)
    called, inputs = reader.called(draft, step, '"shared:check-standards"')
    reader.failing(draft, step)
    if step.get("on_complete") not in (None, []):
        draft.then = reader.read_list(step["on_complete"], (*at, "on_complete"))
    draft.do = Call(called, inputs, timeout, on_complete=bool(draft.then))


def _read_state_update(reader: StepReader, draft: ReactiveDraft, step: dict[str, Value]) -> None:
    at = draft.at
    own = [key for key in ("path", "value", "operation", "transform") if key in step]
    if step.get("updates") is not None:
        if own:
            message = f"'{own[0]}' is next to 'updates', which has its own"
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
    draft.do = Tell(reader.value(draft, step, "message"))


def _read_wait(reader: StepReader, draft: ReactiveDraft, step: dict[str, Value]) -> None:
    reader.wait(draft, step)


_ELSEWHERE = {
    ("parallel_foreach", "on_error"): "write on_sub_agent_error: {strategy: continue}",
    ("parallel_foreach", "steps"): "put the steps into sub_agent_tasks, and name the task: sub_agent_task: …",
    ("user_message", "state_update"): "a message has no result: use a step of type state_update",
    ("wait", "timeout"): "write duration_seconds",
}

"""Keys of other types, and how to write the same here."""


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


# ----------------------------------------------------------------------------------------------------
# Values that many step types of a reactive document have: changes of the state, times, attempts.
#
# Times in the file are milliseconds, and become seconds here. Each reader returns what it read, and reports
# what is wrong.


_OF_RESULTS = frozenset({"stdout", "stderr", "exit_code", "response", "result", "output", "value", "content"})

"""Names of outputs of steps."""

CHANGE_KEYS = ("path", "value", "operation", "transform")

OPERATIONS: tuple[ChangeOperation, ...] = ("set", "append", "increment", "merge")

DEFAULT_RETRIES = 3

"""The number of retries of a step that does not set it."""

_FILTER = re.compile(r"(?<!\|)\|(?!\|)")


class ReactiveValues(StepValues):
    condition_example: ClassVar[str] = "{{ has_errors }}"

    @property
    def language(self) -> Pieces:
        return cast(Pieces, self.references.language)

    # Changes of the state

    def changes(self, draft: ReactiveDraft, given: Value, key: str) -> tuple[Change, ...]:
        """Reads `state_update` or `error_state_update`: one change, or a list of changes."""
        at = (*draft.at, key)
        if given is None:
            return ()
        if isinstance(given, list):
            found = [self._change(draft, it, (key, index)) for index, it in enumerate(given)]
        elif isinstance(given, dict):
            found = [self._change(draft, given, (key,))]
        else:
            message = f"'{key}' must be a mapping or a list of them, not {kind_and_value(given)}"
            self.problem("wrong_type", message, f"e.g. {key}: {{path: raw.result}}", at)
            return ()
        changes = tuple(change for change in found if change is not None)
        for change in changes if key == "state_update" else ():
            self._set_to_itself(draft, change)
        return changes

    def _set_to_itself(self, draft: ReactiveDraft, change: Change) -> None:
        """Warns of a change that sets a field to itself.

        A field of the state takes precedence over a field of the result, so such a change does nothing.
        """
        name = str(change.path[-1])
        documented = draft.do.documented if isinstance(draft.do, Do) else ()
        plain = change.operation == "set" and not change.transform and len(change.path) == 2
        same = isinstance(change.value, str) and change.value.replace(" ", "") == f"{{{{{name}}}}}"
        if not (plain and same) or name in documented:
            return
        message = f"'{name}' is the field of the state once it has a value, so this sets it to itself"
        hint = f"write {{{{ result.{name} }}}} for the field of the result"
        path = (*draft.at, *change.at, "value")
        self.report(Problem("without_effect", message, hint, path, warning=True))

    def updates(self, draft: ReactiveDraft, given: Value) -> tuple[Change, ...]:
        """Reads the `updates` of a step of type state_update."""
        if not isinstance(given, list) or not given:
            what = "is empty" if given == [] else f"must be a list, not {kind_and_value(given)}"
            hint = "e.g. updates: [{path: raw.count, value: 1}]"
            self.problem("wrong_type", f"'updates' {what}", hint, (*draft.at, "updates"))
            return ()
        found = [
            self._change(draft, it, ("updates", index), needs_value=True) for index, it in enumerate(given)
        ]
        return tuple(change for change in found if change is not None)

    def change(self, draft: ReactiveDraft, step: Mapping[str, Value]) -> tuple[Change, ...]:
        """Reads the change in the keys of a step of type state_update."""
        change = self._made(draft, step, (), needs_value=True)
        return () if change is None else (change,)

    def _change(
        self, draft: ReactiveDraft, given: Value, inside: Path, *, needs_value: bool = False
    ) -> Change | None:
        at = (*draft.at, *inside)
        if not isinstance(given, dict):
            message = f"a change of the state must be a mapping, not {kind_and_value(given)}"
            self.problem("wrong_type", message, "e.g. {path: raw.result, value: …}", at)
            return None
        missing = ["path"] if given.get("path") is None else []
        for problem in unknown_keys(given, CHANGE_KEYS, at, f"'{inside[0]}'"):
            self.report(problem)
            if nearest(str(problem.path[-1]), missing):
                missing = []  # one mistake, one problem
        if missing:
            message = "a change of the state needs 'path'"
            self.problem("missing_key", message, "add a line: path: raw.result", at, on_key=True)
        return self._made(draft, given, inside, needs_value=needs_value)

    def _made(
        self, draft: ReactiveDraft, given: Mapping[str, Value], inside: Path, *, needs_value: bool
    ) -> Change | None:
        at = (*draft.at, *inside)
        operation = OPERATIONS[0]
        if given.get("operation") is not None:
            word = read_word(given["operation"], OPERATIONS, (*at, "operation"), self.report)
            operation = cast(ChangeOperation, word or operation)
        transform = self._transform(draft, given.get("transform"), (*at, "transform"))
        has_value = "value" in given or bool(transform) or operation == "increment"
        if needs_value and not has_value and given.get("path") is not None:  # one mistake, one problem
            example = {"append": "one more", "merge": "{status: done}"}.get(operation, "5")
            message = f"the operation {operation} needs a 'value'"
            self.problem("missing_key", message, f"add a line: value: {example}", at, on_key=bool(inside))
        draft.uses += self.references.in_value(given.get("value"), (*at, "value"))
        value = given.get("value")
        if isinstance(value, str) and value in _OF_RESULTS and not needs_value:
            message = f"the value is the word '{value}', not the {value} of the step"
            documented = draft.do.documented if isinstance(draft.do, Do) else ()
            hint = f'write value: "{{{{ {value} }}}}"'
            if value != "result" and value not in documented:
                hint = f'write value: "{{{{ result }}}}", or "{{{{ result.{value} }}}}" for a field of it'
            self.report(Problem("literal_value", message, hint, (*at, "value"), warning=True))
        if given.get("path") is None:
            return None
        keys = self.state_path(draft, given["path"], (*at, "path"))
        if not keys:
            return None
        return Change(keys, operation, given.get("value"), "value" in given, transform, inside)

    def state_path(self, draft: ReactiveDraft, given: Value, path: Path) -> Keys:
        """The keys of a place in the state; empty if it cannot be written."""
        if not isinstance(given, str):
            message = f"'{path[-1]}' must be text, not {kind_and_value(given)}"
            self.problem("wrong_type", message, f"e.g. {path[-1]}: raw.result", path)
            return ()
        try:
            keys = read_path(given.strip(), self.language)
        except ExpressionError:
            keys = ()  # reading its references, below, reports it
        except WrongPath as wrong:
            self.problem("bad_path", str(wrong), wrong.hint, path)
            return ()
        draft.uses += self.references.in_value(given, path)
        return keys

    def _transform(self, draft: ReactiveDraft, given: Value, path: Path) -> str:
        """A template, or JavaScript that computes a value from `input` and `result`."""
        if given is None:
            return ""
        if not isinstance(given, str) or not given.strip():
            message = f"'transform' must be JavaScript, not {kind_and_value(given)}"
            self.problem("wrong_type", message, 'e.g. transform: "input.trim()"', path)
            return ""
        dynamic = self.references.language.is_dynamic(given)
        read = self.references.in_value if dynamic else self.references.in_transform
        draft.uses += read(given, path)
        return given

    # Times and attempts

    def seconds(self, draft: ReactiveDraft, step: Mapping[str, Value], key: str, *, least: float) -> Value:
        """Converts milliseconds to seconds: a number, or a template; None if missing or invalid."""
        given, path = step.get(key), (*draft.at, key)
        if given is None:
            return None
        if isinstance(given, str) and self.references.language.is_dynamic(given):
            return self._scaled(draft, given, path, "/ 1000")
        try:
            number: float = converted(given, "number")
        except ValueError as error:
            self.problem("wrong_type", f"'{key}' {error}", f"milliseconds, e.g. {key}: 5000", path)
            return None
        if not least <= number <= MOST_SECONDS * 1000:
            most = MOST_SECONDS * 1000
            message = f"'{key}' must be from {least:g} to {most} milliseconds, not {shown(number)}"
            self.problem("wrong_value", message, f"e.g. {key}: 5000, which is five seconds", path)
            return None
        seconds = number / 1000
        return int(seconds) if seconds == int(seconds) else seconds

    def attempts(self, draft: ReactiveDraft, step: Mapping[str, Value], key: str, at: Path) -> Value:
        """The number of attempts, from the number of retries in the file."""
        given, path = step.get(key), (*at, key)
        if given is None:
            return 1 + DEFAULT_RETRIES
        if isinstance(given, str) and self.references.language.is_dynamic(given):
            return self._scaled(draft, given, path, "+ 1")
        hint = f"the number of retries, e.g. {key}: 3"
        try:
            number: int = converted(given, "integer")
        except ValueError as error:
            self.problem("wrong_type", f"'{key}' {error}", hint, path)
            return 1 + DEFAULT_RETRIES
        if 0 <= number < MOST_ATTEMPTS:
            return number + 1
        message = f"'{key}' must be from 0 to {MOST_ATTEMPTS - 1}, not {shown(number)}"
        self.problem("wrong_value", message, hint, path)
        return 1 + DEFAULT_RETRIES

    def _scaled(self, draft: ReactiveDraft, text: str, path: Path, by: str) -> Value:
        """Applies the arithmetic in `by` to a template of a number."""
        malformed = len(self.references.problems)
        draft.uses += self.references.in_value(text, path)
        if len(self.references.problems) > malformed:
            return None
        pieces = self.language.pieces(text)
        if len(pieces) == 1 and pieces[0] == text.strip() and not _FILTER.search(pieces[0]):
            return f"{{{{ ({pieces[0][2:-2].strip()}) {by} }}}}"
        message = f"'{path[-1]}' must be a number, or one expression without filters, not {shown(text)}"
        self.problem("wrong_type", message, f'e.g. {path[-1]}: "{{{{ config.{path[-1]} }}}}"', path)
        return None


DIALECT = "reactive"

ON_ERROR = ("fail", "continue", "retry")

TIMED = ("Shell", "AgentShell", "MCPCall")

"""Types whose timeout is written in milliseconds."""

OUTPUT_FORMAT = "output_format"

"""The key for the output format, for types that have it in `Step.dialect_config`."""

MCP, MCP_KEYS = "mcp", ("method", "params")

"""The method and parameters of a tool call are below `mcp`, or in the step itself."""

_TOOL_SPELLINGS = {"tool": "method", "args": "params", "parameters": "params"}

"""Other names for the parts of a tool call, here and in other dialects."""

_SPELLINGS = {"then_steps": "then", "else_steps": "else", "timeout_seconds": "timeout"}

"""Other names for keys of steps. `timeout_seconds` is in seconds, `timeout` in milliseconds."""

_SPELT_TYPES = {"while_loop": "while"}

"""Other names for step types."""

CHECKPOINT_TOOLS = ("workflow.checkpoint", "workflow_checkpoint")

"""A tool of this server: the run itself marks its position."""

RENAMED = {"MCPCall": {"tool": "method", "parameters": "params"}}

_EQUIVALENTS = {
    "condition": "conditional",
    "Delegate": "parallel_foreach",
    "delegate": "parallel_foreach",
    "ExecuteWorkflow": "include_workflow",
    "for_each": "foreach",
    "goto": "while",
    "if": "conditional",
    "mcp": "mcp_call",
    "message": "user_message",
    "parallel_tasks": "parallel_foreach",
    "Prompt": "user_input",
    "prompt": "user_input",
    "return": "exit",
    "set_state": "state_update",
    "Shell": "shell_command",
    "shell": "shell_command",
    "sleep": "wait",
    "Workflow": "include_workflow",
    "workflow": "include_workflow",
}


def keys_beside(step: Step) -> tuple[str, ...]:
    """The keys of a step besides the inputs of its type."""
    keys = [*ABOUT, *FAILING, "timeout", "on_timeout"]
    if step.can_run:
        keys.append("on_interrupt")
    if step.can_run and step.can_ask:
        keys.append("run_on")
    if OUTPUT_FORMAT in step.dialect_config.get(DIALECT, {}):
        keys.append(OUTPUT_FORMAT)
    return tuple(keys)


class StepReader(BaseStepReader, ReactiveValues):
    """Reads the steps of a workflow and of its tasks."""

    dialect: ClassVar[str] = DIALECT
    control: ClassVar[Collection[str]] = CONTROL
    required: ClassVar[Mapping[str, Mapping[str, str]]] = REQUIRED
    elsewhere: ClassVar[Mapping[tuple[str, str], str]] = _ELSEWHERE
    same: ClassVar[Mapping[str, str]] = SAME
    equivalents: ClassVar[Mapping[str, str]] = _EQUIVALENTS
    inner: ClassVar[tuple[str, ...]] = ("then", "else", "body", "steps", "on_complete")
    own_keys = staticmethod(own_keys)
    renamed: ClassVar[Mapping[str, Mapping[str, str]]] = RENAMED
    step_example: ClassVar[str] = "- type: shell_command, and below it the keys of that type"
    keys_beside = staticmethod(keys_beside)
    has_imports = False
    """Whether tasks and workflows can come from other files."""

    def read_list(self, given: Value, path: Path) -> list[ReactiveDraft]:
        turned = ""
        if path[-1] == "then":
            turned = 'put steps into it, or negate the test: condition: "{{ !(…) }}"'
        return [self._read(step, at) for step, at in self.mappings(given, path, turned)]

    def kind(self, step: Mapping[str, Value], at: Path) -> str:
        """The type of a step; empty for a type of another dialect, which has other keys too."""
        kind, given = super().kind(step, at), step.get("type")
        return "" if isinstance(given, str) and given in self.equivalents else kind

    def _read(self, step: dict[str, Value], at: Path) -> ReactiveDraft:
        step = self._as_documented(step, at)
        draft = ReactiveDraft("", at, self.kind(step, at), own_id=self._own_id(step.get("id"), at))
        if "when" in step:
            draft.condition = self.condition(draft, step["when"], (*at, "when"))
        if draft.kind in CONTROL:
            read_control(self, draft, step)
        elif draft.kind:
            self._work(draft, step)
        else:
            self.unknown(draft, step)
            draft.repeats = True  # so that a break in it is not reported
        return draft

    def _as_documented(self, step: dict[str, Value], at: Path) -> dict[str, Value]:
        """Replaces other spellings of the type and the keys, with a warning for each."""
        kind = step.get("type")
        if isinstance(kind, str) and kind in _SPELT_TYPES:
            step = {**step, "type": _SPELT_TYPES[kind]}
            self._spelt(f"type: {kind}", f"type: {_SPELT_TYPES[kind]}", (*at, "type"))
        known: Collection[str] = ()
        if isinstance(kind := step.get("type"), str):
            shape = self.shape(kind) if kind not in CONTROL else None
            known = own_keys(kind) if kind in CONTROL else (*shape.names, *shape.beside) if shape else ()
        found = {
            spelt: key
            for spelt, key in _SPELLINGS.items()
            if spelt in step and key in known and key not in step
        }
        for spelt, key in found.items():
            self._spelt(
                spelt, f"{key}, in milliseconds" if key == "timeout" else key, (*at, spelt), on_key=True
            )
        return {found.get(key, key): self._in_unit(key, it) for key, it in step.items()} if found else step

    def _in_unit(self, key: str, value: Value) -> Value:
        """Converts seconds to milliseconds."""
        if key != "timeout_seconds" or isinstance(value, bool):
            return value
        if isinstance(value, int | float):
            return value * 1000
        if isinstance(value, str) and (whole := _WHOLE.fullmatch(value)):
            return f"{{{{ ({whole[1].strip()}) * 1000 }}}}"
        return value

    def _spelt(self, written: str, documented: str, path: Path, *, on_key: bool = False) -> None:
        message = f"'{written}' works, but is not the documented spelling"
        hint = f"write {documented}"
        self.report(Problem("spelling", message, hint, path, on_key=on_key, warning=True))

    def _own_id(self, given: Value, at: Path) -> str:
        """The id in the file, without expressions, whose values only the run knows."""
        if given is None:
            return ""
        if isinstance(given, int | float):
            given = self.document.written((*at, "id"))
        if isinstance(given, str):
            own = _EXPRESSION.sub("", given).strip("_- ") if "{{" in given else given
            if ID.fullmatch(own) or (not own and "{{" in given):
                return own
        hint = "an id holds letters, digits, '_' and '-', e.g. run-tests"
        self.problem("bad_id", f"{shown(given)} cannot be an id", hint, (*at, "id"))
        return ""

    def text(self, draft: ReactiveDraft, step: Mapping[str, Value], key: str, means: str) -> str | None:
        """Reads a text, or a template."""
        given, path = step.get(key), (*draft.at, key)
        if given is None:
            return None
        draft.uses += self.references.in_value(given, path)
        if isinstance(given, str):
            return given
        self.problem("wrong_type", f"'{key}' must be text, not {kind_and_value(given)}", means, path)
        return None

    # Failures of steps

    def on_error_of_control(self, draft: ReactiveDraft, given: Value) -> None:
        """Reads `on_error` of a control step, which cannot be retried."""
        word = read_word(given, ON_FAILURE, (*draft.at, "on_error"), self.report)
        draft.sets_on_error = True
        draft.on_failure = "continue" if word == "continue" else None

    def failing(self, draft: ReactiveDraft, step: Mapping[str, Value]) -> None:
        """Reads what the result of a step changes, and what happens when it fails."""
        at = draft.at
        draft.changes = self.changes(draft, step.get("state_update"), "state_update")
        draft.error_changes = self.changes(draft, step.get("error_state_update"), "error_state_update")
        word = None
        if step.get("on_error") is not None:
            word = read_word(step["on_error"], ON_ERROR, (*at, "on_error"), self.report)
            draft.sets_on_error = True
            draft.on_failure = "continue" if word == "continue" else None
        attempts = self.attempts(draft, step, "retry_count", at)
        delay = self.seconds(draft, step, "retry_delay", least=0)
        if word == "retry":
            draft.retry = {"attempts": attempts, "delay": 1 if delay is None else delay, "backoff": 1}
        else:
            for key in ("retry_count", "retry_delay"):
                if step.get(key) is not None:
                    self._without_retry(key, (*at, key))
        if "fallback_value" in step:
            path = (*at, "fallback_value")
            draft.uses += self.references.in_value(step["fallback_value"], path)
            draft.fallback, draft.has_fallback = step["fallback_value"], True
            if word == "fail":
                message = "'fallback_value' is never used with on_error: fail"
                hint = "write on_error: continue, or on_error: retry to retry it first"
                self.problem("wrong_value", message, hint, path, on_key=True)

    def _without_retry(self, key: str, path: Path) -> None:
        message = f"'{key}' needs on_error: retry; this step is not retried"
        hint = "write on_error: retry, or remove it"
        self.report(Problem("without_effect", message, hint, path, on_key=True, warning=True))

    # Steps of registered types

    def _work(self, draft: ReactiveDraft, step: dict[str, Value]) -> None:
        at, shape = draft.at, self.shape(draft.kind)
        assert shape is not None
        kind = shape.step
        given, places = self._given(draft, shape, step)
        inputs, dynamic = self.inputs(draft, shape, given, places)
        nested = {(*at, key): places[key] for key in MCP_KEYS if key in places}
        for problem in check_step_inputs(shape, inputs, dynamic, at, self.document, as_a_whole=True):
            self.report(_moved(problem, nested, len(at) + 1))
        known = {name: value for name, value in inputs.items() if name in shape.names}
        inputs = shape.as_the_type_has_them(known)
        config = dict(kind.dialect_config.get(DIALECT, {}))
        if OUTPUT_FORMAT in shape.beside and step.get(OUTPUT_FORMAT) is not None:
            config[OUTPUT_FORMAT] = step[OUTPUT_FORMAT]
            for path, message, hint in kind.check_config(config):
                self.problem("wrong_value", message, hint, (*at, *path))
        by = self.performer_of(shape, step, known, at)
        outputs = kind.output_defaults(config)
        draft.do = Do(
            step=kind.name,
            inputs=inputs,
            by=by,
            code=tuple(name for name in inputs if name in kind.code_inputs),
            literal=tuple(name for name in inputs if name in kind.literal_inputs),
            timeout=self._timeout(draft, shape, step, inputs, by),
            config=config,
            defaults=outputs,
            may_fail=kind.may_fail,
            documented=kind.result_fields if "result" in outputs else tuple(outputs),
            result_output=kind.result_output_in(DIALECT),
        )
        if kind.name == "MCPCall" and inputs.get("tool") in CHECKPOINT_TOOLS and "run_on" not in step:
            draft.do = Checkpoint(inputs.get("parameters", inputs.get("args", {})))
        draft.on_interrupt = kind.on_interrupt
        if step.get("on_interrupt") is not None:
            path = (*at, "on_interrupt")
            draft.on_interrupt = read_on_interrupt(step["on_interrupt"], path, self.report)
        self.failing(draft, step)
        self.on_timeout(draft, step, kind, inputs)

    def _given(
        self, draft: ReactiveDraft, shape: StepShape, step: dict[str, Value]
    ) -> tuple[dict[str, Value], dict[str, Path]]:
        """The keys of a step by the names of its inputs, and the path of each."""
        at = draft.at
        given = dict(step)
        places: dict[str, Path] = {name: (*at, name) for name in step}
        if shape.step.name == "MCPCall":
            self._tool(given, places, at)
        within = shape.step.timeout_input
        if within is not None and shape.step.name in TIMED and given.get(within) is not None:
            given[within] = self.seconds(draft, step, within, least=1)
        return given, places

    def _tool(self, given: dict[str, Value], places: dict[str, Path], at: Path) -> None:
        """Turns `mcp: {method, params}`, or both in the step, into inputs of the step type."""
        inner = given.pop(MCP, None)
        if inner is not None and not isinstance(inner, dict):
            message = f"'{MCP}' must be a mapping, not {kind_and_value(inner)}"
            self.problem("wrong_type", message, "e.g. mcp: {method: lint_project, params: {}}", (*at, MCP))
            inner = {"method": "?"}  # so that it causes no further problems
        for spelt, key in _TOOL_SPELLINGS.items():
            if spelt in given and key not in given:
                self._spelt(spelt, key, (*at, spelt), on_key=True)
                given[key], places[key] = given.pop(spelt), (*at, spelt)
            if inner is not None and spelt in inner and key not in inner:
                self._spelt(spelt, key, (*at, MCP, spelt), on_key=True)
                inner = {key if it == spelt else it: part for it, part in inner.items()}
        for problem in unknown_keys(inner or {}, MCP_KEYS, (*at, MCP), f"'{MCP}'"):
            self.report(problem)
            close = nearest(str(problem.path[-1]), MCP_KEYS)
            if close and inner is not None and close not in inner:
                inner = {**inner, close: inner[problem.path[-1]]}  # one mistake, one problem
        for key in MCP_KEYS:
            if inner is not None and key in inner:
                if key in given:
                    message = f"'{key}' is both in '{MCP}' and next to it"
                    self.problem("unknown_key", message, "keep one of the two", (*at, key), on_key=True)
                given[key], places[key] = inner[key], (*at, MCP, key)

    def _timeout(
        self,
        draft: ReactiveDraft,
        shape: StepShape,
        step: Mapping[str, Value],
        inputs: Mapping[str, Value],
        by: Performer,
    ) -> Value:
        """Seconds after which the server ends the step.

        For an agent, only the timeout in the step counts: the agent itself applies the default of the type.
        """
        within = shape.step.timeout_input
        if within is not None:
            return inputs.get(within, shape.default_timeout if by == "server" else None)
        return self.seconds(draft, step, "timeout", least=1)


def _moved(problem: Problem, places: Mapping[Path, Path], length: int) -> Problem:
    """The problem, at the path of its value in the document."""
    place = places.get(problem.path[:length])
    if place is None:
        return problem
    return Problem(
        problem.code,
        problem.message,
        problem.hint,
        (*place, *problem.path[length:]),
        problem.offset,
        problem.on_key,
    )


_WHOLE = re.compile(r"\s*\{\{((?:(?!\{\{|\}\}).)*)\}\}\s*", re.DOTALL)

_EXPRESSION = re.compile(r"\{\{.*?\}\}")


# ----------------------------------------------------------------------------------------------------
# Reads the `error_handling` of a reactive workflow, or of a task.
#
# error_handling:
#   on_error: retry_workflow
#   max_retries: 2
#   error_collection: {enabled: true, state_path: raw.workflow_errors}
#   on_failure: [{type: user_message, message: "Workflow failed: {{ error.message }}"}]


KEYS = ("on_error", "max_retries", "error_collection", "on_failure")

TASK_KEYS = ("return_on_error", "cleanup_on_error")

ON_ERROR_KEY = ("checkpoint_and_fail", "continue", "retry_workflow")

COLLECTION_KEYS = ("enabled", "state_path", "include_stack_traces")

COLLECTED_AT = "raw.workflow_errors"

"""The default place for errors of steps."""

MOST_TRIES = 100


@dataclass(slots=True)
class ErrorHandling:
    continues: bool = False
    """Whether the workflow continues after a failure of a step without `on_error`."""
    tries: int = 1
    errors_to: Keys = ()
    steps: list[ReactiveDraft] = field(default_factory=list)
    """The steps to run after a failure."""
    uses: list[Use] = field(default_factory=list)


class ErrorReader:
    def __init__(self, reader: StepReader) -> None:
        self.reader = reader

    def read(self, given: Value, path: Path, *, of_task: bool) -> ErrorHandling:
        handling = ErrorHandling()
        if given is None:
            return handling
        if not isinstance(given, dict):
            message = f"'error_handling' must be a mapping, not {kind_and_value(given)}"
            self.reader.problem("wrong_type", message, "e.g. error_handling: {on_error: continue}", path)
            return handling
        keys = TASK_KEYS if of_task else KEYS
        for problem in unknown_keys(given, keys, path, "'error_handling'"):
            self.reader.report(problem)
        if of_task:
            self._of_task(given, path)
        else:
            self._of_workflow(given, path, handling)
        steps = "cleanup_on_error" if of_task else "on_failure"
        if given.get(steps) not in (None, []):
            handling.steps = self.reader.read_list(given[steps], (*path, steps))
        return handling

    def _of_task(self, given: dict[str, Value], path: Path) -> None:
        if given.get("return_on_error") is None:
            return
        where = (*path, "return_on_error")
        if not self.reader.flag(given["return_on_error"], where, "write true, or remove it"):
            message = "a task always reports its failure to the workflow"
            hint = "to continue anyway, add to the parallel_foreach: on_sub_agent_error: {strategy: continue}"
            if given["return_on_error"] is False:
                self.reader.problem("wrong_value", message, hint, where)

    def _of_workflow(self, given: dict[str, Value], path: Path, handling: ErrorHandling) -> None:
        word = None
        if given.get("on_error") is not None:
            word = read_word(given["on_error"], ON_ERROR_KEY, (*path, "on_error"), self.reader.report)
        handling.continues = word == "continue"
        if word == "retry_workflow":
            handling.tries = 1 + self._retries(given.get("max_retries"), (*path, "max_retries"))
        elif given.get("max_retries") is not None:
            message = "'max_retries' is for on_error: retry_workflow"
            hint = "write on_error: retry_workflow, or remove it"
            self.reader.problem("unknown_key", message, hint, (*path, "max_retries"), on_key=True)
        if given.get("error_collection") is not None:
            self._collection(given["error_collection"], (*path, "error_collection"), handling)

    def _retries(self, given: Value, path: Path) -> int:
        if given is None:
            return 1
        hint = "the number of retries of the workflow, e.g. max_retries: 2"
        try:
            number: int = converted(given, "integer")
        except ValueError as error:
            self.reader.problem("wrong_type", f"'max_retries' {error}", hint, path)
            return 1
        if not 1 <= number < MOST_TRIES:
            message = f"'max_retries' must be from 1 to {MOST_TRIES - 1}, not {number}"
            self.reader.problem("wrong_value", message, hint, path)
            return 1
        return number

    def _collection(self, given: Value, path: Path, handling: ErrorHandling) -> None:
        reader = self.reader
        if isinstance(given, bool):
            given = {"enabled": given}
        if not isinstance(given, dict):
            message = f"'error_collection' must be a mapping, not {kind_and_value(given)}"
            reader.problem("wrong_type", message, "e.g. error_collection: {enabled: true}", path)
            return
        for problem in unknown_keys(given, COLLECTION_KEYS, path, "'error_collection'"):
            reader.report(problem)
        enabled = True
        if given.get("enabled") is not None:
            means = "true: the errors of steps are added to the list at state_path"
            enabled = reader.flag(given["enabled"], (*path, "enabled"), means)
        where = (*path, "include_stack_traces")
        if given.get("include_stack_traces") is not None and reader.flag(
            given["include_stack_traces"], where, "write false, or remove it"
        ):
            message = "there are no stack traces: an error says which step failed, and why"
            problem = Problem("without_effect", message, "remove it", where, on_key=True, warning=True)
            reader.report(problem)
        draft = ReactiveDraft("", path)
        keys = reader.state_path(draft, given.get("state_path") or COLLECTED_AT, (*path, "state_path"))
        handling.uses = draft.uses
        handling.errors_to = keys if enabled else ()
