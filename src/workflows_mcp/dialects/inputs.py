"""Reads the `inputs:` of a workflow: types, descriptions, defaults and rules.

inputs:
  version: {type: string, description: What to build}
  retries: integer                                        # short for {type: integer}
  size: {type: number, validation: {min: 1, max: 10}}

The dialect decides whether an input without `required` must be given.
"""

from __future__ import annotations

from collections.abc import Callable

from workflows_mcp.dialects.document_keys import text_of, unknown_keys
from workflows_mcp.dialects.yaml.source import Document
from workflows_mcp.errors import ExpressionError, Problem
from workflows_mcp.expressions import Language, compiled
from workflows_mcp.plan import (
    RULES,
    TYPE_NAMES,
    InputSpec,
    InputType,
    ReferenceReader,
    Violation,
    converted,
    fitted,
)
from workflows_mcp.values import Value, did_you_mean, kind_and_value, shown

# ----------------------------------------------------------------------------------------------------
# Reads the `validation:` of an input into rules that `plan.inputs` checks.
#
# validation: {pattern: "^v\d+$", max_length: 20}
# validation:
#   required_keys: [host]
#   properties:
#     port: {type: integer, validation: {min: 1, max: 65535}}     # or: {type: integer, min: 1, max: 65535}


Path = tuple[str | int, ...]

Report = Callable[[Problem], None]


_KINDS = {"string": "text", "list": "lists", "object": "objects"}

_PROPERTY_KEYS = ("type", "description", "required", "validation")


def read_type(given: Value, path: Path, report: Report, what: str = "input type") -> InputType:
    known = TYPE_NAMES.get(given) if isinstance(given, str) else None
    if known is not None:
        return known
    hint = did_you_mean(str(given), TYPE_NAMES, what="types", limit=20)
    report(Problem("unknown_type", f"there is no {what} {shown(given)}", hint, path))
    return "any"


def read_rules(given: Value, kind: InputType, name: str, path: Path, report: Report) -> dict[str, Value]:
    """The rules for an input of this type; `name` is its name in messages."""
    if given is None:
        return {}
    if not isinstance(given, dict):
        report(
            Problem(
                "wrong_type",
                f"'validation' must be a mapping of rules, not {kind_and_value(given)}",
                "e.g. validation: {min: 1, max: 10}",
                path,
            )
        )
        return {}
    for problem in unknown_keys(given, tuple(RULES), path, "validation"):
        report(problem)
    rules: dict[str, Value] = {}
    for rule, wanted in given.items():
        if rule not in RULES or wanted is None:
            continue
        where = (*path, rule)
        kinds = RULES[rule].kinds
        if kinds and kind not in (*kinds, "any"):
            message = f"'{rule}' is for {_KINDS.get(kinds[0], 'numbers')}, and {name} is of type {kind}"
            hint = f"rules for {kind}: {', '.join(_rules_for(kind))}"
            report(Problem("wrong_value", message, hint, where, on_key=True))
            continue
        try:
            rules[rule] = _READERS[rule](wanted, kind, where, report)
        except _Wrong as wrong:
            report(Problem(wrong.code, f"'{rule}' {wrong}", wrong.hint, where))
    needed = [key for key, spec in rules.get("properties", {}).items() if spec.pop("required", False)]
    if needed:
        rules["required_keys"] = list(dict.fromkeys([*rules.get("required_keys", ()), *needed]))
    for least, most in (("min", "max"), ("min_length", "max_length"), ("min_items", "max_items")):
        if least in rules and most in rules and rules[least] > rules[most]:
            message = f"'{least}' is greater than '{most}', so no value is valid"
            report(Problem("wrong_value", message, "swap the two", (*path, least)))
    return rules


def _rules_for(kind: InputType) -> list[str]:
    return [name for name, rule in RULES.items() if not rule.kinds or kind in rule.kinds]


class _Wrong(ValueError):
    def __init__(self, message: str, hint: str, code: str = "wrong_value") -> None:
        super().__init__(message)
        self.hint = hint
        self.code = code


