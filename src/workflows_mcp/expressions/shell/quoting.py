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
author's own code. Every function raises ExpressionError for a value that is not allowed.
"""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from workflows_mcp.errors import ExpressionError
from workflows_mcp.expressions.language import Code, Refusal
from workflows_mcp.expressions.shell.interpreters import CODE_VARIABLE, NUMBERS, Use, read_words
from workflows_mcp.expressions.shell.syntax import HOLE, Command, Document, Place, Quoting, Word, scan
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
    if shell not in _SHELLS or is_own_code(code.texts):
        _raise_first(problems(code.texts, shell))
        return QuotedScript(substitute(code))
    template, texts = _checked(code, shell)
    variables = _Variables(texts, "\n".join((*code.texts, *names)), keep_in_file)
    return QuotedScript(variables.preamble + template.write(variables, shell), variables.values)


def quoted_words(code: Code) -> list[str]:
    """The words of a command that runs without a shell; only its text is split, never a value."""
    if is_own_code(code.texts):
        return _split(substitute(code))
    _raise_first(_refused_words(code.texts))
    texts = iter(_texts_of(code))
    return [re.sub(HOLE, lambda _: next(texts), word) for word in _split(HOLE.join(code.texts))]


def quoted_text(code: Code) -> str:
    """The command as one text."""
    if is_own_code(code.texts):
        return substitute(code)
    text = _Text(code).write()
    size = len(text.encode())
    if size > MAX_BYTES:
        raise ExpressionError(
            f"the command has {size} bytes, and at most {MAX_BYTES} can be sent to an agent", hint=_LARGE
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
    try:
        if shell in _SHELLS:
            return _template(texts, shell).refusals
        if not shell:
            return _refused_words(texts)
    except ExpressionError as error:
        return (Refusal(0, error.message, error.hint),)
    message = f"{shell} would read the value as part of its code"
    return tuple(Refusal(it, message, _FOREIGN.get(shell, _FOREIGN[""])) for it in range(len(texts) - 1))


def is_own_code(texts: Sequence[str]) -> bool:
    """Whether the command has no reference, or is one reference: it is the author's own code."""
    return len(texts) == 1 or (len(texts) == 2 and not "".join(texts).strip())


_SHELLS = ("sh", "bash", "zsh", ANY_SHELL)
_FOREIGN = {
    "": "pass the value in `env:`, and read it from the environment in the script",
    "python": 'pass the value in `env:`, and read it with os.environ["NAME"]',
    "node": "pass the value in `env:`, and read it with process.env.NAME",
}
_PLAIN_HINT = 'put it in double quotes on its own, or pass it in `env:` and write "$NAME"'
_LARGE = "write large values to a file first, and pass the path to the command"
_CONTROL = re.compile(r"[\x00-\x06]")


def _raise_first(refusals: Iterable[Refusal]) -> None:
    for refusal in refusals:
        raise ExpressionError(refusal.message, hint=refusal.hint)


def _source_of(texts: Sequence[str]) -> str:
    if any(_CONTROL.search(text) for text in texts):
        raise ExpressionError("the command contains control characters, so values cannot be put into it")
    return HOLE.join(texts)


def _texts_of(code: Code) -> list[str]:
    texts = [to_text(value) for value in code.values]
    for text in texts:
        if "\0" in text:
            raise ExpressionError(
                f"the value {_shown(text)} contains a NUL character, which cannot be passed to a command",
                hint="write it to a file, and pass the path to the command",
            )
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ExpressionError(f"the value {_shown(text)} is not valid text") from None
    return texts


def _shown(text: str) -> str:
    try:
        return shown(text)
    except ValueError:  # characters that cannot be encoded
        return ascii(text)[:60]


# Commands run without a shell


