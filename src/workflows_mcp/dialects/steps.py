"""Reads blocks and steps into drafts of nodes, for all dialects.

`Draft` has what blocks and steps of all dialects have. `StepReader` reads the steps of the dialects with
`steps`: a `Dialect` says which control steps it has, and what it adds to the others. Every other type is a
step type of the registry, and the keys of the step are the inputs of that type.

A step with problems gets a draft too, so that the rest of the file can be checked; a misspelt type is
reported, and the step is read as the nearest type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

from workflows_mcp.dialects.keys import (
    ON_TIMEOUT,
    WRITTEN,
    Key,
    Keys,
    Kind,
    Path,
    Reader,
    Schema,
    anything,
    keys,
    note,
    number,
    read_word,
    word,
)
from workflows_mcp.dialects.process import (
    NO_PROCESS,
    Process,
    check_process,
    choices_without_reject,
    process_of,
    with_result,
    without_result,
)
from workflows_mcp.dialects.step_inputs import StepShape, check_step_inputs
from workflows_mcp.dialects.yaml.source import Document
from workflows_mcp.errors import Problem
from workflows_mcp.limits import Limits
from workflows_mcp.plan import (
    Call,
    Change,
    Do,
    Expr,
    ExprKind,
    ForEach,
    Node,
    OnFailure,
    OnInterrupt,
    OnLimit,
    OnTimeout,
    Operation,
    ReferenceReader,
    SetState,
    Use,
    Wait,
    expr_at,
    is_dynamic,
)
from workflows_mcp.steps import ANY_EXIT, Performer, Step, StepRegistry
from workflows_mcp.values import Value, did_you_mean, kind_and_value, kind_of, nearest, shown

ID = re.compile(r"[\w-]+")


_ID_PATTERN = r"^[^\s!-,./:-@\[-^`{-~]+$"
"""Letters of any script, digits, '_' and '-', in syntax that all implementations of patterns have."""
NAMED = (
    Key(
        "id",
        Kind(
            "id",
            {
                "type": WRITTEN,
                "pattern": _ID_PATTERN,
                "patternErrorMessage": "an id holds letters, digits, '_' and '-'",
            },
            null=False,
        ),
        "Letters, digits, `_` and `-`; unique in the workflow or the task.",
    ),
    Key("type", Kind("name", {}), "The step type."),
    Key("name", note, "For readers of the file."),
    Key("description", note, "For readers of the file."),
)
AFTER_TIMEOUT = Key(
    "on_timeout",
    Kind("word or answer", {}),
    "What happens then: `fail`, `retry`, `continue`; for a question, the answer.",
)


# ----------------------------------------------------------------------------------------------------
# What blocks and steps of all dialects have.


@dataclass(slots=True)
class Draft:
    """A block or a step as read from a document."""

    id: str
    at: Path
    do: Operation = field(default_factory=lambda: SetState({}))
    """What it does; branches and jumps get their targets when the steps are laid out."""
    condition: str | None = None
    on_failure: OnFailure | None = None
    on_interrupt: OnInterrupt = "repeat"
    on_timeout: OnTimeout = "fail"
    timeout_answer: dict[str, Value] | None = None
    retry: dict[str, Value] | None = None
    for_each: ForEach | None = None
    uses: list[Use] = field(default_factory=list)
    process: Process = NO_PROCESS
    """What makes agents follow the process: checks, gates, budgets."""
    retry_path: Path = ("retry",)
    """Where the keys of `retry` are, relative to the block."""

    condition_key: ClassVar[str] = "condition"

    def expr(self, value: Value, *keys: str | int) -> Expr:
        """A value at these keys as the run evaluates it."""
        return Expr(value, (*self.at, *keys))

    def expr_at(self, value: Value, *keys: str | int) -> Expr | None:
        return None if value is None else self.expr(value, *keys)

    def node(self, do: Operation, **more: Any) -> Node:
        """Creates its node; `more` are the fields that the dialect adds."""
        return Node(
            id=self.id,
            do=do,
            at=self.at,
            condition=expr_at(self.condition, (*self.at, self.condition_key), "condition"),
            on_failure=self.on_failure,
            retry=self.expr_at(self.retry, *self.retry_path),
            for_each=self.for_each,
            on_interrupt=self.on_interrupt,
            on_timeout=self.on_timeout,
            timeout_answer=self.expr_at(self.timeout_answer, "on_timeout"),
            **self.process._asdict(),
            **more,
        )


def input_exprs(step: Step, inputs: Mapping[str, Value], at: Path) -> dict[str, Expr]:
    """The inputs of a step of a registered type, as the run evaluates them."""
    kinds: dict[str, ExprKind] = {name: "code" for name in step.code_inputs}
    kinds |= {name: "literal" for name in step.literal_inputs}
    return {name: Expr(value, (*at, name), kinds.get(name, "template")) for name, value in inputs.items()}


def read_id(given: Value, at: Path, reader: Reader, what: str) -> str | None:
    """The id of the block or step at `at`; None if it has no valid id."""
    if isinstance(given, int | float):
        given = reader.document.written((*at, "id"))
    if isinstance(given, str) and ID.fullmatch(given):
        return given
    if given is None:
        reader.problem("missing_key", f"a {what} needs an id", "add a line: id: a-name", at)
    else:
        hint = "an id holds letters, digits, '_' and '-', e.g. run-tests"
        reader.problem("bad_id", f"{shown(given)} cannot be an id", hint, (*at, "id"))
    return None


def duplicate_id(name: str, at: Path, first: Path, document: Document, what: str) -> Problem:
    """The problem of an id at `at` that is already used at `first`."""
    before = document.place((*first, "id")).line
    line = document.place((*at, "id")).line
    return Problem(
        "duplicate_id",
        f"the id '{name}' is used twice: on line {before} and on line {line}",
        f"give one of the two {what}s another id",
        (*at, "id"),
    )


def read_on_timeout(
    draft: Draft,
    given: Value,
    reader: Reader,
    step: Step | None = None,
    inputs: Mapping[str, Value] = MappingProxyType({}),
) -> None:
    """Reads what happens after a timeout: fail, retry, continue, or the answer to a question.

    An answer that is one of these words is written `{answer: retry}`.
    """
    path: Path = (*draft.at, "on_timeout")
    if given is None:
        return
    if getattr(draft.do, "timeout", None) is None and draft.do != Do(""):
        message = "'on_timeout' needs a 'timeout': without one nothing times out"
        reader.problem("missing_key", message, "add a line: timeout: 600", path, on_key=True)
    if given == "retry":
        draft.retry = _retried_on_timeout(draft.retry)
    elif given == "continue":
        draft.on_timeout = "continue"
    elif given == "fail":
        pass
    elif step is not None and step.takes_default_answer:
        is_mapping = isinstance(given, dict) and set(given) == {"answer"}
        value = given["answer"] if is_mapping else given
        path = (*path, "answer") if is_mapping else path
        dynamic = reader.is_template(value, path, draft.uses)
        try:
            draft.timeout_answer = step.default_answer(inputs, value, dynamic=dynamic)
        except ValueError as error:
            hint = "an answer that could be given, or one of: fail, retry, continue"
            reader.problem("wrong_value", f"'on_timeout' {error}", hint, path)
    else:
        read_word(given, ON_TIMEOUT, path, reader)


def _retried_on_timeout(retry: dict[str, Value] | None) -> dict[str, Value]:
    """Adds timeouts to the failures that a rule retries."""
    if retry is None:
        return {"attempts": 3, "delay": 0, "on": ["timeout"]}
    kinds = retry.get("on")
    if kinds is None:
        return retry
    listed = kinds if isinstance(kinds, list) else [kinds]
    return retry if "timeout" in listed or "any" in listed else {**retry, "on": [*listed, "timeout"]}


def read_process(
    draft: Draft,
    values: dict[str, Any],
    given: Mapping[str, Value],
    reader: Reader,
    what: str,
    *,
    names_outputs: bool = False,
) -> None:
    """Reads the keys that make an agent follow the process, once the operation of a draft is known."""
    draft.process = process_of(values)
    check_process(draft.process, draft.do, given, draft.at, reader, what)
    if isinstance(draft.do, Do):
        problem = choices_without_reject(draft.do, draft.at, given)
        if problem is not None:
            reader.report(problem)
        if draft.do.by == "agent":
            draft.do = with_result(draft.do, draft.process, names_outputs=names_outputs)
    draft.uses = without_result(draft.uses, draft.at, draft.process, reader)


def refuse_exit_codes(draft: Draft, reader: Reader) -> None:
    """Reports exit codes in the `retry` of a step that never fails by one."""
    do, kinds = draft.do, draft.retry.get("on") if draft.retry is not None else None
    listed = kinds if isinstance(kinds, list) else [kinds]
    code = next((it for it in listed if isinstance(it, int) and not isinstance(it, bool)), None)
    if code is None or not isinstance(do, Do) or not do.step:
        return
    if "exit_code" not in do.defaults:
        message, hint = f"'on' names the exit code {code}, but a step of type {do.step} has none", "remove it"
    elif do.by == "agent" and do.settings.get(ANY_EXIT):
        message = f"'on' names the exit code {code}, but the exit code of a command of the agent is a result"
        hint = "add a line: on_error: fail, which makes it a failure"
    else:
        return
    reader.problem("wrong_value", message, hint, (*draft.at, "retry", "on"))


# ----------------------------------------------------------------------------------------------------
# A step of the dialects with `steps`: nested lists are still nested.


@dataclass(slots=True)
class StepDraft(Draft):
    kind: str = ""
    """The type, with a misspelt one corrected; empty if it is unknown."""
    test: str | None = None
    then: list[StepDraft] = field(default_factory=list)
    """The first steps inside it: those for a test that holds, or the body of a loop."""
    otherwise: list[StepDraft] = field(default_factory=list)
    repeats: bool = False
    """It is a loop: the end of its body leads back to it."""
    most: Value = None
    """The maximum number of iterations, or of jumps."""
    on_limit: OnLimit = "fail"
    """What happens when that number is reached."""
    task: str = ""
    """The task that it runs for each item; the name of a task of another file starts with '#'."""

    # Of the stateful dialect

    output_to: str = ""
    error_to: str = ""
    needs_state: tuple[str, ...] | None = None
    """The fields that it declares, or `*` for all; None if it has no `needs_state`."""
    target: str | None = None
    """The id that a goto continues with."""
    sets: tuple[str, ...] = ()
    """The fields that a set_state writes."""

    condition_key: ClassVar[str] = "when"

    # Of the reactive dialect

    own_id: str = ""
    """The id in the file, without its templates; empty if nothing is left."""
    updates: tuple[Change, ...] = ()
    """What a state_update changes."""
    changes: tuple[Change, ...] = ()
    """What its result changes in the state."""
    error_changes: tuple[Change, ...] = ()
    fallback: Expr | None = None
    sets_on_error: bool = False
    """Whether the step itself sets what happens when it fails."""
    items: Value = None
    """The list of a foreach, and the variables for the item and its position."""
    item: str = "item"
    index: str = "index"

    @property
    def writes(self) -> tuple[str, ...]:
        """The fields of the state that a step of the stateful dialect writes."""
        return (*self.sets, *(name for name in (self.output_to, self.error_to) if name))


def every(steps: Iterable[StepDraft]) -> Iterator[StepDraft]:
    """The steps with the steps inside them, in the order of the layout."""
    for step in steps:
        yield step
        yield from every(step.then)
        yield from every(step.otherwise)


# ----------------------------------------------------------------------------------------------------
# The tables of a dialect with `steps`.


@dataclass(frozen=True, slots=True)
class Control:
    """A type of control steps, which are operations of the plan."""

    summary: str
    keys: Keys
    read: Callable[[StepReader, StepDraft, dict[str, Any], dict[str, Value]], None]
    """Reads a step into its draft, from the values of its keys."""
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """Keys of other types, and how to write the same here."""
    either: tuple[str, ...] = ()
    """Keys that can stand for each other: it needs one of them."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What the reader of steps knows of a dialect."""

    name: str
    tasks: str
    """The key of a document with its tasks."""
    about: Keys
    """The keys of every step."""
    control: Mapping[str, Control]
    beside: Callable[[Step], Keys]
    """The keys of a step besides the inputs of its type."""
    calls: str
    """What one workflow does with another, as a verb."""
    equivalents: Mapping[str, str]
    """Types of other dialects, and common mistakes, with their equivalents here."""
    reads_equivalents: bool
    """Whether a step of such a type is read as its equivalent, because it has the same keys."""
    step_example: str
    """How to write a list of steps, for hints."""
    inner: tuple[str, ...]
    """The keys with the steps inside a step."""
    begin: Callable[[StepReader, StepDraft, dict[str, Value], dict[str, Any]], None]
    """Reads the id and the keys of every step, given the values of its keys."""
    given: Callable[[StepReader, StepDraft, StepShape, dict[str, Value], dict[str, Path]], dict[str, Value]]
    """The inputs as the type has them, before they are checked; it may change their paths."""
    finish: Callable[[StepReader, StepDraft, dict[str, Any]], None]
    """Reads what happens after the step, once its operation is known."""
    respelt: Callable[[StepReader, dict[str, Value], Path], dict[str, Value]] = lambda reader, step, at: step
    """Replaces other spellings of the type and the keys."""
    defaults: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    """Defaults of inputs that differ from those of the step type."""
    names_outputs: bool = False
    """Whether expressions can name the outputs of a step, without the step."""
    renamed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Its names for inputs, by step type and the step type's names."""


