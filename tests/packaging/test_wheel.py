"""The wheel is the program: built from this source, put into a virtual environment of its own, and used there.

Nothing is downloaded: the backend that builds it is a tool of development, and what the package depends on is
borrowed from the environment that runs the tests. So these tests say that the package is whole, and that it says
what it needs; not that a registry has it.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from workflows_mcp import __version__

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "workflows_mcp"
OF_OTHERS = {"pydantic-core": "pydantic"}
"""Packages that exist only as a part of another one, which depends on exactly one version of them."""


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


@dataclass(frozen=True)
class Installed:
    wheel: Path
    bin: Path
    home: Path

    def __call__(self, *words: str) -> str:
        """Run a program of the environment, from a directory that has nothing to do with the source."""
        done = subprocess.run(
            [self.bin / words[0], *words[1:]],
            cwd=self.home,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.home),
                "WORKFLOWS_HOME": str(self.home / "runs"),
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    place = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    offline = ["--no-index", "--no-deps"]
    built = ["wheel", *offline, "--no-build-isolation", "--wheel-dir", str(place), str(ROOT)]
    subprocess.run([*pip, *built], check=True, timeout=120)
    [wheel] = place.glob("*.whl")
    fresh = place / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(fresh)], check=True, timeout=60)
    python = str(fresh / "bin" / "python")
    subprocess.run([*pip, "--python", python, "install", *offline, str(wheel)], check=True, timeout=120)
    [packages] = fresh.glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    home = place / "home"
    home.mkdir()
    return Installed(wheel, fresh / "bin", home)


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_package_and_the_licence(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as wheel:
        inside = set(wheel.namelist())
    source = {
        f"workflows_mcp/{path.relative_to(SOURCE).as_posix()}"
        for path in SOURCE.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert {"workflows_mcp/py.typed", "workflows_mcp/library/templates/examples/hello.yaml"} <= source
    assert source - inside == set()
    plugin = {
        f"workflows_mcp/plugin/{path.relative_to(ROOT / 'plugin').as_posix()}"
        for path in (ROOT / "plugin").rglob("*")
        if path.is_file()
    }
    assert "workflows_mcp/plugin/skills/writing-workflows/SKILL.md" in plugin
    assert plugin - inside == set()
    others = {name for name in inside - source - plugin if ".dist-info/" not in name}
    assert others == set(), "tests, benches and the like stay at home"
    assert f"workflows_mcp-{__version__}.dist-info/licenses/LICENSE" in inside


@pytest.mark.slow
def test_what_the_wheel_installs_is_the_program_and_runs_a_built_in_workflow(installed: Installed) -> None:
    where = installed("python", "-c", "import workflows_mcp; print(workflows_mcp.__file__)")
    assert Path(where.strip()).is_relative_to(installed.bin.parent), "and not the source beside it"
    assert installed("workflows-mcp", "--version").strip() == f"workflows-mcp {__version__}"
    assert "Hello, world!" in installed("workflows-mcp", "run", "example-hello")
    plugin = Path(installed("workflows-mcp", "plugin").strip())
    assert (plugin / ".claude-plugin" / "plugin.json").is_file()


@pytest.mark.slow
def test_everything_that_the_source_imports_is_a_dependency_that_it_declares() -> None:
    declared = {_name(it) for it in project()["dependencies"]}
    temporal = {_name(it) for it in project()["optional-dependencies"]["temporal"]}
    of_module = packages_distributions()
    missing = set()
    for module, path in _imports():
        names = {_name(it) for it in of_module.get(module, [module])}
        names = {OF_OTHERS.get(it, it) for it in names}
        known = declared | (temporal if "temporal" in path else set())
        if module != "workflows_mcp" and not names & known:
            missing.add((module, path))
    assert missing == set()


def _imports() -> Iterator[tuple[str, str]]:
    """Every module from outside, with the file that imports it."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            for name in names:
                first = name.partition(".")[0]
                if first not in sys.stdlib_module_names:
                    yield first, path.relative_to(SOURCE).as_posix()


def _name(requirement: str) -> str:
    """The name of a package, as packages are compared."""
    for index, character in enumerate(requirement):
        if character in "<>=!~;[ ":
            requirement = requirement[:index]
            break
    return requirement.lower().replace("_", "-").replace(".", "-")
