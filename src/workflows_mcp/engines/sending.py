"""Sending an event from outside to the driver of a run, which knows more than is on disk yet."""

from __future__ import annotations

from workflows_mcp.engines.base import MakeEvent
from workflows_mcp.engines.driver import Driver
from workflows_mcp.errors import LeaseLost, WorkflowsError


async def send_to(driver: Driver, make_event: MakeEvent, now: float) -> None:
    """Raises LeaseLost where the run is not driven there (any more), and then nothing has been decided. Any
    other refusal counts only when that is safe on disk which the event is refused for: another process may
    have been quicker, and then it never happened."""
    try:
        await driver.send(make_event(driver.machine, now))
    except LeaseLost:
        raise
    except WorkflowsError:
        await driver.synced()
        raise
