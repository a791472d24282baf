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
from dataclasses import dataclass, field, replace
from typing import Protocol, cast

from workflows_mcp.dialects.keys import (
    Key,
    Kind,
    Path,
    Reader,
    Schema,
    as_written,
    flag,
    keys,
    mapping,
    note,
    object_schema,
    unknown_keys,
    word,
)
from workflows_mcp.plan import Computed, ComputedOnError, Use
from workflows_mcp.values import Value, did_you_mean, kind_and_value, nearest, shown

# ----------------------------------------------------------------------------------------------------
# Splits a path in the state into keys: texts, numbers and templates.
#
#     raw.results.{{ item | path_to_key }}.hints      ("raw", "results", "{{ item | path_to_key }}", "hints")
#     raw.files[{{ index }}].attempts                 ("raw", "files", "{{ index }}", "attempts")
#     raw.files[0].names["a.b"]                       ("raw", "files", 0, "names", "a.b")
#
# A `{{ }}` with the text around it, up to the next dot or bracket, is one key, even if its value has dots.


StatePath = tuple[Value, ...]
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


def read_path(text: str, language: Pieces) -> StatePath:
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


def field_of(keys: StatePath) -> str | None:
    """The field of `raw` or `state` in a path; None if it is known only at run time."""
    name = keys[1]
    return name if isinstance(name, str) and "{{" not in name else None


def _keys(text: str, language: Pieces) -> StatePath:
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

_SOURCE = re.compile(r"(raw|state|computed|inputs|config)((?:\.[\w-]+)+)")
_BARE = re.compile(r"[\w-]+(?:\.[\w-]+)*")
_BRACED = re.compile(r"\{\{\s*((?:(?!\{\{|\}\}).)*?)\s*\}\}", re.DOTALL)


def _read_type(reader: Reader, given: Value, path: Path, uses: list[Use]) -> str:
    if isinstance(given, str) and given in TYPES:
        return TYPES[given]
    names = dict.fromkeys(TYPES.values())
    hint = did_you_mean(str(given), TYPES, what="types") if isinstance(given, str) else ""
    hint = hint if "did you mean" in hint else f"types: {', '.join(names)}"
    reader.problem("unknown_type", f"there is no field type {shown(given)}", hint, path)
    return "any"


def _read_script(reader: Reader, given: Value, path: Path, uses: list[Use]) -> str:
    if isinstance(given, bool | int | float):
        given = shown(given)
    if not isinstance(given, str) or not given.strip():
        reader.wrong_type("JavaScript", given, f'e.g. {path[-1]}: "input.length > 0"', path)
        return "null"
    references = reader.references
    known = len(references.problems)
    uses += references.in_transform(given, path)
    braced = _BRACED.fullmatch(given.strip())
    if len(references.problems) > known and braced is not None:
        del references.problems[known:]
        message = f"'{path[-1]}' is JavaScript, not a template"
        reader.problem("syntax", message, f"leave out the braces: {path[-1]}: {braced[1]}", path)
    return given


