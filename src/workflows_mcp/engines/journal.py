"""What a driver writes: batches of events, to the journal of one run.

journal.append(Batch(position, events, count, status, at), done)    # `done` is called after the commit
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from workflows_mcp.engines.values import Blob


class Batch(msgspec.Struct, frozen=True):
    """Events of one run that are committed together."""

    position: int
    """How many events of the run come before these."""
    events: bytes
    count: int
    status: str
    """running, idle (it waits only for agents), completed, failed or cancelled."""
    at: float
    snapshot: bytes | None = None
    blobs: tuple[Blob, ...] = ()
    """Large values that the events or the snapshot refer to, and that are new."""


class Journal(Protocol):
    """The journal of one run, under the lease of this process."""

    def append(self, batch: Batch, done: Callable[[Exception | None], None]) -> None:
        """Write a batch; call `done` on the event loop after the commit, in order."""

    def in_force(self) -> bool:
        """Whether this process certainly owns the run.

        A process that was suspended does not know: it must `confirm` before it starts a step."""

    def confirm(self, done: Callable[[Exception | None], None]) -> None:
        """Check in the store that this process owns the run; an error if not."""
