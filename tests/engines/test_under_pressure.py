"""What must hold when many things happen at once, or what nobody thought of happens."""

from __future__ import annotations

import asyncio
from pathlib import Path

import apsw
import pytest

from support.engines import World, asks, ended
from support.plans import Call, Do, block, bundle, plan
from workflows_mcp.engines.clock import settle
from workflows_mcp.engines.sqlite.engine import SqliteEngine
from workflows_mcp.errors import NotExpected, RequestError
from workflows_mcp.machine.events import Answered
from workflows_mcp.plan import model
from workflows_mcp.plan.model import InputSpec
from workflows_mcp.steps.base import Step, StepContext, StepInputs, StepOutputs, StepResult
from workflows_mcp.values import Value

ASK = Do("Ask", {"prompt": "?"}, by="agent", defaults={"response": ""})


def gate(name: str) -> model.Do:
    return Do("Gate", {"name": name}, defaults={"name": ""})


def note(text: str) -> model.Do:
    return Do("Note", {"text": text}, defaults={"text": ""})


class Odd(Step):
    """Does what a step should not do."""

    name = "Odd"

    class Inputs(StepInputs):
        how: str

    class Outputs(StepOutputs):
        value: Value = None

    async def run(self, inputs: Inputs, context: StepContext) -> StepResult:
        await asyncio.sleep(0)
        if inputs.how == "exit":
            raise SystemExit(3)
        if inputs.how == "cancel":
            raise asyncio.CancelledError
        return StepResult({"value": 2**80 if inputs.how == "huge" else "\ud800"})


