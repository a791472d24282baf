"""Toolset `reactive`: do one atomic step at a time, read and write a flat state, and resume runs.

It runs workflows of every dialect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired

from pydantic import BeforeValidator, Field
from typing_extensions import TypedDict

from workflows_mcp.mcp_server.tooling import (
    ADDS,
    ASSIGNS_STEP,
    NOT_GIVEN,
    OVERWRITES,
    READS,
    RUNS_STEPS,
    AnyOrNull,
    Content,
    Ctx,
    RunShape,
    Status,
    Structure,
    Texts,
    Toolset,
    as_structure,
)
from workflows_mcp.mcp_server.tooling import service_of as _service

if TYPE_CHECKING:
    from workflows_mcp.runs import Service

TOOLSET = Toolset("reactive")


RunId = Annotated[str, Field(description="Id of the run")]
Name = Annotated[str, Field(description="Its name, e.g. team:fix")]
TaskId = Annotated[str | None, Field(description="Of a sub-agent: its task")]
Wait = Annotated[float, Field(description="Seconds to wait for a step; at most 45")]


def _updates(value: Any) -> Any:
    value = as_structure(value)
    return [value] if isinstance(value, dict) else value


Updates = Annotated[
    list[dict[str, Any]],
    BeforeValidator(_updates),
    Field(description="{path: raw.… or state.…, operation?: set|append|increment|merge, value} each"),
]


class AtomicStep(TypedDict):
    """A step that the agent can do at once; the fields of `definition` depend on its type."""

    id: str
    type: str
    instructions: str
    definition: dict[str, Any]
    result_schema: NotRequired[dict[str, Any]]
    variable_replacements: NotRequired[dict[str, Any]]
    original_expression: NotRequired[str]


class NextStep(TypedDict):
    step: AtomicStep | None
    more_steps: NotRequired[list[Any]]
    messages: list[str]
    status: Status
    why: NotRequired[str]
    error: NotRequired[dict[str, Any]]
    next: NotRequired[str]


class Completed(TypedDict):
    """A NextStep with a shorter schema: `step` and `status` are as there, here and below."""

    success: bool
    step: dict[str, Any] | None
    more_steps: NotRequired[list[Any]]
    messages: list[Any]
    status: str
    why: NotRequired[str]
    error: NotRequired[dict[str, Any]]
    next: NotRequired[str]


class Started(TypedDict):
    workflow_id: str
    state: dict[str, Any]
    step: dict[str, Any] | None
    more_steps: NotRequired[list[Any]]
    messages: list[Any]
    status: str
    why: NotRequired[str]
    error: NotRequired[dict[str, Any]]
    next: NotRequired[str]


class Resumed(TypedDict):
    workflow_id: str
    workflow: str
    resumed_from: NotRequired[str]
    last_checkpoint: dict[str, Any]
    workflow_metadata: NotRequired[dict[str, Any]]
    computed_field_definitions: NotRequired[dict[str, Any]]
    historical_data: NotRequired[list[Any]]
    completed_task_details: NotRequired[list[Any]]
    state: NotRequired[dict[str, Any]]
    step: dict[str, Any] | None
    more_steps: NotRequired[list[Any]]
    messages: list[Any]
    status: str
    why: NotRequired[str]
    error: NotRequired[dict[str, Any]]
    next: NotRequired[str]


class Workflows(TypedDict):
    workflows: list[dict[str, Any]]
    more: NotRequired[int]


class Info(TypedDict):
    name: str
    description: str
    version: str
    inputs: dict[str, Any]
    found_at: str


class Definition(TypedDict):
    name: str
    steps: list[Any]
    state_schema: dict[str, Any]
    sub_agent_tasks: dict[str, Any]
    loaded_from: str
    source: str
    resolved_imports: list[Any]


class Checkpoint(TypedDict):
    checkpoint_id: str
    state_path: str
    message: str
    messages: NotRequired[list[Any]]


class Finished(TypedDict):
    success: bool
    status: Status
    why: NotRequired[str]
    final_state: dict[str, Any]


class FlatState(TypedDict):
    """Every field by its bare name; the names are those of the workflow."""


class Updated(TypedDict):
    success: bool
    computed: dict[str, Any]
    errors: NotRequired[dict[str, str]]


class DependenciesOfField(TypedDict):
    """Lists of names; the schema leaves that out to save tokens."""

    direct_deps: list[Any]
    all_deps: list[Any]
    dependents: list[Any]


async def _next(service: Service, run_id: str, wait_seconds: float, _: str) -> Content:
    return await service.step_protocol.next_step(run_id, None, wait_seconds)


async def _started(service: Service, run_id: str, wait_seconds: float, style: str) -> Content:
    state = await service.step_protocol.read(run_id, (), None)
    return {"workflow_id": run_id, "state": state, **await _next(service, run_id, wait_seconds, style)}


async def _completed(service: Service, run_id: str, wait_seconds: float, style: str) -> Content:
    return {"success": True, **await _next(service, run_id, wait_seconds, style)}


@TOOLSET.tool("List workflows", READS, role="list", always_load=("reactive",))
async def workflow_list(
    ctx: Ctx,
    include_global: Annotated[bool, Field(description="false: the project's only")] = True,
) -> Annotated[Content, Workflows]:
    """What can be run: name, path, description, source."""
    return _service(ctx).definitions.listed(include_global=include_global)


@TOOLSET.tool("Describe a workflow", READS, role="describe", always_load=("reactive",))
async def workflow_get_info(ctx: Ctx, workflow: Name) -> Annotated[Content, Info]:
    """What a workflow is for, and its inputs."""
    return _service(ctx).definitions.info(workflow)


@TOOLSET.tool(
    "Start a workflow",
    RUNS_STEPS,
    shape=RunShape(_started),
    role="start",
    always_load=("reactive",),
)
async def workflow_start(
    ctx: Ctx,
    workflow: Name,
    inputs: Annotated[Structure, Field(description="Its inputs, by name")] = None,
    wait_seconds: Wait = 30,
) -> Annotated[Content, Started]:
    """Start a workflow. Returns its id, its state, and the first step: do what step.instructions say, then
    workflow_step_complete. Show `messages` to the user."""
    return await _service(ctx).step_protocol.start(workflow, inputs, wait_seconds)


@TOOLSET.tool("Next step", ASSIGNS_STEP, shape=RunShape(_next))
async def workflow_get_next_step(
    ctx: Ctx,
    workflow_id: RunId,
    task_id: TaskId = None,
    sub_agent_context: Annotated[Structure, Field(description="Instead of task_id: {task_id: …}")] = None,
    wait_seconds: Wait = 30,
) -> Annotated[Content, NextStep]:
    """The next atomic step, all values in place. null: it has ended (status completed, failed, cancelled), or
    nothing is to be done yet (running, waiting: call again). Harmless to repeat."""
    task = task_id or _task_in(sub_agent_context)
    return await _service(ctx).step_protocol.next_step(workflow_id, task, wait_seconds)


@TOOLSET.tool(
    "Complete a step",
    RUNS_STEPS,
    shape=RunShape(_completed),
    role="answer",
    always_load=("reactive",),
)
async def workflow_step_complete(
    ctx: Ctx,
    workflow_id: RunId,
    step_id: Annotated[str, Field(description="step.id")],
    status: Annotated[
        Literal["success", "failed"], Field(description="failed: say why in error")
    ] = "success",
    result: Annotated[AnyOrNull, Field(description="Its result, as step.instructions say")] = NOT_GIVEN,
    error: Annotated[str, Field(description="Why it failed")] = "",
    task_id: TaskId = None,
    wait_seconds: Wait = 30,
) -> Annotated[Content, Completed]:
    """A step is done. The server stores `result` as its state_update says; leave it out only if you have
    written it yourself with workflow_state_update. The reply carries the next step. Repeating is harmless."""
    return await _service(ctx).step_protocol.complete_step(
        workflow_id,
        step_id,
        status=status,
        result=result,
        error=error,
        task_id=task_id,
        wait_seconds=wait_seconds,
    )


@TOOLSET.tool("Resume a run", RUNS_STEPS)
async def workflow_resume(
    ctx: Ctx,
    workflow_id: Annotated[str, Field(description="Id of a run or checkpoint (chk_…)")],
    wait_seconds: Wait = 30,
) -> Annotated[Content, Resumed]:
    """Continue a run in a new conversation: where it is, its state, the step to do. A failed run continues
    from the step that failed, as a new run (another workflow_id)."""
    return await _service(ctx).step_protocol.resume(workflow_id, wait_seconds)


@TOOLSET.tool("Definition", READS)
async def workflow_load_definition(ctx: Ctx, workflow: Name) -> Annotated[Content, Definition]:
    """A definition as it is written. Not needed to run it."""
    return _service(ctx).definitions.definition(workflow)


@TOOLSET.tool("Checkpoint a run", ADDS)
async def workflow_checkpoint(
    ctx: Ctx,
    workflow_id: RunId,
    reason: Annotated[str, Field(description="e.g. context nearly full")],
    step_id: Annotated[str | None, Field(description="Else the pending one")] = None,
) -> Annotated[Content, Checkpoint]:
    """Mark where a run is, before a conversation ends. `message` says how to continue."""
    return await _service(ctx).step_protocol.checkpoint(workflow_id, reason, step_id)


@TOOLSET.tool("Finish a run", OVERWRITES)
async def workflow_complete(
    ctx: Ctx,
    workflow_id: RunId,
    status: Annotated[Literal["success", "failed", "cancelled"], Field(description="cancelled: end it")],
) -> Annotated[Content, Finished]:
    """The final state of a run that has ended. success false: it ended otherwise, or has not (`why`)."""
    return await _service(ctx).step_protocol.complete(workflow_id, status)


@TOOLSET.tool("Read the state", READS)
async def workflow_state_read(
    ctx: Ctx,
    workflow_id: Annotated[str, Field(description="Id of a run or checkpoint")],
    paths: Annotated[Texts, Field(description='Only these, e.g. summary.total or files["a.ts"]')] = None,
    task_id: TaskId = None,
) -> Annotated[Content, FlatState]:
    """The state: every field by its bare name, computed ones too; or the values at paths."""
    return await _service(ctx).step_protocol.read(workflow_id, paths or (), task_id)


@TOOLSET.tool("Write the state", RUNS_STEPS)
async def workflow_state_update(
    ctx: Ctx, workflow_id: RunId, updates: Updates, task_id: TaskId = None
) -> Annotated[Content, Updated]:
    """Write the state, all updates or none. `computed`: fields that changed because of it."""
    return await _service(ctx).step_protocol.update(workflow_id, updates, task_id)


@TOOLSET.tool("Dependencies of a field", READS)
async def workflow_state_dependencies(
    ctx: Ctx,
    workflow_id: Annotated[str, Field(description="Id of a run, or name of a workflow")],
    field: Annotated[str, Field(description="e.g. valid_files or raw.git_files")],
) -> Annotated[Content, DependenciesOfField]:
    """What a field follows from, and what follows from it."""
    return await _service(ctx).step_protocol.dependencies(workflow_id, field)


def _task_in(context: dict[str, Any] | None) -> str | None:
    named = (context or {}).get("task_id") or (context or {}).get("batch_id")
    return str(named) if named is not None else None
