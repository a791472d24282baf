"""Continues a run with a changed definition: every step that keeps its result must be unchanged.

    event, changed = reopened_with(old, new, events, ["deploy"])
    await engine.fork(run_id, len(events), [event], changed=changed)

A step is unchanged if its definition is, and if it has the same inputs and the same result when the events
of the run are applied to the new definition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from workflows_mcp.dialects import locate, read_document
from workflows_mcp.engines import ChangedDefinition
from workflows_mcp.errors import DefinitionError, RequestError
from workflows_mcp.machine import (
    TERMINAL,
    Event,
    ExpressionStopped,
    Machine,
    Path,
    Record,
    Reopened,
    Reopening,
    Scope,
    Started,
    path_text,
    record_at,
    replayed,
    value_at,
)
from workflows_mcp.plan import Bundle, Expr, Node, Plan, check_inputs
from workflows_mcp.values import Value, shown

_NAMED = 5
_POSITIONS = {
    "at", "wave", "order", "needs", "tolerated", "tolerated_by", "loops", "goes_to", "otherwise", "target",
    "loop",
}  # fmt: skip
"""Fields of a plan that follow from where other steps are."""


class _Kept(NamedTuple):
    """A step that keeps its result, or a block around one."""

    address: str
    name: str
    scope: Scope
    record: Record


def reopened_with(
    old: Bundle, new: Bundle, events: Sequence[Event], steps: Sequence[str]
) -> tuple[Reopened, ChangedDefinition]:
    """Return the event with which a run continues with another definition, and the run as it is with it.

    Raises RequestError if a step that would keep its result differs, and if the run would fail again."""
    if new.main != old.main:
        raise _refused([f"it is the workflow '{new.main}', and the run is one of '{old.main}'"])
    before = Reopening(old, events, steps)
    kept = list(_kept(before.state.root, ""))
    adapted = list(_adapted(new, events, {it.address for it in kept}))
    after = Reopening(new, adapted, steps)
    event = after.event()
    machine = replayed(new, [*adapted, event])
    once = {(it.scope.workflow, it.name): it for it in reversed(kept)}.values()
    differences = [text for it in reversed(once) for text in _differences(before.final, after.final, it)]
    differences = differences or list(_other_rounds(before, after, steps))
    differences = differences or [text for it in kept if (text := _other_result(machine, it))]
    if differences:
        raise _refused(differences)
    fault = machine.state.fault
    if machine.state.status == "failed" and fault is not None:
        raise RequestError(
            f"with this definition, the run would fail again: {fault.message}",
            hint=fault.hint or "fix the definition, and try again",
            code="nothing_to_retry",
        )
    return event, ChangedDefinition(new, adapted)


def same_definition(one: Bundle, other: Bundle) -> bool:
    """Whether both mean the same, wherever it is in their files."""
    return one.main == other.main and _meaning(one.plans) == _meaning(other.plans)


def _refused(differences: list[str]) -> RequestError:
    more = f"; and {len(differences) - _NAMED} more" if len(differences) > _NAMED else ""
    return RequestError(
        f"the run cannot continue with this definition: {'; '.join(differences[:_NAMED])}{more}",
        hint="undo this change; or fork from the first step that differs, with the same definition: then it "
        "runs again",
        code="definition_changed",
    )


def _kept(scope: Scope, prefix: str) -> Iterator[_Kept]:
    for name, record in scope.records.items():
        address = prefix + name
        inside = [] if record.scope is None else list(_kept(record.scope, f"{address}/"))
        if inside or record.status in TERMINAL:
            yield _Kept(address, name, scope, record)
        yield from inside


def _adapted(new: Bundle, events: Sequence[Event], kept: set[str]) -> Iterator[Event]:
    """Yield the events with the inputs of the new definition.

    An expression that was stopped in a step that runs again is evaluated again."""
    plan = new.plans[new.main]
    for event in events:
        if isinstance(event, Started):
            given = {name: value for name, value in event.inputs.items() if name in plan.inputs}
            yield replace(event, inputs=check_inputs(plan, given))
        elif isinstance(event, ExpressionStopped):
            faults = {key: fault for key, fault in event.faults.items() if fault.address in kept}
            yield replace(event, faults=faults)
        else:
            yield event


# What differs


def _differences(old: Machine, new: Machine, kept: _Kept) -> Iterator[str]:
    """Yield how the definition of a step differs: each key, with its values and its line."""
    workflow = kept.scope.workflow
    if kept.scope.each is not None or workflow not in old.plans:
        return  # the items of a block are compared as that block
    before = _node(old.plan_named(workflow), kept.name)
    after = _node(new.plans[workflow], kept.name) if workflow in new.plans else None
    if before is None:
        return  # steps for a full context have no node of their own
    if after is None:
        yield f"'{kept.address}' has run, and is not there any more"
        return
    if _meaning_of(old, workflow, before) == _meaning_of(new, workflow, after):
        return
    was, now = (_written(machine, workflow, it) for machine, it in ((old, before), (new, after)))
    changes = list(_changes(was, now, ()))
    for path, old_value, new_value in changes:
        line = _line(new, workflow, (*after.at, *path))
        values = f"{shown(old_value)} → {shown(new_value)}"
        yield f"'{kept.address}' has run, and its '{path_text(path)}' differs: {values}{line}"
    if not changes:
        line = _line(new, workflow, after.at)
        yield f"'{kept.address}' has run, and what it uses of the workflow differs{line}"


def _changes(
    was: Mapping[str, Value], now: Mapping[str, Value], at: Path
) -> Iterator[tuple[Path, Value, Value]]:
    for key in {**was, **now}:
        before, after = was.get(key), now.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _changes(before, after, (*at, key))
        elif before != after:
            yield (*at, key), before, after


def _node(plan: Plan, name: str) -> Node | None:
    return next((node for node in plan.body.nodes if node.id == name), None)


def _meaning_of(machine: Machine, workflow: str, node: Node) -> Any:
    """Return what a step means, wherever it is in its file."""
    nodes = machine.plan_named(workflow).body.nodes
    return _meaning(node), [(nodes[need.node].id, need.required, need.watched) for need in node.needs]


def _meaning(part: Any) -> Any:
    if isinstance(part, Expr):
        return part.source, part.kind
    if isinstance(part, msgspec.Struct):
        names = [name for name in part.__struct_fields__ if name not in _POSITIONS]
        return type(part).__name__, {name: _meaning(getattr(part, name)) for name in names}
    if isinstance(part, dict):
        return {key: _meaning(value) for key, value in part.items()}
    return [_meaning(value) for value in part] if isinstance(part, tuple) else part


def _written(machine: Machine, workflow: str, node: Node) -> Mapping[str, Value]:
    """Return a step as it is written in its file."""
    try:
        document = read_document(machine.source_of(workflow), machine.plan_named(workflow).file).value
    except DefinitionError:
        return {}
    found = value_at(document, node.at)
    if not isinstance(found, dict) and isinstance(document, dict):
        found = value_at(document.get("workflow"), node.at)
    return found if isinstance(found, dict) else {}


def _line(machine: Machine, workflow: str, path: Path) -> str:
    plan = machine.plan_named(workflow)
    place = locate(machine.source_of(workflow), plan.file, path, on_key=True)
    return f" ({place.file}:{place.line})" if place is not None else ""


def _other_rounds(before: Reopening, after: Reopening, steps: Sequence[str]) -> Iterator[str]:
    """Yield how earlier rounds of steps in loops would have gone otherwise; of the reopened ones, any may."""
    reopened = tuple(f"{step}/" for step in steps)
    for number, (address, record) in before.ends.items():
        if not f"{address}/".startswith(reopened):
            then = after.ends.get(number)
            if text := _how_it_differs(address, record, then[1] if then is not None else None):
                yield text


def _other_result(machine: Machine, kept: _Kept) -> str:
    """Return how the new definition would come to another result of a step; empty if it does not."""
    return _how_it_differs(kept.address, kept.record, record_at(machine.state, kept.address))


def _how_it_differs(address: str, before: Record, after: Record | None) -> str:
    if after is None or (before.status in TERMINAL and after.status not in TERMINAL):
        return f"'{address}' has run, and would not be reached after the steps before it"
    if before.status in TERMINAL and (before.status, before.outcome) != (after.status, after.outcome):
        return f"'{address}' has {before.status}, and would have {after.status}"
    for what, was, now in (("input", before.inputs, after.inputs), ("output", before.outputs, after.outputs)):
        for name in {**was, **now}:
            if was.get(name) != now.get(name):
                values = f"{shown(was.get(name))} → {shown(now.get(name))}"
                return f"'{address}' has run, and its {what} '{name}' would differ: {values}"
    return ""
