"""Loops of a sequence: the head decides whether the body is carried out once more, and keeps count.

A loop is under way from the first time its head lets the body begin until the head ends it, or a `break`
does; what is counted is part of the state, so a loop goes on after a crash where it was. A goto counts its
jumps. One that jumps back begins a new round of the steps in between: gotos among them count anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workflows_mcp.errors import ExpressionError
from workflows_mcp.machine.open_scope import OpenScope
from workflows_mcp.machine.program import MisplacedError
from workflows_mcp.machine.state import Fault, Loop
from workflows_mcp.plan.model import Each, Jump, Leave, While
from workflows_mcp.values import kind_and_value

if TYPE_CHECKING:
    from workflows_mcp.machine.machine import Machine


def enter_while(machine: Machine, scope: OpenScope, index: int, at: float) -> None:
    """The condition first, then the limit."""
    node = scope.program.nodes[index]
    assert isinstance(node.do, While)
    names, prepared = scope.names_for(index), scope.program.prepared(index)
    loop = scope.scope.loops.get(node.id) or Loop()
    if not prepared.test(names):
        _end(machine, scope, index, at, loop.count)
        return
    if node.do.most is None:
        most, setting = machine.limits.loop_iterations, machine.limits.setting("loop_iterations")
        if loop.count >= most:
            message = f"the loop has been carried out {most} times, and its condition still holds"
            hint = f"set max_iterations with on_limit: continue, which ends the loop, or raise {setting}"
            machine.fail(scope, index, at, machine.fault(scope, index, "loop_iterations", message, hint))
            return
    else:
        most = int(prepared.number(names, "max_iterations", 1, whole=True))
        if loop.count >= most:
            if _fails_at_limit(scope, node.do):
                message = f"the loop ran {most} times, which is its max_iterations; its condition still holds"
                machine.fail(scope, index, at, _limit_reached(machine, scope, index, message))
                return
            message = f"it has been carried out {most} times, which is its max_iterations, and ends"
            _end(machine, scope, index, at, loop.count, message)
            return
    _once_more(machine, scope, index, at, loop)


def enter_each(machine: Machine, scope: OpenScope, index: int, at: float) -> None:
    node = scope.program.nodes[index]
    assert isinstance(node.do, Each)
    loop = scope.scope.loops.get(node.id)
    if loop is None:
        items = scope.program.prepared(index).looped(scope.names_for(index))
        if not isinstance(items, list):
            problem = ExpressionError(
                f"items takes a list, not {kind_and_value(items)}",
                hint="e.g. {{ files }}; of an object {{ Object.entries(results) }}",
            )
            raise MisplacedError(problem, ("items",))
        if len(items) > machine.limits.for_each_items:
            limit = machine.limits.for_each_items
            message = f"there are {len(items)} items; the limit is {limit}"
            hint = f"raise {machine.limits.setting('for_each_items')}, or work on fewer at a time"
            fault = machine.fault(scope, index, "for_each_items", message, hint, ("items",))
            machine.fail(scope, index, at, fault)
            return
        loop = Loop(items=list(items))
    if loop.count >= len(loop.items or ()):
        _end(machine, scope, index, at, loop.count)
        return
    _once_more(machine, scope, index, at, loop)


def enter_jump(machine: Machine, scope: OpenScope, index: int, at: float) -> None:
    """Jump, unless it has jumped as often as it may."""
    node, counts = scope.program.nodes[index], scope.scope.jumps
    assert isinstance(node.do, Jump)
    most = scope.program.prepared(index).number(scope.names_for(index), "max_iterations", 0, whole=True)
    before = counts.get(node.id, 0)
    if scope.program.plan.semantics < 3:  # older runs count how often the step was reached
        before = scope.scope.rounds.get(node.id, 1) - 1
    reached, all_rounds = scope.scope.rounds.get(node.id, 1), machine.limits.loop_iterations
    if reached > all_rounds and scope.program.plan.semantics >= 3:
        message = f"the goto was reached {reached} times in all; the limit is {all_rounds}"
        hint = f"nest fewer loops, or raise {machine.limits.setting('loop_iterations')}"
        machine.fail(scope, index, at, machine.fault(scope, index, "loop_iterations", message, hint))
        return
    if before < most:
        for inside in scope.program.nodes[node.do.target : index]:
            counts.pop(inside.id, None)
        counts[node.id] = before + 1
        machine.end(scope, index, at, "completed", "success", {"jumped": True})
        return
    if _fails_at_limit(scope, node.do):
        message = f"the goto has jumped {most:g} times, which is its max_iterations"
        machine.fail(scope, index, at, _limit_reached(machine, scope, index, message))
        return
    message = f"it has jumped {most:g} times, which is its max_iterations, and goes on"
    machine.end(scope, index, at, "completed", "success", {"jumped": False}, message)


def _fails_at_limit(scope: OpenScope, do: Jump | While) -> bool:
    return do.on_limit == "fail" and scope.program.plan.semantics >= 3


def _limit_reached(machine: Machine, scope: OpenScope, index: int, message: str) -> Fault:
    hint = "raise max_iterations, or set on_limit: continue to go on with the steps behind it"
    return machine.fault(scope, index, "max_iterations", message, hint, ("max_iterations",))


def enter_leave(machine: Machine, scope: OpenScope, index: int, at: float) -> None:
    do = scope.program.nodes[index].do
    assert isinstance(do, Leave)
    if do.loop >= 0:
        scope.scope.loops.pop(scope.program.nodes[do.loop].id, None)
    machine.end(scope, index, at, "completed", "success", {})


def _once_more(machine: Machine, scope: OpenScope, index: int, at: float, loop: Loop) -> None:
    loop.count += 1
    scope.scope.loops[scope.program.nodes[index].id] = loop
    machine.end(scope, index, at, "completed", "success", {"result": True, "iterations": loop.count})


def _end(
    machine: Machine, scope: OpenScope, index: int, at: float, count: int, message: str | None = None
) -> None:
    scope.scope.loops.pop(scope.program.nodes[index].id, None)
    machine.end(scope, index, at, "completed", "success", {"result": False, "iterations": count}, message)
