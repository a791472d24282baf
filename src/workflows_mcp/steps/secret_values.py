"""Replaces the marks of secrets with their values, in everything that a step gets.

Marks are replaced in inputs, in config and in the values inside code, never in the text of code. If a command
is a single reference, the value of that reference is the code; a secret in it stays a separate value, so that
it becomes neither syntax nor an argument that other users of the machine can see.
"""

from __future__ import annotations

from typing import NamedTuple

from workflows_mcp.expressions import Code
from workflows_mcp.policy import Secrets
from workflows_mcp.values import Value, may_hold_mark


class Given(NamedTuple):
    inputs: dict[str, Value]
    config: dict[str, Value]
    code: dict[str, Code]


def with_secrets(given: Given, secrets: Secrets) -> Given:
    """Return what a step gets, with its secrets; shared if it has no marks. Raises MissingSecret."""
    if not may_hold_mark(given):
        return given
    return Given(
        secrets.put_in(given.inputs),
        secrets.put_in(given.config),
        {name: _code(code, secrets) for name, code in given.code.items()} if given.code else given.code,
    )


def _code(code: Code, secrets: Secrets) -> Code:
    texts, values = code
    if len(values) == 1 and isinstance(values[0], str) and not "".join(texts).strip():
        inner, found = secrets.split(values[0])
        if "".join(inner).strip():
            return Code((texts[0] + inner[0], *inner[1:-1], inner[-1] + texts[1]), found) if found else code
    return Code(texts, tuple(secrets.put_in(value) for value in values))
