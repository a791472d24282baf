"""Turns nested lists of steps into one flat list of nodes.

    a                       0 a
    b condition             1 b       branch: 2 if it holds, otherwise 4; 5 if it is skipped
      then: c, d            2 c
      else: e               3 d       goes to 5
    f while                 4 e
      body: g, h            5 f       6 as long as it holds, otherwise 8
    i                       6 g
                            7 h       goes to 5
                            8 i

The last step of a list continues after all lists that end with it, or at the head of its loop. Each dialect
fills in the rest of a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from workflows_mcp.dialects.steps import StepDraft, every
from workflows_mcp.plan import Branch, Call, Each, Jump, Leave, Node, Operation, Return, While


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop around a step: the index of its head, and of the node after the loop."""

    head: int
    behind: int


@dataclass(frozen=True, slots=True)
class Spot:
    """The position of a step in the flat list."""

    index: int
    follows: int
    """The node after the step and everything inside it."""
    loops: tuple[Loop, ...]
    """The loops around it, the outermost first."""
    lists: tuple[list[StepDraft], ...]
    """The lists around it, its own list last."""

    @property
    def goes_to(self) -> int:
        """The `goes_to` of the node: -1 is the next node in the list."""
        return -1 if self.follows == self.index + 1 else self.follows


class FlatLayout:
    """Assigns a position to each step of some lists.

    No two steps have the same id. The sequence ends after each list.
    """

    def __init__(self, *sections: list[StepDraft]) -> None:
        self.sections = sections
        self.drafts = [step for section in sections for step in every(section)]
        self.index = {draft.id: index for index, draft in enumerate(self.drafts)}
        self.spots: list[Spot] = []
        for section in sections:
            self._place(section, len(self.drafts), (), ())

    def __iter__(self) -> Iterator[tuple[StepDraft, Spot]]:
        return iter(zip(self.drafts, self.spots, strict=True))

    def node(self, step: StepDraft, spot: Spot, do: Operation, **more: Any) -> Node:
        """Creates the node of a step; `more` are the fields that the dialect adds."""
        return step.node(do, order=spot.index, goes_to=spot.goes_to, **more)

    def _place(
        self, steps: list[StepDraft], after: int, loops: tuple[Loop, ...], around: tuple[list[StepDraft], ...]
    ) -> None:
        """Assigns positions to a list and to all lists inside it.

        `after` is the node that follows the list; `around` are the lists around it.
        """
        lists = (*around, steps)
        for position, step in enumerate(steps):
            index = len(self.spots)
            follows = self.index[steps[position + 1].id] if position + 1 < len(steps) else after
            self.spots.append(Spot(index, follows, loops, lists))
            if step.repeats:
                self._place(step.then, index, (*loops, Loop(index, follows)), lists)
            else:
                self._place(step.then, follows, loops, lists)
            self._place(step.otherwise, follows, loops, lists)

    def never_reached(self, nodes: Sequence[Node]) -> Iterator[tuple[StepDraft, StepDraft]]:
        """The first unreachable step of each list, with the reachable step before it."""
        starts = [self.index[section[0].id] for section in self.sections if section]
        reached = reachable(nodes, starts)
        lists = [*self.sections, *(inside for it in self.drafts for inside in (it.then, it.otherwise))]
        for siblings in lists:
            for before, step in pairwise(siblings):
                if reached[self.index[before.id]] and not reached[self.index[step.id]]:
                    yield before, step


def successors(nodes: Sequence[Node], index: int) -> list[int]:
    """The nodes that can follow a step; the number of nodes stands for the end."""
    node = nodes[index]
    usual = index + 1 if node.goes_to < 0 else node.goes_to
    can_be_skipped = node.condition is not None or node.on_failure == "continue"
    match node.do:
        case Return():
            return [usual] if node.condition is not None else []
        case Branch(otherwise=otherwise) | While(otherwise=otherwise) | Each(otherwise=otherwise):
            return [index + 1, otherwise, *([usual] if can_be_skipped else [])]
        case Jump(target=target):
            return [target, usual]
        case Leave(target=target):
            return [target, *([usual] if node.condition is not None else [])]
        case Call(on_complete=True):
            return [index + 1, usual]
    return [usual]


def reachable(nodes: Sequence[Node], starts: Iterable[int]) -> list[bool]:
    """For each node, whether a run can reach it from one of `starts`."""
    reached = [False] * len(nodes)
    waiting = list(starts)
    while waiting:
        index = waiting.pop()
        if index < len(nodes) and not reached[index]:
            reached[index] = True
            waiting += successors(nodes, index)
    return reached
