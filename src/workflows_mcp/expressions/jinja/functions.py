"""Adds filters and functions to Jinja expressions: time, patterns, JSON, hashes.

    {{ outputs.log | regex_search('([0-9]+)%') }}       regex_search(pattern, text) is the function

A filter takes its value from the left of the bar; the function of the same name takes it as its last
argument. The time comes with the scope; nothing here reads a clock.

`wrong_call` finds calls that can never work, from the signature of the function: the number of arguments,
their names, and the types of constants.
"""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from functools import lru_cache
from hashlib import sha256
from itertools import islice
from json import JSONDecoder
from types import GeneratorType, NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from jinja2 import nodes, pass_context
from jinja2.runtime import Context
from jinja2.utils import _PassArg

from workflows_mcp.errors import ExpressionError
from workflows_mcp.expressions import patterns
from workflows_mcp.expressions.jinja.sandbox import OUR_FILTERS, as_text, largest, measure
from workflows_mcp.values import Value, from_json_in_run, kind_and_value, shown

TIME_NAME = "__now__"
"""The name of the time in a scope, in seconds since 1970; expressions cannot read it."""

_FENCES = ("```", "~~~")
_NOTHING = object()
_MOST_STARTS = 1000
_TRUTH = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0", ""), False),
}


# The time


METHODS_OF_TIME: tuple[tuple[type, frozenset[str]], ...] = (
    (datetime, frozenset({"date", "isoformat", "strftime", "timestamp"})),
    (date, frozenset({"isoformat", "strftime"})),
)


@pass_context
def _time_of_step(context: Context) -> datetime:
    """`now()`: the start time of the step, the same for every evaluation."""
    at = context.parent.get(TIME_NAME)
    if at is None:
        raise ExpressionError("now() is not available here: it is the time of a step")
    return datetime.fromtimestamp(at, UTC)


# Patterns


def _regex_search(value: Any, pattern: Any) -> list[str | None]:
    match = patterns.search(as_text(pattern), as_text(value))
    return [] if match is None else patterns.groups(match, largest.get())


def _regex_findall(value: Any, pattern: Any) -> list[str | list[str]]:
    return patterns.find_all(as_text(pattern), as_text(value), largest.get())


def _regex_replace(value: Any, pattern: Any, replacement: Any = "") -> str:
    return patterns.replaced(as_text(pattern), as_text(replacement), as_text(value), largest.get())


# Data


