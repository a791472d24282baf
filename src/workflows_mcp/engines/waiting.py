"""Waiting for a run that is driven in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from workflows_mcp.engines.driver import Driver
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.state import RunState


async def wait_until(driver: Driver, ready: Callable[[RunState], bool], seconds: float) -> Machine:
    """The run as soon as `ready` holds, or after `seconds`; what it shows is safe on disk. Where it comes to
    rest before, it is not to be looked at here: another driver may have it already."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    state = driver.machine.state
    await asyncio.sleep(0)  # whoever looks again and again must not keep the run from going on
    await driver.still()
    while not (driver.rested or driver.failure or ready(state)) and (left := until - loop.time()) > 0:
        await driver.changed(left)
        await driver.still()
    if state.status != "running":
        await driver.quiet()
    return await driver.settled()
