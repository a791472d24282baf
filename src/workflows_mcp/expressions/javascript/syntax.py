"""Reads JavaScript: templates split at `{{ … }}`, tokens, free names, and the text for the engine.

    split("a {{ '}}' }} b")     # Part("a "), Part(" '}}' ", source=Source(…)), Part(" b")
    free_names(read("files.filter(f => f.size > limits.size).length"))
                                # Free("files", …), Free("limits", (Step("size", …),), …)

The tokenizer knows strings, template literals, regular expressions and comments, so a `}}` inside of one does
not end the expression. It pairs brackets and knows what they contain. The engine checks whether the source is
valid JavaScript.

A name is free if nothing declares it at its place: no parameter, `const`, `let`, `var`, `function`,
`class` or `catch`. Names of the language (`Math`, `JSON`) are not free.

`Writer` writes the source for the engine: a filter becomes a call, and every function and loop counts down
`__left` and calls `__tick` at zero, which looks at the clock. It maps places in the result back to the
source.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from workflows_mcp.errors import ExpressionError

Kind = Literal["name", "number", "string", "pattern", "sign"]

Holds = Literal["object", "block", "class", "head", "group", "call", "index", "list", "template"]

"""What brackets contain; a head is what follows `if`, `for`, `while`, …"""


_SPACE = re.compile(r"(?:[\s\ufeff]|//[^\n\r\u2028\u2029]*|/\*(?:[^*]|\*(?!/))*\*/)*")

_NAME = re.compile(r"#?(?:[^\W\d]|\$)[\w$\u200c\u200d]*")

_NUMBER = re.compile(r"0[xXoObB][\da-fA-F_]+|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d[\d_]*)?")

_STRING = re.compile(r"'(?:[^'\\\n\r]|\\(?:\r\n|[\s\S]))*'|\"(?:[^\"\\\n\r]|\\(?:\r\n|[\s\S]))*\"")

_PATTERN = re.compile(r"/(?![*/])(?:[^\\/\[\n\r]|\\[^\n\r]|\[(?:[^\]\\\n\r]|\\[^\n\r])*\])+/[a-zA-Z]*")

_CHUNK = re.compile(r"(?:[^`\\$]|\\[\s\S]|\$(?!\{))*(`|\$\{)")

"""The part of a template literal up to its end or to a value in it."""

_SIGN = re.compile(
    r">>>=|\.\.\.|===|!==|\*\*=|<<=|>>=|>>>|&&=|\|\|=|\?\?=|=>|==|!=|<=|>=|&&|\|\||\?\?|\?\.(?!\d)|\+\+|--"
    r"|\+=|-=|\*=|/=|%=|&=|\|=|\^=|<<|>>|\*\*|[{}()\[\];,<>+\-*/%&|^!~?:=.@]"
)

_OBJECT = re.compile(r"\s*(?:\}|\.\.\.|(?:[\w$]+|\"[^\"\n]*\"|'[^'\n]*')\s*[:,}]|\[[^\]\n]*\]\s*:)")

"""The text after the brace of an object, where a block could begin as well."""

_CLOSING = {"(": ")", "[": "]", "{": "}"}


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_BEFORE_OPERAND = words(
    """return typeof case in delete void instanceof new throw else do yield await default extends const let
    var"""
)

_HEADS = words("if for while with switch catch")

_BEFORE_BLOCK = words("else do try finally catch static")

MOST_CHARS = 100_000

BRACES_HINT = "an expression ends with }}; braces that are text themselves are written {{ '{{' }}"


class Token(NamedTuple):
    kind: Kind
    text: str
    start: int
    end: int
    inside: int
    """The index of the enclosing bracket; -1 at the top."""


class Source(NamedTuple):
    """The JavaScript in a text, from `start` to `end`."""

    text: str
    start: int
    end: int
    tokens: list[Token]
    partners: dict[int, int]
    """The partner of each bracket, both ways, by index of token."""
    holds: dict[int, Holds]
    """By opening bracket."""

    @property
    def code(self) -> str:
        return self.text[self.start : self.end]

    def at(self, index: int) -> str:
        """The text of a token; empty if there is none."""
        return self.tokens[index].text if 0 <= index < len(self.tokens) else ""

    def sign(self, index: int) -> str:
        """The text of a token that is neither a name nor a literal; else empty."""
        is_sign = 0 <= index < len(self.tokens) and self.tokens[index].kind == "sign"
        return self.tokens[index].text if is_sign else ""

    def word(self, index: int) -> str:
        """The text of a name that is not a member; else empty."""
        is_word = 0 <= index < len(self.tokens) and self.tokens[index].kind == "name"
        return self.tokens[index].text if is_word and self.sign(index - 1) not in (".", "?.") else ""

    def over(self, index: int) -> int:
        """The index after this token, or after the brackets that open here."""
        return self.partners[index] + 1 if index in self.holds else index + 1

    def closes(self, index: int) -> bool:
        """Whether it is a closing bracket."""
        return self.partners.get(index, index) < index

    def separates(self, index: int) -> bool:
        """Whether it ends any expression: a closing bracket, a comma, a semicolon, …"""
        return self.closes(index) or self.sign(index) in (",", ";") or self.sign(index).startswith("}")

    def on_new_line(self, index: int) -> bool:
        return "\n" in self.text[self.tokens[index - 1].end : self.tokens[index].start]


class Part(NamedTuple):
    """Text of a template itself, or an expression in it."""

    text: str
    source: Source | None = None


def read(text: str, start: int = 0, *, braced: bool = False) -> Source:
    """The tokens of `text` from `start` to its end, or to the `}}` that closes the expression."""
    return _Reader(text, start, braced).read()


def split(text: str) -> list[Part]:
    """Split a template into its texts and expressions."""
    parts: list[Part] = []
    position = 0
    while (opening := text.find("{{", position)) >= 0:
        if opening > position:
            parts.append(Part(text[position:opening]))
        source = read(text, opening + 2, braced=True)
        if not source.tokens:
            message = "there is no expression between {{ and }}"
            raise ExpressionError(message, hint=BRACES_HINT, offset=opening, code="syntax")
        parts.append(Part(source.code, source))
        position = source.end + 2
    if position < len(text):
        parts.append(Part(text[position:]))
    return parts


def unreadable(message: str, offset: int, hint: str = "") -> ExpressionError:
    return ExpressionError(
        f"the expression cannot be read: {message}", hint=hint, offset=offset, code="syntax"
    )


class _Reader:
    def __init__(self, text: str, start: int, braced: bool) -> None:
        self.text, self.start, self.braced = text, start, braced
        self.tokens: list[Token] = []
        self.partners: dict[int, int] = {}
        self.holds: dict[int, Holds] = {}
        self.open: list[int] = []
        self.classes: list[int] = []
        """The brackets in which a class was named whose body has not begun."""

    def read(self) -> Source:
        text, position = self.text, self.start
        while True:
            position = self._skip(position)
            if position >= len(text):
                self._check_end()
                break
            character = text[position]
            if character == "}" and self.braced and not self.open:
                if text.startswith("}}", position):
                    break
                raise unreadable("'}' closes nothing here", position)
            if character == "`":
                position = self._template(position)
            elif character == "}" and self.open and self.tokens[self.open[-1]].text.endswith("${"):
                position = self._template(position, continues=True)
            else:
                position = self._token(position)
        return Source(text, self.start, position, self.tokens, self.partners, self.holds)

    def _skip(self, position: int) -> int:
        space = _SPACE.match(self.text, position)
        end = space.end() if space else position
        if self.text.startswith("/*", end):
            raise self._unclosed("the comment is not closed, */ is missing", end)
        return end

    def _check_end(self) -> None:
        if self.open:
            opening = self.tokens[self.open[-1]]
            bracket = opening.text[-1]
            raise self._unclosed(
                f"'{bracket}' is not closed, '{_CLOSING[bracket]}' is missing", opening.start
            )
        if self.braced:
            raise self._unclosed("{{ is not closed, }} is missing", self.start - 2)

    def _unclosed(self, message: str, position: int) -> ExpressionError:
        return unreadable(message, position, BRACES_HINT if self.braced else "")

    def _add(self, kind: Kind, start: int, end: int) -> int:
        if end - self.start > MOST_CHARS:
            raise unreadable(f"it has more than {MOST_CHARS:,} characters", start)
        self.tokens.append(Token(kind, self.text[start:end], start, end, self.open[-1] if self.open else -1))
        return end

    def _token(self, position: int) -> int:
        text = self.text
        character = text[position]
        if match := _NAME.match(text, position):
            if match[0] == "class" and not self._is_member():
                self.classes.append(self.open[-1] if self.open else -1)
            return self._add("name", position, match.end())
        if match := _NUMBER.match(text, position):
            if text[match.end() : match.end() + 1] == "n":
                raise unreadable("BigInt numbers are not supported", position, "values are JSON data")
            return self._add("number", position, match.end())
        if character in "'\"":
            if match := _STRING.match(text, position):
                return self._add("string", position, match.end())
            raise self._unclosed(f"the text that begins with {character} is not closed", position)
        if character == "/" and self._operand_follows():
            if match := _PATTERN.match(text, position):
                return self._add("pattern", position, match.end())
            raise self._unclosed("the regular expression is not closed", position)
        if match := _SIGN.match(text, position):
            if match[0] in _CLOSING:
                return self._open(position, self._held(match[0], position))
            if match[0] in ")]}":
                self._close(match[0], position)
            return self._add("sign", position, match.end())
        raise unreadable(f"'{character}' cannot stand here", position)

    def _open(self, position: int, held: Holds, end: int = 0) -> int:
        self.holds[len(self.tokens)] = held
        end = self._add("sign", position, end or position + 1)
        self.open.append(len(self.tokens) - 1)
        return end

    def _close(self, bracket: str, position: int) -> None:
        opening = self.tokens[self.open[-1]].text[-1] if self.open else ""
        if _CLOSING.get(opening) != bracket:
            missing = f", '{_CLOSING[opening]}' is missing before it" if opening else ""
            raise unreadable(f"'{bracket}' closes nothing here{missing}", position)
        self._pair()

    def _pair(self) -> None:
        opening = self.open.pop()
        self.partners[opening] = len(self.tokens)
        self.partners[len(self.tokens)] = opening

    def _template(self, position: int, continues: bool = False) -> int:
        """Read a piece of a template literal: up to its end, or to the next value in it.

        The first piece and the last one are brackets around the values."""
        chunk = _CHUNK.match(self.text, position + 1)
        if chunk is None:
            raise self._unclosed("the text that begins with ` is not closed", position)
        if chunk[1] == "${":
            if continues:
                return self._add("sign", position, chunk.end())
            return self._open(position, "template", chunk.end())
        if continues:
            self._pair()
        return self._add("string", position, chunk.end())

    def _held(self, bracket: str, position: int) -> Holds:
        before = self.tokens[-1] if self.tokens else None
        is_name = before is not None and before.kind == "name" and not self._is_member(1)
        if before is not None and before.text == "?." and bracket != "{":
            return "call" if bracket == "(" else "index"
        if bracket == "(":
            if before is not None and is_name and before.text in _HEADS:
                return "head"
            return "group" if self._operand_follows() else "call"
        if bracket == "[":
            return "list" if self._operand_follows() else "index"
        if self.classes and self.classes[-1] == (self.open[-1] if self.open else -1):
            self.classes.pop()
            return "class"
        if before is None or before.text in (";", "}", "{"):
            return "object" if _OBJECT.match(self.text, position + 1) else "block"
        if before.text in (")", "=>") or (is_name and before.text in _BEFORE_BLOCK):
            return "block"
        if self._operand_follows():
            return "object"
        return "object" if _OBJECT.match(self.text, position + 1) else "block"

    def _is_member(self, back: int = 0) -> bool:
        """Whether the next name, or the one `back` tokens ago, follows a dot."""
        return len(self.tokens) > back and self.tokens[-1 - back].text in (".", "?.")

    def _operand_follows(self) -> bool:
        """Whether an operand is expected at this place, and so a `/` begins a regular expression."""
        if not self.tokens:
            return True
        before = self.tokens[-1]
        if before.kind == "name":
            if before.text == "of":
                return bool(self.open) and self.holds[self.open[-1]] == "head"
            return before.text in _BEFORE_OPERAND and not self._is_member(1)
        if before.kind != "sign":
            return False
        if before.text == ")":
            return self.holds[self.partners[len(self.tokens) - 1]] == "head"
        if before.text == "}":
            return self.holds[self.partners[len(self.tokens) - 1]] in ("block", "class")
        return before.text not in ("]", "++", "--")


# Filters of templates: `{{ path | path_to_key }}`, `{{ files | join(', ') }}`


FILTERS = words(
    """path_to_key json tojson length count upper lower trim capitalize join split replace default first last
    keys values sort reverse unique sum min max round int float string"""
)


OF_FILTERS = """
  const text = value => value === undefined || value === null ? ''
    : typeof value === 'object' ? JSON.stringify(value) : String(value);
  const list = value => value === undefined || value === null ? []
    : isArray(value) ? value : typeof value === 'object' ? Object.values(value) : [...String(value)];
  const size = value => value === undefined || value === null ? 0
    : typeof value === 'object' && !isArray(value) ? Object.keys(value).length
    : value.length ?? text(value).length;
  const member = (value, key) => key === undefined ? value : value?.[key];
  const compared = (a, b) => a < b ? -1 : a > b ? 1 : 0;
  __filters = {
    path_to_key: value => keyed(text(value)),
    json: (value, indent) => JSON.stringify(value, null, indent),
    tojson: (value, indent) => JSON.stringify(value, null, indent),
    length: size,
    count: size,
    upper: value => text(value).toUpperCase(),
    lower: value => text(value).toLowerCase(),
    trim: value => text(value).trim(),
    capitalize: value => text(value).slice(0, 1).toUpperCase() + text(value).slice(1),
    join: (value, between = ',') => list(value).map(item => text(item)).join(between),
    split: (value, between = ' ') => text(value).split(between),
    replace: (value, from, to) => text(value).replaceAll(from, to),
    default: (value, other = '') => value ?? other,
    first: value => list(value)[0],
    last: value => list(value).at(-1),
    keys: value => Object.keys(value ?? {}),
    values: value => list(value),
    sort: (value, key) => list(value).toSorted((a, b) => compared(member(a, key), member(b, key))),
    reverse: value => typeof value === 'string' ? [...value].reverse().join('') : list(value).toReversed(),
    unique: value => [...new Set(list(value))],
    sum: (value, key) => list(value).reduce((sum, item) => sum + Number(member(item, key)), 0),
    min: value => list(value).reduce((a, b) => b < a ? b : a, list(value)[0]),
    max: value => list(value).reduce((a, b) => b > a ? b : a, list(value)[0]),
    round: (value, digits = 0) => Number(Number(value).toFixed(digits)),
    int: value => Math.trunc(Number(value)),
    float: value => Number(value),
    string: value => text(value),
  };
