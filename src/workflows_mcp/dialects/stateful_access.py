"""Checks that each step reads only what exists and what it declares.

A step can read the fields in its `needs_state`, and no others. References to other fields are reported before
anything runs, with the line to write instead. With `state_access: warn` in the document or in the settings of
the server, they are warnings, and the step can read these fields.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from workflows_mcp.dialects.layout import reachable, successors
from workflows_mcp.dialects.process import unknown_field
from workflows_mcp.dialects.steps import StepDraft, every
from workflows_mcp.errors import Problem
from workflows_mcp.expressions import Reference
from workflows_mcp.plan import Call, Do, InputSpec, Node, Operation, Use
from workflows_mcp.values import Value, did_you_mean, nearest, to_json

# ----------------------------------------------------------------------------------------------------
# Where a secret is allowed: in steps that the server runs, and nowhere where it would be visible.


def misplaced_secret(do: Operation, reference: Reference, part: str | int, is_input: bool) -> tuple[str, str]:
    """The message and the hint for a secret in this part of a step; both empty if it is allowed.

    `is_input`: the part is an input of the step type.
    """
    if len(reference.path) != 2:
        return "a secret has a name of one word", "e.g. {{ secrets.GITHUB_TOKEN }}"
    if isinstance(do, Call) and part == "inputs":
        return "", ""
    if isinstance(do, Do) and do.by == "server" and is_input:
        return "", ""
    hint = "a secret can be given to steps that the server runs (run_on: server), and to workflows"
    return f"a secret cannot be part of '{part}' here", hint


Path = tuple[str | int, ...]

Report = Callable[[Problem], None]


ROOTS = ("state", "inputs")

_AFTER_FAILURE = ("error", "error_code")

"""Fields of the result of a step that has failed."""

OF_ITEMS_EXAMPLE = ("item", "index", "total", "is_first", "is_last")

"""Further variables of a task."""


@dataclass(slots=True)
class Surroundings:
    """The values that the steps of a workflow, or of a task, can read."""

    inputs: Mapping[str, InputSpec]
    initial_state: Iterable[str]
    of_items: bool
    """Whether it is a task, which runs for an item."""
    warn: bool
    """Whether reading an undeclared field is only a warning."""
    fields: set[str] = field(default_factory=set)
    """All fields that are written, as far as they are known."""
    complete: bool = True
    """Whether all written fields are known."""
    results: dict[str, Mapping[str, Value]] = field(default_factory=dict)
    """The schemas of fields that only one step writes, whose result has a schema."""
    sent_back: bool = False
    """Whether a gate sends a step back, so that there is `rejection`."""

    @property
    def roots(self) -> tuple[str, ...]:
        roots = (*ROOTS, "rejection") if self.sent_back else ROOTS
        return (*roots, *OF_ITEMS_EXAMPLE) if self.of_items else roots


def check_access(
    steps: list[StepDraft], around: Surroundings, report: Report
) -> dict[str, tuple[str, ...] | None]:
    """The fields of the state that each step can read, by its id; None is all of them."""
    around.fields = {*around.initial_state, *(name for step in every(steps) for name in step.writes)}
    around.complete = all(step.kind for step in every(steps))
    around.results = _results(steps, around)
    around.sent_back = any(step.process.back_to for step in every(steps))
    reads: dict[str, tuple[str, ...] | None] = {}
    for step, guarded in _with_guards(steps, frozenset()):
        undefined = _undefined(step, guarded, around, report)
        reads[step.id] = _declared(step, undefined, around, report)
    return reads


def _results(steps: list[StepDraft], around: Surroundings) -> dict[str, Mapping[str, Value]]:
    writers = Counter(name for step in every(steps) for name in step.writes)
    writers.update(list(around.initial_state))
    return {
        step.output_to: step.process.result
        for step in every(steps)
        if step.process.result is not None and writers[step.output_to] == 1
    }


def check_order(
    steps: list[StepDraft], nodes: tuple[Node, ...], around: Surroundings, report: Report
) -> None:
    """Reports fields that are read before any step can write them; `nodes` belong to `steps`."""
    initial = set(around.initial_state)
    writers: dict[str, list[int]] = {}
    for index, step in enumerate(every(steps)):
        for name in step.writes:
            writers.setdefault(name, []).append(index)
    after: dict[str, list[bool]] = {}
    ever = reachable(nodes, [0])
    for index, (step, guarded) in enumerate(_with_guards(steps, frozenset())):
        reported: set[str] = set()
        for use in step.uses:
            name = str(use.reference.path[1]) if _is_state(use) else ""
            if (
                name not in writers
                or name in initial
                or name in guarded
                or name in reported
                or not ever[index]
            ):
                continue
            if name not in after:
                starts = [start for writer in writers[name] for start in successors(nodes, writer)]
                after[name] = reachable(nodes, starts)
            if not after[name][index] and not use.reference.optional:
                reported.add(name)
                report(_too_early(step, use, nodes[writers[name][0]].id))


def _too_early(step: StepDraft, use: Use, writer: str) -> Problem:
    name = use.reference.path[1]
    message = f"{use.reference}: nothing has written the field '{name}' when step '{step.id}' reads it"
    hint = f"give it an initial value, initial_state: {{{name}: null}}, or put step '{writer}' before it"
    if writer == step.id:
        hint = f"give it an initial value: initial_state: {{{name}: null}}"
    return Problem("undefined", message, hint, use.path, use.reference.offset)


def _with_guards(
    steps: list[StepDraft], guarded: frozenset[str]
) -> Iterator[tuple[StepDraft, frozenset[str]]]:
    """Each step with the fields whose existence it, or a condition around it, checks."""
    for step in steps:
        asked = {
            str(use.reference.path[1])
            for use in step.uses
            if use.reference.optional and _is_state(use) and use.path[len(step.at) :] in (("when",), ("if",))
        }
        own = guarded | asked
        yield step, own
        yield from _with_guards([*step.then, *step.otherwise], own)


def _is_state(use: Use) -> bool:
    return use.reference.path[0] == "state" and len(use.reference.path) > 1


# References that exist


def _undefined(step: StepDraft, guarded: frozenset[str], around: Surroundings, report: Report) -> set[str]:
    """Reports unknown references; returns the unknown fields of the state."""
    undefined: set[str] = set()
    for use in step.uses:
        root, *rest = use.reference.path
        message = hint = ""
        if root == "state":
            name = str(rest[0]) if rest else ""
            if rest and name not in guarded and name not in around.fields and around.complete:
                if use.reference.optional:
                    continue
                undefined.add(name)
                message = f"nothing writes the field '{name}' of the state"
                hint = did_you_mean(name, around.fields, what="fields") if around.fields else ""
                if around.of_items and not nearest(name, around.fields):
                    hint = f"{hint}; " if hint else ""
                    hint += "a task has its own state: pass the value in the items, and read item or inputs"
                hint = hint or f"set it in a step before, or declare it: initial_state: {{{name}: null}}"
            elif len(rest) > 1 and rest[1] not in _AFTER_FAILURE:
                problem = unknown_field(use, rest[1:], around.results.get(name))
                if problem is not None:
                    report(problem)
        elif root == "inputs":
            message, hint = _in_inputs(rest, around)
        elif root == "secrets":
            message, hint = _secret(step, use)
        elif root in around.roots or str(root) in _set_before(step, use):
            continue
        else:
            message, hint = _unknown_root(str(root), step, use, around)
        if message:
            report(
                Problem(
                    "undefined",
                    f"{use.reference}: {message}",
                    hint,
                    use.path,
                    use.reference.offset,
                    warning=use.reference.optional,
                )
            )
    return undefined


def _in_inputs(rest: list[str | int], around: Surroundings) -> tuple[str, str]:
    if not rest or rest[0] in around.inputs:
        return "", ""
    whose = "the task" if around.of_items else "the workflow"
    if not around.inputs:
        return f"{whose} declares no inputs", f"declare it under inputs: {rest[0]}: {{type: string}}"
    return f"{whose} has no input '{rest[0]}'", did_you_mean(str(rest[0]), around.inputs, what="inputs")


def _secret(step: StepDraft, use: Use) -> tuple[str, str]:
    part = use.path[len(step.at)]
    is_input = isinstance(step.do, Do) and part in step.do.inputs
    return misplaced_secret(step.do, use.reference, part, is_input)


def _set_before(step: StepDraft, use: Use) -> tuple[str, ...]:
    """The updates of a set_state before the one with the reference."""
    inside = use.path[len(step.at) :]
    if not step.sets or inside[:1] != ("updates",) or inside[1] not in step.sets:
        return ()
    return step.sets[: step.sets.index(str(inside[1]))]


def _unknown_root(root: str, step: StepDraft, use: Use, around: Surroundings) -> tuple[str, str]:
    message = f"there is no '{root}'"
    if root in around.fields:
        hint = f"a field of the state is written state.{root}"
        if root in step.sets:
            hint += "; a bare name can only read what the same step sets above it"
        return message, hint
    if root in around.inputs:
        return message, f"an input is written inputs.{root}"
    if root in OF_ITEMS_EXAMPLE:
        return (
            f"'{root}' exists only in a task, which a foreach runs for each item",
            "read state or inputs",
        )
    return message, did_you_mean(root, around.roots, what="an expression starts with one of")


# References that are declared


def _declared(
    step: StepDraft, undefined: set[str], around: Surroundings, report: Report
) -> tuple[str, ...] | None:
    read = dict.fromkeys(str(use.reference.path[1]) for use in step.uses if _is_state(use))
    if step.needs_state is None:
        return _inferred(step, tuple(read), report)
    if "*" in step.needs_state:
        return None
    unwritten = _unwritten(step, read, around)
    missing = {name: None for name in read if name not in step.needs_state and name not in undefined}
    for name in unwritten:
        close = nearest(name, missing)
        hint = f"did you mean '{close}'?" if close else did_you_mean(name, around.fields, what="fields")
        if "." in name:
            hint = f"name the field alone: {name.partition('.')[0]}"
        message = f"needs_state names '{name}', which nothing writes"
        path = (*step.at, "needs_state", step.needs_state.index(name))
        report(Problem("undefined", message, hint, path, warning=around.warn or close is None))
        if close:
            del missing[close]  # one mistake, one problem
    line = f"needs_state: {to_json([*step.needs_state, *missing]).replace(',', ', ')}"
    for name in missing:
        use = next(use for use in step.uses if _is_state(use) and use.reference.path[1] == name)
        report(
            Problem(
                "undeclared_state",
                f"step '{step.id}' reads state.{name} and does not declare it",
                f"write {line}",
                use.path,
                use.reference.offset,
                warning=around.warn,
            )
        )
    return (*step.needs_state, *(name for name in read if name not in step.needs_state))


def _unwritten(step: StepDraft, read: Iterable[str], around: Surroundings) -> list[str]:
    """The fields that a step declares but does not read, and that nothing writes."""
    if not around.complete:
        return []
    return [name for name in step.needs_state or () if name not in around.fields and name not in read]


def _inferred(step: StepDraft, read: tuple[str, ...], report: Report) -> tuple[str, ...] | None:
    """The fields that a step without `needs_state` can read: those that it names."""
    whole = any(use.reference.path == ("state",) for use in step.uses)
    if step.kind != "goto" or read or whole:
        line = to_json(["*"] if whole else list(read)).replace(",", ", ")
        report(
            Problem(
                "undeclared_state",
                f"step '{step.id}' does not declare its state; it sees the fields that its expressions name",
                f"add a line: needs_state: {line}",
                step.at,
                warning=True,
            )
        )
    return None if whole else read
