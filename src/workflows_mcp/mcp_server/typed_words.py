"""The words of what a user has typed behind `/workflow`, with nothing in them altered.

    words_typed('fix start note="two words" map={"a": 1}')    # [fix, start, note=two words, map={"a": 1}]

It is no command line: a quotation mark counts at the beginning of a word or of the value behind its `=`,
where it holds words together, and is a character as any other elsewhere (it's). So do the brackets of JSON,
which stay. Some clients give words one by one: spaces inside of one do not part it, but clients that part a
line at every space give pieces of what quotation marks hold together, and these are put together again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_PIECE = re.compile(r"(\s*)(\S+)")
_KEY = re.compile(r"(?:--input=)?[^\s=]+=")
_QUOTES = "\"'"
_CLOSING = {"{": "}", "[": "]"}


def words_typed(line: str, more: Sequence[str] = ()) -> list[str]:
    """The words of a line, and those that came one by one behind it."""
    pieces = [*_PIECE.findall(line), *((" ", word) for word in more if word)]
    words: list[str] = []
    while pieces:
        word, used = _first(pieces)
        words.append(word)
        del pieces[:used]
    return words


def _first(pieces: Sequence[tuple[str, str]]) -> tuple[str, int]:
    """The first word, and of how many pieces it is."""
    text = pieces[0][1]
    for begin in _beginnings(text):
        whole = text
        for used, (space, piece) in enumerate(pieces, 1):
            whole = whole + space + piece if used > 1 else piece
            if (held := _held(whole[begin:])) is not None:
                return whole[:begin] + held, used
    return text, 1


def _beginnings(text: str) -> list[int]:
    """Where something begins in a word that may hold it together with the next ones."""
    key = _KEY.match(text)
    found = [0, key.end()] if key else [0]
    return [begin for begin in found if text[begin : begin + 1] in (*_QUOTES, *_CLOSING)]


def _held(text: str) -> str | None:
    """What is between quotation marks, or JSON; None where it does not end at the end of the text."""
    if text[0] in _QUOTES:
        return text[1:-1] if len(text) > 1 and text[-1] == text[0] else None
    return text if _is_closed(text) else None


def _is_closed(text: str) -> bool:
    """Whether all that is opened in JSON is closed with the last character, and not before."""
    closing: list[str] = []
    in_text = escaped = False
    for position, character in enumerate(text):
        if in_text:
            in_text = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            in_text = True
        elif character in _CLOSING:
            closing.append(_CLOSING[character])
        elif character in _CLOSING.values() and closing.pop() != character:
            return False
        if not closing:
            return position == len(text) - 1
    return False
