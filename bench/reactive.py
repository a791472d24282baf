"""Reactive workflows: what an expression, a change of the state, a computed field, a step and a round of a
loop cost, each beside the same without what makes it dear."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from bench.durability import steps_a_second
from bench.measure import best, median, row, seconds, title, verdict
from bench.workflows import Tick, chain
from workflows_mcp.expressions.language import Language
from workflows_mcp.limits import Limits
from workflows_mcp.machine.program import program_of
from workflows_mcp.machine.reactive_state import ReactiveState
from workflows_mcp.machine.state import Scope
from workflows_mcp.plan.model import Computed, Plan, Steps
from workflows_mcp.plan.references import LANGUAGES
from workflows_mcp.runs.service import Service
from workflows_mcp.settings.model import Settings
from workflows_mcp.steps.registry import default_registry
from workflows_mcp.values import Value

FIELDS = 20
UPDATES = 500
STEPS = 200
ROUNDS = 1000
REPEATED = 5

_APART = {f"f{n}": Computed((f"raw.r{n}",), transform="input * 2") for n in range(FIELDS)}
_CHAIN = {"f0": Computed(("raw.r0",), transform="input + 1")} | {
    f"f{n}": Computed((f"computed.f{n - 1}",), transform="input + 1") for n in range(1, FIELDS)
}


def run() -> None:
    _expressions()
    _updates()
    _state_size()
    _steps()
    _rounds()


# Expressions


def _expressions() -> None:
    title("One expression, best of 5 rounds of 1,000, compiled before")
    scope = {
        "n": 41,
        "files": [f"src/file_{n}.ts" for n in range(100)],
        "__limits__": Limits(),
        "__now__": 0.0,
    }
    jinja = _microseconds(LANGUAGES["jinja"], "{{ n + 1 }}", scope)
    javascript = _microseconds(LANGUAGES["javascript"], "{{ n + 1 }}", scope)
    row("Jinja: {{ n + 1 }}", f"{jinja:.1f} µs")
    row("JavaScript: {{ n + 1 }}", f"{javascript:.1f} µs", f"{javascript / jinja:.1f} times Jinja")
    listed = _microseconds(
        LANGUAGES["javascript"], "{{ files.filter(f => f.endsWith('9.ts')).length }}", scope
    )
    row(
        "JavaScript: a filter over 100 texts",
        f"{listed:.1f} µs",
        f"{listed / javascript:.1f} times the first",
    )


def _microseconds(language: Language, text: str, scope: Mapping[str, object]) -> float:
    expression = language.template(text)
    expression.evaluate(scope)

    def thousand() -> None:
        for _ in range(1000):
            expression.evaluate(scope)

    return best(thousand, REPEATED) * 1000


# Changes of the state


def _home(computed: Mapping[str, Computed], more: Mapping[str, Value] | None = None) -> ReactiveState:
    plan = Plan(
        "measured", "reactive", Steps(()), computed=dict(computed), language="javascript", reactive=True
    )
    raw = {f"r{n}": n for n in range(FIELDS)} | {"other": 0} | dict(more or {})
    return ReactiveState(Scope("measured", state={"raw": raw, "state": {}}), program_of(plan), Limits())


def _updates_a_second(computed: Mapping[str, Computed], field: str) -> float:
    """Each update with a read of all fields behind it."""
    home = _home(computed)
    return UPDATES / best(lambda: _update(home, field), REPEATED)


def _update(home: ReactiveState, field: str) -> None:
    for _ in range(UPDATES):
        home.change([(("raw", field), "increment", 1)])
        home.flat()


def _updates() -> None:
    title(f"Updates a second, all fields read behind each, best of {REPEATED} rounds of {UPDATES}")
    none = _updates_a_second({}, "other")
    row("no computed fields", f"{none:,.0f}/s")
    rates = {
        f"{FIELDS} computed fields, none of them touched": _updates_a_second(_APART, "other"),
        f"{FIELDS} computed fields, one of them touched": _updates_a_second(_APART, "r0"),
        f"a chain of {FIELDS} computed fields, its root touched": _updates_a_second(_CHAIN, "r0"),
    }
    for name, rate in rates.items():
        row(name, f"{rate:,.0f}/s", f"{none / rate:.1f} times the cost without")
    untouched, one, root = (1 / rate for rate in rates.values())
    each = (root - untouched) / FIELDS / (one - untouched)
    row("a field of the chain / the one field", f"{each:.2f}", verdict(each, 1.5, at_least=False))


def _state_size() -> None:
    title(f"An update beside what it does not touch, best of {REPEATED} rounds of {UPDATES}")
    homes: dict[int, ReactiveState] = {}
    for kilobytes in (1, 500):
        lines: Value = [{"line": n, "text": "x" * 80} for n in range(kilobytes * 10)]
        homes[kilobytes] = _home(_APART, {"lines": lines})
    times: dict[int, list[float]] = {kilobytes: [] for kilobytes in homes}
    for _ in range(REPEATED):
        for kilobytes, home in homes.items():
            times[kilobytes].append(seconds(partial(_update, home, "other")) / UPDATES * 1e6)
    costs = {kilobytes: min(took) for kilobytes, took in times.items()}
    for kilobytes, cost in costs.items():
        row(f"{kilobytes} KB of other state", f"{cost:.1f} µs")
    ratio = costs[500] / costs[1]
    row("500 KB against 1 KB", f"{ratio:.2f}", verdict(ratio, 1.3, at_least=False))


# Runs


def _steps() -> None:
    title(f"{STEPS} conditional steps in one run, durable, median of {REPEATED}")
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as temporary:
        directory = Path(temporary)
        measured = {
            fields: [_wall_and_cpu(directory, conditionals(fields)) for _ in range(REPEATED)]
            for fields in (0, FIELDS)
        }
    for fields, times in measured.items():
        name = f"{fields} computed fields" if fields else "no computed fields"
        row(f"{name}, wall time", f"{STEPS / median([wall for wall, _ in times]):,.0f}/s")
        row(f"{name}, CPU time", f"{STEPS / median([cpu for _, cpu in times]):,.0f}/s")
    pairs = zip(measured[FIELDS], measured[0], strict=True)
    ratio = median([dear[1] / cheap[1] for dear, cheap in pairs])
    row(f"CPU time with {FIELDS} fields / without", f"{ratio:.2f}")


def _rounds() -> None:
    title(f"A loop of {ROUNDS:,} rounds beside a chain of {ROUNDS:,} blocks, the same step, median of 3")
    rounds, blocks = [], []
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as temporary:
        directory = Path(temporary)
        for _ in range(3):
            wall, _ = _wall_and_cpu(directory, loop(ROUNDS))
            rounds.append(ROUNDS / wall)
            blocks.append(steps_a_second(directory, chain("Tick", ROUNDS), ROUNDS))
        few = min(_wall_and_cpu(directory, loop(ROUNDS // 10))[0] for _ in range(3)) / (ROUNDS // 10)
        many = min(_wall_and_cpu(directory, loop(ROUNDS))[0] for _ in range(3)) / ROUNDS
    row("rounds of a while with a step", f"{median(rounds):,.0f}/s")
    row("blocks of a graph", f"{median(blocks):,.0f}/s")
    ratio = median([ours / theirs for ours, theirs in zip(rounds, blocks, strict=True)])
    row("rounds / blocks", f"{ratio:.2f}")
    flat = many / few
    row(
        f"a round of {ROUNDS:,} / a round of {ROUNDS // 10}",
        f"{flat:.2f}",
        verdict(flat, 1.3, at_least=False),
    )


def conditionals(fields: int) -> str:
    """Conditional steps, each of which reads a computed field and changes what one of them comes from."""
    lines = ["name: conditionals", "default_state:", "  raw:", "    taken: 0"]
    lines += [f"    r{n}: {n}" for n in range(FIELDS)]
    if fields:
        lines += ["state_schema:", "  computed:"]
        lines += [f"    f{n}: {{from: raw.r{n}, transform: input * 2}}" for n in range(fields)]
    lines.append("steps:")
    for number in range(STEPS // 2):
        name = f"f{number % FIELDS}" if fields else f"r{number % FIELDS}"
        lines += ["  - type: conditional", f'    condition: "{{{{ {name} >= 0 }}}}"', "    then:"]
        lines.append(f"      - {{type: state_update, path: raw.r{number % FIELDS}, operation: increment}}")
    return "\n".join(lines) + "\n"


def loop(rounds: int) -> str:
    return f"""\
name: rounds
default_state: {{raw: {{n: 0}}}}
steps:
  - id: loop
    type: while
    condition: "{{{{ n < {rounds} }}}}"
    max_iterations: {rounds}
    body:
      - {{id: tick, type: Tick, word: "{{{{ n }}}}x"}}
      - {{type: state_update, path: raw.n, operation: increment}}
"""


def _wall_and_cpu(directory: Path, text: str) -> tuple[float, float]:
    """Seconds from start to end of one run, on a store of its own, the definition already read."""

    async def go() -> tuple[float, float]:
        registry = default_registry()
        registry.add(Tick())
        settings = Settings(workspace=directory, home=directory / f"home-{time.monotonic_ns()}")
        async with Service.open(settings, registry=registry) as service:
            bundle = service._bundle(None, text, None)  # reading the definition is measured elsewhere
            wall, cpu = time.perf_counter(), time.process_time()
            run_id = await service._engine.start(bundle, {})
            machine = await service._engine.wait(run_id, lambda state: state.status != "running", 120)
            assert machine.state.status == "completed", machine.state.fault
            return time.perf_counter() - wall, time.process_time() - cpu

    return asyncio.run(go())