def _split(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ExpressionError(f"the command cannot be split into words: {error}") from None
    if not words:
        raise ExpressionError("the command is empty")
    return words


@lru_cache(maxsize=256)
def _refused_words(texts: tuple[str, ...]) -> tuple[Refusal, ...]:
    words = _split(_source_of(texts))
    refusals: list[Refusal] = []
    for use in read_words(words).uses:
        first = "".join(words[: use.first]).count(HOLE)
        last = first + "".join(words[use.first : use.last]).count(HOLE)
        refusals += [_refuse_code(it, use) for it in range(first, last) if use.data is None]
    return tuple(refusals)


def _refuse_code(number: int, use: Use) -> Refusal:
    return Refusal(number, f"`{use.name}` would read the value as part of its code", use.hint)


# Scripts: values in variables


def _template(texts: tuple[str, ...], shell: str) -> _Template:
    cached = sum(map(len, texts)) < 10_000
    return _read_template(texts, shell) if cached else _read_template.__wrapped__(texts, shell)


@lru_cache(maxsize=512)
def _read_template(texts: tuple[str, ...], shell: str) -> _Template:
    return _Template(_source_of(texts), shell)


def _checked(code: Code, shell: str) -> tuple[_Template, list[str]]:
    """The parsed command, and the texts of its values."""
    template, texts = _template(code.texts, shell), _texts_of(code)
    _raise_first(template.refusals)
    for place, text in zip(template.places, texts, strict=True):
        template.check(place, text)
    return template, texts


class _Template:
    """A parsed command: writes references to values, and knows which values are refused."""

    def __init__(self, source: str, shell: str) -> None:
        self.source = source
        self.script = script = scan(source)
        self.places = script.places
        self.first_words: set[int] = set()
        """Values that may become the name of a command, an assignment or a reserved word."""
        self._uses: defaultdict[int, list[Use]] = defaultdict(list)
        integers: set[str] = set()
        for command in script.commands:
            reading = read_words([word.text for word in command.words], zsh=shell in ("zsh", ANY_SHELL))
            integers.update(reading.integers)
            for use in reading.uses:
                self._use(command.words[use.first : use.last], use)
            if reading.input is not None:
                self._use_input(command, reading.input)
        for command in script.commands:
            for word in (*command.assignments, *command.words[:1]):
                self.first_words.update(place.number for place in word.places)
            for word in command.assignments:
                name = word.text.partition("=")[0].rstrip("+")
                if CODE_VARIABLE.fullmatch(name):
                    self._use([word], Use(0, 0, name, "set the variable in `env:` if you trust the value"))
                elif name in integers:
                    hint = "do not declare the variable, and use it as text"
                    self._use([word], Use(0, 0, f"declare -i {name}", hint))
        self.refusals = tuple(self._refusals())

    def _use(self, words: Iterable[Word], use: Use) -> None:
        for word in words:
            for place in word.places:
                self._uses[place.number].append(use)
                place.computed |= use.data is NUMBERS.data

    def _use_input(self, command: Command, use: Use) -> None:
        """Refuse values in the input (a pipe, a here-document) of a program that reads code from it."""
        spans = [(0, len(self.source))] if self.script.defines_functions else command.fed
        for place in self.places:
            redirected = place.whole and place.quoting is Quoting.BARE
            if not redirected and any(first <= place.start < last for first, last in spans):
                self._uses[place.number].append(use)
        statement = command.fed[0][0]
        documents = [it.body for it in self.script.documents if it.statement == statement]
        strings = [word for it in self.script.commands if it.fed[0][0] == statement for word in it.strings]
        self._use([*documents, *strings], use)

    def _refusals(self) -> Iterable[Refusal]:
        for place in self.places:
            code = next((it for it in self._uses[place.number] if it.data is None), None)
            if place.quoting is Quoting.COMMENT:
                continue
            if place.refused:
                around = self.source[max(0, place.start - 20) : place.end + 20]
                excerpt = around.replace("\n", " ").replace(HOLE, "${…}")
                message = f"a value is not allowed {place.refused}: `{excerpt}`"
                yield Refusal(place.number, message, _PLAIN_HINT)
            elif code is not None:
                yield _refuse_code(place.number, code)

    def check(self, place: Place, text: str) -> None:
        """Raise ExpressionError if this value is not allowed at its place."""
        bare = place.quoting is Quoting.BARE and not place.whole
        uses = (*self._uses[place.number], *((NUMBERS,) if place.computed else ()))
        for use in uses:
            if use.data is not None and (bare or not use.if_bare) and not use.data.fullmatch(text):
                raise ExpressionError(use.name.replace("{value}", _shown(text)), hint=use.hint)

    def write(self, variables: _Variables, shell: str) -> str:
        """The script, with references to the variables in the places of the values."""
        edits = {(it.start, it.end): self._reference(it, variables, shell) for it in self.places}
        for document in self.script.documents:
            if document.literal and document.body.places:
                # It becomes one that expands references, with everything else escaped.
                body = _EXPANDED.finditer(self.source, document.body.start, document.body.end)
                edits |= {found.span(): f"\\{found[0]}" for found in body}
                delimiter = f"{variables.prefix}end"
                edits[document.start, document.end] = delimiter
                if document.close is not None:
                    edits[document.close, document.close + len(document.delimiter)] = delimiter
        return _spliced(self.source, edits)

    def _reference(self, place: Place, variables: _Variables, shell: str) -> str:
        name = variables.names[place.number]
        if place.quoting is Quoting.COMMENT:
            return ""
        if place.quoting is Quoting.SINGLE:
            return f"'\"${{{name}}}\"'"
        if place.quoting is Quoting.BARE and place.whole:
            return f'{place.before}"${{{name}}}"'
        split = shell == "zsh" and place.quoting is Quoting.BARE and not place.computed
        return f"{place.before}${{{'=' if split else ''}{name}}}"


Edits = Mapping[tuple[int, int], str]
_EXPANDED = re.compile(r"[\\$`]")


def _spliced(source: str, edits: Edits, start: int = 0, end: int | None = None) -> str:
    """The source from `start` to `end`, with the text of each edit instead of its span."""
    end = len(source) if end is None else end
    parts: list[str] = []
    for (first, last), text in sorted(edits.items()):
        if start <= first and last <= end:
            parts += (source[start:first], text)
            start = last
    return "".join((*parts, source[start:end]))


class _Variables:
    """The variables and files that hold the values of a command."""

    def __init__(self, texts: Sequence[str], taken: str, keep_in_file: KeepInFile) -> None:
        self.prefix = "_wf_"
        while self.prefix in taken:
            self.prefix = f"_{self.prefix}"
        self.names = [f"{self.prefix}{number}" for number in range(len(texts))]
        self.values: dict[str, str] = {}
        self.preamble = ""
        """Commands that read values from files. The x preserves trailing newlines."""
        room = VARIABLES_BYTES
        for number, (name, text) in enumerate(zip(self.names, texts, strict=True)):
            size = len(text.encode())
            if size <= min(VARIABLE_BYTES, room):
                room -= size
                self.values[name] = text
            else:
                path = shlex.quote(keep_in_file(number, text))
                self.preamble += (
                    f"{name}=$(command -p cat {path} && printf x) && {name}=${{{name}%x}} || exit 1; "
                )


# Text for an agent: values in quotes


_WORD = re.compile(r"(?!=)[A-Za-z0-9@%+=:,./_-]+")
"""Text that every shell reads as part of a word."""
_ANYWHERE = re.compile(r"[A-Za-z0-9_]+(?:[.-][A-Za-z0-9_]+)*")
"""Text without a special meaning anywhere in a script."""
_NUMBER = re.compile(r"-?[0-9]+")
_REMARK = re.compile(r"[A-Za-z0-9@%+=:,./_ -]*")
_BLANKS = re.compile(r"[ \t\n]+")
_BOUNDARIES = ("", *" \t\n;&|<>()")
_BEGINS_SYNTAX = ("<", ">", "(", "\\\n", HOLE)
"""May not follow an unquoted word: `2` before `>` is not a word, `f` before `(` is a function."""
_ENDS_IN_NAME = re.compile(r"\$(?:[A-Za-z_][A-Za-z_0-9]*|[0-9@*#?$!-])\Z")
_CLINGS = re.compile(rf"(?:[\\$~!{HOLE}]|\\\n|{_ENDS_IN_NAME.pattern})\Z")
"""May not precede an unquoted word."""
_RESERVED = frozenset(
    """if then else elif fi do done case esac while until for in function select time coproc foreach end
    repeat nocorrect noglob""".split()  # noqa: SIM905
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
        template, self._texts = _checked(code, ANY_SHELL)
        for number, text in enumerate(self._texts):
            if len(text) > MAX_BYTES:
                _refuse_large(number, text)
        self._source = template.source
        self._places = template.places
        self._documents = template.script.documents
        self._first_words = template.first_words
        commented = "$(" in self._source and "#" in self._source
        self._certain = not commented and _UNCERTAIN.search(self._source) is None

    def write(self) -> str:
        edits: dict[tuple[int, int], str] = {}
        for place, text in zip(self._places, self._texts, strict=True):
            fragment = self._fragment(place, text)
            if fragment is None:
                return self._with_variables()
            edits[place.start, place.end] = fragment
        if any(self._ends_early(document, edits) for document in self._documents):
            return self._with_variables()
        return _spliced(self._source, edits)

    def _ends_early(self, document: Document, edits: Edits) -> bool:
        body = _spliced(self._source, edits, document.body.start, document.body.end)
        lines = body.split("\n") if document.body.places else ()
        return any(line.lstrip("\t") == document.delimiter for line in lines)

    def _fragment(self, place: Place, text: str) -> str | None:
        """The text for a value; None if it needs a reference to a variable."""
        if self._is_itself(place, text):
            return text
        if not self._certain or place.computed:
            return None
        match place.quoting:
            case Quoting.BARE if not place.whole:
                words = _BLANKS.split(text)
                last = len(words) - 1
                return place.before + " ".join(
                    self._bare(place, word, first=at == 0, last=at == last) for at, word in enumerate(words)
                )
            case Quoting.BARE:
                plain = _WORD.fullmatch(text) and self._may_begin(place) and self._may_end(place)
                return text if plain else place.before + _in_quotes(text)
            case Quoting.DOUBLE:
                apart = '""' if self._follows_name(place) and text else ""
                return place.before + apart + _escaped(text, '\\$`"').replace("!", "\"'!'\"")
            case Quoting.SINGLE:
                return text.replace("'", "'\\''")
            case Quoting.COMMENT:
                return text if _REMARK.fullmatch(text) else ""
            case Quoting.BODY | Quoting.LITERAL:
                return self._in_document(place, text)

    def _is_itself(self, place: Place, text: str) -> bool:
        """Whether the text of the value has no special meaning at its place."""
        if place.computed:
            return _NUMBER.fullmatch(text) is not None and self._source[place.start - 1] not in "+-"
        if _ANYWHERE.fullmatch(text) is None or text in _RESERVED:
            return False
        may_be = self._is_alone(place) or place.number not in self._first_words
        return may_be and self._may_begin(place) and self._may_end(place)

    def _may_begin(self, place: Place) -> bool:
        """Whether unquoted text may follow what stands before the value."""
        return _CLINGS.search(self._source[: place.end - 1]) is None

    def _may_end(self, place: Place) -> bool:
        """Whether unquoted text may precede what stands after the value."""
        return not self._source.startswith(_BEGINS_SYNTAX, place.end)

    def _follows_name(self, place: Place) -> bool:
        """Whether the value would extend the name of a variable before it."""
        return _ENDS_IN_NAME.search(self._source[: place.start]) is not None

    def _around(self, place: Place) -> tuple[str, str]:
        """The characters before and after the value; empty at an end of the command."""
        before = self._source[place.start - 1] if place.start else ""
        return before, self._source[place.end : place.end + 1]

    def _is_alone(self, place: Place) -> bool:
        """Whether the value is a whole word."""
        return all(it in _BOUNDARIES for it in self._around(place))

    def _bare(self, place: Place, word: str, *, first: bool, last: bool) -> str:
        """A word of a value without quotes. An empty one is an end of the value."""
        if not word:
            ends = [it for it, there in zip(self._around(place), (first, last), strict=True) if there]
            return "" if all(it in (*_BOUNDARIES, HOLE) for it in ends) else "''"
        plain = _WORD.fullmatch(word) is not None
        if first and place.number in self._first_words:
            plain &= self._is_alone(place) and "=" not in word and word not in _RESERVED
        plain &= (not first or self._may_begin(place)) and (not last or self._may_end(place))
        return word if plain else _in_quotes(word)

    def _in_document(self, place: Place, text: str) -> str | None:
        document = next(it for it in self._documents if place in it.body.places)
        body = self._source[document.body.start : document.body.end]
        if "$(" in self._source or "\\\n" in body or (document.strip_tabs and "\t" in text):
            return None
        if document.literal:
            return text
        return None if self._follows_name(place) else place.before + _escaped(text, "\\$`")

    def _with_variables(self) -> str:
        """The command with plain values inserted, and assignments to variables for the others before it."""
        texts, values = [self._code.texts[0]], []
        for place, value, text in zip(self._places, self._code.values, self._code.texts[1:], strict=True):
            if self._is_itself(place, self._texts[place.number]):
                texts[-1] += self._texts[place.number] + text
            else:
                values.append(value)
                texts.append(text)
        script = quoted_script(Code(tuple(texts), tuple(values)), keep_in_file=_refuse_large)
        lines = [f"export {name}={_in_quotes(value)}\n" for name, value in script.variables.items()]
        return "".join((*lines, script.text))


def _in_quotes(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _escaped(text: str, special: str) -> str:
    return re.sub(f"[{re.escape(special)}]", r"\\\g<0>", text)


def _refuse_large(_: int, text: str) -> str:
    raise ExpressionError(f"a value of {len(text)} characters is too large for a command", hint=_LARGE)
