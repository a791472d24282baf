r"""Parses a shell command that has holes in the places of values.

    script = read("echo \"$HOME/\0\" | sort")
    script.places[0].quoting                                     # Quoting.DOUBLE
    [[word.text for word in it.words] for it in script.commands] # [["echo", "\1/\0"], ["sort"]]

The result has the quotes around each hole, and the words of each simple command. The parser reads what dash,
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
    "word": re.compile(r"[^ \t\n;&|<>()\\'\"$`\0]+"),
    "single": re.compile(r"[^'\0]+"),
    "double": re.compile(r"[^\\\"$`\0]+"),
    "body": re.compile(r"[^\\$`\0]+"),
    "parameter": re.compile(r"[^\\\"'$`\0}]+"),
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*|[0-9@*#?$!-]")
_BRACED_NAME = re.compile(r"(?:[#!](?=[A-Za-z_0-9@*?$!-]))?(?:[A-Za-z_][A-Za-z_0-9]*|[0-9]+|[@*#?$!-])")
_REDIRECTION = re.compile(r"&>>|&>|<<<|<<-|<<|<>|<&|>>|>&|>\||<(?!\()|>(?!\()")
_OPERATOR = re.compile(r"&&|\|\||;;&|;;|;&|;\||\|&|[;&|]")
_EMPTY = re.compile(r"\(\s*\)")
_WORD_ENDS = frozenset(" \t\n;&|<>()")
_OPENS = frozenset({"if", "while", "until", "for", "select", "case", "{"})
_CLOSES = frozenset({"fi", "done", "esac", "}"})
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

    start: int
    statement: int
    """The start of its outermost pipeline."""
    fed: Spans
    """The spans of the commands that may feed it: earlier in its pipeline, or around it."""
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
    defines_functions: bool = False


def read(source: str) -> Script:
    reader = _Reader(source)
    try:
        reader.commands("")
    except RecursionError:
        raise ExpressionError("the command is nested too deeply, so values cannot be put into it") from None
    return reader.script


class _Reader:
    def __init__(self, source: str) -> None:
        self.source = source
        self.end = len(source)
        self.at = 0
        self.script = Script(source)
        self.words: list[Word] = []
        """The open words, each inside an expansion of the previous one."""
        self.awaited: list[Document] = []
        self.computed = 0
        self.in_ticks = False
        self.refusing = ""

    def sees(self, *texts: str) -> bool:
        return self.at < self.end and self.source.startswith(texts, self.at)

    def more(self, closing: str = "") -> bool:
        return self.at < self.end and not (closing and self.source.startswith(closing, self.at))

    def text(self, text: str) -> None:
        if self.words:
            self.words[-1].text += text

    # Lists of commands

    def commands(self, closing: str, statement: int | None = None, fed: Spans = ()) -> None:
        """Reads commands up to and past `closing`, which is `)`, a backtick or nothing."""
        outer, self.words = self.words, []
        ticks, self.in_ticks = self.in_ticks, closing == "`"
        known = len(self.script.places)
        _List(self, closing, statement, fed).read()
        self.words, self.in_ticks = outer, ticks
        for word in outer:
            word.places += self.script.places[known:]

    def word(self) -> Word:
        word = Word(self.at)
        self.words.append(word)
        while self.more() and self.source[self.at] not in _WORD_ENDS:
            if self.in_ticks and self.sees("`"):
                break
            if self.sees("'"):
                word.quoted = True
                self.quoted("'", Quoting.SINGLE)
            elif self.sees('"'):
                word.quoted = True
                self.quoted('"', Quoting.DOUBLE)
            elif self.sees(HOLE):
                self.hole(Quoting.BARE, whole=ASSIGNMENT.match(word.text) is not None)
            else:
                word.quoted |= self.sees("\\")
                self.piece(Quoting.BARE, "word")
        word.end = min(self.at, self.end)
        self.words.pop()
        if _ITEM.match(word.text):
            self.refuse(word.places, "in the subscript of an array, which bash evaluates")
        return word

    def quoted(self, quote: str, quoting: Quoting) -> None:
        self.at += 1
        ticks, self.in_ticks = self.in_ticks, False
        while self.more(quote):
            self.piece(quoting, "single" if quoting is Quoting.SINGLE else "double")
        self.at += 1
        self.in_ticks = ticks

    def piece(self, quoting: Quoting, plain: str) -> None:
        """Read the next part of a word, of quotes or of a here-document."""
        if found := _PLAIN[plain].match(self.source, self.at, self.end):
            self.text(found[0])
            self.at = found.end()
        elif self.sees(HOLE):
            self.hole(quoting)
        elif self.sees("\\"):
            self.escaped(quoting)
        elif self.sees("$"):
            self.dollar(quoting)
        elif self.sees("`"):
            self.backticks(quoting)
        else:
            self.text(self.source[self.at])
            self.at += 1

    def hole(
        self, quoting: Quoting, *, start: int | None = None, before: str = "", whole: bool = False
    ) -> Place:
        number = self.source.count(HOLE, 0, self.at)
        first = self.at if start is None else start
        place = Place(number, first, self.at + 1, quoting, before, whole, self.computed > 0, self.refusing)
        self.at += 1
        self.script.places.append(place)
        for word in self.words:
            word.places.append(place)
        self.text(HOLE)
        return place

    def refuse(self, places: list[Place], why: str) -> None:
        for place in places:
            place.refused = place.refused or why

    def escaped(self, quoting: Quoting) -> None:
        """A backslash outside single quotes, with what follows it."""
        start = self.at
        self.at += 1
        if self.sees(HOLE):
            # It would quote the first character of the value (bare), or is only a backslash.
            bare = quoting is Quoting.BARE
            if not bare:
                self.text("\\")
            self.hole(quoting, start=start, before="" if bare else "\\\\", whole=bare)
            return
        following = self.source[self.at : self.at + 1]
        self.at += 1
        if following != "\n":
            special = '$`\\"' if quoting is Quoting.DOUBLE else "$`\\"
            self.text(following if quoting is Quoting.BARE or following in special else "\\" + following)

    # Expansions

    def dollar(self, quoting: Quoting) -> None:
        start = self.at
        if self.sees("$" + HOLE):
            # A dollar sign before a value is a dollar sign: a value is not the name of a variable.
            self.at += 1
            self.text("$")
            self.hole(quoting, start=start, before="\\$")
        elif self.sees("$'") and quoting is Quoting.BARE:
            self.ansi()
        elif self.sees("$((") and (close := self.closing_arithmetic(start + 3)) is not None:
            self.arithmetic(start + 3, close)
            self.text(EXPANSION)
        elif self.sees("$("):
            self.at += 2
            self.commands(")")
            self.text(EXPANSION)
        elif self.sees("${"):
            self.parameter(quoting)
            self.text(EXPANSION)
        elif self.sees("$["):
            self.text("$[")
            self.at += 2
            self.refuse_until("]", "inside $[…] (write $((…)) instead)")
        elif found := _NAME.match(self.source, start + 1, self.end):
            self.at = found.end()
            self.text(EXPANSION)
        else:
            self.text("$")
            self.at += 1

    def refuse_until(self, closing: str, why: str) -> None:
        end = self.source.find(closing, self.at, self.end)
        while self.at < (self.end if end < 0 else end):
            if self.sees(HOLE):
                self.hole(Quoting.DOUBLE).refused = why
            else:
                self.text(self.source[self.at])
                self.at += 1

    def closing_arithmetic(self, start: int) -> int | None:
        """The offset of the )) that closes arithmetic; None if it is a list of commands instead."""
        depth = 0
        for found in re.compile(r"[()]").finditer(self.source, start, self.end):
            if found[0] == "(":
                depth += 1
            elif depth:
                depth -= 1
            else:
                return found.start() if self.source.startswith("))", found.start()) else None
        return None

    def arithmetic(self, start: int, close: int) -> None:
        self.at, end, self.end = start, self.end, close
        self.computed += 1
        self.words.append(Word(start))
        while self.more():
            self.piece(Quoting.DOUBLE, "body")
        self.words.pop()
        self.computed -= 1
        self.at, self.end = close + 2, end

    def ansi(self) -> None:
        """Read $'…', which dash reads as a dollar sign and single quotes."""
        self.at += 2
        while self.more("'"):
            if self.sees("\\'"):
                self.refusing = "after $'…\\'…', which shells read differently"
            if self.sees("\\") and not self.sees("\\" + HOLE):
                self.at += 2
            elif self.sees(HOLE):
                self.hole(Quoting.SINGLE).refused = "in $'…'"
            else:
                self.at += 1
        self.at += 1
        self.text(EXPANSION)

    def parameter(self, quoting: Quoting) -> None:
        """Read ${name…}. The operator after the name decides what a hole inside means."""
        self.at += 2
        refusing = self.refusing
        if found := _BRACED_NAME.match(self.source, self.at, self.end):
            self.at = found.end()
        if self.sees(HOLE):
            self.refusing = "in the name of a variable"
        elif self.sees("["):
            self.refusing = "in the subscript of an array, which bash evaluates"
        elif self.sees("@"):
            self.refusing = "as an operation on a variable"
        elif self.sees(":") and not self.sees(":-", ":=", ":?", ":+"):
            self.refusing = "in ${name:…}, where bash evaluates a position"
        self.words.append(Word(self.at))
        inside = Quoting.BARE if quoting is Quoting.BARE else Quoting.DOUBLE
        while self.more("}"):
            if self.sees('"'):
                self.quoted('"', Quoting.DOUBLE)
            elif self.sees("'") and inside is Quoting.BARE:
                self.quoted("'", Quoting.SINGLE)
            elif self.sees("'"):
                # Text in some shells and operations, a quote in others.
                before, self.refusing = self.refusing, "in single quotes inside ${…} inside double quotes"
                self.at += 1
                while self.more("'") and not self.sees("}"):
                    self.piece(Quoting.DOUBLE, "parameter")
                self.refusing = before
                self.at += self.sees("'")
            else:
                self.piece(inside, "parameter")
        self.words.pop()
        self.refusing = refusing
        self.at += 1

    def backticks(self, quoting: Quoting) -> None:
        start = self.at
        self.at += 1
        known = len(self.script.places)
        self.commands("`")
        if "\\" in self.source[start : self.at]:
            self.refuse(self.script.places[known:], "in backticks with a backslash (write $(…) instead)")
        self.text(EXPANSION)

    # Here-documents

    def bodies(self) -> None:
        awaited, self.awaited = self.awaited, []
        for document in awaited:
            after = self.find_body(document)
            end, self.end = self.end, document.body.end
            self.words.append(document.body)
            while self.more():
                if document.literal:
                    self.piece(Quoting.LITERAL, "single")
                else:
                    self.piece(Quoting.BODY, "body")
            self.words.pop()
            self.at, self.end = after, end

    def find_body(self, document: Document) -> int:
        """Set the span of the body, and return the offset after its last line."""
        line_start = document.body.start = self.at
        continued = False
        while line_start < self.end:
            line_end = self.source.find("\n", line_start, self.end)
            line_end = self.end if line_end < 0 else line_end
            line = self.source[line_start:line_end]
            bare = line.lstrip("\t") if document.strip_tabs else line
            if bare == document.delimiter and not continued:
                document.close = line_end - len(bare)
                document.body.end = line_start
                return min(line_end + 1, self.end)
            continued = not document.literal and (len(line) - len(line.rstrip("\\"))) % 2 == 1
            line_start = line_end + 1
        document.body.end = self.end
        return self.end


class _List:
    """Assembles the commands of a list: a script, or the content of parentheses."""

    def __init__(self, reader: _Reader, closing: str, statement: int | None, fed: Spans) -> None:
        self.reader = reader
        self.closing = closing
        self.statement = statement
        self.fed = fed
        self.pipeline: int | None = None
        """The start of the open pipeline."""
        self.around: list[tuple[int, int]] = []
        """For each open compound command, the start of its pipeline and its own start."""
        self.cases: list[str] = []
        """For each open `case`, what comes next: word, in, pattern or body."""
        self.parentheses = 0
        self.brackets = False
        self.loop = False
        """Inside `for NAME in WORDS`, which is not a command."""
        self.command: Command | None = None

    def read(self) -> None:
        reader = self.reader
        while reader.more():
            character = reader.source[reader.at]
            if character in " \t":
                reader.at += 1
            elif reader.sees("\\\n"):
                reader.at += 2
            elif character == "\n":
                reader.at += 1
                self.separator("\n")
                reader.bodies()
            elif character == "#":
                self.comment()
            elif character == "`" and self.closing == "`":
                reader.at += 1
                break
            elif character == ")":
                reader.at += 1
                if not self.closes_parenthesis() and self.closing == ")":
                    break
            elif character == "(":
                self.parenthesis()
            elif reader.sees("<(", ">("):
                self.substitution()
            elif not self.brackets and (found := _REDIRECTION.match(reader.source, reader.at, reader.end)):
                self.redirection(found[0])
            elif found := _OPERATOR.match(reader.source, reader.at, reader.end):
                reader.at = found.end()
                self.separator(found[0])
            elif character in "<>":
                reader.at += 1
            else:
                word = reader.word()
                if not (word.text.isdigit() and not word.quoted and reader.sees("<", ">")):
                    self.word(word)  # else it is the number of what is redirected
        self.finish()

    def begin(self, start: int) -> tuple[int, Spans]:
        """The start of the outermost pipeline, and the spans that feed a command that starts here."""
        if self.pipeline is None:
            self.pipeline = start
        spans = (*self.fed, *self.around, (self.pipeline, start))
        return (spans[0][0] if self.statement is None else self.statement), spans

    def current(self, start: int) -> Command:
        if self.command is None:
            self.command = Command(start, *self.begin(start))
        return self.command

    def finish(self) -> None:
        if self.command is not None:
            self.reader.script.commands.append(self.command)
        self.command, self.brackets, self.loop = None, False, False

    def separator(self, operator: str) -> None:
        in_pattern = bool(self.cases) and self.cases[-1] != "body"
        if self.brackets or (in_pattern and operator in ("|", "\n")):
            return
        self.finish()
        if operator in (";;", ";&", ";;&", ";|") and self.cases:
            self.cases[-1] = "pattern"
        if operator not in ("|", "|&"):
            self.pipeline = None

    def comment(self) -> None:
        reader = self.reader
        while reader.more("\n"):
            if reader.sees(HOLE):
                reader.hole(Quoting.COMMENT)
            else:
                reader.at += 1

    # Parentheses

    def parenthesis(self) -> None:
        reader = self.reader
        start = reader.at
        if self.brackets or (self.cases and self.cases[-1] == "pattern"):
            if (
                self.brackets or self.command is not None
            ):  # the one before a whole pattern is closed by its end
                self.parentheses += 1
            reader.at += 1
            return
        if self.command is None or self.loop:
            close = reader.closing_arithmetic(start + 2) if reader.sees("((") else None
            if close is not None:
                reader.arithmetic(start + 2, close)
                return
        elif _EMPTY.match(reader.source, start, reader.end):
            reader.script.defines_functions = True
            self.command = None
        statement, fed = self.begin(start)
        reader.at += 1
        reader.commands(")", statement, fed)

    def closes_parenthesis(self) -> bool:
        """Whether a closing parenthesis belongs to a pattern or to [[ ]], and does not end the list."""
        if self.parentheses:
            self.parentheses -= 1
            return True
        if self.cases and self.cases[-1] == "pattern":
            self.cases[-1] = "body"
            self.command = self.pipeline = None
            return True
        return self.brackets

    def substitution(self) -> None:
        """<( … ) or >( … ): a word that the shell makes."""
        reader = self.reader
        word = Word(reader.at, text=SUBSTITUTION)
        statement, fed = self.begin(word.start)
        reader.words.append(word)
        reader.at += 2
        reader.commands(")", statement, fed)
        reader.words.pop()
        word.end = reader.at
        self.word(word)

    # Words

    def redirection(self, operator: str) -> None:
        reader = self.reader
        command = self.current(reader.at)
        reader.at += len(operator)
        while reader.sees(" ", "\t", "\\\n"):
            reader.at += 2 if reader.sees("\\") else 1
        if not reader.more() or reader.source[reader.at] in _WORD_ENDS:
            return
        target = reader.word()
        if operator in ("<<", "<<-"):
            reader.refuse(target.places, "in the delimiter of a here-document")
            delimiter = target.text if target.quoted else reader.source[target.start : target.end]
            document = Document(
                target.start, target.end, delimiter, target.quoted, operator == "<<-", command.statement
            )
            reader.script.documents.append(document)
            reader.awaited.append(document)
            return
        for place in target.places:
            place.whole = True
        if operator in (">&", "<&"):
            reader.refuse(target.places, "after >& or <&, where bash expands a word twice")
        if operator == "<<<":
            command.strings.append(target)

    def word(self, word: Word) -> None:
        plain = not word.quoted and not word.places and EXPANSION not in word.text
        if self.in_case(word, plain):
            return
        fresh = self.command is None or not (self.command.words or self.command.assignments)
        if plain and fresh and word.text in _RESERVED:
            self.reserved(word)
            return
        command = self.current(word.start)
        if not command.words and ASSIGNMENT.match(word.text):
            command.assignments.append(word)
            return
        command.words.append(word)
        if plain and ((self.brackets and word.text == "]]") or (self.loop and word.text == "do")):
            self.finish()
        elif plain and len(command.words) == 1 and word.text == "[[":
            self.brackets = "]]" in self.reader.source[word.end :]

    def reserved(self, word: Word) -> None:
        if word.text in _OPENS:
            self.begin(word.start)
            self.around.append((self.pipeline or 0, word.start))
            self.command = self.pipeline = None
            if word.text == "case":
                self.cases.append("word")
            elif word.text in ("for", "select"):
                self.current(word.start).words.append(word)
                self.loop = True
        elif word.text in _CLOSES:
            self.command = None
            self.pipeline = self.around.pop()[0] if self.around else None
            if word.text == "esac" and self.cases:
                self.cases.pop()
        elif word.text == "function":
            self.reader.script.defines_functions = True

    def in_case(self, word: Word, plain: bool) -> bool:
        if not self.cases or self.cases[-1] == "body":
            return False
        if self.cases[-1] == "word":
            self.cases[-1] = "in"
        elif self.cases[-1] == "in":
            self.cases[-1] = "pattern"
        elif plain and word.text == "esac" and self.command is None:
            self.reserved(word)
        else:
            self.current(word.start)
        return True
