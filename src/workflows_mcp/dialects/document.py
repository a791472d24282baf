"""Reads the keys that workflows of all dialects have: the header, and the declarations of inputs.

    name: deploy
    tags: [release]
    inputs:
      version: {type: string, description: What to build}
      retries: integer                                        # short for {type: integer}
      size: {type: number, validation: {min: 1, max: 10}}

The dialect decides whether an input without `required` must be given.
"""

from __future__ import annotations

from functools import partial
from pathlib import PurePath
from typing import Any

from workflows_mcp.dialects.keys import (
    EXTENSION,
    WRITTEN,
    Key,
    Keys,
    Kind,
    Path,
    Reader,
    Schema,
    as_written,
    flag,
    keys,
    literal,
    mapping,
    note,
    object_schema,
    text,
    unknown_keys,
)
from workflows_mcp.dialects.process import BUDGET_KEY
from workflows_mcp.errors import ExpressionError
from workflows_mcp.expressions import compiled
from workflows_mcp.plan import (
    RULES,
    SEMANTICS,
    TYPE_NAMES,
    InputSpec,
    InputType,
    ReferenceReader,
    Use,
    Violation,
    converted,
    fitted,
)
from workflows_mcp.values import Value, did_you_mean, kind_and_value, shown

# ----------------------------------------------------------------------------------------------------
# The header of a workflow.


def _read_tags(reader: Reader, given: Value, path: Path, uses: list[Use]) -> tuple[str, ...]:
    if isinstance(given, str):
        return (given,)
    if isinstance(given, list) and all(isinstance(tag, str | int | float) for tag in given):
        return tuple(str(tag) for tag in given)
    reader.problem("wrong_type", "'tags' must be a list of words", "e.g. tags: [python, test]", path)
    return ()


def _read_secrets(reader: Reader, given: Value, path: Path, uses: list[Use]) -> bool:
    if given != "required":
        message = f"'secrets' can only be: required, not {kind_and_value(given)}"
        hint = (
            "with secrets: required, all secrets must exist at the start; without it, when a step needs them"
        )
        reader.problem("wrong_value", message, hint, path)
    return bool(given == "required")


_tags = Kind("list", {"type": ["array", "string"], "items": {"type": WRITTEN}}, _read_tags)
switch = flag("write true or false, without quotes")
INPUTS = mapping(
    "e.g. inputs: {version: {type: string}}",
    " of names",
    {"additionalProperties": {"$ref": "#/$defs/input"}},
)


def workflow_keys(dialect: str, known_by: str, *own: Key) -> Keys:
    """The keys of a workflow in a dialect: those that all dialects have, and its own."""
    return keys(
        Key("name", text, "The name to find and call the workflow.", "the name of the file"),
        Key("version", text, "For readers of the file."),
        Key("description", text, "The purpose of the workflow."),
        Key("author", note, "For readers of the file."),
        Key("tags", _tags, "Words to filter the list of workflows."),
        Key(
            "prompt", switch, "Whether clients offer a prompt for it, with its inputs as arguments.", "false"
        ),
        Key("dialect", Kind(f"`{dialect}`", {"enum": [dialect]}), f"Optional: {known_by}."),
        Key("elicitation", switch, "Whether questions go to the user directly, if the client can do that."),
        Key(
            "secrets",
            Kind("`required`", {"enum": ["required"]}, _read_secrets),
            "`required`: all secrets must exist at the start, not only when a step needs one.",
        ),
        Key("inputs", INPUTS, "The inputs, by name."),
        BUDGET_KEY,
        *own,
    )


def read_header(reader: Reader, table: Keys) -> tuple[str, dict[str, Any]]:
    """The name of a workflow, and the fields of its plan that every dialect has; reports unknown keys."""
    document = reader.document
    own = {key: item for key, item in document.value.items() if not key.startswith(EXTENSION)}
    reader.check_keys(table, own, (), "a workflow")
    header = ("name", "version", "description", "tags", "prompt", "elicitation", "secrets", "budget")
    given = reader.values({key: table[key] for key in header}, own, (), [])
    return given.get("name") or PurePath(document.source.file).stem, {
        "description": given.get("description", ""),
        "tags": given.get("tags", ()),
        "prompt": given.get("prompt", False),
        "version": given.get("version", ""),
        "file": document.source.file,
        "elicitation": given.get("elicitation"),
        "secrets_required": given.get("secrets", False),
        "budget": given.get("budget"),
        "semantics": SEMANTICS,
    }


