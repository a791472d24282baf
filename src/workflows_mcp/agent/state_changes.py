"""Changes of a state that an agent asks for: whether they can be made, what follows from them, and what of a
step's result an agent has written itself.

    changes = read_updates([{"path": "raw.count", "operation": "increment"}])
    trial = trial_of(machine, "", changes, clean)
    await asyncio.to_thread(trial.check)        # raises RequestError where they cannot be made
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

from workflows_mcp.agent.actions import Clean
from workflows_mcp.agent.fields import Fields, PartsOfState, parts_of_state
from workflows_mcp.agent.paths import parse_path
from workflows_mcp.agent.walk import Visited
from workflows_mcp.errors import NotExpected, RequestError
from workflows_mcp.machine.changes import WRITABLE, WrongChange, path_text
from workflows_mcp.machine.computed import Around
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.program import MisplacedError
from workflows_mcp.plan.model import ChangeOperation
from workflows_mcp.values import Value, did_you_mean, kind_and_value, shown

Changes = list[tuple[list[str | int], ChangeOperation, Value]]
OPERATIONS: tuple[str, ...] = get_args(ChangeOperation)
REFUSED = "state_update"
_KEYS = ("path", "operation", "value")


def read_updates(updates: Sequence[dict[str, Any]]) -> Changes:
    """Raises RequestError that says which of them is wrong, and how it is written."""
    if not updates:
        raise _refused("there are no updates", 'e.g. updates: [{"path": "raw.count", "value": 1}]')
    return [_read(update, f"updates[{number}]") for number, update in enumerate(updates)]


def _read(update: Any, at: str) -> tuple[list[str | int], ChangeOperation, Value]:
    if not isinstance(update, dict):
        hint = 'e.g. {"path": "raw.count", "operation": "set", "value": 1}'
        raise _refused(f"{at} must be an object, not {kind_and_value(update)}", hint)
    for key in update:
        if key not in _KEYS:
            raise _refused(f"{at} has an unknown key '{key}'", did_you_mean(key, _KEYS, what="it takes"))
    text = update.get("path")
    if not isinstance(text, str) or not text.strip():
        raise _refused(f"{at} needs a path", "e.g. raw.count")
    operation = update.get("operation", "set")
    if operation not in OPERATIONS:
        hint = did_you_mean(str(operation), OPERATIONS, what="operations are")
        raise _refused(f"{at}: there is no operation {shown(operation)}", hint)
    try:
        path = list(parse_path(text))
    except RequestError as error:
        raise _refused(f"{at}: {error.message}", 'e.g. raw.count or raw.results["a.ts"].errors') from None
    if path[0] not in (*WRITABLE, "computed"):
        meant = text.removeprefix("inputs.")  # an input is in raw too, where it can be written
        hint = f"a path that is written begins with raw. or state.: raw.{meant}"
        raise _refused(f"{at}: '{text}' does not say which part of the state is written", hint)
    if "value" not in update and operation != "increment":
        raise _refused(f"{at} needs a value", "only increment can do without one: it adds 1")
    return path, cast(ChangeOperation, operation), update.get("value", 1)


def _refused(message: str, hint: str) -> RequestError:
    return RequestError(message, hint=f"{hint}. Nothing has changed.", code=REFUSED)


@dataclass(slots=True)
class Trial:
    """Changes that are about to be made to the state at an address."""

    address: str
    changes: Changes
    parts: PartsOfState
    """The state before."""
    state: dict[str, Value]
    """The state with the changes made."""
    before: Fields | None = None

    def check(self) -> None:
        """Compute what follows, before and after. Raises RequestError where a field propagates its error. Can
        take as long as expressions may."""
        parts = self.parts
        self.before = parts.fields()
        try:
            around = Around(self.state, parts.around.inputs, parts.around.config)
            parts.computed.copy().check(around)
        except MisplacedError as error:
            raise _refused(error.cause.message, error.cause.hint or "write other values") from None

    def refuse_wrong(self, machine: Machine) -> None:
        """Raises RequestError that names the update that cannot be made to the state as it is now."""
        _refuse_wrong(machine, self.address, self.changes)

    def changed_in(self, machine: Machine) -> Callable[[], tuple[dict[str, Value], dict[str, str]]]:
        """What gives the computed fields that have other values now, and the errors that are new."""
        now = parts_of_state(machine, self.address) or self.parts
        # what was computed for the state before need not be computed again
        parts = PartsOfState(now.plan, now.around, self.parts.computed)

        def compare() -> tuple[dict[str, Value], dict[str, str]]:
            before, after = self.before or self.parts.fields(), parts.fields()
            changed = {
                name: after.computed.get(name)
                for name in parts.plan.computed
                if after.computed.get(name) != before.computed.get(name)
            }
            errors = {name: it for name, it in after.errors.items() if before.errors.get(name) != it}
            return changed, errors

        return compare


def trial_of(machine: Machine, address: str, changes: Changes, clean: Clean) -> Trial:
    """Raises RequestError where there is no state that can be changed, or a change cannot be made."""
    cleaned: Changes = [(path, operation, clean(value)) for path, operation, value in changes]
    state = _refuse_wrong(machine, address, cleaned)
    parts = parts_of_state(machine, address)
    assert parts is not None
    return Trial(address, cleaned, parts, state)


def _refuse_wrong(machine: Machine, address: str, changes: Changes) -> dict[str, Value]:
    """The state with the changes made."""
    if machine.state.status != "running":
        raise NotExpected(f"the run {machine.state.run_id} has ended: it is {machine.state.status}")
    home = machine.home_at(address)
    if home is None:
        raise NotExpected(
            "there is no state here that can be changed from outside",
            hint="only the state of a reactive workflow, or of a task of it that is under way, can be; other "
            "workflows store the results that are submitted",
        )
    state: dict[str, Value] = {}
    made: list[tuple[tuple[str | int, ...], ChangeOperation, Value]] = []
    for number, (path, operation, value) in enumerate(changes):
        made.append((tuple(path), operation, value))
        try:
            state, _ = home.tried(made)
        except WrongChange as wrong:
            raise _refused(f"updates[{number}]: {wrong}", wrong.hint) from None
    return state


@dataclass(frozen=True, slots=True)
class WrittenState:
    """Where agents have written since a step was handed out."""

    paths: Sequence[Sequence[str | int]] = ()

    def missing(self, visited: Visited) -> list[str]:
        """The places of a step's result at which nothing was written."""
        missing: list[str] = []
        known = visited.record.places
        for number, change in enumerate(visited.node.changes):
            place = known[number] if number < len(known) else None
            if place is None:
                if not self.paths:
                    missing.append(".".join(map(str, change.path)))
            elif not any(_meet(place, path) for path in self.paths):
                missing.append(path_text(tuple(place)))
        return missing


def _meet(one: Sequence[str | int], other: Sequence[str | int]) -> bool:
    """Whether one path is the other, or leads through it."""
    return all(str(a) == str(b) for a, b in zip(one, other, strict=False))
