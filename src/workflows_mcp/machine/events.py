"""Events: the facts that a run is made of. Each carries the time at which it became known.

An event is written down before anybody is told of it; the same events in the same order give the same
state, on any engine, at any time.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from workflows_mcp.plan.model import Plan
from workflows_mcp.values import Value


class Started(msgspec.Struct, frozen=True, tag="started", omit_defaults=True):
    at: float
    run_id: str
    inputs: dict[str, Value]
    workspace: str = ""
    """The directory that the run works in, whichever process drives it."""


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


class Answered(msgspec.Struct, frozen=True, tag="answered", omit_defaults=True):
    """The agent did what it was asked; the outputs are what its result amounts to."""

    at: float
    address: str
    outputs: dict[str, Value]
    ok: bool = True
    message: str | None = None


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


class CancelRequested(msgspec.Struct, frozen=True, tag="cancel", omit_defaults=True):
    at: float
    reason: str = ""


Event: TypeAlias = Started | StepDone | StepFailed | Answered | TimerFired | PlanLoaded | CancelRequested
