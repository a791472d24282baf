"""Text inside templates, and every filter and method whose result can outgrow what went into it.

Each of those measures first and refuses what gets too long; without that, a template of forty characters
could eat up the memory of the server. Values become text as everywhere else here: true/false, nothing for
null, JSON for lists and objects. Must not know how templates are compiled or what they may reach.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from contextvars import ContextVar
from functools import wraps
from math import isfinite
from types import GeneratorType
from typing import Any

from jinja2 import filters as standard
from jinja2 import pass_environment
from jinja2.exceptions import SecurityError
from jinja2.runtime import Undefined

from workflows_mcp.values import to_json, to_text

MOST_ITEMS = 100_000
"""How many items a list may get by `batch` or `slice`; Jinja's own limit for `range`."""


largest: ContextVar[int] = ContextVar("largest", default=2_000_000)
"""How long any one text may be, for the template that is rendered now."""


# Text


def as_text(value: Any) -> str:
    """A value as text inside a template."""
    if isinstance(value, str):
        return value
    if isinstance(value, Undefined):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return to_text(value)
    return _checked(to_text(plain(value)))


_LISTS: tuple[type[Iterable[Any]], ...] = (
    list,
    tuple,
    set,
    range,
    GeneratorType,
    KeysView,
    ValuesView,
    ItemsView,
)


def plain(value: Any) -> Any:
    """A value as JSON data; refuses what is too large, also by holding the same list again and again."""
    return _plain(value, iter(range(largest.get())), 0)


def _plain(value: Any, budget: Iterator[int], depth: int) -> Any:
    if next(budget, None) is None or depth > 200:
        raise SecurityError("the value is too large or too deeply nested")
    if value is None or value is True or value is False or type(value) is str:
        return value
    if isinstance(value, int | float):
        return _number(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Undefined):
        return str(value) or None
    if isinstance(value, Mapping):
        return {as_text(key): _plain(item, budget, depth + 1) for key, item in value.items()}
    if isinstance(value, _LISTS):
        return [_plain(item, budget, depth + 1) for item in value]
    if hasattr(type(value), "plain"):
        return _plain(value.plain(), budget, depth + 1)
    raise SecurityError(f"a {type(value).__name__} cannot be used as a value")


def _number(value: int | float) -> int | float:
    """A number as JSON has it."""
    if isinstance(value, float):
        if not isfinite(value):
            raise SecurityError(f"{value} cannot be used as a value: it is no number that JSON has")
    elif not -(2**63) <= value < 2**64:
        raise SecurityError("the integer is too large to be used as a value: 64 bits are allowed")
    return value


def joined(parts: Iterable[Any]) -> str:
    """Parts put together, measured while that is done."""
    most = largest.get()
    texts: list[str] = []
    length = 0
    for part in parts:
        text = part if isinstance(part, str) else as_text(part)
        length += len(text)
        if length > most:
            raise _too_long(length)
        texts.append(text)
    return "".join(texts)


def _checked(text: str) -> str:
    if len(text) > largest.get():
        raise _too_long(len(text))
    return text


def measure(length: int) -> None:
    if length > largest.get():
        raise _too_long(length)


class TooLong(SecurityError):
    """A text is longer than any may be."""


def _too_long(length: int) -> TooLong:
    return TooLong(f"the text gets too long: {length} characters, and at most {largest.get()} are allowed")


# Methods of texts


def _joined_by(separator: str, items: Iterable[Any]) -> str:
    texts: list[str] = []
    length = 0
    for item in items:
        texts.append(as_text(item))
        length += len(texts[-1]) + len(separator)
        measure(length - len(separator))
    return separator.join(texts)


def _replaced(text: str, old: Any, new: Any, count: int | None = None) -> str:
    old, new = as_text(old), as_text(new)
    times = text.count(old) if count is None or count < 0 else min(count, text.count(old))
    measure(len(text) + times * (len(new) - len(old)))
    return text.replace(old, new, -1 if count is None else count)


