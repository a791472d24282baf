"""Directories of runs that nobody needs any more, swept away when a server starts."""

from __future__ import annotations

from workflows_mcp.engines.executor import Executor
from workflows_mcp.engines.sqlite import runs
from workflows_mcp.engines.sqlite.store import Store

_GOING_ON = ("running", "idle")


def sweep_scratch(store: Store, executor: Executor) -> None:
    """What runs that have ended left behind because their process was killed, what nobody has tried again,
    and what was copied for a fork that was never made."""
    for run_id in executor.scratch_of_runs():
        status = runs.status_of(store, run_id)
        if status == "completed" or (status not in _GOING_ON and executor.scratch_is_old(run_id)):
            executor.clear_scratch(run_id)
