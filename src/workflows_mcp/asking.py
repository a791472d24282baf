"""Putting to the user directly what a run asks of its user: the part of the service behind forms. How a form
is shown is for whoever shows it; here is which question comes next, what has come of asking it before, and
when nobody needs its answer any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from workflows_mcp.agent.of_the_user import OfTheUser, Outcome
from workflows_mcp.agent.parts import run_of
from workflows_mcp.agent.user_questions import NOTHING, ForTheUser, UserQuestion, for_the_user
from workflows_mcp.driving import Driving
from workflows_mcp.engines.base import Engine
from workflows_mcp.steps.registry import StepRegistry
from workflows_mcp.telling import wait_telling

T = TypeVar("T")

_LONG = 7 * 86_400.0


class Asking:
    def __init__(
        self, engine: Engine, driving: Driving, registry: StepRegistry, setting: str, now: Callable[[], float]
    ) -> None:
        self._engine = engine
        self._driving = driving
        self._registry = registry
        self._setting = setting
        self._now = now

    async def questions(self, run_id: str) -> ForTheUser:
        """What the run asks that is to be put to the user directly, if anything is."""
        if run_of(run_id) != run_id or self._setting == "never":
            return NOTHING
        return for_the_user(await self._driving.situation(run_id), self._registry, self._setting)

    # What comes of asking, for whoever asks next

    async def put_up(self, run_id: str, question: UserQuestion) -> None:
        await self._note(run_id, question.heard.put_up)

    async def answered_as_task(self, run_id: str, question: UserQuestion) -> None:
        await self._note(run_id, question.heard.answered)

    async def in_vain(self, run_id: str, step_id: str, outcome: Outcome) -> None:
        await self._note(run_id, OfTheUser(step_id).ended(outcome))

    async def _note(self, run_id: str, note: str) -> None:
        await self._engine.hear(run_id, note, self._now())

    async def while_open(
        self, run_id: str, question: UserQuestion, shown: Coroutine[Any, Any, T]
    ) -> T | None:
        """What comes of showing the question; None as soon as nobody needs the answer any more, because the
        run has ended or somebody else has answered. Meanwhile it is told that the run waits."""
        showing = asyncio.ensure_future(shown)
        settled = asyncio.ensure_future(
            wait_telling(
                self._engine, run_id, lambda state: not question.is_open(state), _LONG, now=self._now
            )
        )
        try:
            await asyncio.wait([showing, settled], return_when=asyncio.FIRST_COMPLETED)
            return showing.result() if showing.done() else None
        finally:
            for task in (showing, settled):
                task.cancel()
            await asyncio.gather(showing, settled, return_exceptions=True)
