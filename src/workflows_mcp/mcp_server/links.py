"""Links to what an answer shows in part only: a client that reads resources gets the whole value by its
address, without a model that reads it in slices.

The note at a cut names the value; the link is made from it. Text of a step that looks like such a note leads
to a value of the same run at most.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from mcp.types import CallToolResult, ResourceLink

from workflows_mcp.mcp_server.resources import run_uri
from workflows_mcp.values import from_json

MOST = 5
"""A link costs the model some tokens."""
_NOTE = re.compile(
    r"… \[cut: (\d+ \w+) in all; read on with "
    r"get_workflow_state\(workflow_id='([^']*)', paths=(\[.*\]), offset=\d+\)\]$"
)


def with_links(result: CallToolResult) -> CallToolResult:
    """The answer with a link to each long value in it; the same one where nothing is cut."""
    found = dict(_cut_values(result.structured_content))
    if not found:
        return result
    links = [
        ResourceLink(
            type="resource_link",
            uri=f"{run_uri(run_id)}/values/{quote(path, safe='.')}",
            name=path,
            description=f"the whole value: {size}",
        )
        for (run_id, path), size in list(found.items())[:MOST]
    ]
    return result.model_copy(update={"content": [*result.content, *links]})


def _cut_values(value: Any) -> Iterator[tuple[tuple[str, str], str]]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _cut_values(item)
    elif isinstance(value, list):
        for item in value:
            yield from _cut_values(item)
    elif isinstance(value, str) and value.endswith("]") and (note := _NOTE.search(value[-400:])):
        try:
            [path] = from_json(note[3])
        except ValueError:
            return
        yield (note[2], path), note[1]
