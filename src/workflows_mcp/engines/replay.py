"""A run from its events: the machine that they lead to, under the limits of this process."""

from __future__ import annotations

from collections.abc import Iterable

from workflows_mcp.limits import Limits
from workflows_mcp.machine.events import Event
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.state import RunState
from workflows_mcp.plan.model import Bundle


def machine_of(bundle: Bundle, limits: Limits, snapshot: bytes | RunState | None = None) -> Machine:
    """A run that has not begun, or is as its snapshot says."""
    return Machine(bundle, snapshot, call_depth=limits.call_depth, most_items=limits.for_each_items)


def replayed(bundle: Bundle, events: Iterable[Event], limits: Limits) -> Machine:
    machine = machine_of(bundle, limits)
    for event in events:
        machine.apply(event)
    return machine
