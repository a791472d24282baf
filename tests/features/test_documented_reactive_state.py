"""Documented fragments about the state of the reactive dialect: first values, fields that follow from others, and
what becomes of transforms that fail."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from support.fragments import workflow
from support.reactive_agents import played
from support.rendered import Service
from workflows_mcp.settings.model import Settings

SCHEMA_FEATURES = r"""
# Default state values (applied automatically on workflow.start)
default_state:
  raw:
    counter: 0
    status: "initialized"
    items: []
    config:
      retries: 3
      timeout: 5000

state_schema:
  # Simple raw fields
  raw:
    git_output: string
    test_results: object

  # Computed fields with single dependency
  computed:
    parsed_files:
      from: "raw.git_output"
      transform: "input.split('\\n').filter(l => l.trim())"

    # Computed from another computed field (cascading)
    valid_files:
      from: "computed.parsed_files"
      transform: |
        input.filter(f =>
          f.endsWith('.ts') ||
          f.endsWith('.js')
        )

    # Multiple dependencies
    analysis_summary:
      from: ["computed.valid_files", "raw.test_results"]
      transform: |
        {
          total_files: input[0].length,
          failed_tests: input[1].failed || 0,
          ready_to_deploy: input[0].length > 0 && input[1].failed === 0
        }

    # Access full state in transform (MCP provides flattened view internally)
    complex_calculation:
      from: "computed.valid_files"
      transform: |
        input.map(file => ({
          path: file,
          has_test: test_results.files?.includes(file),  // MCP provides flattened access
          batch: file_batches?.findIndex(b => b.includes(file))
        }))
"""

DEFAULT_STATE = r"""
default_state:
  raw:
    # Static values
    counter: 0
    enabled: true
    items: []

    # Dynamic values (evaluated by MCP on start)
    start_time: "{{ now() }}"
    workflow_run_id: "{{ uuid() }}"

    # Using inputs
    max_retries: "{{ inputs.retries || 3 }}"
    target_branch: "{{ inputs.branch || 'main' }}"

    # Complex structures
    config:
      timeout: 5000
      parallel_limit: "{{ inputs.parallel || 10 }}"
"""

UPDATES = r"""
# Agent sets raw state
- type: "shell_command"
  command: "find . -name '*.ts' -exec wc -l {} +"
  output_format: "lines"
  state_update:
    path: "raw.line_counts"  # Must use full path
    value: "{{ result }}"

# MCP automatically computes:
# - parsed_counts (parse the wc output)
# - large_files (files > 1000 lines)
# - summary_stats (total lines, avg, etc.)

# Agent can immediately use computed state in conditions
- type: "conditional"
  condition: "{{ large_files.length > 0 }}"  # Flattened path
  then:
    - type: "user_message"
      message: "Found {{ large_files.length }} large files"
"""

TRANSFORM_ERRORS = r"""
state_schema:
  raw:
    command_output: string

  computed:
    parsed_output:
      from: "raw.command_output"
      transform: |
        try {
          return JSON.parse(input);
        } catch (e) {
          return { error: 'Parse failed', raw: input };
        }

    safe_calculation:
      from: ["raw.value1", "raw.value2"]
      transform: "input[0] / input[1]"
      on_error: "use_fallback"
      fallback: 0
      validate: "typeof output === 'number' && !isNaN(output)"
"""

ERROR_TRACKING = r"""
# Automatic error tracking in state with defaults
default_state:
  raw:
    steps_completed: []
    steps_failed: []
    retry_counts: {}
    last_error: null
    workflow_errors: []

state_schema:
  raw:
    steps_completed: array
    steps_failed: array
    retry_counts: object
    last_error: object
    workflow_errors: array

  computed:
    can_retry:
      from: ["raw.steps_failed", "raw.retry_counts"]
      transform: |
        input[0].some(step =>
          (input[1][step] || 0) < 3
        )

    error_summary:
      from: ["raw.steps_failed", "raw.workflow_errors"]
      transform: |
        {
          failed_count: input[0].length,
          error_types: [...new Set(input[1].map(e => e.type))],
          first_error: input[1][0]
        }
"""


def first_state(settings: Settings, text: str, inputs: dict[str, Any] | None = None) -> dict[str, Any]:
    """What a run begins with: the state, and why computed fields have no values, before its first step."""
    before = "\nsteps:\n- {id: before, type: user_input, prompt: shall it begin?}\n"

    async def go() -> dict[str, Any]:
        async with Service.open(settings) as service:
            answer = await service.start(text=text.replace("\nsteps:\n", before), inputs=inputs or {})
            assert answer["action"]["step_id"] == "before"
            return await service.state(answer["workflow_id"])

    return asyncio.run(asyncio.wait_for(go(), 30))


# Fields that follow from others

COLLECT = """\
- type: mcp_call
  mcp: {method: changed_files}
  state_update: {path: raw.git_output}
