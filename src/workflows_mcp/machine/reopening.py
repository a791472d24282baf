"""Makes the event that reopens steps: they run again, and so does all that followed from them.

    events       started · a done · b failed · c done · run failed
    reopen b     started · a done · b failed · c done · run failed · reopened(["b#1"], state)
    state        a completed, c completed, the run is running

The state is that of the run as if it had never entered these steps: the events are applied to a machine that
skips them. What followed from them is then unexpected, and changes nothing. Only three kinds of events need a
decision: those that would end a skipped step from outside, such as the timeout of a call around it, are left
out; so are updates of the state that may depend on it; and when an item that contains one ended, the next
item starts all the same.

`Machine.apply` continues with this state, in the run itself or in a fork, and enters the steps.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from copy import copy

from msgspec.structs import replace

from workflows_mcp.machine.core import OpenScope, attempt_in
from workflows_mcp.machine.events import Event, Forked, Reopened, SlotFreed, StateUpdated
from workflows_mcp.machine.machine import Machine, replayed, send_back
from workflows_mcp.machine.rules import failed, fails_the_workflow
from workflows_mcp.machine.sequence import ends_with
from workflows_mcp.machine.state import TERMINAL, Record, RunState, Scope, address_of, key_of, record_at
from workflows_mcp.plan import Bundle, Steps


def failed_steps(machine: Machine) -> list[str]:
    """Return the addresses of the innermost steps whose failure made the run fail.

    Of a call that timed out, these are the steps that ended with it."""
    return list(_failed_in(machine, machine.state.root, ""))


def _failed_in(machine: Machine, scope: Scope, prefix: str) -> Iterator[str]:
    for name, record in scope.records.items():
        if _fails(machine, scope, prefix, name, record):
            inside: list[str] = []
            if record.scope is not None:
                inner = f"{prefix}{name}/"
                inside = list(_failed_in(machine, record.scope, inner))
                inside = inside or list(_stopped_in(record.scope, inner))
            yield from inside or [prefix + name]


def _stopped_in(scope: Scope, prefix: str) -> Iterator[str]:
    """Yield the innermost steps that were ended from outside: they failed for no reason of their own."""
    for name, record in scope.records.items():
        if record.status == "failed" and record.fault is None:
            inside = [] if record.scope is None else list(_stopped_in(record.scope, f"{prefix}{name}/"))
            yield from inside or [prefix + name]


def _fails(machine: Machine, scope: Scope, prefix: str, name: str, record: Record) -> bool:
    """Whether the failure of a block fails its scope."""
    if scope.failure is not None:
        return name == scope.failure.address[len(prefix) :].partition("/")[0]
    if scope.each is not None:
        return failed(record)
    program = machine.program_named(scope.workflow)
    node = program.nodes[program.ids[name]]
    if isinstance(program.plan.body, Steps):
        return ends_with(program.plan, node, record)
    return fails_the_workflow(program.plan, node, record)


class Reopening:
    """Steps of a run to reopen.

    reopening = Reopening(bundle, events, ["build"])
    reopening.ran                  # those that were under way once
    machine.apply(reopening.event())
    """

    def __init__(self, bundle: Bundle, events: Sequence[Event], steps: Sequence[str]) -> None:
        """`steps` are addresses. Of a step that the run has reached several times, the last time counts."""
        self.final = replayed(bundle, events)
        self._events = events
        self._keys = {_first_key(self.final.state, step) for step in steps}
        self.ran: set[str] = set()
        """The addresses of the steps that were under way, at least once."""
        self.reached_by: dict[str, Event] = {}
        """By address: the event with which the run reached a step."""
        self.ends: dict[int, tuple[str, Record]] = {}
        """By number of an event that ended a step: the address of the step, and a copy of its record then."""
        self._left_out: set[int] = set()
        """The numbers of the events that would end a skipped step from outside."""
        while (machine := self._without_steps()) is None:
            pass
        self.state: RunState = machine.state
        self.steps = list(machine.skipped)
        """The keys of the steps that the run has reached."""

    def event(self, *, same_run: bool = False) -> Reopened:
        """Return the event. In the `same_run`, what runs again gets new keys: reports may be late."""
        if same_run:
            _number_rounds(self.final.state.root, self.state.root)
        return Reopened(self._events[-1].at, self.steps, self.state)

    def _without_steps(self) -> _Skipping | None:
        """Apply the events without the steps; None if one more event must be left out."""
        bundle = self.final.bundle
        self.ends = {}
        original, machine = Machine(bundle), _Skipping(bundle, self.final)
        later = [event for event in self._events if isinstance(event, Reopened)]
        machine.keys = self._keys.union(*(it.steps for it in later))
        before: Event | None = None
        for number, event in enumerate(self._events, start=1):
            if event.precedes_next:
                before = event
                original.apply(event)
                continue
            comes = number not in self._left_out and not self._follows(original, machine, event)
            original.apply(event)
            if isinstance(event, Reopened):
                later.pop(0)
                machine.keys = self._keys.union(*(it.steps for it in later))
                machine.release(event)
            elif comes:
                machine.state.events = number - 1
                if before is not None:
                    machine.apply(before)
                    machine.state.events = number - 1
                record = record_at(machine.state, event.address) if event.ends_step else None
                takes_no_slot = isinstance(event, Forked) and bool(machine.skipped)
                machine.apply(replace(event, over_limit=True) if takes_no_slot else event)
                if record is not None:  # by now, the step may be in its next round
                    self.ends[number] = event.address, copy(record)
            if machine.has_lost_one():
                self._left_out.add(number)
                return None
            machine.free_slots(original.state, event.at)
            machine.state.events, before = number, None
            for address in machine.take_reached():
                self.reached_by[address] = event
                if address in original.state.frames:
                    self.ran.add(address)
        return machine

    def _follows(self, original: Machine, machine: _Skipping, event: Event) -> bool:
        """Whether an event concerns a skipped step although nothing waits for it there."""
        if event.cancels or (event.marks_position and machine.skipped):
            return True
        if isinstance(event, StateUpdated):
            skipped = [address_of(key)[0] for key in machine.skipped]
            return any(self._may_depend(original, event.address, step) for step in skipped)
        return event.of_step and machine.around[event.address] > 0

    def _may_depend(self, original: Machine, task: str, step: str) -> bool:
        """Whether a state update may depend on a skipped step, or was made in place of its result.

        An update without a task may come from any task while tasks are under way."""
        if task and not (step.startswith(f"{task}/") or task.startswith(f"{step}/")):
            return False
        items = _items_around(self.final.state, step)
        if step in original.state.frames:
            record = record_at(self.final.state, step)
            written = record is not None and record.written_by_agent
            return written and task == (items[-1] if items else "")
        return bool(task) or not items or items[0].rpartition("/")[0] not in original.state.frames


class _Skipping(Machine):
    """A machine that does not enter some steps."""

    def __init__(self, bundle: Bundle, final: Machine) -> None:
        super().__init__(bundle)
        self.keys: set[str] = set()
        """The keys of the steps to skip."""
        self.skipped: dict[str, OpenScope] = {}
        """Those that it has reached, and their scopes."""
        self.around: Counter[str] = Counter()
        """The blocks around skipped steps: how many each has inside."""
        self._names: dict[OpenScope, set[str]] = defaultdict(set)
        """Their names, by scope."""
        self._reached: list[str] = []
        self._items: dict[str, None] = {}
        """The items around skipped steps that hold a slot."""
        self._final = final.state
        # A call by name that found its workflow first may be skipped: no other one waits for it.
        for plan in final.state.plans.values():
            self.plans[plan.name] = plan
            self.add_tasks(plan)

    def _enter(self, scope: OpenScope, index: int) -> None:
        key, name = scope.attempt_key(index), scope.program.nodes[index].id
        if key in self.keys and name not in scope.scope.records:
            if key in self.skipped:
                self._forget(key)
            self.skipped[key] = scope
            self._names[scope].add(name)
            self.around.update(_blocks_around(scope.prefix + name))
            self._reached.append(scope.prefix + name)
            self._items.update(dict.fromkeys(_items_around(self._final, scope.prefix + name)))
        else:
            super()._enter(scope, index)

    def _forget(self, key: str) -> OpenScope:
        scope = self.skipped.pop(key)
        self._names[scope].discard(_name_in(key))
        self.around.subtract(_blocks_around(address_of(key)[0]))
        return scope

    def take_reached(self) -> list[str]:
        """The addresses of the steps that were skipped since the last call."""
        reached, self._reached = self._reached, []
        return reached

    def release(self, event: Reopened) -> None:
        """Enter the steps that are not to be skipped any more."""
        self.state.changed_at = event.at
        _copy_rounds(event.state.root, self.state.root)
        if event.decision is not None:
            send_back(self, event.decision, event.steps)
        for key in [key for key in self.skipped if key not in self.keys]:
            scope = self._forget(key)
            self.enqueue(scope, [scope.program.ids[_name_in(key)]])
        self.enter_queued()

    def free_slots(self, original: RunState, at: float) -> None:
        """Start the next items: some that ended in the original run have not ended here."""
        while ended := [it for it in self._items.keys() - original.frames.keys() if _has_ended(original, it)]:
            for item in sorted(ended):
                del self._items[item]
                self.apply(SlotFreed(at, item))

    def has_lost_one(self) -> bool:
        """Whether a skipped step can no longer be entered."""
        return any(
            self._open.get(scope.prefix) is not scope or not names.isdisjoint(scope.scope.records.keys())
            for scope, names in self._names.items()
            if names
        )


def _number_rounds(before: Scope, after: Scope) -> None:
    """Let each block that is not as it was before be in another round when it is entered next."""
    for name in {**before.visits, **before.records}:
        visits, kept = before.visits.get(name, 1), after.records.get(name)
        if kept is None:
            after.visits[name] = visits + 1
        elif after.visits.get(name, 1) != visits:
            after.visits[name] = visits
        elif kept.scope is not None and (inside := before.records[name].scope) is not None:
            _number_rounds(inside, kept.scope)


def _copy_rounds(source: Scope, target: Scope) -> None:
    for name, visits in source.visits.items():
        target.visits[name] = max(visits, target.visits.get(name, 1))
    for name, record in source.records.items():
        copy = target.records.get(name)
        if record.scope is not None and copy is not None and copy.scope is not None:
            _copy_rounds(record.scope, copy.scope)


def _blocks_around(address: str) -> list[str]:
    names = address.split("/")
    return ["/".join(names[:length]) for length in range(1, len(names))]


def _name_in(key: str) -> str:
    return address_of(key)[0].rpartition("/")[2]


def _has_ended(state: RunState, address: str) -> bool:
    record = record_at(state, address)
    return record is not None and record.status in TERMINAL


def _first_key(state: RunState, address: str) -> str:
    """Return the key of the first attempt of a block, since the run reached it last."""
    scope: Scope | None = state.root
    prefix = ""
    *around, last = address.split("/")
    for name in around:
        record = scope.records.get(name) if scope is not None else None
        if scope is None or record is None:
            return key_of(address, "")
        attempt = prefix + attempt_in(scope, name, record)
        prefix = f"{attempt}." if attempt != "1" else ""
        scope = record.scope
    return key_of(address, prefix + attempt_in(scope, last, Record())) if scope is not None else ""


def _items_around(state: RunState, address: str) -> list[str]:
    """Return the items around an address, the outermost first; an item contains itself."""
    names = address.split("/")
    found: list[str] = []
    scope: Scope | None = state.root
    for length, name in enumerate(names, start=1):
        if scope is None:
            break
        if scope.each is not None:
            found.append("/".join(names[:length]))
        record = scope.records.get(name)
        scope = record.scope if record is not None else None
    return found
