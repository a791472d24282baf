"""The life cycles of a run, of a record and of a frame, as tables.

A *record* is what a run knows of one block or step. It is pending until the block is entered; then the block
runs, or waits for an agent (`paused`). A retry sets the block to running. A record ends as completed, failed
or skipped. It can leave these only while its result is written to the state: a fallback replaces a
failure, and a result that does not fit becomes one. A loop or a goto that reaches a step again deletes the
record and starts a new one.

A *frame* is an operation under way at an address. There is at most one for each address; its kind says what
it waits for. A frame is opened when a block is entered, and closed by the event that it waits for, or from
outside. Only a step has something to stop first: after its timeout it is `stopping` until it reports. A step
that was interrupted closes its frame; if an agent has to decide, a frame of kind `agent` takes its place.

Only this module sets `Record.status` and `RunState.status`, and adds or removes frames. A transition is one
look-up; one that is not in the table raises IllegalTransition.

    record = Record()
    advance(record, "started")          # pending -> running
    advance(record, "completed")        # running -> completed
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from workflows_mcp.machine.state import BlockStatus, Frame, FrameKind, Record, RunState, RunStatus

RecordEvent: TypeAlias = Literal[
    "started", "asked", "interrupted", "retried", "completed", "failed", "skipped", "stopped", "fell_back",
    "rejected",
]  # fmt: skip
"""`interrupted`: its process ended. `stopped`: ended from outside. `fell_back`: a fallback replaced its
failure. `rejected`: its result could not be written to the state."""

FrameState: TypeAlias = FrameKind | Literal["stopping", "closed"]
FrameEvent: TypeAlias = (
    FrameKind
    | Literal[
        "reported",
        "answered",
        "decided",
        "raised",
        "timed_out",
        "loaded",
        "ended",
        "interrupted",
        "stopped",
        "postponed",
    ]
)
"""A kind: opened as a frame of this kind. `ended`: everything inside has ended. `postponed`: started
again later, because more items are under way than the limit allows."""

RUN: Mapping[tuple[RunStatus, RunStatus], RunStatus] = {
    ("running", "completed"): "completed",
    ("running", "failed"): "failed",
    ("running", "cancelled"): "cancelled",
}

RECORD: Mapping[tuple[BlockStatus, RecordEvent], BlockStatus] = {
    ("pending", "started"): "running",
    ("pending", "asked"): "paused",
    ("pending", "completed"): "completed",
    ("pending", "failed"): "failed",
    ("pending", "skipped"): "skipped",
    ("running", "started"): "running",
    ("running", "retried"): "running",
    ("running", "asked"): "paused",
    ("running", "interrupted"): "paused",
    ("running", "completed"): "completed",
    ("running", "failed"): "failed",
    ("running", "stopped"): "failed",
    ("running", "skipped"): "skipped",
    ("paused", "started"): "running",
    ("paused", "retried"): "running",
    ("paused", "asked"): "paused",
    ("paused", "completed"): "completed",
    ("paused", "failed"): "failed",
    ("paused", "stopped"): "failed",
    ("paused", "skipped"): "skipped",
    ("completed", "fell_back"): "completed",
    ("completed", "rejected"): "failed",
    ("failed", "fell_back"): "completed",
    ("failed", "rejected"): "failed",
}

FRAME: Mapping[tuple[FrameState, FrameEvent], FrameState] = {
    ("closed", "step"): "step",
    ("step", "reported"): "closed",
    ("step", "interrupted"): "closed",
    ("step", "stopped"): "closed",
    ("step", "postponed"): "closed",
    ("step", "timed_out"): "stopping",
    ("stopping", "timed_out"): "stopping",
    ("stopping", "reported"): "closed",
    ("stopping", "interrupted"): "closed",
    ("stopping", "stopped"): "closed",
    ("stopping", "postponed"): "closed",
    ("closed", "agent"): "agent",
    ("agent", "answered"): "closed",
    ("agent", "timed_out"): "closed",
    ("agent", "stopped"): "closed",
    ("agent", "postponed"): "closed",
    ("closed", "gate"): "gate",
    ("gate", "decided"): "closed",
    ("gate", "timed_out"): "closed",
    ("gate", "stopped"): "closed",
    ("gate", "postponed"): "closed",
    ("closed", "verify"): "verify",
    ("verify", "reported"): "closed",
    ("verify", "interrupted"): "closed",
    ("verify", "stopped"): "closed",
    ("verify", "postponed"): "closed",
    ("verify", "timed_out"): "stopping",
    ("closed", "budget"): "budget",
    ("budget", "raised"): "closed",
    ("budget", "stopped"): "closed",
    ("budget", "postponed"): "closed",
    ("closed", "call"): "call",
    ("call", "ended"): "closed",
    ("call", "stopped"): "closed",
    ("call", "postponed"): "closed",
    ("closed", "plan"): "plan",
    ("plan", "loaded"): "closed",
    ("plan", "stopped"): "closed",
    ("plan", "postponed"): "closed",
    ("closed", "each"): "each",
    ("each", "ended"): "closed",
    ("each", "stopped"): "closed",
    ("each", "postponed"): "closed",
    ("closed", "retry"): "retry",
    ("retry", "timed_out"): "closed",
    ("retry", "stopped"): "closed",
    ("retry", "postponed"): "closed",
    ("closed", "wait"): "wait",
    ("wait", "timed_out"): "closed",
    ("wait", "stopped"): "closed",
    ("wait", "postponed"): "closed",
}


class IllegalTransition(RuntimeError):
    """A transition that is not in the tables: a bug of the machine."""


def finish_run(state: RunState, status: RunStatus) -> None:
    """End a run."""
    if (found := RUN.get((state.status, status))) is None:
        raise IllegalTransition(f"the run {state.run_id} is {state.status}, it cannot become {status}")
    state.status = found


def advance(record: Record, event: RecordEvent) -> None:
    """Change the status of a record."""
    found = RECORD.get((record.status, event))
    if found is None:
        raise IllegalTransition(f"a record that is {record.status} cannot be {event}")
    record.status = found


def open_frame(state: RunState, address: str, frame: Frame) -> None:
    """Open a frame for an operation. The number of the event identifies this execution."""
    _check(state.frames.get(address), frame.kind, address)
    frame.event = state.events
    state.frames[address] = frame


def close_frame(state: RunState, address: str, event: FrameEvent) -> Frame:
    """Remove the frame at an address, and return it."""
    _check(state.frames.get(address), event, address)
    return state.frames.pop(address)


def begin_stopping(frame: Frame, address: str, reason: str) -> None:
    """Mark a step that timed out; its frame stays until the step reports that it has ended."""
    _check(frame, "timed_out", address)
    frame.stopping = reason


def _check(frame: Frame | None, event: FrameEvent, address: str) -> None:
    current: FrameState = "closed" if frame is None else "stopping" if frame.stopping else frame.kind
    if (current, event) not in FRAME:
        raise IllegalTransition(f"the frame at '{address}' is {current}, not ready for '{event}'")


# Diagrams for docs/how-it-works.md


def diagrams() -> str:
    """The tables as Markdown with Mermaid diagrams, as docs/how-it-works.md shows them."""
    tables: list[tuple[str, Mapping[tuple[str, str], str]]] = [
        (
            "The status of a record",
            {(str(old), str(event)): str(new) for (old, event), new in RECORD.items()},
        ),
        (
            "The frame at an address",
            {(str(old), str(event)): str(new) for (old, event), new in FRAME.items()},
        ),
    ]
    return "\n".join(f"{title}:\n\n```mermaid\n{mermaid(table)}\n```\n" for title, table in tables)


def mermaid(table: Mapping[tuple[str, str], str]) -> str:
    """A table as a Mermaid state diagram: one arrow for each pair of states."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (old, event), new in table.items():
        arrows.setdefault((old, new), []).append(event)
    lines = [f"    {old} --> {new}: {', '.join(events)}" for (old, new), events in arrows.items()]
    return "\n".join(["stateDiagram-v2", *lines])
