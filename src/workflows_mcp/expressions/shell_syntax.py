r"""Reading a shell script with holes in it: which quotes stand around each hole, and which command it is in.

The script is text in which every HOLE character stands for a value that is not known yet. What comes out says
for each hole how a reference to a variable has to be written there, and lists the simple commands with their
words. It reads what dash and bash agree on, and of bash's own syntax what matters for that. It must not know
values, nor what any command does with its words.

    scan('echo "$HOME/\0" | sort')     # a hole in double quotes; a command that is piped into another

A script that it misreads is still safe: only references are ever put in, and would merely stand in the wrong
quotes.
"""

from __future__ import annotations

import re
from functools import lru_cache

from workflows_mcp.errors import StepError
from workflows_mcp.expressions.shell_commands import ASSIGNMENT, CommandReader
from workflows_mcp.expressions.shell_cursor import ScriptCursor
from workflows_mcp.expressions.shell_script import (
    HOLE,
    Backticks,
    Command,
    HereDocument,
    Piece,
    Quoting,
    Script,
)

_BLANK = " \t"
_WORD_ENDS = frozenset(" \t\n;&|<>()")
_IN_WORD = re.compile(r"[^ \t\n;&|<>()\\'\"$`\0\[\]]+")
_IN_SINGLE = re.compile(r"[^'\0]+")
_IN_DOUBLE = re.compile(r"[^\\\"$`\0]+")
_IN_HERE = re.compile(r"[^\\$`\0]+")
_IN_LITERAL = re.compile(r"[^\0]+")
_IN_SUBSCRIPT = re.compile(r"[^\\$`\0\]}]+")
_ITEM = re.compile(r"(?:[A-Za-z_][A-Za-z_0-9]*)?")
"""What stands before the subscript of an item of an array: its name, or nothing inside a=( … )."""
_SIMPLE_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z_0-9]*|[0-9@*#?$!-]")
_BRACED_PARAMETER = re.compile(r"(?:[#!](?=[A-Za-z_0-9@*?$!-]))?(?:[A-Za-z_][A-Za-z_0-9]*|[0-9]+|[@*#?$!-])")
_REDIRECTION = re.compile(r"&>>|&>|<<<|<<-|<<|<>|<&|>>|>&|>\||<|>")
_MOST_ATTEMPTS = 200


def scan(source: str) -> Script:
    """Reads a script. The result is shared and must not be changed."""
    return _scan(source) if len(source) < 10_000 else _scan.__wrapped__(source)


@lru_cache(maxsize=512)
def _scan(source: str) -> Script:
    scanner = _Scanner(source)
    try:
        scanner.commands("")
    except RecursionError:
        raise StepError("the command is nested too deeply to put values into it") from None
    return scanner.script


class _Scanner(ScriptCursor):
    def __init__(self, source: str) -> None:
        super().__init__(source)
        self._awaited: list[HereDocument] = []
        """Here-documents whose bodies begin after the next newline."""
        self._attempts = 0

    # Lists of commands

    def commands(self, closing: str, fed_by: Command | None = None) -> Command:
        """Reads commands up to and past `closing`, which is `)` or nothing; gives the last one."""
        outer, self.piece = self.piece, None
        reader = CommandReader(self.script, fed_by)
        while self.more():
            character = self.source[self.at]
            if character in _BLANK:
                self.at += 1
            elif self.sees("\\\n"):
                self.at += 2
            elif character == "\n":
                self.at += 1
                reader.newline()
                self._here_documents()
            elif character == "#":
                self._comment()
            elif character == ")":
                self.at += 1
                if not reader.closes_parenthesis() and closing:
                    break
            elif character == "(":
                self._parenthesis(reader)
            elif not reader.in_brackets and (found := _REDIRECTION.match(self.source, self.at, self.end)):
                self._redirection(found[0], reader)
            elif character in ";&|<>":
                self._operator(reader)
            else:
                word = self._word()
                if not (word.plain and word.text.isdigit() and self.sees("<", ">")):
                    reader.word(word)  # else it is the number of what is redirected
        last = reader.end()
        self.piece = outer
        return last

    def _operator(self, reader: CommandReader) -> None:
        operator = next(
            (two for two in ("&&", "||", ";;", ";&", "|&") if self.sees(two)), self.source[self.at]
        )
        self.at += len(operator)
        if operator == ";;" and self.sees("&"):
            self.at += 1
        reader.operator(operator)

    def _parenthesis(self, reader: CommandReader) -> None:
        if reader.opens_parenthesis():
            self.at += 1
            return
        if not (self.sees("((") and reader.expects_command and self._arithmetic_text("((")):
            self.at += 1
            self.commands(")", reader.take_pipe())
        reader.after_parentheses()

    def _redirection(self, operator: str, reader: CommandReader) -> None:
        self.at += len(operator)
        if operator in ("<", ">") and self.sees("("):
            self.at += 1
            inner = self.commands(")")
            if operator == "<":
                inner.feeds = reader.command
            return
        while self.more() and self.source[self.at] in _BLANK:
            self.at += 1
        if not self.more() or self.source[self.at] in _WORD_ENDS:
            return
        if operator in ("<<", "<<-"):
            document = self._delimiter(strip_tabs=operator == "<<-")
            reader.command.documents.append(document)
            self.script.documents.append(document)
            self._awaited.append(document)
            return
        target = self._word()
        for hole in target.holes:
            hole.whole = True
            hole.arithmetic |= operator in (">&", "<&")  # bash expands a name there a second time
        if operator == "<<<":
            reader.command.here_strings.append(target)

    def _comment(self) -> None:
        while self.more() and self.source[self.at] != "\n":
            if self.sees(HOLE):
                self.hole(Quoting.COMMENT)
            else:
                self.at += 1

    # Words

    def _word(self) -> Piece:
        piece = self.piece = Piece(self.at)
        in_subscript = False
        while self.more():
            found = _IN_WORD.match(self.source, self.at, self.end)
            if found:
                piece.parts.append(found[0])
                self.at = found.end()
                continue
            character = self.source[self.at]
            if character in _WORD_ENDS:
                break
            if character in "[]":
                if character == "[":
                    in_subscript = piece.plain and _ITEM.fullmatch("".join(piece.parts)) is not None
                self.text(character)
                self.at += 1
                if character == "]" and in_subscript:
                    in_subscript = False
                    if self.sees("=", "+="):
                        for hole in piece.holes:
                            hole.arithmetic = True
            elif character == HOLE:
                whole = ASSIGNMENT.match("".join(piece.parts)) is not None
                self.hole(Quoting.BARE)
                piece.holes[-1].whole = whole
            elif character == "'":
                piece.quoted = True
                self._single()
            elif character == '"':
                piece.quoted = True
                self._double()
            else:
                piece.quoted |= character == "\\"
                self._inside(Quoting.BARE, _IN_WORD)
        piece.finish(min(self.at, self.end))  # an open quote at the end goes one too far
        self.piece = None
        return piece

    def _inside(self, quoting: Quoting, ordinary: re.Pattern[str]) -> None:
        """One step through text in which backslashes, dollar signs and backticks are special."""
        found = ordinary.match(self.source, self.at, self.end)
        if found:
            self.text(found[0])
            self.at = found.end()
        elif self.sees(HOLE):
            self.hole(quoting)
        elif self.sees("\\"):
            self._escaped(quoting)
        elif self.sees("$"):
            self._dollar(quoting)
        elif self.sees("`"):
            self._backticks(quoting)
        else:
            self.text(self.source[self.at])
            self.at += 1

    def _escaped(self, quoting: Quoting) -> None:
        """A backslash outside single quotes, with what follows it."""
        start = self.at
        self.at += 1
        following = self.source[self.at] if self.more() else ""
        if following == HOLE:
            # It would quote the first character of the value (bare), or is just a backslash.
            if quoting is Quoting.BARE:
                self.hole(quoting, start)
                self.script.holes[-1].whole = True
            else:
                self.text("\\")
                self.hole(quoting, start, "\\\\")
            return
        self.at += 1
        if following == "\n":
            return
        special = quoting is Quoting.BARE or following in '$`\\"'
        if following == '"' and quoting is Quoting.HERE:
            special = False
        self.text(following if special else "\\" + following)

    def _single(self) -> None:
        self.at += 1
        while self.more() and not self.sees("'"):
            self._inside(Quoting.SINGLE, _IN_SINGLE)
        self.at += 1

    def _double(self) -> None:
        self.at += 1
        while self.more() and not self.sees('"'):
            self._inside(Quoting.DOUBLE, _IN_DOUBLE)
        self.at += 1

    def _ansi(self) -> None:
        """$'…' of bash; where shells end it at different places, nothing after it can be trusted."""
        start = self.at
        self.at += 2
        while self.more() and not self.sees("'"):
            if self.sees("\\'"):
                self.refusing = "after $'…\\'…', which shells read differently"
                self.at += 2
            elif self.sees("\\" + HOLE):
                self.at += 1
                self.refused_hole("after a backslash in $'…'")
            elif self.sees("\\"):
                self.at += 2
            elif self.sees(HOLE):
                self.hole(Quoting.ANSI)
            else:
                self.at += 1
        self.at += 1
        self.expanded(start, Quoting.BARE)

    # Expansions

    def _dollar(self, quoting: Quoting) -> None:
        start = self.at
        if self.sees("$" + HOLE):
            # A dollar sign before a value is a dollar sign: a value is not the name of a variable.
            self.at += 1
            self.text("$")
            self.hole(quoting, start, "\\$")
            return
        if self.sees("$'") and quoting is Quoting.BARE:
            self._ansi()
            return
        piece, self.piece = self.piece, None
        if self.sees("$("):
            if not (self.sees("$((") and self._arithmetic_text("$((")):
                self.at += 2
                self.commands(")")
        elif self.sees("${"):
            self._parameter(quoting)
        elif self.sees("$["):
            self._old_arithmetic()
        elif found := _SIMPLE_PARAMETER.match(self.source, start + 1, self.end):
            self.at = found.end()
        else:
            self.piece = piece
            self.text("$")
            self.at += 1
            return
        self.piece = piece
        self.expanded(start, quoting)

    def _parameter(self, quoting: Quoting) -> None:
        """${name…}: what follows the name decides what a hole in there would be."""
        self.at += 2
        found = _BRACED_PARAMETER.match(self.source, self.at, self.end)
        if found:
            self.at = found.end()
        if self.sees(HOLE):
            self.refused_hole("in the name of a variable")
        if self.sees("["):
            self.arithmetic += 1
            while self.more() and not self.sees("]", "}"):
                self._inside(Quoting.DOUBLE, _IN_SUBSCRIPT)
            self.arithmetic -= 1
            self.at += self.sees("]")
        if self.sees("@" + HOLE):
            self.at += 1
            self.refused_hole("as an operation on a variable")
        substring = self.sees(":") and not self.sees(":-", ":=", ":?", ":+")
        pattern = self.sees("#", "%", "/", "^", ",")
        self.arithmetic += substring
        self._parameter_word(quoting, pattern)
        self.arithmetic -= substring

    def _parameter_word(self, quoting: Quoting, pattern: bool) -> None:
        in_quotes = quoting is not Quoting.BARE
        while self.more() and not self.sees("}"):
            if self.sees("'") and (pattern or not in_quotes):
                refusing = self.refusing
                if in_quotes:
                    self.refusing = "in single quotes inside ${…} inside double quotes"
                self._single()
                self.refusing = refusing
            elif self.sees('"'):
                self._double()
            elif self.sees("\\", "$", "`", HOLE):
                self._inside(Quoting.DOUBLE if in_quotes else Quoting.BARE, _IN_DOUBLE)
            else:
                self.at += 1
        self.at += 1

    def _arithmetic_text(self, opening: str) -> bool:
        """Reads $(( … )) or (( … )). False if it ends otherwise: then it is a list of commands."""
        self._attempts += 1
        if self._attempts > _MOST_ATTEMPTS:
            return False
        start, refusing, awaited = self.at, self.refusing, len(self._awaited)
        found = self.script
        counts = [len(kind) for kind in (found.holes, found.commands, found.documents, found.backticks)]
        self.arithmetic += 1
        self.at += len(opening)
        depth = 0
        while self.more() and not (depth == 0 and self.sees(")")):
            if self.sees("\\", "$", "`", HOLE):
                self._inside(Quoting.DOUBLE, _IN_DOUBLE)
            else:
                depth += self.sees("(") - self.sees(")")
                self.at += 1
        self.arithmetic -= 1
        if self.sees("))"):
            self.at += 2
            return True
        holes, commands, documents, backticks = counts
        del found.holes[holes:], found.commands[commands:], found.documents[documents:]
        del found.backticks[backticks:], self._awaited[awaited:]
        self.at, self.refusing = start, refusing
        return False

    def _old_arithmetic(self) -> None:
        """$[ … ] of bash; elsewhere it is text, in which a number does no harm either."""
        self.at += 2
        self.arithmetic += 1
        while self.more() and not self.sees("]", '"', "'", "\n", " "):
            if self.sees("\\", "$", "`", HOLE):
                self._inside(Quoting.DOUBLE, _IN_DOUBLE)
            else:
                self.at += 1
        self.arithmetic -= 1

    def _backticks(self, quoting: Quoting) -> None:
        start = self.at
        self.at += 1
        protected = ("\\`", "\\\\", "\\$") if quoting is Quoting.BARE else ("\\`", "\\\\", "\\$", '\\"')
        text: list[str] = []
        while self.more() and not self.sees("`"):
            self.at += self.sees(*protected)
            text.append(self.source[self.at])
            self.at += 1
        self.at = min(self.at + 1, self.end)
        self.script.backticks.append(Backticks(start, self.at, "".join(text), quoting is Quoting.DOUBLE))
        self.expanded(start, quoting)

    # Here-documents

    def _delimiter(self, *, strip_tabs: bool) -> HereDocument:
        start = self.at
        word = self._word()
        for hole in word.holes:
            hole.refused = "in the word that ends a here-document"
        delimiter = word.text if word.quoted else self.source[start : self.at]
        return HereDocument(start, self.at, delimiter, word.quoted, strip_tabs)

    def _here_documents(self) -> None:
        awaited, self._awaited = self._awaited, []
        for document in awaited:
            after = self._find_body(document)
            end, self.end = self.end, document.body.end
            self.piece = document.body
            while self.more():
                if document.literal:
                    self._inside(Quoting.LITERAL, _IN_LITERAL)
                else:
                    self._inside(Quoting.HERE, _IN_HERE)
            document.body.finish(self.end)
            self.piece = None
            self.at, self.end = after, end

    def _find_body(self, document: HereDocument) -> int:
        """Sets where the body is, and gives the position after it and its last line."""
        line_start = document.body.start = self.at
        continued = False
        while line_start < self.end:
            line_end = self.source.find("\n", line_start, self.end)
            line_end = self.end if line_end < 0 else line_end
            line = self.source[line_start:line_end]
            bare = line.lstrip("\t") if document.strip_tabs else line
            if bare == document.delimiter and not continued:
                document.close_start = line_end - len(bare)
                document.body.end = line_start
                return min(line_end + 1, self.end)
            continued = not document.literal and (len(line) - len(line.rstrip("\\"))) % 2 == 1
            line_start = line_end + 1
        document.body.end = self.end
        return self.end
