"""Toolset `stateful`: do one step at a time, with flat answers, until the run is complete.

It runs workflows of every dialect. A tool with the name of a tool of the core replaces it, and its answers
have all fields of the core.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field
from typing_extensions import TypedDict

from workflows_mcp.answers import Answer
from workflows_mcp.mcp_server.compat import parameters_called
from workflows_mcp.mcp_server.elicitation import patiently
from workflows_mcp.mcp_server.tooling import (
    ASSIGNS_STEP,
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

TOOLSET = Toolset("stateful")


WorkflowId = Annotated[str, Field(description="Id of the run, or of a sub-agent's task")]
Wait = Annotated[float, Field(description="Seconds to wait for the next step; at most 45")]
Result = Annotated[AnyOrNull, Field(description="What action.instructions ask for")]


class StepAnswer(TypedDict, total=False):
    """The next step, with its parameters beside these fields, or how it ended."""

    step_id: str
    type: str
    status: Literal["pending_action", "running", "waiting", "complete", "failed", "cancelled"]
    workflow_id: str
    action: dict[str, Any]
    more_actions: list[Any]
    requires_action: bool
    messages: list[Any]
    progress: dict[str, Any]
    why: str
    final_result: Any
    failed_blocks: list[Any]
    error: dict[str, Any]
    next: str


class WorkflowAnswer(TypedDict, total=False):
    """Where a run is; it has a `type` while an action is pending, and the fields of the core."""

    type: Literal["pending_action"]
    workflow_id: str
    workflow: str
    status: str
    action: dict[str, Any]
    more_actions: list[Any]
    messages: list[Any]
    progress: dict[str, Any]
    why: str
    result: Any
    outputs: dict[str, Any]
    failed_blocks: list[Any]
    error: dict[str, Any]
    next: str
    runs: list[Any]
    more: bool


async def _status(service: Service, run_id: str, wait_seconds: float, _: str) -> Content:
    return _typed((await service.status(run_id, wait_seconds=wait_seconds)).rendered("status"))


async def _step(service: Service, run_id: str, _: float, __: str) -> Content:
    return as_step(await service.next_step(run_id))


_STATUS = RunShape(_status)


@TOOLSET.tool("Start a workflow", RUNS_STEPS, shape=_STATUS, role="start", always_load=("core",))
async def start_workflow(
    ctx: Ctx,
    workflow: Annotated[str | None, Field(description="Name of the workflow to run")] = None,
    name: Annotated[str | None, Field(description="The same")] = None,
    yaml: Annotated[str | None, Field(description="Instead of a name: the whole definition as YAML")] = None,
    inputs: Annotated[Structure, Field(description="Values for the workflow's inputs, by name")] = None,
    request_id: Annotated[
        str | None, Field(description="Repeating a start with the same id returns the same run")
    ] = None,
    wait_seconds: Wait = 30,
) -> Annotated[Content, WorkflowAnswer]:
    """Start a workflow. Returns its workflow_id and the pending action, or its result. Do what `action` says,
    then the call in `next`."""
    started = await _service(ctx).start(
        workflow=workflow or name,
        text=yaml,
        inputs=inputs,
        request_id=request_id,
        wait_seconds=wait_seconds,
    )
    return _typed(started.rendered("step"))


@TOOLSET.tool(
    "Submit a result", RUNS_STEPS, shape=_STATUS, role="answer", always_load=("core",), serves_task=True
)
async def submit_result(
    ctx: Ctx,
    workflow_id: WorkflowId,
    result: Result,
    step_id: Annotated[str | None, Field(description="action.step_id")] = None,
    wait_seconds: Wait = 30,
) -> Annotated[Content, WorkflowAnswer]:
    """Submit the result of the pending action; returns the next one, or the result of the workflow.
    Submitting twice is harmless."""
    submitted = await _service(ctx).submit(workflow_id, result, step_id=step_id, wait_seconds=wait_seconds)
    return _typed(submitted.rendered("step"))


@TOOLSET.tool("Run status", READS, shape=_STATUS, role="watch", always_load=("core",), serves_task=True)
async def get_workflow_status(
    ctx: Ctx,
    workflow_id: Annotated[str | None, Field(description="Without it, the recent runs")] = None,
    wait_seconds: Wait = 30,
) -> Annotated[Content, WorkflowAnswer]:
    """Where a run or a task is, why it waits, and the pending action, if any. Waits while steps run."""
    if workflow_id is None:
        return await _service(ctx).runs()
    read = partial(_service(ctx).status, workflow_id)
    status = await patiently(ctx, wait_seconds, lambda s, patient: read(wait_seconds=s, patient=patient))
    return _typed(status.rendered("status"))


@TOOLSET.tool("Next step", ASSIGNS_STEP, shape=RunShape(_step), serves_task=True)
async def get_next_step(
    ctx: Ctx,
    workflow_id: WorkflowId,
    task_id: Annotated[str | None, Field(description="A task of it")] = None,
) -> Annotated[Content, StepAnswer]:
    """The next step to do, or status "complete" with final_result. Harmless to repeat."""
    return as_step(await _service(ctx).next_step(workflow_id, task_id=task_id))


@TOOLSET.tool(
    "Submit the result of a step", RUNS_STEPS, shape=RunShape(_step, becomes_task=False), serves_task=True
)
async def submit_step_result(
    ctx: Ctx,
    workflow_id: WorkflowId,
    step_id: Annotated[str, Field(description="Which step this is the result of")],
    result: Result,
    wait_seconds: Wait = 30,
) -> Annotated[Content, StepAnswer]:
    """Submit the result of a step. The reply is the next step, as of get_next_step. Submitting twice, and
    acknowledging a step that the server runs itself, is harmless."""
    service = _service(ctx)
    await service.submit(workflow_id, result, step_id=step_id, wait_seconds=0)
    return as_step(await service.next_step(workflow_id, wait_seconds=wait_seconds))


def _typed(found: dict[str, Any]) -> dict[str, Any]:
    return {"type": "pending_action", **found} if found["status"] == "pending_action" else found


# Translation: a step with its parameters beside its id
#
#     {"step_id": "read-file", "type": "shell", "command": "cat src/main.py", "timeout": 30, "status":
#      "pending_action", "workflow_id": "wf_1.analyze.0", "action": {…}}
#     {"status": "complete", "final_result": {…}, "workflow_id": "wf_1.analyze.0"}
#
# `action` has the rest: the instructions, and the parameters whose names are fields of the answer.


def as_step(found: Answer) -> dict[str, Any]:
    shape = {**_timer(found), **found.rendered("step", with_result=True)}
    if shape["status"] == "completed":
        final = shape.pop("result", None) if "result" in shape else shape.pop("outputs", None)
        return {**shape, "status": "complete", "final_result": final}
    action = shape.get("action")
    if action is None:
        return shape
    shape["next"] = shape["next"].replace("submit_result(", "submit_step_result(", 1)
    own = {"step_id": action["step_id"], "type": action["type"]}
    parameters = action.pop("parameters")
    rest = {name: it for name, it in parameters.items() if name in own or name in shape}
    flat = {name: it for name, it in parameters.items() if name not in rest}
    action["instructions"] = parameters_called("`{}`", action["instructions"], as_before=rest)
    return {**own, **flat, **shape, "action": {**action, **({"parameters": rest} if rest else {})}}


def _timer(found: Answer) -> dict[str, Any]:
    """Return the fields of a timer step, for an agent that has nothing else to do."""
    timer = found.timer
    if timer is None:
        return {}
    shape = {
        "step_id": timer.step_id,
        "type": "wait",
        "duration": timer.duration,
        "seconds_left": timer.seconds_left,
        "requires_action": False,
    }
    return {**shape, "message": timer.message} if timer.message else shape
