"""Events: the facts that a run is made of. Each carries the time at which it became known.

An event is written down before anybody is told of it; the same events in the same order give the same
state, on any engine, at any time.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from workflows_mcp.machine.state import Fault
from workflows_mcp.plan import ChangeOperation, Plan
from workflows_mcp.values import Value


class Started(msgspec.Struct, frozen=True, tag="started", omit_defaults=True):
    at: float
    run_id: str
    inputs: dict[str, Value]
    workspace: str = ""
    """The directory that the run works in, whichever process drives it."""
    limits: dict[str, int | float] = {}
    """The limits that decide how the run goes: they stay, whichever process goes on with it."""
    forked_from: str = ""
    """The run that this one was made of, and how many of its events it has from there: `wf_1@7`."""
    seed: str = ""
    """What chance is made of, where that is not the id of the run."""


class StepDone(msgspec.Struct, frozen=True, tag="done", omit_defaults=True):
    """A step was carried out; `ok` false means that what it did failed."""

    at: float
    key: str
    outputs: dict[str, Value]
    ok: bool = True
    message: str | None = None


class StepFailed(msgspec.Struct, frozen=True, tag="failed", omit_defaults=True):
    """A step could not be carried out; `outputs` are what there was of them by then."""

    at: float
    key: str
    code: str
    message: str
    outputs: dict[str, Value] = {}
    hint: str = ""


class Answered(msgspec.Struct, frozen=True, tag="answered", omit_defaults=True):
    """The agent did what it was asked; the outputs are what its result amounts to."""

    at: float
    address: str
    outputs: dict[str, Value]
    ok: bool = True
    message: str | None = None
    settled: bool = False
    """The agent has put the result into the state itself: the changes of the step are not made again."""
    attempt: str = ""
    """The try that was answered: another one at the same address is another question."""
    token: str = ""
    """Identifies what the agent has submitted, and for which step: the same again is harmless."""


class TimerFired(msgspec.Struct, frozen=True, tag="timer"):
    at: float
    key: str


class PlanLoaded(msgspec.Struct, frozen=True, tag="plan", omit_defaults=True):
    """The workflow that a call names by an expression was found, with all that it calls, or was not."""

    at: float
    key: str
    name: str
    plans: dict[str, Plan] = {}
    sources: dict[str, str] = {}
    error: str | None = None


class Stopped(msgspec.Struct, frozen=True, tag="stopped"):
    """Expressions that the next event leads to took too long and were stopped. Written before that event, so
    that whoever applies it again need not find out once more, and comes to the same end."""

    at: float
    faults: dict[str, Fault]
    """By the key of the try that could not begin."""


class Forked(msgspec.Struct, frozen=True, tag="forked", omit_defaults=True):
    """From here on the run is one of its own: what waits for a time waits from now on."""

    at: float
    begun_anew: bool = False
    """Steps that are under way have been begun now, and not when the other run began them."""
    seed: str = ""
    """What chance is made of from here on."""
    over_limit: bool = False
    """More items than the limit may stay under way here: of the run that this event is copied from, some were
    done that are done again now, and others come behind them."""


class SlotFreed(msgspec.Struct, frozen=True, tag="made_room"):
    """In the run that this one is made of, an item had ended here and left its place to the next one; here it
    is being done again."""

    at: float
    address: str


class Interrupted(msgspec.Struct, frozen=True, tag="interrupted"):
    """A step was cut off by the end of its process, and what was left of it has been ended."""

    at: float
    key: str


class StateUpdated(msgspec.Struct, frozen=True, tag="updated", omit_defaults=True):
    """The agent has changed the state of a run, or of a task."""

    at: float
    changes: list[tuple[list[str | int], ChangeOperation, Value]]
    """Path, operation and value of each."""
    address: str = ""
    """The task; empty: the run."""
    token: str = ""
    """Names this update: one that comes twice is made once."""


class Marked(msgspec.Struct, frozen=True, tag="marked", omit_defaults=True):
    """Somebody means to come back to this place."""

    at: float
    reason: str = ""
    step: str = ""


class ContextFull(msgspec.Struct, frozen=True, tag="context_full", omit_defaults=True):
    """The agent has reported that its context is nearly full: the steps for that case run, then the run is
    parked."""

    at: float
    reason: str = ""
    step: str = ""


class Parked(msgspec.Struct, frozen=True, tag="parked"):
    """The user has interrupted the run. Nothing of it continues until it is resumed."""

    at: float


class Resumed(msgspec.Struct, frozen=True, tag="resumed"):
    """The user has resumed a parked run."""

    at: float


class CancelRequested(msgspec.Struct, frozen=True, tag="cancel", omit_defaults=True):
    at: float
    reason: str = ""
    superseded_by: str = ""
    """The run that was made of this one and continues in its place."""


Event: TypeAlias = (
    Started
    | Forked
    | SlotFreed
    | StepDone
    | StepFailed
    | Answered
    | TimerFired
    | PlanLoaded
    | Stopped
    | Interrupted
    | StateUpdated
    | Marked
    | ContextFull
    | Parked
    | Resumed
    | CancelRequested
)
