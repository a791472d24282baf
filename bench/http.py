"""Twenty agents at once over HTTP, each with a run of its own of twenty steps, beside one agent alone.

A step is a result that is handed in, until the next action has come back. Half of the agents speak the
protocol of 2026-07-28, half that of 2025-11-25. Their clients are all in this process, and what those take
for a step is in the figures. What they do once is not: they connect, start a run, and answer a first step,
for which a client works some 15 ms at the schema of what it will be answered. The steps that count begin
when all have done so.

Between two steps an agent works: in the one figure as long as `WORK` steps take alone, more or less, which is
less than a tenth of a second, and no model is so quick; in the other not at all, so that twenty calls are
always under way, and each waits for nineteen others. How long it waits then follows from the processors,
which the server shares with its clients: a step cannot be quicker, on average, than what both work for it,
times the agents, over the processors. That bound is measured in the same round, and printed beside it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from mcp import Client

from bench.measure import median, row, title, verdict

AGENTS = 20
STEPS = 20
WORK = 20.0
ERAS = ("2026-07-28", "legacy")
MOST = 10.0
"""How many times as long as that of one agent alone the slowest hundredth of steps may take."""
_SAYS = "serves MCP at "


@dataclass(frozen=True)
class Served:
    """A server process, and where it is reached."""

    url: str
    process: psutil.Process

    def processor_seconds(self) -> float:
        """What this process, with its clients, and that of the server have used so far."""
        used = self.process.cpu_times()
        return time.process_time() + used.user + used.system


@dataclass(frozen=True)
class Round:
    """Seconds of every step, of one agent alone and of all agents at once, and what processors have worked
    for all of the latter."""

    alone: list[float]
    together: list[float]
    worked: float

    @property
    def ratio(self) -> float:
        return percentile(self.together, 99) / median(self.alone)

    @property
    def at_best(self) -> float:
        """What the ratio would be at least, on average, if no processor ever stood still."""
        a_step = self.worked / len(self.together)
        return AGENTS * a_step / (psutil.cpu_count() or 1) / median(self.alone)


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part / 100))]


def workflow() -> str:
    """Steps that are asked one after the other, the first of which does not count."""
    blocks = [
        f"  - {{id: q{at}, type: Prompt, depends_on: [{f'q{at - 1}' if at else ''}], "
        f"inputs: {{prompt: 'Step {at}?'}}}}\n"
        for at in range(STEPS + 1)
    ]
    last = f"outputs: {{last: '${{blocks.q{STEPS}.outputs.response}}'}}\n"
    return f"name: steps\nblocks:\n{''.join(blocks)}{last}"


@contextmanager
def serving(directory: Path) -> Iterator[Served]:
    """A server process that has the workflow."""
    workflows = directory / "workspace" / ".workflows"
    workflows.mkdir(parents=True)
    (workflows / "steps.yaml").write_text(workflow(), encoding="utf-8")
    server = subprocess.Popen(
        [sys.executable, "-m", "workflows_mcp", "serve", "--http", ":0"],
        cwd=workflows.parent,
        env={**os.environ, "HOME": str(directory), "WORKFLOWS_HOME": str(directory / "home")},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stderr is not None
        said = server.stderr.readline()
        assert _SAYS in said, said + server.stderr.read()
        yield Served(said.split(_SAYS)[1].strip(), psutil.Process(server.pid))
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)


async def measured(server: Served, *, work: float = WORK) -> Round:
    """One round, in which one agent of each era has worked alone before, under the same circumstances. The
    collector of cycles stands still in this process: it would hold up all twenty clients at once, for as long
    as it takes to walk over them and all else that is here."""
    gc.collect()
    gc.disable()
    try:
        return await _round(server, work)
    finally:
        gc.enable()


async def _round(server: Served, work: float) -> Round:
    url = server.url
    alone = [took for era in ERAS for took in await _agent(url, era, lambda: 0.0, asyncio.Barrier(1).wait)]
    pace = median(alone) * work

    def some_work(number: int) -> Callable[[], float]:
        chance = random.Random(number)
        return lambda: chance.uniform(0, 2 * pace)

    barrier = asyncio.Barrier(AGENTS)
    worked: list[float] = []

    async def ready() -> None:
        await barrier.wait()
        if not worked:
            worked.append(server.processor_seconds())

    agents = [_agent(url, ERAS[number % 2], some_work(number), ready) for number in range(AGENTS)]
    together = [took for one in await asyncio.gather(*agents) for took in one]
    return Round(alone, together, server.processor_seconds() - worked[0])


async def _agent(
    url: str, era: str, work: Callable[[], float], ready: Callable[[], Awaitable[Any]]
) -> list[float]:
    """How long each step took, from when all are ready. Whatever does not go as it should is an error."""
    took: list[float] = []
    async with Client(url, mode=era) as client:

        async def call(tool: str, **arguments: Any) -> dict[str, Any]:
            result = await client.call_tool(tool, arguments)
            assert not result.is_error, result
            assert isinstance(result.structured_content, dict)
            return result.structured_content

        async def answered(asked: dict[str, Any]) -> dict[str, Any]:
            step = asked["action"]["step_id"]
            result = f"{step} of {era}"
            return await call("submit_result", workflow_id=asked["workflow_id"], step_id=step, result=result)

        answer = await answered(await call("start_workflow", workflow="steps"))
        await ready()
        while answer["status"] == "pending_action":
            await asyncio.sleep(work())
            started = time.perf_counter()
            answer = await answered(answer)
            took.append(time.perf_counter() - started)
    assert answer["outputs"] == {"last": f"q{STEPS} of {era}"}, answer
    assert len(took) == STEPS
    return took


def run() -> None:
    title(f"{AGENTS} agents at once over HTTP, {STEPS} steps each, best of 3 rounds")
    with (
        tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as directory,
        serving(Path(directory)) as server,
    ):
        for what, work in (("working between steps", WORK), ("without a pause", 0.0)):
            rounds = [asyncio.run(measured(server, work=work)) for _ in range(3)]
            best = min(rounds, key=lambda it: it.ratio)
            row(f"a step of one agent alone, p50 ({what})", f"{median(best.alone) * 1000:.1f} ms")
            for part in (50, 99):
                value = percentile(best.together, part) * 1000
                row(f"a step of {AGENTS} agents, p{part}", f"{value:.1f} ms")
            bound = verdict(best.ratio, MOST, at_least=False) if work else ""
            row("ratio, p99 to p50 alone", f"{best.ratio:.1f}", bound)
            if not work:
                processors = psutil.cpu_count()
                row(f"the least that {processors} processors allow, mean to p50 alone", f"{best.at_best:.1f}")
