"""Values are the JSON data of a run; the functions here convert, check and show them.

    to_text(True)                      # "true", as inside a template
    kind_and_value(5)                  # "integer 5", as in an error
    nearest("comand", ["command"])     # "command"

The parts: marks of secrets, checks of values that can be stored, JSON, text, and hints for misspelt names.
"""

from __future__ import annotations

import difflib
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

import msgspec

Value: TypeAlias = Any
"""JSON data: None, bool, int, float, str, list[Value], dict[str, Value]."""


class LeftOut:
    """The type of LEFT_OUT: a value that was not given, where null is a value."""

    __slots__ = ()


LEFT_OUT = LeftOut()

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_written = msgspec.msgpack.Encoder().encode
_COMPARED = 300

SECRET_OPEN, SECRET_CLOSE = "⟦secret:", "⟧"
SECRET_MARK = re.compile(rf"{SECRET_OPEN}([^:⟦⟧]*)(?::([a-z0-9-]+))?{SECRET_CLOSE}")
"""A mark: the name of a secret, and the encoding of its value, if any: ⟦secret:TOKEN:base64⟧."""
_HALF = re.compile("[\ud800-\udfff]")
_OPENING_BYTES = SECRET_OPEN[0].encode()
_BEGINNINGS = "|".join(rf"{SECRET_OPEN[1:length]}\Z" for length in range(1, len(SECRET_OPEN)))
_OPENING = re.compile(rf"{SECRET_OPEN[0]}(?={SECRET_OPEN[1:]}|{_BEGINNINGS})")
"""Also the beginning of a mark at the end of a text, which a following text could complete."""


def secret_mark(name: str) -> str:
    """Return the mark that replaces a secret everywhere except in the step that uses it."""
    return f"{SECRET_OPEN}{name}{SECRET_CLOSE}"


def disarmed(text: str, genuine: str = "") -> str:
    """Return the text with every mark broken, except marks that also occur in `genuine`."""
    if SECRET_OPEN[0] not in text:
        return text

    def change(opening: re.Match[str]) -> str:
        mark = SECRET_MARK.match(text, opening.start())
        return opening[0] if mark is not None and mark[0] in genuine else "["

    return _OPENING.sub(change, text)


def may_hold_mark(value: Value) -> bool:
    """Return whether a mark, or the beginning of one, can be in the value.

    Searching the encoded value takes a tenth of the time of searching each of its texts.
    """
    try:
        return _OPENING_BYTES in _written(value)
    except (OverflowError, RecursionError, TypeError, UnicodeEncodeError, ValueError):
        return True


def is_whole(value: Value) -> bool:
    """Return whether every text in the value can be encoded: none has a lone surrogate."""
    try:
        _written(value)
    except UnicodeEncodeError:
        return False
    except (OverflowError, RecursionError, TypeError, ValueError):
        return not isinstance(value, str)
    return True


def made_whole(value: Value) -> Value:
    """Return the value with U+FFFD for every lone surrogate."""
    return value if is_whole(value) else with_texts(value, lambda text: _HALF.sub("\ufffd", text))


class Unfit(NamedTuple):
    """Why a value cannot be stored, and where in it."""

    place: str
    why: str


def unfit(value: Value, *, depth: int) -> Unfit | None:
    """Return the first part of a value that cannot be stored as JSON; None if there is none.

    Such parts are NaN and Infinity, integers of more than 64 bits, and nesting deeper than `depth`.
    """
    waiting: list[tuple[Value, str, int]] = [(value, "", 0)]
    while waiting:
        item, place, at = waiting.pop()
        if isinstance(item, float) and not math.isfinite(item):
            return Unfit(place, "it is no finite number (NaN, Infinity, or one that is too large)")
        if isinstance(item, int) and not -(2**63) <= item < 2**64:
            return Unfit(place, "it is an integer of more than 64 bits: send it as text")
        if isinstance(item, dict | list | tuple):
            if at >= depth:
                return Unfit(place[:80] + "…", f"it is nested deeper than {depth}")
            pairs = item.items() if isinstance(item, dict) else enumerate(item)
            for key, inner in pairs:
                step = f"[{key}]" if isinstance(key, int) else f".{key}"
                waiting.append((inner, place + (step if len(step) <= 80 else f"{step[:79]}…"), at + 1))
    return None


