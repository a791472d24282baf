"""The state of a reactive workflow, with its computed fields; tasks may share it.

    state.flat()                                        # {"files": […], "valid_files": […]}
    state.change([(("raw", "count"), "increment", 1)])  # all of the changes, or none

Raises WrongChange for a change that cannot be made, EvaluationError if a computed field propagates its error.

Computed fields follow from the rest of a state. A field is computed when it is read, and again only after
one of its sources has changed. Its sources are its `from` paths and the names in its transform. It remembers
the values that it was computed from: a state is never changed in place (see `changes`), so the same object
is the same value.

    fields = ComputedFields(plan, language, limits)
    fields.value("valid_files", around)       # `around` has the state, the inputs and the configuration
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workflows_mcp.errors import TOO_LARGE, TOO_SLOW, ExpressionError
from workflows_mcp.expressions import MISSING, UNSET, Reference
from workflows_mcp.limits import Limits
from workflows_mcp.machine.changes import Path, TooLarge, changed, check_type, size_of, too_deep
from workflows_mcp.machine.program import EvaluationError, Program
from workflows_mcp.machine.state import Scope
from workflows_mcp.plan import ChangeOperation, Computed, Plan
from workflows_mcp.values import Value

STOPPED = (TOO_SLOW, TOO_LARGE)
"""No `on_error` handles these: on another machine the expression may not be stopped."""
OWN_NAMES = ("input", "output", "result")


@dataclass(slots=True)
class Trace:
    """One computation of a field, for tracing."""

    field: str
    trigger: str
    input: Value
    output: Value
    error: str | None = None
    seconds: float | None = None
    """The duration, if there is a clock."""


@dataclass(slots=True)
class _Kept:
    came_from: list[Any]
    value: Any
    error: str | None = None
    stopped: ExpressionError | None = None
    """The error, if it was stopped; only copies for readers store this."""


@dataclass(slots=True)
class Around:
    """What fields are computed from."""

    state: dict[str, Value]
    inputs: Mapping[str, Value]
    config: Mapping[str, Value] = field(default_factory=dict)


class ComputedFields:
    def __init__(self, plan: Plan, language: Any, limits: Any, trace: Callable[[Trace], None] | None = None):
        self.plan = plan
        self._language = language
        self._limits = limits
        self._kept: dict[str, _Kept] = {}
        self._seen: dict[str, _Kept] = {}
        """Values that copies for readers computed: all copies share them, the run does not use them."""
        self._is_copy = False
        self._sources: dict[str, list[Path]] = {}
        self.trace = trace
        self.clock: Callable[[], float] | None = None

    def copy(self) -> ComputedFields:
        """A copy for a reader in another thread, with the values that the run and other copies have computed.

        The run itself never uses what a copy computes, because it would not have that after a restart. Above
        all it must not know that a copy's expression was stopped."""
        other = ComputedFields(self.plan, self._language, self._limits)
        other._kept, other._sources = dict(self._kept), self._sources
        other._seen, other._is_copy = self._seen, True
        return other

    def names(self) -> list[str]:
        return list(self.plan.computed)

    def value(self, name: str, around: Around) -> Any:
        """The value of a field, or MISSING if it has none.

        Raises EvaluationError, naming the field, if its transform was stopped, or if it failed with
        `on_error: propagate`."""
        spec = self.plan.computed[name]
        if spec.static:
            return spec.value
        paths = self._sources.get(name)
        if paths is None:
            paths = self._sources[name] = _sources(spec, self._language)
        came_from = [self._found(path, around) for path in paths]
        kept = self._kept.get(name)
        if self._is_copy and not _holds(kept, came_from) and _holds(seen := self._seen.get(name), came_from):
            kept = seen
        if kept is not None and _holds(kept, came_from):
            if kept.stopped is not None:
                raise self._propagated(name, kept.stopped)
            if kept.error is not None and spec.on_error == "propagate":
                raise self._propagated(name, ExpressionError(kept.error, code="javascript"))
            return kept.value
        given = [None if value is MISSING else value for value in came_from[: len(spec.sources)]]
        entered = given if spec.many else given[0] if given else None
        begun = self.clock() if self.clock is not None else 0.0
        try:
            value, error = self._computed(spec, entered, around)
        except ExpressionError as stopped:
            if self._is_copy:
                self._seen[name] = _Kept(came_from, None, stopped.message, stopped)
            raise self._propagated(name, stopped) from None
        if self.trace is not None:
            output = None if value is MISSING else value
            seconds = self.clock() - begun if self.clock is not None else None
            self.trace(Trace(name, _trigger(paths, kept, came_from), entered, output, error, seconds))
        self._kept[name] = _Kept(came_from, value, error)
        if self._is_copy:
            self._seen[name] = self._kept[name]
        if error is not None and spec.on_error == "propagate":
            raise self._propagated(name, ExpressionError(error, code="javascript"))
        return value

    def error(self, name: str) -> str | None:
        """The error of the last computation of the field, if it failed."""
        kept = self._kept.get(name)
        return kept.error if kept is not None else None

    def all(self, around: Around) -> dict[str, Value]:
        """The fields that have a value."""
        values = ((name, self.value(name, around)) for name in self.plan.computed)
        return {name: value for name, value in values if value is not MISSING}

    def check(self, around: Around) -> None:
        """Raises EvaluationError if a field with `on_error: propagate` fails."""
        for name, spec in self.plan.computed.items():
            if spec.on_error == "propagate":
                self.value(name, around)

    def _computed(self, spec: Computed, entered: Value, around: Around) -> tuple[Any, str | None]:
        """The value, and the error if it failed. Raises ExpressionError if it was stopped."""
        names = {"input": entered, "__limits__": self._limits}
        try:
            transform = transform_of(spec, self._language)
            for reference in transform.references:
                root = str(reference.path[0])
                if root not in names:
                    found = self._name(root, around)
                    if found is not MISSING:
                        names[root] = found
            return transform.evaluate(names), None
        except ExpressionError as error:
            if error.code in STOPPED:
                raise
            value: Any = None
            if spec.on_error == "use_fallback":
                value = spec.fallback
            elif spec.on_error == "ignore":
                value = MISSING
            return value, error.message

    def _propagated(self, name: str, error: ExpressionError) -> EvaluationError:
        message = f"the computed field '{name}' cannot be computed: {error.message}"
        hint = error.hint or "to continue without its value, set on_error: use_fallback and a fallback"
        cause = ExpressionError(message, hint=hint, offset=error.offset, code=error.code)
        return EvaluationError(cause, self.plan.name, ("state_schema", "computed", name, "transform"))

    # The sources of a field

    def _found(self, path: Path, around: Around) -> Any:
        value = self._name(str(path[0]), around)
        for part in path[1:]:
            if isinstance(value, _Members):
                value = value.lookup(part)
            elif isinstance(value, dict):
                value = value.get(part, MISSING)
            elif isinstance(value, list) and isinstance(part, int) and part < len(value):
                value = value[part]
            else:
                return MISSING
        # a namespace object is new on each lookup, so its identity is compared
        return value.identity() if isinstance(value, _Members) else value

    def _name(self, name: str, around: Around) -> Any:
        state = around.state
        if name in ("raw", "state"):
            return state.get(name, {})
        if name == "computed":
            return _Members(self, around)
        if name == "inputs":
            return around.inputs
        if name in self.plan.computed and (found := self.value(name, around)) is not MISSING:
            return found
        for part in (state.get("raw", {}), state.get("state", {}), around.inputs):
            if name in part:
                return part[name]
        if name == "config":
            return around.config
        if name in around.config:
            return around.config[name]
        return UNSET if name in self.plan.known or name in self.plan.computed else MISSING


