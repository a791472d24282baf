"""The extension `io.modelcontextprotocol/skills` (SEP-2640): instructions that are loaded when needed.

    skills/list  -> {"skills": [{"uri": "skill://following-workflows/SKILL.md", "frontmatter": {…},
                                 "resources": [{"uri": …, "digest": "sha256:…", "size": 4711}]}, …]}
    skills/get   -> {"skill": {…}}
    resources/read skill://workflows/greet/SKILL.md

The skills of the plugin are served as they are, so that both have the same text. Each workflow that can run
is a skill of its own: what it is for, its inputs, and how to start it. A skill is one file, `SKILL.md`.

The name of a skill has only small letters, digits and hyphens. If the names of two
workflows become the same, a hash is added.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mcp.server.context import HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver.exceptions import ResourceNotFoundError
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, RequestParams, Resource
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

from workflows_mcp.mcp_server.plugin import plugin_directory
from workflows_mcp.mcp_server.prompts import describe_input
from workflows_mcp.mcp_server.tooling import brief, shortened
from workflows_mcp.mcp_server.toolsets import tool_that_starts
from workflows_mcp.settings import Settings
from workflows_mcp.values import did_you_mean, to_json

if TYPE_CHECKING:
    from workflows_mcp.runs import Service, WorkflowSummary

    Request = ServerRequestContext[Service, Any]

SKILLS = "io.modelcontextprotocol/skills"
SKILL = "skill://"
MARKDOWN = "text/markdown"
LISTED = 100
"""How many skills are on one page of the list."""
_FILE = "SKILL.md"
_WORKFLOWS = f"{SKILL}workflows/"
_NAME_CHARS = 64
_DESCRIPTION_CHARS = 1024
_HASH_CHARS = 6
FOLLOWING = f"{SKILL}following-workflows/{_FILE}"
"""The rules for agents that run a workflow."""
_MODERN = frozenset(MODERN_PROTOCOL_VERSIONS)


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill: where it is, what its head says, and its text as bytes."""

    uri: str
    frontmatter: Mapping[str, Any]
    content: bytes

    @property
    def entry(self) -> dict[str, Any]:
        """The entry of `skills/list`, with the digest of its only file."""
        digest = f"sha256:{hashlib.sha256(self.content).hexdigest()}"
        file = {"uri": self.uri, "digest": digest, "size": len(self.content)}
        return {"uri": self.uri, "frontmatter": dict(self.frontmatter), "resources": [file]}


class ListParams(RequestParams):
    cursor: str | None = None


class GetParams(RequestParams):
    uri: str


class _Made(NamedTuple):
    """The skill of a workflow, made from one state of its file."""

    made_from: tuple[object, ...]
    skill: Skill


class Skills(Extension):
    identifier = SKILLS

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._made: dict[str, _Made] = {}

    def methods(self) -> Sequence[MethodBinding]:
        return [
            MethodBinding("skills/list", ListParams, self._list, _MODERN),
            MethodBinding("skills/get", GetParams, self._get, _MODERN),
        ]

    async def _list(self, ctx: Request, params: ListParams) -> HandlerResult:
        makers = self._makers(ctx.lifespan_context)
        rest = sorted(uri for uri in makers if params.cursor is None or uri > params.cursor)
        page = rest[:LISTED]
        more = {"nextCursor": page[-1]} if len(rest) > len(page) else {}
        return {**_COMPLETE, "skills": [makers[uri]().entry for uri in page], **more}

    async def _get(self, ctx: Request, params: GetParams) -> HandlerResult:
        makers = self._makers(ctx.lifespan_context)
        if params.uri not in makers:
            raise MCPError(INVALID_PARAMS, _unknown(params.uri, makers), {"uri": params.uri})
        return {**_COMPLETE, "skill": makers[params.uri]().entry}

    def read(self, service: Service, uri: str) -> ReadResourceContents:
        makers = self._makers(service)
        if uri not in makers:
            raise ResourceNotFoundError(_unknown(uri, makers))
        return ReadResourceContents(makers[uri]().content.decode(), MARKDOWN)

    def resources_listed(self) -> list[Resource]:
        """List the skills of the plugin, for clients without the extension. Workflows are listed as such."""
        return [
            Resource(
                uri=skill.uri,
                name=skill.frontmatter["name"],
                description=skill.frontmatter["description"],
                mime_type=MARKDOWN,
                size=len(skill.content),
            )
            for _, make in sorted(self._makers_of_plugin().items())
            for skill in [make()]
        ]

    def _makers(self, service: Service) -> dict[str, Callable[[], Skill]]:
        """Return what makes each skill, by its URI, so that only the skills that are shown are made."""
        return {**self._makers_of_plugin(), **self._makers_of_workflows(service)}

    def _makers_of_plugin(self) -> dict[str, Callable[[], Skill]]:
        plugin = plugin_directory()
        files = plugin.glob(f"skills/*/{_FILE}") if plugin is not None else ()
        found = {f"{SKILL}{file.parent.name}/{_FILE}": file for file in files}
        if self._settings.read_only:
            found.pop(FOLLOWING, None)
        return {uri: partial(_of_file, uri, file) for uri, file in found.items()}

    def _makers_of_workflows(self, service: Service) -> dict[str, Callable[[], Skill]]:
        """Return what makes the skills of the workflows that can be run by name."""
        if not self._settings.starts_runs:
            return {}
        runnable = [it for it in service.list_workflows() if not it.problems]
        names = unique_names([it.name for it in runnable])
        uris = {f"{_WORKFLOWS}{names[it.name]}/{_FILE}": it for it in runnable}
        return {uri: partial(self._of_workflow, service, uri, it) for uri, it in uris.items()}

    def _of_workflow(self, service: Service, uri: str, summary: WorkflowSummary) -> Skill:
        """Return the skill of a workflow; it is made again only if its file has changed."""
        status = Path(summary.file).stat()
        made_from = (uri, summary, status.st_mtime_ns, status.st_size)
        known = self._made.get(summary.name)
        if known is None or known.made_from != made_from:
            inputs = service.definitions.info(summary.name)["inputs"]
            start = tool_that_starts(self._settings.toolsets)
            known = self._made[summary.name] = _Made(made_from, _skill_of(uri, summary, inputs, start))
        return known.skill