- type: mcp_call
  mcp: {method: run_test_suite}
  state_update: {path: raw.test_results}
"""


@pytest.mark.rows("R3", "R4", "R6")
def test_fields_whose_sources_have_no_value_yet_are_null_and_stop_nothing(settings: Settings) -> None:
    overview = first_state(settings, workflow(COLLECT, SCHEMA_FEATURES))
    assert overview["state"] == {
        "counter": 0,
        "status": "initialized",
        "items": [],
        "config": {"retries": 3, "timeout": 5000},
        "parsed_files": None,
        "valid_files": None,
        "analysis_summary": None,
        "complex_calculation": None,
    }
    assert list(overview["computed_errors"]) == [
        "parsed_files",
        "valid_files",
        "analysis_summary",
        "complex_calculation",
    ]


@pytest.mark.rows("R4", "R5", "R8")
def test_fields_follow_from_one_or_several_others_and_from_computed_ones(settings: Settings) -> None:
    results = {"failed": 0, "files": ["a.ts"]}
    run = played(settings, ["a.ts\nb.py\n\nc.js\n", results], yaml=workflow(COLLECT, SCHEMA_FEATURES))
    assert run.errors == {}
    assert run.state["parsed_files"] == ["a.ts", "b.py", "c.js"]
    assert run.state["valid_files"] == ["a.ts", "c.js"]
    assert run.state["analysis_summary"] == {"total_files": 2, "failed_tests": 0, "ready_to_deploy": True}
    assert run.state["complex_calculation"] == [
        {"path": "a.ts", "has_test": True},  # nothing says what file_batches are: the batch is undefined
        {"path": "c.js", "has_test": False},
    ]


@pytest.mark.rows("R4")
def test_a_transform_reads_other_fields_by_their_bare_names(settings: Settings) -> None:
    schema = SCHEMA_FEATURES.replace("items: []", "items: []\n    file_batches: [[a.ts], [b.js, c.js]]")
    results = {"failed": 1, "files": []}
    run = played(settings, ["a.ts\nc.js", results], yaml=workflow(COLLECT, schema))
    assert [it["batch"] for it in run.state["complex_calculation"]] == [0, 1]
    assert run.state["analysis_summary"]["ready_to_deploy"] is False


COUNTS = r"""
state_schema:
  computed:
    parsed_counts:
      from: raw.line_counts
      transform: |
        input.map(line => line.trim().split(/\s+/)).filter(([, file]) => file !== 'total')
          .map(([lines, file]) => ({ file, lines: Number(lines) }))
    large_files:
      from: computed.parsed_counts
      transform: "input.filter(f => f.lines > 1000)"
    summary_stats:
      from: computed.parsed_counts
      transform: "({ total: input.reduce((sum, f) => sum + f.lines, 0), files: input.length })"
"""


@pytest.mark.rows("R4", "R9", "R13", "R14")
@pytest.mark.parametrize(("lines", "messages"), [(1001, ["Found 1 large files"]), (1000, [])])
def test_a_condition_sees_at_once_what_follows_from_a_result(
    lines: int, messages: list[str], settings: Settings, workspace: Path
) -> None:
    (workspace / "large.ts").write_text("x\n" * lines, encoding="utf-8")
    (workspace / "small.ts").write_text("x\n" * 7, encoding="utf-8")
    run = played(settings, yaml=workflow(UPDATES, COUNTS))
    assert run.messages == messages
    assert run.state["summary_stats"] == {"total": lines + 7, "files": 2}
    assert run.state["large_files"] == [{"file": "./large.ts", "lines": 1001}] * len(messages)


# First values

INPUTS = """
inputs:
  retries: {type: number, required: false}
  branch: {type: string, required: false}
  parallel: {type: number, required: false}
