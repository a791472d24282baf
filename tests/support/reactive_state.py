"""The state of a reactive workflow without a run: what it is, what follows from it, and what is computed when."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from support.plans import Plan
from workflows_mcp.limits import Limits
from workflows_mcp.machine.changes import Path
from workflows_mcp.machine.program import program_of
from workflows_mcp.machine.reactive_state import ComputedFields, ReactiveState, Trace
from workflows_mcp.machine.state import Scope
from workflows_mcp.plan.model import ChangeOperation, Computed, Steps
from workflows_mcp.values import Value


class State:
    """A state with fields that follow from it; `computed` are the names of those computed since it was last looked at."""

    def __init__(
        self,
        computed: Mapping[str, Computed],
        raw: Mapping[str, Value],
        *,
        inputs: Mapping[str, Value] | None = None,
        config: Mapping[str, Value] | None = None,
        raw_types: Mapping[str, str] | None = None,
        limits: Limits | None = None,
    ) -> None:
        plan = Plan(
            "main",
            "reactive",
            Steps(()),
            computed=dict(computed),
            config=dict(config or {}),
            raw_types=dict(raw_types or {}),
            known=("later",),
        )
        scope = Scope("main", dict(inputs or {}), state={"raw": dict(raw), "state": {}})
        self.home = ReactiveState(scope, program_of(plan), limits or Limits())
        self.home.fields.trace = self._note
        self.traces: list[Trace] = []

    def _note(self, trace: Trace) -> None:
        self.traces.append(trace)

    @property
    def computed(self) -> list[str]:
        names = [trace.field for trace in self.traces]
        self.traces.clear()
        return names

    def __getitem__(self, name: str) -> Any:
        return self.home.lookup(name)

    @property
    def raw(self) -> dict[str, Value]:
        fields: dict[str, Value] = self.home.scope.state["raw"]
        return fields

    def change(self, path: str | Path, operation: ChangeOperation, value: Value = None) -> None:
        keys: Path = ("raw", *path.split(".")) if isinstance(path, str) else path
        self.home.change([(keys, operation, value)])

    def set(self, path: str | Path, value: Value) -> None:
        self.change(path, "set", value)

    def afresh(self) -> dict[str, Value]:
        """What follows from the state, computed by somebody who has never seen it before."""
        home = self.home
        fields = ComputedFields(home.plan, program_of(home.plan).language, home.limits)
        return fields.all(home.around())


def field(source: str | tuple[str, ...], transform: str, **more: Any) -> Computed:
    """`from: source`; several are a list."""
    many = isinstance(source, tuple)
    sources = source if isinstance(source, tuple) else (source,)
    return Computed(sources, many, transform, **more)
