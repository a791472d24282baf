"""Doing some of a run again: the part of the service behind `retry` and `fork`.

| what is asked for             | what goes on                                                              |
| ----------------------------- | ------------------------------------------------------------------------- |
| retry, the run has failed     | a new run, in which the steps that it failed by are under way again       |
| retry, it was cancelled       | a new run, from where it was cancelled                                    |
| retry, it was retried before  | the run that was made then; where that one has failed too, one made of it |
| fork from a step              | a new run, in which this step is under way again                          |

What does not depend on these steps stays done, and is not done again. The old run is left as it is.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

from workflows_mcp.agent.doing_again import Changes, Journal, carried_out, culprits, kept
from workflows_mcp.agent.following import Redo
from workflows_mcp.agent.parts import part_of, run_of
from workflows_mcp.agent.tasks import record_at
from workflows_mcp.agent.walk import blocks_of
from workflows_mcp.continuing import continued_as, retry_request
from workflows_mcp.engines.base import Engine
from workflows_mcp.engines.replay import replayed
from workflows_mcp.errors import RequestError
from workflows_mcp.machine.events import CancelRequested, Event
from workflows_mcp.machine.machine import Machine
from workflows_mcp.plan.model import Bundle
from workflows_mcp.values import did_you_mean

_NAMED = 12
_REMEMBERED = 256


class Redoing:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ways: OrderedDict[str, Redo] = OrderedDict()
        """Of runs that have failed: nothing changes these any more."""

    async def ways(self, run_id: str) -> Redo:
        """What of a run that has failed can be done again."""
        if run_id not in self._ways:
            bundle, events = await self._engine.journal(run_id)
            self._ways[run_id] = await asyncio.to_thread(_ways, run_id, bundle, events)
            while len(self._ways) > _REMEMBERED:
                self._ways.popitem(last=False)
        return self._ways[run_id]

    async def retry(self, run_id: str) -> tuple[str, bool]:
        """The run that goes on, which is made of this one, and whether it was made when that was asked for
        before."""
        while True:
            bundle, events = await self._engine.journal(run_id)
            request = retry_request(run_id, len(events))
            made = await continued_as(self._engine, run_id, len(events))
            if made is None:
                changes = await asyncio.to_thread(_for_another_try, run_id, bundle, events)
                new = await self._engine.fork(run_id, len(events), instead=changes, request_id=request)
                return new, False
            if (await self._engine.view(made)).state.status not in ("failed", "cancelled"):
                return made, True
            run_id = made

    async def fork(self, workflow_id: str, step_id: str, *, request_id: str | None = None) -> str:
        """A new run, in which a step of this one is under way again; another one each time, unless the
        request_id is known."""
        run_id = run_of(workflow_id)
        bundle, events = await self._engine.journal(run_id)
        changes = await asyncio.to_thread(_from_step, workflow_id, step_id, bundle, events)
        return await self._engine.fork(run_id, len(events), instead=changes, request_id=request_id)


def _ways(run_id: str, bundle: Bundle, events: Sequence[Event]) -> Redo:
    try:
        _for_another_try(run_id, bundle, events)
    except RequestError:
        return Redo(False, tuple(carried_out(events)))
    return Redo(True, tuple(carried_out(events)))


def _for_another_try(run_id: str, bundle: Bundle, events: Sequence[Event]) -> Changes:
    machine = replayed(bundle, events)
    status, fault = machine.state.status, machine.state.fault
    if status == "cancelled":
        return Journal(bundle, events, []).changes(_cancels(events))
    if status != "failed" or fault is None:
        how = "is under way: nothing has failed by which it ends" if status == "running" else "has completed"
        raise RequestError(
            f"the run {run_id} {how}, so there is nothing to try again",
            hint=f"to do a step of it again, in a new run: {_forking(events)}",
            code="nothing_to_retry",
        )
    journal = Journal(bundle, events, culprits(machine))
    ends = journal.ends()
    if not ends:
        raise RequestError(
            f"the run {run_id} did not fail by what a step did, but by its definition and the values that it "
            f"had, so it would fail again: {fault.message}",
            hint="mend the workflow and start it again; or, to do an earlier step again, in a new run: "
            f"{_forking(events)}",
            code="nothing_to_retry",
        )
    return journal.changes(ends)


def _from_step(workflow_id: str, step_id: str, bundle: Bundle, events: Sequence[Event]) -> Changes:
    machine = replayed(bundle, events)
    part = part_of(machine, workflow_id)
    reached = [it.address for it in blocks_of(machine) if it.record.started_at is not None]
    address = next((it for it in part.meant(step_id.strip()) if it in reached), None)
    if address is None:
        done = [part.step_id(it) for it in carried_out(events) if part.covers(it)]
        raise RequestError(
            f"the run {workflow_id} has not come to a step '{step_id}'",
            hint=did_you_mean(step_id, done, what="it has carried out", limit=_NAMED),
            code="unknown_step",
        )
    _refuse_an_earlier_round(machine, step_id.strip(), address)
    journal = Journal(bundle, events, [address])
    changes = journal.changes(journal.all_of(address) | _cancels(events))
    if address not in replayed(bundle, kept(events, changes)).state.frames:
        raise RequestError(
            f"the step '{step_id}' follows from what came before it, and cannot be done again alone",
            hint=_forking(events),
            code="unknown_step",
        )
    return changes


def _refuse_an_earlier_round(machine: Machine, step_id: str, address: str) -> None:
    """`ask@2` names the second round of a step; only the last one can be done again."""
    wanted = step_id.partition("@")[2].partition(".")[0]
    around, _, name = address.rpartition("/")
    record = record_at(machine.state, around) if around else None
    scope = machine.state.root if not around else record.scope if record is not None else None
    rounds = scope.rounds.get(name, 1) if scope is not None else 1
    if wanted.isdecimal() and int(wanted) != rounds:
        raise RequestError(
            f"the run has come to '{name}' {rounds} times, and only the last time can be done again",
            hint=f"leave out '@{wanted}', or do a step again that comes before the {name!r} that you mean",
            code="unknown_step",
        )


def _cancels(events: Sequence[Event]) -> set[int]:
    return {number for number, event in enumerate(events, start=1) if isinstance(event, CancelRequested)}


def _forking(events: Sequence[Event]) -> str:
    """How to do a step again, in words."""
    steps = ", ".join(f"'{it}'" for it in carried_out(events)[-_NAMED:])
    return f"fork from one of {steps}" if steps else "start the workflow again: it has carried out nothing"