_type = Kind("type", {"enum": list(TYPES)}, _read_type)
_script = Kind("JavaScript", {"type": ["string", "number", "boolean"]}, _read_script)
_source: Schema = {"type": "string", "pattern": r"^(?:raw|state|computed|inputs|config)(?:\.[^.\s]+)+$"}
_sources: Schema = {"anyOf": [_source, {"type": "array", "minItems": 1, "items": _source}]}
FIELD = keys(
    Key("type", _type, "The type of its values.", "any"),
    Key("description", note, "For readers of the file."),
)
COMPUTED = keys(
    Key(
        "from",
        Kind("path or list", _sources),
        "A path, the `input` of its transform; or a list of paths.",
    ),
    Key("transform", _script, "JavaScript that computes it from `input`."),
    Key(
        "on_error", word("use_fallback", "propagate", "ignore"), "Its value when its transform fails.", "null"
    ),
    Key("fallback", as_written, "The value if it cannot be computed; implies `use_fallback`."),
    Key("validate", _script, "JavaScript that is true if `output` is valid; if not, it has failed."),
    Key("static", flag("true: the field always has its 'value'"), "`true`: it always has its `value`."),
    Key("value", as_written, "The value of a static field."),
    *FIELD.values(),
)
_field_types: Schema = {
    "type": "object",
    "additionalProperties": {"anyOf": [Key("type", _type, "").schema, object_schema(FIELD)]},
}
_computed: Schema = {"type": "object", "additionalProperties": {"$ref": "#/$defs/computed"}}
DEFAULT_STATE = keys(
    Key("raw", mapping("e.g. raw: {count: 0}"), "Fields that steps write."),
    Key("state", mapping("e.g. state: {count: 0}"), "Further fields that steps write."),
    Key("computed", as_written, "Has no effect: these fields are computed from others."),
)
STATE_SCHEMA = keys(
    Key("raw", mapping("e.g. raw: {files: array}", schema=_field_types), "Types of fields that steps write."),
    Key("state", mapping("e.g. state: {files: array}", schema=_field_types), "Types of further fields."),
    Key(
        "computed",
        mapping("e.g. computed: {count: {from: raw.files, transform: input.length}}", schema=_computed),
        "Fields that are computed from others.",
    ),
)


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
    """Reads `default_state` and `state_schema`."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self._computed_names: set[str] = set()
        self._state_names: set[str] = set()

    def read(self, given: Mapping[str, Value], path: Path) -> Declared:
        declared = Declared()
        for key, example, read in (
            ("default_state", "e.g. default_state: {raw: {count: 0}}", self._defaults),
            ("state_schema", "e.g. state_schema: {raw: {files: array}}", self._schema),
        ):
            if given.get(key) is not None:
                declared.is_given = True
                where = (*path, key)
                read(mapping(example).value(self.reader, given[key], where, []), where, declared)
        return declared

    # Initial values

    def _defaults(self, sections: dict[str, Value], path: Path, declared: Declared) -> None:
        reader = self.reader
        values = reader.values(DEFAULT_STATE, sections, path, [])
        for key, given in sections.items():
            where = (*path, key)
            if key == "computed" and given:
                message = "computed fields have no initial values: they are computed from other fields"
                hint = "remove it; they are declared under state_schema: {computed: …}"
                reader.problem("without_effect", message, hint, where, on_key=True, warning=True)
            elif key in WRITABLE and key in values:
                declared.in_defaults += reader.references.in_value(values[key], where)
                declared.initial[key] = {**declared.initial[key], **values[key]}
            elif key not in DEFAULT_STATE:
                message = f"'{key}' is outside of 'raw' and 'state'"
                hint = f"put it below raw: default_state: {{raw: {{{key}: {shown(given, 30)}}}}}"
                reader.problem("unknown_key", message, hint, where, on_key=True)
                declared.initial["raw"] = {**declared.initial["raw"], key: given}

    # Types

    def _schema(self, sections: dict[str, Value], path: Path, declared: Declared) -> None:
        reader = self.reader
        for problem in unknown_keys(sections, STATE_SCHEMA, path, "'state_schema'"):
            key = str(problem.path[-1])
            if isinstance(sections[key], str) and sections[key] in TYPES:
                hint = f"put it below raw: state_schema: {{raw: {{{key}: {sections[key]}}}}}"
                problem = replace(problem, hint=hint)  # noqa: PLW2901
                declared.types["raw"][key] = "any"
            reader.report(problem)
        values = reader.values(STATE_SCHEMA, sections, path, [])
        for part in WRITABLE:
            for name, spec in values.get(part, {}).items():
                declared.types[part][name] = self._type(spec, (*path, part, name))
        computed = values.get("computed", {})
        self._computed_names = set(computed)
        self._state_names = declared.fields("state") - declared.fields("raw")
        for name, spec in computed.items():
            declared.places[name] = (*path, "computed", name)
            declared.computed[name] = self._computed(name, spec, declared.places[name], declared)

    def _type(self, given: Value, path: Path) -> str:
        if isinstance(given, dict):
            self.reader.problems += unknown_keys(given, FIELD, path, f"the field '{path[-1]}'")
            return str(self.reader.values(FIELD, given, path, []).get("type", "any"))
        return "any" if given is None else _read_type(self.reader, given, path, [])

    # Computed fields

    def _computed(self, name: str, given: Value, path: Path, declared: Declared) -> Computed:
        reader = self.reader
        if not isinstance(given, dict):
            message = f"the computed field '{name}' must be a mapping, not {kind_and_value(given)}"
            example = f"e.g. {name}: {{from: raw.files, transform: input.length}}"
            reader.problem("wrong_type", message, example, path)
            return Computed(static=True)
        reader.problems += unknown_keys(given, COMPUTED, path, f"the computed field '{name}'")
        if given.get("static") not in (None, False):
            return self._static(name, given, path)
        if "value" in given:
            message = f"the computed field '{name}' has a 'value', but not static: true"
            reader.problem("wrong_value", message, "add a line: static: true", (*path, "value"), on_key=True)
        uses: list[Use] = []
        values = reader.values(COMPUTED, given, path, uses)
        misspelt = any(key not in COMPUTED and nearest(key, ["transform"]) for key in given)
        if "transform" not in values and not misspelt:
            message, hint = f"the computed field '{name}' needs a 'transform'", 'transform: "input.length"'
            reader.problem("missing_key", message, f"add a line: {hint}", path, on_key=True)
        declared.uses[name] = uses
        on_error = values.get("on_error")
        if on_error == "use_fallback" and "fallback" not in given:
            message = "on_error: use_fallback needs a 'fallback'"
            reader.problem("missing_key", message, "add a line: fallback: []", (*path, "on_error"))
        if "fallback" in given and on_error not in ("use_fallback", None):
            message = f"'fallback' is never used with on_error: {on_error}"
            hint, where = "write on_error: use_fallback", (*path, "fallback")
            reader.problem("wrong_value", message, hint, where, on_key=True)
        if "fallback" in given and on_error is None:
            on_error = "use_fallback"
        return Computed(
            sources=self._sources(name, values.get("from"), (*path, "from")),
            many=isinstance(given.get("from"), list),
            transform=values.get("transform", ""),
            on_error=cast(ComputedOnError, on_error or "null"),
            fallback=given.get("fallback"),
            validate=values.get("validate", ""),
        )

    def _static(self, name: str, given: dict[str, Value], path: Path) -> Computed:
        reader = self.reader
        about = {key: it for key, it in given.items() if key in ("static", "type")}
        if reader.values(COMPUTED, about, path, [])["static"]:
            if "value" not in given:
                message = f"the static field '{name}' needs a 'value'"
                reader.problem("missing_key", message, "add a line: value: …", path, on_key=True)
            for key in ("from", "transform", "on_error", "fallback", "validate"):
                if given.get(key) is not None:
                    message = f"'{key}' has no effect on a static field, which always has its 'value'"
                    hint = "remove it, or remove static: true"
                    reader.problem("unknown_key", message, hint, (*path, key), on_key=True)
            reader.references.in_value(given.get("value"), (*path, "value"))
        return Computed(static=True, value=given.get("value"))

    def _sources(self, name: str, given: Value, path: Path) -> tuple[str, ...]:
        if given is None:
            return ()
        if isinstance(given, str):
            found = [self._source(name, given, path)]
        elif isinstance(given, list) and given:
            found = [self._source(name, it, (*path, index)) for index, it in enumerate(given)]
        else:
            hint = 'e.g. from: "raw.files", or from: ["raw.files", "raw.status"]'
            self.reader.wrong_type("a path or a list of them", given, hint, path)
            found = []
        return tuple(it for it in found if it)

    def _source(self, name: str, given: Value, path: Path) -> str:
        """The path of a source of a computed field; empty if it is not valid."""
        if isinstance(given, str) and _SOURCE.fullmatch(given):
            return given
        documented = self._documented(name, given)
        if documented:
            message = f"{shown(given)} works, but is not the documented spelling"
            self.reader.problem("spelling", message, f"write from: {documented}", path, warning=True)
            return documented
        hint = 'e.g. from: "raw.files" or "computed.valid_files"'
        if isinstance(given, str) and _BARE.fullmatch(given) and (raw := written_as(given)):
            hint = f"write {raw}, or computed.{raw.partition('.')[2]} for a computed field"
        self.reader.problem("bad_path", f"{shown(given)} is not a path of the state", hint, path)
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