def _unknown(uri: str, known: Iterable[str]) -> str:
    return shortened(f"Unknown skill: {uri}; {did_you_mean(uri, sorted(known), what='there are')}")


_TEXT = """\
---
{head}---

# {title}

{about}

## Run it

Call `{start}` of the MCP server `workflows` with `workflow`: {workflow} and the `inputs` below.
Ask the user for required inputs that you do not know, all at once; never invent one.

The server then gives you one step at a time. Do exactly what it says, submit the result, and skip nothing.
The rules are in the skill `following-workflows` ({following}).

## Inputs

{inputs}
"""
_COMPLETE: dict[str, Any] = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
"""Files can change at any time, and the workflows are those of one user."""


def unique_names(workflows: Sequence[str]) -> dict[str, str]:
    """Return the name of the skill of each workflow.

        unique_names(["standards:fix", "Deploy", "deploy"])
        # {"standards:fix": "standards-fix", "Deploy": "deploy-d0e4a2", "deploy": "deploy"}

    A workflow keeps a name that is its own; one whose name had to be changed gets a hash if another has it.
    """
    plain = {name: re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_NAME_CHARS] for name in workflows}
    plain = {name: text.rstrip("-") for name, text in plain.items()}
    used = Counter(plain.values())
    return {
        name: text if text == name or (text and used[text] == 1) else _with_hash(text, name)
        for name, text in plain.items()
    }


def _with_hash(text: str, name: str) -> str:
    code = hashlib.sha256(name.encode()).hexdigest()[:_HASH_CHARS]
    return f"{text[: _NAME_CHARS - _HASH_CHARS - 1].rstrip('-')}-{code}".lstrip("-")


def _of_file(uri: str, file: Path) -> Skill:
    from workflows_mcp.runs import read_yaml

    content = file.read_bytes()
    head = content.decode().split("---\n", 2)[1]
    frontmatter = read_yaml(head, str(file))
    assert isinstance(frontmatter, dict)
    return Skill(uri, frontmatter, content)


def _skill_of(uri: str, summary: WorkflowSummary, inputs: Mapping[str, Any], start: str) -> Skill:
    name = uri.split("/")[-2]
    about = _line(f"Runs the workflow {summary.name}. {brief(summary.description)}")[:_DESCRIPTION_CHARS]
    frontmatter = {"name": name, "description": about.rstrip()}
    head = "".join(f"{key}: {to_json(value)}\n" for key, value in frontmatter.items())
    listed = [
        f"- `{it}` ({'required' if declared['required'] else 'optional'}): {_line(describe_input(declared))}"
        for it, declared in inputs.items()
    ]
    text = _TEXT.format(
        head=head,
        title=_line(summary.name),
        about=_line(summary.description) or "It has no description.",
        start=start,
        workflow=to_json(summary.name),
        inputs="\n".join(listed) or "It takes none.",
        following=FOLLOWING,
    )
    return Skill(uri, frontmatter, text.encode())


def _line(text: str) -> str:
    """Return a text as one line that every YAML reader accepts."""
    return "".join(it for it in " ".join(text.split()) if it.isprintable())
