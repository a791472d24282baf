"""What entering a block means, for each kind of operation.

An operation that is over at once ends its block; any other leaves a frame, and the event that it waits
for ends the block later. A new kind of operation is a function here and a row in `ENTER`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from workflows_mcp.errors import InvalidInputs
from workflows_mcp.limits import DEFAULT_LIMITS
from workflows_mcp.machine.commands import LoadPlan, RunStep, key_of
from workflows_mcp.machine.open_scope import OpenScope
from workflows_mcp.machine.state import Frame, Record, Scope
from workflows_mcp.plan.inputs import check_inputs
from workflows_mcp.plan.model import Call, Do
from workflows_mcp.values import kind_of, shown

if TYPE_CHECKING:
    from workflows_mcp.machine.machine import Machine


def enter_do(machine: Machine, scope: OpenScope, index: int, at: float) -> None:
    """Hand a step to the engine, or ask it of the agent."""
    node = scope.program.nodes[index]
    assert isinstance(node.do, Do)
    by_agent = node.do.by == "agent"
    frame = Frame("agent" if by_agent else "step", at)
    command = step_command(scope, index, frame.attempt)
    machine.open_frame(command.address, frame, scope.program.prepared(index).timeout(scope.names), at)
    scope.scope.records[node.id] = Record(
        "paused" if by_agent else "running", inputs=command.inputs, started_at=at
    )
    if not by_agent:
        machine.wish(command)


def step_command(scope: OpenScope, index: int, attempt: int) -> RunStep:
    """The step with its inputs resolved. What it reads has ended, so it is the same whenever it is asked."""
    node = scope.program.nodes[index]
    assert isinstance(node.do, Do)
    address = scope.prefix + node.id
    prepared = scope.program.prepared(index)
    inputs, code = prepared.inputs(scope.names)
    config = prepared.config(scope.names)
    return RunStep(key_of(address, attempt), address, node.do.step, inputs, code, config)


def enter_call(machine: Machine, scope: OpenScope, index: int, at: float) -> None:
    """Open the called workflow as a scope inside the record of the block that calls it."""
    node = scope.program.nodes[index]
    prepared = scope.program.prepared(index)
    address = scope.prefix + node.id
    name = prepared.workflow(scope.names)
    given, _ = prepared.inputs(scope.names)
    timeout = prepared.timeout(scope.names)
    record = scope.scope.records.get(node.id)
    if record is None:
        record = Record("running", inputs={"workflow": name, "inputs": given}, started_at=at)
        scope.scope.records[node.id] = record
    if not machine.knows(name):
        frame = Frame("plan", at)
        machine.open_frame(address, frame, None, at)
        machine.wish(LoadPlan(key_of(address, frame.attempt), name, scope.program.plan.file))
        return
    depth = address.count("/") + 1
    if depth > machine.call_depth:
        message = (
            f"workflows call each other {depth} deep; the limit is {machine.call_depth}"
            f" ({DEFAULT_LIMITS.setting('call_depth')})"
        )
        machine.fail(scope, index, at, machine.fault(scope, index, "call_depth", message))
        return
    where = ("inputs", "inputs")
    if not isinstance(given, dict):
        message = f"the inputs of a call must be an object, not {kind_of(given)} {shown(given)}"
        machine.fail(scope, index, at, machine.fault(scope, index, "invalid_inputs", message, path=where))
        return
    try:
        inputs = check_inputs(machine.plan_named(name), given)
    except InvalidInputs as error:
        machine.fail(
            scope, index, at, machine.fault(scope, index, error.code, error.message, error.hint, where)
        )
        return
    machine.open_frame(address, Frame("call", at), timeout, at)
    record.scope = Scope(name, inputs, at, {})
    machine.open_scope(address + "/", record.scope)


Enter = Callable[["Machine", OpenScope, int, float], None]
ENTER: dict[type[Any], Enter] = {Do: enter_do, Call: enter_call}
