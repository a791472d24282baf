"""Defines the interface of the expression languages.

    expression = Dollar().template("Hello ${inputs.name}")
    expression.references                   # (Reference(("inputs", "name"), offset=6),)
    expression.evaluate({"inputs": {"name": "Ada"}})                # "Hello Ada"

A language parses the source text of a template or a condition into an `Expression`, once. An expression knows
its references and can be evaluated on any number of scopes. A scope is a mapping of names to JSON data, or to
a `Namespace`, which computes its members. Values are data: no attribute of a Python object can be reached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from workflows_mcp.errors import ExpressionError
from workflows_mcp.values import Value, did_you_mean, kind_of

# The interface of a language


class Language(Protocol):
    """Parses source text. Every method raises ExpressionError, with the offset, for malformed source."""

    resolves_keys: bool
    """Whether the keys of mappings are templates too."""

    def is_dynamic(self, text: str) -> bool:
        """Whether `text` contains an expression."""

    def template(self, text: str) -> Expression:
        """Parse text with expressions in it; exactly one expression keeps the type of its value."""

    def condition(self, text: str) -> Expression:
        """Parse an expression that is true or false."""

    def output(self, text: str) -> Expression:
        """Parse an output of a workflow: an expression over references if it is one, else a template."""

    def code(self, text: str) -> CodeTemplate:
        """Parse code (a shell command) with expressions in it; its values stay apart from its text."""


class Expression(Protocol):
    @property
    def source(self) -> str: ...

    @property
    def references(self) -> tuple[Reference, ...]: ...

    def kinds(self, at: KindsAt) -> Kinds | None:
        """The possible types of the value; None if unknown."""

    def evaluate(self, scope: Scope) -> Value:
        """The value on a scope; raises ExpressionError for an undefined reference."""


class CodeTemplate(Protocol):
    @property
    def references(self) -> tuple[Reference, ...]: ...

    @property
    def known_texts(self) -> tuple[str, ...] | None:
        """The texts of the code, if they do not depend on values; else None."""

    def offset(self, number: int) -> int:
        """The offset in the source of the value with this number."""

    def evaluate(self, scope: Scope) -> Code: ...


# What expressions read: a scope, and paths into it


Scope = Mapping[str, Any]


class Reference(NamedTuple):
    """A path that an expression reads: names, and integers for list positions.

    `optional`: the expression also works if nothing is there.
    """

    path: tuple[str | int, ...]
    offset: int
    optional: bool = False

    def __str__(self) -> str:
        head, *rest = self.path
        return str(head) + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in rest)


class Namespace(Protocol):
    """A value whose members are computed on lookup: blocks, a block, run metadata."""

    def lookup(self, name: str | int) -> Any:
        """The member called `name`, or at that position; MISSING if there is none."""

    def names(self) -> list[str]:
        """The names of the members, for error messages."""

    def plain(self) -> Value:
        """The whole value as JSON data."""


class Missing:
    """What a namespace returns for an unknown name."""

    __slots__ = ()


MISSING = Missing()


class Unset:
    """Stands in a scope for a name that is declared and has no value yet."""

    __slots__ = ()


UNSET = Unset()


# What expressions give


class Code(NamedTuple):
    """Text in another language, such as a shell command, and the values in it, which must stay data.

    `texts` has one item more than `values`; value i stands between text i and text i + 1. The
    runner of the code decides how to pass the values, so that none becomes part of the code.
    """

    texts: tuple[str, ...]
    values: tuple[Value, ...]


class Refusal(NamedTuple):
    """Why a value (by number) is not allowed at its place in code, and how to write it instead."""

    number: int
    message: str
    hint: str


Kinds = frozenset[str]
"""The possible types of a value: the types of inputs, and `null`."""
KindsAt = Callable[[tuple[str | int, ...]], Kinds | None]
"""Returns the possible types of the value at a path; None if unknown."""
KIND_NAMES: Mapping[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "list",
    dict: "object",
    type(None): "null",
}
STRING, BOOLEAN = frozenset({"string"}), frozenset({"boolean"})


class Constant:
    """A template without any expression."""

    __slots__ = ("source",)
    references: tuple[Reference, ...] = ()

    def __init__(self, source: str) -> None:
        self.source = source

    def kinds(self, at: KindsAt) -> Kinds | None:
        return STRING

    def evaluate(self, scope: Scope) -> Value:
        return self.source


class ConstantCode(Constant):
    __slots__ = ()

    @property
    def known_texts(self) -> tuple[str, ...]:
        return (self.source,)

    def offset(self, number: int) -> int:
        return 0

    def evaluate(self, scope: Scope) -> Code:
        return Code((self.source,), ())


# Following a path into a scope


def follow(reference: Reference, scope: Scope, *, or_null: bool = False) -> Value:
    """The value of a reference, as JSON data; raises ExpressionError if there is none.

    `or_null`: it is null instead, also for the default outputs of a block that did not run.
    """
    value: Any = scope
    for position, part in enumerate(reference.path):
        kind = type(value)
        if kind is dict or position == 0:
            found = value.get(part, MISSING) if type(part) is str else MISSING
        elif kind is list:
            found = _item(value, part)
        elif hasattr(value, "lookup"):
            lookup = getattr(value, "lookup_made", value.lookup) if or_null else value.lookup
            found = lookup(part)
        else:
            found = MISSING
        if found is MISSING:
            if or_null:
                return None
            raise _nothing_there(reference, position, value, part)
        value = found
    return value.plain() if hasattr(value, "plain") else value


def _item(items: list[Any], part: str | int) -> Any:
    index = part if type(part) is int else int(part) if str(part).isdecimal() else -1
    return items[index] if 0 <= index < len(items) else MISSING


def _nothing_there(reference: Reference, position: int, value: Any, part: str | int) -> ExpressionError:
    parent = str(Reference(reference.path[:position], 0)) if position else ""
    if position == 0:
        names, what = sorted(value), "a reference starts with one of"
    elif isinstance(value, dict):
        names, what = sorted(value), f"'{parent}' has"
    elif isinstance(value, list):
        message = f"${{{reference}}} does not exist: '{parent}' is a list of {len(value)}"
        return ExpressionError(
            message, hint="positions count from 0", offset=reference.offset, code="undefined"
        )
    elif hasattr(value, "names"):
        names, what = value.names(), f"'{parent}' has"
    else:
        message = f"${{{reference}}} does not exist: '{parent}' is {kind_of(value)}, which has no fields"
        return ExpressionError(message, offset=reference.offset, code="undefined")
    where = f"'{parent}' has no '{part}'" if parent else f"there is no '{part}'"
    return ExpressionError(
        f"${{{reference}}} does not exist: {where}",
        hint=did_you_mean(str(part), names, what=what),
        offset=reference.offset,
        code="undefined",
    )


def braces(source: str, number: int) -> int:
    """The offset of the expression with this number in a source with `{{ }}`."""
    found = -1
    for _ in range(number + 1):
        found = source.find("{{", found + 1)
    return max(found, 0)
