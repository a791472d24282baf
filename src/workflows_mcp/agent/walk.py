"""Walking over the blocks of a run, however deep: the block, what is known of it, and its address."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.state import Frame, Record, Scope
from workflows_mcp.plan.items import item_node, names_of_items
from workflows_mcp.plan.model import Node

PENDING = Record()


class Visited(NamedTuple):
    address: str
    node: Node
    record: Record


def blocks_of(machine: Machine, scope: Scope | None = None, prefix: str = "") -> Iterator[Visited]:
    """All blocks that a run has reached, and those next to them, in the order of the plan.

    Works on a run that has ended too, when the machine itself has put its working notes away.
    """
    for node, record in blocks_in(machine, scope or machine.state.root, None):
        yield from _with_inner(machine, Visited(prefix + node.id, node, record))


def _with_inner(machine: Machine, visited: Visited) -> Iterator[Visited]:
    yield visited
    if visited.record.scope is not None:
        for node, record in blocks_in(machine, visited.record.scope, visited.node):
            yield from _with_inner(machine, Visited(f"{visited.address}/{node.id}", node, record))


def blocks_in(machine: Machine, scope: Scope, around: Node | None) -> Iterator[tuple[Node, Record]]:
    """The blocks of one scope: of a workflow, or the items of the block `around`."""
    if scope.each is not None:
        assert around is not None
        for name in names_of_items(scope.each, scope.named):
            yield item_node(around, name), scope.records.get(name, PENDING)
        return
    program = machine.program_named(scope.workflow)
    for index, node in enumerate(program.nodes):
        if index != program.context_full or node.id in scope.records:
            yield node, scope.records.get(node.id, PENDING)


def block_at(machine: Machine, address: str) -> Visited | None:
    """The block at `address`, or None where the run has no such block (yet)."""
    scope: Scope | None = machine.state.root
    found: Visited | None = None
    parts = address.split("/")
    for depth, part in enumerate(parts):
        if scope is None:
            return None
        node = _node_called(machine, scope, found.node if found is not None else None, part)
        if node is None:
            return None
        record = scope.records.get(part, PENDING)
        found = Visited("/".join(parts[: depth + 1]), node, record)
        scope = record.scope
    return found


def _node_called(machine: Machine, scope: Scope, around: Node | None, name: str) -> Node | None:
    if scope.each is not None and around is not None:
        known = name in scope.records or name in names_of_items(scope.each, scope.named)
        return item_node(around, name) if known else None
    program = machine.program_named(scope.workflow)
    index = program.ids.get(name)
    return program.nodes[index] if index is not None else None


def under_way(machine: Machine, *kinds: str) -> list[tuple[str, Frame]]:
    """The operations of these kinds that are under way, the oldest first."""
    frames = [(address, frame) for address, frame in machine.state.frames.items() if frame.kind in kinds]
    return sorted(frames, key=lambda item: item[1].since)
