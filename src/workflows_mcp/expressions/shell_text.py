r"""A command as one text for somebody else to run; values in it are data, whatever quotes are around them.

An agent runs a command as text, so there is no environment to hand values over in. A value is put into the
text, quoted for the place where it stands; one that needs no quotes is put in as it is, so that an ordinary
command reads as it was written:

    npm test {{ inputs.suite }}         ->  npm test unit
    git commit -m "{{ state.title }}"   ->  git commit -m "Costs \$5"
    grep '{{ state.who }}' log          ->  grep 'O'\''Hara' log

Like a variable of the shell, a value without quotes around it becomes words, and nothing but words. Where
quoting would take knowing more of the shell than is certain (backquotes, `case`, …), the value is put into a
variable before the command, and a reference stands in its place: see `shell_command`, which also decides what
is refused.
"""

from __future__ import annotations

import re

from workflows_mcp.errors import ExpressionError, StepError
from workflows_mcp.expressions.base import Code
from workflows_mcp.expressions.shell_command import (
    checked,
    escaped,
    is_own_code,
    quoted_script,
    spliced,
    texts_of,
)
from workflows_mcp.expressions.shell_syntax import HOLE, Document, Place, Quoting

MOST_BYTES = 100 * 1024
"""How long a command may be: systems allow 128 KiB for one argument."""

ANY_SHELL = "any"
_WORD = re.compile(r"[A-Za-z0-9@%+=:,./_-]+")
"""What no shell reads as anything but part of a word."""
_ANYWHERE = re.compile(r"[A-Za-z0-9_]+(?:[.-][A-Za-z0-9_]+)*")
"""What is nothing but itself wherever it stands in a script."""
_NUMBER = re.compile(r"-?[0-9]+")
_REMARK = re.compile(r"[A-Za-z0-9@%+=:,./_ -]*")
_BLANKS = re.compile(r"[ \t\n]+")
_BOUNDARY = frozenset(" \t\n;&|<>()")
_APART = _BOUNDARY | {HOLE}
_BEGINS_SYNTAX = ("<", ">", "(", HOLE)
"""What must not follow a word without quotes: `2` before `>` is not a word, `f` before `(` a function."""
_ENDS_IN_NAME = re.compile(r"\$(?:[A-Za-z_][A-Za-z_0-9]*|[0-9@*#?$!-])\Z")
_RESERVED = frozenset(
    "if then else elif fi do done case esac while until for in function select time coproc".split()  # noqa: SIM905
    + "foreach end repeat nocorrect noglob".split()  # noqa: SIM905
)
_UNCERTAIN = re.compile(
    rf"\\\n{HOLE}|{HOLE}\\\n"
    r"|`|\$['\"\[]|\(\(|\[\[|[<>=+@!?*]\(|\(\s*\)|\r|\$\{(?![A-Za-z_][A-Za-z_0-9]*\})"
    r"|\b(?:case|esac|function|select|coproc|alias|shopt|setopt|emulate)\b"
)
"""What shells read differently from each other, or we perhaps differently from them."""


def quoted_text(code: Code) -> str:
    """The command as one text. Raises ExpressionError where a value cannot be put in and stay data."""
    if is_own_code(code.texts):
        return spliced(code)
    try:
        text = _Text(code).written()
    except StepError as error:
        raise ExpressionError(error.message, hint=error.hint) from None
    size = len(text.encode())
    if size > MOST_BYTES:
        raise ExpressionError(
            f"the command has {size} bytes, at most {MOST_BYTES} can be handed to an agent",
            hint="write large values to a file first, and give the command the path",
        )
    return text


