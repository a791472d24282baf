"""A workflow that is under way: its scope, and what is counted while blocks of it are still to be done."""

from __future__ import annotations

from typing import Any

from workflows_mcp.machine.program import Program
from workflows_mcp.machine.state import TERMINAL, Scope


class OpenScope:
    """A scope with blocks still to be done, and what is counted while it is open.

    All of it follows from the state, so it is not written down but made again after a restart.
    """

    __slots__ = ("missing", "names", "prefix", "program", "scope", "unfinished")

    def __init__(self, prefix: str, scope: Scope, program: Program, names: dict[str, Any]) -> None:
        self.prefix = prefix
        self.scope = scope
        self.program = program
        self.names = names
        ended = {name for name, record in scope.records.items() if record.status in TERMINAL}
        self.unfinished = len(program.nodes) - len(ended)
        if ended:
            ids = [node.id for node in program.nodes]
            self.missing = [sum(ids[need.node] not in ended for need in node.needs) for node in program.nodes]
        else:
            self.missing = [len(node.needs) for node in program.nodes]
