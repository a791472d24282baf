"""Tables of keys: what a mapping of a definition can have, how each key is read, and its JSON Schema.

    WAIT = keys(
        Key("seconds", number(0, "e.g. seconds: 30"), "How long.", required="seconds: 30"),
        Key("message", anything, "The text to show while it waits."),
    )
    reader.check_keys(WAIT, given, path, "a step of type wait")     # reports unknown and missing keys
    reader.values(WAIT, given, path, uses)                          # {"seconds": 30}
    object_schema(WAIT, "A step of type wait.")

Reading, errors, `workflows-mcp schema` and the reference tables in `docs/` derive from the tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from workflows_mcp.dialects.yaml.source import Document
from workflows_mcp.errors import Problem
from workflows_mcp.plan import (
    MOST_ATTEMPTS,
    RETRY_ON,
    ReferenceReader,
    Use,
    WrongRetry,
    as_mapping,
    at_once,
    converted,
    duration_seconds,
    read_rule,
)
from workflows_mcp.values import Value, did_you_mean, kind_and_value, nearest, shown

Path = tuple[str | int, ...]
Report = Callable[[Problem], None]
Schema = dict[str, Any]
Read = Callable[[Any, Value, Path, list[Use]], Any]
"""Reads a value at a path with a reader: returns it, reports what is wrong, and adds its references."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of values."""

    what: str
    """What it is, for the reference tables."""
    schema: Schema
    """What it can be, apart from null."""
    read: Read | None = None
    """None: it is used as written, or read together with other keys."""
    null: bool = True
    """Whether null is the same as no value."""

    def value(self, reader: Reader, given: Value, path: Path, uses: list[Use]) -> Any:
        """Reads the value at a path; adds its references to `uses`."""
        return given if self.read is None else self.read(reader, given, path, uses)


def not_null(kind: Kind) -> Kind:
    return replace(kind, null=False)


@dataclass(frozen=True, slots=True)
class Key:
    name: str
    kind: Kind
    description: str
    default: str = ""
    """For the reference tables."""
    required: str = ""
    """How to write the line; empty: the key is optional."""
    same: str = ""
    """Another name of the key."""

    @property
    def is_required(self) -> bool:
        """Whether there is no other key that can stand for it."""
        return bool(self.required) and not self.same

    @property
    def schema(self) -> Schema:
        about = {"description": self.description} if self.description else {}
        may_be_null = self.kind.null and not self.is_required
        return about | (or_null(self.kind.schema) if may_be_null else self.kind.schema)


Keys = Mapping[str, Key]


def keys(*each: Key) -> Keys:
    return {key.name: key for key in each}


def chosen(table: Keys, *names: str) -> Keys:
    return {name: table[name] for name in names}


# ----------------------------------------------------------------------------------------------------
# JSON Schema. It accepts expressions for any value, and numbers as text.


_EXPRESSION = r"\$\{|\{\{|\{%"
"""The start of an expression, in any dialect."""
_NUMBER = r"^\s*[-+]?(?:[0-9._][0-9._eE+-]*|[iI][nN][fF][a-zA-Z]*|[nN][aA][nN])\s*$"
_TIME = r"^\s*(?:[0-9]+(?:\.[0-9]+)?\s*(?:ms|s|m|h|d)\s*)+$"
_TRUE = r"[tT](?:[rR][uU][eE])?|[yY](?:[eE][sS])?|[oO][nN]|1"
_FALSE = r"[fF](?:[aA][lL][sS][eE])?|[nN][oO]?|[oO][fF][fF]|0"
DEFINITIONS: dict[str, Schema] = {
    "expression": {
        "type": "string",
        "pattern": _EXPRESSION,
        "patternErrorMessage": "text is taken here only as expression: ${inputs.name} or {{ inputs.name }}",
    },
    "number_text": {
        "type": ["string", "boolean"],
        "pattern": f"{_EXPRESSION}|{_NUMBER}",
        "patternErrorMessage": "a number, or an expression such as ${inputs.name} or {{ inputs.name }}",
    },
    "time_text": {
        "type": ["string", "boolean"],
        "pattern": f"{_EXPRESSION}|{_NUMBER}|{_TIME}",
        "patternErrorMessage": "a number, a time such as 30m, or an expression such as ${inputs.name}",
    },
    "flag": {
        "anyOf": [
            {"type": "boolean"},
            {
                "type": "string",
                "pattern": f"{_EXPRESSION}|^(?:{_TRUE}|{_FALSE})$",
                "patternErrorMessage": "true or false, or an expression: ${inputs.name} or {{ inputs.name }}",
            },
            {"type": "integer", "minimum": 0, "maximum": 1},
        ]
    },
}
"""Shared definitions: text whose value only the run knows, and text that is a number, a time or a flag."""
EXTENSION = "x-"
"""Keys with this prefix belong to the author, e.g. for anchors."""
OWN_KEYS: Schema = {f"^{EXTENSION}": {"description": "Your own keys, e.g. for anchors."}}
EXPRESSION: Schema = {"$ref": "#/$defs/expression"}
NUMBER_TEXT: Schema = {"$ref": "#/$defs/number_text"}
TIME_TEXT: Schema = {"$ref": "#/$defs/time_text"}
ANNOTATIONS = ("description", "default", "examples", "deprecated")


