"""Agents that drive reactive workflows by a script: a main agent, and one for each task that is handed out. They
keep what they were handed, messages in their place among the steps, and reply in order, each from replies of its own.

    agents = Agents(tools_of(service), {None: ["HEAD"], "batch_0": [{"errors": []}]})
    answer = await agents.drive(workflow="standards:fix")
    agents.handed[None], agents.handed["batch_0"]
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

from support.rendered import Service
from workflows_mcp.settings.model import Settings

Call = Callable[..., Awaitable[dict[str, Any]]]
"""call(tool, **arguments) gives the answer of the server."""
Who = str | None
"""The id of a task, or None for the main agent."""
Replies = Mapping[Any, Iterable[Any]]
"""By who gives them, in order."""
ENDED = ("completed", "failed", "cancelled")
MESSAGE = "user_message"


class Handed(NamedTuple):
    type: str
    step: str
    """The last part of its id, without the round; empty for a message."""
    definition: dict[str, Any]


class ScriptedAgents:
    """Agents of one run with prepared replies. `sessions` gives each agent of a task its own way to the server; without it all share one."""

    def __init__(
        self,
        call: Call,
        replies: Replies,
        sessions: Callable[[], AbstractAsyncContextManager[Call]] | None = None,
    ) -> None:
        self._call = call
        self._sessions = sessions
        self._replies: dict[Who, deque[Any]] = {who: deque(given) for who, given in replies.items()}
        self._shown: dict[Who, int] = defaultdict(int)
        self.handed: dict[Who, list[Handed]] = defaultdict(list)
        self.actions: list[dict[str, Any]] = []
        """Every action or step as it came, whoever got it."""
        self.run_id = ""

    @property
    def left(self) -> dict[Who, list[Any]]:
        """Replies that nobody has asked for."""
        return {who: list(given) for who, given in self._replies.items() if given}

    def _next_reply(self, who: Who, asked: dict[str, Any]) -> Any:
        assert self._replies.get(who), f"{who or 'the main agent'} has no reply to {asked}"
        self._shown[who] = 0
        return self._replies[who].popleft()

    def _note_messages(self, who: Who, answer: dict[str, Any]) -> None:
        """Messages stay in the answers until the agent has done what it was handed with them: those that are new."""
        messages = answer.get("messages", [])
        for text in messages[self._shown[who] :]:
            self.handed[who].append(Handed(MESSAGE, "", {"message": text}))
        self._shown[who] = len(messages)


class Agents(ScriptedAgents):
    """They use the tools of the core."""

    async def drive(self, **start: Any) -> dict[str, Any]:
        """The main agent: from the start of a run to its last answer."""
        answer = await self._call("start_workflow", **start)
        self.run_id = answer["workflow_id"]
        return await self.go_on(answer)

    async def go_on(self, answer: dict[str, Any]) -> dict[str, Any]:
        while True:
            self._note_messages(None, answer)
            if answer["status"] in ENDED:
                return answer
            action = answer.get("action")
            if action is None:
                answer = await self._call("get_workflow_status", workflow_id=self.run_id)
            elif "tasks" in action["parameters"]:
                self._note(None, action)
                await asyncio.gather(*(self._sub_agent(task) for task in action["parameters"]["tasks"]))
                self._shown[None] = 0
                answer = await self._call("get_workflow_status", workflow_id=self.run_id)
            else:
                answer = await self._reply(self._call, None, self.run_id, action)

    async def _sub_agent(self, task: dict[str, Any]) -> None:
        if self._sessions is None:
            await self._work_at(task, self._call)
        else:
            async with self._sessions() as call:
                await self._work_at(task, call)

    async def _work_at(self, task: dict[str, Any], call: Call) -> None:
        """A sub-agent is told the ids of its task, and nothing else."""
        who, workflow_id = task.get("task_id", task["workflow_id"].rpartition(".")[2]), task["workflow_id"]
        answer = await call("get_next_step", workflow_id=workflow_id)
        while answer["status"] not in ENDED:
            self._note_messages(who, answer)
            if "action" in answer:
                answer = await self._reply(call, who, workflow_id, answer["action"])
            else:
                answer = await call("get_workflow_status", workflow_id=workflow_id)
        self._note_messages(who, answer)

    async def _reply(self, call: Call, who: Who, workflow_id: str, action: dict[str, Any]) -> dict[str, Any]:
        self._note(who, action)
        result = self._next_reply(who, action)
        return await call("submit_result", workflow_id=workflow_id, step_id=action["step_id"], result=result)

    def _note(self, who: Who, action: dict[str, Any]) -> None:
        self.actions.append(action)
        self.handed[who].append(Handed(action["type"], name_of(action["step_id"]), definition_of(action)))


def name_of(step_id: str) -> str:
    return step_id.rpartition("/")[2].partition("@")[0]


def definition_of(action: dict[str, Any]) -> dict[str, Any]:
    """What is to be done, in the words in which a step of this type is written."""
    given = action["parameters"]
    if action["type"] == "mcp_call":
        rest = {name: value for name, value in given.items() if name not in ("tool", "args", "parameters")}
        return {"method": given["tool"], "params": given["args"], **rest}
    if "tasks" in given:
        return {
            "tasks": [
                {
                    "task_id": task.get("task_id", task["workflow_id"].rpartition(".")[2]),
                    "context": task["context"],
                }
                for task in given["tasks"]
            ]
        }
    return dict(given)


def tools_of(service: Service) -> Call:
    """The tools of the core, without a protocol in between."""

    async def call(tool: str, **arguments: Any) -> dict[str, Any]:
        match tool:
            case "start_workflow":
                return await service.start(text=arguments.pop("yaml", None), **arguments)
            case "get_workflow_status":
                return await service.status(arguments["workflow_id"], wait_seconds=30)
            case "get_next_step":
                return await service.next_step(arguments["workflow_id"])
            case "submit_result":
                return await service.submit(
                    arguments["workflow_id"], arguments["result"], step_id=arguments["step_id"]
                )
        raise ValueError(tool)

    return call


class Played(NamedTuple):
    """A run from its start to its end."""

    answer: dict[str, Any]
    state: dict[str, Any]
    """Flat, as agents read it."""
    errors: dict[str, str]
    """Why computed fields have no value of their own."""
    agents: Agents

    @property
    def handed(self) -> list[Handed]:
        """To the main agent."""
        return self.agents.handed[None]

    @property
    def messages(self) -> list[str]:
        return [it.definition["message"] for it in self.handed if it.type == MESSAGE]


def played(settings: Settings, replies: Replies | list[Any] | None = None, **start: Any) -> Played:
    """Start a workflow, `yaml` or `workflow` with `inputs`, and drive it to its end."""

    async def work() -> Played:
        async with Service.open(settings) as service:
            given: Replies = {None: replies} if isinstance(replies, list) else replies or {}
            agents = Agents(tools_of(service), given)
            answer = await agents.drive(**start)
            assert not agents.left
            overview = await service.state(agents.run_id)
            return Played(answer, overview["state"], overview.get("computed_errors", {}), agents)

    return asyncio.run(asyncio.wait_for(work(), 60))
