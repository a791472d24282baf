"""Messages to the user. A message never blocks the run: the next action of an agent carries it.

The agent of the run gets every message, also those that a task of a sub-agent sends. A message counts as
shown once that agent has answered a question that it got with the message or later. In runs of earlier
versions the sub-agent of a task got its messages, and the rest went to the agent that had started it.
"""

from __future__ import annotations

from workflows_mcp.machine.core import Core, OpenScope
from workflows_mcp.machine.state import Frame, Message
from workflows_mcp.plan import Tell
from workflows_mcp.values import to_text


def enter_tell(machine: Core, scope: OpenScope, index: int, at: float) -> None:
    """Store a message to the user."""
    do = scope.program.nodes[index].do
    assert isinstance(do, Tell)
    text = to_text(scope.program.evaluate(do.message, scope.names_for(index)))
    state, address = machine.state, scope.prefix + scope.program.nodes[index].id
    task = task_around(machine, address) if scope.program.plan.semantics < 3 else ""
    state.messages.append(Message(state.events, text, address, task))
    if len(state.messages) > machine.limits.messages:
        del state.messages[0]
        state.dropped_messages += 1
    machine.end(scope, index, at, "completed", "success", {"message": text})


def task_around(machine: Core, address: str) -> str:
    """The innermost task around an address that has an agent of its own; empty: the run."""
    names = address.split("/")
    for end in reversed(range(1, len(names) - 1)):
        frame = machine.state.frames.get("/".join(names[:end]))
        if frame is not None and frame.kind == "each" and frame.agent:
            return "/".join(names[: end + 1])
    return ""


def messages_delivered(machine: Core, address: str, frame: Frame) -> None:
    """Remove the messages that the agent of an answered question has seen: those from before the question."""
    state = machine.state
    if state.messages:
        task = task_around(machine, address)
        _remove_shown(machine, task, frame.event)
        while task:  # the agent that started the sub-agent knows the answer
            around = task.rpartition("/")[0]
            state.frames[around].answered = True
            task = task_around(machine, around)


def hand_to_caller(machine: Core, address: str, frame: Frame) -> None:
    """Pass messages that the agents of ended items have not shown to the agent that started them."""
    if machine.state.messages:
        task = task_around(machine, address)
        if frame.answered:
            _remove_shown(machine, task, frame.event)
        for message in machine.state.messages:
            if message.task.startswith(f"{address}/"):
                message.task = task


def _remove_shown(machine: Core, task: str, event: int) -> None:
    state = machine.state
    state.messages = [it for it in state.messages if it.task != task or it.event > event]
