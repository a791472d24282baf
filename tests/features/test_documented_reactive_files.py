"""Documented fragments about files of the reactive dialect: how workflows are found by name, what they import, and
how they are composed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from support.programs import Programs
from support.reactive_agents import Handed, played
from support.rendered import Service
from workflows_mcp.errors import UnknownWorkflow
from workflows_mcp.settings.model import Settings

BASIC = r"""
# Workflow files are loaded by name from:
# 1. ./.aromcp/workflows/standards:fix.yaml (project-specific, checked first)
# 2. ~/.aromcp/workflows/standards:fix.yaml (user global, fallback)
name: "standards:fix"
description: "What this workflow accomplishes"
version: "1.0.0"

# Import shared components
imports:
  - "shared/common-tasks.yaml"

# Default state initialization (automatically set by MCP on workflow.start)
default_state:
  raw:
    start_time: "{{ now() }}"
    batch_status: {}
    file_results: {}
    errors: []

# Define state structure with reactive transformations
state_schema:
  # Raw state - set by agents
  raw:
    command_output: string
    file_list: array

  # Computed state - automatically derived by MCP
  computed:
    filtered_files:
      from: "raw.file_list"
      transform: |
        input
          .filter(f => !f.includes('node_modules'))
          .filter(f => !f.includes('.min.'))
          .filter(f => !f.endsWith('.d.ts'))

    file_batches:
      from: "computed.filtered_files"
      transform: |
        input.reduce((batches, file, index) => {
          const batchIndex = Math.floor(index / 3);
          if (!batches[batchIndex]) batches[batchIndex] = [];
          batches[batchIndex].push(file);
          return batches;
        }, []).map((files, idx) => ({
          id: `batch_${idx}`,
          files: files,
          status: 'pending'
        }))

    ready_batches:
      from: ["computed.file_batches", "raw.batch_status"]
      transform: |
        input[0].filter(batch =>
          (input[1][batch.id] || 'pending') === 'pending'
        )

# Workflow inputs
inputs:
  param_name:
    type: string
    default: "value"
    required: false
    description: "Parameter description"

# Workflow steps - MCP interprets these
steps:
  - id: "step_id"
    type: "shell_command"
    command: "git diff --name-only HEAD"
    output_format: "lines"
    state_update:
      path: "raw.file_list"

# Sub-agent task definitions
sub_agent_tasks:
  task_name:
    inputs:
      param: "value"
    steps:
      - id: "substep"
        type: "mcp_call"
        # Sub-agent step configuration
"""

COMPOSITION = r"""
# shared/check-standards.yaml
workflow:
  name: "shared:check-standards"

  state_schema:
    raw:
      files: array
      typescript_results: object
      lint_results: object

    computed:
      files_with_errors:
        from: ["raw.typescript_results", "raw.lint_results"]
        transform: |
          Object.keys(input[0])
            .filter(f => input[0][f].errors > 0 || input[1][f].errors > 0)

      total_issues:
        from: ["raw.typescript_results", "raw.lint_results"]
        transform: |
          Object.values(input[0]).reduce((sum, r) => sum + r.errors, 0) +
          Object.values(input[1]).reduce((sum, r) => sum + r.errors, 0)

  steps:
    - id: "check_typescript"
      type: "foreach"
      items: "{{ inputs.files }}"
      steps:
        - type: "mcp_call"
          mcp:
            method: "check_typescript"
            params:
              files: ["{{ item }}"]
          state_update:
            path: "raw.typescript_results.{{ item }}"
            value: "{{ result }}"

    - id: "check_lint"
      type: "foreach"
      items: "{{ inputs.files }}"
      steps:
        - type: "mcp_call"
          mcp:
            method: "lint_project"
            params:
              target_files: "{{ item }}"
          state_update:
            path: "raw.lint_results.{{ item }}"
            value: "{{ result }}"

# main-workflow.yaml
imports:
  - "shared/check-standards.yaml"