def task_description(reader: Reader, given: dict[str, Value], path: Path) -> str:
    """The description of the task at `path`; empty for the workflow itself, which has it in its header."""
    found = given.get("description") if path else None
    return "" if found is None else str(text.value(reader, found, (*path, "description"), []))


# ----------------------------------------------------------------------------------------------------
# Reads the `validation:` of an input into rules that `plan.inputs` checks.
#
# validation: {pattern: "^v\d+$", max_length: 20}
# validation:
#   required_keys: [host]
#   properties:
#     port: {type: integer, validation: {min: 1, max: 65535}}     # or: {type: integer, min: 1, max: 65535}


def _read_pattern(reader: Reader, given: Value, path: Path, uses: list[Use]) -> Value:
    if not isinstance(given, str):
        message = f"'pattern' must be text, not {kind_and_value(given)}"
        reader.problem("wrong_value", message, "e.g. pattern: '^[a-z]+$'", path)
        return None
    try:
        compiled(given)
    except ExpressionError as error:
        hint = "in double quotes a backslash is written twice: prefer '^v\\d+$' to \"^v\\\\d+$\""
        reader.problem("syntax", f"'pattern' cannot be used: {error.message}", hint, path)
        return None
    return given


def _read_item_type(reader: Reader, given: Value, path: Path, uses: list[Use]) -> InputType:
    return _read_type(given, path, reader, "type of items")


_rule = partial(literal, code="wrong_value")
_length = _rule("number", {"type": "integer", "minimum": 0}, "a whole number, 0 or more", "e.g. 3")
_bound = _rule("number", {"type": "number"}, "a number", "e.g. 10")
_texts: Schema = {"type": "array", "items": {"type": "string"}}
_values: Schema = {"type": "array", "minItems": 1}
_allowed = _rule("list", _values, "a list of the allowed values", "e.g. enum: [a, b]", show=shown)
_names = _rule("list", _texts, "a list of names", "e.g. required_keys: [host, port]", show=shown)
_inside = _rule(
    "mapping", {"type": "object"}, "a mapping of keys", "e.g. properties: {port: {type: integer}}"
)
VALIDATION = keys(
    Key(
        "pattern",
        Kind("text", {"type": "string"}, _read_pattern),
        "A regular expression that is found in the text.",
    ),
    Key("min_length", _length, "The minimum number of characters."),
    Key("max_length", _length, "The maximum number of characters."),
    Key("enum", _allowed, "The allowed values."),
    Key("min", _bound, "The minimum of a number."),
    Key("max", _bound, "The maximum of a number."),
    Key("min_items", _length, "The minimum number of items."),
    Key("max_items", _length, "The maximum number of items."),
    Key("item_type", Kind("type", {"enum": list(TYPE_NAMES)}, _read_item_type), "The type of every item."),
    Key("required_keys", _names, "The keys that an object must have."),
    Key(
        "properties",
        _inside,
        "The types of its keys, or mappings with type, description, required and rules.",
    ),
)
"""The rules of `validation`; `plan.RULES` says which types each is for."""
_KINDS = {"string": "text", "list": "lists", "object": "objects"}
_PROPERTY_KEYS = ("type", "description", "required", "validation")


def _read_type(given: Value, path: Path, reader: Reader, what: str = "input type") -> InputType:
    known = TYPE_NAMES.get(given) if isinstance(given, str) else None
    if known is not None:
        return known
    hint = did_you_mean(str(given), TYPE_NAMES, what="types", limit=20)
    reader.problem("unknown_type", f"there is no {what} {shown(given)}", hint, path)
    return "any"