# ----------------------------------------------------------------------------------------------------
# Kinds of values that both dialects have.


PERFORMERS: tuple[Performer, Performer] = ("agent", "server")
ON_LIMIT = Key(
    "on_limit",
    word("fail", "continue"),
    "What happens at `max_iterations`: the step fails, or the next steps run.",
    "fail",
)
RUN_ON = Key("run_on", word(*PERFORMERS), "Who runs it.")
LEFT_OUT = {"Shell": ("capture_output", "continue_on_error")}
"""Inputs of step types that dialects with steps do not have, because they have `on_error`."""


def steps(of: str, when_empty: str = "") -> Kind:
    """A list of steps; `when_empty` is a hint."""
    schema: Schema = {"type": "array", "minItems": 1, "items": {"$ref": f"#/$defs/{of}"}}

    def read(reader: StepReader, given: Value, path: Path, uses: list[Use]) -> list[StepDraft]:
        return reader.read_list(given, path, when_empty)

    return Kind("list of steps", schema, read)


def no_steps(of: str) -> Kind:
    """A list of steps, which may be empty."""

    def read(reader: StepReader, given: Value, path: Path, uses: list[Use]) -> list[StepDraft]:
        return [] if given == [] else reader.read_list(given, path)

    return Kind("list of steps", {"type": "array", "items": {"$ref": f"#/$defs/{of}"}}, read)


