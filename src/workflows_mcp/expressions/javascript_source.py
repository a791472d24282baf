"""JavaScript as tokens, and a template as texts and the `{{ … }}` between them.

Strings, template literals, regular expressions and comments are seen for what they are, so that a `}}` in one
of them ends nothing. Brackets know their partners and what they hold. What names mean is for
`javascript_names` to say, and whether it is JavaScript at all for the engine.

    split("a {{ '}}' }} b")     # Part("a "), Part(" '}}' ", source=Source(…)), Part(" b")
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from workflows_mcp.errors import ExpressionError

Kind = Literal["name", "number", "string", "pattern", "sign"]
Holds = Literal["object", "block", "class", "head", "group", "call", "index", "list", "template"]
"""What stands between brackets; a head is what follows `if`, `for`, `while`, …"""

_SPACE = re.compile(r"(?:[\s\ufeff]|//[^\n\r\u2028\u2029]*|/\*(?:[^*]|\*(?!/))*\*/)*")
_NAME = re.compile(r"#?(?:[^\W\d]|\$)[\w$\u200c\u200d]*")
_NUMBER = re.compile(r"0[xXoObB][\da-fA-F_]+|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d[\d_]*)?")
_STRING = re.compile(r"'(?:[^'\\\n\r]|\\(?:\r\n|[\s\S]))*'|\"(?:[^\"\\\n\r]|\\(?:\r\n|[\s\S]))*\"")
_PATTERN = re.compile(r"/(?![*/])(?:[^\\/\[\n\r]|\\[^\n\r]|\[(?:[^\]\\\n\r]|\\[^\n\r])*\])+/[a-zA-Z]*")
_CHUNK = re.compile(r"(?:[^`\\$]|\\[\s\S]|\$(?!\{))*(`|\$\{)")
"""Of a template literal: what comes before its end or before a value in it."""
_SIGN = re.compile(
    r">>>=|\.\.\.|===|!==|\*\*=|<<=|>>=|>>>|&&=|\|\|=|\?\?=|=>|==|!=|<=|>=|&&|\|\||\?\?|\?\.(?!\d)|\+\+|--"
    r"|\+=|-=|\*=|/=|%=|&=|\|=|\^=|<<|>>|\*\*|[{}()\[\];,<>+\-*/%&|^!~?:=.@]"
)
_OBJECT = re.compile(r"\s*(?:\}|\.\.\.|(?:[\w$]+|\"[^\"\n]*\"|'[^'\n]*')\s*[:,}]|\[[^\]\n]*\]\s*:)")
"""What follows the brace of an object, where a block could begin as well."""
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
    """The index of the bracket that it stands in; -1 at the top."""


class Source(NamedTuple):
    """The JavaScript that stands in a text from `start` to `end`."""

    text: str
    start: int
    end: int
    tokens: list[Token]
    partners: dict[int, int]
    """Of each bracket the other one, both ways; by index of token."""
    holds: dict[int, Holds]
    """By opening bracket."""

    @property
    def code(self) -> str:
        return self.text[self.start : self.end]

    def at(self, index: int) -> str:
        """The text of a token; nothing where there is none."""
        return self.tokens[index].text if 0 <= index < len(self.tokens) else ""

    def sign(self, index: int) -> str:
        """The same, but only of a token that is neither a name nor a literal."""
        is_sign = 0 <= index < len(self.tokens) and self.tokens[index].kind == "sign"
        return self.tokens[index].text if is_sign else ""

    def word(self, index: int) -> str:
        """The same, but only of a name that is no member of something."""
        is_word = 0 <= index < len(self.tokens) and self.tokens[index].kind == "name"
        return self.tokens[index].text if is_word and self.sign(index - 1) not in (".", "?.") else ""

    def over(self, index: int) -> int:
        """The token behind this one, or behind the brackets that open here."""
        return self.partners[index] + 1 if index in self.holds else index + 1

    def closes(self, index: int) -> bool:
        """Whether it is a closing bracket."""
        return self.partners.get(index, index) < index

    def separates(self, index: int) -> bool:
        """Whether no expression goes on over it: a bracket that closes, a comma, a semicolon, …"""
        return self.closes(index) or self.sign(index) in (",", ";") or self.sign(index).startswith("}")

    def on_new_line(self, index: int) -> bool:
        return "\n" in self.text[self.tokens[index - 1].end : self.tokens[index].start]


class Part(NamedTuple):
    """Text of a template itself, or an expression in it."""

    text: str
    source: Source | None = None


def read(text: str, start: int = 0, *, braced: bool = False) -> Source:
    """The tokens of `text` from `start` on: to its end, or to the `}}` that closes the expression."""
    return _Reader(text, start, braced).read()


def split(text: str) -> list[Part]:
    """A template: its texts and the expressions between them."""
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
                position = self._template(position, goes_on=True)
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
                raise unreadable("there are no BigInt numbers here", position, "values are JSON data")
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

    def _template(self, position: int, goes_on: bool = False) -> int:
        """A piece of a template literal: up to its end, or to the next value in it. The first piece and the
        last one are brackets around the values."""
        chunk = _CHUNK.match(self.text, position + 1)
        if chunk is None:
            raise self._unclosed("the text that begins with ` is not closed", position)
        if chunk[1] == "${":
            if goes_on:
                return self._add("sign", position, chunk.end())
            return self._open(position, "template", chunk.end())
        if goes_on:
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
        """Whether the name that is read next, or the one `back` tokens ago, stands behind a dot."""
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
