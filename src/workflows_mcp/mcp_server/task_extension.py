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
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

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

from workflows_mcp.errors import NotExpected, WorkflowsError
from workflows_mcp.mcp_server.elicitation import Elicitation
from workflows_mcp.mcp_server.follow_up import FollowUp, status_in
from workflows_mcp.mcp_server.resources import with_links
from workflows_mcp.mcp_server.tooling import Ctx, ServedTool, render_error, shortened

if TYPE_CHECKING:
    from mcp.server.mcpserver.tools import Tool

    from workflows_mcp.runs import Service

TASKS = "io.modelcontextprotocol/tasks"
WAIT_SECONDS = 1.0
"""How long a call waits before it becomes a task."""
_NOT_ENDED = ("running", "waiting")
_POLL_MS = 1000
_DIGITS = 12
_MODERN = frozenset(MODERN_PROTOCOL_VERSIONS)


class FetchAgain(Protocol):
    async def __call__(
        self, context: Ctx, follow_up: FollowUp, run_id: str, /, *, style: str = ...
    ) -> CallToolResult: ...


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
        get_tool: Callable[[str], Tool | None],
        fetch_again: FetchAgain,
        *,
        stores_notes: bool,
        elicitation: Elicitation | None,
    ) -> None:
        self._get_tool = get_tool
        self._fetch_again = fetch_again
        self._stores_notes = stores_notes
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
        given = params.arguments or {}
        if not knows_tasks(ctx):
            return result
        follow_up = _follow_up_of(self._get_tool(params.name))
        if follow_up is None or _does_not_wait(follow_up, given):
            return result
        run_id = follow_up.run_of(given, result)
        if run_id is None or not isinstance(result, CallToolResult) or status_in(result) not in _NOT_ENDED:
            return result
        service: Service = ctx.lifespan_context
        position = await service.inspector.position(run_id)
        task = TaskId(params.name, run_id, position, follow_up.style_in(given))
        return {"resultType": "task", **await _task_of(ctx, task, result)}

    async def _get(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
        task, _, follow_up = await self._task_and_tool(ctx, params)
        result, forms, is_done = await self._state_of(ctx, task, follow_up)
        if is_done and self._stores_notes:
            service: Service = ctx.lifespan_context
            await service.note(task.run_id, task.done)
        return {"resultType": "complete", **await _task_of(ctx, task, result, forms, is_done=is_done)}

    async def _update(self, ctx: ServerRequestContext[Any, Any], params: UpdateParams) -> HandlerResult:
        task, _, _ = await self._task_and_tool(ctx, params)
        if self._elicitation is not None:
            await self._elicitation.fill_in(task.run_id, params.input_responses, Context(request_context=ctx))
        return {"resultType": "complete"}

    async def _cancel(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
        """Cancel the run of a task that is not done."""
        task, tool, follow_up = await self._task_and_tool(ctx, params)
        service: Service = ctx.lifespan_context
        _, _, is_done = await self._state_of(ctx, task, follow_up)
        if _moves_runs(tool) and not is_done:
            try:
                await service.cancel(task.run_id, reason="its task was cancelled")
            except NotExpected:
                pass  # the run has just ended
            except WorkflowsError as error:
                raise MCPError(INVALID_PARAMS, render_error(error)) from None
        return {"resultType": "complete"}

    async def _state_of(
        self, ctx: ServerRequestContext[Any, Any], task: TaskId, follow_up: FollowUp
    ) -> tuple[CallToolResult, Mapping[str, ElicitRequest], bool]:
        """Return the answer about its run, the open forms, and whether the task is done."""
        context: Ctx = Context(request_context=ctx)
        try:
            result = await self._fetch_again(context, follow_up, task.run_id, style=task.style)
        except (ToolError, WorkflowsError):
            raise _no_task(str(task)) from None
        service: Service = ctx.lifespan_context
        if await service.noted(task.run_id, task.done):
            return result, {}, True
        forms: Mapping[str, ElicitRequest] = {}
        if self._elicitation is not None:
            result, forms = await self._elicitation.open_forms(task.run_id, result, context)
        return result, forms, not forms and status_in(result) not in _NOT_ENDED

    async def _task_and_tool(
        self, ctx: ServerRequestContext[Any, Any], params: TaskParams
    ) -> tuple[TaskId, Tool, FollowUp]:
        """Check every part of the id, because a client can make one up.

        The run must be a run: the follow-up of some tools would resume a checkpoint in its place.
        """
        require_client_extension(ctx, TASKS)
        named = getattr(ctx.request, "headers", {}).get("mcp-name") if ctx.request is not None else None
        if named is not None and named != params.task_id:
            raise MCPError(HEADER_MISMATCH, "Mcp-Name does not match params.taskId")
        task = TaskId.read(params.task_id)
        tool = self._get_tool(task.tool) if task is not None else None
        follow_up = _follow_up_of(tool)
        if task is None or tool is None or follow_up is None or (task.style and not follow_up.style):
            raise _no_task(params.task_id)
        service: Service = ctx.lifespan_context
        try:
            position = await service.inspector.position(task.run_id)
        except WorkflowsError:
            raise _no_task(params.task_id) from None
        if task.position > position:
            raise _no_task(params.task_id)
        return task, tool, follow_up


def _follow_up_of(tool: Tool | None) -> FollowUp | None:
    """The follow-up of a tool whose calls can become tasks."""
    found = tool.follow_up if isinstance(tool, ServedTool) else None
    return found if found is not None and found.waits else None


def _does_not_wait(follow_up: FollowUp, arguments: Mapping[str, Any]) -> bool:
    """Whether the caller wants the answer before a call becomes a task."""
    wanted = None if follow_up.inputs else arguments.get("wait_seconds")
    return isinstance(wanted, int | float) and wanted < WAIT_SECONDS


def _moves_runs(tool: Tool) -> bool:
    """Tools that only read, or repeat what is pending, declare that they are not destructive."""
    return bool(tool.annotations and tool.annotations.destructive_hint)


def knows_tasks(ctx: ServerRequestContext[Any, Any]) -> bool:
    capabilities = ctx.session.client_capabilities
    declared = capabilities.extensions if capabilities is not None else None
    return ctx.protocol_version in _MODERN and TASKS in (declared or {})


async def _task_of(
    ctx: ServerRequestContext[Any, Any],
    task: TaskId,
    result: CallToolResult,
    forms: Mapping[str, ElicitRequest] | None = None,
    *,
    is_done: bool = False,
) -> dict[str, Any]:
    service: Service = ctx.lifespan_context
    began, changed = await service.inspector.times(task.run_id)
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
        why = (result.structured_content or {}).get("why")
        about = {"statusMessage": why} if why else {}
        return {**task_fields, "status": "working", "pollIntervalMs": _POLL_MS, **about}
    if status_in(result) == "cancelled":
        return {**task_fields, "status": "cancelled"}
    whole = with_links(result).model_dump(by_alias=True, mode="json", exclude_none=True)
    whole.pop("resultType", None)
    return {**task_fields, "status": "completed", "result": whole}


def _no_task(task_id: str) -> MCPError:
    return MCPError(INVALID_PARAMS, shortened(f"Failed to retrieve task: there is no task '{task_id}'"))
