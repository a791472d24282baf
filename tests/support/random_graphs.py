"""Random workflows of blocks: optional dependencies, conditions, questions, calls, items and retries; and a world
in which each step goes as its address and its try say."""

from __future__ import annotations

import random
from collections.abc import Callable

from hypothesis import strategies as st

from support.plans import Call, Do, ForEach, block, bundle, plan
from workflows_mcp.machine.commands import Command, RunStep, SetTimer
from workflows_mcp.machine.events import Event, StepDone, StepFailed, TimerFired
from workflows_mcp.machine.machine import Machine
from workflows_mcp.plan import model
from workflows_mcp.plan.model import Bundle, InputSpec, Plan

ITEMS = (
    ForEach([1, 2, 3]),
    ForEach({"x": 1, "y/z": 2, "w": 3, "v": 4}, max_parallel=2),
    ForEach([1, 2, 3], max_parallel=1, condition="${each.value} != 2"),
    ForEach([]),
)
OUTCOMES = ("success", "success", "success", "failure", "crash")


@st.composite
def workflows(draw: st.DrawFn, name: str = "main", calls: tuple[str, ...] = ("inner",)) -> Plan:
    """A random acyclic workflow: block i depends on some of the blocks before it."""
    size = draw(st.integers(1, 9))
    blocks = []
    for index in range(size):
        needs = [
            (f"b{other}", draw(st.booleans()))
            for other in range(index)
            if draw(st.integers(0, index)) == 0 or (other == index - 1 and draw(st.booleans()))
        ]
        kind = draw(st.sampled_from(["do", "do", "do", "ask", *(["call"] if calls else [])]))
        seen = f"${{blocks.{needs[0][0]}.status}}" if needs else "${inputs.flag}"
        do: model.Do | model.Call
        if kind == "call":
            do = Call(draw(st.sampled_from(calls)), {"flag": draw(st.booleans())})
        else:
            step, by = ("Ask", "agent") if kind == "ask" else ("Note", "server")
            do = Do(step, {"text": seen}, by=by)
        condition = draw(st.sampled_from([None, None, None, "${inputs.flag}", "${inputs.flag} == 3"]))
        tolerated = draw(st.booleans())
        retry = draw(
            st.sampled_from([None, None, {"attempts": 2, "delay": 1}, {"attempts": 3, "on": ["error"]}])
        )
        for_each = draw(st.sampled_from([None, None, None, *ITEMS]))
        blocks.append(
            block(
                f"b{index}",
                do,
                needs,
                condition=condition,
                tolerated=tolerated,
                retry=retry,
                for_each=for_each,
            )
        )
    inputs = {"flag": InputSpec("boolean", default=True, has_default=True)}
    return plan(*blocks, name=name, inputs=inputs, outputs={"last": f"${{blocks.b{size - 1}.status}}"})


@st.composite
def bundles(draw: st.DrawFn) -> Bundle:
    return bundle(draw(workflows()), draw(workflows(name="inner", calls=())))


def result_of(key: str, seed: int) -> str:
    """How a step goes: fixed by its address and try, so that it is the same in whatever order steps end."""
    return random.Random(f"{seed}:{key}").choice(OUTCOMES)


def reports(machine: Machine, commands: list[Command], seed: int) -> list[Callable[[float], Event]]:
    """What the world will answer to these commands, and to the questions that are asked now."""
    events: list[Callable[[float], Event]] = []
    for command in commands:
        if isinstance(command, RunStep):
            events.append(lambda at, it=command: report(it, at, seed))  # type: ignore[misc]
        elif isinstance(command, SetTimer):
            events.append(lambda at, it=command: TimerFired(at, it.key))  # type: ignore[misc]
    return events


def report(command: RunStep, at: float, seed: int) -> Event:
    outcome = result_of(command.key, seed)
    if outcome == "crash":
        return StepFailed(at, command.key, "boom", "it crashed")
    return StepDone(at, command.key, {"text": command.inputs["text"]}, outcome == "success")
