"""Items of a reactive workflow that are carried out side by side: what each is called and what it knows, what
ends them, and what a workflow leaves behind when it has ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from workflows_mcp.errors import TOO_LARGE, TOO_SLOW
from workflows_mcp.machine.commands import ClearTimer, SetTimer, key_of
from workflows_mcp.machine.items import OpenItems
from workflows_mcp.machine.program import MisplacedError, compile_value
from workflows_mcp.machine.reactive import OpenReactive
from workflows_mcp.machine.state import Fault, Record
from workflows_mcp.machine.stopping import LEFT_OPEN, mark_stopped, stop
from workflows_mcp.plan.model import Call, Plan
from workflows_mcp.values import Value, to_text

if TYPE_CHECKING:
    from workflows_mcp.machine.machine import Machine

REACTIVE = "reactive"
LEAVING = "~left"
STOPPED = "ended, because another one failed"


def task_ids(
    scope: OpenReactive, index: int, items: list[Value], plans: Mapping[str, Plan]
) -> list[str | int]:
    """What the tasks are called: as the step or the task says, else by the `id` of the item, else by
    position."""
    node = scope.program.nodes[index]
    assert node.for_each is not None
    title, template = node.id, node.for_each.task_id
    if isinstance(node.do, Call) and isinstance(node.do.workflow, str):
        title = node.do.workflow.partition("#")[2] or node.do.workflow
        called = plans.get(node.do.workflow)
        if template is None and called is not None:
            template = called.given.get("task_id")
    evaluate = compile_value(template, scope.program.language, ("sub_agent_task",))
    names = scope.names_for(index)
    ids: list[str | int] = []
    for position, item in enumerate(items):
        found = evaluate(names.with_variables({"item": item, "index": position, "total": len(items)}))
        if found is None and isinstance(item, dict):
            found = item.get("id")
        text = to_text(found) if isinstance(found, str | int) and not isinstance(found, bool) else ""
        ids.append(text if text and text not in ids else f"{title}.item{position}")
    return ids


def task_variables(run_id: str, workflow: str, items: OpenItems, index: int, plan: Plan) -> dict[str, Value]:
    """What a task knows beside the state: the fields of its item, and what it is one of."""
    variables = items.variables(index)
    item = variables["item"]
    context: dict[str, Value] = dict(item) if isinstance(item, dict) else {}
    keys = items.scope.each or []
    context |= {
        "item": item,
        "index": index,
        "total": variables["total"],
        "workflow_id": run_id,
        "task_id": keys[index],
    }
    parent = {"workflow": {"id": run_id, "name": workflow}}
    known = {**variables, **context, "context": context, "parent": parent}
    names = items.names_for(index).with_variables(known)
    for name, value in plan.given.items():
        known[name] = compile_value(value, items.program.language, ("sub_agent_tasks", name))(names)
    return known


def stop_items(machine: Machine, scope: OpenItems, at: float) -> None:
    """One of the items has failed: end the others, and begin no more."""
    frames = machine.state.frames
    machine.forget_work(scope)
    for index, node in enumerate(scope.program.nodes):
        address = scope.prefix + node.id
        if address in frames:
            inside = machine.scope_inside(address)
            if isinstance(inside, OpenReactive) and _cleans_up_after(inside):
                continue
            if cleaned_up_first(machine, address, at, machine.fault(scope, index, "ended", STOPPED)):
                continue
            stop(machine, address, frames[address], at, STOPPED)
            mark_stopped(machine, scope, index, at, STOPPED)
            scope.unfinished -= 1
        elif node.id not in scope.scope.records:
            scope.scope.records[node.id] = Record("skipped", message=STOPPED, completed_at=at)
            scope.unfinished -= 1
    scope.begin_no_more()


def _cleans_up_after(scope: OpenReactive) -> bool:
    """Whether the steps for the case of its failure are under way."""
    return scope.program.plan.semantics > 1 and scope.scope.failure is not None


def cleaned_up_first(machine: Machine, address: str, at: float, fault: Fault) -> bool:
    """A workflow is to end with a failure from outside: whether it carries out its steps for that case first.
    What else is under way in it ends at once; for these steps it gets as long as it had for all of it."""
    scope = machine.scope_inside(address)
    if not isinstance(scope, OpenReactive) or scope.program.plan.semantics < 2 or not scope.can_clean_up:
        return False
    machine.forget_work(scope)
    stop_leftovers(machine, scope, at, fault.message)
    frame = machine.state.frames[address]
    if frame.timeout is not None:
        frame.since, frame.parked, frame.deadline = at, 0.0, at + frame.timeout
        key = key_of(address, frame.attempt)
        machine.wish(ClearTimer(key))
        machine.wish(SetTimer(key, frame.deadline))
    machine.enter_next(scope, scope.clean_up(fault))
    return True


def stop_leftovers(machine: Machine, scope: OpenReactive, at: float, reason: str = LEFT_OPEN) -> None:
    """A workflow ends, or fails, although something is under way in it: that ends with it."""
    for index, node in enumerate(scope.program.nodes):
        address = scope.prefix + node.id
        frame = machine.state.frames.get(address)
        if frame is not None:
            stop(machine, address, frame, at, reason)
            mark_stopped(machine, scope, index, at, reason)


def left_behind(
    machine: Machine, scope: OpenReactive, fault: Fault | None
) -> tuple[dict[str, Value], Fault | None]:
    """What whoever called the workflow gets of it: the value that it ended with, or else its state."""
    result = scope.scope.result
    if result is not None or not scope.prefix or "#" in scope.scope.workflow:
        return {"result": result}, fault
    address = scope.prefix[:-1]
    caller, index = machine.locate(address)
    known = machine.known_to_stop(caller, index, LEAVING)
    if known is not None:
        return {"result": None}, fault or known
    try:
        return {"result": scope.home.flat()}, fault
    except MisplacedError as error:
        wrong = machine.fault_of(scope, 0, error)
        if error.cause.code in (TOO_SLOW, TOO_LARGE):
            machine.note_stop(caller, index, wrong, LEAVING)
        return {"result": None}, fault or wrong
