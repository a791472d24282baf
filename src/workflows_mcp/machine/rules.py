"""The rules of a graph: when a block is skipped, and how a workflow went once all its blocks have ended.

What a failure means for those after it, and for the workflow, is in `handling`. A dependency that does not
say `required`, and of which the block's own condition asks how it went, leaves the decision to the condition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workflows_mcp.machine.handling import failed, handler_of, runs_after
from workflows_mcp.machine.program import MisplacedError, Program
from workflows_mcp.machine.state import Fault, Record, Scope
from workflows_mcp.plan.model import Call, Node, Plan, fails_on_purpose
from workflows_mcp.values import Value

_MESSAGE_CHARS = 900


def skip_reason(program: Program, index: int, records: dict[str, Record]) -> str | None:
    """Why the dependencies of a block do not let it run, or None when they do."""
    for need in program.nodes[index].needs:
        name = program.nodes[need.node].id
        record = records[name]
        if need.watched:
            continue
        if not runs_after(program.plan, program.nodes[need.node], record, required=need.required):
            how = "was skipped" if record.status == "skipped" else "failed"
            return f"its dependency '{name}' {how}"
    return None


def outputs_if_not_run(program: Program, index: int, plans: Mapping[str, Plan]) -> dict[str, Value]:
    """The outputs of a block that did not run; a call has those of the workflow that it would call."""
    node = program.nodes[index]
    if isinstance(node.do, Call) and node.for_each is None and isinstance(node.do.workflow, str):
        called = plans.get(node.do.workflow)
        return dict.fromkeys(called.outputs) if called is not None else {}
    return program.defaults(index)


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
                message = f"the output '{name}' cannot be given: {cause.message}{_also(scope, program)}"
                fault = Fault(
                    cause.code, message, cause.hint, prefix[:-1], scope.workflow, error.path, cause.offset
                )
    return ScopeResult(outputs, fault)


def _also(scope: Scope, program: Program) -> str:
    """A block whose failure was put up with is often the reason for what is missing later."""
    for node in program.nodes:
        record = scope.records[node.id]
        if failed(record):
            return _cut(f"; block '{node.id}' failed: {record.message or 'no reason was given'}")
    return ""


def _failure(prefix: str, scope: Scope, program: Program) -> Fault | None:
    """The first block, in the order of the plan, whose failure is the workflow's, and how many more."""
    causes = [
        (node, record)
        for node in program.nodes
        if fails_the_workflow(program.plan, node, record := scope.records[node.id])
    ]
    if not causes:
        return None
    on_purpose = [cause for cause in causes if fails_on_purpose(cause[0])]
    if on_purpose:
        return on_purpose[0][1].fault
    node, record = causes[0]
    inner = record.fault
    reason = inner.message if inner is not None else record.message
    tries = f" after {record.attempts} tries" if record.attempts > 1 else ""
    message = _cut(f"block '{node.id}' failed{tries}: {reason or 'no reason was given'}")
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


def fails_the_workflow(plan: Plan, node: Node, record: Record) -> bool:
    """Whether this block has failed, and its failure is the failure of the workflow."""
    return failed(record) and record.status != "skipped" and handler_of(plan, node, record) is None
