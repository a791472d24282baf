"""Results that need not have been submitted, and do no harm: acknowledgements of steps that the server
carries out by itself. Agents that were taught to acknowledge every step may do so."""

from __future__ import annotations

from typing import Any

from workflows_mcp.agent.parts import Part
from workflows_mcp.agent.situation import situation_of
from workflows_mcp.agent.walk import Visited, block_at
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.state import TERMINAL
from workflows_mcp.plan.model import (
    Branch,
    Checkpoint,
    Each,
    Jump,
    Leave,
    Node,
    Return,
    SetState,
    Tell,
    UpdateState,
    Wait,
    While,
)

_WORDS = ("", "{}", "ok", "done", "true", "acknowledged")
_FIELDS = {"acknowledged", "resumed", "duration", "success", "status"}


def is_harmless(machine: Machine, part: Part, step_id: str | None, result: Any) -> bool:
    """Whether a result acknowledges something that takes no result: a step that was passed, one that waits
    for time to pass, or one whose tasks are handed to sub-agents."""
    if not _acknowledges(result):
        return False
    if step_id is None:
        situation = situation_of(machine, part=part, now=machine.state.changed_at)
        waits = situation.under_way("wait") or situation.duties.delegations
        return bool(waits) and not situation.duties.questions
    for address in part.meant(step_id):
        visited = block_at(machine, address)
        if visited is not None:
            return _takes_no_result(visited.node) and _was_come_to(visited)
    return False


def _acknowledges(result: Any) -> bool:
    if isinstance(result, str):
        return result.strip().lower() in _WORDS
    if isinstance(result, dict):
        return set(result) <= _FIELDS
    return result is None or result is True


def _takes_no_result(node: Node) -> bool:
    if node.for_each is not None:
        return bool(node.for_each.agent)
    return isinstance(
        node.do,
        SetState | Branch | Return | Jump | Wait | UpdateState | Tell | Checkpoint | While | Each | Leave,
    )


def _was_come_to(visited: Visited) -> bool:
    return visited.record.status in TERMINAL or visited.record.status == "running"
