"""What an answer has that the output schema of its tool does not name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

OPEN = {
    "workflow_state_read": "its fields are those of the workflow",
    "get_workflow_schema": "it is a JSON Schema",
}
"""Tools that answer with fields which nobody can name before."""
_STEPS = ("get_next_step", "submit_step_result")
"""Tools whose answers have the parameters of a step beside its id, in the toolset `stateful`."""


def undeclared(tool: str, schema: dict[str, Any], answer: dict[str, Any]) -> list[str]:
    if tool in OPEN or (tool in _STEPS and {"step_id", "type"} & answer.keys()):
        return []
    return list(_unnamed(schema, answer, ""))


def _unnamed(schema: dict[str, Any], value: Any, path: str) -> Iterator[str]:
    for option in schema.get("anyOf", ()):
        if option != {"type": "null"}:
            yield from _unnamed(option, value, path)
    named = schema.get("properties")
    if isinstance(value, dict) and named is not None:
        yield from (f"{path}{name}" for name in value if name not in named)
        for name in value.keys() & named.keys():
            yield from _unnamed(named[name], value[name], f"{path}{name}.")
    if isinstance(value, list):
        for item in value:
            yield from _unnamed(schema.get("items", {}), item, path)
