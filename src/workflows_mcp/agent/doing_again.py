"""Which events of a run a new one is made of that does some of its steps again: those that it failed by, or
one that somebody has chosen.

A run is the fold of its events, and an event that nothing waits for changes nothing. So what has to be left
out is how these steps ended, and what could only happen because of that: then they are under way again, and
whatever was done beside them stays done. Knows no engine, no clock and no protocol.

    events         started · a done · b failed · c done · run failed
    b again        started · a done ·            c done              b is under way
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from workflows_mcp.agent.tasks import record_at
from workflows_mcp.agent.walk import blocks_in
from workflows_mcp.errors import NotExpected
from workflows_mcp.machine.commands import address_of
from workflows_mcp.machine.events import Answered, Event, Marked, StateUpdated, Stopped
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.rules import fails_the_workflow
from workflows_mcp.machine.scope import failed
from workflows_mcp.machine.sequence import ends_with
from workflows_mcp.machine.state import TERMINAL, Record, Scope
from workflows_mcp.plan.model import Bundle, Node, Steps


def culprits(machine: Machine) -> list[str]:
    """The steps by whose failure a run has failed, as deep inside as they are."""
    return list(_culprits(machine, machine.state.root, None, ""))


def _culprits(machine: Machine, scope: Scope, around: Node | None, prefix: str) -> Iterator[str]:
    for node, record in blocks_in(machine, scope, around):
        if not _fails(machine, scope, prefix, node, record):
            continue
        address = prefix + node.id
        inside = [] if record.scope is None else list(_culprits(machine, record.scope, node, f"{address}/"))
        yield from inside or [address]


def _fails(machine: Machine, scope: Scope, prefix: str, node: Node, record: Record) -> bool:
    """Whether the failure of a block is that of the scope that it is in."""
    if scope.failure is not None:
        return node.id == scope.failure.address[len(prefix) :].partition("/")[0]
    if scope.each is not None:
        return failed(record)
    if isinstance(machine.plan_named(scope.workflow).body, Steps):
        return ends_with(node, record)
    return fails_the_workflow(node, record)


def ends_of(
    bundle: Bundle, events: Sequence[Event], steps: Sequence[str], *, of_others: bool = False
) -> set[int]:
    """The numbers, from 1, of the events by which these steps ended the last time. A step can also end by
    what came before it, because of its condition or its values: that is the end of another one."""
    found: set[int] = set()
    for step, history in _histories(bundle, events, steps).items():
        event = events[history.ended_at - 1] if history.ended_at else None
        if event is not None and (of_others or _concerns(event, step)):
            key = getattr(event, "key", None)
            found |= {
                number
                for number, other in enumerate(events[: history.ended_at], start=1)
                if other is event or (key is not None and getattr(other, "key", None) == key)
            }
    return found


def all_of(bundle: Bundle, events: Sequence[Event], step: str) -> set[int]:
    """The numbers of all events of a step, and of what it is made of, since it was last begun."""
    begun = _histories(bundle, events, [step])[step].begun_at
    inside = f"{step}/"
    return {
        number
        for number, event in enumerate(events, start=1)
        if number > begun and (address := _address(event)) is not None and f"{address}/".startswith(inside)
    }


def carried_out(events: Sequence[Event]) -> list[str]:
    """The steps that something has come of, in the order of their first events."""
    return list(dict.fromkeys(it for event in events if (it := _address(event)) is not None))


def left_out(bundle: Bundle, events: Sequence[Event], again: set[int]) -> set[int]:
    """With the events of these numbers, those that would not have come without them."""
    machine = Machine(bundle)
    without: set[int] = set()
    concerned = {address for number in again if (address := _address(events[number - 1])) is not None}
    held: list[tuple[int, Event]] = []
    """What belongs to the event that follows."""
    for number, event in enumerate(events, start=1):
        held.append((number, event))
        if isinstance(event, Stopped):
            continue
        if number in again or (without and not _still_comes(machine, event, concerned)):
            without |= {it for it, _ in held}
        else:
            for _, one in held:
                machine.apply(one)
        held = []
    return without


def kept(events: Sequence[Event], without: set[int]) -> list[Event]:
    return [event for number, event in enumerate(events, start=1) if number not in without]


def _still_comes(machine: Machine, event: Event, concerned: Iterable[str]) -> bool:
    """Whether an event is to be expected although others have been left out."""
    if isinstance(event, Marked):
        return False
    if isinstance(event, StateUpdated) and (
        not event.address or any(_are_related(event.address, other) for other in concerned)
    ):
        return False  # it was made in the light of what is done again
    try:
        machine.refuse_unexpected(event)
    except NotExpected:
        return False
    return True


@dataclass(slots=True)
class _History:
    """Of one step: the numbers of the events at which it was last begun and last ended."""

    begun_at: int = 0
    ended_at: int = 0
    _record: Record | None = None
    _under_way: bool = False

    def look(self, record: Record | None, number: int) -> None:
        under_way = record is not None and record.status not in TERMINAL
        if record is not None and record is not self._record:
            self.begun_at = number
            self._under_way = True
        if record is not None and self._under_way and not under_way:
            self.ended_at = number
        self._record, self._under_way = record, under_way


def _histories(bundle: Bundle, events: Sequence[Event], steps: Sequence[str]) -> dict[str, _History]:
    machine = Machine(bundle)
    histories = {step: _History() for step in steps}
    for number, event in enumerate(events, start=1):
        machine.apply(event)
        for step, history in histories.items():
            history.look(record_at(machine.state, step), number)
    return histories


def _concerns(event: Event, step: str) -> bool:
    address = _address(event)
    return address is not None and _are_related(address, step)


def _are_related(one: str, other: str) -> bool:
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def _address(event: Event) -> str | None:
    """The step that an event is about, if it is about one."""
    if isinstance(event, Answered):
        return event.address
    key = getattr(event, "key", None)
    return address_of(key)[0] if isinstance(key, str) else None
