"""Writing a fork down: the new run with all the events that it begins with, at once or not at all."""

from __future__ import annotations

import apsw

from workflows_mcp.engines.forks import Fork, batch_of
from workflows_mcp.engines.large_values import LargeValues
from workflows_mcp.engines.sqlite import leases, runs
from workflows_mcp.engines.sqlite.store import Store


async def write_fork(
    store: Store,
    lease: leases.Lease,
    bundles: runs.BundleCache,
    fork: Fork,
    large: LargeValues,
    request: runs.Request | None,
    now: float,
) -> None:
    state = fork.machine.state
    pinned = bundles.put(fork.machine.bundle)
    run = runs.NewRun(fork.run_id, state.workflow, *pinned, request, state.started_at, now)
    batch = batch_of(fork, large, now)

    def write(connection: apsw.Connection) -> None:
        lease.renew(connection, now)
        runs.create(connection, run, lease.owner.id)
        leases.close_batch(connection, fork.run_id, lease.owner.id, 1, batch, rest=False)

    await store.write(write)