def expression_or(schema: Schema, text: Schema = EXPRESSION) -> Schema:
    """Accepts what `schema` accepts, or an expression, or the same value as text."""
    about = {key: value for key, value in schema.items() if key in ANNOTATIONS}
    return {**about, "anyOf": [{key: it for key, it in schema.items() if key not in ANNOTATIONS}, text]}


def number_or_expression(schema: Schema) -> Schema:
    return expression_or(schema, NUMBER_TEXT)


def time_or_expression(schema: Schema) -> Schema:
    return expression_or(schema, TIME_TEXT)


def or_null(schema: Schema) -> Schema:
    """Accepts null too."""
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    if "enum" in schema:
        schema = {**schema, "enum": [*schema["enum"], None]}
    if "type" in schema:
        kinds = schema["type"]
        schema = {**schema, "type": [*([kinds] if isinstance(kinds, str) else kinds), "null"]}
    return schema


def object_schema(table: Keys, description: str = "", *, extensions: bool = False, **more: Any) -> Schema:
    """The schema of a mapping with the keys of a table; `extensions`: also keys of the author."""
    schema: Schema = {"description": description} if description else {}
    schema["type"] = "object"
    schema["properties"] = {name: key.schema for name, key in table.items()}
    if extensions:
        schema["patternProperties"] = OWN_KEYS
    schema["additionalProperties"] = False
    required = [name for name, key in table.items() if key.is_required]
    return {**schema, **({"required": required} if required else {}), **more}


# ----------------------------------------------------------------------------------------------------
# Keys that a table does not have.


_EQUIVALENTS: dict[str, tuple[str, ...]] = {
    "if": ("condition", "when"),
    "when": ("condition",),
    "condition": ("when",),
    **dict.fromkeys(("needs", "dependencies", "after"), ("depends_on",)),
    **dict.fromkeys(("matrix", "strategy", "loop", "with_items", "foreach"), ("for_each", "items")),
    **dict.fromkeys(("with", "args", "params"), ("inputs",)),
    **dict.fromkeys(("jobs", "tasks"), ("blocks",)),
    "uses": ("type",),
    **dict.fromkeys(("retries", "attempts"), ("retry",)),
    **dict.fromkeys(("timeout-minutes", "timeout_seconds", "timeout_minutes"), ("timeout",)),
    **dict.fromkeys(("continue-on-error", "continue_on_error", "ignore_errors"), ("on_failure", "on_error")),
    **dict.fromkeys(("enum", "choices", "options", "pattern", "min", "max"), ("validation",)),
}
"""For each key of another system: its equivalents here; the first one that exists counts."""
_EACH = "for_each: ${inputs.items}, which runs the block once for each item"
_WRITTEN = {
    "matrix for_each": _EACH,
    "strategy for_each": _EACH,
    "uses type": "type: ExecuteWorkflow, with inputs: {workflow: name}",
    "retries retry": "retry: {retries: N}, tries after the first",
    "attempts retry": "retry: N, tries in all",
    "timeout-minutes timeout": "timeout: …, in seconds",
    "timeout_minutes timeout": "timeout: …, in seconds",
}
"""How to write an equivalent, where that is not `equivalent: …`."""


def _equivalent(key: str, known: Collection[str]) -> str:
    """A hint for a key of another system; empty if it has no equivalent here."""
    found = next((it for it in _EQUIVALENTS.get(key, ()) if it in known), "")
    if found in ("on_failure", "on_error"):
        return f"write {found}: continue"
    if found == "validation":
        return (
            f"write validation: {{{'enum: […]' if key in ('enum', 'choices', 'options') else f'{key}: …'}}}"
        )
    return found and f"write {_WRITTEN.get(f'{key} {found}', f'{found}: …')}"


