"""Toolset `core`: find, run, answer, watch, read and cancel workflows of every dialect."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from workflows_mcp.errors import Problem, RequestError
from workflows_mcp.mcp_server.elicitation import patiently
from workflows_mcp.mcp_server.tooling import (
    ASSIGNS_STEP,
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
    brief,
    shortened,
)
from workflows_mcp.mcp_server.tooling import service_of as _service
from workflows_mcp.values import to_json

if TYPE_CHECKING:
    from workflows_mcp.runs import Service

TOOLSET = Toolset("core")

RunId = Annotated[str, Field(description="Id of a run or task")]
Wait = Annotated[float, Field(description="Seconds to wait, at most 45")]

_WORKFLOWS_LISTED = 100
_PROBLEMS_LISTED = 3
_OTHER_CHARS = 100
"""Room in an answer for everything except its list of problems."""

# ---- shapes of the answers; absent fields are left out


class Action(TypedDict, total=False):
    step_id: str
    type: str
    instructions: str
    parameters: dict[str, Any]
    result_schema: dict[str, Any]
    sub_agent_prompt: str
    workflow_id: str
    task: str


class RunAnswer(TypedDict):
    """The answer about a run or a task. `more_actions` are actions, too; the schema leaves that out to save
    tokens."""

    workflow_id: str
    status: Status
    messages: NotRequired[list[Any]]
    action: NotRequired[Action]
    more_actions: NotRequired[list[Any]]
    progress: NotRequired[dict[str, Any]]
    why: NotRequired[str]
    outputs: NotRequired[dict[str, Any]]
    result: NotRequired[Any]
    failed_blocks: NotRequired[list[Any]]
    error: NotRequired[dict[str, Any]]
    next: str


class NextAnswer(TypedDict):
    """A RunAnswer with a shorter schema: `status` and `action` are as there, here and below."""

    workflow_id: str
    status: str
    messages: NotRequired[list[Any]]
    action: NotRequired[dict[str, Any]]
    more_actions: NotRequired[list[Any]]
    progress: NotRequired[dict[str, Any]]
    why: NotRequired[str]
    outputs: NotRequired[dict[str, Any]]
    result: NotRequired[Any]
    failed_blocks: NotRequired[list[Any]]
    error: NotRequired[dict[str, Any]]
    next: str


class StatusAnswer(TypedDict, total=False):
    """The answer about a run or a task, or the recent runs."""

    workflow_id: str
    workflow: str
    status: str
    messages: list[Any]
    action: dict[str, Any]
    more_actions: list[Any]
    progress: dict[str, Any]
    why: str
    outputs: dict[str, Any]
    result: Any
    failed_blocks: list[Any]
    error: dict[str, Any]
    next: str
    runs: list[Any]
    more: bool


class ControlAnswer(NextAnswer):
    """The run after a command, or the new run that the command has made."""

    forked_from: NotRequired[str]


class StateAnswer(TypedDict):
    workflow_id: str
    workflow: NotRequired[str]
    status: str
    inputs: NotRequired[dict[str, Any]]
    state: NotRequired[dict[str, Any]]
    result: NotRequired[Any]
    outputs: NotRequired[dict[str, Any]]
    blocks: NotRequired[dict[str, Any]]
    values: NotRequired[dict[str, Any]]
    slices: NotRequired[dict[str, Any]]


class Listed(TypedDict):
    """A workflow in a list. Its lists hold texts, as those of WorkflowInfo do."""

    name: str
    description: NotRequired[str]
    dialect: NotRequired[str]
    source: str
    tags: NotRequired[list[Any]]
    problems: NotRequired[list[Any]]


class WorkflowList(TypedDict):
    workflows: list[Listed]
    more: NotRequired[int]


class WorkflowInfo(TypedDict, total=False):
    """A workflow: its description, or its definition."""

    workflow: str
    description: str
    dialect: str
    version: str
    tags: list[Any]
    source: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    steps: list[Any]
    asks: list[Any]
    agent_tools: list[Any]
    level: str
    needs: list[Any]
    secrets: list[Any]
    missing_secrets: list[Any]
    forbidden: list[Any]
    calls: list[Any]
    definition: str


class FoundProblem(TypedDict):
    message: str
    hint: NotRequired[str]
    place: NotRequired[str]
    line: NotRequired[str]
    code: str
    warning: NotRequired[bool]


class Validation(TypedDict):
    valid: bool
    problems: list[FoundProblem]
    more: NotRequired[int]


# ---- tools


async def _status(service: Service, run_id: str, wait_seconds: float, _: str) -> Content:
    return (await service.status(run_id, wait_seconds=wait_seconds)).rendered("status")


async def _controlled(service: Service, run_id: str, wait_seconds: float, style: str) -> Content:
    origin = await service.inspector.origin_of(run_id)
    forked = {"forked_from": origin} if origin else {}
    return {**forked, **await _status(service, run_id, wait_seconds, style)}


STATUS = RunShape(_status)


@TOOLSET.tool(
    "List workflows",
    READS,
    role="list",
    always_load=("core", "graph"),
    replaced_in=("reactive",),
    serves_task=True,
)
async def list_workflows(
    ctx: Ctx,
    tags: Annotated[Texts, Field(description="Only those with all these tags")] = None,
    query: Annotated[str, Field(description="Words in names and descriptions")] = "",
) -> Annotated[Content, WorkflowList]:
    """What can be run. `more`: how many are left out; narrow with tags or query."""
    found = _service(ctx).list_workflows(tags=tags or (), query=query)
    listed = [
        _without_empty(
            {
                "name": summary.name,
                "description": brief(summary.description),
                "dialect": summary.dialect,
                "source": summary.source,
                "tags": list(summary.tags),
                "problems": [str(problem) for problem in summary.problems[:_PROBLEMS_LISTED]],
            }
        )
        for summary in found[:_WORKFLOWS_LISTED]
    ]
    more = len(found) - len(listed)
    return {"workflows": listed, **({"more": more} if more > 0 else {})}


@TOOLSET.tool(
    "Describe a workflow",
    READS,
    role="describe",
    always_load=("core", "graph"),
    replaced_in=("reactive",),
    serves_task=True,
)
async def get_workflow_info(
    ctx: Ctx,
    workflow: Annotated[str, Field(description="Its name")],
    definition: Annotated[bool, Field(description="Its YAML instead: an example to learn from")] = False,
) -> Annotated[Content, WorkflowInfo]:
    """About a workflow: the JSON Schema of its inputs, its outputs and steps, what it will ask of you, the
    tools that you need, what it does to the machine."""
    service = _service(ctx)
    return service.definition(workflow) if definition else service.workflow_info(workflow)


@TOOLSET.tool(
    "Start a workflow",
    RUNS_STEPS,
    shape=STATUS,
    role="start",
    always_load=("core",),
    replaced_in=("graph", "reactive"),
)
async def start_workflow(
    ctx: Ctx,
    workflow: Annotated[str | None, Field(description="Its name")] = None,
    yaml: Annotated[str | None, Field(description="Or the definition as YAML")] = None,
    inputs: Annotated[Structure, Field(description="Its inputs, by name")] = None,
    request_id: Annotated[str | None, Field(description="The same id again returns the same run")] = None,
    wait_seconds: Wait = 30,
) -> Annotated[Content, RunAnswer]:
    """Start a workflow. Returns when it needs you or has ended, else status "running" and it continues.
    On "pending_action": do what `action` says with its parameters. Then make the call in `next`. On
    "completed": outputs or result. On "failed": error."""
    started = await _service(ctx).start(
        workflow=workflow, text=yaml, inputs=inputs, request_id=request_id, wait_seconds=wait_seconds
    )
    return started.rendered("step")


@TOOLSET.tool(
    "Submit a result",
    RUNS_STEPS,
    shape=STATUS,
    role="answer",
    always_load=("core",),
    replaced_in=("graph", "reactive"),
    answers_workflow_tools=True,
    serves_task=True,
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
) -> Annotated[Content, NextAnswer]:
    """Submit the result of the pending action. The reply has the next action or the outputs, as in
    start_workflow. A rejected result changes nothing: fix it as the error says. Submitting twice is
    harmless with a step_id."""
    submitted = await _service(ctx).submit(workflow_id, result, step_id=step_id, wait_seconds=wait_seconds)
    return submitted.rendered("step")


@TOOLSET.tool("Next step", ASSIGNS_STEP, shape=STATUS, replaced_in=("graph", "reactive"), serves_task=True)
async def get_next_step(
    ctx: Ctx,
    workflow_id: RunId,
    task_id: Annotated[str | None, Field(description="A task of it")] = None,
) -> Annotated[Content, NextAnswer]:
    """The pending action, for a sub-agent that begins its task, or again when it was lost."""
    found = await _service(ctx).next_step(workflow_id, task_id=task_id)
    return found.rendered("step")


@TOOLSET.tool(
    "Run status",
    READS,
    shape=STATUS,
    role="watch",
    always_load=("core",),
    answers_workflow_tools=True,
    serves_task=True,
)
async def get_workflow_status(
    ctx: Ctx,
    workflow_id: Annotated[
        str | None, Field(description="Lost the id? Without it, unfinished and recent runs")
    ] = None,
    wait_seconds: Wait = 30,
) -> Annotated[Content, StatusAnswer]:
    """Where a run is and why it waits. Waits itself while steps run, so do not poll faster."""
    if workflow_id is None:
        return await _service(ctx).runs()
    status = partial(_service(ctx).status, workflow_id)
    found = await patiently(ctx, wait_seconds, lambda s, patient: status(wait_seconds=s, patient=patient))
    return found.rendered("status")


@TOOLSET.tool("Run state", READS, serves_task=True)
async def get_workflow_state(
    ctx: Ctx,
    workflow_id: RunId,
    paths: Annotated[
        Texts,
        Field(description="e.g. outputs.log, state.plan, blocks.build.outputs.stdout, blocks.ci.metadata"),
    ] = None,
    offset: Annotated[int, Field(description="Start of a slice of a long text or list")] = 0,
    limit: Annotated[int | None, Field(description="Its length in characters or items")] = None,
) -> Annotated[Content, StateAnswer]:
    """Look into a run: without paths, inputs, state, outputs and how each block went; with paths, those
    values, long ones in slices (`slices`: total and next_offset)."""
    return await _service(ctx).state(workflow_id, paths=paths or (), offset=offset, limit=limit)


@TOOLSET.tool("Control a run", RUNS_STEPS, shape=RunShape(_controlled))
async def control_workflow(
    ctx: Ctx,
    workflow_id: RunId,
    action: Annotated[
        Literal["cancel", "resume", "retry", "fork", "context_full"], Field(description="What to do")
    ],
    step_id: Annotated[str | None, Field(description="Where to fork")] = None,
    keep: Annotated[bool, Field(description="fork: an open old run stays open")] = False,
    definition: Annotated[str | None, Field(description="The fixed workflow: name or YAML")] = None,
    reason: Annotated[str, Field(description="Of a cancel")] = "",
    wait_seconds: Wait = 30,
) -> Annotated[Content, ControlAnswer]:
    """cancel: end a run. context_full: park it, your context is nearly full. resume: continue a parked run.
    retry: re-run what failed, or continue a cancelled run; fork: redo one step and what follows; both in a
    new run that keeps the rest: use its id. retry of a task: its sub-agent is gone, start another."""
    service = _service(ctx)
    if action == "cancel" and step_id:
        raise RequestError(
            "a single step cannot be cancelled; nothing has changed",
            hint="leave out step_id to cancel the whole run",
        )
    changed = {"text" if "\n" in definition else "workflow": definition} if definition else {}
    if action == "cancel":
        found = await service.cancel(workflow_id, reason=reason)
    elif action == "context_full":
        found = await service.context_full(workflow_id, reason=reason)
    elif action == "resume":
        found = await service.resume_run(workflow_id, wait_seconds=wait_seconds)
    elif action == "retry":
        found = await service.retry(workflow_id, **changed, wait_seconds=wait_seconds)
    elif step_id:
        found = await service.fork(workflow_id, step_id, keep=keep, **changed, wait_seconds=wait_seconds)
    else:
        raise RequestError("fork needs the step to start from", hint="give its step_id")
    return found.rendered("step")


@TOOLSET.tool("Validate a workflow", READS, serves_task=True)
async def validate_workflow_yaml(
    ctx: Ctx, yaml_content: Annotated[str, Field(description="The whole definition")]
) -> Annotated[Content, Validation]:
    """Check a definition: all problems, each with place and fix."""
    service = _service(ctx)
    problems = service.validate(yaml_content)
    valid = all(problem.warning for problem in problems)
    shown: list[dict[str, Any]] = []
    room = service.settings.limits.answer_chars
    for found in map(_problem, problems):
        room -= len(to_json(found)) + 1
        if shown and room < _OTHER_CHARS:
            break
        shown.append(found)
    more = len(problems) - len(shown)
    return {"valid": valid, "problems": shown, **({"more": more} if more else {})}


def _problem(problem: Problem) -> dict[str, Any]:
    place = problem.place
    return _without_empty(
        {
            "message": shortened(problem.message),
            "hint": shortened(problem.hint),
            "place": shortened(str(place)) if place else "",
            "line": shortened(place.excerpt()[0].strip()) if place else "",
            "code": problem.code,
            "warning": problem.warning,
        }
    )


def _without_empty(values: dict[str, Any]) -> dict[str, Any]:
    """Leave out empty fields."""
    return {key: value for key, value in values.items() if value}
