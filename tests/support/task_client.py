"""The tasks extension from the side of a client: a call that becomes a task is asked about until it is done.

    client = Client(server, extensions=[TaskClient(between)])

`between` is done after every look that shows the task still working. What was seen is kept in `seen`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

from mcp.client import ClientSession
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.types import CallToolResult, Request, RequestParams, Result
from pydantic import ConfigDict

TASKS = "io.modelcontextprotocol/tasks"
Between = Callable[["TaskClient"], Awaitable[None]]


class Task(Result):
    model_config = ConfigDict(extra="allow")
    result_type: Literal["task"] = "task"
    task_id: str = ""
    status: str = ""


class Seen(Result):
    model_config = ConfigDict(extra="allow")
    status: str = ""
    result: dict[str, Any] | None = None


class TaskId(RequestParams):
    task_id: str


class TaskRequest(Request[TaskId, str]):
    method: str
    params: TaskId


async def ask(session: ClientSession, method: str, task_id: str) -> Seen:
    request = TaskRequest(method=method, params=TaskId(task_id=task_id))
    return await session.send_request(request, Seen)


class TaskClient(ClientExtension):
    identifier = TASKS

    def __init__(self, between: Between) -> None:
        self._between = between
        self.seen: list[dict[str, Any]] = []
        self.context: ClaimContext

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=Task, resolve=self._resolve)]

    async def ask(self, method: str, task_id: str) -> Seen:
        return await ask(self.context.session, method, task_id)

    async def _resolve(self, task: Task, context: ClaimContext) -> CallToolResult:
        self.context = context
        self.seen.append(task.model_dump(by_alias=True, mode="json"))
        while True:
            found = await self.ask("tasks/get", task.task_id)
            self.seen.append(found.model_dump(by_alias=True, mode="json"))
            if found.status == "completed":
                return CallToolResult.model_validate(found.result)
            if found.status != "working":
                return CallToolResult(content=[], is_error=True)
            await self._between(self)
