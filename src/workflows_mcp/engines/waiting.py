"""Waiting for a run that is driven in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from workflows_mcp.engines.driver import Driver
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.state import RunState

_AGAIN = 3
"""How often what happened meanwhile is waited for too, before a busy run is shown as it is."""


async def wait_until(driver: Driver, ready: Callable[[RunState], bool], seconds: float) -> Machine:
    """The run as soon as `ready` holds, or after `seconds`; what it shows is safe on disk."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    state = driver.machine.state
    while not ready(state) and driver.failure is None and (left := until - loop.time()) > 0:
        await driver.changed(left)
    for _ in range(_AGAIN):
        position = state.events
        await driver.synced()
        if state.events == position:
            break
    if state.status != "running":
        await driver.quiet()
    return driver.machine