def called(example: str) -> Kind:
    """The name of a workflow, or a template of one."""

    def read(reader: StepReader, given: Value, path: Path, uses: list[Use]) -> Value:
        if not isinstance(given, str):
            reader.wrong_type("the name of a workflow", given, f"e.g. workflow: {example}", path)
        uses += reader.references.in_value(given, path)
        return given

    return Kind("name", {"type": "string"}, read)


def _read_given(reader: Reader, given: Value, path: Path, uses: list[Use]) -> Value:
    if not isinstance(given, dict | str):
        hint = "write the inputs below it: name: value"
        reader.wrong_type("a mapping of names and values", given, hint, path)
        return {}
    uses += reader.references.in_value(given, path)
    return given


given_inputs = Kind("mapping", {"type": ["object", "string"]}, _read_given)


def on_limit(reader: StepReader, draft: StepDraft, values: dict[str, Any]) -> None:
    """Reads what happens when `max_iterations` is reached."""
    draft.most = values.get("max_iterations")
    draft.on_limit = "continue" if values.get("on_limit") == "continue" else "fail"
    if "on_limit" in values and draft.most is None:
        hint, path = "add a line: max_iterations: 10, or remove on_limit", (*draft.at, "on_limit")
        reader.problem("missing_key", "'on_limit' needs 'max_iterations'", hint, path, on_key=True)


