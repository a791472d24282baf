"""The words of what a user has typed behind `/workflow`, with nothing in them altered.

    words_typed('fix start note="two words" map={"a": 1}')    # [fix, start, note=two words, map={"a": 1}]

It is no command line: a quotation mark counts at the beginning of a word or of the value behind its `=`,
where it holds words together, and is a character as any other elsewhere (it's). So do the brackets of JSON,
which stay. Some clients give words one by one: spaces inside of one do not part it, but clients that part a
line at every space give pieces of what quotation marks hold together, and these are put together again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_PIECE = re.compile(r"(\s*)(\S+)")
_KEY = re.compile(r"(?:--input=)?[^\s=]+=")
_QUOTES = "\"'"
_CLOSING = {"{": "}", "[": "]"}
_PATIENCE = 200_000
"""How many characters are looked at, in all, for where something ends: a line of many beginnings and no end
must not hold up everybody else."""


def words_typed(line: str, more: Sequence[str] = ()) -> list[str]:
    """The words of a line, and those that came one by one behind it."""
    pieces = [*_PIECE.findall(line), *((" ", word) for word in more if word)]
    return list(_Words(pieces))


class _Words:
    def __init__(self, pieces: Sequence[tuple[str, str]]) -> None:
        self._pieces = pieces
        self._patience = _PATIENCE

    def __iter__(self) -> Iterator[str]:
        at = 0
        while at < len(self._pieces):
            word, at = self._word(at)
            yield word

    def _word(self, at: int) -> tuple[str, int]:
        """The word that begins with a piece, and the piece behind it."""
        text = self._pieces[at][1]
        for begin in _beginnings(text):
            ends_in = self._quoted if text[begin] in _QUOTES else self._closed
            end = ends_in(at, begin)
            if end is not None:
                whole = text + "".join(space + piece for space, piece in self._pieces[at + 1 : end])
                held = whole[begin:]
                return whole[:begin] + (held[1:-1] if held[0] in _QUOTES else held), end
        return text, at + 1

    def _quoted(self, at: int, begin: int) -> int | None:
        """The piece behind the one that ends with the quotation mark of the beginning."""
        for index, chunk in self._chunks(at, begin):
            if chunk.endswith(self._pieces[at][1][begin]) and (index > at or len(chunk) > 1):
                return index + 1
        return None

    def _closed(self, at: int, begin: int) -> int | None:
        """The piece behind the one with whose last character all is closed that is opened in JSON."""
        closing: list[str] = []
        in_text = escaped = False
        for index, chunk in self._chunks(at, begin):
            for position, character in enumerate(chunk):
                if in_text:
                    in_text = escaped or character != '"'
                    escaped = character == "\\" and not escaped
                elif character == '"':
                    in_text = True
                elif character in _CLOSING:
                    closing.append(_CLOSING[character])
                elif character in _CLOSING.values() and closing.pop() != character:
                    return None
                if not closing:
                    return index + 1 if position == len(chunk) - 1 else None
        return None

    def _chunks(self, at: int, begin: int) -> Iterator[tuple[int, str]]:
        """What stands from there on, piece by piece, as long as there is patience for looking ahead."""
        for index in range(at, len(self._pieces)):
            space, piece = self._pieces[index]
            chunk = space + piece if index > at else piece[begin:]
            self._patience -= len(chunk)
            if self._patience < 0 and index > at:
                return
            yield index, chunk


def _beginnings(text: str) -> list[int]:
    """Where something begins in a word that may hold it together with the next ones."""
    key = _KEY.match(text)
    found = [0, key.end()] if key else [0]
    return [begin for begin in found if text[begin : begin + 1] in (*_QUOTES, *_CLOSING)]
