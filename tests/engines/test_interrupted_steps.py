"""What becomes of a step that a crash has cut off, as its block says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from support.engines import World, asks, ended
from support.plans import Do, block, bundle, plan
from support.questions import open_actions
from support.reactive import documents
from workflows_mcp.answers.results import check_result
from workflows_mcp.answers.run_view import run_view_of
from workflows_mcp.engines.clock import VirtualClock, settle
from workflows_mcp.engines.memory import MemoryEngine
from workflows_mcp.errors import InvalidResult
from workflows_mcp.machine.commands import ReportInterrupted
from workflows_mcp.machine.events import Answered, Event, Interrupted, Started
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.state import RunState
from workflows_mcp.plan.model import OnInterrupt
from workflows_mcp.steps.registry import StepRegistry

After = Callable[[World, MemoryEngine, str], Awaitable[None]]


def cut_off(home: Path, policy: OnInterrupt, after: After) -> tuple[RunState, World]:
    """A run whose first step is cut off by a crash; `after` does what is to be done then."""
    gate = Do("Gate", {"name": "a"}, timeout=60, defaults={"name": ""})
    main = plan(
        block("a", gate, on_interrupt=policy, retry={"attempts": 3, "delay": 0}),
        block("b", Do("Note", {"text": "${blocks.a.name}"}), ["a"]),
    )

    async def go() -> tuple[RunState, World]:
        world = World(home, clock=VirtualClock())
        async with world.engine("memory") as engine:
            assert isinstance(engine, MemoryEngine)
            run_id = await engine.start(bundle(main), {})
            await settle()
            await engine.crash_and_resume(run_id)
            await settle()
            await after(world, engine, run_id)
            return (await engine.wait(run_id, ended, 5)).state, world

    return asyncio.run(asyncio.wait_for(go(), 20))


def decide(result: object) -> After:
    async def after(world: World, engine: MemoryEngine, run_id: str) -> None:
        registry: StepRegistry = world.executor().registry
        machine = await engine.wait(run_id, asks, 5)
        (action,) = open_actions(machine, registry)
        assert action.type == "interrupted"
        assert action.parameters == {"step": "Gate", "inputs": {"name": "a"}}
        with pytest.raises(InvalidResult):
            check_result(run_view_of(machine), registry, "a", "perhaps")

        def answered(machine: Machine, now: float) -> Event:
            address, step_result = check_result(run_view_of(machine), registry, None, result)
            return Answered(now, address, step_result.outputs)

        world.gate.open("a")
        await engine.send(run_id, answered)

    return after


async def opened(world: World, engine: MemoryEngine, run_id: str) -> None:
    world.gate.open("a")


async def nothing(world: World, engine: MemoryEngine, run_id: str) -> None:
    return


@pytest.mark.rows("X1")
def test_a_step_that_was_cut_off_is_repeated_where_nothing_else_is_said(tmp_path: Path) -> None:
    state, world = cut_off(tmp_path, "repeat", opened)
    assert (state.status, world.gate.started, world.note.lines) == ("completed", ["a", "a"], ["a"])


def test_with_fail_it_has_failed_and_is_not_tried_again(tmp_path: Path) -> None:
    state, world = cut_off(tmp_path, "fail", nothing)
    assert (state.status, world.gate.started) == ("failed", ["a"])
    assert state.fault is not None
    assert state.fault.code == "interrupted"
    assert "the server stopped while this step was under way" in state.fault.message


def test_with_ask_the_agent_can_have_it_repeated(tmp_path: Path) -> None:
    state, world = cut_off(tmp_path, "ask", decide("repeat"))
    assert (state.status, world.gate.started, world.note.lines) == ("completed", ["a", "a"], ["a"])
    assert state.root.records["a"].attempts == 2


def test_with_ask_the_agent_can_take_it_as_done_with_its_outputs(tmp_path: Path) -> None:
    state, world = cut_off(tmp_path, "ask", decide({"decision": "done", "outputs": {"name": "by hand"}}))
    assert (state.status, world.gate.started, world.note.lines) == ("completed", ["a"], ["by hand"])


def test_with_ask_the_agent_can_take_it_as_failed(tmp_path: Path) -> None:
    state, world = cut_off(tmp_path, "ask", decide({"decision": "fail"}))
    assert (state.status, world.gate.started, world.note.lines) == ("failed", ["a"], [])


TELL_THEN_RUN = """
name: tell
dialect: reactive
steps:
  - {id: hello, type: user_message, message: hello}
  - {id: work, type: Note, text: x, on_interrupt: ask}
"""


@pytest.mark.rows("X1")
def test_a_message_is_not_told_again_once_the_question_about_a_step_that_was_cut_off_is_answered() -> None:
    machine = Machine(documents(TELL_THEN_RUN))
    machine.apply(Started(0.0, "wf_1", {}))
    machine = Machine(machine.bundle, machine.snapshot())
    (cut,) = machine.outstanding(1.0)
    assert isinstance(cut, ReportInterrupted)
    machine.apply(Interrupted(1.0, cut.key))
    assert [message.text for message in machine.state.messages] == ["hello"], (
        "it is handed out with the question"
    )
    machine.apply(Answered(2.0, "work", {"decision": "repeat"}))
    assert machine.state.messages == []
