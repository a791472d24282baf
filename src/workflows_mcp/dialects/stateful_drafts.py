"""A step of a stateful document as it was read: targets are still ids."""

from __future__ import annotations

from dataclasses import dataclass

from workflows_mcp.dialects.step_drafts import Draft
from workflows_mcp.values import Value


@dataclass(slots=True)
class StepDraft(Draft):
    output_to: str = ""
    error_to: str = ""
    needs_state: tuple[str, ...] | None = None
    """The fields that it declares; None where it says nothing of them."""
    sees_all: bool = False
    """It declares all of the state: ["*"]."""
    target: str | None = None
    most: Value = None
    """How often a goto may jump."""
    task: str | None = None
    """The task that a foreach carries out."""
    updates: tuple[str, ...] = ()
    """The fields that a set_state writes."""

    @property
    def writes(self) -> tuple[str, ...]:
        return (*self.updates, *(name for name in (self.output_to, self.error_to) if name))
