"""Retries and items, on every engine, under a clock that is moved by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from support.engines import ENGINES, World, asks, ended, world_of
from support.plans import Call, Do, ForEach, block, bundle, plan
from workflows_mcp.engines.base import Engine
from workflows_mcp.engines.clock import VirtualClock, settle
from workflows_mcp.engines.memory import MemoryEngine
from workflows_mcp.limits import Limits
from workflows_mcp.machine.events import Answered, CancelRequested
from workflows_mcp.machine.state import RunState
from workflows_mcp.plan import model
from workflows_mcp.plan.model import InputSpec

Scenario = Callable[[World, Engine, VirtualClock], Awaitable[None]]


def note(text: str, **more: bool) -> model.Do:
    return Do("Note", {"text": text, **more}, defaults={"text": ""})


def gate(name: str, timeout: float | None = None) -> model.Do:
    return Do("Gate", {"name": name}, timeout=timeout, defaults={"name": ""})


@pytest.fixture(params=ENGINES)
def on_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Scenario], None]:
    def run(scenario: Scenario) -> None:
        world, clock = world_of(request.param, tmp_path, request)

        async def go() -> None:
            async with world.engine(request.param) as engine:
                await asyncio.wait_for(scenario(world, engine, clock), 20)

        asyncio.run(go())

    return run


async def moved(clock: VirtualClock, seconds: float) -> None:
    """Let time pass, and let what follows from it reach the disk."""
    for _ in range(5):
        await settle()
        await asyncio.sleep(0.002)
    await clock.advance(seconds)
    for _ in range(5):
        await settle()
        await asyncio.sleep(0.002)


@pytest.mark.rows("X7")
def test_a_block_that_fails_is_tried_again_after_growing_pauses(
    on_engine: Callable[[Scenario], None],
) -> None:
    async def scenario(world: World, engine: Engine, clock: VirtualClock) -> None:
        retry = {"attempts": 4, "delay": 10, "backoff": 2, "max_delay": 30}
        run_id = await engine.start(bundle(plan(block("a", note("a", ok=False), retry=retry))), {})

        def pauses_after(tries: int) -> Callable[[RunState], bool]:
            return lambda state: (
                len(world.note.lines) == tries and any(it.kind == "retry" for it in state.frames.values())
            )

        for tries, pause in ((1, 10.0), (2, 20.0), (3, 30.0)):
            assert pauses_after(tries)((await engine.wait(run_id, pauses_after(tries), 5)).state)
            await moved(clock, pause - 3)  # a pause begins with its try: up to half a second ago, each time
            assert len(world.note.lines) == tries
            await moved(clock, 3.5)
        state = (await engine.wait(run_id, ended, 5)).state
        assert len(world.note.lines) == 4
        record = state.root.records["a"]
        assert (state.status, record.status, record.outcome, record.attempts) == (
            "failed",
            "completed",
            "failure",
            4,
        )

    on_engine(scenario)


@pytest.mark.rows("X7")
def test_a_timeout_counts_for_each_try_and_can_be_what_is_tried_again(
    on_engine: Callable[[Scenario], None],
) -> None:
    async def scenario(world: World, engine: Engine, clock: VirtualClock) -> None:
        retry = {"attempts": 2, "delay": 3, "on": ["timeout"]}
        run_id = await engine.start(bundle(plan(block("a", gate("a", timeout=60), retry=retry))), {})
        await moved(clock, 61)
        assert world.gate.stopped == ["a"]
        await moved(clock, 4)
        assert world.gate.started == ["a", "a"]
        world.gate.open("a")
        state = (await engine.wait(run_id, ended, 5)).state
        assert (state.status, state.root.records["a"].attempts) == ("completed", 2)

    on_engine(scenario)


@pytest.mark.rows("X7")
def test_a_failure_that_is_not_named_is_not_tried_again(on_engine: Callable[[Scenario], None]) -> None:
    async def scenario(world: World, engine: Engine, clock: VirtualClock) -> None:
        retry = {"attempts": 5, "delay": 0, "on": ["timeout"]}
        run_id = await engine.start(bundle(plan(block("a", note("a", crash=True), retry=retry))), {})
        state = (await engine.wait(run_id, ended, 5)).state
        assert (state.status, len(world.note.lines)) == ("failed", 1)

    on_engine(scenario)


@pytest.mark.rows("X7")
def test_no_try_begins_after_the_time_that_all_of_them_have(on_engine: Callable[[Scenario], None]) -> None:
    async def scenario(world: World, engine: Engine, clock: VirtualClock) -> None:
        retry = {"attempts": 100, "delay": 10, "backoff": 1, "within": 25}
        run_id = await engine.start(bundle(plan(block("a", note("a", ok=False), retry=retry))), {})
        for _ in range(6):
            await moved(clock, 10)
        state = (await engine.wait(run_id, ended, 5)).state
        assert (state.status, len(world.note.lines)) == ("failed", 3)

    on_engine(scenario)


@pytest.mark.rows("X7", "G16")
def test_a_call_is_tried_again_as_a_whole(on_engine: Callable[[Scenario], None]) -> None:
    async def scenario(world: World, engine: Engine, clock: VirtualClock) -> None:
        inner = plan(
            block("first", note("first")), block("bad", note("bad", ok=False), ["first"]), name="inner"
        )
        main = plan(block("call", Call("inner"), retry={"attempts": 2, "delay": 5}))
        run_id = await engine.start(bundle(main, inner), {})
        await moved(clock, 6)
        state = (await engine.wait(run_id, ended, 5)).state
        assert world.note.lines == ["first", "bad", "first", "bad"]
        assert state.root.records["call"].attempts == 2

    on_engine(scenario)


@pytest.mark.rows("X7")
def test_a_run_that_waits_for_its_next_try_can_be_cancelled(on_engine: Callable[[Scenario], None]) -> None:
    async def scenario(world: World, engine: Engine, clock: VirtualClock) -> None:
        retry = {"attempts": 2, "delay": 1000}
        run_id = await engine.start(bundle(plan(block("a", note("a", ok=False), retry=retry))), {})
        await moved(clock, 1)
        await engine.send(run_id, lambda _, now: CancelRequested(now))
        state = (await engine.wait(run_id, ended, 5)).state
        assert (state.status, state.root.records["a"].status) == ("cancelled", "failed")
        await moved(clock, 2000)
        assert world.note.lines == ["a"]

    on_engine(scenario)


def test_items_run_at_once_up_to_the_limit_and_in_order(on_engine: Callable[[Scenario], None]) -> None:
    async def scenario(world: World, engine: Engine, clock: VirtualClock) -> None:
        each = ForEach("${inputs.names}", max_parallel=2)
        main = plan(
            block("a", gate("${each.value}"), for_each=each),
            inputs={"names": InputSpec("list")},
            outputs={"all": "${blocks.a.outputs.results}", "second": "${blocks.a[1].name}"},
        )
        run_id = await engine.start(bundle(main), {"names": ["p", "q", "r", "s"]})
        await moved(clock, 0)
        assert world.gate.started == ["p", "q"]
        world.gate.open("q")
        await moved(clock, 0)
        assert world.gate.started == ["p", "q", "r"]
        for name in ("p", "r", "s"):
            world.gate.open(name)
        state = (await engine.wait(run_id, ended, 5)).state
        assert state.outputs == {"all": [{"name": name} for name in "pqrs"], "second": "q"}

    on_engine(scenario)


def test_items_that_fail_do_not_stop_the_others_and_are_named(on_engine: Callable[[Scenario], None]) -> None:
    async def scenario(world: World, engine: Engine, clock: VirtualClock) -> None:
        do = Do("Note", {"text": "${each.key}", "ok": "${each.value}"}, defaults={"text": ""})
        items = {"x": True, "y": False, "z": True, "w": False}
        main = plan(
            block("a", do, for_each=ForEach(items, max_parallel=1)),
            block("after", note("after"), ["a"]),
            outputs={"failed": "${blocks.a.outputs.failed_keys}", "z": "${blocks.a.z.outputs.text}"},
        )
        run_id = await engine.start(bundle(main), {})
        state = (await engine.wait(run_id, ended, 5)).state
        assert world.note.lines == ["x", "y", "z", "w"]
        assert state.status == "failed"
        assert state.outputs == {"failed": ["y", "w"], "z": "z"}
        assert state.fault is not None
        assert "2 of 4 items failed: 'y': it went wrong (and 'w')" in state.fault.message
        assert state.root.records["after"].status == "skipped"

    on_engine(scenario)


def test_a_question_for_each_item_is_answered_one_by_one(on_engine: Callable[[Scenario], None]) -> None:
    async def scenario(world: World, engine: Engine, clock: VirtualClock) -> None:
        ask = Do("Ask", {"prompt": "${each.value}?"}, by="agent", defaults={"response": ""})
        main = plan(
            block("a", ask, for_each=ForEach(["p", "q"])),
            outputs={"said": "${blocks.a.outputs.results}"},
        )
        run_id = await engine.start(bundle(main), {})
        state = (await engine.wait(run_id, asks, 5)).state
        assert sorted(state.frames) == ["a", "a/0", "a/1"]
        for name, said in (("a/1", "two"), ("a/0", "one")):
            answer = Answered(clock.now(), name, {"response": said})
            await engine.send(run_id, lambda _, now, answer=answer: answer)  # type: ignore[misc]
        state = (await engine.wait(run_id, ended, 5)).state
        assert state.outputs == {"said": [{"response": "one"}, {"response": "two"}]}

    on_engine(scenario)


def test_cancelling_ends_every_item(on_engine: Callable[[Scenario], None]) -> None:
    async def scenario(world: World, engine: Engine, clock: VirtualClock) -> None:
        main = plan(block("a", gate("${each.value}"), for_each=ForEach(["p", "q", "r"], max_parallel=2)))
        run_id = await engine.start(bundle(main), {})
        await moved(clock, 0)
        await engine.send(run_id, lambda _, now: CancelRequested(now))
        state = (await engine.wait(run_id, ended, 5)).state
        assert sorted(world.gate.stopped) == ["p", "q"]
        assert (state.status, state.frames) == ("cancelled", {})

    on_engine(scenario)


@pytest.mark.rows("X1", "X7")
def test_items_and_tries_go_on_after_a_crash_at_any_point(tmp_path: Path) -> None:
    def drive(home: Path, *, crash: bool) -> tuple[RunState, list[str]]:
        inner = plan(block("deep", gate("deep ${inputs.x}")), name="inner", inputs={"x": InputSpec("any")})
        main = plan(
            block("each", Call("inner", {"x": "${each.value}"}), for_each=ForEach([1, 2, 3], max_parallel=2)),
            block("bad", note("bad", ok=False), ["each"], retry={"attempts": 3, "delay": 7}, tolerated=True),
            outputs={"keys": "${blocks.each.outputs.results}", "tries": "${blocks.bad.metadata.attempts}"},
        )

        async def go() -> tuple[RunState, list[str]]:
            clock = VirtualClock()
            world = World(home, clock=clock, limits=Limits(step_interruptions=100))
            async with world.engine("memory") as engine:
                assert isinstance(engine, MemoryEngine)
                run_id = await engine.start(bundle(main, inner), {})
                for what in ("deep 1", "deep 3", "deep 2", "", ""):
                    await settle()
                    if crash:
                        await engine.crash_and_resume(run_id)
                        await settle()
                    if what:
                        world.gate.open(what)
                    else:
                        await clock.advance(15)
                machine = await engine.wait(run_id, ended, 5)
                return machine.state, world.note.lines

        return asyncio.run(asyncio.wait_for(go(), 20))

    straight, said = drive(tmp_path, crash=False)
    crashed, said_again = drive(tmp_path, crash=True)
    assert straight.status == crashed.status == "completed"
    assert straight.outputs == crashed.outputs == {"keys": [{}, {}, {}], "tries": 3}
    assert said == said_again == ["bad", "bad", "bad"]
