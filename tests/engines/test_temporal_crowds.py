"""Many agents at one run: all ask and answer at once, also while its history goes on as a new one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from temporalio.client import WorkflowHandle

pytest.importorskip("temporalio", reason="temporalio is not installed: pip install -e .[temporal]")

from temporalio.worker import Worker

from support.engines import World, ended
from support.plans import Do, block, bundle, plan
from support.stateful import bundle_of, research
from support.temporal_histories import all_bytes, runs_of
from workflows_mcp.engines.base import Engine
from workflows_mcp.engines.temporal.blobs import BlobStore
from workflows_mcp.engines.temporal.cache import SingleFlight
from workflows_mcp.engines.temporal.connection import Address, connect
from workflows_mcp.engines.temporal.engine import TemporalEngine
from workflows_mcp.engines.temporal.wire import Sent
from workflows_mcp.engines.temporal.worker import Activities
from workflows_mcp.engines.temporal.workflow import Run
from workflows_mcp.engines.values import encode
from workflows_mcp.errors import NotExpected, RequestError
from workflows_mcp.machine.events import Answered, Event
from workflows_mcp.machine.machine import Machine

pytestmark = pytest.mark.rows("S13")
KB = 1024
DONE: Final = "activity_task_completed_event_attributes"


def go(work: Awaitable[None]) -> None:
    async def within() -> None:
        await asyncio.wait_for(work, 60)

    asyncio.run(within())


def answer(address: str, text: str) -> Callable[[Machine, float], Answered]:
    return lambda _, now: Answered(now, address, {"response": text})


async def agent_of(engine: Engine, run_id: str, number: int, text: str) -> None:
    """As the service does for a sub-agent: it is heard of, it waits until it is asked, it answers."""
    for name in ("read", "judge"):
        address = f"each/{number}/{name}"
        await engine.heartbeat(run_id, f"{run_id}.each.{number}", 1.0)
        await engine.wait(run_id, lambda state, address=address: address in state.frames, 40)  # type: ignore[misc]
        assert await engine.last_seen(run_id)
        await engine.send(run_id, answer(address, f"{number} {text}"))


def test_a_crowd_of_agents_of_two_processes_is_served_while_histories_end(
    tmp_path: Path, temporal_address: Address
) -> None:
    crowd = 50

    async def work() -> None:
        world = World(tmp_path, address=temporal_address)
        async with AsyncExitStack() as opened:
            engines = [await opened.enter_async_context(world.engine("temporal")) for _ in range(2)]
            assert isinstance(engines[0], TemporalEngine)
            engines[0]._updates_a_history = 25
            run_id = await engines[0].start(bundle_of(research(items=[str(it) for it in range(crowd)])), {})
            long = "x" * 3 * KB
            await asyncio.gather(*(agent_of(engines[it % 2], run_id, it, long) for it in range(crowd)))
            engine = engines[-1]
            await engine.wait(run_id, lambda state: "review" in state.frames, 20)
            await engine.send(run_id, answer("review", "fine"))
            state = (await engine.wait(run_id, ended, 20)).state
            assert [it["found"] for it in state.result] == [f"{it} {long}!" for it in range(crowd)]
            _, events = await engine.journal(run_id)
            assert sum(isinstance(event, Answered) for event in events) == 2 * crowd + 1, "each counts once"
            client = await connect(temporal_address)
            assert len(await runs_of(client, run_id)) > 1
            written = len(await all_bytes(client, run_id))
            assert written < 4 * 2 * crowd * len(long), "nobody's answer is written down for all the others"

    go(work())


def test_an_answer_that_comes_again_because_a_history_ended_before_it_was_told_is_no_second_one(
    tmp_path: Path, temporal_address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        question = Do("Ask", {"prompt": "?"}, by="agent", defaults={"response": ""})
        world = World(tmp_path, address=temporal_address)
        client = await connect(temporal_address)
        execute = WorkflowHandle.execute_update
        async with world.engine("temporal") as engine:
            assert isinstance(engine, TemporalEngine)
            engine._updates_a_history = 1
            run_id = await engine.start(bundle(plan(block("a", question), block("b", question, ["a"]))), {})
            await engine.wait(run_id, lambda state: "a" in state.frames, 20)

            async def twice(*given: Any, **more: Any) -> Any:
                await execute(*given, id="the one", **more)
                while len(await runs_of(client, run_id)) < 2:
                    await asyncio.sleep(0.02)
                monkeypatch.undo()
                return await execute(*given, id="the one", **more)

            monkeypatch.setattr(WorkflowHandle, "execute_update", twice)
            await engine.send(run_id, answer("a", "yes"))
            _, events = await engine.journal(run_id)
            assert sum(isinstance(event, Answered) for event in events) == 1
            with pytest.raises(NotExpected, match="nothing is asked at 'a'"):
                await engine.send(run_id, answer("a", "yes"))

    go(work())


def test_a_history_does_not_begin_with_what_was_written_in_all_before_it(
    tmp_path: Path, temporal_address: Address
) -> None:
    """The server takes two MiB to begin a history with, and the journal of a long run is longer."""
    number, long = 23, "x" * 31 * KB

    async def work() -> None:
        world = World(tmp_path, address=temporal_address)
        question = Do("Ask", {"prompt": "?"}, by="agent", defaults={"response": ""})
        blocks = [block(f"q{it}", question, [f"q{it - 1}"] if it else []) for it in range(number)]
        async with world.engine("temporal") as engine:
            assert isinstance(engine, TemporalEngine)
            engine._updates_a_history = 7
            run_id = await engine.start(bundle(plan(*blocks)), {})
            for it in range(number):
                await engine.wait(run_id, lambda state, name=f"q{it}": name in state.frames, 20)  # type: ignore[misc]
                await engine.send(run_id, answer(f"q{it}", f"{it} {long}"))
            state = (await engine.wait(run_id, ended, 20)).state
            assert state.status == "completed"
            pinned, events = await engine.journal(run_id)
            again = Machine(pinned)
            for event in events:
                again.apply(event)
            assert again.state == state
            client = await connect(temporal_address)
            last = (await runs_of(client, run_id))[3]
            history = await client.get_workflow_handle(run_id, run_id=last).fetch_history()
            assert history.events[0].ByteSize() < 20 * KB

    go(work())


# One question at a time


def test_those_who_come_while_a_question_is_under_way_share_the_next_and_never_get_an_older_answer() -> None:
    async def work() -> None:
        together: SingleFlight[int] = SingleFlight()
        begun: list[asyncio.Future[int]] = []

        async def ask_server() -> int:
            begun.append(asyncio.get_running_loop().create_future())
            return await begun[-1]

        first = asyncio.create_task(together.ask("run", ask_server))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        crowd = [asyncio.create_task(together.ask("run", ask_server)) for _ in range(50)]
        other = asyncio.create_task(together.ask("other", ask_server))
        await asyncio.sleep(0.01)
        assert len(begun) == 2, "one of each run"
        crowd.pop().cancel()
        begun[0].set_result(1)
        assert await first == 1
        await asyncio.sleep(0.01)
        assert len(begun) == 3
        begun[2].set_result(3)
        assert await asyncio.gather(*crowd) == [3] * 49
        begun[1].set_result(2)
        assert await other == 2
        again = asyncio.create_task(together.ask("run", ask_server))
        await asyncio.sleep(0.01)
        begun[3].set_result(4)
        assert await again == 4

    go(work())


def test_that_nobody_answers_is_told_to_all_who_wait_and_another_error_only_to_those_who_asked() -> None:
    async def work() -> None:
        together: SingleFlight[str] = SingleFlight()
        codes = ["no_worker", "unknown_run", ""]
        errors: list[str] = []

        async def ask_server() -> str:
            await asyncio.sleep(0.01)
            code = codes.pop(0)
            if code:
                raise RequestError("no", code=code)
            return "yes"

        async def asked() -> str:
            try:
                return await together.ask("run", ask_server)
            except RequestError as error:
                errors.append(error.code)
                return error.code

        async def two() -> list[str]:
            early = asyncio.create_task(asked())
            await asyncio.sleep(0.005)
            return [*await asyncio.gather(early, asked())]

        assert await two() == ["no_worker", "no_worker"]
        assert await two() == ["unknown_run", "yes"]

    go(work())


def test_closing_ends_what_is_being_asked() -> None:
    async def work() -> None:
        together: SingleFlight[None] = SingleFlight()
        asking = [asyncio.create_task(together.ask("run", asyncio.Event().wait)) for _ in range(3)]  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        await together.close()
        ends = await asyncio.gather(*asking, return_exceptions=True)
        assert all(isinstance(it, asyncio.CancelledError) for it in ends)

    go(work())


# What comes together


def test_an_answer_that_comes_together_with_what_leads_to_its_question_is_taken(
    tmp_path: Path, temporal_address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker is told of answers before it is told of steps, whatever came first. Were the answer refused, another
    worker that repeats the history in smaller pieces would take it."""
    monkeypatch.setattr(Run, "_now", lambda _: 5.0)
    world = World(tmp_path, address=temporal_address)
    gate = Do("Gate", {"name": "g"}, defaults={"name": ""})
    question = Do("Ask", {"prompt": "?"}, by="agent", defaults={"response": ""})
    blocks = block("g", gate), block("q", question, ["g"])
    store = BlobStore(tmp_path / "blobs")

    def moves() -> TemporalEngine:
        return TemporalEngine(temporal_address, world.executor(), world.find, store, steps=False)

    async def work() -> None:
        client = await connect(temporal_address)
        hands = Activities(world.executor(), store, world.find).all()
        async with Worker(client, task_queue=temporal_address.task_queue, activities=hands):
            first = moves()
            await first.open()
            run_id = await first.start(bundle(plan(*blocks)), {})
            while not world.gate.started:
                await asyncio.sleep(0.02)
            await first.close()
            world.gate.open("g")
            run = client.get_workflow_handle(run_id)
            while not any(it.HasField(DONE) for it in (await run.fetch_history()).events):
                await asyncio.sleep(0.02)
            event: Event = Answered(5.0, "q", {"response": "yes"})
            sent = store.packed(encode(Sent(encode(event), since=5.0)))
            answering = asyncio.create_task(run.execute_update("send", sent, result_type=bytes))
            await asyncio.wait([answering], timeout=0.3)  # on its way to the server, where nobody takes it up
            second = moves()
            await second.open()
            await answering
            state = (await second.wait(run_id, ended, 20)).state
            await second.close()
            assert state.root.records["q"].outputs == {"response": "yes"}

    go(work())