"""


# Free names, and the paths that are read from them


_WORDS = words(
    """await break case catch class const continue debugger default delete do else enum export extends false
    finally for function if import in instanceof let new null return super switch throw true try typeof var
    void while with yield"""
)

"""Words that cannot be names. `this` is a name here: the scope has it."""

_WORDS_HERE = words("arguments eval implements interface package private protected public static")

"""Words that cannot be names in strict code; they can be members."""

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

"""The maximum nesting of paths in paths, `a[b[c[d]]]`."""


class Step(NamedTuple):
    """A member that is read, by a fixed name or position, or by the value of another path."""

    key: str | int | Free
    asked: bool
    """`?.` precedes it."""
    ends: int
    """The index of the token after it."""


class Free(NamedTuple):
    """A free name, and the path that is read from it."""

    name: str
    steps: tuple[Step, ...]
    token: int
    offset: int
    """In the text."""
    may_be_missing: bool
    """The name itself may be undefined: it is tested, or has a default."""
    optional: bool
    """The value of the path may be undefined."""
    continues: bool
    """The value is called, or more is read from it."""

    @property
    def path(self) -> tuple[str | int, ...]:
        """The path up to its first computed step."""
        path: list[str | int] = [self.name]
        for key, _, _ in self.steps:
            if isinstance(key, Free):
                break
            path.append(key)
        return tuple(path)

    def ends(self, steps: int) -> int:
        """The index of the token after some of its steps."""
        return self.steps[steps - 1].ends if steps else self.token + 1


def free_names(source: Source) -> list[Free]:
    """The free names in order. Raises ExpressionError for a name that is not allowed."""
    declarations = _Declarations(source)
    return [_followed(source, index, declarations) for index in _free(source, declarations)]


def _free(source: Source, declarations: _Declarations) -> Iterator[int]:
    for index, token in enumerate(source.tokens):
        if token.kind != "name" or not is_variable(source, index):
            continue
        if token.text.startswith("__"):
            message = f"'{token.text}' is private: names that start with __ cannot be used"
            raise unreadable(message, token.start)
        if token.text in GLOBALS or declarations.declares(index) or is_filter(source, index):
            continue
        if token.text in _WORDS_HERE:
            hint = f"read a field of that name as a member: raw.{token.text}, inputs.{token.text}"
            raise unreadable(f"'{token.text}' is a word of JavaScript, not a name", token.start, hint)
        yield index


def mentions(source: Source, *names: str) -> bool:
    """Whether one of the names occurs in the source, in any role."""
    return any(token.text in names or token.text[1:-1] in names for token in source.tokens)


def refused(source: Source) -> ExpressionError | None:
    """The error for valid JavaScript that is not supported; None if there is none."""
    for index, token in enumerate(source.tokens):
        word = source.word(index)
        if word not in ("async", "await", "import") or _is_key(source, index):
            continue
        if word == "import":
            return unreadable("import is not supported", token.start, "an expression can only use its scope")
        following = source.over(index + 1) if source.sign(index + 1) == "(" else -1
        if word == "async" and source.word(index + 1) == "" and source.sign(following) != "=>":
            continue
        hint = "an expression must return its value at once; use a step for what takes time"
        return unreadable("asynchronous code is not supported", token.start, hint)
    return None


def is_filter(source: Source, index: int) -> bool:
    """Whether the name at `index` is a filter: `| upper`."""
    return source.at(index) in FILTERS and source.sign(index - 1) == "|"


def is_variable(source: Source, index: int) -> bool:
    """Whether a name stands for a value, and is not a member, a key, a label or a keyword."""
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
    """Whether a name cannot be a value after what precedes it: `for (const x of …)`."""
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
    """Finds the scope of each declared name."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._reach: dict[str, list[tuple[int, int]]] = {}
        self._ends: dict[int, int] = {}
        """The ends of arrow functions, by index of token."""
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
        """Declare `this` and `arguments` in the body of a function."""
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
        """The names that `const` declares: `a = 1, { b } = c` are two patterns."""
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
        """The scope of a declaration."""
        source, opening = self._source, self._source.tokens[index].inside
        while opening >= 0 and source.holds[opening] not in ("block", "object"):
            opening = source.tokens[opening].inside
        return (opening, source.partners[opening]) if opening >= 0 else (0, len(source.tokens))


