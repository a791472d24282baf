"""What an unquoted word of YAML means: the core schema of YAML 1.2, and nothing of 1.1.

`on`, `no`, `12:30` and `1_000` are text; `012` is twelve, `0o14` too. Values must fit into JSON and into a
run's journal, so numbers of more than 64 bits, infinity and not-a-number are refused.

    core_value("no")      # "no"
    core_value("0x1F")    # 31
"""

from __future__ import annotations

import math
import re

from workflows_mcp.values import Value

_WORDS: dict[str, Value] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
_STARTS_A_NUMBER = frozenset("0123456789+-.")
_NUMBER = re.compile(
    r"""(?P<whole>[-+]?[0-9]+)
      | (?P<based>0o[0-7]+|0x[0-9a-fA-F]+)
      | (?P<decimal>[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?)
      | (?P<endless>[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))""",
    re.X,
)
_LONGEST_WHOLE = 40


def core_value(text: str) -> Value:
    """The value of an unquoted scalar; raises ValueError for a number that a run cannot hold."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _STARTS_A_NUMBER:
        return text
    match = _NUMBER.fullmatch(text)
    if match is None:
        return text
    if match["decimal"] is not None:
        number = float(text)
        if not math.isfinite(number):
            raise ValueError(f"{text} is too large for a number")
        return number
    if match["endless"] is not None:
        raise ValueError(f"{text} is not a number that JSON can hold")
    whole = _whole(text) if len(text) <= _LONGEST_WHOLE else None
    if whole is None or not -(2**63) <= whole < 2**64:
        raise ValueError(f"{text if whole is not None else text[:20] + '…'} has more than 64 bits")
    return whole


def _whole(text: str) -> int:
    if text.startswith("0o"):
        return int(text[2:], 8)
    if text.startswith("0x"):
        return int(text[2:], 16)
    return int(text)


class PlainScalars(dict[str, Value]):
    """The unquoted words of one document with their values; `refused` are those that have none."""

    def __init__(self) -> None:
        super().__init__(_WORDS)
        self.refused: dict[str, str] = {}

    def __missing__(self, text: str) -> Value:
        try:
            value = core_value(text)
        except ValueError as error:
            self.refused[text] = str(error)
            value = text
        self[text] = value
        return value
