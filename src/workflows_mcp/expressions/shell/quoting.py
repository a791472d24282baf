r"""Puts values into shell commands as words, never as syntax.

    echo ${inputs.x}        ->  echo ${_wf_0}             split into words, as with any variable
    echo "${inputs.x}"      ->  echo "${_wf_0}"
    echo '${inputs.x}'      ->  echo ''"${_wf_0}"''

`quoted_script` puts each value into a variable, and a reference to it into the script, written for the quotes
around it. `quoted_words` splits a command that runs without a shell.

`quoted_text` is for an agent, which gets the command as one text and no environment. Values go into the text,
quoted for their place, and without quotes if they need none:

    npm test {{ inputs.suite }}         ->  npm test unit
    git commit -m "{{ state.title }}"   ->  git commit -m "Costs \$5"
    grep '{{ state.who }}' log          ->  grep 'O'\''Hara' log

Where safe quoting would need more knowledge of the shell (backquotes, `case`, …), the command starts with an
assignment to a variable, as in a script.

A value inside code of another program (`sh -c '…'`, awk, a here-document for python) is refused. `problems`
reports this from the text alone, when a workflow is loaded. A command that is only one reference is the
author's own code.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from workflows_mcp.errors import ExpressionError, StepError
from workflows_mcp.expressions.language import Code, Refusal
from workflows_mcp.expressions.shell.interpreters import CODE_VARIABLE, read_words
from workflows_mcp.expressions.shell.interpreters import Code as CodeWords
from workflows_mcp.expressions.shell.syntax import HOLE, Document, Place, Quoting, Script, Word, read
from workflows_mcp.values import shown, to_text

VARIABLE_BYTES = 32 * 1024
"""Larger values go into files: Linux allows 128 KiB for one variable, and 2 MiB for all."""
VARIABLES_BYTES = 256 * 1024
MAX_BYTES = 100 * 1024
"""The maximum length of a command for an agent: Linux allows 128 KiB for one argument."""

ANY_SHELL = "any"

KeepInFile = Callable[[int, str], str]
"""Writes a value (by number) to a file, and returns the path."""


# The public functions


@dataclass(frozen=True, slots=True)
class QuotedScript:
    """A script for the shell, and the variables that it references."""

    text: str
    variables: dict[str, str] = field(default_factory=dict)


def quoted_script(
    code: Code, *, shell: str = "sh", names: Iterable[str] = (), keep_in_file: KeepInFile
) -> QuotedScript:
    """A script for `shell`. `names` are variables that it must not overwrite."""
    if is_own_code(code.texts):
        return QuotedScript(substitute(code))
    try:
        template = check_values(code, shell)
    except ExpressionError as error:
        raise StepError(error.message, hint=error.hint) from None
    values = _Values(code, names, keep_in_file)
    return QuotedScript(template.write(values, shell), values.variables)


def quoted_words(code: Code) -> list[str]:
    """The words of a command that runs without a shell; only its text is split, never a value."""
    if is_own_code(code.texts):
        return _split(substitute(code))
    try:
        template = _word_template(code.texts)
    except ExpressionError as error:
        raise StepError(error.message, hint=error.hint) from None
    for refusal in template.refusals:
        raise StepError(refusal.message, hint=refusal.hint)
    texts = iter(texts_of(code))
    return [re.sub(HOLE, lambda _: next(texts), word) for word in template.words]


def quoted_text(code: Code) -> str:
    """The command as one text; raises ExpressionError if a value in it cannot stay data."""
    if is_own_code(code.texts):
        return substitute(code)
    try:
        text = _Text(code).write()
    except StepError as error:
        raise ExpressionError(error.message, hint=error.hint) from None
    size = len(text.encode())
    if size > MAX_BYTES:
        raise ExpressionError(
            f"the command has {size} bytes, and at most {MAX_BYTES} can be sent to an agent",
            hint="write large values to a file first, and pass the path to the command",
        )
    return text


def substitute(code: Code) -> str:
    """The text with the values inserted as they are: for previews, and for `unsafe: raw`."""
    parts = [code.texts[0]]
    for value, text in zip(code.values, code.texts[1:], strict=True):
        parts += (to_text(value), text)
    return "".join(parts)


def problems(texts: tuple[str, ...], shell: str = "sh") -> tuple[Refusal, ...]:
    """The values that are not allowed in a command with these texts.

    `shell` is sh, bash, zsh or any (for agents); "" for none; else a program that gets the command as its
    code.
    """
    if is_own_code(texts):
        return ()
    if shell not in ("sh", "bash", "zsh", "any", ""):
        return tuple(
            Refusal(
                number,
                f"{shell} would read the value as part of its code",
                _FOREIGN_HINTS.get(shell, _FOREIGN),
            )
            for number in range(len(texts) - 1)
        )
    try:
        return _word_template(texts).refusals if not shell else _template(texts, shell).refusals
    except ExpressionError as error:
        return (Refusal(0, error.message, error.hint),)


def is_own_code(texts: Sequence[str]) -> bool:
    """Whether the command has no reference, or is one reference: it is the author's own code."""
    return len(texts) == 1 or (len(texts) == 2 and not "".join(texts).strip())


