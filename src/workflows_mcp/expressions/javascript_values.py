"""What of a scope an expression is given, and what its values are as text and as true or false.

Only what the paths of an expression lead to is sent, not the whole of a large object of which it reads one
field. Values that are undefined have no form in JSON: their positions are told beside the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import isnan
from typing import Any, TypeAlias

import msgspec

from workflows_mcp.expressions.base import MISSING, UNSET, Scope
from workflows_mcp.expressions.javascript_names import Free
from workflows_mcp.values import Value, from_json, to_json

Wanted: TypeAlias = "dict[str | int, Wanted] | None"
"""The members of a value that are read, each with what is read of it; None is the whole value."""

_NOT_OF_KEYS = re.compile(r"[^A-Za-z0-9_]")
_HALF = re.compile(r"(?<!\\)((?:\\\\)*)\\ud[89a-f][0-9a-f]{2}")
_GIANT = re.compile(r"\d{19}")
_WHOLE_FLOAT = re.compile(r"\.0(?=[,\]}e])|\de")


def wanted(free: Iterable[Free]) -> dict[str, Wanted]:
    """By name, what of each value is read."""
    names: dict[str | int, Wanted] = {}
    for one in free:
        members: Wanted = names
        *before, last = one.path
        for part in before:
            if members is not None:
                members = members.setdefault(part, {})
        if members is not None:
            members[last] = None
    return {str(name): members for name, members in names.items()}


def sent(value: Any, members: Wanted) -> Any:
    """As much of a value as is read of it."""
    if hasattr(value, "lookup"):
        if members is None:
            return value.plain()
        parts = ((part, value.lookup(part)) for part in members)
        return {
            str(part): sent(found, members[part])
            for part, found in parts
            if found is not MISSING and found is not UNSET
        }
    if members is None or not isinstance(value, Mapping):
        return value
    read: dict[str, Any] = {}
    for part, of_part in members.items():
        key = str(part)
        key = key if key in value else path_to_key(key)
        if key in value:
            read[key] = sent(value[key], of_part)
    return read


def path_to_key(text: str) -> str:
    """A path as a key that can be written without quotes."""
    return _NOT_OF_KEYS.sub("_", text)


def encoded(value: Any) -> str:
    """Raises TypeError, ValueError or RecursionError for what is not JSON data."""
    return _encode(value).decode("utf-8")


def decoded(text: str) -> Value:
    """What the engine has written. Half a character, which it writes as an escape, becomes one that is
    unknown. Raises ValueError or RecursionError."""
    value = from_json(_HALF.sub(r"\1\\ufffd", text) if "\\ud" in text else text)
    return _without_giants(value) if _GIANT.search(text) else value


def _without_giants(value: Value) -> Value:
    """Whole numbers that take more than 64 bits as what they are in JavaScript."""
    if isinstance(value, dict):
        return {key: _without_giants(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_giants(item) for item in value]
    return float(value) if type(value) is int and abs(value) >= 2**63 else value


def _plain(value: Any) -> Any:
    if hasattr(value, "plain"):
        return value.plain()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a value of type {type(value).__name__} is not JSON data")


_encode = msgspec.json.Encoder(enc_hook=_plain).encode


def known_names(scope: Scope) -> list[str]:
    """What expressions can name."""
    return [name for name in scope if not name.startswith("_")]


def truth(value: Any) -> bool:
    """Whether JavaScript takes it for true."""
    if value is None or value is UNSET:
        return False
    if isinstance(value, float):
        return value != 0 and not isnan(value)
    return bool(value) if isinstance(value, int | str) else True


def as_text(value: Value) -> str:
    """A value inside other text, as JavaScript spells it."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return number_text(value)
    written = to_json(value)
    return to_json(_with_numbers(value)) if _WHOLE_FLOAT.search(written) else written


def number_text(number: float) -> str:
    """A number as JavaScript writes it: 2, not 2.0; 1e-7, not 1e-07; 0.00001, not 1e-05."""
    if number.is_integer() and abs(number) < 1e21:
        return str(int(number))
    mantissa, _, exponent = repr(number).partition("e")
    if not exponent:
        return mantissa
    power = int(exponent)
    if -7 < power < 0:
        sign = "-" if mantissa.startswith("-") else ""
        return f"{sign}0.{'0' * (-power - 1)}{mantissa.lstrip('-').replace('.', '')}"
    return f"{mantissa}e{'+' if power > 0 else '-'}{abs(power)}"


def _with_numbers(value: Value) -> Value:
    """The same with whole numbers where they are whole."""
    if isinstance(value, float):
        return (
            int(value)
            if value.is_integer() and abs(value) < 1e21
            else msgspec.Raw(number_text(value).encode())
        )
    if isinstance(value, dict):
        return {key: _with_numbers(item) for key, item in value.items()}
    return [_with_numbers(item) for item in value] if isinstance(value, list | tuple) else value
