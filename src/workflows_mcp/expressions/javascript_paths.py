"""What needs no JavaScript: the paths of an expression, `a.b[0].c` or `results[item].errors`, and literals.

Most expressions of workflows are no more than a path, and are looked up here in a fraction of the time. Of
others the paths are looked up here, so that JavaScript is given the two numbers that it compares, and not the
state that they stand in. Wherever it takes JavaScript to know what comes out (a member of a text, a member of
nothing), the answer is UNCLEAR, and JavaScript is given everything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from workflows_mcp.expressions.base import BOOLEAN, KIND_NAMES, MISSING, UNSET, Kinds, KindsAt, Scope
from workflows_mcp.expressions.javascript_names import Free, free_names, literal_text
from workflows_mcp.expressions.javascript_source import Source, words
from workflows_mcp.expressions.javascript_values import path_to_key, truth


class _Unclear:
    __slots__ = ()


UNCLEAR: Any = _Unclear()
_CONSTANTS: dict[str, Any] = {"true": True, "false": False, "null": None, "undefined": UNSET}
_DECIMAL = re.compile(r"(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,12})?")
_OF_EVERY_OBJECT = words(
    """constructor hasOwnProperty isPrototypeOf propertyIsEnumerable toLocaleString toString valueOf toJSON
    __proto__ __defineGetter__ __defineSetter__ __lookupGetter__ __lookupSetter__"""
)


class Simple(NamedTuple):
    """A path or a literal, and how often it is negated."""

    free: Free | None
    literal: Any
    negations: int

    def kinds(self, at: KindsAt) -> Kinds | None:
        """The types that the value can have; undefined counts as null."""
        if self.negations:
            return BOOLEAN
        if self.free is None:
            return frozenset({KIND_NAMES.get(type(self.literal), "null")})
        return at(self.free.path) if len(self.free.path) == len(self.free.steps) + 1 else None

    def evaluate(self, scope: Scope) -> Any:
        """The value, UNSET where it is undefined, or UNCLEAR."""
        value = self.literal if self.free is None else found(self.free, len(self.free.steps), scope)
        if value is UNCLEAR or not self.negations:
            return value
        return truth(value) is (self.negations % 2 == 0)


def simple(source: Source) -> Simple | None:
    """The expression, if it is simple."""
    tokens = source.tokens
    start = 0
    while source.sign(start) == "!":
        start += 1
    if start >= len(tokens) or tokens[start].kind not in ("name", "number", "string"):
        return None
    first = tokens[start]
    if len(tokens) == start + 1 and first.text in _CONSTANTS:
        return Simple(None, _CONSTANTS[first.text], start)
    if first.kind == "name":
        free = free_names(source)
        is_path = bool(free) and free[0].token == start and free[0].ends(len(free[0].steps)) == len(tokens)
        return Simple(free[0], None, start) if is_path else None
    if len(tokens) > start + 1:
        return None
    literal: Any = literal_text(first) if first.kind == "string" else _number(first.text)
    return None if literal is None else Simple(None, literal, start)


def _number(text: str) -> int | float | None:
    if _DECIMAL.fullmatch(text) is None:
        return None
    return whole_or_not(float(text)) if "." in text else int(text)


def whole_or_not(number: float) -> int | float:
    """JavaScript makes no difference between 2.0 and 2."""
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def found(free: Free, steps: int, scope: Scope, goes_on: bool = False) -> Any:
    """What so many steps of a path lead to; UNSET where it is undefined. With `goes_on`, more is read of it
    in JavaScript, which must then know whether a `?.` has cut the path short."""
    if free.name.startswith("_"):
        return UNCLEAR
    try:
        value: Any = scope[free.name]
    except KeyError:
        return UNCLEAR
    for key, asked, _ in free.steps[:steps]:
        if value is None or value is UNSET:
            return UNSET if asked and not goes_on else UNCLEAR
        if isinstance(key, Free):
            part = found(key, len(key.steps), scope)
            value = _member(value, part) if type(part) is str or type(part) is int else UNCLEAR
        else:
            value = _member(value, key)
        if value is UNCLEAR:
            return UNCLEAR
    if type(value) is float:
        return whole_or_not(value) if value - value == 0 else None
    return value.plain() if hasattr(value, "plain") else value


def _member(value: Any, key: str | int) -> Any:
    """A member of something that is neither null nor undefined."""
    if key in _OF_EVERY_OBJECT:
        return UNCLEAR
    if isinstance(value, dict | Mapping):
        text = key if type(key) is str else str(key)
        member = value.get(text, UNSET)
        return value.get(path_to_key(text), UNSET) if member is UNSET else member
    if isinstance(value, list):
        if type(key) is int:
            return value[key] if 0 <= key < len(value) else UNSET
        return len(value) if key == "length" else UNCLEAR
    if type(value) is str and key == "length":
        return len(value) if value.isascii() else len(value.encode("utf-16-le", "surrogatepass")) // 2
    if hasattr(value, "lookup"):
        member = value.lookup(key)
        return UNSET if member is MISSING else member
    return UNCLEAR
