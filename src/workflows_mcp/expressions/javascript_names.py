"""Which names a piece of JavaScript reads from outside itself, and the path that each is followed along.

A name is free where nothing declares it: no parameter, `const`, `let`, `var`, `function`, `class` or `catch`
in whose reach it stands. What is part of the language (`Math`, `JSON`) is not free either. Knows no values.

    free_names(read("files.filter(f => f.size > limits.size).length"))
    # Free("files", …), Free("limits", (Step("size", …),), …)
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from workflows_mcp.errors import ExpressionError
from workflows_mcp.expressions.javascript_filters import FILTERS
from workflows_mcp.expressions.javascript_source import Source, Token, unreadable, words

_WORDS = words(
    """await break case catch class const continue debugger default delete do else enum export extends false
    finally for function if import in instanceof let new null return super switch throw true try typeof var
    void while with yield"""
)
"""What can be no name at all. `this` is one here: the scope has it."""
_WORDS_HERE = words("arguments eval implements interface package private protected public static")
"""What can be no name in strict code; as a member of something it can."""
GLOBALS = words(
    """Array Boolean Date Error EvalError Infinity Iterator JSON Map Math NaN Number Object RangeError
    ReferenceError Reflect RegExp Set String Symbol SyntaxError TypeError URIError WeakMap WeakSet atob btoa
    decodeURI decodeURIComponent encodeURI encodeURIComponent isFinite isNaN now parseFloat parseInt undefined
    uuid"""
)
"""The names that every expression has."""
_DECLARING = ("const", "let", "var")
_STATEMENTS = words(
    "break const continue debugger do for function if let return switch throw try var while class"
)
_CHANGING = words("= += -= *= /= %= **= <<= >>= >>>= &= |= ^= &&= ||= ??= ++ --")
_POSITION = re.compile(r"0|[1-9]\d{0,8}")
_MOST_STEPS = 50
_MOST_INNER = 3
"""How deep paths may stand in paths, `a[b[c[d]]]`, to be followed."""


class Step(NamedTuple):
    """A member that is read: of a fixed name or position, or one that another path leads to."""

    key: str | int | Free
    asked: bool
    """`?.` stands before it."""
    ends: int
    """The token behind it."""


class Free(NamedTuple):
    """A name that is read from outside, and what is read of it."""

    name: str
    steps: tuple[Step, ...]
    token: int
    offset: int
    """In the text."""
    may_lack: bool
    """The name itself need not exist: it is asked about, or has a default."""
    optional: bool
    """What the path leads to need not exist."""
    goes_on: bool
    """Something more is read of what it leads to, or it is called."""

    @property
    def path(self) -> tuple[str | int, ...]:
        """As far as it is fixed."""
        path: list[str | int] = [self.name]
        for key, _, _ in self.steps:
            if isinstance(key, Free):
                break
            path.append(key)
        return tuple(path)

    def ends(self, steps: int) -> int:
        """The token behind so many of its steps."""
        return self.steps[steps - 1].ends if steps else self.token + 1


def free_names(source: Source) -> list[Free]:
    """In the order in which they stand. Raises ExpressionError where a name cannot be one."""
    declarations = _Declarations(source)
    return [_followed(source, index, declarations) for index in _free(source, declarations)]


def _free(source: Source, declarations: _Declarations) -> Iterator[int]:
    for index, token in enumerate(source.tokens):
        if token.kind != "name" or not is_variable(source, index):
            continue
        if token.text.startswith("__"):
            raise unreadable(f"'{token.text}' cannot be used: names that begin with __ are not", token.start)
        if token.text in GLOBALS or declarations.declares(index) or is_filter(source, index):
            continue
        if token.text in _WORDS_HERE:
            hint = f"a field of that name can be read as a member: raw.{token.text}, inputs.{token.text}"
            raise unreadable(f"'{token.text}' is a word of JavaScript, not a name", token.start, hint)
        yield index


def mentions(source: Source, *names: str) -> bool:
    """Whether one of the names stands in it, as whatever."""
    return any(token.text in names or token.text[1:-1] in names for token in source.tokens)


def refused(source: Source) -> ExpressionError | None:
    """What can be read, and still never run here."""
    for index, token in enumerate(source.tokens):
        word = source.word(index)
        if word not in ("async", "await", "import") or _is_key(source, index):
            continue
        if word == "import":
            return unreadable(
                "nothing can be imported here", token.start, "everything it needs is in its scope"
            )
        following = source.over(index + 1) if source.sign(index + 1) == "(" else -1
        if word == "async" and source.word(index + 1) == "" and source.sign(following) != "=>":
            continue
        hint = "a value must be there at once; what takes time is a step of its own"
        return unreadable("there is no asynchronous code here", token.start, hint)
    return None


def is_filter(source: Source, index: int) -> bool:
    """Whether the name at `index` is a filter: `| upper`."""
    return source.at(index) in FILTERS and source.sign(index - 1) == "|"


def is_variable(source: Source, index: int) -> bool:
    """Whether a name stands for a value, and is no member, no key, no label and no word of the language."""
    token = source.tokens[index]
    if token.text in _WORDS or token.text.startswith("#") or source.sign(index - 1) in (".", "?."):
        return False
    if token.text in ("async", "get", "set", "static") and source.word(index + 1):
        return False
    if token.text == "of" and _stands_between(source, index):
        return False
    if token.text == "static" and source.sign(index + 1) == "{":
        return False
    return not _is_key(source, index) and source.word(index - 1) not in ("break", "continue")


def _stands_between(source: Source, index: int) -> bool:
    """Whether a name has something to its left that it cannot follow as a value: `for (const x of …)`."""
    before = source.tokens[index - 1] if index else None
    if before is None or before.text in _DECLARING:
        return False
    ends = before.kind == "name" or before.text in ("]", "}")
    return ends and source.holds.get(source.tokens[index].inside) == "head"


def _is_key(source: Source, index: int) -> bool:
    before, after = source.at(index - 1), source.sign(index + 1)
    held = source.holds.get(source.tokens[index].inside)
    if held == "class":
        starts = before in ("{", ";", "}", "static", "get", "set", "async", "*") or source.on_new_line(index)
        return starts and after in ("(", "=", ";", "}")
    if after == ":":
        return before in ("{", ",", ";", "}", "") and held in ("object", "block", None)
    first = before in ("{", ",", "get", "set", "async", "*")
    return after == "(" and held == "object" and first and source.sign(source.over(index + 1)) == "{"


# Declarations


class _Declarations:
    """How far each declared name reaches."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._reach: dict[str, list[tuple[int, int]]] = {}
        self._ends: dict[int, int] = {}
        """Of arrow functions."""
        for index in range(len(source.tokens) - 1, -1, -1):
            token = source.tokens[index]
            if token.text == "=>" and token.kind == "sign":
                self._arrow(index)
            elif token.kind == "name" and (word := source.word(index)):
                self._word(index, word)
            elif source.holds.get(index) == "class":
                self._own(index, source.partners[index])
            elif self._begins_method(index):
                self._function(index)
        for name, reach in self._reach.items():
            self._reach[name] = _merged(reach)

    def declares(self, index: int) -> bool:
        reach = self._reach.get(self._source.at(index), [])
        before = bisect_right(reach, (index, len(self._source.tokens))) - 1
        return before >= 0 and index <= reach[before][1]

    def _begins_method(self, index: int) -> bool:
        """Whether the parameters of a method are in these brackets: `name(…) {`."""
        source = self._source
        inside = source.holds.get(source.tokens[index].inside) in ("object", "class")
        return inside and source.sign(index) == "(" and source.sign(source.over(index)) == "{"

    def _own(self, start: int, end: int) -> None:
        """Where `this` is something of its own."""
        for name in ("this", "arguments"):
            self._reach.setdefault(name, []).append((start, end))

    def _declare(self, names: Iterator[int], start: int, end: int) -> None:
        for index in names:
            self._reach.setdefault(self._source.at(index), []).append((start, end))

    def _arrow(self, index: int) -> None:
        first = self._source.partners.get(index - 1, index - 1)
        self._declare(self._bound(first, index), first, self._end_of_arrow(index))

    def _word(self, index: int, word: str) -> None:
        source = self._source
        around = self._braces_around(index)
        if word in _DECLARING:
            everywhere = (0, len(source.tokens))
            for start, end in self._patterns(index + 1):
                self._declare(self._bound(start, end), *(everywhere if word == "var" else around))
        elif word in ("function", "class"):
            after = index + 1 + (source.sign(index + 1) == "*")
            if source.word(after) not in ("", "extends"):
                self._declare(iter([after]), *around)
                after += 1
            if word == "function" and source.sign(after) == "(":
                self._function(after)
        elif word == "catch" and source.sign(index + 1) == "(":
            closing = source.partners[index + 1]
            self._declare(self._bound(index + 1, closing), index, source.over(closing + 1))

    def _function(self, opening: int) -> None:
        """The parameters of a function, and its body if one follows."""
        source = self._source
        closing = source.partners[opening]
        end = source.partners.get(closing + 1, closing)
        self._declare(self._bound(opening, closing), opening, end)
        self._own(opening, end)

    def _bound(self, start: int, end: int) -> Iterator[int]:
        """The names that a pattern binds: not its keys, and not what its defaults read."""
        source, index = self._source, start
        while index < end:
            if source.sign(index) == "=":
                index = self._behind_default(index, end)
                continue
            if source.tokens[index].kind == "name" and is_variable(source, index):
                yield index
            index = source.over(index) if source.holds.get(index) == "index" else index + 1

    def _behind_default(self, index: int, end: int) -> int:
        while index < end:
            index = self._source.over(index)
            if self._source.separates(index):
                break
        return index

    def _patterns(self, index: int) -> Iterator[tuple[int, int]]:
        """What `const` declares: `a = 1, { b } = c` are two patterns."""
        source = self._source
        while index < len(source.tokens):
            start, index = index, source.over(index)
            yield start, index
            while index < len(source.tokens) and source.sign(index) != ",":
                if source.separates(index) or self._begins_statement(index):
                    return
                index = source.over(index)
            index += 1

    def _begins_statement(self, index: int) -> bool:
        source = self._source
        begins = source.word(index) in _STATEMENTS and source.sign(index - 1) not in ("=", "=>")
        return begins and source.on_new_line(index)

    def _end_of_arrow(self, index: int) -> int:
        """The last token of the body of an arrow function."""
        source, start = self._source, index
        index += 1
        if source.holds.get(index) == "block":
            index = source.partners[index]
        else:
            while index < len(source.tokens) and not source.separates(index):
                if index in self._ends:  # another one is its value
                    index = self._ends[index]
                    break
                index = source.over(index)
        self._ends[start] = index
        return index

    def _braces_around(self, index: int) -> tuple[int, int]:
        """What a declaration reaches over."""
        source, opening = self._source, self._source.tokens[index].inside
        while opening >= 0 and source.holds[opening] not in ("block", "object"):
            opening = source.tokens[opening].inside
        return (opening, source.partners[opening]) if opening >= 0 else (0, len(source.tokens))


