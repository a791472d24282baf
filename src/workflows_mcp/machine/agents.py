"""Which steps of agents the server performs itself, with a command of the settings.

`RunState.agents` says which agents that are. The agent of a step is its own input `agent`, or else the agent
of the innermost task around it; `*` is every agent. What only the user can answer is never performed by a
command.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from workflows_mcp.machine.budgets import refund
from workflows_mcp.machine.commands import Assignment
from workflows_mcp.machine.core import Core, OpenScope
from workflows_mcp.machine.events import AgentsAssigned
from workflows_mcp.machine.state import Frame, record_at, task_id
from workflows_mcp.plan import USER_DECIDES, Do, user_decides
from workflows_mcp.values import Value

EVERY = "*"
_READ = ("agent", *USER_DECIDES)
"""The inputs of a step that say who performs it."""


def assignment_of(machine: Core, scope: OpenScope, index: int, frame: Frame) -> Assignment | None:
    """Return the assignment of a step; None if no command performs it."""
    if not frame.headless:
        return None
    node = scope.program.nodes[index]
    address = scope.prefix + node.id
    task = machine.task_around(f"{address}/")  # an item can be the step itself
    record = record_at(machine.state, task.rpartition("/")[0]) if task else None
    role = record.scope.prompt if record is not None and record.scope is not None else ""
    before = scope.scope.records.get(node.id)
    feedback = list(before.feedback) if before is not None else []
    return Assignment(frame.headless, task_id(machine.state, task), role, node.result, feedback)


def headless_agent(machine: Core, scope: OpenScope, index: int) -> str:
    """Return the agent of the settings that performs a step; empty if its agent is asked."""
    do = scope.program.nodes[index].do
    if not machine.state.agents or not isinstance(do, Do):
        return ""
    names = scope.names_for(index)
    given = {name: scope.program.evaluate(do.inputs[name], names) for name in _READ if name in do.inputs}
    return _agent_of(machine, scope.prefix + scope.program.nodes[index].id, do, given)


def agent_of_items(machine: Core, address: str, agent: str) -> str:
    """Return the agent of the settings that performs the items of a block; empty if agents are asked."""
    agents = machine.state.agents
    return agents.get(agent) or _around(machine, address) or agents.get(EVERY, "") if agent else ""


def agents_assigned(machine: Core, event: AgentsAssigned) -> None:
    """Let commands perform the steps of agents from now on, also those that are asked at the moment."""
    machine.state.agents = event.agents
    frames = machine.state.frames
    for address, frame in frames.items():
        if frame.kind == "each":
            frame.headless = agent_of_items(machine, address, frame.agent)
    for address, frame in list(frames.items()):
        if frame.kind not in ("agent", "step") or frame.after_interruption:
            continue
        scope, index = machine.locate(address)
        node = scope.program.nodes[index]
        if not isinstance(node.do, Do) or node.do.by != "agent":
            continue
        agent = _agent_of(machine, address, node.do, scope.scope.records[node.id].inputs)
        if frame.kind == "step":
            frame.headless = agent or frame.headless
        elif agent:
            machine.close_frame(address, "postponed")
            refund(machine, scope, "agent_steps")
            machine.enqueue(scope, [index])


def _agent_of(machine: Core, address: str, do: Do, given: Mapping[str, Value]) -> str:
    agents = machine.state.agents
    if user_decides(do.step, given):
        return ""
    own = given.get("agent")
    named = agents.get(own, "") if isinstance(own, str) else ""
    return named or _around(machine, address) or agents.get(EVERY, "")


def _around(machine: Core, address: str) -> str:
    """Return the agent of the innermost task around an address that a command performs."""
    return next((frame.headless for frame in _items_around(machine, address) if frame.headless), "")


def _items_around(machine: Core, address: str) -> Iterator[Frame]:
    names = address.split("/")
    for end in reversed(range(1, len(names))):
        frame = machine.state.frames.get("/".join(names[:end]))
        if frame is not None and frame.kind == "each":
            yield frame
