"""Following a path into a scope: the one way in which `a.b[0].c` finds its value, and the one error
for a path that leads nowhere. Values are data: no attribute of a Python object is ever reached."""

from __future__ import annotations

from typing import Any

from workflows_mcp.errors import ExpressionError
from workflows_mcp.expressions.base import MISSING, Reference, Scope
from workflows_mcp.values import Value, did_you_mean, kind_of


def follow_if_there(reference: Reference, scope: Scope) -> Any:
    """The value that `reference` leads to, as plain data; MISSING where there is none, also where a block
    that did not run shows the outputs that it would have had."""
    value: Any = scope
    for position, part in enumerate(reference.path):
        kind = type(value)
        if kind is dict or position == 0:
            value = value.get(part, MISSING) if type(part) is str else MISSING
        elif kind is list:
            value = _item(value, part)
        elif hasattr(value, "lookup"):
            value = getattr(value, "lookup_made", value.lookup)(part)
        else:
            return MISSING
        if value is MISSING:
            return MISSING
    return value.plain() if hasattr(value, "plain") else value


def follow(reference: Reference, scope: Scope) -> Value:
    """The value that `reference` leads to, as plain data."""
    value: Any = scope
    for position, part in enumerate(reference.path):
        kind = type(value)
        if kind is dict or position == 0:
            found = value.get(part, MISSING) if type(part) is str else MISSING
        elif kind is list:
            found = _item(value, part)
        elif hasattr(value, "lookup"):
            found = value.lookup(part)
        else:
            found = MISSING
        if found is MISSING:
            raise _nothing_there(reference, position, value, part)
        value = found
    return value.plain() if hasattr(value, "plain") else value


def _item(items: list[Any], part: str | int) -> Any:
    index = part if type(part) is int else int(part) if str(part).isdecimal() else -1
    return items[index] if 0 <= index < len(items) else MISSING


def _nothing_there(reference: Reference, position: int, value: Any, part: str | int) -> ExpressionError:
    parent = str(Reference(reference.path[:position], 0)) if position else ""
    if position == 0:
        names, what = sorted(value), "a reference starts with one of"
    elif isinstance(value, dict):
        names, what = sorted(value), f"'{parent}' has"
    elif isinstance(value, list):
        message = f"${{{reference}}} does not exist: '{parent}' is a list of {len(value)}"
        return ExpressionError(
            message, hint="positions count from 0", offset=reference.offset, code="undefined"
        )
    elif hasattr(value, "names"):
        names, what = value.names(), f"'{parent}' has"
    else:
        message = f"${{{reference}}} does not exist: '{parent}' is {kind_of(value)}, it has no parts"
        return ExpressionError(message, offset=reference.offset, code="undefined")
    where = f"'{parent}' has no '{part}'" if parent else f"there is no '{part}'"
    return ExpressionError(
        f"${{{reference}}} does not exist: {where}",
        hint=did_you_mean(str(part), names, what=what),
        offset=reference.offset,
        code="undefined",
    )
