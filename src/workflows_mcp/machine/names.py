"""The names that expressions of a reactive workflow see, looked up one by one when they are asked for.

The order in which a bare name is looked for: variables of loops and of the task; `result` and what the type
of the step documents of it; computed, raw, state, inputs; the configuration; other fields of the result; and
what workflows that were included and have ended have left. `raw`, `state`, `computed`, `inputs`, `config`,
`this`, `global` and `loop` are objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from workflows_mcp.expressions.base import MISSING, UNSET
from workflows_mcp.machine.home import Home, Members
from workflows_mcp.machine.scope import Secrets
from workflows_mcp.values import Value

OBJECTS = ("raw", "state", "computed", "inputs", "this", "global", "secrets")
Included = Callable[[], list[dict[str, Value]]]
"""What included workflows have left, the latest first."""


class Names(Mapping[str, Any]):
    __slots__ = (
        "_fields", "_given", "_hidden", "_home", "_included", "_inputs", "_known", "_seeds", "_variables",
    )  # fmt: skip

    def __init__(
        self,
        home: Home,
        inputs: Mapping[str, Value],
        variables: dict[str, Value],
        hidden: dict[str, Any],
        included: Included,
        known: tuple[str, ...] = (),
    ) -> None:
        self._home = home
        self._inputs = inputs
        self._variables = variables
        self._hidden = hidden
        """The time, the limits, and what chance is made of."""
        self._included = included
        self._known = known
        self._given: dict[str, Value] = {}
        self._fields: dict[str, Value] = {}
        self._seeds = [0]

    def with_variables(self, more: dict[str, Value]) -> Names:
        names = self._copy()
        names._variables = {**self._variables, **more}
        return names

    def with_given(self, given: dict[str, Value], fields: dict[str, Value]) -> Names:
        """With what a step has just given: `given` goes before the state, `fields` after it."""
        names = self._copy()
        names._given, names._fields = given, fields
        return names

    def for_item(self, name: str, more: dict[str, Value]) -> Names:
        """For one of several items, which has a chance of its own."""
        names = self.with_variables(more)
        names._hidden = {**self._hidden, "__seed__": f"{self._hidden['__seed__']}/{name}"}
        names._seeds = [0]
        return names

    def _copy(self) -> Names:
        names = Names(self._home, self._inputs, self._variables, self._hidden, self._included, self._known)
        names._given, names._fields, names._seeds = self._given, self._fields, self._seeds
        return names

    def __getitem__(self, name: str) -> Any:
        found = self._look_up(name)
        if found is MISSING:
            raise KeyError(name)
        return found

    def _look_up(self, name: str) -> Any:
        if name in self._hidden:
            return self._hidden[name] if name != "__seed__" else self._next_seed()
        if name in OBJECTS:
            return self._object(name)
        for part in (self._variables, self._given):
            if name in part:
                return part[name]
        found = self._home.lookup(name)
        if found is not MISSING:
            return found
        if name in self._inputs:
            return self._inputs[name]
        if name == "config":
            return self._home.plan.config
        if name in self._home.plan.config:
            return self._home.plan.config[name]
        for left in (self._fields, *self._included()):
            if name in left:
                return left[name]
        if name == "workflow_id" and "__run__" in self._hidden:
            return self._hidden["__run__"]
        known = name in self._known or name in self._home.plan.known or name in self._home.plan.computed
        return UNSET if known else MISSING

    def _next_seed(self) -> str:
        """No two expressions of a step have the same chance."""
        self._seeds[0] += 1
        return f"{self._hidden['__seed__']}/{self._seeds[0]}"

    def _object(self, name: str) -> Any:
        home = self._home
        match name:
            case "raw" | "state":
                return home.scope.state.get(name, {})
            case "computed":
                return Members(home)
            case "inputs":
                return self._inputs
            case "this":
                return home
            case "global":
                return home.outermost
        return Secrets()

    def __iter__(self) -> Iterator[str]:
        home = self._home
        every = [*self._variables, *self._given, *home.names(), *self._inputs]
        every += [*home.plan.config, *self._fields]
        return iter(dict.fromkeys([*every, *home.plan.known, *OBJECTS, "config"]))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._look_up(name) is not MISSING
