"""Sequences: scopes in which one step is under way at a time; and their loops.

Nested lists are laid out flat in the plan. After a step comes the next one, the one that a branch or a jump
has chosen, or none, because a step failed or a `return` was reached. A step that is reached again gets a new
record; only the journal has its earlier round.

The head of a loop decides whether its body runs once more, and counts. The count is part of the state, so
after a crash a loop continues where it was. A goto counts its jumps. One that jumps back starts a new round
of the steps in between, and resets the counts of gotos among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from workflows_mcp.limits import Limits
from workflows_mcp.machine.changes import TooLarge, WrongChange, too_deep
from workflows_mcp.machine.core import Core, OpenScope
from workflows_mcp.machine.lifecycle import advance
from workflows_mcp.machine.rules import ScopeResult, failed, handler_of
from workflows_mcp.machine.state import TERMINAL, Fault, Loop, Record
from workflows_mcp.plan import (
    Branch,
    Call,
    Do,
    Each,
    Expr,
    Jump,
    Leave,
    Node,
    Plan,
    Return,
    Steps,
    While,
    fails_on_purpose,
    item_node,
    names_of_items,
)
from workflows_mcp.values import Value, kind_and_value


class OpenSequence(OpenScope):
    __slots__ = ()

    def names_for(self, index: int) -> Any:
        node = self.program.nodes[index]
        state = self.scope.state
        seen = state if node.reads is None else {name: state[name] for name in node.reads if name in state}
        record = self.scope.records.get(node.id)
        now = record.started_at if record is not None and record.started_at is not None else self.time
        return {**self.names, "state": seen, "__now__": now}

    def ready(self) -> list[int]:
        return [0] if self.program.nodes else []

    def does_not_fit(self, index: int, outputs: dict[str, Value], limits: Limits) -> WrongChange | None:
        """Why the result of an agent cannot be written to the state, if it is too large."""
        node = self.program.nodes[index]
        if not node.output_to:
            return None
        result_output = node.do.result_output if isinstance(node.do, Do) else ""
        value = outputs.get(result_output) if result_output else outputs
        too_large = state_too_large({**self.scope.state, node.output_to: value}, limits, self.program.plan)
        return None if too_large is None else TooLarge(too_large)

    def handle_end(self, machine: Core, index: int) -> None:
        """Write the result of a step to the state."""
        node = self.program.nodes[index]
        record = self.scope.records[node.id]
        written = self._written(machine, node, record)
        if not written:
            return
        too_large = state_too_large({**self.scope.state, **written}, machine.limits, self.program.plan)
        if too_large is None:
            self.scope.state.update(written)
            return
        advance(record, "rejected")
        record.outcome, record.message = "n/a", too_large
        record.fault = machine.fault(self, index, "state_size", too_large)

    def _written(self, machine: Core, node: Node, record: Record) -> dict[str, Value]:
        """The fields of the state that the end of a step writes.

        After a failure, `output_to` gets the outputs that exist, with `error` and `error_code`; for items it
        gets the list of their results."""
        writes_error = self.program.plan.semantics >= 3 and failed(record)
        written: dict[str, Value] = {}
        if node.error_to and record.status != "skipped":
            written[node.error_to] = error_of(node, record) if writes_error else None
        if node.output_to and writes_error and node.for_each is None:
            result_output = node.do.result_output if isinstance(node.do, Do) else ""
            about = error_of(node, record)
            outputs = {} if result_output else dict(record.outputs)
            if record.status == "failed" and outputs.get("exit_code") == 0:
                outputs["exit_code"] = None  # it did not run to its end
            written[node.output_to] = {**outputs, "error": about["message"], "error_code": about["code"]}
        elif node.output_to and record.status == "completed":
            written[node.output_to] = result_of(node, record, machine.plans)
        return written

    def after_end(self, machine: Core, index: int) -> list[int]:
        return self.after(index)

    def outcome(self, machine: Core) -> ScopeResult:
        """The value that it returned, and why it failed, if it did."""
        return ScopeResult({"result": self.scope.result}, self._failure())

    def _failure(self) -> Fault | None:
        if self.scope.failure is not None:
            return self.scope.failure
        for node in self.program.nodes:
            record = self.scope.records.get(node.id)
            if record is not None and ends_with(self.program.plan, node, record):
                return self.failure_of(node, record)
        return None

    def failure_of(self, node: Node, record: Record) -> Fault:
        """Why the sequence has failed: the step that ended it."""
        inner = record.fault
        if inner is not None and fails_on_purpose(node):
            return inner
        message = f"step '{node.id}' failed: {record.message or 'no reason was given'}"
        if inner is not None:
            return replace(inner, message=message)
        return Fault("block_failed", message, "", self.prefix + node.id, self.scope.workflow, node.at)

    def after(self, index: int) -> list[int]:
        node = self.program.nodes[index]
        record = self.scope.records[node.id]
        chosen = self._next_index(index, node, record)
        self.finished = ends_with(self.program.plan, node, record) or chosen >= len(self.program.nodes)
        if self.finished:
            return []
        self._reach(self.program.nodes[chosen].id)
        return [chosen]

    def _next_index(self, index: int, node: Node, record: Record) -> int:
        """The index of the step that follows; after the last one if there is none."""
        if record.status == "completed":
            match node.do:
                case Branch(otherwise=otherwise):
                    return index + 1 if record.outputs["result"] else otherwise
                case While(otherwise=otherwise) | Each(otherwise=otherwise):
                    return index + 1 if record.outputs["result"] else otherwise
                case Jump(target=target) if record.outputs["jumped"]:
                    return target
                case Leave(target=target):
                    return target
                case Return():
                    return len(self.program.nodes)
                case Call(on_complete=True) if not failed(record):
                    return index + 1
        return index + 1 if node.goes_to < 0 else node.goes_to

    def _reach(self, name: str) -> None:
        """Start a step that has ended before from the beginning."""
        before = self.scope.records.get(name)
        if before is not None and before.status in TERMINAL:
            del self.scope.records[name]
            self.scope.visits[name] = self.scope.visits.get(name, 1) + 1


def result_of(node: Node, record: Record, plans: Mapping[str, Plan]) -> Value:
    """The result of a step: its outputs, one of them, or the results of its items, in order.

    `plans` are those that it may have called. A called graph returns its outputs, a called sequence the
    value of its `return`."""
    items = record.scope
    if items is None or items.each is None:
        result_output = node.do.result_output if isinstance(node.do, Do) else ""
        if isinstance(node.do, Call) and items is not None and isinstance(plans[items.workflow].body, Steps):
            result_output = "result"
        return record.outputs.get(result_output) if result_output else record.outputs
    results: list[Value] = []
    for name in names_of_items(items.each, items.named):
        item = items.records[name]
        if failed(item):
            results.append({"error": item.message or "it failed"})
        else:
            results.append(result_of(item_node(node, name), item, plans))
    return results


def error_of(node: Node, record: Record) -> dict[str, Value]:
    """Why a step failed, as the state holds it."""
    code = record.fault.code if record.fault is not None else "step_failed"
    return {"message": record.message or "it failed", "code": code, "step": node.id}


def ends_with(plan: Plan, node: Node, record: Record) -> bool:
    """Whether the sequence ends with this step, because its failure is not handled."""
    return failed(record) and handler_of(plan, node, record) is None


def state_too_large(state: dict[str, Value], limits: Limits, plan: Plan) -> str | None:
    """The message about a state that is too large or nested too deeply; None if it fits."""
    deep = too_deep(state, limits) if plan.semantics >= 3 else None
    if deep is not None:
        return deep
    size = len(_encode(state))
    if size <= limits.state_bytes:
        return None
    largest = max(state, key=lambda name: len(_encode(state[name])))
    return (
        f"the state would have {size} bytes, at most {limits.state_bytes} are allowed"
        f" ({limits.setting('state_bytes')}); the largest field is '{largest}'"
    )


_encode = msgspec.msgpack.Encoder().encode


# Loops


def enter_while(machine: Core, scope: OpenScope, index: int, at: float) -> None:
    """Check the condition, then the limit, and run the body once more or end the loop."""
    node = scope.program.nodes[index]
    assert isinstance(node.do, While)
    names, program = scope.names_for(index), scope.program
    loop = scope.scope.loops.get(node.id) or Loop()
    if not program.condition(node.do.test, names):
        _end(machine, scope, index, at, loop.count)
        return
    if node.do.most is None:
        most, setting = machine.limits.loop_iterations, machine.limits.setting("loop_iterations")
        if loop.count >= most:
            message = f"the loop ran {most} times and its condition still holds"
            hint = f"set max_iterations with on_limit: continue, which ends the loop, or raise {setting}"
            machine.fail_with(scope, index, "loop_iterations", message, hint)
            return
    else:
        most = int(program.number(node.do.most, names, "max_iterations", 1, whole=True))
        if loop.count >= most:
            if _fails_at_limit(scope, node.do):
                message = f"the loop ran {most} times, which is its max_iterations; its condition still holds"
                machine.fail(scope, index, _limit_reached(machine, scope, index, node.do.most, message))
                return
            message = f"the loop ended after {most} rounds, which is its max_iterations"
            _end(machine, scope, index, at, loop.count, message)
            return
    _once_more(machine, scope, index, at, loop)


def enter_each(machine: Core, scope: OpenScope, index: int, at: float) -> None:
    node = scope.program.nodes[index]
    assert isinstance(node.do, Each)
    loop = scope.scope.loops.get(node.id)
    if loop is None:
        items = scope.program.evaluate(node.do.items, scope.names_for(index))
        if not isinstance(items, list):
            message = f"items takes a list, not {kind_and_value(items)}"
            hint = "e.g. {{ files }}; of an object {{ Object.entries(results) }}"
            raise scope.program.error(node.do.items, message, hint)
        if len(items) > machine.limits.for_each_items:
            limit = machine.limits.for_each_items
            message = f"there are {len(items)} items; the limit is {limit}"
            hint = f"raise {machine.limits.setting('for_each_items')}, or work on fewer at a time"
            machine.fail_with(scope, index, "for_each_items", message, hint, node.do.items.at)
            return
        loop = Loop(items=list(items))
    if loop.count >= len(loop.items or ()):
        _end(machine, scope, index, at, loop.count)
        return
    _once_more(machine, scope, index, at, loop)


def enter_jump(machine: Core, scope: OpenScope, index: int, at: float) -> None:
    """Jump, unless it has reached its max_iterations."""
    node, counts = scope.program.nodes[index], scope.scope.jumps
    assert isinstance(node.do, Jump)
    names, limit = scope.names_for(index), node.do.most
    most = scope.program.number(limit, names, "max_iterations", 0, whole=True)
    before = counts.get(node.id, 0)
    if scope.program.plan.semantics < 3:  # older runs count how often the step was reached
        before = scope.scope.visits.get(node.id, 1) - 1
    reached, all_rounds = scope.scope.visits.get(node.id, 1), machine.limits.loop_iterations
    if reached > all_rounds and scope.program.plan.semantics >= 3:
        message = f"the goto was reached {reached} times in all; the limit is {all_rounds}"
        hint = f"nest fewer loops, or raise {machine.limits.setting('loop_iterations')}"
        machine.fail_with(scope, index, "loop_iterations", message, hint)
        return
    if before < most:
        for inside in scope.program.nodes[node.do.target : index]:
            counts.pop(inside.id, None)
        counts[node.id] = before + 1
        machine.end(scope, index, at, "completed", "success", {"jumped": True})
        return
    if _fails_at_limit(scope, node.do):
        message = f"the goto has jumped {most:g} times, which is its max_iterations"
        machine.fail(scope, index, _limit_reached(machine, scope, index, limit, message))
        return
    message = f"the goto has jumped {most:g} times, which is its max_iterations; the run continues after it"
    machine.end(scope, index, at, "completed", "success", {"jumped": False}, message)


def _fails_at_limit(scope: OpenScope, do: Jump | While) -> bool:
    return do.on_limit == "fail" and scope.program.plan.semantics >= 3


def _limit_reached(machine: Core, scope: OpenScope, index: int, most: Expr, message: str) -> Fault:
    hint = "raise max_iterations, or set on_limit: continue to run the steps after it"
    return machine.fault(scope, index, "max_iterations", message, hint, most.at)


def enter_leave(machine: Core, scope: OpenScope, index: int, at: float) -> None:
    do = scope.program.nodes[index].do
    assert isinstance(do, Leave)
    if do.loop >= 0:
        scope.scope.loops.pop(scope.program.nodes[do.loop].id, None)
    machine.end(scope, index, at, "completed", "success", {})


def _once_more(machine: Core, scope: OpenScope, index: int, at: float, loop: Loop) -> None:
    loop.count += 1
    scope.scope.loops[scope.program.nodes[index].id] = loop
    machine.end(scope, index, at, "completed", "success", {"result": True, "iterations": loop.count})


def _end(
    machine: Core, scope: OpenScope, index: int, at: float, count: int, message: str | None = None
) -> None:
    scope.scope.loops.pop(scope.program.nodes[index].id, None)
    machine.end(scope, index, at, "completed", "success", {"result": False, "iterations": count}, message)
