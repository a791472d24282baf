"""A step of a stateful document as it was read: nested lists are still nested, targets are still ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from workflows_mcp.plan.model import ForEach, OnFailure, OnInterrupt, Operation, SetState
from workflows_mcp.plan.references import Use
from workflows_mcp.values import Value

Path = tuple[str | int, ...]


@dataclass(slots=True)
class StepDraft:
    """A step that has problems still gives a draft, so that everything else can be checked around it."""

    id: str
    at: Path
    kind: str = ""
    """The type as it is meant, also where it is misspelt; empty where nobody can say."""
    do: Operation = field(default_factory=lambda: SetState({}))
    """What it does; a condition and a goto get theirs when the steps are laid out."""
    condition: str | None = None
    on_failure: OnFailure | None = None
    on_interrupt: OnInterrupt = "repeat"
    retry: dict[str, Value] | None = None
    for_each: ForEach | None = None
    output_to: str = ""
    needs_state: tuple[str, ...] | None = None
    """The fields that it declares; None where it says nothing of them."""
    sees_all: bool = False
    """It declares all of the state: ["*"]."""
    uses: list[Use] = field(default_factory=list)
    test: str | None = None
    then: list[StepDraft] = field(default_factory=list)
    otherwise: list[StepDraft] = field(default_factory=list)
    target: str | None = None
    most: Value = None
    """How often a goto may jump."""
    task: str | None = None
    """The task that a foreach carries out."""
    updates: tuple[str, ...] = ()
    """The fields that a set_state writes."""

    @property
    def writes(self) -> tuple[str, ...]:
        return (*self.updates, self.output_to) if self.output_to else self.updates


def every(steps: list[StepDraft]) -> Iterator[StepDraft]:
    """The steps with those inside of them, in the order in which they are laid out."""
    for step in steps:
        yield step
        yield from every(step.then)
        yield from every(step.otherwise)
