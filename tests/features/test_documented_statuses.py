"""The documented examples of the graph dialect: how a block went, and what that means for those after it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.programs import Programs
from support.rendered import Service
from workflows_mcp.errors import StepError
from workflows_mcp.settings.model import Settings
from workflows_mcp.steps.base import StepContext, StepResult
from workflows_mcp.steps.registry import GROUP, StepRegistry
from workflows_mcp.steps.shell import Shell

ENDS = {
    "success": {"type": "Shell", "inputs": {"command": "true"}},
    "failure": {"type": "Shell", "inputs": {"command": "exit 1"}, "on_failure": "continue"},
    "crashed": {"type": "ReadFile", "inputs": {"path": "nowhere.txt"}, "on_failure": "continue"},
    "skipped": {"type": "Shell", "inputs": {"command": "true"}, "condition": "false"},
}
"""A block for each way in which a block can end."""
STATES = {
    "success": ("completed", "success"),
    "failure": ("completed", "failure"),
    "crashed": ("failed", "n/a"),
    "skipped": ("skipped", "n/a"),
}


def conditions(fragment: str) -> list[str]:
    """Every condition of a fragment that shows several, one below the other."""
    parts = re.split(r"^(?=condition:|outputs:|#)", fragment, flags=re.M)
    return [yaml.safe_load(part)["condition"] for part in parts if part.startswith("condition:")]


def holds(run: Any, condition: str, end: str) -> bool:
    """What `condition` gives when the block that it speaks of has ended so. Outputs may look at every block."""
    (name,) = set(re.findall(r"blocks\.(\w+)\.", condition))
    document = {"name": "it", "blocks": [{"id": name, **ENDS[end]}], "outputs": {"holds": condition}}
    found = run(yaml.safe_dump(document)).answer["outputs"]["holds"]
    assert isinstance(found, bool)
    return found


# The shortcuts

SHORTCUTS = """
# Instead of: ${blocks.test.metadata.succeeded}
condition: "${blocks.test.succeeded}"

# Instead of: ${blocks.build.metadata.failed}
condition: "${blocks.build.failed}"

# Instead of: ${blocks.lint.metadata.skipped}
condition: "${blocks.lint.skipped}"
"""
TIER_1 = """
# Simple success/failure checks
condition: "${blocks.run_tests.succeeded}"   # True if completed successfully
condition: "${blocks.build.failed}"          # True if failed (any reason)
condition: "${blocks.optional.skipped}"      # True if skipped

# Workflow outputs
outputs:
  tests_passed: "${blocks.run_tests.succeeded}"
  deployment_failed: "${blocks.deploy.failed}"
"""
BOOLEANS = {
    "success": (True, False, False),
    "failure": (False, True, False),
    "crashed": (False, True, False),
    "skipped": (False, False, True),
}
"""How a block ended: succeeded, failed, skipped."""


@pytest.mark.rows("G4")
@pytest.mark.parametrize("fragment", [SHORTCUTS, TIER_1], ids=["shortcuts", "tier 1"])
@pytest.mark.parametrize("end", ENDS)
def test_the_shortcuts_say_whether_a_block_succeeded_failed_or_was_skipped(
    run: Any, fragment: str, end: str
) -> None:
    assert tuple(holds(run, condition, end) for condition in conditions(fragment)) == BOOLEANS[end]
    written_out = re.findall(r"Instead of: (.*)", fragment)
    assert tuple(holds(run, condition, end) for condition in written_out) in ((), BOOLEANS[end])


@pytest.mark.rows("G4", "G17")
def test_the_shortcuts_are_outputs_of_a_workflow(run: Any) -> None:
    blocks = [{"id": "run_tests", **ENDS["success"]}, {"id": "deploy", **ENDS["crashed"]}]
    outputs = TIER_1[TIER_1.index("outputs:") :]
    ran = run(yaml.safe_dump({"name": "tier-1", "blocks": blocks}) + outputs)
    assert ran.answer["outputs"] == {"tests_passed": True, "deployment_failed": True}


# Status and outcome

TIER_2 = """
# Check if executor finished (regardless of success)
condition: "${blocks.build.status} == 'completed'"

# Run cleanup if finished OR skipped
condition: "${blocks.test.status} in ['completed', 'skipped']"

# Detect executor crash specifically
condition: "${blocks.parse.status} == 'failed'"
"""
TIER_3 = """
# Operation failed (executor ran, operation failed)
condition: >
  ${blocks.build.status} == 'completed' and
  ${blocks.build.outcome} == 'failure'

# Executor crashed (couldn't run)
condition: >
  ${blocks.build.status} == 'failed' and
  ${blocks.build.outcome} == 'n/a'
