"""What expressions see of a run: `inputs`, `metadata` and `blocks`, and the shape of a block's result.

The same shape at every depth: a block has inputs, outputs, metadata and, when it called a workflow, the
blocks of that workflow. The same functions serve expressions, answers and the CLI.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from workflows_mcp.expressions.base import MISSING
from workflows_mcp.machine.program import Program
from workflows_mcp.machine.state import Record, Scope
from workflows_mcp.plan.model import Node
from workflows_mcp.values import Value

ProgramOf = Callable[[str], Program]
"""The program of the workflow with this name, in the bundle of the run."""

_PENDING = Record()
_PARTS = ("inputs", "outputs", "metadata", "blocks")
_STATES = ("succeeded", "failed", "skipped", "status", "outcome")


def iso(at: float | None) -> str | None:
    """A time as text, always with its zone."""
    if at is None:
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def succeeded(record: Record) -> bool:
    return record.status == "completed" and record.outcome == "success"


def failed(record: Record) -> bool:
    return record.status == "failed" or record.outcome == "failure"


def metadata_of(record: Record, node: Node) -> dict[str, Value]:
    took = None
    if record.started_at is not None and record.completed_at is not None:
        took = round((record.completed_at - record.started_at) * 1000, 3)
    return {
        "status": record.status,
        "outcome": record.outcome,
        "succeeded": succeeded(record),
        "failed": failed(record),
        "skipped": record.status == "skipped",
        "execution_time_ms": took,
        "started_at": iso(record.started_at),
        "completed_at": iso(record.completed_at),
        "wave": node.wave,
        "execution_order": node.order,
        "message": record.message,
    }


def block_result(record: Record, node: Node, program_of: ProgramOf) -> dict[str, Value]:
    """All that is known of a block; a called workflow's blocks are inside its block."""
    result: dict[str, Value] = {
        "inputs": record.inputs,
        "outputs": record.outputs,
        "metadata": metadata_of(record, node),
    }
    if record.scope is not None:
        result["blocks"] = Blocks(record.scope, program_of).plain()
    return result


class Blocks:
    """`blocks`: the blocks of one scope by id."""

    __slots__ = ("_nodes", "_program_of", "_records")

    def __init__(self, scope: Scope, program_of: ProgramOf) -> None:
        self._records = scope.records
        self._nodes = program_of(scope.workflow)
        self._program_of = program_of

    def lookup(self, name: str) -> Any:
        index = self._nodes.ids.get(name)
        if index is None:
            return MISSING
        return Block(self._records.get(name, _PENDING), self._nodes.nodes[index], self._program_of)

    def names(self) -> list[str]:
        return list(self._nodes.ids)

    def plain(self) -> Value:
        return {
            name: block_result(record, self._nodes.nodes[self._nodes.ids[name]], self._program_of)
            for name, record in self._records.items()
        }


class Block:
    """One block: its parts, its state by short names, and its outputs by name."""

    __slots__ = ("_node", "_program_of", "_record")

    def __init__(self, record: Record, node: Node, program_of: ProgramOf) -> None:
        self._record = record
        self._node = node
        self._program_of = program_of

    def lookup(self, name: str) -> Any:
        record = self._record
        match name:
            case "outputs":
                return record.outputs
            case "succeeded":
                return succeeded(record)
            case "failed":
                return failed(record)
            case "skipped":
                return record.status == "skipped"
            case "status":
                return record.status
            case "outcome":
                return record.outcome
            case "inputs":
                return record.inputs
            case "metadata":
                return metadata_of(record, self._node)
            case "blocks":
                return {} if record.scope is None else Blocks(record.scope, self._program_of)
        return record.outputs.get(name, MISSING)

    def names(self) -> list[str]:
        return [*_PARTS, *_STATES, *self._record.outputs]

    def plain(self) -> Value:
        return block_result(self._record, self._node, self._program_of)


def names_in(scope: Scope, run_id: str, program_of: ProgramOf) -> dict[str, Any]:
    """The names that expressions of this scope start from."""
    return {
        "inputs": scope.inputs,
        "metadata": {
            "workflow_name": scope.workflow,
            "start_time": iso(scope.started_at),
            "run_id": run_id,
            "execution_id": run_id,
            "status": "running",
        },
        "blocks": Blocks(scope, program_of),
    }
