"""Lists what a run waits for that only a person can decide: gates, and budgets that are used up.

    open_decisions(view, registry)     # [OpenDecision(step_id="approve", message="Release 1.2?", …)]

An agent sees them so that it can tell its user. No tool takes a decision.
"""

from __future__ import annotations

from typing import Any

import msgspec

from workflows_mcp.answers.actions import agent_steps_of, asked_at
from workflows_mcp.answers.run_view import RunView
from workflows_mcp.machine import CONFIRM, Frame, budget_at, iso
from workflows_mcp.steps import StepRegistry
from workflows_mcp.values import Value

MORE, STOP = "allow", "stop"
"""The decisions about a budget."""


class OpenDecision(msgspec.Struct, frozen=True, kw_only=True):
    step_id: str
    address: str
    attempt: str
    kind: str
    """`gate` or `budget`."""
    message: str
    choices: list[str]
    approvers: list[str] = []
    since: float = 0.0
    how: str = ""
    """The command with which a person decides."""
    budget: str = ""
    """What is used up."""
    owner: str = ""
    """The address of that budget."""

    def is_same(self, other: OpenDecision) -> bool:
        """Whether this is the same question, in the same round, as another one."""
        return (self.step_id, self.attempt, self.message) == (other.step_id, other.attempt, other.message)

    def rendered(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"step_id": self.step_id, "kind": self.kind, "message": self.message}
        shown["choices"] = self.choices
        if self.approvers:
            shown["approvers"] = self.approvers
        return {**shown, "since": iso(self.since), "how": self.how}


def open_decisions(view: RunView, registry: StepRegistry) -> list[OpenDecision]:
    """Return what a run or a task waits for, the oldest first."""
    if view.is_parked and not view.under_way("budget"):
        return []
    gates = [_gate(view, registry, address, frame) for address, frame in view.under_way("gate")]
    held: dict[str, OpenDecision] = {}
    for address, frame in view.under_way("budget"):
        key = address if frame.waits_for_confirmation else frame.budget
        held.setdefault(key, _held(view, address, frame))
    return [*gates, *held.values()]


def _gate(view: RunView, registry: StepRegistry, address: str, frame: Frame) -> OpenDecision:
    question = asked_at(view, registry, address).question
    given: dict[str, Value] = question.parameters
    choices, approvers = given.get("choices"), given.get("approvers")
    step_id = view.question_id(address)
    several = len(view.under_way("gate", "budget", "agent")) > 1
    command = f"workflows-mcp answer {view.target.run_id}" + (f" --step {step_id}" if several else "")
    return OpenDecision(
        step_id=step_id,
        address=address,
        attempt=frame.attempt,
        kind="gate",
        message=question.for_user,
        choices=[str(it) for it in choices] if isinstance(choices, list) else [],
        approvers=[str(it) for it in approvers] if isinstance(approvers, list) else [],
        since=frame.since,
        how=f"a form of the client, or in a terminal: {command}",
    )


def _held(view: RunView, address: str, frame: Frame) -> OpenDecision:
    what, _, owner = frame.budget.partition("@")
    run_id, forecast = view.target.run_id, ""
    if frame.waits_for_confirmation:
        forecast = forecast_of(view, address, int(what.removeprefix(CONFIRM)))
        message, how = f"{forecast} Start them?", f"workflows-mcp budget {run_id} --allow --of {address}"
    else:
        whose = f" of '{owner.rstrip('/')}'" if owner else " of the run"
        limit = _limit(view, owner, what)
        used = f" (the limit is {limit:g})" if limit is not None else ""
        message = f"The budget{whose} is used up: {what}{used}. What has begun continues; new work waits."
        example = f"{2 * limit:g}" if limit is not None else "…"
        how = f"workflows-mcp budget {run_id} {what}={example}" + (f" --of {owner}" if owner else "")
        how += " (the new limit in all)"
    return OpenDecision(
        step_id=view.question_id(address),
        address=address,
        attempt=frame.attempt,
        kind="budget",
        message=message,
        choices=[MORE, STOP],
        since=frame.since,
        how=f"in a terminal: {how}; or workflows-mcp cancel {run_id}",
        budget="" if forecast else what,
        owner=owner,
    )


def _limit(view: RunView, owner: str, what: str) -> float | None:
    """Return the limit that is reached."""
    budget, spent = budget_at(view.machine, owner), view.state.spent.get(owner)
    raised = spent.raised.get(what) if spent is not None else None
    limit: float | None = getattr(budget, what, None) if raised is None else raised
    return limit


def forecast_of(view: RunView, address: str, sub_agents: int) -> str:
    """Say how many sub-agents a loop starts, and about how many steps they have."""
    visited = view.block_at(address)
    steps = agent_steps_of(view, visited.node.do) if visited is not None else 0
    each = f", each with about {steps} steps: about {sub_agents * steps} steps" if steps > 1 else ""
    return f"'{view.target.step_id(address)}' starts about {sub_agents} sub-agents{each}."
