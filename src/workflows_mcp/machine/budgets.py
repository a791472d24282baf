"""Counts what agents do against budgets, and holds new work when one is used up.

    charge(machine, scope, index, "agent_steps", at)      # False: the block waits, or has failed

A budget belongs to a run (its plan), to a called workflow, or to a block. Work inside counts for all of them.
What has begun is never ended by a budget. A block that must wait is a frame of kind `budget`; the event
`BudgetRaised`, which only a person can cause, enters it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from workflows_mcp.errors import NotExpected
from workflows_mcp.machine.core import Core, OpenScope
from workflows_mcp.machine.events import BudgetRaised
from workflows_mcp.machine.lifecycle import advance
from workflows_mcp.machine.state import CONFIRM, Frame, Message, Record, Spent
from workflows_mcp.plan import Budget

Counted = Literal["agent_steps", "sub_agents"]
BUDGET_CODE = "budget"
"""The code of the fault of a block that a budget does not allow."""


def _owners(machine: Core, scope: OpenScope) -> Iterator[tuple[str, Budget, float]]:
    """Every budget that work in a scope counts for: its address, and when its time began."""
    state = machine.state
    plan = machine.plan_named(state.root.workflow)
    if plan.budget is not None:
        yield "", plan.budget, state.started_at
    names = scope.prefix.split("/")[:-1]
    for length in range(1, len(names) + 1):
        address = "/".join(names[:length])
        outer, index = machine.locate(address)
        node = outer.program.nodes[index]
        since = outer.scope.records[node.id].started_at or state.started_at
        if node.budget is not None:
            yield address, node.budget, since
        inside = machine.scope_inside(address)
        if inside is not None and inside.scope.each is None and inside.program.plan.budget is not None:
            yield f"{address}/", inside.program.plan.budget, since


def spent_of(machine: Core, owner: str) -> Spent:
    return machine.state.spent.setdefault(owner, Spent())


def _used_up(budget: Budget, spent: Spent, kind: Counted, seconds: float) -> str:
    """What does not allow one more of this kind; empty if all do."""
    used = {kind: getattr(spent, kind), "tokens": spent.tokens, "time": seconds}
    for name, value in used.items():
        limit = spent.raised.get(name, getattr(budget, name))
        if limit is not None and value >= limit:
            return name
    return ""


def charge(machine: Core, scope: OpenScope, index: int, kind: Counted, at: float) -> bool:
    """Count one step or sub-agent. Returns False if a budget does not allow it: then the block is held."""
    if not machine.has_budgets:
        return True
    owners = list(_owners(machine, scope))
    for owner, budget, since in owners:
        if name := _used_up(budget, spent_of(machine, owner), kind, at - since):
            _exceeded(machine, scope, index, at, owner, budget, name)
            return False
    for owner, _, _ in owners:
        spent = spent_of(machine, owner)
        setattr(spent, kind, getattr(spent, kind) + 1)
    return True


def refund(machine: Core, scope: OpenScope, kind: Counted) -> None:
    """Take back what was counted for a step or sub-agent that did not begin."""
    if machine.has_budgets:
        for owner, _, _ in _owners(machine, scope):
            spent = spent_of(machine, owner)
            setattr(spent, kind, max(getattr(spent, kind) - 1, 0))


def add_tokens(machine: Core, scope: OpenScope, index: int, tokens: int) -> None:
    """Count the tokens that an agent reports for a step."""
    if tokens <= 0:
        return
    scope.scope.records[scope.program.nodes[index].id].tokens += tokens
    if machine.has_budgets:
        for owner, _, _ in _owners(machine, scope):
            spent_of(machine, owner).tokens += tokens


def must_confirm(machine: Core, scope: OpenScope, index: int, at: float, sub_agents: int) -> bool:
    """Hold a fan-out that a person has to confirm first; false if it may begin."""
    node = scope.program.nodes[index]
    record = scope.scope.records.get(node.id)
    if not machine.has_budgets or (record is not None and record.confirmed):
        return False
    budgets = [(owner, budget) for owner, budget, _ in _owners(machine, scope)]
    if node.budget is not None:
        budgets.append((scope.prefix + node.id, node.budget))
    for owner, budget in budgets:
        if budget.confirm_above is not None and sub_agents > budget.confirm_above:
            _hold(machine, scope, index, at, owner, f"{CONFIRM}{sub_agents}")
            return True
    return False


def _exceeded(
    machine: Core, scope: OpenScope, index: int, at: float, owner: str, budget: Budget, name: str
) -> None:
    if budget.on_exceeded == "fail":
        whose = f"of '{owner}'" if owner else "of the run"
        message = f"the budget {whose} is used up: {name}"
        hint = f"a person can allow more: workflows-mcp budget {machine.state.run_id} {name}=…"
        machine.fail_with(scope, index, BUDGET_CODE, message, hint)
        return
    _hold(machine, scope, index, at, owner, name)
    if budget.on_exceeded == "stop":
        machine.park(at)


def _hold(machine: Core, scope: OpenScope, index: int, at: float, owner: str, what: str) -> None:
    node = scope.program.nodes[index]
    record = scope.scope.records.get(node.id) or Record(started_at=at)
    scope.scope.records[node.id] = record
    frame = Frame("budget", at, scope.attempt(node.id, record), budget=f"{what}@{owner}")
    machine.open_frame(scope.prefix + node.id, frame, None, at)
    advance(record, "asked")


def raise_budget(machine: Core, event: BudgetRaised) -> None:
    """Allow more, and enter again what waits for it, in the order in which it began to wait."""
    if event.limits:
        spent = spent_of(machine, event.owner)
        spent.raised = {**spent.raised, **event.limits}
    allowed = ", ".join(f"{name}={limit:g}" for name, limit in event.limits.items()) or "the fan-out"
    state = machine.state
    state.messages.append(
        Message(state.events, f"{event.by.name} has allowed {allowed}.", event.owner.rstrip("/"))
    )
    for address, frame in list(machine.state.frames.items()):
        if frame.kind == "budget":
            scope, index = machine.locate(address)
            if _confirms(event, address, frame):
                scope.scope.records[scope.program.nodes[index].id].confirmed = True
            machine.close_frame(address, "raised")
            machine.enqueue(scope, [index])


def _confirms(event: BudgetRaised, address: str, frame: Frame) -> bool:
    return frame.waits_for_confirmation and not event.limits and event.owner in ("", address)


def expect_budget(machine: Core, event: BudgetRaised) -> None:
    """Raise NotExpected if there is no such budget, or nothing waits for a confirmation."""
    frames = machine.state.frames.items()
    waiting = {address: it for address, it in frames if it.kind == "budget"}
    if not event.limits:
        if not any(_confirms(event, address, frame) for address, frame in waiting.items()):
            raise NotExpected(
                "no fan-out waits for a confirmation" + (f" at '{event.owner}'" if event.owner else "")
            )
    elif budget_at(machine, event.owner) is None:
        whose = f"'{event.owner}'" if event.owner else f"the run {machine.state.run_id}"
        known = dict.fromkeys(it.budget.partition("@")[2] for it in waiting.values())
        hint = (
            f"used up now: {', '.join(repr(it) if it else 'that of the run' for it in known)}"
            if known
            else ""
        )
        raise NotExpected(f"{whose} has no budget", hint=hint)


def budget_at(machine: Core, owner: str) -> Budget | None:
    """The budget in force that has this address; None if there is none."""
    if not owner:
        return machine.plan_named(machine.state.root.workflow).budget
    if owner.endswith("/"):
        inside = machine.scope_inside(owner[:-1])
        return inside.program.plan.budget if inside is not None and inside.scope.each is None else None
    around = machine.scope_inside(owner.rpartition("/")[0])
    index = around.program.ids.get(owner.rpartition("/")[2]) if around is not None else None
    return around.program.nodes[index].budget if around is not None and index is not None else None
