"""While a tool waits, the client that asked for it is told how far the run is; a call that is given up leaves
its run running. A real server over real pipes, in both eras of the protocol."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from support.in_memory import ERAS

pytestmark = pytest.mark.rows("X8")

GATED = """\
name: gated
blocks:
  - {id: first, type: Shell, inputs: {command: "true"}}
  - {id: gate, type: Shell, depends_on: [first], inputs: {command: "until [ -e go ]; do sleep 0.02; done"}}
  - {id: last, type: Shell, depends_on: [gate], inputs: {command: "true"}}
"""


async def open_gate(place: Any) -> None:
    await asyncio.to_thread((place.workspace / "go").touch)


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize(
    ("toolset", "tool"),
    [("core", "start_workflow"), ("graph", "execute_workflow"), ("reactive", "workflow_start")],
)
def test_whoever_waits_is_told_how_far_the_run_is(place: Any, mode: str, toolset: str, tool: str) -> None:
    place.define("gated", GATED)
    (place.workspace / "workflows.toml").write_text(f'toolsets = ["{toolset}"]\n')
    last_seen: list[tuple[float, float | None, str | None]] = []

    async def work(agent: Any) -> None:
        async def tell(progress: float, total: float | None, message: str | None) -> None:
            last_seen.append((progress, total, message))
            if progress >= 1:
                await open_gate(place)

        arguments = {"workflow": "gated", "wait_seconds": 45}
        result = await agent.client.call_tool(tool, arguments, progress_callback=tell)
        assert not result.is_error
        assert result.structured_content["status"] in ("completed", "success")

    place.serve(work, mode=mode)
    assert [progress for progress, _, _ in last_seen] == sorted({progress for progress, _, _ in last_seen})
    assert all(0 <= progress < 3 and total == 3 for progress, total, _ in last_seen)
    assert any(message and message.startswith("running 'gate' for") for _, _, message in last_seen)


@pytest.mark.parametrize("mode", ERAS)
def test_a_call_that_is_cancelled_leaves_its_run_running(place: Any, mode: str) -> None:
    place.define("gated", GATED)

    async def work(agent: Any) -> None:
        async def runs() -> list[dict[str, Any]]:
            return list((await agent.call("get_workflow_status"))["runs"])

        with anyio.CancelScope() as call:

            async def give_up() -> None:
                while not await runs():
                    pass
                call.cancel()

            async with anyio.create_task_group() as both:
                both.start_soon(give_up)
                await agent.call("start_workflow", workflow="gated", wait_seconds=45)
        assert call.cancelled_caught
        [run] = await runs()
        assert run["status"] == "running"
        await open_gate(place)
        ended = await agent.call("get_workflow_status", workflow_id=run["workflow_id"], wait_seconds=45)
        assert ended["status"] == "completed"

    place.serve(work, mode=mode)


@pytest.mark.parametrize("mode", ERAS)
def test_a_run_outlives_the_session_in_which_it_was_waited_for(place: Any, mode: str) -> None:
    place.define("gated", GATED)

    async def leave(agent: Any) -> str:
        started = await agent.call("start_workflow", workflow="gated", wait_seconds=0)
        task = asyncio.create_task(
            agent.client.call_tool("get_workflow_status", {"workflow_id": started["workflow_id"]})
        )
        await asyncio.sleep(0)
        task.cancel()
        return str(started["workflow_id"])

    run_id = place.serve(leave, mode=mode)

    async def come_back(agent: Any) -> None:
        await open_gate(place)
        ended = await agent.call("get_workflow_status", workflow_id=run_id, wait_seconds=45)
        assert ended["status"] == "completed"

    place.serve(come_back, mode=mode)