def _read_rules(given: Value, kind: InputType, name: str, path: Path, reader: Reader) -> dict[str, Value]:
    """The rules for an input of this type; `name` is its name in messages."""
    if given is None:
        return {}
    if not isinstance(given, dict):
        reader.wrong_type("a mapping of rules", given, "e.g. validation: {min: 1, max: 10}", path)
        return {}
    reader.problems += unknown_keys(given, VALIDATION, path, "validation")
    fitting = {}
    for rule in given.keys() & VALIDATION.keys():
        kinds = RULES[rule].kinds
        if given[rule] is None or not kinds or kind in (*kinds, "any"):
            fitting[rule] = given[rule]
            continue
        message = f"'{rule}' is for {_KINDS.get(kinds[0], 'numbers')}, and {name} is of type {kind}"
        known = [name for name, it in RULES.items() if not it.kinds or kind in it.kinds]
        hint = f"rules for {kind}: {', '.join(known)}"
        reader.problem("wrong_value", message, hint, (*path, rule), on_key=True)
    found = reader.values(VALIDATION, fitting, path, [])
    rules = {rule: found[rule] for rule in given if found.get(rule) is not None}
    if "enum" in rules:
        rules["enum"] = _enum(rules["enum"], kind, (*path, "enum"), reader)
    if "properties" in rules:
        where = (*path, "properties")
        inside = {key: _property(key, it, (*where, key), reader) for key, it in rules["properties"].items()}
        rules["properties"] = inside
        needed = [key for key, spec in inside.items() if spec.pop("required", False)]
        if needed:
            rules["required_keys"] = list(dict.fromkeys([*rules.get("required_keys", ()), *needed]))
    for least, most in (("min", "max"), ("min_length", "max_length"), ("min_items", "max_items")):
        if least in rules and most in rules and rules[least] > rules[most]:
            message = f"'{least}' is greater than '{most}', so no value is valid"
            reader.problem("wrong_value", message, "swap the two", (*path, least))
    return rules


def _enum(given: list[Value], kind: InputType, path: Path, reader: Reader) -> list[Value]:
    allowed = []
    for index, value in enumerate(given):
        try:
            if kind == "string" and not isinstance(value, str):
                raise ValueError(f'must be text, e.g. "hello", not {kind_and_value(value)}')
            allowed.append(converted(value, kind))
        except ValueError as error:
            hint = "put quotes around it" if kind == "string" else "change it, or the type of the input"
            reader.problem("wrong_type", f"a value of 'enum' {error}", hint, (*path, index))
    return allowed


def _property(key: str, spec: Value, path: Path, reader: Reader) -> dict[str, Value]:
    if isinstance(spec, str):
        return {"type": _read_type(spec, path, reader), "rules": {}}
    if not isinstance(spec, dict):
        message = f"'{key}' must be a type or a mapping, not {kind_and_value(spec)}"
        reader.problem("wrong_type", message, f"e.g. {key}: {{type: string}}", path)
        return {"type": "any", "rules": {}}
    known = (*_PROPERTY_KEYS, *VALIDATION)
    reader.problems += unknown_keys(spec, known, path, f"the property '{key}'")
    kind = _read_type(spec.get("type", "any"), (*path, "type"), reader)
    inline = {rule: wanted for rule, wanted in spec.items() if rule in VALIDATION}
    rules = _read_rules(inline, kind, f"the property '{key}'", path, reader)
    below = (*path, "validation")
    rules |= _read_rules(spec.get("validation"), kind, f"the property '{key}'", below, reader)
    found: dict[str, Value] = {"type": kind, "rules": rules}
    if reader.values(INPUT, {"required": spec.get("required", False)}, path, [])["required"]:
        found["required"] = True
    if isinstance(spec.get("description"), str):
        found["description"] = spec["description"]
    return found


# ----------------------------------------------------------------------------------------------------
# The declarations of inputs.


