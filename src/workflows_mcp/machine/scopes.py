"""Which scopes are open, by the prefix of the addresses inside of them. All of it follows from the state."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from workflows_mcp.limits import Limits
from workflows_mcp.machine.items import OpenItems
from workflows_mcp.machine.open_scope import OpenScope
from workflows_mcp.machine.scope import ProgramOf, names_in
from workflows_mcp.machine.sequence import OpenSequence
from workflows_mcp.machine.state import TERMINAL, Frame, Scope
from workflows_mcp.plan.model import Steps
from workflows_mcp.values import Value


class OpenScopes:
    def __init__(self, limits: Callable[[], Limits]) -> None:
        self._open: dict[str, OpenScope] = {}
        self._limits = limits

    def open_workflow(
        self,
        scope: Scope,
        program_of: ProgramOf,
        run_id: str,
        around: OpenScope | None = None,
        name: str = "",
    ) -> OpenScope:
        """A workflow: the run's own, or the one that the block `name` of the scope `around` calls."""
        prefix, depth, tries = "", 0, ""
        if around is not None:
            prefix, depth = f"{around.prefix}{name}/", around.depth + 1
            tries = around.tries_inside(name)
        names = names_in(scope, run_id, program_of)
        program = program_of(scope.workflow)
        kind = OpenSequence if isinstance(program.plan.body, Steps) else OpenScope
        if kind is OpenSequence:
            names = {**names, "__limits__": self._limits()}
        opened = self._open[prefix] = kind(prefix, scope, program, names, depth, tries)
        return opened

    def open_items(
        self, scope: Scope, around: OpenScope, index: int, items: Value, limit: int | None
    ) -> OpenScope:
        """The items of the block `index` of the scope `around`, so many of them at once."""
        prefix = f"{around.prefix}{around.program.nodes[index].id}/"
        opened = self._open[prefix] = OpenItems(around, index, prefix, scope, items, limit)
        return opened

    def reopen(self, root: Scope, program_of: ProgramOf, run_id: str, frames: Mapping[str, Frame]) -> None:
        """Count again what is open, after a restart. Nothing is ready: ready means started."""
        pending = [self.open_workflow(root, program_of, run_id)]
        while pending:
            around = pending.pop()
            for name, record in around.scope.records.items():
                address = around.prefix + name
                if record.scope is None or record.status in TERMINAL or frames[address].kind == "retry":
                    continue  # nothing is inside, or what is inside has ended
                if record.scope.each is None:
                    pending.append(self.open_workflow(record.scope, program_of, run_id, around, name))
                else:
                    index = around.program.ids[name]
                    prepared, names = around.program.prepared(index), around.names_for(index)
                    items: Value = record.scope.items
                    if items is None:
                        items = prepared.items(names)
                    limit = prepared.max_parallel(names)
                    pending.append(self.open_items(record.scope, around, index, items, limit))

    def locate(self, address: str) -> tuple[OpenScope, int]:
        """The block at an address: its scope, and its place in the program."""
        cut = address.rfind("/") + 1
        scope = self._open[address[:cut]]
        return scope, scope.program.ids[address[cut:]]

    def close(self, prefix: str) -> None:
        del self._open[prefix]

    def close_inside(self, prefix: str) -> None:
        for inside in [inside for inside in self._open if inside.startswith(prefix)]:
            del self._open[inside]

    def clear(self) -> None:
        self._open.clear()
