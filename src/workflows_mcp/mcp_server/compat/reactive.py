"""Toolset `reactive`: do one atomic step at a time, read and write a flat state, and resume runs.

It runs workflows of every dialect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal, NotRequired

from msgspec import to_builtins
from pydantic import BeforeValidator, Field
from typing_extensions import TypedDict

from workflows_mcp.answers import (
    Action,
    Answer,
    Cut,
    Delegated,
    Reader,
    StateSnapshot,
    cut,
    joined,
    reader,
    run_of,
    shortened,
    within,
)
from workflows_mcp.errors import NotExpected
from workflows_mcp.mcp_server.compat import parameters_called
from workflows_mcp.mcp_server.elicitation import patiently
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
from workflows_mcp.runs import Service, StepFailure
from workflows_mcp.values import LEFT_OUT, to_json

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


async def _read(service: Service, run_id: str, wait_seconds: float, _: str) -> Content:
    return as_next(await service.next_step(run_id, wait_seconds=wait_seconds, at_work=False))


async def _started(service: Service, run_id: str, wait_seconds: float, style: str) -> Content:
    step = await _read(service, run_id, wait_seconds, style)  # first: the state changes while it waits
    return {"workflow_id": run_id, "state": await read_state(service, run_id), **step}


async def _completed(service: Service, run_id: str, wait_seconds: float, style: str) -> Content:
    return {"success": True, **await _read(service, run_id, wait_seconds, style)}


@TOOLSET.tool("List workflows", READS, role="list", always_load=("reactive",), serves_task=True)
async def workflow_list(
    ctx: Ctx,
    include_global: Annotated[bool, Field(description="false: the project's only")] = True,
) -> Annotated[Content, Workflows]:
    """What can be run: name, path, description, source."""
    return _service(ctx).definitions.listed(include_global=include_global)


@TOOLSET.tool("Describe a workflow", READS, role="describe", always_load=("reactive",), serves_task=True)
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
    found = await _service(ctx).start(workflow=workflow, inputs=inputs, wait_seconds=wait_seconds)
    await asyncio.to_thread(found.state.read)
    return as_next(found, {"workflow_id": found.workflow_id}, found.state.flat)


@TOOLSET.tool("Next step", ASSIGNS_STEP, shape=RunShape(_read), serves_task=True)
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
    step = partial(_service(ctx).next_step, workflow_id, task_id=task, at_work=False)
    found = await patiently(ctx, wait_seconds, lambda s, patient: step(wait_seconds=s, patient=patient))
    return as_next(found)


@TOOLSET.tool(
    "Complete a step",
    RUNS_STEPS,
    shape=RunShape(_completed),
    role="answer",
    always_load=("reactive",),
    serves_task=True,
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
    found = await _service(ctx).submit(
        joined(workflow_id, task_id),
        StepFailure(error) if status == "failed" else result,
        step_id=step_id,
        wait_seconds=wait_seconds,
        explain_refusal=_refused,
    )
    waits = status == "success" and result is LEFT_OUT and step_id.partition("@")[0] in found.delegating
    return as_next(found, {"success": not waits}, brief=True)


@TOOLSET.tool("Resume a run", RUNS_STEPS)
async def workflow_resume(
    ctx: Ctx,
    workflow_id: Annotated[str, Field(description="Id of a run or checkpoint (chk_…)")],
    wait_seconds: Wait = 30,
) -> Annotated[Content, Resumed]:
    """Continue a run in a new conversation: where it is, its state, the step to do. A failed run continues
    from the step that failed, as a new run (another workflow_id)."""
    service = _service(ctx)
    run_id = await service.resume_in_conversation(workflow_id)
    found = await service.status(run_id, at_work=True)
    if wait_seconds and not found.delegating:
        found = await service.status(run_id, wait_seconds=wait_seconds, at_work=True)
    resumption = await service.conversations.resumption(run_id)
    first: dict[str, Any] = {"workflow_id": run_id, "workflow": found.workflow}
    if run_id != run_of(workflow_id):
        first["resumed_from"] = workflow_id
    first["last_checkpoint"] = {"step_id": _first_step(found), **resumption.last_checkpoint}
    await asyncio.to_thread(found.state.read)
    return as_next(found, {**first, **resumption.about}, resumption.fields_of(found.state))


@TOOLSET.tool("Definition", READS, serves_task=True)
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
    messages, checkpoint = await _service(ctx).conversations.mark(workflow_id, reason, step_id)
    run_id = checkpoint.run_id
    return {
        **({"messages": messages} if messages else {}),
        "checkpoint_id": str(checkpoint),
        "state_path": f"workflow_state_read(workflow_id='{checkpoint}')",
        "message": "All progress is kept, up to the last completed step. To continue in a new "
        f"conversation: workflow_resume(workflow_id='{run_id}'), or /workflow resume {run_id}. To return "
        f"to this position later: workflow_resume(workflow_id='{checkpoint}').",
    }


@TOOLSET.tool("Finish a run", OVERWRITES)
async def workflow_complete(
    ctx: Ctx,
    workflow_id: RunId,
    status: Annotated[Literal["success", "failed", "cancelled"], Field(description="cancelled: end it")],
) -> Annotated[Content, Finished]:
    """The final state of a run that has ended. success false: it ended otherwise, or has not (`why`)."""
    service = _service(ctx)
    if status == "cancelled":
        with suppress(NotExpected):  # it has ended otherwise
            await service.cancel(workflow_id)
    found = await service.status(workflow_id)
    _, final = await service.conversations.read(workflow_id, outermost=True)
    success = found.status == _ENDED_AS[status]
    why = {} if success else {"why": _why_not(found, status)}
    state = within(found.limits, lambda how: final.shown(how, found.workflow_id))
    return {"success": success, "status": found.status, **why, "final_state": state}


@TOOLSET.tool("Read the state", READS, serves_task=True)
async def workflow_state_read(
    ctx: Ctx,
    workflow_id: Annotated[str, Field(description="Id of a run or checkpoint")],
    paths: Annotated[Texts, Field(description='Only these, e.g. summary.total or files["a.ts"]')] = None,
    task_id: TaskId = None,
) -> Annotated[Content, FlatState]:
    """The state: every field by its bare name, computed ones too; or the values at paths."""
    return await read_state(_service(ctx), workflow_id, paths or (), task_id)


@TOOLSET.tool("Write the state", RUNS_STEPS, serves_task=True)
async def workflow_state_update(
    ctx: Ctx, workflow_id: RunId, updates: Updates, task_id: TaskId = None
) -> Annotated[Content, Updated]:
    """Write the state, all updates or none. `computed`: fields that changed because of it."""
    service, target_id = _service(ctx), joined(workflow_id, task_id)
    changed, errors = await service.conversations.update(target_id, updates)
    fields, limits = StateSnapshot(changed), service.settings.limits
    computed = within(limits, lambda how: fields.shown(how, target_id))
    return {"success": True, "computed": computed, **({"errors": errors} if errors else {})}


@TOOLSET.tool("Dependencies of a field", READS, serves_task=True)
async def workflow_state_dependencies(
    ctx: Ctx,
    workflow_id: Annotated[str, Field(description="Id of a run, or name of a workflow")],
    field: Annotated[str, Field(description="e.g. valid_files or raw.git_files")],
) -> Annotated[Content, DependenciesOfField]:
    """What a field follows from, and what follows from it."""
    return await _service(ctx).conversations.dependencies(workflow_id, field)


def _task_in(context: dict[str, Any] | None) -> str | None:
    named = (context or {}).get("task_id") or (context or {}).get("batch_id")
    return str(named) if named is not None else None


# Translation: the next atomic step with its values, or null
#
#     {"step": {"id": "deploy", "type": "agent_shell_command", "instructions": "Run definition.command …",
#               "definition": {"command": "./deploy.sh --env prod", "reason": "…", "timeout": 600000,
#                              "state_update": {"path": "raw.deploy_result"}},
#               "variable_replacements": {"{{ environment }}": "prod"}, "original_expression": "environment"},
#      "messages": ["Version 1.2.3"], "status": "pending_action"}

_REPLACED = Cut(200, 20)
"""How much is shown of replaced values, which the definition has in full."""
_EXPRESSION_CHARS = 400
_STATE_SHARE = 4
"""The fraction of the usual length that the state gets beside a step."""
_RENAMED = {"tool": "method", "args": "params"}
"""The names of parameters of an `mcp_call` in the definition of a step."""
_DESCRIBED = ("agent_shell_command", "mcp_call", "user_input", "apply_hints")
"""Types whose instructions describe the result, so that they need no schema."""
_WAIT = "Wait until ALL of them have ended"
_CONTINUE = (
    "Do not wait: continue with more_steps, or make the call in `next`; only the end of the workflow "
    "waits for all tasks"
)
_ENDED_AS = {"success": "completed", "failed": "failed", "cancelled": "cancelled"}

SUB_AGENT_PROMPT = """\
%(role)s

