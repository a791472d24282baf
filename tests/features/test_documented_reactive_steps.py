"""The documented step types of the reactive dialect: each fragment as it is written, in the smallest workflow that
carries it out."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from support.fragments import inside, piece, workflow
from support.programs import Programs
from support.reactive_agents import MESSAGE, Handed, played
from support.rendered import Service
from workflows_mcp.errors import InvalidResult
from workflows_mcp.settings.model import Settings

STEP_TYPES = r"""
# User input with validation
- type: "user_input"
  prompt: |
    What files do you want to process?
    Options: branch <name>, commit <guid>, file-path <path>, or HEAD
  validation:
    pattern: "^(branch .+|commit [a-f0-9]{7,40}|file-path .+|HEAD)$"
    error_message: "Please provide a valid option"
  state_update:
    path: "raw.user_choice"

# MCP tool call
- type: "mcp_call"
  mcp:
    method: "tool.method"
    params:
      param1: "value"
  state_update:
    path: "raw.tool_result"
    # Triggers automatic transformations

# Shell command execution (by MCP internally)
- type: "shell_command"
  command: "git diff --name-only HEAD"
  output_format: "lines"  # lines | json | text | key_value
  on_error: "fail"  # fail | continue | retry
  retry_count: 3
  state_update:
    path: "raw.git_files"
    # MCP executes internally and computes filtered_files, batches, etc.

# Shell command that agent must execute (rare cases)
- type: "agent_shell_command"
  command: "./interactive-script.sh"
  reason: "Requires interactive terminal or special permissions"
  output_format: "json"
  timeout: 300000  # 5 minutes
  state_update:
    path: "raw.script_result"

# Apply hints transformation (specialized step)
- type: "apply_hints"
  file: "{{ item }}"
  hints: "{{ file_results[item].hints }}"
  state_update:
    path: "raw.file_results.{{ item | path_to_key }}.hints_applied"
    value: "{{ applied_count }}"

# Conditional execution (MCP evaluates internally using flattened paths)
- type: "conditional"
  condition: "{{ ready_to_deploy }}"  # MCP knows this is computed.ready_to_deploy
  then:
    - type: "mcp_call"
      # Steps if true
  else:
    - type: "mcp_call"
      # Steps if false

# Parallel batch processing (uses MCP default prompt)
- type: "parallel_foreach"
  items: "{{ ready_batches }}"  # MCP knows this is computed.ready_batches
  max_parallel: 10
  wait_for_all: true
  sub_agent_task: "task_name"
  # Uses MCP server's default parallel_foreach prompt

# While loop pattern (MCP manages iterations)
- type: "while"
  condition: "{{ has_errors && retry_count < 5 }}"  # MCP resolves paths internally
  max_iterations: 10
  body:
    - type: "shell_command"
      # Retry logic
    - type: "state_update"
      path: "raw.retry_count"  # Must use full path for updates
      operation: "increment"
    - type: "conditional"
      condition: "{{ !has_errors }}"
      then:
        - type: "break"  # Exit the while loop early

# User messaging (using flattened paths)
- type: "user_message"
  message: "Status: {{ summary }}"  # MCP knows this is computed.summary
"""

READING = r"""
# In workflow YAML:
- type: "conditional"
  condition: "{{ file_count > 0 && is_ready }}"  # Not state.raw.file_count

- type: "user_message"
  message: "Processing {{ valid_files.length }} files"  # Not state.computed.valid_files

# But updates always use full paths:
- type: "state_update"
  path: "raw.file_count"  # Must specify raw/state prefix
  value: 10
