"""Checks the names that the expressions of a reactive document read.

Not all names are known before a run: items have fields, included workflows add fields, and results have
undeclared fields. So an unknown name is only a warning, and only where all names are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from workflows_mcp.dialects.keys import Path, Report
from workflows_mcp.dialects.process import unknown_field
from workflows_mcp.dialects.reactive_state import WRITABLE, Declared, StatePath, field_of
from workflows_mcp.dialects.reactive_steps import ABOUT, FAILING, ErrorHandling
from workflows_mcp.dialects.stateful_access import misplaced_secret
from workflows_mcp.dialects.steps import StepDraft, every
from workflows_mcp.errors import Problem
from workflows_mcp.plan import InputSpec, Use, arrange, cycles
from workflows_mcp.values import Value, did_you_mean, nearest

# ----------------------------------------------------------------------------------------------------
# A workflow or a task as read from a reactive document, and the fields of its state.


@dataclass(slots=True)
class Body:
    name: str
    path: Path
    """Its path in the document; empty for the workflow itself."""
    given: dict[str, Value]
    steps: list[StepDraft]
    declared: Declared
    errors: ErrorHandling
    inputs: dict[str, InputSpec] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    """The variables of a task besides its item."""
    in_values: list[Use] = field(default_factory=list)

    @property
    def every(self) -> list[StepDraft]:
        return [*every(self.steps), *every(self.errors.steps)]

    @property
    def is_task(self) -> bool:
        return bool(self.path)

    @property
    def shares_state(self) -> bool:
        return self.is_task and not self.declared.is_given


@dataclass(slots=True)
class Fields:
    """The fields of `raw` and of `state`."""

    raw: set[str] = field(default_factory=set)
    state: set[str] = field(default_factory=set)
    complete: bool = True
    """Whether all fields that steps write are known."""

    @property
    def names(self) -> set[str]:
        return self.raw | self.state

    def of(self, part: str) -> set[str]:
        return self.raw if part == "raw" else self.state


def fields_of(bodies: Iterable[Body]) -> Fields:
    """The fields that bodies with a shared state declare or write."""
    fields = Fields()
    for body in bodies:
        if not body.is_task:
            fields.raw |= set(body.inputs)  # inputs are fields of raw too
        for part in WRITABLE:
            fields.of(part).update(body.declared.fields(part))
        for keys in _written(body):
            name = field_of(keys)
            if name is None:
                fields.complete = False
            else:
                fields.of(str(keys[0])).add(name)
        if any(not draft.kind for draft in body.every):
            fields.complete = False
    return fields


def _written(body: Body) -> list[StatePath]:
    drafts = body.every
    changes = [it for draft in drafts for it in (*draft.updates, *draft.changes, *draft.error_changes)]
    places = [change.path for change in changes]
    eaches = [draft.for_each for draft in drafts if draft.for_each is not None]
    places += [each.errors_to for each in eaches if each.errors_to is not None]
    return [path for path in (*(tuple(it.source) for it in places), body.errors.errors_to) if path]


OBJECTS = (
    "raw", "state", "computed", "inputs", "config", "this", "global", "loop", "parent", "workflow_id",
)  # fmt: skip

"""Names that every expression can use."""

GIVEN = ("state_update", "error_state_update")

"""Keys of a step whose expressions can name the fields of its result, or of its error."""

OWN = ("input", "output", "result")

"""The variables of a transform."""

_ONLY_IN = {
    "item": "the steps of a foreach, and in tasks",
    "index": "the steps of a foreach, and in tasks",
    "context": "tasks",
    "task_id": "tasks",
    "total": "tasks",
    "result": "the state_update of a step that has a result",
    "input": "transforms",
    "output": "the validate of a computed field",
    "error": "error_state_update, on_failure and cleanup_on_error",
}


def check_reads(body: Body, owner: Body, fields: Fields, report: Report) -> None:
    """Reports names that nothing provides, and misplaced secrets.

    `owner` declares the state: it is the body itself, or the workflow around a task.
    """
    reads = _Reads(body, owner, fields, report)
    for use in body.declared.in_defaults:
        reads.check(use, frozenset(), None)
    for uses in body.declared.uses.values() if body is owner else ():
        for use in uses:
            reads.check(use, frozenset(OWN), None)
    for use in (*body.in_values, *body.errors.uses):
        reads.check(use, frozenset(), None)
    for draft, names in _with_names(body.steps, frozenset()):
        reads.check_step(draft, names)
    for draft, names in _with_names(body.errors.steps, frozenset(["error"])):
        reads.check_step(draft, names)


def _with_names(steps: list[StepDraft], around: frozenset[str]) -> Iterator[tuple[StepDraft, frozenset[str]]]:
    """Each step with the variables of the loops around it."""
    for step in steps:
        yield step, around
        inside = around | {step.item, step.index} if step.kind == "foreach" else around
        yield from _with_names(step.then, inside)
        yield from _with_names(step.otherwise, around)


class _Reads:
    def __init__(self, body: Body, owner: Body, fields: Fields, report: Report) -> None:
        self.computed = owner.declared.computed
        self.fields = fields
        self.report = report
        config = owner.given.get("config")
        self.inputs = {*body.inputs, *owner.inputs}
        self.names = {*fields.names, *self.computed, *self.inputs}
        self.names |= set(config) if isinstance(config, dict) else set()
        included = any(draft.kind == "include_workflow" for draft in (*body.every, *owner.every))
        self.names |= {"rejection"} if any(draft.process.back_to for draft in body.every) else set()
        self.open = body.is_task or included or not fields.complete
        """Whether there can be names that are not known here."""
        self.of_others = body.shares_state and not owner.steps
        """Whether the state belongs to a workflow in another file."""
        self._warned: set[tuple[str | int, ...]] = set()

    def check_step(self, draft: StepDraft, names: frozenset[str]) -> None:
        for use in draft.uses:
            part = use.path[len(draft.at)]
            root, *rest = use.reference.path
            if part == "state_update" and root == "result":
                problem = unknown_field(use, rest, draft.process.result)
                if problem is not None:
                    self.report(problem)
            more = frozenset(OWN) if part in (*GIVEN, "transform", "updates") else frozenset()
            self.check(use, names | more, draft, of_result=part in GIVEN)

    def check(
        self, use: Use, names: frozenset[str], draft: StepDraft | None, *, of_result: bool = False
    ) -> None:
        """Checks one reference; `names` are the names that exist only here."""
        root, *rest = map(str, use.reference.path)
        if root == "secrets":
            self._secret(use, draft)
        elif root in ("raw", "state", "computed") and rest:
            self._member(use, root, rest[0])
        elif root == "inputs" and rest:
            close = nearest(rest[0], self.inputs) if rest[0] not in self.inputs else None
            if close:  # undeclared inputs are allowed
                message = f"inputs.{rest[0]}: there is no input '{rest[0]}'"
                self._warn(use, message, f"did you mean '{close}'?")
        elif not (root in OBJECTS or root in names or root in self.names or self.open or of_result):
            self._warn(use, f"nothing provides '{root}'", self._hint(root, {*self.names, *names}))

    def _hint(self, name: str, known: set[str]) -> str:
        if name in _ONLY_IN:
            return f"'{name}' exists only in {_ONLY_IN[name]}"
        if nearest(name, known):
            return did_you_mean(name, known, what="there is")
        return f"declare it under inputs, or give it a value: default_state: {{raw: {{{name}: 0}}}}"

    def _member(self, use: Use, part: str, name: str) -> None:
        known = set(self.computed) if part == "computed" else self.fields.of(part)
        if self.of_others or name in known or (part != "computed" and not self.fields.complete):
            return
        hint = did_you_mean(name, known, what="fields") if known else "declare it under state_schema"
        what = "there is no computed field" if part == "computed" else "nothing declares or writes the field"
        self._warn(use, f"{part}.{name}: {what} '{name}'", hint)

    def _warn(self, use: Use, message: str, hint: str) -> None:
        if use.reference.optional or (*use.path, message) in self._warned:
            return
        self._warned.add((*use.path, message))
        offset = use.reference.offset
        self.report(Problem("undefined", message, hint, use.path, offset, warning=True))

    def _secret(self, use: Use, draft: StepDraft | None) -> None:
        message, hint = (
            "a secret cannot be part of the state",
            "give it to a step that the server runs",
        )
        if draft is not None:
            part = use.path[len(draft.at)]
            message, hint = misplaced_secret(draft.do, use.reference, part, part not in (*ABOUT, *FAILING))
        if message:
            offset = use.reference.offset
            self.report(Problem("undefined", f"{use.reference}: {message}", hint, use.path, offset))


# ----------------------------------------------------------------------------------------------------
# Checks the computed fields of a reactive document: their sources exist, and none depends on itself.


WHOLE = ("this", "global")

"""Names of the whole state in the expressions of steps."""


def check_computed(body: Body, fields: Fields, report: Report) -> None:
    """Reports unknown sources, cycles and name collisions; `fields` are all other fields."""
    for name, spec in body.declared.computed.items():
        place = (*body.declared.places[name], "from")
        for index, source in enumerate(spec.sources):
            problem = _unknown(name, source, (*place, index) if spec.many else place, body, fields)
            if problem is not None:
                report(problem)
        for use in body.declared.uses.get(name, ()):
            if use.reference.path[0] in WHOLE and use.reference.path[0] not in fields.names:
                report(_read_as_a_whole(use, body))
    _check_cycles(body, report)
    _check_collisions(body, fields, report)


def _read_as_a_whole(use: Use, body: Body) -> Problem:
    """The problem of a computed field that reads the whole state.

    A field is computed again when one of the fields that it names changes, so it must name them.
    """
    root, *rest = map(str, use.reference.path)
    hint = f"write {rest[0]}" if rest else "name each field that it reads, e.g. raw.files"
    if rest and root == "global" and body.is_task:
        hint = f'pass it to the task: inputs: {{{rest[0]}: "{{{{ {rest[0]} }}}}"}}, and write {rest[0]}'
    message = f"{use.reference}: a computed field has no '{root}': it names each field that it reads"
    return Problem("undefined", message, hint, use.path, use.reference.offset)


def _unknown(name: str, source: str, path: Path, body: Body, fields: Fields) -> Problem | None:
    part, field = source.split(".")[:2]
    computed = body.declared.computed
    if part == "computed":
        if field in computed:
            return None
        hint = did_you_mean(field, computed, what="computed fields")
        if field in fields.names:
            hint = f"write raw.{field}" if field in fields.raw else f"write state.{field}"
        message = f"'{name}' is computed from '{source}', but there is no computed field '{field}'"
        return Problem("undefined", message, hint, path)
    if part not in ("raw", "state") or field in fields.of(part) or not fields.complete:
        return None
    message = f"'{name}' is computed from '{source}', which nothing declares or writes"
    hint = f"declare it: state_schema: {{{part}: {{{field}: any}}}}"
    if field in computed:
        hint = f"write computed.{field}"
    elif field in fields.names:
        hint = f"write {'state' if part == 'raw' else 'raw'}.{field}"
    elif close := nearest(field, fields.of(part)):
        hint = f"did you mean '{part}.{close}'?"
    return Problem("undefined", message, hint, path)


def _check_cycles(body: Body, report: Report) -> None:
    names = list(body.declared.computed)
    position = {name: index for index, name in enumerate(names)}
    needs = [sorted({position[it] for it in _needed(name, body) if it in position}) for name in names]
    for cycle in cycles(needs, arrange(needs).waves):
        path = [names[index] for index in cycle]
        message = f"the computed fields depend on each other: {' → '.join([*path, path[0]])}"
        if len(path) == 1:
            message = f"the computed field '{path[0]}' depends on itself"
        hint = "compute one of them from raw fields only; in a transform, raw.name is never a computed field"
        report(Problem("cycle", message, hint, body.declared.places[path[0]], on_key=True))


def _needed(name: str, body: Body) -> list[str]:
    """The names of its sources, and of the fields that its transform reads."""
    spec = body.declared.computed[name]
    needed = [it.split(".")[1] for it in spec.sources if it.startswith("computed.")]
    for use in body.declared.uses.get(name, ()):
        root, *rest = use.reference.path
        if root == "computed":
            needed += [str(it) for it in rest[:1]]
        else:
            needed.append(str(root))
    return needed


def _check_collisions(body: Body, fields: Fields, report: Report) -> None:
    for name, place in body.declared.places.items():
        parts = [part for part in ("raw", "state") if name in fields.of(part)]
        if parts:
            message = f"'{name}' is both a computed field and a field of {parts[0]}: the bare name means the"
            message += " computed field"
            hint = f"give one of the two another name, or read {parts[0]}.{name}"
            report(Problem("name_collision", message, hint, place, on_key=True, warning=True))
    for name in sorted(fields.raw & fields.state - body.declared.computed.keys()):
        message = f"'{name}' is a field of both raw and state: the bare name means raw.{name}"
        hint = f"give one of the two another name, or read state.{name}"
        path = body.path or ("steps",)
        for section in ("default_state", "state_schema"):
            given = body.given.get(section)
            if isinstance(given, dict) and isinstance(given.get("state"), dict) and name in given["state"]:
                path = (*body.path, section, "state", name)
        report(Problem("name_collision", message, hint, path, on_key=True, warning=True))
