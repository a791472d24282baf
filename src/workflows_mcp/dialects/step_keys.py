"""What a block or a step says of itself in every dialect: its id, how long it may take, one word of several.

Each reader gives what it read, and reports what cannot be used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from workflows_mcp.dialects.yaml_source import Document
from workflows_mcp.errors import Problem
from workflows_mcp.plan.conversion import converted
from workflows_mcp.plan.model import Do, OnFailure, OnInterrupt, OnLimit, OnTimeout
from workflows_mcp.plan.references import ReferenceReader, Use
from workflows_mcp.steps.base import Step
from workflows_mcp.values import Value, did_you_mean, kind_and_value, shown

Path = tuple[str | int, ...]
Report = Callable[[Problem], None]

ID = re.compile(r"[\w-]+")
ON_FAILURE = ("fail", "continue")
ON_INTERRUPT = ("repeat", "ask", "fail")
ON_LIMIT = ("fail", "continue")
ON_TIMEOUT = ("fail", "retry", "continue")


class TimedDraft(Protocol):
    """What the drafts of blocks and of steps have in common for this module."""

    do: Any
    retry: dict[str, Value] | None
    uses: list[Use]
    on_timeout: OnTimeout
    timeout_answer: dict[str, Value] | None


def read_id(given: Value, at: Path, document: Document, what: str, report: Report) -> str | None:
    """The id of the block or step at `at`; None where there is none that can be used."""
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
    """The id at `at` has been used before, at `first`."""
    before = document.place((*first, "id")).line
    line = document.place((*at, "id")).line
    return Problem(
        "duplicate_id",
        f"the id '{name}' stands on line {before} and again on line {line}",
        f"give one of the two {what}s another id",
        (*at, "id"),
    )


def read_timeout(
    given: Value, path: Path, references: ReferenceReader, report: Report
) -> tuple[Value, list[Use]]:
    """Seconds, a number or a template, and the references in it; None where it says nothing of use."""
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
    """One of `words`; None if it is another."""
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
    """What becomes of a step that has timed out: fail, retry or continue, or, of a question, its answer.

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
    """The rule of a step that is tried again after a timeout, whatever else it is tried again for."""
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
    """The tasks of a document that can be read at all, by name. `has`: what a task is made of, for a hint."""
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
