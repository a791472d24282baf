"""Where a reader of a shell script is, and what it has collected: `shell_syntax` is the reader.

Holes are numbered in the order in which they stand in the source, whatever order they are read in.
"""

from __future__ import annotations

import re

from workflows_mcp.expressions.shell_script import EXPANSION, HOLE, Hole, Piece, Quoting, Script


class ScriptCursor:
    def __init__(self, source: str) -> None:
        self.script = Script(source)
        self.source = source
        self.at = 0
        self.end = len(source)
        self.piece: Piece | None = None
        """The word or here-document under way; None where text belongs to neither."""
        self.arithmetic = 0
        """In how many places that are computed the reader is."""
        self.refusing = ""
        """Why no value can stand here, if none can."""
        self._numbers = {found.start(): number for number, found in enumerate(re.finditer(HOLE, source))}

    def sees(self, *texts: str) -> bool:
        return self.source.startswith(texts, self.at, self.end)

    def more(self) -> bool:
        return self.at < self.end

    def text(self, text: str) -> None:
        if self.piece is not None:
            self.piece.parts.append(text)

    def expanded(self, start: int, quoting: Quoting) -> None:
        if self.piece is not None:
            self.piece.parts.append(EXPANSION)
            self.piece.expansions.append((start, min(self.at, self.end), quoting is Quoting.DOUBLE))

    def hole(self, quoting: Quoting, start: int | None = None, before: str = "") -> None:
        hole = Hole(
            number=self._numbers[self.at],
            start=self.at if start is None else start,
            end=self.at + 1,
            quoting=quoting,
            before=before,
            arithmetic=self.arithmetic > 0,
            refused=self.refusing,
        )
        self.at += 1
        self.script.holes.append(hole)
        if self.piece is not None:
            self.piece.parts.append(HOLE)
            self.piece.holes.append(hole)

    def refused_hole(self, reason: str) -> None:
        self.hole(Quoting.DOUBLE)
        self.script.holes[-1].refused = reason
