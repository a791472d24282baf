"""The steps of the reactive dialect: their keys, and how they are read into drafts of nodes.

Times in the file are milliseconds, and become seconds here.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any, cast

from workflows_mcp.dialects.keys import (
    ON_FAILURE,
    ON_INTERRUPT,
    WRITTEN,
    Key,
    Keys,
    Kind,
    Path,
    Reader,
    Schema,
    anything,
    condition,
    flag,
    items,
    keys,
    not_null,
    number,
    number_or_expression,
    parallel,
    table_of,
    time_or_expression,
    unknown_keys,
    word,
)
from workflows_mcp.dialects.process import BUDGET_KEY, keys_of_process
from workflows_mcp.dialects.reactive_state import Pieces, StatePath, WrongPath, read_path
from workflows_mcp.dialects.step_inputs import StepShape
from workflows_mcp.dialects.steps import (
    AFTER_TIMEOUT,
    ID,
    NAMED,
    ON_LIMIT,
    RUN_ON,
    Control,
    Dialect,
    StepDraft,
    StepReader,
    call_of,
    called,
    check_children,
    given_inputs,
    no_steps,
    on_limit,
    operation,
    steps,
    wait,
)
from workflows_mcp.errors import ExpressionError
from workflows_mcp.plan import (
    MOST_ATTEMPTS,
    MOST_SECONDS,
    Call,
    Change,
    ChangeOperation,
    Checkpoint,
    Do,
    Expr,
    ExprKind,
    ForEach,
    Return,
    SetState,
    Tell,
    UpdateState,
    Use,
    converted,
    duration_seconds,
    expr_at,
    is_duration,
)
from workflows_mcp.steps import FORMATS, Step
from workflows_mcp.values import Value, kind_and_value, nearest, shown

Values = dict[str, Any]
Given = dict[str, Value]
DEFAULT_RETRIES = 3
"""The number of retries of a step that does not set it."""
MOST_TRIES = 100
"""More than the attempts of a workflow."""
_FILTER = re.compile(r"(?<!\|)\|(?!\|)")
_NAME = re.compile(r"[A-Za-z$][\w$]*", re.ASCII)
NAMES = (
    "raw", "state", "computed", "inputs", "config", "this", "global", "loop", "secrets", "input", "result",
    "error", "context", "task_id", "workflow_id", "total", "parent",
)  # fmt: skip
"""Names that already have a meaning in expressions."""

# ----------------------------------------------------------------------------------------------------
# Kinds of values of this dialect.


def _pieces(reader: Reader) -> Pieces:
    return cast(Pieces, reader.references.language)


def _scaled(reader: Reader, given: str, path: Path, uses: list[Use], by: str) -> Value:
    """Applies the arithmetic in `by` to a template of a number."""
    malformed = len(reader.references.problems)
    uses += reader.references.in_value(given, path)
    if len(reader.references.problems) > malformed:
        return None
    pieces = _pieces(reader).pieces(given)
    if len(pieces) == 1 and pieces[0] == given.strip() and not _FILTER.search(pieces[0]):
        return f"{{{{ ({pieces[0][2:-2].strip()}) {by} }}}}"
    example = f'e.g. {path[-1]}: "{{{{ config.{path[-1]} }}}}"'
    message = f"'{path[-1]}' must be a number, or one expression without filters, not {shown(given)}"
    reader.problem("wrong_type", message, example, path)
    return None


def milliseconds(least: int) -> Kind:
    """A number of milliseconds, or a template of one, as seconds; None if it is neither."""

    def read(reader: Reader, given: Value, path: Path, uses: list[Use]) -> Value:
        key, most = path[-1], MOST_SECONDS * 1000
        if isinstance(given, str) and reader.is_dynamic(given):
            return _scaled(reader, given, path, uses, "/ 1000")
        try:
            number: float = (
                duration_seconds(given) * 1000 if is_duration(given) else converted(given, "number")
            )
        except ValueError as error:
            reader.problem("wrong_type", f"'{key}' {error}", f"milliseconds, e.g. {key}: 5000", path)
            return None
        if not least <= number <= most:
            message = f"'{key}' must be from {least:g} to {most} milliseconds, not {shown(number)}"
            reader.problem("wrong_value", message, f"e.g. {key}: 5000, which is five seconds", path)
            return None
        seconds = number / 1000
        return int(seconds) if seconds == int(seconds) else seconds

    return Kind("milliseconds", time_or_expression({"type": "number", "minimum": least}), read)


def _read_attempts(reader: Reader, given: Value, path: Path, uses: list[Use]) -> Value:
    """The number of attempts, from the number of retries in the file."""
    key = path[-1]
    if isinstance(given, str) and reader.is_dynamic(given):
        return _scaled(reader, given, path, uses, "+ 1")
    hint = f"the number of retries, e.g. {key}: 3"
    try:
        number: int = converted(given, "integer")
    except ValueError as error:
        reader.problem("wrong_type", f"'{key}' {error}", hint, path)
        return 1 + DEFAULT_RETRIES
    if 0 <= number < MOST_ATTEMPTS:
        return number + 1
    message = f"'{key}' must be from 0 to {MOST_ATTEMPTS - 1}, not {shown(number)}"
    reader.problem("wrong_value", message, hint, path)
    return 1 + DEFAULT_RETRIES


def _read_path(reader: Reader, given: Value, path: Path, uses: list[Use]) -> StatePath:
    """The keys of a place in the state; empty if it cannot be written."""
    if not isinstance(given, str):
        reader.wrong_type("text", given, f"e.g. {path[-1]}: raw.result", path)
        return ()
    try:
        found = read_path(given.strip(), _pieces(reader))
    except ExpressionError:
        found = ()  # reading its references, below, reports it
    except WrongPath as wrong:
        reader.problem("bad_path", str(wrong), wrong.hint, path)
        return ()
    uses += reader.references.in_value(given, path)
    return found


def _read_transform(reader: Reader, given: Value, path: Path, uses: list[Use]) -> str:
    """A template, or JavaScript that computes a value from `input` and `result`."""
    if not isinstance(given, str) or not given.strip():
        reader.wrong_type("JavaScript", given, 'e.g. transform: "input.trim()"', path)
        return ""
    in_text = reader.references.in_value if reader.is_dynamic(given) else reader.references.in_transform
    uses += in_text(given, path)
    return given


def _read_prompt(reader: Reader, given: Value, path: Path, uses: list[Use]) -> str | None:
    uses += reader.references.in_value(given, path)
    if isinstance(given, str):
        return given
    reader.wrong_type("text", given, "the prompt for each sub-agent", path)
    return None


def _read_variable(reader: Reader, given: Value, path: Path, uses: list[Use]) -> str | None:
    if isinstance(given, str) and _NAME.fullmatch(given) and given not in NAMES:
        return given
    hint = "a name of letters, digits and '_' that starts with a letter, e.g. file"
    if given in NAMES:
        hint = f"'{given}' already has a meaning in expressions: choose another name"
    reader.problem("bad_id", f"{shown(given)} cannot be the name of a variable", hint, path)
    return None


_path = Kind(
    "path",
    {
        "type": "string",
        "pattern": r"^\s*(?:raw|state)\s*[.\[]",
        "patternErrorMessage": "a path to write starts with raw. or state.",
    },
    _read_path,
)
_whole = number_or_expression({"type": "integer", "minimum": 0})
_retries = Kind("number", _whole, _read_attempts)
_variable = Kind("name", {"type": "string", "pattern": r"^[A-Za-z$][A-Za-z0-9_$]*$"}, _read_variable)
_test = condition('"{{ has_errors }}"')
_most = number(
    1, "the maximum number of iterations; then the loop fails, or ends (on_limit: continue)", whole=True
)
_list = items('e.g. items: "{{ files }}" or items: [linux, macos]')
_some, _none = steps("reactive_step"), no_steps("reactive_step")
_body = replace(_some, read=None)

# ----------------------------------------------------------------------------------------------------
# Changes of the state.


OPERATIONS: tuple[ChangeOperation, ...] = ("set", "append", "increment", "merge")
CHANGE = keys(
    Key("path", _path, "The place, e.g. `raw.results.{{ item }}`.", required="path: raw.result"),
    Key("value", not_null(anything), "The new value.", "the result of the step"),
    Key(
        "operation",
        word(*OPERATIONS),
        "How it is written: `append` to a list, `increment` a number, `merge` into an object.",
        "set",
    ),
    Key(
        "transform",
        Kind("JavaScript", {"type": "string"}, _read_transform),
        "JavaScript that computes the value from `input` and `result`, or a template.",
    ),
)
_OF_RESULTS = frozenset({"stdout", "stderr", "exit_code", "response", "result", "output", "value", "content"})
"""Names of outputs of steps."""


def read_changes(reader: Reader, draft: StepDraft, given: Value, key: str) -> tuple[Change, ...]:
    """Reads `state_update` or `error_state_update`: one change, or a list of changes."""
    if given is None:
        return ()
    if isinstance(given, list):
        found = [_read_change(reader, draft, it, (key, index)) for index, it in enumerate(given)]
    elif isinstance(given, dict):
        found = [_read_change(reader, draft, given, (key,))]
    else:
        hint = f"e.g. {key}: {{path: raw.result}}"
        reader.wrong_type("a mapping or a list of them", given, hint, (*draft.at, key))
        return ()
    changes = tuple(change for change in found if change is not None)
    for change in changes if key == "state_update" else ():
        _set_to_itself(reader, draft, change)
    return changes


def _documented(draft: StepDraft) -> tuple[str, ...]:
    return draft.do.documented if isinstance(draft.do, Do) else ()


def _set_to_itself(reader: Reader, draft: StepDraft, change: Change) -> None:
    """Warns of a change that sets a field to itself.

    A field of the state takes precedence over a field of the result, so such a change does nothing.
    """
    keys, value = change.path.source, change.value.source if change.value is not None else None
    name = str(keys[-1])
    plain = change.operation == "set" and change.transform is None and len(keys) == 2
    same = isinstance(value, str) and value.replace(" ", "") == f"{{{{{name}}}}}"
    if plain and same and name not in _documented(draft):
        message = f"'{name}' is the field of the state once it has a value, so this sets it to itself"
        hint = f"write {{{{ result.{name} }}}} for the field of the result"
        path = (*change.path.at[:-1], "value")
        reader.problem("without_effect", message, hint, path, warning=True)


def _read_change(
    reader: Reader, draft: StepDraft, given: Value, inside: Path, *, needs_value: bool = False
) -> Change | None:
    at = (*draft.at, *inside)
    if not isinstance(given, dict):
        message = f"a change of the state must be a mapping, not {kind_and_value(given)}"
        reader.problem("wrong_type", message, "e.g. {path: raw.result, value: …}", at)
        return None
    misspelt = False
    for problem in unknown_keys(given, CHANGE, at, f"'{inside[0]}'"):
        reader.report(problem)
        misspelt = misspelt or nearest(str(problem.path[-1]), ["path"]) is not None
    if given.get("path") is None and not misspelt:  # one mistake, one problem
        message = "a change of the state needs 'path'"
        reader.problem("missing_key", message, "add a line: path: raw.result", at, on_key=True)
    return _made(reader, draft, given, inside, needs_value=needs_value)


def _made(
    reader: Reader, draft: StepDraft, given: Given, inside: Path, *, needs_value: bool
) -> Change | None:
    at = (*draft.at, *inside)
    values = reader.values(CHANGE, given, at, draft.uses)
    operation, value = values.get("operation") or OPERATIONS[0], values.get("value")
    transform, path = values.get("transform", ""), values.get("path")
    has_value = "value" in values or bool(transform) or operation == "increment"
    if needs_value and not has_value and path is not None:  # one mistake, one problem
        example = {"append": "one more", "merge": "{status: done}"}.get(operation, "5")
        message = f"the operation {operation} needs a 'value'"
        reader.problem("missing_key", message, f"add a line: value: {example}", at, on_key=bool(inside))
    if isinstance(value, str) and value in _OF_RESULTS and not needs_value:
        message = f"the value is the word '{value}', not the {value} of the step"
        hint = f'write value: "{{{{ {value} }}}}"'
        if value != "result" and value not in _documented(draft):
            hint = f'write value: "{{{{ result }}}}", or "{{{{ result.{value} }}}}" for a field of it'
        reader.problem("literal_value", message, hint, (*at, "value"), warning=True)
    if not path:
        return None
    kind: ExprKind = "template" if reader.is_dynamic(transform) else "transform"
    return Change(
        Expr(list(path), (*at, "path"), "path"),
        operation,
        Expr(value, (*at, "value")) if "value" in values else None,
        expr_at(transform or None, (*at, "transform"), kind),
    )


# ----------------------------------------------------------------------------------------------------
# The keys of steps.


_changes: Schema = {
    "anyOf": [{"$ref": "#/$defs/change"}, {"type": "array", "items": {"$ref": "#/$defs/change"}}]
}
ABOUT = keys(
    replace(
        NAMED[0], kind=Kind("id", {"type": WRITTEN}), description="Its name; expressions in it are removed."
    ),
    *NAMED[1:],
    Key("when", not_null(_test), "It runs only if this holds."),
)
"""The keys of every step."""
_STATE_UPDATE = Key("state_update", Kind("change or list", _changes), "What its result changes in the state.")
_ERROR_STATE_UPDATE = Key(
    "error_state_update",
    Kind("change or list", _changes),
    "What a failure changes in the state; `error` is `{message, type, step}`.",
)
FAILING = keys(
    _STATE_UPDATE,
    Key("on_error", word("fail", "continue", "retry"), "What happens when it fails.", "fail"),
    Key("retry_count", _retries, "How often it is retried, with `on_error: retry`.", str(DEFAULT_RETRIES)),
    Key("retry_delay", milliseconds(0), "Milliseconds before a retry.", "1000"),
    Key(
        "fallback_value",
        not_null(anything),
        "Its result after its last attempt has failed; it then succeeds.",
    ),
    _ERROR_STATE_UPDATE,
)
"""The keys of steps that can fail."""
_ON_ERROR = Key("on_error", not_null(word(*ON_FAILURE)), "What happens when it fails.", "fail")
_TIMED = (
    Key("timeout", milliseconds(1), "Milliseconds after which it is stopped and fails."),
    AFTER_TIMEOUT,
)
_ON_INTERRUPT = Key("on_interrupt", word(*ON_INTERRUPT), "What happens if a crash interrupts it.")
_ITEMS = Key("items", _list, "The list, or an expression of one.", required='items: "{{ files }}"')
TIMED = ("Shell", "AgentShell", "MCPCall", "Delegate")
"""Types whose timeout is written in milliseconds."""
_formats = Kind(", ".join(f"`{it}`" for it in FORMATS), {"enum": list(FORMATS)})
OUTPUT_FORMAT = Key("output_format", _formats, "How its output is parsed.", FORMATS[0])
"""For types that have it in `Step.dialect_config`."""


def keys_beside(step: Step) -> Keys:
    """The keys of a step besides the inputs of its type."""
    interrupt = (_ON_INTERRUPT,) if step.can_run else ()
    run_on = (RUN_ON,) if step.can_run and step.can_ask else ()
    own = step.dialect_config.get("reactive", {})
    formats = (OUTPUT_FORMAT,) if OUTPUT_FORMAT.name in own else ()
    process = keys_of_process(step)
    return keys(*ABOUT.values(), *FAILING.values(), *_TIMED, *interrupt, *run_on, *formats, *process)


STRATEGIES = ("retry_failed", "continue", "fail_all")
ITEM_ERRORS = ("raw", "sub_agent_errors")
"""The default place for errors of sub-agents."""
TASK_ERRORS = keys(
    Key(
        "strategy",
        word(*STRATEGIES),
        "When a task fails: it is retried; the others continue; the others are ended.",
    ),
    Key("max_retries", _retries, "How often a failed task is retried.", str(DEFAULT_RETRIES)),
    Key(
        "collect_errors",
        flag("true: the errors of tasks are added to the list at error_state_path"),
        "Whether the state collects their errors.",
    ),
    Key(
        "error_state_path",
        _path,
        "The list for the errors; implies `collect_errors`.",
        "raw.sub_agent_errors",
    ),
)


def only_with(reader: Reader, given: Value, key: str, other: str, word: str, path: Path) -> Value:
    """Reports a key that has a meaning only with `other: word`, and leaves it out."""
    if not isinstance(given, dict) or given.get(key) is None or given.get(other) == word:
        return given
    hint = f"write {other}: {word}, or remove it"
    reader.problem("unknown_key", f"'{key}' is for {other}: {word}", hint, (*path, key), on_key=True)
    return {name: it for name, it in given.items() if name != key}


def _read_task_errors(reader: Reader, given: Value, path: Path, uses: list[Use]) -> Values:
    given = {"strategy": given} if isinstance(given, str) else given
    given = only_with(reader, given, "max_retries", "strategy", "retry_failed", path)
    found: Values = _task_errors.value(reader, given, path, uses)
    return found


_task_errors = table_of(TASK_ERRORS, "e.g. on_sub_agent_error: {strategy: retry_failed, max_retries: 2}")
_TASK_ERRORS = Kind(
    "mapping or strategy", {**_task_errors.schema, "type": ["object", "string"]}, _read_task_errors
)

# ----------------------------------------------------------------------------------------------------
# The control steps of this dialect, which are operations of the plan.


def _read_conditional(reader: StepReader, draft: StepDraft, values: Values, step: Given) -> None:
    draft.test, draft.then = values.get("condition"), values.get("then", [])
    draft.otherwise = values.get("else", [])


def _read_body(reader: StepReader, draft: StepDraft, values: Values) -> None:
    both = [key for key in ("body", "steps") if key in values]
    if len(both) > 1:
        message = f"a step of type {draft.kind} has 'body' and 'steps', which mean the same"
        reader.problem("unknown_key", message, "keep one of the two", (*draft.at, both[1]), on_key=True)
    draft.repeats = True
    for key in both[:1]:
        draft.then = reader.read_list(values[key], (*draft.at, key))


def _read_while(reader: StepReader, draft: StepDraft, values: Values, step: Given) -> None:
    draft.test = values.get("condition")
    on_limit(reader, draft, values)
    _read_body(reader, draft, values)


def _read_foreach(reader: StepReader, draft: StepDraft, values: Values, step: Given) -> None:
    draft.items = values.get("items", [])
    draft.item = values.get("variable_name") or draft.item
    draft.index = values.get("index_name") or draft.index
    if draft.item == draft.index:
        message = f"the item and its position are both called '{draft.item}'"
        key = "index_name" if "index_name" in step else "variable_name"
        reader.problem("bad_id", message, "give one of the two another name", (*draft.at, key))
    _read_body(reader, draft, values)


def _read_sequential(reader: StepReader, draft: StepDraft, values: Values, step: Given) -> None:
    draft.test, draft.then = "true", values.get("steps", [])


def _read_parallel(reader: StepReader, draft: StepDraft, values: Values, step: Given) -> None:
    given, limit = values.get("items", []), values.get("max_parallel")
    check_children(given, limit, draft, reader)
    errors = values.get("on_sub_agent_error", {})
    strategy = errors.get("strategy")
    if strategy == "retry_failed":
        attempts = errors.get("max_retries", 1 + DEFAULT_RETRIES)
        draft.retry, draft.retry_path = {"attempts": attempts, "delay": 0, "on": "any"}, ()
    draft.sets_on_error = strategy not in (None, "continue")  # "continue" is about the tasks, not the step
    collects = errors.get("collect_errors", "error_state_path" in errors)
    errors_to = list(errors.get("error_state_path", ITEM_ERRORS)) if collects else []
    where_errors = (*draft.at, "on_sub_agent_error", "error_state_path")
    draft.for_each = ForEach(
        draft.expr(given, "items"),
        draft.expr_at(limit, "max_parallel"),
        agent="@task",
        prompt=draft.expr_at(values.get("sub_agent_prompt_override"), "sub_agent_prompt_override"),
        wait=values.get("wait_for_all", True),
        fail_fast=strategy == "fail_all",
        tolerate_failures=strategy == "continue",
        errors_to=expr_at(errors_to or None, where_errors, "path"),
    )
    draft.task = reader.task(values.get("sub_agent_task"), (*draft.at, "sub_agent_task"))
    where = draft.task if draft.task.startswith("#") else f"{reader.workflow}#{draft.task}"
    timeout = draft.expr_at(values.get("timeout"), "timeout")
    draft.do = Call(draft.expr(where, "sub_agent_task"), timeout=timeout, of_item=True)


def _read_include(reader: StepReader, draft: StepDraft, values: Values, step: Given) -> None:
    draft.then = values.get("on_complete", [])
    draft.do = call_of(draft, values, on_complete=bool(draft.then))


def _read_state_update(reader: StepReader, draft: StepDraft, values: Values, step: Given) -> None:
    at, given = draft.at, values.get("updates")
    own = [key for key in CHANGE if key in step]
    if given is None:
        unknown = [key for key in step if key not in CONTROL["state_update"].keys]
        if step.get("path") is None and not any(nearest(key, ["path", "updates"]) for key in unknown):
            message = "a step of type state_update needs 'path', or 'updates'"
            hint = "add a line: path: raw.count, or updates: [{path: raw.count, value: 1}]"
            reader.problem("missing_key", message, hint, at)
        changes = [_made(reader, draft, step, (), needs_value=True)]
    elif not isinstance(given, list) or not given:
        what = "is empty" if given == [] else f"must be a list, not {kind_and_value(given)}"
        hint = "e.g. updates: [{path: raw.count, value: 1}]"
        reader.problem("wrong_type", f"'updates' {what}", hint, (*at, "updates"))
        changes = []
    else:
        changes = [
            _read_change(reader, draft, it, ("updates", index), needs_value=True)
            for index, it in enumerate(given)
        ]
    if given is not None and own:
        message = f"'{own[0]}' is next to 'updates', which has its own"
        hint = "put it into the list of updates"
        reader.problem("unknown_key", message, hint, (*at, own[0]), on_key=True)
    draft.updates = tuple(change for change in changes if change is not None)
    draft.do = UpdateState(draft.updates)


_nothing = operation(lambda draft, values: SetState({}))
_negated = 'put steps into it, or negate the test: condition: "{{ !(…) }}"'
_CONDITION = 'condition: "{{ has_errors }}"'
_below = "and below it the steps"
_updates: Schema = {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/change"}}
CONTROL: dict[str, Control] = {
    "conditional": Control(
        "Runs the steps of `then` if a condition holds, otherwise those of `else`.",
        keys(
            *ABOUT.values(),
            Key("condition", _test, "The test.", required=_CONDITION),
            Key(
                "then",
                steps("reactive_step", _negated),
                "The steps if it holds.",
                required=f"then:, {_below}",
            ),
            Key("else", _none, "The steps if it does not."),
            _ON_ERROR,
        ),
        _read_conditional,
    ),
    "while": Control(
        "Repeats its body while a condition holds.",
        keys(
            *ABOUT.values(),
            Key("condition", _test, "The test before each iteration.", required=_CONDITION),
            Key("max_iterations", _most, "The maximum number of iterations."),
            ON_LIMIT,
            Key("body", _body, "The steps to repeat.", required=f"body:, {_below}", same="steps"),
            Key("steps", _body, "The same as `body`."),
            _ON_ERROR,
        ),
        _read_while,
    ),
    "foreach": Control(
        "Runs its steps for each item of a list, one after the other.",
        keys(
            *ABOUT.values(),
            _ITEMS,
            Key("steps", _body, "The steps for each item.", required=f"steps:, {_below}", same="body"),
            Key("body", _body, "The same as `steps`."),
            Key("variable_name", _variable, "The variable for the item.", "item"),
            Key("index_name", _variable, "The variable for its position, from 0.", "index"),
            _ON_ERROR,
        ),
        _read_foreach,
    ),
    "break": Control("Leaves the innermost loop.", ABOUT, _nothing),
    "continue": Control("Starts the next iteration of the innermost loop.", ABOUT, _nothing),
    "sequential": Control(
        "Groups steps.",
        keys(*ABOUT.values(), Key("steps", _some, "The steps.", required=f"steps:, {_below}")),
        _read_sequential,
    ),
    "parallel_foreach": Control(
        "Runs a task for each item of a list, in sub-agents.",
        keys(
            *ABOUT.values(),
            replace(_ITEMS, required='items: "{{ file_batches }}"'),
            Key(
                "sub_agent_task",
                Kind("name", {"type": "string"}),
                "The name of one of the sub_agent_tasks.",
                required="sub_agent_task: the name of one of the sub_agent_tasks",
            ),
            Key("max_parallel", parallel, "The maximum number of tasks that run at the same time."),
            Key(
                "wait_for_all",
                flag("false: the next steps run while the tasks are running"),
                "`false`: the next steps run while the tasks are running.",
                "true",
            ),
            Key(
                "sub_agent_prompt_override",
                Kind("text", {"type": "string"}, _read_prompt),
                "The start of the prompt for sub-agents; the rules of the server follow it.",
            ),
            Key("on_sub_agent_error", _TASK_ERRORS, "What happens when a task fails."),
            BUDGET_KEY,
            *_TIMED,
            _STATE_UPDATE,
            _ERROR_STATE_UPDATE,
        ),
        _read_parallel,
        {
            "on_error": "write on_sub_agent_error: {strategy: continue}",
            "steps": "put the steps into sub_agent_tasks, and name the task: sub_agent_task: …",
        },
    ),
    "include_workflow": Control(
        "Runs another workflow.",
        keys(
            *ABOUT.values(),
            Key(
                "workflow",
                called('"shared:check-standards"'),
                "The name of a workflow of any dialect, or an expression of it.",
                required='workflow: "the name of a workflow"',
            ),
            Key("inputs", given_inputs, "Its inputs: all that it sees of its caller."),
            BUDGET_KEY,
            Key("on_complete", _none, "Steps to run after a success; they see its state."),
            *_TIMED,
            *FAILING.values(),
        ),
        _read_include,
    ),
    "state_update": Control(
        "Changes the state: all of its changes or none.",
        keys(
            *ABOUT.values(),
            *(replace(key, required="", kind=replace(key.kind, read=None)) for key in CHANGE.values()),
            Key("updates", Kind("list of changes", _updates), "Several changes: all of them or none."),
            _ON_ERROR,
        ),
        _read_state_update,
        either=("path", "updates"),
    ),
    "user_message": Control(
        "Shows the user a message.",
        keys(
            *ABOUT.values(),
            Key("message", anything, "The text.", required='message: "{{ summary }}"'),
            _ON_ERROR,
        ),
        operation(lambda draft, values: Tell(draft.expr(values.get("message"), "message"))),
        {"state_update": "a message has no result: use a step of type state_update"},
    ),
    "exit": Control("Ends the workflow, or the task.", ABOUT, operation(lambda draft, values: Return())),
    "wait": replace(wait(*ABOUT.values()), elsewhere={"timeout": "write duration_seconds"}),
}
"""The types of control steps."""


# ----------------------------------------------------------------------------------------------------
# What this dialect adds to the reader of steps.


MCP, CALL = "mcp", ("method", "params")
"""The method and parameters of a tool call are below `mcp`, or in the step itself."""
_TOOL_SPELLINGS = {"tool": "method", "args": "params", "parameters": "params"}
"""Other names for the parts of a tool call, here and in other dialects."""
_SPELLINGS = {"then_steps": "then", "else_steps": "else", "timeout_seconds": "timeout"}
"""Other names for keys of steps. `timeout_seconds` is in seconds, `timeout` in milliseconds."""
_SPELT_TYPES = {"while_loop": "while"}
"""Other names for step types."""
CHECKPOINT_TOOLS = ("workflow.checkpoint", "workflow_checkpoint")
"""A tool of this server: the run itself marks its position."""
_WHOLE = re.compile(r"\s*\{\{((?:(?!\{\{|\}\}).)*)\}\}\s*", re.DOTALL)
_EXPRESSION = re.compile(r"\{\{.*?\}\}")


def _respelt(reader: StepReader, step: Given, at: Path) -> Given:
    """Replaces other spellings of the type and the keys, with a warning for each."""
    kind = step.get("type")
    if isinstance(kind, str) and kind in _SPELT_TYPES:
        step = {**step, "type": _SPELT_TYPES[kind]}
        _report_spelling(reader, f"type: {kind}", f"type: {_SPELT_TYPES[kind]}", (*at, "type"))
    known: Collection[str] = ()
    if isinstance(kind := step.get("type"), str) and not step.keys().isdisjoint(_SPELLINGS):
        shape = reader.shape(kind) if kind not in CONTROL else None
        known = CONTROL[kind].keys if kind in CONTROL else (*shape.names, *shape.beside) if shape else ()
    found = {
        spelt: key for spelt, key in _SPELLINGS.items() if spelt in step and key in known and key not in step
    }
    for spelt, key in found.items():
        unit = ", in milliseconds" if key == "timeout" else ""
        _report_spelling(reader, spelt, f"{key}{unit}", (*at, spelt), on_key=True)
    return {found.get(key, key): _in_unit(key, it) for key, it in step.items()} if found else step


def _in_unit(key: str, value: Value) -> Value:
    """Converts seconds to milliseconds."""
    if key != "timeout_seconds" or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return value * 1000
    if isinstance(value, str) and (whole := _WHOLE.fullmatch(value)):
        return f"{{{{ ({whole[1].strip()}) * 1000 }}}}"
    return value


def _report_spelling(
    reader: Reader, written: str, documented: str, path: Path, *, on_key: bool = False
) -> None:
    message = f"'{written}' works, but is not the documented spelling"
    reader.problem("spelling", message, f"write {documented}", path, on_key=on_key, warning=True)


def _begin(reader: StepReader, draft: StepDraft, step: Given, values: Values) -> None:
    draft.own_id = _own_id(reader, step.get("id"), draft.at)
    draft.condition = values.get("when")
    draft.repeats = not draft.kind  # so that a break in it is not reported


def _own_id(reader: Reader, given: Value, at: Path) -> str:
    """The id in the file, without expressions, whose values only the run knows."""
    if given is None:
        return ""
    if isinstance(given, int | float):
        given = reader.document.written((*at, "id"))
    if isinstance(given, str):
        own = _EXPRESSION.sub("", given).strip("_- ") if "{{" in given else given
        if ID.fullmatch(own) or (not own and "{{" in given):
            return own
    hint = "an id holds letters, digits, '_' and '-', e.g. run-tests"
    reader.problem("bad_id", f"{shown(given)} cannot be an id", hint, (*at, "id"))
    return ""


def _given(
    reader: StepReader, draft: StepDraft, shape: StepShape, step: Given, places: dict[str, Path]
) -> Given:
    given = dict(step)
    if shape.step.name == "MCPCall":
        _read_tool(reader, given, places, draft.at)
    within = shape.step.timeout_input
    if within is not None and shape.step.name in TIMED and given.get(within) is not None:
        kind, path = _TIMED[0].kind, (*draft.at, within)
        given[within] = kind.value(reader, step[within], path, draft.uses)
    return given


def _read_tool(reader: Reader, given: Given, places: dict[str, Path], at: Path) -> None:
    """Turns `mcp: {method, params}`, or both in the step, into inputs of the step type."""
    inner = given.pop(MCP, None)
    if inner is not None and not isinstance(inner, dict):
        hint = "e.g. mcp: {method: lint_project, params: {}}"
        reader.wrong_type("a mapping", inner, hint, (*at, MCP))
        inner = {"method": "?"}  # so that it causes no further problems
    for spelt, key in _TOOL_SPELLINGS.items():
        if spelt in given and key not in given:
            _report_spelling(reader, spelt, key, (*at, spelt), on_key=True)
            given[key], places[key] = given.pop(spelt), (*at, spelt)
        if inner is not None and spelt in inner and key not in inner:
            _report_spelling(reader, spelt, key, (*at, MCP, spelt), on_key=True)
            inner = {key if it == spelt else it: part for it, part in inner.items()}
    for problem in unknown_keys(inner or {}, CALL, (*at, MCP), f"'{MCP}'"):
        reader.report(problem)
        close = nearest(str(problem.path[-1]), CALL)
        if close and inner is not None and close not in inner:
            inner = {**inner, close: inner[problem.path[-1]]}  # one mistake, one problem
    for key in CALL:
        if inner is not None and key in inner:
            if key in given:
                message = f"'{key}' is both in '{MCP}' and next to it"
                reader.problem("unknown_key", message, "keep one of the two", (*at, key), on_key=True)
            given[key], places[key] = inner[key], (*at, MCP, key)


def _finish(reader: StepReader, draft: StepDraft, values: Values) -> None:
    """Reads what the result of a step changes, and what happens when it fails."""
    do = draft.do
    if (
        isinstance(do, Do)
        and do.step == "MCPCall"
        and (tool := do.inputs.get("tool")) is not None
        and tool.source in CHECKPOINT_TOOLS
        and "run_on" not in values
    ):
        parameters = do.inputs.get("parameters", do.inputs.get("args"))
        given = parameters.source if parameters is not None else {}
        draft.do = Checkpoint(draft.expr(given, MCP, "params"))
    draft.changes = read_changes(reader, draft, values.get("state_update"), "state_update")
    error_update = values.get("error_state_update")
    draft.error_changes = read_changes(reader, draft, error_update, "error_state_update")
    on_error = values.get("on_error")
    if "on_error" in values:
        draft.sets_on_error = True
        draft.on_failure = "continue" if on_error == "continue" else None
    if on_error == "retry":
        attempts, delay = values.get("retry_count", 1 + DEFAULT_RETRIES), values.get("retry_delay")
        draft.retry = {"attempts": attempts, "delay": 1 if delay is None else delay, "backoff": 1}
        draft.retry_path = ()
    for key in ("retry_count", "retry_delay"):
        if key in values and on_error != "retry":
            message = f"'{key}' needs on_error: retry; this step is not retried"
            hint = "write on_error: retry, or remove it"
            reader.problem("without_effect", message, hint, (*draft.at, key), on_key=True, warning=True)
    if "fallback_value" in values:
        draft.fallback = draft.expr(values["fallback_value"], "fallback_value")
        if on_error == "fail":
            message = "'fallback_value' is never used with on_error: fail"
            hint = "write on_error: continue, or on_error: retry to retry it first"
            path = (*draft.at, "fallback_value")
            reader.problem("wrong_value", message, hint, path, on_key=True)


REACTIVE = Dialect(
    name="reactive",
    tasks="sub_agent_tasks",
    about=ABOUT,
    control=CONTROL,
    beside=keys_beside,
    equivalents={
        "condition": "conditional",
        **dict.fromkeys(("Delegate", "parallel_tasks"), "parallel_foreach"),
        **dict.fromkeys(("ExecuteWorkflow", "Workflow", "workflow"), "include_workflow"),
        "for_each": "foreach",
        "goto": "while",
        "if": "conditional",
        "mcp": "mcp_call",
        "message": "user_message",
        **dict.fromkeys(("Prompt", "prompt"), "user_input"),
        "return": "exit",
        "set_state": "state_update",
        **dict.fromkeys(("Shell", "shell"), "shell_command"),
        "sleep": "wait",
    },
    reads_equivalents=False,
    step_example="- type: shell_command, and below it the keys of that type",
    inner=("then", "else", "body", "steps", "on_complete"),
    calls="include",
    begin=_begin,
    given=_given,
    finish=_finish,
    respelt=_respelt,
    names_outputs=True,
    renamed={"MCPCall": {"tool": "method", "parameters": "params"}},
)


# ----------------------------------------------------------------------------------------------------
# Reads the `error_handling` of a reactive workflow, or of a task.
#
# error_handling:
#   on_error: retry_workflow
#   max_retries: 2
#   error_collection: {enabled: true, state_path: raw.workflow_errors}
#   on_failure: [{type: user_message, message: "Workflow failed: {{ error.message }}"}]


@dataclass(slots=True)
class ErrorHandling:
    continues: bool = False
    """Whether the workflow continues after a failure of a step without `on_error`."""
    tries: int = 1
    errors_to: StatePath = ()
    steps: list[StepDraft] = field(default_factory=list)
    """The steps to run after a failure."""
    uses: list[Use] = field(default_factory=list)


def _read_return_on_error(reader: Reader, given: Value, path: Path, uses: list[Use]) -> None:
    if given is False:
        message = "a task always reports its failure to the workflow"
        hint = "to continue anyway, add to the parallel_foreach: on_sub_agent_error: {strategy: continue}"
        reader.problem("wrong_value", message, hint, path)
    elif given is not True:
        reader.wrong_type("true or false", given, "write true, or remove it", path)


def _read_stack_traces(reader: Reader, given: Value, path: Path, uses: list[Use]) -> None:
    if given is True:
        message = "there are no stack traces: an error says which step failed, and why"
        reader.problem("without_effect", message, "remove it", path, on_key=True, warning=True)
    elif given is not False:
        reader.wrong_type("true or false", given, "write false, or remove it", path)


def _read_workflow_retries(reader: Reader, given: Value, path: Path, uses: list[Use]) -> int:
    hint = "the number of retries of the workflow, e.g. max_retries: 2"
    try:
        number: int = converted(given, "integer")
    except ValueError as error:
        reader.problem("wrong_type", f"'max_retries' {error}", hint, path)
        return 1
    if not 1 <= number < MOST_TRIES:
        message = f"'max_retries' must be from 1 to {MOST_TRIES - 1}, not {number}"
        reader.problem("wrong_value", message, hint, path)
        return 1
    return number


def _read_collection(reader: Reader, given: Value, path: Path, uses: list[Use]) -> StatePath:
    """The list for errors; empty if they are not collected."""
    given = {"enabled": given} if isinstance(given, bool) else given
    values = _collection.value(reader, given, path, uses)
    to: StatePath = values.get("state_path", ("raw", "workflow_errors"))
    return to if values.get("enabled", isinstance(given, dict)) else ()


COLLECTION = keys(
    Key(
        "enabled",
        flag("true: the errors of steps are added to the list at state_path"),
        "Whether the errors of steps are added to a list in the state.",
        "true",
    ),
    Key("state_path", _path, "The list; it is empty if there is no error.", "raw.workflow_errors"),
    Key(
        "include_stack_traces",
        Kind("`false`", {"type": "boolean"}, _read_stack_traces),
        "There are no stack traces.",
    ),
)
_collection = table_of(COLLECTION, "e.g. error_collection: {enabled: true}")
_workflow_retries = number_or_expression({"type": "integer", "minimum": 1})
ERROR_HANDLING = keys(
    Key(
        "on_error",
        word("checkpoint_and_fail", "continue", "retry_workflow"),
        "After a failure of a step without `on_error`.",
        "checkpoint_and_fail",
    ),
    Key(
        "max_retries",
        Kind("number", _workflow_retries, _read_workflow_retries),
        "How often the workflow is retried, with `on_error: retry_workflow`.",
        "1",
    ),
    Key(
        "error_collection",
        Kind("mapping", {**_collection.schema, "type": ["object", "boolean"]}, _read_collection),
        "Whether errors of steps are collected in the state, and where.",
    ),
    Key("on_failure", _none, "The steps to run after a failure."),
)
TASK_ERROR_HANDLING = keys(
    Key(
        "return_on_error",
        Kind("`true`", {"enum": [True]}, _read_return_on_error),
        "The workflow gets its error, always.",
    ),
    Key("cleanup_on_error", _none, "The steps to run after a failure, before the workflow gets its error."),
)


def read_error_handling(reader: StepReader, given: Value, path: Path, *, of_task: bool) -> ErrorHandling:
    handling = ErrorHandling()
    if given is None:
        return handling
    table = TASK_ERROR_HANDLING if of_task else ERROR_HANDLING
    if not of_task:
        given = only_with(reader, given, "max_retries", "on_error", "retry_workflow", path)
    kind = table_of(table, "e.g. error_handling: {on_error: continue}")
    values = kind.value(reader, given, path, handling.uses)
    handling.continues = values.get("on_error") == "continue"
    if values.get("on_error") == "retry_workflow":
        handling.tries = 1 + values.get("max_retries", 1)
    handling.errors_to = values.get("error_collection", ())
    handling.steps = values.get("cleanup_on_error" if of_task else "on_failure", [])
    return handling