def with_texts(
    value: Value, change: Callable[[str], str], rest: Callable[[Value], Value] | None = None
) -> Value:
    """Return the value with `change` applied to every text, keys too; unchanged parts are shared.

    `rest` is applied to everything else that is neither a list nor an object."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        pairs = [
            (with_texts(key, change, rest), with_texts(item, change, rest)) for key, item in value.items()
        ]
        same = all(a is b and c is d for (a, c), (b, d) in zip(pairs, value.items(), strict=True))
        return value if same else dict(pairs)
    if isinstance(value, list | tuple):
        items = [with_texts(item, change, rest) for item in value]
        return value if all(a is b for a, b in zip(items, value, strict=True)) else items
    return value if rest is None else rest(value)


def to_json(value: Value, *, indent: int = 0) -> str:
    encoded = _encode(value)
    if indent:
        encoded = msgspec.json.format(encoded, indent=indent)
    return encoded.decode("utf-8")


def beginning(text: str, limit: int) -> str:
    """Return the longest beginning of a text whose JSON has at most `limit` characters."""
    lengths = range(min(len(text), limit) + 1)
    return text[: bisect_right(lengths, limit, key=lambda length: len(to_json(text[:length]))) - 1]


def from_json(text: str | bytes) -> Value:
    """Decode JSON. Raises ValueError with the position if `text` is not JSON."""
    try:
        return _decode(text)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None


def from_json_in_run(text: str) -> Value:
    """Decode JSON text of a run so that it has no marks of secrets that the text does not have.

    An escape sequence cannot spell a mark.
    """
    value = from_json(text)
    if SECRET_OPEN[0] not in text and "\\u" not in text:
        return value
    return with_texts(value, lambda part: disarmed(part, text))


def to_text(value: Value) -> str:
    """Return a value as part of a text: text unchanged, true/false, "" for null, JSON for the rest."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, int | float):
        return repr(value)
    return to_json(value)


def kind_of(value: Value) -> str:
    """Return the name of the type of a value, as in errors: "text", "list"."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "text"
    if isinstance(value, list | tuple):
        return "list"
    if isinstance(value, dict):
        return "object"
    return type(value).__name__


def shown(value: Value, limit: int = 60) -> str:
    """Return a value as an error shows it: JSON, cut to `limit` characters."""
    text = to_json(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def kind_and_value(value: Value, show: Callable[[Value], str] = shown) -> str:
    """Return the type and the value, as in an error: integer 5, text "five", null."""
    return "null" if value is None else f"{kind_of(value)} {show(value)}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to `name`, if one is similar."""
    options = list(known)
    folded = {option.lower().replace("-", "_"): option for option in options}
    match = folded.get(name.lower().replace("-", "_"))
    if match is not None:
        return match
    if len(options) > _COMPARED:  # comparing is slow: compare only names of similar length
        alike = [it for it in options if it[:1] == name[:1] and abs(len(it) - len(name)) <= 2]
        options = alike[:_COMPARED]
    close = difflib.get_close_matches(name, options, n=1, cutoff=0.6)
    return close[0] if close else None


def did_you_mean(name: str, known: Iterable[str], *, what: str = "there is", limit: int = 12) -> str:
    """Return the hint for a misspelt name: the most similar name if any, and all names."""
    options = sorted(set(known))
    if not options:
        return "there are none"
    listed = ", ".join(options[:limit]) + (f", … ({len(options)} in all)" if len(options) > limit else "")
    close = nearest(name, options)
    return f"did you mean '{close}'? {what}: {listed}" if close else f"{what}: {listed}"
