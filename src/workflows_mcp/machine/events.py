"""Defines the events of a run: facts, each with the time at which it became known.

An event is stored before a step that changes the world starts, and before anybody outside sees its effect.
The same events in the same order give the same state, on any engine, at any time.

An event class also states what the event means for readers of a journal, so that they need no list of types:
which step it is about (`address`, `of_step`), whether it ends that step (`ends_step`), and so on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal, Self, TypeAlias

import msgspec
from msgspec.structs import replace

from workflows_mcp.machine.state import EndStatus, Fault, Identity, Outcome, RunState, address_of
from workflows_mcp.plan import REJECTED, ChangeOperation, Plan
from workflows_mcp.values import Value


class EventBase(msgspec.Struct, frozen=True, omit_defaults=True):
    at: float

    of_step: ClassVar[bool] = False
    """It is about the step at its address."""
    ends_step: ClassVar[bool] = False
    """It ends the step at its address."""
    by_agent: ClassVar[bool] = False
    """An agent submitted it; a parked run does not accept it."""
    marks_position: ClassVar[bool] = False
    """It marks its own position; a step that is reopened is not entered at a mark after it."""
    precedes_next: ClassVar[bool] = False
    """It belongs to the event after it."""
    cancels: ClassVar[bool] = False
    """It cancels the run."""
    never_refused: ClassVar[bool] = False
    """It is never refused, whatever the run is doing, even if it has ended."""

    def map_outputs(self, change: Callable[[Value], Value]) -> Self:
        """The event with changed outputs, if it has outputs of a step."""
        return self


class _OfAttempt(EventBase, frozen=True):
    """It is about one attempt of a step, whose key it carries."""

    key: str

    of_step: ClassVar[bool] = True

    @property
    def address(self) -> str:
        return address_of(self.key)[0]


class _OfAddress(EventBase, frozen=True):
    """It carries the address of the step, or of the task, that it is about."""

    @property
    def key(self) -> str:
        return ""


class _OfRun(_OfAddress, frozen=True):
    """It is about the run as a whole."""

    @property
    def address(self) -> str:
        return ""


class Started(_OfRun, frozen=True, tag="started"):
    run_id: str
    inputs: dict[str, Value]
    workspace: str = ""
    """The working directory of the run, whichever process drives it."""
    limits: dict[str, int | float] = {}
    """The limits that a run keeps, whichever process continues it."""
    forked_from: str = ""
    """The run that this one is a fork of, and how many events it has from there: `wf_1@7`."""
    seed: str = ""
    """The seed of random values, if it is not the id of the run."""
    agents: dict[str, str] = {}
    """The agents that a command of the settings performs, by name; `*` is every one."""
    by: Identity | None = None

    never_refused: ClassVar[bool] = True


class StepDone(_OfAttempt, frozen=True, tag="done"):
    """A step ran; `ok` false means that what it did failed."""

    outputs: dict[str, Value]
    ok: bool = True
    message: str | None = None
    tokens: int = 0
    """The tokens that an agent used, if a command performed the step."""
    by: Identity | None = None

    ends_step: ClassVar[bool] = True

    @property
    def ended_as(self) -> tuple[EndStatus, Outcome]:
        return "completed", "success" if self.ok else "failure"

    def map_outputs(self, change: Callable[[Value], Value]) -> Self:
        outputs = change(self.outputs)
        return self if outputs is self.outputs else replace(self, outputs=outputs)


class StepFailed(_OfAttempt, frozen=True, tag="failed"):
    """A step could not run, or not to its end; `outputs` are those that it had by then."""

    code: str
    message: str
    outputs: dict[str, Value] = {}
    hint: str = ""
    tokens: int = 0
    """The tokens that an agent used, if a command performed the step."""
    by: Identity | None = None

    ends_step: ClassVar[bool] = True

    @property
    def ended_as(self) -> tuple[EndStatus, Outcome]:
        return "failed", "n/a"

    def map_outputs(self, change: Callable[[Value], Value]) -> Self:
        outputs = change(self.outputs)
        return self if outputs is self.outputs else replace(self, outputs=outputs)


class Answered(_OfAddress, frozen=True, tag="answered"):
    """The agent performed its action; the outputs come from its result."""

    address: str
    outputs: dict[str, Value]
    ok: bool = True
    message: str | None = None
    written_by_agent: bool = msgspec.field(default=False, name="settled")
    """The agent has written the result to the state itself: the step does not write it again."""
    attempt: str = ""
    """The attempt that was answered: another attempt at the same address is another question."""
    token: str = ""
    """Identifies the result and its step, so that submitting the same one again is harmless."""
    by: Identity | None = None
    tokens: int = 0
    """The tokens that the agent reports to have used."""

    of_step: ClassVar[bool] = True
    ends_step: ClassVar[bool] = True
    by_agent: ClassVar[bool] = True

    @property
    def ended_as(self) -> tuple[EndStatus, Outcome]:
        return "completed", "success" if self.ok else "failure"


class Decided(_OfAddress, frozen=True, tag="decided"):
    """A person decided at a gate."""

    address: str
    choice: str
    by: Identity
    comment: str = ""
    attempt: str = ""

    of_step: ClassVar[bool] = True
    ends_step: ClassVar[bool] = True

    @property
    def ended_as(self) -> tuple[EndStatus, Outcome]:
        return "completed", "failure" if self.choice == REJECTED else "success"

    @property
    def message(self) -> str:
        return f"{self.by.name} decided: {self.choice}" + (f": {self.comment}" if self.comment else "")


RefusedWhat = Literal["gate", "step", "result", "tool", "stop", "command"]


class Refused(_OfAddress, frozen=True, tag="refused"):
    """An attempt to leave the process was refused; nothing changed.

    `gate`: an agent tried to decide. `step`: an answer to a step that was not asked. `result`: a result that
    does not fit its schema. `tool`: a tool that the step does not allow. `stop`: the agent tried to end its
    turn. `command`: a command by which an agent could pass a gate."""

    what: RefusedWhat
    message: str
    by: Identity | None = None
    address: str = ""


class BudgetRaised(_OfRun, frozen=True, tag="budget_raised"):
    """A person allowed agents to do more: what waits for it starts."""

    limits: dict[str, float]
    """New limits, by name; empty: only what waits for a confirmation starts."""
    by: Identity
    owner: str = ""
    """The address of the budget; empty: the run's own."""