"""


# Questions


WHICH_FILES = {
    "prompt": "What files do you want to process?\nOptions: branch <name>, commit <guid>, file-path <path>, or HEAD\n",
    "validation": {
        "pattern": "^(branch .+|commit [a-f0-9]{7,40}|file-path .+|HEAD)$",
        "error_message": "Please provide a valid option",
    },
}


@pytest.mark.rows("R12", "R14")
@pytest.mark.parametrize("said", ["HEAD", "branch main", "commit 0a1b2c3", "file-path src/a b"])
def test_what_the_user_says_goes_where_the_step_says(said: str, settings: Settings) -> None:
    text = workflow(piece(STEP_TYPES, "User input"))
    run = played(settings, [said], yaml=text)
    assert run.handed == [Handed("user_input", "0-user_input", WHICH_FILES)]
    assert run.state == {"user_choice": said}


@pytest.mark.rows("R12")
@pytest.mark.parametrize("said", ["main", "commit xyz", "branch ", ""])
def test_what_does_not_fit_is_refused_in_the_words_of_the_author(said: str, settings: Settings) -> None:
    async def go() -> None:
        async with Service.open(settings) as service:
            asked = await service.start(text=workflow(piece(STEP_TYPES, "User input")))
            with pytest.raises(InvalidResult, match="Please provide a valid option"):
                await service.submit(asked["workflow_id"], said)
            assert (await service.status(asked["workflow_id"]))["action"] == asked["action"]
            assert (await service.state(asked["workflow_id"]))["state"] == {}

    asyncio.run(asyncio.wait_for(go(), 30))


@pytest.mark.rows("R12")
@pytest.mark.parametrize(
    ("transform", "said"),
    [
        ("`${input.length} files`", "Status: 2 files"),
        ("({ files: input, done: input.length === 2 })", 'Status: {"files":["a","b"],"done":true}'),
        ("undefined", "Status: "),
    ],
)
def test_a_message_shows_a_computed_field(transform: str, said: str, settings: Settings) -> None:
    text = workflow(
        piece(STEP_TYPES, "User messaging"),
        "default_state: {raw: {files: [a, b]}}",
        f"state_schema: {{computed: {{summary: {{from: raw.files, transform: '{transform}'}}}}}}",
    )
    run = played(settings, yaml=text)
    assert run.handed == [Handed(MESSAGE, "", {"message": said})]


# What is carried out


@pytest.mark.rows("R4", "R11", "R14")
def test_a_tool_is_called_by_the_agent_and_its_result_is_worked_with(settings: Settings) -> None:
    text = workflow(
        piece(STEP_TYPES, "MCP tool call"),
        "state_schema: {computed: {found: {from: raw.tool_result, transform: input.items.length}}}",
    )
    run = played(settings, [{"items": [1, 2, 3]}], yaml=text)
    assert run.handed == [
        Handed("mcp_call", "0-mcp_call", {"method": "tool.method", "params": {"param1": "value"}})
    ]
    assert run.state == {"tool_result": {"items": [1, 2, 3]}, "found": 3}


BATCHES = """
state_schema:
  computed:
    filtered_files: {from: raw.git_files, transform: "input.filter(f => !f.endsWith('.d.ts'))"}
    batches: {from: computed.filtered_files, transform: "input.map(f => [f])"}
