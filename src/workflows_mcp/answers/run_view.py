"""`RunView`: a run or a task at a moment, as its agent sees it. All answers are made from it.

view = run_view_of(machine, now=now, target=target_of(machine, "wf_7f3a.analyze.0"))
view.status, view.pending.questions, view.messages
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from workflows_mcp.answers.targets import Target, Visited, block_at, whole_run
from workflows_mcp.answers.tasks import NEVER_SEEN, Framed, LastSeen, Pending, pending_for
from workflows_mcp.expressions import MISSING
from workflows_mcp.limits import DEFAULT_LIMITS, Limits
from workflows_mcp.machine import (
    LEFT_OPEN,
    REACTIVE,
    TERMINAL,
    Around,
    ComputedFields,
    EvaluationError,
    Machine,
    Scope,
    failed,
)
from workflows_mcp.plan import Plan, Steps
from workflows_mcp.values import Value

# The state of a reactive workflow, flat, with its computed fields
#
# Computing fields can be slow, so it happens outside the event loop: a state is never changed in place, and
# the run does not see what is computed here.
#
#     parts = parts_of_state(machine, "")        # None for workflows of other dialects
#     fields = await asyncio.to_thread(parts.fields)


@dataclass(frozen=True, slots=True)
class Fields:
    raw: dict[str, Value]
    state: dict[str, Value]
    computed: dict[str, Value]
    errors: dict[str, str]
    """The errors of computed fields, by field."""

    @property
    def flat(self) -> dict[str, Value]:
        return {**self.state, **self.raw, **self.computed}

    @property
    def parts(self) -> dict[str, Value]:
        return {"raw": self.raw, "state": self.state, "computed": self.computed}


@dataclass(frozen=True, slots=True)
class PartsOfState:
    """The inputs of the fields of a state, at a moment."""

    plan: Plan
    around: Around
    computed: ComputedFields

    def fields(self) -> Fields:
        values: dict[str, Value] = {}
        errors: dict[str, str] = {}
        for name in self.plan.computed:
            try:
                value = self.computed.value(name, self.around)
            except EvaluationError as error:
                values[name], errors[name] = None, error.cause.message
                continue
            if value is not MISSING:
                values[name] = value
            if (wrong := self.computed.error(name)) is not None:
                errors[name] = wrong
        state = self.around.state
        return Fields(state.get("raw", {}), state.get("state", {}), values, errors)


def parts_of_state(machine: Machine, address: str) -> PartsOfState | None:
    """Return the state of the run or of the task at an address; None if it is not reactive.

    A task may share the state of the workflow around it.
    """
    scope = _scope_with_state(machine, address)
    if scope is None:
        return None
    plan = machine.plan_named(scope.workflow)
    home = machine.reactive_state_at(address)
    if home is not None and home.scope is scope:
        return PartsOfState(plan, home.around(), home.fields.copy())
    fields = ComputedFields(plan, machine.program_named(plan.name).language, machine.limits)
    return PartsOfState(plan, Around(scope.state, scope.inputs, plan.config), fields.copy())


def _scope_with_state(machine: Machine, address: str) -> Scope | None:
    scope: Scope | None = machine.state.root
    found: Scope | None = None
    for name in [*(address.split("/") if address else ()), ""]:
        if scope is None:
            return found
        if scope.each is None:
            plan = machine.plan_named(scope.workflow)
            if plan.dialect != REACTIVE:
                found = None
            elif not plan.shares_state:
                found = scope
        record = scope.records.get(name)
        scope = record.scope if record is not None else None
    return found


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
    fields: Fields | None = None
    """The computed state of a reactive workflow, if a caller has computed it."""
    why_not_driven: str = ""
    """Why no process continues the run; empty if one does."""
    last_seen: LastSeen = field(default_factory=dict)
    """The heartbeats of agents: notes beside the run."""

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
