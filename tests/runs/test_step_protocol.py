"""Atomic steps and the state at their limits: what is refused, what is slow, what was cut off."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from support.rendered import Service
from workflows_mcp.errors import InvalidResult, RequestError
from workflows_mcp.limits import Limits
from workflows_mcp.settings.model import Settings

Work = Callable[[Service], Awaitable[None]]
Serve = Callable[..., None]


@pytest.fixture
def serve(settings: Settings, workspace: Path) -> Serve:
    def go(text: str, work: Work, limits: Limits | None = None) -> None:
        (workspace / ".workflows" / "flow.yaml").write_text(text)
        used = dataclasses.replace(settings, limits=limits) if limits is not None else settings

        async def session() -> None:
            async with Service.open(used) as service:
                await work(service)

        asyncio.run(asyncio.wait_for(session(), 60))

    return go


@pytest.mark.rows("R20", "R6")
def test_an_update_after_which_a_field_could_not_be_computed_is_refused(serve: Serve) -> None:
    text = """
name: flow
default_state: {raw: {text: "[1]", count: 0}}
state_schema:
  computed:
    parsed: {from: raw.text, transform: JSON.parse(input), on_error: propagate}
    doubled: {from: raw.count, transform: input.x.y}
steps: [{id: ask, type: user_input, prompt: Go on?, state_update: {path: raw.answer}}]
"""

    async def work(service: Service) -> None:
        stepping = service.step_protocol
        run_id = (await stepping.start("flow", None, 10))["workflow_id"]
        both: list[dict[str, Any]] = [
            {"path": "raw.count", "value": 1},
            {"path": "raw.text", "value": "no json"},
        ]
        with pytest.raises(RequestError, match="the computed field 'parsed' cannot be computed") as refused:
            await stepping.update(run_id, both, None)
        assert "Nothing has changed" in refused.value.hint
        assert (await stepping.read(run_id, ("text", "count"), None)) == {"text": "[1]", "count": 0}
        made = await stepping.update(run_id, [{"path": "raw.text", "value": "[1, 2]"}], None)
        assert made == {"success": True, "computed": {"parsed": [1, 2]}}
        # a field that puts up with its errors is told of when its error is a new one
        made = await stepping.update(run_id, [{"path": "raw.count", "value": {"z": 1}}], None)
        assert (made["success"], made["computed"]) == (True, {})

    serve(text, work)


@pytest.mark.rows("R5", "R20")
def test_a_field_that_takes_too_long_holds_nobody_up(serve: Serve) -> None:
    text = """
name: flow
default_state: {raw: {go: false, n: 1}}
state_schema:
  computed:
    slow: {from: raw.go, transform: "while (input) {}; return 1"}
    quick: {from: raw.n, transform: input + 1}
steps: [{id: ask, type: user_input, prompt: Go on?, state_update: {path: raw.answer}}]
"""

    async def work(service: Service) -> None:
        stepping = service.step_protocol
        run_id = (await stepping.start("flow", None, 10))["workflow_id"]
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0.01)
                turns += 1

        meanwhile = asyncio.create_task(others())
        made = await stepping.update(run_id, [{"path": "raw.go", "value": True}], None)
        assert (made["success"], made["computed"]) == (True, {"slow": None})
        assert "slow" in made["errors"]["slow"] or "second" in made["errors"]["slow"]
        state = await stepping.read(run_id, (), None)
        assert (state["slow"], state["quick"]) == (None, 2)
        meanwhile.cancel()
        assert turns > 20

    serve(text, work, Limits(expression_seconds=0.3))


@pytest.mark.rows("R20")
def test_long_values_are_cut_and_the_note_leads_to_the_rest(serve: Serve) -> None:
    text = """
