"""Durable steps a second beside the machine's own SQLite commits at the same durability."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path

import apsw

from bench.measure import median, row, title, verdict
from bench.workflows import Tick, chain, fan_out
from workflows_mcp.runs.service import Service
from workflows_mcp.settings.model import Settings
from workflows_mcp.steps.registry import default_registry

BLOCKS = 1000
ROUNDS = 5


def raw_commits(directory: Path, commits: int = BLOCKS, *, warm: bool = False) -> float:
    """One-row commits a second: WAL, synchronous=FULL, nothing else. Warm: the log has its size already."""
    connection = apsw.Connection(str(directory / f"raw-{time.monotonic_ns()}.db"))
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "FULL")
    connection.execute("CREATE TABLE events(run TEXT, position INTEGER, body BLOB)")
    body = os.urandom(200)
    insert = "INSERT INTO events VALUES('run', ?, ?)"
    first = 1500 if warm else 0
    for position in range(first):
        connection.execute(insert, (position, body))
    started = time.perf_counter()
    for position in range(first, first + commits):
        connection.execute(insert, (position, body))
    rate = commits / (time.perf_counter() - started)
    connection.close()
    return rate


def steps_a_second(directory: Path, text: str, blocks: int) -> float:
    """Start to end of one run through the service, on a store of its own, the definition already read."""

    async def go() -> float:
        registry = default_registry()
        registry.add(Tick())
        home = directory / f"home-{time.monotonic_ns()}"
        settings = Settings(workspace=directory, home=home)
        async with Service.open(settings, registry=registry) as service:
            bundle = service._bundle(None, text, None)  # reading the definition is measured elsewhere
            started = time.perf_counter()
            run_id = await service._engine.start(bundle, {"word": "x"})
            machine = await service._engine.wait(run_id, lambda state: state.status != "running", 120)
            took = time.perf_counter() - started
            assert machine.state.status == "completed", machine.state.fault
            return blocks / took

    return asyncio.run(go())


def run() -> None:
    title(f"Durable steps a second, synchronous=FULL, {BLOCKS} blocks, median of {ROUNDS} rounds")
    kinds = {
        "chain of steps that change the world": chain("Tick", BLOCKS),
        "chain of RenderTemplate": chain("RenderTemplate", BLOCKS),
        "fan-out of steps that change the world": fan_out("Tick", BLOCKS),
        "fan-out of RenderTemplate": fan_out("RenderTemplate", BLOCKS),
    }
    rates: dict[str, list[float]] = {name: [] for name in kinds}
    raw: list[float] = []
    raw_warm: list[float] = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as temporary:
        directory = Path(temporary)
        for _ in range(ROUNDS):
            raw.append(raw_commits(directory))
            raw_warm.append(raw_commits(directory, warm=True))
            for name, text in kinds.items():
                rates[name].append(steps_a_second(directory, text, BLOCKS))
        row("raw SQLite, one row a commit, new file", f"{median(raw):,.0f}/s")
        row("raw SQLite, one row a commit, log already at its size", f"{median(raw_warm):,.0f}/s")
        for name, values in rates.items():
            row(name, f"{median(values):,.0f}/s")
        world = rates["chain of steps that change the world"]
        pure = rates["chain of RenderTemplate"]
        world_ratio = median([ours / theirs for ours, theirs in zip(world, raw, strict=True)])
        warm_ratio = median([ours / theirs for ours, theirs in zip(world, raw_warm, strict=True)])
        pure_ratio = median([ours / theirs for ours, theirs in zip(pure, raw, strict=True)])
        row("world-changing / raw commits", f"{world_ratio:.2f}", verdict(world_ratio, 0.7, at_least=True))
        row("world-changing / raw commits, log at its size", f"{warm_ratio:.2f}")
        row("RenderTemplate / raw commits", f"{pure_ratio:.2f}", verdict(pure_ratio, 3.5, at_least=True))
        times = pure_ratio / world_ratio
        row("RenderTemplate / world-changing", f"{times:.2f}", verdict(times, 5, at_least=True))

        title("Cost of a block in a chain of RenderTemplate, best of 3")
        costs = {}
        for blocks in (100, 1000, 10_000):
            text = chain("RenderTemplate", blocks)
            rate = max(steps_a_second(directory, text, blocks) for _ in range(3))
            costs[blocks] = 1e6 / rate
            row(f"{blocks:,} blocks", f"{costs[blocks]:.1f} µs")
        flat = costs[10_000] / costs[100]
        row("10,000 against 100", f"{flat:.2f}", verdict(flat, 1.3, at_least=False))
