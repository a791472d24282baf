r"""A command as one text for somebody else to run; values in it are data, whatever quotes are around them.

An agent runs a command as text, so there is no environment to hand values over in. A value is put into the
text, quoted for the place where it stands; one that needs no quotes is put in as it is, so that an ordinary
command reads as it was written:

    npm test {{ inputs.suite }}         ->  npm test unit
    git commit -m "{{ state.title }}"   ->  git commit -m "Costs \$5"
    grep '{{ state.who }}' log          ->  grep 'O'\''Hara' log

Like a variable of the shell, a value without quotes around it becomes words, and nothing but words. Where
quoting would take knowing more of the shell than is certain (backquotes, `case`, the script of `sh -c`, …),
the value is put into a variable before the command, and a reference stands in its place: see `shell_quoting`,
which also decides what is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from workflows_mcp.errors import ExpressionError, StepError
from workflows_mcp.expressions.base import Code
from workflows_mcp.expressions.shell_code import Reader, read_command
from workflows_mcp.expressions.shell_quoting import (
    is_one_reference,
    is_own_code,
    quoted_script,
    source_of,
    spliced,
)
from workflows_mcp.expressions.shell_script import HOLE, Command, HereDocument, Hole, Quoting, Script
from workflows_mcp.expressions.shell_syntax import scan
from workflows_mcp.values import to_text

MOST_BYTES = 100 * 1024
"""How long a command may be: systems allow 128 KiB for one argument."""

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
    if is_own_code(code):
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
        self._texts = [to_text(value) for value in code.values]
        self._source = source_of(code)
        self._script: Script = scan(self._source)
        self._holes = {hole.number: hole for hole in self._script.holes}
        self._at = [found.start() for found in re.finditer(HOLE, self._source)]
        self._first_words: set[int] = set()
        """Holes in what may be the name of a command, an assignment or a reserved word."""
        self._whole: set[int] = set()
        """Holes that are one word although nothing is around them."""
        self._inner: set[int] = set()
        """Holes in code that another shell reads: what is quoted here is not quoted there."""
        for command in self._script.commands:
            self._look_at(command)
        commented = "$(" in self._source and "#" in self._source
        self._certain = not commented and _UNCERTAIN.search(self._source) is None

    def written(self) -> str:
        # Whatever must not be put in at all is refused here.
        quoted_script(self._code, keep_in_file=_too_large)
        numbers = range(len(self._texts))
        found = {number: piece for number in numbers if (piece := self._piece(number)) is not None}
        if len(found) == len(self._texts):
            text = self._put_together(found)
            if self._documents_end_where_they_did(found):
                return text
        return self._with_variables()

    # Which holes are special

    def _look_at(self, command: Command) -> None:
        if not command.clause:
            for piece in (*command.assignments, *command.words[:1]):
                self._first_words.update(hole.number for hole in piece.holes)
        reading = read_command(tuple(word.text for word in command.words))
        for use in reading.code:
            pieces = command.words[use.first : use.last]
            if use.reader in (Reader.SAME_SHELL, Reader.CHILD_SHELL) and not is_one_reference(pieces):
                for piece in pieces:
                    self._inner.update(self._numbers_in(piece.start, piece.end))
        if reading.input is not None and reading.input.reader is Reader.CHILD_SHELL:
            self._inner.update(range(len(self._texts)))
        for index in reading.one_word:
            for word in command.words[index : index + 1]:
                self._whole.update(hole.number for hole in word.holes)

    def _numbers_in(self, start: int, end: int) -> range:
        first = self._source.count(HOLE, 0, start)
        return range(first, first + self._source.count(HOLE, start, end))

    # What is put in

    def _piece(self, number: int) -> str | None:
        """What stands in the text where the hole is; None if only a reference to a variable can."""
        text, hole = self._texts[number], self._holes.get(number)
        if self._is_itself(number):
            return text if hole is None else hole.before + text
        if hole is None or not self._certain or number in self._inner or hole.arithmetic:
            return None
        match hole.quoting:
            case Quoting.BARE:
                return hole.before + self._bare(number, hole)
            case Quoting.DOUBLE:
                apart = '""' if self._follows_name(hole) and text else ""
                return hole.before + apart + _escaped(text, '\\$`"').replace("!", "\"'!'\"")
            case Quoting.SINGLE:
                return text.replace("'", "'\\''")
            case Quoting.HERE | Quoting.LITERAL:
                return self._in_document(hole, text)
            case Quoting.COMMENT:
                return text if _REMARK.fullmatch(text) else ""
        return None

    def _is_itself(self, number: int) -> bool:
        """Whether the text of the value is the value, read as whatever it may be read as there."""
        text, hole, at = self._texts[number], self._holes.get(number), self._at[number]
        if hole is not None and hole.arithmetic:
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
        return self._is_alone(at) or not (number in self._first_words or hole is None)

    def _is_alone(self, first: int, last: int | None = None) -> bool:
        """Whether what stands there is a whole word."""
        last = first + 1 if last is None else last
        before, after = self._source[max(first - 1, 0) : first], self._source[last : last + 1]
        return (not before or before in _BOUNDARY) and (not after or after in _BOUNDARY)

    def _follows_name(self, hole: Hole) -> bool:
        """Whether what comes would make the name of a variable before it longer."""
        return _ENDS_IN_NAME.search(self._source[: hole.start]) is not None

    def _bare(self, number: int, hole: Hole) -> str:
        text = self._texts[number]
        ends_openly = self._source[hole.end : hole.end + 1] not in _BEGINS_SYNTAX
        if hole.whole or number in self._whole:
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

    def _can_follow(self, hole: Hole) -> bool:
        """Whether a plain word stays one after what stands directly before it."""
        if hole.before or hole.start != self._at[hole.number] or self._follows_name(hole):
            return False
        return self._source[max(hole.start - 1, 0) : hole.start] not in ("~", "!", HOLE)

    @staticmethod
    def _is_plain_word(word: str) -> bool:
        return _WORD.fullmatch(word) is not None and not word.startswith("=")

    def _may_begin(self, hole: Hole, word: str, number: int) -> bool:
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

    def _in_document(self, hole: Hole, text: str) -> str | None:
        document = next(it for it in self._script.documents if hole in it.body.holes)
        body = self._source[document.body.start : document.body.end]
        if "$(" in self._source or "\\\n" in body or (document.strip_tabs and "\t" in text):
            return None
        if document.literal:
            return text
        return None if self._follows_name(hole) else hole.before + _escaped(text, "\\$`")

    # All of it

    def _put_together(self, found: dict[int, str], start: int = 0, end: int | None = None) -> str:
        parts: list[str] = []
        at, end = start, len(self._source) if end is None else end
        for number, position in enumerate(self._at):
            if not start <= position < end:
                continue
            hole = self._holes.get(number)
            first = position if hole is None else hole.start
            parts += (self._source[at:first], found[number])
            at = position + 1
        return "".join((*parts, self._source[at:end]))

    def _documents_end_where_they_did(self, found: dict[int, str]) -> bool:
        return not any(self._ends_early(document, found) for document in self._script.documents)

    def _ends_early(self, document: HereDocument, found: dict[int, str]) -> bool:
        if not document.body.holes:
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


def _escaped(text: str, special: Sequence[str]) -> str:
    return "".join("\\" + character if character in special else character for character in text)
