"""Serves workflows and runs as resources, for programs and for people who attach them.

    workflow://standards%3Afix           the definition, as it is written
    workflow://standards%3Afix/graph     its flowchart
    schema://workflow                    the JSON Schema of definitions
    run://wf_7f3a                        the state of a run, as in get_workflow_status
    run://wf_7f3a/graph                  its flowchart, with the status of each step
    run://wf_7f3a/journal                its events
    run://wf_7f3a/report                 what it did and who did it, in Markdown
    run://wf_7f3a/values/outputs.log     a whole value, or ?offset=4000&limit=1000 of it

In a URI, every character of a name is escaped except letters, digits and `_.-~`; unescaped names work, too.
The id of a task may stand in place of the id of a run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote

from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver.exceptions import ResourceNotFoundError
from mcp.types import Annotations, CallToolResult, Resource, ResourceLink, ResourceTemplate

from workflows_mcp.errors import RequestError, UnknownRun, WorkflowsError
from workflows_mcp.mcp_server.tooling import brief, render_error, shortened
from workflows_mcp.values import did_you_mean, from_json, to_json

if TYPE_CHECKING:
    from workflows_mcp.runs import Service


WORKFLOW, RUN = "workflow://", "run://"

SCHEMA = "schema://workflow"

YAML, JSON, MERMAID, TEXT = "application/yaml", "application/json", "text/vnd.mermaid", "text/plain"

MARKDOWN = "text/markdown"

WORKFLOWS_LISTED = 100

RUNS_LISTED = 20

_DIGITS = 12
"""The longest number in a URI."""

_PARTS_OF_RUN = ("graph", "journal", "report", "values")


TEMPLATES = [
    ResourceTemplate(
        uri_template=f"{WORKFLOW}{{name}}",
        name="workflow",
        title="Definition of a workflow",
        description="The YAML of a workflow, as it is written. Subscribe to get a notice when it changes.",
        mime_type=YAML,
    ),
    ResourceTemplate(
        uri_template=f"{WORKFLOW}{{name}}/graph",
        name="workflow_graph",
        title="Flowchart of a workflow",
        description="The steps of a workflow and their order, in Mermaid.",
        mime_type=MERMAID,
    ),
    ResourceTemplate(
        uri_template=f"{RUN}{{id}}",
        name="run",
        title="A run",
        description="The state of a run or a task: status, pending action, progress, outputs or error. "
        "Subscribe to get a notice when it changes.",
        mime_type=JSON,
    ),
    ResourceTemplate(
        uri_template=f"{RUN}{{id}}/graph",
        name="run_graph",
        title="Flowchart of a run",
        description="The steps of a run with their status, in Mermaid.",
        mime_type=MERMAID,
    ),
    ResourceTemplate(
        uri_template=f"{RUN}{{id}}/journal{{?offset,limit}}",
        name="run_journal",
        title="Journal of a run",
        description="The events of a run, in order. Long values are cut.",
        mime_type=JSON,
    ),
    ResourceTemplate(
        uri_template=f"{RUN}{{id}}/report",
        name="run_report",
        title="Report of a run",
        description="What a run did, who did it, what was checked, decided and refused, and whether its "
        "journal was changed.",
        mime_type=MARKDOWN,
    ),
    ResourceTemplate(
        uri_template=f"{RUN}{{id}}/values/{{+path}}{{?offset,limit}}",
        name="run_value",
        title="A value of a run",
        description="A whole value of a run: a text as it is, anything else as JSON. The path is e.g. "
        "outputs.log or blocks.build.outputs.stdout.",
    ),
]


def workflow_uri(name: str) -> str:
    return WORKFLOW + quote(name, safe="")


def run_uri(workflow_id: str) -> str:
    return RUN + quote(workflow_id, safe="")


async def listed(service: Service) -> list[Resource]:
    """List the workflows, and the runs that changed last."""
    workflows = [
        Resource(
            uri=workflow_uri(it.name),
            name=it.name,
            description=brief(it.description) or None,
            mime_type=YAML,
        )
        for it in service.list_workflows()[:WORKFLOWS_LISTED]
    ]
    runs = [
        Resource(
            uri=run_uri(str(run["workflow_id"])),
            name=str(run["workflow_id"]),
            title=f"{run['workflow']}: {run['status']}",
            description=f"A run of {run['workflow']}, started {run['started_at']}.",
            mime_type=JSON,
            annotations=Annotations(last_modified=str(run["changed_at"])),
        )
        for run in await service.recent(limit=RUNS_LISTED)
    ]
    schema = Resource(
        uri=SCHEMA,
        name="schema",
        description="The JSON Schema of workflow definitions, whole.",
        mime_type="application/schema+json",
    )
    return [*workflows, *runs, schema]


def run_in(uri: str) -> str | None:
    """The id of the run or task of a resource; None for other resources."""
    return unquote(uri[len(RUN) :].partition("/")[0].partition("?")[0]) if uri.startswith(RUN) else None


def workflow_in(service: Service, uri: str) -> str:
    """The name of the workflow of a resource. Names may contain a slash."""
    name = unquote(uri[len(WORKFLOW) :])
    return name if name in service.inspector.names() else name.removesuffix("/graph")


def is_ours(uri: str) -> bool:
    return uri.startswith((WORKFLOW, RUN)) or uri == SCHEMA


async def read(service: Service, uri: str) -> ReadResourceContents:
    """Read a resource. The error for an unknown one lists what exists."""
    try:
        if uri == SCHEMA:
            return ReadResourceContents(to_json(service.workflow_schema()), "application/schema+json")
        if uri.startswith(WORKFLOW):
            return _workflow(service, uri)
        return await _run(service, uri)
    except UnknownRun as error:
        known = [str(run["workflow_id"]) for run in await service.recent(limit=RUNS_LISTED)]
        hint = did_you_mean(run_in(uri) or "", known, what="the recent runs are")
        raise ResourceNotFoundError(f"{error.message}\n{hint}") from None
    except WorkflowsError as error:
        raise ResourceNotFoundError(render_error(error)) from None


def unknown(uri: str) -> ResourceNotFoundError:
    known = [template.uri_template for template in TEMPLATES]
    hint = did_you_mean(uri, known, what="there are")
    return ResourceNotFoundError(shortened(f"Unknown resource: {uri}; {hint}"))


def _workflow(service: Service, uri: str) -> ReadResourceContents:
    name = workflow_in(service, uri)
    if name != unquote(uri[len(WORKFLOW) :]):
        return ReadResourceContents(service.inspector.drawing_of(name), MERMAID)
    return ReadResourceContents(service.inspector.text_of(name), YAML)


async def _run(service: Service, uri: str) -> ReadResourceContents:
    rest, _, query = uri[len(RUN) :].partition("?")
    identity, _, part = rest.partition("/")
    workflow_id = unquote(identity)
    inspector = service.inspector
    kind, _, path = part.partition("/")
    if kind == "values" and path:
        value = await inspector.value(workflow_id, unquote(path), **_slice(query, uri))
        if isinstance(value, str):
            return ReadResourceContents(value, TEXT)
        return ReadResourceContents(to_json(value, indent=2), JSON)
    if part == "journal":
        found = await inspector.journal(workflow_id, **_slice(query, uri))
        return ReadResourceContents(to_json(found, indent=2), JSON)
    if query:
        raise RequestError(f"'{uri}': only a journal and values take offset and limit")
    if part == "":
        status = await service.status(workflow_id)
        return ReadResourceContents(to_json(status.rendered("status"), indent=2), JSON)
    if part == "graph":
        return ReadResourceContents(await inspector.graph(workflow_id), MERMAID)
    if part == "report":
        from workflows_mcp.answers import render

        return ReadResourceContents(render(await service.report(workflow_id), "md"), MARKDOWN)
    if kind == "values":
        raise RequestError("a path is missing", hint=f"e.g. {run_uri(workflow_id)}/values/outputs")
    raise _no_part(part)


def check_part(uri: str) -> None:
    """Raise RequestError for an unknown part of a run."""
    part = uri[len(RUN) :].partition("?")[0].partition("/")[2]
    if part and part.partition("/")[0] not in _PARTS_OF_RUN:
        raise _no_part(part)


def _no_part(part: str) -> RequestError:
    hint = did_you_mean(part.partition("/")[0], _PARTS_OF_RUN)
    return RequestError(f"there is no '{part}' of a run", hint=hint)


def _slice(query: str, uri: str) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in ("offset", "limit"):
            hint = did_you_mean(name, ("offset", "limit"), what="it takes")
            raise RequestError(f"'{uri}' has an unknown '{name}'", hint=hint)
        if not text.isdecimal() or len(text) > _DIGITS:
            raise RequestError(f"'{uri}': {name} must be a whole number, not '{text}'")
        given[name] = int(text)
    return given


# ---- links to values that an answer has cut


_LINKS = 5
"""Each link costs the model some tokens."""

_NOTE = re.compile(
    r"… \[cut: (\d+ \w+) in all; read on with "
    r"get_workflow_state\(workflow_id='([^']*)', paths=(\[.*\]), offset=\d+\)\]$"
)


def with_links(result: CallToolResult) -> CallToolResult:
    """Add a link to each value that the answer has cut, so that a client can read the whole value.

    The note at a cut names the value. A step can forge such a note, but only for a value of some run.
    """
    found = dict(_cut_values(result.structured_content))
    if not found:
        return result
    links = [
        ResourceLink(
            type="resource_link",
            uri=f"{run_uri(run_id)}/values/{quote(path, safe='.')}",
            name=path,
            description=f"the whole value: {size}",
        )
        for (run_id, path), size in list(found.items())[:_LINKS]
    ]
    return result.model_copy(update={"content": [*result.content, *links]})


def _cut_values(value: Any) -> Iterator[tuple[tuple[str, str], str]]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _cut_values(item)
    elif isinstance(value, list):
        for item in value:
            yield from _cut_values(item)
    elif isinstance(value, str) and value.endswith("]") and (note := _NOTE.search(value[-400:])):
        try:
            [path] = from_json(note[3])
        except ValueError:
            return
        yield (note[2], path), note[1]
