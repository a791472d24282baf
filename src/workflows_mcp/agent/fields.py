"""The state of a reactive workflow as it is read: flat, with the fields that follow from others.

Computing those fields can take as long as an expression may, so it is done beside the event loop: a state is
never changed in place, and what is computed here is not seen by the run.

    parts = parts_of_state(machine, "")        # None for workflows of other dialects
    fields = await asyncio.to_thread(parts.fields)
"""

from __future__ import annotations

from dataclasses import dataclass

from workflows_mcp.expressions.base import MISSING
from workflows_mcp.machine.computed import Around, ComputedFields
from workflows_mcp.machine.lanes import REACTIVE
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.program import MisplacedError
from workflows_mcp.machine.state import Scope
from workflows_mcp.plan.model import Plan
from workflows_mcp.values import Value


@dataclass(frozen=True, slots=True)
class Fields:
    raw: dict[str, Value]
    state: dict[str, Value]
    computed: dict[str, Value]
    errors: dict[str, str]
    """Why computed fields have no value of their own, by field."""

    @property
    def flat(self) -> dict[str, Value]:
        return {**self.state, **self.raw, **self.computed}

    @property
    def parts(self) -> dict[str, Value]:
        return {"raw": self.raw, "state": self.state, "computed": self.computed}


@dataclass(frozen=True, slots=True)
class PartsOfState:
    """What the fields are made of, at a moment."""

    plan: Plan
    around: Around
    computed: ComputedFields

    def fields(self) -> Fields:
        values: dict[str, Value] = {}
        errors: dict[str, str] = {}
        for name in self.plan.computed:
            try:
                value = self.computed.value(name, self.around)
            except MisplacedError as error:
                values[name], errors[name] = None, error.cause.message
                continue
            if value is not MISSING:
                values[name] = value
            if (wrong := self.computed.error(name)) is not None:
                errors[name] = wrong
        state = self.around.state
        return Fields(state.get("raw", {}), state.get("state", {}), values, errors)


def parts_of_state(machine: Machine, address: str) -> PartsOfState | None:
    """Of the run, or of the task at an address, which may share the state of the workflow around it."""
    scope = _scope_with_state(machine, address)
    if scope is None:
        return None
    plan = machine.plan_named(scope.workflow)
    home = machine.home_at(address)
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
