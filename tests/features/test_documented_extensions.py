"""The documented examples of the graph dialect: block types and workflows of one's own, and errors that help."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from support.rendered import Service
from workflows_mcp.errors import InvalidInputs, UnknownWorkflow
from workflows_mcp.settings.model import Settings, load_settings
from workflows_mcp.steps.base import Step, StepContext, StepInputs, StepResult
from workflows_mcp.steps.registry import GROUP, StepRegistry

# Block types

MY_BLOCK = """
blocks:
  - id: my_block
    type: MyBlock  # Matches executor.type_name
    inputs:
      param: "value"
"""
PACKAGE = '''
import os

from pydantic import Field

from workflows_mcp.steps.base import Step, StepContext, StepInputs, StepOutputs, StepResult


class MyBlockInputs(StepInputs):
    param: str = Field(description="Parameter description")


class MyBlockOutputs(StepOutputs):
    result: str = ""
    success: bool = False


class MyBlock(Step):
    """Gives back its parameter."""

    name = "MyBlock"
    Inputs = MyBlockInputs
    Outputs = MyBlockOutputs

    def run(self, inputs: MyBlockInputs, context: StepContext) -> StepResult:
        if "CARELESS" in os.environ:
            print("a line of a careless block")
        return StepResult({"result": f"got {inputs.param}", "success": True})
'''


class Machine:
    """A machine on which a package with a block type is installed: its own processes find the entry point."""

    def __init__(self, directory: Path) -> None:
        self.workspace = directory / "machine"
        self.workspace.mkdir()
        installed = directory / "installed"
        about = installed / "my_block-1.0.dist-info"
        about.mkdir(parents=True)
        (installed / "my_block.py").write_text(PACKAGE, encoding="utf-8")
        (about / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: my-block\nVersion: 1.0\n", encoding="utf-8"
        )
        (about / "entry_points.txt").write_text(f"[{GROUP}]\nMyBlock = my_block:MyBlock\n", encoding="utf-8")
        kept = {name: value for name, value in os.environ.items() if not name.startswith("WORKFLOWS_")}
        self.environment = {
            **kept,
            "PYTHONPATH": str(installed),
            "WORKFLOWS_HOME": str(directory / "runs"),
            "HOME": str(directory),
            "NO_COLOR": "1",
        }

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "workflows_mcp", *arguments],
            cwd=self.workspace,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.rows("G26")
def test_a_block_type_of_a_package_is_found_run_and_checked_at_once(machine: Machine) -> None:
    file = machine.workspace / "mine.yaml"
    file.write_text(MY_BLOCK + "outputs: {result: '${blocks.my_block.result}'}\n", encoding="utf-8")
    ran = machine.run("run", "mine.yaml", "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["outputs"] == {"result": "got value"}

    file.write_text(MY_BLOCK.replace("param:", "parm:") + "outputs: {x: '${blocks.my_block.reslt}'}\n")
    checked = machine.run("validate", "mine.yaml", "--json")
    problems = json.loads(checked.stdout)["files"][0]["problems"]
    assert [problem["code"] for problem in problems] == ["unknown_input", "undefined"]
    assert "did you mean 'param'?" in problems[0]["hint"]
    assert "did you mean 'result'?" in problems[1]["hint"]


@pytest.mark.rows("G26")
def test_the_schema_of_workflows_knows_a_block_type_of_a_package(machine: Machine) -> None:
    said = machine.run("schema")
    assert said.returncode == 0, said.stderr
    schema = json.dumps(json.loads(said.stdout))
    assert '"MyBlock"' in schema
    assert "Parameter description" in schema


@pytest.mark.rows("G25", "G26")
def test_whatever_a_block_prints_stdout_carries_the_protocol_only(machine: Machine) -> None:
    client = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    call = {"name": "start_workflow", "arguments": {"yaml": MY_BLOCK}}
    machine.environment |= {"WORKFLOWS_LOG_LEVEL": "DEBUG", "CARELESS": "yes"}
    server = subprocess.Popen(
        [sys.executable, "-m", "workflows_mcp"],
        cwd=machine.workspace,
        env=machine.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    lines = []
    for message in (
        {"id": 1, "method": "initialize", "params": client},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": call},
    ):
        server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        server.stdin.flush()
        if "id" in message:
            lines.append(server.stdout.readline())
    out, err = server.communicate(timeout=30)  # closing its input ends the server
    said = [json.loads(line) for line in [*lines, *out.splitlines()]]
    assert {message["jsonrpc"] for message in said} == {"2.0"}
    answer = next(message for message in said if message.get("id") == 2)
    assert answer["result"]["structuredContent"]["status"] == "completed"
    assert "a line of a careless block" in err


DEPENDENCY = """
blocks:
  - id: step1
    type: SomeBlock

  - id: step2
    type: AnotherBlock
    depends_on:
      - step1  # step2 waits for step1