class TimerFired(_OfAttempt, frozen=True, tag="timer"):
    """A timer that a frame has set has fired."""


class PlanLoaded(_OfAttempt, frozen=True, tag="plan"):
    """The workflow that a call names by an expression was found, with all that it calls, or not found."""

    name: str
    plans: dict[str, Plan] = {}
    sources: dict[str, str] = {}
    error: str | None = None


class ExpressionStopped(_OfRun, frozen=True, tag="stopped"):
    """Expressions exceeded their limits while the next event was applied, and were stopped.
    It is stored before that event, so that a replay need not run them again and ends the same way.
    """

    faults: dict[str, Fault]
    """By the key of the attempt that could not begin."""

    precedes_next: ClassVar[bool] = True
    never_refused: ClassVar[bool] = True


class Forked(_OfRun, frozen=True, tag="forked"):
    """A fork starts here as a run of its own: its timers start now."""

    steps_restart: bool = msgspec.field(default=False, name="begun_anew")
    """Steps that are under way start now; otherwise they keep the times of the original run."""
    seed: str = ""
    """The seed of random values from here on."""
    over_limit: bool = False
    """Whether more items than the limit may stay under way: some that had ended are reopened, and the items
    after them have started already."""

    never_refused: ClassVar[bool] = True


class Reopened(_OfRun, frozen=True, tag="reopened"):
    """Steps run again, with all that followed from them; everything else keeps its results."""

    steps: list[str]
    """The keys of their first attempts."""
    state: RunState
    """The run as it would be if it had not entered these steps; see `reopening.py`."""
    decision: Decided | None = None
    """The decision of the person who sent the steps back."""
    raised: dict[str, dict[str, float]] = {}
    """New limits of budgets, by their addresses."""
    by: Identity | None = None
    """The person who has allowed them."""

    def map_outputs(self, change: Callable[[Value], Value]) -> Self:
        whole = msgspec.to_builtins(self.state)
        changed = change(whole)
        return self if changed is whole else replace(self, state=msgspec.convert(changed, RunState))


class SlotFreed(_OfAddress, frozen=True, tag="made_room"):
    """A reopened item had ended before, so the next item starts."""

    address: str

    of_step: ClassVar[bool] = True


class Interrupted(_OfAttempt, frozen=True, tag="interrupted"):
    """A step was interrupted by the end of its process, and its leftover processes were killed."""


class StateUpdated(_OfAddress, frozen=True, tag="updated"):
    """The agent has changed the state of a run, or of a task."""

    changes: list[tuple[list[str | int], ChangeOperation, Value]]
    """Path, operation and value of each."""
    address: str = ""
    """The task; empty: the run."""
    token: str = ""
    """Identifies the update, so that sending it again is harmless."""

    by_agent: ClassVar[bool] = True


class Marked(_OfRun, frozen=True, tag="marked"):
    """A user or an agent has set a checkpoint here."""

    reason: str = ""
    step: str = ""

    marks_position: ClassVar[bool] = True


class ContextFull(_OfRun, frozen=True, tag="context_full"):
    """The agent has reported that its context is nearly full.

    The steps for that case run, then the run is parked.
    """

    reason: str = ""
    step: str = ""

    marks_position: ClassVar[bool] = True


class Parked(_OfRun, frozen=True, tag="parked"):
    """The user has interrupted the run. Nothing of it continues until it is resumed."""


class Resumed(_OfRun, frozen=True, tag="resumed"):
    """The user has resumed a parked run."""


class AgentsAssigned(_OfRun, frozen=True, tag="agents"):
    """Commands of the settings perform the steps of these agents from now on."""

    agents: dict[str, str]
    """The agents of the settings, by the name of the agent in the definition; `*` is every one."""
    by: Identity | None = None


class CancelRequested(_OfRun, frozen=True, tag="cancel"):
    reason: str = ""
    superseded_by: str = ""
    """The fork that continues in its place."""
    by: Identity | None = None

    cancels: ClassVar[bool] = True


StepReport: TypeAlias = StepDone | StepFailed | Answered
"""The events that report what a step gave."""

StepEnd: TypeAlias = StepReport | Decided
"""The events that end a step."""

Event: TypeAlias = (
    Started
    | Forked
    | Reopened
    | SlotFreed
    | StepDone
    | StepFailed
    | Answered
    | TimerFired
    | PlanLoaded
    | ExpressionStopped
    | Interrupted
    | StateUpdated
    | Decided
    | Refused
    | BudgetRaised
    | Marked
    | ContextFull
    | Parked
    | Resumed
    | AgentsAssigned
    | CancelRequested
)
