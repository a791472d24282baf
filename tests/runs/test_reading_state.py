"""Paths of `get_workflow_state`: what the overview shows under a name can be read by that name."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from support.rendered import Service
from workflows_mcp.settings import Settings

REACTIVE = """\
name: reactive
default_state: {raw: {count: 2, name: raw}, state: {name: own, kept: 1}}
state_schema: {raw: {count: number, name: string}, computed: {double: {from: raw.count, transform: "input * 2"}}}
steps:
  - {id: ask, type: user_input, prompt: Go?}
"""
STATEFUL = """\
name: stateful
initial_state: {count: 2}
steps:
  - {id: ask, type: prompt, prompt_type: text, needs_state: [], message: Go?}
"""


@pytest.mark.rows("R20")
def test_each_field_of_the_overview_is_read_by_its_path(tmp_path: Path) -> None:
    async def go() -> None:
        async with Service.open(Settings(home=tmp_path, workspace=tmp_path)) as service:
            for text in (REACTIVE, STATEFUL):
                run_id = (await service.start(text=text, wait_seconds=20))["workflow_id"]
                fields = (await service.state(run_id))["state"]
                assert fields["count"] == 2
                own = {f"state.{name}": value for name, value in fields.items() if name != "name"}
                values = (await service.state(run_id, paths=[*own, "state"]))["values"]
                assert values["state"].keys() == fields.keys()
                assert values == {**own, "state": values["state"]}
            run_id = (await service.start(text=REACTIVE, wait_seconds=20))["workflow_id"]
            found = await service.state(run_id, paths=["name", "state.name", "raw.name", "state.double"])
            assert found["values"] == {
                "name": "raw",
                "state.name": "own",
                "raw.name": "raw",
                "state.double": 4,
            }

    asyncio.run(asyncio.wait_for(go(), 30))
