"""Twenty agents at once over HTTP, in both eras, against a real server process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from bench.http import AGENTS, MOST, STEPS, measured, serving


@pytest.mark.alone
@pytest.mark.slow
def test_twenty_agents_at_once_all_come_to_their_end_and_none_waits_long(tmp_path: Path) -> None:
    """The bound is a ratio of two figures of the same round: the slowest hundredth of all steps, and half of those
    of one agent alone just before. Whatever else the machine does can spoil a round, so the best of three counts."""
    ratios = []
    with serving(tmp_path) as server:
        for _ in range(3):
            round_ = asyncio.run(asyncio.wait_for(measured(server), 120))
            assert len(round_.together) == AGENTS * STEPS
            ratios.append(round_.ratio)
            if round_.ratio < MOST:
                return
    pytest.fail(f"p99 of a step was {ratios} times the p50 of one agent alone; it may be {MOST:g} times")


@pytest.mark.slow
def test_twenty_agents_that_never_pause_all_come_to_their_end(tmp_path: Path) -> None:
    """How long each waits for the others is for the bench: it follows from the processors that there are."""
    with serving(tmp_path) as server:
        round_ = asyncio.run(asyncio.wait_for(measured(server, work=0.0), 120))
    assert len(round_.together) == AGENTS * STEPS