"""


@pytest.mark.rows("G4")
@pytest.mark.parametrize(
    ("end", "finished", "finished_or_skipped", "crashed"),
    [
        ("success", True, True, False),
        ("failure", True, True, False),
        ("crashed", False, False, True),
        ("skipped", False, True, False),
    ],
)
def test_the_status_says_whether_a_block_was_carried_out(
    run: Any, end: str, finished: bool, finished_or_skipped: bool, crashed: bool
) -> None:
    expected = [finished, finished_or_skipped, crashed]
    assert [holds(run, condition, end) for condition in conditions(TIER_2)] == expected


@pytest.mark.rows("G4")
@pytest.mark.parametrize("end", ENDS)
def test_status_and_outcome_together_tell_a_crash_from_a_failure(run: Any, end: str) -> None:
    found = [holds(run, condition, end) for condition in conditions(TIER_3)]
    assert found == [end == "failure", end == "crashed"]


@pytest.mark.rows("G4", "G9")
@pytest.mark.parametrize("end", ENDS)
def test_a_block_that_has_ended_is_in_one_of_the_four_valid_states(run: Any, end: str) -> None:
    ran = run(yaml.safe_dump({"name": "ends", "blocks": [{"id": "it", **ENDS[end]}]}))
    metadata = ran.blocks["it"]["metadata"]
    assert (metadata["status"], metadata["outcome"]) == STATES[end]
    assert (metadata["succeeded"], metadata["failed"], metadata["skipped"]) == BOOLEANS[end]
    assert (metadata["message"] is None) == (end == "success")
    assert metadata["started_at"] <= metadata["completed_at"]
    assert metadata["execution_time_ms"] >= 0
    assert set(ran.blocks["it"]) >= {"inputs", "outputs", "metadata"}


@pytest.mark.rows("G4", "G9", "G15")
def test_a_block_that_has_not_ended_is_pending_running_or_paused(settings: Settings, workspace: Path) -> None:
    text = """
name: under-way
blocks:
  - {id: paused, type: Prompt, inputs: {prompt: "?"}}
  - {id: running, type: Shell, inputs: {command: 'until [ -e go ]; do sleep 0.01; done'}}
  - {id: pending, type: Shell, depends_on: [running], inputs: {command: 'true'}}
"""

    async def go() -> None:
        async with Service.open(settings) as service:
            answer = await service.start(text=text)
            assert answer["status"] == "pending_action"
            state = await service.state(answer["workflow_id"])
            assert {name: block["status"] for name, block in state["blocks"].items()} == {
                name: name for name in ("paused", "running", "pending")
            }
            for name in ("paused", "running"):
                path = f"blocks.{name}.metadata"
                found = await service.state(answer["workflow_id"], paths=[path])
                assert (found["values"][path]["status"], found["values"][path]["outcome"]) == (name, "n/a")
            (workspace / "go").touch()
            done = await service.submit(answer["workflow_id"], "fine")
            while done["status"] == "running":
                done = await service.status(answer["workflow_id"], wait_seconds=10)
            assert done["status"] == "completed"

    asyncio.run(asyncio.wait_for(go(), 30))


# When a block runs: the four states of what it depends on, required or not


@pytest.mark.rows("G7")
@pytest.mark.parametrize(
    ("end", "required", "runs"),
    [
        ("success", True, True),
        ("success", False, True),
        ("failure", True, False),
        ("failure", False, True),
        ("crashed", True, False),
        ("crashed", False, False),
        ("crashed, continue", True, False),
        ("crashed, continue", False, True),
        ("skipped", True, False),
        ("skipped", False, True),
    ],
)
def test_a_block_runs_or_is_skipped_by_the_table_and_so_do_those_behind_it(
    run: Any, end: str, required: bool, runs: bool
) -> None:
    end, _, goes_on = end.partition(", ")
    settled = {"on_failure": "continue"} if goes_on else {"on_failure": "fail"} if end == "crashed" else {}
    document = {
        "name": "table",
        "blocks": [
            {"id": "parent", **ENDS[end], **settled},
            {"id": "child", **ENDS["success"], "depends_on": [{"block": "parent", "required": required}]},
            {"id": "grandchild", **ENDS["success"], "depends_on": ["child"]},
            {"id": "great_grandchild", **ENDS["success"], "depends_on": ["grandchild"]},
            {"id": "in_any_case", **ENDS["success"], "depends_on": [{"block": "child", "required": False}]},
        ],
    }
    ran = run(yaml.safe_dump(document))
    metadata = {name: block["metadata"] for name, block in ran.blocks.items()}
    assert (metadata["parent"]["status"], metadata["parent"]["outcome"]) == STATES[end]
    wanted = "completed" if runs else "skipped"
    for name in ("child", "grandchild", "great_grandchild"):
        assert metadata[name]["status"] == wanted, name
    assert metadata["in_any_case"]["status"] == "completed", "a block that was skipped is no crash"
    if not runs:
        how = "was skipped" if end == "skipped" else "failed"
        assert metadata["child"]["message"] == f"its dependency 'parent' {how}"
        assert metadata["grandchild"]["message"] == "its dependency 'child' was skipped"


# Patterns

PATTERNS = """
# Deploy only if tests succeeded
- id: deploy
  type: Shell
  inputs:
    command: ./deploy.sh
  condition: "${blocks.run_tests.succeeded}"
  depends_on: [run_tests]