"""


@pytest.mark.rows("R4", "R9")
def test_a_command_is_run_by_the_server_and_fields_follow_from_its_lines(
    settings: Settings, programs: Programs
) -> None:
    programs.add("git", "printf 'src/a.ts\\nsrc/a.d.ts\\n'")
    run = played(settings, yaml=workflow(piece(STEP_TYPES, "Shell command execution"), BATCHES))
    assert programs.calls == ["git diff --name-only HEAD"]
    assert run.handed == []
    assert run.state == {
        "git_files": ["src/a.ts", "src/a.d.ts"],
        "filtered_files": ["src/a.ts"],
        "batches": [["src/a.ts"]],
    }


@pytest.mark.rows("R9")
def test_a_command_that_fails_ends_the_run_and_is_not_tried_again_where_it_says_fail(
    settings: Settings, programs: Programs
) -> None:
    programs.add("git", "echo 'not a repository' >&2; exit 128")
    run = played(settings, yaml=workflow(piece(STEP_TYPES, "Shell command execution")))
    assert run.answer["status"] == "failed"
    assert run.answer["error"]["block"] == "0-shell_command"
    assert "not a repository" in run.answer["error"]["message"] + run.answer["error"].get("printed", "")
    assert programs.calls == ["git diff --name-only HEAD"]
    assert "git_files" not in run.state


@pytest.mark.rows("R10")
@pytest.mark.parametrize(
    "reply", [{"stdout": '{"deployed": true}', "stderr": "", "exit_code": 0}, {"deployed": True}]
)
def test_a_command_that_needs_the_agent_is_handed_to_it(reply: Any, settings: Settings) -> None:
    run = played(settings, [reply], yaml=workflow(piece(STEP_TYPES, "Shell command that agent must execute")))
    definition = {
        "command": "./interactive-script.sh",
        "reason": "Requires interactive terminal or special permissions",
        "output_format": "json",
        "timeout": 300000,
    }
    assert run.handed == [Handed("agent_shell_command", "0-agent_shell_command", definition)]
    assert run.state == {"script_result": {"deployed": True}}


@pytest.mark.rows("R14")
def test_hints_are_applied_file_by_file_and_counted(settings: Settings) -> None:
    steps = f"""\
- type: foreach
  items: "{{{{ files }}}}"
  steps:
{inside(piece(STEP_TYPES, "Apply hints"))}
"""
    state = """
default_state:
  raw:
    files: [src/a.ts, src/b.ts]
    file_results:
      src_a_ts: {hints: [add a type, name it]}
      src_b_ts: {hints: []}
"""
    run = played(settings, [{"applied_count": 2}, {"applied_count": 0}], yaml=workflow(steps, state))
    assert [it.definition for it in run.handed] == [
        {"file": "src/a.ts", "hints": ["add a type", "name it"]},
        {"file": "src/b.ts", "hints": []},
    ]
    assert run.state["file_results"] == {
        "src_a_ts": {"hints": ["add a type", "name it"], "hints_applied": 2},
        "src_b_ts": {"hints": [], "hints_applied": 0},
    }


# Control


@pytest.mark.rows("R13", "R17")
@pytest.mark.parametrize(("failed", "called"), [(0, "deploy"), (2, "report")])
def test_the_server_decides_which_way_it_goes(failed: int, called: str, settings: Settings) -> None:
    steps = piece(STEP_TYPES, "Conditional execution")
    steps = steps.replace("# Steps if true", "mcp: {method: deploy}")
    steps = steps.replace("# Steps if false", "mcp: {method: report}")
    text = workflow(
        steps,
        f"default_state: {{raw: {{failed: {failed}}}}}",
        "state_schema: {computed: {ready_to_deploy: {from: raw.failed, transform: input === 0}}}",
    )
    run = played(settings, [{"ok": True}], yaml=text)
    assert [(it.type, it.definition) for it in run.handed] == [("mcp_call", {"method": called, "params": {}})]


TWELVE = """
default_state: {raw: {batch_status: {}}}
state_schema:
  computed:
    ready_batches:
      from: raw.batch_status
      transform: "Array.from({length: 12}, (_, n) => ({id: `batch_${n}`, files: [`${n}.ts`]}))"
sub_agent_tasks:
  task_name:
    steps:
      - {type: mcp_call, mcp: {method: lint_project, params: {target_files: "{{ files }}"}}}
      - {type: state_update, path: "raw.batch_status.{{ task_id }}", value: complete}
