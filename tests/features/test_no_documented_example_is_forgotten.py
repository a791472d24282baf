"""Every example of the documents that describe the graph and the reactive dialect is run, as it is written there,
by some test.

The documents are not part of this repository: the tests run where they are found beside it. What counts as run
is a text that stands, word for word, in a test_documented_*.py and is used by a test that names the rows it proves.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

HERE = Path(__file__).resolve().parent
BESIDE = HERE.parents[2] / "shared" / "seeds"
DOCUMENTS = sorted(path for number in ("000", "001", "003") for path in BESIDE.glob(f"{number}_*.txt"))
_FENCE = re.compile(r"^ *```(yaml|python)\n(.*?)^ *```", re.M | re.S)
_EXPRESSION = re.compile(r'^"(.*\$\{.*)"', re.M)

pytestmark = pytest.mark.skipif(not DOCUMENTS, reason="the documents are not beside this repository")


def plain(text: str) -> str:
    """A text without what makes no difference: its indentation as a whole, and spaces at the end of lines."""
    return "\n".join(line.rstrip() for line in dedent(text).splitlines()).strip()


def examples() -> Iterator[str]:
    """Every block of YAML, and every expression that a block of Python lists."""
    for document in DOCUMENTS:
        for language, text in _FENCE.findall(document.read_text(encoding="utf-8")):
            if language == "yaml":
                yield plain(text)
            else:
                yield from _EXPRESSION.findall(text)


def texts_in_tests(path: Path) -> Iterator[str]:
    """The texts that tests with rows use: in themselves, or in what they name, however indirectly."""
    module = ast.parse(path.read_text(encoding="utf-8"))
    defined: dict[str, list[ast.stmt]] = {}
    for statement in module.body:
        for name in _names_defined(statement):
            defined.setdefault(name, []).append(statement)
    tests = [it for it in module.body if isinstance(it, ast.FunctionDef) and _names_rows(it)]
    waiting: list[ast.stmt] = [*tests]
    seen: set[int] = set()
    while waiting:
        statement = waiting.pop()
        if id(statement) in seen:
            continue
        seen.add(id(statement))
        for node in ast.walk(statement):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield plain(node.value)
            elif isinstance(node, ast.Name):
                waiting += defined.get(node.id, [])


def _names_defined(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
    return []


def _names_rows(test: ast.FunctionDef) -> bool:
    return test.name.startswith("test_") and any(
        "mark.rows(" in ast.unparse(it) for it in test.decorator_list
    )


def test_every_documented_example_is_run_by_a_test_that_names_its_rows() -> None:
    run = {text for path in HERE.glob("test_documented_*.py") for text in texts_in_tests(path)}
    found = list(examples())
    assert len(found) > 40, "the documents are read"
    forgotten = [example for example in found if example not in run]
    assert not forgotten, f"{len(forgotten)} examples are run by no test:\n\n" + "\n\n".join(forgotten)
