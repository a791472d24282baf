"""The names that expressions see in a run, and the shape of a result.

Expressions of graphs see `inputs`, `metadata`, `blocks` and `secrets`. The shape is the same at every depth:
a block has inputs, outputs, metadata and, if it called a workflow, the blocks of that workflow; a for_each
block has its items. The same functions serve expressions, answers and the CLI.

Expressions of a reactive workflow see `Names`, each looked up when it is used. A bare name is looked for in
this order: variables of loops and of the task; `result` and its fields that the step type documents;
computed, raw, state, inputs; the configuration; other fields of the result; results of included workflows
that have ended. `raw`, `state`, `computed`, `inputs`, `config`, `this`, `global` and `loop` are objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from workflows_mcp.expressions import MISSING, UNSET
from workflows_mcp.machine.program import Program
from workflows_mcp.machine.reactive_state import Members, ReactiveState
from workflows_mcp.machine.rules import failed
from workflows_mcp.machine.state import TERMINAL, Record, Scope
from workflows_mcp.plan import NO_ITEMS, Call, Node, Steps, item_node, name_of_item, names_of_items
from workflows_mcp.values import Value, secret_mark

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
        "attempts": record.attempts,
        "message": record.message,
        "by": str(record.by) if record.by is not None else None,
    }


def outputs_of(record: Record) -> dict[str, Value]:
    """The outputs of a block; a for_each block has the outputs of its items."""
    scope = record.scope
    if scope is None or scope.each is None:
        return record.outputs
    items = [scope.records.get(name, _PENDING) for name in names_of_items(scope.each, scope.named)]
    results = [item.outputs for item in items]
    return {
        "results": dict(zip(scope.each, results, strict=True)) if scope.by_key else results,
        "count": len(items),
        "failed_keys": [key for key, item in zip(scope.each, items, strict=True) if failed(item)],
        "skipped_keys": [
            key for key, item in zip(scope.each, items, strict=True) if item.status == "skipped"
        ],
    }


def block_result(record: Record, node: Node, program_of: ProgramOf) -> dict[str, Value]:
    """Everything about a block; the blocks of a called workflow are inside its block."""
    result: dict[str, Value] = {
        "inputs": record.inputs,
        "outputs": outputs_of(record),
        "metadata": metadata_of(record, node),
    }
    if record.scope is None:
        if isinstance(node.do, Call) and node.for_each is None:
            result["blocks"] = {}
        return result
    if record.scope.each is None:
        result["blocks"] = Blocks(record.scope, program_of).plain()
    else:
        result["items"] = Items(record.scope, node, program_of).plain()
    return result


class Blocks:
    """`blocks`: the blocks of one scope by id."""

    __slots__ = ("_made", "_nodes", "_program_of", "_records")

    def __init__(self, scope: Scope, program_of: ProgramOf) -> None:
        self._records = scope.records
        self._nodes = program_of(scope.workflow)
        self._program_of = program_of
        self._made: dict[str, dict[str, Value]] = {}
        """The outputs of for_each blocks that have ended."""

    def lookup(self, name: str | int) -> Any:
        index = self._nodes.ids.get(str(name))
        if index is None:
            return MISSING
        name = str(name)
        node, record = self._nodes.nodes[index], self._records.get(name, _PENDING)
        if node.for_each is None or record.status not in TERMINAL:
            return Block(record, node, self._program_of)
        if name not in self._made:
            self._made[name] = outputs_of(record)
        return Block(record, node, self._program_of, self._made[name])

    def names(self) -> list[str]:
        return list(self._nodes.ids)

    def plain(self) -> Value:
        return {
            name: block_result(record, self._nodes.nodes[self._nodes.ids[name]], self._program_of)
            for name, record in self._records.items()
        }


class Block:
    """One block: its parts, its state by short names, and its outputs by name."""

    __slots__ = ("_made", "_node", "_program_of", "_record")

    def __init__(
        self,
        record: Record,
        node: Node,
        program_of: ProgramOf,
        made: dict[str, Value] | None = None,
    ) -> None:
        self._record = record
        self._node = node
        self._program_of = program_of
        self._made = made

    @property
    def _outputs(self) -> dict[str, Value]:
        return outputs_of(self._record) if self._made is None else self._made

    def lookup(self, name: str | int) -> Any:
        record = self._record
        match name:
            case "outputs":
                facts = self._facts()
                return CallOutputs(record.outputs, facts) if facts else self._outputs
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
            case "blocks" if self._items is None:
                return {} if record.scope is None else Blocks(record.scope, self._program_of)
            case "items" if self._node.for_each is not None:
                return self._items or {}
        if self._items is None:
            found = record.outputs.get(name, MISSING) if isinstance(name, str) else MISSING
            return self._facts().get(name, MISSING) if found is MISSING else found
        if name in NO_ITEMS:
            return self._outputs[str(name)]
        return self._items.lookup(name)

    def lookup_made(self, name: str | int) -> Any:
        """As `lookup`, but a block that did not run has no outputs."""
        is_output = name not in (*_STATES, "inputs", "metadata", "blocks")
        return MISSING if is_output and self._record.status != "completed" else self.lookup(name)

    def _facts(self) -> dict[Any, Value]:
        """Facts about a call. Outputs of the called workflow with the same names take precedence."""
        if not isinstance(self._node.do, Call) or self._node.for_each is not None:
            return {}
        record = self._record
        facts: dict[Any, Value] = {
            "success": succeeded(record),
            "workflow": record.inputs.get("workflow"),
            "execution_time_ms": metadata_of(record, self._node)["execution_time_ms"],
            "total_blocks": 0,
            "execution_waves": 0,
        }
        if record.scope is not None:
            nodes = self._program_of(record.scope.workflow).nodes
            facts["total_blocks"] = len(nodes)
            facts["execution_waves"] = 1 + max((node.wave for node in nodes), default=-1)
        return facts

    @property
    def _items(self) -> Items | None:
        scope = self._record.scope
        if scope is None or scope.each is None:
            return None
        return Items(scope, self._node, self._program_of)

    def names(self) -> list[str]:
        return [*_PARTS, *_STATES, *self._outputs, *(self._items.names() if self._items else ())]

    def plain(self) -> Value:
        return block_result(self._record, self._node, self._program_of)


class CallOutputs:
    """The outputs of a call; a lookup also finds the facts about the call itself."""

    __slots__ = ("_facts", "_outputs")

    def __init__(self, outputs: dict[str, Value], facts: dict[Any, Value]) -> None:
        self._outputs = outputs
        self._facts = facts

    def lookup(self, name: str | int) -> Any:
        return {**self._facts, **self._outputs}.get(name, MISSING)

    def names(self) -> list[str]:
        return [*self._outputs, *self._facts]

    def plain(self) -> Value:
        return self._outputs


class Items:
    """The items of a for_each block, by key or by position."""

    __slots__ = ("_node", "_program_of", "_scope")

    def __init__(self, scope: Scope, node: Node, program_of: ProgramOf) -> None:
        self._scope = scope
        self._node = node
        self._program_of = program_of

    def lookup(self, name: str | int) -> Any:
        keys = self._scope.each or []
        position = -1
        if self._scope.by_key and name in keys:
            position = keys.index(name)
        elif isinstance(name, int) or name.isdecimal():
            position = int(name)
        if not 0 <= position < len(keys):
            return MISSING
        return self._block(name_of_item(keys, position, self._scope.named))

    def _block(self, name: str) -> Block:
        record = self._scope.records.get(name, _PENDING)
        return Block(record, item_node(self._node, name), self._program_of)

    def names(self) -> list[str]:
        return [str(key) for key in self._scope.each or []]

    def plain(self) -> Value:
        """The results of the items without their outputs, which are the outputs of the block."""
        keys = self._scope.each or []
        items = {}
        for key, name in zip(keys, names_of_items(keys, self._scope.named), strict=True):
            result = self._block(name).plain()
            del result["outputs"]
            items[str(key)] = result
        return items


class Secrets:
    """`secrets`: each value is a mark with its name; only the step that uses a secret gets the value."""

    __slots__ = ()

    def lookup(self, name: str | int) -> Any:
        return secret_mark(str(name))

    def names(self) -> list[str]:
        return []

    def plain(self) -> Value:
        return {}


_SECRETS = Secrets()


def rejection_in(scope: Scope) -> Value:
    """`rejection`: why a person sent a step back; the same fields without text before that."""
    return scope.variables.get("rejection", {"comment": "", "by": "", "gate": "", "step": "", "count": 0})


def names_in(scope: Scope, run_id: str, program_of: ProgramOf) -> dict[str, Any]:
    """The names that expressions of this scope start from; a sequence adds its state."""
    program = program_of(scope.workflow)
    rejection = {"rejection": rejection_in(scope)} if program.has_push_back else {}
    if isinstance(program.plan.body, Steps):
        return {"inputs": scope.inputs, "secrets": _SECRETS, **scope.variables, **rejection}
    return {
        **rejection,
        "inputs": scope.inputs,
        "metadata": {
            "workflow_name": scope.workflow,
            "start_time": iso(scope.started_at),
            "run_id": run_id,
            "execution_id": run_id,
            "status": "running",
        },
        "blocks": Blocks(scope, program_of),
        "secrets": _SECRETS,
    }


# Names of a reactive workflow


OBJECTS = ("raw", "state", "computed", "inputs", "this", "global", "secrets")

Included = Callable[[], list[dict[str, Value]]]
"""The results of included workflows, the latest first."""


class Names(Mapping[str, Any]):
    __slots__ = (
        "_fields", "_given", "_hidden", "_included", "_inputs", "_known", "_reactive", "_seeds", "_variables",
    )  # fmt: skip

    def __init__(
        self,
        reactive: ReactiveState,
        inputs: Mapping[str, Value],
        variables: dict[str, Value],
        hidden: dict[str, Any],
        included: Included,
        known: tuple[str, ...] = (),
    ) -> None:
        self._reactive = reactive
        self._inputs = inputs
        self._variables = variables
        self._hidden = hidden
        """The time, the limits, and the seed of random values."""
        self._included = included
        self._known = known
        self._given: dict[str, Value] = {}
        self._fields: dict[str, Value] = {}
        self._seeds = [0]

    def with_variables(self, more: dict[str, Value]) -> Names:
        names = self._copy()
        names._variables = {**self._variables, **more}
        return names

    def with_given(self, given: dict[str, Value], fields: dict[str, Value]) -> Names:
        """Add the result of a step: `given` is looked up before the state, `fields` after it."""
        names = self._copy()
        names._given, names._fields = given, fields
        return names

    def for_item(self, name: str, more: dict[str, Value]) -> Names:
        """Add the variables of an item, and give it random values of its own."""
        names = self.with_variables(more)
        names._hidden = {**self._hidden, "__seed__": f"{self._hidden['__seed__']}/{name}"}
        names._seeds = [0]
        return names

    def _copy(self) -> Names:
        names = Names(
            self._reactive, self._inputs, self._variables, self._hidden, self._included, self._known
        )
        names._given, names._fields, names._seeds = self._given, self._fields, self._seeds
        return names

    def __getitem__(self, name: str) -> Any:
        found = self._look_up(name)
        if found is MISSING:
            raise KeyError(name)
        return found

    def _look_up(self, name: str) -> Any:
        if name in self._hidden:
            return self._hidden[name] if name != "__seed__" else self._next_seed()
        if name in OBJECTS:
            return self._object(name)
        for part in (self._variables, self._given):
            if name in part:
                return part[name]
        found = self._reactive.lookup(name)
        if found is not MISSING:
            return found
        if name in self._inputs:
            return self._inputs[name]
        if name == "config":
            return self._reactive.plan.config
        if name in self._reactive.plan.config:
            return self._reactive.plan.config[name]
        for left in (self._fields, *self._included()):
            if name in left:
                return left[name]
        if name == "workflow_id" and "__run__" in self._hidden:
            return self._hidden["__run__"]
        known = (
            name in self._known or name in self._reactive.plan.known or name in self._reactive.plan.computed
        )
        return UNSET if known else MISSING

    def _next_seed(self) -> str:
        """The seed for one expression: no two expressions of a step get the same random values."""
        self._seeds[0] += 1
        return f"{self._hidden['__seed__']}/{self._seeds[0]}"

    def _object(self, name: str) -> Any:
        reactive = self._reactive
        match name:
            case "raw" | "state":
                return reactive.scope.state.get(name, {})
            case "computed":
                return Members(reactive)
            case "inputs":
                return self._inputs
            case "this":
                return reactive
            case "global":
                return reactive.outermost
        return Secrets()

    def __iter__(self) -> Iterator[str]:
        reactive = self._reactive
        every = [*self._variables, *self._given, *reactive.names(), *self._inputs]
        every += [*reactive.plan.config, *self._fields]
        return iter(dict.fromkeys([*every, *reactive.plan.known, *OBJECTS, "config"]))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._look_up(name) is not MISSING
