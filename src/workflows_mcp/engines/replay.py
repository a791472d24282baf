"""A run from its events: the machine that they lead to."""

from __future__ import annotations

from collections.abc import Iterable

from workflows_mcp.machine.events import Event
from workflows_mcp.machine.machine import Machine
from workflows_mcp.plan.model import Bundle


def replayed(bundle: Bundle, events: Iterable[Event]) -> Machine:
    machine = Machine(bundle)
    for event in events:
        machine.apply(event)
    return machine
