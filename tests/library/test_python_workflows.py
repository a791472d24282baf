"""setup-python-env, run-pytest, lint-python and python-ci-pipeline, with real tools and no network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.programs import Programs

pytestmark = pytest.mark.rows("G22")

TESTS = """
import pytest

def test_good(): pass

def test_bad(): assert 1 + 1 == 3, 'sums are "hard"'

@pytest.mark.skip
def test_later(): pass

@pytest.fixture
def broken(): raise ValueError("no")

def test_with_broken_fixture(broken): pass
"""


@pytest.fixture(autouse=True)
def _plain_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plugins of the development environment only make the tests inside of the tests slow."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.fixture
def project(workspace: Path) -> Path:
    path = workspace / "my project"
    path.mkdir()
    (path / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n")
    (path / "ruff.toml").write_text('cache-dir = ".cache"\n[lint]\nselect = ["F"]\n')
    return path


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment in which the tools of the development environment are found."""
    path = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True)
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    [theirs, ours] = [
        subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
        for python in (str(path / "bin" / "python"), sys.executable)
    ]
    (Path(theirs) / "tools.pth").write_text(ours + "\n")
    return path


# setup-python-env


def test_an_environment_is_made_once_and_kept(project: Path, programs: Programs, outputs: Any) -> None:
    # Without pip, which takes most of the time that it takes to make one.
    programs.add("python without pip", f'exec "{sys.executable}" "$@" --without-pip')
    inputs = {"project_path": "my project", "venv_path": "-the env", "python": "python without pip"}
    made = outputs("setup-python-env", inputs)
    assert made == {
        "python_path": str(project / "-the env" / "bin" / "python"),
        "version": ".".join(map(str, sys.version_info[:3])),
        "created": True,
        "installed": "",
    }
    assert outputs("setup-python-env", inputs) == {**made, "created": False}
    assert len(programs.calls) == 1


def test_requirements_are_installed_where_there_are_any(
    project: Path, environment: Path, outputs: Any, run: Any
) -> None:
    (project / ".venv").symlink_to(environment)
    name = "-needed $(touch pwned).txt"
    (project / name).write_text("pytest\n")
    inputs: dict[str, Any] = {"project_path": "my project", "requirements": name}
    assert outputs("setup-python-env", {**inputs, "packages": ["ruff"]})["installed"] == f"{name}, ruff"
    assert outputs("setup-python-env", {**inputs, "install": "none"})["installed"] == ""
    refused = run("setup-python-env", {**inputs, "packages": ["--help"]})["error"]
    assert f"pip could not install {name}, --help: it ended with code" in refused["message"]
    assert "Invalid requirement: '--help'" in refused["printed"]
    assert not (project / "pwned").exists()


def test_what_cannot_be_set_up_is_refused_before_anything_is_touched(
    project: Path, environment: Path, refusal: Any
) -> None:
    def said(**inputs: Any) -> str:
        message: str = refusal("setup-python-env", {"project_path": "my project", **inputs})
        return message

    before = sorted(project.iterdir())
    assert "is one of auto, requirements, project, none" in said(install="everything")
    assert "there is no 'python 9'" in said(python="python 9")
    assert "is no virtual environment" in said(venv_path=".")
    assert sorted(project.iterdir()) == before
    (project / ".venv").symlink_to(environment)
    assert "there is no file missing.txt" in said(install="requirements", requirements="missing.txt")
    assert "cannot be installed" in said(install="project")
    (project / "broken").mkdir()
    (project / "broken" / "pyvenv.cfg").write_text("")
    assert "is broken: remove it" in said(venv_path="broken")


# run-pytest


def test_failing_tests_are_a_result_with_counts_and_reasons(project: Path, outputs: Any) -> None:
    (project / "-test.py").write_text(TESTS)
    found = outputs(
        "run-pytest", {"project_path": "my project", "path": "-test.py", "python_path": sys.executable}
    )
    report = found.pop("report")
    failures = found.pop("failures")
    assert found == {"passed": False, "tests": 4, "succeeded": 1, "failed": 1, "errors": 1, "skipped": 1}
    assert "1 failed, 1 passed, 1 skipped, 1 error" in report
    assert [(failure["kind"], failure["test"].split(".")[-1]) for failure in failures] == [
        ("failure", "test_bad"),
        ("error", "test_with_broken_fixture"),
    ]
    assert 'sums are "hard"' in failures[0]["message"]


def test_passing_tests_chosen_by_arguments_with_spaces(project: Path, outputs: Any) -> None:
    (project / "test_it.py").write_text(TESTS)
    args = ["-k", "good and not bad", "-q"]
    found = outputs("run-pytest", {"project_path": "my project", "args": args, "python_path": sys.executable})
    assert (found["passed"], found["tests"], found["failures"]) == (True, 1, [])


