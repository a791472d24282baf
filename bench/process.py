"""The process: what checks of a result cost, beside the same questions without them."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from bench.measure import median, row, title
from workflows_mcp.runs.service import Service
from workflows_mcp.settings.model import Settings

QUESTIONS = 200
ROUNDS = 5
_HEAD = "name: measured\nsteps:\n"
_RESULT = "result: {type: object, required: [files], properties: {files: {type: array}}}"
_VARIANTS = {
    "a question and its answer": "",
    "with a result schema": f", {_RESULT}",
    "with a result schema and an expression": f', {_RESULT}, verify: ["result.files | length > 0"]',
    "with five expressions": f", {_RESULT}, verify: [" + ", ".join(['"result.files | length > 0"'] * 5) + "]",
    "with a command (`true`)": f", {_RESULT}, verify: [{{command: 'true'}}]",
}


def run() -> None:
    title(f"One question of an agent, {QUESTIONS} in a row, median of {ROUNDS} rounds")
    times: dict[str, list[float]] = {name: [] for name in _VARIANTS}
    for _ in range(ROUNDS):
        for name, keys in _VARIANTS.items():
            times[name].append(asyncio.run(_seconds(keys, 20 if "command" in name else QUESTIONS)))
    first = median(times[next(iter(_VARIANTS))])
    for name, found in times.items():
        each = median(found)
        row(name, f"{each * 1000:.2f} ms", f"{each / first:.2f} times the first")


async def _seconds(keys: str, questions: int) -> float:
    """The time for one question."""
    steps = "".join(
        f"  - {{id: s{n}, type: delegate, instructions: do it{keys}}}\n" for n in range(questions)
    )
    result = {"files": ["a"]} if keys else {"response": "a"}
    with tempfile.TemporaryDirectory() as directory:
        settings = Settings(workspace=Path(directory), home=Path(directory) / "home")
        async with Service.open(settings) as service:
            answer = await service.start(text=_HEAD + steps)
            started = time.perf_counter()
            for n in range(questions):
                answer = await service.submit(answer.workflow_id, result, step_id=f"s{n}")
            taken = time.perf_counter() - started
            assert answer.status == "completed", answer.error
    return taken / questions
