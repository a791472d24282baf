"""The documented examples of the graph dialect: order, references, files, templates.

Every example stands in these files (test_documented_*.py) as it is documented; a fragment is put into the
smallest workflow that runs it. The programs that examples call (pytest, kubectl, ./deploy.sh) are stand-ins.
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from support.programs import Programs
from support.rendered import Service
from workflows_mcp.errors import DefinitionError
from workflows_mcp.settings.model import Settings

# The order of blocks

WAVES = """
blocks:
  - id: start
    type: Shell
    inputs:
      command: "echo 'Starting'"

  - id: parallel_a
    type: Shell
    inputs:
      command: "echo 'Task A'"
    depends_on: [start]

  - id: parallel_b
    type: Shell
    inputs:
      command: "echo 'Task B'"
    depends_on: [start]

  - id: merge
    type: Shell
    inputs:
      command: "echo 'Merging'"
    depends_on: [parallel_a, parallel_b]
"""


@pytest.mark.rows("G1", "G2", "G9")
def test_the_diamond_has_three_waves_and_runs_in_their_order(
    run: Any, settings: Settings, workspace: Path
) -> None:
    file = workspace / ".workflows" / "waves.yaml"
    file.write_text(WAVES, encoding="utf-8")
    waves: list[list[str]] = [[], [], []]
    for step in Service.open(settings).workflow_info("waves")["steps"]:
        waves[step["wave"]].append(step["id"])
    assert waves == [["start"], ["parallel_a", "parallel_b"], ["merge"]]

    ran = run(WAVES)
    assert ran.answer["status"] == "completed"
    assert [block["outputs"]["stdout"] for block in ran.blocks.values()] == [
        "Starting\n",
        "Task A\n",
        "Task B\n",
        "Merging\n",
    ]
    metadata = {name: block["metadata"] for name, block in ran.blocks.items()}
    assert {name: fields["wave"] for name, fields in metadata.items()} == {
        "start": 0,
        "parallel_a": 1,
        "parallel_b": 1,
        "merge": 2,
    }
    assert metadata["start"]["completed_at"] <= metadata["parallel_a"]["started_at"]
    assert metadata["parallel_b"]["started_at"] <= metadata["parallel_a"]["completed_at"], "at the same time"
    ended = max(metadata["parallel_a"]["completed_at"], metadata["parallel_b"]["completed_at"])
    assert ended <= metadata["merge"]["started_at"]


@pytest.mark.rows("G1")
def test_a_cycle_is_named_before_anything_runs(run: Any) -> None:
    circle = WAVES.replace("command: \"echo 'Starting'\"", "command: touch ran\n    depends_on: [merge]")
    with pytest.raises(DefinitionError, match="start → merge → parallel_a → start"):
        run(circle)


# References

PROJECT = {"project_name": "my-project", "version": "1.0.0", "workspace": "some/where"}
AROUND_REFERENCES = """
name: build-project
inputs: {project_name: string, version: string, workspace: string}
blocks:
  - id: run_tests
    type: Shell
    inputs:
      command: pytest tests/
outputs:
"""
REFERENCES = [
    """
   ${inputs.project_name}
   ${inputs.version}
""",
    """
   ${metadata.workflow_name}
   ${metadata.start_time}
""",
    """
   ${blocks.run_tests.outputs.exit_code}
   ${blocks.run_tests.outputs.success}
""",
    """
   ${blocks.run_tests.exit_code}  # Same as outputs.exit_code
   ${blocks.run_tests.success}    # Same as outputs.success
""",
    """
   ${blocks.run_tests.inputs.command}  # For debugging
""",
    """
   ${blocks.run_tests.metadata.execution_time_ms}
   ${blocks.run_tests.metadata.wave}
""",
    """
# Workflow inputs
${inputs.project_name}
${inputs.workspace}

# Workflow metadata
${metadata.workflow_name}
${metadata.start_time}

# Block outputs (explicit)
${blocks.run_tests.outputs.exit_code}
${blocks.run_tests.outputs.stdout}

# Block outputs (shortcut - auto-expands to outputs)
${blocks.run_tests.exit_code}
${blocks.run_tests.success}

# Block inputs (for debugging)
${blocks.run_tests.inputs.command}

# Block metadata
${blocks.run_tests.metadata.execution_time_ms}
${blocks.run_tests.metadata.wave}

