"""The extension `io.modelcontextprotocol/tasks`: a call whose run goes on for long is a task that the client
asks about, instead of a call that waits.

A task is nothing that is kept: its id says which run it is about and how that is looked at, so it is there as
long as the run is, in whichever process that serves the tool. It is done when the run needs its agent or has
ended, and its result is the answer of the tool then; what its run asks of the user is asked by the client of
the task. Cancelling it cancels the run, if the tool is one that moves runs on; who only looks at a run gives
up looking. Asking about a task changes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import Context, require_client_extension
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp.types import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ElicitRequest,
    RequestParams,
)
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import Field

from workflows_mcp.errors import WorkflowsError
from workflows_mcp.mcp_server.elicitation import Elicitation
from workflows_mcp.mcp_server.looking import Look, run_meant, status_in
from workflows_mcp.mcp_server.tooling import Ctx, worded

if TYPE_CHECKING:
    from mcp.server.mcpserver.tools import Tool

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

    def __init__(
        self,
        looks: Mapping[str, Look],
        look_again: LookAgain,
        *,
        served: Callable[[str], Tool | None],
        elicitation: Elicitation | None,
    ) -> None:
        self._looks = {tool: look for tool, look in looks.items() if look.waits}
        self._look_again = look_again
        self._served = served
        self._elicitation = elicitation

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
        run_id = run_meant(look, params.arguments or {}, result)
        if run_id is None or not isinstance(result, CallToolResult) or status_in(result) not in _GOES_ON:
            return result
        return {"resultType": "task", **await _task(ctx, f"{params.name}:{run_id}", run_id, result)}

    async def _get(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
        tool, run_id = await self._meant(ctx, params)
        context: Ctx = Context(request_context=ctx)
        try:
            result = await self._look_again(context, self._looks[tool.name], run_id)
        except (ToolError, WorkflowsError):
            raise _no_task(params.task_id) from None
        forms = {}
        if self._elicitation is not None:
            forms = await self._elicitation.open_forms(run_id, result, context)
        return {"resultType": "complete", **await _task(ctx, params.task_id, run_id, result, forms)}

    async def _update(self, ctx: ServerRequestContext[Any, Any], params: UpdateParams) -> HandlerResult:
        _, run_id = await self._meant(ctx, params)
        if self._elicitation is not None:
            await self._elicitation.fill_in(run_id, params.input_responses, Context(request_context=ctx))
        return {"resultType": "complete"}

    async def _cancel(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
        tool, run_id = await self._meant(ctx, params)
        service: Service = ctx.lifespan_context
        if _moves_runs_on(tool):
            try:
                await service.cancel(run_id, reason="its task was cancelled")
            except WorkflowsError as error:
                raise MCPError(INVALID_PARAMS, worded(error)) from None
        return {"resultType": "complete"}

    async def _meant(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> tuple[Tool, str]:
        """Nothing but the id says what there is, so all of it is looked up: whoever looks by the tool of the
        task must know that it is given a run, because a checkpoint in its place would be gone on from."""
        require_client_extension(ctx, TASKS)
        named = getattr(ctx.request, "headers", {}).get("mcp-name") if ctx.request is not None else None
        if named is not None and named != params.task_id:
            raise MCPError(HEADER_MISMATCH, "Mcp-Name does not match params.taskId")
        name, _, run_id = params.task_id.partition(":")
        tool = self._served(name) if name in self._looks else None
        if tool is None:
            raise _no_task(params.task_id)
        service: Service = ctx.lifespan_context
        try:
            await service.observing.times(run_id)
        except WorkflowsError:
            raise _no_task(params.task_id) from None
        return tool, run_id


def _moves_runs_on(tool: Tool) -> bool:
    """Tools that only look, or hand out again what is asked, say that they destroy nothing."""
    return bool(tool.annotations and tool.annotations.destructive_hint)


def knows_tasks(ctx: ServerRequestContext[Any, Any]) -> bool:
    capabilities = ctx.session.client_capabilities
    declared = capabilities.extensions if capabilities is not None else None
    return ctx.protocol_version in _MODERN and TASKS in (declared or {})


async def _task(
    ctx: ServerRequestContext[Any, Any],
    task_id: str,
    run_id: str,
    result: CallToolResult,
    forms: Mapping[str, ElicitRequest] | None = None,
) -> dict[str, Any]:
    service: Service = ctx.lifespan_context
    began, changed = await service.observing.times(run_id)
    status = status_in(result)
    said: dict[str, Any] = {"taskId": task_id, "createdAt": began, "lastUpdatedAt": changed, "ttlMs": None}
    if forms:
        shown = {
            key: form.model_dump(by_alias=True, mode="json", exclude_none=True) for key, form in forms.items()
        }
        return {**said, "status": "input_required", "pollIntervalMs": _POLL_MS, "inputRequests": shown}
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
