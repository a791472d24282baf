"""Whether a run waits for an event. What is not expected (any more) is refused before it is written down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workflows_mcp.errors import NotExpected
from workflows_mcp.machine.changes import WrongChange
from workflows_mcp.machine.commands import address_of
from workflows_mcp.machine.events import (
    Answered,
    CancelRequested,
    ContextFull,
    Event,
    Forked,
    MadeRoom,
    Marked,
    Parked,
    Resumed,
    Started,
    StateUpdated,
    Stopped,
)
from workflows_mcp.machine.home import Changes
from workflows_mcp.machine.state import RunState

if TYPE_CHECKING:
    from workflows_mcp.machine.machine import Machine


def refuse_unexpected(machine: Machine, event: Event) -> None:
    """Raises NotExpected where nothing waits for `event`."""
    state = machine.state
    if isinstance(event, Started | Stopped | Forked):
        return
    if state.status != "running":
        by = state.superseded_by
        raise NotExpected(
            f"the run {state.run_id} has ended: it is {state.status}"
            + (f", superseded by {by}" if by else ""),
            hint=f"continue with workflow_id='{by}'" if by else "",
        )
    if isinstance(event, CancelRequested | Marked | ContextFull | Parked):
        return
    if isinstance(event, Resumed):
        if state.parked is None:
            raise NotExpected(f"the run {state.run_id} is not parked")
        return
    if state.parked is not None and isinstance(event, Answered | StateUpdated):
        raise NotExpected(
            f"the run {state.run_id} is parked: {why_parked(state)}",
            hint=f"resume it first: {how_to_resume(state.run_id)}",
        )
    if isinstance(event, StateUpdated):
        _refuse_update(machine, event)
        return
    if isinstance(event, MadeRoom):
        if event.address not in state.frames:
            raise NotExpected(f"'{event.address}' is not under way")
        return
    if isinstance(event, Answered):
        frame = state.frames.get(event.address)
        if frame is None or frame.kind != "agent":
            raise NotExpected(f"nothing is asked at '{event.address}'")
        if event.attempt and event.attempt != frame.attempt:
            raise NotExpected(f"'{event.address}' is asked anew")
        if frame.deadline is not None and event.at > frame.deadline:
            raise NotExpected(f"the question at '{event.address}' has timed out")
        return
    if not is_under_way(state, event.key):
        raise NotExpected(f"'{event.key}' is not under way")


def why_parked(state: RunState) -> str:
    return "the context of its agent was nearly full" if state.context_full else "the user interrupted it"


def how_to_resume(run_id: str) -> str:
    return f"control_workflow(workflow_id='{run_id}', action='resume'), or workflows-mcp resume {run_id}"


def is_under_way(state: RunState, key: str) -> bool:
    address, attempt = address_of(key)
    frame = state.frames.get(address)
    return frame is not None and frame.attempt == attempt


def changes_of(event: StateUpdated) -> Changes:
    return [(tuple(path), operation, value) for path, operation, value in event.changes]


def _refuse_update(machine: Machine, event: StateUpdated) -> None:
    home = machine.home_at(event.address)
    if home is None:
        hint = "only the state of a reactive workflow, or of a task of it that is under way, can be"
        raise NotExpected("there is no state here that can be changed from outside", hint=hint)
    try:
        home.tried(changes_of(event))
    except WrongChange as wrong:
        raise NotExpected(str(wrong), hint=wrong.hint) from None
