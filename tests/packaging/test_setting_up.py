"""`make setup` with a Python that is too old, and after one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OLD = """\
#!/bin/sh
[ "$1" = -c ] || exit 9
exec '{python}' -c 'import sys; sys.version_info = (3, 9, 18); exec(sys.argv[1])' "$2"
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def make(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    keep = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    return subprocess.run(
        ["make", *arguments], cwd=checkout, env=keep, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_python_that_is_too_old_is_refused_with_the_line_that_names_another(checkout: Path) -> None:
    old = checkout / "python3"
    old.write_text(OLD.format(python=sys.executable), encoding="utf-8")
    old.chmod(0o755)
    said = make(checkout, "setup", f"PYTHON={old}")
    assert said.returncode != 0
    assert f"{old} is Python 3.9, and workflows-mcp needs 3.11 or later" in said.stderr
    assert "make setup PYTHON=python3.11" in said.stderr
    assert not (checkout / ".venv").exists()


def test_what_an_old_python_has_left_unfinished_is_begun_anew_and_what_is_ready_is_kept(
    checkout: Path,
) -> None:
    ready = checkout / ".venv" / ".ready"
    ready.parent.mkdir()
    assert (
        f"{sys.executable} -m venv --clear .venv\n"
        in make(checkout, "-n", "setup", f"PYTHON={sys.executable}").stdout
    )
    ready.touch()
    os.utime(ready, (0, 0))
    assert (
        f"{sys.executable} -m venv .venv\n"
        in make(checkout, "-n", "setup", f"PYTHON={sys.executable}").stdout
    )


def test_the_readme_says_how_to_name_another_python() -> None:
    assert "make setup PYTHON=python3.11" in (ROOT / "README.md").read_text(encoding="utf-8")
