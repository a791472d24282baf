"""An expression as the engine is given it: filters are calls, and whatever repeats looks at the clock.

`x | upper` becomes `__filters.upper(x)`: a filter takes what stands right before it, as in other template
languages, so that `"raw." + item | path_to_key` makes a key of the item only. Every function and every loop
counts `__left` down, and asks `__tick` when it is used up. For errors it can be told where in the source
something stood.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from workflows_mcp.expressions.javascript_names import is_filter
from workflows_mcp.expressions.javascript_source import Source, words

_COUNTS = "__left--<0&&__tick()"
_NOT_STARTING = words(
    """break case catch class const continue debugger default do else finally for function if let return
    switch throw try var while with"""
)
"""The words that no expression begins with, where a statement can begin."""
_STARTING = ("{", "!", "~")
"""The signs that begin an expression on a new line, and do not go on with the line before."""


class Edit(NamedTuple):
    """What is put in the place of a part of the source."""

    start: int
    end: int
    text: str
    first: bool = False
    """Before what else is put at the same place."""


class Written(NamedTuple):
    """Text for the engine, and where it comes from the source."""

    text: str
    marks: tuple[tuple[int, int, int], ...]
    """Positions in the text, each with the position in the source that it comes from, and how much does."""

    def offset(self, line: int, column: int) -> int:
        """Where in the source stands what is at this line of the text, and at this byte of the line."""
        lines = self.text.split("\n")
        before = lines[line - 1].encode()[: column - 1].decode(errors="ignore") if line <= len(lines) else ""
        position = sum(len(text) + 1 for text in lines[: line - 1]) + len(before)
        index = max(bisect_right(self.marks, position, key=lambda mark: mark[0]) - 1, 0)
        begins, start, length = self.marks[index]
        return start + min(max(position - begins, 0), length)


class Writer:
    """Puts such a text together."""

    def __init__(self, text: str = "") -> None:
        self._texts = [text]
        self._length = len(text)
        self._marks: list[tuple[int, int, int]] = []

    def add(self, text: str) -> None:
        self._texts.append(text)
        self._length += len(text)

    def add_source(self, source: Source, edits: Iterable[Edit] = (), end: int | None = None) -> None:
        """The source with its filters and its counting, and with further edits; only up to `end` if given."""
        every = [*_filters(source), *_counting(source), *edits]
        position = source.start
        for edit in sorted(every, key=lambda edit: (edit.start, not edit.first, edit.end)):
            self._copy(source.text, position, edit.start)
            self.add(edit.text)
            position = edit.end
        self._copy(source.text, position, source.end if end is None else end)

    def _copy(self, text: str, start: int, end: int) -> None:
        if end >= start:
            self._marks.append((self._length, start, end - start))
            self.add(text[start:end])

    def written(self) -> Written:
        return Written("".join(self._texts), tuple(self._marks))


def starts_of_last(source: Source) -> Iterator[int]:
    """Where the expression may begin that a row of statements ends in, the last place first."""
    for index in range(len(source.tokens) - 1, 0, -1):
        if source.tokens[index].inside < 0 and _begins_statement(source, index):
            if source.word(index) in _NOT_STARTING:
                return
            yield source.tokens[index].start


def _begins_statement(source: Source, index: int) -> bool:
    """Whether a statement can begin at a token."""
    before, token = index - 1, source.tokens[index]
    if source.sign(before) == ";" or (source.sign(before) == "}" and _holds(source, before) != "object"):
        return True
    if not source.on_new_line(index) or token.text.startswith("`"):
        return False
    awaits = source.sign(before) == "=>" or source.word(before) in ("else", "do")
    heads = source.sign(before) == ")" and _holds(source, before) == "head"
    return not awaits and not heads and (token.kind != "sign" or token.text in _STARTING)


def _holds(source: Source, closing: int) -> str:
    return source.holds[source.partners[closing]]


def _inserted(position: int, text: str) -> Edit:
    return Edit(position, position, text)


# Filters


def _filters(source: Source) -> Iterator[Edit]:
    operands: dict[int, int] = {}
    openings: dict[int, list[str]] = {}
    for index, token in enumerate(source.tokens):
        if token.kind != "name" or not is_filter(source, index):
            continue
        operands[index] = _operand(source, index - 2, operands)
        openings.setdefault(operands[index], []).append(f"__filters.{token.text}(")
        bar = source.tokens[index - 1].start
        if source.sign(index + 1) == "(":
            between = "" if source.partners[index + 1] == index + 2 else ", "
            yield Edit(bar, source.tokens[index + 1].end, between)
        else:
            yield Edit(bar, token.end, ")")
    for first, calls in openings.items():
        # the filter that comes last is the outermost call
        yield _inserted(source.tokens[first].start, "".join(reversed(calls)))


def _operand(source: Source, index: int, operands: dict[int, int]) -> int:
    """The first token of the operand that ends with the one at `index`; those of filters are known."""
    while index > 0:
        if index in operands:
            return operands[index]
        if source.closes(index):
            opening = source.partners[index]
            if source.holds[opening] not in ("call", "index"):
                index = opening
                break
            index = opening - (2 if source.sign(opening - 1) == "?." else 1)
        elif source.sign(index - 1) in (".", "?."):
            index -= 2
        else:
            break
    index = max(index, 0)
    return index - 1 if source.word(index - 1) == "new" else index


# Counting


def _counting(source: Source) -> Iterator[Edit]:
    for index, token in enumerate(source.tokens):
        if token.kind == "name":
            if source.word(index) == "while" and source.sign(index + 1) == "(":
                yield _inserted(source.tokens[index + 1].end, f"{_COUNTS},")
            elif source.word(index) == "for" and source.sign(index + 1) == "(":
                yield _of_loop(source, index + 1)
        elif source.sign(index) == "=>":
            if source.holds.get(index + 1) == "block":
                yield _inserted(source.tokens[index + 1].end, f"{_COUNTS};")
            else:
                yield _inserted(token.end, f" {_COUNTS}?0:")
        elif _begins_function(source, index):
            yield _inserted(token.end, f"{_COUNTS};")


def _begins_function(source: Source, index: int) -> bool:
    """Whether the body of one begins here: a block behind parameters."""
    is_block = source.holds.get(index) == "block" and source.sign(index - 1) == ")"
    return is_block and _holds(source, index - 1) != "head"


def _of_loop(source: Source, opening: int) -> Edit:
    closing = source.partners[opening]
    parts = [
        index
        for index in range(opening, closing)
        if source.sign(index) == ";" and source.tokens[index].inside == opening
    ]
    if len(parts) == 2:
        more = "" if parts[1] + 1 == closing else ","
        return _inserted(source.tokens[parts[1]].end, f" {_COUNTS}{more}")
    if source.sign(closing + 1) == "{":
        return _inserted(source.tokens[closing + 1].end, f"{_COUNTS};")
    return _inserted(source.tokens[closing].end, f" if({_COUNTS});else ")