_alias: Schema = {"type": "array", "items": {"type": "string", "minLength": 1}}
_aliases = literal("list", _alias, "a list of names", "e.g. aliases: [commit_message]", [])
INPUT = keys(
    Key("type", Kind("type", {"enum": list(TYPE_NAMES)}, null=False), "The type of its values.", "any"),
    Key("description", text, "For the caller of the workflow."),
    Key("default", as_written, "The value if none is given; an input with a default is optional."),
    Key("required", flag(null=False), "Whether it must be given; otherwise it is null if it is not given."),
    Key("aliases", _aliases, "Other names of the input."),
    Key("validation", Kind("mapping", object_schema(VALIDATION)), "Rules for a value beyond its type."),
)
_DEFAULTS = {
    "string": ["string", "null"],
    "number": ["number", "string", "null"],
    "integer": ["integer", "string", "null"],
    "float": ["number", "string", "null"],
    "boolean": ["boolean", "string", "null"],
    "list": ["array", "string", "null"],
    "object": ["object", "string", "null"],
}
"""The types of a default that can be converted to the type of its input."""


def input_declaration() -> Schema:
    """The JSON Schema of the declaration of an input."""
    conditions = []
    for kind, accepted in _DEFAULTS.items():
        spellings = [name for name, it in TYPE_NAMES.items() if it == kind]
        chosen: Schema = {"const": kind} if spellings == [kind] else {"enum": spellings}
        then: Schema = {"properties": {"default": {"type": accepted}}}
        conditions.append({"if": {"properties": {"type": chosen}, "required": ["type"]}, "then": then})
    about = "An input: its type, or a mapping with type, description, default and required."
    return {
        **object_schema(INPUT, about),
        "type": ["object", "string", "null"],
        "if": {"type": "string"},
        "then": {"enum": list(TYPE_NAMES)},
        "else": {"allOf": conditions},
    }


def read_inputs(declared: Value, path: Path, reader: Reader, *, required: bool) -> dict[str, InputSpec]:
    """Reads the `inputs` at `path`; `required` is the default for inputs that do not set it."""
    if declared is None:
        return {}
    given: dict[str, Value] = INPUTS.value(reader, declared, path, [])
    return {name: _input(name, spec, (*path, name), reader, required) for name, spec in given.items()}


def _input(name: str, spec: Value, path: Path, reader: Reader, required: bool) -> InputSpec:
    if isinstance(spec, str):
        return InputSpec(type=_read_type(spec, path, reader), required=required)
    if spec is None:
        return InputSpec(required=required)
    if not isinstance(spec, dict):
        message = f"input '{name}' must be a type or a mapping, not {kind_and_value(spec)}"
        reader.problem("wrong_type", message, f"e.g. {name}: {{type: string, default: {shown(spec)}}}", path)
        return InputSpec()
    reader.problems += unknown_keys(spec, INPUT, path, f"input '{name}'")
    given = reader.values(INPUT, spec, path, [])
    kind = _read_type(spec.get("type", "any"), (*path, "type"), reader)
    rules = _read_rules(spec.get("validation"), kind, f"input '{name}'", (*path, "validation"), reader)
    found = InputSpec(
        kind,
        given.get("description", ""),
        given.get("required", required),
        rules=rules,
        aliases=tuple(given.get("aliases", ())),
    )
    if "default" not in spec:
        return found
    default = _default(name, spec["default"], found, (*path, "default"), reader)
    # An input with a default is optional, whatever its `required` is.
    return InputSpec(kind, found.description, False, default, True, rules, found.aliases)


def _default(name: str, given: Value, spec: InputSpec, path: Path, reader: Reader) -> Value:
    if given is None:
        return None
    if ReferenceReader(reader.references.language).in_value(given, path):
        message = f"the default of input '{name}' is used as written: references in it are not resolved"
        hint = "write the reference where the input is used"
        reader.problem("literal_default", message, hint, path, warning=True)
    default, violations = fitted(given, spec.type, spec.rules, name)
    is_number = spec.type == "string" and isinstance(given, int | float)
    if is_number and not violations:
        violations = [Violation(name, f"must be text, not {kind_and_value(given)}")]
    for at, wrong in violations:
        inside = "" if at == name else f", in {at.removeprefix(name).removeprefix('.')},"
        hint = "put quotes around it to make it text" if is_number else ""
        hint = hint or f"change the type of '{name}' or its default"
        reader.problem("wrong_type", f"the default of input '{name}'{inside} {wrong}", hint, path)
    return None if violations else default
