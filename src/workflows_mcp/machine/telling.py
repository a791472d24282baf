"""Messages to the user. Nobody waits for one: it rides with whatever its agent is handed next.

A message is for the user, so it goes to the agent of the run, also from a task of a sub-agent. It is told
once that agent has answered a question that it was handed together with, or after, the message. In runs of
earlier versions a message of a task went to its sub-agent, and what was left then to the agent around it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workflows_mcp.machine.open_scope import OpenScope
from workflows_mcp.machine.state import Frame, Message
from workflows_mcp.values import to_text

if TYPE_CHECKING:
    from workflows_mcp.machine.machine import Machine


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


def passed_on(machine: Machine, address: str, frame: Frame) -> None:
    """The question at an address was answered: its agent has seen what was told until it was asked."""
    state = machine.state
    if state.messages:
        part = part_around(machine, address)
        _told(machine, part, frame.event)
        while part:  # whoever has started the agent of the task has seen the tasks
            around = part.rpartition("/")[0]
            state.frames[around].answered = True
            part = part_around(machine, around)


def hand_up(machine: Machine, address: str, frame: Frame) -> None:
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
