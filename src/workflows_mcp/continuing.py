"""Going on with a run in another conversation: the part of the service that decides what goes on.

| the run                                   | what goes on                                             |
| ----------------------------------------- | -------------------------------------------------------- |
| is under way                              | it; nothing that is done is done again                   |
| has failed                                | a new run, from before the step that failed              |
| … and says `skip_completed_steps: false`  | a new run, from the start, with the same inputs          |
| … and says `retry_failed_steps: false`    | nothing                                                  |
| has completed, or was cancelled           | nothing                                                  |

Going on twice gives the same new run; where that one has failed as well, it is gone on from there. Knows runs
and their journals; how an answer is worded is not known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from workflows_mcp.agent.tasks import record_at
from workflows_mcp.engines.base import Engine
from workflows_mcp.errors import NotExpected
from workflows_mcp.expressions.base import MISSING
from workflows_mcp.machine.changes import Path, value_at
from workflows_mcp.machine.events import Event, StateUpdated, Stopped
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.scope import failed
from workflows_mcp.machine.state import RunState
from workflows_mcp.plan.items import names_of_items
from workflows_mcp.plan.model import Bundle, Plan

_MOST_RUNS = 50
"""How many runs that were made one from the other are looked at for the last one."""


class Continuing:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def go_on(self, run_id: str) -> str:
        """The run that goes on: the run itself, or one that was made of it."""
        for _ in range(_MOST_RUNS):
            machine = await self._engine.view(run_id)
            plan = machine.plan_named(machine.state.workflow)
            if machine.state.status == "running":
                await self._engine.carry_on(run_id)
                return run_id
            if machine.state.status != "failed" or not plan.on_resume.get("retry_failed_steps", True):
                return run_id
            run_id = await self._made_of(run_id, plan)
        return run_id

    async def _made_of(self, run_id: str, plan: Plan) -> str:
        bundle, events = await self._engine.journal(run_id)
        position = 0
        if plan.on_resume.get("skip_completed_steps", True):
            position = await asyncio.to_thread(position_of_failure, bundle, events)
        request = f"resume {run_id}@{position}"
        if position == 0:
            view = await self._engine.view(run_id)
            return await self._engine.start(bundle, view.state.root.inputs, request_id=request)
        made = await self._engine.fork(run_id, position, request_id=request)
        if plan.on_resume.get("reset_error_counts") and plan.errors_to:
            await self._forget_errors(made, tuple(plan.errors_to), bundle, events[:position])
        return made

    async def _forget_errors(self, run_id: str, where: Path, bundle: Bundle, events: Sequence[Event]) -> None:
        """Take the errors out of the new run that it has from the old one."""
        then = await asyncio.to_thread(_replayed, bundle, events)
        before = value_at(then.state.root.state, where)
        if not isinstance(before, list) or not before:
            return

        def without(machine: Machine, now: float) -> Event:
            errors = value_at(machine.state.root.state, where)
            if errors is MISSING or not isinstance(errors, list) or errors[: len(before)] != before:
                raise NotExpected("they are gone already")
            return StateUpdated(now, [(list(where), "set", errors[len(before) :])])

        with suppress(NotExpected):  # done before, or the run has ended again
            await self._engine.send(run_id, without)


def position_of_failure(bundle: Bundle, events: Sequence[Event]) -> int:
    """How many events of a failed run come before the one that made it fail; 0 where nothing does."""
    last = _replayed(bundle, events)
    blamed = _blamed(last.state)
    machine = Machine(bundle)
    failed_before: dict[str, bool] = dict.fromkeys(blamed, False)
    positions: dict[str, int] = {}
    for number, event in enumerate(events, start=1):
        machine.apply(event)
        for address in blamed:
            now = _has_failed(machine.state, address)
            if now and not failed_before[address]:
                positions[address] = number
            failed_before[address] = now
    position = min(positions.values(), default=len(events)) - 1
    while position > 0 and isinstance(events[position - 1], Stopped):
        position -= 1  # what had to be stopped is found out again
    return position


def _replayed(bundle: Bundle, events: Sequence[Event]) -> Machine:
    machine = Machine(bundle)
    for event in events:
        machine.apply(event)
    return machine


def _blamed(state: RunState) -> list[str]:
    """The steps that made it fail: the one that is named, and, where it is in a task, the other tasks that
    failed beside it. Empty text: the run itself."""
    address = state.fault.address if state.fault is not None else ""
    found = [address]
    names = address.split("/")
    for length in range(1, len(names)):
        around = "/".join(names[:length])
        record = record_at(state, around)
        scope = record.scope if record is not None else None
        if scope is not None and scope.each is not None:
            for name in names_of_items(scope.each, scope.named):
                item = scope.records.get(name)
                if item is not None and failed(item):
                    found.append(f"{around}/{name}")
    return list(dict.fromkeys(found))


def _has_failed(state: RunState, address: str) -> bool:
    if not address:
        return state.status == "failed"
    record = record_at(state, address)
    if record is None:
        # an error that no step can be blamed for, e.g. in the state that the run begins with
        return state.status == "failed"
    return failed(record)
