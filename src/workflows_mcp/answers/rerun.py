"""Selects the events of a new run that re-runs some steps of another one.

    events         started · a done · b failed · c done · run failed
    re-run b       started · a done ·            c done              b is running

    selection = RerunSelection(bundle, events, failed_steps(machine))
    replayed_events(events, selection.changes(selection.ends()))

A run is the fold of its events. Leaving out the end of a step, and the events that could only follow from it,
makes the step run again; other steps keep their results. With a limit of parallel items, the end of one item
starts the next: `SlotFreed` replaces the end of an item that runs again, so that later items stay done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from workflows_mcp.answers.targets import blocks_in
from workflows_mcp.answers.tasks import record_at
from workflows_mcp.errors import NotExpected
from workflows_mcp.machine import (
    TERMINAL,
    Answered,
    Event,
    Forked,
    Interrupted,
    Machine,
    Record,
    RunState,
    Scope,
    SlotFreed,
    StateUpdated,
    ends_with,
    failed,
    fails_the_workflow,
)
from workflows_mcp.plan import Bundle, Node, Steps

Changes = Mapping[int, tuple[Event, ...]]
"""Replacements of events, by their numbers, counted from 1."""


def failed_steps(machine: Machine) -> list[str]:
    """Return the addresses of the innermost steps whose failure made the run fail."""
    return list(_failed_steps(machine, machine.state.root, None, ""))


def _failed_steps(machine: Machine, scope: Scope, around: Node | None, prefix: str) -> Iterator[str]:
    for node, record in blocks_in(machine, scope, around):
        if not _fails(machine, scope, prefix, node, record):
            continue
        address = prefix + node.id
        inside = (
            [] if record.scope is None else list(_failed_steps(machine, record.scope, node, f"{address}/"))
        )
        yield from inside or [address]


def _fails(machine: Machine, scope: Scope, prefix: str, node: Node, record: Record) -> bool:
    """Whether the failure of a block fails its scope."""
    if scope.failure is not None:
        return node.id == scope.failure.address[len(prefix) :].partition("/")[0]
    if scope.each is not None:
        return failed(record)
    plan = machine.plan_named(scope.workflow)
    if isinstance(plan.body, Steps):
        return ends_with(plan, node, record)
    return fails_the_workflow(plan, node, record)


def steps_with_events(events: Sequence[Event]) -> list[str]:
    """Return the steps that have events, in the order of their first ones."""
    return list(dict.fromkeys(event.address for event in events if event.of_step))


def replayed_events(events: Sequence[Event], changes: Changes) -> list[Event]:
    """Return the events with the changes made."""
    return [it for number, event in enumerate(events, start=1) for it in changes.get(number, (event,))]


class RerunSelection:
    """The events of a run, to re-run some of its steps."""

    def __init__(self, bundle: Bundle, events: Sequence[Event], steps: Sequence[str]) -> None:
        """`steps` are the addresses of the steps that may run again."""
        self._bundle = bundle
        self._events = events
        self._steps = list(steps)
        self._items: dict[str, list[str]] = {}
        """By step: the items around it, the innermost first; an item contains itself."""
        machine = Machine(bundle)
        self._histories = {step: _History() for step in self._steps}
        for number, event in enumerate(events, start=1):
            machine.apply(event)
            self._look(machine.state, number)

    def _look(self, state: RunState, number: int) -> None:
        for step in self._steps:
            items = _items_around(state, step)
            if items:
                self._items[step] = items
            for address in (step, *items, *(it.rpartition("/")[0] for it in items)):
                self._histories.setdefault(address, _History()).look(record_at(state, address), number)

    # Events to leave out

    def ends(self, *, of_others: bool = False) -> set[int]:
        """Return the numbers of the events with which the steps last ended.

        A step can end with the event of an earlier one, because of its condition or its values: `of_others`
        includes such events.
        """
        found: set[int] = set()
        for step in self._steps:
            history = self._histories[step]
            event = self._events[history.failed_at - 1] if history.failed_at else None
            if event is not None and (of_others or _concerns(event, step)):
                found |= self._with_its_attempt(step, event, history)
        return found

    def _with_its_attempt(self, step: str, end: Event, history: _History) -> set[int]:
        """Return the end of a step, with the other events of the same attempt."""
        numbers = {
            number
            for number, event in enumerate(self._events[: history.failed_at], start=1)
            if event is end or (end.key and event.key == end.key)
        }
        if isinstance(end, Answered):
            numbers |= self._written_for(step, end, history)
            before = [it for it in range(1, history.failed_at) if _is_at(self._events[it - 1], end.address)]
            if before and isinstance(self._events[before[-1] - 1], Interrupted):
                numbers.add(before[-1])  # the agent was asked about an interrupted step
        return numbers

    def all_of(self, step: str) -> set[int]:
        """Return the numbers of all events of a step, and inside it, since its last start."""
        history, inside = self._histories[step], f"{step}/"
        numbers: set[int] = set()
        for number, event in enumerate(self._events, start=1):
            if number <= history.begun_at or event.kept_in_rerun:
                continue
            if f"{event.address}/".startswith(inside):
                numbers.add(number)
                if isinstance(event, Answered) and number == history.ended_at:
                    numbers |= self._written_for(step, event, history)
        return numbers

    def _written_for(self, step: str, end: Answered, history: _History) -> set[int]:
        """Return the state updates that the agent made instead of submitting a result."""
        if not end.written_by_agent:
            return set()
        task = next(iter(self._items.get(step, ())), "")
        return {
            number
            for number in range(history.begun_at + 1, history.failed_at)
            if isinstance(event := self._events[number - 1], StateUpdated) and event.address == task
        }

    # Events that follow from them

    def changes(self, left_out: set[int]) -> Changes:
        """Return the changes of a run in which the events with these numbers did not happen."""
        machine, so_far = Machine(self._bundle), list[Event]()
        changes: dict[int, tuple[Event, ...]] = {}
        held: list[tuple[int, Event]] = []
        """Events that belong to the next one."""
        for number, recorded in enumerate(self._events, start=1):
            event = recorded
            if changes and isinstance(event, Forked):  # an item that runs again takes no slot of others
                event = msgspec.structs.replace(event, over_limit=True)
                changes[number] = (event,)
            held.append((number, event))
            if event.precedes_next:
                continue
            comes = number not in left_out and (
                not changes or self._still_comes(machine, event, number, left_out)
            )
            if comes:
                under_way = self._under_way(machine)
                for _, one in held:
                    machine.apply(one)
                ended = under_way - self._under_way(machine)
                if any(self._would_end(step, event, number) for step in ended):
                    comes, machine = False, _replayed(self._bundle, so_far)
            if comes:
                so_far += [one for _, one in held]
            else:
                changes |= {it: () for it, _ in held}
            for room in self._slots_freed(machine, event.at, number) if changes else ():
                machine.apply(room)
                so_far.append(room)
                changes[number] = (*changes.get(number, (event,)), room)
            held = []
        return changes

    def _under_way(self, machine: Machine) -> set[str]:
        return {step for step in self._steps if step in machine.state.frames}

    def _would_end(self, step: str, event: Event, number: int) -> bool:
        """Whether an event of something else, such as a timeout around it, would end a step."""
        return number > self._histories[step].begun_at and not _is_of(event, step)

    def _slots_freed(self, machine: Machine, at: float, number: int) -> list[SlotFreed]:
        """Return the freed slots of items that ended with this event, and run again here."""
        items = dict.fromkeys(item for step in self._steps for item in self._items.get(step, ()))
        frames = machine.state.frames
        return [SlotFreed(at, it) for it in items if self._histories[it].ended_at == number and it in frames]

    def _still_comes(self, machine: Machine, event: Event, number: int, left_out: Iterable[int]) -> bool:
        """Whether an event still happens although others are left out."""
        if event.marks_position:
            return False
        if isinstance(event, StateUpdated) and not self._is_from_beside(event, number, left_out):
            return False  # it may depend on a step that runs again
        try:
            machine.refuse_unexpected(event)
        except NotExpected:
            return False
        return True

    def _is_from_beside(self, event: StateUpdated, number: int, left_out: Iterable[int]) -> bool:
        """Whether a state update came from a task that does not run again.

        An update without an address counts if it happened while tasks ran, and some of them run again.
        """
        if event.address:
            concerned = {it.address for number in left_out if (it := self._events[number - 1]).of_step}
            return not any(_are_related(event.address, other) for other in concerned)
        for step in self._steps:
            items = self._items.get(step)
            if not items:
                return False
            ended_at = self._histories[items[-1].rpartition("/")[0]].ended_at
            if ended_at and number > ended_at:
                return False
        return True


@dataclass(slots=True)
class _History:
    """The numbers of the events at which a step last started, began to fail, and ended."""

    begun_at: int = 0
    failed_at: int = 0
    """The event at which it ended, or at which the cleanup after its failure started."""
    ended_at: int = 0
    _record: Record | None = None
    _fails: bool = False
    _is_over: bool = False

    def look(self, record: Record | None, number: int) -> None:
        if record is None:
            return
        if record is not self._record:
            self._record, self._fails, self._is_over = record, False, False
            self.begun_at, self.failed_at, self.ended_at = number, 0, 0
        over = record.status in TERMINAL
        fails = over or (record.scope is not None and record.scope.failure is not None)
        if fails and not self._fails:
            self.failed_at = number
        if over and not self._is_over:
            self.ended_at = number
        self._fails, self._is_over = fails, over


def _items_around(state: RunState, address: str) -> list[str]:
    """Return the items around an address, the innermost first; an item contains itself."""
    names = address.split("/")
    found: list[str] = []
    scope: Scope | None = state.root
    for length, name in enumerate(names, start=1):
        if scope is None:
            break
        if scope.each is not None:
            found.insert(0, "/".join(names[:length]))
        record = scope.records.get(name)
        scope = record.scope if record is not None else None
    return found


def _replayed(bundle: Bundle, events: Iterable[Event]) -> Machine:
    machine = Machine(bundle)
    for event in events:
        machine.apply(event)
    return machine


def _is_of(event: Event, step: str) -> bool:
    """Whether an event is about a step, or about something inside it."""
    return event.of_step and f"{event.address}/".startswith(f"{step}/")


def _concerns(event: Event, step: str) -> bool:
    return event.of_step and _are_related(event.address, step)


def _is_at(event: Event, step: str) -> bool:
    return event.of_step and event.address == step


def _are_related(one: str, other: str) -> bool:
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")
