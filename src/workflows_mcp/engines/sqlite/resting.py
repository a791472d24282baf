"""Runs that wait for an agent, kept in memory so that the answer need not read them again.

Another process may have gone on with such a run meanwhile; its epoch tells.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from workflows_mcp.engines.large_values import LargeValues
from workflows_mcp.machine.machine import Machine


class Resting(NamedTuple):
    machine: Machine
    large: LargeValues
    epoch: int
    """At which the run came to rest."""


class RestingRuns:
    def __init__(self, size: int = 64) -> None:
        self._runs: OrderedDict[str, Resting] = OrderedDict()
        self._size = size

    def keep(self, run_id: str, resting: Resting) -> None:
        self._runs[run_id] = resting
        self._runs.move_to_end(run_id)
        while len(self._runs) > self._size:
            self._runs.popitem(last=False)

    def at(self, run_id: str, epoch: int | None) -> Resting | None:
        """The run, if nobody has touched it since it came to rest: its epoch is still the same."""
        known = self._runs.get(run_id)
        return known if known is not None and known.epoch == epoch else None

    def take(self, run_id: str, epoch: int) -> Resting | None:
        """The run, if it has been claimed from rest just now, which has raised its epoch to this one."""
        known = self._runs.pop(run_id, None)
        return known if known is not None and known.epoch == epoch - 1 else None
