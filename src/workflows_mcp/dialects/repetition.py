"""Reads `retry`, `for_each` and related keys of blocks and steps.

Literals are checked here; the run checks values with references, by the same rules.
"""

from __future__ import annotations

from collections.abc import Callable

from workflows_mcp.errors import Problem
from workflows_mcp.expressions import Language
from workflows_mcp.limits import Limits
from workflows_mcp.plan import (
    Do,
    ForEach,
    Operation,
    ReferenceReader,
    Use,
    WrongRetry,
    as_mapping,
    at_once,
    read_rule,
)
from workflows_mcp.steps import ANY_EXIT
from workflows_mcp.values import Value, did_you_mean, kind_and_value, shown

Path = tuple[str | int, ...]
Report = Callable[[Problem], None]

FOR_EACH_KEYS = ("for_each", "max_parallel", "for_each_mode")
_MODES = ("parallel", "sequential")


def read_retry(
    given: Value, path: Path, references: ReferenceReader, report: Report
) -> tuple[dict[str, Value] | None, list[Use]]:
    """The rule in `retry`, or None if it has no valid one, and its references."""
    if given is None:
        return None, []
    uses = references.in_value(given, path)
    try:
        mapping = as_mapping(given)
        read_rule({key: value for key, value in mapping.items() if not _dynamic(value, references.language)})
    except WrongRetry as wrong:
        where = (*path, wrong.key) if isinstance(given, dict) and wrong.key is not None else path
        code = "unknown_key" if wrong.on_key else "wrong_value"
        report(Problem(code, str(wrong), wrong.hint, where, on_key=wrong.on_key))
        return None, uses
    return mapping, uses


def refuse_exit_codes(retry: dict[str, Value] | None, do: Operation, path: Path, report: Report) -> None:
    """Reports exit codes in a rule of a step that never fails by one."""
    kinds = retry.get("on") if retry is not None else None
    listed = kinds if isinstance(kinds, list) else [kinds]
    code = next((it for it in listed if isinstance(it, int) and not isinstance(it, bool)), None)
    if code is None or not isinstance(do, Do) or not do.step:
        return
    if "exit_code" not in do.defaults:
        message, hint = f"'on' names the exit code {code}, but a step of type {do.step} has none", "remove it"
    elif do.by == "agent" and do.config.get(ANY_EXIT):
        message = f"'on' names the exit code {code}, but the exit code of a command of the agent is a result"
        hint = "add a line: on_error: fail, which makes it a failure"
    else:
        return
    report(Problem("wrong_value", message, hint, (*path, "on")))


def read_for_each(
    block: dict[str, Value], condition: str | None, at: Path, references: ReferenceReader, report: Report
) -> tuple[ForEach | None, list[Use]]:
    """Reads the items of a block; a condition that reads the item becomes part of it."""
    if "for_each" not in block:
        for key in FOR_EACH_KEYS[1:]:
            if key in block:
                hint = "add for_each: ${inputs.items}, or remove it"
                message = f"'{key}' is for a block with for_each"
                report(Problem("unknown_key", message, hint, (*at, key), on_key=True))
        return None, []
    example = "e.g. for_each: ${inputs.files} or for_each: [linux, macos]"
    items, uses = read_items(block["for_each"], (*at, "for_each"), references, report, example)
    limit, in_limit = read_max_parallel(block.get("max_parallel"), (*at, "max_parallel"), references, report)
    uses += in_limit
    mode = block.get("for_each_mode", "parallel")
    if mode not in _MODES:
        hint = did_you_mean(str(mode), _MODES, what="modes")
        message = f"'for_each_mode' must be parallel or sequential, not {shown(mode)}"
        report(Problem("wrong_value", message, hint, (*at, "for_each_mode")))
    elif mode == "sequential":
        limit = 1
    return ForEach(items, limit, condition if _reads_item(condition, references.language) else None), uses


def read_items(
    given: Value,
    path: Path,
    references: ReferenceReader,
    report: Report,
    example: str,
    kinds: tuple[type, ...] = (list, dict),
) -> tuple[Value, list[Use]]:
    """Reads items: a list, a template, or an object if `kinds` has dict."""
    uses = references.in_value(given, path)
    if isinstance(given, kinds) or _dynamic(given, references.language):
        return given, uses
    wanted = "a list or an object" if dict in kinds else "a list"
    message = f"'{path[-1]}' must be {wanted}, not {kind_and_value(given)}"
    report(Problem("wrong_type", message, example, path))
    return [], uses


def read_max_parallel(
    given: Value, path: Path, references: ReferenceReader, report: Report
) -> tuple[Value, list[Use]]:
    """The number of items that run at the same time, or a template; None is all of them."""
    uses = references.in_value(given, path)
    if given is None or _dynamic(given, references.language):
        return given, uses
    try:
        return at_once(given), uses
    except ValueError as error:
        hint = "the number of items that run at the same time"
        report(Problem("wrong_type", f"'{path[-1]}' {error}", hint, path))
        return None, uses


def check_children(
    items: Value, limit: Value, at: Path, limits: Limits, report: Report, instead: str = ""
) -> None:
    """Reports more parallel items than the limit; `instead` is another way to fix that."""
    most, setting = limits.parallel_children, limits.setting("parallel_children")
    if isinstance(limit, int) and limit > most:
        message = f"'max_parallel' is {limit}; at most {most} may run at the same time"
        report(Problem("parallel_children", message, f"the limit is {setting}", (*at, "max_parallel")))
    elif limit is None and isinstance(items, list) and len(items) > most:
        message = f"there are {len(items)} items; at most {most} may run at the same time"
        hint = f"add max_parallel: {most}{instead}; the limit is {setting}"
        report(Problem("parallel_children", message, hint, (*at, "items"), on_key=True))


def _reads_item(condition: str | None, language: Language) -> bool:
    """Whether a condition reads the item, so that it decides for each item."""
    if condition is None or "each." not in condition:
        return False
    references = ReferenceReader(language).in_condition(condition, ())
    return any(use.reference.path[0] == "each" for use in references)


def _dynamic(value: Value, language: Language) -> bool:
    if isinstance(value, str):
        return language.is_dynamic(value)
    return isinstance(value, list) and any(_dynamic(item, language) for item in value)
