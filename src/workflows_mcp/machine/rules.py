"""The rules for failures: which are handled, which blocks are skipped, and which workflows fail.

A handled failure, in every dialect:

| what failed                          | it is handled by                                                |
| ------------------------------------ | --------------------------------------------------------------- |
| anything                             | `on_failure: continue` (a block), `on_error: continue` (a step) |
| it took longer than its `timeout`    | also `on_timeout: continue`, and as a failed operation          |
| its operation failed (an exit code   | also a block that reads its result: a dependency with           |
| other than 0, a failed item or call) | `required: false`, or the status, outcome, `success` or         |
|                                      | `exit_code` in a condition or in the inputs of another block    |
| it could not be run at all           | nothing else                                                    |
| a `Fail` block, a `fail` step        | nothing: the error of the workflow is its message and code      |

An output of the workflow only reports a failure. A failure that is not handled fails the workflow; one that
is handled is listed in its answer. Answers, the terminal and exit codes follow from here. A dependency
without `required` whose status the block's own condition reads leaves the decision to the condition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from msgspec.structs import replace

from workflows_mcp.machine.program import EvaluationError, Program
from workflows_mcp.machine.state import Fault, Record, Scope
from workflows_mcp.plan import Call, Node, Plan, fails_on_purpose, fixed_name
from workflows_mcp.values import Value

FailureKind = Literal["failure", "timeout", "error"]

TIMEOUT = "timeout"


def failed(record: Record) -> bool:
    return record.status == "failed" or record.outcome == "failure"


def failure_kind(record: Record) -> FailureKind:
    """How a failed block failed: its operation, its timeout, or an error that kept it from running."""
    if _timed_out(record):
        return "timeout"
    return "error" if record.status == "failed" else "failure"


def _timed_out(record: Record) -> bool:
    """Whether its own time ran out or, if it ran for each item, that of items only."""
    if record.fault is None or record.fault.code != TIMEOUT:
        return False
    return record.status == "failed" or (record.scope is not None and record.scope.each is not None)


def handler_of(plan: Plan, node: Node, record: Record) -> str | None:
    """What handles the failure of a block: the blocks that read its result, or a key of its own.

    None if nothing does: then the workflow fails. Empty if it is handled, but not known by what.
    """
    return _handler(plan, node, failure_kind(record))


def _handler(plan: Plan, node: Node, kind: FailureKind) -> str | None:
    if fails_on_purpose(node):
        return None
    if node.on_failure is not None:
        return f"{plan.body.failure_key}: continue" if node.on_failure == "continue" else None
    if kind == "timeout" and node.on_timeout == "continue":
        return "on_timeout: continue"
    each = node.for_each
    if kind != "error" and each is not None and each.tolerate_failures:
        return "on_sub_agent_error"
    operation = kind == "failure" or (kind == "timeout" and plan.semantics >= 3)
    if operation and node.tolerated:
        return ", ".join(node.tolerated_by)
    return None


def runs_after(plan: Plan, node: Node, record: Record, *, required: bool) -> bool:
    """Whether a block that depends on `node` runs after it has ended so.

    | the dependency            | required: true | required: false                  |
    | ------------------------- | -------------- | -------------------------------- |
    | succeeded                 | run            | run                              |
    | its operation failed      | skip           | run                              |
    | timed out                 | skip           | run                              |
    | could not be run at all   | skip           | skip, or run: on_failure: continue |
    | skipped                   | skip           | run                              |

    Plans before version 3 skip after a timeout, and after everything that could not be run.
    """
    if required:
        return record.status == "completed" and record.outcome == "success"
    if record.status != "failed":
        return True
    if plan.semantics < 3:
        return False
    return failure_kind(record) == "timeout" or node.on_failure == "continue"


_MESSAGE_CHARS = 900


def outputs_if_not_run(program: Program, index: int, plans: Mapping[str, Plan]) -> dict[str, Value]:
    """The outputs of a block that did not run; a call has those of the workflow that it would call."""
    node = program.nodes[index]
    if isinstance(node.do, Call) and node.for_each is None and (name := fixed_name(node.do)):
        called = plans.get(name)
        return dict.fromkeys(called.outputs) if called is not None else {}
    return program.defaults(index)


@dataclass(frozen=True, slots=True)
class ScopeResult:
    """What a workflow, or the items of a block, have given at the end."""

    outputs: dict[str, Value]
    fault: Fault | None = None


def finished_scope(prefix: str, scope: Scope, program: Program, names: dict[str, Any]) -> ScopeResult:
    """The outputs of a workflow, and its fault if it failed.

    A failed workflow has the outputs that can be evaluated, because they often say why it failed."""
    fault = _failure(prefix, scope, program)
    outputs: dict[str, Value] = {}
    for name, expr in program.plan.outputs.items():
        try:
            outputs[name] = program.evaluate(expr, names)
        except EvaluationError as error:
            if fault is None:
                reason = error.fault.message
                message = f"the output '{name}' cannot be evaluated: {reason}{_also(scope, program)}"
                fault = replace(error.fault, message=message, address=prefix[:-1])
    return ScopeResult(outputs, fault)


def _also(scope: Scope, program: Program) -> str:
    """The failed block, if any: a tolerated failure often explains what is missing later."""
    for node in program.nodes:
        record = scope.records[node.id]
        if failed(record):
            return _cut(f"; block '{node.id}' failed: {record.message or 'no reason was given'}")
    return ""


def _failure(prefix: str, scope: Scope, program: Program) -> Fault | None:
    """The fault of a failed workflow: its first failed block in the order of the plan, and how many more
    failed."""
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
        return replace(inner, message=message)
    return Fault("block_failed", message, "", prefix + node.id, scope.workflow, node.at)


def _cut(message: str) -> str:
    """Shorten a message from many nested calls; the first blocks and the reason at the end say enough."""
    if len(message) <= _MESSAGE_CHARS:
        return message
    return f"{message[: _MESSAGE_CHARS // 3]} … {message[-2 * _MESSAGE_CHARS // 3 :]}"


def call_must_succeed(plan: Plan, node: Node) -> bool:
    """Whether the failure of the workflow that a block calls is the failure of its own workflow."""
    runs_again = node.retry is not None or plan.tries > 1
    return not runs_again and node.fallback is None and _handler(plan, node, "failure") is None


def fails_the_workflow(plan: Plan, node: Node, record: Record) -> bool:
    """Whether this block has failed, and its failure is the failure of the workflow."""
    return failed(record) and record.status != "skipped" and handler_of(plan, node, record) is None
