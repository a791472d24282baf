"""Reads keys that blocks and steps have in all dialects: ids, timeouts, error handling.

Each reader returns what it read, and reports what is wrong.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, Self, TypeVar

from workflows_mcp.dialects.document_keys import unknown_keys
from workflows_mcp.dialects.repetition import read_items, read_max_parallel
from workflows_mcp.dialects.step_inputs import StepShape
from workflows_mcp.dialects.yaml.source import Document
from workflows_mcp.errors import Problem
from workflows_mcp.limits import Limits
from workflows_mcp.plan import (
    Do,
    ForEach,
    OnFailure,
    OnInterrupt,
    OnLimit,
    OnTimeout,
    Operation,
    ReferenceReader,
    SetState,
    Use,
    Wait,
    converted,
    is_dynamic,
)
from workflows_mcp.steps import Performer, Step, StepRegistry
from workflows_mcp.values import Value, did_you_mean, kind_and_value, kind_of, nearest, shown

Path = tuple[str | int, ...]

Report = Callable[[Problem], None]


ID = re.compile(r"[\w-]+")

ON_FAILURE = ("fail", "continue")

ON_INTERRUPT = ("repeat", "ask", "fail")

ON_LIMIT = ("fail", "continue")

ON_TIMEOUT = ("fail", "retry", "continue")


class TimedDraft(Protocol):
    """The fields of drafts that `read_on_timeout` uses."""

    do: Any
    retry: dict[str, Value] | None
    uses: list[Use]
    on_timeout: OnTimeout
    timeout_answer: dict[str, Value] | None


def read_id(given: Value, at: Path, document: Document, what: str, report: Report) -> str | None:
    """The id of the block or step at `at`; None if it has no valid id."""
    if isinstance(given, int | float):
        given = document.written((*at, "id"))
    if isinstance(given, str) and ID.fullmatch(given):
        return given
    if given is None:
        report(Problem("missing_key", f"a {what} needs an id", "add a line: id: a-name", at))
    else:
        hint = "an id holds letters, digits, '_' and '-', e.g. run-tests"
        report(Problem("bad_id", f"{shown(given)} cannot be an id", hint, (*at, "id")))
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


def read_timeout(
    given: Value, path: Path, references: ReferenceReader, report: Report
) -> tuple[Value, list[Use]]:
    """Seconds, as a number or a template, with its references; None if missing or invalid."""
    if given is None:
        return None, []
    malformed = len(references.problems)
    uses = references.in_value(given, path)
    if isinstance(given, str) and (uses or len(references.problems) > malformed):
        return given, uses
    try:
        seconds = converted(given, "number")
    except ValueError:
        seconds = 0
    if seconds > 0:
        return seconds, []
    report(
        Problem(
            "wrong_type",
            f"'timeout' must be a number of seconds above 0, not {kind_and_value(given)}",
            "e.g. timeout: 90",
            path,
        )
    )
    return None, []


def read_word(given: Value, words: Sequence[str], path: Path, report: Report) -> str | None:
    """One of `words`; None if it is not one of them."""
    if given in words:
        return str(given)
    listed = f"{', '.join(words[:-1])} or {words[-1]}"
    report(
        Problem(
            "wrong_value",
            f"'{path[-1]}' must be {listed}, not {shown(given)}",
            did_you_mean(str(given), words, what="values"),
            path,
        )
    )
    return None


def read_on_failure(given: Value, path: Path, report: Report) -> OnFailure | None:
    word = read_word(given, ON_FAILURE, path, report)
    return None if word is None else "continue" if word == "continue" else "fail"


def read_on_interrupt(given: Value, path: Path, report: Report) -> OnInterrupt:
    word = read_word(given, ON_INTERRUPT, path, report)
    return "ask" if word == "ask" else "fail" if word == "fail" else "repeat"


def read_on_limit(step: Mapping[str, Value], at: Path, report: Report) -> OnLimit:
    """What happens when the `max_iterations` of a step is reached."""
    given, path = step.get("on_limit"), (*at, "on_limit")
    if given is None:
        return "fail"
    if step.get("max_iterations") is None:
        hint = "add a line: max_iterations: 10, or remove on_limit"
        report(Problem("missing_key", "'on_limit' needs 'max_iterations'", hint, path, on_key=True))
    return "continue" if read_word(given, ON_LIMIT, path, report) == "continue" else "fail"


def read_on_timeout(
    draft: TimedDraft,
    given: Value,
    path: Path,
    references: ReferenceReader,
    report: Report,
    *,
    step: Step | None = None,
    inputs: Mapping[str, Value] = MappingProxyType({}),
) -> None:
    """Reads what happens after a timeout: fail, retry, continue, or the answer to a question.

    An answer that is one of these words is written `{answer: retry}`.
    """
    if given is None:
        return
    if getattr(draft.do, "timeout", None) is None and draft.do != Do(""):
        message = "'on_timeout' needs a 'timeout': without one nothing times out"
        report(Problem("missing_key", message, "add a line: timeout: 600", path, on_key=True))
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
        malformed = len(references.problems)
        uses = references.in_value(value, path)
        draft.uses += uses
        dynamic = bool(uses) or len(references.problems) > malformed
        try:
            draft.timeout_answer = step.default_answer(inputs, value, dynamic=dynamic)
        except ValueError as error:
            hint = "an answer that could be given, or one of: fail, retry, continue"
            report(Problem("wrong_value", f"'on_timeout' {error}", hint, path))
    else:
        read_word(given, ON_TIMEOUT, path, report)


def _retried_on_timeout(retry: dict[str, Value] | None) -> dict[str, Value]:
    """Adds timeouts to the failures that a rule retries."""
    if retry is None:
        return {"attempts": 3, "delay": 0, "on": ["timeout"]}
    kinds = retry.get("on")
    if kinds is None:
        return retry
    listed = kinds if isinstance(kinds, list) else [kinds]
    return retry if "timeout" in listed or "any" in listed else {**retry, "on": [*listed, "timeout"]}


def named_tasks(
    document: Mapping[str, Value], key: str, problems: list[Problem], *, example: str, has: str
) -> dict[str, dict[str, Value]]:
    """The tasks of a document that are mappings, by name; `has` is a hint about their keys."""
    given = document.get(key)
    if given is None:
        return {}
    if not isinstance(given, dict):
        message = f"'{key}' must be a mapping of names, not {kind_and_value(given)}"
        hint = f"e.g. {key}: {{{example}: {{steps: […]}}}}"
        problems.append(Problem("wrong_type", message, hint, (key,)))
        return {}
    tasks: dict[str, dict[str, Value]] = {}
    for name, task in given.items():
        if not ID.fullmatch(name):
            hint = f"a name holds letters, digits, '_' and '-', e.g. {example}"
            message = f"{shown(name)} cannot be the name of a task"
            problems.append(Problem("bad_id", message, hint, (key, name), on_key=True))
        if isinstance(task, dict):
            tasks[name] = task
            continue
        message = f"the task '{name}' must be a mapping, not {kind_and_value(task)}"
        problems.append(Problem("wrong_type", message, has, (key, name), on_key=True))
    return tasks


# ----------------------------------------------------------------------------------------------------
# A step as read from a document, in a dialect with steps: nested lists are still nested.
#
# A step with problems gets a draft too, so that the rest of the file can be checked.


@dataclass(slots=True)
class Draft:
    id: str
    at: Path
    kind: str = ""
    """The type, with a misspelt one corrected; empty if it is unknown."""
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
    test: str | None = None
    then: list[Self] = field(default_factory=list)
    """The first steps inside it: those for a test that holds, or the body of a loop."""
    otherwise: list[Self] = field(default_factory=list)
    repeats: bool = False
    """It is a loop: the end of its body leads back to it."""
    on_limit: OnLimit = "fail"
    """What happens when `max_iterations` is reached."""


D = TypeVar("D", bound=Draft)


def every(steps: Iterable[D]) -> Iterator[D]:
    """The steps with the steps inside them, in the order of the layout."""
    for step in steps:
        yield step
        yield from every(step.then)
        yield from every(step.otherwise)


# ----------------------------------------------------------------------------------------------------
# Values that many step types have, in dialects with steps: conditions, numbers, flags.
#
# Each reader returns what it read, and reports what is wrong; references go into the draft of the step.


class StepValues:
    condition_example: ClassVar[str] = "{{ ready }}"

    def __init__(self, document: Document, references: ReferenceReader) -> None:
        self.document = document
        self.references = references
        self.problems: list[Problem] = []
        self.report: Callable[[Problem], None] = self.problems.append

    def problem(self, code: str, message: str, hint: str, path: Path, *, on_key: bool = False) -> None:
        self.report(Problem(code, message, hint, path, on_key=on_key))

    def condition(self, draft: Draft, given: Value, path: Path) -> str | None:
        if isinstance(given, bool):
            return "{{ true }}" if given else "{{ false }}"
        if isinstance(given, str):
            draft.uses += self.references.in_condition(given, path)
            return given
        message = f"a condition must be text, not {kind_and_value(given)}"
        self.problem("wrong_type", message, f'e.g. {path[-1]}: "{self.condition_example}"', path)
        return None

    def number(
        self,
        draft: Draft,
        step: Mapping[str, Value],
        key: str,
        least: int,
        hint: str,
        *,
        whole: bool = False,
    ) -> Value:
        """Reads the number of an operation, or a template of one."""
        given, path = step.get(key), (*draft.at, key)
        malformed = len(self.references.problems)
        uses = self.references.in_value(given, path)
        draft.uses += uses
        is_template = bool(uses) or len(self.references.problems) > malformed
        is_template = is_template or (isinstance(given, str) and self.references.language.is_dynamic(given))
        if given is None or (isinstance(given, str) and is_template):
            return given
        try:
            number: float = converted(given, "integer" if whole else "number")
        except ValueError as error:
            self.problem("wrong_type", f"'{key}' {error}", hint, path)
            return least
        if number < least:
            self.problem("wrong_value", f"'{key}' must be {least} or more, not {shown(number)}", hint, path)
        return number

    def flag(self, given: Value, path: Path, hint: str) -> bool:
        if isinstance(given, bool):
            return given
        message = f"'{path[-1]}' must be true or false, not {kind_and_value(given)}"
        self.problem("wrong_type", message, hint, path)
        return False

    def value(self, draft: Draft, step: Mapping[str, Value], key: str) -> Value:
        """Reads any value, with its references."""
        draft.uses += self.references.in_value(step.get(key), (*draft.at, key))
        return step.get(key)

    def items(self, draft: Draft, step: Mapping[str, Value], example: str) -> Value:
        """Reads the items of a loop."""
        if step.get("items") is None:
            return []
        example = f'e.g. items: "{example}" or items: [linux, macos]'
        path = (*draft.at, "items")
        items, uses = read_items(step["items"], path, self.references, self.report, example, (list,))
        draft.uses += uses
        return items

    def max_parallel(self, draft: Draft, step: Mapping[str, Value]) -> Value:
        path = (*draft.at, "max_parallel")
        limit, uses = read_max_parallel(step.get("max_parallel"), path, self.references, self.report)
        draft.uses += uses
        return limit

    def called(self, draft: Draft, step: Mapping[str, Value], example: str) -> tuple[Value, Value]:
        """Reads the workflow that a step calls, and its inputs."""
        called, inputs = step.get("workflow"), step.get("inputs")
        if called is not None and not isinstance(called, str):
            message = f"'workflow' must be the name of a workflow, not {kind_and_value(called)}"
            self.problem("wrong_type", message, f"e.g. workflow: {example}", (*draft.at, "workflow"))
        if inputs is not None and not isinstance(inputs, dict | str):
            message = f"'inputs' must be a mapping of names and values, not {kind_and_value(inputs)}"
            self.problem(
                "wrong_type", message, "write the inputs below it: name: value", (*draft.at, "inputs")
            )
            inputs = None
        draft.uses += self.references.in_value(called, (*draft.at, "workflow"))
        draft.uses += self.references.in_value(inputs, (*draft.at, "inputs"))
        return called, {} if inputs is None else inputs

    def wait(self, draft: Draft, step: Mapping[str, Value]) -> None:
        seconds = self.number(draft, step, "duration_seconds", 0, "seconds, e.g. duration_seconds: 30")
        draft.do = Wait(seconds, self.value(draft, step, "message"))

    def on_timeout(
        self,
        draft: Draft,
        step: Mapping[str, Value],
        kind: Step | None = None,
        inputs: Mapping[str, Value] = MappingProxyType({}),
    ) -> None:
        path = (*draft.at, "on_timeout")
        read_on_timeout(
            draft, step.get("on_timeout"), path, self.references, self.report, step=kind, inputs=inputs
        )


# ----------------------------------------------------------------------------------------------------
# What the readers of dialects with steps share: types, keys of control steps, inputs of registered types.
#
# Control steps belong to the dialect. Every other type is a step type of the registry, and the keys of the
# step are the inputs of that type. A misspelt type is reported, and the step is read as the nearest type.


PERFORMERS: tuple[Performer, Performer] = ("agent", "server")

LEFT_OUT = {"Shell": ("capture_output", "continue_on_error")}

"""Inputs of step types that dialects with steps do not have, because they have `on_error`."""


class BaseStepReader(StepValues, ABC):
    dialect: ClassVar[str]
    control: ClassVar[Collection[str]]
    """The types of control steps."""
    required: ClassVar[Mapping[str, Mapping[str, str]]]
    """The required keys of each control step, and how to write them."""
    elsewhere: ClassVar[Mapping[tuple[str, str], str]]
    """Keys that a control step does not have, and how to write the same."""
    same: ClassVar[Mapping[str, str]] = {}
    """Keys with two names."""
    inner: ClassVar[tuple[str, ...]]
    """The keys with the steps inside a step."""
    equivalents: ClassVar[Mapping[str, str]]
    """Types of other dialects, and common mistakes, with their equivalents here."""
    renamed: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    """The dialect's names for inputs, by step type and the step type's names."""
    step_example: ClassVar[str]
    """How to write a list of steps, for hints."""

    def __init__(
        self,
        document: Document,
        registry: StepRegistry,
        references: ReferenceReader,
        limits: Limits,
        workflow: str,
        tasks: tuple[str, ...],
    ) -> None:
        super().__init__(document, references)
        self.registry = registry
        self.limits = limits
        self.workflow = workflow
        self.tasks = tasks
        self._shapes: dict[str, StepShape] = {}

    @staticmethod
    @abstractmethod
    def keys_beside(step: Step) -> tuple[str, ...]:
        """The keys of a step besides the inputs of its type."""

    @staticmethod
    @abstractmethod
    def own_keys(kind: str) -> tuple[str, ...]:
        """All keys of a control step."""

    @abstractmethod
    def read_list(self, given: Value, path: Path) -> list[Any]:
        """Reads a list of steps into drafts."""

    def check_keys(self, draft: Draft, step: Mapping[str, Value]) -> None:
        """Reports the unknown keys of a control step, and the missing ones."""
        kind, at = draft.kind, draft.at
        known = self.own_keys(kind)
        misspelt = set()
        for problem in unknown_keys(step, known, at, f"a step of type {kind}"):
            key = str(problem.path[-1])
            misspelt.add(nearest(key, known))
            hint = self.elsewhere.get((kind, key))
            self.report(problem if hint is None else replace(problem, hint=hint))
        for key, example in self.required.get(kind, {}).items():
            spellings = (key, self.same[key]) if self.same.get(key) in known else (key,)
            # one mistake, one problem
            if all(step.get(it) is None and it not in misspelt for it in spellings):
                message = f"a step of type {kind} needs '{key}'"
                self.problem("missing_key", message, f"add a line: {example}", at)

    def branches(self, draft: Draft, step: Mapping[str, Value], test: str) -> None:
        """Reads a condition, the steps for a test that holds, and the others."""
        at = draft.at
        if step.get(test) is not None:
            draft.test = self.condition(draft, step[test], (*at, test))
        if step.get("then") is not None:
            draft.then = self.read_list(step["then"], (*at, "then"))
        if step.get("else") not in (None, []):
            draft.otherwise = self.read_list(step["else"], (*at, "else"))

    def unknown(self, draft: Draft, step: Mapping[str, Value]) -> None:
        """Reads the steps inside a step of unknown type."""
        for key in self.inner:
            if isinstance(step.get(key), list) and step[key]:
                draft.then += self.read_list(step[key], (*draft.at, key))

    def unknown_task(self, given: Value, path: Path, key: str) -> str | None:
        """Reports that there is no such task, and returns the nearest one."""
        hint = did_you_mean(str(given), self.tasks, what="tasks")
        if not self.tasks:
            hint = f"declare it: {key}: {{{given}: {{steps: […]}}}}"
        self.problem("unknown_task", f"there is no task {shown(given)}", hint, path)
        return nearest(str(given), self.tasks)

    def mappings(self, given: Value, path: Path, when_empty: str = "") -> list[tuple[dict[str, Value], Path]]:
        """The steps of a list that are mappings, each with its path."""
        if not isinstance(given, list) or not given:
            what = "is empty" if given is None or given == [] else f"must be a list, not {kind_of(given)}"
            hint = when_empty or f"each step is an entry: {self.step_example}"
            self.problem("wrong_type", f"'{path[-1]}' {what}", hint, path, on_key=True)
            return []
        found: list[tuple[dict[str, Value], Path]] = []
        for index, step in enumerate(given):
            if isinstance(step, dict):
                found.append((step, (*path, index)))
            else:
                message = f"a step must be a mapping, not {kind_and_value(step)}"
                self.problem("wrong_type", message, f"e.g. {self.step_example}", (*path, index))
        return found

    def types(self) -> list[str]:
        return [*self.control, *self.registry.names(self.dialect)]

    def kind(self, step: Mapping[str, Value], at: Path) -> str:
        """The type of a step, with a misspelt one corrected; empty if it is unknown."""
        given = step.get("type")
        if given is None:
            hint = f"add a line: type: …, one of: {', '.join(self.types())}"
            self.problem("missing_key", "a step needs a type", hint, at)
            return ""
        if isinstance(given, str):
            if given in self.control or self.shape(given) is not None:
                return given
            known = self.equivalents.get(given) or nearest(given, self.types())
            hint = did_you_mean(known or given, self.types(), what="types", limit=30)
            self.problem("unknown_type", f"there is no step type '{given}'", hint, (*at, "type"))
            return known or ""
        hint = f"types: {', '.join(self.types())}"
        self.problem("unknown_type", f"{shown(given)} is not a step type", hint, (*at, "type"))
        return ""

    def shape(self, kind: str) -> StepShape | None:
        shape = self._shapes.get(kind)
        if shape is None:
            step = self.registry.find(kind, self.dialect)
            if step is None:
                return None
            without = LEFT_OUT.get(step.name, ())
            beside, renamed = self.keys_beside(step), self.renamed.get(step.name, {})
            shape = self._shapes[kind] = StepShape(step, kind, beside, without, renamed)
        return shape

    def inputs(
        self, draft: Draft, shape: StepShape, given: Mapping[str, Value], at: Mapping[str, Path]
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

    def performer_of(
        self, shape: StepShape, step: Mapping[str, Value], inputs: Mapping[str, Value], at: Path
    ) -> Performer:
        """Who runs the step; `inputs` have the names of the dialect."""
        sound = {name: it for name, it in inputs.items() if name not in shape.texts or isinstance(it, str)}
        usual = shape.step.performer_for(shape.as_the_type_has_them(sound), self.dialect)
        if "run_on" not in shape.beside or step.get("run_on") is None:
            return usual
        given = read_word(step["run_on"], PERFORMERS, (*at, "run_on"), self.report)
        return usual if given is None else "server" if given == "server" else "agent"
