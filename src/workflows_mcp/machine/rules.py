"""The rules of a graph: when a block is skipped, and how a workflow went once all its blocks have ended.

| the dependency                     | required: true | required: false |
| ---------------------------------- | -------------- | --------------- |
| completed, success                 | run            | run             |
| completed, failure                 | skip           | run             |
| failed (it could not be carried out) | skip         | skip            |
| skipped                            | skip           | run             |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workflows_mcp.machine.program import MisplacedError, Program
from workflows_mcp.machine.scope import failed, succeeded
from workflows_mcp.machine.state import Fault, Record, Scope
from workflows_mcp.plan.model import Node
from workflows_mcp.values import Value

_MESSAGE_CHARS = 900


def skip_reason(program: Program, index: int, records: dict[str, Record]) -> str | None:
    """Why the dependencies of a block do not let it run, or None when they do."""
    for need in program.nodes[index].needs:
        name = program.nodes[need.node].id
        record = records[name]
        if record.status == "failed" or (need.required and not succeeded(record)):
            how = "was skipped" if record.status == "skipped" else "failed"
            return f"its dependency '{name}' {how}"
    return None


@dataclass(frozen=True, slots=True)
class ScopeResult:
    outputs: dict[str, Value]
    fault: Fault | None


def finished_scope(prefix: str, scope: Scope, program: Program, names: dict[str, Any]) -> ScopeResult:
    """Outputs, and the reason for failure if there is one. A workflow that failed still hands out what
    outputs it can, because they often say why."""
    fault = _failure(prefix, scope, program)
    outputs: dict[str, Value] = {}
    for name, evaluate in program.outputs.items():
        try:
            outputs[name] = evaluate(names)
        except MisplacedError as error:
            if fault is None:
                cause = error.cause
                message = f"the output '{name}' cannot be given: {cause.message}"
                fault = Fault(
                    cause.code, message, cause.hint, prefix[:-1], scope.workflow, error.path, cause.offset
                )
    return ScopeResult(outputs, fault)


def _failure(prefix: str, scope: Scope, program: Program) -> Fault | None:
    """The first block, in the order of the plan, whose failure is the workflow's, and how many more."""
    causes = [
        (node, record)
        for node in program.nodes
        if (record := scope.records[node.id]).status != "skipped" and failed(record) and _counts(node, record)
    ]
    if not causes:
        return None
    node, record = causes[0]
    inner = record.fault
    message = _cut(f"block '{node.id}' failed: {record.message or 'no reason was given'}")
    if len(causes) > 1:
        message += f" (and {', '.join(repr(other.id) for other, _ in causes[1:4])}"
        message += f" and {len(causes) - 4} more)" if len(causes) > 4 else ")"
    if inner is not None:
        return Fault(inner.code, message, inner.hint, inner.address, inner.workflow, inner.path, inner.offset)
    return Fault("block_failed", message, "", prefix + node.id, scope.workflow, node.at)


def _cut(message: str) -> str:
    """Through many calls the blocks add up; the first ones and the reason at the end say enough."""
    if len(message) <= _MESSAGE_CHARS:
        return message
    return f"{message[: _MESSAGE_CHARS // 3]} … {message[-2 * _MESSAGE_CHARS // 3 :]}"


def _counts(node: Node, record: Record) -> bool:
    """Whether the failure of this block is the failure of the workflow."""
    if node.on_failure is not None:
        return node.on_failure == "fail"
    return record.status == "failed" or not node.tolerated