def call_of(draft: StepDraft, values: dict[str, Any], *, on_complete: bool = False) -> Call:
    """The call of a workflow by a step."""
    return Call(
        draft.expr_at(values.get("workflow"), "workflow"),
        draft.expr(values.get("inputs", {}), "inputs"),
        draft.expr_at(values.get("timeout"), "timeout"),
        on_complete=on_complete,
    )


def operation(
    make: Callable[[StepDraft, dict[str, Any]], Operation],
) -> Callable[[StepReader, StepDraft, dict[str, Any], dict[str, Value]], None]:
    """Reads a control step that is one operation, made from the values of its keys."""

    def read(reader: StepReader, draft: StepDraft, values: dict[str, Any], step: dict[str, Value]) -> None:
        draft.do = make(draft, values)

    return read


def _wait_of(draft: StepDraft, values: dict[str, Any]) -> Wait:
    seconds = draft.expr(values.get("duration_seconds"), "duration_seconds")
    return Wait(seconds, draft.expr_at(values.get("message"), "message"))


def wait(*about: Key) -> Control:
    seconds = number(0, "seconds, e.g. duration_seconds: 30")
    table = keys(
        *about,
        Key("duration_seconds", seconds, "The number of seconds.", required="duration_seconds: 30"),
        Key("message", anything, "The text to show while it waits."),
    )
    return Control("Waits for a number of seconds.", table, operation(_wait_of))


