"""What every engine offers to the service. An engine knows the machine and the executor, and keeps runs;
it knows nothing of agents, YAML or MCP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from workflows_mcp.engines.forks import NO_CHANGES, Instead
from workflows_mcp.engines.live_output import LiveOutput
from workflows_mcp.limits import Limits
from workflows_mcp.machine import Event, Machine, RunState
from workflows_mcp.plan import Bundle
from workflows_mcp.values import Value

MakeEvent = Callable[[Machine, float], Event]
"""Makes the event to send from the run as it is now; raises when it cannot be sent."""

FindBundle = Callable[[str, str], Bundle]
"""Finds a workflow by name, as seen from a file, with all that it calls; raises WorkflowsError."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    run_id: str
    workflow: str
    status: str
    """running, idle (it waits for an agent only), completed, failed or cancelled."""
    started_at: float
    changed_at: float
    forked_from: str = ""
    """The run that it was made of, if it was."""
    workspace: str = ""
    """The directory that it works in, where that is known without reading the run."""


@dataclass(frozen=True, slots=True)
class PrunedRun:
    run_id: str
    workflow: str
    status: str
    changed_at: float
    size: int
    """The bytes of the store that only this run needs."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a pruning has deleted, or would delete."""

    runs: tuple[PrunedRun, ...]
    returned: int = 0
    """How many bytes the file of runs has become smaller."""


class Engine(Protocol):
    @property
    def live(self) -> LiveOutput:
        """What running steps print."""

    async def open(self) -> None:
        """Start; take over what a process that is gone has left, if this engine adopts runs."""

    async def close(self) -> None:
        """Stop what is under way here and leave every run to be taken over."""

    async def start(self, bundle: Bundle, inputs: dict[str, Value], *, request_id: str | None = None) -> str:
        """Start a run and give its id; a request_id that is known gives the run that it started."""

    async def send(self, run_id: str, make_event: MakeEvent) -> None:
        """Hand an event to a run. When this returns, the event is safe on disk."""

    async def ensure_driven(self, run_id: str) -> None:
        """Go on with a run that nobody alive drives, also in a process that does not look for such runs, and
        whichever process started it: from now on it belongs to this one."""

    async def is_driven_here(self, run_id: str) -> bool:
        """Whether this process drives the run at this moment."""

    async def view(self, run_id: str) -> Machine:
        """The run as it is now, to be read only. What it shows is safe on disk."""

    async def wait(self, run_id: str, ready: Callable[[RunState], bool], seconds: float) -> Machine:
        """The run as soon as `ready` holds, or as it is after `seconds`."""

    async def recent(self, limit: int, workflow: str | None = None) -> list[RunSummary]:
        """The runs that changed last, latest first; those of one workflow only, if it is named."""

    async def prune(self, limits: Limits, *, dry_run: bool = False) -> Pruned:
        """Delete ended runs beyond the limits, oldest first; unfinished ones never. `dry_run` deletes
        nothing. RequestError where the engine does not decide how long runs are kept."""

    async def unfinished(self) -> list[RunSummary]:
        """All runs that have not ended, the one that changed last first."""

    async def journal(self, run_id: str, after: int = 0) -> tuple[Bundle, list[Event]]:
        """What the run is pinned to, and its events after so many that are safe on disk, in order."""

    async def fork(
        self, run_id: str, position: int, *, instead: Instead = NO_CHANGES, request_id: str | None = None
    ) -> str:
        """Make a new run of the first `position` events of a run, some of them left out or replaced, and give
        its id; a request_id that is known gives the fork that it made. It goes on by itself, like a run that
        was taken over after a crash. The old one stays as it is. RequestError where there is no such
        position, or nothing is left to do."""

    async def made_by(self, request_id: str) -> str | None:
        """The run that was started, or made of another one, by the request with this id, if any was."""

    async def delete_checkpoint(self, run_id: str, position: int) -> None:
        """Remember that nobody wants to be offered this position of a run any more."""

    async def deleted_checkpoints(self, run_id: str) -> set[int]:
        """The positions of a run that were forgotten."""

    async def heartbeat(self, run_id: str, task: str, at: float) -> None:
        """Remember that somebody was at work on a task of a run at this time."""

    async def last_seen(self, run_id: str) -> dict[str, float]:
        """When somebody was last at work on each task of a run, as far as anybody was."""

    async def abandoned(self, run_id: str) -> str:
        """Why no process sees to it that a run goes on, as long as it needs no agent; empty if one does."""

    async def remember(self, key: str, value: Value) -> None:
        """Keep a value beyond runs, for everybody who shares the store; null forgets the key. When this
        returns, it is safe on disk. RequestError where it is too large, or there are too many keys."""

    async def recall(self, key: str) -> Value:
        """What is kept under a key; null if nothing is."""

    async def remembered(self, prefix: str = "") -> list[str]:
        """The keys that there are, those that begin so, in order."""
