"""The `inputs:` of a workflow: each with a type, a description, a default, and whether it is required.

inputs:
  version: {type: string, description: What to build}
  retries: integer                                        # short for {type: integer}
  size: {type: number, validation: {min: 1, max: 10}}

Whether an input that does not say so must be given is a matter of the dialect.
"""

from __future__ import annotations

from workflows_mcp.dialects.document_keys import text_of, unknown_keys
from workflows_mcp.dialects.input_validation import read_rules, read_type
from workflows_mcp.dialects.yaml_source import Document
from workflows_mcp.errors import Problem
from workflows_mcp.expressions.base import Language
from workflows_mcp.plan.input_rules import Violation, fitted
from workflows_mcp.plan.model import InputSpec
from workflows_mcp.plan.references import ReferenceReader
from workflows_mcp.values import Value, kind_and_value, shown

Path = tuple[str | int, ...]
KEYS = ("type", "description", "default", "required", "validation", "aliases")


def read_inputs(
    declared: Value,
    path: Path,
    document: Document,
    language: Language,
    problems: list[Problem],
    *,
    required: bool,
) -> dict[str, InputSpec]:
    """`path` leads to `inputs` in the document; `required` is what holds where an input does not say."""
    if declared is None:
        return {}
    if not isinstance(declared, dict):
        problems.append(
            Problem(
                "wrong_type",
                f"'inputs' must be a mapping of names, not {kind_and_value(declared)}",
                "e.g. inputs: {version: {type: string}}",
                path,
            )
        )
        return {}
    reader = _InputReader(document, language, problems, required)
    return {name: reader.read(name, spec, (*path, name)) for name, spec in declared.items()}


class _InputReader:
    def __init__(
        self, document: Document, language: Language, problems: list[Problem], required: bool
    ) -> None:
        self.document = document
        self.language = language
        self.problems = problems
        self.required = required

    def read(self, name: str, spec: Value, path: Path) -> InputSpec:
        report = self.problems.append
        if isinstance(spec, str):
            return InputSpec(type=read_type(spec, path, report), required=self.required)
        if spec is None:
            return InputSpec(required=self.required)
        if not isinstance(spec, dict):
            self._problem(
                f"input '{name}' must be a type or a mapping, not {kind_and_value(spec)}",
                f"e.g. {name}: {{type: string, default: {shown(spec)}}}",
                path,
            )
            return InputSpec()
        self.problems += unknown_keys(spec, KEYS, path, f"input '{name}'")
        kind = read_type(spec.get("type", "any"), (*path, "type"), report)
        rules = read_rules(spec.get("validation"), kind, f"input '{name}'", (*path, "validation"), report)
        found = InputSpec(
            kind,
            text_of(spec, "description", path, self.document, self.problems),
            self._required(spec, path),
            rules=rules,
            aliases=self._aliases(spec, path),
        )
        if "default" not in spec:
            return found
        default = self._default(name, spec["default"], found, (*path, "default"))
        # What has a default need not be given, whatever `required` says.
        return InputSpec(kind, found.description, False, default, True, rules, found.aliases)

    def _aliases(self, spec: dict[str, Value], path: Path) -> tuple[str, ...]:
        aliases = spec.get("aliases")
        if aliases is None:
            return ()
        if isinstance(aliases, list) and all(isinstance(alias, str) and alias for alias in aliases):
            return tuple(aliases)
        message = f"'aliases' must be a list of names, not {kind_and_value(aliases)}"
        self._problem(message, "e.g. aliases: [commit_message]", (*path, "aliases"))
        return ()

    def _required(self, spec: dict[str, Value], path: Path) -> bool:
        required = spec.get("required", self.required)
        if isinstance(required, bool):
            return required
        message = f"'required' must be true or false, not {kind_and_value(required)}"
        self._problem(message, "write true or false", (*path, "required"))
        return True

    def _default(self, name: str, given: Value, spec: InputSpec, path: Path) -> Value:
        if given is None:
            return None
        if ReferenceReader(self.language).in_value(given, path):
            self.problems.append(
                Problem(
                    "literal_default",
                    f"the default of input '{name}' is taken as it is written: nothing in it is looked up",
                    "put the reference where the input is used",
                    path,
                    warning=True,
                )
            )
        default, violations = fitted(given, spec.type, spec.rules, name)
        if spec.type == "string" and isinstance(given, int | float) and not violations:
            violations = [Violation(name, f"must be text, not {kind_and_value(given)}")]
        for at, message in violations:
            inside = "" if at == name else f", in {at.removeprefix(name).removeprefix('.')},"
            hint = f"change the type of '{name}' or its default"
            if spec.type == "string" and isinstance(given, int | float):
                hint = "put quotes around it to make it text"
            self._problem(f"the default of input '{name}'{inside} {message}", hint, path)
        return None if violations else default

    def _problem(self, message: str, hint: str, path: Path) -> None:
        self.problems.append(Problem("wrong_type", message, hint, path))
