"""What is particular about the Temporal engine: real timers, histories that go on as new ones, what must never
get into a history, and several processes that look at the same run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psutil
import pytest
from temporalio.client import WorkflowQueryRejectedError

from support.engines import World, asks, ended, status_of
from support.plans import Call, Do, Return, SetState, Wait, block, bundle, plan
from support.reactive import Sluggish, documents
from support.rendered import Service
from support.stateful import ask, bundle_of, sequence, step
from support.temporal_histories import all_bytes, executions, runs_of
from workflows_mcp.engines.base import Engine
from workflows_mcp.engines.executor import Executor
from workflows_mcp.engines.temporal import cache
from workflows_mcp.engines.temporal.connection import Address, connect
from workflows_mcp.engines.temporal.engine import TemporalEngine
from workflows_mcp.errors import NotExpected, RequestError
from workflows_mcp.machine import program
from workflows_mcp.machine.events import Answered, Event, ExpressionStopped, Parked
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.state import RunState
from workflows_mcp.plan import model
from workflows_mcp.plan.model import SEMANTICS
from workflows_mcp.plan.references import LANGUAGES
from workflows_mcp.runs.redo import unpark
from workflows_mcp.settings.model import Settings, TemporalSettings

T = TypeVar("T")
MB = 1024 * 1024


def go(work: Awaitable[T]) -> T:
    async def within() -> T:
        return await asyncio.wait_for(work, 40)

    return asyncio.run(within())


def gate(name: str, timeout: float | None = None) -> model.Do:
    return Do("Gate", {"name": name}, timeout=timeout, defaults={"name": ""})


def note(text: str, **more: bool) -> model.Do:
    return Do("Note", {"text": text, **more}, defaults={"text": ""})


def answer(address: str, text: str = "yes") -> Callable[[Machine, float], Answered]:
    return lambda _, now: Answered(now, address, {"response": text})


def settings_of(home: Path, address: Address, **more: Any) -> Settings:
    given = TemporalSettings(host=address.host, task_queue=address.task_queue)
    return Settings(workspace=home, home=home / "home", engine="temporal", temporal=given, **more)


# Time


@pytest.mark.rows("S13", "G10", "X7")
def test_timeouts_pauses_and_waits_are_timers_of_the_server(
    tmp_path: Path, temporal_address: Address
) -> None:
    async def work() -> None:
        world = World(tmp_path, address=temporal_address)
        inner = plan(block("deep", gate("deep")), name="inner")
        slow = plan(
            block("slow", gate("slow", timeout=0.4)),
            block("other", gate("other", timeout=60.0)),
            block("call", Call("inner", timeout=0.8)),
        )
        failing = plan(block("bad", note("bad", ok=False), retry={"attempts": 3, "delay": 0.2, "backoff": 1}))
        waiting = sequence("waits", step("rest", Wait(0.5)), step("end", Return("rested")))
        async with world.engine("temporal") as engine:
            began = time.time()
            runs = [
                await engine.start(it, {})
                for it in (bundle(slow, inner), bundle(failing), bundle_of(waiting))
            ]
            first = await engine.wait(runs[0], status_of("slow", "failed"), 20)
            assert first.state.root.records["slow"].message == "timed out after 0.4 s"
            world.gate.open("other")
            await engine.wait(runs[0], ended, 20)
            assert sorted(world.gate.stopped) == ["deep", "slow"], "one that has ended has nothing under way"
            states = [(await engine.wait(run_id, ended, 20)).state for run_id in runs]
            assert [state.status for state in states] == ["failed", "failed", "completed"]
            assert world.note.lines == ["bad"] * 3
            for state, least in zip(states, (0.8, 0.4, 0.5), strict=True):
                assert state.ended_at is not None
                assert state.ended_at - state.started_at >= least
                assert abs(state.started_at - began) < 30, "the time of runs is that of the day"

    go(work())


# Histories


def rounds(number: int) -> Any:
    """Questions one after the other, with a step of the server between them, and a sum of what was said."""
    nodes = []
    for it in range(number):
        nodes += [
            ask(f"q{it}"),
            step(f"add{it}", SetState({"total": f"{{{{ state.total + (state.q{it} | int) }}}}"})),
            step(f"note{it}", note("{{ state.total }}")),
        ]
    return bundle_of(
        sequence("rounds", *nodes, step("end", Return("{{ state.total }}")), initial_state={"total": 0})
    )


async def drive(engine: Engine, run_id: str, number: int) -> RunState:
    for it in range(number):
        await engine.wait(run_id, lambda state, name=f"q{it}": name in state.frames, 20)  # type: ignore[misc]
        await engine.send(run_id, answer(f"q{it}", str(it)))
    return (await engine.wait(run_id, ended, 20)).state


@pytest.mark.rows("S13")
def test_a_long_history_goes_on_as_a_new_one_and_nobody_notices(
    tmp_path: Path, temporal_address: Address
) -> None:
    async def work() -> None:
        world = World(tmp_path, address=temporal_address)
        memory = World(tmp_path / "memory")
        async with memory.engine("memory") as engine:
            expected = await drive(engine, await engine.start(rounds(12), {}), 12)
        async with world.engine("temporal") as engine:
            assert isinstance(engine, TemporalEngine)
            engine._updates_a_history = 4
            run_id = await engine.start(rounds(12), {})
            await engine.wait(run_id, asks, 20)
            await engine.heartbeat(run_id, "somebody", 5.0)
            position = 0
            for it in range(12):
                state = (await engine.wait(run_id, lambda s, name=f"q{it}": name in s.frames, 20)).state  # type: ignore[misc]
                assert state.events > position, "positions are those of the whole run"
                position = state.events
                await engine.send(run_id, answer(f"q{it}", str(it)))
            state = (await engine.wait(run_id, ended, 20)).state
            assert (state.status, state.result) == (expected.status, expected.result) == ("completed", 66)
            assert state.events == expected.events
            assert world.note.lines == memory.note.lines
            assert await engine.last_seen(run_id) == {"somebody": 5.0}
            pinned, events = await engine.journal(run_id)
            again = Machine(pinned)
            for event in events:
                again.apply(event)
            assert again.state == state
            fork = await engine.fork(run_id, 5)
            assert "q2" in (await engine.wait(fork, asks, 20)).state.frames
            client = await connect(temporal_address)
            assert len(await runs_of(client, run_id)) >= 3
            assert [run.run_id for run in await engine.recent(10)].count(run_id) == 1

    go(work())


def test_a_run_that_continues_as_new_between_two_queries_is_still_running(
    tmp_path: Path, temporal_address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        world = World(tmp_path, address=temporal_address)
        async with world.engine("temporal") as engine:
            assert isinstance(engine, TemporalEngine)
            run_id = await engine.start(rounds(2), {})
            await engine.wait(run_id, asks, 20)
            rejected: list[Any] = []
            asked = engine._cache.asked

            async def rejects_once(*args: Any, **options: Any) -> Any:
                if not rejected:
                    rejected.append(args)
                    raise WorkflowQueryRejectedError(None)
                return await asked(*args, **options)

            monkeypatch.setattr(engine._cache, "asked", rejects_once)
            seen = await engine._cache.now(run_id, fresh=True)
            assert rejected
            assert seen.machine.state.status == "running"
            assert "q0" in seen.machine.state.frames

    go(work())


def test_a_history_comes_to_its_end_although_something_is_always_under_way(
    tmp_path: Path, temporal_address: Address
) -> None:
    async def work() -> None:
        world = World(tmp_path, address=temporal_address)
        question = Do("Ask", {"prompt": "?"}, by="agent", defaults={"response": ""})
        steps = [block(f"s{n}", gate(f"s{n}"), [f"s{n - 1}"] if n else []) for n in range(6)]
        asked = [block(f"q{n}", question, [f"q{n - 1}"] if n else []) for n in range(6)]
        async with world.engine("temporal") as engine:
            assert isinstance(engine, TemporalEngine)
            engine._updates_a_history = 2
            run_id = await engine.start(bundle(plan(*steps, *asked)), {})
            client = await connect(temporal_address)
            for it in range(6):
                await engine.wait(run_id, lambda state, name=f"q{it}": name in state.frames, 20)  # type: ignore[misc]
                async with asyncio.timeout(10):
                    while f"s{it}" not in world.gate.started:
                        await asyncio.sleep(0.01)
                await engine.send(run_id, answer(f"q{it}"))
                world.gate.open(f"s{it}")
            assert (await engine.wait(run_id, ended, 20)).state.status == "completed"
            assert world.gate.started == [f"s{n}" for n in range(6)], "none is begun twice"
            assert len(await runs_of(client, run_id)) == 3

    go(work())


def test_a_large_value_never_gets_into_a_history(tmp_path: Path, temporal_address: Address) -> None:
    async def work() -> None:
        world = World(tmp_path, address=temporal_address)
        main = plan(
            block("a", Do("Echo", {"value": "x" * 5 * MB}, defaults={"value": None})),
            block("b", Do("Echo", {"value": "${blocks.a.value}"}, defaults={"value": None}), ["a"]),
            block("ask", Do("Ask", {"prompt": "?"}, by="agent", defaults={"response": ""}), ["b"]),
            outputs={"all": "${blocks.b.value}", "said": "${blocks.ask.response}"},
        )
        async with world.engine("temporal") as engine:
            run_id = await engine.start(bundle(main), {})
            await engine.wait(run_id, asks, 20)
            await engine.send(run_id, answer("ask", "z" * 3 * MB))
            state = (await engine.wait(run_id, ended, 20)).state
            assert state.outputs == {"all": "x" * 5 * MB, "said": "z" * 3 * MB}
            written = await all_bytes(await connect(temporal_address), run_id)
            assert len(written) < 50_000
            assert b"x" * 1000 not in written

    go(work())


SECRET = "tok-3f9a'b c$x/end"


@pytest.mark.rows("S13", "X5")
def test_a_secret_never_gets_into_a_history_nor_beside_it(
    tmp_path: Path, temporal_address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", SECRET)
    text = """
    name: uses
    blocks:
      - {id: says, type: Shell, inputs: {command: 'printf "%s" "${secrets.TOKEN}"; echo "${secrets.TOKEN}" >&2'}}
      - {id: file, type: Shell, depends_on: [says], inputs: {command: 'printf "%s" "${secrets.TOKEN}" > given'}}
      - {id: fails, type: Shell, depends_on: [file], on_failure: continue,
         inputs: {command: 'echo "${secrets.TOKEN}"; exit 3'}}
      - {id: again, type: Shell, depends_on: [says], inputs: {command: 'echo "${blocks.says.stdout}"'}}
      - {id: ask, type: Prompt, depends_on: [again, {block: fails, required: false}], inputs: {prompt: "on?"}}
      - {id: read, type: Shell, depends_on: [ask], inputs: {command: 'cat given'}}
    outputs: {said: "${blocks.says.stdout}"}
    """

    async def work() -> None:
        async with Service.open(settings_of(tmp_path, temporal_address)) as service:
            answered = await service.start(text=text)
            assert (tmp_path / "given").read_text() == SECRET
        settings = settings_of(tmp_path, temporal_address)
        alone = replace(settings, temporal=replace(settings.temporal, worker=False))
        async with Service.open(settings), Service.open(alone) as service:
            # the worker has never put the secret into anything, and nobody has told it of the run
            answered = await service.submit(answered["workflow_id"], "yes")
            assert answered["status"] == "completed", answered
            written = await all_bytes(await connect(temporal_address), answered["workflow_id"])
            assert b"printf" in written
            assert b"cat given" in written
            beside = [path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file()]
            for part in (b"tok-3f9a", b"$x/end"):
                assert part not in written
                assert all(part not in body for body in beside)

    go(work())


def test_what_was_stopped_on_a_slow_machine_stays_so_when_a_fast_one_repeats_it(
    tmp_path: Path, temporal_address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Sluggish(LANGUAGES["javascript"])
    machine.too_slow = {"SLOW"}
    monkeypatch.setattr(
        program, "language_of", lambda plan: {**LANGUAGES, "javascript": machine}[plan.language]
    )
    text = """
    name: slow
    default_state: {raw: {n: 0}}
    steps:
      - {id: first, type: Ask, prompt: "go?"}
      - {id: hard, type: Note, text: "{{ 'SLOW' + n }}", on_error: continue}
      - {id: second, type: Ask, prompt: "on?"}
      - {id: last, type: Note, text: "last"}
    """

    async def work() -> None:
        world = World(tmp_path, address=temporal_address)
        async with world.engine("temporal") as engine:
            run_id = await engine.start(documents(text), {})
            await engine.wait(run_id, asks, 20)
            await engine.send(run_id, answer("first"))
            before = (await engine.wait(run_id, lambda state: "second" in state.frames, 20)).state
            assert before.root.records["hard"].status == "failed"
        machine.too_slow = set()
        async with world.engine("temporal") as engine:
            assert (await engine.view(run_id)).state == before
            await engine.send(run_id, answer("second"))
            state = (await engine.wait(run_id, ended, 20)).state
            assert (state.status, world.note.lines) == ("completed", ["last"])
            _, events = await engine.journal(run_id)
            assert [type(event) for event in events].count(ExpressionStopped) == 1

    go(work())


# Several who look at the same runs


async def two(stack: AsyncExitStack, home: Path, address: Address) -> tuple[World, Engine, Engine]:
    """Two engines as two processes would have them; only the first one lends a worker."""
    world = World(home, address=address)
    first = await stack.enter_async_context(world.engine("temporal"))
    assert isinstance(first, TemporalEngine)
    second = TemporalEngine(address, world.executor(), world.find, first._store, worker=False)
    await second.open()
    stack.push_async_callback(second.close)
    return world, first, second


def test_what_another_process_has_done_is_seen_at_once(tmp_path: Path, temporal_address: Address) -> None:
    async def work() -> None:
        async with AsyncExitStack() as stack:
            _, one, other = await two(stack, tmp_path, temporal_address)
            run_id = await one.start(rounds(3), {})
            for it, (first, second) in enumerate([(one, other), (other, one), (one, other)]):
                for engine in (second, first):
                    await engine.wait(run_id, lambda state, name=f"q{it}": name in state.frames, 20)  # type: ignore[misc]
                await first.send(run_id, answer(f"q{it}", "1"))
                assert f"q{it}" not in (await second.view(run_id)).state.frames
            assert (await other.wait(run_id, ended, 20)).state.result == 3
            assert await other.journal(run_id) == await one.journal(run_id)

    go(work())


def test_what_this_process_has_done_is_seen_however_new_the_last_look_is(
    tmp_path: Path, temporal_address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        world = World(tmp_path, address=temporal_address)
        async with world.engine("temporal") as engine:
            run_id = await engine.start(bundle_of(sequence("two", ask("one"), ask("other"))), {})
            assert await engine.last_seen(run_id) == {}
            await engine.heartbeat(run_id, "task", 5.0)
            assert await engine.last_seen(run_id) == {"task": 5.0}
            await engine.send(run_id, answer("one"))
            assert list((await engine.view(run_id)).state.frames) == ["other"]
            await engine.send(run_id, answer("other"))
            assert (await engine.view(run_id)).state.status == "completed"

    monkeypatch.setattr(cache, "_NEW_ENOUGH_SECONDS", 100)
    go(work())


@pytest.mark.parametrize("slow", ["answers", "looks"])
def test_a_process_that_is_too_slow_to_follow_a_run_shows_it_as_it_is(
    tmp_path: Path, temporal_address: Address, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    """The worker has time enough for the expression, and whoever looks has not."""
    apply = Executor.apply_in_thread

    def too_slow(executor: Executor, machine: Machine, event: Event) -> Any:
        language.too_slow = {"SLOW"}
        done = apply(executor, machine, event)
        done.add_done_callback(lambda _: setattr(language, "too_slow", set()))
        return done

    language = Sluggish(LANGUAGES["javascript"])
    monkeypatch.setattr(
        program, "language_of", lambda plan: {**LANGUAGES, "javascript": language}[plan.language]
    )
    monkeypatch.setattr(Executor, "apply_in_thread", too_slow)
    text = """
    name: hard
    default_state: {raw: {n: 0}}
    steps:
      - {id: first, type: Ask, prompt: "go?"}
      - {id: hard, type: Note, text: "{{ 'SLOW' + n }}"}
      - {id: second, type: Ask, prompt: "on?"}
    """

    async def work() -> None:
        async with AsyncExitStack() as stack:
            world, one, other = await two(stack, tmp_path, temporal_address)
            engine = one if slow == "answers" else other
            run_id = await one.start(documents(text), {})
            await one.send(run_id, answer("first"))
            state = (await engine.wait(run_id, lambda state: "second" in state.frames, 20)).state
            assert state.root.records["hard"].outputs == {"text": "SLOW0"}
            await engine.send(run_id, answer("second"))
            assert (await engine.view(run_id)).state.status == "completed"
            assert world.note.lines == ["SLOW0"]

    go(work())


def test_an_answer_that_was_made_for_an_earlier_round_is_made_anew_for_this_one(
    tmp_path: Path, temporal_address: Address
) -> None:
    text = """
    name: loop
    default_state: {raw: {n: 0, said: []}}
    steps:
      - {id: loop, type: while, condition: "n < 3", body: [
          {id: ask, type: Ask, prompt: "{{ n }}", state_update: {path: raw.said, operation: append, value: "{{ response }}"}},
          {type: state_update, path: raw.n, operation: increment}]}
    """

    def for_round(machine: Machine, now: float) -> Answered:
        return Answered(now, "ask", {"response": f"for {machine.state.root.state['raw']['n']}"})

    async def work() -> None:
        async with AsyncExitStack() as stack:
            _, one, other = await two(stack, tmp_path, temporal_address)
            run_id = await one.start(documents(text), {})
            await other.wait(run_id, asks, 20)
            await one.send(run_id, for_round)
            await other.send(run_id, for_round)  # it has seen the first round only
            await one.send(run_id, for_round)
            state = (await one.wait(run_id, ended, 20)).state
            assert state.root.state["raw"]["said"] == ["for 0", "for 1", "for 2"]
            with pytest.raises(NotExpected, match="has ended"):
                await other.send(run_id, for_round)

    go(work())


def test_all_runs_of_the_task_queue_are_listed_with_how_they_stand(
    tmp_path: Path, temporal_address: Address
) -> None:
    async def work() -> None:
        async with AsyncExitStack() as stack:
            world, one, other = await two(stack, tmp_path, temporal_address)
            plans = {
                "done": plan(block("a", note("a")), name="done"),
                "bad": plan(block("a", note("a", ok=False)), name="bad"),
                "asks": plan(block("a", Do("Ask", {"prompt": "?"}, by="agent")), name="asks"),
                "busy": plan(block("a", gate("a")), name="busy"),
            }
            runs = {name: await one.start(bundle(it), {}) for name, it in plans.items()}
            for name in ("done", "bad"):
                await one.wait(runs[name], ended, 20)
            listed: dict[str, str] = {}
            async with asyncio.timeout(10):
                while (
                    len(listed) < 4 or "running" not in listed.values()
                ):  # the list of the server lags behind
                    listed = {run.run_id: run.status for run in await other.recent(10)}
            assert listed == {
                runs["done"]: "completed",
                runs["bad"]: "failed",
                runs["asks"]: "idle",
                runs["busy"]: "running",
            }
            assert [run.run_id for run in await other.recent(10, "bad")] == [runs["bad"]]
            assert len(await other.recent(2)) == 2
            client = await connect(temporal_address)
            await client.get_workflow_handle(runs["asks"]).terminate("by hand")
            async with asyncio.timeout(10):
                while listed[runs["asks"]] != "cancelled":
                    listed = {run.run_id: run.status for run in await other.recent(10)}
            world.gate.open("a")

    go(work())


def test_a_run_that_waits_is_found_by_its_workflow_however_many_others_wait(
    tmp_path: Path, temporal_address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_MOST_OPEN", 3)

    async def work() -> None:
        async with AsyncExitStack() as stack:
            _, one, other = await two(stack, tmp_path, temporal_address)
            question = block("a", Do("Ask", {"prompt": "?"}, by="agent"))
            rare = await one.start(bundle(plan(question, name="rare")), {})
            common = [await one.start(bundle(plan(question, name="common")), {}) for _ in range(5)]
            async with asyncio.timeout(10):
                while [run.run_id for run in await other.recent(10)] != common[:1:-1]:
                    pass  # the list of the server lags behind
            found = [(run.run_id, run.status) for run in await other.recent(10, "rare")]
            assert found == [(rare, "idle")]

    go(work())


@pytest.mark.rows("X3")
def test_a_run_that_is_cancelled_with_the_tools_of_temporal_is_cancelled(
    tmp_path: Path, temporal_address: Address
) -> None:
    async def work() -> None:
        world = World(tmp_path, address=temporal_address)
        async with world.engine("temporal") as engine:
            run_id = await engine.start(bundle(plan(block("a", gate("a")))), {})
            async with asyncio.timeout(10):
                while not world.gate.started:
                    await asyncio.sleep(0.01)
            await (await connect(temporal_address)).get_workflow_handle(run_id).cancel()
            state = (await engine.wait(run_id, ended, 20)).state
            assert (state.status, world.gate.stopped) == ("cancelled", ["a"])

    go(work())


@pytest.mark.rows("X3")
def test_whoever_cancels_is_told_when_nothing_of_the_run_is_left(
    tmp_path: Path, temporal_address: Address
) -> None:
    text = "name: long\nblocks: [{id: a, type: Shell, inputs: {command: 'echo $$ > new; mv new pid; exec sleep 600'}}]\n"

    async def work() -> None:
        async with Service.open(settings_of(tmp_path, temporal_address)) as service:
            run_id = (await service.start(text=text, wait_seconds=0))["workflow_id"]
            async with asyncio.timeout(20):
                while not (tmp_path / "pid").exists():
                    await asyncio.sleep(0.02)
            process = psutil.Process(int((tmp_path / "pid").read_text()))
            assert (await service.cancel(run_id))["status"] == "cancelled"
            assert not process.is_running()

    go(work())


def test_a_request_is_carried_out_once_and_its_id_stands_for_nothing_else(
    tmp_path: Path, temporal_address: Address
) -> None:
    async def work() -> None:
        async with AsyncExitStack() as stack:
            world, one, other = await two(stack, tmp_path, temporal_address)
            main = bundle(plan(block("a", note("a")), block("ask", Do("Ask", {"prompt": "?"}, by="agent"))))
            first, second = await asyncio.gather(
                *(engine.start(main, {}, request_id="r") for engine in (one, other))
            )
            assert first == second
            await one.wait(first, lambda state: asks(state) and len(state.frames) == 1, 20)
            assert world.note.lines == ["a"]
            for wrong in (
                other.start(main, {"x": 1}, request_id="r"),
                other.fork(first, 1, request_id="r"),
            ):
                with pytest.raises(RequestError, match="something else"):
                    await wrong
            forks = await asyncio.gather(*(engine.fork(first, 1, request_id="f") for engine in (one, other)))
            assert forks[0] == forks[1]
            state = (await other.view(forks[0])).state
            assert (state.run_id, state.forked_from) == (forks[0], f"{first}@1")
            elsewhere = replace(temporal_address, task_queue=f"{temporal_address.task_queue}-2")
            third = TemporalEngine(elsewhere, world.executor(), world.find, one._store)  # type: ignore[attr-defined]
            await third.open()
            try:
                assert await third.start(main, {}, request_id="r") != first
            finally:
                await third.close()

    go(work())


def test_the_files_that_steps_hand_each_other_go_with_the_run(
    tmp_path: Path, temporal_address: Address
) -> None:
    text = """
    name: files
    blocks:
      - {id: a, type: Shell, inputs: {command: 'echo hi > "$RUN_SCRATCH/x"; echo hi > "$SCRATCH/y"'}}
      - {id: ask, type: Prompt, depends_on: [a], inputs: {prompt: "on?"}}
    """

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.01)

    async def work() -> None:
        settings = settings_of(tmp_path, temporal_address)
        async with Service.open(settings) as service:
            runs = [(await service.start(text=text))["workflow_id"] for _ in range(2)]
            places = [settings.scratch / run_id for run_id in runs]
            assert all((place / "x").exists() and len(list(place.rglob("y"))) == 1 for place in places)
            await service.submit(runs[0], "yes")
            await until(lambda: not places[0].exists())
            assert places[1].exists()
            (settings.scratch / "wf_of_another_engine").mkdir()
        client = await connect(temporal_address)
        await client.get_workflow_handle(runs[1]).terminate()
        async with Service.open(settings):
            await until(lambda: not places[1].exists())
            assert (settings.scratch / "wf_of_another_engine").exists()

    go(work())


def test_a_step_that_was_begun_is_handed_back_when_its_process_ends(
    tmp_path: Path, temporal_address: Address
) -> None:
    async def work() -> None:
        world = World(tmp_path, address=temporal_address)
        careful = block("once", gate("once"), on_interrupt="fail")
        async with world.engine("temporal") as engine:
            repeated = await engine.start(bundle(plan(block("a", gate("a")))), {})
            failed = await engine.start(bundle(plan(careful)), {})
            async with asyncio.timeout(10):
                while len(world.gate.started) < 2:
                    await asyncio.sleep(0.01)
        assert sorted(world.gate.stopped) == ["a", "once"]
        world.gate.open("a")
        async with world.engine("temporal") as engine:
            assert (await engine.wait(repeated, ended, 20)).state.status == "completed"
            state = (await engine.wait(failed, ended, 20)).state
            assert state.fault is not None
            assert (state.status, state.fault.code) == ("failed", "interrupted")
        assert sorted(world.gate.started) == ["a", "a", "once"]

    go(work())


async def begun(world: World, times: int) -> None:
    async with asyncio.timeout(20):
        while len(world.gate.started) < times:
            await asyncio.sleep(0.01)


@pytest.mark.rows("X1")
def test_a_parked_run_has_no_step_under_way_until_it_is_resumed(
    tmp_path: Path, temporal_address: Address
) -> None:
    async def work() -> None:
        world = World(tmp_path, address=temporal_address)
        question = Do("Ask", {"prompt": "?"}, by="agent", defaults={"response": ""})
        main = bundle(plan(block("a", gate("a")), block("b", gate("b"), ["a"]), block("q", question)))
        async with world.engine("temporal") as engine:
            run_id = await engine.start(main, {})
            await begun(world, 1)
            await engine.send(run_id, lambda _, now: Parked(now))
            async with asyncio.timeout(20):
                while world.gate.stopped != ["a"]:
                    await asyncio.sleep(0.01)
            with pytest.raises(NotExpected, match="is parked"):
                await engine.send(run_id, answer("q"))
        async with world.engine("temporal") as engine:  # another worker does not begin it either
            assert (await engine.view(run_id)).state.parked is not None
            assert world.gate.started == ["a"]
            await unpark(engine, run_id)
            await begun(world, 2)
            await engine.send(run_id, answer("q"))
            world.gate.open("a")
            world.gate.open("b")
            assert (await engine.wait(run_id, ended, 20)).state.status == "completed"
            assert world.gate.started == ["a", "a", "b"]

    go(work())


@pytest.mark.rows("X1")
def test_a_step_whose_worker_went_away_twice_is_asked_about_and_not_repeated(
    tmp_path: Path, temporal_address: Address
) -> None:
    async def work() -> None:
        world = World(tmp_path, address=temporal_address)
        main = bundle(msgspec.structs.replace(plan(block("a", gate("a"))), semantics=SEMANTICS))
        for times in (1, 2):
            async with world.engine("temporal") as engine:
                if times == 1:
                    run_id = await engine.start(main, {})
                await begun(world, times)
        async with world.engine("temporal") as engine:
            state = (await engine.wait(run_id, asks, 20)).state
            assert state.frames["a"].after_interruption
            assert world.gate.started == ["a", "a"]
            decided = {"decision": "done", "outputs": {"name": "by hand"}}
            await engine.send(run_id, lambda _, now: Answered(now, "a", decided))
            assert (await engine.wait(run_id, ended, 20)).state.status == "completed"

    go(work())


def test_nothing_is_left_of_runs_on_the_server_but_their_histories(
    tmp_path: Path, temporal_address: Address
) -> None:
    async def work() -> None:
        world = World(tmp_path, address=temporal_address)
        async with world.engine("temporal") as engine:
            run_id = await engine.start(bundle(plan(block("a", note("a")))), {})
            await engine.wait(run_id, ended, 20)
            client = await connect(temporal_address)
            assert await executions(client, temporal_address.task_queue) == [(run_id, "COMPLETED")]

    go(work())
