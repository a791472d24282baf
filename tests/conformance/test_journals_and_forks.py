"""What every engine must do with the history of a run: hand it out, and make new runs of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from support.engines import World, asks, ended, status_of
from support.plans import Call, Do, block, bundle, plan
from workflows_mcp.engines.base import ChangedDefinition, Engine
from workflows_mcp.engines.clock import VirtualClock, settle
from workflows_mcp.errors import NotExpected, RequestError, UnknownRun
from workflows_mcp.machine.events import Answered, CancelRequested, Started
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.reopening import Reopening
from workflows_mcp.plan import model
from workflows_mcp.plan.model import InputSpec

OnEngine = Callable[..., None]
ASK = Do("Ask", {"prompt": "which?"}, by="agent", defaults={"response": ""})


def note(text: str) -> model.Do:
    return Do("Note", {"text": text}, defaults={"text": ""})


def gate(name: str) -> model.Do:
    return Do("Gate", {"name": name}, defaults={"name": ""})


def answer(text: str, address: str = "ask") -> Callable[[Machine, float], Answered]:
    return lambda _, now: Answered(now, address, {"response": text})


QUESTION = plan(
    block("before", note("before ${inputs.x}")),
    block("ask", ASK, ["before"]),
    block("after", note("${blocks.before.text}, ${blocks.ask.response}"), ["ask"]),
    inputs={"x": InputSpec("string")},
    outputs={"said": "${blocks.after.text}"},
)


def test_the_journal_of_a_run_leads_to_the_run_as_it_is(on_engine: OnEngine) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        run_id = await engine.start(bundle(QUESTION), {"x": "1"})
        for ready in (asks, ended):
            state = (await engine.wait(run_id, ready, 10)).state
            pinned, events = await engine.journal(run_id)
            again = Machine(pinned)
            for event in events:
                again.apply(event)
            assert again.state == state
            assert len(events) == state.events
            assert pinned == bundle(QUESTION)
            if ready is asks:
                await engine.send(run_id, answer("this"))

    on_engine(scenario)


def test_the_journal_of_a_run_that_was_just_started_has_its_start(on_engine: OnEngine) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        run_id = await engine.start(bundle(plan(block("g", gate("g")))), {})
        _, events = await engine.journal(run_id)
        assert isinstance(events[0], Started)
        assert events[0].run_id == run_id
        assert (await engine.view(run_id)).state.forked_from == ""

    on_engine(scenario)


def test_a_fork_goes_its_own_way_and_the_old_run_stays_as_it_was(on_engine: OnEngine) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        assert isinstance(world.clock, VirtualClock)
        old = await engine.start(bundle(QUESTION), {"x": "1"})
        asked = (await engine.wait(old, asks, 10)).state.events
        await engine.send(old, answer("this"))
        before = (await engine.wait(old, ended, 10)).snapshot()
        journal = await engine.journal(old)
        await world.clock.advance(1)

        new = await engine.fork(old, asked)
        assert new != old
        state = (await engine.wait(new, asks, 10)).state
        assert (state.run_id, state.forked_from) == (new, f"{old}@{asked}")
        await engine.send(new, answer("that"))
        state = (await engine.wait(new, ended, 10)).state
        assert state.outputs == {"said": "before 1, that"}
        assert world.note.lines == ["before 1", "before 1, this", "before 1, that"], "what was done is done"

        assert (await engine.view(old)).snapshot() == before
        assert await engine.journal(old) == journal
        _, events = await engine.journal(new)
        assert events[1:asked] == journal[1][1:asked]
        assert [run.run_id for run in await engine.recent(1)] == [new]

    on_engine(scenario)


@pytest.mark.rows("X3")
def test_a_fork_of_a_run_that_has_ended_can_reopen_a_step_and_is_made_once_for_the_same_request(
    on_engine: OnEngine,
) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        main = plan(
            block("ask", ASK),
            block("beside", note("beside")),
            block("after", note("${blocks.ask.response}"), ["ask"]),
            outputs={"said": "${blocks.after.text}"},
        )
        old = await engine.start(bundle(main), {})
        await engine.wait(old, status_of("beside", "completed"), 10)
        await engine.send(old, answer("this"))
        await engine.wait(old, ended, 10)
        _, events = await engine.journal(old)
        then = [Reopening(bundle(main), events, ["ask"]).event()]
        assert await engine.run_of_request("again") is None
        new = await engine.fork(old, len(events), then, request_id="again")
        assert await engine.fork(old, len(events), then, request_id="again") == new
        assert await engine.run_of_request("again") == new
        state = (await engine.wait(new, asks, 10)).state
        assert state.root.records["beside"].status == "completed"
        assert state.forked_from == f"{old}@{len(events)}"
        await engine.send(new, answer("that"))
        assert (await engine.wait(new, ended, 10)).state.outputs == {"said": "that"}
        assert world.note.lines == ["beside", "this", "that"]

    on_engine(scenario)


@pytest.mark.rows("X3")
def test_a_step_of_a_running_run_is_reopened_and_what_followed_from_it_is_stopped(
    on_engine: OnEngine,
) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        main = plan(
            block("ask", ASK),
            block("beside", note("beside")),
            block("work", gate("${blocks.ask.response}"), ["ask"]),
            outputs={"said": "${blocks.work.name}"},
        )
        run_id = await engine.start(bundle(main), {})
        await engine.wait(run_id, status_of("beside", "completed"), 10)
        await engine.wait(run_id, asks, 10)
        await engine.send(run_id, answer("first"))
        while world.gate.started != ["first"]:
            await settle()
        pinned, events = await engine.journal(run_id)
        event = Reopening(pinned, events, ["ask"]).event(same_run=True)
        await engine.send(run_id, lambda _, now: msgspec.structs.replace(event, at=now))
        assert (await engine.wait(run_id, asks, 10)).state.frames["ask"].attempt == "r2.1"
        with pytest.raises(NotExpected, match="has changed since"):
            await engine.send(run_id, lambda _, now: msgspec.structs.replace(event, at=now))
        await engine.send(run_id, answer("second"))
        world.gate.open("second")
        state = (await engine.wait(run_id, ended, 10)).state
        assert (state.status, state.outputs) == ("completed", {"said": "second"})
        assert (world.gate.started, world.note.lines) == (["first", "second"], ["beside"])

    on_engine(scenario)


@pytest.mark.rows("X3")
def test_a_fork_can_have_another_definition_and_complete_with_it_at_once(on_engine: OnEngine) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        broken = plan(block("a", note("a")), outputs={"said": "${blocks.a.nothing}"})
        fixed = plan(block("a", note("a")), outputs={"said": "${blocks.a.text}"})
        longer = plan(block("a", note("a")), block("b", note("${blocks.a.text} b"), ["a"]))
        old = await engine.start(bundle(broken), {})
        assert (await engine.wait(old, ended, 10)).state.status == "failed"
        _, events = await engine.journal(old)
        for other, outputs, said in ((fixed, {"said": "a"}, ["a"]), (longer, {}, ["a", "a b"])):
            then = [Reopening(bundle(other), events, []).event()]
            new = await engine.fork(old, len(events), then, changed=ChangedDefinition(bundle(other), events))
            state = (await engine.wait(new, ended, 10)).state
            assert (state.status, state.outputs, world.note.lines) == ("completed", outputs, said)
            assert (await engine.journal(new))[0] == bundle(other)
            summary = next(it for it in await engine.recent(10) if it.run_id == new)
            assert summary.status == "completed"
            assert new not in [it.run_id for it in await engine.unfinished()]

    on_engine(scenario)


def test_a_fork_starts_again_what_was_under_way_at_its_position(on_engine: OnEngine) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        inner = plan(block("deep", gate("deep")), block("told", note("told"), ["deep"]), name="inner")
        main = plan(block("call", Call("inner")), block("quick", note("quick")))
        old = await engine.start(bundle(main, inner), {})
        await engine.wait(old, status_of("quick", "completed"), 10)
        while not world.gate.started:
            await settle()
        position = (await engine.view(old)).state.events
        new = await engine.fork(old, position)
        while len(world.gate.started) < 2:
            await settle()
        assert world.gate.started == ["deep", "deep"]
        await engine.send(old, lambda _, now: CancelRequested(now))
        assert world.gate.stopped == ["deep"], "the fork's own step goes on"
        world.gate.open("deep")
        assert (await engine.wait(new, ended, 10)).state.status == "completed"
        assert world.note.lines == ["quick", "told"]

    on_engine(scenario)


def test_of_a_fork_nothing_was_cut_off_so_it_also_starts_what_is_not_simply_repeated(
    on_engine: OnEngine,
) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        node, needs = block("once", gate("once"))
        careful = msgspec.structs.replace(node, on_interrupt="fail")
        old = await engine.start(bundle(plan((careful, needs))), {})
        while not world.gate.started:
            await settle()
        new = await engine.fork(old, (await engine.view(old)).state.events)
        world.gate.open("once")
        for run_id in (old, new):
            assert (await engine.wait(run_id, ended, 10)).state.status == "completed"
        assert world.gate.started == ["once", "once"]

    on_engine(scenario)


def test_a_fork_can_be_forked_and_begins_at_the_first_event_if_asked_to(on_engine: OnEngine) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        old = await engine.start(bundle(QUESTION), {"x": "1"})
        await engine.wait(old, asks, 10)
        first = await engine.fork(old, 1)
        asked = (await engine.wait(first, asks, 10)).state.events
        second = await engine.fork(first, asked)
        state = (await engine.wait(second, asks, 10)).state
        assert state.forked_from == f"{first}@{asked}"
        await engine.send(second, answer("x"))
        assert (await engine.wait(second, ended, 10)).state.status == "completed"
        assert world.note.lines == ["before 1", "before 1", "before 1, x"]

    on_engine(scenario)


def test_a_position_that_is_not_there_is_refused_with_the_range(on_engine: OnEngine) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        old = await engine.start(bundle(QUESTION), {"x": "1"})
        asked = (await engine.wait(old, asks, 10)).state.events
        for position in (0, -1, asked + 1):
            with pytest.raises(RequestError, match=f"1 to {asked}"):
                await engine.fork(old, position)
        with pytest.raises(UnknownRun):
            await engine.fork("wf_nope", 1)
        with pytest.raises(UnknownRun):
            await engine.journal("wf_nope")
        assert len(await engine.recent(10)) == 1

    on_engine(scenario)


def test_a_position_at_which_the_run_had_ended_is_refused(on_engine: OnEngine) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        old = await engine.start(bundle(plan(block("a", note("a")))), {})
        events = (await engine.wait(old, ended, 10)).state.events
        with pytest.raises(RequestError, match="there is nothing to continue"):
            await engine.fork(old, events)
        assert len(await engine.recent(10)) == 1

    on_engine(scenario)


def test_a_fork_has_a_copy_of_the_files_that_steps_have_handed_each_other(
    on_engine: OnEngine, tmp_path: Path
) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        old = await engine.start(bundle(QUESTION), {"x": "1"})
        asked = (await engine.wait(old, asks, 10)).state.events
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "secret").write_text("secret")
        files = world.home / "scratch" / old
        (files / "inner").mkdir(parents=True)
        (files / "inner" / "run.sh").write_text("exit 0")
        (files / "inner" / "run.sh").chmod(0o500)
        (files / "link").symlink_to(files / "inner" / "run.sh")
        (files / "out").symlink_to(outside)
        os.mkfifo(files / "pipe")
        (files / "inner").chmod(0o500)

        new = await engine.fork(old, asked)
        copy = world.home / "scratch" / new
        assert sorted(path.name for path in copy.iterdir()) == ["inner", "link", "out"]
        assert (copy / "inner" / "run.sh").read_text() == "exit 0"
        assert (copy / "inner" / "run.sh").stat().st_mode & 0o777 == 0o500
        assert (copy / "inner").stat().st_mode & 0o777 == 0o500
        assert (copy / "link").resolve() == copy.resolve() / "inner" / "run.sh", "it leads into the copy"
        assert (copy / "out").is_symlink(), "a link that leads out is not followed"
        (files / "inner").chmod(0o700)
        (files / "inner" / "run.sh").unlink()
        assert (copy / "inner" / "run.sh").exists()

    on_engine(scenario)


def test_checkpoints_that_were_forgotten_stay_forgotten(on_engine: OnEngine) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        one = await engine.start(bundle(QUESTION), {"x": "1"})
        other = await engine.start(bundle(QUESTION), {"x": "2"})
        await engine.wait(one, asks, 10)
        await engine.wait(other, asks, 10)
        assert await engine.deleted_checkpoints(one) == set()
        for position in (2, 1, 2):
            await engine.delete_checkpoint(one, position)
        assert await engine.deleted_checkpoints(one) == {1, 2}
        assert await engine.deleted_checkpoints(other) == set()
        assert await engine.deleted_checkpoints(await engine.fork(one, 2)) == set()
        with pytest.raises(UnknownRun):
            await engine.delete_checkpoint("wf_nope", 1)
        with pytest.raises(UnknownRun):
            await engine.deleted_checkpoints("wf_nope")

    on_engine(scenario)


def test_recent_runs_can_be_those_of_one_workflow(on_engine: OnEngine) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        assert isinstance(world.clock, VirtualClock)
        started = []
        for name in ("one", "other", "one"):
            run_id = await engine.start(bundle(plan(block("a", note("a")), name=name)), {})
            await engine.wait(run_id, ended, 10)
            started.append(run_id)
            await world.clock.advance(1)
        assert [run.run_id for run in await engine.recent(10, "one")] == [started[2], started[0]]
        assert [run.run_id for run in await engine.recent(1, "one")] == [started[2]]
        assert await engine.recent(10, "none") == []
        assert len(await engine.recent(10)) == 3

    on_engine(scenario)
