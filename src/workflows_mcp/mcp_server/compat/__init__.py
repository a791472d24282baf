"""Toolsets with the names and shapes of older systems: `graph`, `stateful`, `reactive`.

Each module has the tools of one toolset, and translates the answers of the service to its shapes.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping

_PARAMETER = re.compile(r"(<?)\bparameters\.(\w+)")


def parameters_called(
    called: str, instructions: str, *, as_before: Container[str] = (), renamed: Mapping[str, str] = {}
) -> str:
    """Name parameters in instructions as a toolset does: `parameters.command` as `definition.command`.

    `called` has a place for the name; parameters in `as_before` stay under `parameters`.
    """

    def put(found: re.Match[str]) -> str:
        opening, name = found.groups()
        if name in as_before:
            return found[0]
        text = called.format(renamed.get(name, name))
        return f"<{text.strip('`')}" if opening else text

    return _PARAMETER.sub(put, instructions)
