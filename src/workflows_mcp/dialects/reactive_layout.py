"""The nodes of the steps of a reactive document: what each is called, and where it goes on.

A step is called what its author calls it, where no other step of the workflow is called so too. Else, and
where the author says nothing, its place is part of its id: `detect-then-0-shell_command`, `2-user_message`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from workflows_mcp.dialects.flat_layout import FlatLayout, Spot
from workflows_mcp.dialects.reactive_drafts import ReactiveDraft
from workflows_mcp.dialects.step_drafts import every
from workflows_mcp.errors import Problem
from workflows_mcp.plan.model import Branch, Each, Leave, Node, Operation, While

Report = Callable[[Problem], None]
Steps = list[ReactiveDraft]


def name_steps(steps: Steps, on_failure: Steps) -> None:
    """Give every step an id of its own."""
    count = Counter(draft.own_id for draft in every([*steps, *on_failure]) if draft.own_id)
    taken = {name for name, times in count.items() if times == 1}

    def name(drafts: Steps, around: str) -> None:
        for draft in drafts:
            inside, index = draft.at[-2:]
            if count[draft.own_id] == 1:
                draft.id = draft.own_id
            else:
                prefix = f"{around}-{inside}-" if around else "" if drafts is steps else f"{inside}-"
                draft.id = _unused(f"{prefix}{index}-{draft.own_id or draft.kind or 'step'}", taken)
            name(draft.then, draft.id)
            name(draft.otherwise, draft.id)

    name(steps, "")
    name(on_failure, "")


def _unused(name: str, taken: set[str]) -> str:
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    taken.add(found)
    return found


def unfolded(steps: Steps) -> Steps:
    """The steps with those of `sequential` in its place: it says nothing but that they belong together."""
    found: Steps = []
    for step in steps:
        step.then, step.otherwise = unfolded(step.then), unfolded(step.otherwise)
        found += step.then if step.kind == "sequential" and step.condition is None else [step]
    return found


def lay_out(steps: Steps, on_failure: Steps, report: Report) -> tuple[Node, ...]:
    """The nodes, those of `on_failure` behind the others. Steps that leave a loop and are in none are
    reported, and so are steps that are never come to."""
    layout = FlatLayout(steps, on_failure)
    nodes = tuple(
        layout.node(
            step,
            spot,
            _operation(step, spot, layout, report),
            loops=tuple(loop.head for loop in spot.loops),
            changes=step.changes,
            error_changes=step.error_changes,
            fallback=step.fallback,
            has_fallback=step.has_fallback,
        )
        for step, spot in layout
    )
    for before, step in layout.never_reached(nodes):
        report(_never_reached(before, step))
    return nodes


def _operation(
    step: ReactiveDraft, spot: Spot[ReactiveDraft], layout: FlatLayout[ReactiveDraft], report: Report
) -> Operation:
    if step.for_each is not None and not step.for_each.wait and spot.loops:
        message = "its tasks of one round could still be under way in the next one"
        hint = "inside of a loop wait for them: wait_for_all: true"
        report(Problem("wait_in_loop", message, hint, (*step.at, "wait_for_all")))
    match step.kind:
        case "conditional" | "sequential":
            otherwise = layout.index[step.otherwise[0].id] if step.otherwise else spot.follows
            return Branch(step.test or "false", otherwise)
        case "while":
            return While(step.test or "false", spot.follows, step.most, step.on_limit)
        case "foreach":
            return Each(step.items, spot.follows, step.item, step.index)
        case "break" | "continue":
            return _leave(step, spot, report)
    return step.do


def _leave(step: ReactiveDraft, spot: Spot[ReactiveDraft], report: Report) -> Leave:
    if not spot.loops:
        hint = "it belongs into the body of a while, or the steps of a foreach; exit ends the workflow"
        message = f"a step of type {step.kind} stands outside of any loop"
        report(Problem("bad_target", message, hint, step.at))
        return Leave(spot.follows)
    loop = spot.loops[-1]
    return Leave(loop.behind, loop.head) if step.kind == "break" else Leave(loop.head)


def _never_reached(before: ReactiveDraft, step: ReactiveDraft) -> Problem:
    ends = {
        "break": "leaves the loop",
        "continue": "goes on with the next round",
        "exit": "ends the workflow",
    }
    what = ends.get(before.kind, "does not go on here")
    return Problem(
        "unreachable",
        f"step '{step.id}' is never come to: '{before.id}' {what} in any case",
        f"remove it, or give '{before.id}' a condition: when: …" if before.kind in ends else "remove it",
        step.at,
        warning=True,
    )
