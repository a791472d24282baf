"""The Jinja environment in which templates run: no way out, no way to eat up memory.

Jinja's own sandbox closes private attributes and changes to values. This one goes further: methods are a
short list for each kind of JSON value, a key of an object comes before a method of the same name
(`state.items` is the field), text formatting with widths and attributes is gone, and everything whose result
can be much larger than what went in (`*`, `**`, join, replace, center …) is measured first. Must not know
what templates are used for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from jinja2 import ChainableUndefined, StrictUndefined, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError, UndefinedError
from jinja2.lexer import TOKEN_NAME, TOKEN_STRING, Lexer
from jinja2.runtime import BlockReference, Context, LoopContext, Macro, TemplateReference
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace, missing

from workflows_mcp.expressions.jinja_filters import (
    MEASURED_METHODS,
    OUR_FILTERS,
    REMOVED_FILTERS,
    as_text,
    joined,
    measure,
)

MOST_ITEMS = 1_000_000
"""How many items a list may get by `+` or `*`."""
MOST_BITS = 4096
"""How large an integer may get by multiplication or a power."""


class MissingName(UndefinedError):
    """A name that does not exist was used: `owner` is what it was looked for in, `missing` at the top."""

    def __init__(self, owner: Any, name: Any, message: str | None) -> None:
        super().__init__(message)
        self.owner = owner
        self.name = name


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


# What may be called on a value

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


# The environment


class RawStringLexer(Lexer):
    """Understands r'…', and a backslash that begins no escape as itself."""

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
    """What a macro or a {% set %} block collects, measured while that is done."""

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
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > MOST_BITS:
        raise SecurityError("the power is too large")


def _check_product(one: Any, other: Any) -> None:
    if isinstance(one, str | bytes) and isinstance(other, int):
        measure(len(one) * other)
    elif isinstance(one, list | tuple) and isinstance(other, int):
        _check_items(len(one) * other)
    elif (
        isinstance(one, int) and isinstance(other, int) and one.bit_length() + other.bit_length() > MOST_BITS
    ):
        raise SecurityError("the product is too large")


def _check_items(count: int) -> None:
    if count > MOST_ITEMS:
        raise SecurityError(f"the list gets too long: {count} items, and at most {MOST_ITEMS} are allowed")