def unknown_keys(
    mapping: Mapping[str, Value], known: Collection[str], path: Path, what: str
) -> Iterator[Problem]:
    for key in mapping:
        if key not in known:
            hint = _equivalent(key, known) or did_you_mean(key, known, what="keys", limit=20)
            yield Problem("unknown_key", f"{what} has no key '{key}'", hint, (*path, key), on_key=True)


# ----------------------------------------------------------------------------------------------------
# Reading.


class Reader:
    """Reads mappings of a document by tables of keys; what is wrong goes into `problems`."""

    def __init__(self, document: Document, references: ReferenceReader) -> None:
        self.document = document
        self.references = references
        self.problems: list[Problem] = []
        self.report: Report = self.problems.append

    def problem(
        self, code: str, message: str, hint: str, path: Path, *, on_key: bool = False, warning: bool = False
    ) -> None:
        self.report(Problem(code, message, hint, path, on_key=on_key, warning=warning))

    def wrong_type(self, wanted: str, given: Value, hint: str, path: Path) -> None:
        message = f"'{path[-1]}' must be {wanted}, not {kind_and_value(given)}"
        self.problem("wrong_type", message, hint, path)

    def check_keys(
        self,
        table: Keys,
        given: Mapping[str, Value],
        path: Path,
        what: str,
        elsewhere: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Reports unknown keys, and missing ones.

        `elsewhere` has keys that other mappings have, and how to write the same here.
        """
        misspelt = set()
        if not given.keys() <= table.keys():
            for problem in unknown_keys(given, table, path, what):
                key = str(problem.path[-1])
                misspelt.add(nearest(key, table))
                self.report(replace(problem, hint=elsewhere[key]) if key in elsewhere else problem)
        for name, wanted in table.items():
            # one mistake, one problem
            if wanted.required and all(
                given.get(it) is None and it not in misspelt for it in (name, wanted.same or name)
            ):
                self.problem("missing_key", f"{what} needs '{name}'", f"add a line: {wanted.required}", path)

    def values(self, table: Keys, given: Mapping[str, Value], path: Path, uses: list[Use]) -> dict[str, Any]:
        """The values of known keys; adds their references to `uses`."""
        found = {}
        for name, value in given.items():
            key = table.get(name)
            if key is not None and (value is not None or not (key.kind.null or key.required)):
                found[name] = key.kind.value(self, value, (*path, name), uses)
        return found

    def is_template(self, given: Value, path: Path, uses: list[Use]) -> bool:
        """Whether a value has references, or a malformed one; adds them to `uses`."""
        malformed = len(self.references.problems)
        found = self.references.in_value(given, path)
        uses += found
        return bool(found) or len(self.references.problems) > malformed

    def is_dynamic(self, value: Value) -> bool:
        """Whether only the run knows a value."""
        if isinstance(value, str):
            return self.references.language.is_dynamic(value)
        return isinstance(value, list) and any(self.is_dynamic(item) for item in value)


def read_word(
    given: Value, words: Sequence[str], path: Path, reader: Reader, what: str = "values"
) -> str | None:
    """One of `words`; None if it is not one of them."""
    if given in words:
        return str(given)
    message = f"'{path[-1]}' must be {', '.join(words[:-1])} or {words[-1]}, not {shown(given)}"
    reader.problem("wrong_value", message, did_you_mean(str(given), words, what=what), path)
    return None


# ----------------------------------------------------------------------------------------------------
# Kinds of values that several tables have.


def _read_text(reader: Reader, given: Value, path: Path, uses: list[Use]) -> str:
    """A text; a number is used as written."""
    if isinstance(given, str):
        return given
    if isinstance(given, int | float):
        return reader.document.written(path) or str(given)
    reader.wrong_type("text", given, "put quotes around it to make it text", path)
    return ""


def _read_anything(reader: Reader, given: Value, path: Path, uses: list[Use]) -> Value:
    uses += reader.references.in_value(given, path)
    return given


def _read_seconds(reader: Reader, given: Value, path: Path, uses: list[Use]) -> Value:
    """Seconds, as a number or a template; None if it is neither."""
    found: list[Use] = []
    if reader.is_template(given, path, found) and isinstance(given, str):
        uses += found
        return given
    try:
        seconds = duration_seconds(given)
    except ValueError:
        seconds = 0
    if seconds > 0:
        return seconds
    hint = f"e.g. {path[-1]}: 90, or {path[-1]}: 30m"
    reader.wrong_type("a number of seconds above 0, or a time such as 30m", given, hint, path)
    return None


def _read_parallel(reader: Reader, given: Value, path: Path, uses: list[Use]) -> Value:
    uses += reader.references.in_value(given, path)
    if reader.is_dynamic(given):
        return given
    try:
        return at_once(given)
    except ValueError as error:
        hint = "the number of items that run at the same time"
        reader.problem("wrong_type", f"'{path[-1]}' {error}", hint, path)
        return None


def _read_retry(reader: Reader, given: Value, path: Path, uses: list[Use]) -> dict[str, Value] | None:
    """The rule in `retry`; None if it is not valid. The run checks values with references."""
    uses += reader.references.in_value(given, path)
    try:
        mapping = as_mapping(given)
        read_rule({key: value for key, value in mapping.items() if not reader.is_dynamic(value)})
    except WrongRetry as wrong:
        where = (*path, wrong.key) if isinstance(given, dict) and wrong.key is not None else path
        code = "unknown_key" if wrong.on_key else "wrong_value"
        reader.problem(code, str(wrong), wrong.hint, where, on_key=wrong.on_key)
        return None
    return mapping


WRITTEN = ["string", "number", "boolean"]
"""Text, or a value that is used as text, as written."""
note = Kind("text", {})
"""For readers of the file."""
as_written = Kind("anything", {})
anything = Kind("anything", {}, _read_anything)
text = Kind("text", {"type": WRITTEN}, _read_text)
seconds = Kind("seconds", time_or_expression({"type": "number", "exclusiveMinimum": 0}), _read_seconds)
parallel = Kind("number", number_or_expression({"type": "integer", "minimum": 1}), _read_parallel)
retry = Kind("number or mapping", {"$ref": "#/$defs/retry"}, _read_retry)


def duration(example: str) -> Kind:
    """A constant time in seconds, or text such as `30m`."""

    def read(reader: Reader, given: Value, path: Path, uses: list[Use]) -> float | None:
        try:
            found = duration_seconds(given)
        except ValueError:
            found = 0
        if found > 0:
            return found
        reader.wrong_type("a number of seconds above 0, or a time such as 4h", given, example, path)
        return None

    number: Schema = {"type": "number", "exclusiveMinimum": 0}
    return Kind("time", {"anyOf": [number, {"type": "string", "pattern": f"{_NUMBER}|{_TIME}"}]}, read)


def fits(value: Value, schema: Schema) -> bool:
    """Whether a literal fits a schema of a type, bounds, lengths, a pattern, and such items."""
    kinds = schema.get("type", list(_TYPES))
    if not any(_is_of(value, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)):
        return False
    if isinstance(value, str):
        is_long_enough = len(value) >= schema.get("minLength", 0)
        return is_long_enough and re.search(schema.get("pattern", ""), value) is not None
    if isinstance(value, list):
        items = schema.get("items", {})
        return len(value) >= schema.get("minItems", 0) and all(fits(item, items) for item in value)
    return "minimum" not in schema or bool(value >= schema["minimum"])


_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "array": (list,),
    "object": (dict,),
    "boolean": (bool,),
}


def _is_of(value: Value, kind: str) -> bool:
    return isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def literal(
    what: str,
    schema: Schema,
    wanted: str,
    example: str,
    otherwise: Value = None,
    *,
    code: str = "wrong_type",
    show: Callable[[Value], str] = kind_and_value,
    null: bool = True,
) -> Kind:
    """A value that fits its schema, used as written; `otherwise` takes the place of one that does not."""

    def read(reader: Reader, given: Value, path: Path, uses: list[Use]) -> Value:
        if fits(given, schema):
            return given
        message = f"'{path[-1]}' must be {wanted}, not {show(given)}"
        reader.problem(code, message, example, path)
        return otherwise

    return Kind(what, schema, read, null)


def flag(hint: str = "write true or false", *, null: bool = True) -> Kind:
    return literal("true or false", {"type": "boolean"}, "true or false", hint, False, null=null)


def word(*words: str, what: str = "values") -> Kind:
    """One of some words; None if it is another one."""

    def read(reader: Reader, given: Value, path: Path, uses: list[Use]) -> str | None:
        return read_word(given, words, path, reader, what)

    return Kind(", ".join(f"`{it}`" for it in words), {"enum": list(words)}, read)


def mapping(example: str, of: str = "", schema: Schema | None = None) -> Kind:
    """A mapping that is used as written; `of` says what it has."""
    return literal("mapping", {"type": "object", **(schema or {})}, f"a mapping{of}", example, {})


def table_of(table: Keys, example: str) -> Kind:
    """A mapping with the keys of a table; what is not a mapping has no values."""

    def read(reader: Reader, given: Value, path: Path, uses: list[Use]) -> dict[str, Any]:
        if not isinstance(given, dict):
            reader.wrong_type("a mapping", given, example, path)
            return {}
        reader.problems += unknown_keys(given, table, path, f"'{path[-1]}'")
        return reader.values(table, given, path, uses)

    return Kind("mapping", object_schema(table), read)


def texts(wanted: str, example: str) -> Kind:
    """A text, or a list of texts, none of them empty."""
    own: Schema = {"type": "string", "pattern": r"\S"}
    return literal("list", {**own, "type": ["array", "string"], "items": own}, wanted, example, [])


def condition(example: str, true: str = "{{ true }}", false: str = "{{ false }}") -> Kind:
    def read(reader: Reader, given: Value, path: Path, uses: list[Use]) -> str | None:
        if isinstance(given, bool):
            return true if given else false
        if isinstance(given, str):
            uses += reader.references.in_condition(given, path)
            return given
        message = f"a condition must be text, not {kind_and_value(given)}"
        reader.problem("wrong_type", message, f"e.g. {path[-1]}: {example}", path)
        return None

    return Kind("condition", {"type": ["string", "boolean"]}, read)


def number(least: int, hint: str, *, whole: bool = False) -> Kind:
    """A number, or a template of one."""
    kind = "integer" if whole else "number"

    def read(reader: Reader, given: Value, path: Path, uses: list[Use]) -> Value:
        if (reader.is_template(given, path, uses) or reader.is_dynamic(given)) and isinstance(given, str):
            return given
        try:
            found: float = converted(given, "integer" if whole else "number")
        except ValueError as error:
            reader.problem("wrong_type", f"'{path[-1]}' {error}", hint, path)
            return least
        if found < least:
            message = f"'{path[-1]}' must be {least} or more, not {shown(found)}"
            reader.problem("wrong_value", message, hint, path)
        return found

    return Kind("number", number_or_expression({"type": kind, "minimum": least}), read)


def items(example: str, kinds: tuple[type, ...] = (list,)) -> Kind:
    """A list, a template, or an object if `kinds` has dict."""
    wanted = "a list or an object" if dict in kinds else "a list"

    def read(reader: Reader, given: Value, path: Path, uses: list[Use]) -> Value:
        uses += reader.references.in_value(given, path)
        if isinstance(given, kinds) or reader.is_dynamic(given):
            return given
        reader.wrong_type(wanted, given, example, path)
        return []

    schema: Schema = {"type": ["array", "object"] if dict in kinds else "array"}
    return Kind(wanted.replace("a ", "").replace("an ", ""), expression_or(schema), read)


# ----------------------------------------------------------------------------------------------------
# Keys that blocks and steps of all dialects have.


ON_FAILURE = ("fail", "continue")
ON_INTERRUPT = ("repeat", "ask", "fail")
ON_TIMEOUT = ("fail", "retry", "continue")


def _amount(kind: str, least: float, most: float | None = None, *, null: bool = False) -> Kind:
    bounds: Schema = {"minimum": least} if most is None else {"minimum": least, "maximum": most}
    return Kind("number", number_or_expression({"type": kind, **bounds}), null=null)


_FAILURES: Schema = {"anyOf": [{"type": "integer"}, {"enum": list(RETRY_ON)}, EXPRESSION]}
_LISTED: Schema = {"anyOf": [*_FAILURES["anyOf"], {"type": "array", "items": _FAILURES, "minItems": 1}]}
RETRY = keys(
    Key("attempts", _amount("integer", 1, MOST_ATTEMPTS), "All attempts; `retry: 3` is short for it.", "3"),
    Key(
        "retries",
        _amount("integer", 0, MOST_ATTEMPTS - 1),
        "Attempts after the first, instead of `attempts`.",
    ),
    Key("delay", _amount("number", 0), "Seconds before the second attempt.", "1"),
    Key("backoff", _amount("number", 1), "How much longer each further pause is; 1 keeps it.", "2"),
    Key("max_delay", _amount("number", 0), "The longest pause, in seconds.", "300"),
    Key("jitter", _amount("number", 0, 1), "The random part of a pause: 0.2 is a fifth more or less.", "0"),
    Key(
        "on",
        Kind("word or list", _LISTED),
        "What is retried: `failure` (it failed), `error` (it could not run), `timeout`, `any`, exit codes.",
        "failure, error, timeout",
    ),
    Key(
        "within",
        _amount("number", 0, null=True),
        "Seconds since the first attempt, after which it is not retried.",
    ),
)
"""The keys of `retry`, which `plan.retry` reads."""
