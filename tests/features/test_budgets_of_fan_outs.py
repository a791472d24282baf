"""A budget that runs out during a fan-out stops new tasks; what has begun continues, and a person can allow more."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from workflows_mcp.errors import RequestError
from workflows_mcp.runs import Identity, Service
from workflows_mcp.settings import Settings

REVIEW = """
name: review
budget: {sub_agents: 2, confirm_above: 2}
initial_state: {}
steps:
  - id: review
    type: foreach
    needs_state: []
    items: [a, b, c]
    agent: "@task"
    task: one
    output_to: reviews
  - {id: done, type: return, needs_state: [reviews], value: "{{ state.reviews }}"}
tasks:
  one:
    inputs: {path: {type: string, required: true}}
    steps:
      - {id: look, type: delegate, needs_state: [], instructions: "look at {{ inputs.path }}", output_to: found}
      - {id: back, type: return, needs_state: [found], value: "{{ state.found.response }}"}
"""
ADA = Identity("ada", "form", human=True)
AGENT = Identity("claude-code", "mcp", "claude-code")


def tasks_in(answer: Any) -> list[str]:
    action = answer.rendered("status").get("action", {"parameters": {"tasks": []}})
    return [task["workflow_id"].rpartition(".")[2] for task in action["parameters"]["tasks"]]


@pytest.mark.rows("P5")
def test_a_task_that_a_budget_holds_is_not_handed_out_and_starts_when_a_person_allows_more(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with Service.open(Settings(workspace=tmp_path, home=tmp_path / "home")) as service:
            asked = await service.start(text=REVIEW)
            run = asked.workflow_id
            assert [it.message for it in asked.decisions] == [
                "'review' starts about 3 sub-agents. Start them?"
            ]
            assert tasks_in(asked) == []

            begun = await service.decide(run, "allow", by=ADA)
            assert tasks_in(begun) == ["0", "1"]
            assert "sub_agents" in begun.decisions[0].message
            for task in ("0", "1"):
                await service.submit(f"{run}.review.{task}", {"response": task}, step_id="look")
            held = await service.status(run)
            assert (held.rendered("status")["status"], tasks_in(held)) == ("waiting", [])

            with pytest.raises(RequestError, match="only a person"):
                await service.raise_budget(run, {"sub_agents": 3}, by=AGENT)
            assert tasks_in(await service.status(run)) == []
            await service.raise_budget(run, {"sub_agents": 3}, by=ADA)
            assert tasks_in(await service.status(run)) == ["2"]
            await service.submit(f"{run}.review.2", {"response": "2"}, step_id="look")
            ended = await service.status(run)
            assert ended.rendered("status")["result"] == ["0", "1", "2"]

    asyncio.run(scene())
