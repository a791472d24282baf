"""What is pending for each agent: its questions, and the tasks that it delegates.

    pending = pending_for(state, whole_run("wf_1"), last_seen, now=1000.0, silence_limit=300.0)
    pending.questions          # what this agent is asked
    pending.delegations        # the tasks that it has delegated, or is to delegate

A block with an `agent` delegates each of its items to a sub-agent, as a task. Questions inside a task go to
its own agent. The agent that starts it only gets the tasks: to start, at work, or silent for longer than the
silence limit, so that another sub-agent may take over. `last_seen` has the heartbeats: notes beside the run.

It works on the state of a run alone: no plan, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Literal

from workflows_mcp.answers.targets import Target, task_of, whole_run
from workflows_mcp.machine import TERMINAL, Frame, RunState, failed, record_at
from workflows_mcp.plan import names_of_items

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
    later_attempt = frame is not None and frame.attempt.rpartition(".")[2] != "1"
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
    delegated = {} if alone else {address: frame for address, frame in frames if frame.agent}
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
        if frame is not None and frame.agent:
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
