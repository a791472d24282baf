"""What goes between the engine, the code of a run, and whoever carries out its steps: plain data."""

from __future__ import annotations

import msgspec

from workflows_mcp.engines.values import LargeValues, encode
from workflows_mcp.expressions import Code
from workflows_mcp.machine import LoadPlan, RunStep

RUN = "workflows_mcp_run"
NOTES = "workflows_mcp_notes"
PERFORM = "workflows_mcp_step"
FIND = "workflows_mcp_find"
NOT_EXPECTED = "not_expected"
"""The type of the error of an update that nothing waits for."""
WORKER_GONE = "worker_gone"
"""The type of the error of a step whose worker went away: it is carried out elsewhere."""
NEVER_BEGUN = "CancelledError"
"""What the library says of a step whose worker went away before its code was reached."""

RULES = 2
"""The rules of runs that are started now: see RunStart.rules."""
UPDATES_A_HISTORY = 1500
"""The server refuses the 2,001st update of one history: before that, a run goes on as a new one."""


class RunStart(msgspec.Struct, omit_defaults=True):
    """What a run begins with: its first event; or, where it goes on from another one, how far that was."""

    bundle: bytes
    started: bytes = b""
    snapshot: bytes = b""
    segments: list[bytes] = []
    """Its journal up to then, in pieces."""
    last_seen: dict[str, float] = msgspec.field(default_factory=dict, name="heard")
    taken: list[str] = []
    """The last updates that the history before has taken in: one that could not be told so comes again."""
    updates_a_history: int = UPDATES_A_HISTORY
    """A run keeps the number that it was started with, so that its histories can be repeated."""
    rules: int = 1
    """The rules of this module that the run was started with. From 2 on, a run that fails is FAILED on the
    Temporal server, and one that is cancelled is CANCELED; before, both were COMPLETED."""


class Sent(msgspec.Struct, omit_defaults=True):
    """An event from outside."""

    event: bytes
    known: int = 0
    """How many events of the run the sender knows: it is told the others."""
    since: float = 0.0
    """Since when the question that it answers was asked, as far as the sender knows: the same question may be
    asked again meanwhile, and that one was not answered."""
    brief: bool = False
    """The sender needs no copy of the event, nor who was heard of."""


class RunSnapshot(msgspec.Struct, omit_defaults=True):
    """A run as it is now: for somebody who knows some of its events those that came since, else all of it.
    With neither, only how many events there are: whoever does not know them has to look."""

    position: int
    """How many events there were before `events`, or up to `snapshot`."""
    events: bytes = b""
    snapshot: bytes = b""
    last_seen: dict[str, float] | None = msgspec.field(default_factory=dict, name="heard")
    """None: as whoever is told knows it."""
    ending: bool = False
    """The run is over, but steps of it are still being ended."""
    own: int = 0
    """Which of `events`, from one, is left out because it is that of the sender; 0: none is."""
    own_at: float = 0.0
    """When that one was taken in."""


class StepTask(msgspec.Struct, omit_defaults=True):
    run_id: str
    workspace: str
    command: bytes
    secrets: list[str] = []
    again: bool = False
    """An earlier try was cut off: what is left of it goes first."""


class PlanTask(msgspec.Struct, omit_defaults=True):
    workspace: str
    command: LoadPlan


run_start = msgspec.msgpack.Decoder(RunStart).decode
sent = msgspec.msgpack.Decoder(Sent).decode
look = msgspec.msgpack.Decoder(RunSnapshot).decode
step_task = msgspec.msgpack.Decoder(StepTask).decode
plan_task = msgspec.msgpack.Decoder(PlanTask).decode


def encode_command(command: RunStep, large: LargeValues) -> bytes:
    """With marks for what is large."""
    code = {
        name: Code(it.texts, tuple(large.thin_entries({"": value})[""] for value in it.values))
        for name, it in command.code.items()
    }
    return encode(msgspec.structs.replace(command, inputs=large.thin_entries(command.inputs), code=code))


def decode_command(body: bytes, large: LargeValues) -> RunStep:
    command: RunStep = large.decode_as(RunStep, body)
    return command