def _pattern(given: Value, kind: InputType, path: Path, report: Report) -> Value:
    if not isinstance(given, str):
        raise _Wrong(f"must be text, not {kind_and_value(given)}", "e.g. pattern: '^[a-z]+$'")
    try:
        compiled(given)
    except ExpressionError as error:
        hint = "in double quotes a backslash is written twice: prefer '^v\\d+$' to \"^v\\\\d+$\""
        raise _Wrong(f"cannot be used: {error.message}", hint, "syntax") from None
    return given


def _size(given: Value, kind: InputType, path: Path, report: Report) -> Value:
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise _Wrong(f"must be a whole number, 0 or more, not {kind_and_value(given)}", "e.g. 3")
    return given


def _bound(given: Value, kind: InputType, path: Path, report: Report) -> Value:
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise _Wrong(f"must be a number, not {kind_and_value(given)}", "e.g. 10")
    return given


def _enum(given: Value, kind: InputType, path: Path, report: Report) -> Value:
    if not isinstance(given, list) or not given:
        raise _Wrong(f"must be a list of the allowed values, not {shown(given)}", "e.g. enum: [a, b]")
    allowed = []
    for index, value in enumerate(given):
        try:
            if kind == "string" and not isinstance(value, str):
                raise ValueError(f'must be text, e.g. "hello", not {kind_and_value(value)}')
            allowed.append(converted(value, kind))
        except ValueError as error:
            hint = "put quotes around it" if kind == "string" else "change it, or the type of the input"
            report(Problem("wrong_type", f"a value of 'enum' {error}", hint, (*path, index)))
    return allowed


def _item_type(given: Value, kind: InputType, path: Path, report: Report) -> Value:
    return read_type(given, path, report, "type of items")


def _keys(given: Value, kind: InputType, path: Path, report: Report) -> Value:
    if not isinstance(given, list) or not all(isinstance(key, str) for key in given):
        raise _Wrong(f"must be a list of names, not {shown(given)}", "e.g. required_keys: [host, port]")
    return given


def _properties(given: Value, kind: InputType, path: Path, report: Report) -> Value:
    if not isinstance(given, dict):
        raise _Wrong(
            f"must be a mapping of keys, not {kind_and_value(given)}",
            "e.g. properties: {port: {type: integer}}",
        )
    return {key: _property(key, spec, (*path, key), report) for key, spec in given.items()}


def _property(key: str, spec: Value, path: Path, report: Report) -> Value:
    if isinstance(spec, str):
        return {"type": read_type(spec, path, report), "rules": {}}
    if not isinstance(spec, dict):
        message = f"'{key}' must be a type or a mapping, not {kind_and_value(spec)}"
        report(Problem("wrong_type", message, f"e.g. {key}: {{type: string}}", path))
        return {"type": "any", "rules": {}}
    for problem in unknown_keys(spec, (*_PROPERTY_KEYS, *RULES), path, f"the property '{key}'"):
        report(problem)
    kind = read_type(spec.get("type", "any"), (*path, "type"), report)
    inline = {rule: wanted for rule, wanted in spec.items() if rule in RULES}
    rules = read_rules(inline, kind, f"the property '{key}'", path, report)
    below = (*path, "validation")
    rules |= read_rules(spec.get("validation"), kind, f"the property '{key}'", below, report)
    found: dict[str, Value] = {"type": kind, "rules": rules}
    required = spec.get("required", False)
    if not isinstance(required, bool):
        message = f"'required' must be true or false, not {kind_and_value(required)}"
        report(Problem("wrong_type", message, "write true or false", (*path, "required")))
    elif required:
        found["required"] = True
    if isinstance(spec.get("description"), str):
        found["description"] = spec["description"]
    return found


_READERS: dict[str, Callable[[Value, InputType, Path, Report], Value]] = {
    "pattern": _pattern,
    "min_length": _size,
    "max_length": _size,
    "enum": _enum,
    "min": _bound,
    "max": _bound,
    "min_items": _size,
    "max_items": _size,
    "item_type": _item_type,
    "required_keys": _keys,
    "properties": _properties,
}

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
    """Reads the `inputs` at `path`; `required` is the default for inputs that do not set it."""
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
        # An input with a default is optional, whatever its `required` is.
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
                    f"the default of input '{name}' is used as written: references in it are not resolved",
                    "write the reference where the input is used",
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
