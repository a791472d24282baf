"""node-install, node-script, node-test and node-ci, with real npm and no network."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from support.programs import Programs

pytestmark = [
    pytest.mark.rows("G22"),
    pytest.mark.skipif(
        shutil.which("node") is None or shutil.which("npm") is None, reason="node and npm are not installed"
    ),
]

SHOW = 'node -e "console.log(JSON.stringify(process.argv.slice(1)))" --'


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("npm_config_offline", "true")
    monkeypatch.setenv("npm_config_update_notifier", "false")


@pytest.fixture
def project(workspace: Path) -> Path:
    path = workspace / "my project"
    path.mkdir()
    return path


def scripts(project: Path, **named: str) -> None:
    (project / "package.json").write_text(
        json.dumps({"name": "it", "version": "1.0.0", "private": True, "scripts": named})
    )


def test_npm_installs_and_with_a_lock_file_exactly_what_that_says(project: Path, outputs: Any) -> None:
    scripts(project)
    first = outputs("node-install", {"project_path": "my project"})
    assert (first["manager"], first["command"]) == ("npm", "npm install --no-audit --no-fund")
    assert first["node_version"].startswith("v")
    assert (project / "package-lock.json").exists()
    assert outputs("node-install", {"project_path": "my project"})["command"].startswith("npm ci ")
    loose = outputs("node-install", {"project_path": "my project", "frozen": False})
    assert loose["command"].startswith("npm install ")


@pytest.mark.parametrize(
    ("files", "inputs", "call"),
    [
        (["pnpm-lock.yaml"], {}, "pnpm install --frozen-lockfile"),
        (["pnpm-lock.yaml"], {"frozen": False}, "pnpm install --no-frozen-lockfile"),
        (["yarn.lock"], {}, "yarn install --non-interactive --frozen-lockfile"),
        (["yarn.lock", ".yarnrc.yml"], {}, "yarn install --immutable"),
        (["yarn.lock", ".yarnrc.yml"], {"frozen": False}, "yarn install --no-immutable"),
        (["package-lock.json"], {"manager": "yarn"}, "yarn install --non-interactive"),
    ],
)
def test_other_package_managers_are_known_by_their_lock_files(
    project: Path, programs: Programs, outputs: Any, files: list[str], inputs: dict[str, Any], call: str
) -> None:
    scripts(project)
    for file in files:
        (project / file).touch()
    programs.add("pnpm")
    programs.add("yarn")
    assert outputs("node-install", {"project_path": "my project", **inputs})["command"] == call
    assert programs.calls == [call]


def test_what_cannot_be_installed_is_refused(project: Path, refusal: Any) -> None:
    assert "there is no package.json in" in refusal("node-install", {"project_path": "my project"})
    (project / "package.json").write_text("{")
    assert "block 'install' failed" in refusal("node-install", {"project_path": "my project"})
    inputs = {"project_path": "my project", "manager": "$(touch pwned)"}
    assert "is one of auto, npm, pnpm, yarn" in refusal("node-install", inputs)
    assert not (project / "pwned").exists()


def test_a_script_gets_its_arguments_as_they_are_and_its_failure_is_a_result(
    project: Path, outputs: Any
) -> None:
    scripts(project, show=SHOW, **{"odd name": "echo odd"}, bad="echo no >&2; exit 7")
    hostile = ["two words", "$(touch pwned)", 'it\'s "quoted"', "-x", "--", "*"]
    shown = outputs("node-script", {"project_path": "my project", "script": "show", "args": hostile})
    assert (shown["ran"], shown["passed"], shown["exit_code"]) == (True, True, 0)
    assert json.loads(shown["output"].strip().splitlines()[-1]) == hostile
    assert outputs("node-script", {"project_path": "my project", "script": "odd name"})["passed"] is True
    bad = outputs("node-script", {"project_path": "my project", "script": "bad"})
    assert (bad["ran"], bad["passed"], bad["exit_code"]) == (True, False, 7)
    assert "no" in bad["output"].splitlines()
    assert not (project / "pwned").exists()


def test_a_script_that_does_not_exist_is_an_error_unless_it_is_not_required(
    project: Path, outputs: Any, refusal: Any
) -> None:
    scripts(project, build="true", check="true")
    for name in ("nope", "toString", "--version"):
        message = refusal("node-script", {"project_path": "my project", "script": name})
        assert f'package.json has no script "{name}"; there is: build, check' in message
    inputs = {"project_path": "my project", "script": "nope", "required": False}
    assert outputs("node-script", inputs) == {"ran": False, "passed": False, "exit_code": None, "output": ""}


def test_scripts_run_with_the_package_manager_of_the_project(
    project: Path, programs: Programs, outputs: Any
) -> None:
    scripts(project, test="true")
    (project / "pnpm-lock.yaml").touch()
    programs.add("pnpm", "exit 1")
    found = outputs("node-test", {"project_path": "my project", "args": ["-t", "a b"]})
    assert (found["passed"], found["exit_code"]) == (False, 1)
    assert programs.calls == ["pnpm run test -t a b"]


def test_tests_are_the_script_test_and_a_project_needs_one(project: Path, outputs: Any, refusal: Any) -> None:
    scripts(project, **{"test": "echo 3 passing", "test:unit": "exit 1"})
    found = outputs("node-test", {"project_path": "my project"})
    assert found["passed"] is True
    assert "3 passing" in found["report"]
    assert outputs("node-test", {"project_path": "my project", "script": "test:unit"})["passed"] is False
    scripts(project)
    assert 'no script "test"; there is: none' in refusal("node-test", {"project_path": "my project"})


def test_the_checks_run_what_there_is_and_sum_up(project: Path, outputs: Any, refusal: Any) -> None:
    scripts(project, lint="exit 1", test="test -f built", build="touch built")
    found = outputs("node-ci", {"project_path": "my project"})
    assert found["success"] is False
    assert found["summary"] == "lint failed, build passed, test passed."
    scripts(project, test="true")
    found = outputs("node-ci", {"project_path": "my project", "install": False})
    assert (found["success"], found["summary"]) == (
        True,
        "lint is not there, build is not there, test passed.",
    )
    (project / "package.json").unlink()
    assert "block 'install' failed" in refusal("node-ci", {"project_path": "my project"})
