"""Agents that drive workflows with the toolset `reactive`, one atomic step after the other, as its prompts say: a main
agent, and one for each task, which knows the run and the name of its task. They keep what they were handed.

    agents = SteppingAgents(reactive_tools_of(service), {None: ["HEAD"], "batch_0": [{"errors": []}]})
    final = await agents.drive("standards:fix")

Of the tools they know the names and the arguments, as agents do.
"""

from __future__ import annotations

import asyncio
from typing import Any

from support.reactive_agents import ENDED, Call, Handed, ScriptedAgents, Who, name_of
from support.rendered import Service

TYPES = ("agent_shell_command", "mcp_call", "parallel_tasks", "user_input", "apply_hints")
"""What can be handed to an agent."""


class SteppingAgents(ScriptedAgents):
    async def drive(self, workflow: str, inputs: dict[str, Any] | None = None) -> dict[str, Any]:
        """The main agent: from the start to the final state."""
        answer = await self._call("workflow_start", workflow=workflow, inputs=inputs or {})
        self.run_id = answer["workflow_id"]
        await self._go_on(self._call, None, answer)
        return await self._call("workflow_complete", workflow_id=self.run_id, status="success")

    async def _go_on(self, call: Call, who: Who, answer: dict[str, Any]) -> None:
        while True:
            self._note_messages(who, answer)
            step = answer["step"]
            if step is None and answer["status"] in ENDED:
                return
            if step is not None:
                self._note(who, step)
            if step is None:
                answer = await self._next(call, who)
            elif step["type"] == "parallel_tasks":
                await asyncio.gather(*(self._sub_agent(it["task_id"]) for it in step["definition"]["tasks"]))
                self._shown[who] = 0
                answer = await self._next(call, who)
            else:
                answer = await self._complete(call, who, step)

    async def _sub_agent(self, task_id: str) -> None:
        if self._sessions is None:
            await self._go_on(self._call, task_id, await self._next(self._call, task_id))
        else:
            async with self._sessions() as call:
                await self._go_on(call, task_id, await self._next(call, task_id))

    async def _next(self, call: Call, who: Who) -> dict[str, Any]:
        return await call("workflow_get_next_step", workflow_id=self.run_id, task_id=who)

    async def _complete(self, call: Call, who: Who, step: dict[str, Any]) -> dict[str, Any]:
        result = self._next_reply(who, step)
        answer = await call(
            "workflow_step_complete", workflow_id=self.run_id, step_id=step["id"], result=result, task_id=who
        )
        assert answer.pop("success") is True
        return answer

    def _note(self, who: Who, step: dict[str, Any]) -> None:
        assert step["type"] in TYPES
        assert step["instructions"]
        self.actions.append(step)
        definition = dict(step["definition"])
        if "tasks" in definition:
            named = ("task_id", "context")
            definition["tasks"] = [{name: task[name] for name in named} for task in definition["tasks"]]
        self.handed[who].append(Handed(step["type"], name_of(step["id"]), definition))


def reactive_tools_of(service: Service) -> Call:
    """The tools of the toolset, without a protocol in between."""
    stepping = service.step_protocol

    async def call(tool: str, **given: Any) -> dict[str, Any]:
        match tool:
            case "workflow_start":
                return await stepping.start(given["workflow"], given["inputs"], 30.0)
            case "workflow_get_next_step":
                return await stepping.next_step(given["workflow_id"], given["task_id"], 30.0)
            case "workflow_step_complete":
                return await stepping.complete_step(**given, wait_seconds=30.0)
            case "workflow_complete":
                return await stepping.complete(given["workflow_id"], given["status"])
        raise ValueError(tool)

    return call