<workflow-server-rules>
Call workflow_get_next_step(workflow_id='{workflow_id}'), do what `step` says, then \
workflow_step_complete(workflow_id='{workflow_id}', step_id=<step.id>, result=<its result>), whose \
reply has the next step, and so on until `step` is null; reply with the status only. Submit what really \
happened. You cannot ask the user: if a step cannot be done, or is for the user, complete it with \
status='failed', error='<why, or the question>'.
Task: %(task)s
Context: {input}
</workflow-server-rules>"""


def as_next(
    found: Answer,
    first: dict[str, Any] | None = None,
    state: Container[str] | None = None,
    *,
    brief: bool = False,
) -> dict[str, Any]:
    """Return the next step. `first` comes first; `state`: the fields of the state that are shown.

    `brief` leaves out replaced values.
    """
    read = reader(found.workflow_id)
    actions = _in_order(found)

    def build(how: Cut) -> dict[str, Any]:
        shape: dict[str, Any] = dict(first or {})
        if state is not None:
            shown = Cut(max(how.characters // _STATE_SHARE, 40), how.items)
            shape["state"] = found.state.shown(shown, found.workflow_id, state)
        steps = [_step(it, how, read, at_work=found.at_work) for it in actions]
        shape["step"] = steps[0] if steps else None
        for name in ("variable_replacements", "original_expression") if brief and steps else ():
            steps[0].pop(name, None)
        if steps[1:]:
            shape["more_steps"] = steps[1:]
        shape["messages"] = cut(found.messages, ("messages",), how, read)
        shape["status"] = found.status
        if found.reason and found.status != "pending_action":
            shape["why"] = found.reason
        if found.error is not None:
            shape["error"] = found.error.rendered()
        if call := _next(found, actions):
            shape["next"] = call
        return shape

    return within(found.limits, build)


def _in_order(found: Answer) -> list[Action]:
    return sorted(found.actions, key=lambda it: it.delegated is None)  # so that sub-agents begin


def _first_step(found: Answer) -> str:
    return next((it.step_id for it in _in_order(found)), "")


def _next(found: Answer, actions: list[Action]) -> str:
    """Return the call that continues a run or a task."""
    workflow_id = found.workflow_id
    ahead = f"workflow_get_next_step(workflow_id='{workflow_id}')"
    if actions:  # how to submit a result is explained once, when a run or a task starts
        delegated = actions[0].delegated
        before = "when the sub-agents have ended: " * (delegated is not None and delegated.waits)
        return f"{before}{ahead}" if delegated is not None else ""
    if not found.has_ended:
        return f"{ahead} waits for it"
    if found.is_task:
        return found.next
    if found.status == "completed":
        return (
            f"nothing; workflow_complete(workflow_id='{workflow_id}', status='success') has the final state"
        )
    return f"workflow_resume(workflow_id='{workflow_id}') continues, as a new run, where it ended"


def _step(action: Action, how: Cut, read: Reader, *, at_work: bool) -> dict[str, Any]:
    if action.delegated is not None:
        return _tasks(action, action.delegated, how, read, at_work=at_work)
    renamed = _RENAMED if action.type == "mcp_call" else {}
    path = ("actions", action.step_id)
    definition: dict[str, Any] = {
        renamed.get(name, name): cut(value, (*path, "parameters", name), how, read)
        for name, value in action.parameters.items()
    }
    if updates := to_builtins(action.updates):
        definition["state_update"] = updates[0] if len(updates) == 1 else updates
    instructions = parameters_called("definition.{}", action.instructions, renamed=_RENAMED)
    step: dict[str, Any] = {
        "id": action.step_id,
        "type": action.type,
        "instructions": cut(instructions, (*path, "instructions"), how, read),
        "definition": definition,
    }
    if action.type not in _DESCRIBED:
        step["result_schema"] = action.result_schema
    if replaced := action.replaced:
        step["variable_replacements"] = cut(replaced, (), _REPLACED, lambda *_: "the definition itself")
        step["original_expression"] = _expressions(replaced)
    return step


def _expressions(replaced: Iterable[str]) -> str:
    """Return the evaluated expressions, without braces."""
    inner = [piece.strip().removeprefix("{{").removesuffix("}}").strip() for piece in replaced]
    return shortened("; ".join(inner), _EXPRESSION_CHARS)


def _tasks(action: Action, delegated: Delegated, how: Cut, read: Reader, *, at_work: bool) -> dict[str, Any]:
    path = ("actions", action.step_id)
    listed: list[dict[str, Any]] = []
    for task in delegated.tasks:
        if task.is_at_work and not at_work:
            continue
        entry = {"task_id": task.name, "workflow_id": task.workflow_id, "context": task.context}
        if task.is_at_work:
            about = {"status": task.status, "started_at": task.since, "last_contact": task.last_contact}
            entry |= about
        listed.append(entry)
    definition: dict[str, Any] = {
        "tasks": cut(listed, (*path, "parameters", "tasks"), how, read),
        "sub_agent_prompt": SUB_AGENT_PROMPT % {"role": delegated.role, "task": delegated.task},
    }
    if delegated.max_parallel is not None:
        definition["max_parallel"] = delegated.max_parallel
    if delegated.to_come:
        definition["to_come"] = delegated.to_come
    who = "the task in definition.tasks"
    if action.type != "foreach":
        who = "EVERY task in definition.tasks, all of them at once"
    instructions = (
        f"Start exactly one sub-agent for {who}: its prompt is definition.sub_agent_prompt "
        "with its workflow_id and context in place of {workflow_id} and {input}"
        ". They submit their results themselves; submit nothing for this step. "
        + (_WAIT if delegated.waits else _CONTINUE)
        + (", and further tasks come as others end" * bool(delegated.to_come))
        + _about_agents([it["workflow_id"] for it in listed if "status" in it])
        + ". Without sub-agents, follow the prompt yourself, task by task."
    )
    step: dict[str, Any] = {
        "id": action.step_id,
        "type": "parallel_tasks",
        "instructions": cut(instructions, (*path, "instructions"), how, read),
        "definition": definition,
    }
    if delegated.items:
        step["original_expression"] = _expressions([delegated.items])
    return step


def _about_agents(ids: list[str]) -> str:
    """Say what to do about tasks that have an agent."""
    if not ids:
        return ""
    return (
        ". Those with a status have an agent, which last called at last_contact: start none for them. "
        f"If it is gone, control_workflow(workflow_id='{ids[0]}', action='retry') assigns such a task again; "
        "its completed steps are kept"
    )


def _refused(refusal: NotExpected, now: Answer) -> NotExpected:
    """Say what is asked now, in the words of this toolset."""
    asked = as_next(now, brief=True)["step"]
    if asked is None or asked["type"] == "parallel_tasks":  # the caller may be a sub-agent
        hint = f"workflow_get_next_step(workflow_id='{now.workflow_id}') has the status"
    else:
        call = f"workflow_step_complete(step_id='{asked['id']}', result=…)"
        hint = f"what is asked now, with {call}: {to_json(asked)}"
    return NotExpected(refusal.message, hint=f"{hint}. Nothing has changed.")


def _why_not(found: Answer, status: str) -> str:
    if found.error is not None:
        return f"the run is {found.status}: {found.error.message}"
    if found.status in _ENDED_AS.values():
        return f"the run is {found.status}"
    hint = "" if status == "cancelled" else "; status='cancelled' ends it"
    return f"the run has not ended: it is {found.status}, {found.reason}{hint}"


async def read_state(
    service: Service, workflow_id: str, paths: Sequence[str] = (), task_id: str | None = None
) -> dict[str, Any]:
    """Return the state by field names, or the values at `paths`; also of a checkpoint."""
    target_id, state = await service.conversations.read(joined(workflow_id, task_id))
    limits = service.settings.limits
    if not paths:
        return within(limits, lambda how: state.shown(how, target_id))
    found, read = {path: (state.at(path), state.where(path)) for path in paths}, state.reader(target_id)
    return within(
        limits, lambda how: {path: cut(value, where, how, read) for path, (value, where) in found.items()}
    )
