"""Which scopes are open, by the prefix of the addresses inside of them. All of it follows from the state."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from workflows_mcp.limits import Limits
from workflows_mcp.machine.home import Home
from workflows_mcp.machine.items import OpenItems
from workflows_mcp.machine.open_scope import OpenScope
from workflows_mcp.machine.program import Program
from workflows_mcp.machine.reactive import OpenReactive
from workflows_mcp.machine.scope import ProgramOf, names_in
from workflows_mcp.machine.sequence import OpenSequence
from workflows_mcp.machine.state import TERMINAL, Frame, Scope
from workflows_mcp.plan.model import Steps
from workflows_mcp.values import Value


class OpenScopes:
    def __init__(self, limits: Callable[[], Limits], seed: Callable[[], str]) -> None:
        self._open: dict[str, OpenScope] = {}
        self._limits = limits
        self._seed = seed
        self.on_home: Callable[[Home], None] | None = None
        """Told of every state that is opened, for whoever wants to know what is computed in it."""

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
        opened: OpenScope
        if program.plan.dialect == "reactive":
            home = self._home(scope, program, around)
            opened = OpenReactive(prefix, scope, program, names, depth, tries, home, run_id, self._seed)
        else:
            opened = kind(prefix, scope, program, names, depth, tries)
        self._open[prefix] = opened
        return opened

    def _home(self, scope: Scope, program: Program, around: OpenScope | None) -> Home:
        """Where its state is: a task may share that of the workflow around it."""
        outside = around.home if around is not None else None
        if program.plan.shares_state and outside is not None:
            shared: Home = outside
            return shared
        is_task = "#" in program.plan.name
        home = Home(scope, program, self._limits(), outside if is_task else None)
        if self.on_home is not None:
            self.on_home(home)
        return home

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
                    # how many may be under way at once is settled: as one ends, the next one begins
                    pending.append(self.open_items(record.scope, around, index, items, None))

    def locate(self, address: str) -> tuple[OpenScope, int]:
        """The block at an address: its scope, and its place in the program."""
        cut = address.rfind("/") + 1
        scope = self._open[address[:cut]]
        return scope, scope.program.ids[address[cut:]]

    def at(self, prefix: str) -> OpenScope | None:
        return self._open.get(prefix)

    def of_items(self) -> list[OpenItems]:
        """The items that are open, those inside of others last."""
        return [it for it in self._open.values() if isinstance(it, OpenItems)]

    def homes(self) -> list[Home]:
        """Every state that is open, each once."""
        return list({id(it.home): it.home for it in self._open.values() if it.home is not None}.values())

    def close(self, prefix: str) -> None:
        del self._open[prefix]

    def close_inside(self, prefix: str) -> None:
        for inside in [inside for inside in self._open if inside.startswith(prefix)]:
            del self._open[inside]

    def clear(self) -> None:
        self._open.clear()
