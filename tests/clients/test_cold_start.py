"""A client starts a server for every session, and waits for it. Ours is measured beside the smallest server that can
be written with the same library, in the same run and in turns; `bench/starting.py` says what each figure is.

Times are compared by the best of several starts of each: what a start takes when nothing else wants the machine.
Where a figure is over its limit after the first rounds, both servers get more rounds, the same number each, because
one disturbed start too many is not a slow server. CPU time is judged, and the wall clock without the time in which
no processor was free; the wall clock itself is the machine's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench.starting import INITIALIZE, MEGABYTES, RATIO, SideBySide

ROUNDS = 4
ROUNDS_AT_MOST = 14

NOT_AT_START = (
    "workflows_mcp.runs.service",
    "workflows_mcp.machine",
    "workflows_mcp.dialects",
    "workflows_mcp.expressions",
    "workflows_mcp.plan",
    "workflows_mcp.library",
    "workflows_mcp.answers",
    "workflows_mcp.steps",
    "workflows_mcp.engines.executor",
    "workflows_mcp.engines.sqlite.engine",
    "workflows_mcp.mcp_server.tools.core",
    "jinja2",
    "quickjs",
    "_quickjs",
    "regex",
    "yaml",
    "psutil",
    "temporalio",
    "tree_sitter",
)
"""What the answer to `initialize` needs nothing of."""
HELD_BACK = """\
import atexit, json, sys
from workflows_mcp.mcp_server import lazy
lazy._AFTER_ANSWER = lazy._WITHOUT_MESSAGE = 3600.0  # its client leaves long before
atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))
from workflows_mcp.__main__ import main
main()
"""


@pytest.mark.alone
@pytest.mark.slow
def test_a_cold_start_takes_little_longer_than_that_of_the_smallest_server(tmp_path: Path) -> None:
    environment = {**os.environ, "WORKFLOWS_HOME": str(tmp_path)}
    found = SideBySide()
    found.again(environment)  # files are read for the first time, and the store is made
    found = SideBySide()
    for number in range(ROUNDS_AT_MOST):
        found.again(environment)
        good = found.ratio("cpu") <= RATIO and found.ratio("undisturbed") <= RATIO
        if number + 1 >= ROUNDS and good:
            break
    assert found.ratio("cpu") <= RATIO, found
    assert found.ratio("undisturbed") <= RATIO, found
    assert found.more("memory") <= MEGABYTES, found
    assert found.more("own") <= MEGABYTES, found


def test_nothing_that_runs_workflows_is_loaded_before_the_first_answer(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", HELD_BACK],
        input=json.dumps(INITIALIZE) + "\n",
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "WORKFLOWS_HOME": str(tmp_path)},
        check=True,
    )
    assert json.loads(process.stdout)["result"]["serverInfo"]["name"] == "workflows-mcp"
    loaded = set(json.loads(process.stderr.splitlines()[-1]))
    assert "workflows_mcp.mcp_server.server" in loaded
    assert [name for name in NOT_AT_START if name in loaded] == []
