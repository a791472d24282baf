"""Checks the inputs of a block with the model of its step type.

It checks names, missing inputs and all literal values. A value with an expression is known only at run time,
when the same model checks it.

A number or a boolean that stands for text is used as written: `permissions: 0644` is "0644", `version: 1.10`
is "1.10".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from workflows_mcp.dialects.keys import Keys, Path
from workflows_mcp.dialects.yaml.source import Document
from workflows_mcp.errors import Problem
from workflows_mcp.plan import duration_seconds, is_duration
from workflows_mcp.steps import Step
from workflows_mcp.values import Value, did_you_mean, kind_and_value, nearest

_UNSET = object()
_PLAIN_WORDS = {
    "a valid string": "text",
    "a valid boolean": "true or false",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid list": "a list",
    "a valid dictionary": "a mapping",
}
"""Words in messages of the validator, and our words for the same."""


class StepShape:
    """The names, defaults and types of the inputs of a step type, in one dialect.

    `called` is the name of the type in the dialect; `beside` are other keys in the same mapping; `without`
    are inputs that the dialect does not have; `renamed` are the dialect's names for inputs.
    """

    def __init__(
        self,
        step: Step,
        called: str = "",
        beside: Keys = MappingProxyType({}),
        without: Collection[str] = (),
        renamed: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.step = step
        self.name = called or step.name
        self.renamed = renamed
        self.own = {spelt: name for name, spelt in renamed.items()}
        """The step type's names for renamed inputs."""
        fields = {name: it for name, it in step.Inputs.model_fields.items() if name not in without}
        self.names: dict[str, FieldInfo] = {}
        """The fields by every accepted spelling."""
        self.listed: list[str] = []
        """The spellings that a hint shows."""
        for name, field in fields.items():
            if name in renamed:
                self.names[renamed[name]] = field
                self.listed.append(renamed[name])
                continue
            self.names[name] = self.names[field.alias or name] = field
            if field.alias and field.alias.replace("-", "_") == name:
                self.listed.append(field.alias)
            else:
                self.listed += dict.fromkeys([name, field.alias or name])
        for other, name in step.Inputs.other_names.items():
            if name in fields:
                self.names[other] = fields[name]
        self.beside = {name: key for name, key in beside.items() if name not in self.names}
        self.required = tuple(
            (renamed.get(name, name), renamed.get(name, field.alias or name))
            for name, field in fields.items()
            if field.is_required()
        )
        self.texts = {name for name, field in self.names.items() if _wants_text(field.annotation)}
        """The inputs that are text, or a list or mapping of texts."""
        self.output_defaults = step.output_defaults({})
        timeout = fields.get(step.timeout_input) if step.timeout_input else None
        self.default_timeout = None
        if timeout is not None and not timeout.is_required():
            self.default_timeout = timeout.get_default(call_default_factory=True)

    def as_the_type_has_them(self, inputs: Mapping[str, Value]) -> dict[str, Value]:
        """Renames inputs to the names of the step type."""
        return {self.own.get(name, name): value for name, value in inputs.items()}

    def takes(self) -> str:
        """The inputs of the step type, as a hint."""
        listed = ", ".join(
            f"{name} (required)" if self.names[name].is_required() else name for name in self.listed
        )
        return f"{self.name} takes: {listed}" if listed else f"{self.name} takes no inputs"


def _wants_text(annotation: Any) -> bool:
    """Whether a type is text, optional text, or a list or mapping of texts."""
    if annotation is str:
        return True
    arguments = [argument for argument in get_args(annotation) if argument is not NoneType]
    if get_origin(annotation) is Annotated:
        return _wants_text(arguments[0])
    if get_origin(annotation) in (Union, UnionType):
        return all(_wants_text(argument) for argument in arguments)
    if get_origin(annotation) in (dict, list):
        return _wants_text(arguments[-1])
    return False


def check_step_inputs(
    shape: StepShape,
    inputs: dict[str, Value],
    dynamic: set[str],
    path: Path,
    document: Document,
    *,
    as_a_whole: bool = False,
) -> Iterator[Problem]:
    """Checks the inputs of one step, which are at `path` in the document.

    `dynamic` are the inputs with expressions. Text that is written as a number is stored in `inputs` as text,
    and a timeout with units as seconds.
    `as_a_whole`: also check rules about several inputs if required texts have expressions; the template
    then replaces the text.
    """
    name = shape.name
    missing = [alias for field, alias in shape.required if field not in inputs and alias not in inputs]
    literals = {}
    for key, value in inputs.items():
        if key not in shape.names:
            known = [*shape.listed, *shape.beside]
            hint = did_you_mean(key, known, what=f"{name} takes") if known else shape.takes()
            yield Problem("unknown_input", f"{name} has no input '{key}'", hint, (*path, key), on_key=True)
            if missing and (close := nearest(key, missing)) is not None:
                missing.remove(close)  # one mistake, one problem
            continue
        if key in shape.texts and not isinstance(value, str):
            inputs[key] = value = _as_written(value, (*path, key), document)  # noqa: PLW2901
        if key == shape.step.timeout_input and is_duration(value):
            inputs[key] = value = duration_seconds(value)  # noqa: PLW2901
        if key not in dynamic:
            literals[key] = value
    if missing:
        needs = ", ".join(f"'{alias}'" for alias in missing)
        yield Problem("missing_input", f"{name} needs the input {needs}", shape.takes(), path, on_key=True)
    if as_a_whole:
        texts = {key for key in dynamic if key in shape.names and _is_plain_text(shape.names[key])}
        stand_ins = {key: inputs[key] for key in texts}
        dynamic = dynamic - texts
    else:
        stand_ins = {}
    containers = {key: inputs[key] for key in dynamic if key in shape.names and _is_container(inputs[key])}
    given = {**literals, **stand_ins, **containers}
    try:
        shape.step.Inputs.model_validate(shape.as_the_type_has_them(given))
    except ValidationError as invalid:
        found = [_spelt(shape, error) for error in invalid.errors(include_url=False)]
        errors = [error for error in found if _is_certain(error, dynamic, containers)]
        yield from _wrong_values(shape, inputs, errors, path)
    for own, wrong, offset in shape.step.check_literals(shape.as_the_type_has_them(literals)):
        hint = wrong.hint or f"fix it, or {name} fails each time"
        yield Problem("syntax", wrong.message, hint, (*path, shape.renamed.get(own, own)), offset)


