"""Broken files, and tables of what is wrong with them.

A line of a table is a problem (P) or a warning (W): its code, its line and column, and what its message and its hint
say. Every problem shows file, line and column, the line itself, and what to do.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from workflows_mcp.dialects import load
from workflows_mcp.errors import DefinitionError, Problem
from workflows_mcp.steps.registry import default_registry


class Expected(NamedTuple):
    code: str
    line: int
    column: int
    message: str
    hint: str
    warning: bool = False


P = Expected
Table = dict[str, list[Expected]]
"""By the name of the file."""


def W(code: str, line: int, column: int, message: str, hint: str) -> Expected:
    return Expected(code, line, column, message, hint, warning=True)


def problems_of(path: Path) -> list[Problem]:
    """All that is wrong with a file."""
    with pytest.raises(DefinitionError) as caught:
        load(path.read_text(encoding="utf-8"), file=path.name, registry=default_registry())
    return caught.value.problems


def errors_first(expected: list[Expected]) -> list[Expected]:
    """In the order in which problems are told."""
    return sorted(expected, key=lambda it: it.warning)


def every_file_is_in(table: Table, directory: Path) -> bool:
    return sorted(path.stem for path in directory.glob("*.yaml")) == sorted(table)


def kinds_in(table: Table) -> set[tuple[str, str]]:
    return {(it.code, it.message) for problems in table.values() for it in problems}


def shows_where_and_what(problem: Problem, path: Path) -> None:
    """Fails unless a problem shows its place, the line itself, and what to do."""
    lines = path.read_text(encoding="utf-8").split("\n")
    assert problem.place is not None
    assert problem.place.text == lines[problem.place.line - 1]
    assert problem.hint
    shown = str(problem)
    assert shown.startswith(f"{path.name}:{problem.place.line}:{problem.place.column}: ")
    assert problem.place.text in shown
    assert problem.hint in shown
