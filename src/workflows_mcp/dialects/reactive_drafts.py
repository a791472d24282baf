"""A step of a reactive document as it was read."""

from __future__ import annotations

from dataclasses import dataclass

from workflows_mcp.dialects.step_drafts import Draft
from workflows_mcp.plan.model import Change
from workflows_mcp.values import Value


@dataclass(slots=True)
class ReactiveDraft(Draft):
    own_id: str = ""
    """What the author calls it, without its templates; empty where there is nothing left."""
    changes: tuple[Change, ...] = ()
    """What its result changes in the state."""
    error_changes: tuple[Change, ...] = ()
    fallback: Value = None
    has_fallback: bool = False
    says_on_error: bool = False
    """It says itself what becomes of its failure."""
    updates: tuple[Change, ...] = ()
    """What a state_update changes."""
    most: Value = None
    """How often the body of a while is carried out at most."""
    items: Value = None
    """What a foreach goes through, and what its steps call the item and its position."""
    item: str = "item"
    index: str = "index"
    task: str = ""
    """The task that a parallel_foreach hands out; one that this file does not have starts with '#'."""

    @property
    def every_change(self) -> tuple[Change, ...]:
        return (*self.updates, *self.changes, *self.error_changes)
