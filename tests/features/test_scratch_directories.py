"""`$SCRATCH` belongs to one execution of a step, `$RUN_SCRATCH` to the run; from YAML to answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from support.plans import Do, block, bundle, plan
from support.rendered import Service
from workflows_mcp.machine.commands import RunStep
from workflows_mcp.machine.events import Started
from workflows_mcp.machine.machine import Machine
from workflows_mcp.plan.model import SEMANTICS
from workflows_mcp.settings.model import Settings

PARALLEL_ITEMS = """
name: downloads
blocks:
  - id: get
    type: Shell
    for_each: [a, b, c, d]
    inputs:
      command: |
        echo '"${each.value}"' > "$SCRATCH/out.json"
        touch "written-${each.value}"
        while [ "$(ls written-* | wc -l)" -lt 4 ]; do sleep 0.01; done  # until every item has written its file
    outputs:
      data: {type: json, path: $SCRATCH/out.json}
outputs: {data: "${blocks.get.outputs}"}
"""

EVERY_ATTEMPT = """
name: attempts
blocks:
  - id: flaky
    type: Shell
    retry: {attempts: 3, delay: 0}
    inputs:
      command: |
        [ ! -e "$SCRATCH/left" ] || { echo "a file of an earlier attempt is here"; exit 9; }
        touch "$SCRATCH/left"
        echo x >> "$RUN_SCRATCH/attempts"
        [ "$(wc -l < "$RUN_SCRATCH/attempts")" -ge 3 ]
"""

SHARED = """
name: shared
blocks:
  - {id: write, type: Shell, inputs: {command: 'echo one > "$RUN_SCRATCH/file"; echo "$SCRATCH"'}}
  - {id: call, type: Workflow, depends_on: [write], inputs: {workflow: reader}}
  - {id: template, type: RenderTemplate, depends_on: [call],
     inputs: {template: two, output_path: $RUN_SCRATCH/other}}
  - id: read
    type: Shell
    depends_on: [template]
    inputs: {command: 'cat "$RUN_SCRATCH/other"; ls "$RUN_SCRATCH"'}
    outputs: {file: {type: string, path: $RUN_SCRATCH/file}}
outputs: {called: "${blocks.call.outputs.said}", read: "${blocks.read.outputs.stdout}",
  file: "${blocks.read.outputs.file}"}
"""
READER = """
name: reader
blocks:
  - {id: read, type: Shell, inputs: {command: 'cat "$RUN_SCRATCH/file"; ls "$SCRATCH"'}}
outputs: {said: "${blocks.read.outputs.stdout}"}
"""


@pytest.mark.rows("G11")
def test_items_that_run_at_the_same_time_never_get_the_files_of_another(run: Any, workspace: Path) -> None:
    ran = run(PARALLEL_ITEMS)
    assert ran.answer["status"] == "completed"
    items = ran.answer["outputs"]["data"]
    assert [item["data"] for item in items["results"]] == ["a", "b", "c", "d"]


def test_every_attempt_begins_with_an_empty_directory(run: Any) -> None:
    ran = run(EVERY_ATTEMPT)
    assert (ran.answer["status"], ran.answer.get("error")) == ("completed", None)


def test_the_directory_of_the_run_is_shared_by_its_steps_and_by_called_workflows(
    run: Any, workspace: Path
) -> None:
    ran = run(SHARED, library={"reader": READER})
    assert ran.answer["outputs"] == {"called": "one\n", "read": "twofile\nother\n", "file": "one"}
    assert not any((workspace.parent / "home" / "scratch").iterdir()), "both go with the run"


RETRIED = """
name: ship
blocks:
  - id: build
    type: Shell
    inputs: {command: 'echo "{\\"n\\": 1}" > "$SCRATCH/built.json"; printf %s "$SCRATCH/built.json"'}
  - id: test
    type: Shell
    depends_on: [build]
    inputs: {command: '[ -f ready ] || { echo stale > "$SCRATCH/report"; exit 1; }'}
    outputs: {report: {type: string, path: $SCRATCH/report, required: false}}
  - {id: read, type: ReadJSONState, depends_on: [test], inputs: {path: "${blocks.build.outputs.stdout}"}}
  - {id: cat, type: Shell, depends_on: [test], inputs: {command: 'cat "${blocks.build.outputs.stdout}"'}}
outputs: {data: "${blocks.read.outputs.data}", cat: "${blocks.cat.outputs.stdout}",
  report: "${blocks.test.outputs.report}", path: "${blocks.build.outputs.stdout}"}
"""


@pytest.mark.rows("X3")
def test_a_retried_run_has_its_own_copy_of_the_files_that_kept_outputs_lead_to(
    settings: Settings, workspace: Path
) -> None:
    async def work() -> None:
        async with Service.open(settings) as service:
            old = await service.start(text=RETRIED)
            assert old["status"] == "failed"
            (workspace / "ready").touch()
            new = await service.retry(old["workflow_id"])
            assert (new["status"], new.get("error")) == ("completed", None)
            outputs = new["outputs"]
            assert (outputs["data"], outputs["cat"]) == ({"n": 1}, '{"n": 1}\n')
            assert outputs["report"] is None, "a step that is done again does not see what it left before"
            assert Path(outputs["path"]).is_relative_to(settings.scratch / new["workflow_id"])

    asyncio.run(work())


@pytest.mark.parametrize(("semantics", "shares"), [(1, True), (2, True), (SEMANTICS, False)])
def test_a_run_of_an_earlier_version_keeps_the_one_directory_that_its_steps_share(
    semantics: int, shares: bool
) -> None:
    main = replace(plan(block("a", Do("Shell", {"command": "true"}))), semantics=semantics)
    machine = Machine(bundle(main))
    (command,) = machine.apply(Started(0.0, "wf_1", {}))
    assert isinstance(command, RunStep)
    assert command.shares_scratch is shares
    (again,) = Machine(bundle(main), machine.snapshot()).outstanding(1.0, after_crash=False)
    assert isinstance(again, RunStep)
    assert again.execution == command.execution
    assert (again.execution.address, again.execution.attempt, again.execution.event) == ("a", "1", 1)
