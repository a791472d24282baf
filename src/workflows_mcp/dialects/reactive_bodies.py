"""A workflow or a task of a reactive document as it was read, and the fields that a state can have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from workflows_mcp.dialects.reactive_drafts import ReactiveDraft
from workflows_mcp.dialects.reactive_errors import ErrorHandling
from workflows_mcp.dialects.reactive_paths import WRITABLE, Keys, field_of
from workflows_mcp.dialects.reactive_state import Declared
from workflows_mcp.dialects.step_drafts import every
from workflows_mcp.plan.model import InputSpec
from workflows_mcp.plan.references import Use
from workflows_mcp.values import Value

Path = tuple[str | int, ...]


@dataclass(slots=True)
class Body:
    name: str
    path: Path
    """Where it stands; empty for the workflow itself."""
    given: dict[str, Value]
    steps: list[ReactiveDraft]
    declared: Declared
    errors: ErrorHandling
    inputs: dict[str, InputSpec] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    """Of a task: what is known beside its item."""
    in_values: list[Use] = field(default_factory=list)

    @property
    def every(self) -> list[ReactiveDraft]:
        return [*every(self.steps), *every(self.errors.steps)]

    @property
    def is_task(self) -> bool:
        return bool(self.path)

    @property
    def shares_state(self) -> bool:
        return self.is_task and not self.declared.is_given


@dataclass(slots=True)
class Fields:
    """The fields of a state: of `raw` and of `state`."""

    raw: set[str] = field(default_factory=set)
    state: set[str] = field(default_factory=set)
    complete: bool = True
    """Whether all that is ever written is known."""

    @property
    def names(self) -> set[str]:
        return self.raw | self.state

    def of(self, part: str) -> set[str]:
        return self.raw if part == "raw" else self.state


def fields_of(bodies: Iterable[Body]) -> Fields:
    """What the bodies that share a state declare of it, or write."""
    fields = Fields()
    for body in bodies:
        if not body.is_task:
            fields.raw |= set(body.inputs)  # what was given is in raw as well
        for part in WRITABLE:
            fields.of(part).update(body.declared.fields(part))
        for keys in _written(body):
            name = field_of(keys)
            if name is None:
                fields.complete = False
            else:
                fields.of(str(keys[0])).add(name)
        if any(not draft.kind for draft in body.every):
            fields.complete = False
    return fields


def _written(body: Body) -> list[Keys]:
    paths = [change.path for draft in body.every for change in draft.every_change]
    paths += [draft.for_each.errors_to for draft in body.every if draft.for_each is not None]
    return [path for path in (*paths, body.errors.errors_to) if path]
