"""The extension `io.modelcontextprotocol/tasks`: a long call becomes a task that the client polls.

    tools/call start_workflow   -> {"resultType": "task", "taskId": "start_workflow:wf_7f3a19c2b4d0:12", …}
    tasks/get                   -> {"status": "working", …}, in the end {"status": "completed", "result": …}

The id of a task says the tool, the run and the position of the run, so any process that serves the tool
knows the task as long as the run exists. A task is done when the run needs its agent or has ended; its
result is the answer of the tool at that time. What the run asks its user is asked by the client of the task.
A task that was reported as done stays done. Cancelling a task that is not done cancels the run, unless the
tool only reads. Polling changes nothing in the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import Context, require_client_extension
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

from workflows_mcp.errors import NotExpected, WorkflowsError
from workflows_mcp.mcp_server.elicitation import Elicitation
from workflows_mcp.mcp_server.resources import with_links
from workflows_mcp.mcp_server.tooling import (
    Content,
    Ctx,
    RunShape,
    ServedTool,
    answer,
    render_error,
    shortened,
)

if TYPE_CHECKING:
    from workflows_mcp.runs import Service

    Request = ServerRequestContext[Service, Any]

TASKS = "io.modelcontextprotocol/tasks"
WAIT_SECONDS = 1.0
"""How long a call waits before it becomes a task."""
_POLL_MS = 1000
_DIGITS = 12
_MODERN = frozenset(MODERN_PROTOCOL_VERSIONS)


class TaskId(NamedTuple):
    """start_workflow:wf_7f3a19c2b4d0:12"""

    tool: str
    run_id: str
    position: int
    """The number of events of the run when the call became a task."""
    style: str = ""

    def __str__(self) -> str:
        return ":".join(str(part) for part in self if part != "")

    @classmethod
    def read(cls, text: str) -> Self | None:
        tool, *rest = text.split(":")
        if not 2 <= len(rest) <= 3 or not rest[1].isdecimal() or len(rest[1]) > _DIGITS:
            return None
        found = cls(tool, rest[0], int(rest[1]), *rest[2:])
        return found if str(found) == text else None

    @property
    def done(self) -> str:
        """The note that the task was reported as done."""
        return f"!{self}"


class TaskParams(RequestParams):
    task_id: str


class UpdateParams(TaskParams):
    input_responses: dict[str, Any] = Field(default_factory=dict)


class Tasks(Extension):
    identifier = TASKS

    def __init__(
        self,
        get_tool: Callable[[str], ServedTool | None],
        *,
        stores_notes: bool,
        elicitation: Elicitation | None,
    ) -> None:
        self._get_tool = get_tool
        self._stores_notes = stores_notes
        self._elicitation = elicitation

    def methods(self) -> Sequence[MethodBinding]:
        return [
            MethodBinding("tasks/get", TaskParams, self._get, _MODERN),
            MethodBinding("tasks/update", UpdateParams, self._update, _MODERN),
            MethodBinding("tasks/cancel", TaskParams, self._cancel, _MODERN),
        ]

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: Request, call_next: CallNext
    ) -> HandlerResult:
        result = await call_next(ctx)
        tool, given = self._get_tool(params.name), params.arguments or {}
        if tool is None or not _becomes_task(tool, given, ctx):
            return result
        if not isinstance(result, CallToolResult) or result.is_error:
            return result
        content = result.structured_content or {}
        run_id = tool.run_of(given, content)
        if run_id is None or not _is_under_way(content):
            return result
        position = await ctx.lifespan_context.inspector.position(run_id)
        task = TaskId(params.name, run_id, position, tool.style_in(given))
        return {"resultType": "task", **await _task_of(ctx, task, content)}

    async def _get(self, ctx: Request, params: TaskParams) -> HandlerResult:
        task, _, shape = await self._task_and_tool(ctx, params)
        content, forms, is_done = await self._state_of(ctx, task, shape)
        if is_done and self._stores_notes:
            await ctx.lifespan_context.note(task.run_id, task.done)
        return {"resultType": "complete", **await _task_of(ctx, task, content, forms, is_done=is_done)}

    async def _update(self, ctx: Request, params: UpdateParams) -> HandlerResult:
        task, _, _ = await self._task_and_tool(ctx, params)
        if self._elicitation is not None:
            await self._elicitation.fill_in(task.run_id, params.input_responses, Context(request_context=ctx))
        return {"resultType": "complete"}

    async def _cancel(self, ctx: Request, params: TaskParams) -> HandlerResult:
        """Cancel the run of a task that is not done."""
        task, tool, shape = await self._task_and_tool(ctx, params)
        _, _, is_done = await self._state_of(ctx, task, shape)
        if _moves_runs(tool) and not is_done:
            try:
                await ctx.lifespan_context.cancel(task.run_id, reason="its task was cancelled")
            except NotExpected:
                pass  # the run has just ended
            except WorkflowsError as error:
                raise MCPError(INVALID_PARAMS, render_error(error)) from None
        return {"resultType": "complete"}

    async def _state_of(
        self, ctx: Request, task: TaskId, shape: RunShape
    ) -> tuple[Content, Mapping[str, ElicitRequest], bool]:
        """Return the answer about its run, the open forms, and whether the task is done."""
        service = ctx.lifespan_context
        try:
            content = await shape.read(service, task.run_id, 0, task.style)
        except WorkflowsError:
            raise _no_task(str(task)) from None
        if await service.noted(task.run_id, task.done):
            return content, {}, True
        forms: Mapping[str, ElicitRequest] = {}
        if self._elicitation is not None:
            context: Ctx = Context(request_context=ctx)
            content, forms = await self._elicitation.open_forms(task.run_id, content, context)
        return content, forms, not forms and not _is_under_way(content)

    async def _task_and_tool(self, ctx: Request, params: TaskParams) -> tuple[TaskId, ServedTool, RunShape]:
        """Check every part of the id, because a client can make one up.

        The run must be a run: some tools would resume a checkpoint in its place.
        """
        require_client_extension(ctx, TASKS)
        named = getattr(ctx.request, "headers", {}).get("mcp-name") if ctx.request is not None else None
        if named is not None and named != params.task_id:
            raise MCPError(HEADER_MISMATCH, "Mcp-Name does not match params.taskId")
        task = TaskId.read(params.task_id)
        tool = self._get_tool(task.tool) if task is not None else None
        shape = tool.shape if tool is not None else None
        if task is None or tool is None or shape is None or not shape.becomes_task:
            raise _no_task(params.task_id)
        if task.style and not shape.style:
            raise _no_task(params.task_id)
        try:
            position = await ctx.lifespan_context.inspector.position(task.run_id)
        except WorkflowsError:
            raise _no_task(params.task_id) from None
        if task.position > position:
            raise _no_task(params.task_id)
        return task, tool, shape


def _becomes_task(tool: ServedTool, arguments: Mapping[str, Any], ctx: Request) -> bool:
    if tool.shape is None or not tool.shape.becomes_task or not knows_tasks(ctx):
        return False
    wanted = None if tool.takes_inputs else arguments.get("wait_seconds")
    wants_the_answer = isinstance(wanted, int | float) and wanted < WAIT_SECONDS
    return not wants_the_answer


def _is_under_way(content: Content) -> bool:
    return content.get("status") in ("running", "waiting")


def _moves_runs(tool: ServedTool) -> bool:
    """Tools that only read, or repeat what is pending, declare that they are not destructive."""
    return bool(tool.annotations and tool.annotations.destructive_hint)


def knows_tasks(ctx: Request) -> bool:
    capabilities = ctx.session.client_capabilities
    declared = capabilities.extensions if capabilities is not None else None
    return ctx.protocol_version in _MODERN and TASKS in (declared or {})


async def _task_of(
    ctx: Request,
    task: TaskId,
    content: Content,
    forms: Mapping[str, ElicitRequest] | None = None,
    *,
    is_done: bool = False,
) -> dict[str, Any]:
    began, changed = await ctx.lifespan_context.inspector.times(task.run_id)
    task_fields: dict[str, Any] = {
        "taskId": str(task),
        "createdAt": began,
        "lastUpdatedAt": changed,
        "ttlMs": None,
    }
    if forms:
        shown = {
            key: form.model_dump(by_alias=True, mode="json", exclude_none=True) for key, form in forms.items()
        }
        return {**task_fields, "status": "input_required", "pollIntervalMs": _POLL_MS, "inputRequests": shown}
    if not is_done:
        about = {"statusMessage": why} if (why := content.get("why")) else {}
        return {**task_fields, "status": "working", "pollIntervalMs": _POLL_MS, **about}
    if content.get("status") == "cancelled":
        return {**task_fields, "status": "cancelled"}
    whole = with_links(answer(content)).model_dump(by_alias=True, mode="json", exclude_none=True)
    whole.pop("resultType", None)
    return {**task_fields, "status": "completed", "result": whole}


def _no_task(task_id: str) -> MCPError:
    return MCPError(INVALID_PARAMS, shortened(f"Failed to retrieve task: there is no task '{task_id}'"))