def _merged(reach: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge overlapping scopes, and return them in order."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(reach):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


# Paths


def _followed(source: Source, index: int, declarations: _Declarations, inner: int = 0) -> Free:
    """Read the path that starts with the name at `index`."""
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
        may_be_missing=about or _has_default(source, index + 1),
        optional=about or _has_default(source, steps[fixed - 1].ends if fixed else index + 1),
        continues=source.sign(at) in (".", "?.") or source.holds.get(at) in ("call", "index", "template"),
    )


def _has_default(source: Source, index: int) -> bool:
    if source.sign(index) == "|":
        return source.word(index + 1) == "default"
    return source.sign(index) in ("?.", "??")


def _is_called(source: Source, at: int) -> bool:
    """Whether the path that ends at this token is called."""
    called = source.sign(at) == "(" or source.at(at).startswith("`")
    return called or (source.sign(at) == "?." and source.sign(at + 1) == "(")


def _is_changed(source: Source, start: int, end: int) -> bool:
    """Whether the path from `start` to `end` is assigned to, or deleted."""
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
    """The text of a plain literal; None if only JavaScript can read it."""
    inner = token.text[1:-1]
    return None if "\\" in inner or "\r" in inner or token.text[0] not in "'\"`" else inner


# The text for the engine: filters as calls, loops and functions that check the clock


