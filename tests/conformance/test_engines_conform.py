"""What every engine must do, run against each of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.engines import World, asks, ended, status_of
from support.plans import Call, Do, block, bundle, plan
from workflows_mcp.engines.base import Engine
from workflows_mcp.engines.clock import VirtualClock, settle
from workflows_mcp.errors import NotExpected, UnknownRun
from workflows_mcp.limits import Limits
from workflows_mcp.machine.events import Answered, CancelRequested
from workflows_mcp.plan import model
from workflows_mcp.plan.model import InputSpec


def note(text: str, **more: bool) -> model.Do:
    return Do("Note", {"text": text, **more}, defaults={"text": ""})


def gate(name: str, timeout: float | None = None) -> model.Do:
    return Do("Gate", {"name": name}, timeout=timeout, defaults={"name": ""})


def ask(prompt: str) -> model.Do:
    return Do("Ask", {"prompt": prompt}, by="agent", defaults={"response": ""})


def test_a_run_goes_from_start_to_outputs(on_engine: Callable[..., None]) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        main = plan(
            block("a", note("${inputs.x}")),
            block("b", note("${blocks.a.text}!"), ["a"]),
            inputs={"x": InputSpec("string")},
            outputs={"said": "${blocks.b.outputs.text}"},
        )
        run_id = await engine.start(bundle(main), {"x": "hi"})
        state = (await engine.wait(run_id, ended, 10)).state
        assert state.status == "completed"
        assert state.outputs == {"said": "hi!"}
        assert world.note.lines == ["hi", "hi!"]

    on_engine(scenario)


@pytest.mark.rows("G1")
def test_a_block_starts_when_its_own_dependencies_are_done_not_when_a_whole_wave_is(
    on_engine: Callable[..., None],
) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        main = plan(
            block("slow", gate("slow")),
            block("quick", note("quick")),
            block("after_quick", note("after quick"), ["quick"]),
            block("last", note("last"), ["slow", "after_quick"]),
        )
        run_id = await engine.start(bundle(main), {})
        await engine.wait(run_id, status_of("after_quick", "completed"), 10)
        assert world.note.lines == ["quick", "after quick"]
        world.gate.open("slow")
        await engine.wait(run_id, ended, 10)
        assert world.note.lines == ["quick", "after quick", "last"]

    on_engine(scenario)


@pytest.mark.rows("G15")
def test_a_question_holds_up_only_what_depends_on_it_and_the_answer_goes_on(
    on_engine: Callable[..., None],
) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        main = plan(
            block("ask", ask("which?")),
            block("other", note("other")),
            block("then", note("got ${blocks.ask.response}"), ["ask"]),
        )
        run_id = await engine.start(bundle(main), {})
        await engine.wait(run_id, lambda state: asks(state) and "other" in state.root.records, 10)
        await engine.send(run_id, lambda _, now: Answered(now, "ask", {"response": "this"}))
        state = (await engine.wait(run_id, ended, 10)).state
        assert state.status == "completed"
        assert world.note.lines == ["other", "got this"]

    on_engine(scenario)


def test_an_answer_to_a_question_that_nobody_asks_is_refused_and_changes_nothing(
    on_engine: Callable[..., None],
) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        main = plan(block("one", ask("1")), block("two", ask("2")))
        run_id = await engine.start(bundle(main), {})
        before = (await engine.wait(run_id, asks, 10)).state.events
        for address in ("three", "one/x"):
            with pytest.raises(NotExpected):
                await engine.send(run_id, lambda _, now, at=address: Answered(now, at, {}))  # type: ignore[misc]
        assert (await engine.view(run_id)).state.events == before
        for address in ("two", "one"):
            await engine.send(run_id, lambda _, now, at=address: Answered(now, at, {}))  # type: ignore[misc]
        with pytest.raises(NotExpected):
            await engine.send(run_id, lambda _, now: Answered(now, "one", {}))
        assert (await engine.view(run_id)).state.status == "completed"

    on_engine(scenario)


def test_the_same_request_id_gives_the_same_run(on_engine: Callable[..., None]) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        pinned = bundle(plan(block("a", note("once"))))
        first = await engine.start(pinned, {}, request_id="r1")
        await engine.wait(first, ended, 10)
        assert await engine.start(pinned, {}, request_id="r1") == first
        assert await engine.start(pinned, {}, request_id="r2") != first
        await settle()

    on_engine(scenario)


@pytest.mark.rows("X3")
def test_cancelling_stops_what_is_under_way_also_inside_of_calls(on_engine: Callable[..., None]) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        inner = plan(block("deep", gate("deep")), name="inner")
        main = plan(block("call", Call("inner")), block("top", gate("top")), block("ask", ask("?")))
        run_id = await engine.start(bundle(main, inner), {})
        await engine.wait(run_id, asks, 10)
        while len(world.gate.started) < 2:
            await settle()
        await engine.send(run_id, lambda _, now: CancelRequested(now, "enough"))
        state = (await engine.wait(run_id, ended, 10)).state
        assert state.status == "cancelled"
        assert sorted(world.gate.stopped) == ["deep", "top"]
        assert not state.frames
        with pytest.raises(NotExpected):
            await engine.send(run_id, lambda _, now: Answered(now, "ask", {}))

    on_engine(scenario)


@pytest.mark.rows("G10", "G16")
def test_a_timeout_stops_a_step_or_a_whole_call_and_fails_the_block(on_engine: Callable[..., None]) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        assert isinstance(world.clock, VirtualClock)
        inner = plan(block("deep", gate("deep")), name="inner")
        main = plan(
            block("step", gate("step", timeout=5.0)),
            block("call", Call("inner", timeout=7.0)),
            block("after", note("after"), ["step"]),
        )
        run_id = await engine.start(bundle(main, inner), {})
        while len(world.gate.started) < 2:
            await settle()
        await world.clock.advance(6)
        state = (await engine.view(run_id)).state
        assert state.root.records["step"].message == "timed out after 5 s"
        assert state.root.records["after"].status == "skipped"
        assert world.gate.stopped == ["step"]
        await world.clock.advance(2)
        state = (await engine.wait(run_id, ended, 10)).state
        assert world.gate.stopped == ["step", "deep"]
        assert state.root.records["call"].status == "failed"
        assert state.status == "failed"
        assert state.fault is not None
        assert "timed out after 5 s" in state.fault.message

    on_engine(scenario)


def test_an_answer_in_time_clears_the_timeout(on_engine: Callable[..., None]) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        assert isinstance(world.clock, VirtualClock)
        main = plan(block("step", gate("step", timeout=5.0)), block("ask", ask("?")))
        run_id = await engine.start(bundle(main), {})
        await engine.wait(run_id, asks, 10)
        world.gate.open("step")
        await engine.wait(run_id, status_of("step", "completed"), 10)
        await world.clock.advance(60)
        assert (await engine.view(run_id)).state.root.records["step"].status == "completed"

    on_engine(scenario)


@pytest.mark.rows("G16")
def test_a_workflow_named_by_an_expression_is_found_when_the_call_is_reached(
    on_engine: Callable[..., None],
) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        inner = plan(block("deep", note("deep")), name="late", outputs={"out": "${blocks.deep.text}"})
        world.found["late"] = bundle(inner)
        main = plan(
            block("call", Call("${inputs.which}")),
            block("missing", Call("${inputs.which}-not")),
            inputs={"which": InputSpec("string")},
            outputs={"deep": "${blocks.call.blocks.deep.outputs.text}"},
        )
        run_id = await engine.start(bundle(main), {"which": "late"})
        state = (await engine.wait(run_id, ended, 10)).state
        assert state.outputs == {"deep": "deep"}
        assert state.status == "failed"
        assert state.root.records["missing"].message == "there is no workflow 'late-not'"

    on_engine(scenario)


def test_calls_deeper_than_the_limit_end_with_an_error_that_names_the_setting(
    on_engine: Callable[..., None],
) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        main = plan(block("again", Call("test")))
        run_id = await engine.start(bundle(main), {})
        state = (await engine.wait(run_id, ended, 10)).state
        assert state.status == "failed"
        assert state.fault is not None
        assert "the limit is 5 (WORKFLOWS_LIMIT_CALL_DEPTH)" in state.fault.message

    on_engine(scenario, limits=Limits(call_depth=5))


@pytest.mark.rows("G7")
@pytest.mark.parametrize(
    ("dependency", "required", "runs"),
    [
        ("success", True, True),
        ("success", False, True),
        ("failure", True, False),
        ("failure", False, True),
        ("crash", True, False),
        ("crash", False, False),
        ("skipped", True, False),
        ("skipped", False, True),
    ],
)
def test_the_skip_table(on_engine: Callable[..., None], dependency: str, required: bool, runs: bool) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        first = block(
            "first",
            note("first", ok=dependency != "failure", crash=dependency == "crash"),
            condition="false" if dependency == "skipped" else None,
        )
        main = plan(
            first,
            block("second", note("second"), [("first", required)]),
            block("third", note("third"), ["second"]),
        )
        run_id = await engine.start(bundle(main), {})
        state = (await engine.wait(run_id, ended, 10)).state
        assert ("second" in world.note.lines) is runs
        assert ("third" in world.note.lines) is runs
        assert state.root.records["second"].status == ("completed" if runs else "skipped")

    on_engine(scenario)


def test_more_steps_than_may_run_at_once_wait_their_turn_and_all_end(on_engine: Callable[..., None]) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        main = plan(*(block(f"b{i}", gate(f"g{i}")) for i in range(10)))
        run_id = await engine.start(bundle(main), {})
        while len(world.gate.started) < 3:
            await settle()
        await settle()
        assert len(world.gate.started) == 3
        for i in range(10):
            world.gate.open(f"g{i}")
        assert (await engine.wait(run_id, ended, 10)).state.status == "completed"

    on_engine(scenario, limits=Limits(parallel_steps=3))


def test_waiting_gives_up_after_its_time_and_loses_nothing(on_engine: Callable[..., None]) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        run_id = await engine.start(bundle(plan(block("a", gate("a")))), {})
        machine = await engine.wait(run_id, ended, 0.01)
        assert machine.state.status == "running"
        world.gate.open("a")
        assert (await engine.wait(run_id, ended, 10)).state.status == "completed"

    on_engine(scenario)


def test_recent_runs_are_listed_latest_first(on_engine: Callable[..., None]) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        assert isinstance(world.clock, VirtualClock)
        first = await engine.start(bundle(plan(block("a", note("a")))), {})
        await engine.wait(first, ended, 10)
        await world.clock.advance(1)
        second = await engine.start(bundle(plan(block("ask", ask("?")), name="other")), {})
        await engine.wait(second, asks, 10)
        await settle()
        listed = [(run.run_id, run.workflow, run.status) for run in await engine.recent(10)]
        assert listed == [(second, "other", "idle"), (first, "test", "completed")]
        assert len(await engine.recent(1)) == 1

    on_engine(scenario)


def test_a_run_that_goes_on_without_a_change_of_its_status_is_listed_before_one_that_does_not(
    on_engine: Callable[..., None],
) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        assert isinstance(world.clock, VirtualClock)
        first = await engine.start(
            bundle(plan(block("a", gate("a")), block("b", gate("b")), block("c", gate("c")))), {}
        )
        await engine.view(first)
        await world.clock.advance(2)
        second = await engine.start(bundle(plan(block("ask", ask("?")))), {})
        await engine.wait(second, asks, 10)
        await world.clock.advance(2)
        world.gate.open("a")
        await engine.wait(first, status_of("a", "completed"), 10)
        listed = await engine.recent(10)
        assert [run.run_id for run in listed] == [first, second]
        assert listed[0].status == "running"
        assert listed[0].changed_at == world.clock.now()

    on_engine(scenario)


def test_an_unknown_run_is_an_error(on_engine: Callable[..., None]) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        with pytest.raises(UnknownRun, match="wf_nope"):
            await engine.view("wf_nope")
        with pytest.raises(UnknownRun):
            await engine.send("wf_nope", lambda _, now: CancelRequested(now))

    on_engine(scenario)
