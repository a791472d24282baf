"""What every expression language offers, and what every value that it can look into offers.

A language turns the source text of a template or of a condition into an `Expression`: parsed once,
its references known, evaluated any number of times on a scope. A scope is a mapping of the names that
exist; its values are JSON data or a `Namespace`, which answers for names that are computed.

    expression = language.template("Hello ${inputs.name}")
    expression.references                   # (Reference(("inputs", "name"), offset=6),)
    expression.evaluate({"inputs": {"name": "Ada"}})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from workflows_mcp.values import Value

Scope = Mapping[str, Any]


class Missing:
    """The answer of a namespace for a name that it does not have."""

    __slots__ = ()


MISSING = Missing()


class Unset:
    """What stands in a scope for a name that exists and has no value yet."""

    __slots__ = ()


UNSET = Unset()


class Namespace(Protocol):
    """A value with named parts that are looked up, not stored: blocks, a block, run metadata."""

    def lookup(self, name: str | int) -> Any:
        """The part called `name`, or at that position, or MISSING."""

    def names(self) -> list[str]:
        """What exists here, for error messages."""

    def plain(self) -> Value:
        """The whole as JSON data, for when it is used as a value itself."""


class Reference(NamedTuple):
    """A path that an expression reads: names, and integers for list positions.

    `optional`: the expression knows what to do when there is nothing there.
    """

    path: tuple[str | int, ...]
    offset: int
    optional: bool = False

    def __str__(self) -> str:
        head, *rest = self.path
        return str(head) + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in rest)


class Code(NamedTuple):
    """Text in another language (a shell command, say) with values in it that must stay data.

    `texts` has one item more than `values`; value i stands between text i and text i + 1. Whoever runs
    the code decides how a value is handed over without becoming part of the code.
    """

    texts: tuple[str, ...]
    values: tuple[Value, ...]


class Refusal(NamedTuple):
    """Why the value of a number cannot stand in code where it does, and how to write it instead."""

    number: int
    message: str
    hint: str


def braces(source: str, number: int) -> int:
    """Where the expression of a number begins in a source with `{{ }}` in it."""
    found = -1
    for _ in range(number + 1):
        found = source.find("{{", found + 1)
    return max(found, 0)


Kinds = frozenset[str]
"""The types that a value can have: those of inputs, and `null`."""
KindsAt = Callable[[tuple[str | int, ...]], Kinds | None]
"""The types that what stands at a path can have; None where nobody knows."""
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


class Expression(Protocol):
    @property
    def source(self) -> str: ...

    @property
    def references(self) -> tuple[Reference, ...]: ...

    def kinds(self, at: KindsAt) -> Kinds | None:
        """The types that the value can have when there is one; None where they are not known."""

    def evaluate(self, scope: Scope) -> Value:
        """The value; raises ExpressionError where a reference does not exist."""


class Language(Protocol):
    """Every method raises ExpressionError, with the offset, when the source is malformed."""

    resolves_keys: bool
    """Whether the keys of mappings are templates too."""

    def is_dynamic(self, text: str) -> bool:
        """Whether `text` holds any expression at all."""

    def template(self, text: str) -> Expression:
        """Text with expressions in it; exactly one expression keeps the type of its value."""

    def condition(self, text: str) -> Expression:
        """An expression that must give true or false."""

    def output(self, text: str) -> Expression:
        """What a workflow hands out: an expression over references if it is one, else a template."""

    def code(self, text: str) -> CodeTemplate:
        """A template of code, whose values are kept apart from its text."""


class CodeTemplate(Protocol):
    @property
    def references(self) -> tuple[Reference, ...]: ...

    @property
    def known_texts(self) -> tuple[str, ...] | None:
        """The texts of the code, where they are the same whatever the values are."""

    def offset(self, number: int) -> int:
        """Where in the source the value of a number stands."""

    def evaluate(self, scope: Scope) -> Code: ...
