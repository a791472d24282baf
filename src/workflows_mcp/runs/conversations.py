"""`Conversations`: what an agent reads and writes of a run beside its steps, so that another can continue it.

    await conversations.update("wf_7f3a", [{"path": "raw.count", "value": 1}])
    await conversations.mark("wf_7f3a", "context nearly full", None)

Every method that takes the id of a run also takes the id of a task.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

from workflows_mcp.answers import (
    CheckpointId,
    Dependencies,
    Redact,
    StateSnapshot,
    TaskBrief,
    Visited,
    brief_of,
    joined,
    parse_checkpoint_id,
    read_updates,
    run_of,
    run_view_of,
    snapshot_of,
    state_address,
    target_of,
    trial_of,
)
from workflows_mcp.engines import Engine
from workflows_mcp.errors import RequestError, UnknownRun
from workflows_mcp.machine import TERMINAL, Event, Machine, Mark, events, iso
from workflows_mcp.plan import CONTEXT_FULL, Plan
from workflows_mcp.runs.agent_protocol import AgentProtocol
from workflows_mcp.runs.checkpoints import Histories
from workflows_mcp.values import Value

_STATES = frozenset({"current_raw_state", "computed_state"})


@dataclass(frozen=True, slots=True)
class Resumption:
    """What an agent in a new conversation needs to know, beside the state and the step."""

    last_checkpoint: dict[str, Value]
    """The last marked position; without one, when the run changed last."""
    about: dict[str, Value]
    """The parts that the workflow names in `on_resume`."""
    states: Container[str]
    """The parts of the state that are shown."""

    def fields_of(self, state: StateSnapshot) -> Container[str] | None:
        """Return the fields of the state that are shown; None for no state."""
        computed = state.plan.computed if state.plan is not None else ()
        shown = [
            name
            for name in state.flat
            if ("computed_state" if name in computed else "current_raw_state") in self.states
        ]
        return shown if any(it in self.states for it in _STATES) else None


class Conversations:
    def __init__(
        self,
        engine: Engine,
        agents: AgentProtocol,
        histories: Histories,
        *,
        plan_of: Callable[[str], Plan],
        redacted: Callable[[Machine], Redact],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self._agents = agents
        self._histories = histories
        self._plan_of = plan_of
        self._redacted = redacted
        self._now = now

    async def read(self, workflow_id: str, *, outermost: bool = False) -> tuple[str, StateSnapshot]:
        """Return the full id and the state, also of a checkpoint.

        The state is that of the included workflow whose step is pending, or with `outermost` that of the run.
        """
        if (checkpoint := parse_checkpoint_id(workflow_id)) is not None:
            await self._histories.find(workflow_id)
            view = run_view_of(await self._histories.state_at(checkpoint), now=self._now())
        else:
            view = await self._agents.view(await self._agents.full_id(workflow_id))
        snapshot = snapshot_of(view, None if outermost else state_address(view))
        return view.target.id, await asyncio.to_thread(snapshot.read)

    async def update(
        self, workflow_id: str, updates: Sequence[dict[str, Any]]
    ) -> tuple[dict[str, Value], dict[str, str]]:
        """Make all of the updates, or none: then raise RequestError that names the wrong one.

        Return the computed fields that have changed, and the new errors.
        """
        target_id = await self._agents.full_id(workflow_id)
        run_id, changes = run_of(target_id), read_updates(updates)
        machine = await self._engine.view(run_id)
        address = state_address(run_view_of(machine, now=self._now(), target=target_of(machine, target_id)))
        trial = trial_of(machine, address, changes, self._redacted(machine))
        await asyncio.to_thread(trial.check)
        token = os.urandom(8).hex()

        def updated(machine: Machine, now: float) -> Event:
            trial.refuse_wrong(machine)
            return events.StateUpdated(now, trial.changes, address, token)

        await self._engine.send(run_id, updated)
        return await asyncio.to_thread(trial.changed_in(await self._engine.view(run_id)))

    async def dependencies(self, workflow_id: str, field: str) -> dict[str, Value]:
        """Return what a field depends on, in a run, a task, or a workflow given by name."""
        try:
            machine = await self._engine.view(run_of(workflow_id))
        except UnknownRun:
            return Dependencies(self._plan_of(workflow_id)).of(field)
        view = run_view_of(machine, now=self._now(), target=target_of(machine, workflow_id))
        return Dependencies(machine.plan_named(view.workflow)).of(field)

    async def mark(
        self, workflow_id: str, reason: str, step_id: str | None, *, park: bool = False
    ) -> tuple[list[str], CheckpointId]:
        """Mark the current position, to resume from it later; return the messages for the user, and the mark.

        If the reason is a full context and the workflow has steps for that case, they run and the run is
        parked; `park` parks it in any case. Raises NotExpected if the run has ended.
        """
        run_id = run_of(workflow_id)
        made: list[Mark] = []

        def marked(machine: Machine, now: float) -> Event:
            clean, step = self._redacted(machine), step_id or _asked_first(machine, self._now())
            plan = machine.plan_named(machine.state.workflow)
            full = park or (bool(plan.on_context_full) and "context" in reason.lower())
            made[:] = [Mark(machine.state.events, now, clean(reason), clean(step))]
            return (events.ContextFull if full else events.Marked)(now, made[0].reason, made[0].step)

        await self._engine.send(run_id, marked)
        state = (await self._engine.view(run_id)).state
        mark = next(it for it in state.marks if _follows(it, made[0]))
        messages = [it.text for it in state.messages if it.address.startswith(f"{CONTEXT_FULL}/")]
        return messages, CheckpointId(run_id, mark.event)

    async def resumption(self, run_id: str) -> Resumption:
        machine = await self._engine.view(run_id)
        on_resume = machine.plan_named(machine.state.workflow).on_resume
        if not {"load_from_checkpoint", "exclude"} & on_resume.keys():
            return Resumption(_last_checkpoint(machine), {}, _STATES)
        parts = set(on_resume.get("load_from_checkpoint", _STATES)) - set(on_resume.get("exclude", ()))
        return Resumption(_last_checkpoint(machine), _about(machine, parts), parts)

    async def task_brief(self, workflow_id: str, task_id: str = "") -> TaskBrief:
        """Return what the sub-agent of a task needs to know. Raises RequestError for a run."""
        target_id = await self._agents.full_id(joined(workflow_id, task_id))
        view = await self._agents.view(target_id)
        if view.task is None:
            raise RequestError(
                f"'{target_id}' is a run, not a task",
                hint="give the id of one of its tasks",
                code="unknown_task",
            )
        return brief_of(view)


def _asked_first(machine: Machine, now: float) -> str:
    view = run_view_of(machine, now=now)
    asked = [address for address, _ in view.pending.questions]
    asked += [it.address for it in view.pending.delegations]
    return view.question_id(asked[0]) if asked else ""


def _follows(mark: Mark, asked: Mark) -> bool:
    """Whether a mark is the requested one. The engine sets its time, so that may differ."""
    return (mark.reason, mark.step) == (asked.reason, asked.step) and mark.event > asked.event


def _last_checkpoint(machine: Machine) -> dict[str, Value]:
    state = machine.state
    if not state.marks:
        reason = "automatic: every completed step is kept"
        return {"timestamp": iso(state.changed_at), "reason": reason}
    mark = state.marks[-1]
    return {
        "checkpoint_id": str(CheckpointId(state.run_id, mark.event)),
        "step_id": mark.step,
        "timestamp": iso(mark.at),
        "reason": mark.reason,
    }


def _about(machine: Machine, parts: set[str]) -> dict[str, Value]:
    plan = machine.plan_named(machine.state.workflow)
    about: dict[str, Value] = {}
    if "workflow_metadata" in parts:
        about["workflow_metadata"] = {
            "name": plan.name,
            "description": plan.description,
            "version": plan.version,
            "started_at": iso(machine.state.started_at),
        }
    if "computed_field_definitions" in parts:
        about["computed_field_definitions"] = {
            name: {"from": list(it.sources), "transform": it.transform} for name, it in plan.computed.items()
        }
    ended = [it for it in run_view_of(machine).blocks() if it.record.status in TERMINAL]
    if "historical_data" in parts:
        about["historical_data"] = [_brief(it) for it in ended if "/" not in it.address]
    if "completed_task_details" in parts:
        tasks = [it for it in ended if it.address.count("/") == 1 and _is_task(machine, it.address)]
        about["completed_task_details"] = [_brief(it) for it in tasks]
    return about


def _is_task(machine: Machine, address: str) -> bool:
    around = run_view_of(machine).block_at(address.rpartition("/")[0])
    return around is not None and around.node.for_each is not None


def _brief(visited: Visited) -> dict[str, Value]:
    record = visited.record
    return {"step": visited.address, "status": record.status, "completed_at": iso(record.completed_at)}
