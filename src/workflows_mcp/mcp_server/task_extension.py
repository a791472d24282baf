"""The extension `io.modelcontextprotocol/tasks`: a call whose run goes on for long is a task that the client
asks about, instead of a call that waits.

A task is nothing that is kept: its id says which run it is about and how that is looked at, so it is there as
long as the run is, in whichever process. It is done when the run needs its agent or has ended, and its result
is the answer of the tool then. Cancelling it cancels the run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import Context, require_client_extension
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp.types import HEADER_MISMATCH, INVALID_PARAMS, CallToolRequestParams, CallToolResult, RequestParams
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import Field

from workflows_mcp.errors import WorkflowsError
from workflows_mcp.mcp_server.looking import Look, run_meant, status_in
from workflows_mcp.mcp_server.tooling import Ctx, worded

if TYPE_CHECKING:
    from workflows_mcp.service import Service

TASKS = "io.modelcontextprotocol/tasks"
WAIT_SECONDS = 1.0
"""How long a call waits before it becomes a task."""
_GOES_ON = ("running", "waiting")
_POLL_MS = 1000
_MODERN = frozenset(MODERN_PROTOCOL_VERSIONS)

LookAgain = Callable[[Ctx, Look, str], Awaitable[CallToolResult]]


class TaskParams(RequestParams):
    task_id: str


class UpdateParams(TaskParams):
    input_responses: dict[str, Any] = Field(default_factory=dict)


class Tasks(Extension):
    identifier = TASKS

    def __init__(self, looks: Mapping[str, Look], look_again: LookAgain) -> None:
        self._looks = {tool: look for tool, look in looks.items() if look.waits}
        self._look_again = look_again

    def methods(self) -> Sequence[MethodBinding]:
        return [
            MethodBinding("tasks/get", TaskParams, self._get, _MODERN),
            MethodBinding("tasks/update", UpdateParams, self._update, _MODERN),
            MethodBinding("tasks/cancel", TaskParams, self._cancel, _MODERN),
        ]

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        result = await call_next(ctx)
        look = self._looks.get(params.name)
        if look is None or not knows_tasks(ctx):
            return result
        run_id = run_meant(params.arguments or {}, result)
        if run_id is None or not isinstance(result, CallToolResult) or status_in(result) not in _GOES_ON:
            return result
        return {"resultType": "task", **await _task(ctx, f"{params.name}:{run_id}", run_id, result)}

    async def _get(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
        look, run_id = self._meant(ctx, params)
        try:
            result = await self._look_again(Context(request_context=ctx), look, run_id)
        except ToolError:
            raise _no_task(params.task_id) from None
        return {"resultType": "complete", **await _task(ctx, params.task_id, run_id, result)}

    async def _update(self, ctx: ServerRequestContext[Any, Any], params: UpdateParams) -> HandlerResult:
        """Nothing is asked while a task is under way: what its run asks is its result."""
        self._meant(ctx, params)
        return {"resultType": "complete"}

    async def _cancel(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
        _, run_id = self._meant(ctx, params)
        service: Service = ctx.lifespan_context
        try:
            await service.cancel(run_id, reason="its task was cancelled")
        except WorkflowsError as error:
            raise MCPError(INVALID_PARAMS, worded(error)) from None
        return {"resultType": "complete"}

    def _meant(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> tuple[Look, str]:
        require_client_extension(ctx, TASKS)
        named = getattr(ctx.request, "headers", {}).get("mcp-name") if ctx.request is not None else None
        if named is not None and named != params.task_id:
            raise MCPError(HEADER_MISMATCH, "Mcp-Name does not match params.taskId")
        tool, _, run_id = params.task_id.partition(":")
        if tool not in self._looks or not run_id:
            raise _no_task(params.task_id)
        return self._looks[tool], run_id


def knows_tasks(ctx: ServerRequestContext[Any, Any]) -> bool:
    capabilities = ctx.session.client_capabilities
    declared = capabilities.extensions if capabilities is not None else None
    return ctx.protocol_version in _MODERN and TASKS in (declared or {})


async def _task(
    ctx: ServerRequestContext[Any, Any], task_id: str, run_id: str, result: CallToolResult
) -> dict[str, Any]:
    service: Service = ctx.lifespan_context
    began, changed = await service.observing.times(run_id)
    status = status_in(result)
    said: dict[str, Any] = {"taskId": task_id, "createdAt": began, "lastUpdatedAt": changed, "ttlMs": None}
    if status in _GOES_ON:
        why = (result.structured_content or {}).get("why")
        about = {"statusMessage": why} if why else {}
        return {**said, "status": "working", "pollIntervalMs": _POLL_MS, **about}
    if status == "cancelled":
        return {**said, "status": "cancelled"}
    whole = result.model_dump(by_alias=True, mode="json", exclude_none=True)
    whole.pop("resultType", None)
    return {**said, "status": "completed", "result": whole}


def _no_task(task_id: str) -> MCPError:
    return MCPError(INVALID_PARAMS, f"Failed to retrieve task: there is no task '{task_id}'")
