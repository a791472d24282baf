"""Putting the words of a shell script together to simple commands.

Knows reserved words, where the patterns of a `case` are (their closing parenthesis closes nothing else), what
is piped into what, and that [[ ]] is one command whatever operators stand in it. It must not know quoting,
nor what any command does.
"""

from __future__ import annotations

import re

from workflows_mcp.expressions.shell_script import Command, Piece, Script

ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z_0-9]*(?:\[[^\]]*\])?\+?=")
_GO_ON = frozenset("if then elif else while until do done fi { } ! time -p coproc".split())  # noqa: SIM905
"""Words after which a command still comes, or may; -p is an option of `time`."""
_CLAUSES = frozenset({"for", "select", "function", "[["})


class CommandReader:
    """Reads one list of commands: a script, or what stands in parentheses."""

    def __init__(self, script: Script, fed_by: Command | None = None) -> None:
        self._script = script
        self._fed_by = fed_by
        self._cases: list[str] = []
        """For each `case` that is open what comes next: word, in, pattern or body."""
        self._parentheses = 0
        self._last = Command()
        self.command = Command()

    @property
    def expects_command(self) -> bool:
        return not self.command.words or self.command.clause == "for"

    @property
    def in_brackets(self) -> bool:
        return self.command.clause == "[["

    @property
    def in_pattern(self) -> bool:
        return bool(self._cases) and self._cases[-1] == "pattern"

    def opens_parenthesis(self) -> bool:
        """Whether a parenthesis here is part of a pattern or of [[ ]] instead of opening a list."""
        if not (self.in_brackets or self.in_pattern):
            return False
        if self.in_brackets or self.command.words:  # the one before a whole pattern is closed by its end
            self._parentheses += 1
        return True

    def closes_parenthesis(self) -> bool:
        """Whether a closing parenthesis here belongs to a pattern or to [[ ]] instead of ending the list."""
        if self._parentheses:
            self._parentheses -= 1
            return True
        if self.in_pattern:
            self._cases[-1] = "body"
            self.command = Command()
            return True
        return self.in_brackets

    def newline(self) -> None:
        if not self.in_brackets and not (self._cases and self._cases[-1] != "body"):
            self.end()

    def operator(self, operator: str) -> None:
        if self.in_brackets or (self.in_pattern and operator == "|"):
            return
        self.end()
        if operator in ("|", "|&"):
            self._fed_by = self._last
        elif operator in (";;", ";&") and self._cases:
            self._cases[-1] = "pattern"

    def end(self) -> Command:
        """Ends the command under way; what it was is also what a pipe that follows would read from."""
        ended = self._last = self.command
        if ended.pieces:
            self._script.commands.append(ended)
            if self._fed_by is not None:
                self._fed_by.feeds = ended
                ended.fed_by_group = not self._fed_by.pieces
                self._fed_by = None
        self.command = Command()
        return ended

    def take_pipe(self) -> Command | None:
        """What is piped into a list in parentheses that begins here."""
        fed_by, self._fed_by = self._fed_by, None
        return fed_by

    def after_parentheses(self) -> None:
        """Past a subshell, the head of a function, or the items of an array."""
        if not (self.command.words and self.command.words[-1].text.endswith("=")):
            self.end()
            self._last = Command()

    def word(self, word: Piece) -> None:
        command = self.command
        if self._in_case(word):
            return
        if command.clause == "[[":
            command.words.append(word)
            if word.plain and word.text == "]]":
                self.end()
        elif command.clause:
            command.words.append(word)
            if command.clause == "function" or (len(command.words) == 3 and word.text == "do"):
                self.end()
        elif not command.words and not command.assignments and word.plain and self._reserved(word):
            return
        elif not command.words and ASSIGNMENT.match(word.text):
            command.assignments.append(word)
        else:
            command.words.append(word)

    def _reserved(self, word: Piece) -> bool:
        if word.text in _GO_ON:
            self._last = Command()
        elif word.text == "case":
            self._cases.append("word")
        elif word.text == "esac" and self._cases:
            self._cases.pop()
        elif word.text in _CLAUSES:
            if word.text == "[[" and "]]" not in self._script.source[word.end :]:
                return False
            self.command.clause = word.text
            self.command.words.append(word)
        else:
            return False
        return True

    def _in_case(self, word: Piece) -> bool:
        if not self._cases or self._cases[-1] == "body":
            return False
        if self._cases[-1] == "word":
            self._cases[-1] = "in"
        elif self._cases[-1] == "in":
            self._cases[-1] = "pattern"
        elif word.plain and word.text == "esac" and not self.command.words:
            self._cases.pop()
            self.command = Command()
        else:
            self.command.words.append(word)
        return True