def test_no_tests_and_files_that_cannot_be_read_are_results_too(project: Path, outputs: Any) -> None:
    inputs = {"project_path": "my project", "python_path": sys.executable}
    none = outputs("run-pytest", inputs)
    assert (none["passed"], none["tests"]) == (False, 0)
    (project / "test_it.py").write_text("import no_such_module\n")
    broken = outputs("run-pytest", inputs)
    assert (broken["passed"], broken["errors"]) == (False, 1)
    assert "no_such_module" in broken["report"]


def test_tests_that_could_not_be_run_fail_the_run(project: Path, run: Any, refusal: Any) -> None:
    inputs = {"project_path": "my project", "python_path": sys.executable}
    answer = run("run-pytest", {**inputs, "path": "missing_$(touch pwned).py"})
    assert "pytest could not run the tests: it ended with code 4" in answer["error"]["message"]
    assert "file or directory not found: missing_$(touch pwned).py" in answer["error"]["printed"]
    assert not (project / "pwned").exists()
    assert "there is no 'nopython'" in refusal("run-pytest", {**inputs, "python_path": "nopython"})
    (project / "pytest.py").write_text("raise ImportError")
    assert "pytest is not installed" in refusal("run-pytest", {**inputs, "python_path": sys.executable})


def test_tests_that_take_too_long_are_ended(project: Path, refusal: Any) -> None:
    (project / "conftest.py").write_text("import time\ntime.sleep(30)\n")
    inputs = {"project_path": "my project", "python_path": sys.executable, "timeout": 0.5}
    assert "timed out after 0.5 s" in refusal("run-pytest", inputs)


# lint-python


def test_ruff_finds_what_is_wrong_and_changes_nothing(project: Path, outputs: Any) -> None:
    (project / "ruff.toml").write_text('fix = true\ncache-dir = ".cache"\n[lint]\nselect = ["F"]\n')
    bad = project / "-bad $(touch pwned).py"
    bad.write_text("import os\n\n\ndef f():\n    return undefined\n")
    inputs = {"project_path": "my project", "python_path": sys.executable}
    found = outputs("lint-python", inputs)
    assert (found["clean"], found["findings"]) == (False, 2)
    assert found["problems"][0] == {
        "file": bad.name,
        "line": 1,
        "column": 8,
        "code": "F401",
        "message": "`os` imported but unused",
    }
    assert found["report"].count(bad.name) == 2
    assert bad.read_text().startswith("import os")
    assert outputs("lint-python", {**inputs, "paths": [bad.name]})["findings"] == 2
    bad.write_text("x = 1\n")
    assert outputs("lint-python", inputs)["clean"] is True
    assert not (project / "pwned").exists()


def test_a_linter_of_ones_own_says_what_is_clean(project: Path, outputs: Any, refusal: Any) -> None:
    inputs: dict[str, Any] = {"project_path": "my project"}
    found = outputs(
        "lint-python", {**inputs, "command": "echo a.py: bad; echo; echo b.py: worse >&2; exit 9"}
    )
    assert (found["clean"], found["findings"], found["problems"]) == (False, 2, [])
    assert found["report"] == "a.py: bad\n\nb.py: worse\n"
    found = outputs("lint-python", {**inputs, "command": "echo all is well"})
    assert (found["clean"], found["findings"]) == (True, 0)
    assert "could not be run" in refusal("lint-python", {**inputs, "command": "no-such-linter ."})


def test_a_linter_that_breaks_fails_the_run(project: Path, refusal: Any) -> None:
    (project / "ruff.toml").write_text("nonsense = [")
    message = refusal("lint-python", {"project_path": "my project", "python_path": sys.executable})
    assert "ruff could not check the code" in message


# python-ci-pipeline


def test_the_pipeline_checks_code_and_tests_and_sums_up(
    project: Path, environment: Path, outputs: Any, refusal: Any
) -> None:
    (project / ".venv").symlink_to(environment)
    (project / "test_it.py").write_text(TESTS)
    (project / "code.py").write_text("import os\n")
    inputs = {"project_path": "my project", "packages": []}
    found = outputs("python-ci-pipeline", inputs)
    assert found["success"] is False
    assert found["summary"] == (
        f"Python {'.'.join(map(str, sys.version_info[:3]))}: the linter found 1 problems; "
        "1 of 4 tests passed, 1 failed, 1 had errors, 1 were skipped."
    )
    assert (found["lint_clean"], found["tests_passed"], found["tests"]) == (False, False, 4)
    (project / "code.py").write_text("x = 1\n")
    found = outputs("python-ci-pipeline", {**inputs, "test_args": ["-k", "good"]})
    assert (found["success"], found["test_failures"], found["lint_problems"]) == (True, [], [])
    message = refusal("python-ci-pipeline", {**inputs, "install": "project"})
    assert "block 'setup' failed: block 'install' failed" in message
