"""Lists what a run waits for that only a person can decide: gates, and budgets that are used up.

    open_decisions(view, registry)     # [OpenDecision(step_id="approve", message="Release 1.2?", …)]

An agent sees them so that it can tell its user. No tool takes a decision.
"""

from __future__ import annotations

from typing import Any

import msgspec

from workflows_mcp.answers.actions import agent_steps_of, asked_at
from workflows_mcp.answers.run_view import RunView
from workflows_mcp.machine import Frame, iso
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
    held = {frame.budget: (address, frame) for address, frame in reversed(view.under_way("budget"))}
    return [*gates, *(_held(view, address, frame) for address, frame in held.values())]


def _gate(view: RunView, registry: StepRegistry, address: str, frame: Frame) -> OpenDecision:
    question = asked_at(view, registry, address).question
    given: dict[str, Value] = question.parameters
    choices, approvers = given.get("choices"), given.get("approvers")
    step_id = view.question_id(address)
    command = f"workflows-mcp answer {view.target.run_id} --step {step_id}"
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
    whose = f" of '{owner.rstrip('/')}'" if owner else " of the run"
    run_id, forecast = view.target.run_id, ""
    if what.startswith("confirm "):
        what = what.removeprefix("confirm ")
        forecast = forecast_of(view, address, int(what))
        message, how = f"{forecast} Start them?", f"workflows-mcp budget {run_id} --allow"
    else:
        message = f"The budget{whose} is used up: {what}. What has begun continues; new work waits."
        how = f"workflows-mcp budget {run_id} {what}=…" + (f" --of {owner}" if owner else "")
    return OpenDecision(
        step_id=view.target.step_id(address),
        address=address,
        attempt=frame.attempt,
        kind="budget",
        message=message,
        choices=[MORE, STOP],
        since=frame.since,
        how=f"in a terminal: {how}",
        budget="" if forecast else what,
        owner=owner,
    )


def forecast_of(view: RunView, address: str, sub_agents: int) -> str:
    """Say how many sub-agents a loop starts, and about how many steps they have."""
    visited = view.block_at(address)
    steps = agent_steps_of(view, visited.node.do) if visited is not None else 0
    each = f", each with about {steps} steps: about {sub_agents * steps} steps" if steps > 1 else ""
    return f"'{view.target.step_id(address)}' starts about {sub_agents} sub-agents{each}."
