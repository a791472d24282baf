"""What a run costs its agents: tool calls, and characters that they read and write. Measured on the library's
interactive-planning with five research tasks, and on files that sub-agents fix in batches, driven through a
real server by agents that follow a script."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

from bench.measure import row, title

_TOPICS = [f"Research question {number} about how to add authentication" for number in range(1, 6)]
_RESULTS: dict[str, Any] = {
    "get-user-request": {"input": "Add authentication to my application"},
    "generate-research-tasks": {"response": json.dumps(_TOPICS)},
    "research": {"response": "insight " * 50},
    "generate-initial-plan": {"response": "# Plan\n" + "a step\n" * 100},
    "review-plan": {"response": "a concern\n" * 50},
    "finalize-plan": {"response": "# Final plan\n" + "a step\n" * 120},
    "approve-plan": {"confirmed": True},
}
_PER_TOKEN = 4
Replies = Callable[[str, dict[str, Any]], Any]
"""What an agent submits: of which run or task, and the action that it is handed."""

FIX = r"""
name: fix-in-batches
description: Has seven files checked and fixed, three by each sub-agent
default_state:
  raw: {scope: "", files: [], results: {}, checked: null}
state_schema:
  raw: {scope: string, files: array, results: object, checked: object}
  computed:
    batches:
      from: raw.files
      transform: |
        const found = [];
        for (let at = 0; at < input.length; at += 3)
          found.push({id: `batch_${found.length}`, files: input.slice(at, at + 3)});
        return found;
    fixed: {from: raw.results, transform: "Object.values(input).filter(it => it.fixes > 0).length"}
steps:
  - id: scope
    type: user_input
    prompt: "Which files are to be fixed? HEAD (changed ones), or branch NAME (those that differ)"
    validation: {pattern: "^(HEAD|branch .+)$", error_message: "Please say HEAD, or branch and its name"}
    state_update: {path: raw.scope}
  - id: list
    type: shell_command
    command: "printf 'src/%s.ts\\n' index helper button card users auth tests"
    output_format: lines
    state_update: {path: raw.files}
  - {id: fix-all, type: parallel_foreach, items: "{{ batches }}", max_parallel: 10, sub_agent_task: fix_batch}
  - id: check-all
    type: mcp_call
    method: check_typescript
    state_update: {path: raw.checked}
  - {id: report, type: user_message, message: "{{ fixed }} of {{ files.length }} files were fixed"}
sub_agent_tasks:
  fix_batch:
    steps:
      - id: each-file
        type: foreach
        items: "{{ context.files }}"
        variable_name: file
        steps:
          - {id: begin, type: state_update, path: "raw.results.{{ file }}", value: {rounds: 0, fixes: 0}}
          - id: until-clean
            type: while
            condition: "{{ results[file].rounds < 5 }}"
            max_iterations: 5
            body:
              - id: lint
                type: mcp_call
                method: lint_file
                params: {path: "{{ file }}", fix: true}
                state_update: {path: "raw.results.{{ file }}.lint"}
              - id: types
                type: mcp_call
                method: check_typescript
                params: {files: ["{{ file }}"]}
                state_update: {path: "raw.results.{{ file }}.types"}
              - id: wrong
                type: conditional
                condition: "{{ results[file].types.hints.length > 0 }}"
                then:
                  - id: apply
                    type: apply_hints
                    file: "{{ file }}"
                    hints: "{{ results[file].types.hints }}"
                  - id: fixed
                    type: state_update
                    path: "raw.results.{{ file }}.fixes"
                    operation: increment
              - {id: round, type: state_update, path: "raw.results.{{ file }}.rounds", operation: increment}
              - {type: break, when: "{{ !results[file].types.again }}"}
"""


class _Cost:
    """What the agents of one kind have done."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.written = 0
        self.read = 0
        self.payload = 0
        """Of what was written: the results themselves, which the task needs in any case."""


class Agents:
    """The main agent of a run and its sub-agents, with the tools of the core."""

    toolset = "core"

    def __init__(self, client: Client, replies: Replies) -> None:
        self._client = client
        self._replies = replies
        self.main = _Cost()
        self.others = _Cost()
        self.tasks = 0

    async def drive(self, workflow: str) -> str:
        answer = await self.call(self.main, "start_workflow", workflow=workflow)
        run_id, prompt = answer["workflow_id"], ""
        while answer["status"] not in ("completed", "failed", "cancelled"):
            action = answer.get("action", {})
            prompt = action.get("sub_agent_prompt", prompt)
            if not action or "tasks" in action["parameters"]:
                for task in action["parameters"]["tasks"] if action else []:
                    await self._sub_agent(task["workflow_id"], prompt)
                answer = await self.call(self.main, "get_workflow_status", workflow_id=run_id)
            else:
                answer = await self._submit(self.main, run_id, action)
        return str(answer["status"])

    async def _sub_agent(self, task: str, prompt: str) -> None:
        self.tasks += 1
        self.others.read += len(prompt)
        answer = await self.call(self.others, "get_next_step", workflow_id=task)
        while answer["status"] == "pending_action":
            answer = await self._submit(self.others, task, answer["action"])

    async def _submit(self, cost: _Cost, workflow_id: str, action: dict[str, Any]) -> dict[str, Any]:
        result = self._replies(workflow_id, action)
        cost.payload += len(json.dumps(result))
        arguments = {"workflow_id": workflow_id, "step_id": action["step_id"], "result": result}
        return await self.call(cost, "submit_result", **arguments)

    async def call(self, cost: _Cost, tool: str, **arguments: Any) -> dict[str, Any]:
        cost.calls[tool] += 1
        cost.written += len(json.dumps({"name": tool, "arguments": arguments}))
        result = await self._client.call_tool(tool, arguments)
        text = "".join(getattr(block, "text", "") for block in result.content)
        assert not result.is_error, text
        cost.read += len(text)
        answer: dict[str, Any] = json.loads(text)
        return answer


