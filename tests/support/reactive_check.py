"""A workflow that has a step of each kind that an agent is handed, and calls of the toolset `reactive` about it, for
tests that drive it step by step."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from support.rendered import Service
from workflows_mcp.settings.model import Settings

Work = Callable[[Service], Awaitable[None]]
Serve = Callable[[Work], None]

CHECK = """
name: "docs:check"
description: Looks at what a branch has changed
version: "2.1.0"
inputs:
  branch: {type: string, default: main, description: What to compare with}
default_state:
  raw: {attempts: 0, git_files: [], file_count: 0, fixes: 23}
  state: {version: "1.0"}
state_schema:
  raw: {attempts: number, git_files: array}
  computed:
    valid_files: {from: raw.git_files, transform: "input.filter(f => f.endsWith('.ts'))"}
    file_batches: {from: computed.valid_files, transform: "input.map((f, n) => ({id: `batch_${n}`, files: [f]}))"}
    is_complete: {from: [computed.valid_files, raw.attempts], transform: "input[1] > input[0].length"}
steps:
  - id: detect_files
    type: agent_shell_command
    command: "git diff --name-only {{ inputs.branch }}"
    output_format: lines
    state_update: {path: raw.git_files, value: "{{ result }}"}
  - id: update_status
    type: state_update
    updates:
      - {path: raw.file_count, value: "{{ valid_files.length }}"}
      - {path: raw.status, value: ready}
  - id: check_typescript
    type: mcp_call
    mcp: {method: check_typescript, params: {files: "{{ valid_files }}"}}
    state_update: {path: raw.typescript_results}
  - id: process_batches
    type: parallel_foreach
    items: "{{ file_batches }}"
    sub_agent_task: look
  - id: report_complete
    type: user_message
    message: "Processed {{ file_count }} files with {{ fixes }} fixes applied!"
sub_agent_tasks:
  look:
    steps:
      - {id: read, type: mcp_call, mcp: {method: read_files, params: {files: "{{ files }}"}}}
"""
FILES = ["src/a.ts", "src/a.md", "src/b.ts"]


def serving_check(settings: Settings) -> Serve:
    """Does a piece of work with a service that finds the workflow in the project."""
    folder = settings.workspace / ".aromcp" / "workflows"
    folder.mkdir(parents=True)
    (folder / "docs:check.yaml").write_text(CHECK, encoding="utf-8")

    def go(work: Work) -> None:
        async def session() -> None:
            async with Service.open(settings) as service:
                await work(service)

        asyncio.run(asyncio.wait_for(session(), 60))

    return go


async def started(service: Service, **inputs: Any) -> dict[str, Any]:
    return await service.step_protocol.start("docs:check", inputs, 30.0)


async def complete(service: Service, run_id: str, step: str, result: Any, **more: Any) -> dict[str, Any]:
    return await service.step_protocol.complete_step(run_id, step, result=result, wait_seconds=30.0, **more)