# Security boundary (blocked)
${__internal__.executor}  # ❌ Access denied
""",
]
VALUES = {
    "inputs.project_name": "my-project",
    "inputs.version": "1.0.0",
    "inputs.workspace": "some/where",
    "metadata.workflow_name": "build-project",
    "blocks.run_tests.outputs.exit_code": 0,
    "blocks.run_tests.outputs.success": True,
    "blocks.run_tests.outputs.stdout": "All tests passed\n",
    "blocks.run_tests.exit_code": 0,
    "blocks.run_tests.success": True,
    "blocks.run_tests.inputs.command": "pytest tests/",
    "blocks.run_tests.metadata.wave": 0,
}


@pytest.mark.rows("G3")
@pytest.mark.parametrize("listed", REFERENCES, ids=lambda text: text.split()[-1])
def test_every_documented_reference_gives_its_value_with_its_type(
    run: Any, programs: Programs, listed: str
) -> None:
    programs.add("pytest", "echo 'All tests passed'")
    paths = re.findall(r"^ *\$\{([^_][\w.]*)\}", listed, re.M)
    assert paths
    ran = run(AROUND_REFERENCES + "".join(f'  {path}: "${{{path}}}"\n' for path in paths), PROJECT)
    found = ran.answer["outputs"]
    if "metadata.start_time" in found:
        started = datetime.fromisoformat(found.pop("metadata.start_time"))
        assert started.tzinfo is not None
        assert started <= datetime.fromisoformat(ran.blocks["run_tests"]["metadata"]["completed_at"])
    took = found.pop("blocks.run_tests.metadata.execution_time_ms", 1.5)
    assert isinstance(took, float)
    assert took > 0
    assert found == {path: VALUES[path] for path in paths if path in VALUES}


@pytest.mark.rows("G5")
@pytest.mark.parametrize(
    "where",
    [
        "outputs: {x: '${__internal__.executor}'}",
        "  - {id: b, type: Shell, inputs: {command: 'echo ${__internal__.executor}'}}",
        "  - {id: b, type: Shell, condition: '${__internal__.executor} == 1', inputs: {command: 'true'}}",
        "outputs: {x: 'found ${blocks.a.__internal__.executor}'}",
    ],
)
def test_the_internal_namespace_is_denied_and_what_is_available_is_said(run: Any, where: str) -> None:
    around = "name: p\nblocks:\n  - {id: a, type: Shell, inputs: {command: touch ran}}\n"
    with pytest.raises(DefinitionError) as refused:
        run(around + where + "\n")
    (problem,) = refused.value.problems
    assert problem.code == "private"
    assert "'__internal__' is private" in problem.message
    assert "a reference starts with one of: blocks, inputs, metadata" in problem.hint


@pytest.mark.rows("G3", "G5", "G24")
def test_a_reference_that_leads_nowhere_lists_what_is_available_there(run: Any) -> None:
    with pytest.raises(DefinitionError) as refused:
        run(AROUND_REFERENCES + '  x: "${inputs.projct_name}"\n', PROJECT)
    said = str(refused.value)
    assert "${inputs.projct_name}: the workflow has no input 'projct_name'" in said
    assert "did you mean 'project_name'? inputs: project_name, version, workspace" in said


# Values in texts and files

CREATE_DIR_AND_FILE = """
blocks:
  - id: create_dir
    type: Shell
    inputs:
      command: "mkdir -p ${inputs.workspace}/output"

  - id: write_file
    type: CreateFile
    inputs:
      path: "${inputs.workspace}/README.md"
      content: |
        # ${inputs.project_name}
        Version: ${inputs.version}

        Tests: ${blocks.run_tests.outputs.success}
        Time: ${blocks.run_tests.metadata.execution_time_ms}ms
    depends_on: [run_tests]
"""
CREATE_FILE = """
  - id: create_file
    type: CreateFile
    inputs:
      path: "${inputs.workspace}/README.md"
      content: |
        # ${inputs.project_name}
        Version: ${inputs.version}

        Tests Passed: ${blocks.run_tests.succeeded}
        Exit Code: ${blocks.run_tests.outputs.exit_code}
"""
HEAD = "name: text\ninputs: {project_name: string, version: string, workspace: string}\n"
RUN_TESTS = """
  - id: run_tests
    type: Shell
    inputs: {command: pytest tests/}
"""


@pytest.mark.rows("G3", "G9", "G12")
def test_values_of_inputs_outputs_and_metadata_stand_in_a_file(
    run: Any, programs: Programs, workspace: Path
) -> None:
    programs.add("pytest")
    place = workspace / "project"
    ran = run(HEAD + CREATE_DIR_AND_FILE + RUN_TESTS, {**PROJECT, "workspace": str(place)})
    assert ran.answer["status"] == "completed", ran.answer
    took = ran.blocks["run_tests"]["metadata"]["execution_time_ms"]
    content = f"# my-project\nVersion: 1.0.0\n\nTests: true\nTime: {took}ms\n"
    assert (place / "README.md").read_text(encoding="utf-8") == content
    outputs = ran.blocks["write_file"]["outputs"]
    assert (outputs["file_path"], outputs["success"]) == (str(place / "README.md"), True)
    assert (place / "output").is_dir()


@pytest.mark.rows("G3", "G4", "G12")
@pytest.mark.parametrize(("exit_code", "passed"), [(0, "true"), (2, "false")])
def test_how_a_block_went_stands_in_a_file(
    run: Any, programs: Programs, workspace: Path, exit_code: int, passed: str
) -> None:
    programs.add("pytest", f"exit {exit_code}")
    depends = "    depends_on: [{block: run_tests, required: false}]\n"
    ran = run(HEAD + "blocks:" + RUN_TESTS + CREATE_FILE + depends, {**PROJECT, "workspace": "."})
    assert ran.answer["status"] == "completed"
    content = f"# my-project\nVersion: 1.0.0\n\nTests Passed: {passed}\nExit Code: {exit_code}\n"
    assert (workspace / "README.md").read_text(encoding="utf-8") == content


POPULATE_README = """
  - id: populate_readme
    type: RenderTemplate
    inputs:
      template: |
        # {{ project_name }}
        Version: {{ version }}
      variables:
        project_name: "MyApp"
        version: "1.0.0"
"""


@pytest.mark.rows("G12")
def test_a_template_is_rendered_with_its_variables(run: Any) -> None:
    ran = run("name: readme\nblocks:" + POPULATE_README)
    outputs = ran.blocks["populate_readme"]["outputs"]
    assert outputs["rendered"].rstrip("\n") == "# MyApp\nVersion: 1.0.0"
    assert outputs["success"] is True


@pytest.mark.rows("G12")
def test_a_template_that_is_strict_wants_every_variable(run: Any) -> None:
    lacking = "name: readme\nblocks:" + POPULATE_README.replace('        version: "1.0.0"\n', "")
    ran = run(lacking)
    assert ran.answer["status"] == "failed"
    assert "version" in ran.answer["error"]["message"]
    assert run(lacking + "      strict: false\n").answer["status"] == "completed"