_COUNTS = "__left--<0&&__tick()"

_NOT_STARTING = words(
    """break case catch class const continue debugger default do else finally for function if let return
    switch throw try var while with"""
)

"""Words that start a statement, never an expression."""

_STARTING = ("{", "!", "~")

"""Signs that start an expression on a new line, and do not continue the line before."""


class Edit(NamedTuple):
    """A replacement for a part of the source."""

    start: int
    end: int
    text: str
    first: bool = False
    """Whether it precedes other edits at the same place."""


class Written(NamedTuple):
    """Text for the engine, mapped to the source."""

    text: str
    marks: tuple[tuple[int, int, int], ...]
    """Positions in the text, each with the position in the source that it comes from, and a length."""

    def offset(self, line: int, column: int) -> int:
        """Return the offset in the source for a line of the text and a byte of that line."""
        lines = self.text.split("\n")
        before = lines[line - 1].encode()[: column - 1].decode(errors="ignore") if line <= len(lines) else ""
        position = sum(len(text) + 1 for text in lines[: line - 1]) + len(before)
        index = max(bisect_right(self.marks, position, key=lambda mark: mark[0]) - 1, 0)
        begins, start, length = self.marks[index]
        return start + min(max(position - begins, 0), length)


class Writer:
    """Writes the source for the engine."""

    def __init__(self, text: str = "") -> None:
        self._texts = [text]
        self._length = len(text)
        self._marks: list[tuple[int, int, int]] = []

    def add(self, text: str) -> None:
        self._texts.append(text)
        self._length += len(text)

    def add_source(self, source: Source, edits: Iterable[Edit] = (), end: int | None = None) -> None:
        """Write the source with its filters, its step counting and further edits, up to `end` if given."""
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
    """The places where the last expression of some statements may begin, the last place first."""
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
    """Whether the body of a function begins here: a block after parameters."""
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