"""
NOTHING = '- {type: user_message, message: "done"}'
NOW = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


@pytest.mark.rows("R3")
def test_first_values_are_written_or_made_of_expressions(settings: Settings) -> None:
    state = first_state(settings, workflow(NOTHING, INPUTS, DEFAULT_STATE))["state"]
    assert NOW.fullmatch(state.pop("start_time"))
    assert UUID.fullmatch(state.pop("workflow_run_id"))
    assert state == {
        "counter": 0,
        "enabled": True,
        "items": [],
        "max_retries": 3,
        "target_branch": "main",
        "config": {"timeout": 5000, "parallel_limit": 10},
    }


@pytest.mark.rows("R3")
def test_first_values_are_made_of_inputs_and_keep_their_types(settings: Settings) -> None:
    inputs = {"retries": 7, "branch": "dev", "parallel": 2}
    state = first_state(settings, workflow(NOTHING, INPUTS, DEFAULT_STATE), inputs)["state"]
    assert (state["max_retries"], state["target_branch"]) == (7, "dev")
    assert state["config"] == {"timeout": 5000, "parallel_limit": 2}
    assert {name: state[name] for name in inputs} == inputs


@pytest.mark.rows("R3")
def test_first_values_stay_as_they_were_when_the_run_began(settings: Settings) -> None:
    """Time and random ids are taken once, so that whoever goes on with the run finds the same."""
    text = workflow("- {id: wait, type: user_input, prompt: go on?}", INPUTS, DEFAULT_STATE)
    seen: list[Any] = []

    async def look(run_id: str) -> str:
        async with Service.open(settings) as service:  # another process would do the same
            run_id = run_id or (await service.start(text=text))["workflow_id"]
            seen.append((await service.state(run_id))["state"])
            return run_id

    run_id = asyncio.run(look(""))
    asyncio.run(look(run_id))
    assert seen[0] == seen[1]
    asyncio.run(look(""))
    assert seen[2]["workflow_run_id"] != seen[0]["workflow_run_id"]


# Transforms that fail

VALUES = """
inputs:
  command_output: {type: string}
  value1: {type: number}
  value2: {type: number}
"""


@pytest.mark.rows("R5", "R6")
@pytest.mark.parametrize(
    ("output", "parsed", "numbers", "calculated", "wrong"),
    [
        ('{"a": 1}', {"a": 1}, (6, 3), 2, []),
        ("not json", {"error": "Parse failed", "raw": "not json"}, (1, 4), 0.25, []),
        ("[]", [], (0, 0), 0, ["safe_calculation"]),
    ],
)
def test_a_transform_catches_its_errors_or_has_a_fallback_for_what_does_not_fit(
    output: str,
    parsed: Any,
    numbers: tuple[int, int],
    calculated: float,
    wrong: list[str],
    settings: Settings,
) -> None:
    inputs = {"command_output": output, "value1": numbers[0], "value2": numbers[1]}
    run = played(settings, yaml=workflow(NOTHING, VALUES, TRANSFORM_ERRORS), inputs=inputs)
    assert run.state["parsed_output"] == parsed
    assert run.state["safe_calculation"] == calculated
    assert list(run.errors) == wrong


# Tracking errors in the state

TRACK = """\
- {type: state_update, updates: [{path: raw.steps_completed, operation: append, value: init},
   {path: raw.steps_completed, operation: append, value: detect_files}]}
"""
FAIL = """\
- type: state_update
  updates:
    - {path: raw.steps_failed, value: [lint, test]}
    - {path: raw.retry_counts, operation: merge, value: {lint: 3, test: 1}}
    - {path: raw.workflow_errors, operation: append, value: {type: TimeoutError}}
    - {path: raw.workflow_errors, operation: append, value: {type: TimeoutError}}
    - {path: raw.workflow_errors, operation: append, value: {type: ParseError}}
"""


@pytest.mark.rows("R4", "R7", "R8")
def test_agents_read_a_flat_state_with_what_follows_from_it(settings: Settings) -> None:
    run = played(settings, yaml=workflow(TRACK, ERROR_TRACKING))
    assert run.state == {
        "steps_completed": ["init", "detect_files"],
        "steps_failed": [],
        "retry_counts": {},
        "last_error": None,
        "workflow_errors": [],
        "can_retry": False,
        "error_summary": {"failed_count": 0, "error_types": []},  # first_error is undefined
    }


@pytest.mark.rows("R4", "R5", "R8")
def test_fields_are_computed_anew_when_what_they_come_from_changes(settings: Settings) -> None:
    run = played(settings, yaml=workflow(TRACK + FAIL, ERROR_TRACKING))
    assert run.state["can_retry"] is True
    assert run.state["error_summary"] == {
        "failed_count": 2,
        "error_types": ["TimeoutError", "ParseError"],
        "first_error": {"type": "TimeoutError"},
    }


@pytest.mark.rows("R8")
def test_several_changes_are_made_all_or_none(settings: Settings) -> None:
    wrong = FAIL.replace("operation: merge, value: {lint: 3, test: 1}", "operation: merge, value: 3")
    run = played(settings, yaml=workflow(TRACK + wrong, ERROR_TRACKING))
    assert run.answer["status"] == "failed"
    assert "raw.retry_counts" in run.answer["error"]["message"]
    assert run.state["steps_failed"] == []
    assert run.state["steps_completed"] == ["init", "detect_files"]


@pytest.mark.rows("R4", "R7")
def test_a_raw_field_has_the_type_that_it_is_declared_with(settings: Settings) -> None:
    run = played(
        settings, yaml=workflow("- {type: state_update, path: raw.steps_failed, value: none}", ERROR_TRACKING)
    )
    assert run.answer["status"] == "failed"
    assert "'raw.steps_failed' is declared as array" in run.answer["error"]["message"]
    assert run.state["steps_failed"] == []
