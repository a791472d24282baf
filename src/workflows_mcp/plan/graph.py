"""Computes the order of a graph: waves, a stable topological order, and cycles.

It works on dependencies by index (`needs[i]` are the nodes that node i depends on). Everything is linear in
the size of the graph, and nothing recurses: a chain of ten thousand nodes is an ordinary graph.

    arrange([(), (0,), (0,), (1, 2)])      # waves (0, 1, 1, 2), order (0, 1, 2, 3)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from workflows_mcp.plan.model import Graph, Steps

Needs = Sequence[Sequence[int]]
_UNPLACED = -1
_BITS = 4096


class Arrangement(NamedTuple):
    """The wave and the position of each node; both are -1 in a cycle or after one."""

    waves: list[int]
    order: list[int]

    @property
    def complete(self) -> bool:
        return _UNPLACED not in self.waves


def arrange(needs: Needs) -> Arrangement:
    """Computes waves and positions.

    A node's wave is one more than the latest wave that it depends on. In a wave, nodes keep the order of the
    file.
    """
    count = len(needs)
    waves = [_UNPLACED] * count
    waiting_for = [len(needed) for needed in needs]
    dependents: list[list[int]] = [[] for _ in range(count)]
    for node, needed in enumerate(needs):
        for other in needed:
            dependents[other].append(node)
    wave = [node for node in range(count) if not waiting_for[node]]
    order = [_UNPLACED] * count
    number = position = 0
    while wave:
        following: list[int] = []
        for node in wave:
            waves[node] = number
            order[node] = position
            position += 1
            for dependent in dependents[node]:
                waiting_for[dependent] -= 1
                if not waiting_for[dependent]:
                    following.append(dependent)
        following.sort()
        wave = following
        number += 1
    return Arrangement(waves, order)


def cycles(needs: Needs, waves: Sequence[int]) -> Iterator[list[int]]:
    """One cycle for each group of nodes that `arrange` could not place.

    Each node of the path depends on the next one, and the last one on the first, which is the first in the
    file.
    """
    # Each node without a wave needs another one without a wave, so following these ends in a cycle.
    seen: dict[int, int] = {}
    for start, wave in enumerate(waves):
        if wave != _UNPLACED or start in seen:
            continue
        path: list[int] = []
        node = start
        while node not in seen:
            seen[node] = start
            path.append(node)
            node = next(other for other in needs[node] if waves[other] == _UNPLACED)
        if seen[node] == start:
            cycle = path[path.index(node) :]
            first = cycle.index(min(cycle))
            yield cycle[first:] + cycle[:first]


def topological(order: Sequence[int]) -> list[int]:
    """The nodes in topological order, from the position of each."""
    return sorted(range(len(order)), key=order.__getitem__)


def unreachable(
    needs: Needs, in_order: Sequence[int], pairs: Iterable[tuple[int, int]]
) -> list[tuple[int, int]]:
    """The `pairs` (node, other) in which node does not depend on other, not even indirectly.

    Each other node is a bit, and the bits of a node are those of its dependencies: one pass over the graph
    answers for thousands of pairs, whatever their distance.
    """
    pairs = list(pairs)
    others = list(dict.fromkeys(other for _, other in pairs))
    missing: list[tuple[int, int]] = []
    for start in range(0, len(others), _BITS):
        bits = {other: 1 << bit for bit, other in enumerate(others[start : start + _BITS])}
        reached = [0] * len(needs)
        for node in in_order:
            for needed in needs[node]:
                reached[node] |= reached[needed] | bits.get(needed, 0)
        missing += [
            (node, other) for node, other in pairs if other in bits and not reached[node] & bits[other]
        ]
    return missing


def tolerated_by(required_by: Needs, in_order: Sequence[int], optional_for: Needs) -> list[list[int]]:
    """For each node, the nodes that tolerate its failure.

    Such a node depends on it, but does not need it to succeed, or depends so on a node that its failure
    skips.

    `required_by[i]` are the nodes that need node i to succeed, `optional_for[i]` those that do not.
    """
    result = [list(others) for others in optional_for]
    for node in reversed(in_order):
        if not result[node] and all(result[other] for other in required_by[node]):
            result[node] = list(dict.fromkeys(it for other in required_by[node] for it in result[other]))
    return result


def execution_waves(graph: Graph | Steps) -> list[list[str]]:
    """The ids of the blocks, wave by wave, each wave in the order of the file."""
    count = max((node.wave for node in graph.nodes), default=-1) + 1
    waves: list[list[str]] = [[] for _ in range(count)]
    for node in graph.nodes:
        waves[node.wave].append(node.id)
    return waves
