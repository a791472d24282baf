"""From YAML text to a checked plan, beside PyYAML's C loader on the same text."""

from __future__ import annotations

import yaml

from bench.measure import median, row, seconds, title, verdict
from bench.workflows import realistic
from workflows_mcp.dialects import load
from workflows_mcp.expressions.dollar import Dollar
from workflows_mcp.limits import Limits
from workflows_mcp.steps.registry import default_registry

BLOCKS = 10_000


def run() -> None:
    title(f"Load, check and plan {BLOCKS:,} blocks, median of 3, nothing cached")
    text = realistic(BLOCKS)
    registry = default_registry()
    load(realistic(50), file="warm.yaml", registry=registry, limits=Limits())

    def ours() -> None:
        for cached in (Dollar.template, Dollar.code, Dollar.condition, Dollar.output):
            cached.cache_clear()
        load(text, file="large.yaml", registry=registry, limits=Limits())

    def theirs() -> None:
        yaml.load(text, Loader=yaml.CSafeLoader)

    pairs = [(seconds(ours), seconds(theirs)) for _ in range(3)]
    row("size of the file", f"{len(text) / 1e6:.1f} MB")
    row("PyYAML's C loader, loading only", f"{median([their for _, their in pairs]):.2f} s")
    row("load, check and plan", f"{median([our for our, _ in pairs]):.2f} s")
    ratio = median([our / their for our, their in pairs])
    row("ratio", f"{ratio:.2f}", verdict(ratio, 2, at_least=False))