def _holds(kept: _Kept | None, came_from: list[Any]) -> bool:
    return kept is not None and all(map(_same, kept.came_from, came_from))


def _same(before: Any, now: Any) -> bool:
    """Whether the value is unchanged: the same object, or an equal text, number or boolean."""
    plain = isinstance(now, str | int | float) and type(before) is type(now)
    return before is now or (plain and bool(before == now))


def _trigger(paths: list[Path], kept: _Kept | None, came_from: list[Any]) -> str:
    """The sources that have changed since the last computation."""
    if kept is None:
        return "first read"
    both = zip(paths, kept.came_from, came_from, strict=True)
    return ", ".join(".".join(map(str, path)) for path, before, now in both if not _same(before, now))


class _Members:
    """`computed` as an object, inside a transform."""

    __slots__ = ("_around", "_fields")

    def __init__(self, fields: ComputedFields, around: Around) -> None:
        self._fields = fields
        self._around = around

    def lookup(self, name: str | int) -> Any:
        if name not in self._fields.plan.computed:
            return MISSING
        return self._fields.value(str(name), self._around)

    def names(self) -> list[str]:
        return self._fields.names()

    def plain(self) -> Value:
        return self._fields.all(self._around)

    def identity(self) -> Value:
        return object()


def _sources(spec: Computed, language: Any) -> list[Path]:
    """The sources of a field: its `from` paths, and those that its transform reads."""
    paths: list[Path] = [tuple(source.split(".")) for source in spec.sources]
    paths += [path for path in mentioned(spec, language) if path not in paths]
    return paths


