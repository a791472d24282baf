"""Compares the problems of definition files with the expected ones beside them.

    tests/testdata/ok/<dialect>/NAME.yaml     loads; its warnings, if it has any, are in NAME.expected
    tests/testdata/err/<dialect>/NAME.yaml    does not load; its problems are in NAME.expected

A case with several files is a folder NAME: main.yaml is validated, it calls the others, and main.expected
holds the problems.

An expected file holds what `workflows-mcp validate` prints, with the code of each problem in brackets after
its message. After a change of a message, rewrite all expected files and read the diff:

    python tests/dialects/test_definitions.py
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from workflows_mcp.dialects import Definition, load
from workflows_mcp.errors import DefinitionError, Problem
from workflows_mcp.library.catalog import Catalog
from workflows_mcp.steps.registry import default_registry

TESTDATA = Path(__file__).resolve().parents[1] / "testdata"
CASES = sorted(
    path
    for path in TESTDATA.glob("*/*/**/*.yaml")
    if path.name == "main.yaml" or not path.with_name("main.yaml").exists()
)
REGISTRY = default_registry()
ALL_CASES = pytest.mark.parametrize(
    "path", CASES, ids=["-".join(path.relative_to(TESTDATA).with_suffix("").parts) for path in CASES]
)


def problems_of(path: Path) -> list[Problem]:
    """All problems and warnings of a file, as `workflows-mcp validate` finds them."""

    def read(text: str, file: str) -> Definition:
        return load(text, file=file, registry=REGISTRY)

    text = path.read_text(encoding="utf-8")
    # Files of a case are named as seen from their folder. A file that stands alone must not see its neighbours.
    is_folder = path.name == "main.yaml"
    with contextlib.chdir(path.parent if is_folder else TESTDATA):
        try:
            return Catalog(None, (), read).check_text(text, file=path.name)
        except DefinitionError as error:
            return error.problems


def render(problem: Problem) -> str:
    first, newline, rest = str(problem).partition("\n")
    return f"{first} [{problem.code}]{newline}{rest}\n"


def render_problems(path: Path) -> str:
    return "".join(map(render, problems_of(path)))


@pytest.mark.rows("G16", "G24", "R2", "R4", "R6", "R7", "R13", "S1", "S2", "S6", "S10", "S16", "S17")
@ALL_CASES
def test_a_file_has_exactly_the_expected_problems(path: Path) -> None:
    expected = path.with_suffix(".expected")
    assert render_problems(path) == (expected.read_text(encoding="utf-8") if expected.exists() else "")


@ALL_CASES
def test_only_files_below_err_have_errors(path: Path) -> None:
    has_errors = any(not problem.warning for problem in problems_of(path))
    assert has_errors == path.is_relative_to(TESTDATA / "err")


@pytest.mark.rows("G24")
@ALL_CASES
def test_every_problem_shows_its_line_and_how_to_fix_it(path: Path) -> None:
    for problem in problems_of(path):
        assert problem.place is not None
        lines = path.with_name(problem.place.file).read_text(encoding="utf-8").split("\n")
        assert problem.place.text == lines[problem.place.line - 1]
        assert problem.hint
        shown = str(problem)
        assert shown.startswith(f"{problem.place}: ")
        assert problem.place.text in shown
        assert problem.hint in shown


def test_every_expected_file_belongs_to_a_case() -> None:
    assert set(TESTDATA.rglob("*.expected")) <= {path.with_suffix(".expected") for path in CASES}


def rewrite_expected_files() -> None:
    for path in CASES:
        expected, found = path.with_suffix(".expected"), render_problems(path)
        if found:
            expected.write_text(found, encoding="utf-8")
        else:
            expected.unlink(missing_ok=True)


if __name__ == "__main__":
    rewrite_expected_files()
    print(f"{len(CASES)} cases are up to date; read the diff before you commit it")