steps:
  - id: "run_checks"
    type: "include_workflow"
    workflow: "shared:check-standards"
    inputs:
      files: "{{ valid_files }}"
    # Computed state from included workflow is available
"""


@pytest.fixture
def folder(workspace: Path) -> Path:
    """Where a project has its workflows."""
    path = workspace / ".aromcp" / "workflows"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a user has workflows for all projects."""
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    path = tmp_path / "user" / ".aromcp" / "workflows"
    path.mkdir(parents=True)
    return path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


# A whole workflow

COMMON = 'sub_agent_tasks: {tidy: {steps: [{type: user_message, message: "tidy"}]}}\n'
HAND_OUT = """\
  - type: parallel_foreach
    items: "{{ ready_batches }}"
    sub_agent_task: task_name

# Sub-agent task definitions"""
CHANGED = "src/a.ts\nnode_modules/x.js\nsrc/b.min.js\nsrc/c.d.ts\nsrc/d.js\nsrc/e.ts\nsrc/f.ts\n"


@pytest.mark.rows("R1", "R2", "R3", "R4", "R9", "R15", "R16")
def test_the_basic_structure_runs_from_its_inputs_to_its_tasks(
    folder: Path, settings: Settings, programs: Programs
) -> None:
    text = BASIC.replace(
        "# Sub-agent step configuration",
        'mcp: {method: lint_project, params: {target_files: "{{ files }}", with: "{{ param }}"}}',
    ).replace("# Sub-agent task definitions", HAND_OUT)
    write(folder / "standards:fix.yaml", text)
    write(folder / "shared" / "common-tasks.yaml", COMMON)
    programs.add("git", f"cat <<'X'\n{CHANGED}X")
    replies: dict[Any, list[Any]] = {"batch_0": [{"issues": 0}], "batch_1": [{"issues": 1}]}
    run = played(settings, replies, workflow="standards:fix")
    assert run.answer["status"] == "completed"
    assert programs.calls == ["git diff --name-only HEAD"]
    assert run.state.pop("start_time").endswith("Z")
    files = ["src/a.ts", "src/d.js", "src/e.ts", "src/f.ts"]
    batches = [
        {"id": "batch_0", "files": files[:3], "status": "pending"},
        {"id": "batch_1", "files": files[3:], "status": "pending"},
    ]
    assert run.state == {
        "param_name": "value",
        "batch_status": {},
        "file_results": {},
        "errors": [],
        "file_list": CHANGED.split(),
        "filtered_files": files,
        "file_batches": batches,
        "ready_batches": batches,
    }
    assert [task["task_id"] for task in run.handed[0].definition["tasks"]] == ["batch_0", "batch_1"]
    definition = {"method": "lint_project", "params": {"target_files": files[3:], "with": "value"}}
    assert run.agents.handed["batch_1"] == [Handed("mcp_call", "substep", definition)]


@pytest.mark.rows("R1", "R2")
def test_as_it_is_written_the_structure_lacks_the_method_of_its_tool_alone(
    folder: Path, settings: Settings
) -> None:
    write(folder / "standards:fix.yaml", BASIC)
    write(folder / "shared" / "common-tasks.yaml", COMMON)

    async def go() -> None:
        async with Service.open(settings) as service:
            (found,) = [it for it in service.list_workflows() if it.name == "standards:fix"]
            problems = [problem for problem in found.problems if not problem.warning]
            assert len(problems) == 1
            assert "method" in problems[0].message
            assert problems[0].path[:2] == ("sub_agent_tasks", "task_name")

    asyncio.run(asyncio.wait_for(go(), 30))


# Composition

SHARED, MAIN = COMPOSITION.split("# main-workflow.yaml")
VALID = 'default_state: {raw: {valid_files: ["src/a.ts", "src/b.ts"]}}\n'


def composed(folder: Path, after: str = "") -> None:
    write(folder / "shared" / "check-standards.yaml", SHARED)
    write(folder / "main-workflow.yaml", VALID + MAIN.rstrip() + "\n" + after)


