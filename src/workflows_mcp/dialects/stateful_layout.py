"""The nodes of the steps of a stateful document, and where its gotos lead to."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from workflows_mcp.dialects.flat_layout import FlatLayout, Spot
from workflows_mcp.dialects.stateful_drafts import StepDraft
from workflows_mcp.errors import Problem
from workflows_mcp.plan.model import Branch, Do, Jump, Node, Operation
from workflows_mcp.steps.shell import ANY_EXIT
from workflows_mcp.values import did_you_mean

Report = Callable[[Problem], None]
Reads = Mapping[str, tuple[str, ...] | None]
"""What each step may see of the state, by its id."""
UNREAD = "unread_exit_code"
"""Reported only where nothing is wrong: it is about what a workflow means, not about whether it can run."""


def lay_out(steps: list[StepDraft], reads: Reads, report: Report) -> tuple[Node, ...]:
    """The nodes of the steps, whose ids are unique. Targets that cannot be jumped to are reported, and so are
    steps that are never come to."""
    layout = FlatLayout(steps)
    nodes = tuple(
        layout.node(
            step,
            spot,
            _operation(step, spot, layout, report),
            reads=reads[step.id],
            output_to=step.output_to,
            error_to=step.error_to,
            tolerated=bool(readers := _handled_by(step, layout.drafts)),
            tolerated_by=readers,
        )
        for step, spot in layout
    )
    for before, step in layout.never_reached(nodes):
        report(_never_reached(before, step))
    for step in layout.drafts:
        if _exit_code_is_lost(step, layout.drafts):
            report(_lost_exit_code(step))
    return nodes


def _exit_code_is_lost(step: StepDraft, drafts: list[StepDraft]) -> bool:
    """Whether the agent runs a command, and nothing in the workflow asks how it ended."""
    do = step.do
    if not isinstance(do, Do) or not do.config.get(ANY_EXIT) or step.on_failure is not None:
        return False
    whole = ("state", step.output_to)
    return not _read_by(step, drafts) and not any(
        use.reference.path in (whole, whole[:1]) for it in drafts for use in it.uses
    )


def _lost_exit_code(step: StepDraft) -> Problem:
    read = (
        f"read state.{step.output_to}.exit_code"
        if step.output_to
        else "give it an output_to and read exit_code"
    )
    return Problem(
        UNREAD,
        f"nothing reads the exit code of step '{step.id}': the workflow continues if its command fails",
        f"add a line: on_error: fail, or on_error: continue if that is meant; or {read}",
        step.at,
        warning=True,
    )


def _handled_by(step: StepDraft, drafts: list[StepDraft]) -> tuple[str, ...]:
    """The steps that read the exit code of a command that the server runs, and so handle its failure."""
    by_server = isinstance(step.do, Do) and step.do.by == "server"
    return _read_by(step, drafts) if by_server else ()


def _read_by(step: StepDraft, drafts: list[StepDraft]) -> tuple[str, ...]:
    """The steps that read the exit code of a command."""
    if not isinstance(step.do, Do) or not step.do.may_fail or not step.output_to:
        return ()
    asked = {("state", step.output_to, word) for word in ("exit_code", "success")}
    return tuple(it.id for it in drafts if any(use.reference.path[:3] in asked for use in it.uses))


def _never_reached(before: StepDraft, step: StepDraft) -> Problem:
    return Problem(
        "unreachable",
        f"step '{step.id}' is never come to: '{before.id}' ends the workflow in any case",
        "remove it, or put the return into a condition",
        step.at,
        warning=True,
    )


def _operation(
    step: StepDraft, spot: Spot[StepDraft], layout: FlatLayout[StepDraft], report: Report
) -> Operation:
    if step.kind == "condition":
        otherwise = layout.index[step.otherwise[0].id] if step.otherwise else spot.follows
        return Branch(step.test or "", otherwise)
    if step.kind == "goto":
        return Jump(_target(step, spot, layout, report), step.most, step.on_limit)
    return step.do


def _target(step: StepDraft, spot: Spot[StepDraft], layout: FlatLayout[StepDraft], report: Report) -> int:
    """A goto reaches the steps of its own list and of those around it."""
    known = {it.id: layout.index[it.id] for steps in spot.lists for it in steps}
    target, path = step.target, (*step.at, "target")
    if target is None:
        return 0
    if target == step.id:
        message, hint = f"step '{target}' jumps to itself", "name a step before or after it"
        report(Problem("bad_target", message, hint, path))
    elif target in layout.index and target not in known:
        hint = f"a goto reaches the steps of its own list and of those around it: {', '.join(known)}"
        message = f"step '{target}' is inside of another list, and cannot be jumped to from here"
        report(Problem("bad_target", message, hint, path))
    elif target not in known:
        hint = did_you_mean(target, known.keys() - {step.id}, what="steps")
        report(Problem("bad_target", f"there is no step '{target}'", hint, path))
    return known.get(target, 0)