"""


@pytest.mark.rows("R15", "R16")
def test_batches_are_handed_to_sub_agents_ten_at_once(settings: Settings) -> None:
    replies = {f"batch_{n}": [{"issues": 0}] for n in range(12)}
    run = played(settings, replies, yaml=workflow(piece(STEP_TYPES, "Parallel batch processing"), TWELVE))
    assert [it.type for it in run.handed] == ["parallel_tasks", "parallel_tasks"]
    first, then = ([task["task_id"] for task in it.definition["tasks"]] for it in run.handed)
    assert first == [f"batch_{n}" for n in range(10)]
    assert then == ["batch_10", "batch_11"]
    assert run.handed[0].definition["tasks"][3]["context"] == {
        "id": "batch_3",
        "files": ["3.ts"],
        "index": 3,
        "total": 12,
    }
    handed = run.agents.handed["batch_3"]
    assert [it.definition for it in handed] == [
        {"method": "lint_project", "params": {"target_files": ["3.ts"]}}
    ]
    assert run.state["batch_status"] == dict.fromkeys(replies, "complete")


ERRORS = """
default_state: {raw: {lint_output: "?", retry_count: 0}}
state_schema:
  computed:
    has_errors: {from: raw.lint_output, transform: "input.trim() !== '0 errors'"}
"""
LINT = 'command: "lint"\n      state_update: {path: raw.lint_output}'


@pytest.mark.rows("R8", "R13", "R14")
def test_a_loop_ends_early_when_there_is_nothing_left_to_do(settings: Settings, programs: Programs) -> None:
    programs.add("lint", 'echo x >> rounds; echo "$((3 - $(wc -l < rounds))) errors"')
    steps = piece(STEP_TYPES, "While loop pattern").replace("# Retry logic", LINT)
    run = played(settings, yaml=workflow(steps, ERRORS))
    assert run.answer["status"] == "completed"
    assert programs.calls == ["lint"] * 3
    assert run.state == {"lint_output": "0 errors\n", "retry_count": 3, "has_errors": False}


@pytest.mark.rows("R13")
@pytest.mark.parametrize(("most", "rounds"), [(10, 5), (2, 2)])
def test_a_loop_ends_when_its_condition_or_its_limit_says_so(
    most: int, rounds: int, settings: Settings, programs: Programs
) -> None:
    programs.add("lint", "echo 1 errors")
    steps = piece(STEP_TYPES, "While loop pattern").replace("# Retry logic", LINT)
    steps = steps.replace("max_iterations: 10", f"max_iterations: {most}\n  on_limit: continue")
    steps += '- {type: user_message, message: "gave up after {{ retry_count }}"}\n'
    run = played(settings, yaml=workflow(steps, ERRORS))
    assert len(programs.calls) == rounds
    assert run.messages == [f"gave up after {rounds}"]


@pytest.mark.rows("R7", "R13", "R14")
@pytest.mark.parametrize(("count", "ready", "goes"), [(2, True, True), (0, True, False), (2, False, False)])
def test_state_is_read_by_bare_names_and_written_by_full_paths(
    count: int, ready: bool, goes: bool, settings: Settings
) -> None:
    then = "\n  then:\n    - {type: user_message, message: it goes}\n"
    steps = READING.replace("  # Not state.raw.file_count\n", then)
    files = [f"{n}.ts" for n in range(count)]
    text = workflow(
        steps,
        f"default_state: {{raw: {{file_count: {count}, files: {files}, is_ready: {str(ready).lower()}}}}}",
        "state_schema: {computed: {valid_files: {from: raw.files, transform: input}}}",
    )
    run = played(settings, yaml=text)
    assert run.messages == [*(["it goes"] if goes else []), f"Processing {count} files"]
    assert run.state["file_count"] == 10


@pytest.mark.rows("R7")
@pytest.mark.parametrize(
    ("path", "hint"),
    [("file_count", "raw.file_count"), ("computed.valid_files", "write the field that it is computed from")],
)
def test_what_is_not_written_by_a_full_path_is_told_before_the_run(
    path: str, hint: str, settings: Settings, workspace: Path
) -> None:
    async def go() -> None:
        async with Service.open(settings) as service:
            steps = piece(READING, "But updates").replace("raw.file_count", path)
            (problem,) = service.validate(workflow(steps))
            assert path in problem.message
            assert hint in problem.hint

    asyncio.run(asyncio.wait_for(go(), 30))
