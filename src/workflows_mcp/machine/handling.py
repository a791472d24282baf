"""What counts as a handled failure: the one table, for every dialect.

| what failed                          | it is handled by                                                |
| ------------------------------------ | --------------------------------------------------------------- |
| anything                             | `on_failure: continue` (a block), `on_error: continue` (a step) |
| it took longer than its `timeout`    | also `on_timeout: continue`, and as a failed operation          |
| its operation failed (an exit code   | also whoever reads how it went: a dependency with               |
| other than 0, a failed item or call) | `required: false`, or the status, outcome, `success` or         |
|                                      | `exit_code` in a condition or in the inputs of another block    |
| it could not be run at all           | nothing else                                                    |
| a `Fail` block, a `fail` step        | nothing: the error of the workflow is its message and code      |

An output of the workflow only reports a failure. A failure that nobody handles fails the workflow; one that
is handled is listed in its answer. Answers, the terminal and exit codes follow from here.
"""

from __future__ import annotations

from typing import Literal

from workflows_mcp.machine.state import Record
from workflows_mcp.plan.layout import LAYOUTS
from workflows_mcp.plan.model import Node, Plan, fails_on_purpose

FailureKind = Literal["failure", "timeout", "error"]
TIMEOUT = "timeout"


def failed(record: Record) -> bool:
    return record.status == "failed" or record.outcome == "failure"


def failure_kind(record: Record) -> FailureKind:
    """How a block that has failed has failed: what it did, its time, or that it could not be run."""
    if _timed_out(record):
        return "timeout"
    return "error" if record.status == "failed" else "failure"


def _timed_out(record: Record) -> bool:
    """Whether its own time ran out, or, where it was carried out for each item, that of items only."""
    if record.fault is None or record.fault.code != TIMEOUT:
        return False
    return record.status == "failed" or (record.scope is not None and record.scope.each is not None)


def handler_of(plan: Plan, node: Node, record: Record) -> str | None:
    """Who handles the failure of a block: the blocks that read how it went, or the key that says so.

    None where nobody does: then it is the failure of the workflow. Empty where it is not known who does.
    """
    if fails_on_purpose(node):
        return None
    key = LAYOUTS[plan.dialect].on_failure[-1]
    if node.on_failure is not None:
        return f"{key}: continue" if node.on_failure == "continue" else None
    kind = failure_kind(record)
    if kind == "timeout" and node.on_timeout == "continue":
        return "on_timeout: continue"
    each = node.for_each
    if kind != "error" and each is not None and each.puts_up:
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
