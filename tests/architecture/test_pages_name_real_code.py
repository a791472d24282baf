"""What the pages about the code name exists: modules, classes, methods, functions."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "workflows_mcp"
PAGES = ("how-it-works.md", "contributing.md", "glossary.md")
NEW_IN_EXAMPLES = {"Renamed", "RunCount", "workflow_count_runs"}
"""Names that a page invents, for something that a reader adds."""


def spans(page: str) -> list[str]:
    """The code in a page that stands inside of sentences, without tables of retired words."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").partition("\n## Retired words\n")[0]
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M))


def known_names() -> set[str]:
    """Every identifier of the code, and every method with its class."""
    names: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        names.add(path.stem)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                members = {
                    it.name for it in node.body if isinstance(it, ast.FunctionDef | ast.AsyncFunctionDef)
                }
                members |= {
                    it.target.id
                    for it in node.body
                    if isinstance(it, ast.AnnAssign) and isinstance(it.target, ast.Name)
                }
                names |= {f"{node.name}.{member}" for member in members}
                names.add(node.name)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.Name):
                names.add(node.id)
            elif isinstance(node, ast.Attribute):
                names.add(node.attr)
            elif isinstance(node, ast.arg | ast.keyword) and node.arg:
                names.add(node.arg)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                names.add(node.value)
    return names


@pytest.mark.parametrize("page", PAGES)
def test_modules_exist(page: str) -> None:
    named = {it for it in spans(page) if re.fullmatch(r"[\w./]*\w+\.py|\w+/", it)}
    missing = [
        it
        for it in sorted(named)
        if not any((base / it).exists() for base in (SOURCE, ROOT, SOURCE / "mcp_server" / "tools"))
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES)
def test_classes_methods_and_functions_exist(page: str) -> None:
    known = known_names()
    pattern = r"_?[a-z]+(?:_[a-z]+)+|[A-Z][a-z]+(?:[A-Z][a-z]+)+|[A-Z]\w+\.\w+"
    named = {it.removesuffix("()") for it in spans(page)}
    missing = [
        it
        for it in sorted(named - NEW_IN_EXAMPLES)
        if re.fullmatch(pattern, it) and it not in known and not it.endswith((".md", ".py"))
    ]
    assert missing == []
