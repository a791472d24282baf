"""Shows the events of a run or a task: time, kind, step and values, with long values cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from workflows_mcp.answers.previews import Cut, cut, within
from workflows_mcp.answers.targets import Target
from workflows_mcp.limits import Limits
from workflows_mcp.machine import Event, PlanLoaded, address_of, iso
from workflows_mcp.values import Value

EVENTS_SHOWN = 200


def journal_view(
    target: Target, events: Sequence[Event], limits: Limits, *, offset: int = 0, limit: int | None = None
) -> dict[str, Any]:
    """Return the events of a run or task from `offset` on; `position` counts in the journal of the run."""
    mine = [(position, event) for position, event in enumerate(events, 1) if target.covers(event.address)]
    most = EVENTS_SHOWN if limit is None else min(limit, EVENTS_SHOWN)
    shown = mine[offset : offset + most]

    def build(how: Cut) -> dict[str, Any]:
        # Cut long values, but never the list of events.
        inside = Cut(how.characters, max(how.items, 3))
        answer: dict[str, Any] = {
            "workflow_id": target.id,
            "total": len(mine),
            "events": [
                cut(_entry(position, event), (), inside, lambda *_: _how_to_read(target))
                for position, event in shown
            ],
        }
        if offset + len(shown) < len(mine):
            answer["next_offset"] = offset + len(shown)
        return answer

    return within(limits, build)


def _how_to_read(target: Target) -> str:
    return f"get_workflow_state(workflow_id='{target.id}')"


def _entry(position: int, event: Event) -> dict[str, Value]:
    fields: dict[str, Any] = msgspec.to_builtins(event)
    shown: dict[str, Value] = {"position": position, "at": iso(fields.pop("at")), "event": fields.pop("type")}
    if "key" in fields:
        shown["step"], shown["try"] = address_of(fields.pop("key"))
    elif "address" in fields:
        shown["step"] = fields.pop("address")
    fields.pop("limits", None)  # they are settings, not part of what happened
    fields.pop("state", None)  # it follows from the events before it
    if isinstance(event, PlanLoaded):
        fields.pop("sources", None)
        if event.plans:
            fields["plans"] = list(event.plans)
    return shown | fields