"""


@pytest.mark.rows("G1", "G26")
def test_blocks_of_own_types_wait_for_each_other(settings: Settings) -> None:
    order: list[str] = []

    class SomeBlock(Step):
        """Takes a turn, so that another block could overtake it."""

        name = "SomeBlock"

        async def run(self, inputs: StepInputs, context: StepContext) -> StepResult:
            await asyncio.sleep(0)
            order.append(self.name)
            return StepResult({})

    class AnotherBlock(Step):
        """Is noted at once."""

        name = "AnotherBlock"

        def run(self, inputs: StepInputs, context: StepContext) -> StepResult:
            order.append(self.name)
            return StepResult({})

    registry = StepRegistry(entry_points(group=GROUP), [SomeBlock(), AnotherBlock()])

    async def go() -> str:
        async with Service.open(settings, registry=registry) as service:
            return str((await service.start(text=DEPENDENCY))["status"])

    assert asyncio.run(asyncio.wait_for(go(), 30)) == "completed"
    assert order == ["SomeBlock", "AnotherBlock"]


# Workflows of one's own, and where they come from


def saying(name: str, word: str) -> str:
    return (
        f"name: {name}\nblocks:\n  - {{id: it, type: RenderTemplate, inputs: {{template: {word}}}}}\n"
        "outputs: {said: '${blocks.it.rendered}'}\n"
    )


@pytest.mark.rows("G21")
def test_later_directories_override_earlier_ones_and_all_override_what_is_built_in(
    tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, team = tmp_path / "my-workflows", tmp_path / "team-workflows"
    monkeypatch.setenv("HOME", str(tmp_path))
    environment = {
        "WORKFLOWS_TEMPLATE_PATHS": f"~/my-workflows, {team} ,{tmp_path / 'absent'}",
        "WORKFLOWS_HOME": str(tmp_path / "runs"),
    }
    settings = load_settings(environment, workspace=workspace)
    built_in = {item.name for item in Service.open(settings).list_workflows() if item.source == "built-in"}
    assert "example-hello" in built_in
    for directory, names in (
        (mine, ["example-hello", "python-ci-pipeline", "only-mine"]),
        (team, ["python-ci-pipeline"]),
    ):
        directory.mkdir()
        for name in names:
            (directory / f"{name}.yaml").write_text(saying(name, directory.name), encoding="utf-8")

    expected = {"example-hello": mine, "python-ci-pipeline": team, "only-mine": mine}

    async def go() -> None:
        async with Service.open(settings) as service:
            for name, directory in expected.items():
                assert service.workflow_info(name)["source"] == str(directory)
                assert (await service.start(workflow=name))["outputs"] == {"said": directory.name}
            sources = {item.name: item.source for item in service.list_workflows()}
            assert {name: sources[name] for name in expected} == {k: str(v) for k, v in expected.items()}
            assert sources["example-parallel"] == "built-in"

    asyncio.run(go())


# Errors that say what to do

NEEDS_MUCH = """
name: needs-much
inputs:
  environment: {type: string, description: Where to}
  version: {type: string, required: true}
  replicas: {type: integer, default: 2}
  note: {type: string, required: false}
blocks:
  - {id: it, type: Shell, inputs: {command: touch ran}}
"""


@pytest.mark.rows("G24")
def test_an_unknown_workflow_lists_the_available_ones(settings: Settings, workspace: Path) -> None:
    (workspace / ".workflows" / "a-build.yaml").write_text(saying("a-build", "x"), encoding="utf-8")

    async def go() -> None:
        async with Service.open(settings) as service:
            await service.start(workflow="a-biuld")

    with pytest.raises(UnknownWorkflow) as refused:
        asyncio.run(go())
    assert refused.value.message == "there is no workflow 'a-biuld'"
    assert refused.value.hint.startswith("did you mean 'a-build'? available: a-build, ")
    assert str(workspace / ".workflows") in refused.value.hint


@pytest.mark.rows("G17", "G24")
def test_missing_inputs_are_all_named_with_what_is_required(run: Any, workspace: Path) -> None:
    with pytest.raises(InvalidInputs) as refused:
        run(NEEDS_MUCH, {"replicas": 3})
    said = refused.value
    assert "missing input 'environment' (string, required)" in said.message
    assert "missing input 'version' (string, required)" in said.message
    assert "replicas" not in said.message
    assert (
        "environment (string, required), version (string, required), replicas (integer, default 2)"
        in said.hint
    )
    assert not (workspace / "ran").exists()
