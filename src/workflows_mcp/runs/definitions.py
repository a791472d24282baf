"""`Definitions` lists and reads workflow files for the toolset `reactive`.

definitions.listed()                 # {"workflows": [{"name": "deploy", "path": …, "source": "project"}, …]}
definitions.info("deploy")["inputs"]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workflows_mcp.answers import Cut, cut, shortened, within
from workflows_mcp.dialects import read_document
from workflows_mcp.errors import DefinitionError
from workflows_mcp.library import BUILT_IN, Catalog, Entry
from workflows_mcp.limits import Limits
from workflows_mcp.plan import Bundle, InputSpec, Plan, schema_of
from workflows_mcp.values import Value

Answer = dict[str, Any]
LISTED = 200
_DESCRIPTION_CHARS = 200
_WRAPPER = "workflow"
"""A document may have the whole definition below this key."""
_STEPS = ("steps", "blocks")
_TASKS = ("sub_agent_tasks", "tasks")


class Definitions:
    def __init__(self, catalog: Catalog, workspace: Path, limits: Limits) -> None:
        self._catalog = catalog
        self._workspace = workspace
        self._limits = limits

    def listed(self, *, include_global: bool = True) -> Answer:
        """List the workflows; `include_global` adds those outside the project."""
        found: list[Value] = []
        for summary in self._catalog.list():
            source = self._source(summary.source)
            if include_global or source == "project":
                description = shortened(" ".join(summary.description.split()), _DESCRIPTION_CHARS)
                found.append(
                    {"name": summary.name, "path": summary.file, "description": description, "source": source}
                )
        more = {"more": len(found) - LISTED} if len(found) > LISTED else {}
        return {"workflows": found[:LISTED], **more}

    def info(self, workflow: str) -> Answer:
        entry = self._catalog.find(workflow)
        plan = self._catalog.definition(workflow).plan
        return {
            "name": plan.name,
            "description": plan.description,
            "version": plan.version,
            "inputs": {name: _input(spec) for name, spec in plan.inputs.items()},
            "found_at": str(entry.path),
        }

    def plan_of(self, workflow: str) -> Plan:
        bundle = self._catalog.bundle(workflow)
        return bundle.plans[bundle.main]

    def definition(self, workflow: str) -> Answer:
        """Return a definition as written, with its imports. Raises DefinitionError if it is invalid."""
        entry = self._catalog.find(workflow)
        found = self._catalog.definition(workflow)
        bundle = self._catalog.bundle(workflow)
        document = read_document(found.text, str(entry.path), self._limits)
        if document.problems:
            raise DefinitionError(document.problems, name=workflow)
        written: dict[str, Value] = document.value
        if isinstance(written.get(_WRAPPER), dict):
            written = written[_WRAPPER]
        answer: Answer = {
            "name": found.plan.name,
            "steps": _first(written, _STEPS, []),
            "state_schema": {"raw": {}, "computed": {}, **(written.get("state_schema") or {})},
            "sub_agent_tasks": _first(written, _TASKS, {}),
            "loaded_from": str(entry.path),
            "source": self._source(entry.source),
            "resolved_imports": _imports(bundle),
        }
        return within(self._limits, lambda how: _cut(answer, how, entry))

    def _source(self, source: str) -> str:
        """Return `project`, `global` or `built-in`, from where a workflow was found."""
        if source == BUILT_IN:
            return BUILT_IN
        return "project" if Path(source).resolve().is_relative_to(self._workspace.resolve()) else "global"


def _input(spec: InputSpec) -> dict[str, Value]:
    schema: dict[str, Value] = {"type": "any", **schema_of(spec.type, spec.rules)}
    if spec.has_default:
        schema["default"] = spec.default
    schema["required"] = spec.required and not spec.has_default
    if spec.description:
        schema["description"] = spec.description
    return schema


def _first(written: dict[str, Value], keys: tuple[str, ...], otherwise: Value) -> Value:
    return next((written[key] for key in keys if written.get(key)), otherwise)


def _imports(bundle: Bundle) -> list[Value]:
    """List every workflow that it calls, with its file."""
    return [
        {"workflow": name, "path": plan.file} for name, plan in bundle.plans.items() if name != bundle.main
    ]


def _cut(answer: Answer, how: Cut, entry: Entry) -> Answer:
    return {name: cut(it, (), how, lambda *_: f"the file {entry.path}") for name, it in answer.items()}
