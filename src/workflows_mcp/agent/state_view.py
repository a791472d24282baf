"""Looking into a run: an overview of it, or the values at given paths, long ones in slices.

run_state(…)                                            # status, inputs, outputs, how each block went
run_state(…, paths=["outputs.log"], offset=4000)        # the next part of a long text
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from workflows_mcp.agent.actions import pending_actions
from workflows_mcp.agent.paths import Path, parse_path
from workflows_mcp.agent.previews import Cut, Reader, cut, reader, shortened, within
from workflows_mcp.agent.waiting import run_status
from workflows_mcp.agent.walk import blocks_in
from workflows_mcp.errors import ExpressionError, RequestError
from workflows_mcp.expressions.base import Reference
from workflows_mcp.expressions.lookup import follow
from workflows_mcp.limits import Limits
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.scope import Blocks, iso, outputs_of
from workflows_mcp.machine.state import Record, Scope
from workflows_mcp.plan.model import Call, Node
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
    """Raises RequestError for a path that leads nowhere, with what exists there."""
    if offset < 0 or (limit is not None and limit < 1):
        raise RequestError("offset must be 0 or more, and limit 1 or more")
    if not paths:
        return within(limits, lambda how: _overview(machine, how))
    names = _names(machine, registry)
    found = [(text, path, _value_at(path, names)) for text in paths for path in [parse_path(text)]]
    read = reader(machine.state.run_id)
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
        answer = {"workflow_id": machine.state.run_id, "status": run_status(machine), "values": values}
        return {**answer, "slices": slices} if slices else answer

    return within(limits, build)


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


def _names(machine: Machine, registry: StepRegistry) -> dict[str, Any]:
    """What a path can start from."""
    state = machine.state
    return {
        "inputs": state.root.inputs,
        "outputs": state.outputs,
        "blocks": Blocks(state.root, machine.program_named),
        "actions": {action["step_id"]: action for action in pending_actions(machine, registry)},
        "metadata": {
            "workflow_id": state.run_id,
            "workflow": state.workflow,
            "status": run_status(machine),
            "started_at": iso(state.started_at),
            "changed_at": iso(state.changed_at),
            "ended_at": iso(state.ended_at),
        },
    }


def _overview(machine: Machine, how: Cut) -> dict[str, Any]:
    state = machine.state
    read = reader(state.run_id)
    overview: dict[str, Any] = {
        "workflow_id": state.run_id,
        "workflow": state.workflow,
        "status": run_status(machine),
        "inputs": cut(state.root.inputs, ("inputs",), how, read),
    }
    if state.status != "running":
        overview["outputs"] = cut(state.outputs, ("outputs",), how, read)
    overview["blocks"] = cut(_blocks(machine, state.root), ("blocks",), how, read)
    return overview


def _blocks(machine: Machine, scope: Scope, around: Node | None = None) -> dict[str, Value]:
    blocks = [_block(machine, node, record) for node, record in blocks_in(machine, scope, around)]
    if scope.each is not None:
        return {str(key): block for key, block in zip(scope.each, blocks, strict=True)}
    nodes = machine.program_named(scope.workflow).nodes
    return {node.id: block for node, block in zip(nodes, blocks, strict=True)}


def _block(machine: Machine, node: Node, record: Record) -> dict[str, Value]:
    """How a block went, in short; its outputs are named, and read by path."""
    said: dict[str, Value] = {"type": "call" if isinstance(node.do, Call) else node.do.step}
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
