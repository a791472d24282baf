"""Makes forks: new runs from the first events of another run.

    fork = fork_of("wf_1", bundle, events, position=12, now=now)
    fork.events, fork.machine

A fork is complete: its events are copies, and the first one has its own id and names its origin. Events such
as `Reopened` can follow them. Steps that were under way at that position start again, as after a crash. The
origin does not change.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from workflows_mcp.engines.base import ChangedDefinition
from workflows_mcp.engines.values import Batch, LargeValues, encode, join_events
from workflows_mcp.errors import RequestError
from workflows_mcp.machine import Chain, Event, Forked, Machine, Started, replayed
from workflows_mcp.plan import Bundle
from workflows_mcp.values import Value

# ----------------------------------------------------------------------------------------------------
# Ids of runs


def new_run_id() -> str:
    return f"wf_{os.urandom(6).hex()}"


# ----------------------------------------------------------------------------------------------------
# Forks


@dataclass(frozen=True, slots=True)
class Fork:
    run_id: str
    events: list[Event]
    machine: Machine
    """The new run after these events."""


def request_digest(
    run_id: str, position: int, then: Sequence[Event], changed: ChangedDefinition | None
) -> str:
    """A text that is the same for two requests for the same fork."""
    bundle = changed.bundle if changed is not None else None
    digest = hashlib.blake2b(encode([list(then), bundle]), digest_size=12).hexdigest()
    return f"{run_id}@{position}" + (f"-{digest}" if then else "")


def fork_of(
    run_id: str,
    bundle: Bundle,
    events: Sequence[Event],
    position: int,
    now: float,
    new_id: str | None = None,
    then: Sequence[Event] = (),
    scratch: Path | None = None,
) -> Fork:
    """Make a fork of a run at a position; the events `then` follow, and it may complete with them.

    `scratch` is the directory with the scratch directories of runs: a path in the outputs of a step that
    points into the files of the origin is changed to point to the copy. Raises RequestError if there is no
    such position, or if the run had ended there."""
    first, started = next((number, it) for number, it in enumerate(events) if isinstance(it, Started))
    if not first < position <= len(events):
        raise RequestError(
            f"the run {run_id} has no position {position}",
            hint=f"a position is the number of events that a fork starts with: {first + 1} to {len(events)}",
        )
    new_id = new_id or new_run_id()
    seed = started.seed or started.run_id  # the seed of the copied events
    origin = msgspec.structs.replace(started, run_id=new_id, forked_from=f"{run_id}@{position}", seed=seed)
    copied = _seeded([origin if it is started else it for it in events[:position]], seed, run_id)
    copied += [msgspec.structs.replace(it, at=now) for it in then]
    if scratch is not None:
        copied = _with_own_files(copied, str(scratch / run_id), str(scratch / new_id))
    machine = replayed(bundle, copied)
    if machine.state.status != "running" and not (then and machine.state.status == "completed"):
        raise RequestError(
            f"the run {run_id} had ended at position {position}: there is nothing to continue",
            hint="fork it from an earlier position, or start the workflow again",
        )
    forked = Forked(now, steps_restart=True, seed=f"{machine.state.seed}/{new_id}")
    machine.apply(forked)
    return Fork(new_id, [*copied, forked], machine)


def _seeded(events: list[Event], seed: str, run_id: str) -> list[Event]:
    """Keep the random seeds of the copied events; earlier versions derived them from the id of the run."""
    seeded: list[Event] = []
    for event in events:
        if isinstance(event, Forked):
            seed = event.seed or f"{seed}/{run_id}"
            seeded.append(msgspec.structs.replace(event, seed=seed))
        else:
            seeded.append(event)
    return seeded


def _with_own_files(events: list[Event], old: str, new: str) -> list[Event]:
    """The events, with one directory replaced by another in the outputs of steps."""
    return [event.map_outputs(lambda outputs: _replaced(outputs, old, new)) for event in events]


def _replaced(value: Value, old: str, new: str) -> Value:
    """The value with one text replaced by another; the same object if nothing is replaced."""
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
    """Whether the scratch directory of an ended run is kept for a retry.

    It is not if the run uses secrets: a command may have written one to a file."""
    secrets = machine.bundle.secrets or any(plan.secrets for plan in machine.state.plans.values())
    return machine.state.status != "completed" and not secrets


def batch_of(fork: Fork, large: LargeValues, at: float, chain: Chain) -> Batch:
    """All events of a fork as one batch; `chain` is that of the fork."""
    bodies = [large.encode(event) for event in fork.events]
    snapshot = large.snapshot(fork.machine)
    status = fork.machine.state.status
    hashes = chain.extend(bodies)
    return Batch(0, join_events(bodies), len(bodies), status, at, snapshot, large.take_new(), hashes)
