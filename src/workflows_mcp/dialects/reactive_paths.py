"""Where in the state a reactive workflow writes: a path becomes keys, each a text, a number or a template.

    raw.results.{{ item | path_to_key }}.hints      ("raw", "results", "{{ item | path_to_key }}", "hints")
    raw.files[{{ index }}].attempts                 ("raw", "files", "{{ index }}", "attempts")
    raw.files[0].names["a.b"]                       ("raw", "files", 0, "names", "a.b")

A `{{ }}` with the text around it, up to the next dot or bracket, is one key, whatever dots its value has.
"""

from __future__ import annotations

import re
from typing import Protocol

from workflows_mcp.values import Value

Keys = tuple[Value, ...]

WRITABLE = ("raw", "state")
_READ_ONLY = {
    "computed": "computed fields follow from others: write what they come from, e.g. raw.files",
    "inputs": "inputs stay as they were given; they are in raw as well, and can be written there: raw.name",
    "config": "the configuration stays as it is written: keep what changes in raw",
}
_OF_EXPRESSIONS = ("this", "global")
"""What expressions call the state as a whole."""
_FIRST_STAND_IN = 0xE000
"""Expressions are put aside while a path is taken apart; characters of this private range stand for them."""
_SEGMENT = re.compile(
    r"""(?:(?P<dot>\.)|(?=\[)|\A)(?:\[\s*(?:(?P<index>\d+)|"(?P<double>[^"]+)"|'(?P<single>[^']+)'|"""
    r"""(?P<inside>[^\]"'\s.]+))\s*\]|(?P<word>[^\s.\[\]{}"']+))"""
)


class Pieces(Protocol):
    """What a language says of a template: its expressions, as they are written."""

    def pieces(self, text: str) -> tuple[str, ...]: ...


class WrongPath(ValueError):
    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def read_path(text: str, language: Pieces) -> Keys:
    """Raises WrongPath, or ExpressionError where an expression in it is malformed."""
    keys = _keys(text, language)
    head = keys[0]
    if head in WRITABLE:
        if len(keys) < 2:
            raise WrongPath(f"'{text}' as a whole cannot be written", f"name a field of it: {head}.name")
        return keys
    if isinstance(head, str) and head in _READ_ONLY:
        raise WrongPath(f"'{text}' cannot be written", _READ_ONLY[head])
    message = f"'{text}' does not say which part of the state is written"
    meant = written_as(text)
    if not meant:
        raise WrongPath(message, "name a field of it, e.g. raw.count")
    hint = f"write {meant}"
    if len(keys) > 1 or not isinstance(head, str) or "{{" in head:
        hint = f"a path that is written begins with raw. or state.: {meant}"
    raise WrongPath(message, hint)


def written_as(text: str) -> str:
    """A field as a path has it that begins with `raw.` or `state.`; empty where no field is named.

    `this.x` and `global.x` are spellings of expressions: in a path they are `raw.x`.
    """
    for name in _OF_EXPRESSIONS:
        text = "" if text == name else text.removeprefix(f"{name}.")
    if text.startswith(tuple(f"{name}." for name in WRITABLE)):
        return text
    return f"raw.{text}" if text and text not in (*WRITABLE, *_READ_ONLY) else ""


def field_of(keys: Keys) -> str | None:
    """The field of `raw` or `state` that a path leads into; None where that is known only at run time."""
    name = keys[1]
    return name if isinstance(name, str) and "{{" not in name else None


def _keys(text: str, language: Pieces) -> Keys:
    pieces = language.pieces(text)
    masked = text
    for number, piece in enumerate(pieces):
        masked = masked.replace(piece, chr(_FIRST_STAND_IN + number), 1)

    def restored(part: str) -> str:
        for number, piece in enumerate(pieces):
            part = part.replace(chr(_FIRST_STAND_IN + number), piece)
        return part

    keys: list[Value] = []
    position = 0
    while position < len(masked):
        match = _SEGMENT.match(masked, position)
        if match is None or (match["dot"] and (match["word"] is None or not keys)):
            rest = restored(masked[position:])
            hint = 'keys are separated by dots; others stand in brackets: raw.files[0], raw.results["a.ts"]'
            raise WrongPath(f"'{text}' cannot be read as a path from '{rest}' on", hint)
        if match["index"] is not None:
            keys.append(int(match["index"]))
        else:
            key = match["double"] or match["single"] or match["inside"] or match["word"]
            keys.append(restored(key))
        position = match.end()
    if not keys:
        raise WrongPath("the path is empty", "e.g. path: raw.count")
    return tuple(keys)
