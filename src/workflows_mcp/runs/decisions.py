"""Takes what only people may decide: gates and budgets. It also records attempts to leave the process.

    ada = Identity("ada", "form", human=True)
    await decisions.decide("wf_1", "approve", "reject", comment="add a test", by=ada)
    await decisions.raise_budget("wf_1", {"agent_steps": 300}, by=ada)
    await decisions.refused("wf_1", "gate", "an agent tried to decide 'approve'")

The machine accepts the decision of a gate only as the event `Decided`, and this module is the only one that
makes it. A decision by an agent, or by somebody who is not an approver, is refused and recorded.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from workflows_mcp.answers import STOP, OpenDecision, Redact, open_decisions, run_of, run_view_of, target_of
from workflows_mcp.engines import Engine
from workflows_mcp.errors import NotExpected, RequestError
from workflows_mcp.machine import (
    BudgetRaised,
    CancelRequested,
    Decided,
    Identity,
    Machine,
    Refused,
    RefusedWhat,
    Reopening,
    Resumed,
    RunState,
    iso,
)
from workflows_mcp.plan import REJECTED, duration_seconds
from workflows_mcp.runs.callers import caller
from workflows_mcp.steps import StepRegistry
from workflows_mcp.values import did_you_mean, shown

COMMENT_CHARS = 20_000
MOST_REFUSALS = 500
"""How many refusals of one run are recorded."""
_ROUNDS = 20
"""How often a push back is tried again because the run has moved on meanwhile."""
_MESSAGE_CHARS = 1_000
NUMBERS = ("agent_steps", "sub_agents", "tokens", "time")


class Decisions:
    def __init__(
        self,
        engine: Engine,
        registry: StepRegistry,
        approvers: Mapping[str, tuple[str, ...]],
        *,
        redacted: Callable[[Machine], Redact],
        now: Callable[[], float] = time.time,
    ) -> None:
        """`approvers` are the groups of the settings: the people in each."""
        self._engine = engine
        self._registry = registry
        self._approvers = approvers
        self._redacted = redacted
        self._now = now

    async def open(self, workflow_id: str) -> list[OpenDecision]:
        """Return what a run or a task waits for that only people can decide."""
        return self._open(await self._engine.view(run_of(workflow_id)), workflow_id)

    def _open(self, machine: Machine, workflow_id: str) -> list[OpenDecision]:
        view = run_view_of(machine, now=self._now(), target=target_of(machine, workflow_id))
        return [] if view.has_ended else open_decisions(view, self._registry)

    async def decide(
        self,
        workflow_id: str,
        step_id: str | None,
        choice: str,
        *,
        by: Identity,
        comment: str = "",
        shown: OpenDecision | None = None,
    ) -> None:
        """Record the decision of a person at a gate, or about a budget, and let the run continue.

        `shown`: what the person has seen. If the run asks something else by now, nothing is decided."""
        machine = await self._engine.view(run_of(workflow_id))
        found = _named(self._open(machine, workflow_id), step_id, workflow_id)
        if shown is not None and not found.is_same(shown):
            raise NotExpected(
                f"'{shown.step_id}' is asked again: decide on what it shows now", hint=found.how
            )
        await self._refuse_others(found, workflow_id, by)
        chosen = read_choice(found, choice)
        clean = self._redacted(machine)(comment.strip()[:COMMENT_CHARS])
        if found.kind == "budget":
            await self._about_budget(found, run_of(workflow_id), chosen, by, str(clean))
            return
        decided = Decided(self._now(), found.address, chosen, by, str(clean), found.attempt)
        back_to = _back_to(machine, found.address)
        if chosen == REJECTED and back_to:
            await self._send_back(run_of(workflow_id), decided, back_to)
        else:
            await self._engine.send(run_of(workflow_id), lambda machine, now: replace(decided, at=now))

    async def _refuse_others(self, found: OpenDecision, workflow_id: str, by: Identity) -> None:
        """Refuse the decision of an agent, and of a person who is not an approver."""
        if not by.human:
            why = f"only a person can decide '{found.step_id}', and {by} is none"
            hint = f"tell the user: {found.how}"
        elif found.approvers and not self._may(by, found.approvers):
            groups = ", ".join(found.approvers)
            why = f"{by} is not one of the approvers of '{found.step_id}': {groups}"
            hint = "the setting approvers.GROUP names the people of a group"
        else:
            return
        await self.refused(workflow_id, "gate", why, by=by, address=found.address)
        raise RequestError(why, hint=hint, code="not_an_approver" if by.human else "only_people")

    def _may(self, by: Identity, approvers: list[str]) -> bool:
        people = {name for group in approvers for name in (group, *self._approvers.get(group, ()))}
        return by.name in people

    async def _send_back(self, run_id: str, decided: Decided, step: str) -> None:
        """Let a step run again, with everything that depends on it; one event records the decision too."""
        for _ in range(_ROUNDS):
            bundle, events = await self._engine.journal(run_id)
            reopening = await asyncio.to_thread(Reopening, bundle, events, [step])
            if step not in reopening.ran:
                break
            event = replace(reopening.event(same_run=True), decision=decided)
            try:
                await self._engine.send(
                    run_id,
                    lambda machine, now, event=event: replace(  # type: ignore[misc]
                        event, at=now, decision=replace(decided, at=now)
                    ),
                )
                return
            except NotExpected:
                machine = await self._engine.view(run_id)
                frame = machine.state.frames.get(decided.address)
                if frame is None or frame.kind != "gate" or frame.attempt != decided.attempt:
                    raise
        # the step has not run, or the run never stood still: the gate fails as it would without `back_to`
        await self._engine.send(run_id, lambda machine, now: replace(decided, at=now))

    async def _about_budget(
        self, found: OpenDecision, run_id: str, chosen: str, by: Identity, comment: str
    ) -> None:
        if chosen == STOP:
            reason = f"{by.name} stopped it: {found.message}" + (f" {comment}" if comment else "")
            await self._engine.send(run_id, lambda machine, now: CancelRequested(now, reason, by=by))
            return
        if found.budget:
            hint = f"say how much: {found.how}"
            raise RequestError("allowing more of a budget needs a number", hint=hint, code="how_much")
        await self.raise_budget(run_id, {}, by=by, owner=found.address)

    async def raise_budget(
        self, run_id: str, limits: Mapping[str, float], *, by: Identity, owner: str = ""
    ) -> None:
        """Set new limits of a budget; what waits for it starts. Without limits, a fan-out is confirmed."""
        await self.check_limits(run_id, limits, by)
        raised = BudgetRaised(self._now(), dict(limits), by, owner)
        await self._engine.send(run_id, lambda machine, now: replace(raised, at=now))
        machine = await self._engine.view(run_id)
        if machine.state.status == "running" and machine.state.parked is not None:
            await self._engine.send(run_id, lambda machine, now: Resumed(now))

    async def check_limits(self, run_id: str, limits: Mapping[str, float], by: Identity) -> None:
        """Refuse new limits that are not from a person, or that no budget has."""
        if not by.human:
            why = f"only a person can raise a budget, and {by} is none"
            await self.refused(run_id, "gate", why, by=by)
            raise RequestError(why, hint="tell the user", code="only_people")
        for name, value in limits.items():
            if name not in NUMBERS:
                raise RequestError(f"a budget has no '{name}'", hint=did_you_mean(name, NUMBERS))
            if not 0 < value < math.inf:
                raise RequestError(
                    f"the budget '{name}' must be a number above 0, not {value:g}", code="wrong_value"
                )

    async def refused(
        self,
        workflow_id: str,
        what: RefusedWhat,
        message: str,
        *,
        by: Identity | None = None,
        address: str = "",
    ) -> None:
        """Record an attempt to leave the process; nothing else changes. Recording never fails the caller."""
        run_id = run_of(workflow_id)
        by = by or caller()

        def event(machine: Machine, now: float) -> Refused:
            if machine.state.refusals >= MOST_REFUSALS:
                raise NotExpected("enough refusals are recorded")
            text = str(self._redacted(machine)(message[:_MESSAGE_CHARS]))
            return Refused(now, what, text, by, address)

        try:
            await self._engine.send(run_id, event)
        except RequestError:
            return  # the run has ended, or enough is recorded


def kept_decisions(state: RunState) -> list[str]:
    """Return the decisions at gates that a fork has taken from its original."""
    return [
        f"'{name}' ({record.outputs.get('decision')}, by {record.by.name} at {iso(record.completed_at)})"
        for name, record in state.root.records.items()
        if record.by is not None and record.by.human and "approved" in record.outputs
    ]


def read_limit(text: str) -> tuple[str, float]:
    """Read a new limit of a budget: `agent_steps=300`, `time=4h`. Raises RequestError."""
    name, _, value = (part.strip() for part in text.partition("="))
    try:
        return name, duration_seconds(value.replace("_", ""))
    except ValueError:
        hint = "write NAME=NUMBER, e.g. agent_steps=300 or time=4h"
        raise RequestError(f"{shown(text)} is not a limit of a budget", hint=hint) from None


def _named(found: list[OpenDecision], step_id: str | None, workflow_id: str) -> OpenDecision:
    names = ", ".join(repr(it.step_id) for it in found)
    if not found:
        raise NotExpected(f"'{workflow_id}' waits for no decision of a person")
    if step_id is None:
        if len(found) == 1:
            return found[0]
        raise NotExpected(f"{len(found)} decisions are open: name one", hint=f"open now: {names}")
    named = [it for it in found if step_id in (it.step_id, it.address, it.step_id.partition("@")[0])]
    if not named:
        raise NotExpected(f"'{step_id}' waits for no decision of a person", hint=f"open now: {names}")
    return named[0]


def read_choice(found: OpenDecision, given: str) -> str:
    """Return the choice that is meant: in any case, or by its number. Raises RequestError."""
    text = given.strip()
    if text in found.choices:
        return text
    if text.isdecimal() and 1 <= int(text) <= len(found.choices):
        return found.choices[int(text) - 1]
    same = [it for it in found.choices if it.lower() == text.lower()]
    if len(same) == 1:
        return same[0]
    hint = did_you_mean(text, found.choices, what="it is one of")
    raise RequestError(f"{shown(given)} is not a choice of '{found.step_id}'", hint=hint, code="wrong_value")


def _back_to(machine: Machine, address: str) -> str:
    """Return the address of the step that a rejection of a gate runs again; empty if there is none."""
    scope, index = machine.locate(address)
    back_to = scope.program.nodes[index].back_to
    return scope.prefix + back_to if back_to else ""
