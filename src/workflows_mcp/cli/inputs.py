"""Inputs from the command line: `name=text`, `name:=json`, and files of them.

Text stays text here; the types that a workflow declares turn it into numbers and lists.
"""

from __future__ import annotations

from collections.abc import Sequence

from workflows_mcp.cli.reading import Unreadable, text_of
from workflows_mcp.errors import InvalidInputs
from workflows_mcp.values import Value, from_json, kind_of


def read_inputs(pairs: Sequence[str], file: str | None) -> dict[str, Value]:
    """Those of the file, and over them those given one by one."""
    inputs = _from_file(file) if file is not None else {}
    for pair in pairs:
        name, value = _pair(pair)
        inputs[name] = value
    return inputs


def _pair(pair: str) -> tuple[str, Value]:
    name, separator, text = pair.partition("=")
    if not separator or not name.strip(":"):
        raise InvalidInputs(f"--input {pair!r} is no input", hint="write name=text, or name:=JSON")
    if not name.endswith(":"):
        return name, text
    try:
        return name[:-1], from_json(text)
    except ValueError as error:
        raise InvalidInputs(
            f"--input {pair!r}: the value is not JSON: {error}", hint=f"for text, write {name[:-1]}={text}"
        ) from None


def _from_file(name: str) -> dict[str, Value]:
    try:
        text = text_of(name)
    except Unreadable as why:
        raise InvalidInputs(
            f"the inputs cannot be read from {name}: {why}",
            hint="give --inputs-file a JSON file that is there, or - for stdin",
        ) from None
    try:
        value = from_json(text)
    except ValueError as error:
        raise InvalidInputs(f"{name} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidInputs(f"{name} must hold an object of inputs, not {kind_of(value)}")
    return value
