"""Toolset `core`: enough to find, run, answer, watch, read and cancel workflows of every dialect."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from mcp.server.mcpserver.tools import Tool
from mcp.types import CallToolResult, ToolAnnotations
from pydantic import Field

from workflows_mcp.errors import Problem, RequestError
from workflows_mcp.mcp_server.tooling import (
    AnyOrNull,
    ControlAnswer,
    Ctx,
    NextAnswer,
    RunAnswer,
    StateAnswer,
    StatusAnswer,
    Structure,
    Texts,
    Validation,
    WorkflowInfo,
    WorkflowList,
    answer,
    brief,
    in_short,
    make_tool,
)
from workflows_mcp.mcp_server.tooling import service_of as _service
from workflows_mcp.values import to_json

RunId = Annotated[str, Field(description="Id of the run or task")]
Wait = Annotated[float, Field(description="Seconds to wait for it, at most 45")]

_LISTED = 100
_PROBLEMS_LISTED = 3


async def list_workflows(
    ctx: Ctx,
    tags: Annotated[Texts, Field(description="Only those with all of these tags")] = None,
    query: Annotated[str, Field(description="Words to look for in names and descriptions")] = "",
) -> Annotated[CallToolResult, WorkflowList]:
    """What can be run. `more`: how many are left out; narrow with tags or query."""
    found = _service(ctx).list_workflows(tags=tags or (), query=query)
    listed = [
        _present(
            {
                "name": summary.name,
                "description": brief(summary.description),
                "dialect": summary.dialect,
                "source": summary.source,
                "tags": list(summary.tags),
                "problems": [str(problem) for problem in summary.problems[:_PROBLEMS_LISTED]],
            }
        )
        for summary in found[:_LISTED]
    ]
    more = len(found) - len(listed)
    return answer({"workflows": listed, **({"more": more} if more > 0 else {})})


async def get_workflow_info(
    ctx: Ctx,
    workflow: Annotated[str, Field(description="Its name")],
    definition: Annotated[bool, Field(description="Its YAML instead: an example to learn from")] = False,
) -> Annotated[CallToolResult, WorkflowInfo]:
    """About a workflow: the JSON Schema of its inputs, its outputs and steps, what it will ask of you, the
    tools that you need, what it does to the machine."""
    service = _service(ctx)
    return answer(service.definition(workflow) if definition else service.workflow_info(workflow))


async def start_workflow(
    ctx: Ctx,
    workflow: Annotated[str | None, Field(description="Its name")] = None,
    yaml: Annotated[str | None, Field(description="Instead of a name: the definition as YAML")] = None,
    inputs: Annotated[Structure, Field(description="Its inputs, by name")] = None,
    request_id: Annotated[str | None, Field(description="The same id again returns the same run")] = None,
    wait_seconds: Wait = 30,
) -> Annotated[CallToolResult, RunAnswer]:
    """Start a workflow. Returns when it needs you or has ended, else status "running" and it goes on.
    On "pending_action": do what `action` says with its parameters. Then make the call in `next`. On
    "completed": outputs or result. On "failed": error says why."""
    return answer(
        await _service(ctx).start(
            workflow=workflow,
            text=yaml,
            inputs=inputs,
            request_id=request_id,
            wait_seconds=wait_seconds,
            detail="step",
        )
    )


async def submit_result(
    ctx: Ctx,
    workflow_id: RunId,
    result: Annotated[
        AnyOrNull,
        Field(
            description="What action.instructions ask for; if it could not be done, "
            '{"is_error": true, "error": "<why>"}'
        ),
    ],
    step_id: Annotated[
        str | None,
        Field(description="action.step_id, so that a repeated call cannot answer the next question"),
    ] = None,
    wait_seconds: Wait = 30,
) -> Annotated[CallToolResult, NextAnswer]:
    """Hand in the result of the pending action. The reply carries the next action or the outputs, as in
    start_workflow. A refused result changes nothing: mend it as the error says. Submitting twice is
    harmless."""
    return answer(
        await _service(ctx).submit(
            workflow_id, result, step_id=step_id, wait_seconds=wait_seconds, detail="step"
        )
    )


async def get_next_step(
    ctx: Ctx,
    workflow_id: RunId,
    task_id: Annotated[str | None, Field(description="A task of it")] = None,
) -> Annotated[CallToolResult, NextAnswer]:
    """The pending action, for a sub-agent that begins its task, or again when it was lost."""
    return answer(await _service(ctx).next_step(workflow_id, task_id=task_id, detail="step"))


async def get_workflow_status(
    ctx: Ctx,
    workflow_id: Annotated[
        str | None, Field(description="Lost the id? Without it, unfinished and recent runs")
    ] = None,
    wait_seconds: Wait = 30,
) -> Annotated[CallToolResult, StatusAnswer]:
    """Where a run is and why it waits. Waits itself while steps run, so do not poll faster."""
    if workflow_id is None:
        return answer(await _service(ctx).runs())
    return answer(await _service(ctx).status(workflow_id, wait_seconds=wait_seconds, detail="status"))


async def get_workflow_state(
    ctx: Ctx,
    workflow_id: RunId,
    paths: Annotated[
        Texts,
        Field(description="e.g. outputs.log, state.plan, blocks.build.outputs.stdout, blocks.ci.metadata"),
    ] = None,
    offset: Annotated[int, Field(description="Where a slice of a long text or list starts")] = 0,
    limit: Annotated[int | None, Field(description="Its length, in characters or items")] = None,
) -> Annotated[CallToolResult, StateAnswer]:
    """Look into a run: without paths, inputs, state, outputs and how each block went; with paths, those
    values, long ones in slices (`slices`: total and next_offset)."""
    found = await _service(ctx).state(workflow_id, paths=paths or (), offset=offset, limit=limit)
    return answer(found)


async def control_workflow(
    ctx: Ctx,
    workflow_id: RunId,
    action: Annotated[
        Literal["cancel", "resume", "retry", "fork", "context_full"], Field(description="What to do")
    ],
    step_id: Annotated[str | None, Field(description="Where to fork")] = None,
    keep: Annotated[bool, Field(description="fork: do not end a waiting run")] = False,
    reason: Annotated[str, Field(description="Of a cancel")] = "",
    wait_seconds: Wait = 30,
) -> Annotated[CallToolResult, ControlAnswer]:
    """cancel: end a run. context_full: park it, your
    context is nearly full. resume: continue a parked run. retry: re-run what failed, or
    continue a cancelled run. fork: redo one step and what follows. Both make a new run that keeps the rest:
    use its workflow_id. retry of a task: its sub-agent is gone, start another."""
    service = _service(ctx)
    if action == "cancel" and step_id:
        raise RequestError(
            "a single step cannot be cancelled; nothing has changed",
            hint="leave out step_id to cancel the whole run",
        )
    if action == "cancel":
        return answer(await service.cancel(workflow_id, reason=reason, detail="step"))
    if action == "context_full":
        return answer(await service.context_full(workflow_id, reason=reason, detail="step"))
    if action == "resume":
        return answer(await service.resume_run(workflow_id, wait_seconds=wait_seconds, detail="step"))
    if action == "retry":
        return answer(await service.retry(workflow_id, wait_seconds=wait_seconds, detail="step"))
    if not step_id:
        raise RequestError("fork needs the step to do again", hint="give its step_id")
    return answer(
        await service.fork(workflow_id, step_id, keep=keep, wait_seconds=wait_seconds, detail="step")
    )


async def validate_workflow_yaml(
    ctx: Ctx, yaml_content: Annotated[str, Field(description="The whole definition")]
) -> Annotated[CallToolResult, Validation]:
    """Check a definition: all problems at once, each with place and fix."""
    service = _service(ctx)
    problems = service.validate(yaml_content)
    valid = all(problem.warning for problem in problems)
    told: list[dict[str, Any]] = []
    room = service.settings.limits.answer_chars
    for found in map(_found, problems):
        room -= len(to_json(found)) + 1
        if told and room < _ROOM:
            break
        told.append(found)
    more = len(problems) - len(told)
    return answer({"valid": valid, "problems": told, **({"more": more} if more else {})})


_ROOM = 100
"""Of an answer, for what it says beside its problems."""


def core_tools() -> list[Tool]:
    reads = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    works = ToolAnnotations(destructive_hint=True)  # and whatever steps do in the world, as is assumed
    hands_out = ToolAnnotations(destructive_hint=False, idempotent_hint=True, open_world_hint=False)
    return [
        make_tool(list_workflows, title="List workflows", hints=reads),
        make_tool(get_workflow_info, title="Describe a workflow", hints=reads),
        make_tool(start_workflow, title="Start a workflow", hints=works),
        make_tool(submit_result, title="Submit a result", hints=works),
        make_tool(get_next_step, title="Next step", hints=hands_out),
        make_tool(get_workflow_status, title="Run status", hints=reads),
        make_tool(get_workflow_state, title="Run state", hints=reads),
        make_tool(control_workflow, title="Control a run", hints=works),
        make_tool(validate_workflow_yaml, title="Validate a workflow", hints=reads),
    ]


def _found(problem: Problem) -> dict[str, Any]:
    place = problem.place
    return _present(
        {
            "message": in_short(problem.message),
            "hint": in_short(problem.hint),
            "place": in_short(str(place)) if place else "",
            "line": in_short(place.excerpt()[0].strip()) if place else "",
            "code": problem.code,
            "warning": problem.warning,
        }
    )


def _present(values: dict[str, Any]) -> dict[str, Any]:
    """What says nothing is left out."""
    return {key: value for key, value in values.items() if value}
