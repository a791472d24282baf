"""Outputs that a command leaves in files: declared on the block, checked, read and given their type.

    outputs:
      coverage:
        type: float
        path: $SCRATCH/coverage.txt

A path is relative to the command's working directory and may not leave it, unless it is in the scratch
directory or the output says `unsafe: true`; what policy forbids stays forbidden. No symbolic links, ordinary
files only, up to the limit on file sizes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workflows_mcp.errors import Forbidden, StepError
from workflows_mcp.policy.handles import World
from workflows_mcp.values import Value, did_you_mean, from_json, kind_of, shown

TYPES = {
    "string": "string",
    "str": "string",
    "int": "integer",
    "integer": "integer",
    "float": "number",
    "number": "number",
    "bool": "boolean",
    "boolean": "boolean",
    "json": "json",
    "list": "list",
    "dict": "object",
    "object": "object",
}
KEYS = ("type", "path", "description", "required", "unsafe")
_YES = frozenset({"true", "1", "yes"})
_NO = frozenset({"false", "0", "no"})
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")

ConfigProblem = tuple[tuple[str | int, ...], str, str]


def check_output_specs(specs: Value, taken: set[str]) -> list[ConfigProblem]:
    """All problems of the declared outputs: (path, message, hint) each. `taken` are names in use."""
    if not isinstance(specs, dict):
        return [(("outputs",), f"outputs must be an object, not {kind_of(specs)}", _EXAMPLE)]
    problems: list[ConfigProblem] = []
    for name, spec in specs.items():
        at = ("outputs", name)
        if name in taken:
            problems.append((at, f"'{name}' is an output of every Shell block", "choose another name"))
        if not isinstance(spec, dict):
            problems.append((at, f"the output '{name}' must be an object, not {kind_of(spec)}", _EXAMPLE))
            continue
        for key in spec:
            if key not in KEYS:
                problems.append(
                    ((*at, key), f"the output '{name}' has an unknown key '{key}'", did_you_mean(key, KEYS))
                )
        if not isinstance(spec.get("path"), str) or not spec["path"].strip():
            problems.append((at, f"the output '{name}' needs a path", _EXAMPLE))
        kind = spec.get("type", "string")
        if not isinstance(kind, str) or kind not in TYPES:
            hint = did_you_mean(str(kind), TYPES, what="types are")
            problems.append(((*at, "type"), f"the output '{name}' has an unknown type '{kind}'", hint))
        for flag in ("required", "unsafe"):
            if not isinstance(spec.get(flag, True), bool):
                message = f"'{flag}' of the output '{name}' must be true or false"
                problems.append(((*at, flag), message, f"{flag}: true"))
    return problems


_EXAMPLE = "for example {type: int, path: $SCRATCH/count.txt}"


def read_outputs(
    specs: Mapping[str, Any],
    *,
    world: World,
    directory: Path,
    environment: Mapping[str, str],
    succeeded: bool,
) -> dict[str, Value]:
    """The declared outputs. After a command that failed, whatever is missing or wrong is null."""
    values: dict[str, Value] = {}
    for name, spec in specs.items():
        try:
            values[name] = _read_output(name, spec, world, directory, environment)
        except StepError:
            if succeeded:
                raise
            values[name] = None
    return values


def _read_output(
    name: str, spec: Mapping[str, Any], world: World, directory: Path, environment: Mapping[str, str]
) -> Value:
    path = _checked_path(name, spec, world, directory, environment)
    hint = f"set {world.limits.setting('file_bytes')} to allow larger ones"
    content = world.read(path, most=world.limits.file_bytes, limit_hint=hint)
    if content is None:
        if not spec.get("required", True):
            return None
        raise StepError(
            f"the output '{name}' is missing: the command left no file at {path}",
            hint="check the path, or say required: false if it need not be there",
        )
    try:
        return _typed(content.decode("utf-8").strip(), TYPES[spec.get("type", "string")])
    except ValueError:
        text = shown(content.decode("utf-8", "replace").strip())
        kind = spec.get("type", "string")
        raise StepError(f"the output '{name}' should be of type {kind}, but {path} holds {text}") from None


def _checked_path(
    name: str, spec: Mapping[str, Any], world: World, directory: Path, environment: Mapping[str, str]
) -> Path:
    text = _VARIABLE.sub(lambda found: environment.get(found[1] or found[2], found[0]), spec["path"])
    path = directory / text
    if path.is_symlink():
        raise Forbidden(f"the output '{name}' must not be a symbolic link: {path}")
    resolved = Path(os.path.realpath(path))
    if world.in_scratch(path):
        return resolved
    if spec.get("unsafe", False):
        return world.path_for_reading(str(path))
    hint = "put it into $SCRATCH, or say unsafe: true on the output"
    if os.path.isabs(text):
        raise Forbidden(f"the output '{name}' has an absolute path: {text}", hint=hint)
    if not resolved.is_relative_to(os.path.realpath(directory)):
        raise Forbidden(f"the output '{name}' is outside the working directory: {resolved}", hint=hint)
    return resolved


def _typed(text: str, kind: str) -> Value:
    """Raises ValueError if the text is not of that kind."""
    if kind == "string":
        return text
    if kind == "integer":
        return int(text)
    if kind == "number":
        number = float(text)
        if number - number != 0:  # infinite, or not a number: no JSON
            raise ValueError(text)
        return number
    if kind == "boolean":
        if text.lower() in _YES:
            return True
        if text.lower() in _NO:
            return False
        raise ValueError(text)
    value = from_json(text)
    if kind != "json" and kind_of(value) != kind:
        raise ValueError(text)
    return value
