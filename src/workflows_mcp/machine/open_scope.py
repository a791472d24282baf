"""A workflow that is under way: its scope, and what is counted while blocks of it are still to be done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workflows_mcp.machine.program import Program
from workflows_mcp.machine.state import TERMINAL, Record, Scope

if TYPE_CHECKING:
    from workflows_mcp.machine.machine import Machine


class OpenScope:
    """A scope with blocks still to be done, and what is counted while it is open.

    All of it follows from the state, so it is not written down but made again after a restart.
    """

    __slots__ = (
        "depth",
        "finished",
        "home",
        "missing",
        "names",
        "prefix",
        "program",
        "scope",
        "time",
        "tries",
        "unfinished",
    )

    def __init__(
        self,
        prefix: str,
        scope: Scope,
        program: Program,
        names: dict[str, Any],
        depth: int = 0,
        tries: str = "",
    ) -> None:
        self.prefix = prefix
        self.scope = scope
        self.program = program
        self.names = names
        self.depth = depth
        """How many calls lead here."""
        self.tries = tries
        """Which tries of the calls around it this is, so that what belongs to an earlier one is known."""
        self.home: Any = None
        """Where the state is that its steps share, in a reactive workflow."""
        self.finished = not program.nodes
        self.time = scope.started_at
        """When the block that is entered now is entered."""
        ended = {name for name, record in scope.records.items() if record.status in TERMINAL}
        self.unfinished = len(program.nodes) - len(ended)
        if ended:
            ids = [node.id for node in program.nodes]
            self.missing = [sum(ids[need.node] not in ended for need in node.needs) for node in program.nodes]
        else:
            self.missing = [len(node.needs) for node in program.nodes]

    def attempt(self, name: str, record: Record) -> str:
        """Which try of a block this is."""
        return f"{self.tries}{record.attempts}"

    def tries_inside(self, name: str) -> str:
        """What the tries of everything inside begin with: nothing while all are first ones."""
        attempt = self.attempt(name, self.scope.records[name])
        return f"{attempt}." if attempt != "1" else ""

    def names_for(self, index: int) -> Any:
        """The names that expressions of a block start from."""
        return self.names

    def settle(self, machine: Machine, index: int) -> None:
        """A block has ended: see to what follows from that alone, before anything else is entered."""

    def ready(self) -> list[int]:
        """The blocks to enter when the scope is opened."""
        return [index for index, missing in enumerate(self.missing) if not missing]

    def after(self, index: int) -> list[int]:
        """The blocks to enter because this one has ended; `finished` tells whether it was the last."""
        self.unfinished -= 1
        self.finished = not self.unfinished
        ready = []
        missing = self.missing
        for dependent in self.program.dependents[index]:
            missing[dependent] -= 1
            if not missing[dependent]:
                ready.append(dependent)
        return ready