def _padded(method: str) -> Callable[..., str]:
    def pad(text: str, width: int, *fill: str) -> str:
        measure(width)
        padded: str = getattr(text, method)(width, *fill)
        return padded

    return pad


def _expanded_tabs(text: str, tabsize: int = 8) -> str:
    measure(len(text) + text.count("\t") * tabsize)
    return text.expandtabs(tabsize)


MEASURED_METHODS: dict[str, Callable[..., str]] = {
    "join": _joined_by,
    "replace": _replaced,
    "expandtabs": _expanded_tabs,
    **{name: _padded(name) for name in ("center", "ljust", "rjust", "zfill")},
}


# Filters


def _join_filter(value: Iterable[Any], d: Any = "", attribute: Any = None) -> str:
    if attribute is not None:
        value = [item[attribute] if isinstance(item, Mapping) else item for item in value]
    return _joined_by(as_text(d), value)


def _replace_filter(value: Any, old: Any, new: Any, count: int | None = None) -> str:
    return _replaced(as_text(value), old, new, count)


def _center_filter(value: Any, width: int = 80) -> str:
    measure(width)
    return as_text(value).center(width)


def _indent_filter(value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    text = as_text(value)
    each = width if isinstance(width, int) else len(width)
    measure(len(text) + (text.count("\n") + 1) * each)
    return standard.do_indent(text, width, first, blank)


def _tojson_filter(value: Any, indent: int | None = None) -> str:
    return _checked(to_json(plain(value), indent=min(max(indent or 0, 0), 16)))


def _with_count_limited(function: Callable[..., Any]) -> Callable[..., Any]:
    """For filters whose first argument says how many items or columns there are to be."""

    @wraps(function)
    def limited(value: Any, count: int, *rest: Any, **named: Any) -> Any:
        if count > MOST_ITEMS:
            raise SecurityError(f"{count} is too many: at most {MOST_ITEMS} are allowed")
        return function(value, count, *rest, **named)

    return limited


def _round_filter(value: float, precision: int = 0, method: Any = "common") -> float:
    if abs(precision) > 100:
        raise SecurityError(f"cannot round to {precision} digits")
    return standard.do_round(value, precision, method)


@pass_environment
def _sum_filter(environment: Any, iterable: Any, attribute: Any = None, start: float | list[Any] = 0) -> Any:
    if isinstance(start, int | float) and not isinstance(start, bool):
        return standard.do_sum(environment, iterable, attribute, start)
    if not isinstance(start, list):
        raise SecurityError(f"sum adds numbers, or lists with start=[]; join puts texts together: {start!r}")
    if attribute is not None:
        get = standard.make_attrgetter(environment, attribute)
        iterable = map(get, iterable)
    found = list(start)
    for item in iterable:
        if not isinstance(item, list | tuple):
            raise SecurityError(f"sum with start=[] adds lists, not {as_text(item)!r}")
        found += item
        measure(len(found))
    return found


@pass_environment
def _wordwrap_filter(
    environment: Any,
    value: str,
    width: int = 79,
    break_long_words: bool = True,
    wrapstring: str | None = None,
    break_on_hyphens: bool = True,
) -> str:
    text = as_text(value)
    measure((len(text) + 1) * max(1, len(wrapstring or "")))
    return standard.do_wordwrap(environment, text, width, break_long_words, wrapstring, break_on_hyphens)


REMOVED_FILTERS = ("format", "pprint", "random", "urlize")
"""Formatting with widths, addresses in memory, chance, and slow patterns."""
OUR_FILTERS: dict[str, Callable[..., Any]] = {
    "batch": _with_count_limited(standard.do_batch),
    "center": _center_filter,
    "indent": _indent_filter,
    "join": _join_filter,
    "replace": _replace_filter,
    "round": _round_filter,
    "slice": _with_count_limited(standard.do_slice),
    "string": as_text,
    "sum": _sum_filter,
    "tojson": _tojson_filter,
    "wordwrap": _wordwrap_filter,
}
