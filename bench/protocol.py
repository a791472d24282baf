"""What a run costs its agents: tool calls, and characters that they read and write. Measured on the library's
interactive-planning with five research tasks, driven through a real server by agents that follow a script."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections import Counter
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


class _Cost:
    """What the agents of one kind have done."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.written = 0
        self.read = 0
        self.payload = 0
        """Of what was written: the results themselves, which the task needs in any case."""


class _Agents:
    def __init__(self, client: Client) -> None:
        self._client = client
        self.main = _Cost()
        self.others = _Cost()
        self.tasks = 0

    async def drive(self) -> str:
        answer = await self._call(self.main, "start_workflow", workflow="interactive-planning")
        run_id, prompt = answer["workflow_id"], ""
        while answer["status"] not in ("completed", "failed", "cancelled"):
            action = answer.get("action", {})
            prompt = action.get("sub_agent_prompt", prompt)
            if not action or "tasks" in action["parameters"]:
                for task in action["parameters"]["tasks"] if action else []:
                    await self._sub_agent(task["workflow_id"], prompt)
                answer = await self._call(self.main, "get_workflow_status", workflow_id=run_id)
            else:
                answer = await self._submit(self.main, run_id, action)
        return str(answer["status"])

    async def _sub_agent(self, task: str, prompt: str) -> None:
        self.tasks += 1
        self.others.read += len(prompt)
        answer = await self._call(self.others, "get_next_step", workflow_id=task)
        while answer["status"] == "pending_action":
            answer = await self._submit(self.others, task, answer["action"])

    async def _submit(self, cost: _Cost, workflow_id: str, action: dict[str, Any]) -> dict[str, Any]:
        result = _RESULTS[action["step_id"].partition("@")[0]]
        cost.payload += len(json.dumps(result))
        arguments = {"workflow_id": workflow_id, "step_id": action["step_id"], "result": result}
        return await self._call(cost, "submit_result", **arguments)

    async def _call(self, cost: _Cost, tool: str, **arguments: Any) -> dict[str, Any]:
        cost.calls[tool] += 1
        cost.written += len(json.dumps({"name": tool, "arguments": arguments}))
        result = await self._client.call_tool(tool, arguments)
        text = "".join(getattr(block, "text", "") for block in result.content)
        assert not result.is_error, text
        cost.read += len(text)
        answer: dict[str, Any] = json.loads(text)
        return answer


def run() -> None:
    title("What interactive-planning with 5 research tasks costs its agents (toolset core)")
    with tempfile.TemporaryDirectory() as home:
        agents, definitions, instructions = asyncio.run(_measured(home))
    row("tool definitions, tokens at 4 characters each", f"{definitions / _PER_TOKEN:.0f}")
    row("instructions of the server, tokens at 4 characters each", f"{instructions / _PER_TOKEN:.0f}")
    for name, cost in (("main agent", agents.main), (f"{agents.tasks} sub-agents together", agents.others)):
        each = ", ".join(f"{count} {tool}" for tool, count in cost.calls.items())
        row(f"{name}: tool calls", f"{cost.calls.total()}", each)
        row(f"{name}: characters read", f"{cost.read}", f"{cost.read / cost.calls.total():.0f} a call")
        row(f"{name}: characters written", f"{cost.written}", f"{cost.payload} of them results")


async def _measured(home: str) -> tuple[_Agents, int, int]:
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-m", "workflows_mcp"],
        env={**os.environ, "WORKFLOWS_HOME": home, "WORKFLOWS_TOOLSETS": "core"},
        cwd=home,
    )
    async with Client(parameters) as client:
        tools = [
            tool.model_dump(mode="json", by_alias=True, exclude_none=True)
            for tool in (await client.list_tools()).tools
        ]
        definitions = len(json.dumps(tools, separators=(",", ":"), ensure_ascii=False))
        agents = _Agents(client)
        status = await agents.drive()
        assert status == "completed", status
        return agents, definitions, len(client.instructions or "")
