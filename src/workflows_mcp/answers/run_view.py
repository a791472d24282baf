"""`RunView`: a run or a task at a moment, as its agent sees it. All answers are made from it.

view = run_view_of(machine, now=now, target=target_of(machine, "wf_7f3a.analyze.0"))
view.status, view.pending.questions, view.messages
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from workflows_mcp.answers.targets import (
    Target,
    Visited,
    block_at,
    only_task,
    target_of,
    tasks_by_key,
    whole_run,
)
from workflows_mcp.answers.tasks import NEVER_SEEN, Framed, LastSeen, Pending, pending_for
from workflows_mcp.errors import RequestError
from workflows_mcp.limits import DEFAULT_LIMITS, Limits
from workflows_mcp.machine import LEFT_OPEN, TERMINAL, Machine, Scope, failed
from workflows_mcp.plan import Steps


@dataclass(frozen=True)
class RunView:
    """A view of one moment: what is derived from the run is computed once."""

    machine: Machine
    target: Target
    pending: Pending
    now: float
    task: Visited | None = None
    """The item that a task is; nothing for a run."""
    alone: bool = False
    """Its agent has no sub-agents, and performs their tasks as well."""
    why_not_driven: str = ""
    """Why no process continues the run; empty if one does."""
    last_seen: LastSeen = field(default_factory=dict)
    """The heartbeats of agents: notes beside the run."""
    checkpoint_ids: Mapping[str, str] = field(default_factory=dict)
    """The checkpoints of open questions, by address, if a caller has asked for them."""

    @cached_property
    def messages(self) -> list[str]:
        """The messages that its agent passes on to the user."""
        state = self.machine.state
        everything = self.alone or state.status != "running"
        texts = [
            it.text
            for it in state.messages
            if it.task == self.target.address or (everything and not self.target.address)
        ]
        if state.dropped_messages and texts and self.task is None:
            texts.insert(0, f"({state.dropped_messages} earlier messages are left out)")
        return texts

    @cached_property
    def scope(self) -> Scope | None:
        """The scope of its workflow; a task that is a single step has none."""
        return self.machine.state.root if self.task is None else self.task.record.scope

    @cached_property
    def is_sequence(self) -> bool:
        scope = self.scope
        return scope is not None and isinstance(self.machine.plan_named(scope.workflow).body, Steps)

    @cached_property
    def workflow(self) -> str:
        scope = self.scope
        return scope.workflow if scope is not None else self.machine.state.workflow

    def name_of_task(self, key: str, task: Target) -> str:
        """Return the key of a task if it stays unique in the run, else its id.

        A nested task always gets its id, because another task of the same name may start beside it.
        """
        if task.address.count("/") != 1:
            return task.id
        if "." not in key:
            named = only_task(self.machine.state, self._tasks_by_key.get(key, ()))
            return key if named is not None and named.id == task.id else task.id
        try:
            return key if target_of(self.machine, f"{task.run_id}.{key}").id == task.id else task.id
        except RequestError:
            return task.id

    @cached_property
    def _tasks_by_key(self) -> dict[str, list[Target]]:
        return tasks_by_key(self.machine.state)

    @cached_property
    def has_ended(self) -> bool:
        if self.machine.state.status != "running" or self.task is None:
            return self.machine.state.status != "running"
        return self.task.record.status in TERMINAL

    @cached_property
    def status(self) -> str:
        """`pending_action` if its agent has something to do, `running` if steps run, else `waiting`.

        After its end: completed, failed, skipped or cancelled.
        """
        state = self.machine.state
        if self.has_ended:
            return state.status if self.task is None else self._how_it_ended(self.task)
        if state.parked is not None:
            return "waiting"
        if self.pending.pending:
            return "pending_action"
        if self.under_way("step", "plan"):
            return "running"
        return "waiting" if self.under_way() or self.task is not None else "running"

    def _how_it_ended(self, task: Visited) -> str:
        if task.record.status in TERMINAL and not failed(task.record):
            return "completed"
        left = task.record.message == LEFT_OPEN
        if left or self.machine.state.status == "cancelled" or task.record.status not in TERMINAL:
            return "cancelled"
        return "failed"

    def under_way(self, *kinds: str) -> list[Framed]:
        """Return its open frames of these kinds, or all of them, the oldest first."""
        return [it for it in self._frames if not kinds or it[1].kind in kinds]

    @cached_property
    def _frames(self) -> list[Framed]:
        frames = [it for it in self.machine.state.frames.items() if self.target.covers(it[0])]
        return sorted(frames, key=lambda item: item[1].since)


def run_view_of(
    machine: Machine,
    *,
    now: float,
    target: Target | None = None,
    last_seen: LastSeen = NEVER_SEEN,
    limits: Limits = DEFAULT_LIMITS,
    alone: bool = False,
) -> RunView:
    """Return the view of a run, or of a task. `alone`: its agent also gets the questions of tasks."""
    target = target or whole_run(machine.state.run_id)
    silence_limit = limits.action_lease_seconds
    pending = pending_for(machine.state, target, last_seen, now=now, silence_limit=silence_limit, alone=alone)
    task = None if target.is_run else block_at(machine, target.address)
    return RunView(machine, target, pending, now, task, alone, last_seen=last_seen)
