"""Making a fork: the new run is written with all the events that it begins with, at once or not at all, and
then goes on as any other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import apsw

from workflows_mcp.engines.clock import Clock
from workflows_mcp.engines.executor import Executor
from workflows_mcp.engines.forks import Fork, Instead, asked_for, batch_of, fork_of
from workflows_mcp.engines.large_values import LargeValues
from workflows_mcp.engines.sqlite import leases, retention, runs
from workflows_mcp.engines.sqlite.store import Store
from workflows_mcp.machine.events import Event
from workflows_mcp.plan.model import Bundle


class Forks:
    def __init__(
        self,
        store: Store,
        lease: leases.Lease,
        bundles: runs.BundleCache,
        executor: Executor,
        clock: Clock,
        home: runs.Home,
        *,
        journal: Callable[[str], Awaitable[tuple[Bundle, list[Event], LargeValues]]],
        begin: Callable[[Fork, LargeValues, Awaitable[None]], Awaitable[None]],
    ) -> None:
        """`begin`: lets a fork go on, as soon as it has been written."""
        self._store = store
        self._lease = lease
        self._bundles = bundles
        self._executor = executor
        self._clock = clock
        self._journal = journal
        self._begin = begin
        self._home = home
        self._making: set[asyncio.Task[None]] = set()

    async def make(self, run_id: str, position: int, instead: Instead, request_id: str | None) -> str:
        asked = asked_for(run_id, position, instead)
        request = runs.Request(request_id, asked) if request_id is not None else None
        if request is not None and (known := runs.started_by(self._store, request)) is not None:
            return known
        bundle, events, large = await self._journal(run_id)
        scratch = self._executor.scratch
        fork = fork_of(run_id, bundle, events, position, self._clock.now(), instead=instead, scratch=scratch)
        making = asyncio.create_task(self._make(fork, large, run_id, request))
        self._making.add(making)
        making.add_done_callback(self._making.discard)
        try:
            await asyncio.shield(making)  # whoever has asked may go away: it is made whole all the same
        except apsw.ConstraintError:
            if request is None or (known := runs.started_by(self._store, request)) is None:
                raise
            return known
        return fork.run_id

    async def made(self) -> None:
        """Until none is being made any more."""
        await asyncio.gather(*self._making, return_exceptions=True)

    async def _make(self, fork: Fork, large: LargeValues, run_id: str, request: runs.Request | None) -> None:
        try:
            await asyncio.to_thread(self._executor.copy_scratch, run_id, fork.run_id)
            await self._begin(fork, large, self._written(fork, large, run_id, request))
        except BaseException:
            if runs.status_of(self._store, fork.run_id) is None:
                self._executor.clear_scratch(fork.run_id)
            raise

    async def _written(
        self, fork: Fork, large: LargeValues, origin: str, request: runs.Request | None
    ) -> None:
        now, owner, state = self._clock.now(), self._lease.owner.id, fork.machine.state
        pinned = self._bundles.put(fork.machine.bundle)
        origin = state.forked_from.partition("@")[0]
        run = runs.NewRun(
            fork.run_id, state.workflow, *pinned, request, state.started_at, now, self._home, origin
        )
        batch = batch_of(fork, large, now)

        def write(connection: apsw.Connection) -> None:
            self._lease.renew(connection, now)
            retention.share_blobs(connection, origin, fork.run_id)
            runs.create(connection, run, owner)
            leases.close_batch(connection, fork.run_id, owner, 1, batch, rest=False)

        await self._store.write(write)
