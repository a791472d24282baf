"""Small tools for measuring on a machine that is never quite idle."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def best(action: Callable[[], object], times: int) -> float:
    """The shortest of several runs: what the work takes when nothing disturbs it."""
    return min(seconds(action) for _ in range(times))


def median(values: list[float]) -> float:
    return statistics.median(values)


def row(what: str, value: str, note: str = "") -> None:
    print(f"  {what:<58} {value:>14}  {note}".rstrip(), flush=True)


def title(text: str) -> None:
    print(f"\n{text}", flush=True)


def verdict(ratio: float, needed: float, *, at_least: bool) -> str:
    good = ratio >= needed if at_least else ratio <= needed
    return f"{'reached' if good else 'NOT reached'} (to reach: {'≥' if at_least else '≤'} {needed:g})"
