"""Reads and updates the state of a run or a task: an overview, values at paths, flat fields, changes.

state_of(…)                                             # status, inputs, state, outputs, how each block went
state_of(…, paths=["outputs.log"], offset=4000)         # the next part of a long text
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, cast, get_args

from workflows_mcp.answers.actions import actions_of
from workflows_mcp.answers.previews import (
    WHOLE,
    Cut,
    Path,
    Reader,
    cut,
    format_path,
    parse_path,
    reader,
    shortened,
    within,
)
from workflows_mcp.answers.results import Redact
from workflows_mcp.answers.run_view import RunView, Visited
from workflows_mcp.errors import ExpressionError, NotExpected, RequestError
from workflows_mcp.expressions import MISSING, Reference, follow
from workflows_mcp.limits import Limits
from workflows_mcp.machine import (
    WRITABLE,
    Around,
    Blocks,
    ComputedFields,
    EvaluationError,
    Event,
    Machine,
    Record,
    Scope,
    StateUpdated,
    WrongChange,
    error_of,
    failed,
    iso,
    outputs_of,
    path_text,
)
from workflows_mcp.plan import ChangeOperation, Node, Plan, kind_of_operation
from workflows_mcp.steps import StepRegistry
from workflows_mcp.values import Value, did_you_mean, kind_and_value, shown

_MESSAGE_CHARS = 300


class Slice(NamedTuple):
    """A slice of a long value, and the total length."""

    value: Value
    offset: int = 0
    length: int = 0
    total: int = 0
    unit: str = ""

    @property
    def is_whole(self) -> bool:
        return self.length == self.total

    def described(self) -> dict[str, Value]:
        slice_: dict[str, Value] = {
            "offset": self.offset,
            "length": self.length,
            "total": self.total,
            "unit": self.unit,
        }
        if self.offset + self.length < self.total:
            slice_["next_offset"] = self.offset + self.length
        return slice_


def state_of(
    view: RunView,
    snapshot: StateSnapshot,
    registry: StepRegistry,
    limits: Limits,
    *,
    paths: Sequence[str] = (),
    offset: int = 0,
    limit: int | None = None,
) -> dict[str, Any]:
    """Return an overview, or the values at `paths`. Raises RequestError for an unknown path."""
    if offset < 0 or (limit is not None and limit < 1):
        raise RequestError("offset must be 0 or more, and limit 1 or more")
    if not paths:
        return within(limits, lambda how: _overview(view, snapshot, how))
    names = _names(view, snapshot, registry)
    found = [(text, path, _value_at(path, names)) for text in paths for path in [parse_path(text)]]
    read = reader(view.target.id)
    room = max(limits.answer_chars // (2 * len(found)), 1)

    def build(how: Cut) -> dict[str, Any]:
        window = (limit or room) * how.characters // limits.preview_chars
        values: dict[str, Value] = {}
        slices: dict[str, Value] = {}
        for text, path, value in found:
            part = _sliced(value, path, offset, limit, max(window, 1), how, read)
            values[text] = part.value
            if not part.is_whole:
                slices[text] = part.described()
        answer = {"workflow_id": view.target.id, "status": view.status, "values": values}
        return {**answer, "slices": slices} if slices else answer

    return within(limits, build)


def value_of(view: RunView, snapshot: StateSnapshot, registry: StepRegistry, path: str) -> Value:
    """Return the whole value at a path. Raises RequestError as `state_of` does."""
    return _value_at(parse_path(path), _names(view, snapshot, registry))


def _sliced(
    value: Value, path: Path, offset: int, limit: int | None, window: int, how: Cut, read: Reader
) -> Slice:
    if isinstance(value, str):
        text = value[offset : offset + window]
        return Slice(text, offset, len(text), len(value), "characters")
    count = how.items if limit is None else min(limit, how.items)
    if isinstance(value, list):
        items = [
            cut(item, (*path, offset + index), how, read)
            for index, item in enumerate(value[offset : offset + count])
        ]
        return Slice(items, offset, len(items), len(value), "items")
    if isinstance(value, dict):
        kept = list(value.items())[offset : offset + count]
        entries = {key: cut(item, (*path, key), how, read) for key, item in kept}
        return Slice(entries, offset, len(entries), len(value), "entries")
    return Slice(value)


def _value_at(path: Path, names: dict[str, Any]) -> Value:
    try:
        return follow(Reference(path, 0), names)
    except ExpressionError as error:
        raise RequestError(error.message.replace("${", "").replace("}", ""), hint=error.hint) from None


def _names(view: RunView, snapshot: StateSnapshot, registry: StepRegistry) -> dict[str, Any]:
    """Return the names that a path can start with."""
    machine, scope, task = view.machine, view.scope, view.task
    state = machine.state
    names: dict[str, Any] = {"inputs": _inputs(view)}
    if parts := snapshot.parts:
        whole = {**snapshot.flat, **parts["state"]}  # the overview shows all fields as `state`
        names = {**snapshot.flat, **names, **parts, "state": whole}
    elif view.is_sequence and scope is not None:
        names |= {"state": scope.state, "result": scope.result, "errors": _errors(view)}
    else:
        names["outputs"] = view.outputs
    names["blocks"] = Blocks(scope, machine.program_named) if scope is not None else {}
    if scope is not None and scope.variables:
        names |= scope.variables
    read = reader(view.target.id)
    actions = actions_of(view, registry, at_work=True)
    names["actions"] = {it.step_id: it.rendered(WHOLE, read) for it in actions}
    names["metadata"] = {
        "workflow_id": view.target.id,
        "workflow": view.workflow,
        "status": view.status,
        "started_at": iso(state.started_at if task is None else task.record.started_at),
        "changed_at": iso(state.changed_at),
        "ended_at": iso(state.ended_at if task is None else task.record.completed_at),
        "forked_from": state.forked_from.partition("@")[0] or None,
    }
    return names


def _overview(view: RunView, snapshot: StateSnapshot, how: Cut) -> dict[str, Any]:
    scope = view.scope
    read = reader(view.target.id)
    overview: dict[str, Any] = {
        "workflow_id": view.target.id,
        "workflow": view.workflow,
        "status": view.status,
        "inputs": cut(_inputs(view), ("inputs",), how, read),
    }
    if view.is_sequence and scope is not None:
        overview["state"] = cut(snapshot.flat, snapshot.prefix, how, read)
        if snapshot.errors:
            overview["computed_errors"] = snapshot.errors
        if errors := _errors(view):
            overview["errors"] = cut(errors, ("errors",), how, read)
        if view.has_ended:
            overview["result"] = cut(scope.result, ("result",), how, read)
    elif view.has_ended:
        overview["outputs"] = cut(view.outputs, ("outputs",), how, read)
    if scope is not None:
        overview["blocks"] = cut(_blocks(view, scope), ("blocks",), how, read)
    return overview


def _errors(view: RunView) -> list[Value]:
    """List the errors of failed steps of a sequence, also tolerated ones: message, code and step."""
    blocks = view.blocks_in(view.scope) if view.scope is not None else ()
    return [error_of(node, record) for node, record in blocks if failed(record)]


def _inputs(view: RunView) -> dict[str, Value]:
    scope, task = view.scope, view.task
    if scope is not None:
        return scope.inputs
    return task.record.inputs if task is not None else {}


def _blocks(view: RunView, scope: Scope, around: Node | None = None) -> dict[str, Value]:
    found = list(view.blocks_in(scope, around))
    blocks = [_block(view, node, record) for node, record in found]
    if scope.each is not None:
        return {str(key): block for key, block in zip(scope.each, blocks, strict=True)}
    return {node.id: block for (node, _), block in zip(found, blocks, strict=True)}


def _block(view: RunView, node: Node, record: Record) -> dict[str, Value]:
    """Summarise a block; its outputs are only named, to be read by path."""
    summary: dict[str, Value] = {"type": kind_of_operation(node.do)}
    summary["status"] = record.status
    if record.outcome != "n/a":
        summary["outcome"] = record.outcome
    if record.started_at is not None and record.completed_at is not None:
        summary["seconds"] = round(record.completed_at - record.started_at, 3)
    if record.attempts > 1:
        summary["attempts"] = record.attempts
    if record.message:
        summary["message"] = shortened(record.message, _MESSAGE_CHARS)
    if record.status in ("completed", "failed") and (outputs := outputs_of(record)):
        summary["outputs"] = list(outputs)
    if record.scope is not None and record.scope.each is not None:
        summary["items"] = _blocks(view, record.scope, node)
    elif record.scope is not None:
        summary["calls"] = record.scope.workflow
        summary["blocks"] = _blocks(view, record.scope)
    return summary


class RunDetails(NamedTuple):
    """Every block of a run, and how it went as a whole."""

    blocks: dict[str, Value]
    metadata: dict[str, Value]


def details_of(view: RunView) -> RunDetails:
    machine = view.machine
    blocks: dict[str, Value] = Blocks(machine.state.root, machine.program_named).plain()
    return RunDetails(blocks, _metadata(machine, view.now))


def _metadata(machine: Machine, now: float) -> dict[str, Value]:
    state = machine.state
    nodes = machine.program_named(state.workflow).nodes
    ended = state.ended_at
    by_status = Counter(record.status for record in state.root.records.values())
    metadata: dict[str, Value] = {
        "workflow_name": state.workflow,
        "start_time": iso(state.started_at),
        "end_time": iso(ended),
        "execution_time_ms": round(((ended or now) - state.started_at) * 1000, 3),
        "total_blocks": len(nodes),
        "execution_waves": max((node.wave for node in nodes), default=-1) + 1,
    }
    for status in ("completed", "failed", "skipped"):
        metadata[f"{status}_blocks"] = by_status[status]
    return {name: value for name, value in metadata.items() if value is not None}


# The state as flat fields, for workflows of every dialect
#
# A reactive workflow has raw fields, fields of `state`, and computed fields; a stateful one has its state; a
# graph has outputs, once it has ended. A snapshot is taken without a pause; computed fields are evaluated
# when they are first read, which can be slow, so outside the event loop.
#
#     snapshot = snapshot_of(view)
#     await asyncio.to_thread(snapshot.read)
#     snapshot.at('file_results["a.ts"].status')


@dataclass(frozen=True)
class StateSnapshot:
    """The state of a run or a task at a moment. A state is never changed in place."""

    stored: dict[str, Value] = field(default_factory=dict)
    """The fields of a workflow that is not reactive: its state or its outputs."""
    prefix: Path = ()
    """The prefix of a field in a path of `get_workflow_state`."""
    inputs: dict[str, Value] = field(default_factory=dict)
    variables: dict[str, Value] = field(default_factory=dict)
    included: bool = False
    """Whether it belongs to an included workflow, which `get_workflow_state` cannot read."""
    plan: Plan | None = None
    """The plan of a reactive workflow, which computes fields; None for others."""
    around: Around = field(default_factory=lambda: Around({}, {}))
    formulas: ComputedFields | None = None

    def read(self) -> StateSnapshot:
        """Evaluate the computed fields; this can be slow. Return the snapshot."""
        self._evaluated  # noqa: B018
        return self

    @cached_property
    def _evaluated(self) -> tuple[dict[str, Value], dict[str, str]]:
        values: dict[str, Value] = {}
        errors: dict[str, str] = {}
        if self.plan is None or self.formulas is None:
            return values, errors
        for name in self.plan.computed:
            try:
                value = self.formulas.value(name, self.around)
            except EvaluationError as error:
                values[name], errors[name] = None, error.fault.message
                continue
            if value is not MISSING:
                values[name] = value
            if (wrong := self.formulas.error(name)) is not None:
                errors[name] = wrong
        return values, errors

    @property
    def computed(self) -> dict[str, Value]:
        return self._evaluated[0]

    @property
    def errors(self) -> dict[str, str]:
        """The errors of computed fields, by field."""
        return self._evaluated[1]

    @property
    def parts(self) -> dict[str, Value]:
        """The parts of a reactive state; empty for others."""
        if self.plan is None:
            return {}
        state = self.around.state
        return {"raw": state.get("raw", {}), "state": state.get("state", {}), "computed": self.computed}

    @property
    def flat(self) -> dict[str, Value]:
        parts = self.parts
        return {**parts["state"], **parts["raw"], **parts["computed"]} if parts else self.stored

    @property
    def names(self) -> dict[str, Value]:
        """What a path can begin with."""
        return {**self.variables, **self.flat, "inputs": self.inputs, **self.parts}

    def at(self, text: str) -> Value:
        """Return the value at a path. Raises RequestError, with the known names, for an unknown path."""
        path, names = parse_path(text), self.names
        if len(path) == 1 and self.plan is not None and path[0] in self.plan.known and path[0] not in names:
            return None  # a declared field without a value
        try:
            return follow(Reference(path, 0), names)
        except ExpressionError as error:
            message = error.message.replace("${", "").replace("}", "")
            hint = error.hint.replace("a reference starts with one of", "there is")
            raise RequestError(message, hint=hint, code="invalid_path") from None

    def where(self, text: str) -> Path:
        """Return the path as `get_workflow_state` takes it."""
        path = parse_path(text)
        return (*self.prefix, *path) if path[0] in self.flat else path

    def shown(self, how: Cut, workflow_id: str, only: Container[str] | None = None) -> dict[str, Value]:
        """Return all fields, or `only` some, cut to a size."""
        read = self.reader(workflow_id)

        def on(path: Path, offset: int) -> str:
            needed = "workflow_state_read and the paths of those you need"
            return read(path, offset) if path != self.prefix else needed

        chosen = {name: value for name, value in self.flat.items() if only is None or name in only}
        return dict(cut(chosen, self.prefix, how, on))

    def reader(self, workflow_id: str) -> Reader:
        """Return the function that names the call which reads the rest of a cut value."""
        if not self.included:
            return reader(workflow_id)
        return lambda path, _: f"workflow_state_read and paths that lead into {format_path(path)}"


def snapshot_of(view: RunView, address: str | None = None) -> StateSnapshot:
    """Take the state of a run or task, or of the reactive workflow at an address inside it."""
    if address is not None and address != view.target.address:
        inside = view.machine.scope_inside(address)
        if inside is not None and inside.reactive is not None:
            found = reactive_snapshot(view.machine, address)
            assert found is not None
            given, known = dict(inside.scope.inputs), dict(inside.scope.variables)
            return replace(found, inputs=given, variables=known, included=True)
    scope = view.scope
    found = reactive_snapshot(view.machine, view.target.address)
    if found is None and view.is_sequence and scope is not None:
        found = StateSnapshot(dict(scope.state), ("state",))
    elif found is None:
        found = StateSnapshot(dict(view.outputs), ("outputs",))
    if scope is None:
        return found
    return replace(found, inputs=dict(scope.inputs), variables=dict(scope.variables))


def reactive_snapshot(machine: Machine, address: str) -> StateSnapshot | None:
    """Take the state of the run or of the task at an address; None if it is not reactive.

    A task may share the state of the workflow around it.
    """
    scope = _scope_with_state(machine, address)
    if scope is None:
        return None
    plan = machine.plan_named(scope.workflow)
    home = machine.reactive_state_at(address)
    if home is not None and home.scope is scope:
        return StateSnapshot(plan=plan, around=home.around(), formulas=home.fields.copy())
    formulas = ComputedFields(plan, machine.program_named(plan.name).language, machine.limits)
    around = Around(scope.state, scope.inputs, plan.config)
    return StateSnapshot(plan=plan, around=around, formulas=formulas)


def _scope_with_state(machine: Machine, address: str) -> Scope | None:
    scope: Scope | None = machine.state.root
    found: Scope | None = None
    for name in [*(address.split("/") if address else ()), ""]:
        if scope is None:
            return found
        if scope.each is None:
            plan = machine.plan_named(scope.workflow)
            if not plan.reactive:
                found = None
            elif not plan.shares_state:
                found = scope
        record = scope.records.get(name)
        scope = record.scope if record is not None else None
    return found


def state_address(view: RunView) -> str:
    """Return the address of the state that an agent reads and writes: that of the pending step.

    The pending step (a question, delegated tasks, a wait) can be in an included workflow.
    """
    questions = view.pending.questions
    if questions:
        return questions[0][0].rpartition("/")[0]
    address = view.target.address
    while True:
        called = _called_inside(view.machine, address)
        if len(called) != 1:
            return address
        address = called[0]


def _called_inside(machine: Machine, address: str) -> list[str]:
    """Return the running calls of the workflow at an address."""
    prefix = f"{address}/" if address else ""
    return [
        inside
        for inside, frame in machine.state.frames.items()
        if frame.kind == "call" and inside.startswith(prefix) and "/" not in inside[len(prefix) :]
    ]


# State updates of an agent: a trial shows whether they can be made, and which computed fields change
#
#     changes = read_updates([{"path": "raw.count", "operation": "increment"}])
#     trial = trial_of(machine, "", changes, clean)
#     await asyncio.to_thread(trial.check)        # raises RequestError where they cannot be made


Changes = list[tuple[list[str | int], ChangeOperation, Value]]

OPERATIONS: tuple[str, ...] = get_args(ChangeOperation)

REFUSED = "state_update"

_KEYS = ("path", "operation", "value")


def read_updates(updates: Sequence[dict[str, Any]]) -> Changes:
    """Parse updates; raise RequestError that names the wrong one, and how to write it."""
    if not updates:
        raise _refused("there are no updates", 'e.g. updates: [{"path": "raw.count", "value": 1}]')
    return [_read(update, f"updates[{number}]") for number, update in enumerate(updates)]


def _read(update: Any, at: str) -> tuple[list[str | int], ChangeOperation, Value]:
    if not isinstance(update, dict):
        hint = 'e.g. {"path": "raw.count", "operation": "set", "value": 1}'
        raise _refused(f"{at} must be an object, not {kind_and_value(update)}", hint)
    for key in update:
        if key not in _KEYS:
            raise _refused(f"{at} has an unknown key '{key}'", did_you_mean(key, _KEYS, what="it takes"))
    text = update.get("path")
    if not isinstance(text, str) or not text.strip():
        raise _refused(f"{at} needs a path", "e.g. raw.count")
    operation = update.get("operation", "set")
    if operation not in OPERATIONS:
        hint = did_you_mean(str(operation), OPERATIONS, what="operations are")
        raise _refused(f"{at}: there is no operation {shown(operation)}", hint)
    try:
        path = list(parse_path(text))
    except RequestError as error:
        raise _refused(f"{at}: {error.message}", 'e.g. raw.count or raw.results["a.ts"].errors') from None
    if path[0] not in (*WRITABLE, "computed"):
        field = text.removeprefix("inputs.")  # an input is in raw too, where it can be written
        hint = f"a path that is written begins with raw. or state.: raw.{field}"
        raise _refused(f"{at}: '{text}' does not say which part of the state is written", hint)
    if "value" not in update and operation != "increment":
        raise _refused(f"{at} needs a value", "only increment can do without one: it adds 1")
    return path, cast(ChangeOperation, operation), update.get("value", 1)


def _refused(message: str, hint: str) -> RequestError:
    return RequestError(message, hint=f"{hint}. Nothing has changed.", code=REFUSED)


@dataclass(slots=True)
class Trial:
    """Changes to try on the state at an address."""

    address: str
    changes: Changes
    before: StateSnapshot
    state: dict[str, Value]
    """The state with the changes made."""

    def check(self) -> None:
        """Evaluate the computed fields before and after; this can be slow.

        Raises RequestError if a field that propagates errors fails.
        """
        before = self.before.read()
        assert before.formulas is not None
        try:
            before.formulas.copy().check(Around(self.state, before.around.inputs, before.around.config))
        except EvaluationError as error:
            raise _refused(error.fault.message, error.fault.hint or "write other values") from None

    def refuse_wrong(self, machine: Machine) -> None:
        """Raise RequestError that names an update which the current state does not accept."""
        _refuse_wrong(machine, self.address, self.changes)

    def changed_in(self, machine: Machine) -> Callable[[], tuple[dict[str, Value], dict[str, str]]]:
        """Return a function that computes which fields have changed, and which errors are new."""
        before = self.before
        # what was computed for the state before need not be computed again
        after = replace(reactive_snapshot(machine, self.address) or before, formulas=before.formulas)

        def compare() -> tuple[dict[str, Value], dict[str, str]]:
            old, new = before.computed, after.computed
            names = after.plan.computed if after.plan is not None else ()
            changed = {name: new.get(name) for name in names if new.get(name) != old.get(name)}
            errors = {name: it for name, it in after.errors.items() if before.errors.get(name) != it}
            return changed, errors

        return compare


def trial_of(machine: Machine, address: str, changes: Changes, clean: Redact) -> Trial:
    """Prepare a trial. Raises RequestError if there is no state to change, or a change is invalid."""
    redacted: Changes = [(path, operation, clean(value)) for path, operation, value in changes]
    state = _refuse_wrong(machine, address, redacted)
    before = reactive_snapshot(machine, address)
    assert before is not None
    return Trial(address, redacted, before, state)


def _refuse_wrong(machine: Machine, address: str, changes: Changes) -> dict[str, Value]:
    """Return the state with the changes made."""
    if machine.state.status != "running":
        raise NotExpected(f"the run {machine.state.run_id} has ended: it is {machine.state.status}")
    home = machine.reactive_state_at(address)
    if home is None:
        raise NotExpected(
            "there is no state here that can be changed from outside",
            hint="only the state of a reactive workflow, or of a task of it that is under way, can be; other "
            "workflows store the results that are submitted",
        )
    state: dict[str, Value] = {}
    made: list[tuple[tuple[str | int, ...], ChangeOperation, Value]] = []
    for number, (path, operation, value) in enumerate(changes):
        made.append((tuple(path), operation, value))
        try:
            state, _ = home.tried(made)
        except WrongChange as wrong:
            raise _refused(f"updates[{number}]: {wrong}", wrong.hint) from None
    return state


@dataclass(frozen=True, slots=True)
class WrittenState:
    """The state paths that agents have written since a step was delivered."""

    paths: Sequence[Sequence[str | int]] = ()

    def missing(self, visited: Visited) -> list[str]:
        """The places of a step's result at which nothing was written."""
        missing: list[str] = []
        known = visited.record.places
        for number, change in enumerate(visited.node.changes):
            place = known[number] if number < len(known) else None
            if place is None:
                if not self.paths:
                    missing.append(".".join(map(str, change.path.source)))
            elif not any(_meet(place, path) for path in self.paths):
                missing.append(path_text(tuple(place)))
        return missing


def written_state(machine: Machine, address: str, since: Sequence[Event]) -> WrittenState:
    """Return what agents have written to the state of a step, by these events."""
    home = machine.locate(address)[0].reactive
    names = address.split("/")
    around = ("/".join(names[:length]) for length in range(len(names)))
    shared = {it for it in around if machine.reactive_state_at(it) is home}
    updates = [it for it in since if isinstance(it, StateUpdated) and it.address in shared]
    return WrittenState([path for it in updates for path, *_ in it.changes])


def _meet(one: Sequence[str | int], other: Sequence[str | int]) -> bool:
    """Whether one path is the other, or leads through it."""
    return all(str(a) == str(b) for a, b in zip(one, other, strict=False))
