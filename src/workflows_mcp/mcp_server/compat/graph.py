"""Toolset `graph`: run a workflow until it ends or pauses, and continue it from checkpoints.

It runs workflows of every dialect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from workflows_mcp.mcp_server.resources import SCHEMA
from workflows_mcp.mcp_server.tooling import (
    NOT_GIVEN,
    OVERWRITES,
    READS,
    RUNS_STEPS,
    AnyOrNull,
    Content,
    Ctx,
    RunShape,
    Structure,
    Toolset,
)
from workflows_mcp.mcp_server.tooling import service_of as _service

if TYPE_CHECKING:
    from workflows_mcp.runs import Service

TOOLSET = Toolset("graph")


Format = Annotated[
    Literal["minimal", "detailed"],
    Field(description="detailed: also every block with inputs, outputs and metadata, for debugging"),
]
Inputs = Annotated[Structure, Field(description="Values for the workflow's inputs, by name")]
Wait = Annotated[float, Field(description="Seconds to wait for it to pause or end; at most 45")]
CheckpointIdText = Annotated[str, Field(description="From list_checkpoints or a paused answer")]


class WorkflowResponse(TypedDict):
    """How a run went, or what it waits for."""

    status: Literal["success", "failure", "paused", "running"]
    workflow_id: str
    outputs: NotRequired[dict[str, Any]]
    blocks: NotRequired[dict[str, Any]]
    metadata: NotRequired[dict[str, Any]]
    failed_blocks: NotRequired[list[Any]]
    error: NotRequired[str]
    checkpoint_id: NotRequired[str]
    prompt: NotRequired[str]
    response_schema: NotRequired[dict[str, Any]]
    more_prompts: NotRequired[list[dict[str, Any]]]
    forked_from: NotRequired[str]
    message: NotRequired[str]


class CheckpointList(TypedDict):
    checkpoints: list[dict[str, Any]]
    more: NotRequired[bool]


class CheckpointInfo(TypedDict):
    checkpoint_id: str
    workflow: str
    workflow_id: str
    type: Literal["pause", "automatic"]
    reason: NotRequired[str]
    created_at: str
    position: int
    moved_on: bool
    completed_blocks: list[str]
    failed_blocks: NotRequired[list[str]]
    skipped_blocks: NotRequired[list[str]]
    execution_waves: list[Any]
    current_wave: NotRequired[int]
    inputs: dict[str, Any]
    paused_block: NotRequired[str]
    workflow_stack: NotRequired[list[str]]
    prompt: NotRequired[str]
    answered_with: NotRequired[dict[str, Any]]
    how_to_resume: str


class Deleted(TypedDict):
    deleted: bool
    checkpoint_id: str
    workflow_id: str
    message: str


class WorkflowSchema(TypedDict):
    dialects: NotRequired[dict[str, Any]]
    type: NotRequired[str]
    anyOf: NotRequired[list[Any]]
    next: NotRequired[str]


async def _run(service: Service, run_id: str, wait_seconds: float, style: str) -> Content:
    response_format: Format = "detailed" if style == "detailed" else "minimal"
    return await service.resume(run_id, wait_seconds=wait_seconds, response_format=response_format)


_RUN = RunShape(_run, style="response_format")


@TOOLSET.tool("Run a workflow", RUNS_STEPS, shape=_RUN, role="start", always_load=("graph",))
async def execute_workflow(
    ctx: Ctx,
    workflow: Annotated[str, Field(description="Its name")],
    inputs: Inputs = None,
    response_format: Format = "minimal",
    wait_seconds: Wait = 30,
) -> Annotated[Content, WorkflowResponse]:
    """Run a workflow. "success": outputs. "failure": error says where and why. "paused": answer `prompt` with
    resume_workflow(checkpoint_id, response). "running": it continues by itself; message says how to wait."""
    return await _service(ctx).execute(
        workflow=workflow, inputs=inputs, wait_seconds=wait_seconds, response_format=response_format
    )


@TOOLSET.tool("Run a workflow given as YAML", RUNS_STEPS, shape=_RUN)
async def execute_inline_workflow(
    ctx: Ctx,
    workflow_yaml: Annotated[str, Field(description="The whole definition")],
    inputs: Inputs = None,
    response_format: Format = "minimal",
    wait_seconds: Wait = 30,
) -> Annotated[Content, WorkflowResponse]:
    """Run a workflow given as YAML, without saving it. Answers as execute_workflow does."""
    return await _service(ctx).execute(
        text=workflow_yaml, inputs=inputs, wait_seconds=wait_seconds, response_format=response_format
    )


@TOOLSET.tool("Resume a workflow", RUNS_STEPS, shape=_RUN, role="answer", always_load=("graph",))
async def resume_workflow(
    ctx: Ctx,
    checkpoint_id: Annotated[
        str,
        Field(description="pause_…: what you answer; chk_…: where to continue; a workflow_id: waits on"),
    ],
    response: Annotated[
        AnyOrNull, Field(description="The answer to the prompt, of a pause_… checkpoint")
    ] = NOT_GIVEN,
    response_format: Format = "minimal",
    wait_seconds: Wait = 30,
) -> Annotated[Content, WorkflowResponse]:
    """Answer a paused run and continue it. The same response twice is harmless. Where the run has moved on
    since the checkpoint, a new run continues from there (`forked_from`); the old one does not change."""
    return await _service(ctx).resume(
        checkpoint_id, response, wait_seconds=wait_seconds, response_format=response_format
    )


@TOOLSET.tool("Schema of workflows", READS)
async def get_workflow_schema(
    ctx: Ctx,
    dialect: Annotated[
        Literal["graph", "reactive", "stateful"] | None, Field(description="The schema of its workflows")
    ] = None,
    step_type: Annotated[str | None, Field(description="The schema of steps of this type")] = None,
) -> Annotated[Content, WorkflowSchema]:
    """The JSON Schema of workflow definitions, to write one. Without arguments: dialects and step types."""
    found = _service(ctx).schema_part(dialect, step_type)
    if dialect is None and step_type is None:
        found["next"] = (
            "get_workflow_schema(dialect=…) has the schema of a dialect's workflows, step_type=… that of one "
            f"type of steps; the whole is the resource {SCHEMA}, and the output of `workflows-mcp schema`"
        )
    return found


@TOOLSET.tool("List checkpoints", READS)
async def list_checkpoints(
    ctx: Ctx,
    workflow_name: Annotated[str | None, Field(description="Only of runs of this workflow")] = None,
    workflow_id: Annotated[str | None, Field(description="Only of this run")] = None,
) -> Annotated[Content, CheckpointList]:
    """List checkpoints, the latest first: questions ("pause") and ends of waves ("automatic").
    `moved_on`: resuming makes a new run. `more`: older ones are left out."""
    return await _service(ctx).checkpoints(workflow=workflow_name, run_id=workflow_id)


@TOOLSET.tool("Describe a checkpoint", READS)
async def get_checkpoint_info(
    ctx: Ctx, checkpoint_id: CheckpointIdText
) -> Annotated[Content, CheckpointInfo]:
    """All about a checkpoint: inputs, blocks that had ended, waves, the whole prompt, how to resume it."""
    return await _service(ctx).checkpoint_info(checkpoint_id)


@TOOLSET.tool("Delete a checkpoint", OVERWRITES)
async def delete_checkpoint(ctx: Ctx, checkpoint_id: CheckpointIdText) -> Annotated[Content, Deleted]:
    """Hide a checkpoint for good: it can no longer be resumed. Its run does not change."""
    return await _service(ctx).delete_checkpoint(checkpoint_id)
