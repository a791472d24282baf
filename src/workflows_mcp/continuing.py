"""Going on with a run in another conversation: the part of the service that decides what goes on.

| the run                                   | what goes on                                             |
| ----------------------------------------- | -------------------------------------------------------- |
| is under way                              | it; nothing that is done is done again                   |
| has failed                                | a new run, in which what it failed by is done again      |
| … and says `skip_completed_steps: false`  | a new run, from the start, with the same inputs          |
| … and says `retry_failed_steps: false`    | nothing                                                  |
| has completed, or was cancelled           | nothing                                                  |

Going on twice gives the same new run; where that one has failed as well, it is gone on from there. Knows runs
and their journals; how an answer is worded is not known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from workflows_mcp.agent.doing_again import Changes, Journal, culprits, kept
from workflows_mcp.engines.base import Engine
from workflows_mcp.engines.replay import replayed
from workflows_mcp.machine.changes import Path, value_at
from workflows_mcp.machine.events import Event, StateUpdated
from workflows_mcp.plan.model import Bundle, Plan
from workflows_mcp.resuming import unpark


class Continuing:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def go_on(self, run_id: str) -> str:
        """The run that goes on: the run itself, or one that was made of it."""
        while True:
            machine = await self._engine.view(run_id)
            plan = machine.plan_named(machine.state.workflow)
            if machine.state.status == "running":
                await unpark(self._engine, run_id)
                return run_id
            if machine.state.status != "failed" or not plan.on_resume.get("retry_failed_steps", True):
                return run_id
            bundle, events = await self._engine.journal(run_id)
            known = await continued_as(self._engine, run_id, len(events))
            if known is None:
                return await self._made_of(run_id, plan, bundle, events, retry_request(run_id, len(events)))
            run_id = known

    async def _made_of(
        self, run_id: str, plan: Plan, bundle: Bundle, events: Sequence[Event], request: str
    ) -> str:
        changes: Changes = {}
        then: list[Event] = []
        if plan.on_resume.get("skip_completed_steps", True):
            changes = await asyncio.to_thread(_for_another_try, bundle, events)
            then = kept(events, changes)
        if not then:
            view = await self._engine.view(run_id)
            return await self._engine.start(bundle, view.state.root.inputs, request_id=request)
        if plan.on_resume.get("reset_error_counts") and plan.errors_to:
            changes = await asyncio.to_thread(_without_errors, tuple(plan.errors_to), bundle, events, changes)
        return await self._engine.fork(run_id, len(events), instead=changes, request_id=request)


def retry_request(run_id: str, position: int) -> str:
    """The request that makes a new run of one that has failed. It is the same for `retry` and for a resume in
    another conversation, so that both give the same run."""
    return f"retry {run_id}@{position}"


async def continued_as(engine: Engine, run_id: str, position: int) -> str | None:
    """The run that was made of this one before, by a retry or a resume, if any was."""
    made = await engine.made_by(retry_request(run_id, position))
    return made or await engine.made_by(f"resume {run_id}@{position}")  # as earlier versions called it


def _without_errors(where: Path, bundle: Bundle, events: Sequence[Event], changes: Changes) -> Changes:
    """With a last event that takes out of the new run the errors that it has from the old one."""
    then = replayed(bundle, kept(events, changes))
    errors = value_at(then.state.root.state, where)
    if not isinstance(errors, list) or not errors:
        return changes
    last = len(events)
    emptied = StateUpdated(events[-1].at, [(list(where), "set", [])])
    return {**changes, last: (*changes.get(last, (events[-1],)), emptied)}


def _for_another_try(bundle: Bundle, events: Sequence[Event]) -> Changes:
    """What the new run has in place of events, so that what the old one failed by is done again: nothing at
    all where nothing comes before. Where a step failed by the values that it had, what came before it is
    done again, which may give others."""
    journal = Journal(bundle, events, culprits(replayed(bundle, events)))
    return journal.changes(journal.ends(of_others=True) or {len(events)})