class ReactiveAgents(Agents):
    """The same with the tools of the toolset `reactive`."""

    toolset = "reactive"

    async def drive(self, workflow: str) -> str:
        answer = await self.call(self.main, "workflow_start", workflow=workflow)
        run_id = answer["workflow_id"]
        while answer["status"] not in ("completed", "failed", "cancelled"):
            step = answer["step"]
            if step is not None and step["type"] != "parallel_tasks":
                answer = await self._submit(self.main, run_id, step)
                continue
            for task in step["definition"]["tasks"] if step is not None else []:
                await self._sub_agent(task["workflow_id"], step["definition"]["sub_agent_prompt"])
            answer = await self.call(self.main, "workflow_get_next_step", workflow_id=run_id)
        return str(answer["status"])

    async def _sub_agent(self, task: str, prompt: str) -> None:
        self.tasks += 1
        self.others.read += len(prompt)
        answer = await self.call(self.others, "workflow_get_next_step", workflow_id=task)
        while answer["step"] is not None:
            answer = await self._submit(self.others, task, answer["step"])

    async def _submit(self, cost: _Cost, workflow_id: str, action: dict[str, Any]) -> dict[str, Any]:
        result = self._replies(workflow_id, action)
        cost.payload += len(json.dumps(result))
        arguments = {"workflow_id": workflow_id, "step_id": action["id"], "result": result}
        return await self.call(cost, "workflow_step_complete", **arguments)


def _planning(_: str, action: dict[str, Any]) -> Any:
    return _RESULTS[action["step_id"].partition("@")[0]]


def fixing() -> Replies:
    """Every other file has something to fix at first."""
    seen: Counter[str] = Counter()

    def reply(_: str, action: dict[str, Any]) -> Any:
        given = action.get("parameters") or action.get("definition") or {}
        arguments = given.get("args") or given.get("params") or {}
        match action["type"], given.get("tool") or given.get("method"):
            case "user_input", _:
                return "HEAD"
            case "apply_hints", _:
                return {"applied_count": len(given["hints"])}
            case _, "check_typescript" if "files" in arguments:
                [file] = arguments["files"]
                seen[file] += 1
                wrong = seen[file] == 1 and len(file) % 2 == 0
                return {"hints": [f"{line}: add a type" for line in (15, 16)] * wrong, "again": wrong}
        return {"issues": 2, "fixed": 2}

    return reply


def run() -> None:
    title("What interactive-planning with 5 research tasks costs its agents (toolset core)")
    agents, definitions, instructions = measured(Agents, "interactive-planning", _planning)
    row("tool definitions, tokens at 4 characters each", f"{definitions / _PER_TOKEN:.0f}")
    row("instructions of the server, tokens at 4 characters each", f"{instructions / _PER_TOKEN:.0f}")
    _print(agents)
    for kind in (Agents, ReactiveAgents):
        title(f"What 7 files that sub-agents fix in 3 batches cost their agents (toolset {kind.toolset})")
        _print(measured(kind, "fix-in-batches", fixing(), FIX)[0])


def _print(agents: Agents) -> None:
    for name, cost in (("main agent", agents.main), (f"{agents.tasks} sub-agents together", agents.others)):
        each = ", ".join(f"{count} {tool}" for tool, count in cost.calls.items())
        row(f"{name}: tool calls", f"{cost.calls.total()}", each)
        row(f"{name}: characters read", f"{cost.read}", f"{cost.read / cost.calls.total():.0f} a call")
        row(f"{name}: characters written", f"{cost.written}", f"{cost.payload} of them results")


def measured(
    kind: type[Agents], workflow: str, replies: Replies, definition: str = ""
) -> tuple[Agents, int, int]:
    """The agents after the run, and how long the definitions of the tools and the instructions are."""
    with tempfile.TemporaryDirectory() as home:
        if definition:
            (Path(home) / ".workflows").mkdir()
            (Path(home) / ".workflows" / "own.yaml").write_text(definition, encoding="utf-8")
        return asyncio.run(_measured(home, kind, workflow, replies))


async def _measured(
    home: str, kind: type[Agents], workflow: str, replies: Replies
) -> tuple[Agents, int, int]:
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-m", "workflows_mcp"],
        env={**os.environ, "WORKFLOWS_HOME": home, "WORKFLOWS_TOOLSETS": kind.toolset},
        cwd=home,
    )
    async with Client(parameters) as client:
        tools = [
            tool.model_dump(mode="json", by_alias=True, exclude_none=True)
            for tool in (await client.list_tools()).tools
        ]
        definitions = len(json.dumps(tools, separators=(",", ":"), ensure_ascii=False))
        agents = kind(client, replies)
        status = await agents.drive(workflow)
        assert status == "completed", status
        return agents, definitions, len(client.instructions or "")
