"""How far a run or a task is: steps done, rounds of its loops, the steps that follow, and failed blocks.

progress_of(view)        # {"done": 2, "failed": 1, "total": 4}
steps_that_follow(view)  # 'deploy' if ${inputs.publish}, 'notify'
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from workflows_mcp.answers.previews import shortened
from workflows_mcp.answers.run_view import RunView
from workflows_mcp.machine import (
    TERMINAL,
    Machine,
    Record,
    Scope,
    call_must_succeed,
    failed,
    fails_the_workflow,
    handler_of,
)
from workflows_mcp.plan import Branch, Each, Graph, Jump, Leave, Node, Return, Steps, While
from workflows_mcp.values import Value

PRINTED_CHARS = 500
"""How much of a message or of the last output of a failed block is shown."""
_MESSAGE_CHARS = 200
_NAMED = 3
_CONDITION_CHARS = 80

# Progress: done and total steps, and the rounds of its loops
#
#     {"done": 3, "total": 9}
#     {"done": 2, "failed": 1, "total": 4}
#     {"done": 5, "total": 8, "loop": "item 2 of 3 of 'each', round 1 of at most 5 of 'fix'"}
#
# A step counts once, however often a loop repeats it. The branches of a sequence are not known in advance, so
# its total is the done steps plus the longest remaining path. Failed and cancelled steps are not done.


def progress_of(view: RunView) -> dict[str, Value] | None:
    """Return the progress of a run or a task; None for a task of a single step."""
    scope, ended = view.scope, view.has_ended
    if scope is None:
        return None
    body = view.plan.body
    ended_records = [record for record in scope.records.values() if record.status in TERMINAL]
    wrong = sum(failed(record) and not _was_stopped(record) for record in ended_records)
    done = sum(_is_done(scope, name) for name in scope.records)
    progress: dict[str, Value] = {"done": done}
    if wrong:
        progress["failed"] = wrong
    progress["total"] = done + _left(body.nodes, scope, ended) if isinstance(body, Steps) else len(body.nodes)
    if not ended and (loops := ", ".join(_loops(view.machine, scope, _under_way(view)))):
        progress["loop"] = loops
    return progress


def _is_done(scope: Scope, name: str) -> bool:
    """Whether a step has ended, in this round or an earlier one."""
    record = scope.records[name]
    return (record.status in TERMINAL and not failed(record)) or scope.visits.get(name, 1) > 1


def _was_stopped(record: Record) -> bool:
    """Whether it was stopped from outside: a block that fails by itself has a fault."""
    return record.status == "failed" and record.fault is None


def _left(nodes: tuple[Node, ...], scope: Scope, ended: bool) -> int:
    """Count the steps on the longest remaining path; of an ended run, from where it failed."""
    left = [0] * (len(nodes) + 1)
    for index in reversed(range(len(nodes))):
        name = nodes[index].id
        own = 0 if name in scope.records and _is_done(scope, name) else 1
        left[index] = own + max((left[it] for it in followers(nodes, index)), default=0)
    begins = [
        index
        for index, node in enumerate(nodes)
        if (record := scope.records.get(node.id)) is not None
        and (failed(record) if ended else record.status not in TERMINAL)
    ]
    return max((left[index] for index in begins), default=0)


def followers(nodes: tuple[Node, ...], index: int) -> set[int]:
    """Return the later steps that can come next; a jump back to a loop counts as leaving the loop."""
    node = nodes[index]
    usual = index + 1 if node.goes_to < 0 else node.goes_to
    match node.do:
        case Return():
            found: tuple[int, ...] = ()
        case Branch(otherwise=otherwise):
            found = (index + 1, otherwise, usual)
        case While(otherwise=otherwise) | Each(otherwise=otherwise):
            found = (index + 1, otherwise)
        case Leave(target=target):
            found = (target,)
        case Jump(target=target):
            found = (target, usual)
        case _:
            found = (usual,)
    return {it for target in found if (it := _behind(nodes, index, target)) > index}


def _behind(nodes: tuple[Node, ...], index: int, target: int) -> int:
    if target > index:
        return target
    head = nodes[target].do
    return head.otherwise if isinstance(head, While | Each) else target


def _loops(machine: Machine, scope: Scope, address: str) -> Iterator[str]:
    """Yield the round of each loop around a step, the outermost first."""
    inside: Scope | None = scope
    for name in (*(address.split("/") if address else ()), ""):
        if inside is None:
            return
        if inside.each is None:
            for head, loop in inside.loops.items():
                node = next(it for it in machine.plan_named(inside.workflow).body.nodes if it.id == head)
                yield _loop(node, loop.count, loop.items)
        record = inside.records.get(name)
        below = record.scope if record is not None else None
        if below is not None and below.each is not None:
            yield _items(name, below)
        inside = below


def _items(name: str, scope: Scope) -> str:
    ended = [record for record in scope.records.values() if record.status in TERMINAL]
    wrong = sum(failed(record) for record in ended)
    done = f"{len(ended) - wrong} of {len(scope.each or ())} items of '{name}' done"
    return f"{done}, {wrong} failed" if wrong else done


def _loop(node: Node, count: int, items: list[Value] | None) -> str:
    if items is not None:
        return f"item {count} of {len(items)} of '{node.id}'"
    most = node.do.most.source if isinstance(node.do, While) and node.do.most is not None else None
    return f"round {count}{f' of at most {most}' if isinstance(most, int) else ''} of '{node.id}'"


# The steps that follow


def steps_that_follow(view: RunView) -> str:
    """Name the steps after the running ones, each with its condition."""
    scope = view.scope
    if scope is None or view.has_ended:
        return ""
    body = view.plan.body
    found = _in_graph(body, scope) if isinstance(body, Graph) else _in_sequence(body, scope)
    more = len(found) - _NAMED
    return ", ".join(found[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _in_graph(body: Graph, scope: Scope) -> list[str]:
    nodes = body.nodes

    def is_open(node: Node) -> bool:
        record = scope.records.get(node.id)
        return record is None or record.status == "pending"

    under_way = {index for index, node in enumerate(nodes) if not is_open(node) and not _over(scope, node)}
    return [
        _with_condition(node)
        for node in nodes
        if is_open(node) and any(need.node in under_way for need in node.needs)
    ]


def _in_sequence(body: Steps, scope: Scope) -> list[str]:
    nodes = body.nodes
    found: list[str] = []
    for index, node in enumerate(nodes):
        if node.id in scope.records and not _over(scope, node):
            ahead = sorted(it for it in followers(nodes, index) if it < len(nodes))
            found += [_with_condition(nodes[it]) for it in ahead]
    return list(dict.fromkeys(found))


def _over(scope: Scope, node: Node) -> bool:
    record = scope.records.get(node.id)
    return record is not None and record.status in TERMINAL


def _with_condition(node: Node) -> str:
    condition = node.condition
    match node.do:
        case Branch(test=test) | While(test=test):
            condition = test
    if condition is None or not condition.source:
        return f"'{node.id}'"
    return f"'{node.id}' if {shortened(' '.join(condition.source.split()), _CONDITION_CHARS)}"


def _under_way(view: RunView) -> str:
    """Return the address of the current step, relative to the target."""
    pending = view.pending
    addresses = [address for address, _ in pending.questions] + [it.address for it in pending.delegations]
    addresses += [address for address, _ in view.under_way()]
    prefix = f"{view.target.address}/" if view.target.address else ""
    return next((it[len(prefix) :] for it in addresses if it.startswith(prefix)), "")


# Failed blocks


class FailedBlock(msgspec.Struct, frozen=True, omit_defaults=True):
    """A failed block of a run that completed, and the handler that tolerated the failure."""

    block: str
    tolerated_by: str = ""
    message: str = ""


def failed_blocks(view: RunView) -> list[FailedBlock]:
    """Return the failed blocks of a run or a task that has completed."""
    scope, plan = view.scope, view.plan
    if scope is None or view.status != "completed":
        return []
    return [
        FailedBlock(
            node.id, handler_of(plan, node, record) or "", shortened(record.message or "", PRINTED_CHARS)
        )
        for node in plan.body.nodes
        if (record := scope.records.get(node.id)) is not None and failed(record)
    ]


def failed_for_good(view: RunView) -> str:
    """Return the first failed block that makes the run fail, with the reason; empty if there is none.

    It can be in an unfinished call, if nothing would handle the failure of the call.
    """
    return _doomed(view.machine, view.state.root, "")


def _doomed(machine: Machine, scope: Scope, prefix: str) -> str:
    plan = machine.plan_named(scope.workflow)
    for node in plan.body.nodes:
        record = scope.records.get(node.id)
        if record is None:
            continue
        if record.status in TERMINAL:
            if isinstance(plan.body, Graph) and fails_the_workflow(plan, node, record):
                return f"'{prefix}{node.id}' ({(record.message or 'no reason was given')[:_MESSAGE_CHARS]})"
        elif (
            record.scope is not None
            and record.scope.each is None
            and call_must_succeed(plan, node)
            and (inner := _doomed(machine, record.scope, f"{prefix}{node.id}/"))
        ):
            return inner
    return ""