def _spelt(shape: StepShape, error: ErrorDetails) -> ErrorDetails:
    """The error, with the dialect's name of the input."""
    for name, spelt in shape.renamed.items():
        if error["loc"] and error["loc"][0] in (name, shape.names[spelt].alias):
            return {**error, "loc": (spelt, *error["loc"][1:])}
    return error


def _is_plain_text(field: FieldInfo) -> bool:
    return field.annotation is str and field.is_required() and not field.metadata


def _is_container(value: Value) -> bool:
    return isinstance(value, dict | list)


def _is_certain(error: ErrorDetails, dynamic: set[str], containers: Collection[str]) -> bool:
    """Whether an error is independent of the values of expressions.

    Inputs with expressions were left out, except lists and mappings, which can still be of the wrong type.
    Missing inputs are reported elsewhere.
    """
    if not error["loc"]:
        return not dynamic
    if error["loc"][0] in containers:
        return len(error["loc"]) == 1 and error["type"].endswith(("_type", "literal_error"))
    return error["type"] != "missing" or len(error["loc"]) > 1


def _as_written(value: Value, path: Path, document: Document) -> Value:
    """Numbers and booleans as they are written in the file, also inside a list or a mapping."""

    def written(item: Value, *part: str | int) -> Value:
        return document.written((*path, *part)) or item if isinstance(item, int | float) else item

    if isinstance(value, dict):
        return {key: written(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [written(item, index) for index, item in enumerate(value)]
    return written(value)


def _wrong_values(
    shape: StepShape, inputs: dict[str, Value], errors: list[ErrorDetails], path: Path
) -> Iterator[Problem]:
    by_place: dict[Path, list[ErrorDetails]] = {}
    for error in errors:
        by_place.setdefault(_existing(inputs, error["loc"]), []).append(error)
    for place, here in by_place.items():
        value = _value_at(inputs, place)
        reasons = " or ".join(dict.fromkeys(_reason(error) for error in here))
        what = f"'{'.'.join(map(str, place))}'" if place else f"the inputs of {shape.name}"
        got = ""
        if not reasons.startswith("must be"):
            what += ":"  # a message of the step type
        elif place:
            got = f", not {kind_and_value(value)}"
        yield Problem(
            "wrong_type", f"{what} {reasons}{got}", _hint(shape, place, value, here), (*path, *place)
        )


def _existing(inputs: dict[str, Value], location: tuple[int | str, ...]) -> Path:
    """The part of an error's location that is in the document; the rest names types."""
    place: list[str | int] = []
    value: Any = inputs
    for part in location:
        value = _part(value, part)
        if value is _UNSET:
            break
        place.append(part)
    return tuple(place)


def _part(value: Any, part: str | int) -> Any:
    if isinstance(value, dict):
        return value.get(part, _UNSET)
    if isinstance(value, list) and isinstance(part, int) and part < len(value):
        return value[part]
    return _UNSET


def _value_at(inputs: dict[str, Value], place: Path) -> Value:
    value: Any = inputs
    for part in place:
        value = value[part]
    return value


def _reason(error: ErrorDetails) -> str:
    if error["type"] == "extra_forbidden":
        return "is not known here"
    message = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    message = message.replace("Input should be", "must be").split(", unable to parse")[0]
    message = re.sub(r" or instance of \w+$", "", message)
    for technical, plain in _PLAIN_WORDS.items():
        message = message.replace(technical, plain)
    return message[:1].lower() + message[1:]


def _hint(shape: StepShape, place: Path, value: Value, errors: list[ErrorDetails]) -> str:
    if not place:
        return shape.takes()
    for error in errors:
        if error["type"] == "literal_error" and isinstance(value, str):
            close = nearest(value, re.findall(r"'([^']*)'", error["msg"]))
            if close:
                return f"did you mean '{close}'?"
    name = str(place[0])
    description = shape.names[name].description
    return f"{name}: {description}" if description else shape.takes()
