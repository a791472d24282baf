"""Toolset `graph`: run a workflow until it ends or pauses, and continue it from checkpoints.

It runs workflows of every dialect.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, NotRequired

from msgspec import to_builtins
from pydantic import Field
from typing_extensions import TypedDict

from workflows_mcp.answers import Action, Answer, CheckpointId, Cut, Reader, RunDetails, cut, reader, within
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
    run_id, fork_of = await service.resume(run_id)
    return await graph_answer(service, run_id, wait_seconds, style, fork_of)


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
    service = _service(ctx)
    run_id = await service.begin(workflow=workflow, inputs=inputs)
    return await graph_answer(service, run_id, wait_seconds, response_format)


@TOOLSET.tool("Run a workflow given as YAML", RUNS_STEPS, shape=_RUN)
async def execute_inline_workflow(
    ctx: Ctx,
    workflow_yaml: Annotated[str, Field(description="The whole definition")],
    inputs: Inputs = None,
    response_format: Format = "minimal",
    wait_seconds: Wait = 30,
) -> Annotated[Content, WorkflowResponse]:
    """Run a workflow given as YAML, without saving it. Answers as execute_workflow does."""
    service = _service(ctx)
    run_id = await service.begin(text=workflow_yaml, inputs=inputs)
    return await graph_answer(service, run_id, wait_seconds, response_format)


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
    service = _service(ctx)
    run_id, fork_of = await service.resume(checkpoint_id, response)
    patient = run_id == checkpoint_id
    return await graph_answer(service, run_id, wait_seconds, response_format, fork_of, patient=patient)


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


# Translation
#
#     {"status": "paused", "workflow_id": "wf_7f3a", "checkpoint_id": "pause_wf_7f3a_2",
#      "prompt": "Ship it? yes or no", "message": "answer with resume_workflow(checkpoint_id='pause_…', …)"}
#
# `minimal` has the status and the outputs; `detailed` also has every block, with the blocks of a called
# workflow inside the block that calls it. Absent fields are left out, but a success always has `blocks` and
# `metadata`.

_STATUSES = {
    "pending_action": "paused",
    "running": "running",
    "waiting": "running",
    "completed": "success",
    "failed": "failure",
    "cancelled": "failure",
}
"""The names of the statuses of a run in this toolset."""
_PROMPT_SHARE = 8
"""A prompt may be this many times longer than other values before it is cut."""


async def graph_answer(
    service: Service,
    run_id: str,
    wait_seconds: float,
    response_format: str = "minimal",
    fork_of: CheckpointId | None = None,
    *,
    patient: bool = False,
) -> dict[str, Any]:
    """Wait until a run pauses or ends. `fork_of`: the checkpoint that it was made from. `patient`: wait for
    the decisions of people too."""
    found = await service.status(
        run_id, wait_seconds=wait_seconds, alone=True, patient=patient, with_checkpoints=True
    )
    details = await service.inspector.details(run_id) if response_format == "detailed" else None
    return within(found.limits, lambda how: as_graph(found, how, details, fork_of))


def as_graph(
    found: Answer, how: Cut, details: RunDetails | None = None, fork_of: CheckpointId | None = None
) -> dict[str, Any]:
    read, status = reader(found.workflow_id), _STATUSES[found.status]
    shape: dict[str, Any] = {"status": status, "workflow_id": found.workflow_id}
    if fork_of is not None:
        shape["forked_from"] = fork_of.run_id
    if found.outputs or status == "success":
        shape["outputs"] = cut(found.outputs, ("outputs",), how, read)
    if found.failed_blocks:
        shape["failed_blocks"] = cut(to_builtins(found.failed_blocks), ("blocks",), how, read)
    if status == "failure":
        shape["error"] = _error(found)
    asked = [it for it in found.actions if it.checkpoint_id]
    if asked:
        first, *more = [_question(it, how, read) for it in asked]
        shape |= first
        if more:
            notes = [it.forms.instructions("", decided="").strip() for it in asked[1:]]
            shape["more_prompts"] = [
                {**entry, **({"message": note} if note else {})}
                for entry, note in zip(more, notes, strict=True)
            ][: how.items]
    if message := ". ".join(_sentences(found, asked, fork_of)):
        shape["message"] = message
    if details is not None:
        shape["blocks"] = cut(details.blocks, ("blocks",), how, read)
        shape["metadata"] = details.metadata
    elif status == "success":
        shape |= {"blocks": {}, "metadata": {}}
    return shape


def _error(found: Answer) -> str:
    """Return why a run failed, as one text: message, place, last output and hint."""
    error = found.error
    if error is None:
        return f"the run was {found.status}"
    lines = [f"cancelled: {error.message}" if error.code == "cancelled" else error.message]
    if error.block and f"'{error.block}'" not in error.message:
        lines[0] = f"{error.block}: {lines[0]}"
    if error.place:
        lines.append(f"at {error.place}" + (f": {error.line}" if error.line else ""))
    if error.printed and error.printed.strip() not in error.message:
        lines.append(f"it printed last:\n{error.printed}")
    if error.hint:
        lines.append(error.hint)
    return "\n".join(lines)


def _question(asked: Action, how: Cut, read: Reader) -> dict[str, Any]:
    path = ("actions", asked.address, "parameters", "prompt")
    prompt = cut(asked.prompt, path, Cut(how.characters * _PROMPT_SHARE), read)
    question = {"checkpoint_id": asked.checkpoint_id, "prompt": prompt}
    if asked.type != "prompt" or not _is_plain_text(asked.result_schema):
        question["response_schema"] = asked.result_schema
    return question


def _is_plain_text(schema: dict[str, Any]) -> bool:
    fields = list(schema.get("properties", {}).values())
    return len(fields) == 1 and set(fields[0]) <= {"type", "description"} and fields[0]["type"] == "string"


def _sentences(found: Answer, asked: list[Action], fork_of: CheckpointId | None) -> Iterator[str]:
    """Yield the sentences of the message."""
    run_id = found.workflow_id
    if fork_of is not None:
        yield (
            f"this is a new run, a fork of {fork_of.run_id} from {fork_of}: that run had moved on, and is "
            "unchanged; $SCRATCH is a copy of its files, or empty if it had ended"
        )
    if asked:
        how = f"answer with resume_workflow(checkpoint_id='{asked[0].checkpoint_id}', response='…')"
        yield asked[0].forms.instructions(how, decided=how)
        if len(asked) > 1:
            yield f"{len(asked)} prompts are open: answer each with its own checkpoint_id"
        if found.doomed:
            yield f"note: block {found.doomed} has failed, so the run will fail in any case"
    if deleted := [it.address for it in found.actions if not it.checkpoint_id]:
        yield (
            f"the run waits for an answer at '{deleted[0]}', but the checkpoint of that question was "
            f"deleted: end it with control_workflow(workflow_id='{run_id}', action='cancel')"
        )
    elif found.is_parked:
        yield found.why
    elif not found.has_ended and not asked:
        yield (
            f"{found.why}; it continues by itself, wait for it with resume_workflow(checkpoint_id='{run_id}')"
        )
    if found.status in ("failed", "cancelled"):
        yield found.next
