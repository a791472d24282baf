"""Walking over the blocks of a run, however deep: the block, what is known of it, and its address."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.state import Frame, Record, Scope
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
    scope = machine.state.root if scope is None else scope
    for node in machine.program_named(scope.workflow).nodes:
        record = scope.records.get(node.id, PENDING)
        yield Visited(prefix + node.id, node, record)
        if record.scope is not None:
            yield from blocks_of(machine, record.scope, f"{prefix}{node.id}/")


def block_at(machine: Machine, address: str) -> Visited | None:
    """The block at `address`, or None where the run has no such block (yet)."""
    scope: Scope | None = machine.state.root
    found: Visited | None = None
    parts = address.split("/")
    for depth, part in enumerate(parts):
        if scope is None:
            return None
        program = machine.program_named(scope.workflow)
        index = program.ids.get(part)
        if index is None:
            return None
        record = scope.records.get(part, PENDING)
        found = Visited("/".join(parts[: depth + 1]), program.nodes[index], record)
        scope = record.scope
    return found


def under_way(machine: Machine, *kinds: str) -> list[tuple[str, Frame]]:
    """The operations of these kinds that are under way, the oldest first."""
    frames = [(address, frame) for address, frame in machine.state.frames.items() if frame.kind in kinds]
    return sorted(frames, key=lambda item: item[1].since)
