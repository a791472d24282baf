"""The interface of an engine, which makes runs durable.

    run_id = await engine.start(bundle, inputs)
    await engine.send(run_id, lambda machine, now: Answered(now, "ask", {"response": "yes"}))
    machine = await engine.wait(run_id, lambda state: state.status != "running", 10.0)

An engine knows the machine and the executor, and stores runs. It knows nothing of agents, YAML or MCP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

from workflows_mcp.engines.live_output import LiveOutput
from workflows_mcp.limits import Limits
from workflows_mcp.machine import Audit, Event, Identity, Machine, RunState
from workflows_mcp.plan import Bundle
from workflows_mcp.values import Value

NO_AGENTS: Mapping[str, str] = MappingProxyType({})
MakeEvent = Callable[[Machine, float], Event]
"""Makes the event to send, from the current state of the run; raises if the event is not possible."""

FindBundle = Callable[[str, str], Bundle]
"""Finds a workflow by name, as seen from a file, with the workflows that it calls; raises WorkflowsError."""


class ChangedDefinition(NamedTuple):
    """Another definition of a run, and the events of the run as they are with it."""

    bundle: Bundle
    events: Sequence[Event]


@dataclass(frozen=True, slots=True)
class RunSummary:
    run_id: str
    workflow: str
    status: str
    """running, idle (it waits only for agents), completed, failed or cancelled."""
    started_at: float
    changed_at: float
    forked_from: str = ""
    """The run that it is a fork of, if any."""
    workspace: str = ""
    """The directory that it works in, if the engine knows it without reading the run."""


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
    """The runs that a pruning deleted, or would delete."""

    runs: tuple[PrunedRun, ...]
    returned: int = 0
    """How many bytes were returned to the file system."""


class Engine(Protocol):
    """Starts, drives, stores and recovers runs. "Committed" means: safe on disk."""

    live: LiveOutput
    """The output of running steps."""

    async def open(self) -> None:
        """Start, and recover the runs of dead processes if this engine recovers runs."""

    async def close(self) -> None:
        """Stop the steps that run here; other processes can take over the runs."""

    async def start(
        self,
        bundle: Bundle,
        inputs: dict[str, Value],
        *,
        request_id: str | None = None,
        agents: Mapping[str, str] = NO_AGENTS,
        by: Identity | None = None,
    ) -> str:
        """Start a run and return its id. A known request_id returns the run that it started.

        Commands of the settings perform the steps of `agents`; see `RunState.agents`. `by` has started it."""

    async def send(self, run_id: str, make_event: MakeEvent) -> None:
        """Send an event to a run. When this returns, the event is committed."""

    async def ensure_driven(self, run_id: str) -> None:
        """Continue a run that no live process drives, even if this engine does not recover runs.

        From now on the run belongs to the workspace and settings of this process."""

    async def is_driven_here(self, run_id: str) -> bool:
        """Whether this process drives the run at this moment."""

    async def view(self, run_id: str) -> Machine:
        """The current state of a run, committed; read only."""

    async def wait(self, run_id: str, ready: Callable[[RunState], bool], seconds: float) -> Machine:
        """Wait until `ready` holds, at most `seconds`, and return the run."""

    async def recent(self, limit: int, workflow: str | None = None) -> list[RunSummary]:
        """The runs that changed last, latest first; of one workflow, or of all."""

    async def prune(self, limits: Limits, *, dry_run: bool = False) -> Pruned:
        """Delete ended runs beyond the limits, oldest first; unfinished runs never.

        `dry_run` deletes nothing. Raises RequestError if a server decides how long runs are kept."""

    async def unfinished(self) -> list[RunSummary]:
        """All runs that have not ended, latest change first."""

    async def journal(self, run_id: str, after: int = 0) -> tuple[Bundle, list[Event]]:
        """The bundle that the run is pinned to, and its committed events after the first `after` ones."""

    async def audit(self, run_id: str) -> Audit:
        """The journal as far as it can be read, and what of the store does not fit it."""

    async def proof(self, run_id: str) -> str:
        """The last hash of a run that has ended, in hex; empty before, or if none is stored."""

    async def fork(
        self,
        run_id: str,
        position: int,
        then: Sequence[Event] = (),
        *,
        changed: ChangedDefinition | None = None,
        request_id: str | None = None,
    ) -> str:
        """Create a run from the first `position` events of another one, and return its id.

        The events `then` follow them. The new run can have a changed definition. A known request_id returns
        the fork that it created. The fork continues like a run that was recovered after a crash; the other
        run does not change. Raises RequestError if there is no such position, or if the run had ended
        there."""

    async def run_of_request(self, request_id: str) -> str | None:
        """The run or fork that the request with this id created; None if there is none."""

    async def delete_checkpoint(self, run_id: str, position: int) -> None:
        """Stop listing the checkpoint at this position of a run; the events stay."""

    async def deleted_checkpoints(self, run_id: str) -> set[int]:
        """The positions of the deleted checkpoints of a run."""

    async def heartbeat(self, run_id: str, task: str, at: float) -> None:
        """Record that the agent of a task was active at this time."""

    async def last_seen(self, run_id: str) -> dict[str, float]:
        """The last heartbeat of each task of a run that had one."""

    async def why_not_driven(self, run_id: str) -> str:
        """Why no process continues the run; empty if one does."""

    async def remember(self, key: str, value: Value) -> None:
        """Store a value in the memory that all runs of the store share; null deletes the key.

        When this returns, it is committed. Raises RequestError if it is too large, or if there are too many
        keys."""

    async def recall(self, key: str) -> Value:
        """The value of a key in the memory; null if there is none."""

    async def remembered(self, prefix: str = "") -> list[str]:
        """The keys of the memory that start with `prefix`, sorted."""
