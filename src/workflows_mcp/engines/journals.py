"""What a driver writes, and what it takes to write it: a batch of events, and the journal of one run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from workflows_mcp.engines.large_values import Blob


class Batch(msgspec.Struct, frozen=True):
    """Events of one run, to be written together or not at all."""

    position: int
    """How many events of the run come before these."""
    events: bytes
    count: int
    status: str
    """running, idle (it waits for an agent only), completed, failed or cancelled."""
    at: float
    snapshot: bytes | None = None
    blobs: tuple[Blob, ...] = ()
    """Large values that the events or the snapshot refer to, and that are not written yet."""


class Journal(Protocol):
    """Where the events of one run go."""

    def append(self, batch: Batch, done: Callable[[Exception | None], None]) -> None:
        """Write; call `done` on the event loop when it is safe, in the order of the calls."""

    def in_force(self) -> bool:
        """Whether the run is known to be ours at this moment. A process that was stopped for a while does
        not know, and must ask before it starts what cannot be taken back."""

    def confirm(self, done: Callable[[Exception | None], None]) -> None:
        """Find out whether the run is still ours; an error where it is not."""
