"""How far a workflow is: steps that are done, how many there are, and where its loops are.

    {"done": 3, "total": 9}
    {"done": 2, "failed": 1, "total": 4}
    {"done": 5, "total": 8, "loop": "item 2 of 3 of 'each', round 1 of at most 5 of 'fix'"}

A step counts once, however often a loop repeats it. In a sequence nobody knows which branches will be taken,
so its total is what has been done and the longest way that is left; it is exact at the end. What failed, and
what was ended from outside, is not done.
"""

from __future__ import annotations

from collections.abc import Iterator

from workflows_mcp.machine.handling import failed
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.state import TERMINAL, Record, Scope
from workflows_mcp.plan.model import Branch, Each, Jump, Leave, Node, Return, Steps, While
from workflows_mcp.values import Value


def progress_of(machine: Machine, scope: Scope, *, ended: bool, address: str = "") -> dict[str, Value]:
    """`address`: of a step under way inside of the scope, as seen from it."""
    body = machine.plan_named(scope.workflow).body
    ended_records = [record for record in scope.records.values() if record.status in TERMINAL]
    wrong = sum(failed(record) and not _was_stopped(record) for record in ended_records)
    said: dict[str, Value] = {"done": sum(_is_done(scope, name) for name in scope.records)}
    if wrong:
        said["failed"] = wrong
    if isinstance(body, Steps):
        said["total"] = int(str(said["done"])) + _left(body.nodes, scope, ended)
    else:
        said["total"] = len(body.nodes)
    if not ended and (loops := ", ".join(_loops(machine, scope, address))):
        said["loop"] = loops
    return said


def _is_done(scope: Scope, name: str) -> bool:
    """Whether a step has ended, in this round or an earlier one."""
    record = scope.records[name]
    return (record.status in TERMINAL and not failed(record)) or scope.rounds.get(name, 1) > 1


def _was_stopped(record: Record) -> bool:
    """Whether it was ended from outside: a block that fails by itself has a reason of its own."""
    return record.status == "failed" and record.fault is None


def _left(nodes: tuple[Node, ...], scope: Scope, ended: bool) -> int:
    """The steps that are not done on the longest way ahead; of a run that has ended, from where it failed."""
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
    """The steps that can come next, each further down the list: behind a loop, where its head is next."""
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
    """Which round of which loop a step is in, the outermost first."""
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
    said = f"{len(ended) - wrong} of {len(scope.each or ())} items of '{name}' done"
    return f"{said}, {wrong} failed" if wrong else said


def _loop(node: Node, count: int, items: list[Value] | None) -> str:
    if items is not None:
        return f"item {count} of {len(items)} of '{node.id}'"
    most = node.do.most if isinstance(node.do, While) else None
    return f"round {count}{f' of at most {most}' if isinstance(most, int) else ''} of '{node.id}'"
