"""Security levels and capabilities: what a step type declares is enforced before a run and in it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from support.rendered import Service
from workflows_mcp.errors import Forbidden, InvalidResult
from workflows_mcp.settings.model import Settings
from workflows_mcp.steps.base import Question, Step, StepContext, StepInputs, StepOutputs, StepResult
from workflows_mcp.steps.registry import StepRegistry, default_registry

pytestmark = pytest.mark.rows("G23")

T = TypeVar("T")

MIXED = """\
name: mixed
blocks:
  - {id: ask, type: Prompt, inputs: {prompt: go on}}
  - {id: build, type: Shell, depends_on: [ask], inputs: {command: touch built}}
  - {id: report, type: CreateFile, depends_on: [ask], inputs: {path: report.md, content: x}}
  - {id: call, type: ExecuteWorkflow, depends_on: [ask], inputs: {workflow: inner}}
"""
INNER = "name: inner\nblocks:\n  - {id: deep, type: Shell, inputs: {command: touch deep}}\n"


class Fetch(Step):
    """A step type of somebody else's, which says what it needs."""

    name = "Fetch"
    level = "trusted"
    capabilities = frozenset({"network"})

    def run(self, inputs: StepInputs, context: StepContext) -> StepResult:
        return StepResult({"fetched": True})


class Sneaky(Step):
    """A step type of somebody else's, which does not."""

    name = "Sneaky"

    def run(self, inputs: StepInputs, context: StepContext) -> StepResult:
        context.world.write(context.world.path_for_writing("sneaked"), b"x")
        return StepResult({})


class Deploy(Step):
    """Has the agent do something that not every agent should."""

    name = "Deploy"
    performer = "agent"
    level = "privileged"
    capabilities = frozenset({"run_commands"})

    class Inputs(StepInputs):
        target: str = ""

    class Outputs(StepOutputs):
        done: bool = False

    def ask(self, inputs: Any) -> Question:
        schema = {"type": "object", "properties": {"done": {"type": "boolean"}}, "required": ["done"]}
        return Question("deploy", f"Deploy to {inputs.target}.", {"target": inputs.target}, schema, "done")


@pytest.fixture
def registry() -> StepRegistry:
    known = default_registry()
    return StepRegistry(steps=[*(known.get(name) for name in known.names()), Fetch(), Sneaky(), Deploy()])


def with_service(settings: Settings, registry: StepRegistry, work: Callable[[Service], Awaitable[T]]) -> T:
    async def session() -> T:
        async with Service.open(settings, registry=registry) as service:
            return await work(service)

    return asyncio.run(asyncio.wait_for(session(), 30))


def refusal(settings: Settings, registry: StepRegistry, text: str) -> Forbidden:
    async def work(service: Service) -> Forbidden:
        before = await service.recent()
        with pytest.raises(Forbidden) as caught:
            await service.start(text=text)
        assert await service.recent() == before, "nothing was started"
        return caught.value

    return with_service(settings, registry, work)


def ran(settings: Settings, registry: StepRegistry, text: str, *answers: Any) -> dict[str, Any]:
    async def work(service: Service) -> dict[str, Any]:
        answer = await service.start(text=text)
        for result in answers:
            answer = await service.submit(answer["workflow_id"], result)
        return answer

    return with_service(settings, registry, work)


def test_all_blocks_that_may_not_run_are_named_before_anything_runs(
    settings: Settings, workspace: Path, registry: StepRegistry
) -> None:
    (workspace / ".workflows" / "inner.yaml").write_text(INNER)
    strict = dataclasses.replace(
        settings, security_level="trusted", denied_capabilities=frozenset({"write_files"})
    )
    error = refusal(strict, registry, MIXED)
    assert error.code == "forbidden"
    assert "3 blocks may not run here" in error.message
    for said in (
        "1. block 'build' of workflow 'mixed' (Shell): it is privileged, and security_level is trusted; "
        "it needs write_files, and denied_capabilities has write_files",
        "2. block 'report' of workflow 'mixed' (CreateFile): it needs write_files",
        "3. block 'deep' of workflow 'inner' (Shell): it is privileged",
    ):
        assert said in error.message
    assert "WORKFLOWS_SECURITY_LEVEL=privileged" in error.hint
    assert "WORKFLOWS_DENIED_CAPABILITIES" in error.hint
    assert sorted(path.name for path in workspace.iterdir()) == [".workflows"]


