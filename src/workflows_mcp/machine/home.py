"""The state of a reactive workflow: what it has been given and what follows from it, for the workflow itself
and for the tasks that share it.

    home.flat()                                        # {"files": […], "valid_files": […]}
    home.change([(("raw", "count"), "increment", 1)])  # all of the changes, or none

Raises WrongChange for what cannot be written, MisplacedError where a computed field propagates its error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from workflows_mcp.expressions.base import MISSING
from workflows_mcp.limits import Limits
from workflows_mcp.machine.changes import Path, TooLarge, changed, check_type, size_of, too_deep
from workflows_mcp.machine.computed import Around, ComputedFields
from workflows_mcp.machine.program import MisplacedError, Program
from workflows_mcp.machine.state import Scope
from workflows_mcp.plan.model import ChangeOperation, Plan
from workflows_mcp.values import Value

Changes = Sequence[tuple[Path, ChangeOperation, Value]]


class Home:
    __slots__ = ("_size", "fields", "limits", "on_change", "outer", "plan", "scope")

    def __init__(self, scope: Scope, program: Program, limits: Limits, outer: Home | None = None) -> None:
        self.scope = scope
        self.plan: Plan = program.plan
        self.limits = limits
        self.fields = ComputedFields(self.plan, program.language, limits)
        self.outer = outer
        """The state of the workflow around it, for a task that has one of its own."""
        self._size: int | None = None
        self.on_change: Callable[[dict[str, Value]], None] | None = None
        """Given the state as it was before a change, for whoever wants to know what is changed when."""

    @property
    def outermost(self) -> Home:
        return self if self.outer is None else self.outer.outermost

    def around(self) -> Around:
        return Around(self.scope.state, self.scope.inputs, self.plan.config)

    def flat(self) -> dict[str, Value]:
        """All fields by their bare names: computed ones go before raw ones, and those before `state`."""
        state = self.scope.state
        return {**state.get("state", {}), **state.get("raw", {}), **self.fields.all(self.around())}

    def lookup(self, name: str | int) -> Any:
        """The field with this bare name, or MISSING."""
        if name in self.plan.computed:
            found = self.fields.value(str(name), self.around())
            if found is not MISSING:
                return found
        for part in ("raw", "state"):
            fields: dict[Any, Value] = self.scope.state.get(part, {})
            if name in fields:
                return fields[name]
        return MISSING

    def names(self) -> list[str]:
        state = self.scope.state
        return list(dict.fromkeys([*self.plan.computed, *state.get("raw", {}), *state.get("state", {})]))

    def plain(self) -> Value:
        return self.flat()

    def tried(self, changes: Changes) -> tuple[dict[str, Value], int]:
        """The state with the changes made, and its size; nothing has been changed."""
        state, size = self.scope.state, self._bytes()
        for path, operation, value in changes:
            deep = too_deep(value, self.limits, len(path)) if self.plan.semantics >= 3 else None
            if deep is not None:
                raise TooLarge(deep, "keep it flatter: a list of values, or keys such as a.b.c")
            state, grown = changed(state, path, operation, value)
            check_type(self.plan.raw_types, state, path)
            size += grown
        if size > self.limits.state_bytes:
            raise TooLarge(
                f"the state would have {size} bytes, at most {self.limits.state_bytes} are allowed"
                f" ({self.limits.setting('state_bytes')}){self._largest(state)}",
                "keep less of it, or write it to a file and keep its path",
            )
        return state, size

    def reset(self, state: dict[str, Value]) -> None:
        """Begin anew with this state."""
        before, self.scope.state, self._size = self.scope.state, state, None
        if self.on_change is not None:
            self.on_change(before)

    def change(self, changes: Changes) -> None:
        before, size = self.scope.state, self._bytes()
        self.scope.state, self._size = self.tried(changes)
        try:
            self.fields.check(self.around())
        except MisplacedError:
            self.scope.state, self._size = before, size
            raise
        if self.on_change is not None:
            self.on_change(before)

    def _bytes(self) -> int:
        if self._size is None:
            self._size = size_of(self.scope.state)
        return self._size

    def _largest(self, state: dict[str, Value]) -> str:
        parts = [(part, name, value) for part, fields in state.items() for name, value in fields.items()]
        sizes = {f"{part}.{name}": size_of(value) for part, name, value in parts}
        return f"; the largest field is '{max(sizes, key=sizes.__getitem__)}'" if sizes else ""


class Members:
    """`raw`, `state`, `computed` or `inputs` as an object."""

    __slots__ = ("_home",)

    def __init__(self, home: Home) -> None:
        self._home = home

    def lookup(self, name: str | int) -> Any:
        home = self._home
        return home.fields.value(str(name), home.around()) if name in home.plan.computed else MISSING

    def names(self) -> list[str]:
        return self._home.fields.names()

    def plain(self) -> Value:
        return self._home.fields.all(self._home.around())