def check_children(
    items: Value, limit: Value, draft: StepDraft, reader: StepReader, instead: str = ""
) -> None:
    """Reports more parallel items than the limit; `instead` is another way to fix that."""
    most, setting = reader.limits.parallel_children, reader.limits.setting("parallel_children")
    if isinstance(limit, int) and limit > most:
        message = f"'max_parallel' is {limit}; at most {most} may run at the same time"
        path = (*draft.at, "max_parallel")
        reader.problem("parallel_children", message, f"the limit is {setting}", path)
    elif limit is None and isinstance(items, list) and len(items) > most:
        message = f"there are {len(items)} items; at most {most} may run at the same time"
        hint = f"add max_parallel: {most}{instead}; the limit is {setting}"
        reader.problem("parallel_children", message, hint, (*draft.at, "items"), on_key=True)


# ----------------------------------------------------------------------------------------------------
# The reader of steps.


class StepReader(Reader):
    """Reads the steps of a workflow and of its tasks."""

    def __init__(
        self,
        dialect: Dialect,
        document: Document,
        registry: StepRegistry,
        references: ReferenceReader,
        limits: Limits,
    ) -> None:
        super().__init__(document, references)
        self.dialect = dialect
        self.registry = registry
        self.limits = limits
        self.workflow = ""
        self.tasks: Mapping[str, dict[str, Value]] = {}
        self.has_imports = False
        """Whether tasks and workflows can come from other files."""
        self._shapes: dict[str, StepShape] = {}

    def read_tasks(self, workflow: str, example: str, has: str) -> dict[str, dict[str, Value]]:
        """The tasks of the document that are mappings, by name; `has` is a hint about their keys."""
        self.workflow, key = workflow, self.dialect.tasks
        given = self.document.value.get(key)
        if given is not None and not isinstance(given, dict):
            hint = f"e.g. {key}: {{{example}: {{steps: […]}}}}"
            self.wrong_type("a mapping of names", given, hint, (key,))
            given = None
        tasks: dict[str, dict[str, Value]] = {}
        for name, task in (given or {}).items():
            if not ID.fullmatch(name):
                hint = f"a name holds letters, digits, '_' and '-', e.g. {example}"
                message = f"{shown(name)} cannot be the name of a task"
                self.problem("bad_id", message, hint, (key, name), on_key=True)
            if isinstance(task, dict):
                tasks[name] = task
                continue
            message = f"the task '{name}' must be a mapping, not {kind_and_value(task)}"
            self.problem("wrong_type", message, has, (key, name), on_key=True)
        self.tasks = tasks
        return tasks

    def read_steps(
        self, given: Mapping[str, Value], path: Path, *, optional: bool = False
    ) -> list[StepDraft]:
        """The `steps` of the workflow or the task at `path`; `optional`: it may have none."""
        if "steps" in given:
            return self.read_list(given["steps"], (*path, "steps"))
        if not optional:
            hint = f"each step is an entry: {self.dialect.step_example}"
            self.problem("missing_key", "there are no 'steps'", hint, path, on_key=True)
        return []

    def check_count(self, drafts: Iterable[StepDraft], path: Path) -> None:
        """Reports more steps than the limit; `path` is that of the workflow or the task."""
        count, most = sum(1 for _ in drafts), self.limits.steps_per_workflow
        if count > most:
            setting = self.limits.setting("steps_per_workflow")
            message = f"there are {count} steps, at most {most} are allowed"
            hint = f"split it into workflows that {self.dialect.calls} each other, or raise {setting}"
            self.problem("too_large", message, hint, (*path, "steps"), on_key=True)

    def read_list(self, given: Value, path: Path, when_empty: str = "") -> list[StepDraft]:
        example = self.dialect.step_example
        if not isinstance(given, list) or not given:
            what = "is empty" if given is None or given == [] else f"must be a list, not {kind_of(given)}"
            hint = when_empty or f"each step is an entry: {example}"
            self.problem("wrong_type", f"'{path[-1]}' {what}", hint, path, on_key=True)
            return []
        found = []
        for index, step in enumerate(given):
            if isinstance(step, dict):
                found.append(self._read(step, (*path, index)))
            else:
                message = f"a step must be a mapping, not {kind_and_value(step)}"
                self.problem("wrong_type", message, f"e.g. {example}", (*path, index))
        return found

    def _read(self, step: dict[str, Value], at: Path) -> StepDraft:
        dialect = self.dialect
        step = dialect.respelt(self, step, at)
        draft = StepDraft("", at, kind=self._kind(step, at))
        control = dialect.control.get(draft.kind)
        if control is not None:
            what = f"a step of type {draft.kind}"
            self.check_keys(control.keys, step, at, what, control.elsewhere)
            values = self.values(control.keys, step, at, draft.uses)
            dialect.begin(self, draft, step, values)
            control.read(self, draft, values, step)
            read_process(draft, values, step, self, "step")
            dialect.finish(self, draft, values)
            read_on_timeout(draft, values.get("on_timeout"), self)
        elif draft.kind:
            self._work(draft, step)
        else:
            dialect.begin(self, draft, step, self.values(dialect.about, step, at, draft.uses))
            for key in dialect.inner:
                if isinstance(step.get(key), list) and step[key]:
                    draft.then += self.read_list(step[key], (*at, key))
        return draft

    def _types(self) -> list[str]:
        return [*self.dialect.control, *self.registry.names(self.dialect.name)]

    def _kind(self, step: Mapping[str, Value], at: Path) -> str:
        """The type of a step, with a misspelt one corrected; empty if it is unknown."""
        given = step.get("type")
        if isinstance(given, str):
            if given in self.dialect.control or self.shape(given) is not None:
                return given
            equivalent = self.dialect.equivalents.get(given)
            known = equivalent or nearest(given, self._types())
            hint = did_you_mean(known or given, self._types(), what="types", limit=30)
            self.problem("unknown_type", f"there is no step type '{given}'", hint, (*at, "type"))
            return "" if equivalent and not self.dialect.reads_equivalents else known or ""
        types = ", ".join(self._types())
        if given is None:
            self.problem("missing_key", "a step needs a type", f"add a line: type: …, one of: {types}", at)
        else:
            message = f"{shown(given)} is not a step type"
            self.problem("unknown_type", message, f"types: {types}", (*at, "type"))
        return ""

    def shape(self, kind: str) -> StepShape | None:
        shape = self._shapes.get(kind)
        if shape is None:
            dialect = self.dialect
            step = self.registry.find(kind, dialect.name)
            if step is None:
                return None
            without, renamed = LEFT_OUT.get(step.name, ()), dialect.renamed.get(step.name, {})
            shape = self._shapes[kind] = StepShape(step, kind, dialect.beside(step), without, renamed)
        return shape

    def task(self, given: Value, path: Path) -> str:
        """The name of a task, with a misspelt one corrected; '#' marks one that can only be imported."""
        if given is None or (isinstance(given, str) and given in self.tasks):
            return given or ""
        if isinstance(given, str) and given and self.has_imports:
            return f"#{given}"
        hint = did_you_mean(str(given), self.tasks, what="tasks")
        if not self.tasks:
            hint = f"declare it: {self.dialect.tasks}: {{{given}: {{steps: […]}}}}"
        self.problem("unknown_task", f"there is no task {shown(given)}", hint, path)
        return nearest(str(given), self.tasks) or ""

    # Steps of registered types

    def _work(self, draft: StepDraft, step: dict[str, Value]) -> None:
        dialect, at, shape = self.dialect, draft.at, self.shape(draft.kind)
        assert shape is not None
        kind = shape.step
        values = self.values(shape.beside, step, at, draft.uses)
        dialect.begin(self, draft, step, values)
        places: dict[str, Path] = {name: (*at, name) for name in step}
        given = dialect.given(self, draft, shape, step, places)
        inputs, dynamic = self._inputs(draft, shape, given, places)
        for problem in check_step_inputs(shape, inputs, dynamic, at, self.document, as_a_whole=True):
            self.report(_moved(problem, places, at))
        known = {name: value for name, value in inputs.items() if name in shape.names}
        inputs = shape.as_the_type_has_them(known)
        for name, value in dialect.defaults.get(kind.name, {}).items():
            inputs.setdefault(name, value)
        by = self._performer(shape, values.get("run_on"), known)
        config = {**kind.dialect_config.get(dialect.name, {}), **self._settings(shape, values, at)}
        if ANY_EXIT in config and (by == "server" or draft.on_failure == "fail"):
            config[ANY_EXIT] = False
        outputs = kind.output_defaults(config)
        documented = kind.result_fields if "result" in outputs else tuple(outputs)
        timeout = values.get("timeout")
        if kind.timeout_input is not None and (by == "server" or step.get(kind.timeout_input) is not None):
            timeout = inputs.get(kind.timeout_input, shape.default_timeout if by == "server" else None)
        draft.do = Do(
            step=kind.name,
            inputs=input_exprs(kind, inputs, at),
            by=by,
            timeout=draft.expr_at(timeout, "timeout"),
            config=Expr(config, at, "settings") if config else None,
            defaults=outputs,
            may_fail=kind.may_fail,
            documented=documented if dialect.names_outputs else (),
            result_output=kind.result_output_in(dialect.name),
        )
        draft.on_interrupt = values.get("on_interrupt") or kind.on_interrupt
        read_process(draft, values, step, self, "step", names_outputs=dialect.names_outputs)
        dialect.finish(self, draft, values)
        read_on_timeout(draft, values.get("on_timeout"), self, kind, inputs)

    def _settings(self, shape: StepShape, values: dict[str, Any], at: Path) -> dict[str, Value]:
        """The keys of a step that are settings of its type, such as the format of its output."""
        own = shape.step.dialect_config.get(self.dialect.name, {})
        found = {name: values[name] for name in own if name in values}
        for path, message, hint in shape.step.check_config(found) if found else ():
            self.problem("wrong_value", message, hint, (*at, *path))
        return found

    def _inputs(
        self, draft: StepDraft, shape: StepShape, given: Mapping[str, Value], at: Mapping[str, Path]
    ) -> tuple[dict[str, Value], set[str]]:
        """The inputs of a step, and the names of those with expressions; `at` has their paths."""
        inputs: dict[str, Value] = {}
        dynamic: set[str] = set()
        for name, value in given.items():
            if name in shape.beside:
                continue
            if value is None and name in shape.names and not shape.names[name].is_required():
                continue  # null is the same as nothing: agent: null
            inputs[name] = value
            if shape.own.get(name, name) in shape.step.literal_inputs:
                continue
            references = self.references
            if name in shape.step.code_inputs:
                refusals = partial(shape.step.refusals, name, inputs=given)
                draft.uses += references.in_code(value, at[name], refusals)
            else:
                draft.uses += references.in_value(value, at[name])
            if is_dynamic(value, references.language):
                dynamic.add(name)
        return inputs, dynamic

    def _performer(self, shape: StepShape, run_on: str | None, inputs: Mapping[str, Value]) -> Performer:
        """Who runs the step; `inputs` have the names of the dialect."""
        if run_on is not None:
            return "server" if run_on == "server" else "agent"
        sound = {name: it for name, it in inputs.items() if name not in shape.texts or isinstance(it, str)}
        return shape.step.performer_for(shape.as_the_type_has_them(sound), self.dialect.name)


def _moved(problem: Problem, places: Mapping[str, Path], at: Path) -> Problem:
    """The problem, at the path of its value in the document."""
    place = places.get(str(problem.path[len(at)])) if len(problem.path) > len(at) else None
    return problem if place is None else replace(problem, path=(*place, *problem.path[len(at) + 1 :]))
