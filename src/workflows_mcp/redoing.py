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
from collections.abc import Sequence

from workflows_mcp.agent.doing_again import all_of, carried_out, culprits, ends_of, kept, left_out
from workflows_mcp.agent.parts import part_of, run_of
from workflows_mcp.agent.walk import blocks_of
from workflows_mcp.engines.base import Engine
from workflows_mcp.engines.replay import replayed
from workflows_mcp.errors import RequestError
from workflows_mcp.machine.events import CancelRequested, Event
from workflows_mcp.plan.model import Bundle
from workflows_mcp.values import did_you_mean

MOST_RETRIES = 50
"""How many runs that were made one from the other are looked at for the last one."""
_NAMED = 12


class Redoing:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def retry(self, run_id: str) -> str:
        """The run that goes on: one that is made of this one, now or when it was asked for before."""
        if run_of(run_id) != run_id:
            raise RequestError(
                f"'{run_id}' is a task, and a task cannot be tried again alone",
                hint=f"retry '{run_of(run_id)}': what was done in its tasks stays done",
            )
        made = await self._made_of(run_id)
        for _ in range(MOST_RETRIES):
            if (await self._engine.view(made)).state.status not in ("failed", "cancelled"):
                return made
            made = await self._made_of(made)
        return made

    async def _made_of(self, run_id: str) -> str:
        bundle, events = await self._engine.journal(run_id)
        without = await asyncio.to_thread(_for_another_try, run_id, bundle, events)
        request = f"retry {run_id}@{len(events)}"
        return await self._engine.fork(run_id, len(events), without=without, request_id=request)

    async def fork(self, workflow_id: str, step_id: str, *, request_id: str | None = None) -> str:
        """A new run, in which a step of this one is under way again; another one each time, unless the
        request_id is known."""
        run_id = run_of(workflow_id)
        bundle, events = await self._engine.journal(run_id)
        without = await asyncio.to_thread(_from_step, workflow_id, step_id, bundle, events)
        return await self._engine.fork(run_id, len(events), without=without, request_id=request_id)


def _for_another_try(run_id: str, bundle: Bundle, events: Sequence[Event]) -> set[int]:
    machine = replayed(bundle, events)
    status, fault = machine.state.status, machine.state.fault
    if status == "cancelled":
        return left_out(bundle, events, _cancels(events))
    if status != "failed" or fault is None:
        how = "is under way: nothing has failed by which it ends" if status == "running" else "has completed"
        raise RequestError(
            f"the run {run_id} {how}, so there is nothing to try again",
            hint="to do a step of it again, in a new run: action fork, with the step_id",
            code="nothing_to_retry",
        )
    ends = ends_of(bundle, events, culprits(machine))
    if not ends:
        raise RequestError(
            f"the run {run_id} did not fail by what a step did, but by its definition and the values that it "
            f"had, so it would fail again: {fault.message}",
            hint="mend the workflow and start it again, or do an earlier step again, in a new run: action "
            f"fork, with one of the steps {_those_of(events)}",
            code="nothing_to_retry",
        )
    return left_out(bundle, events, ends)


def _from_step(workflow_id: str, step_id: str, bundle: Bundle, events: Sequence[Event]) -> set[int]:
    machine = replayed(bundle, events)
    part = part_of(machine, workflow_id)
    reached = [it.address for it in blocks_of(machine) if it.record.started_at is not None]
    address = next((it for it in part.meant(step_id.strip()) if it in reached), None)
    if address is None:
        shown = [part.step_id(it) for it in reached if part.covers(it)]
        raise RequestError(
            f"the run {workflow_id} has not come to a step '{step_id}'",
            hint=did_you_mean(step_id, shown, what="it has come to", limit=_NAMED),
            code="unknown_step",
        )
    without = left_out(bundle, events, all_of(bundle, events, address) | _cancels(events))
    if address not in replayed(bundle, kept(events, without)).state.frames:
        raise RequestError(
            f"the step '{step_id}' follows from what came before it, and cannot be done again alone",
            hint=f"fork from one of {_those_of(events)}",
            code="unknown_step",
        )
    return without


def _cancels(events: Sequence[Event]) -> set[int]:
    return {number for number, event in enumerate(events, start=1) if isinstance(event, CancelRequested)}


def _those_of(events: Sequence[Event]) -> str:
    """The last steps that can be done again, in words."""
    return ", ".join(f"'{it}'" for it in carried_out(events)[-_NAMED:]) or "none: it has done nothing yet"
