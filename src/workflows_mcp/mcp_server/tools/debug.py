"""Toolset `debug`: trace computed fields and steps, test transforms, and explain a workflow.

Its tools change nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from workflows_mcp.mcp_server.tooling import READS, AnyOrNull, Content, Ctx, Status, Structure, Toolset
from workflows_mcp.mcp_server.tooling import service_of as _service

TOOLSET = Toolset("debug")


RunId = Annotated[str, Field(description="Id of the run")]


class Traces(TypedDict):
    traces: list[dict[str, Any]]
    total: NotRequired[int]
    note: NotRequired[str]


class DebugInfo(TypedDict):
    current_step: str | None
    step_history: list[dict[str, Any]]
    earlier_steps: NotRequired[int]
    state_size: dict[str, Any]
    performance: dict[str, Any]
    status: Status
    events: int


class Tested(TypedDict):
    success: bool
    output: NotRequired[Any]
    error: NotRequired[str]
    execution_time_ms: float


class Explained(TypedDict):
    steps: list[dict[str, Any]]
    more_steps: NotRequired[int]
    estimated_duration: str
    required_tools: list[str]


@TOOLSET.tool("Trace computed fields", READS)
async def workflow_trace_transformations(
    ctx: Ctx,
    workflow_id: RunId,
    field: Annotated[str | None, Field(description="Only this field: a computed one, or raw.NAME")] = None,
    include_timing: Annotated[bool, Field(description="How long each takes when repeated")] = False,
) -> Annotated[Content, Traces]:
    """How the computed fields of a run got their values, the last 100: what triggered each computation, its
    input, output and error."""
    debugger = _service(ctx).debugger
    return await debugger.trace_transformations(workflow_id, field, include_timing=include_timing)


@TOOLSET.tool("Debug a run", READS)
async def workflow_debug_info(ctx: Ctx, workflow_id: RunId) -> Annotated[Content, DebugInfo]:
    """Where a run is, when each step began and ended and how it went, how large its state is, and which
    computed fields are slow."""
    return await _service(ctx).debugger.debug_info(workflow_id)


@TOOLSET.tool("Test a transform", READS, serves_task=True)
async def workflow_test_transformation(
    ctx: Ctx,
    transform: Annotated[str, Field(description="JavaScript, as in state_schema.computed")],
    input: Annotated[AnyOrNull, Field(description="What it gets as input; a list for several sources")],
    context: Annotated[Structure, Field(description="Further fields of the state, by name")] = None,
    validate: Annotated[str, Field(description="JavaScript over output that must hold")] = "",
) -> Annotated[Content, Tested]:
    """Try a transform out, without a run and without side effects."""
    debugger = _service(ctx).debugger
    return await debugger.test_transformation(transform, input, context, validate)


@TOOLSET.tool("Explain a workflow", READS, serves_task=True)
async def workflow_explain_plan(
    ctx: Ctx,
    workflow: Annotated[str, Field(description="Its name")],
    inputs: Annotated[Structure, Field(description="Values for its inputs, by name")] = None,
) -> Annotated[Content, Explained]:
    """What a workflow will do, without running it: its steps, on which conditions, what they read, how many
    sub-agents, which tools. What only a run can tell is "unknown: …"."""
    return await _service(ctx).debugger.explain_plan(workflow, inputs)
