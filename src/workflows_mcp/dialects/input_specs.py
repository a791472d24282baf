"""The `inputs:` of a workflow: each with a type, a description, a default, and whether it is required.

inputs:
  version: {type: string, description: What to build}
  retries: integer                                        # short for {type: integer}
"""

from __future__ import annotations

from workflows_mcp.dialects.document_keys import text_of, unknown_keys
from workflows_mcp.dialects.yaml_source import Document
from workflows_mcp.errors import Problem
from workflows_mcp.plan.inputs import TYPE_NAMES, converted
from workflows_mcp.plan.model import InputSpec, InputType
from workflows_mcp.plan.references import LANGUAGES, ReferenceReader
from workflows_mcp.values import Value, did_you_mean, kind_of, shown

Path = tuple[str | int, ...]
_KEYS = ("type", "description", "default", "required")


def read_inputs(document: Document, problems: list[Problem]) -> dict[str, InputSpec]:
    declared = document.value.get("inputs")
    if declared is None:
        return {}
    if not isinstance(declared, dict):
        problems.append(
            Problem(
                "wrong_type",
                f"'inputs' must be a mapping of names, not {kind_of(declared)} {shown(declared)}",
                "e.g. inputs: {version: {type: string}}",
                ("inputs",),
            )
        )
        return {}
    return {name: _spec(name, spec, document, problems) for name, spec in declared.items()}


def _spec(name: str, spec: Value, document: Document, problems: list[Problem]) -> InputSpec:
    path: Path = ("inputs", name)
    if isinstance(spec, str):
        return InputSpec(type=_type(spec, path, problems))
    if spec is None:
        return InputSpec()
    if not isinstance(spec, dict):
        problems.append(
            Problem(
                "wrong_type",
                f"input '{name}' must be a type or a mapping, not {kind_of(spec)} {shown(spec)}",
                f"e.g. {name}: {{type: string, default: {shown(spec)}}}",
                path,
            )
        )
        return InputSpec()
    problems += unknown_keys(spec, _KEYS, path, f"input '{name}'")
    kind = _type(spec.get("type", "any"), (*path, "type"), problems)
    description = text_of(spec, "description", path, document, problems)
    required = spec.get("required", "default" not in spec)
    if not isinstance(required, bool):
        problems.append(
            Problem(
                "wrong_type",
                f"'required' must be true or false, not {kind_of(required)} {shown(required)}",
                "write true or false",
                (*path, "required"),
            )
        )
        required = True
    if "default" not in spec:
        return InputSpec(kind, description, required)
    default = _default(name, spec["default"], kind, (*path, "default"), problems)
    # What has a default need not be given, whatever `required` says.
    return InputSpec(kind, description, required=False, default=default, has_default=True)


def _type(given: Value, path: Path, problems: list[Problem]) -> InputType:
    known = TYPE_NAMES.get(given) if isinstance(given, str) else None
    if known is not None:
        return known
    problems.append(
        Problem(
            "unknown_type",
            f"there is no input type {shown(given)}",
            did_you_mean(str(given), TYPE_NAMES, what="types", limit=20),
            path,
        )
    )
    return "any"


def _default(name: str, given: Value, kind: InputType, path: Path, problems: list[Problem]) -> Value:
    if given is None:
        return None
    if ReferenceReader(LANGUAGES["graph"]).in_value(given, path):
        problems.append(
            Problem(
                "literal_default",
                f"the default of input '{name}' is taken as it is written: nothing in it is looked up",
                "put the reference where the input is used",
                path,
                warning=True,
            )
        )
    try:
        return converted(given, kind)
    except ValueError as error:
        hint = f"change the type of '{name}' or its default"
        if kind == "string" and isinstance(given, int | float):
            hint = "put quotes around it to make it text"
        problems.append(Problem("wrong_type", f"the default of input '{name}' {error}", hint, path))
        return None
