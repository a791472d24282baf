"""The extension `io.modelcontextprotocol/tasks`: a call whose run goes on for long is a task that the client
asks about, instead of a call that waits.

A task is little that is kept: its id says which run it is about, where that stood, and how it is looked at,
so it is there as long as the run is, in whichever process that serves the tool. It is done when the run
needs its agent or has ended, and its result is the answer of the tool then; what its run asks of the user is
asked by the client of the task. A task that was told to be done stays so, wherever its run goes. Cancelling
one that goes on cancels the run, if the tool is one that moves runs on; who only looks at a run gives up
looking. Asking about a task changes nothing of the run.
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
from workflows_mcp.mcp_server.follow_up import FollowUp, run_meant, status_in
from workflows_mcp.mcp_server.resources import with_links
from workflows_mcp.mcp_server.tooling import Ctx, in_short, rendered

if TYPE_CHECKING:
    from mcp.server.mcpserver.tools import Tool

    from workflows_mcp.runs import Service

TASKS = "io.modelcontextprotocol/tasks"
WAIT_SECONDS = 1.0
"""How long a call waits before it becomes a task."""
_GOES_ON = ("running", "waiting")
_POLL_MS = 1000
_DIGITS = 12
_MODERN = frozenset(MODERN_PROTOCOL_VERSIONS)


class LookAgain(Protocol):
    async def __call__(
        self, context: Ctx, look: FollowUp, run_id: str, /, *, style: str = ...
    ) -> CallToolResult: ...


class TaskId(NamedTuple):
    """start_workflow:wf_7f3a19c2b4d0:12"""

    tool: str
    run_id: str
    position: int
    """How many events there were of the run when the call became a task."""
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
        """The note that it was told to be done."""
        return f"!{self}"


class TaskParams(RequestParams):
    task_id: str


class UpdateParams(TaskParams):
    input_responses: dict[str, Any] = Field(default_factory=dict)


class Tasks(Extension):
    identifier = TASKS

    def __init__(
        self,
        looks: Mapping[str, FollowUp],
        look_again: LookAgain,
        *,
        served: Callable[[str], Tool | None],
        notes: bool,
        elicitation: Elicitation | None,
    ) -> None:
        self._looks = {tool: look for tool, look in looks.items() if look.waits}
        self._look_again = look_again
        self._served = served
        self._notes = notes
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
        look, given = self._looks.get(params.name), params.arguments or {}
        if look is None or not knows_tasks(ctx) or _does_not_wait(look, given):
            return result
        run_id = run_meant(look, given, result)
        if run_id is None or not isinstance(result, CallToolResult) or status_in(result) not in _GOES_ON:
            return result
        service: Service = ctx.lifespan_context
        position = await service.inspector.position(run_id)
        task = TaskId(params.name, run_id, position, look.style_in(given))
        return {"resultType": "task", **await _told(ctx, task, result)}

    async def _get(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
        task, _ = await self._meant(ctx, params)
        result, forms, is_done = await self._stands(ctx, task)
        if is_done and self._notes:
            service: Service = ctx.lifespan_context
            await service.note(task.run_id, task.done)
        return {"resultType": "complete", **await _told(ctx, task, result, forms, is_done=is_done)}

    async def _update(self, ctx: ServerRequestContext[Any, Any], params: UpdateParams) -> HandlerResult:
        task, _ = await self._meant(ctx, params)
        if self._elicitation is not None:
            await self._elicitation.fill_in(task.run_id, params.input_responses, Context(request_context=ctx))
        return {"resultType": "complete"}

    async def _cancel(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
        """A task that is done has nothing to cancel, whatever its run does since."""
        task, tool = await self._meant(ctx, params)
        service: Service = ctx.lifespan_context
        _, _, is_done = await self._stands(ctx, task)
        if _moves_runs_on(tool) and not is_done:
            try:
                await service.cancel(task.run_id, reason="its task was cancelled")
            except NotExpected:
                pass  # it has just ended by itself
            except WorkflowsError as error:
                raise MCPError(INVALID_PARAMS, rendered(error)) from None
        return {"resultType": "complete"}

    async def _stands(
        self, ctx: ServerRequestContext[Any, Any], task: TaskId
    ) -> tuple[CallToolResult, Mapping[str, ElicitRequest], bool]:
        """How its run stands, what is to be put to the user, and whether the task is done."""
        context: Ctx = Context(request_context=ctx)
        try:
            result = await self._look_again(context, self._looks[task.tool], task.run_id, style=task.style)
        except (ToolError, WorkflowsError):
            raise _no_task(str(task)) from None
        service: Service = ctx.lifespan_context
        if await service.noted(task.run_id, task.done):
            return result, {}, True
        forms: Mapping[str, ElicitRequest] = {}
        if self._elicitation is not None:
            result, forms = await self._elicitation.open_forms(task.run_id, result, context)
        return result, forms, not forms and status_in(result) not in _GOES_ON

    async def _meant(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> tuple[TaskId, Tool]:
        """Nothing but the id says what there is, so all of it is looked up: whoever looks by the tool of the
        task must know that it is given a run, because a checkpoint in its place would be gone on from."""
        require_client_extension(ctx, TASKS)
        named = getattr(ctx.request, "headers", {}).get("mcp-name") if ctx.request is not None else None
        if named is not None and named != params.task_id:
            raise MCPError(HEADER_MISMATCH, "Mcp-Name does not match params.taskId")
        task = TaskId.read(params.task_id)
        tool = self._served(task.tool) if task is not None and task.tool in self._looks else None
        if task is None or tool is None or (task.style and not self._looks[task.tool].style):
            raise _no_task(params.task_id)
        service: Service = ctx.lifespan_context
        try:
            position = await service.inspector.position(task.run_id)
        except WorkflowsError:
            raise _no_task(params.task_id) from None
        if task.position > position:
            raise _no_task(params.task_id)
        return task, tool


def _does_not_wait(look: FollowUp, arguments: Mapping[str, Any]) -> bool:
    """Whether the caller wants an answer sooner than a call becomes a task."""
    wanted = None if look.inputs else arguments.get("wait_seconds")
    return isinstance(wanted, int | float) and wanted < WAIT_SECONDS


def _moves_runs_on(tool: Tool) -> bool:
    """Tools that only look, or hand out again what is asked, say that they destroy nothing."""
    return bool(tool.annotations and tool.annotations.destructive_hint)


def knows_tasks(ctx: ServerRequestContext[Any, Any]) -> bool:
    capabilities = ctx.session.client_capabilities
    declared = capabilities.extensions if capabilities is not None else None
    return ctx.protocol_version in _MODERN and TASKS in (declared or {})


async def _told(
    ctx: ServerRequestContext[Any, Any],
    task: TaskId,
    result: CallToolResult,
    forms: Mapping[str, ElicitRequest] | None = None,
    *,
    is_done: bool = False,
) -> dict[str, Any]:
    service: Service = ctx.lifespan_context
    began, changed = await service.inspector.times(task.run_id)
    said: dict[str, Any] = {"taskId": str(task), "createdAt": began, "lastUpdatedAt": changed, "ttlMs": None}
    if forms:
        shown = {
            key: form.model_dump(by_alias=True, mode="json", exclude_none=True) for key, form in forms.items()
        }
        return {**said, "status": "input_required", "pollIntervalMs": _POLL_MS, "inputRequests": shown}
    if not is_done:
        why = (result.structured_content or {}).get("why")
        about = {"statusMessage": why} if why else {}
        return {**said, "status": "working", "pollIntervalMs": _POLL_MS, **about}
    if status_in(result) == "cancelled":
        return {**said, "status": "cancelled"}
    whole = with_links(result).model_dump(by_alias=True, mode="json", exclude_none=True)
    whole.pop("resultType", None)
    return {**said, "status": "completed", "result": whole}


def _no_task(task_id: str) -> MCPError:
    return MCPError(INVALID_PARAMS, in_short(f"Failed to retrieve task: there is no task '{task_id}'"))
