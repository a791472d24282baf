"""Looking into a run or a task: an overview of it, or the values at given paths, long ones in slices.

state_of(…)                                             # status, inputs, state, outputs, how each block went
state_of(…, paths=["outputs.log"], offset=4000)         # the next part of a long text
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from workflows_mcp.agent.actions import actions_of
from workflows_mcp.agent.paths import Path, parse_path
from workflows_mcp.agent.previews import Cut, Reader, cut, reader, shortened, within
from workflows_mcp.agent.situation import Situation, situation_of
from workflows_mcp.agent.walk import blocks_in
from workflows_mcp.errors import ExpressionError, RequestError
from workflows_mcp.expressions.base import Reference
from workflows_mcp.expressions.lookup import follow
from workflows_mcp.limits import Limits
from workflows_mcp.machine.handling import failed
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.scope import Blocks, iso, outputs_of
from workflows_mcp.machine.sequence import error_of
from workflows_mcp.machine.state import Record, Scope
from workflows_mcp.plan.model import Node, kind_of_operation
from workflows_mcp.steps.registry import StepRegistry
from workflows_mcp.values import Value

_MESSAGE_CHARS = 300


class Slice(NamedTuple):
    """A part of a long value, and how much there is."""

    value: Value
    offset: int = 0
    length: int = 0
    total: int = 0
    unit: str = ""

    @property
    def is_whole(self) -> bool:
        return self.length == self.total

    def described(self) -> dict[str, Value]:
        said: dict[str, Value] = {
            "offset": self.offset,
            "length": self.length,
            "total": self.total,
            "unit": self.unit,
        }
        if self.offset + self.length < self.total:
            said["next_offset"] = self.offset + self.length
        return said


def run_state(
    machine: Machine,
    registry: StepRegistry,
    limits: Limits,
    *,
    paths: Sequence[str] = (),
    offset: int = 0,
    limit: int | None = None,
) -> dict[str, Any]:
    """The run as a whole, with all that is asked anywhere in it."""
    situation = situation_of(machine, now=machine.state.changed_at, limits=limits, alone=True)
    return state_of(situation, registry, limits, paths=paths, offset=offset, limit=limit)


def state_of(
    situation: Situation,
    registry: StepRegistry,
    limits: Limits,
    *,
    paths: Sequence[str] = (),
    offset: int = 0,
    limit: int | None = None,
) -> dict[str, Any]:
    """Raises RequestError for a path that leads nowhere, with what exists there."""
    if offset < 0 or (limit is not None and limit < 1):
        raise RequestError("offset must be 0 or more, and limit 1 or more")
    if not paths:
        return within(limits, lambda how: _overview(situation, how))
    names = _names(situation, registry)
    found = [(text, path, _value_at(path, names)) for text in paths for path in [parse_path(text)]]
    read = reader(situation.part.id)
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
        answer = {"workflow_id": situation.part.id, "status": situation.status, "values": values}
        return {**answer, "slices": slices} if slices else answer

    return within(limits, build)


def value_of(situation: Situation, registry: StepRegistry, path: str) -> Value:
    """The value at a path, whole. Raises RequestError as `state_of` does."""
    return _value_at(parse_path(path), _names(situation, registry))


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


def _names(situation: Situation, registry: StepRegistry) -> dict[str, Any]:
    """What a path can start from."""
    machine, scope, task = situation.machine, situation.scope, situation.task
    state = machine.state
    names: dict[str, Any] = {"inputs": _inputs(situation)}
    if situation.fields is not None:
        names = {**situation.fields.flat, **names, **situation.fields.parts}
    elif situation.is_sequence and scope is not None:
        names |= {"state": scope.state, "result": scope.result, "errors": _errors(machine, scope)}
    else:
        names["outputs"] = state.outputs if task is None else outputs_of(task.record)
    names["blocks"] = Blocks(scope, machine.program_named) if scope is not None else {}
    if scope is not None and scope.variables:
        names |= scope.variables
    names["actions"] = {it["step_id"]: it for it in actions_of(situation, registry, at_work=True)}
    names["metadata"] = {
        "workflow_id": situation.part.id,
        "workflow": situation.workflow,
        "status": situation.status,
        "started_at": iso(state.started_at if task is None else task.record.started_at),
        "changed_at": iso(state.changed_at),
        "ended_at": iso(state.ended_at if task is None else task.record.completed_at),
        "forked_from": state.forked_from.partition("@")[0] or None,
    }
    return names


def _overview(situation: Situation, how: Cut) -> dict[str, Any]:
    scope = situation.scope
    read = reader(situation.part.id)
    overview: dict[str, Any] = {
        "workflow_id": situation.part.id,
        "workflow": situation.workflow,
        "status": situation.status,
        "inputs": cut(_inputs(situation), ("inputs",), how, read),
    }
    if situation.is_sequence and scope is not None:
        fields = scope.state if situation.fields is None else situation.fields.flat
        overview["state"] = cut(fields, ("state",) if situation.fields is None else (), how, read)
        if situation.fields is not None and situation.fields.errors:
            overview["computed_errors"] = situation.fields.errors
        if errors := _errors(situation.machine, scope):
            overview["errors"] = cut(errors, ("errors",), how, read)
        if situation.has_ended:
            overview["result"] = cut(scope.result, ("result",), how, read)
    elif situation.has_ended:
        task, state = situation.task, situation.machine.state
        outputs = state.outputs if task is None else outputs_of(task.record)
        overview["outputs"] = cut(outputs, ("outputs",), how, read)
    if scope is not None:
        overview["blocks"] = cut(_blocks(situation.machine, scope), ("blocks",), how, read)
    return overview


def _errors(machine: Machine, scope: Scope) -> list[Value]:
    """Why steps of a sequence have failed, also where the workflow went on: message, code and step."""
    nodes = machine.program_named(scope.workflow).nodes
    records = [(node, scope.records.get(node.id)) for node in nodes]
    return [error_of(node, record) for node, record in records if record is not None and failed(record)]


def _inputs(situation: Situation) -> dict[str, Value]:
    scope, task = situation.scope, situation.task
    if scope is not None:
        return scope.inputs
    return task.record.inputs if task is not None else {}


def _blocks(machine: Machine, scope: Scope, around: Node | None = None) -> dict[str, Value]:
    blocks = [_block(machine, node, record) for node, record in blocks_in(machine, scope, around)]
    if scope.each is not None:
        return {str(key): block for key, block in zip(scope.each, blocks, strict=True)}
    nodes = machine.program_named(scope.workflow).nodes
    return {node.id: block for node, block in zip(nodes, blocks, strict=True)}


def _block(machine: Machine, node: Node, record: Record) -> dict[str, Value]:
    """How a block went, in short; its outputs are named, and read by path."""
    said: dict[str, Value] = {"type": kind_of_operation(node.do)}
    said["status"] = record.status
    if record.outcome != "n/a":
        said["outcome"] = record.outcome
    if record.started_at is not None and record.completed_at is not None:
        said["seconds"] = round(record.completed_at - record.started_at, 3)
    if record.attempts > 1:
        said["attempts"] = record.attempts
    if record.message:
        said["message"] = shortened(record.message, _MESSAGE_CHARS)
    if record.status in ("completed", "failed") and (outputs := outputs_of(record)):
        said["outputs"] = list(outputs)
    if record.scope is not None and record.scope.each is not None:
        said["items"] = _blocks(machine, record.scope, node)
    elif record.scope is not None:
        said["calls"] = record.scope.workflow
        said["blocks"] = _blocks(machine, record.scope)
    return said
