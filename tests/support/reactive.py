"""Runs of reactive documents without an engine: a small world that carries out steps and answers questions, and
crashes that leave nothing but what was written down."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

from support.steps import Gate, Note, registry_of
from workflows_mcp.dialects import load
from workflows_mcp.engines.values import decode_event, encode
from workflows_mcp.errors import TOO_SLOW, ExpressionError
from workflows_mcp.limits import Limits
from workflows_mcp.machine.commands import Command, RunStep, SetTimer, address_of
from workflows_mcp.machine.events import Answered, Event, Started, StepDone, StepFailed, TimerFired
from workflows_mcp.machine.machine import Machine, replayed
from workflows_mcp.machine.state import RunState
from workflows_mcp.plan.model import Bundle
from workflows_mcp.values import Value

Crash = Literal["never", "journal", "snapshot", "both"]
CRASHES: tuple[Crash, ...] = ("journal", "snapshot", "both")
"""What is left after every single event: the journal, a snapshot, or an earlier snapshot and the rest of the
journal."""
_STOPPED = 0.08
_AGE = 3
"""How many events the snapshot of `both` is behind."""

Elsewhere = Callable[[], AbstractContextManager[None]]
Outcome = Mapping[str, Value] | str
"""What a step gives; a text is what it crashes with."""
Play = Callable[[str, Mapping[str, Value], int], Outcome]
"""What comes of the step, or the question, at an address, with these inputs, when it comes for the nth time."""


def documents(*texts: str) -> Bundle:
    """Workflows in the order of the texts, the first one the main one. Steps: Note, Echo, Gate, and Ask."""
    registry = registry_of(Note(), Gate())
    found = [load(text, file=f"{number}.yaml", registry=registry) for number, text in enumerate(texts)]
    plans = {it.plan.name: it.plan for it in found}
    return Bundle(found[0].plan.name, plans, {it.plan.name: it.text for it in found})


def say(address: str, inputs: Mapping[str, Value], times: int) -> Outcome:
    """A step gives back what it was given; a question is answered with how often it was asked."""
    return {"response": f"answer {times}"} if "prompt" in inputs else dict(inputs)


@dataclass(slots=True)
class Story:
    """A run from its start to its end, or to where nothing is left to do."""

    machine: Machine
    events: list[Event] = field(default_factory=list)
    performed: list[RunStep] = field(default_factory=list)
    asked: list[tuple[str, dict[str, Value]]] = field(default_factory=list)
    told: list[list[str]] = field(default_factory=list)
    """What an agent would have read with each question, and at the end."""

    @property
    def state(self) -> RunState:
        return self.machine.state

    @property
    def raw(self) -> dict[str, Value]:
        fields: dict[str, Value] = self.state.root.state["raw"]
        return fields

    @property
    def said(self) -> list[Value]:
        return [command.inputs.get("text") for command in self.performed]

    @property
    def messages(self) -> list[str]:
        return [text for told in self.told for text in told]

    def whole(self) -> tuple[Any, ...]:
        """All that somebody could see of it."""
        return self.state, self.performed, self.asked, self.told


class World:
    """Carries out what is wished for, one thing at a time, in an order that `seed` decides."""

    def __init__(
        self,
        bundle: Bundle,
        play: Play = say,
        *,
        crash: Crash = "never",
        seed: int | None = None,
        between: Mapping[int, Event] | None = None,
        limits: Limits | None = None,
        elsewhere: Elsewhere = nullcontext,
    ) -> None:
        self.bundle = bundle
        self._play = play
        self._crash = crash
        self._random = random.Random(seed) if seed is not None else None
        self._between = dict(between or {})
        """What comes from outside, by the number of events before it."""
        self._limits = (limits or Limits()).of_a_run
        self._elsewhere = elsewhere
        """The machine that a run comes back on."""
        self._times: Counter[str] = Counter()
        self._snapshots: list[bytes] = []
        self._waiting: list[RunStep | SetTimer] = []
        self.story = Story(Machine(bundle))

    def run(self, inputs: Mapping[str, Value] | None = None, *, events: int = 10_000) -> Story:
        self._waiting = self._send(Started(0.0, "wf_1", dict(inputs or {}), limits=self._limits))
        return self.go_on(events=events)

    def go_on(self, *, events: int = 10_000) -> Story:
        story, waiting = self.story, self._waiting
        while story.state.status == "running" and len(story.events) < events:
            if (event := self._between.pop(len(story.events), None)) is not None:
                waiting += self._send(event)
                continue
            questions = [at for at, frame in story.state.frames.items() if frame.kind == "agent"]
            waiting[:] = [it for it in waiting if self._is_wanted(it)]
            possible: list[RunStep | SetTimer | str] = [*waiting, *questions]
            if not possible:
                break
            chosen = possible[0] if self._random is None else self._random.choice(possible)
            if not isinstance(chosen, str):
                waiting.remove(chosen)
            waiting += self._send(self._report(chosen))
        story.told.append([message.text for message in story.state.messages])
        return story

    def send(self, event: Event) -> None:
        self._waiting += self._send(event)

    def _is_wanted(self, command: RunStep | SetTimer) -> bool:
        address, attempt = address_of(command.key)
        frame = self.story.state.frames.get(address)
        return frame is not None and frame.attempt == attempt

    def _report(self, chosen: RunStep | SetTimer | str) -> Event:
        at = float(len(self.story.events))
        if isinstance(chosen, SetTimer):
            return TimerFired(at, chosen.key)
        if isinstance(chosen, str):
            scope, index = self.story.machine.locate(chosen)
            inputs = scope.scope.records[scope.program.nodes[index].id].inputs
            self.story.asked.append((chosen, dict(inputs)))
            self.story.told.append([message.text for message in self.story.state.messages])
            self._times[chosen] += 1
            outcome = self._play(chosen, inputs, self._times[chosen])
            assert not isinstance(outcome, str), "an agent answers with an object"
            return Answered(at, chosen, dict(outcome))
        self.story.performed.append(chosen)
        self._times[chosen.address] += 1
        outcome = self._play(chosen.address, chosen.inputs, self._times[chosen.address])
        if isinstance(outcome, str):
            return StepFailed(at, chosen.key, "boom", outcome)
        return StepDone(at, chosen.key, dict(outcome), bool(outcome.get("ok", True)))

    def _send(self, event: Event) -> list[RunStep | SetTimer]:
        story = self.story
        commands: list[Command] = story.machine.apply(event)
        stopped = story.machine.record_stopped_expressions(event.at)
        story.events += [event] if stopped is None else [stopped, event]
        if self._crash != "never":
            self._come_back()
        return [it for it in commands if isinstance(it, RunStep | SetTimer)]

    def _come_back(self) -> None:
        """All is lost but what was written down; what comes back must be what was lost."""
        lost = self.story.machine
        self._snapshots.append(lost.snapshot())
        with self._elsewhere():
            back = self._back()
            assert back.state == lost.state
            if lost.state.status == "running":
                assert back.outstanding(0.0) == lost.outstanding(0.0)
        self.story.machine = back

    def _back(self) -> Machine:
        if self._crash == "snapshot":
            return Machine(self.bundle, self._snapshots[-1])
        written = [decode_event(encode(event)) for event in self.story.events]
        if self._crash == "journal":
            return replayed(self.bundle, written)
        back = Machine(self.bundle, self._snapshots[-_AGE:][0])
        for event in written[back.state.events :]:
            back.apply(event)
        return back


def run(bundle: Bundle, play: Play = say, inputs: Mapping[str, Value] | None = None, **more: Any) -> Story:
    return World(bundle, play, **more).run(inputs)


def survives(
    bundle: Bundle,
    play: Play = say,
    inputs: Mapping[str, Value] | None = None,
    *,
    between: Mapping[int, Event] | None = None,
    limits: Limits | None = None,
    seed: int | None = None,
    elsewhere: Elsewhere = nullcontext,
) -> Story:
    """The run, after it has been seen to go the same way with a crash after every event."""
    straight = World(bundle, play, seed=seed, between=between, limits=limits).run(inputs)
    for crash in CRASHES:
        world = World(
            bundle, play, crash=crash, seed=seed, between=between, limits=limits, elsewhere=elsewhere
        )
        again = world.run(inputs)
        assert again.state == straight.state
        assert again.whole() == straight.whole()
    return straight


class Sluggish:
    """The language of reactive documents on a machine that is too slow for some of the expressions: for those in
    which one of the words `too_slow` is written, or, with a seed, now and then."""

    def __init__(self, language: Any, seed: int | None = None) -> None:
        self._language = language
        self._random = random.Random(seed) if seed is not None else None
        self._fast = False
        self.too_slow: set[str] = set()
        self.evaluated: list[str] = []
        """Every expression that was evaluated, or begun to be."""

    def stops(self, text: str) -> bool:
        self.evaluated.append(text)
        if self._fast:
            return False
        if self._random is not None:
            return self._random.random() < _STOPPED
        return any(mark in text for mark in self.too_slow)

    @contextmanager
    def fast(self) -> Iterator[None]:
        """For as long as this lasts, nothing is too slow."""
        before, self._fast = self._fast, True
        try:
            yield
        finally:
            self._fast = before

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._language, name)
        if name not in ("template", "condition", "output", "code", "transform"):
            return found
        return lambda text, *more: _Expression(found(text, *more), text, self)


class _Expression:
    def __init__(self, expression: Any, text: str, language: Sluggish) -> None:
        self._expression = expression
        self._text = text
        self._sluggish = language
        self.references = expression.references

    def evaluate(self, scope: Any) -> Any:
        if self._sluggish.stops(self._text):
            raise ExpressionError(f"`{self._text}` took longer than 5 seconds and was stopped", code=TOO_SLOW)
        return self._expression.evaluate(scope)
