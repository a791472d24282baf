"""Commands: what a run asks the engine to do. The engine reports back with events.

The key of a command names the operation and the attempt, so that a report that comes twice or too late is
recognised.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from workflows_mcp.expressions import Code
from workflows_mcp.machine.state import Execution, address_of, key_of
from workflows_mcp.values import Value

__all__ = [
    "Assignment",
    "ClearTimer",
    "Command",
    "Finish",
    "LoadPlan",
    "ReportInterrupted",
    "RunStep",
    "SetTimer",
    "StopStep",
    "address_of",
    "key_of",
]


class Assignment(msgspec.Struct, frozen=True, omit_defaults=True):
    """A step of an agent that a command of the settings performs."""

    agent: str
    """The name of the agent in the settings."""
    task: str
    """The id of the task or run that the step belongs to."""
    role: str = ""
    """The prompt of the author for the sub-agents of the task."""
    result: dict[str, Value] | None = None
    """The JSON Schema of the result, if the definition has one."""
    feedback: list[str] = []
    """Why its last result was rejected."""


class RunStep(msgspec.Struct, frozen=True):
    """Run this step and report StepDone or StepFailed with its key."""

    key: str
    address: str
    step: str
    inputs: dict[str, Value]
    code: dict[str, Code] = {}
    config: dict[str, Value] = {}
    event: int = 0
    """The number of the event that opened this execution."""
    shares_scratch: bool = True
    """Whether `$SCRATCH` is the directory of the run, as in plans of earlier versions, or of the step."""
    assignment: Assignment | None = None
    """For a step of an agent: who performs it."""

    @property
    def execution(self) -> Execution:
        return Execution(self.address, address_of(self.key)[1], self.event)


class StopStep(msgspec.Struct, frozen=True):
    """Stop this step. With a reason, report StepFailed with it once the step has ended; without one, report
    nothing."""

    key: str
    reason: str = ""


class SetTimer(msgspec.Struct, frozen=True):
    """Report TimerFired with this key at `due`."""

    key: str
    due: float


class ClearTimer(msgspec.Struct, frozen=True):
    key: str


class LoadPlan(msgspec.Struct, frozen=True):
    """Find the workflow called `name` and report PlanLoaded."""

    key: str
    name: str
    beside: str = ""
    """The file of the workflow that calls it."""


class ReportInterrupted(msgspec.Struct, frozen=True):
    """This step was interrupted by the end of its process: report Interrupted with its key."""

    key: str


class Finish(msgspec.Struct, frozen=True):
    """The run has ended; no command follows."""

    status: str


Command: TypeAlias = RunStep | StopStep | SetTimer | ClearTimer | LoadPlan | ReportInterrupted | Finish
