"""The state of a run or a task by bare names, for workflows of every dialect.

A reactive workflow has raw fields, fields of `state`, and fields that follow from them; a stateful one has
its state; a graph has outputs, once it has ended. What is read is gathered while nothing else has a turn;
fields that follow from others are computed afterwards, beside the event loop.

    gathered = gather(situation)
    state = await asyncio.to_thread(gathered.read)
    state.at('file_results["a.ts"].status')
"""

from __future__ import annotations

from dataclasses import dataclass

from workflows_mcp.agent.fields import Fields, PartsOfState, parts_of_state
from workflows_mcp.agent.paths import Path, format_path, parse_path
from workflows_mcp.agent.previews import Cut, Reader, cut, reader
from workflows_mcp.agent.situation import Situation
from workflows_mcp.errors import ExpressionError, RequestError
from workflows_mcp.expressions.base import Reference
from workflows_mcp.expressions.lookup import follow
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.scope import outputs_of
from workflows_mcp.values import Value


@dataclass(frozen=True, slots=True)
class FlatState:
    flat: dict[str, Value]
    names: dict[str, Value]
    """What a path can begin with."""
    unset: frozenset[str] = frozenset()
    """Fields that are known and have no value yet."""
    prefix: Path = ()
    """What goes before a bare name in a path of `get_workflow_state`."""
    included: bool = False
    """It is that of a workflow that was included, which `get_workflow_state` does not lead into."""

    def at(self, text: str) -> Value:
        """The value at a path. Raises RequestError where it leads nowhere, with what there is."""
        path = parse_path(text)
        names = self.names
        if len(path) == 1 and path[0] in self.unset and path[0] not in names:
            return None
        try:
            return follow(Reference(path, 0), names)
        except ExpressionError as error:
            message = error.message.replace("${", "").replace("}", "")
            hint = error.hint.replace("a reference starts with one of", "there is")
            raise RequestError(message, hint=hint, code="invalid_path") from None

    def where(self, text: str) -> Path:
        """The same path as `get_workflow_state` takes it."""
        path = parse_path(text)
        return (*self.prefix, *path) if path[0] in self.flat else path

    def shown(self, how: Cut, workflow_id: str) -> dict[str, Value]:
        """All fields, as much of each as may be shown."""
        read = self.reader(workflow_id)

        def on(path: Path, offset: int) -> str:
            needed = "workflow_state_read and the paths of those you need"
            return read(path, offset) if path != self.prefix else needed

        fields = cut(self.flat, self.prefix, how, on)
        return dict(fields)

    def reader(self, workflow_id: str) -> Reader:
        """How what was cut is read on."""
        if not self.included:
            return reader(workflow_id)
        return lambda path, _: f"workflow_state_read and paths that lead into {format_path(path)}"


@dataclass(frozen=True, slots=True)
class Gathered:
    """What a state is read from, at a moment."""

    parts: PartsOfState | None
    others: dict[str, Value]
    """The fields of a workflow that is not reactive."""
    prefix: Path
    inputs: dict[str, Value]
    variables: dict[str, Value]
    included: bool = False

    def read(self) -> FlatState:
        """Can take as long as expressions may."""
        if self.parts is None:
            names = {**self.variables, **self.others, "inputs": self.inputs}
            return FlatState(self.others, names, prefix=self.prefix)
        fields: Fields = self.parts.fields()
        names = {**self.variables, **fields.flat, "inputs": self.inputs, **fields.parts}
        return FlatState(fields.flat, names, frozenset(self.parts.plan.known), included=self.included)


def state_meant(situation: Situation) -> str:
    """Whose state an agent means, to read or to write: that of the step which is pending.

    The step can be in a workflow that was included: a question, tasks that are handed out, a wait.
    """
    questions = situation.duties.questions
    if questions:
        return questions[0][0].rpartition("/")[0]
    address = situation.part.address
    while True:
        called = _called_inside(situation.machine, address)
        if len(called) != 1:
            return address
        address = called[0]


def _called_inside(machine: Machine, address: str) -> list[str]:
    """The workflows that the one at an address has called, and that are under way."""
    prefix = f"{address}/" if address else ""
    return [
        inside
        for inside, frame in machine.state.frames.items()
        if frame.kind == "call" and inside.startswith(prefix) and "/" not in inside[len(prefix) :]
    ]


def gather(situation: Situation, address: str | None = None) -> Gathered:
    """Of the run or task; or of the reactive workflow at an address inside of it, if there is one."""
    if address is not None and address != situation.part.address:
        inside = situation.machine.scope_inside(address)
        if inside is not None and inside.home is not None:
            parts = parts_of_state(situation.machine, address)
            given, known = dict(inside.scope.inputs), dict(inside.scope.variables)
            return Gathered(parts, {}, (), given, known, included=True)
    scope, task = situation.scope, situation.task
    parts = parts_of_state(situation.machine, situation.part.address)
    others: dict[str, Value] = {}
    prefix: Path = ()
    if parts is None and situation.is_sequence and scope is not None:
        others, prefix = dict(scope.state), ("state",)
    elif parts is None:
        others = dict(situation.machine.state.outputs if task is None else outputs_of(task.record))
        prefix = ("outputs",)
    inputs = dict(scope.inputs) if scope is not None else {}
    variables = dict(scope.variables) if scope is not None else {}
    return Gathered(parts, others, prefix, inputs, variables)
