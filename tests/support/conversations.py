"""A conversation of a client with hooks, without the client: what it would send to the server, and what comes back.

    conversation = Conversation(service, "session-1")
    run = await conversation.start(TWO_STEPS)             # the call of a tool, and the hook after it
    assert "waits for you" in (await conversation.stop())["reason"]

Events have the fields that real Claude Code sends; `tests/clients` has the real one.
"""

from __future__ import annotations

import json
from typing import Any

from workflows_mcp.answers import Answer
from workflows_mcp.mcp_server.hooks import Hooks
from workflows_mcp.runs import Service
from workflows_mcp.values import Value

TOOL = "mcp__plugin_workflows_workflows__"
Event = dict[str, Any]

TWO_STEPS = """\
name: two
description: Two steps of the agent
dialect: stateful
initial_state: {}
steps:
  - {id: first, type: delegate, instructions: Write the plan}
  - {id: second, type: delegate, instructions: Do the plan}
"""
ONE_BY_ONE = """\
name: fan
description: Two tasks of sub-agents
dialect: stateful
initial_state: {}
steps:
  - {id: each, type: foreach, items: "{{ ['a', 'b'] }}", agent: "@task", task: one, output_to: done}
  - {id: after, type: delegate, instructions: Sum it up, needs_state: []}
tasks:
  one:
    inputs: {name: {type: string}}
    steps:
      - {id: look, type: delegate, instructions: Look at it}
"""
LIMITED = """\
name: limited
description: A step that limits tools, and one that does not
dialect: stateful
initial_state: {}
steps:
  - {id: test, type: delegate, instructions: Run the tests, allow_tools: [Edit, "Bash(pytest:*)"]}
  - {id: free, type: delegate, instructions: Do anything}
"""
GATE = """\
name: gated
description: A gate after a step
dialect: stateful
initial_state: {}
steps:
  - {id: work, type: delegate, instructions: Work}
  - {id: approve, type: gate, message: Release it?}
  - {id: after, type: delegate, instructions: Release}
"""


class Conversation:
    def __init__(self, service: Service, session: str, *, agent: str = "", client: str = "4711") -> None:
        self.service = service
        self.session = session
        self.agent = agent
        self.header = {"client": client, "plugin": "/plugins/workflows"}
        self._hooks = Hooks(service)

    def sub_agent(self, agent: str) -> Conversation:
        return Conversation(self.service, self.session, agent=agent)

    async def event(self, name: str, **fields: Any) -> Event:
        """What the client is to do at an event."""
        agent = {"agent_id": self.agent, "agent_type": "workflows:workflow-task"} if self.agent else {}
        event = {"session_id": self.session, "cwd": "/src", **agent, "hook_event_name": name, **fields}
        return await self._hooks.answer(event, self.header)

    # Calls of our tools, each with the hook that follows

    async def start(self, text: str) -> str:
        answer = await self.service.start(text=text)
        await self.called("start_workflow", {"yaml": text}, answer)
        return answer.workflow_id

    async def submit(self, workflow_id: str, step_id: str, result: Value = "done") -> Answer:
        answer = await self.service.submit(workflow_id, result, step_id=step_id)
        await self.called("submit_result", {"workflow_id": workflow_id, "result": result}, answer)
        return answer

    async def next_step(self, workflow_id: str) -> Answer:
        answer = await self.service.next_step(workflow_id)
        await self.called("get_next_step", {"workflow_id": workflow_id}, answer)
        return answer

    async def called(self, tool: str, given: Event, answer: Answer | Event) -> None:
        shown = answer.rendered("step") if isinstance(answer, Answer) else answer
        name = tool if tool.startswith("mcp__") else f"{TOOL}{tool}"
        found = await self.event(
            "PostToolUse", tool_name=name, tool_input=given, tool_response=json.dumps(shown)
        )
        assert found == {}, "the hook after a call says nothing"

    # What the agent wants to do

    async def stop(self, **fields: Any) -> Event:
        return await self.event("SubagentStop" if self.agent else "Stop", stop_hook_active=False, **fields)

    async def use(self, tool: str, **given: Any) -> str:
        """Why a tool is denied; empty if it is not."""
        found = await self.event("PreToolUse", tool_name=tool, tool_input=given)
        if not found:
            return ""
        decision = found["hookSpecificOutput"]
        assert decision["permissionDecision"] == "deny"
        return str(decision["permissionDecisionReason"])

    async def begin(self, source: str = "resume") -> str:
        """What is put into the context when the conversation begins, is resumed or was compacted."""
        found = await self.event("SessionStart", source=source)
        return str(found["hookSpecificOutput"]["additionalContext"]) if found else ""
