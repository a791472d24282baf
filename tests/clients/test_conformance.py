"""The official conformance suite, against our server and our HTTP: a real process, in both eras."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from support.http_server import http_server
from support.node import node, npm_package

PACKAGE = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
SERVER = Path(__file__).resolve().parents[1] / "support" / "conformance_server.py"
SKILLS = "sep-2640-skills-enumeration"
SCENARIOS = {"2026-07-28": 37, "2025-11-25": 30}
"""How many a server has to pass, as the suite has it; with fewer it would be proving less."""


@pytest.mark.slow
@pytest.mark.parametrize("revision", SCENARIOS)
def test_every_scored_scenario_of_the_official_suite_passes(revision: str, tmp_path: Path) -> None:
    place = npm_package(PACKAGE) / "node_modules" / "@modelcontextprotocol" / "conformance"
    suite = place / "dist" / "index.js"
    listed = node(suite, "list", "--requirements", revision).stdout
    required = re.findall(r"^  - (\S+)$", listed.partition("Client scenarios")[0], re.MULTILINE)
    assert len(required) == SCENARIOS[revision]
    with http_server(tmp_path, command=(sys.executable, str(SERVER))) as listening:
        done = node(
            *(
                suite,
                "server",
                "--url",
                listening.url,
                "--requirements",
                revision,
                "-o",
                tmp_path / "results",
            ),
            cwd=tmp_path,
            environment={"HOME": str(tmp_path)},
        )
    went = dict(re.findall(r"^(?:✓|✗) (\S+): \d+ passed, (\d+) failed$", done.stdout, re.MULTILINE))
    assert {name: went.get(name) for name in required if went.get(name) != "0"} == {}, done.stdout[-5000:]
    assert done.returncode == 0, done.stdout[-5000:]


@pytest.mark.slow
@pytest.mark.rows("P10")
def test_the_scenario_of_the_official_suite_for_skills_passes_without_a_skipped_check(tmp_path: Path) -> None:
    place = npm_package(PACKAGE) / "node_modules" / "@modelcontextprotocol" / "conformance"
    with http_server(tmp_path) as listening:
        done = node(
            *(place / "dist" / "index.js", "server", "--url", listening.url, "--scenario", SKILLS),
            *("-o", tmp_path / "results"),
            cwd=tmp_path,
            environment={"HOME": str(tmp_path)},
        )
    passed = re.search(r"^Passed: (\d+)/\1, 0 failed, 0 warnings$", done.stdout, re.MULTILINE)
    assert passed, done.stdout[-5000:]
    assert int(passed[1]) >= 30
    assert "SKIPPED" not in done.stdout
    assert done.returncode == 0
