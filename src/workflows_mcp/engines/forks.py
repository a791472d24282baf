"""A fork: a new run that is made of the first events of another one, some of which may be left out, and goes
on in its own way.

It is whole by itself: its events are copies, the first of them with its own id and where it comes from. What
was under way at that point is started afresh, as after a crash. The other run is not touched. How either
is kept is not known here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from workflows_mcp.engines.values import Blob, LargeValues, join_events
from workflows_mcp.errors import RequestError
from workflows_mcp.machine import Event, Forked, Machine, Started
from workflows_mcp.plan import Bundle
from workflows_mcp.values import Value

# ----------------------------------------------------------------------------------------------------
# New ids of runs, the one place that makes them.


def new_run_id() -> str:
    return f"wf_{os.urandom(6).hex()}"


# ----------------------------------------------------------------------------------------------------
# What a driver writes, and what it takes to write it: a batch of events, and the journal of one run.


class Batch(msgspec.Struct, frozen=True):
    """Events of one run, to be written together or not at all."""

    position: int
    """How many events of the run come before these."""
    events: bytes
    count: int
    status: str
    """running, idle (it waits for an agent only), completed, failed or cancelled."""
    at: float
    snapshot: bytes | None = None
    blobs: tuple[Blob, ...] = ()
    """Large values that the events or the snapshot refer to, and that are not written yet."""


class Journal(Protocol):
    """Where the events of one run go."""

    def append(self, batch: Batch, done: Callable[[Exception | None], None]) -> None:
        """Write; call `done` on the event loop when it is safe, in the order of the calls."""

    def in_force(self) -> bool:
        """Whether the run is known to be ours at this moment. A process that was stopped for a while does
        not know, and must ask before it starts what cannot be taken back."""

    def confirm(self, done: Callable[[Exception | None], None]) -> None:
        """Find out whether the run is still ours; an error where it is not."""


# ----------------------------------------------------------------------------------------------------
# A run from its events: the machine that they lead to.


def replayed(bundle: Bundle, events: Iterable[Event]) -> Machine:
    machine = Machine(bundle)
    for event in events:
        machine.apply(event)
    return machine


Instead = Mapping[int, Sequence[Event]]

"""By the numbers of events, counted from 1: what a fork has in their place; nothing where one is left out."""

NO_CHANGES: Instead = {}


@dataclass(frozen=True, slots=True)
class Fork:
    run_id: str
    events: list[Event]
    machine: Machine
    """The new run after these events."""


def request_digest(run_id: str, position: int, instead: Instead) -> str:
    """A fork in words: the same for two requests that ask for the same one."""
    changes = ",".join(f"{number}:{len(instead[number])}" for number in sorted(instead))
    return f"{run_id}@{position}" + (f"-{changes}" if changes else "")


def fork_of(
    run_id: str,
    bundle: Bundle,
    events: list[Event],
    position: int,
    now: float,
    new_id: str | None = None,
    instead: Instead = NO_CHANGES,
    scratch: Path | None = None,
) -> Fork:
    """`scratch` is the directory with the files of runs: a path in the outputs of a step that leads into the
    old run's files then leads to the new run's copy of them.
    Raises RequestError where there is no such position, or nothing is left to do at it."""
    first, started = next((number, it) for number, it in enumerate(events) if isinstance(it, Started))
    if not first < position <= len(events):
        raise RequestError(
            f"the run {run_id} has no position {position}",
            hint=f"a position is the number of events that a fork is made of: {first + 1} to {len(events)}",
        )
    new_id = new_id or new_run_id()
    seed = started.seed or started.run_id  # what the events that are copied were made with
    numbered = enumerate(events[:position], start=1)
    kept = [it for number, event in numbered for it in instead.get(number, (event,))]
    origin = msgspec.structs.replace(started, run_id=new_id, forked_from=f"{run_id}@{len(kept)}", seed=seed)
    copied = _seeded([origin if it is started else it for it in kept], seed, run_id)
    if scratch is not None:
        copied = _with_own_files(copied, str(scratch / run_id), str(scratch / new_id))
    machine = replayed(bundle, copied)
    if machine.state.status != "running":
        raise RequestError(
            f"the run {run_id} had ended at position {position}: nothing is left to do",
            hint="fork it from an earlier position, or start the workflow again",
        )
    forked = Forked(now, begun_anew=True, seed=f"{machine.state.seed}/{new_id}")
    machine.apply(forked)
    return Fork(new_id, [*copied, forked], machine)


def _seeded(events: list[Event], seed: str, run_id: str) -> list[Event]:
    """Chance in what is copied stays what it was. Earlier versions did not write it down, but made it of the
    id of the run."""
    seeded: list[Event] = []
    for event in events:
        if isinstance(event, Forked):
            seed = event.seed or f"{seed}/{run_id}"
            seeded.append(msgspec.structs.replace(event, seed=seed))
        else:
            seeded.append(event)
    return seeded


def _with_own_files(events: list[Event], old: str, new: str) -> list[Event]:
    return [event.map_outputs(lambda outputs: _replaced(outputs, old, new)) for event in events]


def _replaced(value: Value, old: str, new: str) -> Value:
    """The value with one text in place of another; the same object where nothing is to be replaced."""
    if isinstance(value, str):
        return value.replace(old, new) if old in value else value
    if isinstance(value, dict):
        entries = {key: _replaced(item, old, new) for key, item in value.items()}
        return entries if any(entries[key] is not value[key] for key in value) else value
    if isinstance(value, list):
        items = [_replaced(item, old, new) for item in value]
        return items if any(a is not b for a, b in zip(items, value, strict=True)) else value
    return value


def needs_scratch(machine: Machine) -> bool:
    """Whether a run that has ended may be tried again, with the files that its steps handed each other. Files
    of runs that use secrets are not kept: a command may have written one down."""
    secrets = machine.bundle.secrets or any(plan.secrets for plan in machine.state.plans.values())
    return machine.state.status != "completed" and not secrets


def batch_of(fork: Fork, large: LargeValues, at: float) -> Batch:
    """All of a fork, to be written together."""
    events = join_events([large.encode(event) for event in fork.events])
    snapshot = large.snapshot(fork.machine)
    return Batch(0, events, len(fork.events), "running", at, snapshot, large.take_new())