name: flow
default_state: {raw: {text: "{{ 'x'.repeat(9000) }}"}}
steps: [{id: ask, type: user_input, prompt: "{{ text }}", state_update: {path: raw.answer}}]
"""

    async def work(service: Service) -> None:
        started = await service.step_protocol.start("flow", None, 10)
        run_id, step = started["workflow_id"], started["step"]
        for shown, path in (
            (started["state"]["text"], "text"),
            (step["definition"]["prompt"], "actions.ask.parameters.prompt"),
            ((await service.step_protocol.read(run_id, ("raw.text",), None))["raw.text"], "raw.text"),
        ):
            assert f'paths=["{path}"]' in shown
            found = await service.state(run_id, paths=[path], offset=8990)
            assert found["values"][path] == "x" * 10
        assert "the definition itself" in step["variable_replacements"]["{{ text }}"]

    serve(text, work)


@pytest.mark.rows("R19")
def test_a_result_that_does_not_fit_the_state_is_refused_before_it_is_taken(serve: Serve) -> None:
    text = """
name: flow
state_schema: {raw: {count: number}}
steps: [{id: ask, type: mcp_call, method: count, state_update: {path: raw.count}}]
"""

    async def work(service: Service) -> None:
        run_id = (await service.step_protocol.start("flow", None, 10))["workflow_id"]
        with pytest.raises(InvalidResult, match=r"'raw\.count' is declared as number"):
            await service.step_protocol.complete_step(run_id, "ask", result="many")
        done = await service.step_protocol.complete_step(run_id, "ask", result=3, wait_seconds=10)
        assert done["status"] == "completed"

    serve(text, work)


@pytest.mark.rows("R19", "R14")
def test_a_step_without_a_place_for_its_result_needs_none(serve: Serve) -> None:
    text = """
name: flow
default_state: {raw: {rounds: 0}}
steps:
  - id: again
    type: while
    condition: "{{ rounds < 2 }}"
    body:
      - {id: ping, type: mcp_call, method: ping}
      - {type: state_update, path: raw.rounds, operation: increment}
"""

    async def work(service: Service) -> None:
        stepping = service.step_protocol
        started = await stepping.start("flow", None, 10)
        run_id = started["workflow_id"]
        assert started["step"]["id"] == "ping"
        second = await stepping.complete_step(run_id, "ping", wait_seconds=10)
        assert second["step"]["id"] == "ping@2"
        # a late answer to the first question is not taken for one to the second
        repeated = await stepping.next_step(run_id, None, 0)
        assert repeated["step"]["id"] == "ping@2"
        done = await stepping.complete_step(run_id, "ping@2", wait_seconds=10)
        assert (done["status"], done["step"]) == ("completed", None)

    serve(text, work)


@pytest.mark.rows("R20")
@pytest.mark.parametrize(
    "pending",
    [
        "[{id: ask, type: user_input, prompt: Go on?}]",
        "[{id: pause, type: wait, duration_seconds: 1000}]",
        "[{id: each, type: parallel_foreach, items: [a], sub_agent_task: look}]\n"
        "sub_agent_tasks: {look: {default_state: {raw: {n: 9}}, steps: [{type: mcp_call, method: check}]}}",
    ],
    ids=["a question", "a wait", "tasks"],
)
def test_an_update_changes_the_state_of_the_included_workflow_that_is_pending(
    pending: str, serve: Serve, workspace: Path
) -> None:
    inner = f"name: inner\ndefault_state: {{raw: {{n: 1}}}}\nsteps: {pending}\n"
    (workspace / ".workflows" / "inner.yaml").write_text(inner)
    text = "name: flow\ndefault_state: {raw: {n: 100}}\nsteps: [{type: include_workflow, workflow: inner}]\n"

    async def work(service: Service) -> None:
        run_id = (await service.step_protocol.start("flow", None, 0))["workflow_id"]
        assert await service.step_protocol.read(run_id, ("n",), None) == {"n": 1}
        await service.step_protocol.update(run_id, [{"path": "raw.n", "operation": "increment"}], None)
        assert await service.step_protocol.read(run_id, ("n",), None) == {"n": 2}
        found = await service.state(run_id, paths=["raw"])
        assert found["values"]["raw"] == {"n": 100}, "the caller's own"

    serve(text, work)
