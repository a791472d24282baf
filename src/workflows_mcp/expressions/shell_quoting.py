r"""Values in shell commands: they can become words, never syntax, whatever quotes are around them.

No value is ever put into the text of a script. Each goes into a variable of its own, and where it stood comes
a reference to that variable, written so that it is right for the quotes around it:

    echo ${inputs.x}        ->  echo ${_wf_0}             split into words, as with any variable
    echo "${inputs.x}"      ->  echo "${_wf_0}"
    echo '${inputs.x}'      ->  echo ''"${_wf_0}"''
    sh -c 'rm ${inputs.x}'  ->  sh -c 'rm ${_wf_0?}'      the inner shell looks it up itself

Where something other than a shell would read the value as code, or bash would compute it, a value that could
be more than a plain word or number is refused. A command that is nothing but one reference is the author's
own code and run as it is. Pure: how a large value gets into a file is the caller's business.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from workflows_mcp.errors import StepError
from workflows_mcp.expressions import shell_code
from workflows_mcp.expressions.base import Code
from workflows_mcp.expressions.shell_code import Reader, evaluated_words, read_command
from workflows_mcp.expressions.shell_script import (
    EXPANSION,
    HOLE,
    Command,
    HereDocument,
    Hole,
    Piece,
    Quoting,
)
from workflows_mcp.expressions.shell_syntax import scan
from workflows_mcp.expressions.shell_values import RAW_HINT, KeepInFile, Values
from workflows_mcp.values import to_text

_CONTROL = re.compile(r"[\x00-\x06]")
_DEEPER = {number: number + 1 for number in range(1, 6)}
_BACK = {number + 1: number for number in range(1, 6)}
_HOW_TO_PRINT = frozenset({"-n", "-e", "--", "-", "%s", "%b", "%s\\n", "%b\\n"})
_CODE_VARIABLE = re.compile(r"(PS[0-4]|PROMPT_COMMAND|BASH_ENV|ENV)\+?=")


@dataclass(frozen=True, slots=True)
class QuotedScript:
    """What the shell is to run, and the variables that it refers to."""

    text: str
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QuotedWords:
    """The words of a command that is run without a shell, and the variables that they refer to."""

    words: list[str]
    variables: dict[str, str] = field(default_factory=dict)


def spliced(code: Code) -> str:
    """The text with the values simply put in: for showing, and for `unsafe: raw`."""
    parts = [code.texts[0]]
    for value, text in zip(code.values, code.texts[1:], strict=True):
        parts += (to_text(value), text)
    return "".join(parts)


def is_own_code(code: Code) -> bool:
    """No reference, or nothing but one reference: all of it is the author's own code."""
    return not code.values or (len(code.values) == 1 and not "".join(code.texts).strip())


def quoted_script(code: Code, *, names: Iterable[str] = (), keep_in_file: KeepInFile) -> QuotedScript:
    """A script for /bin/sh. `names` are variables that ours must not be called like."""
    if is_own_code(code):
        return QuotedScript(spliced(code))
    source = source_of(code)
    values = Values(code, names, keep_in_file)
    numbers = range(len(code.values))
    text = _Writer(values, source, numbers, inherited=False).written()
    return QuotedScript(values.preamble(numbers) + text, values.variables())


def quoted_words(code: Code, *, names: Iterable[str] = (), keep_in_file: KeepInFile) -> QuotedWords:
    """A command for running without a shell: its text is split into words, a value never is."""
    if is_own_code(code):
        return QuotedWords(_split(spliced(code)))
    values = Values(code, names, keep_in_file)
    numbers = iter(range(len(code.values)))
    pieces = [Piece(0, text=word) for word in _split(source_of(code))]
    for piece in pieces:
        piece.holes = [Hole(next(numbers), 0, 0, Quoting.DOUBLE) for _ in range(piece.text.count(HOLE))]
    words = [_filled(piece, values) for piece in pieces]
    reading = read_command(tuple(piece.text for piece in pieces))
    for use in reading.code:
        covered = pieces[use.first : use.last]
        if not any(piece.holes for piece in covered) or is_one_reference(covered):
            continue
        if use.reader is Reader.CHILD_SHELL:
            words[use.first] = _for_child(covered[0].text, [hole.number for hole in covered[0].holes], values)
        else:
            _check_foreign_code(covered, use, values, range(len(code.values)))
    for index in reading.not_options:
        if index < len(pieces) and pieces[index].text.startswith(HOLE):
            values.check_no_option(pieces[index].holes[0].number, words[0])
    return QuotedWords(words, values.variables())


