"""The filters of `${…}`: `${blocks.version.outputs.stdout | trim}`, `${inputs.tag | default('latest')}`.

A small fixed set. Each says what it takes and what it gives, so that misuse is found when a file is loaded.
Their arguments are literals. docs/graph-dialect.md lists them; a test compares the two.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Callable
from typing import NamedTuple

from workflows_mcp.errors import ExpressionError
from workflows_mcp.values import (
    Value,
    did_you_mean,
    from_json_in_run,
    kind_and_value,
    kind_of,
    shown,
    to_json,
    to_text,
)


class Filter(NamedTuple):
    apply: Callable[..., Value]
    takes: frozenset[str]
    """Kinds of values, as an input type calls them; empty: any."""
    gives: str
    """The type of the result; "same": what went in."""
    arguments: tuple[int, int] = (0, 0)
    """How many there must be at least, and may be at most."""
    doc: str = ""


_SCALARS = frozenset({"string", "number", "integer", "float", "boolean"})
_TEXT = frozenset({"string"})
_LIST = frozenset({"list"})


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def _json(value: Value) -> Value:
    if not isinstance(value, str):
        return value
    try:
        return from_json_in_run(value)
    except ValueError as error:
        raise ExpressionError(f"json: {shown(value)} is not JSON: {error}") from None


def _join(items: list[Value], separator: str = ",") -> str:
    return to_text(separator).join(map(to_text, items))


FILTERS: dict[str, Filter] = {
    "trim": Filter(lambda value: to_text(value).strip(), _SCALARS, "string", doc="no white space around it"),
    "lower": Filter(lambda value: to_text(value).lower(), _SCALARS, "string", doc="in lower case"),
    "upper": Filter(lambda value: to_text(value).upper(), _SCALARS, "string", doc="in upper case"),
    "basename": Filter(
        lambda value: posixpath.basename(value.rstrip("/")), _TEXT, "string", doc="the last part of a path"
    ),
    "lines": Filter(_lines, _TEXT, "list", doc="the lines of a text, as a list; empty ones are left out"),
    "json": Filter(_json, frozenset(), "any", doc="the value that a JSON text stands for"),
    "tojson": Filter(to_json, frozenset(), "string", doc="the value as JSON text"),
    "length": Filter(
        len, frozenset({"string", "list", "object"}), "integer", doc="of text, of a list or of an object"
    ),
    "join": Filter(_join, _LIST, "string", (0, 1), doc="the items of a list as one text, `,` between them"),
    "default": Filter(
        lambda value, other: other if value is None else value,
        frozenset(),
        "same",
        (1, 1),
        doc="another value where there is none: null, absent, or of a block that did not run",
    ),
}
_ALIASES = {
    "strip": "trim",
    "from_json": "json",
    "fromjson": "json",
    "parse_json": "json",
    "loads": "json",
    "to_json": "tojson",
    "count": "length",
    "len": "length",
    "size": "length",
    "splitlines": "lines",
    "split": "lines",
    "d": "default",
}
"""What other languages call them."""
_TYPE_OF_KIND = {"text": "string"}


class Applied(NamedTuple):
    """A filter with its arguments, at its place in the source."""

    name: str
    arguments: tuple[Value, ...]
    offset: int

    @property
    def filter(self) -> Filter:
        return FILTERS[self.name]

    def to(self, value: Value, reference: str) -> Value:
        takes = self.filter.takes
        kind = kind_of(value)
        if takes and _TYPE_OF_KIND.get(kind, kind) not in takes:
            raise wrong_kind(self, reference, kind_and_value(value))
        try:
            return self.filter.apply(value, *self.arguments)
        except ExpressionError as error:
            error.offset = self.offset
            raise


def wrong_kind(applied: Applied, reference: str, found: str) -> ExpressionError:
    takes = [name.replace("string", "text") for name in sorted(applied.filter.takes)]
    hint = f"{applied.name} takes {' or '.join(takes)}"
    if found == "null":
        hint += "; write | default('…') before it to give null another value"
    return ExpressionError(
        f"${{{reference} | {applied.name}}}: it cannot be applied to {found}",
        hint=hint,
        offset=applied.offset,
        code="type_mismatch",
    )


def read_filter(name: str, arguments: str | None, offset: int) -> Applied:
    """The filter called `name`; `arguments` is what stands between its parentheses."""
    known = FILTERS.get(name)
    if known is None:
        meant = _ALIASES.get(name)
        hint = f"write: {meant}" if meant else did_you_mean(name, FILTERS, what="filters", limit=20)
        raise ExpressionError(f"there is no filter '{name}'", hint=hint, offset=offset, code="syntax")
    try:
        given = ast.literal_eval(f"[{_spelt(arguments or '')}]")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ExpressionError(
            f"the arguments of the filter '{name}' cannot be read: {arguments}",
            hint="they are texts in quotes, numbers, true, false, null, or lists of those",
            offset=offset,
            code="syntax",
        ) from None
    least, most = known.arguments
    if not least <= len(given) <= most:
        wanted = f"{least} to {most}" if least != most else str(least) if most else "no"
        raise ExpressionError(
            f"the filter '{name}' takes {wanted} argument{'' if most == 1 else 's'}, not {len(given)}",
            hint="e.g. ${inputs.tag | default('latest')}" if name == "default" else "",
            offset=offset,
            code="syntax",
        )
    return Applied(name, tuple(given), offset)


def _spelt(arguments: str) -> str:
    """With true, false and null as Python spells them, outside of quotes."""
    words = {"true": "True", "false": "False", "null": "None", "none": "None"}
    return re.sub(
        r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\b(true|false|null|none)\b""",
        lambda found: words[found[1]] if found[1] else found[0],
        arguments,
    )
