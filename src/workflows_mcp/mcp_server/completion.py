"""Completes arguments: names of workflows, ids of runs and tasks, inputs with fixed choices.

    matching("rel", {"release": "", "pre-release": "", "wf_7f3a": "release"})
    # ["release", "pre-release", "wf_7f3a"]

Values that begin with the typed text come first, then those that contain it, then runs by the name of their
workflow. At most a hundred are returned, with their total number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    Completion,
    CompletionArgument,
    CompletionContext,
    PromptReference,
    ResourceTemplateReference,
)

from workflows_mcp.errors import WorkflowsError
from workflows_mcp.mcp_server.prompts import offered_inputs
from workflows_mcp.mcp_server.resources import TEMPLATES
from workflows_mcp.values import did_you_mean, to_json

if TYPE_CHECKING:
    from workflows_mcp.runs import Service

LIMIT = 100
_RUNS = 1000
_COMMANDS = ("list", "resume", "status")
_STARTING = ("start", "resume")
"""The commands that a read-only server does not have."""
Known = Mapping[str, str]
"""The possible values, each with a text that also finds it."""


async def complete(
    service: Service,
    prompts: Iterable[str],
    ref: PromptReference | ResourceTemplateReference,
    argument: CompletionArgument,
    context: CompletionContext | None,
) -> Completion:
    """Complete an argument. `prompts`: the names of the prompts that do not come from workflows.

    Raises MCPError for an unknown prompt or template.
    """
    name, typed = argument.name, argument.value
    given = (context.arguments if context is not None else None) or {}
    try:
        if isinstance(ref, PromptReference):
            known = await _of_prompt(service, ref.name, name, typed, given, prompts)
        else:
            known = await _of_template(service, ref.uri, name, given)
    except WorkflowsError:
        known = {}  # an unknown run or workflow has no values
    found = matching(typed, known)
    return Completion(values=found[:LIMIT], total=len(found), has_more=len(found) > LIMIT)


def matching(typed: str, known: Known) -> list[str]:
    wanted = typed.casefold()
    ranks: tuple[list[str], list[str], list[str]] = ([], [], [])
    for it, beside in known.items():
        text = it.casefold()
        if text.startswith(wanted):
            ranks[0].append(it)
        elif wanted in text:
            ranks[1].append(it)
        elif wanted in beside.casefold():
            ranks[2].append(it)
    return [it for rank in ranks for it in rank]


async def _of_prompt(
    service: Service, prompt: str, name: str, typed: str, given: Mapping[str, str], prompts: Iterable[str]
) -> Known:
    match prompt, name:
        case "workflow", _:
            return await _of_command(service, name, typed, given)
        case "workflow_orchestrator", "workflow_name":
            return _names(service)
        case "workflow_sub_agent", "workflow_id":
            return await _runs(service)
        case "workflow_sub_agent", "task_id":
            return await _tasks(service, given.get("workflow_id", ""))
    if prompt in prompts:
        return {}
    offered = offered_inputs(service)
    if prompt not in offered:
        hint = did_you_mean(prompt, [*prompts, *offered], what="prompts")
        raise MCPError(INVALID_PARAMS, f"Unknown prompt: {prompt}; {hint}")
    return _choices(offered[prompt].get(name, {}))


async def _of_template(service: Service, uri: str, name: str, given: Mapping[str, str]) -> Known:
    known = [template.uri_template for template in TEMPLATES]
    if uri not in known:
        raise MCPError(INVALID_PARAMS, f"Unknown template: {uri}; {did_you_mean(uri, known)}")
    match name:
        case "name":
            return _names(service)
        case "id":
            return await _runs(service)
        case "path":
            return await _paths(service, given.get("id", ""))
    return {}


async def _of_command(service: Service, name: str, typed: str, given: Mapping[str, str]) -> Known:
    """Complete `/workflow`, which is typed as one text or word by word."""
    before = " ".join(given[it] for it in ("command", "word2", "word3") if it in given and it != name)
    done, space, _ = typed.rpartition(" ")
    words = f"{before} {done}".split()
    known: Known = {}
    if not words:
        commands = [it for it in _COMMANDS if service.settings.starts_runs or it not in _STARTING]
        known = {**dict.fromkeys(commands, ""), **_names(service)}
    elif words in (["resume"], ["status"]):
        known = await _runs(service)
    elif len(words) == 1 and words[0] != "list":
        known = dict.fromkeys(("info", "start") if service.settings.starts_runs else ("info",), "")
    return {f"{done}{space}{it}": beside for it, beside in known.items()}


def _names(service: Service) -> Known:
    return {it.name: "" for it in service.list_workflows()}


async def _runs(service: Service) -> Known:
    return {str(run["workflow_id"]): str(run["workflow"]) for run in await service.recent(limit=_RUNS)}


async def _tasks(service: Service, workflow_id: str) -> Known:
    return dict.fromkeys(await service.inspector.tasks(workflow_id), "") if workflow_id else {}


async def _paths(service: Service, workflow_id: str) -> Known:
    """The paths of all values in the overview of a run."""
    seen = await service.state(workflow_id) if workflow_id else {}
    found = [
        f"{part}.{name}"
        for part in ("inputs", "state", "outputs")
        for name in (seen.get(part) or {} if isinstance(seen.get(part), dict) else ())
    ]
    for block, shown in (seen.get("blocks") or {}).items():
        outputs: Any = shown.get("outputs", ()) if isinstance(shown, dict) else ()
        found += [f"blocks.{block}", *(f"blocks.{block}.outputs.{output}" for output in outputs)]
    return dict.fromkeys(found, "")


def _choices(schema: Mapping[str, Any]) -> Known:
    choices = schema.get("enum", [True, False] if schema.get("type") == "boolean" else [])
    return {it if isinstance(it, str) else to_json(it): "" for it in choices}
