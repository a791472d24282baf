"""Directories of runs that nobody needs any more, swept away when a server starts."""

from __future__ import annotations

from workflows_mcp.engines.executor import Executor
from workflows_mcp.engines.sqlite import runs
from workflows_mcp.engines.sqlite.store import Store

_UNCLAIMED_SECONDS = 86_400.0
"""How long a directory of a run that is not in the store is left to whoever may still be making the run."""


def sweep_scratch(store: Store, executor: Executor) -> None:
    """What runs that have ended left behind because their process was killed, and what was copied for a fork
    that was never made."""
    for run_id in executor.scratch_of_runs():
        status = runs.status_of(store, run_id)
        if status is None:
            ended = executor.scratch_age(run_id) > _UNCLAIMED_SECONDS
        else:
            ended = status not in ("running", "idle")
        if ended:
            executor.clear_scratch(run_id)
