"""Memory of a server that goes on and on: its size after each hundred runs of built-in workflows."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from bench.measure import row, title, verdict
from workflows_mcp.runs.service import Service
from workflows_mcp.settings.model import Settings

RUNS = 1000
WARM = 300

MIXTURE: list[tuple[str, dict[str, Any], list[tuple[str, str]]]] = [
    ("example-hello", {}, []),
    ("example-conditional", {"temperature": 3}, []),
    ("example-composition", {}, []),
    ("example-approval", {}, [("approve", "yes")]),
    ("example-questionnaire", {}, [("goal", "fly"), ("deadline", "Friday"), ("risk", "gravity")]),
    ("example-recursion", {"count": 5}, []),
    ("example-for-each", {}, []),
    ("process-config", {"config_path": "config.json", "overrides": {"a": {"b": 1}}}, []),
    ("generate-readme", {"project_name": "Rocket", "overwrite": True}, []),
    ("git-status", {}, []),
]
"""What is run in turn: name, inputs, and what is answered to which question."""


def run() -> None:
    title(f"Resident memory over {RUNS:,} runs of built-in workflows in one process")
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as temporary:
        sizes = asyncio.run(_sizes(Path(temporary)))
    growth = sizes[RUNS] - sizes[WARM]
    row(f"growth from run {WARM} to run {RUNS:,}", f"{growth:+.1f} MB", verdict(growth, 2, at_least=False))


async def _sizes(directory: Path) -> dict[int, float]:
    """Megabytes after so many runs."""
    workspace = directory / "workspace"
    workspace.mkdir()
    (workspace / "config.json").write_text("{}", encoding="utf-8")
    subprocess.run(["git", "init", "--quiet"], cwd=workspace, check=True)
    sizes: dict[int, float] = {}
    started = time.perf_counter()
    async with Service.open(Settings(workspace=workspace, home=directory / "home")) as service:
        for number in range(1, RUNS + 1):
            name, inputs, answers = MIXTURE[number % len(MIXTURE)]
            answer = await service.start(workflow=name, inputs=inputs)
            for step, said in answers:
                answer = await service.submit(answer.workflow_id, said, step_id=step)
            assert answer.status == "completed", answer
            if number % 100 == 0:
                gc.collect()
                sizes[number] = psutil.Process().memory_info().rss / 1e6
                row(
                    f"after {number:,} runs",
                    f"{sizes[number]:.1f} MB",
                    f"{time.perf_counter() - started:.1f} s",
                )
    return sizes
