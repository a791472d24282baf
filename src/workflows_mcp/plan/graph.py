"""The order of a graph: waves, a stable topological order, and cycles named by their path.

Works on dependencies by index (`needs[i]` are the nodes that node i depends on). Everything is linear in
the size of the graph and nothing recurses: a chain of ten thousand is an ordinary graph.

    arrange([(), (0,), (0,), (1, 2)])      # waves (0, 1, 1, 2), order (0, 1, 2, 3)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from workflows_mcp.plan.model import Graph, Steps

Needs = Sequence[Sequence[int]]
_LOOSE = -1
_BITS = 4096


class Arrangement(NamedTuple):
    """For each node its wave and its position; both are -1 for a node that is in or behind a cycle."""

    waves: list[int]
    order: list[int]

    @property
    def complete(self) -> bool:
        return _LOOSE not in self.waves


def arrange(needs: Needs) -> Arrangement:
    """A node's wave is one more than the latest wave that it depends on; within a wave, nodes keep the
    order in which they were written."""
    count = len(needs)
    waves = [_LOOSE] * count
    waiting_for = [len(needed) for needed in needs]
    dependents: list[list[int]] = [[] for _ in range(count)]
    for node, needed in enumerate(needs):
        for other in needed:
            dependents[other].append(node)
    wave = [node for node in range(count) if not waiting_for[node]]
    order = [_LOOSE] * count
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
    """One cycle for each knot of nodes that `arrange` could not place, as a path whose every node
    depends on the next and whose last depends on the first; it starts with the node written first."""
    # Every node without a wave needs another one without, so following these always ends in a cycle.
    seen: dict[int, int] = {}
    for start, wave in enumerate(waves):
        if wave != _LOOSE or start in seen:
            continue
        path: list[int] = []
        node = start
        while node not in seen:
            seen[node] = start
            path.append(node)
            node = next(other for other in needs[node] if waves[other] == _LOOSE)
        if seen[node] == start:
            cycle = path[path.index(node) :]
            first = cycle.index(min(cycle))
            yield cycle[first:] + cycle[:first]


def topological(order: Sequence[int]) -> list[int]:
    """The nodes, each after what it depends on, from the position of each."""
    return sorted(range(len(order)), key=order.__getitem__)


def unreachable(
    needs: Needs, in_order: Sequence[int], pairs: Iterable[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Those of `pairs` (node, other) in which node does not depend on other, directly or indirectly.

    Each other is a bit, and a node's bits are those of what it needs: one pass over the graph answers
    for thousands of pairs, whatever their distance.
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
    """For each node those that tolerate its failure: they depend on it without needing it to succeed, or on
    whatever its failure would skip. Empty where nobody does.

    `required_by[i]` are the nodes that need node i to succeed, `optional_for[i]` those that do not.
    """
    result = [list(others) for others in optional_for]
    for node in reversed(in_order):
        if not result[node] and all(result[other] for other in required_by[node]):
            result[node] = list(dict.fromkeys(it for other in required_by[node] for it in result[other]))
    return result


def execution_waves(graph: Graph | Steps) -> list[list[str]]:
    """The ids of the blocks, wave by wave, each wave in the order in which it was written."""
    count = max((node.wave for node in graph.nodes), default=-1) + 1
    waves: list[list[str]] = [[] for _ in range(count)]
    for node in graph.nodes:
        waves[node.wave].append(node.id)
    return waves
