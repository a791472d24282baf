"""The paths of the parts of a node in its document, for each dialect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

Path = tuple[str | int, ...]


class Layout(NamedTuple):
    """Paths of the parts of a node, relative to the node."""

    condition: Path = ("condition",)
    inputs: Path = ("inputs",)
    workflow: Path = ("inputs", "workflow")
    given: Path = ("inputs", "inputs")
    """The inputs of a call."""
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
    """The prompt for sub-agents, instead of the standard one."""
    braces: tuple[str, str] = ("{{", "}}")
    """The marks around an expression."""
    as_list: str = "{{ NAME | lines }}; JSON text: | parse_json"
    """How to write the lines of a text as a list, and how to parse JSON text."""

    def reference(self, text: str) -> str:
        """The expression in a text that is exactly one expression; otherwise empty."""
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