def source_of(code: Code) -> str:
    if any(_CONTROL.search(text) for text in code.texts):
        raise StepError("the command holds control characters, so that no values can be put into it")
    return HOLE.join(code.texts)


def _split(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise StepError(f"the command cannot be split into words: {error}") from None
    if not words:
        raise StepError("the command is empty")
    return words


def _filled(piece: Piece, values: Values) -> str:
    first, *rest = piece.text.split(HOLE)
    texts = [values.texts[hole.number] for hole in piece.holes]
    return first + "".join(text + part for text, part in zip(texts, rest, strict=True))


def is_one_reference(pieces: Sequence[Piece]) -> bool:
    return " ".join(piece.text for piece in pieces).strip() == HOLE


def _prints_one_reference(command: Command) -> bool:
    """Whether what a command hands on is nothing but one value."""
    if not command.words or command.words[0].text not in ("echo", "printf", "cat"):
        return False
    printed = [word for word in command.words[1:] if word.text not in _HOW_TO_PRINT]
    return is_one_reference([*printed, *command.here_strings, *(each.body for each in command.documents)])


def _marked_for_inside(text: str) -> str:
    """Code in code: what the outer shell expands is plain text to the inner one, and marked differently."""
    if chr(6) in text:
        raise StepError("the command holds code in code too deeply to put values into it")
    return text.translate(_DEEPER)


def _for_child(source: str, numbers: Sequence[int], values: Values) -> str:
    """A script for another shell that gets our variables."""
    text = _Writer(values, source, numbers, inherited=True).written()
    return values.preamble(numbers) + text


def _check_foreign_code(
    pieces: Sequence[Piece], use: shell_code.Code, values: Values, numbers: Sequence[int]
) -> None:
    """Values in code of something that cannot look up our variables."""
    for piece in pieces:
        texts = piece.text.split(HOLE)
        for count, hole in enumerate(piece.holes, 1):
            number = numbers[hole.number]
            if use.reader is Reader.SED:
                values.check_sed(number, HOLE.join(texts[:count]), use.hint)
            elif use.reader is not Reader.MAKE or "$" in values.texts[number]:
                values.check_plain([number], use.name, use.hint)


class _Writer:
    """Writes one script with references where its holes are. `numbers` are the values of its holes."""

    def __init__(self, values: Values, source: str, numbers: Sequence[int], *, inherited: bool) -> None:
        self._values = values
        self._source = source
        self._numbers = numbers
        self._inherited = inherited
        self._script = scan(source)
        self._edits: list[tuple[int, int, str]] = []
        """What is written instead of parts of the source, beside the holes."""
        self._whole: set[int] = set()
        """Holes that are one word although they are bare."""

    def written(self) -> str:
        for ticks in self._script.backticks:
            if HOLE in ticks.text:
                first = self._source.count(HOLE, 0, ticks.start)
                inner = self._inner(ticks.text, self._numbers[first : first + ticks.text.count(HOLE)])
                special = '\\`"' if ticks.in_quotes else "\\`"
                self._edits.append((ticks.start, ticks.end, f"`{_escaped(inner, special)}`"))
        # What is inside another command starts later than that one, and has to be ready when it is written.
        for command in sorted(self._script.commands, key=lambda command: command.start, reverse=True):
            self._check_evaluated(command)
            self._write_code(command)
            for document in command.documents:
                if document.literal and document.body.holes and not self._is_written(document.body.start):
                    self._open_document(document)
        return self._rendered(0, len(self._source))

    def _rendered(self, start: int, end: int) -> str:
        """A part of the source as it is written."""
        edits = [edit for edit in self._edits if start <= edit[0] and edit[1] <= end]
        holes = [hole for hole in self._script.holes if start <= hole.start and hole.end <= end]
        edits += [
            (hole.start, hole.end, self._reference(hole))
            for hole in holes
            if not any(first <= hole.start < last for first, last, _ in edits)
        ]
        parts: list[str] = []
        for first, last, text in sorted(edits, key=lambda edit: (edit[0], -edit[1])):
            if first >= start:
                parts += (self._source[start:first], text)
                start = last
        parts.append(self._source[start:end])
        return "".join(parts)

    def _is_written(self, position: int) -> bool:
        return any(first <= position < last for first, last, _ in self._edits)

    def _inner(self, source: str, numbers: Sequence[int]) -> str:
        return _Writer(self._values, source, numbers, inherited=self._inherited).written()

    def _reference(self, hole: Hole) -> str:
        if hole.quoting is Quoting.COMMENT:
            return ""
        if hole.refused:
            raise StepError(
                f"a value cannot stand {hole.refused}: {self._around(hole)}",
                hint=f"write it in plain double quotes; {RAW_HINT}",
            )
        number = self._numbers[hole.number]
        if hole.arithmetic:
            self._values.check_number(number)
        reference = self._values.reference(number, inherited=self._inherited)
        if hole.quoting is Quoting.SINGLE:
            return f"'\"{reference}\"'"
        if hole.quoting is Quoting.ANSI:
            return f"'\"{reference}\"$'"
        if (
            hole.quoting is Quoting.BARE
            and not hole.arithmetic
            and (hole.whole or hole.number in self._whole)
        ):
            return f'{hole.before}"{reference}"'
        return hole.before + reference

    def _around(self, hole: Hole) -> str:
        text = self._source[max(0, hole.start - 20) : hole.end + 20].replace("\n", " ")
        return f"`{text.replace(HOLE, '${…}')}`"

    def _open_document(self, document: HereDocument) -> None:
        """Makes a literal here-document one with references in it, by protecting everything else."""
        body = document.body
        text, *rest = (_escaped(part, "\\$`") for part in body.text.split(HOLE))
        for hole, part in zip(body.holes, rest, strict=True):
            text += self._values.reference(self._numbers[hole.number], inherited=self._inherited) + part
        delimiter = f"{self._values.prefix}end"
        self._edits.append((document.delimiter_start, document.delimiter_end, delimiter))
        self._edits.append((body.start, body.end, text))
        if document.close_start is not None:
            end = document.close_start + len(document.delimiter)
            self._edits.append((document.close_start, end, delimiter))

    # Code inside the words of a command

    def _write_code(self, command: Command) -> None:
        reading = read_command(tuple(word.text for word in command.words))
        for use in reading.code:
            self._code_words(command.words[use.first : use.last], use)
        if reading.input is not None:
            self._code_input(command, reading.input)
        for index in reading.not_options:
            if index < len(command.words) and command.words[index].text.startswith(HOLE):
                number = self._numbers[command.words[index].holes[0].number]
                self._values.check_no_option(number, command.words[0].text)
        for index in reading.one_word:
            self._whole.update(
                hole.number for word in command.words[index : index + 1] for hole in word.holes
            )
        for word in command.assignments:
            if found := _CODE_VARIABLE.match(word.text):
                self._code_words([word], shell_code.Code(0, 1, Reader.OTHER, found[1], RAW_HINT))

    def _numbers_in(self, start: int, end: int) -> list[int]:
        """The numbers of all holes in a part of the source, also of those in what the shell expands."""
        first = self._source.count(HOLE, 0, start)
        return list(range(first, first + self._source.count(HOLE, start, end)))

    def _check_plain(self, numbers: Iterable[int], use: shell_code.Code) -> None:
        self._values.check_plain([self._numbers[number] for number in numbers], use.name, use.hint)

    def _code_words(self, pieces: list[Piece], use: shell_code.Code) -> None:
        holes = [number for piece in pieces for number in self._numbers_in(piece.start, piece.end)]
        if not holes:
            return
        direct = {hole.number: hole for piece in pieces for hole in piece.holes}
        self._whole.update(direct)
        if is_one_reference(pieces) and len(holes) == 1:
            return
        self._check_plain((number for number in holes if number not in direct), use)
        if use.reader not in (Reader.SAME_SHELL, Reader.CHILD_SHELL):
            _check_foreign_code(pieces, use, self._values, self._numbers)
            return
        gaps = [self._source[one.end : other.start].strip(" \t") for one, other in pairwise(pieces)]
        if any(gaps) or any(hole.quoting is Quoting.ANSI for hole in direct.values()):
            raise StepError(
                f"a value cannot be put into the code that `{use.name}` gets here",
                hint=f"write that code as one word in plain quotes; {RAW_HINT}",
            )
        text = _marked_for_inside(" ".join(piece.text for piece in pieces))
        numbers = [self._numbers[number] for number in direct]
        if use.reader is Reader.CHILD_SHELL:
            text = _for_child(text, numbers, self._values)
        else:
            text = self._inner(text, numbers)
        text = text.translate(_BACK)
        expansions = [
            f'"{self._rendered(start, end)}"' if in_quotes else self._rendered(start, end)
            for piece in pieces
            for start, end, in_quotes in piece.expansions
        ]
        self._edits.append((pieces[0].start, pieces[-1].end, _in_single_quotes(text, expansions)))

    def _code_input(self, command: Command, use: shell_code.Code) -> None:
        for string in command.here_strings:
            self._code_words([string], use)
        for document in command.documents:
            self._code_document(document, use)
        feeding = [other for other in self._script.commands if other.feeds is command]
        for other in feeding:
            feeding += [before for before in self._script.commands if before.feeds is other]
        if command.fed_by_group or any(other.fed_by_group for other in feeding):
            self._check_plain(self._numbers_in(0, command.start), use)
        elif not (len(feeding) == 1 and _prints_one_reference(feeding[0])):
            for piece in (piece for other in feeding for piece in other.pieces):
                self._check_plain(self._numbers_in(piece.start, piece.end), use)

    def _code_document(self, document: HereDocument, use: shell_code.Code) -> None:
        body = document.body
        holes = self._numbers_in(body.start, body.end)
        if not holes or (is_one_reference([body]) and len(holes) == 1):
            return
        direct = {hole.number for hole in body.holes}
        self._check_plain((number for number in holes if number not in direct), use)
        if use.reader is not Reader.CHILD_SHELL:
            _check_foreign_code([body], use, self._values, self._numbers)
            return
        text = _marked_for_inside(body.text)
        text = _for_child(text, [self._numbers[hole.number] for hole in body.holes], self._values)
        text = text.translate(_BACK)
        if not document.literal:
            text, *rest = (_escaped(part, "\\$`") for part in text.split(EXPANSION))
            for (start, end, _), part in zip(body.expansions, rest, strict=True):
                text += self._rendered(start, end) + part
        self._edits.append((body.start, body.end, text))

    # What bash computes

    def _check_evaluated(self, command: Command) -> None:
        evaluated = evaluated_words(tuple(word.text for word in command.words))
        for index, word in enumerate(command.words):
            texts = word.text.split(HOLE)
            for count, hole in enumerate(word.holes, 1):
                number = self._numbers[hole.number]
                bare = hole.quoting is Quoting.BARE
                named = index in evaluated.names or (bare and index in evaluated.names_if_bare)
                if index in evaluated.arithmetic or (named and any("[" in text for text in texts[:count])):
                    self._values.check_number(number)
                elif named:
                    self._values.check_name(number, command.words[0].text)
            if index in evaluated.not_options and word.text.startswith(HOLE):
                self._values.check_no_option(self._numbers[word.holes[0].number], command.words[0].text)


def _escaped(text: str, special: str) -> str:
    return re.sub(f"[{re.escape(special)}]", r"\\\g<0>", text)


def _in_single_quotes(text: str, expansions: Sequence[str]) -> str:
    """Text as one word, with what the shell is to expand in its places."""
    word, *rest = ("'" + part.replace("'", "'\\''") + "'" if part else "" for part in text.split(EXPANSION))
    for expansion, part in zip(expansions, rest, strict=True):
        word += expansion + part
    return word or "''"
