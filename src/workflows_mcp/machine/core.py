"""A workflow that is under way: its scope, and what is counted while blocks of it are still to be done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workflows_mcp.machine.commands import ClearTimer, StopStep, key_of
from workflows_mcp.machine.program import Program
from workflows_mcp.machine.rules import outputs_if_not_run
from workflows_mcp.machine.state import TERMINAL, Frame, Message, Record, Scope
from workflows_mcp.values import to_text

if TYPE_CHECKING:
    from workflows_mcp.machine.machine import Machine


class OpenScope:
    """A scope with blocks still to be done, and what is counted while it is open.

    All of it follows from the state, so it is not written down but made again after a restart.
    """

    __slots__ = (
        "depth",
        "finished",
        "missing",
        "names",
        "prefix",
        "program",
        "reactive",
        "scope",
        "time",
        "tries",
        "unfinished",
    )

    def __init__(
        self,
        prefix: str,
        scope: Scope,
        program: Program,
        names: dict[str, Any],
        depth: int = 0,
        tries: str = "",
    ) -> None:
        self.prefix = prefix
        self.scope = scope
        self.program = program
        self.names = names
        self.depth = depth
        """How many calls lead here."""
        self.tries = tries
        """Which tries of the calls around it this is, so that what belongs to an earlier one is known."""
        self.reactive: Any = None
        """Where the state is that its steps share, in a reactive workflow."""
        self.finished = not program.nodes
        self.time = scope.started_at
        """When the block that is entered now is entered."""
        ended = {name for name, record in scope.records.items() if record.status in TERMINAL}
        self.unfinished = len(program.nodes) - len(ended)
        if ended:
            ids = [node.id for node in program.nodes]
            self.missing = [sum(ids[need.node] not in ended for need in node.needs) for node in program.nodes]
        else:
            self.missing = [len(node.needs) for node in program.nodes]

    def attempt(self, name: str, record: Record) -> str:
        """Which try of a block this is."""
        return f"{self.tries}{record.attempts}"

    def tries_inside(self, name: str) -> str:
        """What the tries of everything inside begin with: nothing while all are first ones."""
        attempt = self.attempt(name, self.scope.records[name])
        return f"{attempt}." if attempt != "1" else ""

    def names_for(self, index: int) -> Any:
        """The names that expressions of a block start from."""
        return self.names

    def settle(self, machine: Machine, index: int) -> None:
        """A block has ended: see to what follows from that alone, before anything else is entered."""

    def ready(self) -> list[int]:
        """The blocks to enter when the scope is opened."""
        return [index for index, missing in enumerate(self.missing) if not missing]

    def after(self, index: int) -> list[int]:
        """The blocks to enter because this one has ended; `finished` tells whether it was the last."""
        self.unfinished -= 1
        self.finished = not self.unfinished
        ready = []
        missing = self.missing
        for dependent in self.program.dependents[index]:
            missing[dependent] -= 1
            if not missing[dependent]:
                ready.append(dependent)
        return ready


# ----------------------------------------------------------------------------------------------------
# Ending an operation from outside, with all that is under way inside of it: on a cancel or a timeout.


LEFT_OPEN = "the workflow has ended"

"""Why something ends that was still open when its workflow ended: it is cancelled, and has not failed."""

_COMPOSITE = ("call", "each")

"""Frames with further frames inside."""


def park(machine: Machine, at: float) -> None:
    """Steps are stopped and timers cleared; their frames stay, so that they can be wished for again."""
    state = machine.state
    if state.parked is not None:
        return
    state.parked = at
    for address, frame in state.frames.items():
        key = key_of(address, frame.attempt)
        if frame.kind == "step":
            machine.emit(StopStep(key))
        if frame.deadline is not None:
            machine.emit(ClearTimer(key))


def stop(machine: Machine, address: str, frame: Frame, at: float, reason: str) -> None:
    """End an operation and all that is under way inside of it."""
    if frame.kind in _COMPOSITE:
        inside = address + "/"
        frames = machine.state.frames
        for other, inner in [item for item in frames.items() if item[0].startswith(inside)]:
            if inner.kind not in _COMPOSITE:
                stop(machine, other, inner, at, reason)
            else:
                machine.close_frame(other, inner)
            mark_stopped(machine, *machine.locate(other), at, reason)
        machine.close_inside(inside)
    machine.close_frame(address, frame)
    if frame.kind == "step":
        machine.emit(StopStep(key_of(address, frame.attempt)))


def stop_the_rest(machine: Machine, scope: OpenScope, failed: str, at: float) -> None:
    """A block has failed, and the workflow says fail_fast: end what is under way in it, and begin no more."""
    reason = f"ended, because '{failed}' failed"
    machine.forget_work(scope)
    frames = machine.state.frames
    for index, node in enumerate(scope.program.nodes):
        address = scope.prefix + node.id
        if address in frames:
            stop(machine, address, frames[address], at, reason)
        record = scope.scope.records.setdefault(node.id, Record())
        if record.status not in TERMINAL:
            record.status, record.message, record.completed_at = "skipped", reason, at
            record.outputs = outputs_if_not_run(scope.program, index, machine.plans)
    scope.unfinished, scope.finished = 0, True


def mark_stopped(machine: Machine, scope: OpenScope, index: int, at: float, reason: str) -> None:
    """A block that was ended from outside: it keeps its shape."""
    record = scope.scope.records[scope.program.nodes[index].id]
    record.status, record.message, record.completed_at = "failed", reason, at
    record.outputs = outputs_if_not_run(scope.program, index, machine.plans)


# ----------------------------------------------------------------------------------------------------
# Messages to the user. Nobody waits for one: it rides with whatever its agent is handed next.
#
# A message is for the user, so it goes to the agent of the run, also from a task of a sub-agent. It is told
# once that agent has answered a question that it was handed together with, or after, the message. In runs
# of earlier versions a message of a task went to its sub-agent, and what was left then to the agent around
# it.


def enter_tell(machine: Machine, scope: OpenScope, index: int, at: float) -> None:
    text = to_text(scope.program.prepared(index).value(scope.names_for(index)))
    state, address = machine.state, scope.prefix + scope.program.nodes[index].id
    part = part_around(machine, address) if scope.program.plan.semantics < 3 else ""
    state.messages.append(Message(state.events, text, address, part))
    if len(state.messages) > machine.limits.messages:
        del state.messages[0]
        state.untold += 1
    machine.end(scope, index, at, "completed", "success", {"message": text})


def part_around(machine: Machine, address: str) -> str:
    """The innermost task around an address that is handed to an agent of its own; empty: the run."""
    names = address.split("/")
    for end in reversed(range(1, len(names) - 1)):
        frame = machine.state.frames.get("/".join(names[:end]))
        if frame is not None and frame.kind == "each" and frame.agent:
            return "/".join(names[: end + 1])
    return ""


def messages_delivered(machine: Machine, address: str, frame: Frame) -> None:
    """The question at an address was answered: its agent has seen what was told until it was asked."""
    state = machine.state
    if state.messages:
        part = part_around(machine, address)
        _told(machine, part, frame.event)
        while part:  # whoever has started the agent of the task has seen the tasks
            around = part.rpartition("/")[0]
            state.frames[around].answered = True
            part = part_around(machine, around)


def hand_to_caller(machine: Machine, address: str, frame: Frame) -> None:
    """The items at an address are done: what their agents have not passed on is left to the one around."""
    if machine.state.messages:
        part = part_around(machine, address)
        if frame.answered:
            _told(machine, part, frame.event)
        for message in machine.state.messages:
            if message.part.startswith(f"{address}/"):
                message.part = part


def _told(machine: Machine, part: str, event: int) -> None:
    state = machine.state
    state.messages = [it for it in state.messages if it.part != part or it.event > event]
