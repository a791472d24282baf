"""How what is wrong with an expression is told: where it stands, what is missing, what there is instead."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

from jinja2 import Template, TemplateSyntaxError
from jinja2.utils import missing

from workflows_mcp.errors import TOO_SLOW, ExpressionError
from workflows_mcp.expressions.base import Reference, Scope
from workflows_mcp.expressions.bounds import TookTooLong
from workflows_mcp.expressions.jinja_filters import TooLong
from workflows_mcp.expressions.jinja_functions import Day, Moment
from workflows_mcp.expressions.jinja_sandbox import MissingName
from workflows_mcp.limits import Limits
from workflows_mcp.values import did_you_mean, kind_of

_RAW_HINT = "text that has {{ or {% itself goes between {% raw %} and {% endraw %}"
_SYNTAX_HINTS = {
    "&": "write: and",
    "|": "write: or; one bar stands before a filter",
    "!": "write: not",
    "?": "write: this if condition else that",
    "=": "write == to compare",
    "$": "a name stands there as it is, without $",
}
_TOO_DEEP = "the expression is nested too deeply"
_SHOWN = 80


class OfPiece(Exception):
    """An error that arose in what was made of a piece that stands at a position of the source."""

    def __init__(self, cause: Exception, position: int) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.position = position


def unreadable(
    error: ExpressionError | TemplateSyntaxError | RecursionError, source: str, shift: int
) -> ExpressionError:
    """What is malformed. `shift` is how far the source that was read was ahead of `source`."""
    if isinstance(error, RecursionError):
        return ExpressionError(_TOO_DEEP, code="syntax")
    offset = error.offset if isinstance(error, ExpressionError) else error.lineno - 1
    offset = min(max(offset - shift, 0), max(len(source) - 1, 0))
    if isinstance(error, ExpressionError):
        error.offset = offset
        return error
    at_start = source[:offset].rstrip().endswith(("{{", "{%"))
    hint = _RAW_HINT if at_start else _SYNTAX_HINTS.get(source[offset : offset + 1], "")
    message = re.sub(r" at \d+$", "", error.message or "it is malformed")
    return ExpressionError(
        f"the expression cannot be read: {message}", hint=hint, offset=offset, code="syntax"
    )


def told(
    error: Exception,
    source: str,
    shift: int,
    references: Iterable[Reference],
    scope: Scope,
    limits: Limits,
) -> ExpressionError:
    """What went wrong while an expression was evaluated."""
    position = _position(error)
    if isinstance(error, OfPiece):
        position, error = error.position, error.cause
    offset = max(position - 1 - shift, 0)
    if isinstance(error, MissingName):
        return _absent(error, offset, references, scope)
    if isinstance(error, ExpressionError):
        error.offset = offset
        return error
    if isinstance(error, TookTooLong):
        return ExpressionError(
            f"the expression took longer than {limits.expression_seconds:g} seconds and was stopped",
            hint=f"look for a loop over too much; {limits.setting('expression_seconds')} changes the limit",
            offset=offset,
            code=TOO_SLOW,
        )
    if isinstance(error, RecursionError):
        return ExpressionError(f"{_TOO_DEEP}, or a macro calls itself", offset=offset)
    hint = ""
    if isinstance(error, TooLong):
        hint = f"{limits.setting('expression_chars')} changes the limit"
    elif isinstance(error, TypeError) and "concatenate" in str(error):
        hint = "~ joins values of any kind to text"
    return ExpressionError(f"`{_excerpt(source, offset)}`: {_said(error)}", hint=hint, offset=offset)


def _position(error: BaseException) -> int:
    """Where in the source an error arose: positions are where Jinja has its line numbers."""
    position = 1
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None:
        template = traceback.tb_frame.f_globals.get("__jinja_template__")
        if isinstance(template, Template):
            position = template.get_corresponding_lineno(traceback.tb_lineno)
        traceback = traceback.tb_next
    return position


def _excerpt(source: str, offset: int) -> str:
    """The line that an error arose in, from the braces on."""
    start = source.rfind("\n", 0, offset) + 1
    start = max(start, source.rfind("{", 0, offset + 1) - 1)
    line = source[start:].split("\n", 1)[0].strip()
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"


_KINDS = {
    "str": "text",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "dict": "object",
    "NoneType": "null",
    "builtin_function_or_method": "method",
    "function": "function",
}
_KIND = re.compile(rf"""['"]?\b({"|".join(_KINDS)})\b['"]?""")


_NO_LENGTH = re.compile(r"^object of type ('\w+') has no len\(\)$")


def _said(error: Exception) -> str:
    message = str(error) or type(error).__name__
    if isinstance(error, TypeError):
        message = _NO_LENGTH.sub(r"\1 has no length", message)
        return _KIND.sub(lambda found: _KINDS[found[1]], message)
    return message


# What does not exist

_KINDS_OF_TIME = {Moment: "time", Day: "day"}


def _absent(
    error: MissingName, offset: int, references: Iterable[Reference], scope: Scope
) -> ExpressionError:
    """Names the whole reference if the missing part is part of one."""
    owner, name = error.owner, error.name
    for reference in references:
        position, found_in = _first_missing(reference, scope)
        if position >= 0 and reference.path[position] == name and found_in is owner:
            parent = str(Reference(reference.path[:position], 0)) if position else ""
            message, hint = _nothing_there(parent, owner, name, scope)
            message = f"'{reference}' does not exist: {message}"
            return ExpressionError(message, hint=hint, offset=reference.offset, code="undefined")
    computed = next((root for root in ("state", "inputs") if owner is scope.get(root)), "")
    message, hint = _nothing_there(computed, owner, name, scope)
    if computed == "state":
        hint += f"{'; ' if hint else ''}a step sees only what its needs_state names"
    return ExpressionError(message, hint=hint, offset=offset, code="undefined")


def _first_missing(reference: Reference, scope: Scope) -> tuple[int, Any]:
    """The first part of a reference that is not there, and what it was looked for in; -1 if all are."""
    value: Any = missing
    for position, part in enumerate(reference.path):
        if position == 0:
            if part not in scope:
                return 0, missing
            value = scope[str(part)]
        elif isinstance(value, Mapping) and str(part) in value:
            value = value[str(part)]
        elif isinstance(value, list | str) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            return position, value
    return -1, value


def _nothing_there(parent: str, owner: Any, name: Any, scope: Scope) -> tuple[str, str]:
    """What to say of `name` that is not in `owner`, which is what `parent` leads to if that is known."""
    if owner is missing:
        for root in ("state", "inputs"):
            fields = scope.get(root)
            if isinstance(fields, dict) and name in fields:
                return f"there is no '{name}'", f"did you mean '{root}.{name}'?"
        known = [known for known in scope if not known.startswith("_")]
        return f"there is no '{name}'", did_you_mean(str(name), known, what="there is")
    here = f"'{parent}'" if parent else f"the {_KINDS_OF_TIME.get(type(owner)) or kind_of(owner)}"
    if isinstance(owner, Mapping):
        names = [str(known) for known in owner]
    elif hasattr(type(owner), "names"):
        names = owner.names()
    elif isinstance(owner, list | tuple) and isinstance(name, int):
        return f"{here} has no position {name}: it has {len(owner)} items", "positions count from 0"
    elif parent:
        return f"{here} is {kind_of(owner)}, it has no '{name}'", ""
    else:
        return f"{here} has no '{name}'", ""
    return f"{here} has no '{name}'", did_you_mean(str(name), names, what=f"{here} has")