_FOREIGN = "pass the value in `env:`, and read it from the environment in the script"
_FOREIGN_HINTS = {
    "python": 'pass the value in `env:`, and read it with os.environ["NAME"]',
    "node": "pass the value in `env:`, and read it with process.env.NAME",
}
_PLAIN_HINT = 'put it in double quotes on its own, or pass it in `env:` and write "$NAME"'


# Sources with holes, and the texts of values


_CONTROL = re.compile(r"[\x00-\x06]")


def _source_of(texts: Sequence[str]) -> str:
    if any(_CONTROL.search(text) for text in texts):
        raise ExpressionError("the command contains control characters, so values cannot be put into it")
    return HOLE.join(texts)


def texts_of(code: Code) -> list[str]:
    texts = [to_text(value) for value in code.values]
    for text in texts:
        if "\0" in text:
            raise StepError(
                f"the value {_shown(text)} contains a NUL character, which cannot be passed to a command",
                hint="write it to a file, and pass the path to the command",
            )
        try:
            text.encode()
        except UnicodeEncodeError:
            raise StepError(f"the value {_shown(text)} is not valid text") from None
    return texts


def _shown(text: str) -> str:
    try:
        return shown(text)
    except ValueError:  # characters that cannot be encoded
        return ascii(text)[:60]


