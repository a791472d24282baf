"""A service in this process, for as long as a piece of work takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from support.rendered import Service
from workflows_mcp.limits import Limits
from workflows_mcp.settings.model import Settings

Work = Callable[[Service], Awaitable[None]]
Serve = Callable[..., None]
"""serve(work, **limits)"""


def serving(settings: Settings) -> Serve:
    def go(work: Work, **limits: Any) -> None:
        async def session() -> None:
            own = Settings(workspace=settings.workspace, home=settings.home, limits=Limits(**limits))
            async with Service.open(own) as service:
                await work(service)

        asyncio.run(asyncio.wait_for(session(), 40))

    return go


def steps(*lines: str, state: str = "{}", rest: str = "") -> str:
    """A workflow of these steps, each on a line of its own, the first one on line 5."""
    listed = "".join(f"  - {line}\n" for line in lines)
    return f'name: it\nversion: "1.0.0"\ninitial_state: {state}\nsteps:\n{listed}{rest}'
