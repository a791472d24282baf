"""The data between the engine, the workflow of a run, and the activities that perform its steps.

The names of fields, and `name=`, are stored on the server: they cannot change.
"""

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
"""The error type of an update that the run does not expect."""
WORKER_GONE = "worker_gone"
"""The error type of a step whose worker shut down: another worker performs it."""
NEVER_BEGUN = "CancelledError"
"""The error type that the SDK gives a step whose worker shut down before its code started."""

RULES = 2
"""The rules of new runs: see RunStart.rules."""
UPDATES_A_HISTORY = 1500
"""The server refuses the 2,001st update of a history; a run continues as a new one before that."""


class RunStart(msgspec.Struct, omit_defaults=True):
    """The argument of a run: its first event, or the snapshot and journal that it continues from."""

    bundle: bytes
    started: bytes = b""
    snapshot: bytes = b""
    segments: list[bytes] = []
    """The journal up to the snapshot, in pieces."""
    last_seen: dict[str, float] = msgspec.field(default_factory=dict, name="heard")
    taken: list[str] = []
    """The ids of the last updates of the previous history: one that got no answer is sent again."""
    updates_a_history: int = UPDATES_A_HISTORY
    """A run keeps this number, so that its histories can be replayed."""
    rules: int = 1
    """The version of the rules that the run was started with. Since 2, a failed run is FAILED on the server,
    and a cancelled one CANCELED; before, both were COMPLETED."""


class Sent(msgspec.Struct, omit_defaults=True):
    """An event from outside."""

    event: bytes
    known: int = 0
    """How many events of the run the sender knows: the answer has the others."""
    since: float = 0.0
    """When the question that it answers was asked; a question that was asked again is another one."""
    brief: bool = False
    """The answer leaves out the event itself, and the heartbeats."""


class RunSnapshot(msgspec.Struct, omit_defaults=True):
    """The current state of a run: the events since those that the client knows, or a snapshot.

    With neither, only the number of events: the client must query for them."""

    position: int
    """The number of events before `events`, or up to `snapshot`."""
    events: bytes = b""
    snapshot: bytes = b""
    last_seen: dict[str, float] | None = msgspec.field(default_factory=dict, name="heard")
    """None if the client knows them."""
    ending: bool = False
    """The run has ended, but some steps are still being stopped."""
    own: int = 0
    """The position in `events`, from 1, of the sender's own event, which is left out; 0 if none is."""
    own_at: float = 0.0
    """When that event was applied."""


class StepTask(msgspec.Struct, omit_defaults=True):
    run_id: str
    workspace: str
    command: bytes
    secrets: list[str] = []
    interrupted: bool = msgspec.field(default=False, name="again")
    """An earlier attempt was interrupted: its processes are killed first."""


class PlanTask(msgspec.Struct, omit_defaults=True):
    workspace: str
    command: LoadPlan


run_start = msgspec.msgpack.Decoder(RunStart).decode
sent = msgspec.msgpack.Decoder(Sent).decode
look = msgspec.msgpack.Decoder(RunSnapshot).decode
step_task = msgspec.msgpack.Decoder(StepTask).decode
plan_task = msgspec.msgpack.Decoder(PlanTask).decode


def encode_command(command: RunStep, large: LargeValues) -> bytes:
    """Encode a command, with marks for large values."""
    code = {
        name: Code(it.texts, tuple(large.thin_entries({"": value})[""] for value in it.values))
        for name, it in command.code.items()
    }
    return encode(msgspec.structs.replace(command, inputs=large.thin_entries(command.inputs), code=code))


def decode_command(body: bytes, large: LargeValues) -> RunStep:
    command: RunStep = large.decode_as(RunStep, body)
    return command