def _in_quotes(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _too_large(_: int, text: str) -> str:
    raise StepError(
        f"a value of {len(text)} characters is too large to be put into a command",
        hint="write it to a file first, and give the command the path",
    )


class _Text:
    def __init__(self, code: Code) -> None:
        self._code = code
        # Whatever must not be put in at all is refused here.
        template = checked(code, ANY_SHELL)
        self._texts = texts_of(code)
        for text in self._texts:
            if len(text) > MOST_BYTES:
                raise ExpressionError(
                    f"a value of {len(text)} characters is too large to be put into a command",
                    hint="write it to a file first, and give the command the path",
                )
        self._source = template.source
        self._places = template.places
        self._documents = template.script.documents
        self._first_words = template.first_words
        self._at = [place.end - 1 for place in self._places]
        commented = "$(" in self._source and "#" in self._source
        self._certain = not commented and _UNCERTAIN.search(self._source) is None

    def written(self) -> str:
        numbers = range(len(self._texts))
        found = {number: piece for number in numbers if (piece := self._piece(number)) is not None}
        if len(found) == len(self._texts):
            text = self._put_together(found)
            if self._documents_end_where_they_did(found):
                return text
        return self._with_variables()

    # What is put in

    def _piece(self, number: int) -> str | None:
        """What stands in the text where the hole is; None if only a reference to a variable can."""
        text, hole = self._texts[number], self._places[number]
        if self._is_itself(number):
            return hole.before + text
        if not self._certain or hole.computed:
            return None
        match hole.quoting:
            case Quoting.BARE:
                return hole.before + self._bare(number, hole)
            case Quoting.DOUBLE:
                apart = '""' if self._follows_name(hole) and text else ""
                return hole.before + apart + escaped(text, '\\$`"').replace("!", "\"'!'\"")
            case Quoting.SINGLE:
                return text.replace("'", "'\\''")
            case Quoting.BODY | Quoting.LITERAL:
                return self._in_document(hole, text)
            case Quoting.COMMENT:
                return text if _REMARK.fullmatch(text) else ""
        return None

    def _is_itself(self, number: int) -> bool:
        """Whether the text of the value is the value, read as whatever it may be read as there."""
        text, hole, at = self._texts[number], self._places[number], self._at[number]
        if hole.computed:
            return _NUMBER.fullmatch(text) is not None and self._source[at - 1 : at] not in "+-"
        if _ANYWHERE.fullmatch(text) is None or text in _RESERVED:
            return False
        before = self._source[:at]
        if before[-1:] in ("\\", "$", "~", "!", HOLE) or _ENDS_IN_NAME.search(before):
            return False
        if before.endswith("\\\n") or self._source.startswith("\\\n", at + 1):
            return False  # it is a part of what the line goes on with
        if self._source[at + 1 : at + 2] in _BEGINS_SYNTAX:
            return False
        return self._is_alone(at) or number not in self._first_words

    def _is_alone(self, first: int, last: int | None = None) -> bool:
        """Whether what stands there is a whole word."""
        last = first + 1 if last is None else last
        before, after = self._source[max(first - 1, 0) : first], self._source[last : last + 1]
        return (not before or before in _BOUNDARY) and (not after or after in _BOUNDARY)

    def _follows_name(self, hole: Place) -> bool:
        """Whether what comes would make the name of a variable before it longer."""
        return _ENDS_IN_NAME.search(self._source[: hole.start]) is not None

    def _bare(self, number: int, hole: Place) -> str:
        text = self._texts[number]
        ends_openly = self._source[hole.end : hole.end + 1] not in _BEGINS_SYNTAX
        if hole.whole:
            plain = self._is_plain_word(text) and self._can_follow(hole) and ends_openly
            return text if plain else _in_quotes(text)
        words = _BLANKS.split(text)
        inside = [word for word in words if word]
        first, last = self._source[max(hole.start - 1, 0) : hole.start], self._source[hole.end : hole.end + 1]
        # What the blank of a value sets apart is still part of a word, and nothing that the shell knows.
        before = "" if words[0] else " " if not first or first in _APART else "'' "
        after = "" if words[-1] else " " if not last or last in _APART else " ''"
        if not inside:
            return before + after if text else "" if self._is_all_of_nothing(number) else "''"
        written = [word if self._is_plain_word(word) else _in_quotes(word) for word in inside]
        if words[0] and not self._may_begin(hole, words[0], number):
            written[0] = _in_quotes(inside[0])
        if words[-1] and not ends_openly:
            written[-1] = _in_quotes(inside[-1])
        return before + " ".join(written) + after

    def _can_follow(self, hole: Place) -> bool:
        """Whether a plain word stays one after what stands directly before it."""
        if hole.before or hole.start != self._at[hole.number] or self._follows_name(hole):
            return False
        return self._source[max(hole.start - 1, 0) : hole.start] not in ("~", "!", HOLE)

    @staticmethod
    def _is_plain_word(word: str) -> bool:
        return _WORD.fullmatch(word) is not None and not word.startswith("=")

    def _may_begin(self, hole: Place, word: str, number: int) -> bool:
        """Whether the first word of a value can stand without quotes after what stands before it."""
        if not self._can_follow(hole):
            return False
        if number not in self._first_words:
            return True
        return self._is_alone(hole.start) and "=" not in word and word not in _RESERVED

    def _is_all_of_nothing(self, number: int) -> bool:
        """Whether a word consists of nothing but values that are empty: then there is no such word."""
        first, last = self._at[number], self._at[number] + 1
        while first and self._source[first - 1] == HOLE and not self._texts[self._at.index(first - 1)]:
            first -= 1
        while self._source[last : last + 1] == HOLE and not self._texts[self._at.index(last)]:
            last += 1
        return self._is_alone(first, last)

    def _in_document(self, hole: Place, text: str) -> str | None:
        document = next(it for it in self._documents if hole in it.body.places)
        body = self._source[document.body.start : document.body.end]
        if "$(" in self._source or "\\\n" in body or (document.strip_tabs and "\t" in text):
            return None
        if document.literal:
            return text
        return None if self._follows_name(hole) else hole.before + escaped(text, "\\$`")

    # All of it

    def _put_together(self, found: dict[int, str], start: int = 0, end: int | None = None) -> str:
        parts: list[str] = []
        at, end = start, len(self._source) if end is None else end
        for number, position in enumerate(self._at):
            if not start <= position < end:
                continue
            parts += (self._source[at : self._places[number].start], found[number])
            at = position + 1
        return "".join((*parts, self._source[at:end]))

    def _documents_end_where_they_did(self, found: dict[int, str]) -> bool:
        return not any(self._ends_early(document, found) for document in self._documents)

    def _ends_early(self, document: Document, found: dict[int, str]) -> bool:
        if not document.body.places:
            return False
        body = self._put_together(found, document.body.start, document.body.end)
        return any(line.lstrip("\t") == document.delimiter for line in body.split("\n"))

    def _with_variables(self) -> str:
        """What is nothing but itself in its place, all other values in variables before the command."""
        texts, values = [self._code.texts[0]], []
        for number, (value, text) in enumerate(zip(self._code.values, self._code.texts[1:], strict=True)):
            if self._is_itself(number):
                texts[-1] += self._texts[number] + text
            else:
                values.append(value)
                texts.append(text)
        script = quoted_script(Code(tuple(texts), tuple(values)), keep_in_file=_too_large)
        lines = [f"export {name}={_in_quotes(value)}\n" for name, value in script.variables.items()]
        return "".join((*lines, script.text))