def test_answers_that_come_at_once_are_all_taken_and_no_step_is_disturbed(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        blocks = [block(f"q{i}", ASK) for i in range(6)]
        blocks += [block(f"g{i}", gate(f"g{i}"), [f"q{i}"]) for i in range(6)]
        async with world.engine("sqlite") as engine:
            run_id = await engine.start(bundle(plan(*blocks)), {})
            await engine.wait(run_id, asks, 5)

            async def answer(i: int) -> None:
                await engine.send(run_id, lambda _, now: Answered(now, f"q{i}", {"response": str(i)}))

            await asyncio.gather(*(answer(i) for i in range(6)))
            assert isinstance(engine, SqliteEngine)
            assert engine.store.read("SELECT epoch FROM runs") == [(2,)], (
                "the run was taken over more than once"
            )
            for i in range(6):
                world.gate.open(f"g{i}")
            assert (await engine.wait(run_id, ended, 5)).state.status == "completed"
            assert sorted(world.gate.started) == [f"g{i}" for i in range(6)]
            assert world.gate.stopped == []

    asyncio.run(asyncio.wait_for(go(), 20))


def test_of_two_different_answers_to_one_question_one_is_taken_and_one_refused(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.engine("sqlite") as engine:
            main = plan(block("q", ASK), block("busy", gate("busy")))
            run_id = await engine.start(bundle(main), {})
            await engine.wait(run_id, asks, 5)
            results = await asyncio.gather(
                *(
                    engine.send(run_id, lambda _, now, it=text: Answered(now, "q", {"response": it}))  # type: ignore[misc]
                    for text in ("yes", "no")
                ),
                return_exceptions=True,
            )
            assert sorted(type(result).__name__ for result in results) == ["NoneType", "NotExpected"]

    asyncio.run(asyncio.wait_for(go(), 20))


def test_a_message_to_a_run_that_ends_first_is_refused_not_left_unanswered(tmp_path: Path) -> None:
    async def go() -> None:
        one, other = World(tmp_path), World(tmp_path)
        async with one.engine("sqlite") as first, other.engine("sqlite", recovers=False) as second:
            assert isinstance(first, SqliteEngine)
            run_id = await first.start(bundle(plan(block("q", ASK), block("busy", gate("busy")))), {})
            await first.wait(run_id, asks, 5)

            async def deaf(_: object) -> None:
                return None

            first.mailbox.deliver = deaf  # type: ignore[method-assign,assignment]
            late = asyncio.create_task(
                second.send(run_id, lambda _, now: Answered(now, "q", {"response": "late"}))
            )
            await asyncio.sleep(0.1)
            await first.send(run_id, lambda _, now: Answered(now, "q", {"response": "first"}))
            with pytest.raises(NotExpected):
                await asyncio.wait_for(late, 5)
            assert first.store.read("SELECT count(*) FROM mailbox") == [(0,)]

    asyncio.run(asyncio.wait_for(go(), 20))


def test_a_message_that_comes_when_its_owner_releases_the_run_is_delivered_at_once(tmp_path: Path) -> None:
    """The owner has looked for messages a moment before, and no process drives the run any more."""

    async def go() -> None:
        one, other = World(tmp_path), World(tmp_path)
        async with one.engine("sqlite") as first, other.engine("sqlite", recovers=False) as second:
            assert isinstance(first, SqliteEngine)
            blocks = [block("q", ASK), block("then", note("then"), ["q"]), block("p", ASK)]
            run_id = await first.start(bundle(plan(*blocks, block("busy", gate("busy")))), {})
            await first.wait(run_id, asks, 5)

            async def deaf(_: object) -> None:
                return None

            first.mailbox.deliver = deaf  # type: ignore[method-assign,assignment]
            late = asyncio.create_task(
                second.send(run_id, lambda _, now: Answered(now, "q", {"response": "yes"}))
            )
            while first.store.read("SELECT count(*) FROM mailbox") == [(0,)]:
                await settle()
            one.gate.open("busy")
            await asyncio.wait_for(late, 0.9)
            await second.wait(run_id, lambda state: "then" in state.root.records, 5)
            assert other.note.lines == ["then"]
            assert first.store.read("SELECT count(*) FROM mailbox") == [(0,)]
            await first.send(run_id, lambda _, now: Answered(now, "p", {"response": "yes"}))
            assert (await second.wait(run_id, ended, 5)).state.status == "completed"

    asyncio.run(asyncio.wait_for(go(), 20))


@pytest.mark.parametrize("how", ["huge", "surrogate", "exit", "cancel"])
def test_whatever_a_step_does_ends_as_its_failure_and_the_run_goes_on(tmp_path: Path, how: str) -> None:
    async def go() -> None:
        world = World(tmp_path)
        world.more = [Odd()]
        odd = Do("Odd", {"how": how}, defaults={"value": None})
        async with world.engine("sqlite") as engine:
            run_id = await engine.start(bundle(plan(block("odd", odd), block("other", note("other")))), {})
            state = (await engine.wait(run_id, ended, 5)).state
            assert state.root.records["odd"].status == "failed"
            assert world.note.lines == ["other"]
            assert isinstance(engine, SqliteEngine)
            assert engine._read(run_id).state == state, "the disk has what memory has"

    asyncio.run(asyncio.wait_for(go(), 20))


def test_inputs_that_cannot_be_kept_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.engine("sqlite") as engine:
            main = plan(block("a", note("a")), inputs={"x": InputSpec("any")})
            with pytest.raises(RequestError, match="cannot be kept"):
                await engine.start(bundle(main), {"x": 2**80})
            assert await engine.recent(10) == []

    asyncio.run(asyncio.wait_for(go(), 20))


@pytest.mark.parametrize(("blocks_", "step"), [(300, "Note"), (3000, "Echo")])
def test_a_view_never_shows_more_than_the_disk_has_and_holds_nothing_up(
    tmp_path: Path, blocks_: int, step: str
) -> None:
    async def go() -> None:
        world = World(tmp_path)
        blocks = [block(f"n{i}", Do(step), [f"n{i - 1}"] if i else []) for i in range(blocks_)]
        async with world.engine("sqlite") as engine:
            assert isinstance(engine, SqliteEngine)
            run_id = await engine.start(bundle(plan(*blocks)), {})
            while (machine := await engine.view(run_id)).state.status == "running":
                assert engine._read(run_id).state.events >= machine.state.events

    asyncio.run(asyncio.wait_for(go(), 20))


@pytest.mark.rows("X1")
def test_a_run_works_in_the_directory_that_it_was_started_in_whoever_goes_on_with_it(tmp_path: Path) -> None:
    async def go() -> None:
        here, there = tmp_path / "here", tmp_path / "there"
        here.mkdir()
        there.mkdir()
        seen: list[Path] = []

        class Where(Step):
            name = "Where"

            def run(self, inputs: StepInputs, context: StepContext) -> StepResult:
                seen.append(context.world.policy.workspace)
                return StepResult({})

        one, other = World(here), World(there)
        one.more, other.more = [Where()], [Where()]
        other.store = one.store
        main = plan(block("q", ASK), block("where", Do("Where"), ["q"]))
        async with one.engine("sqlite") as first:
            run_id = await first.start(bundle(main), {})
            await first.wait(run_id, asks, 5)
        async with other.engine("sqlite") as second:
            await second.send(run_id, lambda _, now: Answered(now, "q", {"response": ""}))
            assert (await second.wait(run_id, ended, 5)).state.status == "completed"
        assert seen == [here]

    asyncio.run(asyncio.wait_for(go(), 20))


def test_a_request_id_that_started_something_else_is_refused(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.engine("sqlite") as engine:
            main = bundle(plan(block("a", note("a")), inputs={"x": InputSpec("any")}))
            run_id = await engine.start(main, {"x": 1}, request_id="r")
            assert await engine.start(main, {"x": 1}, request_id="r") == run_id
            with pytest.raises(RequestError, match=f"something else: the run {run_id}"):
                await engine.start(main, {"x": 2}, request_id="r")

    asyncio.run(asyncio.wait_for(go(), 20))


def test_a_workflow_found_under_another_name_than_its_own_is_called_once(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        world.found["alias"] = bundle(plan(block("deep", note("deep")), name="real"))
        main = plan(block("c", Call("${inputs.which}")), inputs={"which": InputSpec("string")})
        async with world.engine("sqlite") as engine:
            run_id = await engine.start(bundle(main), {"which": "alias"})
            assert (await engine.wait(run_id, ended, 5)).state.status == "completed"
            assert world.note.lines == ["deep"]

    asyncio.run(asyncio.wait_for(go(), 20))


def test_a_run_that_cannot_be_read_does_not_keep_the_others_from_going_on(tmp_path: Path) -> None:
    async def go() -> None:
        one, other = World(tmp_path), World(tmp_path)
        async with one.engine("sqlite") as first:
            good = await first.start(bundle(plan(block("b", gate("b")))), {})
            bad = await first.start(bundle(plan(block("b", gate("b")), name="bad")), {})
            while len(one.gate.started) < 2:
                await settle()
            await first.view(good)
            await first.view(bad)
        connection = apsw.Connection(str(tmp_path / "runs.db"))
        connection.execute("UPDATE journal SET events = x'00' WHERE run = ?", (bad,))
        connection.close()
        other.gate.open("b")
        async with other.engine("sqlite") as second:
            assert (await second.wait(good, ended, 5)).state.status == "completed"

    asyncio.run(asyncio.wait_for(go(), 20))
