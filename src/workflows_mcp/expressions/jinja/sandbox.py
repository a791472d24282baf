"""Runs Jinja templates without access to Python, and with bounded memory.

    Sandbox(strict=True).from_string("{{ name | upper }}").render(name="Ada")       # "ADA"

It goes further than Jinja's own sandbox, which blocks private attributes and changes to values: each kind of
JSON value has a short list of methods; a key of an object takes precedence over a method of the same name;
formatting with widths and attributes is removed; and every operation whose result can be much larger than its
operands (`*`, `**`, join, replace, center, …) measures the result first. Values become text as elsewhere:
true/false, nothing for null, JSON for lists and objects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from contextvars import ContextVar
from datetime import date
from functools import cached_property, partial, wraps
from math import isfinite
from types import GeneratorType, TracebackType
from typing import Any

from jinja2 import ChainableUndefined, StrictUndefined, Template, nodes, pass_environment
from jinja2 import filters as standard
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError, UndefinedError
from jinja2.lexer import TOKEN_NAME, TOKEN_STRING, Lexer
from jinja2.runtime import BlockReference, Context, LoopContext, Macro, TemplateReference, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace, missing

from workflows_mcp.values import to_json, to_text

MAX_ITEMS = 1_000_000
"""The maximum number of items of a list made by `+` or `*`."""
MAX_FILTERED_ITEMS = 100_000
"""The maximum count for `batch` and `slice`; Jinja's own limit for `range`."""
MAX_BITS = 4096
"""The maximum size of an integer made by multiplication or a power."""

largest: ContextVar[int] = ContextVar("largest", default=2_000_000)
"""The maximum length of any text in the current template."""


# Values as text and as JSON data


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
    """A value as JSON data; raises SecurityError if it is too large, also by repeating a list."""
    return _plain(value, iter(range(largest.get())), 0)


def _plain(value: Any, budget: Iterator[int], depth: int) -> Any:
    if next(budget, None) is None or depth > 200:
        raise SecurityError("the value is too large, or nested too deeply")
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
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, _LISTS):
        return [_plain(item, budget, depth + 1) for item in value]
    if hasattr(type(value), "plain"):
        return _plain(value.plain(), budget, depth + 1)
    raise SecurityError(f"a {type(value).__name__} cannot be used as a value")


def _number(value: int | float) -> int | float:
    """The number, if JSON can represent it; else SecurityError."""
    if isinstance(value, float):
        if not isfinite(value):
            raise SecurityError(f"{value} cannot be used as a value: JSON has no such number")
    elif not -(2**63) <= value < 2**64:
        raise SecurityError("the integer is too large to be used as a value: at most 64 bits are allowed")
    return value


def joined(parts: Iterable[Any]) -> str:
    """Join parts, and raise TooLong as soon as the text is too long."""
    limit = largest.get()
    texts: list[str] = []
    length = 0
    for part in parts:
        text = part if isinstance(part, str) else as_text(part)
        length += len(text)
        if length > limit:
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
    """A text is longer than allowed."""


def _too_long(length: int) -> TooLong:
    return TooLong(f"the text is too long: {length} characters, and at most {largest.get()} are allowed")


# Methods


def _join(separator: str, items: Iterable[Any]) -> str:
    texts: list[str] = []
    length = 0
    for item in items:
        texts.append(as_text(item))
        length += len(texts[-1]) + len(separator)
        measure(length - len(separator))
    return separator.join(texts)


def _replace(text: str, old: Any, new: Any, count: int | None = None) -> str:
    old, new = as_text(old), as_text(new)
    times = text.count(old) if count is None or count < 0 else min(count, text.count(old))
    measure(len(text) + times * (len(new) - len(old)))
    return text.replace(old, new, -1 if count is None else count)


def _padding(method: str) -> Callable[..., str]:
    def pad(text: str, width: int, *fill: str) -> str:
        measure(width)
        padded: str = getattr(text, method)(width, *fill)
        return padded

    return pad


