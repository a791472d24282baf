"""Reads the state that a reactive document declares: initial values, types, computed fields.

    default_state: {raw: {files: []}}
    state_schema:
      raw: {files: array}
      computed:
        sources: {from: "raw.files", transform: "input.filter(f => f.endsWith('.py'))"}

A run resolves the templates in `default_state` when it starts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, cast

from workflows_mcp.dialects.document_keys import unknown_keys
from workflows_mcp.dialects.steps import read_word
from workflows_mcp.errors import Problem
from workflows_mcp.plan import Computed, ComputedOnError, ReferenceReader, Use
from workflows_mcp.values import Value, did_you_mean, kind_and_value, nearest, shown

# ----------------------------------------------------------------------------------------------------
# Splits a path in the state into keys: texts, numbers and templates.
#
#     raw.results.{{ item | path_to_key }}.hints      ("raw", "results", "{{ item | path_to_key }}", "hints")
#     raw.files[{{ index }}].attempts                 ("raw", "files", "{{ index }}", "attempts")
#     raw.files[0].names["a.b"]                       ("raw", "files", 0, "names", "a.b")
#
# A `{{ }}` with the text around it, up to the next dot or bracket, is one key, even if its value has dots.


Keys = tuple[Value, ...]


WRITABLE = ("raw", "state")

_READ_ONLY = {
    "computed": "write the field that it is computed from, e.g. raw.files",
    "inputs": "inputs never change; write the field of the same name in raw: raw.name",
    "config": "the configuration never changes: keep changing values in raw",
}

_OF_EXPRESSIONS = ("this", "global")

"""Names of the whole state in expressions."""

_FIRST_STAND_IN = 0xE000

"""Characters of this private range replace the expressions of a path while it is split."""

_SEGMENT = re.compile(
    r"""(?:(?P<dot>\.)|(?=\[)|\A)(?:\[\s*(?:(?P<index>\d+)|"(?P<double>[^"]+)"|'(?P<single>[^']+)'|"""
    r"""(?P<inside>[^\]"'\s.]+))\s*\]|(?P<word>[^\s.\[\]{}"']+))"""
)


class Pieces(Protocol):
    """A language that finds the expressions of a template, as written."""

    def pieces(self, text: str) -> tuple[str, ...]: ...


class WrongPath(ValueError):
    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def read_path(text: str, language: Pieces) -> Keys:
    """The keys of a path; raises WrongPath, or ExpressionError for a malformed expression."""
    keys = _keys(text, language)
    head = keys[0]
    if head in WRITABLE:
        if len(keys) < 2:
            raise WrongPath(f"'{text}' as a whole cannot be written", f"name a field of it: {head}.name")
        return keys
    if isinstance(head, str) and head in _READ_ONLY:
        raise WrongPath(f"'{text}' cannot be written", _READ_ONLY[head])
    message = f"'{text}' does not say which part of the state is written"
    path = written_as(text)
    if not path:
        raise WrongPath(message, "name a field of it, e.g. raw.count")
    hint = f"write {path}"
    if len(keys) > 1 or not isinstance(head, str) or "{{" in head:
        hint = f"a path to write starts with raw. or state.: {path}"
    raise WrongPath(message, hint)


def written_as(text: str) -> str:
    """The path of a field, with `raw.` or `state.`; empty if the text names no field.

    `this.x` and `global.x` are spellings of expressions: in a path they are `raw.x`.
    """
    for name in _OF_EXPRESSIONS:
        text = "" if text == name else text.removeprefix(f"{name}.")
    if text.startswith(tuple(f"{name}." for name in WRITABLE)):
        return text
    return f"raw.{text}" if text and text not in (*WRITABLE, *_READ_ONLY) else ""


def field_of(keys: Keys) -> str | None:
    """The field of `raw` or `state` in a path; None if it is known only at run time."""
    name = keys[1]
    return name if isinstance(name, str) and "{{" not in name else None


def _keys(text: str, language: Pieces) -> Keys:
    pieces = language.pieces(text)
    masked = text
    for number, piece in enumerate(pieces):
        masked = masked.replace(piece, chr(_FIRST_STAND_IN + number), 1)

    def restored(part: str) -> str:
        for number, piece in enumerate(pieces):
            part = part.replace(chr(_FIRST_STAND_IN + number), piece)
        return part

    keys: list[Value] = []
    position = 0
    while position < len(masked):
        match = _SEGMENT.match(masked, position)
        if match is None or (match["dot"] and (match["word"] is None or not keys)):
            rest = restored(masked[position:])
            hint = 'separate keys by dots, or put them in brackets: raw.files[0], raw.results["a.ts"]'
            raise WrongPath(f"'{text}' is not a valid path: cannot read '{rest}'", hint)
        if match["index"] is not None:
            keys.append(int(match["index"]))
        else:
            key = match["double"] or match["single"] or match["inside"] or match["word"]
            keys.append(restored(key))
        position = match.end()
    if not keys:
        raise WrongPath("the path is empty", "e.g. path: raw.count")
    return tuple(keys)


Path = tuple[str | int, ...]


TYPES: Mapping[str, str] = {
    "string": "string",
    "str": "string",
    "text": "string",
    "number": "number",
    "float": "number",
    "integer": "integer",
    "int": "integer",
    "boolean": "boolean",
    "bool": "boolean",
    "array": "array",
    "list": "array",
    "object": "object",
    "dict": "object",
    "timestamp": "timestamp",
    "datetime": "timestamp",
    "any": "any",
}

"""For each spelling of a field type: its name in plans."""

SECTIONS = (*WRITABLE, "computed")

FIELD_KEYS = ("type", "description")

COMPUTED_KEYS = (
    "from", "transform", "on_error", "fallback", "validate", "static", "value", "type", "description",
)  # fmt: skip

ON_ERROR = ("use_fallback", "propagate", "ignore")

_SOURCE = re.compile(r"(raw|state|computed|inputs|config)((?:\.[\w-]+)+)")

_BARE = re.compile(r"[\w-]+(?:\.[\w-]+)*")

_BRACED = re.compile(r"\{\{\s*((?:(?!\{\{|\}\}).)*?)\s*\}\}", re.DOTALL)


@dataclass(slots=True)
class Declared:
    """The state that a document or a task declares."""

    initial: dict[str, Value] = field(default_factory=lambda: {"raw": {}, "state": {}})
    types: dict[str, dict[str, str]] = field(default_factory=lambda: {"raw": {}, "state": {}})
    computed: dict[str, Computed] = field(default_factory=dict)
    places: dict[str, Path] = field(default_factory=dict)
    """The path of each computed field in the document."""
    uses: dict[str, list[Use]] = field(default_factory=dict)
    """The references in the transform of each computed field."""
    in_defaults: list[Use] = field(default_factory=list)
    is_given: bool = False
    """Whether the document declares any state."""

    def fields(self, part: str) -> set[str]:
        """The fields of `raw` or of `state` that have a type or an initial value."""
        return {*self.types[part], *self.initial[part]}


class StateReader:
    def __init__(self, references: ReferenceReader, problems: list[Problem]) -> None:
        self.references = references
        self.problems = problems
        self._computed_names: set[str] = set()
        self._state_names: set[str] = set()

    def read(self, given: Mapping[str, Value], path: Path) -> Declared:
        declared = Declared()
        declared.is_given = any(given.get(key) is not None for key in ("default_state", "state_schema"))
        if given.get("default_state") is not None:
            self._defaults(given["default_state"], (*path, "default_state"), declared)
        if given.get("state_schema") is not None:
            self._schema(given["state_schema"], (*path, "state_schema"), declared)
        return declared

    def _problem(self, code: str, message: str, hint: str, path: Path, *, on_key: bool = False) -> None:
        self.problems.append(Problem(code, message, hint, path, on_key=on_key))

    def _mapping(self, given: Value, path: Path, example: str) -> dict[str, Value]:
        if isinstance(given, dict):
            return given
        if given is not None:
            message = f"'{path[-1]}' must be a mapping, not {kind_and_value(given)}"
            self._problem("wrong_type", message, example, path)
        return {}

    # Initial values

    def _defaults(self, given: Value, path: Path, declared: Declared) -> None:
        sections = self._mapping(given, path, "e.g. default_state: {raw: {count: 0}}")
        for key, value in sections.items():
            where = (*path, key)
            if key == "computed":
                if value:
                    message = "computed fields have no initial values: they are computed from other fields"
                    hint = "remove it; they are declared under state_schema: {computed: …}"
                    self.problems.append(
                        Problem("without_effect", message, hint, where, on_key=True, warning=True)
                    )
            elif key in WRITABLE:
                fields = self._mapping(value, where, f"e.g. {key}: {{count: 0}}")
                declared.in_defaults += self.references.in_value(fields, where)
                declared.initial[key] = {**declared.initial[key], **fields}
            else:
                message = f"'{key}' is outside of 'raw' and 'state'"
                hint = f"put it below raw: default_state: {{raw: {{{key}: {shown(value, 30)}}}}}"
                self._problem("unknown_key", message, hint, where, on_key=True)
                declared.initial["raw"] = {**declared.initial["raw"], key: value}

    # Types

    def _schema(self, given: Value, path: Path, declared: Declared) -> None:
        sections = self._mapping(given, path, "e.g. state_schema: {raw: {files: array}}")
        for problem in unknown_keys(sections, SECTIONS, path, "'state_schema'"):
            key = str(problem.path[-1])
            if isinstance(sections[key], str) and sections[key] in TYPES:
                hint = f"put it below raw: state_schema: {{raw: {{{key}: {sections[key]}}}}}"
                self._problem(problem.code, problem.message, hint, problem.path, on_key=True)
                declared.types["raw"][key] = "any"
            else:
                self.problems.append(problem)
        for part in WRITABLE:
            where = (*path, part)
            fields = self._mapping(sections.get(part), where, f"e.g. {part}: {{files: array}}")
            for name, spec in fields.items():
                declared.types[part][name] = self._type(spec, (*where, name))
        where = (*path, "computed")
        example = "e.g. computed: {count: {from: raw.files, transform: input.length}}"
        computed = sections.get("computed")
        self._computed_names = set(computed) if isinstance(computed, dict) else set()
        self._state_names = declared.fields("state") - declared.fields("raw")
        for name, spec in self._mapping(sections.get("computed"), where, example).items():
            declared.places[name] = (*where, name)
            declared.computed[name] = self._computed(name, spec, (*where, name), declared)

    def _type(self, given: Value, path: Path) -> str:
        if isinstance(given, dict):
            self.problems += unknown_keys(given, FIELD_KEYS, path, f"the field '{path[-1]}'")
            if "type" not in given:
                return "any"
            given, path = given["type"], (*path, "type")
        if given is None:
            return "any"
        if isinstance(given, str) and given in TYPES:
            return TYPES[given]
        names = dict.fromkeys(TYPES.values())
        hint = did_you_mean(str(given), TYPES, what="types") if isinstance(given, str) else ""
        hint = hint if "did you mean" in hint else f"types: {', '.join(names)}"
        self._problem("unknown_type", f"there is no field type {shown(given)}", hint, path)
        return "any"

    # Computed fields

    def _computed(self, name: str, given: Value, path: Path, declared: Declared) -> Computed:
        example = f"e.g. {name}: {{from: raw.files, transform: input.length}}"
        if not isinstance(given, dict):
            message = f"the computed field '{name}' must be a mapping, not {kind_and_value(given)}"
            self._problem("wrong_type", message, example, path)
            return Computed(static=True)
        self.problems += unknown_keys(given, COMPUTED_KEYS, path, f"the computed field '{name}'")
        if "type" in given:
            self._type(given["type"], (*path, "type"))
        if given.get("static") is not None and not isinstance(given["static"], bool):
            message = f"'static' must be true or false, not {kind_and_value(given['static'])}"
            self._problem("wrong_type", message, "true: the field always has its 'value'", (*path, "static"))
            return Computed(static=True)
        if given.get("static"):
            return self._static(name, given, path)
        if "value" in given:
            message = f"the computed field '{name}' has a 'value', but not static: true"
            self._problem("wrong_value", message, "add a line: static: true", (*path, "value"), on_key=True)
        return self._computed_from(name, given, path, declared)

    def _static(self, name: str, given: dict[str, Value], path: Path) -> Computed:
        if "value" not in given:
            message = f"the static field '{name}' needs a 'value'"
            self._problem("missing_key", message, "add a line: value: …", path, on_key=True)
        for key in ("from", "transform", "on_error", "fallback", "validate"):
            if given.get(key) is not None:
                message = f"'{key}' has no effect on a static field, which always has its 'value'"
                hint = "remove it, or remove static: true"
                self._problem("unknown_key", message, hint, (*path, key), on_key=True)
        self.references.in_value(given.get("value"), (*path, "value"))
        return Computed(static=True, value=given.get("value"))

    def _computed_from(self, name: str, given: dict[str, Value], path: Path, declared: Declared) -> Computed:
        sources = self._sources(name, given.get("from"), path)
        transform = self._script(given, "transform", path)
        misspelt = any(key not in COMPUTED_KEYS and nearest(key, ["transform"]) for key in given)
        if transform is None and not misspelt:
            message = f"the computed field '{name}' needs a 'transform'"
            hint = 'add a line: transform: "input.length"'
            self._problem("missing_key", message, hint, path, on_key=True)
        validate = self._script(given, "validate", path)
        uses = self._in_script(transform, (*path, "transform")) if transform else []
        if validate:
            uses += self._in_script(validate, (*path, "validate"))
        declared.uses[name] = uses
        on_error = None
        if given.get("on_error") is not None:
            on_error = read_word(given["on_error"], ON_ERROR, (*path, "on_error"), self.problems.append)
        if on_error == "use_fallback" and "fallback" not in given:
            message = "on_error: use_fallback needs a 'fallback'"
            self._problem("missing_key", message, "add a line: fallback: []", (*path, "on_error"))
        if "fallback" in given and on_error not in ("use_fallback", None):
            message = f"'fallback' is never used with on_error: {on_error}"
            self._problem(
                "wrong_value", message, "write on_error: use_fallback", (*path, "fallback"), on_key=True
            )
        if "fallback" in given and on_error is None:
            on_error = "use_fallback"
        return Computed(
            sources=sources,
            many=isinstance(given.get("from"), list),
            transform=transform or "",
            on_error=cast(ComputedOnError, on_error or "null"),
            fallback=given.get("fallback"),
            validate=validate or "",
        )

    def _in_script(self, script: str, path: Path) -> list[Use]:
        known = len(self.references.problems)
        uses = self.references.in_transform(script, path)
        braced = _BRACED.fullmatch(script.strip())
        if len(self.references.problems) > known and braced is not None:
            del self.references.problems[known:]
            message = f"'{path[-1]}' is JavaScript, not a template"
            self._problem("syntax", message, f"leave out the braces: {path[-1]}: {braced[1]}", path)
        return uses

    def _script(self, given: dict[str, Value], key: str, path: Path) -> str | None:
        script = given.get(key)
        if script is None or (isinstance(script, str) and script.strip()):
            return script
        if isinstance(script, bool | int | float):
            return shown(script)
        message = f"'{key}' must be JavaScript, not {kind_and_value(script)}"
        self._problem("wrong_type", message, f'e.g. {key}: "input.length > 0"', (*path, key))
        return "null"

    def _sources(self, name: str, given: Value, path: Path) -> tuple[str, ...]:
        where = (*path, "from")
        if given is None:
            return ()
        if isinstance(given, str):
            found = self._source(name, given, where)
            return (found,) if found else ()
        if isinstance(given, list) and given:
            each = [self._source(name, it, (*where, index)) for index, it in enumerate(given)]
            return tuple(it for it in each if it)
        message = f"'from' must be a path or a list of them, not {kind_and_value(given)}"
        self._problem(
            "wrong_type", message, 'e.g. from: "raw.files", or from: ["raw.files", "raw.status"]', where
        )
        return ()

    def _source(self, name: str, given: Value, path: Path) -> str:
        """The path of a source of a computed field; empty if it is not valid."""
        if isinstance(given, str) and _SOURCE.fullmatch(given):
            return given
        documented = self._documented(name, given)
        if documented:
            message = f"{shown(given)} works, but is not the documented spelling"
            self.problems.append(
                Problem("spelling", message, f"write from: {documented}", path, warning=True)
            )
            return documented
        hint = 'e.g. from: "raw.files" or "computed.valid_files"'
        if isinstance(given, str) and _BARE.fullmatch(given) and (raw := written_as(given)):
            hint = f"write {raw}, or computed.{raw.partition('.')[2]} for a computed field"
        self._problem("bad_path", f"{shown(given)} is not a path of the state", hint, path)
        return ""

    def _documented(self, name: str, given: Value) -> str:
        """The path for `this.x`, `{{ x }}` or `{{ raw.x }}`; empty for any other text."""
        braced = _BRACED.fullmatch(given.strip()) if isinstance(given, str) else None
        text = braced[1] if braced else given if isinstance(given, str) else ""
        of_state = text.removeprefix("this.")
        if not (braced or of_state != text) or not _BARE.fullmatch(of_state):
            return ""
        if _SOURCE.fullmatch(of_state):
            return of_state
        field = of_state.partition(".")[0]
        if field in self._computed_names and field != name:
            return f"computed.{of_state}"
        return f"state.{of_state}" if field in self._state_names else f"raw.{of_state}"