@pytest.mark.rows("R2", "R13", "R14")
def test_an_included_workflow_works_with_its_inputs_and_hands_on_what_it_computed(
    folder: Path, settings: Settings
) -> None:
    told = '"{{ total_issues }} issues in {{ files_with_errors }}, {{ valid_files.length }} files"'
    composed(folder, f"  - {{type: user_message, message: {told}}}\n")
    replies = [{"errors": 2}, {"errors": 0}, {"errors": 1}, {"errors": 0}]
    run = played(settings, replies, workflow="main-workflow")
    calls = [it.definition for it in run.handed if it.type == "mcp_call"]
    assert calls == [
        {"method": "check_typescript", "params": {"files": ["src/a.ts"]}},
        {"method": "check_typescript", "params": {"files": ["src/b.ts"]}},
        {"method": "lint_project", "params": {"target_files": "src/a.ts"}},
        {"method": "lint_project", "params": {"target_files": "src/b.ts"}},
    ]
    assert run.messages == ['3 issues in ["src/a.ts"], 2 files']
    assert run.state == {"valid_files": ["src/a.ts", "src/b.ts"]}, "each has a state of its own"


@pytest.mark.rows("R2")
def test_an_import_that_is_missing_is_named_with_the_place_where_it_was_looked_for(
    folder: Path, settings: Settings
) -> None:
    composed(folder)
    (folder / "shared" / "check-standards.yaml").unlink()

    async def go() -> None:
        async with Service.open(settings) as service:
            problems = service.validate(
                (folder / "main-workflow.yaml").read_text(encoding="utf-8"),
                file=str(folder / "main-workflow.yaml"),
            )
            said = "\n".join(f"{problem.message} {problem.hint}" for problem in problems)
            assert "shared/check-standards.yaml" in said

    asyncio.run(asyncio.wait_for(go(), 30))


@pytest.mark.rows("R2", "R7")
def test_of_the_fields_of_an_included_workflow_the_computed_ones_go_first(
    folder: Path, settings: Settings
) -> None:
    write(
        folder / "inner.yaml",
        "default_state: {raw: {total: raw, kept: raw}, state: {kept: state}}\n"
        "state_schema: {computed: {total: {from: raw.kept, transform: \"'computed'\"}}}\n"
        "steps: [{type: exit}]\n",
    )
    steps = "- {type: include_workflow, workflow: inner}\n- {type: user_message, message: '{{ total }} {{ kept }}'}\n"
    write(folder / "outer.yaml", f"steps:\n{steps}")
    assert played(settings, workflow="outer").messages == ["computed raw"]


# Names


def telling(text: str, name: str = "") -> str:
    return f'{name}steps: [{{type: user_message, message: "{text}"}}]\n'


@pytest.mark.rows("R1")
def test_a_project_comes_before_the_user_and_both_are_found_by_name(
    folder: Path, home_folder: Path, settings: Settings
) -> None:
    write(folder / "standards:fix.yaml", telling("of the project"))
    write(home_folder / "standards:fix.yaml", telling("of the user"))
    write(home_folder / "code:format.yaml", telling("of the user"))
    assert played(settings, workflow="standards:fix").messages == ["of the project"]
    assert played(settings, workflow="code:format").messages == ["of the user"]


@pytest.mark.rows("R1")
@pytest.mark.parametrize("name", ["Standards:Fix", "standards:fix.yaml", "deps:analyze"])
def test_a_name_that_is_not_there_is_told_with_the_places_that_were_looked_at(
    name: str, folder: Path, home_folder: Path, settings: Settings
) -> None:
    write(folder / "standards:fix.yaml", telling("of the project"))

    async def go() -> None:
        async with Service.open(settings) as service:
            with pytest.raises(UnknownWorkflow) as caught:
                await service.start(workflow=name)
            said = f"{caught.value.message} {caught.value.hint}"
            assert f"'{name}'" in said
            assert str(folder) in said
            assert str(home_folder) in said
            if name.lower().startswith("standards"):
                assert "did you mean 'standards:fix'?" in said

    asyncio.run(asyncio.wait_for(go(), 30))
