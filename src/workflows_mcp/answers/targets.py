"""`Target`: what one agent drives, a run or a task, and its id.

    wf_7f3a                      the run
    wf_7f3a.analyze.0            the first task of its step `analyze`
    wf_7f3a.analyze.0.check.2    a task of the step `check` of that task
    wf_7f3a.review@2.0           a task of the second round of `review`

A task runs the operation of a step for one item. It is a place inside a run, but its agent drives it like a
run: the ids of its steps are relative to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from workflows_mcp.errors import RequestError
from workflows_mcp.machine import TERMINAL, Frame, Machine, Record, RunState, Scope
from workflows_mcp.plan import Node, item_node, names_of_items

# Blocks of a run, at any depth

PENDING = Record()


class Visited(NamedTuple):
    address: str
    node: Node
    record: Record


def blocks_of(machine: Machine, scope: Scope | None = None, prefix: str = "") -> Iterator[Visited]:
    """Yield all blocks that a run has reached, and their neighbours, in the order of the plan.

    This works for ended runs too, which have no open scopes any more.
    """
    for node, record in blocks_in(machine, scope or machine.state.root, None):
        yield from _with_inner(machine, Visited(prefix + node.id, node, record))


def _with_inner(machine: Machine, visited: Visited) -> Iterator[Visited]:
    yield visited
    if visited.record.scope is not None:
        for node, record in blocks_in(machine, visited.record.scope, visited.node):
            yield from _with_inner(machine, Visited(f"{visited.address}/{node.id}", node, record))


def blocks_in(machine: Machine, scope: Scope, around: Node | None) -> Iterator[tuple[Node, Record]]:
    """Yield the blocks of one scope: of a workflow, or the items of the block `around`."""
    if scope.each is not None:
        assert around is not None
        for name in names_of_items(scope.each, scope.named):
            yield item_node(around, name), scope.records.get(name, PENDING)
        return
    program = machine.program_named(scope.workflow)
    for index, node in enumerate(program.nodes):
        if index != program.context_full or node.id in scope.records:
            yield node, scope.records.get(node.id, PENDING)


def block_at(machine: Machine, address: str) -> Visited | None:
    """Return the block at an address, or None if the run has no such block (yet)."""
    scope: Scope | None = machine.state.root
    found: Visited | None = None
    parts = address.split("/")
    for depth, name in enumerate(parts):
        if scope is None:
            return None
        node = _node_called(machine, scope, found.node if found is not None else None, name)
        if node is None:
            return None
        record = scope.records.get(name, PENDING)
        found = Visited("/".join(parts[: depth + 1]), node, record)
        scope = record.scope
    return found


def block_named(machine: Machine, target: Target, step_id: str) -> Visited | None:
    """Return the block that the agent of a target calls `step_id`, in any round."""
    found = (block_at(machine, address) for address in target.addresses_for(step_id))
    return next((it for it in found if it is not None), None)


def _node_called(machine: Machine, scope: Scope, around: Node | None, name: str) -> Node | None:
    if scope.each is not None and around is not None:
        known = name in scope.records or name in names_of_items(scope.each, scope.named)
        return item_node(around, name) if known else None
    program = machine.program_named(scope.workflow)
    index = program.ids.get(name)
    return program.nodes[index] if index is not None else None


def under_way(machine: Machine, *kinds: str) -> list[tuple[str, Frame]]:
    """Return the open frames of these kinds, the oldest first."""
    frames = [(address, frame) for address, frame in machine.state.frames.items() if frame.kind in kinds]
    return sorted(frames, key=lambda item: item[1].since)


@dataclass(frozen=True, slots=True)
class Target:
    """A run, or a task of a run."""

    id: str
    run_id: str
    address: str = ""
    """The address of a task in its run."""

    @property
    def is_run(self) -> bool:
        return not self.address

    def covers(self, address: str) -> bool:
        return not self.address or address == self.address or address.startswith(f"{self.address}/")

    def step_id(self, address: str) -> str:
        """Return the id of a step relative to this target; a task of one step has the id of its block."""
        if not self.address:
            return address
        return address[len(self.address) + 1 :] or self.address.split("/")[-2]

    def addresses_for(self, step_id: str) -> list[str]:
        """Return the addresses that a step id can stand for, the likeliest first, in any round.

        The id may also be relative to the run, or to a task around this one.
        """
        step_id = step_id.partition("@")[0]
        if not self.address:
            return [step_id]
        addresses = [f"{self.address}/{step_id}"]
        names = self.address.split("/")
        for length in reversed(range(len(names))):
            seen_from_there = "/".join([*names[:length], step_id])
            if self.covers(seen_from_there):
                addresses.append(seen_from_there)
        if step_id == self.step_id(self.address):
            addresses.append(self.address)
        return addresses


def whole_run(run_id: str) -> Target:
    return Target(run_id, run_id)


def run_of(workflow_id: str) -> str:
    """Return the id of the run that an id belongs to."""
    return workflow_id.partition(".")[0] or workflow_id


def joined(workflow_id: str, task_id: str | None) -> str:
    """Return the id of a task that is given by its id, or relative to `workflow_id`."""
    if not task_id or task_id == workflow_id:
        return workflow_id
    return task_id if task_id.startswith(f"{run_of(workflow_id)}.") else f"{workflow_id}.{task_id}"


def target_of(machine: Machine, workflow_id: str) -> Target:
    """Return the target with an id; raise RequestError if there is no such task (any more)."""
    run_id, _, rest = workflow_id.partition(".")
    if not rest:
        return whole_run(run_id)
    names = [name.partition("@")[0] for name in rest.split(".")]
    target = Target(workflow_id, run_id, "/".join(names))
    current_id = task_of(machine.state, target.address).id
    around = _scope_around(machine.state, target.address)
    is_task = around is not None and around.each is not None and block_at(machine, target.address) is not None
    if is_task and current_id == workflow_id:
        return target
    tasks = tasks_by_key(machine.state)
    if (named := only_task(machine.state, tasks.get(rest, ()))) is not None:
        return named
    # Suggest no id: the nearest one is the task of another agent.
    hint = "use the workflow_id of the task exactly as it was given" if tasks else "it has no tasks now"
    if current_id != workflow_id and _before(workflow_id, current_id):
        message = f"the task '{workflow_id}' is over: the run has started its step again since"
        raise RequestError(message, hint=hint, code="task_over")
    raise RequestError(f"the run {run_id} has no task '{workflow_id}'", hint=hint, code="unknown_task")


def only_task(state: RunState, found: Sequence[Target]) -> Target | None:
    """Return the task that a key such as `batch_0` names, of all tasks with it; None if it is ambiguous.

    Running tasks take precedence over ended ones, then outer tasks over nested ones, so that a name keeps its
    meaning when other tasks of the same name start.
    """
    if len(found) > 1:
        found = [task for task in found if not _is_over(state, task)]
        depth = min((task.address.count("/") for task in found), default=0)
        found = [task for task in found if task.address.count("/") == depth]
    return found[0] if len(found) == 1 else None


def _is_over(state: RunState, task: Target) -> bool:
    around = _scope_around(state, task.address)
    record = around.records.get(task.address.rpartition("/")[2]) if around is not None else None
    return record is not None and record.status in TERMINAL


def _before(workflow_id: str, current_id: str) -> bool:
    """Whether an id is from an earlier round: the same names, and no later rounds."""
    pairs = zip(workflow_id.split("."), current_id.split("."), strict=True)
    visits = [(text.partition("@")[2] or "1", known.partition("@")[2] or "1") for text, known in pairs]
    if not all(text.isdecimal() and int(text) <= int(known) for text, known in visits):
        return False
    return any(int(text) < int(known) for text, known in visits)


def task_of(state: RunState, address: str) -> Target:
    """Return the task at an address."""
    scope: Scope | None = state.root
    names = [state.run_id]
    for name in address.split("/"):
        visits = scope.visits.get(name, 1) if scope is not None else 1
        names.append(f"{name}@{visits}" if visits > 1 else name)
        record = scope.records.get(name) if scope is not None else None
        scope = record.scope if record is not None else None
    return Target(".".join(names), state.run_id, address)


def question_id(state: RunState, target: Target, address: str) -> str:
    """Return the id of a question, such as `ask`, `ask@2` (round 2) or `ask@try2`.

    Each round and attempt has its own id, so that a late answer to an earlier one is not accepted.
    """
    asking = asking_of(state, address)
    return f"{target.step_id(address)}@{asking}" if asking else target.step_id(address)


def asking_of(state: RunState, address: str) -> str:
    """Return the round and attempt of a question: nothing for the first, else `2`, `try2` or `2.try2`."""
    frame = state.frames.get(address)
    parts = frame.attempt.split(".") if frame is not None else []
    while parts and parts[-1] == "1":
        del parts[-1]
    return ".".join(part[1:] if part.startswith("r") else f"try{part}" for part in parts)


def all_tasks(state: RunState) -> list[Target]:
    """Return every task of a run, nested ones too."""
    return [task for _, task in _keyed_tasks(state)]


def tasks_by_key(state: RunState) -> dict[str, list[Target]]:
    """Return the tasks of a run by their keys among the tasks of their step."""
    found: dict[str, list[Target]] = {}
    for key, task in _keyed_tasks(state):
        found.setdefault(key, []).append(task)
    return found


def _keyed_tasks(state: RunState) -> Iterator[tuple[str, Target]]:
    waiting: list[tuple[str, Scope]] = [("", state.root)]
    while waiting:
        prefix, scope = waiting.pop(0)
        if scope.each is not None:
            for key, name in zip(scope.each, names_of_items(scope.each, scope.named), strict=True):
                yield str(key), task_of(state, prefix + name)
        for name, record in scope.records.items():
            if record.scope is not None:
                waiting.append((f"{prefix}{name}/", record.scope))


def _scope_around(state: RunState, address: str) -> Scope | None:
    scope: Scope | None = state.root
    for name in address.split("/")[:-1]:
        record = scope.records.get(name) if scope is not None else None
        scope = record.scope if record is not None else None
    return scope
