"""Retired words stay out of the code and the pages. `docs/glossary.md` lists them."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
SECTION = "\n## Retired words\n"

STORED = re.compile(r'(msgspec\.field\([^)]*name=|[A-Z] = (?="~))"~?\w+"')
"""A name in stored plans and events: of a field, or the suffix of a key. It may be older than the list."""

_BETWEEN = r"(?:[\s_-]|\"\s*f?\"|\n\s*#)+"
"""What can be between two words of a phrase: a line break in a comment, a string in two pieces."""

ANY = "…"
"""In a phrase: one to four words, such as the object in `carries … out`."""
_ANY_WORDS = rf"(?:[\w`'@-]+(?:\.[\w`'@-]+)*{_BETWEEN}){{1,4}}?"


class Retired(NamedTuple):
    phrases: tuple[str, ...]
    names: frozenset[str]


def retired(glossary: str) -> Retired:
    """The first column of the two tables: phrases, and names of the code."""
    section = glossary.partition(SECTION)[2].partition("\n## ")[0]
    phrases, names = section.partition("\n### Names\n")[::2]
    return Retired(tuple(_first_column(phrases)), frozenset(_first_column(names)))


def _first_column(text: str) -> Iterator[str]:
    for row in re.findall(r"^\| (`.*?) \|", text, re.M):
        yield from re.findall(r"`([^`]+)`", row)


def found_in(path: Path, text: str, words: Retired) -> list[str]:
    """The retired words of a file, each with its line."""
    pattern = "|".join(map(_pattern_of, words.phrases))
    found = [
        (text.count("\n", 0, match.start()) + 1, " ".join(match[0].split()))
        for match in re.finditer(rf"(?<![A-Za-z])(?:{pattern})(?![A-Za-z])", text, re.I)
    ]
    found += [(line, name) for line, name in _names(path, text) if name.strip("_") in words.names]
    return [f"{path.name}:{line} {word}" for line, word in sorted(found)]


def _pattern_of(phrase: str) -> str:
    before, _, after = phrase.partition(f" {ANY} ")
    parts = [_BETWEEN.join(map(re.escape, part.split())) for part in (before, after) if part]
    return f"{_BETWEEN}{_ANY_WORDS}".join(parts)


def _names(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """The names of Python code."""
    if path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME:
                yield token.start[0], token.string


def files() -> list[Path]:
    found = [ROOT / name for name in ("README.md", "CHANGELOG.md", "Makefile")]
    found += [*(ROOT / "docs").glob("*.md"), *(ROOT / "plugin").rglob("*.md")]
    found += [*(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.yaml")]
    return sorted(found)


def text_of(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    return text.partition(SECTION)[0] if path == GLOSSARY else STORED.sub(r'\1""', text)


def test_no_file_uses_a_retired_word() -> None:
    words = retired(GLOSSARY.read_text(encoding="utf-8"))
    found = {path.relative_to(ROOT).as_posix(): found_in(path, text_of(path), words) for path in files()}
    wrong = {path: uses for path, uses in found.items() if uses}
    assert wrong == {}, "docs/glossary.md, 'Retired words', says what to write instead"


def test_the_glossary_explains_every_retired_word() -> None:
    rows = re.findall(r"^\| `.*$", GLOSSARY.read_text(encoding="utf-8").partition(SECTION)[2], re.M)
    assert [row for row in rows if len([it for it in row.split("|") if it.strip()]) != 2] == []
    words = retired(GLOSSARY.read_text(encoding="utf-8"))
    assert len(words.phrases) > 10
    assert len(words.names) > 20


def test_modules_that_the_glossary_names_exist() -> None:
    text = GLOSSARY.read_text(encoding="utf-8").partition(SECTION)[0]
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", text))
    source = ROOT / "src" / "workflows_mcp"
    missing = [name for name in sorted(named - {"src/workflows_mcp/"}) if not (source / name).exists()]
    assert missing == []
    assert len(named) > 20


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.py", "# The run goes\n# on here.\n", ["a.py:1 goes # on"]),
        ("a.py", 'error = "it goes " "on"\n', ['a.py:1 goes " "on']),
        ("a.py", "def bury(it): ...\n", ["a.py:1 bury"]),
        ("a.py", "progress_told = 1\n", ["a.py:1 told"]),
        ("a.py", "buried = 'bury'\n", []),
        ("a.md", "Whoever asks `bury()`", ["a.md:1 Whoever"]),
        ("a.md", "to bury a recommended value", []),
        ("a.yaml", "description: goes on", ["a.yaml:1 goes on"]),
        ("a.md", "a worker\ncarries the step out, or", ["a.md:2 carries the step out"]),
        ("a.md", "It carries a very long list of things out.", []),
        ("a.md", "What it carries it says. Look out", []),
    ],
)
def test_uses_are_found(name: str, text: str, expected: list[str]) -> None:
    words = Retired(("goes on", "whoever", "told", "mend", "carries … out"), frozenset({"bury"}))
    assert found_in(Path(name), text, words) == expected
