"""How what is wrong with JavaScript is told: what was run, where it stands, what to do."""

from __future__ import annotations

import re

from workflows_mcp.errors import TOO_LARGE, TOO_SLOW, ExpressionError
from workflows_mcp.expressions.base import Scope
from workflows_mcp.expressions.javascript_context import Failed, Invalid, OutOfMemory, Stopped
from workflows_mcp.expressions.javascript_rewriting import Written
from workflows_mcp.expressions.javascript_source import unreadable
from workflows_mcp.expressions.javascript_values import known_names
from workflows_mcp.limits import Limits
from workflows_mcp.values import did_you_mean

_SHOWN = 80
_MIB = 1024 * 1024
_OF_NOTHING = re.compile(r"cannot read property '(.+)' of (?:undefined|null)")
_LAST_WORD = re.compile(r"\w+$")
_WORD = re.compile(r"\w+")
_WORDS_OF_OTHERS = {
    "and": "write: &&",
    "or": "write: ||",
    "not": "write: !",
    "is": "write: ===",
    "if": "write: condition ? this : that",
}
_NAMES_OF_OTHERS = {"True": "true", "False": "false", "None": "null"}
_OF_HOSTS = frozenset(
    ["process", "require", "console", "fetch", "window", "globalThis", "setTimeout", "Promise"]
)


def malformed(error: Failed, source: str, written: Written) -> ExpressionError:
    """What the engine cannot read."""
    offset = written.offset(*error.place) if error.place else 0
    words = [_WORD.match(source, offset), _LAST_WORD.search(source[:offset].rstrip())]
    hints = [_WORDS_OF_OTHERS[word[0]] for word in words if word is not None and word[0] in _WORDS_OF_OTHERS]
    return unreadable(error.message.removeprefix("SyntaxError: "), offset, hints[0] if hints else "")


def told(error: Exception, source: str, written: Written, limits: Limits) -> ExpressionError:
    """What went wrong while it was evaluated."""
    what = f"`{excerpt(source)}`"
    if isinstance(error, Stopped):
        return ExpressionError(
            f"{what} took longer than {limits.expression_seconds:g} seconds and was stopped",
            hint=f"look for a loop over too much; {limits.setting('expression_seconds')} changes the limit",
            code=TOO_SLOW,
        )
    if isinstance(error, OutOfMemory):
        return ExpressionError(
            f"{what} needs more than {limits.javascript_bytes / _MIB:g} MiB of memory",
            hint=f"look for what grows and grows; {limits.setting('javascript_bytes')} changes the limit",
            code=TOO_LARGE,
        )
    if isinstance(error, Invalid):
        return ExpressionError(
            f"{_cut(error.result)} is not valid: {what} is not true of it", code="javascript"
        )
    assert isinstance(error, Failed)
    if error.place is None:
        return ExpressionError(f"{error.message} in {what}", code="javascript")
    offset = written.offset(*error.place)
    message = f"{error.message} in `{excerpt(source, offset)}`"
    return ExpressionError(message, hint=_hint(error.message), offset=offset, code="javascript")


def too_large_to_send(source: str, size: int, limits: Limits) -> ExpressionError:
    return ExpressionError(
        f"the values that `{excerpt(source)}` reads are too large: {size / _MIB:.1f} MiB",
        hint=f"{limits.setting('javascript_bytes')} changes the limit",
        code=TOO_LARGE,
    )


def too_long(source: str, length: int, limits: Limits) -> ExpressionError:
    return ExpressionError(
        f"`{excerpt(source)}` gives a text of {length:,} characters, more than {limits.expression_chars:,}",
        hint=f"{limits.setting('expression_chars')} changes the limit",
        code=TOO_LARGE,
    )


def no_such_name(name: str, offset: int, scope: Scope) -> ExpressionError:
    if name in _NAMES_OF_OTHERS:
        hint = f"write: {_NAMES_OF_OTHERS[name]}"
    elif name in _OF_HOSTS:
        hint = "an expression reaches nothing outside itself; what does is a step"
    else:
        hint = did_you_mean(name, known_names(scope))
    return ExpressionError(f"there is no '{name}'", hint=hint, offset=offset, code="undefined")


def excerpt(source: str, offset: int = 0) -> str:
    """The line at `offset` if there are several, else all of it; without much of it where it is long."""
    if "\n" in source.strip():
        offset = offset or len(source) - len(source.lstrip())
        source = source[source.rfind("\n", 0, offset) + 1 :].split("\n", 1)[0]
    return _cut(source.strip())


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _hint(message: str) -> str:
    if found := _OF_NOTHING.search(message):
        return f"there is nothing that could have '{found[1]}'; ?. instead of . gives undefined then"
    return ""