def _parse_json(value: Any) -> Value:
    """Parse JSON text, also in a code fence or in prose. A value that is not text is returned."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    try:
        return from_json_in_run(text)
    except ValueError as error:
        problem = error
    fenced = _unfenced(text)
    if fenced is not None:
        try:
            return from_json_in_run(fenced)
        except ValueError as error:
            problem = error
    found = _outermost(text)
    if found is not _NOTHING:
        return found
    raise ExpressionError(
        f"parse_json: {shown(value)} is not JSON: {problem}",
        hint="ask for JSON where the text comes from; a code fence or text around it is fine",
    )


def _unfenced(text: str) -> str | None:
    """The content of the first code fence of a text; None if there is none."""
    lines = text.split("\n")
    for first, line in enumerate(lines):
        fence = line.strip()[:3]
        if fence not in _FENCES:
            continue
        rest = line.strip()[3:]
        if rest.endswith(fence):  # all of it on one line
            return rest[:-3].strip().removeprefix("json")
        last = next((at for at in range(first + 1, len(lines)) if lines[at].strip() == fence), len(lines))
        return "\n".join(lines[first + 1 : last])
    return None


def _outermost(text: str) -> Any:
    """The first JSON list or object in prose; _NOTHING if there is none."""
    decoder = JSONDecoder()
    starts = islice(re.finditer(r"[\[{]", text), _MOST_STARTS)
    for start in starts:
        try:
            _, end = decoder.raw_decode(text, start.start())
            return from_json_in_run(text[start.start() : end])
        except (ValueError, RecursionError):
            continue
    return _NOTHING


def _flatten(value: Any, levels: int | None = None, depth: int = 0) -> list[Any]:
    """Flatten nested lists, completely or by `levels`."""
    if not isinstance(value, list | tuple | GeneratorType):
        raise ExpressionError(f"flatten takes a list, not {kind_and_value(value)}")
    found: list[Any] = []
    for item in value:
        inner = isinstance(item, list | tuple) and depth < 100 and (levels is None or depth < levels)
        found += _flatten(item, levels, depth + 1) if inner else [item]
        measure(len(found))
    return found


def _hash(value: Any) -> str:
    return sha256(as_text(value).encode("utf-8", "surrogatepass")).hexdigest()


def _split(value: Any, separator: str | None = None, most: int = -1) -> list[str]:
    return as_text(value).split(separator, most)


def _strip(value: Any, characters: str | None = None) -> str:
    return as_text(value).strip(characters)


def _bool(value: Any) -> bool:
    """Parse a truth value: yes and no, on and off, 1 and 0."""
    if not isinstance(value, str):
        return bool(value)
    truth = _TRUTH.get(value.strip().lower())
    if truth is None:
        raise ExpressionError(f"bool: {kind_and_value(value)} is neither true nor false")
    return truth


# Names of filters and functions


FILTERS: dict[str, Callable[..., Any]] = {
    "bool": _bool,
    "equalto": operator.eq,
    "greaterthan": operator.gt,
    "hash": _hash,
    "lessthan": operator.lt,
    "basename": lambda value: as_text(value).rstrip("/").rpartition("/")[2],
    "flatten": lambda value, levels=None: _flatten(value, levels),
    "from_json": _parse_json,
    "fromjson": _parse_json,
    "lines": lambda value: [line for line in as_text(value).splitlines() if line.strip()],
    "parse_json": _parse_json,
    "regex_findall": _regex_findall,
    "regex_replace": _regex_replace,
    "regex_search": _regex_search,
    "split": _split,
    "strip": _strip,
}
FUNCTIONS: dict[str, Any] = {
    "hash": _hash,
    "now": _time_of_step,
    "null": None,
    "parse_json": _parse_json,
    "regex_findall": lambda pattern, text: _regex_findall(text, pattern),
    "regex_replace": lambda pattern, replacement, text: _regex_replace(text, pattern, replacement),
    "regex_search": lambda pattern, text: _regex_search(text, pattern),
    "tojson": OUR_FILTERS["tojson"],
}
"""Global functions, and `null`, which Jinja calls none."""
RESULT_TYPES: Mapping[str, str] = {
    **dict.fromkeys(
        """basename capitalize center hash indent join lower regex_replace replace string strip title tojson
        trim upper wordwrap""".split(),  # noqa: SIM905
        "string",
    ),
    **dict.fromkeys(
        """batch dictsort flatten groupby items lines list map regex_findall regex_search reject rejectattr
        select selectattr slice sort split unique""".split(),  # noqa: SIM905
        "list",
    ),
    **dict.fromkeys(("bool", "equalto", "greaterthan", "lessthan"), "boolean"),
    **dict.fromkeys(("count", "length", "wordcount"), "integer"),
}
"""The result types of filters that always return the same type."""
PATTERN_WORDS = frozenset({"regex_findall", "regex_replace", "regex_search"})
"""Filters and functions with a pattern as argument."""


# Calls that can never work


_OURS = "workflows_mcp."
_WORDS: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "an object",
}
_UNKNOWN = object()


def wrong_call(
    function: Callable[..., Any],
    given: list[nodes.Expr],
    named: list[nodes.Keyword],
    *,
    filters: bool = False,
) -> tuple[str, str] | None:
    """Why a call can never work, and its signature; None if it may work.

    `filters`: the value on the left is the first argument.
    """
    found = _signature(function)
    if found is None:
        return None
    signature, types = found
    arguments: list[Any] = [_UNKNOWN] if filters else []
    arguments += [_constant(node) for node in given]
    try:
        bound = signature.bind(*arguments, **{it.key: _constant(it.value) for it in named})
    except TypeError as error:
        return str(error), _takes(signature, filters)
    for name, value in bound.arguments.items():
        allowed = types.get(name)
        numbers = (int, float) if allowed is not None and not {int, float}.isdisjoint(allowed) else ()
        if allowed is not None and value is not _UNKNOWN and not isinstance(value, (*allowed, *numbers)):
            words = " or ".join(_WORDS[it] for it in allowed if it in _WORDS)
            return f"its argument '{name}' must be {words}, not {kind_and_value(value)}", _takes(
                signature, filters
            )
    return None


def _constant(node: nodes.Node) -> Any:
    try:
        value = node.as_const()  # type: ignore[attr-defined]
    except Exception:
        return _UNKNOWN
    return value


def _takes(signature: inspect.Signature, filters: bool) -> str:
    names = list(signature.parameters.values())[1 if filters else 0 :]
    listed = ", ".join(str(it.replace(annotation=inspect.Parameter.empty)) for it in names)
    return f"it takes ({listed})" if names else "it takes no arguments"


@lru_cache(maxsize=512)
def _signature(function: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, tuple[type, ...]]] | None:
    """The parameters that a template may pass, and their annotated types."""
    plain = inspect.unwrap(function)
    try:
        signature = inspect.signature(plain)
    except (TypeError, ValueError):
        return None
    parameters = list(signature.parameters.values())
    if _PassArg.from_obj(plain) is not None:
        parameters = parameters[1:]
    is_ours = getattr(plain, "__module__", "").startswith(_OURS)  # annotations of others are too narrow
    hints = get_type_hints(plain) if is_ours else {}
    types = {it.name: allowed for it in parameters if (allowed := _types(hints.get(it.name)))}
    return signature.replace(parameters=parameters), types


def _types(hint: Any) -> tuple[type, ...] | None:
    """The types that a constant may have; None for any."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    kinds = [get_origin(part) or part for part in parts]
    if bool in kinds or not all(kind in (*_WORDS, NoneType) for kind in kinds):
        return None
    return tuple(kinds)
