"""Every field of an answer is in the output schema of its tool. `Agent.call` looks at every answer that the tests
of this folder get; here are the fields that only few answers have."""

from __future__ import annotations

from typing import Any

import pytest

from support.declared import undeclared

TOLERATED = """\
name: tolerated
blocks:
  - {id: lint, type: Shell, on_failure: continue, inputs: {command: "exit 3"}}
  - {id: ship, type: Shell, depends_on: [lint], inputs: {command: "true"}}
outputs: {shipped: "${blocks.ship.outputs.exit_code}"}
"""


def test_what_a_schema_does_not_name_is_found_at_any_depth() -> None:
    schema = {
        "properties": {
            "runs": {"type": "array", "items": {"properties": {"id": {}}}},
            "any": {"type": "object"},
            "step": {"anyOf": [{"properties": {"id": {}}}, {"type": "null"}]},
        }
    }
    fine = {"runs": [{"id": 1}], "any": {"x": 1}, "step": None}
    assert undeclared("tool", schema, fine) == []
    wrong = {"runs": [{"id": 1, "a": 2}], "step": {"id": 1, "b": 2}, "c": 3}
    assert sorted(undeclared("tool", schema, wrong)) == ["c", "runs.a", "step.b"]


@pytest.mark.parametrize(
    ("toolset", "starts", "takes"),
    [
        ("core", "start_workflow", "yaml"),
        ("stateful", "start_workflow", "yaml"),
        ("graph", "execute_inline_workflow", "workflow_yaml"),
    ],
)
def test_the_blocks_that_failed_in_a_run_that_completed_are_in_every_output_schema(
    place: Any, toolset: str, starts: str, takes: str
) -> None:
    (place.workspace / "workflows.toml").write_text(f'toolsets = ["{toolset}"]\n')

    async def work(agent: Any) -> None:
        ended = await agent.call(starts, **{takes: TOLERATED})
        assert [it["block"] for it in ended["failed_blocks"]] == ["lint"]
        run_id = ended["workflow_id"]
        if toolset == "graph":
            ended = await agent.call("resume_workflow", checkpoint_id=run_id)
            assert [it["block"] for it in ended["failed_blocks"]] == ["lint"]
            return
        for tool in ("get_workflow_status", "get_next_step"):
            ended = await agent.call(tool, workflow_id=run_id)
            assert [it["block"] for it in ended["failed_blocks"]] == ["lint"]
        forked = await agent.call("control_workflow", workflow_id=run_id, action="fork", step_id="lint")
        assert [it["block"] for it in forked["failed_blocks"]] == ["lint"]

    place.serve(work)
