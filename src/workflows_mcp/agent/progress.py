"""How far a workflow is: blocks that have ended, and how many there are.

In a sequence nobody knows which branches will be taken, so its total is what has been done and the longest
way that is left; it is exact at the end. A step that is done again counts again. What was ended from outside,
such as a question that was open when the run was cancelled, is not done.
"""

from __future__ import annotations

from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.state import TERMINAL, Record, Scope
from workflows_mcp.plan.model import Branch, Each, Jump, Leave, Node, Return, Steps, While
from workflows_mcp.values import Value


def progress_of(machine: Machine, scope: Scope, *, ended: bool) -> dict[str, Value]:
    body = machine.plan_named(scope.workflow).body
    over = [record for record in scope.records.values() if record.status in TERMINAL]
    stopped = sum(_was_stopped(record) for record in over)
    done = len(over) - stopped
    if not isinstance(body, Steps):
        return {"done": done, "total": len(body.nodes)}
    done += sum(rounds - 1 for rounds in scope.rounds.values())
    left = 0 if ended else _left(body.nodes, scope)
    return {"done": done, "total": done + stopped + left}


def _was_stopped(record: Record) -> bool:
    """Whether it was ended from outside: a block that fails by itself has a reason of its own."""
    return record.status == "failed" and record.fault is None


def _left(nodes: tuple[Node, ...], scope: Scope) -> int:
    """The steps that are under way or to come, the longest way ahead."""
    left = [0] * (len(nodes) + 1)
    for index in reversed(range(len(nodes))):
        left[index] = 1 + max((left[it] for it in _followers(nodes[index], index) if it > index), default=0)
    under_way = [
        index
        for index, node in enumerate(nodes)
        if node.id in scope.records and scope.records[node.id].status not in TERMINAL
    ]
    return max((left[index] for index in under_way), default=0)


def _followers(node: Node, index: int) -> tuple[int, ...]:
    usual = index + 1 if node.goes_to < 0 else node.goes_to
    match node.do:
        case Return():
            return ()
        case Branch(otherwise=otherwise):
            return (index + 1, otherwise, usual)
        case While(otherwise=otherwise) | Each(otherwise=otherwise):
            return (index + 1, otherwise)
        case Leave(target=target):
            return (target,)
        case Jump(target=target):
            return (target, usual)
    return (usual,)