def _expandtabs(text: str, tabsize: int = 8) -> str:
    measure(len(text) + text.count("\t") * tabsize)
    return text.expandtabs(tabsize)


MEASURED_METHODS: dict[str, Callable[..., str]] = {
    "join": _join,
    "replace": _replace,
    "expandtabs": _expandtabs,
    **{name: _padding(name) for name in ("center", "ljust", "rjust", "zfill")},
}
_TEXT_METHODS = frozenset(
    """
    capitalize casefold center count endswith expandtabs find index isalnum isalpha isascii isdecimal isdigit
    isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip partition
    removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith
    strip swapcase title upper zfill
    """.split()  # noqa: SIM905
)
METHODS: tuple[tuple[type, frozenset[str]], ...] = (
    (str, _TEXT_METHODS),
    (Mapping, frozenset({"copy", "get", "items", "keys", "values"})),
    (list, frozenset({"copy", "count", "index"})),
    (tuple, frozenset({"count", "index"})),
    (float, frozenset({"is_integer"})),
)
OF_JINJA = (BlockReference, Cycler, Joiner, LoopContext, Macro, Namespace, TemplateReference)


# Filters


def _join_filter(value: Iterable[Any], d: Any = "", attribute: Any = None) -> str:
    if attribute is not None:
        value = [item[attribute] if isinstance(item, Mapping) else item for item in value]
    return _join(as_text(d), value)


def _replace_filter(value: Any, old: Any, new: Any, count: int | None = None) -> str:
    return _replace(as_text(value), old, new, count)


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
    """Limit the first argument of a filter, a number of items or columns."""

    @wraps(function)
    def limited(value: Any, count: int, *rest: Any, **named: Any) -> Any:
        if count > MAX_FILTERED_ITEMS:
            raise SecurityError(f"{count} is too many: at most {MAX_FILTERED_ITEMS} are allowed")
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
        raise SecurityError(f"sum adds numbers, or lists with start=[]; use join for texts: {start!r}")
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
"""They offer formatting with widths, memory addresses, randomness or slow patterns."""
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


# The environment


class MissingName(UndefinedError):
    """An undefined name was used. `owner` is its parent; `missing` for a top-level name."""

    def __init__(self, owner: Any, name: Any, message: str | None) -> None:
        super().__init__(message)
        self.owner = owner
        self.name = name


def line_of(error: BaseException) -> int:
    """The line of an error in its template, which is an offset in an expression; 1 if unknown."""
    line = 1
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None:
        template = traceback.tb_frame.f_globals.get("__jinja_template__")
        if isinstance(template, Template):
            line = template.get_corresponding_lineno(traceback.tb_lineno)
        traceback = traceback.tb_next
    return line


class Strict(StrictUndefined):
    __slots__ = ()

    def __init__(
        self, hint: str | None = None, obj: Any = missing, name: str | None = None, exc: Any = UndefinedError
    ) -> None:
        if exc is UndefinedError:
            exc = partial(MissingName, obj, name)
        super().__init__(hint, obj, name, exc)


class _Lenient(ChainableUndefined):
    __slots__ = ()


class RawStringLexer(Lexer):
    """Accepts r'…', and a backslash that begins no escape."""

    def wrap(
        self, stream: Iterable[tuple[int, str, str]], name: str | None = None, filename: str | None = None
    ) -> Any:
        return super().wrap(_with_raw_strings(stream), name, filename)


_BACKSLASH = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = frozenset("\\'\"abfnrtvxuUN01234567\n")


def _with_raw_strings(stream: Iterable[tuple[int, str, str]]) -> Iterator[tuple[int, str, str]]:
    held: tuple[int, str, str] | None = None
    for token in stream:
        line, kind, text = token
        if kind == TOKEN_STRING and "\\" in text:
            if held is not None:
                text = text[0] + text[1:-1].replace("\\", "\\\\") + text[0]
                held = None
            else:
                text = _BACKSLASH.sub(
                    lambda found: found[0] if found[1] in _ESCAPES else f"\\{found[0]}", text
                )
            yield line, kind, text
            continue
        if held is not None:
            if kind != TOKEN_STRING:
                yield held
            held = None
        if kind == TOKEN_NAME and text == "r":
            held = token
        else:
            yield token
    if held is not None:
        yield held


