r"""Scans a shell command that has holes in the places of values.

    script = scan("echo \"$HOME/\0\" | sort")
    script.places[0].quoting                                     # Quoting.DOUBLE
    [[word.text for word in it.words] for it in script.commands] # [["echo", "\1/\0"], ["sort"]]

The result has the quotes around each hole, and the words of each simple command. The scanner knows what dash,
bash and zsh agree on. Where they differ, or where a variable cannot be referenced, the place of the hole has
the reason why no value can stand there. Even in a command that is misread a value cannot become syntax,
because only references to variables are inserted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum

from workflows_mcp.errors import ExpressionError

HOLE = "\0"
"""Stands in the source, and in the text of a word, for a value."""
EXPANSION = "\1"
"""Stands in the text of a word for an expansion of the shell."""
SUBSTITUTION = "\1<("
"""The text of a word that is <( … ) or >( … )."""
Spans = tuple[tuple[int, int], ...]

ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z_0-9]*\+?=")
_ITEM = re.compile(r"[A-Za-z_0-9]*\[[^\]]*\0.*\]\+?=")
_PLAIN = {
    "": re.compile(r"[^\\$`\0]+"),
    "'": re.compile(r"[^'\0]+"),
    '"': re.compile(r"[^\\\"$`\0]+"),
    "}": re.compile(r"[^\\\"'$`\0}]+"),
    "\n": re.compile(r"[^\n\0]+"),
}
"""Text without a meaning of its own, by what closes it."""
_PLAIN_WORD = re.compile(r"[^ \t\n;&|<>()\\'\"$`\0]+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*|[0-9@*#?$!-]")
_PARAMETER = re.compile(
    r"\$\{(?:[#!](?=[A-Za-z_0-9@*?$!-]))?(?:[A-Za-z_][A-Za-z_0-9]*|[0-9]+|[@*#?$!-])?(:?[-=?+]|[#%/^,]|(?=\}))?"
)
"""The beginning of ${…}; the group is an operation on text."""
_ANSI = re.compile(r"\$'(?:\\.|[^'\\])*'?", re.S)
_OLD_ARITHMETIC = re.compile(r"\$\[[^\]]*\]?")
_REDIRECTION = re.compile(r"&>>|&>|<<<|<<-|<<|<>|<&|>>|>&|>\||<(?!\()|>(?!\()")
_DESCRIPTOR = re.compile(r"-|[0-9]+-?")
_OPERATOR = re.compile(r"&&|\|\||;;&|;;|;&|;\||\|&|[;&|\n]")
_EMPTY = re.compile(r"\(\s*\)")
_PARENTHESES = re.compile(r"[()]")
_WORD_ENDS = frozenset(" \t\n;&|<>()")
_ENDS_OF_CASES = (";;", ";&", ";;&", ";|")
_LOOPS = ("for", "select")
_OPENS = frozenset({"{", "if", "while", "until", "case", *_LOOPS})
_CLOSES = frozenset({"}", "fi", "done", "esac"})
_RESERVED = _OPENS | _CLOSES | {"then", "elif", "else", "do", "!", "time", "-p", "coproc", "function"}


class Quoting(Enum):
    BARE = "bare"
    DOUBLE = "in double quotes"
    SINGLE = "in single quotes"
    BODY = "in a here-document"
    LITERAL = "in a here-document with a quoted delimiter"
    COMMENT = "in a comment"


@dataclass(slots=True)
class Place:
    """A hole. A reference to the value, with `before` in front of it, replaces `start` to `end`."""

    number: int
    start: int
    end: int
    quoting: Quoting
    before: str = ""
    whole: bool = False
    """Bare, but never split into words: an assignment, the target of a redirection."""
    computed: bool = False
    """Inside arithmetic, where only numbers and operators are data."""
    refused: str = ""
    """The reason why no value is allowed here."""


@dataclass(slots=True)
class Word:
    """A word as the command gets it: quotes removed."""

    start: int
    end: int = 0
    text: str = ""
    quoted: bool = False
    places: list[Place] = field(default_factory=list)
    """The holes in it, including those inside expansions."""


@dataclass(slots=True)
class Document:
    """A here-document. `start` and `end` are the delimiter; `close` is the start of its last line."""

    start: int
    end: int
    delimiter: str
    literal: bool
    strip_tabs: bool
    statement: int
    body: Word = field(default_factory=lambda: Word(0))
    close: int | None = None


@dataclass(slots=True)
class Command:
    """A simple command, or [[ … ]]."""

    fed: Spans
    """The spans of the commands that may feed it: those before it in its pipeline and in those around it."""
    words: list[Word] = field(default_factory=list)
    assignments: list[Word] = field(default_factory=list)
    strings: list[Word] = field(default_factory=list)
    """Its input from <<<."""


@dataclass(slots=True)
class Script:
    source: str
    places: list[Place] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)
    written: list[Word] = field(default_factory=list)
    """The files that redirections write."""
    defines_functions: bool = False


def scan(source: str) -> Script:
    scanner = _Scanner(source)
    try:
        scanner.commands()
    except RecursionError:
        raise ExpressionError("the command is nested too deeply, so values cannot be put into it") from None
    scanner.script.places.sort(key=lambda place: place.number)
    return scanner.script


@dataclass(slots=True)
class _List:
    """An open list of commands."""

    closing: str = ""
    fed: Spans = ()
    around: list[tuple[int, int]] = field(default_factory=list)
    """For each open compound command, the start of its pipeline and its own start."""
    cases: int = 0
    in_pattern: bool = False
    """Inside a pattern of `case`, which is not a command."""
    pipeline: int | None = None
    """The start of the open pipeline."""
    command: Command | None = None


class _Scanner:
    """Every method reads from `at`, and leaves `at` behind what it has read."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.at = 0
        self.end = len(source)
        self.script = Script(source)
        self.list = _List()
        self.words: list[Word] = []
        """The open words: those that a hole found now belongs to."""
        self.awaited: list[Document] = []
        self.in_ticks = False
        self.computed = False
        self.refusing = ""

    def sees(self, *texts: str) -> bool:
        return self.at < self.end and self.source.startswith(texts, self.at)

    def more(self, closing: str = "") -> bool:
        """Whether there is text before `closing`, and before the backtick that closes the commands around."""
        if self.at >= self.end or (closing and self.source.startswith(closing, self.at)):
            return False
        return not (self.in_ticks and self.source[self.at] == "`")

    def text(self, text: str) -> None:
        if self.words:
            self.words[-1].text += text

    # Lists of commands

    def nested(self, closing: str, fed: Spans = ()) -> None:
        """Read commands up to and past a parenthesis or a backtick."""
        outer = self.words, self.list, self.in_ticks
        self.words, self.list, self.in_ticks = [], _List(closing, fed), closing == "`"
        known = len(self.script.places)
        self.commands()
        self.words, self.list, self.in_ticks = outer
        self.at += closing == "`"
        for word in self.words:
            word.places += self.script.places[known:]

    def commands(self) -> None:
        while self.more() and self.element():
            pass
        self.finish()

    def element(self) -> bool:
        """Read a blank, an operator or a word; False if it closes the list."""
        start, here = self.at, self.list
        if self.sees(" ", "\t", "\\\n"):
            self.skip_blanks()
        elif self.sees("#"):
            while self.more("\n"):
                self.piece(Quoting.COMMENT, _PLAIN["\n"])
        elif self.sees("("):
            self.parenthesis()
        elif self.sees("<(", ">("):
            self.substitution()
        elif found := _REDIRECTION.match(self.source, start, self.end):
            self.redirection(found[0])
        elif found := _OPERATOR.match(self.source, start, self.end):
            self.at = found.end()
            self.finish()
            if found[0] not in ("|", "|&"):
                here.pipeline = None
            here.in_pattern |= here.cases > 0 and found[0] in _ENDS_OF_CASES
            if found[0] == "\n":
                self.bodies()
        elif self.sees(")"):
            self.at += 1
            self.finish()
            closes, here.in_pattern, here.pipeline = not here.in_pattern, False, None
            return not (closes and here.closing == ")")
        elif self.sees("<", ">"):
            self.at += 1
        else:
            word = self.word()
            if not (word.text.isdigit() and not word.quoted and self.sees("<", ">")):
                self.member(word)  # else it is the number of what is redirected
        return True

    def begin(self, start: int) -> Spans:
        """The spans that feed a command that starts here."""
        here = self.list
        if here.pipeline is None:
            here.pipeline = start
        return (*here.fed, *here.around, (here.pipeline, start))

    def current(self, start: int) -> Command:
        if self.list.command is None:
            self.list.command = Command(self.begin(start))
        return self.list.command

    def finish(self) -> None:
        if self.list.command is not None and not self.list.in_pattern:
            self.script.commands.append(self.list.command)
        self.list.command = None

    def member(self, word: Word) -> None:
        """Add a word to the current command."""
        here, command = self.list, self.list.command
        plain = not word.quoted and not word.places and EXPANSION not in word.text
        fresh = command is None or not (command.words or command.assignments)
        if plain and fresh and word.text in _RESERVED and (word.text == "esac" or not here.in_pattern):
            self.reserved(word)
            return
        command = self.current(word.start)
        if not command.words and ASSIGNMENT.match(word.text):
            command.assignments.append(word)
            return
        command.words.append(word)
        if plain and word.text == "do" and command.words[0].text in _LOOPS:
            self.finish()
        elif plain and word.text == "[[" and len(command.words) == 1 and "]]" in self.source[word.end :]:
            self.brackets(command)

    def reserved(self, word: Word) -> None:
        here = self.list
        if word.text in _OPENS:
            fed = self.begin(word.start)
            here.around.append(fed[-1])
            here.command = here.pipeline = None
            if word.text == "case":
                here.cases += 1
                here.in_pattern = True
                for _ in range(2):  # WORD in
                    self.skip_blanks("\n")
                    self.word()
            elif word.text in _LOOPS:  # NAME in WORDS follow, which is no command
                self.current(word.start).words.append(word)
        elif word.text in _CLOSES:
            here.command = None
            here.pipeline = here.around.pop()[0] if here.around else None
            here.cases -= word.text == "esac"
            here.in_pattern = False
        elif word.text == "function":
            self.script.defines_functions = True

    def brackets(self, command: Command) -> None:
        """Read the words of [[ … ]], where the operators of the shell have no meaning."""
        while self.more() and command.words[-1].text != "]]":
            if self.source[self.at] in _WORD_ENDS:
                self.at += 1
            else:
                command.words.append(self.word())
        self.finish()

    def parenthesis(self) -> None:
        start, command = self.at, self.list.command
        if self.list.in_pattern and command is None:
            self.at += 1  # before a pattern, whose end closes it
            return
        if command is None or (command.words[:1] and command.words[0].text in _LOOPS):
            close = self.closing_arithmetic(start + 2) if self.sees("((") else None
            if close is not None:
                self.arithmetic(start + 2, close)
                return
        elif _EMPTY.match(self.source, start, self.end):
            self.script.defines_functions = True
            self.list.command = None
        self.at += 1
        self.nested(")", self.begin(start))

    def substitution(self) -> None:
        """<( … ) or >( … ): a word that the shell makes."""
        word = Word(self.at, text=SUBSTITUTION)
        self.words.append(word)
        self.at += 2
        self.nested(")", self.begin(word.start))
        self.words.pop()
        word.end = self.at
        self.member(word)

    def redirection(self, operator: str) -> None:
        command = self.current(self.at)
        self.at += len(operator)
        self.skip_blanks()
        if not self.more() or self.source[self.at] in _WORD_ENDS:
            return
        target = self.word()
        if operator in ("<<", "<<-"):
            _refuse(target.places, "in the delimiter of a here-document")
            delimiter = target.text if target.quoted else self.source[target.start : target.end]
            strips, statement = operator == "<<-", command.fed[0][0]
            document = Document(target.start, target.end, delimiter, target.quoted, strips, statement)
            self.script.documents.append(document)
            self.awaited.append(document)
            return
        for place in target.places:
            place.whole = True
        if operator in (">&", "<&"):
            _refuse(target.places, "after >& or <&, where bash expands a word twice")
        if operator == "<<<":
            command.strings.append(target)
        elif operator != "<" and not (operator in (">&", "<&") and _DESCRIPTOR.fullmatch(target.text)):
            self.script.written.append(target)

    def skip_blanks(self, *others: str) -> None:
        while self.sees(" ", "\t", "\\\n", *others):
            self.at += 2 if self.sees("\\") else 1

    # Words

    def word(self) -> Word:
        word = Word(self.at)
        self.words.append(word)
        while self.more() and self.source[self.at] not in _WORD_ENDS:
            if self.sees("'"):
                self.quoted("'", Quoting.SINGLE)
            elif self.sees('"'):
                self.quoted('"', Quoting.DOUBLE)
            else:
                word.quoted |= self.sees("\\")
                self.piece(Quoting.BARE, _PLAIN_WORD)
        word.end = min(self.at, self.end)
        self.words.pop()
        if _ITEM.match(word.text):
            _refuse(word.places, "in the subscript of an array, which bash evaluates")
        return word

    def quoted(self, quote: str, quoting: Quoting) -> None:
        if self.words:
            self.words[-1].quoted = True
        ticks, self.in_ticks = self.in_ticks, False
        self.at += 1
        self.until(quote, quoting)
        self.at += 1
        self.in_ticks = ticks

    def until(self, closing: str, quoting: Quoting) -> None:
        while self.more(closing):
            self.piece(quoting, _PLAIN[closing])

    def piece(self, quoting: Quoting, plain: re.Pattern[str]) -> None:
        """Read plain text, a hole, an escaped character or an expansion."""
        if found := plain.match(self.source, self.at, self.end):
            self.text(found[0])
            self.at = found.end()
        elif self.sees(HOLE):
            self.hole(quoting)
        elif self.sees("\\"):
            self.escaped(quoting)
        elif self.sees("$"):
            self.dollar(quoting)
        elif self.sees("`"):
            self.backticks()
        else:
            self.text(self.source[self.at])
            self.at += 1

    def hole(
        self, quoting: Quoting, *, start: int | None = None, before: str = "", whole: bool = False
    ) -> Place:
        number = self.source.count(HOLE, 0, self.at)
        if quoting is Quoting.BARE and self.words:
            whole |= ASSIGNMENT.match(self.words[-1].text) is not None
        start = self.at if start is None else start
        self.at += 1
        place = Place(number, start, self.at, quoting, before, whole, self.computed, self.refusing)
        self.script.places.append(place)
        for word in self.words:
            word.places.append(place)
        self.text(HOLE)
        return place

    def escaped(self, quoting: Quoting) -> None:
        """A backslash outside single quotes, with what follows it."""
        start, bare = self.at, quoting is Quoting.BARE
        self.at += 1
        following = self.source[self.at : self.at + 1]
        if following == HOLE and self.at < self.end:
            # It would quote the first character of the value (bare), or is only a backslash.
            self.text("" if bare else "\\")
            self.hole(quoting, start=start, before="" if bare else "\\\\", whole=bare)
            return
        self.at += 1
        if following != "\n":
            special = '$`\\"' if quoting is Quoting.DOUBLE else "$`\\"
            self.text(following if bare or following in special else "\\" + following)

    # Expansions

    def dollar(self, quoting: Quoting) -> None:
        start = self.at
        if self.sees("$" + HOLE):
            # A dollar sign before a value is a dollar sign: a value is not the name of a variable.
            self.at += 1
            self.text("$")
            self.hole(quoting, start=start, before="\\$")
            return
        self.text(EXPANSION)
        if quoting is Quoting.BARE and (found := _ANSI.match(self.source, start, self.end)):
            self.refuse_until(found.end(), "in $'…'")
            if "\\'" in found[0]:  # dash reads a dollar sign and single quotes
                self.refusing = "after $'…\\'…', which shells read differently"
        elif self.sees("$((") and (close := self.closing_arithmetic(start + 3)) is not None:
            self.arithmetic(start + 3, close)
        elif self.sees("$("):
            self.at += 2
            self.nested(")")
        elif found := _PARAMETER.match(self.source, start, self.end):
            self.parameter(found, quoting)
        elif found := _OLD_ARITHMETIC.match(self.source, start, self.end):
            self.refuse_until(found.end(), "inside $[…] (write $((…)) instead)")
        elif found := _NAME.match(self.source, start + 1, self.end):
            self.at = found.end()
        else:
            if self.words:
                self.words[-1].text = self.words[-1].text[:-1] + "$"
            self.at += 1

    def refuse_until(self, end: int, why: str) -> None:
        while (hole := self.source.find(HOLE, self.at, end)) >= 0:
            self.at = hole
            _refuse([self.hole(Quoting.DOUBLE)], why)
        self.at = end

    def closing_arithmetic(self, start: int) -> int | None:
        """The offset of the )) that closes arithmetic; None if it is a list of commands instead."""
        depth = 0
        for found in _PARENTHESES.finditer(self.source, start, self.end):
            if found[0] == "(":
                depth += 1
            elif depth:
                depth -= 1
            else:
                return found.start() if self.source.startswith("))", found.start()) else None
        return None

    def arithmetic(self, start: int, close: int) -> None:
        outer = self.end, self.computed
        self.at, self.end, self.computed = start, close, True
        self.until("", Quoting.DOUBLE)
        self.end, self.computed = outer
        self.at = close + 2

    def parameter(self, found: re.Match[str], quoting: Quoting) -> None:
        """Read ${name…}. The operation after the name decides what a hole inside means."""
        refusing, self.at = self.refusing, found.end()
        if found[1] is None:
            self.refusing = "in the name of a variable, in its subscript or in a position"
        inside = Quoting.BARE if quoting is Quoting.BARE else Quoting.DOUBLE
        while self.more("}"):
            if self.sees('"'):
                self.quoted('"', Quoting.DOUBLE)
            elif self.sees("'") and inside is Quoting.BARE:
                self.quoted("'", Quoting.SINGLE)
            else:
                if self.sees("'"):  # text in some shells and operations, a quote in others
                    self.refusing = "after a single quote inside ${…} inside double quotes"
                self.piece(inside, _PLAIN["}"])
        self.refusing = refusing
        self.at += 1

    def backticks(self) -> None:
        start = self.at
        self.at += 1
        self.text(EXPANSION)
        known = len(self.script.places)
        self.nested("`")
        if "\\" in self.source[start : self.at]:
            _refuse(self.script.places[known:], "in backticks with a backslash (write $(…) instead)")

    # Here-documents

    def bodies(self) -> None:
        awaited, self.awaited = self.awaited, []
        for document in awaited:
            after = self.find_body(document)
            end, self.end = self.end, document.body.end
            self.words.append(document.body)
            while self.more():
                if document.literal:
                    self.piece(Quoting.LITERAL, _PLAIN["'"])
                else:
                    self.piece(Quoting.BODY, _PLAIN[""])
            self.words.pop()
            self.at, self.end = after, end

    def find_body(self, document: Document) -> int:
        """Set the span of the body, and return the offset after its last line."""
        tabs = "\t*" if document.strip_tabs else ""
        last_line = re.compile(rf"^{tabs}({re.escape(document.delimiter)})(?:\n|\Z)", re.M)
        document.body.start, document.body.end, after = self.at, self.end, self.end
        for found in last_line.finditer(self.source, self.at, self.end):
            body = self.source[self.at : found.start()].removesuffix("\n")
            is_continued = (len(body) - len(body.rstrip("\\"))) % 2 == 1
            if document.literal or not is_continued:
                document.close = found.start(1)
                document.body.end, after = found.start(), found.end()
                break
        return after


def _refuse(places: list[Place], why: str) -> None:
    for place in places:
        place.refused = place.refused or why
