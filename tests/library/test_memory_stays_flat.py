"""A server goes on for months: a thousand runs in one process leave nothing behind.

The process is one of its own: what other tests have left in memory is handed out again in pieces, and would
look like growth.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from support.git import repository_at, without_configuration
from support.rendered import Service
from workflows_mcp.engines.driver import Driver
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.state import RunState
from workflows_mcp.settings.model import Settings

RUNS = 1000
WARM = 300
"""After these everything has been loaded, compiled and cached that ever will be."""
MOST_GROWTH = 4_000_000
"""Bytes. Measured: 0.1 to 0.3 million from run 300 to run 1,000; 6,000 runs take 0.7 million more than 300. A run that
was kept would cost at least 10,000 bytes, which makes 7 million."""

MIXTURE: list[tuple[str, dict[str, Any], list[tuple[str, str]]]] = [
    ("example-hello", {"who": "memory"}, []),
    ("example-parallel", {"directory": "docs"}, []),
    ("example-conditional", {"temperature": 3}, []),
    ("example-composition", {}, []),
    ("example-approval", {}, [("approve", "yes")]),
    (
        "example-questionnaire",
        {"save_to": "a.json"},
        [("deadline", "now"), ("goal", "fly"), ("risk", "none")],
    ),
    ("example-recursion", {"count": 5}, []),
    ("example-for-each", {}, []),
    ("process-config", {"config_path": "config.json", "overrides": {"a": {"b": 1}}}, []),
    ("generate-readme", {"project_name": "Rocket", "overwrite": True}, []),
    ("git-status", {}, []),
    ("run-command", {"command": "exit 3"}, []),
]
"""What is run in turn: name, inputs, and what is answered to which question. The last one fails."""


class Left(NamedTuple):
    """What is there while nothing is under way."""

    tasks: int
    threads: int
    files: int
    scratch: int


def left(settings: Settings) -> Left:
    return Left(
        tasks=len(asyncio.all_tasks()),
        threads=threading.active_count(),
        files=psutil.Process().num_fds(),
        scratch=len(list(settings.scratch.glob("*"))),
    )


def kept_runs() -> int:
    """The runs that something still refers to."""
    gc.collect()
    return max(
        sum(isinstance(item, kind) for item in gc.get_objects()) for kind in (Driver, Machine, RunState)
    )


def resident() -> int:
    gc.collect()
    size: int = psutil.Process().memory_info().rss
    return size


async def carry_out(service: Service, first: int, last: int) -> None:
    for number in range(first, last):
        name, inputs, answers = MIXTURE[number % len(MIXTURE)]
        answer = await service.start(workflow=name, inputs=inputs)
        for step, said in answers:
            answer = await service.submit(answer["workflow_id"], said, step_id=step)
        assert answer["status"] == ("failed" if name == "run-command" else "completed"), answer


async def at_rest(settings: Settings, expected: Left | None = None) -> Left:
    """What is left once the last run has been tidied away; what is not by then never will be."""
    found = left(settings)
    for _ in range(250):
        if found == expected or (expected is None and not found.scratch):
            break
        await asyncio.sleep(0.02)
        found = left(settings)
    return found


async def measured(settings: Settings) -> dict[str, Any]:
    async with Service.open(settings) as service:
        await carry_out(service, 0, WARM)
        before, size = await at_rest(settings), resident()
        await carry_out(service, WARM, RUNS)
        after = await at_rest(settings, before)
        return {"before": before, "after": after, "runs": kept_runs(), "growth": resident() - size}


@pytest.mark.slow
@pytest.mark.rows("G22")
@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_a_thousand_runs_leave_nothing_behind(
    settings: Settings, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_configuration(monkeypatch)
    repository_at(workspace)
    (workspace / "docs").mkdir()
    (workspace / "docs" / "page").write_text("x")
    (workspace / "config.json").write_text(json.dumps({"a": {"c": 2}}))
    process = subprocess.run(
        [sys.executable, __file__, str(workspace), str(settings.home)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=True,
    )
    found = json.loads(process.stdout)
    before, after = Left(*found["before"]), Left(*found["after"])
    assert before.scratch == 0
    assert after == before
    assert found["runs"] <= 1, "more runs are kept than the one that the store wrote last"
    growth = found["growth"]
    assert growth < MOST_GROWTH, f"{growth:,} bytes more after {RUNS - WARM} further runs"


if __name__ == "__main__":
    place, home = map(Path, sys.argv[1:])
    print(json.dumps(asyncio.run(measured(Settings(workspace=place, home=home)))))
