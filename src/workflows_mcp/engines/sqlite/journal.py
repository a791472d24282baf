"""The journal of one run, under one lease: where its driver writes."""

from __future__ import annotations

from collections.abc import Callable

import apsw

from workflows_mcp.engines.clock import Clock
from workflows_mcp.engines.journals import Batch
from workflows_mcp.engines.sqlite import leases, runs
from workflows_mcp.engines.sqlite.store import Store
from workflows_mcp.errors import LeaseLost

Done = Callable[[Exception | None], None]

CHANGED_SECONDS = 1.0
"""How far behind the time may be at which a run says that it has changed: saying so costs a write."""


class RunJournal:
    def __init__(self, store: Store, lease: leases.Lease, clock: Clock, run_id: str, epoch: int) -> None:
        self._store = store
        self._lease = lease
        self._clock = clock
        self.run_id = run_id
        self.epoch = epoch
        self.created: runs.NewRun | None = None
        """What the first batch brings with it: the run itself."""
        self.wakes_up = False
        """Whether the first batch claims the run, from the rest in which it is said to be."""
        self._status = "running"
        self._changed_at = 0.0
        """When the run last told when it has changed."""
        self._lapses = lease.lapses
        self._lost = False
        """Whether a write was refused because the run is another's: then whatever is written after it, and
        may be under way already, is refused as well."""

    def append(self, batch: Batch, done: Done) -> None:
        created, self.created = self.created, None
        wakes_up, self.wakes_up = self.wakes_up, False
        plain = (
            created is None
            and not wakes_up
            and batch.snapshot is None
            and batch.status == self._status
            and batch.at < self._changed_at + CHANGED_SECONDS
        )
        if not plain:
            self._status, self._changed_at = batch.status, batch.at
        owner = self._lease.owner.id

        def write(connection: apsw.Connection) -> None:
            if created is not None or wakes_up:
                self._lease.renew_if_due(connection, self._clock.now())
                self._lapses = self._lease.lapses
            if created is not None:
                runs.create(connection, created, owner)
            elif wakes_up:
                leases.claim_at_rest(connection, self.run_id, owner, self.epoch)
            if plain:
                leases.append(connection, self.run_id, owner, self.epoch, batch)
            else:
                leases.close_batch(
                    connection, self.run_id, owner, self.epoch, batch, rest=batch.status != "running"
                )

        self._submit(write, done, single=plain and not batch.blobs)

    def in_force(self) -> bool:
        return self._lease.in_force_since(self._lapses)

    def confirm(self, done: Done) -> None:
        def ask(connection: apsw.Connection) -> None:
            leases.check(connection, self.run_id, self._lease.owner.id, self.epoch)
            self._lease.renew(connection, self._clock.now())
            self._lapses = self._lease.lapses

        self._submit(ask, done, single=False)

    def _submit(self, write: Callable[[apsw.Connection], None], done: Done, *, single: bool) -> None:
        def careful(connection: apsw.Connection) -> Exception | None:
            """What concerns this run alone must not undo the writes of others in the same group."""
            try:
                if self._lost:
                    raise leases.lost(self.run_id)
                write(connection)
            except (LeaseLost, apsw.ConstraintError) as error:
                self._lost = True
                return error
            return None

        self._store.submit(careful, lambda result, error: done(error or result), single=single)
