"""A block that runs for each item: the items are blocks of a scope of their own.

The items are a graph without dependencies; a limited number of them is under way at once. So items have
everything that blocks have: retries, timeouts, questions, calls, cancellation, restarts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from workflows_mcp.machine.core import Core, OpenScope
from workflows_mcp.machine.lifecycle import advance
from workflows_mcp.machine.names import Names
from workflows_mcp.machine.program import Program
from workflows_mcp.machine.rules import ScopeResult, failed, failure_kind
from workflows_mcp.machine.state import TERMINAL, Fault, Record, Scope
from workflows_mcp.plan import Plan, item_node, name_of_item, names_of_items
from workflows_mcp.values import Value

STOPPED = "ended, because another one failed"

_NAMED = 5
_MESSAGE_CHARS = 300


class ItemsProgram(Program):
    """The program of the items: every item is the same block, whose expressions are compiled once."""

    def __init__(self, around: Program, index: int, keys: Sequence[str | int], named: bool) -> None:
        self.plan: Plan = around.plan
        self.language = around.language
        names = names_of_items(keys, named)
        self.nodes = tuple(item_node(around.nodes[index], name) for name in names)
        self._compiled = around._compiled
        self.ids = {name: position for position, name in enumerate(names)}
        self.dependents = [[] for _ in names]


class OpenItems(OpenScope):
    """The items of a block, until all of them have ended."""

    __slots__ = ("_fails_fast", "_not_started", "_values", "agent", "items", "limit")

    def __init__(
        self, around: OpenScope, index: int, prefix: str, scope: Scope, items: Any, limit: int | None
    ) -> None:
        keys = scope.each or []
        program = ItemsProgram(around.program, index, keys, scope.named)
        attempt_prefix = around.attempt_prefix_inside(around.program.nodes[index].id)
        super().__init__(prefix, scope, program, around.names_for(index), around.depth, attempt_prefix)
        self.reactive = around.reactive
        self._values = list(items.values()) if isinstance(items, dict) else items
        self.limit = limit
        each = around.program.nodes[index].for_each
        assert each is not None
        self.items = each.items
        self.agent = each.agent
        """The kind of sub-agent that each item goes to; empty: none."""
        self._fails_fast = each.fail_fast
        """Whether the first item that fails ends the others."""
        self._not_started = deque(
            index for index, node in enumerate(program.nodes) if node.id not in scope.records
        )
        """Those that have not started; they are entered in order."""

    def names_for(self, index: int) -> Any:
        keys = self.scope.each or []
        if isinstance(self.names, Names):
            name = self.program.nodes[index].id
            return self.names.for_item(name, {**self.variables(index), "task_id": keys[index]})
        each = {"key": keys[index], "value": self._values[index], "index": index, "count": len(keys)}
        return {**self.names, **self.variables(index), "each": each}

    def names_with_result(self, index: int, result: Value) -> Any:
        names = self.names_for(index)
        if isinstance(names, Names):
            return names.with_variables({"result": result})
        return {**names, "result": result}

    def variables(self, index: int) -> dict[str, Value]:
        """The item as its task sees it."""
        total = len(self._values)
        return {
            "item": self._values[index],
            "index": index,
            "total": total,
            "is_first": index == 0,
            "is_last": index == total - 1,
        }

    def ready(self) -> list[int]:
        count = len(self._not_started) if self.limit is None else min(self.limit, len(self._not_started))
        return [self._not_started.popleft() for _ in range(count)]

    def admit(self, index: int) -> bool:
        under_way = sum(record.status not in TERMINAL for record in self.scope.records.values())
        if self.limit is not None and under_way >= self.limit:
            return False
        self._not_started.remove(index)
        return True

    def after(self, index: int) -> list[int]:
        self.unfinished -= 1
        self.finished = not self.unfinished
        return self.next_ones()

    def next_ones(self) -> list[int]:
        """The next item, in a list; empty if all have started."""
        return [self._not_started.popleft()] if self._not_started else []

    def postpone(self, index: int) -> None:
        """Put an item that has started back, to start again when there is room."""
        del self.scope.records[self.program.nodes[index].id]
        self._not_started = deque(sorted([*self._not_started, index]))

    def after_end(self, machine: Core, index: int) -> list[int]:
        if self._fails_fast and failed(self.scope.records[self.program.nodes[index].id]):
            self._stop_others(machine)
        return self.after(index)

    def _stop_others(self, machine: Core) -> None:
        """End the other items because one has failed, and start no more."""
        at, frames = machine.state.changed_at, machine.state.frames
        machine.forget_work(self)
        for index, node in enumerate(self.program.nodes):
            address = self.prefix + node.id
            if address in frames:
                inside = machine.scope_inside(address)
                if inside is not None and inside.cleans_up:
                    continue
                if machine.clean_up_first(address, at, machine.fault(self, index, "ended", STOPPED)):
                    continue
                machine.stop(address, frames[address], at, STOPPED)
                machine.mark_stopped(self, index, at, STOPPED)
                self.unfinished -= 1
            elif node.id not in self.scope.records:
                record = self.scope.records[node.id] = Record(message=STOPPED, completed_at=at)
                advance(record, "skipped")
                self.unfinished -= 1
        self._not_started.clear()

    def outcome(self, machine: Core) -> ScopeResult:
        """The fault of the first item that failed, with a message about all of them.

        There are no outputs: `outputs_of` derives them from the items."""
        address = self.prefix[:-1]
        machine.hand_to_caller(address, machine.state.frames[address])
        scope, program = self.scope, self.program
        keys = scope.each or []
        wrong: list[tuple[str | int, Record]] = []
        for key, node in zip(keys, program.nodes, strict=True):
            record = scope.records[node.id]
            if failed(record):
                wrong.append((key, record))
        if not wrong:
            return ScopeResult({})
        if program.nodes[0].on_timeout == "continue":  # prefer a reason that is worse than a timeout
            wrong.sort(key=lambda item: failure_kind(item[1]) == "timeout")
        key, record = wrong[0]
        reason = (record.message or "no reason was given")[:_MESSAGE_CHARS]
        message = f"{len(wrong)} of {len(keys)} items failed: '{key}': {reason}"
        if len(wrong) > 1:
            message += f" (and {', '.join(repr(str(other)) for other, _ in wrong[1:_NAMED])}"
            message += f" and {len(wrong) - _NAMED} more)" if len(wrong) > _NAMED else ")"
        name = name_of_item(keys, keys.index(key), scope.named)
        at = program.nodes[0].at
        inner = record.fault or Fault("block_failed", "", "", self.prefix + name, scope.workflow, at)
        return ScopeResult({}, replace(inner, message=message))
