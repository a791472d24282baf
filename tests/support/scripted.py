"""Agents that follow a script: a main agent and its sub-agents, which do what the answers of the server say and
nothing else, keep what they were asked, and count what it costs."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

TESTDATA = Path(__file__).parents[1] / "testdata"
Call = Callable[..., Awaitable[dict[str, Any]]]
"""call(tool, **arguments) gives the answer of the server."""
Answers = Mapping[str, Any]
"""By step: the result, or a function of the parameters that gives it."""
OPEN = ("running", "waiting")
ENDED = ("completed", "failed", "cancelled")
MAIN = "main"


class Asked(NamedTuple):
    who: str
    """`main`, or the task of a sub-agent as seen from the run: analyze-files.0."""
    step: str
    type: str
    parameters: dict[str, Any]


class Agents:
    def __init__(self, call: Call, answers: Answers) -> None:
        self._call = call
        self._answers = answers
        self.asked: list[Asked] = []
        self.calls: Counter[str] = Counter()
        """How many tools each agent has called."""
        self.written = self.read = 0
        """How many characters went to the server, and came from it."""
        self.run_id = ""

    async def drive(self, **start: Any) -> dict[str, Any]:
        """The main agent: from the start of a run to its last answer."""
        answer = await self.call(MAIN, "start_workflow", **start)
        self.run_id = answer["workflow_id"]
        while answer["status"] not in ENDED:
            if answer["status"] in OPEN:
                answer = await self.call(MAIN, "get_workflow_status", workflow_id=self.run_id)
            elif "tasks" in answer["action"]["parameters"]:
                await self.hand_out(answer["action"])
                answer = await self.call(MAIN, "get_workflow_status", workflow_id=self.run_id)
            else:
                answer = await self.do(MAIN, self.run_id, answer["action"])
        return answer

    async def hand_out(self, action: dict[str, Any]) -> None:
        """One sub-agent for each task, all at once."""
        self.note(MAIN, action)
        tasks = action["parameters"]["tasks"]
        ends = await asyncio.gather(*(self.sub_agent(task["workflow_id"]) for task in tasks))
        assert all(end in ENDED for end in ends), ends

    async def sub_agent(self, task: str) -> str:
        """As the sub_agent_prompt says. It is told of its task alone."""
        who = task.removeprefix(f"{self.run_id}.")
        answer = await self.call(who, "get_next_step", workflow_id=task)
        while answer["status"] == "pending_action":
            answer = await self.do(who, task, answer["action"])
        return str(answer["status"])

    async def do(self, who: str, workflow_id: str, action: dict[str, Any]) -> dict[str, Any]:
        self.note(who, action)
        result = self._answers[action["step_id"]]
        result = result(action["parameters"]) if callable(result) else result
        arguments = {"workflow_id": workflow_id, "step_id": action["step_id"], "result": result}
        return await self.call(who, "submit_result", **arguments)

    def note(self, who: str, action: dict[str, Any]) -> None:
        self.asked.append(Asked(who, action["step_id"], action["type"], action["parameters"]))

    async def call(self, who: str, tool: str, **arguments: Any) -> dict[str, Any]:
        self.calls[who] += 1
        self.written += len(json.dumps({"name": tool, "arguments": arguments}, ensure_ascii=False))
        answer = await self._call(tool, **arguments)
        self.read += len(json.dumps(answer, ensure_ascii=False))
        return answer

    def asked_of(self, who: str) -> list[Asked]:
        return [asked for asked in self.asked if asked.who == who]


def example(name: str) -> str:
    """One of the examples as it is written; of interactive-planning, which reads what it does not declare, with
    the line that lets it."""
    if name == "interactive-planning":
        text = (TESTDATA / "err" / "stateful" / f"{name}.yaml").read_text(encoding="utf-8")
        return f"state_access: warn\n{text}"
    return (TESTDATA / "ok" / "stateful" / f"{name}.yaml").read_text(encoding="utf-8")


def ran(stdout: str = "", exit_code: int = 0) -> dict[str, Any]:
    """What is submitted for a command."""
    return {"stdout": stdout, "stderr": "", "exit_code": exit_code}


def kept(stdout: str = "", exit_code: int = 0) -> dict[str, Any]:
    """What a command leaves in the state."""
    return {**ran(stdout, exit_code), "duration": None, "success": exit_code == 0}


# The scripts


DEPLOY: Answers = {
    "build": ran("built"),
    "test": ran("5 passing"),
    "push": ran("pushed"),
    "deploy": {"applied": True, "replicas": 3},
    "notify": True,
}
SIZES = {"/repo/a.py": 3, "/repo/b.js": 1, "/repo/c.ts": 2}
ANALYZE: Answers = {
    "find-files": ran("".join(f"{path}\n" for path in SIZES)),
    "read-file": lambda given: ran("line\n" * SIZES[given["command"].split()[1]]),
    "analyze": lambda given: {
        "issues": [f"line {n}" for n in range(given["args"]["code"].count("\n"))],
        "score": 100 - given["args"]["code"].count("\n"),
    },
    "summarize": "97 points, nothing critical",
}
TOPICS = ["Compare JWT with sessions", "Find out about middleware"]
PLANNING: Answers = {
    "get-user-request": "Add auth to my app",
    "generate-research-tasks": f"```json\n{json.dumps(TOPICS)}\n```",
    "search-web": lambda given: {"urls": [f"https://example.org/{digest(given['args']['query'])[:4]}"]},
    "analyze-results": lambda given: {"result": f"{len(json.loads(given['args']['text'])['urls'])} source"},
    "generate-initial-plan": "# Plan 1",
    "review-plan": {"response": "No rate limits", "agent_used": "@code-standards-reviewer", "tokens_used": 7},
    "finalize-plan": "# Plan 2",
    "approve-plan": True,
}
SMALL_PR: Answers = {
    "fetch-pr": {"files_changed": 3, "title": "Fix it"},
    "run-tests": ran("ok"),
    "run-quality-check": ran("Lint done\nScore: 97\n"),
    "approve-and-merge": {"merged": True},
    "comment-issues": {"commented": True},
    "request-review": {"ok": True},
}


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