def test_at_the_lowest_level_only_what_touches_nothing_runs(
    settings: Settings, registry: StepRegistry
) -> None:
    safe = dataclasses.replace(settings, security_level="safe")
    asks = "name: asks\nblocks:\n  - {id: ask, type: Prompt, inputs: {prompt: go on}}\n"
    assert ran(safe, registry, asks, "yes")["status"] == "completed"
    for step in ("ReadFile, inputs: {path: x}", "ExecuteWorkflow, inputs: {workflow: asks}"):
        (settings.workspace / ".workflows" / "asks.yaml").write_text(asks)
        error = refusal(safe, registry, f"name: x\nblocks:\n  - {{id: a, type: {step}}}\n")
        assert "it is trusted, and security_level is safe" in error.message


def test_not_to_allow_commands_is_to_deny_them(settings: Settings, registry: StepRegistry) -> None:
    without = dataclasses.replace(settings, allow_commands=False)
    denied = dataclasses.replace(settings, denied_capabilities=frozenset({"run_commands"}))
    text = "name: x\nblocks:\n  - {id: a, type: Shell, inputs: {command: touch x}}\n"
    assert "allow_commands is false" in refusal(without, registry, text).message
    assert "WORKFLOWS_ALLOW_COMMANDS=true" in refusal(without, registry, text).hint
    assert "denied_capabilities has run_commands" in refusal(denied, registry, text).message
    file = "name: x\nblocks:\n  - {id: a, type: CreateFile, inputs: {path: f, content: x}}\n"
    for narrowed in (without, denied):
        assert ran(narrowed, registry, file)["status"] == "completed"


def test_a_workflow_that_is_chosen_at_run_time_is_held_to_the_same(
    settings: Settings, workspace: Path, registry: StepRegistry
) -> None:
    (workspace / ".workflows" / "inner.yaml").write_text(INNER)
    text = (
        "name: chooses\ninputs: {which: {type: string, default: inner}}\nblocks:\n"
        "  - {id: call, type: ExecuteWorkflow, inputs: {workflow: '${inputs.which}'}}\n"
    )
    answer = ran(dataclasses.replace(settings, security_level="trusted"), registry, text)
    assert answer["status"] == "failed"
    assert answer["error"]["code"] == "forbidden"
    assert (
        "a Shell step may not run: it is privileged, and security_level is trusted"
        in answer["error"]["message"]
    )
    assert not (workspace / "deep").exists()


def test_a_run_that_a_server_with_other_settings_started_is_held_to_the_settings_of_the_one_that_goes_on(
    settings: Settings, workspace: Path, registry: StepRegistry
) -> None:
    (workspace / ".workflows" / "inner.yaml").write_text(INNER)
    run_id = ran(settings, registry, MIXED)["workflow_id"]
    strict = dataclasses.replace(settings, allow_commands=False)

    async def go_on(service: Service) -> dict[str, Any]:
        await service.submit(run_id, "yes")
        return await service.state(run_id, paths=["blocks"])

    blocks = with_service(strict, registry, go_on)["values"]["blocks"]
    assert blocks["build"]["metadata"]["status"] == "failed"
    assert "allow_commands is false" in blocks["build"]["metadata"]["message"]
    assert blocks["report"]["metadata"]["succeeded"]
    assert not (workspace / "built").exists()
    assert not (workspace / "deep").exists()


def test_step_types_of_others_are_held_to_what_they_declare_and_to_what_they_do_not(
    settings: Settings, workspace: Path, registry: StepRegistry
) -> None:
    fetch = "name: x\nblocks:\n  - {id: a, type: Fetch}\n"
    offline = dataclasses.replace(settings, denied_capabilities=frozenset({"network", "write_files"}))
    assert "block 'a' of workflow 'x' (Fetch): it needs network" in refusal(offline, registry, fetch).message
    assert ran(settings, registry, fetch)["status"] == "completed"
    answer = ran(offline, registry, "name: x\nblocks:\n  - {id: a, type: Sneaky}\n")
    assert answer["error"]["code"] == "forbidden"
    assert "writing files is switched off" in answer["error"]["message"]
    assert not (workspace / "sneaked").exists()


