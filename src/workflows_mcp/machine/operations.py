"""What entering a block means, for each kind of operation.

An operation that is over at once ends its block; any other leaves a frame, and the event that it waits
for ends the block later. A new kind of operation is a function here and a row in `ENTER`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from workflows_mcp.errors import InvalidInputs
from workflows_mcp.machine.commands import LoadPlan, RunStep, key_of
from workflows_mcp.machine.open_scope import OpenScope
from workflows_mcp.machine.state import Frame, Record, Scope
from workflows_mcp.plan.inputs import check_inputs
from workflows_mcp.plan.items import can_be_names, keys_of
from workflows_mcp.plan.model import Call, Do
from workflows_mcp.values import kind_of, shown

if TYPE_CHECKING:
    from workflows_mcp.machine.machine import Machine


def enter_do(machine: Machine, scope: OpenScope, index: int, at: float) -> None:
    """Hand a step to the engine, or ask it of the agent."""
    node = scope.program.nodes[index]
    assert isinstance(node.do, Do)
    by_agent = node.do.by == "agent"
    record = scope.scope.records.get(node.id) or Record(started_at=at)
    frame = Frame("agent" if by_agent else "step", at, scope.attempt(record))
    command = step_command(scope, index, frame.attempt)
    timeout = scope.program.prepared(index).timeout(scope.names_for(index))
    machine.open_frame(command.address, frame, timeout, at)
    record.status = "paused" if by_agent else "running"
    record.inputs = command.inputs
    scope.scope.records[node.id] = record
    if not by_agent:
        machine.wish(command)


def step_command(scope: OpenScope, index: int, attempt: str) -> RunStep:
    """The step with its inputs resolved. What it reads has ended, so it is the same whenever it is asked."""
    node = scope.program.nodes[index]
    assert isinstance(node.do, Do)
    address = scope.prefix + node.id
    prepared = scope.program.prepared(index)
    names = scope.names_for(index)
    inputs, code = prepared.inputs(names)
    config = prepared.config(names)
    return RunStep(key_of(address, attempt), address, node.do.step, inputs, code, config)


def enter_call(machine: Machine, scope: OpenScope, index: int, at: float) -> None:
    """Open the called workflow as a scope inside the record of the block that calls it."""
    node = scope.program.nodes[index]
    prepared = scope.program.prepared(index)
    address = scope.prefix + node.id
    names = scope.names_for(index)
    name = prepared.workflow(names)
    given, _ = prepared.inputs(names)
    timeout = prepared.timeout(names)
    record = scope.scope.records.get(node.id)
    if record is None:
        record = scope.scope.records[node.id] = Record(started_at=at)
    record.status, record.inputs = "running", {"workflow": name, "inputs": given}
    if not machine.knows(name):
        frame = Frame("plan", at, scope.attempt(record))
        machine.open_frame(address, frame, None, at)
        machine.wish(LoadPlan(key_of(address, frame.attempt), name, scope.program.plan.file))
        return
    depth = scope.depth + 1
    if depth > machine.limits.call_depth:
        message = (
            f"workflows call each other {depth} deep; the limit is {machine.limits.call_depth}"
            f" ({machine.limits.setting('call_depth')})"
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
    machine.open_frame(address, Frame("call", at, scope.attempt(record)), timeout, at)
    record.scope = Scope(name, inputs, at, {})
    machine.open_scope(record.scope, scope, node.id)


def enter_items(machine: Machine, scope: OpenScope, index: int, at: float) -> None:
    """Open the items as a scope inside the record of the block that is carried out for each of them."""
    node = scope.program.nodes[index]
    prepared = scope.program.prepared(index)
    items, limit = prepared.items(scope.names), prepared.max_parallel(scope.names)
    if len(items) > machine.limits.for_each_items:
        message = (
            f"for_each has {len(items)} items; the limit is {machine.limits.for_each_items}"
            f" ({machine.limits.setting('for_each_items')})"
        )
        where = ("for_each",)
        machine.fail(scope, index, at, machine.fault(scope, index, "for_each_items", message, path=where))
        return
    inside = Scope(scope.scope.workflow, started_at=at, records={}, each=keys_of(items))
    inside.by_key = isinstance(items, dict)
    inside.named = can_be_names(inside.each or ())
    scope.scope.records[node.id] = Record("running", started_at=at, scope=inside)
    address = scope.prefix + node.id
    machine.open_frame(address, Frame("each", at), None, at)
    machine.open_items(inside, scope, index, items, limit)


def enter(machine: Machine, scope: OpenScope, index: int, at: float) -> None:
    node = scope.program.nodes[index]
    if node.for_each is not None:
        enter_items(machine, scope, index, at)
    else:
        ENTER[type(node.do)](machine, scope, index, at)


Enter = Callable[["Machine", OpenScope, int, float], None]
ENTER: dict[type[Any], Enter] = {Do: enter_do, Call: enter_call}