def transform_of(spec: Computed, language: Any) -> Any:
    """The expression that computes the field, with its validation if it has one."""
    if spec.validate:
        return language.transform(spec.transform, spec.validate)
    return language.transform(spec.transform)


def mentioned(spec: Computed, language: Any) -> Iterator[Path]:
    """The paths of the state that a transform reads by name."""
    references: tuple[Reference, ...] = ()
    try:
        references = transform_of(spec, language).references
    except ExpressionError:
        return
    for path in (reference.path for reference in references):
        if path[0] not in OWN_NAMES:
            yield path[:2] if path[0] in ("raw", "state", "computed") else path[:1]


Changes = Sequence[tuple[Path, ChangeOperation, Value]]


class ReactiveState:
    __slots__ = ("_size", "fields", "limits", "on_change", "outer", "plan", "scope")

    def __init__(
        self, scope: Scope, program: Program, limits: Limits, outer: ReactiveState | None = None
    ) -> None:
        self.scope = scope
        self.plan: Plan = program.plan
        self.limits = limits
        self.fields = ComputedFields(self.plan, program.language, limits)
        self.outer = outer
        """The state of the workflow around it, for a task that has one of its own."""
        self._size: int | None = None
        self.on_change: Callable[[dict[str, Value]], None] | None = None
        """Called after each change with the state before it; for tracing."""

    @property
    def outermost(self) -> ReactiveState:
        return self if self.outer is None else self.outer.outermost

    def around(self) -> Around:
        return Around(self.scope.state, self.scope.inputs, self.plan.config)

    def flat(self) -> dict[str, Value]:
        """All fields by their bare names: computed fields take precedence over `raw`, and `raw` over
        `state`."""
        state = self.scope.state
        return {**state.get("state", {}), **state.get("raw", {}), **self.fields.all(self.around())}

    def lookup(self, name: str | int) -> Any:
        """The field with this bare name, or MISSING."""
        if name in self.plan.computed:
            found = self.fields.value(str(name), self.around())
            if found is not MISSING:
                return found
        for part in ("raw", "state"):
            fields: dict[Any, Value] = self.scope.state.get(part, {})
            if name in fields:
                return fields[name]
        return MISSING

    def names(self) -> list[str]:
        state = self.scope.state
        return list(dict.fromkeys([*self.plan.computed, *state.get("raw", {}), *state.get("state", {})]))

    def plain(self) -> Value:
        return self.flat()

    def tried(self, changes: Changes) -> tuple[dict[str, Value], int]:
        """The state after the changes, and its size; the state itself does not change."""
        state, size = self.scope.state, self._bytes()
        for path, operation, value in changes:
            deep = too_deep(value, self.limits, len(path)) if self.plan.semantics >= 3 else None
            if deep is not None:
                raise TooLarge(deep, "use a flatter structure: a list of values, or keys such as a.b.c")
            state, grown = changed(state, path, operation, value)
            check_type(self.plan.raw_types, state, path)
            size += grown
        if size > self.limits.state_bytes:
            raise TooLarge(
                f"the state would have {size} bytes, at most {self.limits.state_bytes} are allowed"
                f" ({self.limits.setting('state_bytes')}){self._largest(state)}",
                "store less, or write it to a file and store its path",
            )
        return state, size

    def reset(self, state: dict[str, Value]) -> None:
        """Replace the whole state."""
        before, self.scope.state, self._size = self.scope.state, state, None
        if self.on_change is not None:
            self.on_change(before)

    def change(self, changes: Changes) -> None:
        before, size = self.scope.state, self._bytes()
        self.scope.state, self._size = self.tried(changes)
        try:
            self.fields.check(self.around())
        except EvaluationError:
            self.scope.state, self._size = before, size
            raise
        if self.on_change is not None:
            self.on_change(before)

    def _bytes(self) -> int:
        if self._size is None:
            self._size = size_of(self.scope.state)
        return self._size

    def _largest(self, state: dict[str, Value]) -> str:
        parts = [(part, name, value) for part, fields in state.items() for name, value in fields.items()]
        sizes = {f"{part}.{name}": size_of(value) for part, name, value in parts}
        return f"; the largest field is '{max(sizes, key=sizes.__getitem__)}'" if sizes else ""


class Members:
    """`raw`, `state`, `computed` or `inputs` as an object."""

    __slots__ = ("_reactive",)

    def __init__(self, reactive: ReactiveState) -> None:
        self._reactive = reactive

    def lookup(self, name: str | int) -> Any:
        reactive = self._reactive
        return (
            reactive.fields.value(str(name), reactive.around()) if name in reactive.plan.computed else MISSING
        )

    def names(self) -> list[str]:
        return self._reactive.fields.names()

    def plain(self) -> Value:
        return self._reactive.fields.all(self._reactive.around())
