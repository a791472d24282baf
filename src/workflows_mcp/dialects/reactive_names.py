"""What the expressions of a reactive document read: is there anybody who provides it?

Names are looked up in an open world: an item brings its fields with it, an included workflow leaves its own,
a result has fields that nobody declares. So a name that nothing provides is a warning, and only where all
names are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from workflows_mcp.dialects.reactive_bodies import Body, Fields
from workflows_mcp.dialects.reactive_control import ABOUT, FAILING
from workflows_mcp.dialects.reactive_drafts import ReactiveDraft
from workflows_mcp.dialects.secret_places import misplaced_secret
from workflows_mcp.errors import Problem
from workflows_mcp.plan.references import Use
from workflows_mcp.values import did_you_mean, nearest

Path = tuple[str | int, ...]
Report = Callable[[Problem], None]

OBJECTS = (
    "raw", "state", "computed", "inputs", "config", "this", "global", "loop", "parent", "workflow_id",
)  # fmt: skip
"""Names that are objects everywhere."""
GIVEN = ("state_update", "error_state_update")
"""Parts of a step in which the fields of its result, or of its error, are names."""
OWN = ("input", "output", "result")
"""What a transform is made of."""
_ONLY_IN = {
    "item": "the steps of a foreach, and in tasks",
    "index": "the steps of a foreach, and in tasks",
    "context": "tasks",
    "task_id": "tasks",
    "total": "tasks",
    "result": "the state_update of a step that is carried out",
    "input": "transforms",
    "output": "the validate of a computed field",
    "error": "error_state_update, on_failure and cleanup_on_error",
}


def check_reads(body: Body, owner: Body, fields: Fields, report: Report) -> None:
    """`owner` is whose state it is: the body itself, or the workflow around a task."""
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


def _with_names(
    steps: list[ReactiveDraft], around: frozenset[str]
) -> Iterator[tuple[ReactiveDraft, frozenset[str]]]:
    """Each step with the names that the loops around it bring."""
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
        self.open = body.is_task or included or not fields.complete
        """Whether there can be names that nobody can know here."""
        self.of_others = body.shares_state and not owner.steps
        """Whether the state is that of a workflow in another file."""
        self.told: set[tuple[str | int, ...]] = set()

    def check_step(self, draft: ReactiveDraft, names: frozenset[str]) -> None:
        for use in draft.uses:
            part = use.path[len(draft.at)]
            more = frozenset(OWN) if part in (*GIVEN, "transform", "updates") else frozenset()
            self.check(use, names | more, draft, of_result=part in GIVEN)

    def check(
        self, use: Use, names: frozenset[str], draft: ReactiveDraft | None, *, of_result: bool = False
    ) -> None:
        """`names` are those that exist here beside what exists everywhere."""
        root, *rest = map(str, use.reference.path)
        if root == "secrets":
            self._secret(use, draft)
        elif root in ("raw", "state", "computed") and rest:
            self._member(use, root, rest[0])
        elif root == "inputs" and rest:
            close = nearest(rest[0], self.inputs) if rest[0] not in self.inputs else None
            if close:  # others may be given although nothing declares them
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
        if use.reference.optional or (*use.path, message) in self.told:
            return
        self.told.add((*use.path, message))
        offset = use.reference.offset
        self.report(Problem("undefined", message, hint, use.path, offset, warning=True))

    def _secret(self, use: Use, draft: ReactiveDraft | None) -> None:
        message, hint = (
            "a secret cannot be part of the state",
            "give it to a step that the server carries out",
        )
        if draft is not None:
            part = use.path[len(draft.at)]
            message, hint = misplaced_secret(draft.do, use.reference, part, part not in (*ABOUT, *FAILING))
        if message:
            offset = use.reference.offset
            self.report(Problem("undefined", f"{use.reference}: {message}", hint, use.path, offset))
