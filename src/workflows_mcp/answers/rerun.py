"""Which events of a run a new one is made of that does some of its steps again: those that it failed by, or
one that somebody has chosen.

A run is the fold of its events, and an event that nothing waits for changes nothing. So what has to be left
out is how these steps ended, and what could only come because of that: then they are under way again, and
whatever was done beside them stays done. Knows no engine, no clock and no protocol.

    events         started · a done · b failed · c done · run failed
    b again        started · a done ·            c done              b is under way

Of items that are carried out some at a time, the end of one makes room for the next. Where an item is done
again, `SlotFreed` stands for its end, so that those behind it are begun, and stay done.
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
"""By the numbers of events, counted from 1: what the new run has in their place."""


def failed_steps(machine: Machine) -> list[str]:
    """The steps by whose failure a run has failed, as deep inside as they are."""
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
    """Whether the failure of a block is that of the scope that it is in."""
    if scope.failure is not None:
        return node.id == scope.failure.address[len(prefix) :].partition("/")[0]
    if scope.each is not None:
        return failed(record)
    plan = machine.plan_named(scope.workflow)
    if isinstance(plan.body, Steps):
        return ends_with(plan, node, record)
    return fails_the_workflow(plan, node, record)


def carried_out(events: Sequence[Event]) -> list[str]:
    """The steps that something has come of, in the order of their first events."""
    return list(dict.fromkeys(event.address for event in events if event.of_step))


def replayed_events(events: Sequence[Event], changes: Changes) -> list[Event]:
    """The events that a new run begins with."""
    return [it for number, event in enumerate(events, start=1) for it in changes.get(number, (event,))]


class Journal:
    """All events of a run, for whoever wants some of it done again."""

    def __init__(self, bundle: Bundle, events: Sequence[Event], steps: Sequence[str]) -> None:
        """`steps`: those that may be done again."""
        self._bundle = bundle
        self._events = events
        self._steps = list(steps)
        self._items: dict[str, list[str]] = {}
        """Of each step: the items that it is inside of, or is, the innermost first."""
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

    # What is to be left out in any case

    def ends(self, *, of_others: bool = False) -> set[int]:
        """The numbers of the events by which the steps ended the last time. A step can also end by what came
        before it, because of its condition or its values: that is the end of another one."""
        found: set[int] = set()
        for step in self._steps:
            history = self._histories[step]
            event = self._events[history.failed_at - 1] if history.failed_at else None
            if event is not None and (of_others or _concerns(event, step)):
                found |= self._with_its_try(step, event, history)
        return found

    def _with_its_try(self, step: str, end: Event, history: _History) -> set[int]:
        """The end of a step, and what else was of the try that ended with it."""
        numbers = {
            number
            for number, event in enumerate(self._events[: history.failed_at], start=1)
            if event is end or (end.key and event.key == end.key)
        }
        if isinstance(end, Answered):
            numbers |= self._written_for(step, end, history)
            before = [it for it in range(1, history.failed_at) if _is_at(self._events[it - 1], end.address)]
            if before and isinstance(self._events[before[-1] - 1], Interrupted):
                numbers.add(before[-1])  # the agent was asked what becomes of a step that was cut off
        return numbers

    def all_of(self, step: str) -> set[int]:
        """The numbers of all events of a step, and of what it is made of, since it was last begun."""
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
        """What the agent has put into the state itself, in place of a result."""
        if not end.settled:
            return set()
        task = next(iter(self._items.get(step, ())), "")
        return {
            number
            for number in range(history.begun_at + 1, history.failed_at)
            if isinstance(event := self._events[number - 1], StateUpdated) and event.address == task
        }

    # And what goes with it

    def changes(self, again: set[int]) -> Changes:
        """What a run has in place of events, in which those of these numbers have not come."""
        machine, so_far = Machine(self._bundle), list[Event]()
        changes: dict[int, tuple[Event, ...]] = {}
        held: list[tuple[int, Event]] = []
        """What belongs to the event that follows."""
        for number, recorded in enumerate(self._events, start=1):
            event = recorded
            if changes and isinstance(event, Forked):  # an item that is done again takes no place of others
                event = msgspec.structs.replace(event, over_limit=True)
                changes[number] = (event,)
            held.append((number, event))
            if event.precedes_next:
                continue
            comes = number not in again and (not changes or self._still_comes(machine, event, number, again))
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
        """Whether a step that is to be done again is ended by what is none of its own, such as the timeout of
        what it is in: that has not come yet."""
        return number > self._histories[step].begun_at and not _is_of(event, step)

    def _slots_freed(self, machine: Machine, at: float, number: int) -> list[SlotFreed]:
        """For items that had ended with this event, and are under way here."""
        items = dict.fromkeys(item for step in self._steps for item in self._items.get(step, ()))
        frames = machine.state.frames
        return [SlotFreed(at, it) for it in items if self._histories[it].ended_at == number and it in frames]

    def _still_comes(self, machine: Machine, event: Event, number: int, again: Iterable[int]) -> bool:
        """Whether an event is to be expected although others have been left out."""
        if event.marks_position:
            return False
        if isinstance(event, StateUpdated) and not self._is_from_beside(event, number, again):
            return False  # it was made in the light of what is done again
        try:
            machine.refuse_unexpected(event)
        except NotExpected:
            return False
        return True

    def _is_from_beside(self, event: StateUpdated, number: int, again: Iterable[int]) -> bool:
        """Whether a change of the state came from somebody who was at work beside what is done again: in
        another task, or, where it does not say, while tasks were under way of which some are done again."""
        if event.address:
            concerned = {it.address for number in again if (it := self._events[number - 1]).of_step}
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
    """Of one step: the numbers of the events at which it was last begun, began to fail, and ended."""

    begun_at: int = 0
    failed_at: int = 0
    """At which it ended, or at which steps were begun that clean up after its failure."""
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
    """The items that an address is inside of, or is itself, the innermost first."""
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
    """Whether an event is about a step itself, or about what it is made of."""
    return event.of_step and f"{event.address}/".startswith(f"{step}/")


def _concerns(event: Event, step: str) -> bool:
    return event.of_step and _are_related(event.address, step)


def _is_at(event: Event, step: str) -> bool:
    return event.of_step and event.address == step


def _are_related(one: str, other: str) -> bool:
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")
