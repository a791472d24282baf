"""What is known of a shell script with holes in it, as data: see `shell_syntax`, which finds it out.

Every hole stands for a value that is not known yet. Positions are offsets into the source.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

HOLE = "\0"
"""Stands in the source, and in the text of a word, for a value."""
EXPANSION = "\1"
"""Stands in the text of a word for what the shell itself will put there."""


class Quoting(Enum):
    BARE = "bare"
    DOUBLE = "in double quotes"
    SINGLE = "in single quotes"
    ANSI = "in $'…'"
    HERE = "in a here-document"
    LITERAL = "in a here-document with a quoted delimiter"
    COMMENT = "in a comment"


@dataclass(slots=True)
class Hole:
    """`start` to `end` is what a reference to the value replaces; `before` is put before the reference."""

    number: int
    start: int
    end: int
    quoting: Quoting
    before: str = ""
    whole: bool = False
    """Bare, but where splitting into words would be wrong: an assignment, a file to write to."""
    arithmetic: bool = False
    refused: str = ""
    """Why no value can stand here."""


@dataclass(slots=True)
class Piece:
    """A word, or a here-document, as the command will get it: quotes removed."""

    start: int
    end: int = 0
    text: str = ""
    holes: list[Hole] = field(default_factory=list)
    expansions: list[tuple[int, int, bool]] = field(default_factory=list)
    """For each EXPANSION in the text: where it stands in the source, and whether in double quotes."""
    quoted: bool = False
    parts: list[str] = field(default_factory=list)
    """The text while it is being read."""

    @property
    def plain(self) -> bool:
        """Neither quotes nor holes nor expansions: it can be a reserved word."""
        return not (self.quoted or self.holes or self.expansions)

    def finish(self, end: int) -> None:
        self.end = end
        self.text = "".join(self.parts)


@dataclass(slots=True)
class HereDocument:
    delimiter_start: int
    delimiter_end: int
    delimiter: str
    literal: bool
    """The delimiter is quoted: nothing in the body is special."""
    strip_tabs: bool
    body: Piece = field(default_factory=lambda: Piece(0))
    close_start: int | None = None
    """Where the delimiter stands that ends the body."""


@dataclass(slots=True)
class Command:
    """A simple command."""

    words: list[Piece] = field(default_factory=list)
    assignments: list[Piece] = field(default_factory=list)
    documents: list[HereDocument] = field(default_factory=list)
    here_strings: list[Piece] = field(default_factory=list)
    feeds: Command | None = None
    """The command that gets its output, through a pipe or <( )."""
    fed_by_group: bool = False
    """What is piped into it is the output of several commands together."""
    clause: str = ""
    """The reserved word that the words belong to instead of being a command: for, select, function, [[."""

    @property
    def pieces(self) -> list[Piece]:
        documents = [document.body for document in self.documents]
        return [*self.assignments, *self.words, *self.here_strings, *documents]

    @property
    def start(self) -> int:
        return min((piece.start for piece in self.pieces), default=0)


@dataclass(slots=True)
class Backticks:
    """`…`, a script of its own: `text` is that script, without the backslashes that protect it."""

    start: int
    end: int
    text: str
    in_quotes: bool


@dataclass(slots=True)
class Script:
    source: str
    holes: list[Hole] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    documents: list[HereDocument] = field(default_factory=list)
    backticks: list[Backticks] = field(default_factory=list)
