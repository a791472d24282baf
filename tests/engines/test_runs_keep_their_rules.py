"""What could change how a run goes after it has begun, and must not: other limits, time that has passed in the
run that a fork comes from, tries of tries, values that nobody thought of."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from support.engines import World, asks, ended
from support.plans import Call, Do, ForEach, block, bundle, plan
from workflows_mcp.engines.clock import VirtualClock, settle
from workflows_mcp.errors import StepError
from workflows_mcp.limits import Limits
from workflows_mcp.machine.commands import RunStep
from workflows_mcp.machine.events import Answered, Started, StepDone, TimerFired
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.state import RunState
from workflows_mcp.plan.model import InputSpec
from workflows_mcp.steps.base import Step, StepContext, StepInputs, StepResult

ASK = Do("Ask", {"prompt": "?"}, by="agent", defaults={"response": ""})


def answered(address: str) -> object:
    return lambda _, now: Answered(now, address, {"response": "yes"})


def test_a_run_keeps_the_limits_that_it_was_started_with(tmp_path: Path) -> None:
    main = plan(block("a", ASK, for_each=ForEach([1, 2, 3, 4, 5])))

    async def go() -> RunState:
        async with World(tmp_path).engine("sqlite") as engine:
            run_id = await engine.start(bundle(main), {})
            await engine.wait(run_id, asks, 5)
        async with World(tmp_path, limits=Limits(for_each_items=3)).engine("sqlite") as engine:
            for number in range(5):
                await engine.send(run_id, answered(f"a/{number}"))  # type: ignore[arg-type]
            return (await engine.wait(run_id, ended, 5)).state

    state = asyncio.run(asyncio.wait_for(go(), 20))
    assert state.status == "completed"
    assert state.limits["for_each_items"] == 10_000


def test_a_wrong_limit_of_items_fails_the_block_and_nothing_of_it_is_left(tmp_path: Path) -> None:
    each = ForEach([1, 2], max_parallel="${inputs.n}")
    inner = plan(block("x", ASK, for_each=each), name="inner", inputs={"n": InputSpec("any")})
    main = plan(block("call", Call("inner", {"n": 0}), tolerated=True), block("ask", ASK))

    async def go() -> RunState:
        async with World(tmp_path).engine("sqlite") as engine:
            run_id = await engine.start(bundle(main, inner), {})
            await engine.wait(run_id, asks, 5)
        async with World(tmp_path).engine("sqlite") as engine:
            await engine.send(run_id, answered("ask"))  # type: ignore[arg-type]
            return (await engine.wait(run_id, ended, 5)).state

    state = asyncio.run(asyncio.wait_for(go(), 20))
    call = state.root.records["call"]
    assert (state.status, state.frames, call.outcome) == ("completed", {}, "failure")
    assert "'max_parallel' must be 1 or more, not 0" in (call.message or "")


@pytest.mark.rows("G18")
def test_what_waits_for_a_time_waits_as_long_in_a_fork(tmp_path: Path) -> None:
    clock = VirtualClock()
    main = plan(
        block("ask", Do("Ask", {"prompt": "?"}, by="agent", timeout=60, defaults={"response": ""})),
        block("after", Do("Note", {"text": "${blocks.ask.response}"}), ["ask"]),
    )

    async def go() -> tuple[RunState, list[str]]:
        world = World(tmp_path, clock=clock)
        async with world.engine("memory") as engine:
            run_id = await engine.start(bundle(main), {})
            await engine.wait(run_id, asks, 5)
            await clock.advance(1000)
            assert (await engine.wait(run_id, ended, 5)).state.status == "failed"
            fork = await engine.fork(run_id, 1)
            await settle()
            await clock.advance(50)
            await engine.send(fork, answered("ask"))  # type: ignore[arg-type]
            return (await engine.wait(fork, ended, 5)).state, world.note.lines

    state, said = asyncio.run(asyncio.wait_for(go(), 20))
    assert (state.status, said) == ("completed", ["yes"])


def test_every_try_inside_of_tries_has_a_key_of_its_own() -> None:
    retry = {"attempts": 3, "delay": 0}
    step = plan(block("s", Do("Note", {"text": ""}, may_fail=True)), name="step")
    inner = plan(block("x", Call("step"), retry=retry), name="inner")
    machine = Machine(bundle(plan(block("b", Call("inner"), retry=retry)), inner, step))
    commands = machine.apply(Started(0.0, "wf_1", {}))
    keys = []
    for _ in range(30):
        run = next((it for it in commands if isinstance(it, RunStep)), None)
        if run is not None:
            keys.append(run.key)
            commands = machine.apply(StepDone(0.0, run.key, {}, ok=False))
        else:
            timers = [name for name, frame in machine.state.frames.items() if frame.kind == "retry"]
            if not timers:
                break
            frame = machine.state.frames[timers[0]]
            commands = machine.apply(TimerFired(0.0, f"{timers[0]}#{frame.attempt}"))
    assert machine.state.status == "failed"
    assert len(keys) == len(set(keys)) == 9


def test_a_pause_that_is_too_long_to_count_is_the_longest_one(tmp_path: Path) -> None:
    clock = VirtualClock()
    retry = {"attempts": 4, "delay": 1, "backoff": 1e200, "max_delay": 10}
    main = plan(block("a", Do("Note", {"text": "a", "ok": False}), retry=retry))

    async def go() -> list[str]:
        world = World(tmp_path, clock=clock)
        async with world.engine("memory") as engine:
            run_id = await engine.start(bundle(main), {})
            for _ in range(4):
                await settle()
                await clock.advance(11)
            await engine.wait(run_id, ended, 5)
            return world.note.lines

    assert asyncio.run(asyncio.wait_for(go(), 20)) == ["a"] * 4


class Mumbling(Step):
    """Fails with a message that is no valid text."""

    name = "Mumbling"

    class Inputs(StepInputs):
        pass

    def run(self, inputs: Inputs, context: StepContext) -> StepResult:
        raise StepError("it said \udcff", hint="look at \udcfe")


def test_a_failure_is_told_whatever_characters_are_in_it(tmp_path: Path) -> None:
    async def go() -> RunState:
        world = World(tmp_path)
        world.more.append(Mumbling())
        async with world.engine("sqlite") as engine:
            run_id = await engine.start(bundle(plan(block("a", Do("Mumbling")))), {})
            return (await engine.wait(run_id, ended, 5)).state

    state = asyncio.run(asyncio.wait_for(go(), 20))
    assert state.fault is not None
    assert "it said ?" in state.fault.message


class Lingering(Step):
    """Takes its time to end when it is stopped."""

    name = "Lingering"

    class Inputs(StepInputs):
        pass

    def __init__(self) -> None:
        self.log: list[str] = []

    async def run(self, inputs: Inputs, context: StepContext) -> StepResult:
        number = sum(line.startswith("start") for line in self.log)
        self.log.append(f"start {number}")
        try:
            if number == 0:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            for _ in range(50):
                await asyncio.sleep(0)
            self.log.append(f"gone {number}")
            raise
        return StepResult({})


def test_the_next_try_of_a_call_begins_when_the_last_one_is_gone(tmp_path: Path) -> None:
    clock = VirtualClock()
    inner = plan(block("s", Do("Lingering")), name="inner")
    main = plan(block("b", Call("inner", timeout=5), retry={"attempts": 2, "delay": 0}))
    step = Lingering()

    async def go() -> str:
        world = World(tmp_path, clock=clock)
        world.more.append(step)
        async with world.engine("memory") as engine:
            run_id = await engine.start(bundle(main, inner), {})
            await settle()
            await clock.advance(6)
            return (await engine.wait(run_id, ended, 5)).state.status

    assert asyncio.run(asyncio.wait_for(go(), 20)) == "completed"
    assert step.log == ["start 0", "gone 0", "start 1"]
