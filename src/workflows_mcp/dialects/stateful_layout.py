"""Nested lists of steps become one flat list of nodes that say where it goes on.

    a                       0 a
    b condition             1 b       branch: 2 if it holds, otherwise 4; 5 if it is skipped
      then: c, d            2 c
      else: e               3 d       goes to 5
    f                       4 e
                            5 f

The last step of a list goes on behind all the lists that end with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise

from workflows_mcp.dialects.stateful_drafts import StepDraft, every
from workflows_mcp.errors import Problem
from workflows_mcp.plan.model import Branch, Jump, Node, Operation, Return
from workflows_mcp.values import did_you_mean

Report = Callable[[Problem], None]
Reads = Mapping[str, tuple[str, ...] | None]
"""What each step may see of the state, by its id."""


def lay_out(steps: list[StepDraft], reads: Reads, report: Report) -> tuple[Node, ...]:
    """The nodes of the steps, whose ids are unique. Targets that cannot be jumped to are reported, and so are
    steps that are never come to."""
    layout = _Layout(steps, reads, report)
    layout.place(steps, len(layout.drafts), {})
    nodes = tuple(layout.nodes[index] for index in range(len(layout.drafts)))
    reached = reachable(nodes, [0])
    for siblings in _lists(steps):
        for before, step in pairwise(siblings):
            if reached[layout.index[before.id]] and not reached[layout.index[step.id]]:
                report(_never_reached(before, step))
    return nodes


def successors(nodes: tuple[Node, ...], index: int) -> list[int]:
    """Where it can go on after a step; the number of nodes is the end."""
    node = nodes[index]
    usual = index + 1 if node.goes_to < 0 else node.goes_to
    match node.do:
        case Return():
            return []
        case Branch(otherwise=otherwise):
            skipped = [usual] if node.condition is not None or node.on_failure == "continue" else []
            return [index + 1, otherwise, *skipped]
        case Jump(target=target):
            return [target, usual]
    return [usual]


def reachable(nodes: tuple[Node, ...], starts: Iterable[int]) -> list[bool]:
    """For each node, whether it can be come to when it goes on at one of `starts`."""
    reached = [False] * len(nodes)
    waiting = list(starts)
    while waiting:
        index = waiting.pop()
        if index < len(nodes) and not reached[index]:
            reached[index] = True
            waiting += successors(nodes, index)
    return reached


def _lists(steps: list[StepDraft]) -> list[list[StepDraft]]:
    found = [steps]
    for step in every(steps):
        found += [step.then, step.otherwise]
    return found


def _never_reached(before: StepDraft, step: StepDraft) -> Problem:
    return Problem(
        "unreachable",
        f"step '{step.id}' is never come to: '{before.id}' ends the workflow in any case",
        "remove it, or put the return into a condition",
        step.at,
        warning=True,
    )


class _Layout:
    def __init__(self, steps: list[StepDraft], reads: Reads, report: Report) -> None:
        self.drafts = list(every(steps))
        self.index = {draft.id: index for index, draft in enumerate(self.drafts)}
        self.reads = reads
        self.report = report
        self.nodes: dict[int, Node] = {}

    def place(self, steps: list[StepDraft], after: int, around: dict[str, int]) -> None:
        """Make the nodes of a list. `after` is where it goes on behind the list; `around` are the steps of
        the lists that this one is in."""
        known = {**around, **{step.id: self.index[step.id] for step in steps}}
        for position, step in enumerate(steps):
            follows = self.index[steps[position + 1].id] if position + 1 < len(steps) else after
            index = self.index[step.id]
            self.nodes[index] = Node(
                id=step.id,
                do=self._operation(step, follows, known),
                at=step.at,
                condition=step.condition,
                on_failure=step.on_failure,
                order=index,
                retry=step.retry,
                for_each=step.for_each,
                on_interrupt=step.on_interrupt,
                goes_to=-1 if follows == index + 1 else follows,
                reads=self.reads[step.id],
                output_to=step.output_to,
            )
            self.place(step.then, follows, known)
            self.place(step.otherwise, follows, known)

    def _operation(self, step: StepDraft, follows: int, known: dict[str, int]) -> Operation:
        if step.kind == "condition":
            otherwise = self.index[step.otherwise[0].id] if step.otherwise else follows
            return Branch(step.test or "", otherwise)
        if step.kind == "goto":
            return Jump(self._target(step, known), step.most)
        return step.do

    def _target(self, step: StepDraft, known: dict[str, int]) -> int:
        target, path = step.target, (*step.at, "target")
        if target is None:
            return 0
        if target == step.id:
            message, hint = f"step '{target}' jumps to itself", "name a step before or after it"
            self.report(Problem("bad_target", message, hint, path))
        elif target in self.index and target not in known:
            hint = f"a goto reaches the steps of its own list and of those around it: {', '.join(known)}"
            message = f"step '{target}' is inside of another list, and cannot be jumped to from here"
            self.report(Problem("bad_target", message, hint, path))
        elif target not in known:
            hint = did_you_mean(target, known.keys() - {step.id}, what="steps")
            self.report(Problem("bad_target", f"there is no step '{target}'", hint, path))
        return known.get(target, 0)