def _split(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise StepError(f"the command cannot be split into words: {error}") from None
    if not words:
        raise StepError("the command is empty")
    return words


# Commands run without a shell


@dataclass(frozen=True, slots=True)
class _WordTemplate:
    words: list[str]
    refusals: tuple[Refusal, ...]


@lru_cache(maxsize=256)
def _word_template(texts: tuple[str, ...]) -> _WordTemplate:
    try:
        words = _split(_source_of(texts))
    except StepError as error:
        raise ExpressionError(error.message, hint=error.hint) from None
    refusals: list[Refusal] = []
    for use in read_words(words).code:
        first = sum(word.count(HOLE) for word in words[: use.first])
        last = first + sum(word.count(HOLE) for word in words[use.first : use.last])
        refusals += [_refuse_code(number, use) for number in range(first, last)]
    return _WordTemplate(words, tuple(refusals))


def _refuse_code(number: int, use: CodeWords) -> Refusal:
    return Refusal(number, f"`{use.name}` would read the value as part of its code", use.hint)


# Scripts: values in variables


_NUMBERS = re.compile(r"(?:\s|[-+*/%()<>=!&|^~?:,]|[0-9][0-9A-Za-z#@_]*+|\.[0-9]++)*+")


def _template(texts: tuple[str, ...], shell: str) -> _Template:
    cached = sum(map(len, texts)) < 10_000
    return _read_template(texts, shell) if cached else _read_template.__wrapped__(texts, shell)


@lru_cache(maxsize=512)
def _read_template(texts: tuple[str, ...], shell: str) -> _Template:
    return _Template(_source_of(texts), shell)


def check_values(code: Code, shell: str) -> _Template:
    """The parsed command; raises ExpressionError if a value is not allowed in it."""
    template = _template(code.texts, shell)
    for refusal in template.refusals:
        raise ExpressionError(refusal.message, hint=refusal.hint)
    for place, value in zip(template.places, code.values, strict=True):
        template.check(place, to_text(value))
    return template


class _Template:
    """A parsed command: writes references to values, and knows which values are refused."""

    def __init__(self, source: str, shell: str) -> None:
        self.source = source
        self.script: Script = read(source)
        self.places = sorted(self.script.places, key=lambda place: place.number)
        self.first_words: set[int] = set()
        """Values that may become the name of a command, an assignment or a reserved word."""
        self._code: dict[int, CodeWords] = {}
        self._named: set[int] = set()
        self._expanded: set[int] = set()
        for command in self.script.commands:
            words = command.words
            for word in (*command.assignments, *words[:1]):
                self.first_words.update(place.number for place in word.places)
            for word in command.assignments:
                if variable := CODE_VARIABLE.match(word.text):
                    hint = "set the variable in `env:` if you trust the value"
                    self._refuse([word], CodeWords(0, 1, variable[1], hint))
            reading = read_words([word.text for word in words])
            for use in reading.code:
                self._refuse(words[use.first : use.last], use)
            if reading.input is not None:
                self._refuse_input(command.statement, command.fed, command.start, reading.input)
            computed = reading.computed + (reading.computed_in_zsh if shell in ("zsh", "any") else [])
            for index in computed:
                for place in _places(words, index):
                    place.computed = True
            for index in reading.whole:
                for place in _places(words, index):
                    place.whole = True
            for index in reading.named_if_bare:
                bare = (
                    it.number for it in _places(words, index) if it.quoting is Quoting.BARE and not it.whole
                )
                self._named.update(bare)
            for index in reading.expanded:
                self._expanded.update(place.number for place in _places(words, index))
        self._refuse_integers()
        self.refusals = tuple(self._refusals())

    def _refuse(self, words: Iterable[Word], use: CodeWords) -> None:
        for word in words:
            for place in word.places:
                self._code.setdefault(place.number, use)

    def _refuse_input(
        self, statement: int, fed: Iterable[tuple[int, int]], start: int, use: CodeWords
    ) -> None:
        """Refuse values in the input (a pipe, a here-document) of a program that reads code from it."""
        anywhere = self.script.defines_functions
        spans = [(0, len(self.source))] if anywhere else fed
        redirected = {it.number for it in self.places if it.whole and it.quoting is Quoting.BARE}
        for place in self.places:
            if place.number not in redirected and any(first <= place.start < last for first, last in spans):
                self._code.setdefault(place.number, use)
        same = [it for it in self.script.documents if it.statement == statement]
        strings = [word for it in self.script.commands if it.statement == statement for word in it.strings]
        self._refuse([*(document.body for document in same), *strings], use)

    def _refuse_integers(self) -> None:
        """Refuse values assigned to integer variables: the shell evaluates each assignment."""
        declared: dict[str, str] = {}
        for command in self.script.commands:
            texts = [word.text for word in command.words]
            if texts[:1] and texts[0] in (
                "declare",
                "typeset",
                "local",
                "readonly",
                "export",
                "integer",
                "float",
            ):
                options = "".join(text for text in texts[1:] if text.startswith("-"))
                if texts[0] in ("integer", "float") or set(options) & set("iFE"):
                    declared |= {
                        text.partition("=")[0]: f"{texts[0]} {options}".strip() for text in texts[1:]
                    }
        for command in self.script.commands:
            for word in command.assignments:
                name = word.text.partition("=")[0].rstrip("+")
                if name in declared:
                    hint = "do not declare the variable, and use it as text"
                    self._refuse([word], CodeWords(0, 1, declared[name], hint))

    def _refusals(self) -> Iterable[Refusal]:
        for place in self.places:
            if place.quoting is Quoting.COMMENT:
                continue
            if place.refused:
                message = f"a value is not allowed {place.refused}: {self._excerpt(place)}"
                yield Refusal(place.number, message, _PLAIN_HINT)
            elif use := self._code.get(place.number):
                yield _refuse_code(place.number, use)

    def _excerpt(self, place: Place) -> str:
        text = self.source[max(0, place.start - 20) : place.end + 20].replace("\n", " ")
        return f"`{text.replace(HOLE, '${…}')}`"

    def check(self, place: Place, text: str) -> None:
        """Raise ExpressionError if this value is not allowed at its place."""
        if place.computed and not _NUMBERS.fullmatch(text):
            raise ExpressionError(
                f"the value {_shown(text)} stands in shell arithmetic, where only numbers and operators "
                "are allowed",
                hint="check the value in a condition first, or use it as text",
            )
        if place.number in self._named and "[" in text:
            raise ExpressionError(
                f"the value {_shown(text)} could be evaluated as an array item by `test`",
                hint="put it in double quotes, or compare it with `case`",
            )
        if place.number in self._expanded and "$" in text:
            raise ExpressionError(
                f"make would expand `$` in the value {_shown(text)}",
                hint="pass it in `env:`, and write $$NAME in the recipe",
            )

    # Writing

    def write(self, values: _Values, shell: str) -> str:
        edits = [(it.start, it.end, self._reference(it, values, shell)) for it in self.places]
        for document in self.script.documents:
            if document.literal and document.body.places:
                edits = [it for it in edits if not document.body.start <= it[0] < document.body.end]
                edits += self._open_document(document, values)
        text = values.preamble()
        at = 0
        for start, end, replacement in sorted(edits):
            text += self.source[at:start] + replacement
            at = end
        return text + self.source[at:]

    def _reference(self, place: Place, values: _Values, shell: str) -> str:
        if place.quoting is Quoting.COMMENT:
            return ""
        name = values.name(place.number)
        if place.quoting is Quoting.SINGLE:
            return f"'\"${{{name}}}\"'"
        if place.quoting is Quoting.BARE and place.whole:
            return f'{place.before}"${{{name}}}"'
        split = shell == "zsh" and place.quoting is Quoting.BARE and not place.computed
        return f"{place.before}${{{'=' if split else ''}{name}}}"

    def _open_document(self, document: Document, values: _Values) -> list[tuple[int, int, str]]:
        """Turn a literal here-document into one that expands references, and escape everything else."""
        body = document.body
        text = escaped(self.source[body.start : body.end], "\\$`")
        for place in body.places:
            text = text.replace(HOLE, f"${{{values.name(place.number)}}}", 1)
        delimiter = f"{values.prefix}end"
        edits = [(document.start, document.end, delimiter), (body.start, body.end, text)]
        if document.close is not None:
            edits.append((document.close, document.close + len(document.delimiter), delimiter))
        return edits


def _places(words: Sequence[Word], index: int) -> list[Place]:
    return words[index].places if index < len(words) else []


def escaped(text: str, special: str) -> str:
    return re.sub(f"[{re.escape(special)}]", r"\\\g<0>", text)


class _Values:
    """The variables and files that hold the values of a command."""

    def __init__(self, code: Code, names: Iterable[str], keep_in_file: KeepInFile) -> None:
        self.prefix = "_wf_"
        taken = "\n".join((*code.texts, *names))
        while self.prefix in taken:
            self.prefix = f"_{self.prefix}"
        self.variables: dict[str, str] = {}
        self._files: dict[int, str] = {}
        room = VARIABLES_BYTES
        for number, text in enumerate(texts_of(code)):
            size = len(text.encode())
            if size > VARIABLE_BYTES or size > room:
                self._files[number] = keep_in_file(number, text)
            else:
                room -= size
                self.variables[self.name(number)] = text

    def name(self, number: int) -> str:
        return f"{self.prefix}{number}"

    def preamble(self) -> str:
        """Commands that read values from files. The x preserves trailing newlines."""
        return "".join(
            f"{name}=$(command -p cat {shlex.quote(path)} && printf x) && {name}=${{{name}%x}} || exit 1; "
            for number, path in self._files.items()
            for name in [self.name(number)]
        )


# Text for an agent: values in quotes


_WORD = re.compile(r"[A-Za-z0-9@%+=:,./_-]+")
"""Text that every shell reads as part of a word."""
_ANYWHERE = re.compile(r"[A-Za-z0-9_]+(?:[.-][A-Za-z0-9_]+)*")
"""Text without a special meaning anywhere in a script."""
_NUMBER = re.compile(r"-?[0-9]+")
_REMARK = re.compile(r"[A-Za-z0-9@%+=:,./_ -]*")
_BLANKS = re.compile(r"[ \t\n]+")
_BOUNDARY = frozenset(" \t\n;&|<>()")
_APART = _BOUNDARY | {HOLE}
_BEGINS_SYNTAX = ("<", ">", "(", HOLE)
"""May not follow an unquoted word: `2` before `>` is not a word, `f` before `(` is a function."""
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
"""Syntax that shells, or this parser, may read differently."""


class _Text:
    def __init__(self, code: Code) -> None:
        self._code = code
        # refuses values that are not allowed
        template = check_values(code, ANY_SHELL)
        self._texts = texts_of(code)
        for text in self._texts:
            if len(text) > MAX_BYTES:
                raise ExpressionError(
                    f"a value of {len(text)} characters is too large for a command",
                    hint="write it to a file first, and pass the path to the command",
                )
        self._source = template.source
        self._places = template.places
        self._documents = template.script.documents
        self._first_words = template.first_words
        self._at = [place.end - 1 for place in self._places]
        commented = "$(" in self._source and "#" in self._source
        self._certain = not commented and _UNCERTAIN.search(self._source) is None

    def write(self) -> str:
        numbers = range(len(self._texts))
        found = ((number, self._fragment(number)) for number in numbers)
        fragments = {number: fragment for number, fragment in found if fragment is not None}
        if len(fragments) == len(self._texts):
            text = self._assemble(fragments)
            if self._documents_end_where_they_did(fragments):
                return text
        return self._with_variables()

    # Fragments for single values

    def _fragment(self, number: int) -> str | None:
        """The text for a hole; None if it needs a reference to a variable."""
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
        """Whether the text of the value has no special meaning at its place."""
        text, hole, at = self._texts[number], self._places[number], self._at[number]
        if hole.computed:
            return _NUMBER.fullmatch(text) is not None and self._source[at - 1 : at] not in "+-"
        if _ANYWHERE.fullmatch(text) is None or text in _RESERVED:
            return False
        before = self._source[:at]
        if before[-1:] in ("\\", "$", "~", "!", HOLE) or _ENDS_IN_NAME.search(before):
            return False
        if before.endswith("\\\n") or self._source.startswith("\\\n", at + 1):
            return False  # the next line continues the word
        if self._source[at + 1 : at + 2] in _BEGINS_SYNTAX:
            return False
        return self._is_alone(at) or number not in self._first_words

    def _is_alone(self, first: int, last: int | None = None) -> bool:
        """Whether the span is a whole word."""
        last = first + 1 if last is None else last
        before, after = self._source[max(first - 1, 0) : first], self._source[last : last + 1]
        return (not before or before in _BOUNDARY) and (not after or after in _BOUNDARY)

    def _follows_name(self, hole: Place) -> bool:
        """Whether the value would extend the name of a variable before it."""
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
        # A word split off by a blank in the value must not become syntax.
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
        """Whether a plain word stays plain after the text before it."""
        if hole.before or hole.start != self._at[hole.number] or self._follows_name(hole):
            return False
        return self._source[max(hole.start - 1, 0) : hole.start] not in ("~", "!", HOLE)

    @staticmethod
    def _is_plain_word(word: str) -> bool:
        return _WORD.fullmatch(word) is not None and not word.startswith("=")

    def _may_begin(self, hole: Place, word: str, number: int) -> bool:
        """Whether the first word of a value needs no quotes after the text before it."""
        if not self._can_follow(hole):
            return False
        if number not in self._first_words:
            return True
        return self._is_alone(hole.start) and "=" not in word and word not in _RESERVED

    def _is_all_of_nothing(self, number: int) -> bool:
        """Whether a word consists of empty values only: then the word does not exist."""
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

    # The whole text

    def _assemble(self, fragments: dict[int, str], start: int = 0, end: int | None = None) -> str:
        parts: list[str] = []
        at, end = start, len(self._source) if end is None else end
        for number, position in enumerate(self._at):
            if not start <= position < end:
                continue
            parts += (self._source[at : self._places[number].start], fragments[number])
            at = position + 1
        return "".join((*parts, self._source[at:end]))

    def _documents_end_where_they_did(self, fragments: dict[int, str]) -> bool:
        return not any(self._ends_early(document, fragments) for document in self._documents)

    def _ends_early(self, document: Document, fragments: dict[int, str]) -> bool:
        if not document.body.places:
            return False
        body = self._assemble(fragments, document.body.start, document.body.end)
        return any(line.lstrip("\t") == document.delimiter for line in body.split("\n"))

    def _with_variables(self) -> str:
        """The command with plain values inserted, and assignments to variables for the others before it."""
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


def _in_quotes(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _too_large(_: int, text: str) -> str:
    raise StepError(
        f"a value of {len(text)} characters is too large for a command",
        hint="write it to a file first, and pass the path to the command",
    )
