"""Where the parts of a node stand in its document: each dialect writes them in its own way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

Path = tuple[str | int, ...]


class Layout(NamedTuple):
    """Paths from the node on."""

    condition: Path = ("condition",)
    inputs: Path = ("inputs",)
    workflow: Path = ("inputs", "workflow")
    given: Path = ("inputs", "inputs")
    """What a call gives to the workflow that it calls."""
    timeout: Path = ("timeout",)
    on_timeout: Path = ("on_timeout",)
    on_failure: Path = ("on_failure",)
    retry: Path = ("retry",)
    items: Path = ("for_each",)
    max_parallel: Path = ("max_parallel",)
    test: Path = ("if",)
    updates: Path = ("updates",)
    value: Path = ("value",)
    seconds: Path = ("duration_seconds",)
    message: Path = ("message",)
    most: Path = ("max_iterations",)
    fallback: Path = ("fallback_value",)
    parameters: Path = ("mcp", "params")
    prompt: Path = ()
    """What sub-agents are told in place of the standard prompt."""


LAYOUTS: Mapping[str, Layout] = {
    "graph": Layout(seconds=("inputs", "duration_seconds"), message=("inputs", "message")),
    "stateful": Layout(
        condition=("when",),
        inputs=(),
        workflow=("workflow",),
        given=("inputs",),
        items=("items",),
        on_failure=("on_error",),
    ),
    "reactive": Layout(
        condition=("when",),
        inputs=(),
        workflow=("workflow",),
        given=("inputs",),
        retry=(),
        on_failure=("on_error",),
        items=("items",),
        test=("condition",),
        prompt=("sub_agent_prompt_override",),
    ),
}
