"""`RunView`: a run or a task at a moment, as its agent sees it. All answers are made from it.

view = run_view_of(machine, now=now, target=target_of(machine, "wf_7f3a.analyze.0"))
view.status, view.pending.questions, view.messages
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from workflows_mcp.answers.tasks import (
    NEVER_SEEN,
    Count,
    Framed,
    LastSeen,
    Pending,
    Target,
    count_tasks,
    is_earlier_round,
    only_task,
    pending_for,
    question_id,
    scope_around,
    task_of,
    tasks_by_key,
    whole_run,
)
from workflows_mcp.errors import RequestError
from workflows_mcp.limits import DEFAULT_LIMITS, Limits
from workflows_mcp.machine import (
    LEFT_OPEN,
    TERMINAL,
    Frame,
    Machine,
    Record,
    RunState,
    Scope,
    failed,
    outputs_of,
)
from workflows_mcp.plan import Node, Plan, Steps, item_node, names_of_items
from workflows_mcp.values import Value

# Blocks of a run, at any depth

PENDING = Record()


class Visited(NamedTuple):
    address: str
    node: Node
    record: Record


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


def _node_called(machine: Machine, scope: Scope, around: Node | None, name: str) -> Node | None:
    if scope.each is not None and around is not None:
        known = name in scope.records or name in names_of_items(scope.each, scope.named)
        return item_node(around, name) if known else None
    program = machine.program_named(scope.workflow)
    index = program.ids.get(name)
    return program.nodes[index] if index is not None else None


def target_of(machine: Machine, workflow_id: str) -> Target:
    """Return the target with an id; raise RequestError if there is no such task (any more)."""
    run_id, _, rest = workflow_id.partition(".")
    if not rest:
        return whole_run(run_id)
    names = [name.partition("@")[0] for name in rest.split(".")]
    target = Target(workflow_id, run_id, "/".join(names))
    current_id = task_of(machine.state, target.address).id
    around = scope_around(machine.state, target.address)
    is_task = around is not None and around.each is not None and block_at(machine, target.address) is not None
    if is_task and current_id == workflow_id:
        return target
    tasks = tasks_by_key(machine.state)
    if (named := only_task(machine.state, tasks.get(rest, ()))) is not None:
        return named
    # Suggest no id: the nearest one is the task of another agent.
    hint = "use the workflow_id of the task exactly as it was given" if tasks else "it has no tasks now"
    if current_id != workflow_id and is_earlier_round(workflow_id, current_id):
        message = f"the task '{workflow_id}' is over: the run has started its step again since"
        raise RequestError(message, hint=hint, code="task_over")
    raise RequestError(f"the run {run_id} has no task '{workflow_id}'", hint=hint, code="unknown_task")


@dataclass(frozen=True)
class RunView:
    """A view of one moment: what is derived from the run is computed once."""

    machine: Machine
    target: Target
    now: float
    silence_limit: float
    """How long the agent of a task may be silent before another may take over."""
    alone: bool = False
    """Its agent has no sub-agents, and performs their tasks as well."""
    why_not_driven: str = ""
    """Why no process continues the run; empty if one does."""
    last_seen: LastSeen = field(default_factory=dict)
    """The heartbeats of agents: notes beside the run."""
    checkpoint_ids: Mapping[str, str] = field(default_factory=dict)
    """The checkpoints of open questions, by address, if a caller has asked for them."""

    @property
    def state(self) -> RunState:
        return self.machine.state

    @property
    def is_parked(self) -> bool:
        return self.state.parked is not None

    @cached_property
    def task(self) -> Visited | None:
        """The item that a task is; nothing for a run."""
        return None if self.target.is_run else self.block_at(self.target.address)

    @cached_property
    def pending(self) -> Pending:
        return pending_for(
            self.state, self.target, self.last_seen,
            now=self.now, silence_limit=self.silence_limit, alone=self.alone,
        )  # fmt: skip

    @cached_property
    def plan(self) -> Plan:
        return self.machine.plan_named(self.workflow)

    def block_at(self, address: str) -> Visited | None:
        """Return the block at an address, or None if the run has no such block (yet)."""
        return block_at(self.machine, address)

    def block_named(self, step_id: str) -> Visited | None:
        """Return the block that the agent calls `step_id`, in any round."""
        found = (self.block_at(address) for address in self.target.addresses_for(step_id))
        return next((it for it in found if it is not None), None)

    def blocks(self) -> Iterator[Visited]:
        """Yield all blocks that the run has reached, and their neighbours, in the order of the plan.

        This works for ended runs too, which have no open scopes any more.
        """
        for node, record in self.blocks_of_run():
            yield from _with_inner(self.machine, Visited(node.id, node, record))

    def blocks_of_run(self) -> Iterator[tuple[Node, Record]]:
        """Yield the blocks of the outermost workflow."""
        return blocks_in(self.machine, self.state.root, None)

    def blocks_in(self, scope: Scope, around: Node | None = None) -> Iterator[tuple[Node, Record]]:
        """Yield the blocks of one scope: of a workflow, or the items of the block `around`."""
        return blocks_in(self.machine, scope, around)

    def frame_at(self, address: str) -> Frame | None:
        """Return what is under way at an address."""
        return self.state.frames.get(address)

    def question_id(self, address: str) -> str:
        """Return the id of a question: the step, and its round and attempt."""
        return question_id(self.state, self.target, address)

    def task_at(self, address: str) -> Target:
        return task_of(self.state, address)

    @cached_property
    def waits_for_people(self) -> str:
        """What only a person can decide now, in words; empty if there is nothing."""
        found = [f"the decision '{self.target.step_id(it)}'" for it, _ in self.under_way("gate")]
        held = self.under_way("budget")
        if held:
            found.append(
                f"more of the budget for {', '.join(repr(self.target.step_id(it)) for it, _ in held[:3])}"
            )
        return f"it waits for a person: {' and '.join(found)}" if found else ""

    def count_tasks(self, address: str) -> Count:
        return count_tasks(self.state, address)

    @cached_property
    def messages(self) -> list[str]:
        """The messages that its agent passes on to the user."""
        state = self.state
        everything = self.alone or state.status != "running"
        texts = [
            it.text
            for it in state.messages
            if it.task == self.target.address or (everything and not self.target.address)
        ]
        if state.dropped_messages and texts and self.task is None:
            texts.insert(0, f"({state.dropped_messages} earlier messages are left out)")
        return texts

    @cached_property
    def scope(self) -> Scope | None:
        """The scope of its workflow; a task that is a single step has none."""
        return self.state.root if self.task is None else self.task.record.scope

    @cached_property
    def is_sequence(self) -> bool:
        scope = self.scope
        return scope is not None and isinstance(self.machine.plan_named(scope.workflow).body, Steps)

    @cached_property
    def workflow(self) -> str:
        scope = self.scope
        return scope.workflow if scope is not None else self.state.workflow

    @property
    def outputs(self) -> dict[str, Value]:
        return self.state.outputs if self.task is None else outputs_of(self.task.record)

    def name_of_task(self, key: str, task: Target) -> str:
        """Return the key of a task if it stays unique in the run, else its id.

        A nested task always gets its id, because another task of the same name may start beside it.
        """
        if task.address.count("/") != 1:
            return task.id
        if "." not in key:
            named = only_task(self.state, self._tasks_by_key.get(key, ()))
            return key if named is not None and named.id == task.id else task.id
        try:
            return key if target_of(self.machine, f"{task.run_id}.{key}").id == task.id else task.id
        except RequestError:
            return task.id

    @cached_property
    def _tasks_by_key(self) -> dict[str, list[Target]]:
        return tasks_by_key(self.state)

    @cached_property
    def has_ended(self) -> bool:
        if self.state.status != "running" or self.task is None:
            return self.state.status != "running"
        return self.task.record.status in TERMINAL

    @cached_property
    def status(self) -> str:
        """`pending_action` if its agent has something to do, `running` if steps run, else `waiting`.

        After its end: completed, failed, skipped or cancelled.
        """
        state = self.state
        if self.has_ended:
            return state.status if self.task is None else self._how_it_ended(self.task)
        if state.parked is not None:
            return "waiting"
        if self.pending.pending:
            return "pending_action"
        if self.under_way("step", "plan", "verify"):
            return "running"
        return "waiting" if self.under_way() or self.task is not None else "running"

    def _how_it_ended(self, task: Visited) -> str:
        if task.record.status in TERMINAL and not failed(task.record):
            return "completed"
        left = task.record.message == LEFT_OPEN
        if left or self.state.status == "cancelled" or task.record.status not in TERMINAL:
            return "cancelled"
        return "failed"

    def under_way(self, *kinds: str) -> list[Framed]:
        """Return its open frames of these kinds, or all of them, the oldest first."""
        return [it for it in self._frames if not kinds or it[1].kind in kinds]

    @cached_property
    def _frames(self) -> list[Framed]:
        frames = [it for it in self.state.frames.items() if self.target.covers(it[0])]
        return sorted(frames, key=lambda item: item[1].since)


def run_view_of(
    machine: Machine,
    *,
    now: float | None = None,
    target: Target | None = None,
    last_seen: LastSeen = NEVER_SEEN,
    limits: Limits = DEFAULT_LIMITS,
    alone: bool = False,
) -> RunView:
    """Return the view of a run, or of a task; without `now`, when the run changed last.

    `alone`: its agent also gets the questions of tasks.
    """
    return RunView(
        machine,
        target or whole_run(machine.state.run_id),
        machine.state.changed_at if now is None else now,
        limits.action_lease_seconds,
        alone,
        last_seen=last_seen,
    )
