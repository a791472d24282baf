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
    braces: tuple[str, str] = ("{{", "}}")
    """What an expression stands between."""
    as_list: str = "{{ NAME | lines }}; JSON text: | parse_json"
    """The lines of a text as a list, and what a text is JSON of."""

    def reference(self, text: str) -> str:
        """What stands in the braces of a text that is one expression; empty where it is more."""
        opening, closing = self.braces
        text = text.strip()
        inside = text.removeprefix(opening).removesuffix(closing)
        whole = text == f"{opening}{inside}{closing}" and opening not in inside
        return inside.strip() if whole else ""


LAYOUTS: Mapping[str, Layout] = {
    "graph": Layout(
        seconds=("inputs", "duration_seconds"),
        message=("inputs", "message"),
        braces=("${", "}"),
        as_list="${NAME | lines}; JSON text: | json",
    ),
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
        as_list="{{ NAME.split('\\n') }}; JSON text: {{ JSON.parse(NAME) }}",
    ),
}
