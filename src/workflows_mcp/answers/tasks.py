"""What one agent drives, a run or a task, its id, and what is pending for it: from the state of a run alone.

    wf_7f3a                      the run
    wf_7f3a.analyze.0            the first task of its step `analyze`
    wf_7f3a.analyze.0.check.2    a task of the step `check` of that task
    wf_7f3a.review@2.0           a task of the second round of `review`

    pending = pending_for(state, whole_run("wf_1"), last_seen, now=1000.0, silence_limit=300.0)
    pending.questions          # what this agent is asked
    pending.delegations        # the tasks that it has delegated, or is to delegate

A task runs the operation of a step for one item. It is a place inside a run, but its agent drives it like a
run: the ids of its steps are relative to it.

A block with an `agent` delegates each of its items to a sub-agent, as a task. Questions inside a task go to
its own agent. The agent that starts it only gets the tasks: to start, at work, or silent for longer than the
silence limit, so that another sub-agent may take over. `last_seen` has the heartbeats: notes beside the run.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from workflows_mcp.machine import TERMINAL, Frame, RunState, Scope, failed, record_at, task_id
from workflows_mcp.plan import names_of_items


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
    around = scope_around(state, task.address)
    record = around.records.get(task.address.rpartition("/")[2]) if around is not None else None
    return record is not None and record.status in TERMINAL


def is_earlier_round(workflow_id: str, current_id: str) -> bool:
    """Whether an id is from an earlier round: the same names, and no later rounds."""
    pairs = zip(workflow_id.split("."), current_id.split("."), strict=True)
    visits = [(text.partition("@")[2] or "1", known.partition("@")[2] or "1") for text, known in pairs]
    if not all(text.isdecimal() and int(text) <= int(known) for text, known in visits):
        return False
    return any(int(text) < int(known) for text, known in visits)


def task_of(state: RunState, address: str) -> Target:
    """Return the task at an address."""
    return Target(task_id(state, address), state.run_id, address)


def question_id(state: RunState, target: Target, address: str) -> str:
    """Return the id of a question, such as `ask`, `ask@2` (round 2) or `ask@try2`.

    Each round and attempt has its own id, so that a late answer to an earlier one is not accepted.
    """
    asking = asking_of(state, address)
    return f"{target.step_id(address)}@{asking}" if asking else target.step_id(address)


def asking_of(state: RunState, address: str) -> str:
    """Return the round and attempt of a question: nothing for the first, else `2`, `try2` or `2.try2`.

    After results that its checks rejected, `v2` is the second result.
    """
    frame = state.frames.get(address)
    parts = frame.attempt.split(".") if frame is not None else []
    result = [parts.pop()] if parts and parts[-1].startswith("v") else []
    while parts and parts[-1] == "1":
        del parts[-1]
    asking = [part[1:] if part.startswith("r") else f"try{part}" for part in parts]
    return ".".join([*asking, *result])


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


def scope_around(state: RunState, address: str) -> Scope | None:
    around = address.rpartition("/")[0]
    if not around:
        return state.root
    record = record_at(state, around)
    return record.scope if record is not None else None


# What is pending

LastSeen = Mapping[str, float]
"""The last heartbeat of the agent of a task, by the id of the task; its first heartbeat under `started_note`;
the last heartbeat of a replaced agent under `retry_note`."""
NEVER_SEEN: LastSeen = {}


def started_note(task_id: str) -> str:
    return f"{task_id} started"


def retry_note(task_id: str) -> str:
    return f"{task_id} retry"


def given_up_at(state: RunState, target: Target, last_seen: LastSeen) -> float:
    """Return the time up to which heartbeats are from a replaced agent: a retry, or another attempt."""
    frame = state.frames.get(target.address)
    later_attempt = frame is not None and frame.attempt.partition(".v")[0].rpartition(".")[2] != "1"
    begun = frame.since if frame is not None and later_attempt else -math.inf
    return max(last_seen.get(retry_note(target.id), -math.inf), begun)


def last_contact(state: RunState, target: Target, last_seen: LastSeen) -> float | None:
    """Return the last heartbeat of the current agent of a task; None if it has none yet."""
    at = last_seen.get(target.id)
    return None if at is None or at <= given_up_at(state, target, last_seen) else at


Standing = Literal["to start", "at work", "silent", "on the server"]
Framed = tuple[str, Frame]


@dataclass(frozen=True, slots=True)
class Task:
    """A task that has not ended."""

    target: Target
    standing: Standing
    since: float
    """When its agent started; of a task to start, when it was first needed."""
    last_contact: float | None = None
    """The last heartbeat of its agent."""
    is_retry: bool = False
    """It needs a new agent, because its former agent is gone."""

    @property
    def needs_somebody(self) -> bool:
        return self.standing in ("to start", "silent")


@dataclass(frozen=True, slots=True)
class Delegation:
    """A block that delegates its items to sub-agents."""

    address: str
    frame: Frame
    tasks: list[Task]

    @property
    def needs_somebody(self) -> bool:
        return any(task.needs_somebody for task in self.tasks)


@dataclass(frozen=True, slots=True)
class Pending:
    """Everything that the agent of one target has to do now."""

    questions: list[Framed]
    """The oldest first."""
    delegations: list[Delegation]

    @property
    def pending(self) -> bool:
        """Whether there is anything to do; tasks that sub-agents are working on do not count."""
        return bool(self.questions) or any(it.needs_somebody for it in self.delegations)

    @property
    def since(self) -> float | None:
        """The time of the oldest open request."""
        times = [frame.since for _, frame in self.questions]
        tasks = [task for it in self.delegations for task in it.tasks if task.needs_somebody]
        times += [task.since if task.last_contact is None else task.last_contact for task in tasks]
        return min(times, default=None)


def is_delegated(frame: Frame) -> bool:
    """Whether agents start sub-agents for the items of a block."""
    return bool(frame.agent) and not frame.headless


def pending_for(
    state: RunState,
    target: Target,
    last_seen: LastSeen = NEVER_SEEN,
    *,
    now: float,
    silence_limit: float,
    alone: bool = False,
) -> Pending:
    """Return what is pending for a target. `alone`: it has no sub-agents, and gets their questions."""
    frames = [(address, frame) for address, frame in state.frames.items() if target.covers(address)]
    return _pending(state, frames, target, last_seen, now, silence_limit, alone)


def _pending(
    state: RunState,
    frames: list[Framed],
    target: Target,
    last_seen: LastSeen,
    now: float,
    silence_limit: float,
    alone: bool = False,
) -> Pending:
    delegated = {} if alone else {address: frame for address, frame in frames if is_delegated(frame)}
    inside: dict[str, dict[str, list[Framed]]] = {}
    """The frames of each delegation, by the item that they belong to."""
    questions: list[Framed] = []
    for address, frame in frames:
        around = outermost(address, delegated)
        if around is None:
            if address in delegated:
                inside.setdefault(address, {})
            elif frame.kind == "agent":
                questions.append((address, frame))
            continue
        item = address[len(around) + 1 :].partition("/")[0]
        inside.setdefault(around, {}).setdefault(item, []).append((address, frame))
    delegations = []
    for around, items in inside.items():
        tasks = []
        for item, framed in items.items():
            if [(at, frame.kind) for at, frame in framed] == [(f"{around}/{item}", "budget")]:
                continue  # it starts when a person allows more
            task = task_of(state, f"{around}/{item}")
            asked = _pending(state, framed, task, last_seen, now, silence_limit)
            tasks.append(_task(state, task, asked, last_seen, now, _patience(state, asked, silence_limit)))
        delegations.append(Delegation(around, delegated[around], tasks))
    questions.sort(key=lambda item: item[1].since)
    return Pending(questions, delegations)


def _task(
    state: RunState, target: Target, asked: Pending, last_seen: LastSeen, now: float, patience: float
) -> Task:
    since, contact = asked.since, last_contact(state, target, last_seen)
    if contact is None:
        if since is None:
            return Task(target, "on the server", now)
        return Task(target, "to start", since, is_retry=target.id in last_seen)
    started = min(last_seen.get(started_note(target.id), contact), contact)
    silent = since is not None and now - max(contact, since) > patience
    return Task(target, "silent" if silent else "at work", started, contact)


def _patience(state: RunState, asked: Pending, silence_limit: float) -> float:
    """Return how long an agent may be silent: the limit, or the longest timeout of its steps."""
    longest = silence_limit
    for address, frame in asked.questions:
        record = record_at(state, address)
        timeout = record.inputs.get("timeout") if record is not None else None
        longest = max(longest, frame.timeout or 0.0, timeout if isinstance(timeout, int | float) else 0.0)
    return longest


def outermost(address: str, among: Container[str]) -> str | None:
    """Return the outermost of these addresses that contains an address."""
    end = address.find("/")
    while end >= 0:
        if address[:end] in among:
            return address[:end]
        end = address.find("/", end + 1)
    return None


def starter_of(state: RunState, task: Target) -> Target:
    """Return the target whose agent starts the agent of a task: the run, or the task around it."""
    names = task.address.split("/")
    for length in reversed(range(1, len(names) - 1)):
        frame = state.frames.get("/".join(names[:length]))
        if frame is not None and is_delegated(frame):
            return task_of(state, "/".join(names[: length + 1]))
    return whole_run(state.run_id)


def has_ended(state: RunState, target: Target) -> bool:
    if state.status != "running" or target.is_run:
        return state.status != "running"
    record = record_at(state, target.address)
    return record is not None and record.status in TERMINAL


@dataclass(frozen=True, slots=True)
class Count:
    """The number of tasks of a block, by status."""

    total: int
    done: int
    failed: int
    to_come: int


def count_tasks(state: RunState, address: str) -> Count:
    record = record_at(state, address)
    scope = record.scope if record is not None else None
    names = names_of_items(scope.each or [], scope.named) if scope is not None else []
    items = [scope.records.get(name) for name in names] if scope is not None else []
    ended = [item for item in items if item is not None and item.status in TERMINAL]
    wrong = sum(failed(item) for item in ended)
    return Count(len(names), len(ended) - wrong, wrong, sum(item is None for item in items))