# Cleanup after build (success OR failure)
- id: cleanup
  type: Shell
  inputs:
    command: rm -rf build-cache/
  condition: "${blocks.build.status} == 'completed'"
  depends_on: [build]

# Notify about infrastructure failures
- id: alert_infra_team
  type: Shell
  inputs:
    command: ./alert.sh "Executor crashed"
  condition: "${blocks.deploy.status} == 'failed'"
  depends_on: [deploy]
"""
AROUND_PATTERNS = """
name: patterns
blocks:
- {id: run_tests, type: Shell, inputs: {command: pytest tests/}}
- {id: build, type: Shell, inputs: {command: make}}
"""


@pytest.fixture
def build(programs: Programs, workspace: Path) -> Programs:
    """All the programs of the patterns, and a cache to clean up; each succeeds."""
    programs.add("pytest")
    programs.add("make")
    programs.add("deploy.sh", at=workspace)
    programs.add("alert.sh", at=workspace)
    (workspace / "build-cache").mkdir()
    return programs


@pytest.mark.rows("G4", "G6", "G7")
def test_deploy_and_cleanup_run_after_success_and_nobody_is_alerted(
    run: Any, build: Programs, workspace: Path
) -> None:
    ran = run(AROUND_PATTERNS + PATTERNS)
    assert ran.answer["status"] == "completed"
    assert sorted(build.calls) == ["deploy.sh", "make", "pytest tests/"]
    assert not (workspace / "build-cache").exists()
    assert ran.blocks["alert_infra_team"]["metadata"]["status"] == "skipped"


@pytest.mark.rows("G4", "G6", "G7")
def test_nothing_is_deployed_when_the_tests_fail(run: Any, build: Programs) -> None:
    build.add("pytest", "exit 1")
    ran = run(AROUND_PATTERNS + PATTERNS)
    assert ran.answer["status"] == "completed"
    assert "deploy.sh" not in build.calls
    assert ran.blocks["deploy"]["metadata"]["status"] == "skipped"
    assert ran.blocks["alert_infra_team"]["metadata"]["status"] == "skipped"


@pytest.mark.rows("G4", "G7")
def test_cleaning_up_runs_after_a_failed_build_because_its_condition_decides(
    run: Any, build: Programs, workspace: Path
) -> None:
    build.add("make", "exit 2")
    ran = run(AROUND_PATTERNS + PATTERNS)
    assert ran.blocks["cleanup"]["metadata"]["status"] == "completed"
    assert not (workspace / "build-cache").exists()


@pytest.mark.rows("G7")
def test_a_dependency_that_says_that_it_is_required_is_so_whatever_the_condition_asks(
    run: Any, build: Programs, workspace: Path
) -> None:
    build.add("make", "exit 2")
    required = PATTERNS.replace("depends_on: [build]", "depends_on: [{block: build, required: true}]")
    ran = run(AROUND_PATTERNS + required)
    assert ran.blocks["cleanup"]["metadata"]["message"] == "its dependency 'build' failed"
    assert (workspace / "build-cache").exists()


class Broken(Shell):
    """Shell on a machine on which ./deploy.sh cannot be started."""

    async def run(self, inputs: Any, context: StepContext) -> StepResult:
        if inputs.command == "./deploy.sh":
            raise StepError("there is no machine to deploy from")
        return await super().run(inputs, context)


@pytest.mark.rows("G4", "G7")
def test_the_alert_about_a_crash_runs_and_the_run_has_failed(build: Programs, settings: Settings) -> None:
    from importlib.metadata import entry_points

    registry = StepRegistry(entry_points(group=GROUP), [Broken()])

    async def alerted(text: str) -> str:
        async with Service.open(settings, registry=registry) as service:
            answer = await service.start(text=AROUND_PATTERNS + text)
            assert answer["status"] == "failed"
            assert answer["error"]["message"] == "block 'deploy' failed: there is no machine to deploy from"
            path = "blocks.alert_infra_team.metadata.status"
            found = await service.state(answer["workflow_id"], paths=[path])
            return str(found["values"][path])

    assert asyncio.run(alerted(PATTERNS)) == "completed"
    assert build.calls.count("alert.sh Executor crashed") == 1
