"""The feature rows of docs/features.md, and the tests that prove them: `make rows` prints both.

A test proves the rows that it, or its module, names with `pytest.mark.rows("G1", "G2")`. Tests are read, not
imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FEATURES = ROOT / "docs" / "features.md"
TESTS = ROOT / "tests"
_ROW = re.compile(r"^\| ([A-Z]\d+) \| (.+?) \| (\w+) \|$", re.M)


class Row(NamedTuple):
    id: str
    what: str
    state: str
    """`proved` or `planned`."""


class Proof(NamedTuple):
    row: str
    test: str
    """Where the test is, as pytest names it."""


def rows() -> list[Row]:
    return [Row(*found) for found in _ROW.findall(FEATURES.read_text(encoding="utf-8"))]


def proofs() -> list[Proof]:
    """Every row that a test names, with the test."""
    return [proof for path in sorted(TESTS.rglob("test_*.py")) for proof in proofs_in(path)]


def proofs_in(path: Path) -> Iterator[Proof]:
    module = ast.parse(path.read_text(encoding="utf-8"))
    where = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    of_all = [row for statement in module.body for row in _rows_of_all(statement)]
    for test in ast.walk(module):
        if isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef) and test.name.startswith("test_"):
            own = [row for decorator in test.decorator_list for row in _rows_named(decorator)]
            for row in dict.fromkeys([*of_all, *own]):
                yield Proof(row, f"{where}::{test.name}")


def _rows_of_all(statement: ast.stmt) -> Iterator[str]:
    """The rows that a module names for all of its tests: `pytestmark = pytest.mark.rows("G1")`."""
    if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "pytestmark":
        marks = statement.value.elts if isinstance(statement.value, ast.List) else [statement.value]
        for mark in marks:
            yield from _rows_named(mark)


def _rows_named(mark: ast.expr) -> Iterator[str]:
    if not isinstance(mark, ast.Call) or ast.unparse(mark.func) != "pytest.mark.rows":
        return
    for argument in mark.args:
        if not isinstance(argument, ast.Constant) or not isinstance(argument.value, str):
            raise ValueError(f"write the row as text: {ast.unparse(mark)}")
        yield argument.value


def listed(rows: Sequence[Row], proofs: Iterable[Proof]) -> Iterator[str]:
    """Every row with the number of its tests; then what is not proved."""
    tests: dict[str, set[str]] = {row.id: set() for row in rows}
    for proof in proofs:
        tests.setdefault(proof.row, set()).add(proof.test)
    for row in rows:
        note = f"  ({row.state})" if row.state != "proved" else ""
        yield f"{row.id:<4}{len(tests[row.id]):>4}  {row.what[:90]}{'…' if len(row.what) > 90 else ''}{note}"
    unproved = [row.id for row in rows if not tests[row.id]]
    yield ""
    yield f"{len(rows) - len(unproved)} of {len(rows)} rows are proved by tests"
    if unproved:
        yield "not proved: " + ", ".join(unproved)


if __name__ == "__main__":
    print("\n".join(listed(rows(), proofs())))