def _merged(reach: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same reach, in order, in as few pieces as possible."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(reach):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


# Paths


def _followed(source: Source, index: int, declarations: _Declarations, inner: int = 0) -> Free:
    """The name at `index` with the members that are read of it one after the other."""
    steps: list[Step] = []
    at = index + 1
    while (step := _step(source, at, declarations, inner)) is not None:
        if _is_called(source, step.ends) or len(steps) == _MOST_STEPS:
            break
        steps.append(step)
        at = step.ends
    if steps and _is_changed(source, index, at):
        steps.pop()
        at = steps[-1].ends if steps else index + 1
    about = source.word(index - 1) == "typeof"
    fixed = next((position for position, step in enumerate(steps) if isinstance(step.key, Free)), len(steps))
    return Free(
        name=source.at(index),
        steps=tuple(steps),
        token=index,
        offset=source.tokens[index].start,
        may_lack=about or _has_default(source, index + 1),
        optional=about or _has_default(source, steps[fixed - 1].ends if fixed else index + 1),
        goes_on=source.sign(at) in (".", "?.") or source.holds.get(at) in ("call", "index", "template"),
    )


def _has_default(source: Source, index: int) -> bool:
    if source.sign(index) == "|":
        return source.word(index + 1) == "default"
    return source.sign(index) in ("?.", "??")


def _is_called(source: Source, at: int) -> bool:
    """Whether what ends there is a method."""
    called = source.sign(at) == "(" or source.at(at).startswith("`")
    return called or (source.sign(at) == "?." and source.sign(at + 1) == "(")


def _is_changed(source: Source, start: int, end: int) -> bool:
    """Whether what stands from `start` to `end` is assigned to, or deleted."""
    changed = source.sign(end) in _CHANGING
    return changed or source.sign(start - 1) in ("++", "--") or source.word(start - 1) == "delete"


def _step(source: Source, at: int, declarations: _Declarations, inner: int) -> Step | None:
    """The member that is read at a token."""
    asked = source.sign(at) == "?."
    if source.sign(at) in (".", "?.") and at + 1 < len(source.tokens):
        following = source.tokens[at + 1]
        if following.kind == "name":
            return None if following.text.startswith("#") else Step(following.text, asked, at + 2)
        at += asked
    if source.holds.get(at) != "index":
        return None
    key, behind = source.tokens[at + 1], source.partners[at] + 1
    if behind == at + 3:
        if key.kind == "number" and _POSITION.fullmatch(key.text):
            return Step(int(key.text), asked, behind)
        if key.kind == "string" and (text := literal_text(key)) is not None:
            return Step(text, asked, behind)
    if key.kind != "name" or not is_variable(source, at + 1) or inner == _MOST_INNER:
        return None
    if key.text in GLOBALS or key.text in _WORDS_HERE or declarations.declares(at + 1):
        return None
    free = _followed(source, at + 1, declarations, inner + 1)
    return Step(free, asked, behind) if free.ends(len(free.steps)) == behind - 1 else None


def literal_text(token: Token) -> str | None:
    """What a plain literal says; None if it takes JavaScript to read it."""
    inner = token.text[1:-1]
    return None if "\\" in inner or "\r" in inner or token.text[0] not in "'\"`" else inner
