"""What every engine must do with steps of agents that a command of the settings performs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from support.engines import ENGINES, World, asks, ended, world_of
from support.plans import Do, ForEach, block, bundle, plan
from support.scripted_agent import ScriptedAgent
from workflows_mcp.engines.base import Engine
from workflows_mcp.machine.events import AgentsAssigned, CancelRequested
from workflows_mcp.machine.state import Identity
from workflows_mcp.plan import model
from workflows_mcp.steps.delegate import Delegate

pytestmark = pytest.mark.rows("P9")

Scenario = Callable[[World, Engine, ScriptedAgent], Awaitable[None]]


@pytest.fixture(params=ENGINES)
def on_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Scenario], None]:
    """Runs a scenario on one engine that knows the agent `helper`."""

    def run(scenario: Scenario) -> None:
        world, _ = world_of(request.param, tmp_path, request)
        agent = ScriptedAgent(tmp_path / "agent")
        world.agents["helper"] = agent.command("helper")
        world.more.append(Delegate())

        async def go() -> None:
            async with world.engine(request.param) as engine:
                await asyncio.wait_for(scenario(world, engine, agent), 20)

        asyncio.run(go())

    return run


def delegate(instructions: str) -> model.Do:
    return Do("Delegate", {"instructions": instructions}, by="agent", defaults={"response": ""})


ITEMS = plan(
    block("each", delegate("Review ${each.value}"), for_each=ForEach(["a", "b", "c"], agent="@task")),
    block("last", delegate("Sum up ${blocks.each['0'].response}"), needs=["each"]),
)


def test_a_command_performs_the_items_and_the_steps_of_agents(on_engine: Callable[[Scenario], None]) -> None:
    async def scenario(world: World, engine: Engine, agent: ScriptedAgent) -> None:
        agent.answers("Review", "fine")
        agent.answers("Sum up fine", "all fine")
        run_id = await engine.start(bundle(ITEMS), {}, agents={"*": "helper"})
        state = (await engine.wait(run_id, ended, 15)).state
        assert state.status == "completed", state.fault
        assert state.root.records["last"].outputs["response"] == "all fine"
        by = state.root.records["last"].by
        assert by is not None
        assert by.via == "command"
        tasks = {call["environment"]["WORKFLOWS_TASK"] for call in agent.calls}
        assert tasks == {run_id, *(f"{run_id}.each.{number}" for number in range(3))}

    on_engine(scenario)


def test_cancelling_ends_the_programs_and_their_children(on_engine: Callable[[Scenario], None]) -> None:
    async def scenario(world: World, engine: Engine, agent: ScriptedAgent) -> None:
        agent.answers("Review", waits_for="never", children=True)
        run_id = await engine.start(bundle(ITEMS), {}, agents={"@task": "helper"})
        while len(agent.children) < 6:
            await asyncio.sleep(0.01)
        processes = [psutil.Process(pid) for pid in agent.children]
        await engine.send(run_id, lambda _, now: CancelRequested(now))
        while any(it.is_running() and it.status() != psutil.STATUS_ZOMBIE for it in processes):
            await asyncio.sleep(0.01)
        assert (await engine.wait(run_id, ended, 10)).state.status == "cancelled"

    on_engine(scenario)


def test_only_agents_of_the_run_are_performed_until_another_is_assigned(
    on_engine: Callable[[Scenario], None],
) -> None:
    async def scenario(world: World, engine: Engine, agent: ScriptedAgent) -> None:
        agent.answers("Review", "fine")
        agent.answers("Sum up", "all fine")
        run_id = await engine.start(bundle(ITEMS), {}, agents={"@task": "helper"})
        state = (await engine.wait(run_id, asks, 15)).state
        assert [address for address, frame in state.frames.items() if frame.kind == "agent"] == ["last"]
        by = Identity("ada", via="terminal", human=True)
        await engine.send(run_id, lambda _, now: AgentsAssigned(now, {"*": "helper"}, by))
        state = (await engine.wait(run_id, ended, 15)).state
        assert state.root.records["last"].outputs["response"] == "all fine"

    on_engine(scenario)
