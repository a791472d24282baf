"""Checkpoints: the positions in the journal of a run from which it can be resumed.

    chk_wf_7f3a_12       automatic: a wave of the workflow ended with the 12th event
    pause_wf_7f3a_12     the question that the 12th event opened
    pause_wf_7f3a_12.2   the second question that the same event opened

Nothing is stored for a checkpoint: a run is the fold of its events, so what it was at any position can be
read again, and a checkpoint cannot change afterwards. Every position has an id `chk_…`; only the ends of
waves and marked positions are listed.

    history = History(Machine(bundle), registry)
    for event in events:
        history.take(event)
    history.open_questions()
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from workflows_mcp.answers.actions import form_outcome, prompt_at
from workflows_mcp.answers.previews import Cut, cut, reader, shortened, within
from workflows_mcp.answers.run_view import run_view_of
from workflows_mcp.answers.tasks import NEVER_SEEN, LastSeen, question_id, whole_run
from workflows_mcp.limits import Limits
from workflows_mcp.machine import TERMINAL, Answered, Event, Frame, Machine, Reopened, RunStatus, Started, iso
from workflows_mcp.plan import execution_waves
from workflows_mcp.steps import StepRegistry
from workflows_mcp.values import Value

AUTOMATIC = 0
"""The number of an automatic checkpoint at its position; questions count from 1."""
_NUMBER_BITS = 20
_ID = re.compile(r"(chk|pause)_(.+)_([0-9]{1,12})(?:\.([0-9]{1,6}))?")
_DAY = 86_400.0
_LISTED_PROMPT_CHARS = 120
_PROMPT_SHARE = 8
"""A prompt may be this many times longer than other values before it is cut."""


@dataclass(frozen=True, slots=True)
class CheckpointId:
    run_id: str
    position: int
    """The number of events before it."""
    number: int = AUTOMATIC

    def __str__(self) -> str:
        if self.number == AUTOMATIC:
            return f"chk_{self.run_id}_{self.position}"
        further = f".{self.number}" if self.number > 1 else ""
        return f"pause_{self.run_id}_{self.position}{further}"

    @property
    def type(self) -> Literal["pause", "automatic"]:
        return "automatic" if self.number == AUTOMATIC else "pause"

    @property
    def mark(self) -> int:
        """Position and number in one integer, which engines store for a deleted checkpoint."""
        return self.position << _NUMBER_BITS | self.number


def parse_checkpoint_id(text: str) -> CheckpointId | None:
    match = _ID.fullmatch(text.strip())
    if match is None:
        return None
    kind, run_id, position, further = match.groups()
    if kind == "chk":
        return None if further else CheckpointId(run_id, int(position))
    number = int(further or 1)
    return CheckpointId(run_id, int(position), number) if number else None


@dataclass(slots=True)
class Checkpoint:
    id: CheckpointId
    created_at: float
    ended_blocks: int
    """The number of ended blocks of the main workflow."""
    address: str = ""
    """The block that asks."""
    prompt: str = ""
    closed_at: int | None = None
    """The position at which the question was answered or abandoned."""
    answer: Answered | None = None
    reason: str = ""
    """The reason of a mark at this position."""

    def expired(self, now: float, days: float) -> bool:
        """Whether it is older than the limit; an open question never expires."""
        waits = self.id.type == "pause" and self.closed_at is None
        return not waits and now - self.created_at > days * _DAY


class History:
    """Reads a run from its journal, event by event, and collects its checkpoints."""

    def __init__(self, machine: Machine, registry: StepRegistry) -> None:
        self.machine = machine
        self.checkpoints: list[Checkpoint] = []
        """Questions, ends of waves, and marks, in the order of the journal."""
        self._registry = registry
        self._times: list[float] = []
        self._ended_at: int | None = None
        self._inherited = 0
        """The number of events that a fork has from its original run."""
        self._open: dict[str, tuple[Frame, Checkpoint]] = {}
        self._waves = self._all_waves()
        """The unfinished blocks of the unfinished waves, the next wave last."""

    @property
    def run_id(self) -> str:
        return self.machine.state.run_id

    @property
    def position(self) -> int:
        return len(self._times)

    @property
    def status(self) -> RunStatus:
        return self.machine.state.status

    def take(self, event: Event) -> None:
        if isinstance(event, Started) and event.forked_from:
            self._inherited = int(event.forked_from.rpartition("@")[2])
        self.machine.apply(event)
        self._times.append(event.at)
        if self.status == "running":
            self._ended_at = None
        elif self._ended_at is None:
            self._ended_at = self.position
        if isinstance(event, Reopened):
            self._waves = self._all_waves()
            self._wave_ended()
        self._close_questions(event)
        marks = self.machine.state.marks
        mark = marks[-1] if marks and marks[-1].event == self.machine.state.events else None
        if (self._wave_ended() and self.status != "cancelled") or mark is not None:
            self.checkpoints.append(self._checkpoint())
        if mark is not None:
            self.checkpoints[-1].reason = mark.reason
        self._open_questions(event.at)

    def find(self, wanted: CheckpointId) -> Checkpoint | None:
        """Return the checkpoint with this id; an automatic one exists at every position."""
        for checkpoint in self.checkpoints:
            if checkpoint.id == wanted:
                return checkpoint
        if wanted.type == "automatic" and 0 < wanted.position <= self.position:
            return Checkpoint(wanted, self._times[wanted.position - 1], 0)
        return None

    def listed(self) -> list[Checkpoint]:
        """Return its checkpoints, newest first; inherited ones are listed with the original run."""
        return [it for it in reversed(self.checkpoints) if not self._is_inherited(it)]

    def open_questions(self) -> list[Checkpoint]:
        """Return the open questions, the oldest first."""
        return [checkpoint for _, checkpoint in self._open.values()]

    def moved_on(self, checkpoint: Checkpoint) -> bool:
        """Whether the run has changed since, so that resuming from there makes a new run."""
        if checkpoint.id.type == "pause":
            return checkpoint.closed_at is not None
        return (self._ended_at or self.position) > checkpoint.id.position

    def _checkpoint(self, number: int = AUTOMATIC) -> Checkpoint:
        state = self.machine.state
        return Checkpoint(CheckpointId(self.run_id, self.position, number), self._times[-1], state.done)

    def _close_questions(self, event: Event) -> None:
        frames = self.machine.state.frames
        for address, (frame, checkpoint) in list(self._open.items()):
            if frames.get(address) is frame:
                continue
            del self._open[address]
            checkpoint.closed_at = self.position
            if isinstance(event, Answered) and event.address == address:
                checkpoint.answer = event

    def _open_questions(self, at: float) -> None:
        """Add the questions that the event opened. Frames are in order of opening: they are the last ones."""
        opened: list[tuple[str, Frame]] = []
        for address, frame in reversed(self.machine.state.frames.items()):
            if frame.since != at:
                break
            if frame.kind == "agent" and address not in self._open:
                opened.append((address, frame))
        for number, (address, frame) in enumerate(reversed(opened), start=1):
            checkpoint = self._checkpoint(number)
            checkpoint.address = address
            checkpoint.prompt = prompt_at(run_view_of(self.machine), self._registry, address)
            self._open[address] = (frame, checkpoint)
            self.checkpoints.append(checkpoint)

    def _is_inherited(self, checkpoint: Checkpoint) -> bool:
        last = checkpoint.id.position if checkpoint.id.type == "automatic" else checkpoint.closed_at
        return last is not None and last <= self._inherited

    def _all_waves(self) -> list[list[str]]:
        bundle = self.machine.bundle
        return [list(wave) for wave in reversed(execution_waves(bundle.plans[bundle.main].body))]

    def _wave_ended(self) -> bool:
        """Whether, since the last call, a wave and all before it have ended."""
        records = self.machine.state.root.records
        ended = False
        while self._waves:
            wave = self._waves[-1]
            while wave and wave[-1] in records and records[wave[-1]].status in TERMINAL:
                wave.pop()
            if wave:
                break
            self._waves.pop()
            ended = True
        return ended


# What a list of checkpoints shows, and the details of one


def listed_checkpoint(history: History, checkpoint: Checkpoint) -> dict[str, Value]:
    entry: dict[str, Value] = {
        "checkpoint_id": str(checkpoint.id),
        "workflow": history.machine.state.workflow,
        "workflow_id": checkpoint.id.run_id,
        "type": checkpoint.id.type,
        "created_at": iso(checkpoint.created_at),
        "position": checkpoint.id.position,
        "completed_blocks": checkpoint.ended_blocks,
        "moved_on": history.moved_on(checkpoint),
    }
    if checkpoint.reason:
        entry["reason"] = checkpoint.reason
    if checkpoint.id.type == "pause":
        entry["paused_block"] = checkpoint.address
        entry["prompt"] = shortened(" ".join(checkpoint.prompt.split()), _LISTED_PROMPT_CHARS)
    return entry


def checkpoint_details(
    history: History, checkpoint: Checkpoint, then: Machine, limits: Limits, last_seen: LastSeen = NEVER_SEEN
) -> dict[str, Any]:
    """Return the details of a checkpoint; `then` is the run as it was at its position."""
    ended = {name: it.status for name, it in then.state.root.records.items() if it.status in TERMINAL}
    waves = execution_waves(then.plan_named(then.state.workflow).body)
    current = next((wave for wave, names in enumerate(waves) if set(names) - set(ended)), None)

    def build(how: Cut) -> dict[str, Any]:
        read = reader(history.run_id)
        details = listed_checkpoint(history, checkpoint)
        details["completed_blocks"] = cut(list(ended), ("blocks",), how, read)
        for status in ("failed", "skipped"):
            names = [name for name, it in ended.items() if it == status]
            if names:
                details[f"{status}_blocks"] = cut(names, ("blocks",), how, read)
        details["execution_waves"] = cut(waves, ("blocks",), how, lambda *_: read(("blocks",), 0))
        if current is not None:
            details["current_wave"] = current
        details["inputs"] = cut(then.state.root.inputs, ("inputs",), how, read)
        if checkpoint.id.type == "pause":
            details["workflow_stack"] = _workflow_stack(then, checkpoint.address)
            details["prompt"] = shortened(checkpoint.prompt, how.characters * _PROMPT_SHARE)
        if checkpoint.answer is not None:
            answered = checkpoint.answer.outputs
            details["answered_with"] = cut(answered, (), how, lambda *_: read(("blocks",), 0))
        resume = _how_to_resume(history, checkpoint)
        if checkpoint.id.type == "pause" and checkpoint.closed_at is None:
            asked = question_id(then.state, whole_run(history.run_id), checkpoint.address)
            resume = form_outcome(last_seen, asked).instructions(resume, decided=resume)
        details["how_to_resume"] = resume
        return details

    return within(limits, build)


def deleted_checkpoint(history: History, checkpoint: Checkpoint) -> dict[str, Value]:
    run_id = history.run_id
    message = f"the checkpoint is deleted; the run {run_id} is unchanged"
    if checkpoint.id.type == "pause" and not history.moved_on(checkpoint):
        message += (
            f" and still waits for an answer at '{checkpoint.address}': end it with "
            f"control_workflow(workflow_id='{run_id}', action='cancel')"
        )
    return {"deleted": True, "checkpoint_id": str(checkpoint.id), "workflow_id": run_id, "message": message}


def _how_to_resume(history: History, checkpoint: Checkpoint) -> str:
    call = f"resume_workflow(checkpoint_id='{checkpoint.id}'"
    if checkpoint.id.type == "pause":
        call += ", response='…'"
        if checkpoint.answer is not None:
            return f"{call}): a response other than the one given makes a new run from here"
        if checkpoint.closed_at is not None:
            return f"{call}): the question was abandoned, so this makes a new run from here"
        return f"{call}): the run waits for this answer"
    if history.moved_on(checkpoint):
        return f"{call}): the run has moved on, so this makes a new run from here"
    return f"{call}): returns where the run is; nothing has happened since"


def _workflow_stack(machine: Machine, address: str) -> list[Value]:
    """List the workflows around a block, the outermost first."""
    stack: list[Value] = [machine.state.workflow]
    scope = machine.state.root
    for part in address.split("/")[:-1]:
        inner = scope.records[part].scope
        if inner is None:
            break
        scope = inner
        if scope.workflow != stack[-1]:
            stack.append(scope.workflow)
    return stack