class _Buffer(list[str]):
    """Collects the output of a macro or a {% set %} block, within the limit."""

    def __init__(self) -> None:
        super().__init__()
        self._length = 0

    def append(self, text: str, /) -> None:
        self._length += len(text)
        measure(self._length)
        super().append(text)

    def extend(self, texts: Iterable[str], /) -> None:
        for text in texts:
            self.append(text)


class BoundedGenerator(CodeGenerator):
    def buffer(self, frame: Frame) -> None:
        frame.buffer = self.temporary_identifier()
        self.writeline(f"{frame.buffer} = environment.buffer()")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class Sandbox(ImmutableSandboxedEnvironment):
    code_generator_class = BoundedGenerator
    intercepted_binops = frozenset({"*", "**", "%", "+"})
    concat = staticmethod(joined)
    joined = staticmethod(joined)
    buffer = _Buffer
    methods = METHODS

    def __init__(self, *, strict: bool, **options: Any) -> None:
        super().__init__(
            undefined=Strict if strict else _Lenient,
            autoescape=False,
            finalize=as_text,
            cache_size=0,
            **options,
        )
        del self.globals["lipsum"]
        for name in REMOVED_FILTERS:
            del self.filters[name]
        self.filters.update(OUR_FILTERS)
        self._own_lexer = RawStringLexer(self)

    @property
    def lexer(self) -> Lexer:
        return self._own_lexer

    @cached_property
    def functions(self) -> dict[str, Any]:
        """The global names of templates."""
        return dict(self.globals)

    def context(
        self, names: Mapping[str, Any], blocks: Mapping[str, Callable[[Context], Iterator[str]]] | None = None
    ) -> Context:
        """The context in which a template looks up names.

        It is one plain mapping: looking up each name in Jinja's chain of globals takes longer than rendering
        a small template.
        """
        return Context(self, {**self.functions, **names}, None, dict(blocks or {}))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if attr.startswith("_"):
            return False
        if isinstance(obj, OF_JINJA):
            return super().is_safe_attribute(obj, attr, value)
        return any(isinstance(obj, kind) and attr in names for kind, names in self.methods)

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, Mapping) and attribute in obj:
            return obj[attribute]
        return super().getattr(obj, attribute)

    def wrap_str_format(self, value: Any) -> None:
        return None  # no text has `format` here: see is_safe_attribute

    def call(__self, __context: Context, __obj: Any, *arguments: Any, **named: Any) -> Any:
        text = getattr(__obj, "__self__", None)
        if isinstance(text, str) and (measured := MEASURED_METHODS.get(__obj.__name__)):
            return measured(text, *arguments, **named)
        return super().call(__context, __obj, *arguments, **named)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%":
            if isinstance(left, str | bytes):
                raise SecurityError("text cannot be formatted with %; use ~ or replace")
        elif operator == "**":
            _check_power(left, right)
        elif operator == "*":
            _check_product(left, right)
            _check_product(right, left)
        elif isinstance(left, str) and isinstance(right, str):
            measure(len(left) + len(right))
        elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
            _check_items(len(left) + len(right))
        return super().call_binop(context, operator, left, right)


def _check_power(base: Any, exponent: Any) -> None:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > MAX_BITS:
        raise SecurityError("the power is too large")


def _check_product(one: Any, other: Any) -> None:
    if isinstance(one, str | bytes) and isinstance(other, int):
        measure(len(one) * other)
    elif isinstance(one, list | tuple) and isinstance(other, int):
        _check_items(len(one) * other)
    elif isinstance(one, int) and isinstance(other, int) and one.bit_length() + other.bit_length() > MAX_BITS:
        raise SecurityError("the product is too large")


def _check_items(count: int) -> None:
    if count > MAX_ITEMS:
        raise SecurityError(f"the list is too long: {count} items, and at most {MAX_ITEMS} are allowed")