DEPLOYS = "name: deploys\nblocks:\n  - {id: a, type: Deploy, inputs: {target: production}}\n"


def test_an_agent_step_is_held_to_it_too(settings: Settings, registry: StepRegistry) -> None:
    strict = dataclasses.replace(settings, security_level="trusted")
    assert "block 'a' of workflow 'deploys' (Deploy)" in refusal(strict, registry, DEPLOYS).message
    asked = ran(settings, registry, DEPLOYS)
    assert asked["action"]["instructions"] == "Deploy to production."
    run_id = asked["workflow_id"]

    async def elsewhere(service: Service) -> dict[str, Any]:
        action: dict[str, Any] = (await service.next_step(run_id))["action"]
        assert "production" not in str(action)
        assert "it is privileged, and security_level is trusted" in action["instructions"]
        with pytest.raises(InvalidResult):
            await service.submit(run_id, {"done": True})
        return action

    assert with_service(strict, registry, elsewhere)["type"] == "forbidden"
    # Where it is allowed it can still be answered: nothing has changed.
    answer = with_service(settings, registry, lambda service: service.submit(run_id, {"done": True}))
    assert answer["status"] == "completed"


def test_an_agent_step_that_may_not_be_handed_out_can_be_let_fail(
    settings: Settings, workspace: Path, registry: StepRegistry
) -> None:
    (workspace / ".workflows" / "deploys.yaml").write_text(DEPLOYS)
    strict = dataclasses.replace(settings, security_level="trusted")
    text = (
        "name: chooses\ninputs: {which: {type: string, default: deploys}}\nblocks:\n"
        "  - {id: call, type: ExecuteWorkflow, inputs: {workflow: '${inputs.which}'}}\n"
    )
    answer = ran(strict, registry, text, {})
    assert answer["status"] == "failed"
    assert "it may not run here: it is privileged" in answer["error"]["message"]


def test_what_a_workflow_is_and_needs_and_what_would_be_refused_can_be_asked_before(
    settings: Settings, workspace: Path, registry: StepRegistry
) -> None:
    (workspace / ".workflows" / "inner.yaml").write_text(INNER)
    (workspace / ".workflows" / "mixed.yaml").write_text(MIXED)
    (workspace / ".workflows" / "fetch.yaml").write_text("name: fetch\nblocks:\n  - {id: a, type: Fetch}\n")

    async def infos(service: Service) -> list[dict[str, Any]]:
        return [service.workflow_info(name) for name in ("mixed", "fetch")]

    mixed, fetch = with_service(settings, registry, infos)
    assert (mixed["level"], fetch["level"]) == ("privileged", "trusted")
    assert fetch["needs"] == ["network"]
    assert "forbidden" not in mixed
    strict = dataclasses.replace(settings, security_level="trusted")
    mixed, fetch = with_service(strict, registry, infos)
    assert [said.split(" (")[0] for said in mixed["forbidden"]] == [
        "block 'build' of workflow 'mixed'",
        "block 'deep' of workflow 'inner'",
    ]
    assert "forbidden" not in fetch


DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "security.md"


def test_the_table_of_levels_and_capabilities_in_the_documents_is_what_the_classes_say() -> None:
    registry = default_registry()
    expected = []
    for name in registry.own_names():
        step = registry.get(name)
        needs = ", ".join(f"`{capability}`" for capability in sorted(step.capabilities)) or "nothing"
        expected.append(f"| `{step.name}` | {step.level} | {needs} |")
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    table = [line for line in lines if line.startswith("| `") and line.count("|") == 4]
    levels = [line for line in table if line.split("|")[2].strip() in ("safe", "trusted", "privileged")]
    assert sorted(levels) == sorted(expected)
