"""What every engine must do with steps one after the other: waits, tasks of agents, loops, fields that are
computed, and expressions that take too long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from support.engines import World, asks, ended
from support.plans import Return, SetState, Wait
from support.reactive import documents
from support.stateful import ask, bundle_of, research, sequence, step
from workflows_mcp.engines.base import Engine
from workflows_mcp.engines.clock import VirtualClock
from workflows_mcp.errors import NotExpected
from workflows_mcp.limits import Limits
from workflows_mcp.machine.events import Answered, CancelRequested, ExpressionStopped, StateUpdated
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.state import RunState

OnEngine = Callable[..., None]


def asked(state: RunState) -> list[str]:
    return sorted(address for address, frame in state.frames.items() if frame.kind == "agent")


def are_asked(*addresses: str) -> Callable[[RunState], bool]:
    return lambda state: asked(state) == sorted(addresses)


def answer(address: str, text: str) -> Callable[[Machine, float], Answered]:
    return lambda _, now: Answered(now, address, {"response": text})


@pytest.mark.rows("S5", "S6")
def test_tasks_are_carried_out_side_by_side_each_with_a_state_of_its_own(on_engine: OnEngine) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        run_id = await engine.start(bundle_of(research()), {})
        await engine.wait(run_id, are_asked("each/0/read", "each/1/read"), 10)
        await engine.send(run_id, answer("each/1/read", "honey"))
        await engine.wait(run_id, are_asked("each/0/read", "each/1/judge"), 10)
        with pytest.raises(NotExpected):
            await engine.send(run_id, answer("each/1/read", "again"))
        await engine.send(run_id, answer("each/0/read", "hills"))
        for address in ("each/1/judge", "each/0/judge"):
            await engine.send(run_id, answer(address, "yes"))
        await engine.wait(run_id, are_asked("review"), 10)
        await engine.send(run_id, answer("review", "fine"))
        state = (await engine.wait(run_id, ended, 10)).state
        assert state.result == [{"topic": "ants", "found": "hills!"}, {"topic": "bees", "found": "honey!"}]

    on_engine(scenario)


@pytest.mark.rows("S5")
def test_many_agents_answer_at_once_and_every_answer_counts_once(on_engine: OnEngine) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        topics = [f"topic {number}" for number in range(30)]
        run_id = await engine.start(bundle_of(research(items=topics)), {})
        await engine.wait(run_id, lambda state: len(asked(state)) == 30, 10)
        for name in ("read", "judge"):
            answers = [answer(f"each/{number}/{name}", f"{name} {number}") for number in range(30)]
            await asyncio.gather(*(engine.send(run_id, it) for it in answers))
        await engine.wait(run_id, are_asked("review"), 10)
        await engine.send(run_id, answer("review", "fine"))
        state = (await engine.wait(run_id, ended, 10)).state
        assert state.result == [
            {"topic": topic, "found": f"read {number}!"} for number, topic in enumerate(topics)
        ]
        _, events = await engine.journal(run_id)
        assert sum(isinstance(event, Answered) for event in events) == 61

    on_engine(scenario)


def test_a_wait_is_over_when_its_time_is_and_not_before(on_engine: OnEngine) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        assert isinstance(world.clock, VirtualClock)
        plan = sequence(
            "waits",
            step("rest", Wait(30)),
            step("note", SetState({"rested": True})),
            step("end", Return("{{ state.rested }}")),
            initial_state={"rested": False},
        )
        run_id = await engine.start(bundle_of(plan), {})
        await world.clock.advance(29)
        assert (await engine.view(run_id)).state.status == "running"
        await world.clock.advance(2)
        state = (await engine.wait(run_id, ended, 10)).state
        assert (state.status, state.result, state.ended_at) == ("completed", True, world.clock.now() - 1)

    on_engine(scenario)


GATE = """
name: gate
default_state: {raw: {errors: [one, two, three], rounds: 0}}
state_schema:
  computed:
    left: {from: raw.errors, transform: "input.length"}
    verdict: {from: [computed.left, raw.rounds], transform: "input[0] === 0 ? 'good in ' + input[1] : 'bad'"}
steps:
  - {id: loop, type: while, condition: "left > 0", max_iterations: 10, body: [
      {id: note, type: Note, text: "{{ verdict }} {{ left }}"},
      {id: fix, type: Ask, prompt: "{{ errors[0] }}"},
      {type: state_update, path: raw.errors, value: "{{ errors.slice(1) }}"},
      {type: state_update, path: raw.rounds, operation: increment}]}
  - {id: end, type: Ask, prompt: "{{ verdict }}"}
"""


@pytest.mark.rows("R5", "R9")
def test_a_loop_over_fields_that_are_computed_ends_when_they_say_so(on_engine: OnEngine) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        run_id = await engine.start(documents(GATE), {})
        for _ in range(2):
            await engine.wait(run_id, are_asked("fix"), 10)
            await engine.send(run_id, answer("fix", "done"))
        await engine.wait(run_id, are_asked("fix"), 10)
        await engine.send(run_id, lambda _, now: StateUpdated(now, [(["raw", "errors"], "set", ["last"])]))
        await engine.send(run_id, answer("fix", "done"))
        state = (await engine.wait(run_id, are_asked("end"), 10)).state
        assert state.root.records["end"].inputs == {"prompt": "good in 3"}
        assert world.note.lines == ["bad 3", "bad 2", "bad 1"]

    on_engine(scenario)


@pytest.mark.rows("R5", "X1")
def test_an_expression_that_takes_too_long_is_stopped_and_that_is_part_of_the_history(
    on_engine: OnEngine,
) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        text = """
        name: endless
        default_state: {raw: {n: 0}}
        steps:
          - {id: before, type: Ask, prompt: "go?"}
          - {id: hang, type: Note, text: "{{ (() => { while (true) {} })() }}", on_error: continue}
          - {id: after, type: Ask, prompt: "still there?"}
        """
        run_id = await engine.start(documents(text), {})
        await engine.wait(run_id, asks, 10)
        other = await engine.start(bundle_of(sequence("other", ask("it"))), {})
        await engine.send(run_id, answer("before", "yes"))
        state = (await engine.wait(run_id, are_asked("after"), 10)).state
        assert state.root.records["hang"].status == "failed"
        assert "0.3 s" in (state.root.records["hang"].message or "")
        pinned, events = await engine.journal(run_id)
        assert [type(event) for event in events].count(ExpressionStopped) == 1
        again = Machine(pinned)
        for event in events:
            again.apply(event)
        assert again.state == state
        assert asked((await engine.view(other)).state) == ["it"], "others go on"
        await engine.send(run_id, lambda _, now: CancelRequested(now))

    on_engine(scenario, limits=Limits(expression_seconds=0.3))
